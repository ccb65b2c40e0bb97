"""Where the chunks of an array are stored, which versions of them are known, and what is pending.

Each shard with pending changes has a `ShardQueue`, which also holds the state of its commits.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

import trio

from shardfs.dataset.statistics import Statistics
from shardfs.dataset.wal.records import Change
from shardfs.errors import ConflictError, LockedError, ShardfsError
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.sharding import Coords, Place, Segment, ShardGrid
from shardfs.stores.base import Stat, join_key
from shardfs.stores.parallel import QuickLock

_MAX_RUNS: Final = 8192


class PendingChanges:
    """The published changes of one array that are not committed yet, and the coordinates of their *shards*.

    Each change is a record of the write-ahead log, and its bytes are read from there.
    """

    def __init__(self) -> None:
        self.changes: dict[Coords, Change] = {}
        self.shards: set[Coords] = set()
        self._below: dict[Coords, Counter[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.changes)

    def children(self, prefix: Coords) -> Iterator[int]:
        """Yield the next coordinates of the shards with pending chunks whose coordinates begin with *prefix*."""
        yield from self._below.get(prefix, ())

    def add_shard(self, shard: Coords) -> None:
        """Note that *shard* has pending changes."""
        self.shards.add(shard)
        for depth, index in enumerate(shard):
            self._below.setdefault(shard[:depth], Counter())[index] += 1

    def remove_shard(self, shard: Coords) -> None:
        """Note that *shard* has no pending changes any more."""
        self.shards.discard(shard)
        for depth, index in enumerate(shard):
            counts = self._below[shard[:depth]]
            counts[index] -= 1
            if not counts[index]:
                del counts[index]
            if not counts:
                del self._below[shard[:depth]]


class OwnVersion(NamedTuple):
    """A version of a chunk that was published through this mount: its inode number and its modification time."""

    ino: int
    mtime_ns: int


@dataclass(slots=True)
class ShardVersion:
    """The version of a stored shard, on which the attributes of its chunks depend.

    *stored* is a hash of what the store said, None while there is no shard. *generation* counts the versions that
    others wrote. Our own commits change neither *generation* nor *mtime_ns*, because chunks that they do not touch stay
    the same. *own* are the chunks with an `OwnVersion`; most shards have none, and share one empty set.
    """

    stored: int | None = None
    generation: int = 0
    mtime_ns: int = 0
    own: set[Coords] | frozenset[Coords] = frozenset()


@dataclass(eq=False, weakref_slot=True, slots=True)
class ArrayLayout:
    """The shards of one array: where they are stored, and what is in them. Compared by identity.

    *versions* are the latest known versions of shards, *own* those of chunks that were published through this mount,
    *pending* the chunks among them that are not committed yet. *listing* counts the commits that created or removed a
    shard. *serial* is unique to this layout.

    *directories* is None if the directories of chunks exist throughout the grid. In an array that is being created
    through the mount, it holds those that were created, as next coordinates by prefix: its writer creates every
    directory itself, and `cp -r` fails if one exists. See `Array.has_directory`.
    """

    path: str
    grid: ShardGrid
    key_encoding: ChunkKeyEncoding
    versions: dict[Coords, ShardVersion] = field(default_factory=dict)
    own: dict[Coords, OwnVersion] = field(default_factory=dict)
    pending: PendingChanges = field(default_factory=PendingChanges)
    directories: dict[Coords, set[int]] | None = None
    listing: int = 0
    serial: int = field(default_factory=count(1).__next__)
    _run_length: int = 0
    _runs: dict[tuple[Coords, int], Segment] = field(default_factory=dict)

    def locate(self, coords: Coords) -> Place:
        """Return the place of the inner chunk at *coords*, which are within the grid; remembers the run of its row."""
        if not coords:
            return self.grid.locate(coords)
        row, last = coords[:-1], coords[-1]
        if not self._run_length:
            self._run_length = next(self.grid.row(row, range(self.grid.grid_shape[-1]))).length
        number = last // self._run_length
        found = self._runs.get((row, number))
        if found is None or not 0 <= last - found.first < found.length:  # shards may differ in length
            start = number * self._run_length
            runs = self.grid.row(row, range(start, start + self._run_length))
            found = next(run for run in runs if last < run.first + run.length)
            self._runs[row, number] = found
            if len(self._runs) > _MAX_RUNS:
                del self._runs[next(iter(self._runs))]
        first, _, stride, (shard, entries, shapes) = found
        return Place(shard, (*entries[:-1], entries[-1] + (last - first) * stride), shapes)

    def shard_key(self, coords: Coords) -> str:
        """Return the key of the shard at *coords*."""
        return join_key(self.path, self.key_encoding.encode(coords))

    def has_directory(self, coords: Coords) -> bool:
        """Whether the directory of chunks at *coords* exists, given that its parent does."""
        if self.directories is None:
            return True
        return coords[-1] in self.directories.get(coords[:-1], ()) if coords else bool(self.directories)

    def make_directory(self, coords: Coords) -> None:
        """Note that a directory of chunks exists, and those above it."""
        if self.directories is not None:
            self.directories.setdefault((), set())
            for depth, index in enumerate(coords):
                self.directories.setdefault(coords[:depth], set()).add(index)

    def remove_directory(self, coords: Coords) -> None:
        """Note that an empty directory of chunks was removed."""
        if self.directories is not None:
            self.directories.pop(coords, None)
            self.directories.get(coords[:-1], set()).discard(coords[-1] if coords else 0)


class InodeGenerations:
    """The versions of shards and chunks, on which inode numbers and modification times depend; one for all layouts.

    At most *max_own* chunks have versions of their own. Beyond that, the chunks of the shard that got its first look
    changed once. For chunk files of unsharded arrays, twice as many are remembered. *forget* is called for a shard that
    has to be looked at again.
    """

    def __init__(self, statistics: Statistics, forget: Callable[[ArrayLayout, Coords], None], *, max_own: int) -> None:
        self._statistics = statistics
        self._forget = forget
        self._changing: set[tuple[ArrayLayout, Coords]] = set()
        self._max_own = max_own
        self._nown = 0
        self._with_own: deque[tuple[ArrayLayout, Coords]] = deque()
        self._seen: deque[tuple[ReferenceType[ArrayLayout], Coords]] = deque()  # of unsharded arrays
        self._replaced: set[ArrayLayout] = set()  # kept alive: some of their shards have a generation above 0

    def of(self, layout: ArrayLayout, coords: Coords, stat: Stat) -> ShardVersion:
        """Return the version of the shard at *coords*, whose status is now *stat*."""
        stored = hash(stat.version)
        version = self._see(layout, coords)
        if version.stored == stored:
            return version
        if version.stored is None:  # seen for the first time, or chunks were published before the shard existed
            version.stored, version.mtime_ns = stored, stat.mtime_ns
        elif (layout, coords) not in self._changing:
            version.stored, version.mtime_ns = stored, stat.mtime_ns
            self._statistics.replaced_shards += 1
            self._supersede(layout, version)
        return version

    def own(self, layout: ArrayLayout, shard: Coords, coords: Coords, own: OwnVersion) -> None:
        """Record the version of the chunk at *coords* of *shard* that was published through this mount."""
        version = self._see(layout, shard)
        chunks = version.own if isinstance(version.own, set) else set()
        if not chunks:
            self._with_own.append((layout, shard))
        if coords not in chunks:
            chunks.add(coords)
            self._nown += 1
        version.own = chunks
        layout.own[coords] = own
        for _ in range(len(self._with_own)):
            if self._nown <= self._max_own:
                break
            oldest, at = self._with_own.popleft()
            if at in oldest.pending.shards or (oldest is layout and at == shard):
                self._with_own.append((oldest, at))
            elif (superseded := oldest.versions.get(at)) is not None:
                self._supersede(oldest, superseded)
                self._forget(oldest, at)

    @contextmanager
    def changing(self, layout: ArrayLayout, coords: Coords, stat: Stat | None) -> Iterator[None]:
        """In the block, changes of the shard at *coords*, whose status is now *stat*, make no new versions.

        Readers see our own commit before `committed` is called; chunks that it does not touch keep number and time.
        """
        if stat is not None:
            self.of(layout, coords, stat)
        self._changing.add((layout, coords))
        try:
            yield
        finally:
            self._changing.discard((layout, coords))
            self._forget(layout, coords)

    def committed(self, layout: ArrayLayout, coords: Coords, stat: Stat | None, *, is_new: bool) -> None:
        """Record that our own commit left the shard at *coords* with the status *stat*, None if it was removed.

        *is_new*: the shard did not exist before.
        """
        version = self._see(layout, coords)
        if stat is not None and (version.stored is None or layout.grid.is_unsharded):
            version.mtime_ns = stat.mtime_ns
        version.stored = hash(stat.version) if stat is not None else None
        if is_new or stat is None:
            layout.listing += 1
        self._forget(layout, coords)

    def _see(self, layout: ArrayLayout, coords: Coords) -> ShardVersion:
        """Return the remembered version of the shard at *coords*, or a new one, remembered from now on."""
        version = layout.versions.get(coords)
        if version is None:
            version = layout.versions[coords] = ShardVersion()
            if layout.grid.is_unsharded:
                self._seen.append((ref(layout), coords))
                for _ in range(2):  # several, because versions in use are kept and move to the end
                    if len(self._seen) > 2 * self._max_own:
                        self._forget_seen(*self._seen.popleft())
        return version

    def _forget_seen(self, reference: ReferenceType[ArrayLayout], coords: Coords) -> None:
        layout = reference()
        if layout is None:
            return
        if layout.versions[coords].own or coords in layout.pending.shards or (layout, coords) in self._changing:
            self._seen.append((reference, coords))
        else:
            del layout.versions[coords]

    def _supersede(self, layout: ArrayLayout, version: ShardVersion) -> None:
        """Make every chunk of a shard a new version, as far as attributes show."""
        version.generation += 1
        self._replaced.add(layout)
        kept = version.own & layout.pending.changes.keys()
        for coords in version.own - kept:
            layout.own.pop(coords, None)
        self._nown -= len(version.own) - len(kept)
        version.own = set(kept)


_IDLE: Final = 2.0
_SMALL_IDLE: Final = 30.0
"""Seconds without writes before a shard is committed; the second, if its payload is smaller than its index."""

_RETRY: Final = 5.0
_FIRST_BACKOFF: Final = 0.02
_LONGEST_BACKOFF: Final = 2.0
_LOCKED_BACKOFF: Final = 0.1
"""Seconds until a shard is tried again: after an error; at most, after others changed it, or while it is locked."""


class Pending(NamedTuple):
    """What is pending: number of changes, bytes, seconds since the oldest, and the error that prevents a commit."""

    nchunks: int = 0
    nbytes: int = 0
    age: float | None = None
    reason: str | None = None


class ShardQueue:
    """The pending changes of one shard, oldest first.

    *lock* is held while publishing in the shard, committing or rewriting it: a record names the index entry that it
    supersedes, which a commit changes. *since* is the time of the first change and *touched* that of the last one, in
    seconds of the event loop's clock. *error* prevents the shard from being committed. *retry_at* is when it is tried
    again, after an error or after others changed it first. *locked_since* is when another program was first found to
    hold its lock.
    """

    def __init__(self, layout: ArrayLayout, shard: Coords) -> None:
        self.layout = layout
        self.shard = shard
        self.key = layout.shard_key(shard)
        self.lock = QuickLock()
        self.changes: dict[Coords, Change] = {}
        self.payload_nbytes = 0
        self.since = self.touched = 0.0
        self.error: ShardfsError | None = None
        self.retry_at: float | None = None
        self.locked_since: float | None = None
        self._nbeaten = 0
        self.index_nbytes = layout.grid.index_nbytes(shard)

    @property
    def due_at(self) -> float:
        """When the shard is to be committed, unless something is published in it before."""
        if self.retry_at is not None:
            return self.retry_at
        return self.touched + (_IDLE if self.payload_nbytes >= self.index_nbytes else _SMALL_IDLE)

    @property
    def is_full(self) -> bool:
        """Whether all chunks of the shard are pending."""
        return len(self.changes) == self.layout.grid.nchunks_of(self.shard)

    def add(self, change: Change) -> Change | None:
        """Add *change*; return the change that it replaces."""
        if not self.changes:
            self.layout.pending.add_shard(self.shard)
            self.since = trio.current_time()
        before = self.changes.get(change.coords)
        self.changes[change.coords] = self.layout.pending.changes[change.coords] = change
        self.payload_nbytes += change.payload.nbytes - (before.payload.nbytes if before is not None else 0)
        self.touched = trio.current_time()
        return before

    def remove(self, changes: Iterable[Change]) -> None:
        """Remove *changes*, except those that were replaced by later ones."""
        was_empty = not self.changes
        pending = self.layout.pending.changes
        for change in changes:
            if self.changes.get(change.coords) is change:
                del self.changes[change.coords], pending[change.coords]
                self.payload_nbytes -= change.payload.nbytes
        self.since = self.touched  # the others came while these were committed
        if not self.changes and not was_empty:
            self.layout.pending.remove_shard(self.shard)

    def fail(self, error: ShardfsError) -> None:
        """Record the error that prevents the shard from being committed."""
        self.error, self.retry_at = error, trio.current_time() + _RETRY

    def give_way(self, error: ConflictError) -> None:
        """Leave the shard alone for a random time: whoever changed it first may have more to change."""
        now = trio.current_time()
        self._nbeaten += 1
        self.error = None  # an earlier error is not the reason
        longest = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** min(self._nbeaten, 9))
        if isinstance(error, LockedError):
            self.locked_since = now if self.locked_since is None else self.locked_since
            longest = _LOCKED_BACKOFF
        self.retry_at = now + random.uniform(0, longest)  # noqa: S311 - nothing is kept secret

    def succeed(self) -> None:
        """Record that nothing prevents a commit any more."""
        self.error = self.retry_at = self.locked_since = None
        self._nbeaten = 0


def pending_in(queues: Iterable[ShardQueue]) -> Pending:
    """Return the sums over *queues*, which may be very many."""
    nchunks, nbytes, oldest, failing, locked = 0, 0, math.inf, None, None
    for queue in queues:
        if queue.changes:
            nchunks += len(queue.changes)
            nbytes += queue.payload_nbytes
            oldest = min(oldest, queue.since)
            if queue.error is not None:
                failing = queue
            elif queue.locked_since is not None:
                locked = queue
    if not nchunks:
        return Pending()
    reason = f"{locked.key} is locked by another program" if locked is not None else None
    reason = str(failing.error) if failing is not None else reason
    return Pending(nchunks, nbytes, trio.current_time() - oldest, reason)
