"""What a directory of a source is: the kinds of nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.chunk_set import ChunkSet
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.errors import ConflictError, LockedError, NotADirectoryHereError, NotFoundError, StoreError
from shardfs.format.codecs import checksum_in
from shardfs.format.foreign import Foreign
from shardfs.format.lens import NO_CONTEXT, NodeContext, Shown
from shardfs.format.lens.show import NO_COPIES, Copies
from shardfs.format.lens.unsharded import ZARR_JSON
from shardfs.format.lens.v3 import ShardedCopy
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, parse_document
from shardfs.format.outline import tree_of
from shardfs.formats import FoundNode
from shardfs.stores.base import Reader, Stat, Store, join_key

DOCUMENT: Final = ZARR_JSON
_PAUSE: Final = 0.1  # seconds
_ATTEMPTS: Final = 8


@dataclass(frozen=True, eq=False)
class Plain:
    """A directory without a document; formats have *seen* files that might have been one of theirs."""

    seen: Mapping[str, FoundNode] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class BrokenNode:
    """A node whose document says nothing that can be used, for the *reason*.

    *document* is None if not even its bytes could be read, or there is none. *copies* are those of `Group`.
    *has_unknown_copies*: it cannot be parsed here, but other programs may find copies in it, so nobody may read it.

    *sharded_copy* is set if a group above has a copy that says that the directory is a sharded array, and no document
    of its own says of what. Its shards must not be taken for chunks, so they are not read or changed.

    *is_only_described*: programs show a node here by consolidated metadata, and no command reads it. *is_link*: it is a
    symbolic link to a node, which is read where that is.
    """

    reason: str
    document: bytes | None = None
    document_stat: Stat | None = None
    copies: Copies = field(default_factory=dict)
    has_unknown_copies: bool = False
    sharded_copy: ShardedCopy | None = None
    is_only_described: bool = False
    is_link: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """A group with its stored *document*; *metadata* of a large one lacks attributes: see `Node.stored`.

    *copies* are the nodes that the document has copies of, whatever these say. *metadata* is without them, and so is
    `Node.shown`: `ConsolidatedMetadata.consolidated` has what the tree shows of those nodes instead.
    """

    metadata: GroupMetadata
    document: bytes
    document_stat: Stat
    copies: Copies = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array with its stored *document*; *metadata* of a large one lacks attributes: see `Node.stored`.

    *array* is set for a sharded array that can be shown unsharded, and for an unsharded one whose chunks all have one
    shape. *reason* says why a sharded array is shown as it is stored.
    """

    metadata: ArrayMetadata
    document: bytes
    document_stat: Stat
    array: Array | None = None
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class ForeignNode:
    """A node of a format that is only read.

    It was found in its directory, as the *answers* of formats say, by name; or described with the node *within*,
    which is in a directory above. *shards* is set if its shards can be read: of an array, or of values by id.
    """

    foreign: Foreign
    answers: Mapping[str, FoundNode] = field(default_factory=dict)
    within: "ForeignNode | None" = None
    shards: Array | None = None

    @property
    def origin(self) -> Stat:
        """The status of the file that describes it."""
        return self.within.origin if self.within is not None else next(iter(self.answers.values())).origin

    @cached_property
    def described(self) -> Mapping[str, frozenset[str]]:
        """The names of the directories that lead to nodes below, by directory: they exist, whatever is stored."""
        return tree_of(self.foreign.below)


