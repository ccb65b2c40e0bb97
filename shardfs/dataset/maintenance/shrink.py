"""Shrinking: chunks that lie outside the new shape of an array are removed from its shards."""

from shardfs.dataset.array import Array
from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.maintenance.walk import walk_shards
from shardfs.errors import ShardfsError
from shardfs.format.grid import ChunkGrid
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content


async def empty_outside(commits: GroupCommit, array: Array, shape: tuple[int, ...]) -> None:
    """Remove every stored chunk of *array* that does not overlap *shape*.

    Raises what kept one of its shards from being changed, when all others are.
    """
    inside = ChunkGrid.regular(shape, array.grid.chunk_shape).shape
    failure: ShardfsError | None = None
    for shard in [shard async for shard in walk_shards(array)]:
        try:
            await _empty_outside(commits, array, shard, inside)
        except ShardfsError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def _empty_outside(commits: GroupCommit, array: Array, shard: Coords, inside: Coords) -> None:
    """Remove the chunks of one shard that do not lie in the grid of the shape *inside*."""
    starts = (array.grid.covered(axis, index).start for axis, index in enumerate(shard))
    if any(start >= n for start, n in zip(starts, inside, strict=True)):
        await commits.rewrite(array.layout, shard, None)
        return
    outside: dict[Coords, Content | None] = {
        coords: None
        async for coords in array.chunks_of(shard)
        if any(i >= n for i, n in zip(coords, inside, strict=True))
    }
    if outside:
        await commits.rewrite(array.layout, shard, outside)
