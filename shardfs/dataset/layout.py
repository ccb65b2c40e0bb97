"""Where the chunks of an array are stored, which versions of them are known, and what is pending.

Each shard with pending changes has a `ShardQueue`, which also holds the state of its commits.
"""

import math
import os
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Final, NamedTuple
from weakref import WeakSet, WeakValueDictionary

import trio

from shardfs.dataset.journal.records import ChunkChange
from shardfs.dataset.path_table import is_below
from shardfs.dataset.statistics import Statistics
from shardfs.errors import ConflictError, LockedError, ShardfsError, StaleError, counted, first_of
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.sharding import ChunkLocation, ChunkRun, Coords, ShardGrid
from shardfs.stores.base import Stat, join_key
from shardfs.stores.parallel import QuickLock

_MAX_RUNS: Final = 16384
_MAX_NAMED: Final = 3  # arrays
_TRIES: Final = 16  # shards that may be forgotten when one more is remembered
_MAX_RETIRED: Final = 32  # layouts whose shards are forgotten together, because that takes a look at all


_RUNS: Final[dict[tuple[int, Coords, int], ChunkRun]] = {}
"""The runs that were located last, of all layouts together: by serial number, row, and number within the row."""
_remembering = Lock()  # threads of one process may each have a source open


def _unlock_in_child() -> None:
    """Release in a forked process what a thread of the other one had locked."""
    global _remembering
    _remembering = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


