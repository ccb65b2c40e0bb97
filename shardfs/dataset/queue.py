"""What is pending for one shard, and how its commits fare."""

import math
import random
from collections.abc import Iterable
from typing import Final, NamedTuple

import trio

from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.quick_lock import QuickLock
from shardfs.dataset.wal.records import Change, Put
from shardfs.errors import ConflictError, LockedError, ShardfsError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer

_IDLE: Final = 2.0
_SMALL_IDLE: Final = 30.0
"""Seconds for which a shard has not been written before it is committed, and if its payload is less than its index."""

_RETRY: Final = 5.0
_FIRST_BACKOFF: Final = 0.02
_LONGEST_BACKOFF: Final = 2.0
_LOCKED_BACKOFF: Final = 0.1
"""Seconds after which a shard is tried again: after an error; at most, after others were faster to change it; at most,
while another program has it locked."""


class PendingBytes(NamedTuple):
    """The bytes of one pending chunk, on the terms of an open shard."""

    put: Put

    @property
    def offset(self) -> None:
        """Nowhere in a shard."""

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return *nbytes* bytes from *offset*, which lie within the chunk."""
        return await self.put.payload.read_soon(offset, nbytes)


class Pending(NamedTuple):
    """What is pending: changes, bytes, for how many seconds the oldest, and what keeps it from being committed."""

    nchunks: int = 0
    nbytes: int = 0
    age: float | None = None
    reason: str | None = None


class ShardQueue:
    """The pending changes of one shard, oldest first.

    *lock* is held by whoever publishes in the shard, commits or rewrites it: a record names the index entry that it
    supersedes, which a commit changes.  *since* is when the first change came and *touched* when the last one did, by
    the event loop's clock, in seconds.
    *error* is what keeps the shard from being committed, *retry_at* when it is tried again after that, or after
    somebody else was faster to change it; *locked_since* is since when another program was found to have its lock.
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
        """When the shard is to be committed, if nothing is published in it until then."""
        if self.retry_at is not None:
            return self.retry_at
        return self.touched + (_IDLE if self.payload_nbytes >= self.index_nbytes else _SMALL_IDLE)

    @property
    def is_full(self) -> bool:
        """Whether all chunks of the shard are pending."""
        return len(self.changes) == self.layout.grid.nchunks_of(self.shard)

    def add(self, change: Change) -> Change | None:
        """Take in *change*; return the one that it replaces."""
        if not self.changes:
            self.layout.pending.add_shard(self.shard)
            self.since = trio.current_time()
        before = self.changes.get(change.coords)
        self.changes[change.coords] = self.layout.pending.changes[change.coords] = change
        self.payload_nbytes += nbytes_of(change) - (nbytes_of(before) if before is not None else 0)
        self.touched = trio.current_time()
        return before

    def remove(self, changes: Iterable[Change]) -> None:
        """Forget *changes*, but for those of which a later one took the place."""
        was_empty = not self.changes
        pending = self.layout.pending.changes
        for change in changes:
            if self.changes.get(change.coords) is change:
                del self.changes[change.coords], pending[change.coords]
                self.payload_nbytes -= nbytes_of(change)
        self.since = self.touched  # what is left came while the others were committed
        if not self.changes and not was_empty:
            self.layout.pending.remove_shard(self.shard)

    def fail(self, error: ShardfsError) -> None:
        """Note what keeps the shard from being committed."""
        self.error, self.retry_at = error, trio.current_time() + _RETRY

    def give_way(self, error: ConflictError) -> None:
        """Leave the shard alone for a while, and by chance: who was faster to change it may have more to change."""
        now = trio.current_time()
        self._nbeaten += 1
        self.error = None  # an earlier one is not why
        longest = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** min(self._nbeaten, 9))
        if isinstance(error, LockedError):
            self.locked_since = now if self.locked_since is None else self.locked_since
            longest = _LOCKED_BACKOFF
        self.retry_at = now + random.uniform(0, longest)  # noqa: S311 - nothing is kept secret

    def succeed(self) -> None:
        """Note that nothing keeps the shard from being changed."""
        self.error = self.retry_at = self.locked_since = None
        self._nbeaten = 0


def pending_in(queues: Iterable[ShardQueue]) -> Pending:
    """Return what is pending in all of *queues*, which may be very many."""
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


def nbytes_of(change: Change) -> int:
    """Return the size of the chunk that *change* leaves, 0 if it leaves none."""
    return change.payload.nbytes if isinstance(change, Put) else 0
