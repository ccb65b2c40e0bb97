"""Open shards and their indexes, cached by bytes, each fetched once however many ask for it."""

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import trio

from shardfs.dataset.inode_generations import InodeGenerations
from shardfs.dataset.open_shard import OpenShard, index_place, open_inner_shard, open_shard
from shardfs.dataset.queue import ArrayPending, OwnVersion, ShardVersion
from shardfs.dataset.statistics import Statistics
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    StaleError,
)
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.sharding import Coords, Place, ShardGrid
from shardfs.stores.base import Snapshot, Stat, Store, join_key
from shardfs.stores.ttl import derived_at, within_ttl

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 4
_LARGE_AT_ONCE: Final = 2


@dataclass(eq=False)
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
    pending: ArrayPending = field(default_factory=ArrayPending)
    directories: dict[Coords, set[int]] | None = None
    listing: int = 0
    _located: tuple[Coords | None, Place] = (None, Place((), (), ()))

    def locate(self, coords: Coords) -> Place:
        """Return where the inner chunk at *coords* lies: requests ask for one and the same several times."""
        if self._located[0] != coords:
            self._located = coords, self.grid.locate(coords)
        return self._located[1]

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

    def shard_key(self, coords: Coords) -> str:
        """Return the key in the store of the shard at *coords*."""
        return join_key(self.path, self.key_encoding.encode(coords))


@dataclass(slots=True, eq=False, weakref_slot=True)
class ShardState:
    """What is known of the name of one shard: *shard* is open, or *error* says why not, or it is absent.

    *stored_key* is the key of the outermost shard; *generation* counts the versions that were seen under the name;
    *checked* is when the store was asked last.  *stat* is the state of the file; None if there is none or it could not
    be opened.
    """

    key: "_Key"
    checked: float
    generation: int = 0
    stored_key: str = ""
    snapshot: Snapshot | None = None
    stat: Stat | None = None
    shard: OpenShard | None = None
    error: ShardfsError | None = None

    @property
    def memory(self) -> int:
        """Bytes of memory that the state holds."""
        return self.shard.memory if self.shard else 0

    def check(self) -> None:
        """Raise the error that keeps the shard from being read, if there is one."""
        if self.error is not None:
            raise self.error.with_traceback(None)


_Key = tuple[ArrayLayout, Coords, tuple[int, ...]]  # of an inner shard: with the entries that lead to it


