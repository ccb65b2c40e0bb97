"""Inner chunks and directories of chunks: computed from inode numbers, stored in no table."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from stat import S_IMODE
from typing import Final

from shardfs.dataset.array import Extent
from shardfs.dataset.chunk_set import ChunkSet
from shardfs.dataset.emptying import remove_directories
from shardfs.dataset.journal.records import Put
from shardfs.dataset.layout import OwnVersion
from shardfs.dataset.maintenance.walk import walk_files
from shardfs.dataset.node import RemovedArray
from shardfs.dataset.shard_cache import ShardState
from shardfs.errors import (
    CorruptionError,
    MetadataError,
    NoAttributeError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    ReadOnlyError,
    RefusedError,
    StaleError,
)
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, Kind, NewAttributes, Stat, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.vfs.chunk_cache import ChunkView, DecodedChunk, FillChunk, Missing
from shardfs.vfs.chunk_keys import ChunkKeys
from shardfs.vfs.chunk_listing import list_chunks
from shardfs.vfs.entries.base import Entry, PublishedEntry, Tree
from shardfs.vfs.handles import (
    OTHERS,
    UNKNOWN_FILE,
    Attributes,
    Batch,
    ChunkHandle,
    Owner,
    PassthroughHandle,
    absent,
    changed,
    new_file,
)
from shardfs.vfs.inodes import MISSING, ArrayNumbers, ChunkNumbering, TreePosition, in_table
from shardfs.vfs.new_directories import NewDirectories
from shardfs.vfs.write_buffer import WriteBuffer

_MAX_ROWS: Final = 8192
_SHARD: Final = b"user.shardfs.shard"
_OFFSET: Final = b"user.shardfs.offset"
_NBYTES: Final = b"user.shardfs.nbytes"


class ChunkTree(ChunkKeys):
    """The chunks of an array as the view shows them, and the directories above them.

    *numbers* are their inode numbers. Position 0 is the directory *root* (`c`) or, where keys have no such directory
    (*root* is ""), the directory of the array.

    *refilled* are chunks that programs removed and that are shown again, as the fill value these programs saw, until
    they are written. Some programs remove a name in order to take it: the next lookup of one in *removed_again* finds
    nothing. *removals* counts how often the directory at each position was removed: its inode number changes
    then, because the kernel treats the old one as deleted.

    Directories of chunks exist throughout the grid. Not so in an array that is being created: `cp -r` and
    `shutil.copytree` make each directory without looking first, and give up if it exists. There, *new_directories* are
    those that exist, from `begin` to `end_creation`.
    """

    def __init__(self, fs: Tree, chunk_view: ChunkView, numbers: ArrayNumbers) -> None:
        super().__init__(chunk_view.array, chunk_view.key_encoding, is_remote=fs.store.root is None)
        self.fs = fs
        self.chunk_view = chunk_view
        self.codec = chunk_view.codec
        self.path = self.array.layout.path
        self.numbers = numbers
        self.numbering = numbers.numbering
        self.refilled = ChunkSet()
        self.removed_again = ChunkSet()
        self.removals: Counter[int] = Counter()
        self.new_directories: NewDirectories | None = None
        self._valid_until = float("-inf")
        self._directory_template: tuple[float, Attributes] | None = None

    @property
    def has_history(self) -> bool:
        """Whether it holds anything that cannot be computed again."""
        return bool(self.refilled or self.removed_again or self.removals)

    def at(self, position: int, ino: int) -> "Chunk | ChunkDirectory":
        """Return the chunk, or directory of chunks, at *position*, with the inode number *ino*."""
        if position < self.numbering.bases[-1]:
            return ChunkDirectory(self, _coords(self.numbering, position), ino, position)
        if not self.is_nested:
            return Chunk(self, _coords(self.numbering, position), ino)
        directory, last = self.numbering.parent(position)
        return Chunk(self, (*_coords(self.numbering, directory), last), ino)

    def _coords_of(self, position: int | None, name: str) -> Coords:
        """Return the coordinates of *name* in the directory at *position*; None is the directory of the array."""
        if position is None and self.root:
            return ()
        if self.is_nested:
            return (*_coords(self.numbering, position or 0), int(name))
        return self.encoding.decode(name, self._ndim) or ()

    async def lookup(self, position: int | None, name: str) -> Attributes:
        """Return the attributes of *name*, which has the form of a chunk or directory of chunks; see `entry`."""
        coords = self._coords_of(position, name)
        if not self.contains(coords):
            return absent(0.0 if self.fs.is_writable else self.fs.hierarchy.remaining(self.path))
        if len(coords) < self._ndim:
            if not await self.has_directory(coords):
                return absent(0.0)
            return await self.directory_attributes(self.numbering.of_directory(coords))
        try:
            attributes, _ = await self.find(coords)
        except CorruptionError as error:
            return await self.attributes_of_damaged(coords, error)
        return absent(0.0) if self.removed_again.discard(coords) else attributes

    async def open(self, position: int | None, name: str) -> ChunkHandle | Attributes | None:
        """Open the chunk *name*, which has the form of a chunk or directory of chunks; see `entry`.

        None if it is not the name of a chunk within the grid; attributes of nothing if there is no such chunk.
        """
        coords = self._coords_of(position, name)
        if len(coords) < self._ndim or not self.contains(coords):
            return None
        self.array.note_read(coords)
        handle = await Chunk(self, coords).current()
        return absent(0.0) if self.removed_again.discard(coords) or handle is None else handle

    async def entry(self, position: int | None, name: str) -> "Chunk | ChunkDirectory":
        """Return the entry of *name* in the directory at *position*; None is the directory of the array.

        *name* has the form of a chunk or directory of chunks. Raises `RefusedError` for one outside the grid, and
        `ReadOnlyError` in a format that is only read.
        """
        await self.check()
        self.check_writable()
        coords = self._coords_of(position, name)
        if not self.contains(coords):
            raise RefusedError(f"{self.encoding.encode(coords)} of {self.path or 'the array'} lies beyond its shape")
        return ChunkDirectory(self, coords) if len(coords) < self._ndim else Chunk(self, coords)

    def check_writable(self) -> None:
        """Raise `ReadOnlyError` in a format that is only read."""
        if self.array.grid.is_read_only:
            raise ReadOnlyError(f"{self.path or 'the array'} is of a format that is only read")

    def directory_at(self, path: str) -> "ChunkDirectory | None":
        """Return the directory of chunks at *path*, relative to the array; None if it is none."""
        coords = self.directory_coords(path)
        return None if coords is None else ChunkDirectory(self, coords)

    async def list_in_array(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names of chunks, or of directories of chunks, in the directory of the array, after *cookie*."""
        array = self.array
        if not self.root:
            async for batch in list_chunks(self, (), cookie):
                yield batch
        elif (cookie == 0 or cookie >= OTHERS) and (
            await array.has_shards() if self.new_directories is None else await self.has_directory(())
        ):
            attributes = await self.directory_attributes(0)
            yield Batch(attributes, [(self.root.encode(), attributes.ino, attributes.size, 1)])

    def begin(self) -> None:
        """Note that the array is being created."""
        self.new_directories = NewDirectories()

    def end_creation(self) -> None:
        """Note that the array counts as created."""
        self.new_directories = None

    async def has_directory(self, coords: Coords) -> bool:
        """Whether the directory of chunks at *coords*, which is within the grid, exists."""
        if self.new_directories is None or self.new_directories.has(coords):
            return True
        if await self.array.is_empty(coords):
            return False
        self.make_directory(coords)
        return True

    def make_directory(self, coords: Coords) -> None:
        """Note that a directory of chunks was made; those above it exist."""
        if self.new_directories is not None:
            self.new_directories.add(coords)
            if self.new_directories.is_full:
                self.end_creation()

    def remove_directory(self, coords: Coords) -> None:
        """Note that a directory of chunks was removed, with those below it, which are empty too."""
        if self.new_directories is not None:
            self.new_directories.remove(coords)
        self.removals[self.numbering.of_directory(coords)] += 1

    async def directories_in(self, prefix: Coords) -> AsyncGenerator[Sequence[int], None]:
        """Yield, in order, the next coordinates of the directories of chunks that are listed in the one at *prefix*."""
        if len(prefix) == self._ndim - 1:
            return  # chunks are listed there
        new = self.new_directories
        if new is not None:
            # Others may have stored chunks in those that nobody made here.
            covered = [index async for numbers in self.array.covered(prefix) for index in numbers]
            with_chunks = [index for index in covered if await self.has_directory((*prefix, index))]
            yield sorted({*new.in_directory(prefix), *with_chunks})
        elif self.listed_missing is not None:
            yield range(self.array.grid.grid_shape[len(prefix)])
        else:
            async for numbers in self.array.covered(prefix):
                yield numbers

    # Attributes and content.

    @property
    def shown_missing(self) -> Missing | None:
        """What is shown for a missing chunk; None if nothing is.

        While the array is being created, nothing is: its writer takes chunks that it did not write for an error.
        """
        return self.chunk_view.missing if self.new_directories is None else None

    @property
    def listed_missing(self) -> Missing | None:
        """What a listing shows for a missing chunk; None if nothing."""
        return self.chunk_view.listed_missing if self.new_directories is None else None

    def show(self, chunk_view: ChunkView) -> None:
        """Show the chunks by *chunk_view*, which has the same chunks in the same locations."""
        self.chunk_view = chunk_view

    async def present(self) -> "ChunkTree":
        """Return the current chunk tree of the array; raises `StaleError` if there is none any more."""
        chunks = self.fs.chunk_tree(await self.fs.array_node(self.path))
        if not isinstance(chunks, ChunkTree):
            raise StaleError(f"the array {self.path or 'at the root'} is gone")
        return chunks

    @property
    def is_checked(self) -> bool:
        """Whether the array was looked at not long ago, and need not be again."""
        return self.fs.hierarchy.clock() < self._valid_until

    async def check(self) -> None:
        """Raise `StaleError` if the array no longer has these chunks."""
        path, hierarchy = self.path, self.fs.hierarchy
        chunk_view: ChunkView | None = None
        if self.fs.ranges.at(path) is self.numbers:
            if self.is_checked:
                return
            chunk_view = self.fs.view.chunk_view(await hierarchy.node(path))
        if chunk_view is None or not chunk_view.has_chunks_of(self.chunk_view):
            raise StaleError(f"the array {path or 'at the root'} has changed")
        self.chunk_view = chunk_view
        self._valid_until = hierarchy.clock() + hierarchy.remaining(path)

    async def find(self, coords: Coords, *, fresh: bool = False) -> tuple[Attributes, Extent | FillChunk | None]:
        """Return attributes and content of the chunk at *coords*; the content is None if there is no such chunk."""
        try:
            state, extent = await self.array.find(coords, fresh=fresh)
        except CorruptionError:
            if coords not in self.given_up:
                raise
            state, extent = await self.array.shard(self.array.layout.locate(coords).shard), None
        ttl, status = self.ttl(state), state.stat
        if extent is None:
            missing = self.shown_missing
            if missing is None:
                return absent(ttl), None
            chunk = await missing.chunk()
            ino = self.numbers.ino(MISSING, self.numbering.of_chunk(coords))
            return Attributes(ino, chunk.nbytes, ttl, status or UNKNOWN_FILE), chunk
        if status is None:
            change = self.array.change(coords)
            status = new_file(change.mode, change.uid, change.gid) if isinstance(change, Put) else UNKNOWN_FILE
        own = self.array.own(coords)
        size = extent.nbytes if self.codec is None else self.codec.nbytes
        if own is None or not self.fs.is_writable:
            ino = self.numbers.version(state.generation, self.numbering.of_chunk(coords))
            time, repeats = own.mtime_ns if own is not None else None, self.numbers.repeats(state.generation)
            return Attributes(ino, size, ttl, status, time, repeats), extent
        self.keep_version(own.ino, coords)
        return Attributes(own.ino, size, ttl, status, own.mtime_ns), extent

    def numbered(self, coords: Coords) -> Mapping[Coords, OwnVersion]:
        """Return the versions with numbers of their own in the shard that has the chunk at *coords*.

        Where the tree is only read, there are none: what another view of the source publishes has numbers of that one.
        """
        return self.array.version(coords).own if self.fs.is_writable else {}

    def ttl(self, state: ShardState) -> float:
        """Return how many seconds the kernel may cache attributes of the chunks of a shard: 0 on a writing mount."""
        return 0.0 if self.fs.is_writable else self.array.remaining(state)

    async def is_empty(self, coords: Coords = ()) -> bool:
        """Whether the directory at *coords* contains no chunks, apart from removed ones shown as the fill value."""
        return await self.array.is_empty(coords, besides=self.refilled, given_up=self.given_up)

    async def prune(self) -> None:
        """Commit the removal of all chunks, and remove the directories of the shards."""
        array, store, writer = self.array, self.fs.writable.store, self.fs.writable.writer
        for coords in self.refilled:
            if self.refilled.discard(coords):  # else it has been written meanwhile
                await writer.erase(array, coords, mtime_ns=time.time_ns())
        await writer.commits.flush(below=self.path)
        await remove_directories(writer.commits, store, array, self._given_up)
        array.listing.forget()

    @property
    def _given_up(self) -> ChunkSet | None:
        return self.fs.hierarchy.given_up(self.path)

    @property
    def given_up(self) -> Container[Coords]:
        """The damaged chunks that are not shown, as their array is being removed: see `RemovedArray`."""
        return self._given_up or ()

    async def attributes_of_damaged(self, coords: Coords, error: CorruptionError) -> Attributes:
        """Return attributes by which a chunk can be removed that cannot be read, in an array that is being removed.

        Raises the *error* in any other array.
        """
        if self._given_up is None:
            raise error
        state = await self.array.shard(self.array.layout.locate(coords).shard)
        ino = self.numbers.version(state.generation, self.numbering.of_chunk(coords))
        return Attributes(ino, 0, 0.0, state.stat or UNKNOWN_FILE)

    def keep_version(self, ino: int, coords: Coords) -> None:
        """Let *ino* stand for the version of a chunk that was published through the mount."""
        if in_table(ino):
            self.fs.inodes.keep(ino, Chunk, entry=TreePosition(self.numbers, self.numbering.of_chunk(coords)))

    async def directory_attributes(self, position: int) -> Attributes:
        """Return the attributes of the directory at *position*.

        They are those of the directory that holds the shards, or of the array if there is none yet.
        """
        hierarchy, store, known = self.fs.hierarchy, self.fs.store, self._directory_template
        now = hierarchy.clock()
        if known is None or known[0] <= now:
            status = (await hierarchy.node(self.path)).stat
            if self.root and not store.rewrites:
                with suppress(NotFoundError):
                    stored = await store.stat(join_key(self.path, self.root))
                    status = stored if stored.kind is Kind.DIRECTORY else status
            until = now + hierarchy.remaining(self.path)
            known = self._directory_template = until, Attributes(0, status.size, 0.0, status)
        until, attributes = known
        return attributes._replace(ino=self.directory_ino(position), ttl=until - now)

    def directory_ino(self, position: int) -> int:
        """Return the inode number of the directory at *position*."""
        return self.numbers.ino(self.removals[position], position)


