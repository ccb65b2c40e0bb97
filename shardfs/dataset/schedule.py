"""When each shard with pending changes is to be committed, and with which others, without looking at all of them."""

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, NamedTuple

import trio

from shardfs.dataset.journal.records import ChunkChange, Put
from shardfs.dataset.layout import ShardQueue
from shardfs.stores.cache import Cache

BATCH: Final = 16
_BATCH_INDEX_NBYTES: Final = 4 * 2**20
"""How many shards are committed together, and how long their indexes may be in total."""

_SMALL_NBYTES: Final = 2**20
_SMALL_BATCH: Final = 64
"""How many chunk files of at most so many bytes are committed together."""

_SPARE: Final = 64


PAUSE: Final = 0.25
"""Seconds between two looks at what is due."""

_MAX_GROWN: Final = 10_000  # arrays that grew


class _Grown(NamedTuple):
    """The *shape* that an array had before it grew, the smallest one, and when what lies beyond was last committed."""

    shape: tuple[int, ...]
    committed_at: float = -math.inf


class Growth:
    """Arrays that have grown: new chunks that lie beyond the shape that they had are due at once.

    Native readers see the new shape when its document is stored, and fill values until the chunks are committed.
    """

    def __init__(self) -> None:
        self._arrays: Cache[str, _Grown] = Cache(lambda _: 0, 0, _MAX_GROWN)  # by path

    @property
    def narrays(self) -> int:
        """How many arrays are known to have grown."""
        return self._arrays.count

    def grew(self, path: str, shape: tuple[int, ...]) -> None:
        """Note that the array at *path*, of *shape* until now, has grown."""
        grown = self._arrays.peek(path) or _Grown(shape)
        if len(grown.shape) == len(shape):
            shape = tuple(map(min, grown.shape, shape))
        self._arrays.put(path, _Grown(shape, grown.committed_at))

    def began(self, path: str) -> None:
        """Note that a new array is at *path*, which has not grown."""
        self._arrays.forget(path)

    def hurry(self, queue: ShardQueue, change: ChunkChange) -> None:
        """Let a shard be due at once if *change* is a new chunk beyond the shape that its array had before it grew.

        An array is committed so at most every `PAUSE` seconds: each commit appends an index.
        """
        if not isinstance(change, Put) or change.superseded is not None or queue.ahead_at is not None:
            return
        grown, grid = self._arrays.peek(queue.layout.path), queue.layout.grid
        if grown is None or len(grown.shape) != len(change.coords):
            return
        ends = ((index + 1) * n for index, n in zip(change.coords, grid.chunk_shape, strict=True))
        if any(end > n for end, n in zip(ends, grown.shape, strict=True)):
            queue.hurry(grown.committed_at + PAUSE)

    def committed(self, queues: Sequence[ShardQueue], now: float) -> None:
        """Note that shards are committed at the time *now*."""
        for queue in queues:
            grown = self._arrays.peek(queue.layout.path) if queue.ahead_at is not None else None
            if grown is not None:
                self._arrays.put(queue.layout.path, _Grown(grown.shape, now))


_Entry = tuple[float, int, ShardQueue]
"""When a shard is looked at, a number that no other entry has, and its queue."""


class Schedule:
    """Shards with pending changes, in the order in which they came, and when each is due.

    Each has one entry in a heap, with the time at which it is due, or an earlier one: `update` is called after what may
    let it be due earlier, and what let it be due later is found when its entry is the first. Other entries of it are
    from before, and dropped then.
    """

    def __init__(self) -> None:
        self._entries: dict[ShardQueue, _Entry] = {}
        self._heap: list[_Entry] = []
        self._numbers = count()
        self._has_any = trio.Event()

    def __len__(self) -> int:
        """Return how many shards have pending changes."""
        return len(self._entries)

    def __iter__(self) -> Iterator[ShardQueue]:
        return iter(self._entries)

    def add(self, queue: ShardQueue) -> None:
        """Note that a shard has pending changes, perhaps as before."""
        if queue not in self._entries:
            heappush(self._heap, self._entry(queue))
            self._has_any.set()
        else:
            self.update(queue)

    def update(self, queue: ShardQueue) -> None:
        """Note that a shard may be due at another time, if it has pending changes."""
        known = self._entries.get(queue)
        if known is not None and queue.due_at < known[0]:
            heappush(self._heap, self._entry(queue))

    def remove(self, queue: ShardQueue) -> None:
        """Note that a shard has no pending changes any more."""
        self._entries.pop(queue, None)
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = [*self._entries.values()]
            heapify(self._heap)

    async def until_any(self) -> None:
        """Wait until there is a shard."""
        if not self:
            if self._has_any.is_set():
                self._has_any = trio.Event()
            await self._has_any.wait()

    def first_at(self) -> float:
        """Return when the first shard is due; infinity if there is none."""
        while self._heap:
            at, _, queue = entry = self._heap[0]
            if self._entries.get(queue) is not entry:
                heappop(self._heap)
            elif queue.due_at > at:
                heapreplace(self._heap, self._entry(queue))
            else:
                return at
        return math.inf

    def due(self, now: float) -> Sequence[ShardQueue]:
        """Return the shards that are due, longest first."""
        due: list[ShardQueue] = []
        while self.first_at() <= now:
            due.append(heappop(self._heap)[2])
        for queue in due:  # until they are committed
            heappush(self._heap, self._entry(queue))
        return due

    def _entry(self, queue: ShardQueue) -> _Entry:
        entry = self._entries[queue] = queue.due_at, next(self._numbers), queue
        return entry


def batches(queues: Sequence[ShardQueue]) -> Iterator[Sequence[ShardQueue]]:
    """Yield batches of shards to commit together."""
    batch: list[ShardQueue] = []
    total = 0.0
    for queue in queues:
        share = _share(queue)
        if batch and total + share > 1:
            yield batch
            batch, total = [], 0.0
        batch.append(queue)
        total += share
    if batch:
        yield batch


def _share(queue: ShardQueue) -> float:
    """Return how much of a batch a shard takes: all of it, if its commit may take much memory."""
    grid = queue.layout.grid
    if grid.is_large(grid.index_shape(queue.shard)):
        return 1
    if grid.is_unsharded and queue.payload_nbytes <= _SMALL_NBYTES:
        return 1 / _SMALL_BATCH
    return max(1 / BATCH, queue.index_nbytes / _BATCH_INDEX_NBYTES)
