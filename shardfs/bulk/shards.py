"""Looking at all stored shards of a source, for verify and compact: in tasks of one shard, or many small ones."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import prod
from operator import attrgetter
from typing import Final, Generic, TypeVar

from shardfs.bulk.engine import Context, as_told, batched, run_tasks
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.errors import ShardfsError, StaleError
from shardfs.format.dtype import item_nbytes
from shardfs.format.sharding import Coords
from shardfs.stores.parallel import for_each
from shardfs.stores.url import StoreOptions

_MAX_SHARDS: Final = 64
_MAX_NBYTES: Final = 16 * 2**20
"""How many shards, and how many bytes to examine, make one task."""

_REQUESTS: Final = 8  # which a remote store answers as fast as a single one

R = TypeVar("R")

Look = Callable[[Array, Coords], Awaitable[R | None]]
"""What is found in one shard; it can be pickled."""


@dataclass(frozen=True)
class Found(Generic[R]):
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
class ShardBatch(Generic[R]):
    """Some *shards* of the source at *url*, and how to examine each."""

    url: str
    options: StoreOptions
    look: Look[R]
    shards: tuple[Found[R], ...]
    nbytes: int

    async def run(self, context: Context) -> list[Found[R]]:
        """Return what was found, for the shards in which something was."""
        source = context.source(self.url, self.options)
        found: list[Found[R]] = []

        async def look(shard: Found[R]) -> None:
            try:
                examined = replace(shard, result=await self._examine(source, shard))
            except Exception as error:
                examined = replace(shard, error=as_told(error))
            if examined != shard:
                found.append(examined)

        await for_each(self.shards, look, _REQUESTS if source.store.root is None else 1)
        return found

    async def _examine(self, source: Source, shard: Found[R]) -> R | None:
        array = (await source.hierarchy.node(shard.path)).array
        if array is None:
            raise StaleError("its array was changed meanwhile")
        return await self.look(array, shard.coords)

    def failed(self, error: ShardfsError) -> list[Found[R]]:
        """Return the error for each of the shards."""
        return [replace(shard, error=error) for shard in self.shards]


async def look_at_shards(
    source: Source,
    options: StoreOptions,
    shards: AsyncIterable[tuple[Array, Coords]],
    look: Look[R],
    *,
    reads_chunks: bool,
    executor: Executor | None,
    jobs: int | None,
) -> list[Found[R]]:
    """Examine all *shards* with *look*; returns what it finds, in their order.

    *source* was opened with *options*, as other processes open it. *reads_chunks*: chunks are read, not only indexes.
    *executor* and *jobs* are those of `run_tasks`.
    """
    url = source.store.url
    found: list[Found[R]] = []
    cost = partial(_nbytes, reads_chunks=reads_chunks)

    async def batches() -> AsyncIterator[ShardBatch[R]]:
        numbers = count()
        async for batch, nbytes in batched(shards, cost, most=_MAX_SHARDS, nbytes=_MAX_NBYTES):
            each = [
                Found[R](next(numbers), array.layout.path, coords, array.layout.shard_key(coords))
                for array, coords in batch
            ]
            yield ShardBatch(url, options, look, tuple(each), nbytes)

    await run_tasks(batches(), found.extend, context=Context({url: source}), executor=executor, jobs=jobs)
    return sorted(found, key=attrgetter("number"))


def _nbytes(shard: tuple[Array, Coords], *, reads_chunks: bool) -> int:
    """Return about how much is read of a shard: its index, or the decoded size of its chunks."""
    (array, coords), grid = shard, shard[0].grid
    if not reads_chunks:
        return grid.index_nbytes(coords)
    return grid.nchunks_of(coords) * prod(grid.chunk_shape) * (item_nbytes(array.document["data_type"]) or 1)
