"""Reading a stored document: what it says, and what a view generates from it. Pure, for another process too."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.document import Document, Json, parse_json
from shardfs.format.foreign import ForeignMetadata
from shardfs.format.lens import Lens, NodeContext, Shown
from shardfs.format.lens.unsharded import UnshardedArray, describe
from shardfs.format.lens.v2_attributes import is_image
from shardfs.format.lens.v3 import CONSOLIDATED, ShardedCopy, copies_in, true_group, without_copies
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, fingerprint, parse_document

Copies = Mapping[str, ShardedCopy | None]
"""Which nodes the document of a group describes, by path, and how if as sharded arrays."""

NO_COPIES: Final[Copies] = {}
_BULK: Final = frozenset({"attributes", CONSOLIDATED})


class Contents(NamedTuple):
    """What the document of a node says.

    *array* describes an array with this *fingerprint*; if it must be shown as stored, *reason* says why. *in_image*: it
    is a group with metadata of OME-Zarr 0.5, or is below one.
    """

    metadata: Metadata
    in_image: bool
    array: UnshardedArray | None = None
    fingerprint: bytes = b""
    reason: str | None = None
    shown: Shown | None = None
    copies: Copies = NO_COPIES


def read_document(document: bytes, lens: Lens | None, context: NodeContext) -> Contents:
    """Return what a stored document says, and what *lens* generates; raises `MetadataError`."""
    stored = parse_document(document)
    in_image = context.in_image or (isinstance(stored, GroupMetadata) and is_image(stored.document))
    context = context._replace(in_image=in_image)
    copies = NO_COPIES
    if isinstance(stored, GroupMetadata) and CONSOLIDATED in stored.document:
        copies = _by_path(stored.document)
    if copies:
        stored = GroupMetadata(without_copies(stored.document), is_as_stored=False)
    array, mark, fault = _describe(stored, context)
    shown = _show(lens, stored, array, fault, context) if lens is not None else None
    is_sharded = isinstance(stored, ArrayMetadata) and stored.is_sharded
    return Contents(stored, in_image, array, mark, fault if is_sharded else None, shown, copies)


def read_group(
    document: bytes, lens: Lens | None, context: NodeContext, nodes: Mapping[str, bytes | None]
) -> tuple[GroupMetadata, Shown | None]:
    """Return what a group's document says, with copies that say what *nodes* do (`true_group`), and what is shown."""
    stored = parse_document(document).document
    true = true_group(stored, nodes)
    group = GroupMetadata(true, is_as_stored=true is stored)
    return group, _show(lens, group, None, None, context) if lens is not None else None


def read_large_group(
    document: bytes, lens: Lens | None, context: NodeContext, nodes: Mapping[str, bytes | None]
) -> tuple[GroupMetadata, Shown | None]:
    """Return the same without attributes and copies, which are in the generated texts."""
    group, shown = read_group(document, lens, context, nodes)
    return replace(group, document=_without_bulk(group.document)), shown


class Rest(NamedTuple):
    """What can be said of a document that cannot be used.

    *has_unknown_copies*: other programs may find copies of other documents in it, though it cannot be parsed here.
    """

    shown: Shown | None
    copies: Copies
    has_unknown_copies: bool


def read_broken(document: bytes | None, lens: Lens | None, reason: str) -> Rest:
    """Return what can be said of a *document* that cannot be used for this *reason*; None was not even read."""
    parsed: Json = None
    with suppress(MetadataError):
        parsed = parse_json(document or b"")
    copies = NO_COPIES
    is_unknown = parsed is None and document is not None and CONSOLIDATED.encode() in document.replace(b"\0", b"")
    try:
        copies = _by_path(parsed) if isinstance(parsed, dict) else NO_COPIES
    except MetadataError:
        is_unknown = True
    shown = lens.show_broken(reason, parsed) if lens is not None else None
    return Rest(shown, copies, is_unknown)


def _by_path(document: Document) -> Copies:
    """Return `copies_in` a document by paths without slashes around them."""
    copies = copies_in(document)
    found = {path.strip("/"): copy for path, copy in copies.items()}
    return found | {path.strip("/"): copy for path, copy in copies.items() if copy is not None}


def read_large_document(document: bytes, lens: Lens | None, context: NodeContext) -> Contents:
    """Return the same without attributes and copies, which are in the generated texts."""
    found = read_document(document, lens, context)
    array = None if found.array is None else replace(found.array, document=_without_bulk(found.array.document))
    metadata = replace(found.metadata, document=_without_bulk(found.metadata.document))
    return found._replace(metadata=metadata, array=array)


def shown_by(lens: Lens, stored: Metadata, context: NodeContext) -> Shown:
    """Return what *lens* generates for a node that was read before."""
    array, _, fault = _describe(stored, context)
    return _show(lens, stored, array, fault, context)


def _describe(stored: Metadata, context: NodeContext) -> tuple[UnshardedArray | None, bytes, str | None]:
    """Return the description of an array and its fingerprint, or the reason why there is none."""
    if isinstance(stored, GroupMetadata) or (stored.is_sharded and "" in context.as_stored):
        return None, b"", None
    try:
        return describe(stored, context.drafts), fingerprint(stored), None
    except (MetadataError, NotUnshardable) as error:
        return None, b"", str(error)


def _show(lens: Lens, stored: Metadata, array: UnshardedArray | None, fault: str | None, context: NodeContext) -> Shown:
    if isinstance(stored, ArrayMetadata) and array is None:
        return Shown(reason=fault if lens.translates else None)
    try:
        _check_name(lens, context)
        return lens.show(stored, array, context)
    except (NotShownError, NotUnshardable, MetadataError) as error:
        return Shown(reason=str(error))


def _check_name(lens: Lens, context: NodeContext) -> None:
    """Raise `NotShownError` with the reason if the view has no name for a node: where it shows no array, nothing is."""
    above = context.above
    if above is not None and not isinstance(above.metadata, ForeignMetadata):
        reason = shown_by(lens, above.metadata, above.context).reason
        if reason is not None:
            raise NotShownError(f"it is inside {above}, which is skipped itself: {reason}")
    lens.check_name(context)


def _without_bulk(document: Document) -> dict[str, Json]:
    return {member: value for member, value in document.items() if member not in _BULK}
