"""Open shards and their indexes: cached, and fetched once for all who want them."""

import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from shardfs.dataset.ahead import ReadAhead
from shardfs.dataset.journal.records import ShardMark, hash_of
from shardfs.dataset.layout import ArrayLayout, InodeGenerations, Layouts, ShardVersion
from shardfs.dataset.shard import THREAD_NBYTES, DecodedBytes, OpenShard, index_location, open_inner_shard, open_shard
from shardfs.dataset.statistics import Statistics
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    StaleError,
)
from shardfs.format.fence import fenced
from shardfs.format.sharding import ChunkLocation, Coords
from shardfs.stores.base import Reader, Snapshot, Stat, Store
from shardfs.stores.cache import Cache, while_it_changes
from shardfs.stores.direct import DirectReader
from shardfs.stores.ttl import derived_at, within_ttl

log = logging.getLogger(__name__)

_DAMAGE_SECONDS: Final = 5.0
"""How long a shard of a remote store is called damaged without fetching it again."""

_Key = tuple[ArrayLayout, Coords, tuple[int, ...]]  # the entries lead to an inner shard; none if it is not one


@dataclass(slots=True, eq=False, weakref_slot=True)
class ShardState:
    """What is known about one shard: the open *shard*, or the *error* why it cannot be opened.

    With neither, there is no shard. *stored_key* is the key of the file, and *generation* counts the versions that were
    seen under it. *checked* is when the store was last asked. *stat* is the status of the file, None if there is none
    or it could not be opened. The state of an inner shard has just *shard*, None if there is none, and the *snapshot*
    that it is in, or the *error* that says how it is damaged.
    """

    checked: float
    generation: int = 0
    stored_key: str = ""
    snapshot: Snapshot | None = None
    stat: Stat | None = None
    shard: OpenShard | None = None
    error: ShardfsError | None = None
    _mark: ShardMark | None = None

    async def mark(self) -> ShardMark:
        """Return what identifies this version of the shard, which is open, in later processes."""
        if self._mark is None:
            assert self.shard is not None
            assert self.snapshot is not None
            stat, encoded = self.snapshot.stat, self.shard.index.encoded
            is_large = len(encoded) > THREAD_NBYTES
            index_hash = await trio.to_thread.run_sync(hash_of, encoded) if is_large else hash_of(encoded)
            self._mark = ShardMark(stat.size, stat.mtime_ns % 2**64, index_hash)
        return self._mark

    def check(self) -> None:
        """Raise the error that prevents reading the shard, if there is one."""
        if self.error is not None:
            raise self.error.with_traceback(None)


