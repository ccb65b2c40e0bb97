"""Reading ahead: which chunks come next where a program reads an array in order, and fetching them before it asks.

Only who reads some chunks in a row, along an axis, is read ahead of; whoever reads here and there causes no request.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Container, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise, takewhile
from typing import Final, Protocol

import trio

from shardfs.dataset.layout import ArrayLayout
from shardfs.format.sharding import Coords
from shardfs.stores.base import Takes
from shardfs.stores.parallel import open_nursery
from shardfs.stores.ttl import begin_request

log = logging.getLogger(__name__)

_FIRST: Final = 4
"""Who reads so many chunks that follow each other reads in order."""

_FIRST_APART: Final = 6
"""Who reads so many chunks with the same distance does, too."""

_FEW: Final = 16
_FACTOR: Final = 2
"""At most `_FACTOR` chunks are fetched ahead for each that was read in order; a few at first, or of unknown size."""

_MAX_CHUNKS: Final = 1024
_MAX_NBYTES: Final = 64 * 2**20
"""How much is fetched ahead at most, of all scans together; half of that for one. As much may come beside that."""

_MAX_LATE: Final = 16
"""Several threads read a little out of order: who goes on after so many chunks that nobody has read skips them."""

_MAX_RECENT: Final = 64
_MAX_SCANS: Final = 8
_MAX_LINES: Final = 64
_MAX_ARRAYS: Final = 64


class Fetchable(Protocol):
    """An array whose chunks can come into memory before somebody reads them."""

    layout: ArrayLayout

    async def fetch(
        self, chunks: Collection[Coords], max_nbytes: int, takes: Takes, *, are_dense: bool
    ) -> Sequence[int]:
        """Begin to bring stored chunks into memory, of all together *max_nbytes* at most; see `Array.fetch`."""


class Scan:
    """The reading of a box of the grid in C order, in steps of *step* along *axis*, the fastest; it began with *read*.

    Where the box ends on each axis is not known at first: it is learned from the chunks that are skipped.
    """

    def __init__(self, shape: Sequence[int], read: Sequence[Coords], axis: int, step: int) -> None:
        self._axis, self._step = axis, step
        self._low = read[0]
        self._high = [length - 1 for length in shape]
        self._most = list(read[-1])
        self._next = self._after(read[-1])
        self._nread = len(read)
        self._nbytes_beside = 0.0
        self._ahead: dict[Coords, None] = {}  # chunks that are expected and were not read, in order
        self.chunk_nbytes: float | None = None
        """The size of a chunk, about; None as long as that is unknown."""
        self.is_dropped = False
        """Whether nothing more is expected: the chunks are read in another order, or others are read instead."""

    @property
    def is_dense(self) -> bool:
        """Whether it reads all chunks along the last axis, as far as its box reaches."""
        return self._step == 1 and self._axis == len(self._low) - 1

    @property
    def is_over(self) -> bool:
        """Whether no more chunks are expected."""
        return self.is_dropped or (self._next is None and not self._ahead)

    def takes(self, coords: Coords) -> bool:
        """Note that a chunk is read, if it is expected; return whether it is."""
        if coords not in self._ahead:
            return False
        skipped = list(takewhile(lambda expected: expected != coords, self._ahead))
        del self._ahead[coords]
        self._nread += 1
        self._most = list(map(max, self._most, coords))
        if len(skipped) > _MAX_LATE:
            self._learn(skipped[0], coords)
        return True

    @property
    def beside_in_advance(self) -> float:
        """How many more bytes came beside the chunks that were expected than were read of all."""
        return max(0.0, self._nbytes_beside - self._nread * (self.chunk_nbytes or 0.0))

    def takes_beside(self, max_nbytes: float, nbytes: float) -> bool:
        """Note that *nbytes* come beside what is expected; False if that is more than *max_nbytes* in advance."""
        is_taken = self.beside_in_advance + nbytes <= max_nbytes
        self._nbytes_beside += nbytes if is_taken else 0
        return is_taken

    def _learn(self, skipped: Coords, coords: Coords) -> None:
        """Let the box end where reading did, before a chunk that was *skipped*; it goes on with *coords*."""
        beyond = [axis for axis, place in enumerate(skipped) if place > self._most[axis]]
        if not beyond:
            self.is_dropped = True
            return
        self._high[beyond[-1]] = self._most[beyond[-1]]
        self._ahead = {expected: None for expected in self._ahead if self._contains(expected)}
        if self._next is None or not self._contains(self._next):
            self._next = self._after(coords)

    def expect(self, max_nbytes: int, known: Container[Coords]) -> list[Coords]:
        """Expect more chunks, in order, but none that is *known*; return which, none if enough are expected."""
        size = self.chunk_nbytes
        fitting = _FEW if size is None else int(max_nbytes / max(size, 1))
        most = min(max(_FACTOR * self._nread, _FEW), _MAX_CHUNKS, fitting)
        more: list[Coords] = []
        if len(self._ahead) <= most // 2:
            while self._next is not None and len(self._ahead) < most:
                coords, self._next = self._next, self._after(self._next)
                if coords not in self._ahead and coords not in known:
                    self._ahead[coords] = None
                    more.append(coords)
        return more

    def _contains(self, coords: Coords) -> bool:
        return all(place <= high for place, high in zip(coords, self._high, strict=True))

    def _after(self, coords: Coords) -> Coords | None:
        """Return the chunk of the box that comes after *coords*; None if that is the last one."""
        places = list(coords)
        places[self._axis] += self._step
        for axis in range(self._axis, -1, -1):
            if places[axis] <= self._high[axis]:
                return tuple(places)
            if axis:
                places[axis] = self._low[axis]
                places[axis - 1] += 1
        return None


class Scans:
    """The chunks that are read of one array, whose grid has *shape*, and the scans that they belong to."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = shape
        self._scans: list[Scan] = []
        self._recent: OrderedDict[Coords, None] = OrderedDict()
        self._lines: OrderedDict[tuple[int, Coords, Coords], tuple[int, ...]] = OrderedDict()
        """Which chunks were read last along a line, by its axis and the coordinates on all others."""

    def note(self, coords: Coords) -> Scan | None:
        """Note that a chunk is read; return the scan that it belongs to."""
        if coords in self._recent:
            return None
        self._recent[coords] = None
        if len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)
        if any(scan.is_over for scan in self._scans):
            self._scans = [scan for scan in self._scans if not scan.is_over]
        scan = next((scan for scan in self._scans if scan.takes(coords)), None)
        if scan is None:
            scan = self._begun(coords)
            if scan is not None:
                self._scans.append(scan)
        return scan

    def expect(self, scan: Scan, max_nbytes: int) -> list[Coords]:
        """Return the chunks to fetch now, ahead of a *scan*."""
        return scan.expect(max_nbytes, self._recent)

    def _begun(self, coords: Coords) -> Scan | None:
        """Return the scan of which *coords* is the latest of the first chunks."""
        for axis in reversed(range(len(coords))):
            line = axis, coords[:axis], coords[axis + 1 :]
            places = (*self._lines.pop(line, ()), coords[axis])[-_FIRST_APART:]
            step = _step(places)
            if step:
                first, last = min(places[-_FIRST:]), max(places[-_FIRST:])
                while self._on(line, first - step) in self._recent:
                    first -= step
                read = [self._on(line, place) for place in range(first, last + 1, step)]
                return Scan(self._shape, read, axis, step)
            self._lines[line] = places
            if len(self._lines) > _MAX_LINES:
                self._lines.popitem(last=False)
        return None

    @staticmethod
    def _on(line: tuple[int, Coords, Coords], place: int) -> Coords:
        _, before, behind = line
        return (*before, place, *behind)


