"""The lens of Zarr v3, and consolidated metadata of groups for any lens: copies are shown as the array itself is.

Source: discussion of consolidated metadata for the Zarr core specification 3.1, as zarr-python writes it: a member
`consolidated_metadata` with `kind` "inline" and `metadata`, a map of relative paths to documents.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError
from shardfs.format.document import Document, Json, canonical, encode_json, parse_json
from shardfs.format.lens import ChunkForm, Context, Lens, Shown
from shardfs.format.lens.unsharded import (
    ZARR_JSON,
    UnshardedArray,
    accept_decoded,
    codec_of,
    decoded_document,
    describe,
    reshard,
)
from shardfs.format.metadata import (
    ArrayMetadata,
    GroupMetadata,
    Metadata,
    fingerprint,
    parse_array,
    parse_document,
    parse_node,
)

MAX_PATH_LENGTH: Final = 4096
"""The longest path that can be that of a node."""

_FINGERPRINTED: Final = frozenset({"chunk_grid", "chunk_key_encoding", "codecs", "data_type", "storage_transformers"})
_NOT_SHOWN: Final = (NotShownError, NotUnshardable)


@dataclass(frozen=True, kw_only=True)
class V3(Lens):
    """The lens of Zarr v3: sharded arrays are shown unsharded, or as stored if that is impossible.

    If it *decodes*, chunks are decoded, also those of unsharded arrays.
    """

    decodes: bool = False

    @property
    def name(self) -> str:
        """The name of the view."""
        return f"decoded {super().name}" if self.decodes else super().name

    @property
    def translates(self) -> bool:
        """Whether unsharded arrays are shown in another form too."""
        return self.decodes

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document of the array as an unsharded one, and for decoded chunks."""
        if self.decodes:
            return decoded_document(describe(stored))
        try:
            return describe(stored).document if stored.is_sharded else stored.document
        except NotUnshardable:
            return stored.document

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Return the stored document that is shown as *shown*."""
        return reshard(stored, accept_decoded(describe(stored), shown) if self.decodes else shown)

    def show(self, stored: Metadata, array: UnshardedArray | None, context: Context) -> Shown:
        """Show the unsharded document of an array; for a group, unsharded consolidated copies."""
        if isinstance(stored, GroupMetadata):
            document = Consolidated(self, context.as_stored).get(stored.document)
            return Shown({} if document is stored.document else {ZARR_JSON: encode_json(document)})
        if array is None or not (self.decodes or stored.is_sharded):
            return Shown()
        codec = codec_of(array) if self.decodes else None
        document = decoded_document(array) if self.decodes else array.document
        return Shown({ZARR_JSON: encode_json(document)}, ChunkForm(array.key_encoding, codec))

    def says_the_same(self, name: str, shown: bytes, written: bytes) -> bool:
        """Whether two documents mean the same, including copies in them."""
        return says_the_same(shown, written)


@dataclass(frozen=True)
class Consolidated:
    """Converts the copies in documents of groups by *lens*, apart from those at the paths *as_stored*.

    Copies of arrays that are not shown are left out. Copies that cannot be read stay as they are, and so does
    consolidated metadata of an unknown kind.
    """

    lens: Lens
    as_stored: Collection[str] = ()

    def get(self, stored: Document, prefix: str = "") -> Document:
        """Return a group's document as it is shown; *stored* itself if no copy changes.

        *prefix* precedes paths in *stored*, where that is itself a copy.
        """
        copies = inline_copies(stored)
        if copies is None:
            return stored
        shown: dict[str, Json] = {}
        for path, copy in copies.items():
            with suppress(*_NOT_SHOWN):
                shown[path] = self._shown(copy, prefix + path)
        is_same = len(shown) == len(copies) and all(shown[path] is copy for path, copy in copies.items())
        return stored if is_same else _with_copies(stored, shown)

    def put(self, stored: Document | None, shown: Document, nodes: Mapping[str, Json]) -> Document:
        """Return the document to be stored for a group after an edit to *shown*, with copies in stored form.

        *stored* is the document that it replaces: its copies of arrays that are not shown are kept, and so are those
        that were not edited. *nodes* has the stored documents of the copied nodes (`every_copy`), by path. Raises
        `RefusedError`, naming the path, for a copy that describes other stored bytes than these.
        """
        try:
            return self._put(stored, shown, nodes, "")
        except RecursionError:
            raise RefusedError("the consolidated metadata is nested too deeply") from None

    def _shown(self, copy: Json, path: str) -> Json:
        try:
            node = parse_node(copy)
            if isinstance(node, ArrayMetadata):
                return copy if path.strip("/") in self.as_stored else self.lens.get(node)
            return self.get(node.document, f"{path}/")
        except (MetadataError, RecursionError):
            return copy

    def _put(self, stored: Json, shown: Document, nodes: Mapping[str, Json], prefix: str) -> Document:
        copies = inline_copies(shown)
        if copies is None:
            return shown
        before = (inline_copies(stored) if isinstance(stored, dict) else None) or {}
        result = {path: self._stored(before.get(path), copy, nodes, prefix + path) for path, copy in copies.items()}
        hidden = {
            path: copy for path, copy in before.items() if path not in result and self._is_left_out(copy, prefix + path)
        }
        if hidden:
            every = result | hidden
            result = {path: every[path] for path in before if path in every} | result
        return _with_copies(shown, result) if result else shown

    def _stored(self, before: Json, copy: Json, nodes: Mapping[str, Json], path: str) -> Json:
        """Return the stored form of a copy that replaces *before*."""
        try:
            node = parse_node(copy)
        except MetadataError:
            return copy
        if not isinstance(node, ArrayMetadata):
            return self._put(before, node.document, nodes, f"{path}/")
        try:
            stored = parse_array(nodes.get(path))
            if path.strip("/") in self.as_stored or self.lens.get(stored) is stored.document:
                return copy
        except (MetadataError, *_NOT_SHOWN):
            return before if self._is_shown_as(before, copy, path) else copy
        try:
            if canonical(copy) == canonical(before):
                return copy
            return self._edited(stored, node)
        except (MetadataError, RefusedError) as error:
            if self._is_shown_as(before, copy, path):  # it is out of date, and nobody changed it
                return before
            raise RefusedError(f"the copy of {path!r}: {error}") from None

    def _is_shown_as(self, before: Json, copy: Json, path: str) -> bool:
        """Whether *copy* is what is shown of the copy *before* it."""
        with suppress(*_NOT_SHOWN):
            return before is not None and canonical(self._shown(before, path)) == canonical(copy)
        return False

    def _edited(self, stored: ArrayMetadata, copy: ArrayMetadata) -> Document:
        try:
            return self.lens.put(stored, copy)
        except RefusedError:
            if fingerprint(copy) == fingerprint(stored):
                return copy.document  # its writer knew what is stored
            raise

    def _is_left_out(self, copy: Json, path: str) -> bool:
        try:
            self._shown(copy, path)
        except _NOT_SHOWN:
            return True
        return False


def inline_copies(document: Document) -> dict[str, Json] | None:
    """Return the copies in a group's document by path; None without consolidated metadata of a known kind."""
    consolidated = document.get("consolidated_metadata")
    if not isinstance(consolidated, dict) or consolidated.get("kind", "inline") != "inline":
        return None
    copies = consolidated.get("metadata")
    return copies if isinstance(copies, dict) else None


