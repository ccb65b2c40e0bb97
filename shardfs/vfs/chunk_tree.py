"""The files and directories of one array's chunks: computed from inode numbers, kept nowhere."""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from shardfs.dataset.array import Extent
from shardfs.dataset.shard_cache import ShardState
from shardfs.dataset.wal.records import Put
from shardfs.errors import (
    NoAttributeError,
    RefusedError,
    StaleError,
)
from shardfs.format.grid import parse_coordinate
from shardfs.format.sharding import Coords
from shardfs.stores.local.file_lock import LOCK_SUFFIX, is_lock
from shardfs.vfs.attributes import UNKNOWN_FILE, Attributes, absent, new_file
from shardfs.vfs.chunk_cache import DecodedChunk
from shardfs.vfs.chunk_listing import ChunkListing, ChunkRows, shifted
from shardfs.vfs.chunk_numbering import ChunkNumbering
from shardfs.vfs.entries.chunk import Chunk, ChunkDirectory
from shardfs.vfs.handles import OTHERS, Batch, ChunkHandle
from shardfs.vfs.inodes import MISSING, ArrayNumbers, in_table
from shardfs.vfs.missing import FillChunk
from shardfs.vfs.views import ChunkView

if TYPE_CHECKING:
    from shardfs.vfs.filesystem import Filesystem

_MAX_PREFIXES: Final = 8192
_TEMPORARY: Final = re.compile(r"(.+)\.[0-9a-f]{8,32}\.partial|\.(.+)\.[A-Za-z0-9]{6}")
"""What zarr-python, rclone and rsync call a file while they write it; zarr-python 3 drops what follows its last dot."""

_SHARD: Final = b"user.shardfs.shard"
_OFFSET: Final = b"user.shardfs.offset"
_NBYTES: Final = b"user.shardfs.nbytes"


