"""The bytes of objects: few requests for many readers, and each byte only once.

Wanted bytes are looked for in memory, among the ranges in flight, and on the local disk. What several readers miss at
about the same time, or while all connections are busy, is planned together. What is in flight arrives even if nobody
waits for it any more.
"""

import copy
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import trio

from shardfs.errors import ConflictError, IsADirectoryHereError, NotFoundError, StaleError, StoreError
from shardfs.stores.base import Buffer, Kind, Stat, Takes
from shardfs.stores.memory import Slice
from shardfs.stores.objects.disk_cache import DiskCache
from shardfs.stores.objects.heads import (
    Absent,
    FoundObject,
    Heads,
    KnownDirectory,
    NoObject,
    Unknown,
    not_found,
    split,
)
from shardfs.stores.objects.kept import KeptRanges, VersionId
from shardfs.stores.objects.ranges import (
    SMALL_NBYTES,
    WHOLE_NBYTES,
    WINDOW_NBYTES,
    Reads,
    Span,
    are_begun,
    merge,
    pieces_around,
    spans_of,
    total,
    window,
)
from shardfs.stores.objects.reader import object_stat
from shardfs.stores.objects.requests import (
    ObjectStat,
    Properties,
    Range,
    Requests,
)

GATHER_SECONDS: Final = 0.001
"""How long a reader waits for others that want something near; a small part of the time of a request."""

MEMORY_NBYTES: Final = 128 * 2**20

_MAX_EXPECTED: Final = 64
_MAX_DIRECTORIES: Final = 64
_FEW_UNITS: Final = 4
"""How many units of an object are looked at to tell whether it is read in order."""

_MAX_REDIRECTS: Final = 10_000
_CACHE_THREADS: Final = 8
_AHEAD_NBYTES: Final = 2**20
"""How much more than wanted is read from the disk for sequential reads: one thread for many reads."""

_MAX_WAITING_NBYTES: Final = 64 * 2**20
"""How many bytes wait for the local disk at most, about: what comes beyond is not kept there."""


_Client = TypeVar("_Client", bound=Requests, covariant=True)


@dataclass(slots=True, eq=False)
class _Flight:
    """One range that is being fetched; if it *is_ahead*, it is more than wanted now, and stays in memory.

    Readers have its bytes once it has *landed*; it is *over* when the disk has them too, or will not get them.
    """

    span: Span
    is_ahead: bool
    landed: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    data: memoryview | None = None
    error: Exception | None = None

    @classmethod
    def arrived(cls, offset: int, data: memoryview) -> "_Flight":
        """Return one that has landed: bytes from *offset* that came by another request."""
        flight = cls(Span(offset, offset + data.nbytes), is_ahead=True, data=data)
        flight.landed.set()
        return flight

    async def view(self, start: int, stop: int) -> memoryview:
        """Wait for the range, and return its bytes from *start* up to *stop*."""
        await self.landed.wait()
        if self.data is None:
            raise copy.copy(self.error) if self.error is not None else StoreError("nothing was fetched")
        return self.data[start - self.span.start : stop - self.span.start]


@dataclass(slots=True, eq=False)
class _Gathering:
    """What readers miss, until it is planned together."""

    spans: list[Span] = field(default_factory=list)
    ahead: list[Span] = field(default_factory=list)
    departed: trio.Event = field(default_factory=trio.Event)
    flights: list[_Flight] = field(default_factory=list)


