"""One open shard: its bytes and its index, at any level of nesting."""

from dataclasses import dataclass
from math import prod
from typing import Final, TypedDict

import trio

from shardfs.errors import CorruptionError, StaleError, StoreError
from shardfs.format.codecs import decode
from shardfs.format.index import ShardIndex
from shardfs.format.sharding import MAX_DECODED_NBYTES, ShardingLevel
from shardfs.stores.base import Buffer, Snapshot
from shardfs.stores.memory import MemorySnapshot

_THREAD_NBYTES: Final = 2**20  # a larger index is checked in a thread, so that others are served meanwhile


@dataclass(frozen=True, slots=True, eq=False)
class OpenShard:
    """A shard, or a shard within a shard: the bytes of *snapshot* from *offset* on, and the index among them.

    *outermost* is the shard in the store, if this is one within it.
    """

    snapshot: Snapshot
    offset: int
    index: ShardIndex
    index_offset: int
    outermost: "OpenShard | None" = None

    @property
    def memory(self) -> int:
        """Bytes of memory that the shard holds while it is open."""
        return self.index.nbytes + (self.snapshot.size if self.is_decoded and self.outermost is None else 0)

    @property
    def is_decoded(self) -> bool:
        """Whether the shard, or one around it, was decoded whole, so that its bytes are nowhere in the store."""
        return isinstance(self.snapshot, MemorySnapshot)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of the shard; raises `StaleError` if they may be another version's.

        An append by another program makes no new version of what stood before it, as the old index tells; a shard that
        has no index bytes cannot tell.
        """
        return await (self.outermost or self).read_at(self.offset + offset, nbytes)

    async def read_at(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of the snapshot, on the terms of `read`."""
        try:
            return await self.snapshot.read(offset, nbytes)
        except StaleError:
            if not self.index.encoded or not await self.snapshot.accept_growth(self.index_offset, self.index.encoded):
                raise
            return await self.snapshot.read(offset, nbytes)

    def expect(self) -> None:
        """Say that the chunks are likely to be read soon, in order: somebody lists them."""
        shard = self.outermost or self
        behind = shard.index_offset + len(shard.index.encoded)
        if behind == shard.snapshot.size:
            shard.snapshot.expect(0, shard.index_offset)
        else:
            shard.snapshot.expect(behind, shard.snapshot.size - behind)


class IndexPlace(TypedDict):
    """How many bytes of a stored shard, at its beginning or its end, are its index: arguments of `Store.open`."""

    head_nbytes: int
    tail_nbytes: int


def index_place(level: ShardingLevel, shape: tuple[int, ...]) -> IndexPlace:
    """Return where a stored shard has its index; nowhere, if it has to be decoded as a whole first."""
    nbytes = 0 if level.after else level.index_codecs.nbytes(prod(shape))
    if level.index_at_start:
        return IndexPlace(head_nbytes=nbytes, tail_nbytes=0)
    return IndexPlace(head_nbytes=0, tail_nbytes=nbytes)


async def open_shard(level: ShardingLevel, shape: tuple[int, ...], snapshot: Snapshot) -> OpenShard:
    """Open the shard that is the whole of *snapshot*; *shape* is its chunks per shard.

    Raises `CorruptionError` if it is too short for its index or the index is damaged.
    """
    return await _open(level, shape, snapshot, 0, snapshot.size, None)


async def open_inner_shard(
    level: ShardingLevel, shape: tuple[int, ...], outer: OpenShard, entry: int
) -> "OpenShard | None":
    """Open the shard that is inner chunk *entry* of *outer*; None if that is empty."""
    found = outer.index.range(entry)
    if found is None:
        return None
    return await _open(
        level, shape, outer.snapshot, outer.offset + found.offset, found.nbytes, outer.outermost or outer
    )


async def _open(
    level: ShardingLevel,
    shape: tuple[int, ...],
    snapshot: Snapshot,
    offset: int,
    nbytes: int,
    outermost: OpenShard | None,
) -> OpenShard:
    read = snapshot.read if outermost is None else outermost.read_at
    if level.after:
        if nbytes > MAX_DECODED_NBYTES:
            raise StoreError(f"a shard of {nbytes} bytes under {level.after[-1].name} is too large to decode")
        encoded = await read(offset, nbytes)
        decoded = await trio.to_thread.run_sync(decode, level.after, encoded, level.max_nbytes)
        snapshot, offset, nbytes, outermost = MemorySnapshot(memoryview(decoded), snapshot.stat), 0, len(decoded), None
        read = snapshot.read
    index_nbytes = level.index_codecs.nbytes(prod(shape))
    if index_nbytes > nbytes:
        raise CorruptionError(f"a shard of {nbytes} bytes has no room for its index of {index_nbytes} bytes")
    index_offset = offset if level.index_at_start else offset + nbytes - index_nbytes
    encoded_index = bytes(await read(index_offset, index_nbytes)) if index_nbytes else b""
    if index_nbytes > _THREAD_NBYTES:
        index = await trio.to_thread.run_sync(level.index_codecs.decode, encoded_index, shape, nbytes)
    else:
        index = level.index_codecs.decode(encoded_index, shape, nbytes)
    return OpenShard(snapshot, offset, index, index_offset, outermost)
