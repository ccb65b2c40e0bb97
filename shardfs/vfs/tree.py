"""The tree: from an inode number to what it stands for."""

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from shardfs.dataset.hierarchy import Hierarchy, Node
from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError
from shardfs.stores.base import Kind, Stat, Store, join_key
from shardfs.vfs.attributes import Attributes, absent
from shardfs.vfs.chunk_tree import ChunkTree
from shardfs.vfs.handles import OTHERS, Batch, DirectoryHandle, FileHandle
from shardfs.vfs.inodes import InodeTable, TreeNumbers, in_table, unpack
from shardfs.vfs.nodes import Directory, Document, PlainFile, StoredNode
from shardfs.vfs.views import View

_BATCH: Final = 256
_KINDS: Final = {Kind.FILE: PlainFile, Kind.DIRECTORY: Directory}


class Tree:
    """What a mount shows of *store*.

    Requests name inodes.  Those of chunk trees are computed; the others are in a table as long as the kernel knows
    them.  *ttl* is how long, in seconds, an answer may be believed.
    """

    def __init__(self, store: Store, hierarchy: Hierarchy, view: View, *, ttl: float) -> None:
        self.store = store
        self.hierarchy = hierarchy
        self.view = view
        self.ttl = ttl
        self.numbers: TreeNumbers[ChunkTree] = TreeNumbers()
        self._chunk_trees: dict[str, ChunkTree] = {}
        self._table: InodeTable[StoredNode] | None = None
        self._open_files: dict[int, FileHandle] = {}
        self._open_directories: dict[int, DirectoryHandle] = {}
        self._last_handle = 0

    async def start(self) -> None:
        """Look at the source; raises what keeps it from being read."""
        status = await self.store.stat("")
        self._table = InodeTable(Directory(self, "", status.identity))

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; number 0 stands for no such name."""
        text = os.fsdecode(name)
        if in_table(parent):
            attributes = await self._node(parent).lookup(text)
        else:
            number, _, position = unpack(parent)
            attributes = await self.numbers.tree(number).lookup(position, text)
        self.retain(attributes.ino)
        return attributes

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*; a superseded version answers for as long as it is open."""
        try:
            if in_table(ino):
                return await self._node(ino).attributes(ino)
            number, generation, position = unpack(ino)
            return await self.numbers.tree(number).attributes(generation, position)
        except ShardfsError:
            for handle in self._open_files.values():
                if handle.attributes.ino == ino:
                    return handle.attributes
            raise

    async def open(self, ino: int) -> tuple[int, FileHandle]:
        """Open a file; returns the number of the handle too."""
        if in_table(ino):
            handle = await self._node(ino).open(ino)
        else:
            number, generation, position = unpack(ino)
            handle = await self.numbers.tree(number).open(generation, position)
        self._last_handle += 1
        self._open_files[self._last_handle] = handle
        return self._last_handle, handle

    def file(self, number: int) -> FileHandle:
        """Return the open file with the handle *number*."""
        return self._open_files[number]

    def close(self, number: int) -> None:
        """Close the open file with the handle *number*."""
        del self._open_files[number]

    def open_directory(self, ino: int) -> int:
        """Open a directory; returns the number of the handle."""

        def listing(cookie: int) -> AsyncGenerator[Batch, None]:
            if in_table(ino):
                return self._node(ino).list(cookie)
            number, _, position = unpack(ino)
            return self.numbers.tree(number).list(position, cookie)

        self._last_handle += 1
        self._open_directories[self._last_handle] = DirectoryHandle(listing)
        return self._last_handle

    def directory(self, number: int) -> DirectoryHandle:
        """Return the open directory with the handle *number*."""
        return self._open_directories[number]

    async def close_directory(self, number: int) -> None:
        """Close the open directory with the handle *number*."""
        await self._open_directories.pop(number).close()
        if not self._open_directories:
            self._inodes.sweep()

    async def read_link(self, ino: int) -> bytes:
        """Return the target of a symbolic link."""
        return await self.store.read_link(self._node(ino).path)

    async def attribute(self, ino: int, name: bytes) -> bytes:
        """Return an extended attribute; raises `NoAttributeError`."""
        if in_table(ino):
            return await self._node(ino).attribute(name)
        number, generation, position = unpack(ino)
        return await self.numbers.tree(number).attribute(generation, position, name)

    async def attribute_names(self, ino: int) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        if in_table(ino):
            return await self._node(ino).attribute_names()
        number, _, position = unpack(ino)
        return self.numbers.tree(number).attribute_names(position)

    def retain(self, ino: int) -> None:
        """Count a reference of the kernel to *ino*."""
        if in_table(ino):
            self._inodes.retain(ino)

    def forget(self, ino: int, lookups: int) -> None:
        """Take back references of the kernel to *ino*."""
        if in_table(ino):
            self._inodes.forget(ino, lookups)

    def chunk_tree(self, node: Node) -> ChunkTree | None:
        """Return the chunk tree of a sharded array: the same one for as long as its chunks lie where they lie."""
        if node.array is None:
            return None
        known = self._chunk_trees.get(node.path)
        if known is not None and known.array.arrangement is node.array.arrangement:
            return known
        if known is not None:
            self.numbers.remove(known.number)
        tree = self._chunk_trees[node.path] = ChunkTree(self, node.array)
        return tree

    async def directory_attributes(self, path: str, root: str) -> Attributes:
        """Return the attributes of the directories above an array's chunks; the number is not set.

        They are those of the directory *root* that holds its shards, or of the array's own if there is none yet.
        """
        status = (await self.hierarchy.node(path)).stat
        if root:
            with suppress(NotFoundError):
                stored = await self.store.stat(join_key(path, root))
                status = stored if stored.kind is Kind.DIRECTORY else status
        return Attributes(0, status.size, self.hierarchy.remaining(path), status)

    async def document_attributes(self, node: Node, name: str) -> Attributes:
        """Return the attributes of the generated document *name* of *node*."""
        assert node.document_stat is not None
        path = join_key(node.path, name)
        document = Document(self, path, node.document_stat.version)
        attributes = await document.attributes(0)
        return attributes._replace(ino=self._inodes.number((Document, path, document.identity), document))

    async def lookup_stored(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name* as it is stored in *directory*."""
        try:
            status = await self.store.stat(join_key(directory, name))
        except (NotFoundError, NotADirectoryHereError):
            return absent(self.ttl)
        return self._stored(join_key(directory, name), status)

    async def list_stored(
        self, directory: str, cookie: int, generated: Mapping[str, Attributes], hides: Callable[[str], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Yield *generated* names, then those stored in *directory* that *hides* lets through, behind *cookie*."""
        if 0 < cookie < OTHERS:
            return
        skip = max(0, cookie - OTHERS)
        for i, (name, attributes) in enumerate(generated.items()):
            if i >= skip:
                yield Batch(
                    attributes, [(name.encode(), attributes.ino, attributes.size, OTHERS + i + 1)], is_counted=True
                )
        names = sorted(entry.name for entry in await self.store.list(directory) if not hides(entry.name))
        for start in range(max(0, skip - len(generated)), len(names), _BATCH):
            part = names[start : start + _BATCH]
            behind = OTHERS + len(generated) + start + 1
            for i, (name, status) in enumerate(zip(part, await self.store.stat_in(directory, part), strict=True)):
                if status is not None:
                    attributes = self._stored(join_key(directory, name), status)
                    yield Batch(
                        attributes, [(os.fsencode(name), attributes.ino, attributes.size, behind + i)], is_counted=True
                    )

    def _stored(self, path: str, status: Stat) -> Attributes:
        kind = _KINDS.get(status.kind, StoredNode)
        ino = self._inodes.number((kind, path, status.identity), kind(self, path, status.identity))
        return Attributes(ino, status.size, self.ttl, status)

    def _node(self, ino: int) -> StoredNode:
        return self._inodes.node(ino)

    @property
    def _inodes(self) -> InodeTable[StoredNode]:
        assert self._table is not None, "start() comes first"
        return self._table