class ChunkTree:
    """The chunks of an array, as the view shows them, and the directories above them, by their `ChunkNumbering`.

    Position 0 is the directory *root* (`c`), or, where keys have no such directory (*root* is ""), the array's own.

    *refilled* are chunks that programs removed and that went on as chunks of the fill value which these were shown,
    with the numbers of those.  Some programs remove a name to take it anew: of one that is *removed_again* the next
    lookup finds nothing.
    """

    def __init__(
        self,
        fs: "Filesystem",
        chunk_view: ChunkView,
        numbering: ChunkNumbering,
        numbers: "ArrayNumbers[ChunkTree]",
    ) -> None:
        self.chunk_view = chunk_view
        array, encoding, self.codec, _ = chunk_view
        self.numbers = numbers
        self.array = array
        self.root = encoding.root(array.grid.ndim)
        self.fs = fs
        self._encoding = encoding
        self._ndim = array.grid.ndim
        self._nested = encoding.is_nested(self._ndim)
        self.numbering = numbering
        rows = ChunkRows(numbers, chunk_view, self.numbering, self.keep_version)
        self._listing = ChunkListing(self, rows)
        self._prefixes: dict[int, Coords] = {}
        self._removals: Counter[int] = Counter()  # of directories, by their positions
        self.refilled: dict[Coords, int] = {}
        self.removed_again: set[Coords] = set()
        self._valid_until = float("-inf")
        self._directory_template: tuple[float, Attributes] | None = None

    @property
    def has_history(self) -> bool:
        """Whether it knows what nobody could find out again."""
        return bool(self.refilled or self.removed_again or self._removals or self.array.layout.directories is not None)

    def owns(self, name: str) -> bool:
        """Whether *name*, in a directory of chunks, belongs to a chunk or to more of them, in the grid or not."""
        if self._nested:
            return parse_coordinate(name) is not None
        return self._encoding.decode(name, self._ndim) is not None

    def key(self, coords: Coords) -> str:
        """Return the path of the chunk at *coords* from the directory of its array."""
        return self._encoding.encode(coords)

    def owns_in_array(self, name: str) -> bool:
        """Whether *name*, in the array's directory, belongs to the chunks."""
        return self._encoding.begins(name, self._ndim)

    def takes(self, name: str) -> bool:
        """Whether *name*, in the array's directory, belongs to the chunks, or to the shards that they are stored in."""
        return self.owns_in_array(name) or self.array.layout.key_encoding.begins(name, self._ndim)

    def is_scratch(self, name: str) -> bool:
        """Whether *name*, in the array's directory, is kept as names in a directory of chunks are.

        That is a lock of a chunk, or of a shard, that lies there, and in a bucket, where it would cost three requests
        or four, what writers are known to call a chunk before they rename it.  Any other name may be a user's.
        """
        if is_lock(name):
            return self.takes(name.removesuffix(LOCK_SUFFIX))
        found = _TEMPORARY.fullmatch(name) if self.fs.store.root is None else None
        return found is not None and any(map(self.takes, (key := found[1] or found[2], f"{key}.0")))

    async def lookup_in_array(self, name: str) -> Attributes:
        """Return the attributes of *name*, which belongs to the chunks, in the array's directory."""
        return await self._directory(()) if self.root else await self._lookup(0, name)

    async def lookup(self, position: int, name: str) -> Attributes:
        """Return the attributes of *name* in the directory at *position*."""
        await self.check()
        if self.owns(name):
            return await self._lookup(position, name)
        return await self.fs.stored.lookup_beside_chunks(self.directory_of(self._coords(position)), name)

    def at(self, position: int, ino: int) -> "Chunk | ChunkDirectory":
        """Return the chunk, or directory of chunks, at *position*, whose number is *ino*."""
        if self.numbering.is_chunk(position):
            return Chunk(self, self._coords(position), ino)
        return ChunkDirectory(self, self._coords(position), ino, position)

    async def entry(self, position: int | None, name: str) -> "Chunk | ChunkDirectory":
        """Return what *name*, which belongs to the chunks, stands for in the directory at *position*.

        That is the array's directory if it is None.  Raises `RefusedError` for a name beyond the grid.
        """
        await self.check()
        if position is None and self.root:
            return ChunkDirectory(self, ())
        coords = self._coords_of(position or 0, name)
        if any(i >= n for i, n in zip(coords, self.array.grid.grid_shape, strict=False)):
            raise RefusedError(f"{self.key(coords)} of {self.path or 'the array'} lies beyond its shape")
        return ChunkDirectory(self, coords) if len(coords) < self._ndim else Chunk(self, coords)

    async def published(self, position: int | None, name: str) -> "Chunk | None":
        """Return the chunk that *name* stands for there, None if it stands for anything else."""
        try:
            found = await self.entry(position, name)
        except RefusedError:  # beyond the grid
            return None
        return found if isinstance(found, Chunk) else None

    def _coords_of(self, position: int, name: str) -> Coords:
        if self._nested:
            return (*self._prefix(position), int(name))
        return self._encoding.decode(name, self._ndim) or ()

    def directory_at(self, path: str) -> "ChunkDirectory | None":
        """Return the directory that *path*, from that of the array, leads to; None if it is none."""
        names = path.split("/")
        if self.root and names.pop(0) != self.root:
            return None
        coords = tuple(index for name in names if (index := parse_coordinate(name)) is not None)
        is_within = all(index < length for index, length in zip(coords, self.array.grid.grid_shape, strict=False))
        if not self._nested or len(coords) != len(names) or len(coords) >= self._ndim or not is_within:
            return None
        return ChunkDirectory(self, coords)

    async def version(self, coords: Coords, ino: int, *, fresh: bool = True) -> ChunkHandle:
        """Return the chunk at *coords* as it is, open; raises `StaleError` if *ino* is not its number."""
        found = await self.current(coords, fresh=fresh)
        if found is None:
            raise StaleError("the chunk was removed")
        if found.attributes.ino != ino:
            raise StaleError("the chunk was replaced")
        return found

    async def current(self, coords: Coords, *, fresh: bool = True) -> ChunkHandle | None:
        """Return the chunk at *coords* as it is, open; None if there is none."""
        await self.check()
        attributes, extent = await self._find(coords, fresh=fresh)
        if extent is None:
            return None
        if isinstance(extent, FillChunk):
            return ChunkHandle(attributes, extent)
        reopen = partial(self.current, coords) if self.fs.store.rewrites else None
        if self.codec is None:
            return ChunkHandle(attributes, extent, reopen)
        layout, fingerprint = self.array.layout, self.array.fingerprint
        decoded = DecodedChunk(self.fs.chunk_cache, layout, coords, extent, self.codec, fingerprint)
        return ChunkHandle(attributes, decoded, reopen)

    async def _find(self, coords: Coords, *, fresh: bool = False) -> tuple[Attributes, Extent | FillChunk | None]:
        """Return attributes and bytes of the chunk at *coords*; None if there is no such chunk."""
        state, extent = await self.array.find(coords, fresh=fresh)
        if extent is not None:
            return self._chunk_attributes(coords, state, extent), extent
        missing = self.chunk_view.shown_missing
        if missing is None:
            return absent(self.ttl(state)), None
        chunk = await missing.stored()
        ino = self.numbers.ino(MISSING, self.numbering.of_chunk(coords))
        return Attributes(ino, chunk.nbytes, self.ttl(state), state.stat or UNKNOWN_FILE), chunk

    async def attribute(self, coords: Coords, ino: int, name: bytes) -> bytes:
        """Return where version *ino* of a chunk lies: the key of its shard, and length and offset in it.

        There is no offset where the shard is encoded as a whole, and while the chunk is not in its shard yet.
        """
        if name == _SHARD:
            place = self.array.grid.locate(coords)
            return self.array.layout.shard_key(place.shard).encode(errors="surrogateescape")
        chunk = (await self.version(coords, ino, fresh=False)).extent
        extent = chunk.extent if isinstance(chunk, DecodedChunk) else chunk
        if name == _NBYTES:
            return b"%d" % extent.nbytes
        if isinstance(extent, FillChunk):
            raise NoAttributeError("the chunk is not stored")
        if name == _OFFSET and not self.array.grid.is_encoded and extent.shard.offset is not None:
            return b"%d" % (extent.shard.offset + extent.offset)
        raise NoAttributeError(f"no attribute {name!r}")

    def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the attributes of chunks."""
        return [_SHARD, _NBYTES] if self.array.grid.is_encoded else [_SHARD, _OFFSET, _NBYTES]

    @property
    def path(self) -> str:
        """The path of the array."""
        return self.array.layout.path

    def directory_of(self, coords: Coords) -> str:
        """Return the directory of the store with the path of the one whose path gives *coords*."""
        parts = [self.path, self.root, *map(str, coords)]
        return "/".join(part for part in parts if part)

    async def list(self, position: int, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield stored names that are no chunks', then chunks, of the directory at *position* behind *cookie*."""
        await self.check()
        async for batch in self.fs.stored.list_beside_chunks(
            self.directory_of(self._coords(position)), cookie, self.owns
        ):
            yield batch
        async for batch in self._list_chunks(position, cookie):
            yield batch

    async def list_in_array(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield what the array's directory shows of the chunks behind *cookie*."""
        if not self.root:
            async for batch in self._list_chunks(0, cookie):
                yield batch
        elif (cookie == 0 or cookie >= OTHERS) and await self._has_root():
            attributes = await self.directory_attributes(0)
            yield Batch(attributes, [(self.root.encode(), attributes.ino, attributes.size, 1)])

    async def _list_chunks(self, position: int, cookie: int) -> AsyncGenerator[Batch, None]:
        start = 0 if cookie >= OTHERS else cookie
        async for batch in self._listing.list(self._coords(position), start, is_nested=self._nested):
            yield batch

    def keep_version(self, ino: int, coords: Coords) -> None:
        """Let *ino* stand for the version of a chunk that was published through the mount."""
        if in_table(ino):
            self.fs.inodes.keep(ino, Chunk, entry=Chunk(self, coords, ino))

    async def _has_root(self) -> bool:
        layout = self.array.layout
        return await self.array.has_shards() if layout.directories is None else layout.has_directory(())

    async def check(self) -> None:
        """Raise `StaleError` if the array does not have these chunks any more."""
        if self.fs.hierarchy.clock() < self._valid_until:
            return
        path = self.path
        node = await self.fs.hierarchy.node(path)
        chunk_view = self.fs.view.chunk_view(node)
        if chunk_view is None or not chunk_view.has_chunks_of(self.chunk_view):
            raise StaleError(f"the array {path or 'at the root'} has changed")
        self.chunk_view = chunk_view
        self._valid_until = self.fs.hierarchy.clock() + self.fs.hierarchy.remaining(path)

    def _coords(self, position: int) -> Coords:
        """Return what `ChunkNumbering.coords` does; prefixes of rows, few of which are in use, are remembered."""
        if not self._nested or not self.numbering.is_chunk(position):
            return self._prefix(position)
        directory, last = self.numbering.parent(position)
        return (*self._prefix(directory), last)

    def _prefix(self, position: int) -> Coords:
        coords = self._prefixes.get(position)
        if coords is None:
            if len(self._prefixes) >= _MAX_PREFIXES:
                self._prefixes.clear()
            coords = self._prefixes[position] = self.numbering.coords(position)
        return coords

    async def _lookup(self, position: int, name: str) -> Attributes:
        coords = self._coords_of(position, name)
        if self._nested and len(coords) < self._ndim and coords[-1] < self.array.grid.grid_shape[len(coords) - 1]:
            return await self._directory(coords)
        if not self.array.grid.contains(coords):
            return absent(0.0 if self.fs.is_writable else self.fs.hierarchy.remaining(self.path))
        attributes, _ = await self._find(coords)
        if coords in self.removed_again:
            self.removed_again.discard(coords)
            return absent(0.0)
        return attributes

    async def is_empty(self, coords: Coords = ()) -> bool:
        """Whether the directory to which *coords* lead has no chunks but such as programs removed."""
        return await self.array.is_empty(coords, besides=self.refilled)

    async def remains(self, coords: Coords) -> FillChunk | None:
        """Return what the chunk at *coords*, which a program removes, goes on as; None if it goes."""
        missing = self.chunk_view.missing
        return await missing.shown() if missing is not None and missing.is_listed else None

    def _chunk_attributes(self, coords: Coords, state: ShardState, extent: Extent) -> Attributes:
        layout = self.array.layout
        ttl = self.ttl(state)
        status = state.stat
        if status is None:
            change = layout.pending.changes.get(coords)
            status = new_file(change.mode, change.uid, change.gid) if isinstance(change, Put) else UNKNOWN_FILE
        own = layout.own.get(coords)
        size = extent.nbytes if self.codec is None else self.codec.nbytes
        if own is None:
            ino = self.numbers.version(state.generation, self.numbering.of_chunk(coords))
            return Attributes(ino, size, ttl, status)
        self.keep_version(own.ino, coords)
        return Attributes(own.ino, size, ttl, status, own.mtime_ns)

    def ttl(self, state: ShardState) -> float:
        """Return for how long the kernel may believe what it is told of the chunks of a shard.

        A chunk that programs write through the mount would be out of date in the kernel's memory.
        """
        return 0.0 if self.fs.is_writable else self.array.remaining(state)

    async def _directory(self, coords: Coords) -> Attributes:
        if not self.array.layout.has_directory(coords):
            return absent(0.0)
        return await self.directory_attributes(self.numbering.of_directory(coords))

    async def directory_attributes(self, position: int) -> Attributes:
        """Return the attributes of the directory at *position*."""
        now, known = self.fs.hierarchy.clock(), self._directory_template
        if known is None or known[0] <= now:
            attributes = await self.fs.directory_attributes(self.path, self.root)
            known = self._directory_template = now + attributes.ttl, attributes
        until, attributes = known
        return attributes._replace(ino=self._directory_ino(position), ttl=until - now)

    def removed(self, coords: Coords) -> None:
        """Give a directory another number: it was removed, and to the kernel the old one is dead if anybody has it."""
        self._removals[self.numbering.of_directory(coords)] += 1

    def _directory_ino(self, position: int) -> int:
        return self.numbers.ino(self._removals[position] if self._removals else 0, position)

    def directory_inos(self, position: int, numbers: Sequence[int]) -> Sequence[int]:
        """Return the inode numbers of directories beside each other, the first of which is at *position*."""
        if not self._removals:
            return shifted(numbers, self.numbers.ino(0, position))
        return [self._directory_ino(position + n) for n in numbers]
