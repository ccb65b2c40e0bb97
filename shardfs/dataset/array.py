"""An array: from the coordinates of an inner chunk to its bytes, and listings.

The array is sharded, or each of its chunk files is treated as a shard of one chunk.
"""

import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import aclosing, suppress
from hashlib import blake2b
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.shard import OpenShard
from shardfs.dataset.shard_cache import ShardCache, ShardState
from shardfs.dataset.wal.records import Change, Erase, Put, reversed_checksum
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    StaleError,
)
from shardfs.format.grid import parse_coordinate
from shardfs.format.index import Entries, are_empty, are_sound
from shardfs.format.lens.unsharded import UnshardedArray
from shardfs.format.sharding import Coords, Segment
from shardfs.stores.base import Buffer, Kind, Stat, Store, in_pieces, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.ttl import derived_at, within_ttl

_MAX_LISTED: Final = 1024


class _Listed(NamedTuple):
    """The next coordinates after some prefix, as listed when `ArrayLayout.listing` had this value.

    *others* are the first name that belongs to no shard of the grid, and how many there are.
    """

    children: Mapping[Coords, Sequence[int]]
    time: float
    listing: int
    others: tuple[str, int] | None


class ShardListing:
    """The names of the stored shards of an array, as listed at most *ttl* seconds ago.

    Shards that our own commits created or removed since are seen at once.
    """

    def __init__(
        self, store: Store, layout: ArrayLayout, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._layout = layout
        self._ttl = ttl
        self._clock = clock
        # By the prefix of a directory; by () for keys without directories, which are all listed at once.
        self._listed: dict[Coords, _Listed] = {}

    async def children(self, prefix: Coords) -> Sequence[int]:
        """Return, in order, the next coordinates of the stored shards whose coordinates begin with *prefix*."""
        layout = self._layout
        is_nested = layout.key_encoding.is_nested(layout.grid.ndim)
        directory = prefix if is_nested else ()
        known = self._listed.get(directory)
        if known is None or known.listing != layout.listing or not within_ttl(known.time, self._clock(), self._ttl):
            begun, listing = derived_at(self._clock()), layout.listing
            others: list[str] = []
            found = {prefix: await self._list_directory(prefix, others)} if is_nested else await self._list_flat(others)
            dimensions = layout.grid.shards.dimensions
            children = {
                at: sorted(index for index in indices if index < dimensions[len(at)].nchunks)
                for at, indices in found.items()
            }
            if len(self._listed) >= _MAX_LISTED:
                self._listed.clear()
            known = self._listed[directory] = _Listed(
                children, begun, listing, (min(others), len(others)) if others else None
            )
        return known.children.get(prefix, ())

    def others(self, prefix: Coords) -> tuple[str, int] | None:
        """Return the first of the keys below *prefix* that belong to no shard of the grid, and how many there are.

        They were found by the last call of `children`, where only shards belong.
        """
        known = self._listed.get(prefix)
        return known.others if known is not None else None

    def forget(self) -> None:
        """List again at the next request."""
        self._listed.clear()

    async def any(self) -> bool:
        """Whether anything is stored where shards belong, in the grid or not."""
        layout = self._layout
        root = layout.key_encoding.root(layout.grid.ndim)
        if layout.grid.ndim and not root:
            return bool(await self.children(()))
        try:
            await self._store.stat(join_key(layout.path, root) if root else layout.shard_key(()))
        except NotFoundError:
            return False
        return True

    async def _list_directory(self, prefix: Coords, others: list[str]) -> set[int]:
        layout = self._layout
        root = layout.key_encoding.root(layout.grid.ndim)
        directory = "/".join(part for part in (layout.path, root, *map(str, prefix)) if part)
        try:
            entries = await self._store.list(directory)
        except NotFoundError:
            return set()
        except NotADirectoryHereError as error:
            raise CorruptionError(f"{error}, where shards should be") from None
        nchunks = layout.grid.shards.dimensions[len(prefix)].nchunks
        found: set[int] = set()
        for entry in entries:
            index = parse_coordinate(entry.name)
            if index is not None:
                found.add(index)
            if index >= nchunks if index is not None else (root or prefix) and not is_lock(entry.name):
                others.append(join_key(directory, entry.name))
        return found

    async def _list_flat(self, others: list[str]) -> dict[Coords, set[int]]:
        layout = self._layout
        found: dict[Coords, set[int]] = {}
        for entry in await self._store.list(layout.path):
            coords = layout.key_encoding.decode(entry.name, layout.grid.ndim) or ()
            for depth, index in enumerate(coords):
                found.setdefault(coords[:depth], set()).add(index)
            if any(index >= dim.nchunks for index, dim in zip(coords, layout.grid.shards.dimensions, strict=False)):
                others.append(join_key(layout.path, entry.name))
        return found


_BATCH: Final = 256  # chunk files to stat in one call


class Extent(NamedTuple):
    """The encoded bytes of one version of an inner chunk: *nbytes* bytes from *offset* of *shard*.

    For a pending chunk, *shard* is its record in the log.
    """

    shard: OpenShard | Put
    offset: int
    nbytes: int

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the chunk; fewer only at its end."""
        nbytes = min(nbytes, self.nbytes - offset)
        if nbytes <= 0:
            return b""
        if isinstance(self.shard, Put):
            return await self.shard.payload.read_soon(offset, nbytes)
        return await self.shard.read(self.offset + offset, nbytes, (self.offset, self.nbytes))


class ListedRun(NamedTuple):
    """Inner chunks of a row, beginning at *first*, that are in one innermost shard.

    *entries* tell which chunks exist in *shard*, the innermost shard. If that cannot be read, there is an *error*
    instead, and all its chunks are listed, so that nobody takes them for missing. *pending* are chunks of the run that
    were published since: their sizes, or None for removed ones. Chunk files of unsharded arrays are listed without
    being opened: then the run is one chunk of *nbytes* bytes.
    """

    first: int
    length: int
    state: ShardState
    shard: OpenShard | None = None
    entries: Entries | None = None
    error: ShardfsError | None = None
    pending: Mapping[int, int | None] = {}
    nbytes: int | None = None

    def chunks(self, start: int, stop: int) -> tuple[Sequence[int], list[int], list[bool] | None]:
        """Return coordinates and sizes of the chunks that exist among the run's *start* to *stop* − 1.

        The third list marks damaged chunks, whose size is unknown; it is None if there are none.
        """
        numbers, sizes, damaged = self._stored(start, stop)
        if not self.pending:
            return numbers, sizes, damaged
        found = dict(zip(numbers, zip(sizes, damaged or [False] * len(sizes), strict=True), strict=True))
        for number in range(self.first + start, self.first + stop):
            if number in self.pending:
                found.pop(number, None)
                if (size := self.pending[number]) is not None:
                    found[number] = (size, False)
        numbers = sorted(found)
        return numbers, [found[n][0] for n in numbers], [found[n][1] for n in numbers] if damaged else None

    def _stored(self, start: int, stop: int) -> tuple[Sequence[int], list[int], list[bool] | None]:
        numbers: Sequence[int] = range(self.first + start, self.first + stop)
        if self.nbytes is not None:
            return numbers, [self.nbytes] * len(numbers), None
        if self.error is None and self.shard is None:
            return [], [], None
        if self.entries is None or self.shard is None:
            return numbers, [0] * len(numbers), [True] * len(numbers)
        entries = self.entries[start:stop]
        sound = are_sound(entries, self.shard.index.shard_nbytes)
        if sound.all():
            return numbers, entries[:, 1].tolist(), None
        present = sound | ~are_empty(entries)
        numbers = (np.flatnonzero(present) + self.first + start).tolist()
        sizes = np.where(sound, entries[:, 1], 0)[present].tolist()
        damaged = ~sound[present]
        return numbers, sizes, damaged.tolist() if damaged.any() else None


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

    async def find(self, coords: Coords, *, fresh: bool = False) -> tuple[ShardState, Extent | None]:
        """Return the extent of the inner chunk at *coords*, None if there is no such chunk, and the state of its shard.

        *coords* are within the grid. With *fresh*, the store is asked whether the shard has changed. Raises the error
        that prevents reading the shard, and `CorruptionError` if only this chunk is damaged.
        """
        change = self.layout.pending.changes.get(coords)
        if change is not None:
            state = await self.shard(self.layout.locate(coords).shard)
            change = self.layout.pending.changes.get(coords)  # it may have been committed meanwhile
        if change is not None:
            return state, None if isinstance(change, Erase) else Extent(change, 0, change.payload.nbytes)
        return await self.find_stored(coords, fresh=fresh)

    async def find_stored(self, coords: Coords, *, fresh: bool = False) -> tuple[ShardState, Extent | None]:
        """Return what `find` would if nothing were pending."""
        state, shard, entry = await self._look_up(coords, fresh=fresh)
        found = shard.index.range(entry) if shard is not None else None
        return state, Extent(shard, *found) if shard is not None and found is not None else None

    async def _look_up(self, coords: Coords, *, fresh: bool) -> tuple[ShardState, OpenShard | None, int]:
        """Return the outermost and the innermost shard of a chunk, and its index entry."""
        place = self.layout.locate(coords)
        state = await self._shards.state(self.layout, place.shard, fresh=fresh)
        state.check()
        innermost = await self._shards.innermost(self.layout, state, place) if len(place.entries) > 1 else state
        return state, innermost.shard, place.entries[-1]

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

    async def stored_entry(self, coords: Coords) -> tuple[int, int] | None:
        """Return two numbers that identify what is stored as the chunk at *coords*, None if nothing is.

        The second is its length. The first is a checksum of its bytes, because another program may store other bytes in
        the same place; where bytes cost a request, or are damaged, it is the offset, and for a chunk file a number of
        its version. Raises the error that prevents reading the index.
        """
        _, shard, entry = await self._look_up(coords, fresh=True)
        if shard is None:
            return None
        if self.grid.is_unsharded:
            return _version_number(shard.snapshot.stat), shard.index.shard_nbytes
        if self._shards.store.root is not None:
            with suppress(CorruptionError, StaleError):
                found = shard.index.range(entry)
                return None if found is None else (await _checksum(Extent(shard, *found)), found[1])
        return shard.index.entry(entry)

    async def chunks_of(self, shard: Coords) -> AsyncGenerator[Coords, None]:
        """Yield the coordinates of the chunks in the shard at *shard* that are within the grid, in C order."""
        if not self.grid.ndim:
            if (await self.find(()))[1] is not None:
                yield ()
            return
        ranges = [self.grid.covered(axis, index) for axis, index in enumerate(shard)]
        for prefix in product(*ranges[:-1]):
            for segment in self.grid.row(prefix, ranges[-1]):
                run = await self._run(prefix, segment)
                for number in run.chunks(0, run.length)[0] if run is not None else ():
                    yield (*prefix, number)

    def remaining(self, state: ShardState) -> float:
        """Return for how many seconds *state* may still be trusted."""
        return self._shards.remaining(state)

    async def has_shards(self) -> bool:
        """Whether any shard is stored or pending."""
        return bool(self.layout.pending) or await self.listing.any()

    async def is_empty(self, prefix: Coords = (), *, besides: Container[Coords] = ()) -> bool:
        """Whether there are no chunks below *prefix*, a prefix of coordinates, other than those in *besides*."""
        if not self.grid.ndim:
            return () in besides or (await self.find(()))[1] is None
        async with aclosing(self.rows((0,) * (self.grid.ndim - 1), prefix)) as rows:
            async for row in rows:
                async with aclosing(self.list_row(row, 0)) as runs:
                    async for run in runs:
                        if any((*row, number) not in besides for number in run.chunks(0, run.length)[0]):
                            return False
        return True

    def absent_run(self, prefix: Coords, first: int, stop: int) -> ListedRun:
        """Return a run of missing chunks, from *first* to *stop* − 1 of the row *prefix*."""
        place = self.layout.locate((*prefix, first))
        return ListedRun(first, stop - first, self._shards.listed(self.layout, place.shard, None))

    async def shard(self, coords: Coords) -> ShardState:
        """Return the state of the shard at *coords*."""
        return await self._shards.state(self.layout, coords)

    async def covered(self, prefix: Coords) -> AsyncIterator[range]:
        """Yield, in order, the ranges of the next coordinate after *prefix* that stored or pending shards cover."""
        axis = len(prefix)
        outer = tuple(
            dimension.chunk_at(i * length)
            for i, length, dimension in zip(prefix, self.grid.chunk_shape, self.grid.shards.dimensions, strict=False)
        )
        pending = [*self.layout.pending.children(outer)]  # first: what is committed meanwhile is found stored
        stored = await self.listing.children(outer)
        for index in sorted({*stored, *pending}) if pending else stored:
            yield self.grid.covered(axis, index)

    async def has_directory(self, coords: Coords) -> bool:
        """Whether the directory of chunks at *coords* exists, given that its parent does.

        In an array that is being created, one that was not made exists once others have stored chunks in it.
        """
        if not self.layout.has_directory(coords) and not await self.is_empty(coords):
            self.layout.make_directory(coords)
        return self.layout.has_directory(coords)

    async def lists(self, coords: Coords) -> bool:
        """Whether the directory of chunks at *coords* is listed in its parent."""
        if self.layout.directories is not None:
            return await self.has_directory(coords)
        return any([coords[-1] in covered async for covered in self.covered(coords[:-1])])

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
            for segment in self.grid.row(prefix, range(max(start, covered.start), min(stop, covered.stop))):
                run = await self._run(prefix, segment)
                if run is not None:
                    if run.shard is not None:
                        run.shard.expect()
                    yield run

    async def _list_files(self, prefix: Coords, start: int, stop: int) -> AsyncGenerator[ListedRun, None]:
        pending = [*self.layout.pending.children(prefix)]  # first: what is committed meanwhile is found stored
        stored = await self.listing.children(prefix)
        numbers = sorted({*stored, *pending}) if pending else stored
        last = bisect_left(numbers, stop)
        for first in range(bisect_left(numbers, start), last, _BATCH):
            batch = numbers[first : min(first + _BATCH, last)]
            directory, _, _ = self.layout.shard_key((*prefix, 0)).rpartition("/")
            names = [self.layout.shard_key((*prefix, n)).rpartition("/")[2] for n in batch]
            stats: Sequence[Stat | None] = [None] * len(names)
            with suppress(NotFoundError, NotADirectoryHereError):
                stats = await self._shards.store.stat_in(directory, names)
            for number, stat in zip(batch, stats, strict=True):
                if stat is None or stat.kind is Kind.FILE:
                    found = self._listed((*prefix, number), stat)
                else:  # a link, or an error that prevents reading the chunk
                    found = await self._run(prefix, next(self.grid.row(prefix, range(number, number + 1))))
                if found is not None:
                    yield found

    def _listed(self, coords: Coords, stat: Stat | None) -> ListedRun | None:
        change = self.layout.pending.changes.get(coords)
        if stat is None and change is None:
            return None
        pending = {} if change is None else {coords[-1]: _nbytes(change)}
        state = self._shards.listed(self.layout, coords, stat)
        return ListedRun(coords[-1], 1, state, pending=pending, nbytes=stat.size if stat is not None else None)

    async def _run(self, prefix: Coords, segment: Segment) -> ListedRun | None:
        place = segment.place
        state = await self.shard(place.shard)
        pending, changes = {}, self.layout.pending.changes
        if place.shard in self.layout.pending.shards:
            numbers = range(segment.first, segment.first + segment.length)
            pending = {n: _nbytes(changes[*prefix, n]) for n in numbers if (*prefix, n) in changes}
        shard, error = None, state.error
        try:
            if error is None:
                shard = (await self._shards.innermost(self.layout, state, place)).shard
        except ShardfsError as damage:
            error = damage
        if shard is None:
            run = ListedRun(segment.first, segment.length, state, error=error, pending=pending)
            return run if pending or error is not None else None
        start, stride = place.entries[-1], segment.stride
        entries = shard.index.entries[start : start + stride * (segment.length - 1) + 1 : stride]
        return ListedRun(segment.first, segment.length, state, shard, entries, pending=pending)


def _nbytes(change: Change) -> int | None:
    """Return the size of the chunk after *change*, None if it is removed."""
    return change.payload.nbytes if isinstance(change, Put) else None


async def _checksum(extent: Extent) -> int:
    """Return a checksum of the bytes of a chunk; not a crc32c, with which the chunk may end."""
    found = 0
    for start, nbytes in in_pieces(extent.nbytes):
        found = reversed_checksum(await extent.read(start, nbytes), found)
    return found


def _version_number(stat: Stat) -> int:
    """Return a 64-bit number for the version of a file, the same in every process."""
    version = stat.mtime_ns if stat.file is not None else stat.version  # a restored file has another inode
    return int.from_bytes(blake2b(repr(version).encode(), digest_size=8).digest())