@lru_cache(_MAX_ROWS)
def _coords(numbering: ChunkNumbering, position: int) -> Coords:
    """Return the coordinates at *position*; cached for all arrays together, because few rows are in use at a time."""
    return numbering.coords(position)


class Chunk(PublishedEntry):
    """An inner chunk within the grid."""

    __slots__ = ("chunks", "coords")

    def __init__(self, chunks: ChunkTree, coords: Coords, ino: int = 0) -> None:
        super().__init__(chunks.fs, ino)
        self.chunks = chunks
        self.coords = coords

    @property
    def may_be_empty(self) -> bool:
        """Whether a chunk can have no bytes: a decoded one has those of its elements."""
        return self.chunks.codec is None or not self.chunks.codec.nbytes

    @property
    def max_nbytes(self) -> int:
        """The size of the largest chunk that can be stored."""
        return self.chunks.array.grid.max_chunk_nbytes

    @property
    def path(self) -> str:
        """The path on the mount."""
        return join_key(self.chunks.path, self.chunks.encoding.encode(self.coords))

    @property
    def node_path(self) -> str:
        """The path of the array."""
        return self.chunks.path

    async def attributes(self) -> Attributes:
        """Return the attributes of this version."""
        try:
            return (await self._version(fresh=False)).attributes
        except CorruptionError as error:
            return await self.chunks.attributes_of_damaged(self.coords, error)

    async def open(self) -> ChunkHandle:
        """Open this version."""
        return await self._version()

    async def _version(self, *, fresh: bool = True) -> ChunkHandle:
        handle = await self.current(fresh=fresh)
        if handle is None or handle.attributes.ino != self.ino:
            raise StaleError(f"{self.path} was {'removed' if handle is None else 'replaced'}")
        return handle

    async def current(self, *, fresh: bool = True) -> ChunkHandle | None:
        """Open the current version; None if there is no chunk."""
        chunks = self.chunks
        await chunks.check()
        attributes, extent = await chunks.find(self.coords, fresh=fresh)
        if extent is None or isinstance(extent, FillChunk):
            return ChunkHandle(attributes, extent) if extent is not None else None
        reopen = self.current if self.fs.store.rewrites else None
        if chunks.codec is None:
            return ChunkHandle(attributes, extent, reopen)
        decoded = DecodedChunk(
            self.fs.chunk_cache, chunks.array.layout, self.coords, extent, chunks.codec.at(self.coords)
        )
        return ChunkHandle(attributes, decoded, reopen)

    async def attribute(self, name: bytes) -> bytes:
        """Return where this version is stored: the key of its shard, or its length or offset there.

        There is no offset if the shard is encoded as a whole, or if the chunk is still pending.
        """
        array = self.chunks.array
        if name == _SHARD:
            return array.layout.shard_key(array.grid.locate(self.coords).shard).encode(errors="surrogateescape")
        chunk = (await self._version(fresh=False)).extent
        extent = chunk.extent if isinstance(chunk, DecodedChunk) else chunk
        if name == _NBYTES:
            return b"%d" % (extent.nbytes if isinstance(extent, FillChunk) else extent.stored_nbytes)
        if name != _OFFSET or isinstance(extent, FillChunk) or array.grid.is_encoded or isinstance(extent.source, Put):
            raise NoAttributeError(f"no attribute {name!r}")
        return b"%d" % (extent.source.offset + extent.offset)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the attributes."""
        return [_SHARD, _NBYTES] if self.chunks.array.grid.is_encoded else [_SHARD, _OFFSET, _NBYTES]

    async def existing(self) -> ChunkHandle | None:
        """Open the current version; None if there is none, or a removed one is shown as the fill value."""
        return None if self.coords in self.chunks.refilled else await self.current()

    def keep_number(self, ino: int) -> None:
        """Let *ino* stand for the chunk, which does not exist yet."""
        self.chunks.keep_version(ino, self.coords)

    def give_back(self, ino: int) -> None:
        """Have another number than *ino*, which the content was to keep: its file keeps its name, after all."""
        layout, own = self.chunks.array.layout, self.chunks.array.own(self.coords)
        if own is not None and own.ino == ino:
            own = own._replace(ino=self.fs.inodes.reserve())
            self.fs.writable.writer.source.shards.generations.own(layout, self.coords, own)

    async def open_to_write(self, flags: int) -> WriteBuffer | PassthroughHandle:
        """Open the current version; raises `ReadOnlyError` in a format that is only read."""
        self.chunks.check_writable()
        return await super().open_to_write(flags)

    async def _begin(self, flags: int, new: Stat | None) -> WriteBuffer:
        """Begin to write; if the version has pages, under another number.

        Told that a number is stale, the kernel looks the name up once more, and finds that other number.
        """
        fs = self.fs.writable
        if self.ino in fs.pages or (fs.pages and not self.ino):
            fs.pages.await_writer(self.path)
            handle = await self.current()
            if handle is not None and handle.ino in fs.pages:
                own = OwnVersion(self.fs.inodes.reserve(), handle.attributes.own_mtime_ns)
                fs.writer.source.shards.generations.own(self.chunks.array.layout, self.coords, own)
                self.chunks.keep_version(own.ino, self.coords)
            if self.ino in fs.pages:
                raise StaleError(f"{self.path} is read by programs that would see what is written")
        buffer = await super()._begin(flags, new)
        fs.pages.writer_came(self.path)
        return buffer

    async def check_removable(self) -> None:
        """Raise the error that prevents changing the shard."""
        layout = self.chunks.array.layout
        await self.fs.writable.store.check_writable(layout.shard_key(layout.locate(self.coords).shard))

    async def erase(self) -> None:
        """Remove the chunk; where missing chunks are shown as the fill value, it is shown so again.

        A damaged one goes with its array. As long as that has a document, nothing removes it by accident.
        """
        try:
            handle = await self.current()
        except CorruptionError:
            removed = await self.fs.hierarchy.removed(self.chunks.path)
            if removed is None:
                raise
            await self.check_removable()
            removed.given_up.add(self.coords)
            return
        if handle is None or (isinstance(handle.extent, FillChunk) and self.coords in self.chunks.given_up):
            raise NotFoundError(f"{self.path} does not exist")
        chunks = await self.chunks.present()
        self.fs.writable.document_writer.require_known(chunks.array)
        missing = chunks.chunk_view.listed_missing
        if missing is None:
            if not isinstance(handle.extent, FillChunk):
                await self.fs.writable.writer.erase(chunks.array, self.coords, mtime_ns=time.time_ns())
        elif self.coords in chunks.refilled and in_table(handle.ino):  # else another program has written it
            chunks.removed_again.add(self.coords)
        else:
            content = await (await missing.chunk(removed=True)).content()
            await self.put(content, handle.attributes.status, None, None)
            chunks.refilled.add(self.coords)

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Refuse: a chunk is a file."""
        raise RefusedError(f"{self.path} is the name of a chunk, and cannot be a directory")

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Give the chunk another modification time.

        Mode and owner are those of the shard and do not change; as long as there is no shard, they are kept for a new
        one.
        """
        self.chunks.check_writable()
        ino, chunk = self.ino, self
        buffer = self.fs.writable.buffers.of_ino(ino)
        if buffer is not None and buffer.is_ahead:
            buffer.set_attributes(changes)
            return
        if buffer is not None:
            assert isinstance(buffer.entry, Chunk)
            ino, chunk = buffer.version_ino, buffer.entry  # it means what its writer published
        await Chunk(chunk.chunks, chunk.coords, ino).open()
        if buffer is not None:
            buffer.set_attributes(changes)
        pending = chunk.chunks.array.change(chunk.coords)
        if isinstance(pending, Put):
            status = changed(new_file(pending.mode, pending.uid, pending.gid), changes)
            pending.grant(S_IMODE(status.mode), status.uid, status.gid)
        mtime_ns = changes.get("mtime_ns")
        if mtime_ns is not None:
            own = OwnVersion(ino, mtime_ns)
            self.fs.writable.writer.source.shards.generations.own(chunk.chunks.array.layout, chunk.coords, own)

    async def put(
        self, content: Content, status: Stat, mtime_ns: int | None, ino: int | None, *, exclusive: bool = False
    ) -> OwnVersion:
        """Publish *content* as the chunk; *exclusive* changes nothing, as callers have looked whether there is one."""
        chunks = await self.chunks.present()
        array, coords = chunks.array, self.coords
        if not array.grid.contains(coords):
            raise RefusedError(f"{self.path} now lies beyond the shape of its array")
        if chunks is not self.chunks and not chunks.chunk_view.reads_like(self.chunks.chunk_view):
            raise RefusedError(f"{self.path} was written for other codecs or another data type than its array has now")
        self.fs.writable.document_writer.require_known(array)
        if chunks.codec is not None:
            try:
                content = await self.fs.chunk_cache.encode(chunks.codec, content)
            except (MetadataError, RefusedError) as error:
                raise RefusedError(f"{self.path} is refused: {error}") from None
        self.check_size(content.nbytes)
        own = await self.fs.writable.writer.put(
            array,
            coords,
            content,
            ino=self.fs.inodes.reserve() if ino is None else ino,
            mtime_ns=mtime_ns,
            mode=S_IMODE(status.mode),
            uid=status.uid,
            gid=status.gid,
        )
        chunks.refilled.discard(coords)
        chunks.keep_version(own.ino, coords)
        return own


class ChunkDirectory(Entry):
    """A directory of chunks; *coords* are the coordinates in its path."""

    __slots__ = ("chunks", "coords", "position")

    def __init__(self, chunks: ChunkTree, coords: Coords, ino: int = 0, position: int | None = None) -> None:
        super().__init__(chunks.fs, ino)
        self.chunks = chunks
        self.coords = coords
        self.position = chunks.numbering.of_directory(coords) if position is None else position

    @property
    def path(self) -> str:
        """The path on the mount."""
        parts = [self.chunks.path, self.chunks.root, *map(str, self.coords)]
        return "/".join(part for part in parts if part)

    @property
    def node_path(self) -> str:
        """The path of the array."""
        return self.chunks.path

    def keep_inode(self, ino: int) -> None:
        """Let the number *ino*, by which programs know the directory already, stand for it."""
        self.ino = ino
        self.fs.inodes.keep(ino, ChunkDirectory, entry=TreePosition(self.chunks.numbers, self.position))

    async def attributes(self) -> Attributes:
        """Return the attributes of the directory."""
        await self.chunks.check()
        return (await self.chunks.directory_attributes(self.position))._replace(ino=self.ino)

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* in the directory."""
        await self.chunks.check()
        if self.chunks.owns(name):
            return await self.chunks.lookup(self.position, name)
        return await self.fs.lookup_beside_chunks(self.path, name)

    async def open_chunk(self, name: str) -> ChunkHandle | Attributes | None:
        """Open the chunk *name*; None if no chunk has such a name."""
        await self.chunks.check()
        return await self.chunks.open(self.position, name) if self.chunks.owns(name) else None

    async def child(self, name: str) -> Entry:
        """Return the entry of *name* in the directory."""
        if self.chunks.owns(name):
            return await self.chunks.entry(self.position, name)
        return await self.fs.beside_chunks(self.path, name)

    async def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the stored names that are not chunks, then chunks."""
        fs, owns = self.fs, self.chunks.owns
        await self.chunks.check()
        async for batch in fs.list_stored(self.path, cookie, lambda name: owns(name) or is_lock(name)):
            yield batch
        async for batch in fs.list_scratch(self.path, cookie, owns):
            yield batch
        async for batch in list_chunks(self.chunks, self.coords, cookie):
            yield batch

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Create the directory in an array that is being created; in other arrays it exists already."""
        if await self.chunks.has_directory(self.coords):
            await super().make_directory(mode, owner)
        self.chunks.make_directory(self.coords)

    async def remove_directory(self) -> None:
        """Remove what is stored of the directory."""
        chunks = self.chunks
        if not await chunks.is_empty(self.coords):
            raise NotEmptyError("there are chunks in the directory")
        await self._require_no_scratch()
        await self.fs.remove_scratch(self.path)
        chunks.remove_directory(self.coords)
        if not self.coords and chunks.root:
            node = await self.fs.hierarchy.node(chunks.path)
            present = await chunks.present()
            await (
                self.fs.writable.document_writer.end(present)
                if isinstance(node.kind, RemovedArray)
                else present.prune()
            )

    async def _require_no_scratch(self) -> None:
        """Raise `NotEmptyError` if there are scratch files in the directory, or below it."""
        store, scratch = self.fs.store, join_key(self.fs.scratch or "", self.path)
        try:
            entries = await store.list(scratch)
        except (NotFoundError, NotADirectoryHereError):
            return
        for entry in entries:
            is_empty = self.chunks.owns(entry.name)
            if is_empty and await self._lists(int(entry.name)):
                is_empty = not [key async for key in walk_files(store, join_key(scratch, entry.name))]
            if not is_empty:
                raise NotEmptyError(f"{entry.name} is in the directory")

    async def _lists(self, index: int) -> bool:
        """Whether there is a listed directory with the next coordinate *index*."""
        return any([index in numbers async for numbers in self.chunks.directories_in(self.coords)])
