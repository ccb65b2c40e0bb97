"""Compaction: shards with dead bytes are written anew, in C order, without them."""

from dataclasses import dataclass, replace

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.verify import ShardUse, has_foreign_prefix, measure
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
    is_foreign = not force and await has_foreign_prefix(array, shard, opened)
    return Waste(use, "it begins with bytes that are no chunk's: another format may own them" if is_foreign else None)