class RemovedArray:
    """An array whose document was removed through the mount, and replaced by none: its directory stays that array.

    *was* is the array at *path* with its document, which stays stored, and hidden, as long as anything is pending in
    the array: should the mount be killed, nothing else says how its chunks are sharded. Each is by itself:

    - `try_flush_all` of the writing tree drops the document when everything in this array is committed, whatever
      becomes of others;
    - `Documents.end` drops it and ends the array, when no chunk is left and a program removes the directory or writes
      another document;
    - `Hierarchy.removed` ends it when somebody else has stored another document;
    - `Hierarchy.moved` takes it along with its directory.

    Chunks in *given_up* are damaged, and programs removed them: they are not shown any more. Nothing is removed for
    that before the array ends. If it gets its document back, they are shown as damaged again, unless no other chunk is
    left: then their shards go.
    """

    def __init__(self, store: Reader, path: str, was: StoredArray) -> None:
        self.path = path
        self.was = was
        self.given_up = ChunkSet()
        self._store = store
        self._key = join_key(path, DOCUMENT)
        self._stat = was.document_stat

    def read_as(self, was: StoredArray) -> None:
        """Note that its document was read again."""
        self.was = was

    async def stored(self) -> Stat | None:
        """Return the status of what is stored under the name of the document; None if nothing is."""
        try:
            return await self._store.stat(self._key)
        except (NotFoundError, NotADirectoryHereError):
            return None

    async def is_current(self) -> bool:
        """Whether nobody has stored another document since; the removed one may be stored still, or not."""
        now = await self.stored()
        if now is None or now.version == self._stat.version:
            return True
        if (now.identity, now.size, now.mtime_ns) != (self._stat.identity, self._stat.size, self._stat.mtime_ns):
            return False
        try:  # somebody has changed its mode or its owner, `chmod -R` for example
            snapshot = await self._store.open(self._key)
            if bytes(await snapshot.read(0, min(snapshot.size, now.size))) != self.was.document:
                return False
        except (NotFoundError, NotADirectoryHereError):
            return True
        self._stat = snapshot.stat
        return True

    async def drop(self, store: Store) -> None:
        """Remove the document from its *store*, unless another program has stored another one in its place.

        Its directory stays, also in a bucket, where nothing else may be in it.

        Nothing is pending in the array, and the caller holds the lock of the node, so that nothing is published and no
        document is stored through the mount meanwhile.
        """
        begun, attempts = trio.current_time(), _ATTEMPTS
        while attempts:
            self._store.forget(self._key)
            if not await self.is_current():
                return
            try:
                waited = trio.current_time() - begun
                async with store.documents_locked(self.path), store.edit(self._key, waited=waited) as edit:
                    if edit.snapshot is None:
                        return
                    if edit.snapshot.stat.version == self._stat.version:
                        await edit.delete()
                        if store.root is None:
                            await store.make_directories(self.path)
                        return
                attempts -= 1  # its mode or owner was changed
            except LockedError:
                await trio.sleep(_PAUSE)
            except (NotFoundError, NotADirectoryHereError):
                return
            except ConflictError:
                attempts -= 1
        raise StoreError(f"{self._key} is not removed: another program changes it over and over")

    def moved(self, path: str) -> "RemovedArray":
        """Return the same array in a directory that was moved to *path*."""
        removed = RemovedArray(self._store, path, self.was)
        removed._stat, removed.given_up = self._stat, self.given_up
        return removed


PLAIN: Final = Plain()


