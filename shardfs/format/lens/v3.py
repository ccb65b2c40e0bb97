"""The lens of Zarr v3, and consolidated metadata of groups for any lens: copies are shown as the array itself is.

What a group's document says of other nodes may be out of date, or contradict them. So it is never shown by itself:
`true_group` makes each copy from the document of the node that it is about, or leaves it out. All else begins there.

Source: discussion of consolidated metadata for the Zarr core specification 3.1, as zarr-python writes it: a member
`consolidated_metadata` with `kind` "inline" and `metadata`, a map of relative paths to documents.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import MAX_DOCUMENT_NBYTES, Document, Json, canonical, encode_json, parse_json
from shardfs.format.foreign import Foreign, ForeignChunks
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import ChunkForm, Lens, NodeContext, Shown
from shardfs.format.lens.unsharded import (
    ZARR_JSON,
    UnshardedArray,
    accept_decoded,
    codec_of,
    decoded_document,
    describe,
    describe_foreign,
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

CONSOLIDATED: Final = "consolidated_metadata"
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
    drafts: tuple[str, ...] = ()
    shows_copies = True

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
            return describe(stored, self.drafts).document if stored.is_sharded else stored.document
        except NotUnshardable:
            return stored.document

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Return the stored document that is shown as *shown*."""
        return reshard(stored, accept_decoded(describe(stored), shown) if self.decodes else shown)

    def show(self, stored: Metadata, array: UnshardedArray | None, context: NodeContext) -> Shown:
        """Show the unsharded document of an array; for a group, unsharded consolidated copies."""
        if isinstance(stored, GroupMetadata):
            document = Consolidated(self, context.as_stored).get(stored.document)
            is_as_stored = stored.is_as_stored and document is stored.document
            return Shown({} if is_as_stored else {ZARR_JSON: encode_json(document)})
        if array is None or not (self.decodes or stored.is_sharded):
            return Shown()
        codec = codec_of(array) if self.decodes else None
        document = decoded_document(array) if self.decodes else array.document
        return Shown({ZARR_JSON: encode_json(document)}, ChunkForm(array.key_encoding, codec))

    def show_foreign_group(self, group: GroupMetadata) -> Shown:
        """Show a group."""
        return Shown({ZARR_JSON: encode_json(group.document)})

    def show_foreign_array(self, foreign: Foreign) -> Shown:
        """Show chunks as the format itself has them without shards, if it has such a form, else as those of Zarr."""
        chunks = foreign.chunks
        if chunks is None:
            return Shown(reason=foreign.reason if self.translates else None)
        if chunks.own_names is not None and not self.translates:
            return Shown(chunks=ChunkForm(chunks.own_names))
        try:
            return self._show_as_array(chunks)
        except (MetadataError, NotShownError) as error:
            return Shown(reason=str(error))

    def _show_as_array(self, chunks: ForeignChunks) -> Shown:
        """Show an array as one of Zarr; raises `NotShownError` with the reason why it is none."""
        document, codec = self._as_array(chunks)
        document = {**document, "chunk_key_encoding": chunks.keys.to_json()}
        return Shown({ZARR_JSON: encode_json(document)}, ChunkForm(chunks.keys, codec))

    def _as_array(self, chunks: ForeignChunks) -> tuple[Document, ChunkCodec | None]:
        """Return the document of Zarr v3 for chunks, decoded if the lens does that, and the codec that decodes them."""
        if self.decodes:
            return decoded_document(describe_foreign(chunks)), chunks.codec()
        if not chunks.are_whole:
            reason = "its chunks are cut off at its edge, which those of Zarr are not"
            try:
                chunks.codec()
            except NotShownError:
                raise NotShownError(reason) from None
            raise NotShownError(f"{reason}; a mount with --decode shows them")
        return chunks.document, None

    def show_broken(self, reason: str, document: Json) -> Shown:
        """Show a document as it is stored, but without consolidated metadata, which nothing can be held against."""
        if not isinstance(document, dict) or CONSOLIDATED not in document:
            return Shown()
        return Shown({ZARR_JSON: encode_json(without_copies(document))})

    def means_the_same(self, name: str, shown: bytes, written: bytes) -> bool:
        """Whether two documents mean the same, including copies in them."""
        return means_the_same(shown, written)


