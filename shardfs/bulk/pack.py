"""Packing: the chunks of a dataset, moved as encoded bytes into shards of another one."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import trio

from shardfs.bulk.delivery import Delivered, Item, Job, MadeOf, NothingError, Storer, StoreTask, copy_file, deliver
from shardfs.bulk.engine import Context
from shardfs.bulk.nodes import Transfer, chunks_within
from shardfs.errors import CorruptionError, ShardfsError
from shardfs.format.codecs import MAX_CHUNK_NBYTES
from shardfs.format.lens.packed import Packing
from shardfs.format.sharding import Coords
from shardfs.format.update import plan_write
from shardfs.stores.base import PART_NBYTES, Buffer, NewObject, Stat
from shardfs.stores.parallel import for_each

_CHUNKS_AT_ONCE: Final = 64
_MAX_GROUP: Final = 1024
"""How many chunks are asked for at a time, and how many are read before they are stored."""


@dataclass(frozen=True)
class PackShards(StoreTask):
    """The task that writes some *shards* of the array at *path*, one for each item; *version* is that of `Transfer`."""

    packing: Packing
    path: str
    version: tuple[bytes, tuple[int, ...]]
    shards: tuple[Coords, ...]

    async def storer(self, context: Context) -> Storer:
        """Return what writes one of them."""
        at_once = _CHUNKS_AT_ONCE if self.job.reading(context).store.rewrites else 1
        transfer = await Transfer.find(context, self.job, self.path, self.packing, self.version)
        shards = dict(zip(self.items, self.shards, strict=True))

        async def write(item: Item) -> Delivered:
            return await _Shard(transfer, shards[item], at_once).deliver(self.job, context, item)

        return write


@dataclass(frozen=True)
class CopyFiles(StoreTask):
    """The task that copies some files as they are."""

    async def storer(self, context: Context) -> Storer:
        """Return what copies one of them."""
        return partial(copy_file, self.job, self.job.reading(context).store, self.job.storing(context))


@dataclass(eq=False)
class _Shard:
    """One shard of the target, while it is written; up to *at_once* chunks are asked for at a time."""

    transfer: Transfer
    coords: Coords
    at_once: int
    problems: dict[str, None] = field(default_factory=dict)

    async def deliver(self, job: Job, context: Context, item: Item) -> Delivered:
        """Store the shard; without the chunks that cannot be read, which are named."""
        made_of = MadeOf(self.coords, self.transfer.fingerprint)
        array, grid = self.transfer.array, self.transfer.target.grid
        chunks = [chunk async for chunk in chunks_within(array, grid, self.coords, self._left_out, made_of)]
        index = self.transfer.index(self.coords)
        head_nbytes = index.nbytes if index.at_start else 0
        start = [grid.covered(axis, i).start for axis, i in enumerate(self.coords)]

        async def produce(new: NewObject) -> Stat:
            sizes: Counter[int] = Counter()
            async for group in self._read(chunks):
                for coords, data in group:
                    entry = 0
                    for i, first, n in zip(coords, start, index.chunks_per_shard, strict=True):
                        entry = entry * n + i - first
                    sizes[entry] += len(data)
                await new.write([data for _, data in group])
            if not sizes:
                raise NothingError
            encoded = plan_write(index, None, sizes, ()).index
            if not index.at_start:
                await new.write([encoded])
            return await new.finish(encoded if index.at_start else b"")

        nbytes = sum(nbytes for _, nbytes in chunks) + index.nbytes
        done = await deliver(job, job.storing(context), item, made_of, nbytes, produce, head_nbytes=head_nbytes)
        if self.problems:  # it is to be done again, whatever is stored
            return replace(done, made_of="", state="", problems=tuple(self.problems))
        return done

    async def _read(self, chunks: Sequence[tuple[Coords, int]]) -> AsyncIterator[list[tuple[Coords, Buffer]]]:
        """Yield chunks as they are to be stored, about `PART_NBYTES` at a time; large ones come in pieces."""
        group: list[Coords] = []
        nbytes = 0
        for coords, size in chunks:
            if size > 2 * MAX_CHUNK_NBYTES and self.transfer.transcoder is not None:
                self._left_out(CorruptionError(f"{size:,} bytes are too many to be decoded"), coords)
                continue
            is_large = size > PART_NBYTES and self.transfer.transcoder is None
            if group and (is_large or nbytes + size > PART_NBYTES or len(group) == _MAX_GROUP):
                yield await self._fetch(group)
                group, nbytes = [], 0
            if not is_large:
                group.append(coords)
                nbytes += size
            elif (extent := (await self.transfer.array.find(coords))[1]) is not None:
                for offset in range(0, extent.nbytes, PART_NBYTES):
                    yield [(coords, await extent.read(offset, PART_NBYTES))]
        if group:
            yield await self._fetch(group)

    async def _fetch(self, group: Sequence[Coords]) -> list[tuple[Coords, Buffer]]:
        """Return these chunks as they are to be stored, without those that cannot be read, or are gone."""
        found: list[Buffer | None] = [None] * len(group)

        async def fetch(place: int) -> None:
            try:
                found[place] = await self.transfer.array.read_once(group[place])
            except CorruptionError as error:
                self._left_out(error, group[place])

        # Requests are made together, so that what lies together is one; the page cache is read in order.
        await for_each(range(len(group)), fetch, self.at_once)
        chunks = [(coords, data) for coords, data in zip(group, found, strict=True) if data is not None]
        return chunks if self.transfer.transcoder is None else await trio.to_thread.run_sync(self._transcode, chunks)

    def _transcode(self, chunks: Sequence[tuple[Coords, Buffer]]) -> list[tuple[Coords, Buffer]]:
        transcoder = self.transfer.transcoder
        assert transcoder is not None
        transcoded: list[tuple[Coords, Buffer]] = []
        for coords, data in chunks:
            try:
                transcoded.append((coords, transcoder(data)))
            except CorruptionError as error:
                self._left_out(error, coords)
        return transcoded

    def _left_out(self, error: ShardfsError, coords: Coords | None = None) -> None:
        """Name what is damaged; raises the error if it may pass, as then the shard is for the next run."""
        if not isinstance(error, CorruptionError):
            raise error
        layout = self.transfer.array.layout
        if coords is None:
            self.problems[f"left out: {error}"] = None
            return
        place = layout.shard_key(layout.locate(coords).shard)
        chunk = "" if layout.grid.is_unsharded else f", chunk {'/'.join(map(str, coords))}"
        self.problems[f"left out: {place}{chunk}: {error}"] = None