@dataclass(frozen=True, eq=False)
class Node:
    """A directory of the source; *stat* is the status of the directory, and *kind* says what it is.

    *in_image*: the node is a group with metadata of OME-Zarr 0.5, or below one; known if the hierarchy `looks_above`.
    *shown* is what the view generates for it, given the *context*.

    Match *kind* where what is done differs by kind. The properties are for one question about all kinds.
    """

    path: str
    stat: Stat
    kind: Plain | BrokenNode | Group | StoredArray | ForeignNode | RemovedArray = PLAIN
    in_image: bool = False
    context: NodeContext = NO_CONTEXT
    shown: Shown | None = None

    @property
    def document(self) -> bytes | None:
        """The stored `zarr.json`; None if there is none, or it cannot be read, or it was removed through the mount."""
        kind = self.kind
        return kind.document if isinstance(kind, BrokenNode | Group | StoredArray) else None

    @property
    def document_stat(self) -> Stat | None:
        """The status of `document`."""
        kind = self.kind
        return kind.document_stat if isinstance(kind, BrokenNode | Group | StoredArray) else None

    @property
    def foreign(self) -> Foreign | None:
        """What it is in a format that is only read; None if it is of none."""
        return self.kind.foreign if isinstance(self.kind, ForeignNode) else None

    @property
    def described_within(self) -> tuple[str, Foreign] | None:
        """The path of the node above that it is described with, and what that is; None if it is described by itself."""
        kind = self.kind
        if not isinstance(kind, ForeignNode) or kind.within is None:
            return None
        within = kind.within.foreign
        key = next(key for key, below in within.below.items() if below is kind.foreign)
        return self.path.removesuffix(key).rstrip("/"), within

    @property
    def origin(self) -> Stat | None:
        """The status of the file that describes it in a format that is only read."""
        return self.kind.origin if isinstance(self.kind, ForeignNode) else None

    @property
    def described(self) -> Mapping[str, frozenset[str]]:
        """The directories below it that exist because its document names them: names by directory, relative to it."""
        return self.kind.described if isinstance(self.kind, ForeignNode) else {}

    @property
    def describing(self) -> Mapping[str, Stat]:
        """The files in its directory that describe it in a format that is only read, by name."""
        name = self.foreign.describing if self.foreign is not None else ""
        return {name: self.origin} if name and self.origin is not None else {}

    @property
    def stamp(self) -> object:
        """What differs for another version of the document."""
        return self.document_stat.version if self.document_stat is not None else None

    @property
    def metadata(self) -> ArrayMetadata | GroupMetadata | None:
        """What the document of a group or of an array says, also of one that was removed through the mount.

        Of an array of another format, what a document would say.
        """
        kind = self.kind.was if isinstance(self.kind, RemovedArray) else self.kind
        if isinstance(kind, ForeignNode):
            return kind.foreign.metadata
        return kind.metadata if isinstance(kind, Group | StoredArray) else None

    @property
    def any_array(self) -> Array | None:
        """The array whose chunks can be read, sharded or not."""
        kind = self.kind.was if isinstance(self.kind, RemovedArray) else self.kind
        if isinstance(kind, ForeignNode):
            return kind.shards if kind.foreign.metadata is not None else None
        return kind.array if isinstance(kind, StoredArray) else None

    @property
    def array(self) -> Array | None:
        """The array, if it is stored sharded."""
        array = self.any_array
        return array if array is not None and not array.grid.is_unsharded else None

    @property
    def shards(self) -> Array | None:
        """What is stored in shards here: the array, or values by id."""
        kind = self.kind
        return kind.shards if isinstance(kind, ForeignNode) and kind.foreign.metadata is None else self.array

    @property
    def is_outdated(self) -> bool:
        """Whether it was seen meanwhile that the file that describes it, and has its chunks, is another version now."""
        return (
            isinstance(self.kind, ForeignNode) and self.kind.shards is not None and self.kind.shards.layout.is_outdated
        )

    @property
    def checksum(self) -> str | None:
        """The codec by whose checksum damage to the bytes of a chunk is found; None if there is none, or no array."""
        outer = self.metadata.codecs if isinstance(self.metadata, ArrayMetadata) else ()
        inner = self.any_array.codecs if self.any_array is not None else ()
        return checksum_in((*outer, *inner))

    @property
    def reason(self) -> str | None:
        """Why only the stored files are shown."""
        kind = self.kind.was if isinstance(self.kind, RemovedArray) else self.kind
        if isinstance(kind, ForeignNode):
            return kind.foreign.reason
        return kind.reason if isinstance(kind, BrokenNode | StoredArray) else None

    @property
    def is_read_only(self) -> bool:
        """Whether it is of a format that is only read."""
        return isinstance(self.kind, ForeignNode)

    def owns(self, name: str) -> bool:
        """Whether *name*, in its directory, is needed by a format that is only read, so that nobody may change it."""
        if self.foreign is None:
            return False
        return self.foreign.needs(name) or (self.any_array is not None and self.has_shards_at(name))

    def has_shards_at(self, name: str) -> bool:
        """Whether *name*, in the directory of an array, is a shard or leads to shards."""
        if self.any_array is not None:
            layout = self.any_array.layout
            return layout.key_encoding.begins(name, layout.grid.ndim)
        return isinstance(self.metadata, ArrayMetadata) and self.metadata.has_shards_at(name)

    @property
    def copies(self) -> Copies:
        """The nodes that the document has copies of, and how these describe them."""
        return self.kind.copies if isinstance(self.kind, Group | BrokenNode) else NO_COPIES

    @property
    def sharded_copy(self) -> ShardedCopy | None:
        """How a group above describes the array that is stored here, if no document here does: see `BrokenNode`."""
        return self.kind.sharded_copy if isinstance(self.kind, BrokenNode) else None

    @property
    def is_only_described(self) -> bool:
        """Whether programs show a node here by consolidated metadata, and no command reads it."""
        return isinstance(self.kind, BrokenNode) and (self.kind.is_only_described or self.sharded_copy is not None)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link to a node."""
        return isinstance(self.kind, BrokenNode) and self.kind.is_link

    @property
    def memory(self) -> int:
        """Size of the documents, stored and generated, and of paths; everything else that it holds is in proportion."""
        documents = len(self.document or b"") + (self.shown.nbytes if self.shown is not None else 0)
        return documents + sum(map(len, self.copies))

    @property
    def stored(self) -> ArrayMetadata | GroupMetadata | None:
        """What the document says, complete, with copies as they are stored; of a removed one, just `metadata`."""
        if self.document is None or self.metadata is None:
            return self.metadata
        if not self.copies and len(self.document) <= LARGE_NBYTES:
            return self.metadata
        return parse_document(self.document)


def groups_above(path: str) -> Iterator[tuple[str, str]]:
    """Yield the directories above *path*, and the path relative to each, the nearest first."""
    parts = path.split("/") if path else []
    for depth in range(len(parts) - 1, -1, -1):
        yield "/".join(parts[:depth]), "/".join(parts[depth:])
