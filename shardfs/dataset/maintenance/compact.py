"""Compaction: shards with dead bytes are written anew, in C order, without them."""

from dataclasses import dataclass, replace

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.verify import ShardUse, measure
from shardfs.dataset.shard import OpenShard
from shardfs.format.index import IndexLayout
from shardfs.format.index_search import find_last_index
from shardfs.format.sharding import Coords


@dataclass(frozen=True)
class Waste:
    """A shard with so many dead bytes that it should be compacted; *reason* says why it is not."""

    use: ShardUse
    reason: str | None = None


async def find_waste(array: Array, shard: Coords, *, threshold: float, force: bool) -> Waste | None:
    """Tell of a stored shard of which at least the share *threshold* is dead bytes that a rewrite removes.

    Those within shards that are enclosed stay: a commit rewrites an enclosed shard without any, so others left them.
    One that begins with bytes that no index of it ever named may be another file too, HDF5 or TIFF for example, and
    gets a reason not to be compacted, unless *force*.
    """
    use = await measure(array, shard)
    opened = (await array.shard(shard)).shard
    if use.error is not None or not use.dead or opened is None:
        return None
    if len(array.grid.levels) > 1:  # shards within it are moved as they are
        removable = max(opened.index.shard_nbytes - opened.index.live_nbytes, 0)
        use = replace(use, live=use.size - min(use.dead, removable))
    if not use.dead or use.dead < threshold * use.size:
        return None
    is_foreign = not force and await _has_foreign_prefix(array, shard, opened)
    return Waste(use, "it begins with bytes that are no chunk's: another format may own them" if is_foreign else None)


async def _has_foreign_prefix(array: Array, shard: Coords, opened: OpenShard) -> bool:
    """Whether the bytes before the first chunk were never named by an index of the shard, as far as can be told."""
    level = array.grid.levels[0]
    layout = IndexLayout(level.index_codecs, array.grid.index_shape(shard), level.index_at_start)
    if level.index_at_start or opened.index.first_live_byte == 0:
        return False
    if not level.index_codecs.checksums:
        return True
    return not await trio.to_thread.run_sync(_was_named, layout, opened)


def _was_named(layout: IndexLayout, opened: OpenShard) -> bool:
    """Whether an older index in a shard names a chunk at its beginning."""
    with opened.snapshot.mapped() as data:
        stop = opened.index_offset
        while stop > 0:
            offset = find_last_index(layout, data[:stop])
            if offset is None:
                return False
            index = layout.codecs.decode(bytes(data[offset : offset + layout.nbytes]), layout.chunks_per_shard, offset)
            if index.first_live_byte == 0:
                return True
            stop = offset + layout.nbytes - 1
    return False
