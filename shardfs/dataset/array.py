"""A sharded array: from the coordinates of an inner chunk to its bytes, and listings of what is there."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from shardfs.dataset.coverage import Coverage
from shardfs.dataset.open_shard import OpenShard
from shardfs.dataset.shards import Arrangement, Shards, ShardState
from shardfs.errors import ShardfsError
from shardfs.format.shard_index import EntryRun
from shardfs.format.sharding import Coords, Segment, ShardGrid
from shardfs.format.unshard import UnshardedArray
from shardfs.stores.base import Buffer

_MAX_RUNS: Final = 8192


class Extent(NamedTuple):
    """The encoded bytes of one version of an inner chunk: *nbytes* of them, from *offset* of *shard*."""

    shard: OpenShard
    offset: int
    nbytes: int

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the chunk: fewer at its end, none behind it."""
        nbytes = min(nbytes, self.nbytes - offset)
        if nbytes <= 0:
            return b""
        return await self.shard.read(self.offset + offset, nbytes)


class _Run(NamedTuple):
    """Where the chunks of a row that share an innermost shard are found, without counting it out for each.

    Chunk *first* lies in *entry*, the next one *stride* entries further.  States are referred to weakly: the cache of
    shards alone decides what stays open.
    """

    first: int
    entry: int
    stride: int
    outermost: "ReferenceType[ShardState]"
    innermost: "ReferenceType[ShardState]"


class ListedRun(NamedTuple):
    """Inner chunks of a row, from *first* on, that lie in one innermost shard.

    *shard* is that innermost shard, and *entries* tell which of its chunks are there.  Where it cannot be read,
    *error* takes their place: then all its chunks are listed, so that nobody takes them for absent.
    """

    first: int
    length: int
    state: ShardState
    shard: OpenShard | None = None
    entries: EntryRun | None = None
    error: ShardfsError | None = None

    def chunks(self, start: int, stop: int) -> tuple[Sequence[int], list[int], list[bool] | None]:
        """Return coordinate and size of each chunk that is there among the run's *start* to *stop* − 1.

        The third list tells which of them are damaged, and have no size; it is None if none is.
        """
        numbers: Sequence[int] = range(self.first + start, self.first + stop)
        if self.entries is None:
            return numbers, [0] * len(numbers), [True] * len(numbers)
        entries = self.entries.part(start, stop)
        sound = entries.sound
        if sound.all():
            return numbers, entries.nbytes.tolist(), None
        present = sound | ~entries.empty
        numbers = (np.flatnonzero(present) + self.first + start).tolist()
        sizes = np.where(sound, entries.nbytes, 0)[present].tolist()
        damaged = ~sound[present]
        return numbers, sizes, damaged.tolist() if damaged.any() else None