class _Version:
    """One version of the object *key*, called *name* in the cache; shared by all its readers."""

    __slots__ = (
        "__weakref__",
        "_flights",
        "_gathering",
        "_id",
        "_key",
        "_ndrops",
        "_objects",
        "_on_way_to_disk",
        "_reads",
        "_units",
        "came_whole",
    )

    def __init__(self, objects: "Objects[Requests]", key: str, name: str, stat: ObjectStat) -> None:
        self._objects = objects
        self._key = key
        self._id = name, stat.etag
        self._flights: list[_Flight] = []
        """From which readers take bytes: those in the air, and those whose bytes are not on the disk yet."""
        self._on_way_to_disk: list[_Flight] = []
        """Those that have landed and are not over; `drop` takes some from readers, and waits until they are over."""
        self._ndrops = 0
        self._gathering: _Gathering | None = None
        self._reads = Reads(stat.size, deque(maxlen=_MAX_EXPECTED))
        self._units: set[Span] = set()
        """The units that were wanted of a small object: several programs, or threads of one, may read it in order."""
        self.came_whole = False
        """Whether a small object came whole when it was opened, and nobody knows yet whether it is read in order."""

    def expect(self, span: Span) -> None:
        """Note that *span* will probably be read soon, in order."""
        if span not in self._reads.expected:
            self._reads.expected.append(span)

    def is_in_memory(self, span: Span) -> bool:
        """Whether reading *span* needs neither a request nor the disk."""
        return self._objects.memory.has(self._id, span)

    def read_in_memory(self, span: Span) -> memoryview | None:
        """Return the bytes of *span* if they are in memory, from any thread.

        None if not, and as long as `read` wants to know what is read of an object that came whole.
        """
        return None if self.came_whole else self._objects.memory.read_all(self._id, span)

    async def is_at_hand(self, span: Span) -> bool:
        """Whether reading *span* needs no request."""
        if not self.is_in_memory(span):
            data = await self._find_on_disk(span)
            if data is not None:
                self._objects.memory.add(self._id, span.start, data)
        return self.is_in_memory(span)

    def add(self, offset: int, data: memoryview) -> None:
        """Keep the bytes that came with the reply about this version."""
        flight = _Flight.arrived(offset, data)
        self._keep_in_memory(flight)
        if self._queue_for_disk(flight):
            self._objects.session.start_soon(self._bring_to_disk, flight)

    async def drop(self, span: Span) -> None:
        """Forget the bytes of *span*, in memory, on disk, and on their way there.

        Whoever reads them next fetches them again: nothing that was here before comes back later.
        """
        self._flights = [
            flight for flight in self._flights if not (flight.landed.is_set() and flight.span.overlaps(span))
        ]
        for flight in [*self._on_way_to_disk]:
            if flight.span.overlaps(span):
                await flight.over.wait()
        await self._objects.drop_on_disk(self._id, span)
        self._ndrops += 1
        self._objects.memory.drop(self._id, span)

    async def _find_on_disk(self, span: Span) -> memoryview | None:
        """Return bytes from the start of *span*, as far as the disk has them, unless any were dropped meanwhile."""
        ndrops = self._ndrops
        data = await self._objects.find_on_disk(self._id, span)
        return data if ndrops == self._ndrops else None

    async def read(self, span: Span, unit: Span | None = None) -> Buffer:
        """Return the bytes of *span*; raises `ConflictError` if the object has another version now.

        *unit*, which contains it, is fetched as one piece, and more after it once a second unit is read in order. With
        None, *span* belongs to no unit.
        """
        if unit is not None:
            self._note_whole([unit])
        views: list[memoryview] = []
        start = span.start
        while start < span.stop:
            view = await self._view(start, span.stop, unit)
            views.append(view)
            start += view.nbytes
        return views[0] if len(views) == 1 else b"".join(views)

    async def fetch(self, units: Sequence[Span], takes: Takes, *, are_dense: bool) -> None:
        """Begin to bring *units*, which will be read soon, into memory; see `FetchingSnapshot`."""
        self._note_whole(units)
        for span in merge(self._missing(units), max_gap=0):
            data = await self._find_on_disk(span)
            if data is not None:
                self._objects.memory.add(self._id, span.start, data)
        missing = self._missing(units)
        if not missing:
            return
        covered = [*self._objects.memory.spans(self._id).spans, *(flight.span for flight in self._flights)]
        pieces, wanted = merge(missing), total(missing)
        is_begun = self._reads.read_end is None and are_begun(missing, self.nbegun)
        if is_begun and takes(min(self._reads.size, WINDOW_NBYTES) - wanted):
            self._reads.note(min(missing).start)
        elif are_dense:
            pieces = pieces_around(missing, covered, self._reads.size, takes)
        if self._reads.size <= SMALL_NBYTES:
            self._units.update(missing)
        for piece in pieces:
            gathering = self._gather(piece, piece, keeps=True)  # the same for all
        await gathering.departed.wait()
        self._reads.note(
            next(flight.span.stop for flight in gathering.flights if flight.span.holds(max(missing).start))
        )

    def _missing(self, units: Sequence[Span]) -> list[Span]:
        """Return those of *units* of which no byte is in memory or in flight, at least at their beginning."""
        return [unit for unit in units if self._at_hand(unit.start, unit.stop) == (None, None)]

    def _note_whole(self, units: Sequence[Span]) -> None:
        """Note that *units* are wanted of an object that came whole, unless it is known how that is read."""
        if self.came_whole:
            self._units.update(units)
            self.came_whole = len(self._units) < _FEW_UNITS
            if are_begun(self._units, self.nbegun):
                self.came_whole = False
                self._objects.read_in_order(self._key)

    async def _view(self, start: int, stop: int, unit: Span | None) -> memoryview:
        """Return bytes from *start*, at least one, up to *stop*."""
        view, flight = self._at_hand(start, stop)
        if view is None and flight is None:
            view = await self._from_disk(Span(start, self._covered_from(start, stop)), unit)
            if view is None:  # something may have arrived meanwhile
                view, flight = self._at_hand(start, stop)
        if view is not None:
            return view
        if flight is None:
            flight = await self._join(Span(start, self._covered_from(start, stop)), unit)
        view = await flight.view(start, stop)
        if unit is not None:
            self._reads.note(max(unit.stop, flight.span.stop))
        return view

    def _at_hand(self, start: int, stop: int) -> tuple[memoryview | None, _Flight | None]:
        """Return what is in memory from *start* up to *stop*, or the flight that will bring it."""
        flight = next((flight for flight in self._flights if flight.span.holds(start)), None)
        return self._objects.memory.read(self._id, start, stop), flight

    async def _from_disk(self, wanted: Span, unit: Span | None) -> memoryview | None:
        """Return bytes from the start of *wanted*, as far as they are contiguous on disk."""
        ahead = self._ahead(wanted, unit)[0]
        stop = wanted.stop if ahead is None else max(wanted.stop, min(ahead.stop, wanted.stop + _AHEAD_NBYTES))
        data = await self._find_on_disk(Span(wanted.start, stop))
        if data is not None and unit is not None:
            self._reads.note(max(unit.stop, wanted.start + data.nbytes))
        if data is not None and data.nbytes > wanted.nbytes:
            self._objects.memory.add(self._id, wanted.start, data)
        return None if data is None else data[: wanted.nbytes]

    def _covered_from(self, start: int, stop: int) -> int:
        """Return where bytes in memory or in flight begin, between *start* and *stop*."""
        starts = [flight.span.start for flight in self._flights if flight.span.start > start]
        return int(min([stop, self._objects.memory.spans(self._id).next_start(start), *starts]))

    def _ahead(self, wanted: Span, unit: Span | None) -> tuple[Span | None, bool]:
        """Return what to fetch along with *wanted*, and whether that is because objects are read in order.

        It is a window for sequential reads, else the rest of the unit, None if there is none.
        """
        whole = wanted
        if unit is not None:
            is_small = unit.nbytes <= WINDOW_NBYTES and not self._is_covered(unit.start, wanted.start)
            start = unit.start if is_small else wanted.start
            stop = self._covered_from(wanted.start, min(unit.stop, start + WINDOW_NBYTES))
            whole = Span(start, max(wanted.stop, stop))
        reads = replace(self._reads, read_end=None) if unit is None else self._reads
        ahead = window(reads, whole, self._covered_from(whole.start, reads.size))
        if ahead is not None:
            return ahead, True
        return (None if whole == wanted else whole), False

    @property
    def nbegun(self) -> int:
        """How many bytes from the beginning are in memory, such as an index there."""
        first = self._objects.memory.spans(self._id).at(0)
        return 0 if first is None else first.stop

    def _rest(self, wanted: Sequence[Span]) -> Span | None:
        """Return what is missing of a small object from the first of *wanted* on, if it is read in order; else None."""
        if not are_begun(self._units, self.nbegun):
            return None
        self._objects.read_in_order(self._key)
        start = min(wanted).start
        return Span(start, self._covered_from(start, self._reads.size))

    def _is_covered(self, start: int, stop: int) -> bool:
        """Whether any byte from *start* to before *stop* is in memory or in flight."""
        is_begun = self._at_hand(start, stop) != (None, None)
        return start < stop and (is_begun or self._covered_from(start, stop) < stop)

    async def _join(self, wanted: Span, unit: Span | None) -> _Flight:
        """Return the flight that is planned for *wanted*."""
        gathering = self._gather(wanted, unit)
        await gathering.departed.wait()
        return next(flight for flight in gathering.flights if flight.span.holds(wanted.start))

    def _gather(self, wanted: Span, unit: Span | None, *, keeps: bool = False) -> _Gathering:
        """Let *wanted* be planned with all that is missed at about this time; it stays in memory if that *keeps* it."""
        ahead, is_in_order = self._ahead(wanted, unit)
        if ahead is not None and is_in_order:
            self._reads.note_window(ahead.stop)
            if self._reads.size <= SMALL_NBYTES and ahead.start <= self.nbegun:
                self._objects.read_in_order(self._key)
        if self._gathering is None:
            self._gathering = _Gathering()
            self._objects.session.start_soon(self._depart, self._gathering)
        gathering = self._gathering
        gathering.spans.append(wanted)
        if unit is not None and self._reads.size <= SMALL_NBYTES:
            self._units.add(unit)
        if ahead is not None or keeps:
            gathering.ahead.append(ahead or wanted)
        return gathering

    async def _depart(self, gathering: _Gathering) -> None:
        await trio.sleep(GATHER_SECONDS)
        async with self._objects.client.limiter:
            self._gathering = None  # while no connection was free, more requests have gathered
        rest = self._rest(gathering.spans)
        if rest is not None:
            gathering.ahead.append(rest)
        for span in merge([*gathering.spans, *gathering.ahead]):
            is_ahead = any(span.start <= ahead.start and ahead.stop <= span.stop for ahead in gathering.ahead)
            gathering.flights.append(_Flight(span, is_ahead))
            self._objects.session.start_soon(self._fetch, gathering.flights[-1])
        self._flights.extend(gathering.flights)
        gathering.departed.set()

    async def _fetch(self, flight: _Flight) -> None:
        start, nbytes = flight.span.start, flight.span.nbytes
        try:
            fetched = await self._objects.client.get(self._key, Range(start, nbytes), etag=self._id[1])
            require_all(self._key, nbytes, fetched.data)
            flight.data = fetched.data
        except Exception as error:  # the error is raised for those who wait
            flight.error = error
        finally:
            is_queued = self._queue_for_disk(flight)
            if not is_queued:
                self._flights.remove(flight)
            self._keep_in_memory(flight)
            flight.landed.set()
        if is_queued:
            await self._bring_to_disk(flight)

    def _keep_in_memory(self, flight: _Flight) -> None:
        if flight.data is not None and flight.is_ahead:
            self._objects.memory.add(self._id, flight.span.start, flight.data)

    def _queue_for_disk(self, flight: _Flight) -> bool:
        """Let the bytes of a flight be on their way to the disk; return whether they are to be brought there."""
        is_queued = flight.data is not None and self._objects.queue_for_disk(flight.data.nbytes)
        if is_queued:
            self._on_way_to_disk.append(flight)
        return is_queued

    async def _bring_to_disk(self, flight: _Flight) -> None:
        """Let the disk have the bytes of a flight, also at the end of the session; nobody who reads waits for it."""
        try:
            with trio.CancelScope(shield=True):
                await self._objects.add_to_disk(self._id, flight.span.start, flight.data or b"")
        finally:
            if flight in self._flights:
                self._flights.remove(flight)
            self._on_way_to_disk.remove(flight)
            flight.over.set()