@dataclass(frozen=True)
class Consolidated:
    """Converts the copies in documents of groups by *lens*, apart from those at the paths *as_stored*.

    The nodes at the paths *unusable* are not shown, as they have no document that can be used.

    Copies of arrays that are not shown are skipped. Copies that cannot be read stay as they are, and so does
    consolidated metadata of an unknown kind.
    """

    lens: Lens
    as_stored: Collection[str] = ()
    unusable: Collection[str] = ()

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
            path: copy for path, copy in before.items() if path not in result and self._is_skipped(copy, prefix + path)
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

    def _is_skipped(self, copy: Json, path: str) -> bool:
        if path.strip("/") in self.unusable:
            return True
        try:
            self._shown(copy, path)
        except _NOT_SHOWN:
            return True
        return False


def inline_copies(document: Document) -> dict[str, Json] | None:
    """Return the copies in a group's document by path; None without consolidated metadata of a known kind."""
    consolidated = document.get(CONSOLIDATED)
    if not isinstance(consolidated, dict) or consolidated.get("kind", "inline") != "inline":
        return None
    copies = consolidated.get("metadata")
    return copies if isinstance(copies, dict) else None


def every_copy(document: Document) -> Iterator[tuple[str, Json]]:
    """Yield the copies in a group's document, and those within copies of groups, by path relative to the group.

    Raises `MetadataError` if all paths together would be longer than a document may be: those of copies within copies
    may be much longer than the names of which they are made.
    """
    groups, room = deque([("", document)]), MAX_DOCUMENT_NBYTES
    while groups:
        prefix, group = groups.popleft()
        for name, copy in (inline_copies(group) or {}).items():
            path = prefix + name
            room -= len(path)
            if room < 0:
                raise MetadataError(
                    f"the paths of copies within copies have more than {MAX_DOCUMENT_NBYTES} characters"
                )
            yield path, copy
            if isinstance(copy, dict) and len(path) < MAX_PATH_LENGTH:
                groups.append((f"{path}/", copy))


class ShardedCopy(NamedTuple):
    """What a document says of the shards of an array: where they are, and by *fingerprint* what they mean.

    *key_encoding* is None if it is unknown.
    """

    key_encoding: ChunkKeyEncoding | None
    ndim: int
    fingerprint: bytes

    @classmethod
    def of(cls, document: Json) -> "ShardedCopy | None":
        """Return what a document, or a copy of one, says; None unless it is that of a sharded array."""
        try:
            array = parse_array(document)
            mark = fingerprint(array)
        except (MetadataError, RecursionError):
            return None
        if not array.is_sharded:
            return None
        try:
            return cls(ChunkKeyEncoding.parse(array.chunk_key_encoding), array.ndim, mark)
        except MetadataError:
            return cls(None, array.ndim, mark)

    def has_shards_at(self, name: str) -> bool:
        """Whether *name*, in the directory of the array, may be a shard or lead to shards."""
        return self.key_encoding is None or self.key_encoding.begins(name, self.ndim)


def copies_in(document: Document) -> dict[str, ShardedCopy | None]:
    """Return, by path, which nodes a group's document describes, and how if as sharded arrays."""
    return {path: ShardedCopy.of(copy) for path, copy in every_copy(document)}


def copies_in_text(written: bytes) -> dict[str, ShardedCopy | None] | None:
    """Return what `copies_in` does, for the text of a document; None for that of an array."""
    group = parse_document(written)
    return None if isinstance(group, ArrayMetadata) else copies_in(group.document)