class Array:
    """A sharded array that can be shown unsharded."""

    def __init__(self, arrangement: Arrangement, unsharded: UnshardedArray, shards: Shards) -> None:
        self.arrangement = arrangement
        self.document = unsharded.document
        self.codecs = unsharded.codecs
        self._coverage = Coverage(shards.store, arrangement, ttl=shards.ttl, clock=shards.clock)
        self._shards = shards
        self._runs: OrderedDict[tuple[Coords, int], _Run] = OrderedDict()
        self._run_length = arrangement.grid.segment_length

    @classmethod
    def open(cls, path: str, unsharded: UnshardedArray, shards: Shards, known: Arrangement | None = None) -> "Array":
        """Open the array at the directory *path* of the store of *shards*.

        Its arrangement is *known*, that of an earlier document, if the chunks lie where they lay.
        """
        if known is None or (known.grid, known.key_encoding) != (unsharded.grid, unsharded.key_encoding):
            known = Arrangement(path, unsharded.grid, unsharded.key_encoding)
        return cls(known, unsharded, shards)

    @property
    def grid(self) -> ShardGrid:
        """Where the inner chunks lie."""
        return self.arrangement.grid

    async def find(self, coords: Coords, *, fresh: bool = False) -> tuple[ShardState, Extent | None]:
        """Return the extent of the inner chunk at *coords*, None if there is no such chunk, and its shard's state.

        *coords* are within the grid.  *fresh* asks the store whether the shard is still the same.  Raises the error
        that keeps the shard from being read; `CorruptionError` also if only this chunk is damaged.
        """
        last = coords[-1] if coords else 0
        number = last // self._run_length
        run = self._runs.get((coords[:-1], number))
        if run is not None:
            state, innermost = run.outermost(), run.innermost()
            if state is not None and innermost is not None and await self._shards.confirm(state, fresh=fresh):
                if innermost is not state:
                    self._shards.touch(innermost)
                return state, _extent(innermost.shard, run.entry + (last - run.first) * run.stride)
        place = self.grid.locate(coords)
        state = await self._shards.state(self.arrangement, place.shard, fresh=fresh)
        state.check()
        innermost = await self._shards.innermost(self.arrangement, state, place)
        first, stride = number * self._run_length, self.grid.stride(place)
        run = _Run(first, place.entries[-1] - (last - first) * stride, stride, ref(state), ref(innermost))
        self._runs[coords[:-1], number] = run
        if len(self._runs) > _MAX_RUNS:
            self._runs.popitem(last=False)
        return state, _extent(innermost.shard, place.entries[-1])

    async def extent(self, coords: Coords) -> Extent | None:
        """Return the extent of the inner chunk at *coords* as it is now; None if there is no such chunk."""
        return (await self.find(coords, fresh=True))[1]

    def remaining(self, state: ShardState) -> float:
        """Return for how many seconds *state* may be trusted still."""
        return self._shards.remaining(state)

    async def has_shards(self) -> bool:
        """Whether anything is stored where the shards are."""
        return await self._coverage.any()

    async def stored_shards(self, prefix: Coords) -> Sequence[int]:
        """Return, in order, the next coordinates of the stored shards whose coordinates begin with *prefix*."""
        return await self._coverage.children(prefix)

    async def shard(self, coords: Coords) -> ShardState:
        """Return what is known of the shard at *coords*."""
        return await self._shards.state(self.arrangement, coords)

    async def covered(self, prefix: Coords) -> AsyncIterator[range]:
        """Yield, in order, ranges of the next coordinate below *prefix* that stored shards cover."""
        axis = len(prefix)
        outer = tuple(
            dimension.chunk_at(i * length)
            for i, length, dimension in zip(prefix, self.grid.chunk_shape, self.grid.shards.dimensions, strict=False)
        )
        for index in await self._coverage.children(outer):
            yield self.grid.covered(axis, index)

    async def rows(self, first: Coords, prefix: Coords = ()) -> AsyncIterator[Coords]:
        """Yield, in C order, the prefixes (all coordinates but the last) of rows that stored shards cover.

        They begin with *prefix* and are not before *first*, which is the prefix of a row.
        """
        if len(prefix) == self.grid.ndim - 1:
            yield prefix
            return
        start = first[len(prefix)] if prefix == first[: len(prefix)] else 0
        async for covered in self.covered(prefix):
            for i in range(max(start, covered.start), covered.stop):
                async for row in self.rows(first, (*prefix, i)):
                    yield row

    async def list_row(self, prefix: Coords, start: int) -> AsyncIterator[ListedRun]:
        """Yield what lies in the row below *prefix*, all coordinates but the last, from chunk *start* on.

        The shards of a row are opened one after the other, each once.
        """
        async for covered in self.covered(prefix):
            for segment in self.grid.row(prefix, range(max(start, covered.start), covered.stop)):
                run = await self._run(segment)
                if run is not None:
                    yield run

    async def _run(self, segment: Segment) -> ListedRun | None:
        place = segment.place
        state = await self._shards.state(self.arrangement, place.shard)
        if state.error is not None:
            return ListedRun(segment.first, segment.length, state, error=state.error)
        try:
            shard = (await self._shards.innermost(self.arrangement, state, place)).shard
        except ShardfsError as error:
            return ListedRun(segment.first, segment.length, state, error=error)
        if shard is None:
            return None
        entries = shard.index.run(place.entries[-1], segment.stride, segment.length)
        return ListedRun(segment.first, segment.length, state, shard, entries)


def _extent(shard: OpenShard | None, entry: int) -> Extent | None:
    found = shard.index.range(entry) if shard is not None else None
    return None if shard is None or found is None else Extent(shard, found.offset, found.nbytes)
