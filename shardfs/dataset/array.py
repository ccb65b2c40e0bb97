"""An array: from the coordinates of an inner chunk to its bytes, and listings.

The array is sharded, or each of its chunk files is treated as a shard of one chunk.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Final, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt
import trio

from shardfs.dataset.journal.records import ChunkChange, Put, ShardMark, Superseded, reversed_checksum
from shardfs.dataset.layout import ArrayLayout, OwnVersion, ShardVersion
from shardfs.dataset.shard import THREAD_NBYTES, OpenShard, open_earlier, open_inner_shard, read_checked
from shardfs.dataset.shard_cache import ShardCache, ShardState
from shardfs.dataset.shard_listing import ShardListing
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    StaleError,
)
from shardfs.format.index import Entries, ShardIndex, are_empty, are_sound
from shardfs.format.lens.unsharded import UnshardedArray
from shardfs.format.sharding import ChunkLocation, ChunkRun, Coordinates, Coords, ShardGrid
from shardfs.stores.base import Buffer, FetchingSnapshot, Kind, Stat, Takes, in_pieces
from shardfs.stores.cache import Cache
from shardfs.stores.direct import KnownFile
from shardfs.stores.parallel import for_each
from shardfs.stores.ttl import InParts

_MAX_SUMMED_NBYTES: Final = 2**30  # an entry may name terabytes of a sparse file
_BATCH: Final = 256  # chunk files to stat in one call

_MAX_MANIFEST_NBYTES: Final = 128 * 2**20
_MAX_BEFORE: Final = 4096  # chunks of which is known how many bytes before them are theirs
_SHARDS_AHEAD: Final = 16  # shards of which chunks are fetched ahead at a time

MAX_RUN: Final = 1024
"""How many chunks are listed at once."""


def _in_order(
    grid: ShardGrid, index: ShardIndex, location: ChunkLocation
) -> tuple[npt.NDArray[np.intp], Coordinates, npt.NDArray[np.intp]]:
    """Return which chunks that the index of a minishard lists belong there, where they are, and their order."""
    known = np.flatnonzero(grid.belonging(index, location))
    coords = grid.positions(index, location)[known]
    return known, coords, np.lexsort(coords.T[::-1])


class Extent(NamedTuple):
    """The encoded bytes of one version of an inner chunk: *header*, then *stored_nbytes* from *offset* of *source*.

    That is the open shard or, of a pending chunk, the record in the journal, which has its bytes.
    """

    source: OpenShard | Put
    offset: int
    stored_nbytes: int
    header: bytes = b""

    @property
    def nbytes(self) -> int:
        """The size of the chunk."""
        return len(self.header) + self.stored_nbytes

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the chunk; fewer only at its end."""
        if self.header:
            begin = self.header[offset : offset + nbytes]
            behind = max(offset - len(self.header), 0)
            return begin + await self._replace(header=b"").read(behind, nbytes - len(begin))
        nbytes = min(nbytes, self.stored_nbytes - offset)
        if nbytes <= 0:
            return b""
        if isinstance(self.source, Put):
            return await self.source.payload.read_soon(offset, nbytes)
        return await self.source.read(self.offset + offset, nbytes, (self.offset, self.stored_nbytes))

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Forget bytes that failed a check; return whether they may come otherwise next time."""
        begin = max(offset - len(self.header), 0)
        return not isinstance(self.source, Put) and await self.source.distrust(self.offset + begin, nbytes)


class ListedRun(NamedTuple):
    """Up to `MAX_RUN` inner chunks of a row, *length* from *first* on, that are in one innermost shard.

    *numbers* are the last coordinates of those that exist, in order, with their *sizes*. *damaged* marks those whose
    size is unknown; it is None if there are none. If the shard cannot be read, there is an *error*, and all its chunks
    are listed, so that nobody takes them for missing. Else *entries* are those of the innermost *shard*; chunk files of
    unsharded arrays are listed without being opened.
    """

    first: int
    length: int
    state: ShardState
    numbers: Sequence[int] = ()
    sizes: Sequence[int] = ()
    damaged: Sequence[bool] | None = None
    shard: OpenShard | None = None
    entries: Entries | None = None
    error: ShardfsError | None = None

    def without(self, prefix: Coords, given_up: Container[Coords]) -> "ListedRun":
        """Return it without the damaged chunks that are in *given_up*; *prefix* is its row."""
        if self.damaged is None or not (self.error is None or isinstance(self.error, CorruptionError)):
            return self
        chunks = zip(self.numbers, self.sizes, self.damaged, strict=True)
        kept = [chunk for chunk in chunks if not (chunk[2] and (*prefix, chunk[0]) in given_up)]
        numbers, sizes, damaged = zip(*kept, strict=True) if kept else ((), (), ())
        return self._replace(numbers=numbers, sizes=sizes, damaged=damaged)


class ScatteredRun(NamedTuple):
    """Chunks of one minishard, at most `MAX_RUN`, in C order: their coordinates, as rows, and their *entries*.

    *state* is that of their shard. *damaged* marks those whose entries lead out of it.
    """

    state: ShardState
    coords: Coordinates
    entries: Entries
    damaged: npt.NDArray[np.bool_]


class Array:
    """An array that can be shown unsharded."""

    def __init__(self, layout: ArrayLayout, unsharded: UnshardedArray, shards: ShardCache, fingerprint: bytes) -> None:
        self.layout = layout
        self.grid = layout.grid
        """Where the inner chunks are stored."""
        self.fingerprint = fingerprint
        self.document = unsharded.document
        self.codecs = unsharded.codecs
        self.listing = ShardListing(shards.store, layout, ttl=shards.ttl, clock=shards.clock)
        self._shards = shards
        self._nbytes_before: Cache[tuple[Coords, object], int] = Cache(lambda _: 0, 0, _MAX_BEFORE)
        self._fetched: Callable[[], OpenShard | None] = lambda: None  # of which chunks were fetched ahead

    async def find(self, coords: Coords, *, fresh: bool = False) -> tuple[ShardState, Extent | None]:
        """Return the extent of the inner chunk at *coords*, None if there is no such chunk, and the state of its shard.

        *coords* are within the grid. With *fresh*, the store is asked whether the shard has changed. The extent is that
        of the version which `own` returns right afterwards. Raises the error that prevents reading the shard, and
        `CorruptionError` if only this chunk is damaged.
        """
        location = self.layout.locate(coords)
        if self._change(coords, location) is not None:
            state = await self.shard(location.shard)  # without `check`: what is pending does not depend on its shard
            change = self._change(coords, location)  # it may have been committed meanwhile
            if change is not None:
                return state, _pending_extent(change)
        while True:
            own = self._version(location).own.get(coords)
            state, extent = await self.find_stored(coords, fresh=fresh)
            change = self._change(coords, location)
            if change is not None:  # published meanwhile
                return state, _pending_extent(change)
            if self._version(location).own.get(coords) is own:  # else also committed meanwhile
                return state, extent

    def change(self, coords: Coords) -> ChunkChange | None:
        """Return the pending change of the inner chunk at *coords*, unless it was published for other metadata."""
        return self._change(coords, self.layout.locate(coords)) if self.layout.pending else None

    def _change(self, coords: Coords, location: ChunkLocation) -> ChunkChange | None:
        if not self.layout.pending:
            return None
        change = self.layout.pending.changes(location.shard).get(coords)
        return change if change is not None and change.fingerprint == self.fingerprint else None

    async def find_stored(self, coords: Coords, *, fresh: bool = False) -> tuple[ShardState, Extent | None]:
        """Return what `find` would if nothing were pending."""
        location = self.layout.locate(coords)
        state, shard = await self._shards.open(self.layout, location, fresh=fresh)
        extent_range = shard.index.range(location.entries[-1]) if shard is not None else None
        return state, self.stored_extent(
            shard, extent_range
        ) if shard is not None and extent_range is not None else None

    def stored_extent(self, shard: OpenShard, extent_range: tuple[int, int]) -> Extent:
        """Return the extent of a stored chunk, of which an index of *shard* has this offset and length."""
        return Extent(shard, *extent_range, self.grid.chunk_header)

    async def find_before(self, coords: Coords, *, fresh: bool = False) -> tuple[ShardState, Extent | None]:
        """Return what `find` does, of the data that lie directly before the chunk and belong to it.

        The chunk says how many bytes they are. Raises `CorruptionError` if they are not all in the shard.
        """
        state, chunk = await self.find_stored(coords, fresh=fresh)
        if chunk is None:
            return state, None
        if chunk.nbytes > _MAX_MANIFEST_NBYTES:
            raise CorruptionError(f"{chunk.nbytes} bytes are more than are read to find the data before them")

        async def nbytes_before(data: Buffer) -> int:
            return self.grid.nbytes_before(data)

        load = partial(read_checked, chunk, 0, chunk.nbytes, nbytes_before)
        location = self.layout.locate(coords)
        version = state.snapshot.stat.version if state.snapshot is not None else None
        nbytes = await self._nbytes_before.get((coords, version), load)
        depth = self.grid.nindexes
        _, shard = await self._shards.open(
            self.layout, ChunkLocation(location.shard, location.entries[:depth], location.shapes[:depth])
        )
        if shard is None or isinstance(chunk.source, Put) or shard.snapshot is not chunk.source.snapshot:
            raise StaleError(f"{self.layout.shard_key(location.shard)} was replaced")
        extent_range = shard.index.range(location.entries[depth - 1])
        assert extent_range is not None
        start = extent_range[0] - nbytes
        if start < self.grid.index_nbytes(location.shard):
            raise CorruptionError(f"{nbytes} bytes before byte {extent_range[0]} of the shard are not all in it")
        return state, Extent(shard, start, nbytes)

    def find_known(self, coords: Coords, *, waits: bool) -> KnownFile | None:
        """Return the inner chunk at *coords*, in any thread, if it can be read there.

        None if the event loop is needed: unless its shard is open, or it is a file that the store knows, and nothing of
        it is pending. Raises `WouldWaitError` if it takes waiting, unless it *waits*.
        """
        self.note_read(coords)
        direct = self._shards.direct
        if direct is not None and self.grid.is_unsharded:  # such a store is only read
            return direct.find_known(self.layout.shard_key(coords), self.layout.path, coords, waits=waits)
        location = self.layout.locate(coords)
        shard = None if self._change(coords, location) is not None else self._shards.known(self.layout, location)
        source = shard.direct if shard is not None else None
        if shard is None or source is None or self.grid.chunk_header:
            return None
        try:
            extent = shard.index.range(location.entries[-1])
        except CorruptionError:  # which is logged there
            return None
        if extent is None:
            return None
        return KnownFile(source, shard.snapshot.stat.version, shard.offset + extent[0], extent[1])

    def note_read(self, coords: Coords) -> None:
        """Note, in any thread, that the inner chunk at *coords* is read now; those that come next may be fetched.

        Not those in shards that are encoded as a whole: opening one may bring and decode all of it.
        """
        if self._shards.ahead is not None and coords and not (self.grid.is_scattered or self.grid.is_encoded):
            self._shards.ahead.note(self, self.grid.grid_shape, coords)

    async def fetch(
        self, chunks: Collection[Coords], max_nbytes: int, takes: Takes, *, are_dense: bool
    ) -> Sequence[int]:
        """Begin to bring stored chunks, which will be read soon, into memory, if the source is remote.

        Those that fit into *max_nbytes* together: how large one is, only its index says. More of their shards comes, as
        far as it *takes* that, and all if they *are_dense*: then the rest will probably be read, too. Returns the sizes
        of all that exist. Errors of the source are for who reads.
        """
        groups: dict[tuple[Coords, tuple[int, ...]], list[ChunkLocation]] = {}
        for location in map(self.layout.locate, chunks):
            groups.setdefault((location.shard, location.entries[:-1]), []).append(location)
        known = (self._shards.known(self.layout, locations[0]) for locations in groups.values())
        before = next((shard for shard in known if shard is not None), None) or self._fetched()
        sizes: list[int] = []
        left = max_nbytes

        def fits(nbytes: int) -> bool:
            nonlocal left
            is_fitting = nbytes <= left
            left -= nbytes if is_fitting else 0
            return is_fitting

        async def fetch(locations: Sequence[ChunkLocation]) -> None:
            with suppress(ShardfsError):
                shard = await self._open_ahead(locations, before, takes)
                if shard is None:
                    return
                units = (shard.index.range(location.entries[-1]) for location in locations)
                stored = [unit for unit in units if unit is not None]
                sizes.extend(nbytes for _, nbytes in stored)
                self._fetched = ref(shard)
                await shard.fetch([unit for unit in stored if fits(unit[1])], takes, are_dense=are_dense)

        are_large = any(self.grid.is_large(self.grid.index_shape(shard)) for shard, _ in groups)
        await for_each(groups.values(), fetch, 1 if are_large else _SHARDS_AHEAD)
        return sizes

    async def _open_ahead(
        self, locations: Sequence[ChunkLocation], before: OpenShard | None, takes: Takes
    ) -> OpenShard | None:
        """Open the innermost shard of some chunks that will be read in order, as those of the one *before* were.

        All of it comes if it is small, or if they are its first ones, as far as the one before tells.
        """
        first, snapshot = locations[0], before.snapshot if before is not None else None
        is_known = len(locations) == 1 or self._shards.known(self.layout, first) is not None
        if before is None or not isinstance(snapshot, FetchingSnapshot) or is_known:
            return (await self._shards.open(self.layout, first))[1]
        alike = before.index.nentries == prod(first.shapes[-1]) and before.outermost is None is before.decoded
        units = (before.index.entry(location.entries[-1]) for location in locations if alike)
        stored = [unit for unit in units if unit is not None]
        with snapshot.expecting(self.layout.shard_key(first.shard), stored, takes):
            return (await self._shards.open(self.layout, first))[1]

    async def extent(self, coords: Coords) -> Extent | None:
        """Return the current extent of the inner chunk at *coords*; None if there is no such chunk."""
        return (await self.find(coords, fresh=True))[1]

    async def read_once(self, coords: Coords) -> Buffer | None:
        """Return all bytes of the inner chunk at *coords*, None if there is none.

        For callers that read each chunk once: chunk files of unsharded arrays are not cached. Raises the same errors as
        `find`.
        """
        if self.grid.is_unsharded and not self.layout.pending:
            with suppress(IsADirectoryHereError, NotADirectoryHereError):  # `find` raises a better error
                try:
                    snapshot = await self._shards.store.open(self.layout.shard_key(coords))
                except NotFoundError:
                    return None
                return await snapshot.read(0, snapshot.size, (0, snapshot.size))
        extent = (await self.find(coords))[1]
        return None if extent is None else await extent.read(0, extent.nbytes)

    async def note(self, coords: Coords) -> Superseded:
        """Return what tells `is_as_noted`, in a later process, whether the chunk at *coords* is the same.

        None if nothing is stored. Where shards are appended to, the chunk is not read. Raises the error that prevents
        reading the index.
        """
        location = self.layout.locate(coords)
        state, shard = await self._shards.open(self.layout, location, fresh=True)
        if shard is None or shard.index.entry(location.entries[-1]) is None:
            return None
        return await (state.mark() if self._is_appended_to else self._identify(shard, location.entries[-1]))

    async def is_as_noted(self, coords: Coords, noted: Superseded) -> bool:
        """Whether the stored chunk at *coords* is the one of which `note` returned *noted*, or there is none, as then.

        Raises the error that prevents reading the index.
        """
        location = self.layout.locate(coords)
        state, shard = await self._shards.open(self.layout, location, fresh=True)
        if shard is None or shard.index.entry(location.entries[-1]) is None:
            return noted is None
        if isinstance(noted, ShardMark):
            return self._is_appended_to and await self._is_as_marked(location, state, shard, noted)
        return await self._identify(shard, location.entries[-1]) == noted

    @property
    def _is_appended_to(self) -> bool:
        """Whether commits append to shards, so that each version has all that were before it in it."""
        return self._shards.store.root is not None and self.grid.is_appended_to

    async def _identify(self, shard: OpenShard, entry: int) -> tuple[int, int]:
        """Return two numbers that identify a chunk where commits write shards anew.

        The second is its length. The first is a checksum of its bytes, because another program may store other bytes in
        the same location; where bytes cost a request, are damaged, or are more than `_MAX_SUMMED_NBYTES`, it is the
        offset, and for a chunk file a number of its version.
        """
        if self.grid.is_unsharded:
            return _version_number(shard.snapshot.stat), shard.index.shard_nbytes
        if self._shards.store.root is not None:
            with suppress(CorruptionError, StaleError):
                extent_range = shard.index.range(entry)
                if extent_range is not None and extent_range[1] <= _MAX_SUMMED_NBYTES:
                    return await _checksum(self.stored_extent(shard, extent_range)), extent_range[1]
        in_index = shard.index.entry(entry)
        assert in_index is not None
        return in_index

    async def _is_as_marked(self, location: ChunkLocation, state: ShardState, new: OpenShard, mark: ShardMark) -> bool:
        """Whether a chunk, in the innermost shard *new*, is what it was in the version *mark* of its shard.

        It is if that is the present version, or if only appends followed: then the chunk of that version is compared,
        which is where it was. Of a shard that somebody wrote anew nothing is known.
        """
        if state.shard is None or await state.mark() == mark:
            return state.shard is not None
        levels, shapes, entries = self.grid.levels, location.shapes, location.entries
        with suppress(CorruptionError):
            old = await open_earlier(levels[0], self.grid.index_shape(location.shard), state.shard, mark)
            for depth in range(1, len(entries)):
                if old is not None:
                    old = await open_inner_shard(levels[depth], shapes[depth], old, entries[depth - 1])
            if old is not None:
                return await _has_same_chunk(old, new, entries[-1])
        return False

    async def chunks_of(self, shard: Coords, given_up: Container[Coords] = ()) -> AsyncGenerator[Coords, None]:
        """Yield the coordinates of the chunks in the shard at *shard* that are within the grid, in C order.

        Damaged ones that are in *given_up* do not count.
        """
        if not self.grid.ndim:
            if await self._has_only_chunk(given_up):
                yield ()
            return
        if self.grid.is_scattered:
            async for scattered in self._list_minishards(shard[0], 0):
                for coords in scattered.coords.tolist():
                    yield tuple(coords)
            return
        *outer, row = [self.grid.covered(axis, index) for axis, index in enumerate(shard)]
        for prefix in product(*outer):
            async for run in self.list_row(prefix, row.start, row.stop):
                for number in run.without(prefix, given_up).numbers:
                    yield (*prefix, number)

    async def _has_only_chunk(self, given_up: Container[Coords]) -> bool:
        """Whether an array without axes has its chunk; a damaged one that is in *given_up* does not count."""
        try:
            return (await self.find(()))[1] is not None
        except CorruptionError:
            if () in given_up:
                return False
            raise

    def version(self, coords: Coords) -> ShardVersion:
        """Return what is remembered of the shard that has the chunk at *coords*."""
        return self._version(self.layout.locate(coords))

    def _version(self, location: ChunkLocation) -> ShardVersion:
        return self._shards.generations.known(self.layout, location.shard)

    def own(self, coords: Coords) -> OwnVersion | None:
        """Return the version of the chunk at *coords* that was published through this mount; None if there is none."""
        return self.version(coords).own.get(coords)

    def remaining(self, state: ShardState) -> float:
        """Return for how many seconds *state* may still be trusted."""
        return self._shards.remaining(state)

    async def has_shards(self) -> bool:
        """Whether any shard is stored or pending."""
        return bool(self.layout.pending) or await self.listing.any()

    async def is_empty(
        self, prefix: Coords = (), *, besides: Container[Coords] = (), given_up: Container[Coords] = ()
    ) -> bool:
        """Whether there are no chunks below *prefix*, a prefix of coordinates.

        Those in *besides* do not count, nor damaged ones that are in *given_up*.
        """
        if not self.grid.ndim:
            return () in besides or not await self._has_only_chunk(given_up)
        async with aclosing(self.rows((0,) * (self.grid.ndim - 1), prefix)) as rows:
            async for row in rows:
                async with aclosing(self.list_row(row, 0)) as runs:
                    async for run in runs:
                        if any((*row, number) not in besides for number in run.without(row, given_up).numbers):
                            return False
        return True

    def absent_runs(self, prefix: Coords, first: int, stop: int) -> Iterator[ListedRun]:
        """Yield runs of missing chunks, from *first* to *stop* − 1 of the row *prefix*."""
        for start in range(first, stop, MAX_RUN):
            location = self.layout.locate((*prefix, start))
            state = self._shards.listed(self.layout, location.shard, None)
            yield ListedRun(start, min(MAX_RUN, stop - start), state)

    def look_again(self, shard: Coords) -> None:
        """Ask the store for the shard at *shard* when it is next wanted, however short ago that was done."""
        self._shards.store.forget(self.layout.shard_key(shard))
        self._shards.forget(self.layout, shard)

    async def shard(self, coords: Coords) -> ShardState:
        """Return the state of the shard at *coords*."""
        return await self._shards.state(self.layout, coords)

    async def covered(self, prefix: Coords) -> AsyncIterator[range]:
        """Yield, in order, the ranges of the next coordinate after *prefix* that stored or pending shards cover."""
        axis = len(prefix)
        if self.grid.is_scattered:
            yield self.grid.covered(axis, 0)
            return
        outer = tuple(self.grid.shard_at(axis, chunk) for axis, chunk in enumerate(prefix))
        pending = [*self.layout.pending.children(outer)]  # first: what is committed meanwhile is found stored
        stored = await self.listing.children(outer)
        for index in sorted({*stored, *pending}) if pending else stored:
            yield self.grid.covered(axis, index)

    async def rows(self, first: Coords, prefix: Coords = ()) -> AsyncGenerator[Coords, None]:
        """Yield, in C order, the rows that stored or pending shards cover, as prefixes: all coordinates but the last.

        The rows begin with *prefix*, and the first is not before the row *first*.
        """
        if len(prefix) == self.grid.ndim - 1:
            yield prefix
            return
        start = first[len(prefix)] if prefix == first[: len(prefix)] else 0
        async for covered in self.covered(prefix):
            for i in range(max(start, covered.start), covered.stop):
                async for row in self.rows(first, (*prefix, i)):
                    yield row

    async def list_row(self, prefix: Coords, start: int, stop: int | None = None) -> AsyncGenerator[ListedRun, None]:
        """Yield the chunks of the row *prefix* (all coordinates but the last) from chunk *start* to *stop* − 1.

        The shards of a row are opened one after another, each once. Chunk files of unsharded arrays are not opened.
        """
        stop = self.grid.grid_shape[-1] if stop is None else stop
        if self.grid.is_unsharded:
            async for listed in self._list_files(prefix, start, stop):
                yield listed
            return
        async for covered in self.covered(prefix):
            covered = range(max(start, covered.start), min(stop, covered.stop))
            for first in range(covered.start, covered.stop, MAX_RUN):
                for segment in self.grid.row(prefix, range(first, min(first + MAX_RUN, covered.stop))):
                    run = await self._run(prefix, segment)
                    if run.shard is not None:
                        run.shard.expect()
                    if run.shard is not None or run.numbers:
                        yield run

    async def _list_files(self, prefix: Coords, start: int, stop: int) -> AsyncGenerator[ListedRun, None]:
        parts = InParts(self._shards.clock())
        numbers = [file.start async for file in self.covered(prefix) if start <= file.start < stop]
        for first in range(0, len(numbers), _BATCH):
            batch = numbers[first : first + _BATCH]
            ncommits = self._shards.generations.ncommits
            pending = [self._pending(prefix, range(n, n + 1), (*prefix, n)) for n in batch]
            directory, _, _ = self.layout.shard_key((*prefix, 0)).rpartition("/")
            names = [self.layout.shard_key((*prefix, n)).rpartition("/")[2] for n in batch]
            stats: Sequence[Stat | None] = [None] * len(names)
            with suppress(NotFoundError, NotADirectoryHereError), parts.part(self._shards.clock):
                stats = await self._shards.store.stat_in(directory, names)
            for number, stat, changes in zip(batch, stats, pending, strict=True):
                is_old = self._shards.generations.has_committed(self.layout, (*prefix, number), ncommits)
                if not is_old and (stat is None or stat.kind is Kind.FILE):
                    state = self._shards.listed(self.layout, (*prefix, number), stat)
                    sizes = () if stat is None else (stat.size,)
                    run = _with_pending(ListedRun(number, 1, state, (number,) * len(sizes), sizes), changes)
                else:  # committed meanwhile, a link, or an error that prevents reading the chunk
                    run = await self._run(prefix, next(self.grid.row(prefix, range(number, number + 1))))
                if run.numbers:
                    yield run

    async def _run(self, prefix: Coords, segment: ChunkRun) -> ListedRun:
        """Return the chunks of *segment*, a part of the row *prefix*."""
        first, length, stride, location = segment
        changes = self._pending(prefix, range(first, first + length), location.shard)
        state = await self.shard(location.shard)
        try:
            state, shard = await self._shards.open(self.layout, location)
        except ShardfsError as error:
            every = range(first, first + length)
            run = ListedRun(first, length, state, every, [0] * length, [True] * length, error=error)
            return _with_pending(run, changes)
        run = ListedRun(first, length, state)
        if shard is not None:
            entries = shard.index.select(location.entries[-1], length, stride)
            sound = are_sound(entries, shard.index.shard_nbytes)
            run = run._replace(shard=shard, entries=entries)
            nbytes = entries[:, 1] + np.uint64(len(self.grid.chunk_header))
            if sound.all():  # the usual case, and three times as fast
                run = run._replace(numbers=range(first, first + length), sizes=nbytes.tolist())
            else:
                locations = np.flatnonzero(sound | ~are_empty(entries))
                damaged = None if sound[locations].all() else (~sound[locations]).tolist()
                sizes = np.where(sound, nbytes, 0)[locations].tolist()
                run = run._replace(numbers=(locations + first).tolist(), sizes=sizes, damaged=damaged)
        return _with_pending(run, changes)

    async def list_scattered(self, behind: Coords | None) -> AsyncGenerator[ScatteredRun, None]:
        """Yield all chunks of an array whose grid is scattered, minishard by minishard; only those *behind* a chunk.

        What cannot be read has no names. So the error is raised at the end, when all others were listed. What lies
        before *behind* is opened for that too: a reader that continues there has not met an error before.
        """
        failed: ShardfsError | None = None
        location = self.grid.locate(behind) if behind is not None else None
        for shard in await self.listing.children(()):
            first, last = 0, None
            if location is not None and shard < location.shard[0]:
                first = self.grid.index_shape((shard,))[0]
            elif location is not None and shard == location.shard[0]:
                first, last = location.entries[0], behind
            try:
                async for run in self._list_minishards(shard, first, last):
                    yield run
            except ShardfsError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _list_minishards(
        self, shard: int, first: int, behind: Coords | None = None
    ) -> AsyncGenerator[ScatteredRun, None]:
        """Yield the chunks of the minishards of *shard* from *first* on, of which only those *behind* a chunk.

        The first error that prevents reading a minishard, whichever, is raised at the end.
        """
        grid = self.grid
        state = await self.shard((shard,))
        state.check()
        if state.shard is None:
            return
        failed: ShardfsError | None = None
        for minishard in np.flatnonzero(~are_empty(state.shard.index.entries)).tolist():
            location = ChunkLocation((shard,), (minishard, 0), (grid.index_shape((shard,)), ()))
            try:
                state, opened = await self._shards.open(self.layout, location)
            except ShardfsError as error:
                failed = failed or error
                continue
            if opened is None or minishard < first:
                continue
            index = opened.index
            find = partial(_in_order, grid, index, location)
            is_large = index.nbytes > THREAD_NBYTES
            known, coords, order = await trio.to_thread.run_sync(find) if is_large else find()
            if behind is not None and minishard == first:
                order = order[bisect_right(order, behind, key=partial(_row, coords)) :]
            entries, sound = index.entries, index.sound
            for start in range(0, len(order), MAX_RUN):
                part = order[start : start + MAX_RUN]
                chosen = known[part]
                yield ScatteredRun(state, coords[part], entries[chosen], ~sound[chosen])
        if failed is not None:
            raise failed

    def _pending(self, prefix: Coords, numbers: range, shard: Coords) -> dict[int, ChunkChange]:
        """Return the pending changes of those chunks of the row *prefix* that are in one shard, by last coordinate.

        They are looked up before the shard, so that what is committed meanwhile is found there.
        """
        changes = self.layout.pending.changes(shard)
        candidates = ((number, changes.get((*prefix, number))) for number in numbers if changes)
        return {n: change for n, change in candidates if change is not None and change.fingerprint == self.fingerprint}


def _row(coords: Coordinates, number: int) -> Coords:
    return tuple(coords[number].tolist())


def _pending_extent(change: ChunkChange) -> Extent | None:
    """Return the extent of a chunk with a pending *change*; None if that removes it."""
    return Extent(change, 0, change.payload.nbytes) if isinstance(change, Put) else None


def _with_pending(run: ListedRun, changes: Mapping[int, ChunkChange]) -> ListedRun:
    """Return *run* as it is with pending *changes*, by the last coordinate of the chunk."""
    if not changes:
        return run
    chunks = dict(zip(run.numbers, zip(run.sizes, run.damaged or [False] * len(run.sizes), strict=True), strict=True))
    for number, change in changes.items():
        chunks.pop(number, None)
        if isinstance(change, Put):
            chunks[number] = change.payload.nbytes, False
    numbers = sorted(chunks)
    damaged = [chunks[number][1] for number in numbers]
    sizes = [chunks[number][0] for number in numbers]
    return run._replace(numbers=numbers, sizes=sizes, damaged=damaged if any(damaged) else None)


async def _checksum(extent: Extent) -> int:
    """Return a checksum of the bytes of a chunk; not a crc32c, with which the chunk may end."""
    checksum = 0
    for start, nbytes in in_pieces(extent.nbytes):
        if start:
            await trio.lowlevel.checkpoint()  # what is in the page cache is read without one
        checksum = reversed_checksum(await extent.read(start, nbytes), checksum)
    return checksum


async def _has_same_chunk(old: OpenShard, new: OpenShard, entry: int) -> bool:
    """Whether an innermost shard has the same chunk in an earlier version, *old*, and in a *new* one with all of it."""
    if (
        old.decoded is new.decoded is None
        and old.offset == new.offset
        and old.index.entry(entry) == new.index.entry(entry)
    ):
        return True
    before, now = old.index.range(entry), new.index.range(entry)
    if before is None or now is None or before[1] != now[1]:
        return False
    for start, nbytes in in_pieces(now[1]):
        await trio.lowlevel.checkpoint()
        if await old.read(before[0] + start, nbytes) != await new.read(now[0] + start, nbytes):
            return False
    return True


def _version_number(stat: Stat) -> int:
    """Return a 64-bit number for the version of a file, the same in every process."""
    version = stat.mtime_ns if stat.file is not None else stat.version  # a restored file has another inode
    return int.from_bytes(blake2b(repr(version).encode(), digest_size=8).digest())