class _Redirect(NamedTuple):
    """The version that now begins with the first *kept_nbytes* bytes of another one."""

    stat: ObjectStat
    kept_nbytes: int


class Objects(Generic[_Client]):
    """The objects of a source, by version: what their readers share, and which versions replaced others.

    It owns the bytes in memory, at most *memory_nbytes*, which stay valid as long as their version; and the last
    `_MAX_REDIRECTS` redirects. Our own changes keep the first bytes of a version in place, so open files continue in
    the next version. Tasks of *session* fetch what readers want.
    """

    def __init__(
        self,
        client: _Client,
        session: trio.Nursery,
        heads: Heads,
        cache: DiskCache | None,
        *,
        memory_nbytes: int = MEMORY_NBYTES,
    ) -> None:
        self.client = client
        self.session = session
        self.heads = heads
        self.memory = KeptRanges(memory_nbytes)
        self._cache = cache
        self._threads = trio.CapacityLimiter(_CACHE_THREADS)
        self._versions: WeakValueDictionary[tuple[str, str], _Version] = WeakValueDictionary()
        self._redirects: OrderedDict[tuple[str, str], _Redirect] = OrderedDict()
        self._changing: dict[str, trio.Event] = {}
        self._waiting_nbytes = 0
        """How many bytes are on their way to the disk."""
        self._in_order: dict[str, bool] = {}
        """The directories in which a small object was read in order last."""
        self._expected: dict[str, list[int]] = {}
        """Objects that will be read in order when they are opened, and how many bytes come then, by who expects it."""

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> "ObjectSnapshot":
        """Open an object, without a request if it is known and the bytes are at hand, else with one.

        A name that no listing showed as a directory is taken for a missing file: to find out would take another
        request.
        """
        part = Range(-tail_nbytes, tail_nbytes) if tail_nbytes else Range(0, head_nbytes)
        known_nbytes = 0
        match self.heads.find(key):
            case KnownDirectory():
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
            case Absent() | NoObject():
                raise not_found(key)
            case FoundObject(version):
                snapshot = ObjectSnapshot(self, key, version)
                offset, nbytes = part.within(version.size)
                if await snapshot.version.is_at_hand(Span(offset, offset + nbytes)):
                    return snapshot
                known_nbytes = version.size
        if not part.nbytes:
            return ObjectSnapshot(self, key, await self.heads.head(key))
        most = max(self._expected.get(key, ()), default=0) or SMALL_NBYTES * self._in_order.pop(split(key)[0], False)
        if most and known_nbytes <= most:
            part = Range(0, most)
        fetched = await self.heads.get(key, part)
        snapshot = ObjectSnapshot(self, key, fetched.stat)
        snapshot.version.came_whole = most > 0 and fetched.data.nbytes == fetched.stat.size <= SMALL_NBYTES
        snapshot.version.add(fetched.offset, fetched.data)
        return snapshot

    def read_in_order(self, key: str) -> None:
        """Note that a small object was read in order: the next one in its directory comes whole when it is opened."""
        self._in_order[split(key)[0]] = True
        if len(self._in_order) > _MAX_DIRECTORIES:
            del self._in_order[next(iter(self._in_order))]

    @contextmanager
    def expecting(self, key: str, nbytes: int) -> Iterator[None]:
        """In the block, *key* comes whole when it is opened, if it has at most *nbytes*: it will be read in order."""
        expected = self._expected.setdefault(key, [])
        expected.append(nbytes)
        try:
            yield
        finally:
            expected.remove(nbytes)
            if not expected:
                del self._expected[key]

    def version(self, key: str, stat: ObjectStat) -> _Version:
        """Return a version of *key*: the same object for all its readers."""
        version = self._versions.get((key, stat.etag))
        if version is None:
            name = str(self.client.address._replace(url=self.client.location.url_of(key)))
            version = _Version(self, key, name, stat)
            self._versions[key, stat.etag] = version
        return version

    async def find_on_disk(self, version: VersionId, span: Span) -> memoryview | None:
        """Return bytes from the start of *span*, as far as the cache has them contiguously; None if it has none."""
        if self._cache is None:
            return None
        find = partial(self._cache.find, *version, span.start, span.nbytes)
        return await trio.to_thread.run_sync(find, limiter=self._threads)

    def queue_for_disk(self, nbytes: int) -> bool:
        """Note that *nbytes* will be given to `add_to_disk`; return False if they must not: enough are waiting."""
        if self._cache is None or not nbytes or self._waiting_nbytes > _MAX_WAITING_NBYTES:
            return False
        self._waiting_nbytes += nbytes
        return True

    async def add_to_disk(self, version: VersionId, offset: int, data: Buffer) -> None:
        """Keep bytes in the cache on the local disk, once they were admitted by `queue_for_disk`."""
        if self._cache is not None:
            try:
                await trio.to_thread.run_sync(self._cache.add, *version, offset, data, limiter=self._threads)
            finally:
                self._waiting_nbytes -= len(data)

    async def drop_on_disk(self, version: VersionId, span: Span) -> None:
        """Remove the bytes of *span* from the cache on the local disk."""
        if self._cache is not None:
            await trio.to_thread.run_sync(self._cache.discard, *version, span, limiter=self._threads)

    def latest(self, key: str, stat: ObjectStat) -> _Redirect:
        """Return the latest version that is known to begin like *stat*, perhaps itself; for any thread."""
        latest = _Redirect(stat, stat.size)
        while (step := self._redirects.get((key, latest.stat.etag))) is not None:
            latest = _Redirect(step.stat, min(latest.kept_nbytes, step.kept_nbytes))
        return latest

    @contextmanager
    def changing(self, key: str) -> Iterator[None]:
        """In the block, readers that find another version of *key* wait for the end: it may be ours."""
        event = self._changing[key] = trio.Event()
        try:
            yield
        finally:
            if self._changing.get(key) is event:
                del self._changing[key]
            event.set()

    async def wait_for_changes(self, key: str) -> None:
        """Wait until nobody is `changing` *key*."""
        while key in self._changing:
            await self._changing[key].wait()

    def changed(
        self, key: str, old: ObjectStat | None, new: ObjectStat, properties: Properties, kept_nbytes: int
    ) -> None:
        """Note that our change replaced *old* by *new*, which has the same first *kept_nbytes* bytes."""
        self.heads.changed(key, new, properties)
        self.stored_again(key, new)
        if old is not None and old.etag != new.etag:
            self._redirects[key, old.etag] = _Redirect(new, kept_nbytes)
            if len(self._redirects) > _MAX_REDIRECTS:
                self._redirects.popitem(last=False)

    def stored_again(self, key: str, state: ObjectStat) -> None:
        """Note that *key* is the version *state* now, perhaps again: redirects from an earlier time end."""
        self._redirects.pop((key, state.etag), None)