class ShardCache:
    """The open shards of all arrays of a source; the most recently used stay, up to *max_nbytes* and *max_open*.

    A state is trusted for *ttl* seconds, unless the caller wants a fresh one. Indexes take up to *max_nbytes* bytes,
    and decoded shards as much again. *layouts* are those of the arrays.
    """

    def __init__(
        self,
        store: Reader,
        *,
        ttl: float,
        statistics: Statistics,
        clock: Callable[[], float] = time.monotonic,
        max_nbytes: int = 64 * 2**20,
        max_open: int = 512,
        max_own: int = 100_000,
    ) -> None:
        self.store = store
        self.direct = store if isinstance(store, DirectReader) else None
        self._statistics = statistics
        self.ttl = ttl
        self.clock = clock
        self._states: Cache[_Key, ShardState] = Cache(
            lambda state: state.shard.index.nbytes if state.shard else 0, max_nbytes, max_open, self._dropped
        )
        self._decoded = DecodedBytes(statistics, max_nbytes)
        self.generations = InodeGenerations(statistics, self.forget, max_own=max_own)
        self.layouts = Layouts(self._close)
        self.ahead: ReadAhead | None = None

    def read_ahead(self, ahead: ReadAhead) -> None:
        """Tell *ahead* of each chunk that a program reads by its path, if the store fetches.

        What it finds must be trusted when it is read, so nothing is told if the TTL is 0.
        """
        if self.store.fetches_ahead and self.ttl:
            self.ahead = ahead

    def remaining(self, state: ShardState) -> float:
        """Return for how many seconds *state* may still be trusted."""
        return max(0.0, state.checked + self.ttl - self.clock())

    def distrust(self) -> None:
        """Ask the store about each shard when it is next wanted: somebody has just changed some."""
        for key in self._states.known():
            state = self._states.peek(key)
            if state is not None:
                state.checked = -math.inf

    async def state(self, layout: ArrayLayout, coords: Coords, *, fresh: bool = False) -> ShardState:
        """Return the state of the shard at *coords*; *fresh* asks the store whether it has changed."""
        key: _Key = (layout, coords, ())
        known = self._states.peek(key)
        if known is not None and not fresh and known.error is None and self.remaining(known):  # the usual case
            self._states.touch(key)
            self._statistics.index_hits += 1
            return known
        return await self._states.get(key, partial(self._load, key), partial(self._confirm, fresh=fresh))

    async def open(
        self, layout: ArrayLayout, location: ChunkLocation, *, fresh: bool = False
    ) -> tuple[ShardState, OpenShard | None]:
        """Return the state of the outermost shard at *location*, and the innermost shard.

        Raises the error that prevents reading one of them.
        """
        try:
            return await self._open(layout, location, fresh=fresh)
        except StaleError:  # it was replaced since it was opened
            self.store.forget(layout.shard_key(location.shard))
            self.forget(layout, location.shard)
            return await self._open(layout, location, fresh=fresh)

    async def _open(
        self, layout: ArrayLayout, location: ChunkLocation, *, fresh: bool
    ) -> tuple[ShardState, OpenShard | None]:
        state = await self.state(layout, location.shard, fresh=fresh)
        state.check()
        shard = state.shard
        for depth in range(1, len(location.entries)):
            if shard is not None:
                inner = await self._inner(layout, state, location, depth, shard)
                inner.check()
                shard = inner.shard
        return state, shard

    def known(self, layout: ArrayLayout, location: ChunkLocation) -> OpenShard | None:
        """Return the innermost shard at *location* if it is open, in whichever version; from any thread."""
        state = self._states.peek((layout, location.shard, ()))
        if state is None or state.error is not None:
            return None
        shard = state.shard
        for depth in range(1, len(location.entries)):
            inner = self._states.peek((layout, location.shard, location.entries[:depth]))
            if inner is None or inner.snapshot is not state.snapshot:
                return None
            shard = inner.shard
        return shard

    async def _inner(
        self, layout: ArrayLayout, state: ShardState, location: ChunkLocation, depth: int, outer: OpenShard
    ) -> ShardState:
        key: _Key = (layout, location.shard, location.entries[:depth])

        async def is_current(known: ShardState) -> bool:
            may_be_mended = known.error is not None and self.store.rewrites
            is_recent = within_ttl(known.checked, self.clock(), _DAMAGE_SECONDS)
            return known.snapshot is state.snapshot and (is_recent or not may_be_mended)

        async def load() -> ShardState:
            """Open it; damage is found once per version, and not once for each chunk that somebody wants."""
            level, entry = layout.grid.levels[depth], location.entries[depth - 1]
            loaded = ShardState(derived_at(self.clock()), snapshot=state.snapshot)
            try:
                with fenced(level.index_codecs, layout.shard_key(location.shard)):
                    loaded.shard = await open_inner_shard(level, location.shapes[depth], outer, entry, self._decoded)
            except CorruptionError as error:
                loaded.error = error
            self._count_load(loaded.shard)
            return loaded

        return await self._states.get(key, load, is_current)

    async def _confirm(self, state: ShardState, *, fresh: bool) -> bool:
        """Return whether *state* may be trusted; *fresh* asks the store."""
        now = self.clock()
        is_recent = within_ttl(state.checked, now, self.ttl)
        if fresh or not is_recent or state.error is not None:
            if state.snapshot is None and state.error is None:
                is_current = await self.store.is_absent(state.stored_key)
            elif state.snapshot is None or not (state.error is None or isinstance(state.error, CorruptionError)):
                return False  # a transient error: it is tried again
            elif (
                state.error is not None and self.store.rewrites and not within_ttl(state.checked, now, _DAMAGE_SECONDS)
            ):
                return False  # it may have been damaged on the way, each time
            else:
                is_current = await state.snapshot.is_current()
            if not is_current:
                return False
            if not self.store.rewrites or not is_recent:  # else the store would answer from its cache
                state.checked = derived_at(now)
        self._statistics.index_hits += 1
        return True

    async def _load(self, state_key: _Key) -> ShardState:
        layout, coords, _ = state_key
        key = layout.shard_key(coords)
        state = ShardState(derived_at(self.clock()), stored_key=key)
        level, shape = layout.grid.levels[0], layout.grid.index_shape(coords)

        async def open_it() -> None:
            is_large = layout.grid.is_large(shape) and not level.after  # decoding waits for its turn by itself
            state.snapshot = await self.store.open(key, **index_location(level, shape))
            state.stat = state.snapshot.stat
            layout.expect(state.stat)
            async with self._decoded.large if is_large else nullcontext():
                state.shard = await open_shard(level, shape, state.snapshot, self._decoded)
            self._count_load(state.shard)

        try:
            with fenced(level.index_codecs, key):
                await while_it_changes(open_it)
        except NotFoundError:
            state.snapshot = state.stat = None
            if layout.key_encoding.requires(coords):
                state.error = CorruptionError(f"{key} is missing, though the array lists it as stored")
        except IsADirectoryHereError:
            what = "chunk" if layout.grid.is_unsharded else "shard"
            state.error = CorruptionError(f"{key} is a directory where a {what} should be")
        except NotADirectoryHereError:
            state.error = CorruptionError(f"{key} lies below a file where a directory should be")
        except ShardfsError as error:
            state.error = error if str(error).startswith(key) else type(error)(f"{key}: {error}")
        if state.error and not layout.is_outdated:
            is_damaged = isinstance(state.error, CorruptionError) and state.snapshot is not None
            log.error("unreadable shard: %s%s", state.error, self._way_out(layout) if is_damaged else "")
        # A shard that was opened during our own commit is opened again, and counts as no version.
        if state.stat is not None and not self._states.is_outdated(state_key):
            self._show(state, state.stat, self.generations.of(layout, coords, state.stat))
        return state

    def _way_out(self, layout: ArrayLayout) -> str:
        """Return what to do about a damaged shard, for the end of a message."""
        if layout.grid.is_read_only or not isinstance(self.store, Store):
            return "; it is only read: copy it again from where it comes from"
        return "; `shardfs recover` reports whether it can be repaired"

    @staticmethod
    def _show(state: ShardState, stat: Stat, version: ShardVersion) -> None:
        """Let the chunks of a shard have the attributes of its *version*; its hard links are none of its chunks."""
        state.stat = stat._replace(nlink=1, mtime_ns=version.mtime_ns)
        state.generation = version.generation

    def listed(self, layout: ArrayLayout, coords: Coords, stat: Stat | None) -> ShardState:
        """Return what a listing knows about a chunk file of an unsharded array: *stat*, None if it is missing.

        The file was not opened, and the state is not cached.
        """
        state = ShardState(derived_at(self.clock()), stored_key=layout.shard_key(coords))
        if stat is not None:
            self._show(state, stat, self.generations.of(layout, coords, stat, is_listed=True))
        return state

    def forget(self, layout: ArrayLayout, coords: Coords) -> None:
        """Check the shard at *coords* again at the next request, in all layouts of the array."""
        for other in layout.pending.layouts:
            self._states.forget((other, coords, ()))

    def _close(self, layouts: Collection[ArrayLayout]) -> None:
        """Close the shards of layouts that no array has any more; who has opened one reads on."""
        closed = set(layouts)
        for key in self._states.known():
            if key[0] in closed:
                self._states.forget(key)
        self.generations.retire(layouts)

    def _count_load(self, shard: OpenShard | None) -> None:
        if shard is not None:
            self._statistics.index_loads += 1
            self._statistics.index_bytes += len(shard.index.encoded)

    def _dropped(self, state: ShardState) -> None:
        if state.shard is not None and state.shard.decoded is not None and state.shard.outermost is None:
            self._decoded.forget(state.shard.decoded.key)
