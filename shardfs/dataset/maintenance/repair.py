"""Torn shards: those that another program was killed over, and that no journal knows.

A shard whose index is at the end and has a checksum may hold an older index, from before the append that was cut
short.  Everything that this index names is there still; what came behind it is cut off, and kept in a file of its own.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.walk import Progress, no_progress, walk_all_shards, walk_nodes
from shardfs.dataset.source import Source
from shardfs.errors import CorruptionError, ExistsError, StaleError
from shardfs.format.index import IndexLayout, ShardIndex, damaged
from shardfs.format.index_search import find_last_index
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kept, Snapshot, Splice, join_key

_PIECE_NBYTES: Final = 2**20


@dataclass(frozen=True)
class TornShard:
    """A shard that cannot be read, as *snapshot* has it, for this *reason*.

    The index that ends at *stop* is the last valid one; None if there is none, and *reason* says why.
    """

    array: Array
    shard: Coords
    snapshot: Snapshot
    reason: str
    stop: int | None

    @property
    def key(self) -> str:
        """The key of the shard in the store."""
        return self.array.layout.shard_key(self.shard)

    @property
    def tail_nbytes(self) -> int:
        """Bytes that a repair cuts off."""
        return self.snapshot.size - (self.stop or self.snapshot.size)


async def find_torn(source: Source, progress: Progress = no_progress) -> AsyncIterator[TornShard]:
    """Yield every shard of *source* whose index cannot be read, or can be none."""
    async for array, shard in walk_all_shards(walk_nodes(source), "looking for torn shards", progress):
        state = await array.shard(shard)
        if isinstance(state.error, CorruptionError) and state.snapshot is not None:
            reason = str(state.error)
        elif state.shard is not None and _is_no_index(array, state.shard.index):
            reason = "its index names bytes beyond its end"
        else:
            continue
        assert state.snapshot is not None
        stop, why = await _last_stop(array, shard, state.snapshot)
        yield TornShard(array, shard, state.snapshot, f"{reason}; {why}" if why else reason, stop)


async def repair(source: Source, torn: TornShard, directory: str) -> str:
    """Cut off what follows the last valid index of a shard; returns the key in *directory* of the file that keeps it.

    Raises `StaleError` if the shard is another one than was examined.
    """
    assert torn.stop is not None
    async with source.store.edit(torn.key) as edit:
        if edit.snapshot is None or edit.snapshot.stat.version != torn.snapshot.stat.version:
            raise StaleError(f"{torn.key} was changed meanwhile")
        kept = join_key(directory, torn.key.replace("/", "_"))
        place = await _keep_tail(source, edit.snapshot, torn.stop, kept)
        await edit.splice(Splice((Kept(0, torn.stop),)))
    source.shards.forget(torn.array.layout, torn.shard)
    return place


def _is_no_index(array: Array, index: ShardIndex) -> bool:
    """Whether an index that no checksum vouches for cannot be one that was written."""
    level = array.grid.levels[0]
    if level.after or level.index_at_start or level.index_codecs.checksums:
        return False
    return bool(damaged(index.entries, index.shard_nbytes))


async def _last_stop(array: Array, shard: Coords, snapshot: Snapshot) -> tuple[int | None, str]:
    """Return where the last valid index of a shard ends, or why there is none."""
    level = array.grid.levels[0]
    layout = IndexLayout(level.index_codecs, array.grid.index_shape(shard), level.index_at_start)
    if level.after:
        return None, "it cannot be repaired: it is encoded as a whole"
    if level.index_at_start:
        return None, "it cannot be repaired: its index is at the start, and there is only one"
    if not level.index_codecs.checksums:
        return None, "it cannot be repaired: its index has no checksum to recognize an older one by"

    def search() -> int | None:
        with snapshot.mapped() as data:
            return find_last_index(layout, data)

    offset = await trio.to_thread.run_sync(search)
    return (None, "there is no valid index in it") if offset is None else (offset + layout.nbytes, "")


async def _keep_tail(source: Source, snapshot: Snapshot, start: int, key: str) -> str:
    """Copy what follows byte *start* of a shard to a file that is new; returns its key."""
    await source.store.make_directories(key.rpartition("/")[0])
    for number in count():
        place = f"{key}.{number}"
        try:
            file = await source.store.create(place, 0o600, exclusive=True)
        except ExistsError:
            continue
        for offset in range(start, snapshot.size, _PIECE_NBYTES):
            piece = await snapshot.read(offset, min(_PIECE_NBYTES, snapshot.size - offset))
            await file.write(offset - start, piece)
        await file.sync()
        await source.store.sync_directory(key.rpartition("/")[0])
        return place
    raise AssertionError
