"""Removing chunks of an array by themselves: those outside a smaller shape, and what is left of a removed array."""

from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Final

from shardfs.dataset.array import Array
from shardfs.dataset.commit import GroupCommit, Plan
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.maintenance.walk import prune, walk_shards
from shardfs.errors import ConflictError, NotEmptyError, ShardfsError, StoreError
from shardfs.format.grid import ChunkGrid
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, Kind, Store, join_key
from shardfs.stores.local.file_lock import LOCK_SUFFIX, is_lock

_ATTEMPTS: Final = 24  # to change a shard in which nothing is pending


async def empty_outside(commits: GroupCommit, array: Array, shape: tuple[int, ...]) -> None:
    """Remove every stored chunk of *array*, as it was before, that is outside its new *shape*.

    If a shard cannot be changed, the others are changed first, and then its error is raised.
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
    """Remove the chunks of one shard that are outside the grid *inside*."""

    async def outside() -> Mapping[Coords, Content | None] | None:
        """Return what to remove, all if that is None: not what is in an array that another session has made larger."""
        now = await commits.array_now(array.layout.path)
        if now is None or now.fingerprint != array.fingerprint:
            return {}  # somebody has made something else of it
        limits = tuple(map(max, inside, now.grid.grid_shape))
        starts = (array.grid.covered(axis, index).start for axis, index in enumerate(shard))
        if any(start >= n for start, n in zip(starts, limits, strict=True)):
            return None
        array.look_again(shard)
        return {
            coords: None
            async for coords in array.chunks_of(shard)
            if any(i >= n for i, n in zip(coords, limits, strict=True))
        }

    await _rewrite(commits, array.layout, shard, outside)


async def _remove_left(commits: GroupCommit, array: Array, shard: Coords, given_up: Container[Coords]) -> None:
    """Remove what is left of a shard of a removed *array*: what no program can read, or can see.

    That are damaged chunks, which are in *given_up*, and chunks beyond the shape. Raises `NotEmptyError` if it has
    other chunks by now.
    """

    async def left() -> Mapping[Coords, Content | None] | None:
        now = await commits.array_now(array.layout.path)
        if now is None or (now.layout, now.fingerprint) != (array.layout, array.fingerprint):
            return {}  # another session has stored another document
        dimensions = now.grid.shards.dimensions
        if all(index < dimension.nchunks for index, dimension in zip(shard, dimensions, strict=True)):
            now.look_again(shard)
            async for coords in now.chunks_of(shard, given_up):
                raise NotEmptyError(f"{array.layout.shard_key(shard)} has chunks by now, the first at {coords}")
        return None

    await _rewrite(commits, array.layout, shard, left, ends=True)


async def remove_directories(
    commits: GroupCommit, store: Store, array: Array, given_up: Container[Coords] | None
) -> None:
    """Remove the directories of the shards of an *array* without chunks, and the locks in them.

    If it is removed itself, *given_up* are its damaged chunks that programs removed: then all shards go that are left.
    """
    layout, encoding, ndim = array.layout, array.layout.key_encoding, array.grid.ndim
    is_removed = given_up is not None

    async def left(key: str) -> None:
        shard = encoding.decode(key[len(layout.path) :].lstrip("/"), ndim)
        if shard is not None:
            await _remove_left(commits, array, shard, given_up or ())

    if encoding.is_nested(ndim) and encoding.root(ndim):
        root = join_key(layout.path, encoding.root(ndim))
        await prune(store, root, locks=True, left=left if is_removed else None)
        return
    if store.root is None and not (is_removed or encoding.is_nested(ndim)):
        return
    entries = await store.list(layout.path)
    named = [entry for entry in entries if encoding.begins(entry.name.removesuffix(LOCK_SUFFIX), ndim)]
    for entry in named:
        if entry.kind is Kind.DIRECTORY:
            await prune(store, join_key(layout.path, entry.name), locks=True, left=left if is_removed else None)
        elif is_removed and not is_lock(entry.name):
            await left(join_key(layout.path, entry.name))
    for entry in named:
        if is_lock(entry.name):
            await store.remove_lock(join_key(layout.path, entry.name))


async def _rewrite(commits: GroupCommit, layout: ArrayLayout, shard: Coords, plan: Plan, *, ends: bool = False) -> None:
    """Do what `GroupCommit.rewrite` does, after all that is pending in the array."""
    for _ in range(_ATTEMPTS):
        if await commits.rewrite(layout, shard, plan, ends=ends):
            return
        with suppress(ConflictError):  # what does not fit any more is kept, and was named
            await commits.flush(below=layout.path)
    raise StoreError(f"{layout.shard_key(shard)} is written over and over while chunks of it are to be removed")