class PendingShards:
    """The shards of one array with published changes that are not committed yet, by their coordinates.

    Each change is a record of the journal, and its bytes are read from there. All *layouts* of an array share
    them: another program may change its shape while they are pending, or being committed. *listing* counts the commits
    after which a listing may name other shards.
    """

    def __init__(self) -> None:
        self.layouts: WeakSet[ArrayLayout] = WeakSet()
        self.listing = 0
        self._queues: dict[Coords, ShardQueue] = {}
        self._below: dict[Coords, Counter[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def changes(self, shard: Coords) -> Mapping[Coords, ChunkChange]:
        """Return the pending changes of a shard."""
        queue = self._queues.get(shard)
        return queue.changes if queue is not None else {}

    def children(self, prefix: Coords) -> Iterator[int]:
        """Yield the next coordinates of the shards with pending chunks whose coordinates begin with *prefix*."""
        yield from self._below.get(prefix, ())

    def add(self, queue: "ShardQueue") -> None:
        """Note that a shard has pending changes."""
        self._queues[queue.shard] = queue
        for depth, index in enumerate(queue.shard):
            self._below.setdefault(queue.shard[:depth], Counter())[index] += 1

    def remove(self, shard: Coords) -> None:
        """Note that *shard* has no pending changes any more."""
        del self._queues[shard]
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

    *stored* is a hash of what the store said, None while there is no shard. *generation* grows with the versions that
    others wrote. Our own commits change neither *generation* nor *mtime_ns*, because chunks that they do not touch stay
    the same. *own* are the versions of chunks that were published through this mount. If the shard has a history,
    *layout* is set, which keeps it alive. *begins_with_chunk*: `GroupCommit` has seen that no foreign data precede.
    *is_ours*: our own commit made this version, or one before it that others have not changed. *commit* is the number
    of our last commit.
    """

    generation: int
    stored: int | None = None
    mtime_ns: int = 0
    own: dict[Coords, OwnVersion] = field(default_factory=dict)
    layout: "ArrayLayout | None" = None
    begins_with_chunk: bool = False
    is_ours: bool = False
    commit: int = 0

    def saw_beginning(self, *, is_chunk: bool) -> None:
        """Note whether its first bytes are those of a chunk, or of an index, now."""
        self.begins_with_chunk |= is_chunk


@dataclass(eq=False, weakref_slot=True, slots=True)
class ArrayLayout:
    """The shards of one array: where they are stored, and what is in them. Compared by identity.

    *version* is set if the file that describes the array is its one shard, too: the version of it that *grid* is of.
    *is_outdated*: another one was found in its place, of which the grid says nothing. *pending* are the shards with
    changes that are not committed yet. *serial* is unique to this layout. *first* is the generation of its shards that
    are not remembered; `InodeGenerations` sets it.
    """

    path: str
    grid: ShardGrid
    key_encoding: ChunkKeyEncoding
    version: Hashable = None
    is_outdated: bool = False
    pending: PendingShards = field(default_factory=PendingShards)
    serial: int = field(default_factory=count(1).__next__)
    first: int = 0
    _run_length: int = 0

    def __post_init__(self) -> None:
        self.pending.layouts.add(self)

    def locate(self, coords: Coords) -> ChunkLocation:
        """Return the location of the inner chunk at *coords*, within the grid; remembers the run of its row."""
        if not coords:
            return self.grid.locate(coords)
        row, last = coords[:-1], coords[-1]
        if not self._run_length:
            self._run_length = next(self.grid.row(row, range(self.grid.grid_shape[-1]))).length
        number = last // self._run_length
        key = self.serial, row, number
        run = _RUNS.get(key)
        if run is None or not 0 <= last - run.first < run.length:  # shards may differ in length
            start = number * self._run_length
            parts = self.grid.row(row, range(start, start + self._run_length))
            run = next(part for part in parts if last < part.first + part.length)
            with _remembering:
                _RUNS[key] = run
                if len(_RUNS) > _MAX_RUNS:
                    del _RUNS[next(iter(_RUNS))]
        first, _, stride, (shard, entries, shapes) = run
        return ChunkLocation(shard, (*entries[:-1], entries[-1] + (last - first) * stride), shapes)

    def expect(self, shard: Stat) -> None:
        """Raise `StaleError` if *shard*, which was opened, is another version than `grid` is of."""
        self.is_outdated = self.version not in (None, shard.version)
        if self.is_outdated:
            raise StaleError(f"the file at {self.path or 'the source'} was replaced since its header was read")

    def shard_key(self, coords: Coords) -> str:
        """Return the key of the shard at *coords*."""
        return join_key(self.path, self.key_encoding.encode(coords))


def _forget_runs(serials: Collection[int]) -> None:
    """Forget the runs that were located in the layouts with these *serials*."""
    with _remembering:
        for key in [key for key in _RUNS if key[0] in serials]:
            del _RUNS[key]


class Layouts:
    """The layouts of the arrays of a source, for all its views: so they agree on what our own commits are.

    A layout is kept as long as it is in use or has history, as inode numbers depend on it. *retire* is called with
    those that no array has any more.
    """

    def __init__(self, retire: Callable[[Collection[ArrayLayout]], None]) -> None:
        self._retire = retire
        self._layouts: WeakValueDictionary[str, ArrayLayout] = WeakValueDictionary()
        self._pending: WeakValueDictionary[tuple[str, ChunkKeyEncoding, int], PendingShards] = WeakValueDictionary()

    def of(self, path: str, grid: ShardGrid, encoding: ChunkKeyEncoding, version: Hashable = None) -> ArrayLayout:
        """Return the layout of the array at *path*, that of an earlier document if the chunks are where they were.

        What is pending passes from each layout to the next.
        """
        layout = self._layouts.get(path)
        if layout is None or (layout.grid, layout.key_encoding, layout.version) != (grid, encoding, version):
            if layout is not None:
                self._retire([layout])
            pending = self._pending.setdefault((path, encoding, grid.ndim), PendingShards())
            layout = self._layouts[path] = ArrayLayout(path, grid, encoding, version, pending=pending)
        return layout

    def takes(self, layout: ArrayLayout, coords: Coords) -> bool:
        """Whether what is published by *layout* as the chunk at *coords* is in the array as it was seen last."""
        latest = self._layouts.get(layout.path)
        return latest is None or (latest.pending is layout.pending and latest.grid.contains(coords))

    def replaced(self, layout: ArrayLayout) -> None:
        """Retire *layout* if its array has another one by now."""
        if self._layouts.get(layout.path) is not layout:
            self._retire([layout])

    def end_below(self, directory: str) -> None:
        """End the layouts of the arrays at *directory* and below."""
        gone = [layout for path, layout in self._layouts.items() if is_below(path, directory)]
        for layout in gone:
            self._layouts.pop(layout.path, None)
        if gone:
            self._retire(gone)


class InodeGenerations:
    """The versions of shards and chunks, on which inode numbers and modification times depend; one for all layouts.

    At most *max_own* chunks have versions of their own, and twice as many shards are remembered. Beyond that, the shard
    that was not looked at for longest is forgotten; if it had a history, its chunks look changed once. *forget* is
    called for a shard that has to be looked at again.
    """

    def __init__(self, statistics: Statistics, forget: Callable[[ArrayLayout, Coords], None], *, max_own: int) -> None:
        self.ncommits = 0
        self._statistics = statistics
        self._forget = forget
        self._max_own = max_own
        self._nown = 0
        self._first = 0  # the generation of a shard that is not remembered: no chunk has had a number of it
        self._versions: OrderedDict[tuple[int, Coords], ShardVersion] = OrderedDict()  # by the serial of the layout
        self._changing: set[tuple[int, Coords]] = set()
        self._retired: dict[int, ArrayLayout] = {}  # those whose shards are to be forgotten
        self._nkept = 0  # how many of them were being changed when that was last tried

    def of(self, layout: ArrayLayout, coords: Coords, stat: Stat, *, is_listed: bool = False) -> ShardVersion:
        """Return the version of the shard at *coords*, whose status is now *stat*.

        One that is just *is_listed* is not remembered: there may be millions.
        """
        stored = hash(stat.version)
        version = self.known(layout, coords) if is_listed else self._see(layout, coords)
        if version.stored == stored:
            return version
        if version.stored is None:  # none was seen yet, or our own commit removed the one before
            version.stored, version.mtime_ns = stored, stat.mtime_ns
        elif (layout.serial, coords) not in self._changing:
            version.stored, version.mtime_ns = stored, stat.mtime_ns
            self._statistics.replaced_shards += 1
            pending = layout.pending.changes(coords)
            self._supersede(version, {chunk: own for chunk, own in version.own.items() if chunk in pending})
            version.layout = layout
        return version

    def known(self, layout: ArrayLayout, coords: Coords) -> ShardVersion:
        """Return what is remembered of the shard at *coords*."""
        return self._versions.get((layout.serial, coords)) or self._unknown(layout)

    def own(self, layout: ArrayLayout, coords: Coords, own: OwnVersion) -> None:
        """Record the version of the chunk at *coords* that was published through this mount."""
        version = self._see(layout, layout.locate(coords).shard)
        self._nown += coords not in version.own
        version.own[coords] = own
        version.layout = layout

    @contextmanager
    def changing(self, layout: ArrayLayout, coords: Coords, stat: Stat | None) -> Iterator[None]:
        """In the block, changes of the shard at *coords*, whose status is now *stat*, make no new versions.

        Readers see our own commit before `committed` is called; chunks that it does not touch keep number and time.
        """
        if stat is not None:
            self.of(layout, coords, stat)
        self._changing.add((layout.serial, coords))
        try:
            yield
        finally:
            self._changing.discard((layout.serial, coords))
            self._forget(layout, coords)

    def committed(self, layout: ArrayLayout, coords: Coords, stat: Stat | None) -> None:
        """Record that our own commit left the shard at *coords* with the status *stat*, None if it was removed."""
        version = self._see(layout, coords)
        if stat is not None and (version.stored is None or layout.grid.is_unsharded):
            version.mtime_ns = stat.mtime_ns
        if stat is None:
            self._supersede(version, {})  # what may be there later is nothing that was published before
        version.stored = hash(stat.version) if stat is not None else None
        if not version.is_ours:  # else it is in every listing since our last commit
            layout.pending.listing += 1
        version.is_ours = stat is not None
        self.ncommits += 1
        version.commit = self.ncommits
        self._forget(layout, coords)

    def has_committed(self, layout: ArrayLayout, coords: Coords, since: int) -> bool:
        """Whether our own commit has changed the shard at *coords* since *ncommits* was so large.

        What somebody has seen of it before says nothing of its present version.
        """
        return self.ncommits != since and self.known(layout, coords).commit > since

    def retire(self, layouts: Iterable[ArrayLayout]) -> None:
        """Forget in time the runs and shards of layouts that no array has any more. What is pending is in the next one.

        Programs may still ask by numbers that depend on them: no later version gets one of these.
        """
        self._retired.update((layout.serial, layout) for layout in layouts)
        if len(self._retired) < self._nkept + _MAX_RETIRED:
            return
        kept: dict[int, ArrayLayout] = {}
        for key in [key for key in self._versions if key[0] in self._retired]:
            layout = self._retired[key[0]]
            if key in self._changing:
                kept[layout.serial] = layout  # until the next time
            else:
                version = self._versions.pop(key)
                self._nown -= len(version.own)
                layout.first = max(layout.first, version.generation + 1)
        _forget_runs(self._retired)
        self._retired, self._nkept = kept, len(kept)

    def _unknown(self, layout: ArrayLayout) -> ShardVersion:
        return ShardVersion(max(self._first, layout.first))

    def _see(self, layout: ArrayLayout, coords: Coords) -> ShardVersion:
        """Return the remembered version of the shard at *coords*, or a new one, remembered from now on."""
        key = layout.serial, coords
        version = self._versions.get(key)
        if version is None:
            version = self._versions[key] = self._unknown(layout)
        self._versions.move_to_end(key)
        for _ in range(_TRIES):
            is_room = self._nown <= self._max_own and len(self._versions) <= 2 * self._max_own
            if is_room or next(iter(self._versions)) == key:
                break
            self._forget_oldest()
        return version

    def _forget_oldest(self) -> None:
        """Forget the shard that was not looked at for longest, unless changes of it are pending."""
        key, version = self._versions.popitem(last=False)
        layout, coords = version.layout, key[1]
        if key in self._changing or (layout is not None and layout.pending.changes(coords)):
            self._versions[key] = version
        elif layout is not None:
            self._first = max(self._first, version.generation + 1)
            self._nown -= len(version.own)
            self._forget(layout, coords)

    def _supersede(self, version: ShardVersion, kept: dict[Coords, OwnVersion]) -> None:
        """Make every chunk of a shard a new version, as far as attributes show, but for those that are *kept*."""
        self._nown -= len(version.own) - len(kept)
        version.generation += 1
        version.begins_with_chunk = version.is_ours = False
        version.own = kept


_IDLE: Final = 2.0
_SMALL_IDLE: Final = 30.0
"""Seconds without writes before a shard is committed; the second, if its payload is smaller than its index."""

_RETRY: Final = 5.0
_FIRST_BACKOFF: Final = 0.02
_LONGEST_BACKOFF: Final = 2.0
_FIRST_LOCKED, _LONGEST_LOCKED = 0.005, 0.1  # of two that commit the same shards, one waits for the other
"""Seconds until a shard is tried again: after an error; at most, after others changed it, or while it is locked."""


class Pending(NamedTuple):
    """What is pending: number of changes, bytes, seconds since the oldest, and the error that prevents a commit."""

    nchunks: int = 0
    nbytes: int = 0
    age: float | None = None
    reason: str | None = None


class Aside:
    """The changes that were put into the conflict journal, by array, since whoever publishes them was told.

    *count* is how many there ever were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._untold: Counter[str] = Counter()

    def add(self, path: str, nchanges: int) -> None:
        """Note that so many changes of the array at *path* were put aside."""
        self.count += nchanges
        self._untold[path] += nchanges

    def check(self, below: str = "") -> None:
        """Raise `ConflictError` if there are any at and below a path."""
        untold = {path: nchanges for path, nchanges in self._untold.items() if is_below(path, below)}
        if untold:
            what = counted(sum(untold.values()), "chunk")
            where = first_of([path or "(root)" for path in untold], _MAX_NAMED)
            raise ConflictError(
                f"another program has changed the array; `shardfs recover` shows {what} of it, put aside: {where}"
            )

    def told(self) -> None:
        """Note that whoever publishes them was told of all."""
        self._untold.clear()


class ShardQueue:
    """The pending changes of one shard, oldest first, and how their commit stands.

    | the shard | *error* | *retry_at* | *locked_since* | begins with |
    |---|---|---|---|---|
    | waits until nothing is published in it | | | | the first change, `succeed` |
    | was changed by others first | | soon | | `give_way` |
    | is locked by another program | | soon | when that was seen first | `give_way`, `LockedError` |
    | cannot be committed | why | in 5 s | as before | `fail` |

    Each of the last three may follow each other. `got_lock` forgets *locked_since*, and so does `be_patient` once it
    was given up to wait for the lock. All times are in seconds of the event loop's clock: *since* is that of the first
    change, *touched* that of the last one. *ahead_at* is set if a chunk reaches beyond the shape that the array had
    before: native readers see the new shape already, so the shard is due at once, but not before that time.

    *layout* is one of its array, not always the current one. *lock* is held while publishing in the shard, committing
    or rewriting it: a record names the version that it supersedes, which a commit changes.
    """

    def __init__(self, layout: ArrayLayout, shard: Coords, key: str) -> None:
        self.key = key
        self.lock = QuickLock()
        self.changes: dict[Coords, ChunkChange] = {}
        self.payload_nbytes = 0
        self.since = self.touched = 0.0
        self.error: ShardfsError | None = None
        self.retry_at: float | None = None
        self.locked_since: float | None = None
        self.ahead_at: float | None = None
        self._nbeaten = 0
        self.begin(layout, shard)

    def begin(self, layout: ArrayLayout, shard: Coords) -> None:
        """Be of *layout* from now on: a queue without changes may be of an array that was at the path before."""
        self.layout, self.shard = layout, shard
        self.index_nbytes = layout.grid.index_nbytes(shard)

    def is_of(self, layout: ArrayLayout) -> bool:
        """Whether the readers of *layout* see its changes."""
        return self.layout.pending is layout.pending

    @property
    def due_at(self) -> float:
        """When the shard is to be committed, unless something is published in it before."""
        if self.retry_at is not None:
            return self.retry_at
        if self.ahead_at is not None:
            return max(self.touched, self.ahead_at)
        return self.touched + (_IDLE if self.payload_nbytes >= self.index_nbytes else _SMALL_IDLE)

    @property
    def is_full(self) -> bool:
        """Whether all chunks of the shard are pending."""
        return len(self.changes) == self.layout.grid.nchunks_of(self.shard)

    def has_any(self, changes: Iterable[ChunkChange]) -> bool:
        """Whether one of *changes* is still pending."""
        return any(self.changes.get(change.coords) is change for change in changes)

    def add(self, change: ChunkChange) -> ChunkChange | None:
        """Add *change*; return the change that it replaces."""
        if not self.changes:
            self.layout.pending.add(self)
            self.since = trio.current_time()
        before = self.changes.get(change.coords)
        self.changes[change.coords] = change
        self.payload_nbytes += change.payload.nbytes - (before.payload.nbytes if before is not None else 0)
        self.touched = trio.current_time()
        return before

    def remove(self, changes: Iterable[ChunkChange]) -> None:
        """Remove *changes*, except those that were replaced by later ones."""
        was_empty = not self.changes
        for change in changes:
            if self.changes.get(change.coords) is change:
                del self.changes[change.coords]
                self.payload_nbytes -= change.payload.nbytes
        self.since = self.touched  # the others came while these were committed
        if not self.changes and not was_empty:
            self.ahead_at = None
            self.layout.pending.remove(self.shard)

    def fail(self, error: ShardfsError) -> None:
        """Record the error that prevents the shard from being committed."""
        self.error, self.retry_at = error, trio.current_time() + _RETRY

    def hurry(self, at: float) -> None:
        """Let the shard be due at once, but not before the time *at*."""
        self.ahead_at = at

    def be_patient(self) -> None:
        """Begin to wait anew for another program that holds its lock, if that was given up.

        Who waits already gets its error when that was to come, however many others begin to wait.
        """
        if self.error is not None:
            self.locked_since = None

    def got_lock(self) -> None:
        """Note that no other program holds its lock."""
        self.locked_since = None

    def give_way(self, error: ShardfsError) -> None:
        """Leave the shard alone for a random time: whoever changed it first may have more to change."""
        now = trio.current_time()
        self._nbeaten += 1
        self.error = None  # an earlier error is not the reason
        first, longest = _FIRST_BACKOFF, _LONGEST_BACKOFF
        if isinstance(error, LockedError):
            self.locked_since = now if self.locked_since is None else self.locked_since
            first, longest = _FIRST_LOCKED, _LONGEST_LOCKED
        longest = min(longest, first * 2 ** min(self._nbeaten, 9))
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