class ObjectSnapshot:
    """One version of the object *key*.

    Each request depends on the ETag, so a replaced version raises `StaleError`, unless our own change replaced it, and
    the new version begins with the same bytes.
    """

    __slots__ = ("__weakref__", "_objects", "key", "object", "size", "stat", "version")

    def __init__(self, objects: Objects[Requests], key: str, state: ObjectStat) -> None:
        self._objects = objects
        self.key = key
        self.object = state
        self.stat = file_stat(key, state)
        self.size = state.size
        self.version = objects.version(key, state)

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        if not nbytes:
            return b""
        span = Span(offset, offset + nbytes)
        unit = None if extent is None else Span(extent[0], extent[0] + extent[1])
        if self.version.is_in_memory(span):
            return await self.version.read(span, unit)
        for state in self._candidates(span.stop):
            with suppress(ConflictError, NotFoundError):
                return await self._objects.version(self.key, state).read(span, unit)
            await self._objects.wait_for_changes(self.key)
        raise self._stale()

    def read_if_current(self, offset: int, nbytes: int, *, waits: bool) -> Buffer | None:
        """Return what `read` does, in any thread; None unless the bytes are in memory, and the version is current."""
        known = self._objects.heads.find(self.key)
        is_current = isinstance(known, FoundObject) and known.version.etag == self.object.etag
        return self.version.read_in_memory(Span(offset, offset + nbytes)) if is_current else None

    async def fetch(self, units: Sequence[tuple[int, int]], takes: Takes, *, are_dense: bool) -> None:
        """Begin to bring units, each an offset and a size, into memory; see `FetchingSnapshot`."""
        await self.version.fetch(spans_of(units), takes, are_dense=are_dense)

    def expecting(self, key: str, units: Sequence[tuple[int, int]], takes: Takes) -> AbstractContextManager[None]:
        """In the block, *key* will be read in order when it is opened; see `FetchingSnapshot`."""
        spans = spans_of(units)
        is_begun = SMALL_NBYTES < self.size <= WHOLE_NBYTES and are_begun(spans, self.version.nbegun)
        nbytes = WHOLE_NBYTES if is_begun and takes(self.size - total(spans)) else SMALL_NBYTES
        return self._objects.expecting(key, nbytes) if self.size <= nbytes else nullcontext()

    def content(self, offset: int, nbytes: int) -> Slice:
        """Return *nbytes* bytes from *offset*, to be read later, by one request each time."""
        return Slice(self.read_blocking, offset, nbytes)

    def expect(self, offset: int, nbytes: int) -> None:
        """Note that *nbytes* bytes from *offset* will probably be read soon, in order."""
        if nbytes:
            self.version.expect(Span(offset, offset + nbytes))

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Forget bytes that failed a check, of this version and of the one that has replaced it; return True."""
        span = Span(offset, offset + nbytes)
        for state in {self.object, self._latest(span.stop)}:
            await self._objects.version(self.key, state).drop(span)
        return True

    async def is_current(self) -> bool:
        """Whether the name still stands for this version; needs a request if that is unknown."""
        match self._objects.heads.find(self.key):
            case FoundObject(version):
                return version.etag == self.object.etag
            case Unknown():
                with suppress(NotFoundError):
                    return (await self._objects.heads.head(self.key)).etag == self.object.etag
        return False

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Return False: an object does not grow, it is replaced."""
        return False

    def read_blocking(self, offset: int, nbytes: int) -> Buffer:
        """Do what `read` does, by one request in a worker thread."""
        for state in self._candidates(offset + nbytes):
            with suppress(ConflictError, NotFoundError):
                data = self._objects.client.get_blocking(self.key, Range(offset, nbytes), etag=state.etag).data
                require_all(self.key, nbytes, data)
                return data
        raise self._stale()

    def _candidates(self, stop: int) -> Iterator[ObjectStat]:
        """Yield the version to read the bytes up to *stop* from, and after each that is gone the next one."""
        while True:
            state = self._latest(stop)
            yield state
            if self._latest(stop).etag == state.etag:
                if state.etag == self.object.etag:
                    return
                # Another host may have restored this version: then redirects from it end.
                self._objects.stored_again(self.key, self.object)

    def _latest(self, stop: int) -> ObjectStat:
        """Return the version that has the bytes up to *stop* now, as far as is known; else this one."""
        state, kept_nbytes = self._objects.latest(self.key, self.object)
        return state if stop <= kept_nbytes else self.object

    def _stale(self) -> StaleError:
        """Forget what is known of the key; return the error that no version has the bytes."""
        self._objects.heads.forget(self.key)
        return StaleError(f"{self.key} was replaced while it was open")


def require_all(key: str, nbytes: int, data: memoryview) -> None:
    """Raise `StoreError` if *data*, which has the requested ETag, is not *nbytes* long, as it was listed."""
    if data.nbytes != nbytes:
        raise StoreError(f"{key}: {nbytes} bytes came as {data.nbytes}")


def file_stat(key: str, state: ObjectStat) -> Stat:
    """Return the status of the object *key*."""
    return object_stat(Kind.FILE, state.size, (state.etag, state.size), f"file:{key}", state.mtime_ns)


def object_of(state: Stat) -> ObjectStat:
    """Return the version of an object with this *state*, of `file_stat`."""
    etag, size = cast(tuple[str, int], state.version)
    return ObjectStat(size, etag, state.mtime_ns)


def directory_stat() -> Stat:
    """Return the status of all directories of a source that is opened now."""
    return object_stat(Kind.DIRECTORY, 0, "directory", "directory", time.time_ns())