def _step(places: Sequence[int]) -> int:
    """Return in which steps the last of *places* follow each other; 0 if they do not.

    Those that follow directly may be out of order by one, as two threads read them.
    """
    last = places[-_FIRST:]
    ordered = sorted(last)
    if len(last) == _FIRST and ordered[-1] - ordered[0] == _FIRST - 1 and len(set(last)) == _FIRST:
        return int(all(abs(last.index(place) - number) <= 1 for number, place in enumerate(ordered)))
    steps = {after - before for before, after in pairwise(places)}
    return steps.pop() if len(places) == _FIRST_APART and len(steps) == 1 and min(steps) > 0 else 0


class ReadAhead:
    """Fetches what comes next of the arrays of a source, in tasks of *nursery*."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()
        self._arrays: OrderedDict[ArrayLayout, Scans] = OrderedDict()
        self._under_way: OrderedDict[Scan, None] = OrderedDict()
        self._is_ended = False

    def note(self, array: Fetchable, shape: Sequence[int], coords: Coords) -> None:
        """Note, in any thread, that a chunk of *array*, whose grid has *shape*, is read now."""
        with self._lock:
            scans = self._arrays.pop(array.layout, None) or Scans(shape)
            self._arrays[array.layout] = scans
            if len(self._arrays) > _MAX_ARRAYS:
                self._arrays.popitem(last=False)
            scan = scans.note(coords)
            share = 0 if scan is None else self._share_of(scan)
            chunks = [] if scan is None else scans.expect(scan, share)
        if scan is not None and chunks:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._start, array, scan, chunks, share)

    def _share_of(self, scan: Scan) -> int:
        """Return how many bytes are fetched ahead of *scan* at most, which is now the one that was used last."""
        self._under_way[scan] = None
        self._under_way.move_to_end(scan)
        for other in [other for other in self._under_way if other.is_over]:
            del self._under_way[other]
        if len(self._under_way) > _MAX_SCANS:
            self._under_way.popitem(last=False)[0].is_dropped = True
        return _MAX_NBYTES // max(2, len(self._under_way))

    def _start(self, array: Fetchable, scan: Scan, chunks: Sequence[Coords], max_nbytes: int) -> None:
        if not self._is_ended:
            self._nursery.start_soon(self._fetch, array, scan, chunks, max_nbytes)

    async def _fetch(self, array: Fetchable, scan: Scan, chunks: Sequence[Coords], max_nbytes: int) -> None:
        begin_request()
        try:
            sizes = await array.fetch(chunks, max_nbytes, partial(self._takes, scan), are_dense=scan.is_dense)
        except Exception:  # nobody waits for it, and who reads gets the error
            log.exception("chunks of %s could not be fetched ahead", array.layout.path or "the array")
            return
        if sizes:
            scan.chunk_nbytes = sum(sizes) / len(sizes)

    def _takes(self, scan: Scan, nbytes: float) -> bool:
        """Note that *nbytes* come beside what is expected of *scan*; False if that would be too much, of all scans."""
        with self._lock:
            others = sum(other.beside_in_advance for other in self._under_way if other is not scan)
            return scan.takes_beside(_MAX_NBYTES - others, nbytes)

    def end(self) -> None:
        """Fetch nothing more."""
        self._is_ended = True


@asynccontextmanager
async def reading_ahead() -> AsyncIterator[ReadAhead]:
    """Yield what fetches chunks ahead; at the end of the block it stops, with what is under way."""
    async with open_nursery() as nursery:
        ahead = ReadAhead(nursery)
        try:
            yield ahead
        finally:
            ahead.end()
            nursery.cancel_scope.cancel()
