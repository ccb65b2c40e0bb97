"""Where the chunks of one array lie, and which versions of them this mount has seen and made."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

from shardfs.dataset.statistics import Statistics
from shardfs.dataset.wal.records import Change
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.sharding import Coords, Place, Segment, ShardGrid
from shardfs.stores.base import Stat, join_key

_MAX_RUNS: Final = 8192


class PendingChanges:
    """The published changes of one array that are not in its shards yet, and the coordinates of these *shards*.

    Each change is a record of the write-ahead log; its bytes stay there and are read back from there.
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
    """A version of a chunk that was published through this mount: its inode number and modification time."""

    ino: int
    mtime_ns: int


@dataclass(slots=True)
class ShardVersion:
    """The version of a stored shard that its chunks' attributes are those of.

    *stored* is a hash of what the store said, None while there is no such shard; *generation* counts the versions that
    others made.  Our own commits leave *generation* and *mtime_ns* as they are: the chunks that they do not touch
    are the same.  *own* are the chunks with versions of their own; most shards have none, and share one empty set.
    """

    stored: int | None = None
    generation: int = 0
    mtime_ns: int = 0
    own: set[Coords] | frozenset[Coords] = frozenset()


@dataclass(eq=False, weakref_slot=True, slots=True)
class ArrayLayout:
    """The shards of one array: where they are stored and what lies in them.  Compared by identity.

    *versions* are the versions of shards that were seen last, *own* those of chunks that were written through this
    mount, *pending* the chunks among them that are not in their shards yet.  *listing* counts the commits that made or
    removed a shard.

    The directories above chunks are there as far as the grid goes: *directories* is None.  Of an array that was made
    through the mount only those are that were made: next coordinates by those that lead to a directory.  Who makes an
    array makes every directory, too, and `cp -r` takes it for an error if one is there.
    """

    path: str
    grid: ShardGrid
    key_encoding: ChunkKeyEncoding
    versions: dict[Coords, ShardVersion] = field(default_factory=dict)
    own: dict[Coords, OwnVersion] = field(default_factory=dict)
    pending: PendingChanges = field(default_factory=PendingChanges)
    directories: dict[Coords, set[int]] | None = None
    listing: int = 0
    _run_length: int = 0
    _runs: dict[tuple[Coords, int], Segment] = field(default_factory=dict)

    def locate(self, coords: Coords) -> Place:
        """Return where the inner chunk at *coords*, which are within the grid, lies; remembers runs of its row."""
        if not coords:
            return self.grid.locate(coords)
        row, last = coords[:-1], coords[-1]
        if not self._run_length:
            self._run_length = next(self.grid.row(row, range(self.grid.grid_shape[-1]))).length
        number = last // self._run_length
        found = self._runs.get((row, number))
        if found is None or not 0 <= last - found.first < found.length:  # shards of a grid may differ in length
            start = number * self._run_length
            runs = self.grid.row(row, range(start, start + self._run_length))
            found = next(run for run in runs if last < run.first + run.length)
            self._runs[row, number] = found
            if len(self._runs) > _MAX_RUNS:
                del self._runs[next(iter(self._runs))]
        first, _, stride, (shard, entries, shapes) = found
        return Place(shard, (*entries[:-1], entries[-1] + (last - first) * stride), shapes)

    def shard_key(self, coords: Coords) -> str:
        """Return the key in the store of the shard at *coords*."""
        return join_key(self.path, self.key_encoding.encode(coords))

    def has_directory(self, coords: Coords) -> bool:
        """Whether the directory to which *coords* lead is there, if the one above it is."""
        if self.directories is None:
            return True
        return coords[-1] in self.directories.get(coords[:-1], ()) if coords else bool(self.directories)

    def make_directory(self, coords: Coords) -> None:
        """Note that a directory, and those above it, are there."""
        if self.directories is not None:
            self.directories.setdefault((), set())
            for depth, index in enumerate(coords):
                self.directories.setdefault(coords[:depth], set()).add(index)

    def remove_directory(self, coords: Coords) -> None:
        """Note that an empty directory is there no more."""
        if self.directories is not None:
            self.directories.pop(coords, None)
            self.directories.get(coords[:-1], set()).discard(coords[-1] if coords else 0)


class InodeGenerations:
    """The versions of shards and chunks that inode numbers and modification times hang on; each layout has its own.

    Up to *max_own* chunks have versions of their own; then the chunks of the shard that got its first look changed
    once.  Of chunk files of unsharded arrays twice as many are remembered.  *forget* is called for a shard that has to
    be looked at again.
    """

    def __init__(self, statistics: Statistics, forget: Callable[[ArrayLayout, Coords], None], *, max_own: int) -> None:
        self._statistics = statistics
        self._forget = forget
        self._changing: set[tuple[ArrayLayout, Coords]] = set()
        self._max_own = max_own
        self._nown = 0
        self._with_own: deque[tuple[ArrayLayout, Coords]] = deque()
        self._seen: deque[tuple[ReferenceType[ArrayLayout], Coords]] = deque()  # of unsharded arrays
        self._replaced: set[ArrayLayout] = set()  # kept, since some of their shards have another generation than 0

    def of(self, layout: ArrayLayout, coords: Coords, stat: Stat) -> ShardVersion:
        """Return the version of the shard at *coords*, which is in the state *stat* now."""
        stored = hash(stat.version)
        version = self._see(layout, coords)
        if version.stored == stored:
            return version
        if version.stored is None:  # seen for the first time, or chunks were published before there was a shard
            version.stored, version.mtime_ns = stored, stat.mtime_ns
        elif (layout, coords) not in self._changing:
            version.stored, version.mtime_ns = stored, stat.mtime_ns
            self._statistics.replaced_shards += 1
            self._supersede(layout, version)
        return version

    def own(self, layout: ArrayLayout, shard: Coords, coords: Coords, own: OwnVersion) -> None:
        """Note the version of the chunk at *coords* of *shard* that was published through this mount."""
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
        """Commit in the block: changes of the shard at *coords*, now in the state *stat*, make no new versions.

        Readers see a commit of our own before it is `committed`; chunks that it does not touch keep number and time.
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
        """Note that a commit of our own left the shard at *coords* in the state *stat*, None if it is gone.

        *is_new* says that there was no such shard before.
        """
        version = self._see(layout, coords)
        if stat is not None and (version.stored is None or layout.grid.is_unsharded):
            version.mtime_ns = stat.mtime_ns
        version.stored = hash(stat.version) if stat is not None else None
        if is_new or stat is None:
            layout.listing += 1
        self._forget(layout, coords)

    def _see(self, layout: ArrayLayout, coords: Coords) -> ShardVersion:
        """Return what is remembered of the version of the shard at *coords*, from now on if nothing was."""
        version = layout.versions.get(coords)
        if version is None:
            version = layout.versions[coords] = ShardVersion()
            if layout.grid.is_unsharded:
                self._seen.append((ref(layout), coords))
                for _ in range(2):  # more than comes in, as what is in use goes round
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
        """Make every chunk of a shard a new version, as far as attributes go."""
        version.generation += 1
        self._replaced.add(layout)
        kept = version.own & layout.pending.changes.keys()
        for coords in version.own - kept:
            layout.own.pop(coords, None)
        self._nown -= len(version.own) - len(kept)
        version.own = set(kept)
