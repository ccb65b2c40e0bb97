"""Inner chunks, and the directories above them."""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from shardfs.dataset.layout import OwnVersion
from shardfs.dataset.maintenance.walk import walk_files
from shardfs.errors import (
    MetadataError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    RefusedError,
)
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, Stat, join_key
from shardfs.vfs.attributes import Attributes, Owner
from shardfs.vfs.entries.base import Entry, NewAttributes, Published, mode_of
from shardfs.vfs.handles import Batch, ChunkHandle
from shardfs.vfs.missing import FillChunk

if TYPE_CHECKING:
    from shardfs.vfs.chunk_tree import ChunkTree
    from shardfs.vfs.write_buffer import WriteBuffer


class Chunk(Published):
    """An inner chunk within the grid."""

    __slots__ = ("chunks", "coords")
    max_nbytes = 2**40

    def __init__(self, chunks: "ChunkTree", coords: Coords, ino: int = 0) -> None:
        super().__init__(chunks.fs, ino)
        self.chunks = chunks
        self.coords = coords

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and (self.chunks, self.coords) == (other.chunks, other.coords)

    def __hash__(self) -> int:
        return hash((self.chunks, self.coords))

    @property
    def path(self) -> str:
        """The path on the mount."""
        return join_key(self.chunks.path, self.chunks.key(self.coords))

    @property
    def node_path(self) -> str:
        """The path of the array."""
        return self.chunks.path

    async def attributes(self) -> Attributes:
        """Return the attributes of this version."""
        return (await self.chunks.version(self.coords, self.ino, fresh=False)).attributes

    async def open(self) -> ChunkHandle:
        """Open this version."""
        return await self.chunks.version(self.coords, self.ino)

    async def current(self) -> ChunkHandle | None:
        """Open what the name stands for, None if it is nothing."""
        return await self.chunks.current(self.coords)

    async def attribute(self, name: bytes) -> bytes:
        """Return where the chunk lies."""
        return await self.chunks.attribute(self.coords, self.ino, name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the attributes."""
        return self.chunks.attribute_names()

    async def exists(self) -> bool:
        """Whether there is such a chunk, or a file that will be published as one."""
        if self.fs.changes.buffers.unpublished(self) is not None:
            return True
        return self.coords not in self.chunks.refilled and await self.current() is not None

    def reserve(self) -> int:
        """Return a number for the chunk, which is not there yet."""
        ino = self.fs.inodes.reserve()
        self.chunks.keep_version(ino, self.coords)
        return ino

    async def publish(self, buffer: "WriteBuffer") -> None:
        """Make what was written the content of the chunk."""
        ino = buffer.ino if buffer.is_new else self.fs.inodes.reserve()
        buffer.mtime_ns = await self._put(buffer.content, buffer.status, ino, buffer.mtime_ns)
        buffer.version = ino

    async def replace(
        self, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Publish *content* as the chunk, with its time, and the number *ino* if it brings one."""
        number = self.fs.inodes.reserve() if ino is None else ino
        buffers = self.fs.changes.buffers
        async with buffers.lock(self):
            await self._put(content, attributes.status, number, attributes.own_mtime_ns)
            buffers.detach(self)
        self.chunks.keep_version(number, self.coords)

    async def remove(self) -> None:
        """Remove the chunk, or let it go on as one of the fill value that is shown: that is what no file means."""
        buffers = self.fs.changes.buffers
        async with buffers.lock(self):
            handle = await self.current()
            if handle is not None:
                await self._remove(handle)
            elif buffers.unpublished(self) is None:
                raise NotFoundError(f"{self.path} does not exist")
            buffers.detach(self)

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Refuse: a chunk is a file."""
        raise RefusedError(f"{self.path} is the name of a chunk, which is no directory")

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Give the chunk another modification time; mode and owner are the shard's, and stay."""
        mtime_ns = changes["mtime_ns"]
        if mtime_ns is None:
            return
        ino, chunk = self.ino, self
        buffer = self.fs.changes.buffers.of_ino(ino)
        if buffer is not None:
            buffer.mtime_ns = mtime_ns
            if buffer.is_unpublished or buffer.is_detached:
                return
            ino = buffer.version  # what its writer published is what it means
            assert isinstance(buffer.entry, Chunk)
            chunk = buffer.entry
        await chunk.chunks.version(chunk.coords, ino)
        chunk._own(OwnVersion(ino, mtime_ns))

    async def moved_with(self, old: str, new: str) -> "Chunk | None":
        """Return the chunk of the same coordinates in the array's new place."""
        path = new + self.chunks.path[len(old) :]
        chunks = self.fs.chunk_tree(await self.fs.hierarchy.node(path))
        return Chunk(chunks, self.coords) if chunks is not None else None

    def _own(self, version: OwnVersion) -> None:
        layout = self.chunks.array.layout
        shard = layout.locate(self.coords).shard
        self.fs.changes.writer.source.shards.own(layout, shard, self.coords, version)

    async def _put(self, content: Content, status: Stat, ino: int, mtime_ns: int | None) -> int:
        """Publish *content* as the version *ino*, and return its time: now, unless it brings one."""
        chunks = await self.fs.present(self.chunks)
        array, coords = chunks.array, self.coords
        if not array.grid.contains(coords):
            raise RefusedError(f"{self.path} lies beyond the shape of its array by now")
        if chunks is not self.chunks and not chunks.chunk_view.reads_like(self.chunks.chunk_view):
            raise RefusedError(f"{self.path} was written for other codecs or another data type than its array has now")
        if chunks.codec is not None:
            try:
                content = await self.fs.chunk_cache.encode(chunks.codec, content)
            except (MetadataError, RefusedError) as error:
                raise RefusedError(f"{self.path} is refused: {error}") from None
        layout = array.layout
        own, version = layout.own.get(coords), layout.versions.get(layout.locate(coords).shard)
        before = own.mtime_ns if own is not None else version.mtime_ns if version is not None else 0
        if mtime_ns is None:
            mtime_ns = max(time.time_ns(), before + 1)
        await self.fs.changes.writer.put(
            array, coords, content, mtime_ns=mtime_ns, mode=mode_of(status), uid=status.uid, gid=status.gid
        )
        chunks.refilled.pop(coords, None)
        layout.make_directory(coords[:-1])  # which may have been removed while the file was written
        Chunk(chunks, coords)._own(OwnVersion(ino, mtime_ns))
        return mtime_ns

    async def _remove(self, handle: ChunkHandle) -> None:
        chunks = await self.fs.present(self.chunks)
        remains = await chunks.remains(self.coords)
        if remains is None:
            if not isinstance(handle.extent, FillChunk):
                await self.fs.changes.writer.erase(chunks.array, self.coords, mtime_ns=time.time_ns())
        elif chunks.refilled.get(self.coords) == handle.ino:
            chunks.removed_again.add(self.coords)
        else:
            number = self.fs.inodes.reserve()
            await self._put(await remains.content(), handle.attributes.status, number, None)
            chunks.keep_version(number, self.coords)
            chunks.refilled[self.coords] = number


class ChunkDirectory(Entry):
    """A directory above chunks; *coords* are those that its path gives."""

    __slots__ = ("chunks", "coords", "position")

    def __init__(self, chunks: "ChunkTree", coords: Coords, ino: int = 0, position: int | None = None) -> None:
        super().__init__(chunks.fs, ino)
        self.chunks = chunks
        self.coords = coords
        self.position = chunks.numbering.of_directory(coords) if position is None else position

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkDirectory) and (self.chunks, self.coords) == (other.chunks, other.coords)

    def __hash__(self) -> int:
        return hash((self.chunks, self.coords))

    @property
    def path(self) -> str:
        """The path on the mount."""
        return self.chunks.directory_of(self.coords)

    @property
    def node_path(self) -> str:
        """The path of the array."""
        return self.chunks.path

    async def attributes(self) -> Attributes:
        """Return the attributes of the directory."""
        await self.chunks.check()
        return (await self.chunks.directory_attributes(self.position))._replace(ino=self.ino)

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* in the directory."""
        return await self.chunks.lookup(self.position, name)

    async def child(self, name: str) -> Entry:
        """Return what *name* in the directory stands for."""
        if self.chunks.owns(name):
            return await self.chunks.entry(self.position, name)
        return await self.fs.stored.beside_chunks(self.path, name)

    async def unpublished_child(self, name: str) -> Published | None:
        """Return the chunk that *name* stands for."""
        return await self.chunks.published(self.position, name) if self.chunks.owns(name) else None

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names in the directory behind *cookie*."""
        return self.chunks.list(self.position, cookie)

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Make the directory, of an array that is made through the mount; of others it is there."""
        layout = self.chunks.array.layout
        if layout.has_directory(self.coords):
            await super().make_directory(mode, owner)
        layout.make_directory(self.coords)

    async def remove_directory(self) -> None:
        """Remove the directory as far as it is stored."""
        chunks = self.chunks
        if not await chunks.is_empty(self.coords):
            raise NotEmptyError("there are chunks in the directory")
        await self._require_no_scratch()
        await self.fs.stored.remove_scratch(self.path)
        chunks.array.layout.remove_directory(self.coords)
        chunks.removed(self.coords)
        if not self.coords and chunks.root:
            node = await self.fs.hierarchy.node(chunks.path)
            await self.fs.changes.publisher.prune(node)
            if node.document is None:  # nothing is left of the array
                self.fs.hierarchy.abandon(node.path)

    async def _require_no_scratch(self) -> None:
        """Raise `NotEmptyError` if the directory lists names beside chunks, or directories that have some."""
        store, scratch = self.fs.store, join_key(self.fs.scratch or "", self.path)
        try:
            entries = await store.list(scratch)
        except (NotFoundError, NotADirectoryHereError):
            return
        for entry in entries:
            is_empty = self.chunks.owns(entry.name)
            if is_empty and await self.chunks.array.lists((*self.coords, int(entry.name))):
                is_empty = not [key async for key in walk_files(store, join_key(scratch, entry.name))]
            if not is_empty:
                raise NotEmptyError(f"{entry.name} is in the directory")
