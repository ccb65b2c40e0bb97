"""Listings of the directories of a chunk tree: of chunks, and of directories above them."""

from collections.abc import AsyncGenerator
from itertools import product, repeat
from typing import TYPE_CHECKING

from shardfs.dataset.array import ListedRun
from shardfs.errors import ShardfsError
from shardfs.format.sharding import Coords
from shardfs.vfs.attributes import unreadable
from shardfs.vfs.chunk_rows import BATCH, ChunkRows, decimals, shifted
from shardfs.vfs.handles import Batch
from shardfs.vfs.inodes import pack

if TYPE_CHECKING:
    from shardfs.vfs.chunk_tree import ChunkTree


class ChunkListing:
    """Lists the directories of *chunks*, whose rows *rows* makes."""

    def __init__(self, chunks: "ChunkTree", rows: ChunkRows) -> None:
        self._chunks = chunks
        self._array = chunks.array
        self._rows = rows
        self._positions = chunks.positions
        self._ndim = chunks.array.grid.ndim

    async def list(self, prefix: Coords, start: int, *, is_nested: bool) -> AsyncGenerator[Batch, None]:
        """Yield chunks, or directories of chunks, of the directory to which *prefix* leads.

        The cookie of a name is its coordinate + 1; where a name is a whole key, the index in the grid + 1.
        """
        if not is_nested:
            batches = self._list_flat(start)
        elif len(prefix) < self._ndim - 1:
            batches = self._list_directories(prefix, start)
        else:
            batches = self._list_row(prefix, start)
        async for batch in batches:
            yield batch

    @property
    def _with_missing(self) -> bool:
        """Whether chunks that are not there are listed too."""
        return self._chunks.face.listed_missing is not None

    async def _list_directories(self, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
        position = self._positions.of_directory((*prefix, 0))
        template = await self._chunks.directory_attributes(position)
        made = self._array.layout.directories
        if made is not None:
            found = [n for n in sorted(made.get(prefix, ())) if n >= start]
            inos = self._chunks.directory_inos(position, found)
            rows = [(b"%d" % n, ino, template.size, n + 1) for n, ino in zip(found, inos, strict=True)]
            if rows:
                yield Batch(template, rows)
            return
        async for covered in self._covered(prefix):
            for first in range(max(start, covered.start), covered.stop, BATCH):
                numbers = range(first, min(first + BATCH, covered.stop))
                sizes = repeat(template.size, len(numbers))
                names, inos = decimals(numbers), self._chunks.directory_inos(position, numbers)
                yield Batch(template, list(zip(names, inos, sizes, shifted(numbers, 1), strict=True)))

    async def _covered(self, prefix: Coords) -> AsyncGenerator[range, None]:
        if self._with_missing:
            yield range(self._array.grid.grid_shape[len(prefix)])
            return
        async for covered in self._array.covered(prefix):
            yield covered

    async def _list_row(self, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
        missing = self._chunks.face.listed_missing
        nbytes = (await missing.stored()).nbytes if missing is not None else None
        async for run in self._runs(prefix, start):
            for batch in self._rows.batches(run, prefix, self._chunks.ttl(run.state), nbytes):
                yield batch

    async def _runs(self, prefix: Coords, start: int) -> AsyncGenerator[ListedRun, None]:
        """Yield what lies in a row, and between it what is not there, if that is listed."""
        async for run in self._array.list_row(prefix, start):
            if run.first > start and self._with_missing:
                yield self._array.absent_run(prefix, start, run.first)
            yield run
            start = run.first + run.length
        stop = self._array.grid.grid_shape[-1]
        if start < stop and self._with_missing:
            yield self._array.absent_run(prefix, start, stop)

    async def _list_flat(self, start: int) -> AsyncGenerator[Batch, None]:
        if self._ndim == 0:
            if start == 0:
                async for batch in self._list_only_chunk():
                    yield batch
            return
        if start >= self._array.grid.nchunks:
            return
        first = self._positions.coords(self._positions.bases[-1] + start)
        async for prefix in self._prefixes_of_rows(first[:-1]):
            async for batch in self._list_row(prefix, first[-1] if prefix == first[:-1] else 0):
                yield batch

    async def _prefixes_of_rows(self, first: Coords) -> AsyncGenerator[Coords, None]:
        """Yield, in C order, the prefixes of rows that are listed, from *first* on."""
        if not self._with_missing:
            async for prefix in self._array.rows(first):
                yield prefix
            return
        grid_shape = self._array.grid.grid_shape[:-1]
        yield first
        for axis in reversed(range(len(first))):  # the rest of the innermost axis, then of those around it
            ranges = [range(first[axis] + 1, grid_shape[axis]), *map(range, grid_shape[axis + 1 :])]
            for rest in product(*ranges):
                yield (*first[:axis], *rest)

    async def _list_only_chunk(self) -> AsyncGenerator[Batch, None]:
        """List the chunk of an array without axes."""
        name, position = self._chunks.key(()), self._positions.of_chunk(())
        try:
            attributes = await self._chunks.lookup_in_array(name)
        except ShardfsError:
            attributes = unreadable(None)._replace(ino=pack(self._chunks.number, 0, position))
        if attributes.ino:
            yield Batch(attributes, [(name.encode(), attributes.ino, attributes.size, 1)], is_counted=True)