def true_group(group: Document, nodes: Mapping[str, bytes | None]) -> Document:
    """Return a group's document with copies that say what *nodes* say; *group* itself if its own do already.

    *nodes* are the documents of the nodes that it describes, by path; None keeps a copy as it is. A copy of another
    node is skipped, and so is one that says something else than a broken document: by that, programs could not open
    even the group. Which nodes are described, and whether in a copy of a group, stays.
    """
    try:
        return _true_group(group, nodes, "")
    except RecursionError:
        return without_copies(group)


def _true_group(group: Document, nodes: Mapping[str, bytes | None], prefix: str) -> Document:
    copies = inline_copies(group)
    if copies is None:
        return group
    result: dict[str, Json] = {}
    for path, copy in copies.items():
        full = prefix + path
        if full.strip("/") not in nodes:
            continue
        text = nodes[full.strip("/")]
        if text is None:
            result[path] = copy
            continue
        with suppress(MetadataError):
            own = parse_json(text)
            if isinstance(own, dict):
                true = _true_copy(copy, own, nodes, f"{full}/")
                if true is copy or _can_be_shown(own, copy):
                    result[path] = true
    is_same = len(result) == len(copies) and all(result[path] is copy for path, copy in copies.items())
    return group if is_same else _with_copies(group, result)


def _can_be_shown(own: Document, copy: Json) -> bool:
    """Whether a node with the document *own* is shown as that says, though a *copy* of it says something else.

    It is not if the document is broken; nor if the copy is that of a sharded array, and the document says nothing that
    can be shown of its shards.
    """
    node, sharded = parse_node(own), ShardedCopy.of(copy)
    if isinstance(node, GroupMetadata):
        return sharded is None
    try:
        describe(node)
    except NotUnshardable:
        return not node.is_sharded or ShardedCopy.of(own) == sharded
    return True


def _true_copy(copy: Json, own: Document, nodes: Mapping[str, bytes | None], prefix: str) -> Json:
    """Return *own*, the document of a node, as a copy of it: with the consolidated metadata that *copy* has."""
    own = without_copies(own)
    if not isinstance(copy, dict):
        return own
    true = _true_group(copy, nodes, prefix)
    if own.get("node_type") == "group" and CONSOLIDATED in copy:
        own = {**own, CONSOLIDATED: true[CONSOLIDATED]}
    elif CONSOLIDATED in copy:
        return own
    return copy if true is copy and canonical(without_copies(copy)) == canonical(without_copies(own)) else own


def true_text(stored: bytes, nodes: Mapping[str, bytes | None]) -> bytes:
    """Return what `true_group` does, for the text of a document."""
    group = parse_document(stored).document
    document = true_group(group, nodes)
    return stored if document is group else encode_json(document)


def put_text(group: Consolidated, stored: bytes | None, written: bytes, nodes: Mapping[str, bytes]) -> bytes:
    """Return what `Consolidated.put` does, for texts: *written* itself if that can be stored as it is."""
    edited = parse_document(written).document
    before = parse_document(stored).document if stored is not None else None
    document = group.put(before, edited, {path: parse_json(text) for path, text in nodes.items()})
    return written if document == edited else encode_json(document)


def means_the_same(one: bytes, other: bytes) -> bool:
    """Whether two documents of a node, including copies in them, mean the same."""
    try:
        return _means_the_same(parse_json(one), parse_json(other))
    except (MetadataError, RecursionError):
        return False


def _means_the_same(one: Json, other: Json) -> bool:
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
            return is_same and all(_means_the_same(copy, others[path]) for path, copy in copies.items())
    return canonical(one) == canonical(other)


def _rest(array: Document) -> dict[str, Json]:
    """Return the parts of a document that the fingerprint of an array does not cover."""
    return {member: value for member, value in array.items() if member not in _FINGERPRINTED}


def _with_copies(document: Document, copies: dict[str, Json]) -> dict[str, Any]:
    return {**document, CONSOLIDATED: {**document[CONSOLIDATED], "metadata": copies}}


def without_copies(document: Document) -> dict[str, Json]:
    """Return a document without consolidated metadata."""
    return {member: value for member, value in document.items() if member != CONSOLIDATED}
