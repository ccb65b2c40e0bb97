"""Fetching ranges of one version of an object: few requests for many readers, and each byte once.

What is wanted is looked for in memory, among the ranges in flight, and on the local disk.  Those who miss something at
about the same time, or while all connections are busy, make one plan of it.  No task works for itself: of the readers
that wait for a flight, one makes the request, and another takes over if that one is cancelled.
"""

import copy
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from shardfs.errors import ConflictError, ShardfsError, StoreError
from shardfs.stores.base import Buffer
from shardfs.stores.disk_cache import DiskCache
from shardfs.stores.ranges import Reads, Span, merge, window
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import Fetched, ObjectStat, Range
from shardfs.stores.s3.segments import Segments

GATHER_SECONDS: Final = 0.001
"""For how long a reader waits for others that want something near; a small part of what a request takes."""

_MAX_EXPECTED: Final = 64
_CACHE_THREADS: Final = 8
_AHEAD_NBYTES: Final = 2**20
"""What is read from the disk at most beyond what is wanted, of what is read in order: one thread for many reads."""
_FROM_DISK_NBYTES: Final = 4 * 2**20
"""What is kept of it in all: little, for it is quickly found again, and memory that was used before is faster."""


class Fetching:
    """What the versions of all objects of a store share: connections, memory, the cache on the local disk."""

    def __init__(self, client: S3Client, cache: DiskCache | None, *, max_connections: int, max_nbytes: int) -> None:
        self.client = client
        self.segments = Segments(max_nbytes)
        self.from_disk = Segments(_FROM_DISK_NBYTES)
        self.connections = trio.Semaphore(max_connections)
        self._cache = cache
        self._threads = trio.CapacityLimiter(_CACHE_THREADS)

    async def find(self, name: str, etag: str, span: Span, *, ahead_nbytes: int = 0) -> memoryview | None:
        """Return bytes that lie in the cache on the local disk; None if they do not.

        Up to *ahead_nbytes* more follow, as far as they are at hand.
        """
        if self._cache is None:
            return None
        find = partial(self._cache.find, name, etag, span.start, span.nbytes, ahead_nbytes=ahead_nbytes)
        return await trio.to_thread.run_sync(find, limiter=self._threads)

    async def add(self, name: str, etag: str, offset: int, data: Buffer) -> None:
        """Keep bytes in the cache on the local disk."""
        if self._cache is not None and len(data):
            await trio.to_thread.run_sync(self._cache.add, name, etag, offset, data, limiter=self._threads)


@dataclass(slots=True, eq=False)
class _Flight:
    """One range that is fetched; *users* wait for it.  Who has the lock makes the request."""

    span: Span
    is_window: bool
    users: int
    lock: trio.Lock = field(default_factory=trio.Lock)
    data: memoryview | None = None
    error: ShardfsError | None = None

    def view(self, start: int, stop: int) -> memoryview:
        """Return what was fetched from *start* on, up to *stop*."""
        assert self.data is not None
        return self.data[start - self.span.start : stop - self.span.start]


@dataclass(slots=True, eq=False)
class _Gathering:
    """What readers miss, until one plan is made of all of it."""

    spans: list[Span] = field(default_factory=list)
    windows: list[Span] = field(default_factory=list)
    departed: trio.Event = field(default_factory=trio.Event)
    flights: list[_Flight] = field(default_factory=list)


