"""Looking at all stored shards of a source, for verify and compact: in tasks of one shard, or many small ones."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import prod
from operator import attrgetter
from typing import Final, Generic, TypeVar

from shardfs.bulk.engine import Task, WorkerContext, batched, open_context, run_tasks
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.errors import ShardfsError, StaleError
from shardfs.format.dtype import item_nbytes
from shardfs.format.sharding import Coords
from shardfs.stores.url import StoreOptions

_MAX_SHARDS: Final = 64
_MAX_NBYTES: Final = 16 * 2**20
"""How many shards, and how many bytes to examine, make one task."""

_REQUESTS: Final = 8  # which a remote store answers as fast as a single one

R = TypeVar("R")

Look = Callable[[Array, Coords], Awaitable[R | None]]
"""What is found in one shard; it can be pickled."""


@dataclass(frozen=True)
class ShardResult(Generic[R]):
    """What was found in the shard at *coords* of the array at *path*, the one with this *number* of all of the source.

    It is stored under *key*. *error* says why it could not be examined.
    """

    number: int
    path: str
    coords: Coords
    key: str
    result: R | None = None
    error: ShardfsError | None = None


@dataclass(frozen=True)
class LookAtShards(Task[ShardResult[R], ShardResult[R]]):
    """Examines some shards of the source at *url*; only those in which something is found have a result.

    Arrays may be those that only *drafts* allow.
    """

    url: str
    options: StoreOptions
    drafts: tuple[str, ...]
    look: Look[R]

    def at_once(self, context: WorkerContext) -> int:
        """Return how many shards to examine at a time."""
        return _REQUESTS if context.source(self.url, self.options).store.root is None else 1

    async def begin(self, context: WorkerContext) -> Callable[[ShardResult[R]], Awaitable[ShardResult[R] | None]]:
        """Return a function that examines one of them."""
        source = context.source(self.url, self.options)
        source.hierarchy.read_drafts(self.drafts)

        async def examine(shard: ShardResult[R]) -> ShardResult[R] | None:
            node = await source.hierarchy.node(shard.path)
            array = node.shards or node.any_array
            if array is None:
                raise StaleError("its array was changed meanwhile")
            result = await self.look(array, shard.coords)
            return replace(shard, result=result) if result is not None else None

        return examine

    def failed(self, item: ShardResult[R], error: ShardfsError) -> ShardResult[R]:
        """Return a shard with the error."""
        return replace(item, error=error)


async def look_at_shards(
    source: Source,
    shards: AsyncIterable[tuple[Array, Coords]],
    look: Look[R],
    *,
    reads_chunks: bool,
    executor: Executor | None,
    jobs: int | None,
) -> list[ShardResult[R]]:
    """Examine all *shards* with *look*; returns what it finds, in their order.

    *reads_chunks*: chunks are read, not only indexes. *executor* and *jobs* are those of `run_tasks`.
    """
    url, options = source.store.url, source.options
    found: list[ShardResult[R]] = []
    cost = partial(_nbytes, reads_chunks=reads_chunks)

    async def batches() -> AsyncIterator[LookAtShards[R]]:
        numbers = count()
        async for batch, nbytes in batched(shards, cost, most=_MAX_SHARDS, nbytes=_MAX_NBYTES):
            to_look_at = [
                ShardResult[R](next(numbers), array.layout.path, coords, array.layout.shard_key(coords))
                for array, coords in batch
            ]
            yield LookAtShards(tuple(to_look_at), nbytes, url, options, source.hierarchy.drafts, look)

    async with open_context({url: source}) as context:
        await run_tasks(batches(), found.extend, context=context, executor=executor, jobs=jobs)
    return sorted(found, key=attrgetter("number"))


def _nbytes(shard: tuple[Array, Coords], *, reads_chunks: bool) -> int:
    """Return about how much is read of a shard: its index, or the decoded size of its chunks."""
    (array, coords), grid = shard, shard[0].grid
    if not reads_chunks:
        return grid.index_nbytes(coords)
    return grid.nchunks_of(coords) * prod(grid.chunk_shape) * (item_nbytes(array.document["data_type"]) or 1)
