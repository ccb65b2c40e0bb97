"""Published inner chunks that are not in their shards yet.

Each is a record of the journal; its bytes stay there and are read back from there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shardfs.dataset.wal.records import Erase, Put
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer

Change = Put | Erase
"""What is to become of one inner chunk."""


@dataclass(slots=True)
class ShardPending:
    """The pending changes of one shard; *touched* is when the last one came, by the event loop's clock, in seconds."""

    shard: Coords
    changes: dict[Coords, Change] = field(default_factory=dict)
    payload_nbytes: int = 0
    touched: float = 0.0


class PendingBytes(NamedTuple):
    """The bytes of one pending chunk, on the terms of an open shard."""

    put: Put

    @property
    def offset(self) -> None:
        """Nowhere in a shard."""

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return *nbytes* bytes from *offset*, which lie within the chunk."""
        return await self.put.payload.read_soon(offset, nbytes)


class ArrayPending:
    """The pending changes of one array, by coordinates and by shard."""

    def __init__(self) -> None:
        self.changes: dict[Coords, Change] = {}
        self.shards: dict[Coords, ShardPending] = {}
        self._below: dict[Coords, Counter[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.changes)

    def children(self, prefix: Coords) -> Iterator[int]:
        """Yield the next coordinates of the shards with pending chunks whose coordinates begin with *prefix*."""
        yield from self._below.get(prefix, ())

    def add(self, shard: Coords, change: Change, now: float) -> Change | None:
        """Take in *change* to a chunk of *shard*; return the one that it replaces."""
        pending = self.shards.get(shard)
        if pending is None:
            pending = self.shards[shard] = ShardPending(shard)
            for depth, index in enumerate(shard):
                self._below.setdefault(shard[:depth], Counter())[index] += 1
        before = pending.changes.get(change.coords)
        pending.changes[change.coords] = self.changes[change.coords] = change
        pending.payload_nbytes += payload_nbytes(change) - (payload_nbytes(before) if before else 0)
        pending.touched = now
        return before

    def remove(self, shard: Coords, change: Change) -> None:
        """Forget *change*, unless a later one took its place."""
        pending = self.shards.get(shard)
        if pending is None or pending.changes.get(change.coords) is not change:
            return
        del pending.changes[change.coords], self.changes[change.coords]
        pending.payload_nbytes -= payload_nbytes(change)
        if pending.changes:
            return
        del self.shards[shard]
        for depth, index in enumerate(shard):
            counts = self._below[shard[:depth]]
            counts[index] -= 1
            if not counts[index]:
                del counts[index]
            if not counts:
                del self._below[shard[:depth]]


def payload_nbytes(change: Change) -> int:
    """Return the size of the chunk that *change* leaves, 0 if it leaves none."""
    return change.payload.nbytes if isinstance(change, Put) else 0