class ShardCache:
    """The open shards of all arrays of a source; those used last stay, up to *max_nbytes* and *max_open*.

    What is known is trusted for *ttl* seconds, unless a caller wants it fresh.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl: float,
        statistics: Statistics,
        clock: Callable[[], float] = time.monotonic,
        max_nbytes: int = 64 * 2**20,
        max_open: int = 512,
        max_own: int = 100_000,
    ) -> None:
        self.store = store
        self._statistics = statistics
        self.ttl = ttl
        self.clock = clock
        self._max_nbytes = max_nbytes
        self._max_open = max_open
        self._nbytes = 0
        self._states: OrderedDict[_Key, ShardState] = OrderedDict()
        self._loading: dict[_Key, trio.Event] = {}
        self._outdated: set[_Key] = set()
        self._large = trio.CapacityLimiter(_LARGE_AT_ONCE)
        self._versions = InodeGenerations(statistics, max_own=max_own)

    def remaining(self, state: ShardState) -> float:
        """Return for how many seconds *state* may be trusted still."""
        return max(0.0, state.checked + self.ttl - self.clock())

    async def state(self, array: ArrayLayout, coords: Coords, *, fresh: bool = False) -> ShardState:
        """Return what is known of the shard at *coords*; *fresh* asks the store whether it is still so."""
        key: _Key = (array, coords, ())
        while True:
            state = self._states.get(key)
            if state is not None and await self.confirm(state, fresh=fresh):
                return state
            if key not in self._loading:
                return await self._once(key, lambda: self._load(key))
            await self._loading[key].wait()  # what another one loaded is confirmed like anything else

    def touch(self, state: ShardState) -> None:
        """Note that *state* was used."""
        if self._states.get(state.key) is state:
            self._states.move_to_end(state.key)

    async def confirm(self, state: ShardState, *, fresh: bool) -> bool:
        """Return whether *state* may be trusted; *fresh* asks the store."""
        if self._states.get(state.key) is not state:
            return False
        now = self.clock()
        is_recent = within_ttl(state.checked, now, self.ttl)
        if fresh or not is_recent or state.error is not None:
            if state.snapshot is None and state.error is None:
                is_current = await self.store.is_absent(state.stored_key)
            elif state.snapshot is None or not (state.error is None or isinstance(state.error, CorruptionError)):
                return False  # what failed in passing is tried again
            else:
                is_current = await state.snapshot.is_current()
            if not is_current or self._states.get(state.key) is not state:
                return False
            if not self.store.rewrites or not is_recent:  # else it is only what the store believes
                state.checked = derived_at(now)
        self.touch(state)
        self._statistics.index_hits += 1
        return True

    async def innermost(self, array: ArrayLayout, state: ShardState, place: Place) -> ShardState:
        """Return what is known of the innermost shard around *place*: *state* itself, or a shard within its shard.

        Raises `CorruptionError` if a shard between them is damaged.
        """
        inner = state
        for depth in range(1, len(array.grid.levels)):
            if inner.shard is None:
                break
            inner = await self._inner(array, state, place, depth, inner.shard)
        return inner

    async def _inner(
        self, array: ArrayLayout, state: ShardState, place: Place, depth: int, outer: OpenShard
    ) -> ShardState:
        key: _Key = (array, place.shard, place.entries[:depth])

        async def load() -> ShardState:
            level = array.grid.levels[depth]
            shard = await open_inner_shard(level, place.shapes[depth], outer, place.entries[depth - 1])
            self._count_load(shard)
            return ShardState(key, state.checked, snapshot=state.snapshot, shard=shard)

        while True:
            known = self._states.get(key)
            if known is not None and known.snapshot is state.snapshot:
                self.touch(known)
                return known
            if key not in self._loading:
                return await self._once(key, load)
            await self._loading[key].wait()

    async def _once(self, key: _Key, load: Callable[[], Awaitable[ShardState]]) -> ShardState:
        """Load and remember a state, which no other task is loading; those that want it too wait for the event."""
        event = self._loading[key] = trio.Event()
        try:
            while True:
                state = await load()
                if key not in self._outdated:
                    break
                self._outdated.discard(key)  # a commit came in between
            self._remember(state)
            return state
        finally:
            self._outdated.discard(key)
            del self._loading[key]
            event.set()

    async def _load(self, state_key: _Key) -> ShardState:
        array, coords, _ = state_key
        key = array.shard_key(coords)
        state = ShardState(state_key, derived_at(self.clock()), stored_key=key)
        shape = array.grid.index_shape(coords)
        for attempt in range(_ATTEMPTS):
            try:
                state.snapshot = await self.store.open(key, **index_place(array.grid.levels[0], shape))
                state.stat = state.snapshot.stat._replace(nlink=1)  # links of a shard are none of its chunks
                async with self._large if array.grid.is_large(shape) else nullcontext():
                    state.shard = await open_shard(array.grid.levels[0], shape, state.snapshot)
                self._count_load(state.shard)
            except NotFoundError:
                state.snapshot = state.stat = None
            except StaleError as error:  # another program is writing it at this moment
                if attempt + 1 < _ATTEMPTS:
                    continue
                state.error = error
            except IsADirectoryHereError:
                what = "chunk" if array.grid.is_unsharded else "shard"
                state.error = CorruptionError(f"{key} is a directory where a {what} should be")
            except NotADirectoryHereError:
                state.error = CorruptionError(f"{key} lies below a file where a directory should be")
            except ShardfsError as error:
                state.error = error if str(error).startswith(key) else type(error)(f"{key}: {error}")
            break
        if state.error:
            is_damaged = isinstance(state.error, CorruptionError) and state.snapshot is not None
            hint = "; `shardfs recover` tells whether it can be repaired" if is_damaged else ""
            log.error("unreadable shard: %s%s", state.error, hint)
        if state.stat is not None:
            version = self._versions.of(array, coords, state.stat)
            state.generation = version.generation
            state.stat = state.stat._replace(mtime_ns=version.mtime_ns)
        return state

    def own(self, array: ArrayLayout, shard: Coords, coords: Coords, own: OwnVersion) -> None:
        """Note the version of the chunk at *coords* of *shard* that was published through this mount."""
        for oldest, at in self._versions.own(array, shard, coords, own):
            self.forget(oldest, at)

    @contextmanager
    def changing(self, array: ArrayLayout, coords: Coords, stat: Stat | None) -> Iterator[None]:
        """Take what the shard at *coords* becomes, as long as the block lasts, for the version *stat* that it was.

        A commit of our own shows to others before it is `committed`, and makes no other version of the chunks that it
        does not touch.
        """
        with self._versions.changing(array, coords, stat):
            try:
                yield
            finally:
                self.forget(array, coords)

    def committed(self, array: ArrayLayout, coords: Coords, stat: Stat | None, *, is_new: bool) -> None:
        """Note that a commit of our own left the shard at *coords* in the state *stat*, None if it is gone.

        *is_new* says that there was no such shard before.
        """
        self._versions.committed(array, coords, stat)
        if is_new or stat is None:
            array.listing += 1
        self.forget(array, coords)

    def listed(self, array: ArrayLayout, coords: Coords, stat: Stat | None) -> ShardState:
        """Return what a listing knows of a chunk file of an unsharded array: *stat*, None if there is no such file.

        It was not opened, and the state is not remembered.
        """
        generation = 0
        if stat is not None:
            stat = stat._replace(nlink=1)
            if coords in array.versions:
                version = self._versions.of(array, coords, stat)
                generation, stat = version.generation, stat._replace(mtime_ns=version.mtime_ns)
        return ShardState((array, coords, ()), derived_at(self.clock()), generation, array.shard_key(coords), stat=stat)

    def forget(self, array: ArrayLayout, coords: Coords) -> None:
        """Look at the shard at *coords* again when it is wanted next."""
        key: _Key = (array, coords, ())
        if key in self._loading:
            self._outdated.add(key)
        state = self._states.pop(key, None)
        if state is not None:
            self._nbytes -= state.memory

    def _count_load(self, shard: OpenShard | None) -> None:
        if shard is not None:
            self._statistics.index_loads += 1
            self._statistics.whole_shard_decodes += shard.is_decoded and shard.outermost is None
            self._statistics.index_bytes += len(shard.index.encoded)

    def _remember(self, state: ShardState) -> None:
        before = self._states.pop(state.key, None)
        self._nbytes += state.memory - (before.memory if before else 0)
        self._states[state.key] = state
        while len(self._states) > 1 and (self._nbytes > self._max_nbytes or len(self._states) > self._max_open):
            _, evicted = self._states.popitem(last=False)
            self._nbytes -= evicted.memory
