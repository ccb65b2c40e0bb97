"""Copies of documents in the documents of groups: what they say is made from what the tree shows of the nodes.

A group's consolidated metadata may be out of date or contradict the documents of the nodes that it describes. Programs
that open the group by it would then take shards for chunks, read wrong values and write over shards. So nobody is shown
a copy that the tree does not bear out, and what only a copy describes is neither read nor changed.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import trio

from shardfs.dataset.node import DOCUMENT, BrokenNode, Group, Node, RemovedArray, StoredArray, groups_above
from shardfs.dataset.path_table import PathTable, is_below
from shardfs.dataset.worker import LARGE_NBYTES, Worker
from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES, encode_json
from shardfs.format.lens import Lens
from shardfs.format.lens.show import read_group, read_large_group
from shardfs.format.lens.v2 import is_relative_path
from shardfs.format.lens.v3 import ShardedCopy
from shardfs.stores.base import Reader, Stat, join_key
from shardfs.stores.cache import Cache
from shardfs.stores.parallel import for_each
from shardfs.stores.ttl import within_ttl

log = logging.getLogger(__name__)

_MAX_GROUPS: Final = 512
_MAX_NBYTES: Final = 3 * MAX_DOCUMENT_NBYTES  # the largest document, what is shown of it, and some others
_AT_ONCE: Final = 16  # requests for the documents that a group has copies of


class Nodes(Protocol):
    """The nodes of a source, as `Hierarchy` knows them."""

    ttl: float
    clock: Callable[[], float]

    async def node(self, path: str) -> Node:
        """Return the node at *path*, whose copies are as they are stored."""

    def last_seen(self, path: str) -> Node | None:
        """Return the cached node at *path*, however old it is; None if there is none."""

    async def removed(self, path: str) -> RemovedArray | None:
        """Return the array at *path* whose document was removed through the mount; None if there is none."""

    async def read_document(self, key: str) -> tuple[bytes, Stat]:
        """Read the document stored under *key*."""


class _Text(NamedTuple):
    """The document of a node in one *version*; None if there is none that can be read."""

    version: object
    text: bytes | None


class _Consolidated(NamedTuple):
    """A group with copies made from *texts*, the documents of nodes by path, at the time *checked*."""

    node: Node
    texts: Mapping[str, _Text]
    checked: float

    @property
    def nbytes(self) -> int:
        return self.node.memory + sum(len(known.text or b"") for known in self.texts.values())

    def is_of(self, node: Node) -> bool:
        """Whether it is made of the same document of the group as *node*, for the same context."""
        return (self.node.stamp, self.node.context, self.node.in_image) == (node.stamp, node.context, node.in_image)


class ConsolidatedMetadata:
    """What groups say of the nodes below them, and which of these may be read.

    Its state:

    - `_groups`: groups with copies made from nodes, by path. Written by `consolidated`; without it, each lookup of a
      group's document would look at all nodes that it describes.
    - `_announced`: paths of nodes that a program has described and will create. Written when it publishes the document
      of a group, until the node is `created`; without it, `cp -r` would not read back what it wrote.
    - `_outdated`: paths of nodes of which stored copies are to be corrected, and whether they are of another node that
      was there. Written by removals, moves and new directories, and for new arrays, until they are `corrected`; without
      it, what is created anew would be taken for what the copy says.
    - `_only`: paths of the nodes that may have copies; None if all may. Written by bulk work, which copies these;
      without it, groups of the destination would describe arrays that are not there, and read as fill values.
    """

    def __init__(self, hierarchy: Nodes, store: Reader) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._lens: Lens | None = None
        self._worker: Worker | None = None
        self._groups: Cache[str, _Consolidated] = Cache(lambda known: known.nbytes, _MAX_NBYTES, _MAX_GROUPS)
        self._announced: PathTable[None] = PathTable()
        self._outdated: PathTable[bool] = PathTable()
        self._only: frozenset[str] | None = None

    def show(self, lens: Lens, worker: Worker | None) -> None:
        """Let *lens* generate what groups show; *worker* processes large documents."""
        self._lens, self._worker = lens, worker

    def keep_only(self, paths: frozenset[str]) -> None:
        """Show no copies of other nodes than those at *paths* from now on."""
        if self._only == paths:
            return
        self._only = paths
        for known in self._groups.known():
            self._groups.forget(known)

    def forget(self, path: str) -> None:
        """Make the copies in groups at *path*, below and above it again: what they are made from has changed."""
        for known in self._groups.known():
            if is_below(known, path) or is_below(path, known):
                group = self._groups.peek(known)
                self._groups.forget(known)
                if group is not None:  # what has not changed is not read again
                    self._groups.put(known, group._replace(checked=-math.inf))

    async def consolidated(self, node: Node) -> Node:
        """Return *node*; a group that has copies of other documents with copies of what the tree shows of those nodes.

        Each was looked at *ttl* seconds ago at most. A node that is not there, or has no document that can be used, has
        no copy. Raises the error that prevents looking at one.
        """
        kind = node.kind
        if not node.copies or not isinstance(kind, Group):
            return node
        if self._lens is not None and not self._lens.shows_copies:
            return node

        async def is_current(known: _Consolidated) -> bool:
            return known.is_of(node) and within_ttl(known.checked, self._hierarchy.clock(), self._hierarchy.ttl)

        async def load() -> _Consolidated:
            known = self._groups.peek(node.path)
            texts = await self._texts(node, known.texts if known is not None else {})
            now = self._hierarchy.clock()  # else thousands of nodes would be looked at again for the next request
            if known is not None and known.is_of(node) and known.texts == texts:
                return known._replace(checked=now)
            return _Consolidated(await self._consolidate(node, kind, texts), texts, now)

        return (await self._groups.get(node.path, load, is_current)).node

    def shown_version(self, group: str, relative: str) -> object:
        """Return which version of a document the group at *group* shows as its copy *relative*; None if unknown."""
        known = self._groups.peek(group)
        text = known.texts.get(relative) if known is not None else None
        return text.version if text is not None else None

    async def _consolidate(self, node: Node, kind: Group, texts: Mapping[str, _Text]) -> Node:
        """Return a group with copies that say what *texts* do."""
        announced = {known for known in texts if join_key(node.path, known) in self._announced}
        gone = {known for known, text in texts.items() if text.text is None and known not in announced}
        documents = {
            relative: known.text
            for relative, known in texts.items()
            if known.text is not None and not is_in_any(relative, gone)
        }
        copies: dict[str, bytes | None] = documents | dict.fromkeys(announced - documents.keys())
        nbytes = sum(map(len, documents.values()))
        if nbytes > MAX_DOCUMENT_NBYTES:
            name = node.path or "the source"
            log.warning("%s is shown without consolidated metadata, which would be too large", name)
            copies = {}
        arguments = kind.document, self._lens, node.context._replace(in_image=node.in_image), copies
        if self._worker is not None and len(kind.document) + nbytes > LARGE_NBYTES:
            metadata, shown = await self._worker.call(read_large_group, *arguments)
        else:
            metadata, shown = read_group(*arguments)
        return replace(node, kind=replace(kind, metadata=metadata), shown=shown)

    async def _texts(self, node: Node, known: Mapping[str, _Text]) -> Mapping[str, _Text]:
        """Return the documents of the nodes that *node* has copies of; those in *known* if they are the same still."""
        texts: dict[str, _Text] = {}
        room = MAX_DOCUMENT_NBYTES

        async def look(relative: str) -> None:
            nonlocal room
            await trio.lowlevel.checkpoint()  # there may be thousands
            if is_relative_path(relative) and room >= 0:
                texts[relative] = text = await self._text(join_key(node.path, relative), known.get(relative))
                room -= len(text.text or b"")

        await for_each(node.copies, look, _AT_ONCE)
        return texts

    async def _text(self, path: str, known: _Text | None) -> _Text:
        """Return the document of the node at *path*, *known* if it is still the same."""
        if self._only is not None and path not in self._only:
            return _Text(None, None)
        removed, key = await self._hierarchy.removed(path), join_key(path, DOCUMENT)
        if removed is not None:
            return _Text(removed, encode_json(removed.was.metadata.document))
        try:
            if known is not None and (await self._store.stat(key)).version == known.version:
                return known
            text, stat = await self._hierarchy.read_document(key)
        except AccessDeniedError:
            if self._store.root is None:  # it says nothing about the document: credentials expire
                raise
        except (NotFoundError, NotADirectoryHereError, IsADirectoryHereError, MetadataError, CorruptionError):
            pass
        else:
            return _Text(stat.version, text)
        return _Text(None, None)

    async def _node_below(self, node: Node, relative: str) -> Node | None:
        if not is_relative_path(relative):
            return None
        with suppress(NotFoundError, NotADirectoryHereError):
            return await self._hierarchy.node(join_key(node.path, relative))
        return None

    async def refusal(self, key: str) -> str | None:
        """Return why the file *key* may not be read or changed, because copies of documents contradict it; else None.

        See `Node.sharded_copy` and `Node.has_unknown_copies`.
        """
        directory, _, name = key.rpartition("/")
        is_direct = True
        while True:
            with suppress(NotFoundError, NotADirectoryHereError):
                node = await self._hierarchy.node(directory)
                if is_direct and name == DOCUMENT:
                    if isinstance(node.kind, BrokenNode) and node.kind.has_unknown_copies:
                        return f"it may have copies of other documents, which cannot be read: {node.reason}"
                    return None
                if node.sharded_copy is not None:
                    return node.reason if node.sharded_copy.has_shards_at(name) else None
                if node.metadata is not None:
                    return None
            if not directory:
                return None
            directory, _, name = directory.rpartition("/")
            is_direct = False

    def may_describe(self, path: str, below: Sequence[str]) -> bool:
        """Whether a group may have a copy of the document of a node in a directory of chunks of the array at *path*.

        In any thread; *below* are the names of directories on the way from the array to a chunk.
        """
        for group, relative in groups_above(path):
            node = self._hierarchy.last_seen(group)
            if node is None:
                return True
            if node.copies:
                for name in below:
                    relative = f"{relative}/{name}"
                    if relative in node.copies:
                        return True
        return False

    async def refusal_below(self, path: str) -> str | None:
        """Return why the directory *path* may not be moved: something in it is only described by a group above it."""
        for group, _ in groups_above(path):
            with suppress(NotFoundError, NotADirectoryHereError):
                node = await self._hierarchy.node(group)
                for relative, copy in node.copies.items():
                    location = join_key(group, relative)
                    if copy is not None and is_relative_path(relative) and is_below(location, path):
                        below = await self._node_below(node, relative)
                        if below is not None and below.sharded_copy is not None:
                            return f"{location}: {below.reason}"
        return None

    async def above(self, path: str) -> tuple[str, ShardedCopy | None]:
        """Return the nearest group above *path* with a copy that says that this is a sharded array, and the copy.

        Copies that this mount knows to be of what was there before do not count.
        """
        if path in self._announced or self._outdated.get(path, False):
            return "", None
        for group, relative in groups_above(path):
            with suppress(NotFoundError, NotADirectoryHereError):
                copy = (await self._hierarchy.node(group)).copies.get(relative)
                if copy is not None:
                    return group, copy
        return "", None

    def announce(self, path: str) -> None:
        """Note that a program has written a copy of the document of a node that it will create at *path*."""
        self._announced[path] = None

    def created(self, path: str) -> None:
        """Note that the node at *path* has a document: should that go, copies of it are as those of any other node."""
        self._announced.pop(path, None)

    async def described_below(self, path: str) -> Collection[str]:
        """Return the paths of nodes at *path* and below of which groups above it have copies."""
        paths: set[str] = set()
        for group, _ in groups_above(path):
            with suppress(NotFoundError, NotADirectoryHereError):
                locations = (join_key(group, relative) for relative in (await self._hierarchy.node(group)).copies)
                paths.update(location for location in locations if is_below(location, path))
        return paths

    def outdate(self, path: str, described: Collection[str], *, is_new: bool = False) -> None:
        """Note that stored copies of nodes at *path* and below say nothing of what is there now.

        *described* is what `described_below` returned. If the directory *is_new*, copies that a program has written of
        what it will create say what will be there.
        """
        if not is_new:
            for known in self._announced.below(path):
                del self._announced[known]
        self._outdated.update({location: True for location in described if location not in self._announced})
        self.forget(path)

    def correct_later(self, paths: Collection[str]) -> None:
        """Note that stored copies of the nodes at *paths*, which are theirs, may soon be out of date."""
        for path in paths:
            self._outdated.setdefault(path, False)

    @property
    def outdated(self) -> Collection[str]:
        """The paths of nodes of which stored copies are out of date."""
        return frozenset(self._outdated)

    def corrected(self, paths: Collection[str]) -> None:
        """Note that stored copies of the nodes at *paths* are not out of date any more."""
        for path in paths:
            self._outdated.pop(path, None)


def is_in_any(relative: str, gone: Collection[str]) -> bool:
    """Whether a node is below one that is *gone*: programs cannot open a group with copies of nodes without parents."""
    return any(above in gone for above, _ in groups_above(relative))


def says_the_same(node: Node, copy: ShardedCopy | None) -> bool:
    """Whether *node* is an array whose document says of the shards what a *copy* of it says."""
    return isinstance(node.kind, StoredArray) and ShardedCopy.of(node.kind.metadata.document) == copy