def every_copy(document: Document) -> Iterator[tuple[str, Json]]:
    """Yield the copies in a group's document, and those within copies of groups, by path relative to the group."""
    groups = deque([("", document)])
    while groups:
        prefix, group = groups.popleft()
        for name, copy in (inline_copies(group) or {}).items():
            path = prefix + name
            yield path, copy
            if isinstance(copy, dict) and len(path) < MAX_PATH_LENGTH:
                groups.append((f"{path}/", copy))


def copies_told(written: bytes) -> dict[str, bool] | None:
    """Return, by path, which nodes a group's document describes, and whether as sharded arrays.

    Returns None for the document of an array.
    """
    group, told = parse_document(written), dict[str, bool]()
    if isinstance(group, ArrayMetadata):
        return None
    for path, copy in every_copy(group.document):
        told[path] = False
        with suppress(MetadataError):
            node = parse_node(copy)
            told[path] = isinstance(node, ArrayMetadata) and node.is_sharded
    return told


def put_text(group: Consolidated, stored: bytes | None, written: bytes, nodes: Mapping[str, bytes]) -> bytes:
    """Return what `Consolidated.put` does, for texts: *written* itself if that can be stored as it is."""
    edited = parse_document(written).document
    before = parse_document(stored).document if stored is not None else None
    document = group.put(before, edited, {path: parse_json(text) for path, text in nodes.items()})
    return written if document == edited else encode_json(document)


def says_the_same(one: bytes, other: bytes) -> bool:
    """Whether two documents of a node, including copies in them, mean the same."""
    try:
        return _says_the_same(parse_json(one), parse_json(other))
    except (MetadataError, RecursionError):
        return False


def _says_the_same(one: Json, other: Json) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.get("node_type") == other.get("node_type") == "array":
            if canonical(one) == canonical(other):
                return True
            is_same = canonical(_rest(one)) == canonical(_rest(other))
            return is_same and fingerprint(parse_array(one)) == fingerprint(parse_array(other))
        copies, others = inline_copies(one), inline_copies(other)
        if copies is not None and others is not None:
            is_same = canonical(_with_copies(one, {})) == canonical(_with_copies(other, {}))
            is_same = is_same and copies.keys() == others.keys()
            return is_same and all(_says_the_same(copy, others[path]) for path, copy in copies.items())
    return canonical(one) == canonical(other)


def _rest(array: Document) -> dict[str, Json]:
    """Return the parts of a document that the fingerprint of an array does not cover."""
    return {member: value for member, value in array.items() if member not in _FINGERPRINTED}


def _with_copies(document: Document, copies: dict[str, Json]) -> dict[str, Any]:
    return {**document, "consolidated_metadata": {**document["consolidated_metadata"], "metadata": copies}}
