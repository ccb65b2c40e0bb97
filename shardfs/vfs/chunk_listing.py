"""Listings of the directories of a chunk tree: of chunks, and of directories above them."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import groupby, product, repeat
from typing import TYPE_CHECKING, Any, Final

from shardfs.dataset.array import ListedRun
from shardfs.errors import ShardfsError
from shardfs.format.sharding import Coords
from shardfs.vfs.attributes import unreadable
from shardfs.vfs.chunk_numbering import ChunkNumbering
from shardfs.vfs.handles import Batch, Row
from shardfs.vfs.inodes import MISSING, ArrayNumbers
from shardfs.vfs.views import ChunkView

if TYPE_CHECKING:
    from shardfs.vfs.chunk_tree import ChunkTree


BATCH: Final = 1024


class ChunkRows:
    """Makes the rows of an array with these *numbers*.

    *keep* is called with the number and the coordinates of every version that was published through the mount.
    """

    def __init__(
        self,
        numbers: ArrayNumbers[Any],
        chunk_view: ChunkView,
        numbering: ChunkNumbering,
        keep: Callable[[int, Coords], None],
    ) -> None:
        self._numbers = numbers
        self._layout = chunk_view.array.layout
        self._encoding = chunk_view.key_encoding
        self._nbytes = chunk_view.codec.nbytes if chunk_view.codec is not None else None
        self._numbering = numbering
        self._keep = keep
        self._nested = chunk_view.key_encoding.is_nested(chunk_view.array.grid.ndim)

    def batches(self, run: ListedRun, prefix: Coords, ttl: float, missing_nbytes: int | None = None) -> Iterable[Batch]:
        """Yield the chunks of *run*, of the row below *prefix*; the kernel may believe them for *ttl* seconds.

        Those that cannot be read get attributes that are not kept.  Those that are not stored are shown if they have a
        size, *missing_nbytes*.
        """
        row = self._numbering.of_chunk((*prefix, 0))
        ino = self._numbers.version(run.state.generation, row)
        cookie = 1 if self._nested else row - self._numbering.bases[-1] + 1
        broken = unreadable(run.state.stat)
        sound = broken._replace(ttl=ttl)
        has_own = bool(self._layout.own)
        for start in range(0, run.length, BATCH):
            numbers, sizes, damaged = run.chunks(start, min(start + BATCH, run.length))
            if self._nbytes is not None:
                sizes = [self._nbytes] * len(sizes)
            inos = shifted(numbers, ino)
            if missing_nbytes is not None and len(numbers) < min(run.length - start, BATCH):
                every = range(run.first + start, run.first + min(start + BATCH, run.length))
                sizes, inos, damaged = self._with_missing(every, numbers, sizes, inos, damaged, row, missing_nbytes)
                numbers = every
            if self._nested:
                names = decimals(numbers)
            else:
                names = [self._encoding.encode((*prefix, n)).encode() for n in numbers]
            rows: Sequence[Row] = list(zip(names, inos, sizes, shifted(numbers, cookie), strict=True))
            if has_own:
                rows = self._with_own(rows, numbers, prefix)
            if damaged is None:
                if rows:
                    yield Batch(sound, rows, is_counted=has_own)
                continue
            for is_damaged, group in groupby(zip(damaged, rows, strict=True), key=lambda pair: pair[0]):
                yield Batch(broken if is_damaged else sound, [listed for _, listed in group], is_counted=has_own)

    def _with_missing(
        self,
        every: range,
        numbers: Sequence[int],
        sizes: Sequence[int],
        inos: Sequence[int],
        damaged: Sequence[bool] | None,
        row: int,
        nbytes: int,
    ) -> tuple[list[int], list[int], list[bool] | None]:
        """Return sizes, inode numbers and damage of *every* chunk, where only *numbers* are stored."""
        stored = {number: i for i, number in enumerate(numbers)}
        missing = self._numbers.ino(MISSING, row)
        at = [stored.get(number) for number in every]
        return (
            [nbytes if i is None else sizes[i] for i in at],
            [missing + number if i is None else inos[i] for number, i in zip(every, at, strict=True)],
            None if damaged is None else [i is not None and damaged[i] for i in at],
        )

    def _with_own(self, rows: Sequence[Row], numbers: Sequence[int], prefix: Coords) -> Sequence[Row]:
        """Return *rows* with the inode numbers of versions that were published through the mount."""
        own = self._layout.own
        listed = []
        for row, number in zip(rows, numbers, strict=True):
            version = own.get((*prefix, number))
            if version is None:
                listed.append(row)
            else:
                self._keep(version.ino, (*prefix, number))
                listed.append((row[0], version.ino, row[2], row[3]))
        return listed


def shifted(numbers: Sequence[int], distance: int) -> Sequence[int]:
    """Return *numbers*, each larger by *distance*."""
    if isinstance(numbers, range):
        return range(numbers.start + distance, numbers.stop + distance)
    return [n + distance for n in numbers]


def decimals(numbers: Sequence[int]) -> list[bytes]:
    """Return the names of coordinates; a row is listed again and again, so those of one are kept ready."""
    if isinstance(numbers, range) and numbers.stop <= len(_DECIMALS):
        return _DECIMALS[numbers.start : numbers.stop]
    return [b"%d" % n for n in numbers]


_DECIMALS: Final = [b"%d" % n for n in range(4096)]


class ChunkListing:
    """Lists the directories of *chunks*, whose rows *rows* makes."""

    def __init__(self, chunks: "ChunkTree", rows: ChunkRows) -> None:
        self._chunks = chunks
        self._array = chunks.array
        self._rows = rows
        self._numbering = chunks.numbering
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
        return self._chunks.chunk_view.listed_missing is not None

    async def _list_directories(self, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
        position = self._numbering.of_directory((*prefix, 0))
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
        missing = self._chunks.chunk_view.listed_missing
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
        first = self._numbering.coords(self._numbering.bases[-1] + start)
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
        name, position = self._chunks.key(()), self._numbering.of_chunk(())
        try:
            attributes = await self._chunks.lookup_in_array(name)
        except ShardfsError:
            attributes = unreadable(None)._replace(ino=self._chunks.numbers.ino(0, position))
        if attributes.ino:
            yield Batch(attributes, [(name.encode(), attributes.ino, attributes.size, 1)], is_counted=True)
