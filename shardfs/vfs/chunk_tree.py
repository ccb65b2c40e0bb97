"""The files and directories of one sharded array's chunks: computed from inode numbers, kept nowhere."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Final

from shardfs.dataset.array import Array, Extent, ListedRun
from shardfs.dataset.shards import ShardState
from shardfs.errors import (
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    StaleError,
)
from shardfs.format.chunk_key import parse_coordinate
from shardfs.format.sharding import Coords
from shardfs.vfs.attributes import Attributes, absent, unreadable
from shardfs.vfs.handles import OTHERS, Batch, ChunkHandle
from shardfs.vfs.inodes import GENERATION_MASK, pack
from shardfs.vfs.positions import Positions

if TYPE_CHECKING:
    from shardfs.vfs.tree import Tree

_BATCH: Final = 1024
_MAX_PREFIXES: Final = 8192
_SHARD: Final = b"user.shardfs.shard"
_OFFSET: Final = b"user.shardfs.offset"
_NBYTES: Final = b"user.shardfs.nbytes"


class ChunkTree:
    """The chunks of *array*, and the directories above them, by their `Positions`.

    Position 0 is the directory *root* (`c`), or, where keys have no such directory (*root* is ""), the array's own.
    """

    def __init__(self, tree: "Tree", array: Array) -> None:
        encoding = array.arrangement.key_encoding
        self.number = tree.numbers.add(self)
        self.array = array
        self.root = encoding.root(array.grid.ndim)
        self._tree = tree
        self._encoding = encoding
        self._ndim = array.grid.ndim
        self._nested = encoding.is_nested(self._ndim)
        self._positions = Positions.of(array.grid.grid_shape, nested=self._nested)
        self._prefixes: dict[int, Coords] = {}
        self._valid_until = float("-inf")

    def owns(self, name: str) -> bool:
        """Whether *name*, in a directory of chunks, belongs to a chunk or to more of them, in the grid or not."""
        if self._nested:
            return parse_coordinate(name) is not None
        return self._encoding.decode(name, self._ndim) is not None

    def owns_in_array(self, name: str) -> bool:
        """Whether *name*, in the array's directory, belongs to the chunks."""
        return name == self.root if self.root else self.owns(name)

    async def lookup_in_array(self, name: str) -> Attributes:
        """Return the attributes of *name*, which belongs to the chunks, in the array's directory."""
        return await self._directory_attributes(0) if self.root else await self._lookup(0, name)

    async def lookup(self, position: int, name: str) -> Attributes:
        """Return the attributes of *name* in the directory at *position*."""
        await self._check()
        if self._positions.is_chunk(position):
            raise NotADirectoryHereError("a chunk is no directory")
        if not self.owns(name):
            return await self._tree.lookup_stored(self.stored_path(position), name)
        return await self._lookup(position, name)

    async def attributes(self, generation: int, position: int) -> Attributes:
        """Return the attributes of version *generation* of a chunk, or of a directory of chunks."""
        await self._check()
        if not self._positions.is_chunk(position):
            return await self._directory_attributes(position)
        state, extent = await self._find(generation, position, fresh=False)
        return self._chunk_attributes(position, state, extent)

    async def open(self, generation: int, position: int) -> ChunkHandle:
        """Open version *generation* of a chunk."""
        await self._check()
        if not self._positions.is_chunk(position):
            raise IsADirectoryHereError("this is a directory of chunks")
        state, extent = await self._find(generation, position, fresh=True)
        return ChunkHandle(self._chunk_attributes(position, state, extent), extent)

    async def attribute(self, generation: int, position: int, name: bytes) -> bytes:
        """Return where a chunk lies: the key of its shard, and length and offset in it.

        There is no offset where the shard is encoded as a whole.
        """
        if self._positions.is_chunk(position):
            if name == _SHARD:
                place = self.array.grid.locate(self._coords(position))
                return self.array.arrangement.shard_key(place.shard).encode(errors="surrogateescape")
            _, extent = await self._find(generation, position, fresh=False)
            if name == _NBYTES:
                return b"%d" % extent.nbytes
            if name == _OFFSET and not self.array.grid.is_encoded:
                return b"%d" % (extent.shard.offset + extent.offset)
        raise NoAttributeError(f"no attribute {name!r}")

    def attribute_names(self, position: int) -> Sequence[bytes]:
        """Return the names of the attributes."""
        if not self._positions.is_chunk(position):
            return []
        return [_SHARD, _NBYTES] if self.array.grid.is_encoded else [_SHARD, _OFFSET, _NBYTES]

    def stored_path(self, position: int) -> str:
        """Return the directory of the store that has the same path as the one at *position*."""
        parts = [self.array.arrangement.path, self.root, *map(str, self._coords(position))]
        return "/".join(part for part in parts if part)

    async def list(self, position: int, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield stored names that are no chunks', then chunks, of the directory at *position* behind *cookie*."""
        await self._check()
        if self._positions.is_chunk(position):
            raise NotADirectoryHereError("a chunk is no directory")
        try:
            async for batch in self._tree.list_stored(self.stored_path(position), cookie, {}, self.owns):
                yield batch
        except (NotFoundError, NotADirectoryHereError):
            pass  # directories above inner chunks are more than those above shards
        async for batch in self._list_chunks(position, 0 if cookie >= OTHERS else cookie):
            yield batch

    async def list_in_array(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield what the array's directory shows of the chunks behind *cookie*."""
        if not self.root:
            async for batch in self._list_chunks(0, 0 if cookie >= OTHERS else cookie):
                yield batch
        elif (cookie == 0 or cookie >= OTHERS) and await self.array.has_shards():
            attributes = await self._directory_attributes(0)
            yield Batch(attributes, [(self.root.encode(), attributes.ino, attributes.size, 1)])

    async def _list_chunks(self, position: int, start: int) -> AsyncGenerator[Batch, None]:
        """Yield chunks, or directories of chunks.

        The cookie of a name is its coordinate + 1; where a name is a whole key, the index in the grid + 1.
        """
        prefix = self._coords(position)
        if not self._nested:
            batches = self._list_flat(start)
        elif len(prefix) < self._ndim - 1:
            batches = self._list_directories(prefix, start)
        else:
            batches = self._list_row(prefix, start)
        async for batch in batches:
            yield batch

    async def _check(self) -> None:
        """Raise `StaleError` if the array does not have these chunks any more."""
        if self._tree.hierarchy.clock() < self._valid_until:
            return
        path = self.array.arrangement.path
        node = await self._tree.hierarchy.node(path)
        if node.array is None or node.array.arrangement is not self.array.arrangement:
            raise StaleError(f"the array {path or 'at the root'} has changed")
        self._valid_until = self._tree.hierarchy.clock() + self._tree.hierarchy.remaining(path)

    def _coords(self, position: int) -> Coords:
        """Return what `Positions.coords` does; prefixes of rows, of which few are in use at a time, are remembered."""
        if not self._nested or not self._positions.is_chunk(position):
            return self._prefix(position)
        directory, last = self._positions.parent(position)
        return (*self._prefix(directory), last)

    def _prefix(self, position: int) -> Coords:
        coords = self._prefixes.get(position)
        if coords is None:
            if len(self._prefixes) >= _MAX_PREFIXES:
                self._prefixes.clear()
            coords = self._prefixes[position] = self._positions.coords(position)
        return coords

    async def _find(self, generation: int, position: int, *, fresh: bool) -> tuple[ShardState, Extent]:
        state, extent = await self.array.find(self._coords(position), fresh=fresh)
        if extent is None or state.generation & GENERATION_MASK != generation:
            raise StaleError("the chunk was replaced")
        return state, extent

    async def _lookup(self, position: int, name: str) -> Attributes:
        if self._nested:
            coords = (*self._prefix(position), int(name))
            if coords[-1] >= self.array.grid.grid_shape[len(coords) - 1]:
                return absent(self._tree.hierarchy.remaining(self.array.arrangement.path))
            if len(coords) < self._ndim:
                return await self._directory_attributes(self._positions.of_directory(coords))
            position = self._positions.child(position, coords[-1])
        else:
            coords = self._encoding.decode(name, self._ndim) or ()
            if not self.array.grid.contains(coords):
                return absent(self._tree.hierarchy.remaining(self.array.arrangement.path))
            position = self._positions.of_chunk(coords)
        state, extent = await self.array.find(coords)
        if extent is None:
            return absent(self.array.remaining(state))
        return self._chunk_attributes(position, state, extent)

    def _chunk_attributes(self, position: int, state: ShardState, extent: Extent) -> Attributes:
        assert state.stat is not None
        ino = pack(self.number, state.generation, position)
        return Attributes(ino, extent.nbytes, self.array.remaining(state), state.stat)

    async def _directory_attributes(self, position: int) -> Attributes:
        attributes = await self._tree.directory_attributes(self.array.arrangement.path, self.root)
        return attributes._replace(ino=pack(self.number, 0, position))

    async def _list_directories(self, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
        template = await self._directory_attributes(self._positions.of_directory((*prefix, 0)))
        async for covered in self.array.covered(prefix):
            for first in range(max(start, covered.start), covered.stop, _BATCH):
                numbers = range(first, min(first + _BATCH, covered.stop))
                sizes = repeat(template.size, len(numbers))
                rows = zip(
                    _decimals(numbers), _shifted(numbers, template.ino), sizes, _shifted(numbers, 1), strict=True
                )
                yield Batch(template, list(rows))

    async def _list_row(self, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
        async for run in self.array.list_row(prefix, start):
            for batch in self._batches(run, prefix):
                yield batch

    async def _list_flat(self, start: int) -> AsyncGenerator[Batch, None]:
        if self._ndim == 0:
            if start == 0:
                async for batch in self._list_only_chunk():
                    yield batch
            return
        if start >= self.array.grid.nchunks:
            return
        first = self._positions.coords(self._positions.bases[-1] + start)
        async for prefix in self.array.rows(first[:-1]):
            async for run in self.array.list_row(prefix, first[-1] if prefix == first[:-1] else 0):
                for batch in self._batches(run, prefix):
                    yield batch

    async def _list_only_chunk(self) -> AsyncGenerator[Batch, None]:
        """List the chunk of an array without axes."""
        name = self._encoding.encode(())
        position = self._positions.of_chunk(())
        try:
            attributes = await self._lookup(0, name)
        except ShardfsError:
            attributes = unreadable(None)._replace(ino=pack(self.number, 0, position))
        if attributes.ino:
            yield Batch(attributes, [(name.encode(), attributes.ino, attributes.size, 1)])

    def _batches(self, run: ListedRun, prefix: Coords) -> Iterable[Batch]:
        """Turn a run of chunks into rows; those that cannot be read get attributes that are not kept."""
        row = self._positions.of_chunk((*prefix, 0))
        ino = pack(self.number, run.state.generation, row)
        cookie = 1 if self._nested else row - self._positions.bases[-1] + 1
        broken = unreadable(run.state.stat)
        sound = broken._replace(ttl=self.array.remaining(run.state))
        for start in range(0, run.length, _BATCH):
            numbers, sizes, damaged = run.chunks(start, min(start + _BATCH, run.length))
            if self._nested:
                names = _decimals(numbers)
            else:
                names = [self._encoding.encode((*prefix, n)).encode() for n in numbers]
            rows = list(zip(names, _shifted(numbers, ino), sizes, _shifted(numbers, cookie), strict=True))
            if damaged is None:
                if rows:
                    yield Batch(sound, rows)
                continue
            for is_damaged, group in groupby(zip(damaged, rows, strict=True), key=lambda pair: pair[0]):
                yield Batch(broken if is_damaged else sound, [listed for _, listed in group])


def _shifted(numbers: Sequence[int], distance: int) -> Sequence[int]:
    if isinstance(numbers, range):
        return range(numbers.start + distance, numbers.stop + distance)
    return [n + distance for n in numbers]


def _decimals(numbers: Sequence[int]) -> list[bytes]:
    """Return the names of coordinates; a row is listed again and again, so those of one are kept ready."""
    if isinstance(numbers, range) and numbers.stop <= len(_DECIMALS):
        return _DECIMALS[numbers.start : numbers.stop]
    return [b"%d" % n for n in numbers]


_DECIMALS: Final = [b"%d" % n for n in range(4096)]