class Version:
    """One version of the object *key* of the bucket, called *name* in the cache; shared by all who read it."""

    __slots__ = (
        "__weakref__",
        "_expected",
        "_fetching",
        "_flights",
        "_gathering",
        "_key",
        "_name",
        "_read_end",
        "_stat",
        "_window_end",
    )

    def __init__(self, fetching: Fetching, key: str, name: str, stat: ObjectStat) -> None:
        self._fetching = fetching
        self._key = key
        self._name = name
        self._stat = stat
        self._flights: list[_Flight] = []
        self._gathering: _Gathering | None = None
        self._expected: deque[Span] = deque(maxlen=_MAX_EXPECTED)
        self._read_end: int | None = None
        self._window_end: int | None = None

    def expect(self, span: Span) -> None:
        """Note that *span* is likely to be read soon, in order."""
        if span not in self._expected:
            self._expected.append(span)

    def is_in_memory(self, span: Span) -> bool:
        """Whether reading *span* takes neither a request nor a look at the disk."""
        return self._fetching.segments.holds(self._version, *span)

    async def holds(self, span: Span) -> bool:
        """Whether reading *span* takes no request."""
        if self.is_in_memory(span):
            return True
        found = await self._fetching.find(self._name, self._stat.etag, span)
        if found is not None:
            self._fetching.segments.add(self._version, span.start, found)
        return found is not None

    async def add(self, offset: int, data: memoryview) -> None:
        """Keep what came with the reply that told of this version."""
        self._fetching.segments.add(self._version, offset, data)
        await self._fetching.add(self._name, self._stat.etag, offset, data)

    async def read(self, span: Span) -> Buffer:
        """Return the bytes of *span*; raises `ConflictError` if the object has another version now."""
        views: list[memoryview] = []
        used = [flight for flight in self._flights if flight.span.start < span.stop and span.start < flight.span.stop]
        for flight in used:
            flight.users += 1
        start = span.start
        try:
            while start < span.stop:
                view = await self._view(start, span.stop, used)
                views.append(view)
                start += view.nbytes
        finally:
            for flight in used:
                self._leave(flight)
        if len(views) == 1:
            return views[0]
        joined = b"".join(views)
        # The disk gives what lies in one entry only, and here the parts are of several.
        await self._fetching.add(self._name, self._stat.etag, span.start, joined)
        return joined

    @property
    def _version(self) -> tuple[str, str]:
        return self._name, self._stat.etag

    async def _view(self, start: int, stop: int, used: list[_Flight]) -> memoryview:
        """Return bytes from *start* on, at least one, at most up to *stop*; *used* are the reader's flights."""
        view, flight = self._at_hand(start, stop, used)
        if view is None and flight is None:
            stop = self._covered_from(start, stop)
            wanted = Span(start, stop)
            ahead = self._ahead(wanted)
            ahead_nbytes = 0 if ahead is None else max(0, min(ahead.stop - stop, _AHEAD_NBYTES))
            found = await self._fetching.find(self._name, self._stat.etag, wanted, ahead_nbytes=ahead_nbytes)
            if found is not None:
                self._read_end = start + found.nbytes
                if found.nbytes > wanted.nbytes:
                    self._fetching.from_disk.add(self._version, start, found)
                return found[: wanted.nbytes]
            view, flight = self._at_hand(start, stop, used)  # something may have landed meanwhile
        if view is not None:
            return view
        if flight is None:
            flight = await self._join(Span(start, self._covered_from(start, stop)))
            used.append(flight)
        is_mine = await self._land(flight)
        view = self._fetching.segments.read(self._version, start, stop) or flight.view(start, stop)
        if is_mine:
            await self._fetching.add(self._name, self._stat.etag, flight.span.start, flight.view(*flight.span))
        return view

    def _at_hand(self, start: int, stop: int, used: list[_Flight]) -> tuple[memoryview | None, _Flight | None]:
        """Return what is in memory, or a flight that will bring it and is one of *used* from now on."""
        for segments in (self._fetching.segments, self._fetching.from_disk):
            view = segments.read(self._version, start, stop)
            if view is not None:
                return view, None
        flight = next((flight for flight in [*used, *self._flights] if flight.span.holds(start)), None)
        if flight is not None and flight not in used:
            flight.users += 1
            used.append(flight)
        return None, flight

    def _covered_from(self, start: int, stop: int) -> int:
        """Return where, from *start* to *stop*, bytes begin that are in memory or in flight."""
        starts = [flight.span.start for flight in self._flights if flight.span.start > start]
        held = self._fetching.segments.next_start(self._version, start)
        return min([stop, *starts] if held is None else [stop, held, *starts])

    def _ahead(self, wanted: Span) -> Span | None:
        """Return what to have with *wanted* for who reads in order; None if it is not read so."""
        reads = Reads(self._stat.size, self._expected, self._read_end, self._window_end)
        return window(reads, wanted, self._covered_from(wanted.start, self._stat.size))

    async def _join(self, wanted: Span) -> _Flight:
        """Return the flight that is planned for *wanted*, which its caller uses."""
        ahead = self._ahead(wanted)
        if ahead is not None:
            self._window_end = ahead.stop
        gathering, leads = self._gathering, self._gathering is None
        if gathering is None:
            gathering = self._gathering = _Gathering()
        gathering.spans.append(wanted)
        if ahead is not None:
            gathering.windows.append(ahead)
        try:
            if leads:
                await trio.sleep(GATHER_SECONDS)
                async with self._fetching.connections:
                    pass  # while there is none free, more comes together
            else:
                await gathering.departed.wait()
        except BaseException:
            if gathering.departed.is_set():
                self._leave(_flight_of(gathering, wanted))
            else:
                gathering.spans.remove(wanted)
                if ahead is not None:
                    gathering.windows.remove(ahead)
            raise
        finally:
            if leads:
                self._gathering = None
                self._depart(gathering)
        return _flight_of(gathering, wanted)

    def _depart(self, gathering: _Gathering) -> None:
        for span in merge([*gathering.spans, *gathering.windows]):
            is_window = any(span.start <= ahead.start and ahead.stop <= span.stop for ahead in gathering.windows)
            users = sum(span.holds(wanted.start) for wanted in gathering.spans)
            gathering.flights.append(_Flight(span, is_window, users))
        self._flights.extend(gathering.flights)
        gathering.departed.set()

    async def _land(self, flight: _Flight) -> bool:
        """Wait until *flight* has its bytes, and return whether it was the caller who fetched them."""
        async with flight.lock:
            if flight.error is not None:
                raise copy.copy(flight.error)
            if flight.data is not None:
                return False
            await self._fetch(flight)
            return True

    def _leave(self, flight: _Flight) -> None:
        flight.users -= 1
        if not flight.users and flight in self._flights:
            self._flights.remove(flight)

    async def _fetch(self, flight: _Flight) -> None:
        try:
            async with self._fetching.connections:
                part = Range(flight.span.start, flight.span.nbytes)
                fetched = await self._fetching.client.get(self._key, part, etag=self._stat.etag)
            check(self._name, self._stat.etag, flight.span, fetched)
        except ShardfsError as error:
            flight.error = error
            self._flights.remove(flight)
            raise
        flight.data = fetched.data
        self._flights.remove(flight)
        self._read_end = flight.span.stop
        if flight.is_window:
            self._fetching.segments.add(self._version, flight.span.start, fetched.data)


def check(name: str, etag: str, span: Span, fetched: Fetched) -> None:
    """Raise what is wrong with a reply that should be the bytes *span* of the version *etag*."""
    if fetched.stat.etag != etag:  # of a server that ignores conditions
        raise ConflictError(f"{name} was replaced")
    if (fetched.offset, fetched.data.nbytes) != (span.start, span.nbytes):
        stop = fetched.offset + fetched.data.nbytes
        raise StoreError(f"{name}: bytes {fetched.offset} to {stop} came, not {span.start} to {span.stop}")


def _flight_of(gathering: _Gathering, wanted: Span) -> _Flight:
    return next(flight for flight in gathering.flights if flight.span.holds(wanted.start))
