"""Looking at all stored shards of a source, for verify and compact: in tasks of one shard, or many small ones."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final, Generic, NamedTuple, TypeVar

from shardfs.bulk.engine import Context, Outcome, as_told, batched, run_tasks
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


class StoredShard(NamedTuple):
    """The shard at *coords* of the array at *path*, stored under *key*."""

    path: str
    coords: Coords
    key: str


@dataclass(frozen=True)
class Found(Generic[R]):
    """What was found in a shard; *error* says why it could not be examined."""

    shard: StoredShard
    result: R | None
    error: ShardfsError | None = None


@dataclass(frozen=True)
class ShardBatch(Generic[R]):
    """Some shards of the source at *url*, and how to examine each."""

    url: str
    options: StoreOptions
    look: Look[R]
    shards: tuple[StoredShard, ...]
    nbytes: int

    @property
    def name(self) -> str:
        """The key of the first shard, and how many more there are."""
        more = f" and {len(self.shards) - 1} more" if len(self.shards) > 1 else ""
        return self.shards[0].key + more

    async def run(self, context: Context) -> list[Found[R]]:
        """Return what was found, for the shards in which something was."""
        source = context.source(self.url, self.options)
        found: dict[StoredShard, Found[R]] = {}

        async def look(shard: StoredShard) -> None:
            result: R | None = None
            error: ShardfsError | None = None
            try:
                array = (await source.hierarchy.node(shard.path)).array
                if array is None:
                    error = StaleError("its array was changed meanwhile")
                else:
                    result = await self.look(array, shard.coords)
            except Exception as failure:
                error = as_told(failure)
            if result is not None or error is not None:
                found[shard] = Found(shard, result, error)

        await for_each(self.shards, look, _REQUESTS if source.store.root is None else 1)
        return [found[shard] for shard in self.shards if shard in found]


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
    found: dict[int, list[Found[R]]] = {}

    def done(outcome: Outcome[list[Found[R]]]) -> None:
        batch = outcome.task
        assert isinstance(batch, ShardBatch)
        if outcome.error is not None:
            found[outcome.index] = [Found(shard, None, outcome.error) for shard in batch.shards]
        elif outcome.result:
            found[outcome.index] = outcome.result

    cost = partial(_nbytes, reads_chunks=reads_chunks)

    async def batches() -> AsyncIterator[ShardBatch[R]]:
        async for batch, nbytes in batched(shards, cost, most=_MAX_SHARDS, nbytes=_MAX_NBYTES):
            stored = [StoredShard(array.layout.path, at, array.layout.shard_key(at)) for array, at in batch]
            yield ShardBatch(url, options, look, tuple(stored), nbytes)

    await run_tasks(batches(), done, context=Context({(url, options): source}), executor=executor, jobs=jobs)
    return [each for index in sorted(found) for each in found[index]]


def _nbytes(shard: tuple[Array, Coords], *, reads_chunks: bool) -> int:
    """Return about how much is read of a shard: its index, or the decoded size of its chunks."""
    (array, coords), grid = shard, shard[0].grid
    if not reads_chunks:
        return grid.index_nbytes(coords)
    return grid.nchunks_of(coords) * prod(grid.chunk_shape) * (item_nbytes(array.document["data_type"]) or 1)
