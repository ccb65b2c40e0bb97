"""Decoded chunks: each decoded once however many ask, kept within bounds, and never of another version."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.statistics import Statistics
from shardfs.errors import CorruptionError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.sharding import Coords
from shardfs.stores.cache import SharedCache
from shardfs.vfs.chunk_cache import ChunkCache
from tests.support.corpus import CRC32C, LITTLE, ZSTD, array, sharding
from tests.support.datasets import store
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source

SHAPE = (8, 4096)
CHUNK_SHAPE = (1, 4096)
NBYTES = 4 * 4096
VALUES = np.arange(8 * 4096, dtype="<i4").reshape(SHAPE)


def document(*codecs: object, chunk_shape: tuple[int, ...] = CHUNK_SHAPE) -> dict[str, object]:
    shape = (8, chunk_shape[1])
    return array(shape, shape, sharding(chunk_shape, *codecs))


class Gate:
    """Counts the reads of payloads, and keeps them waiting while it is closed."""

    def __init__(self) -> None:
        self.reads = 0
        self.opened = trio.Event()
        self.opened.set()

    def close(self) -> None:
        self.opened = trio.Event()

    async def __call__(self, key: str, offset: int, nbytes: int) -> None:
        if key.endswith("zarr.json"):
            return
        self.reads += 1
        await self.opened.wait()


@dataclass
class Decoding:
    """An array whose chunks a test decodes."""

    array: Array
    codec: ChunkCodec
    chunks: ChunkCache
    statistics: Statistics
    gate: Gate

    async def extent(self, coords: Coords) -> Extent:
        extent = await self.array.extent(coords)
        assert extent is not None
        self.gate.reads = 0
        return extent

    async def get(self, coords: Coords) -> memoryview:
        extent = await self.array.extent(coords)
        assert extent is not None
        return await self.chunks.get(self.array.layout, coords, extent, self.codec)


async def open_decoding(root: Path, max_nbytes: int = 2**20) -> Decoding:
    gate = Gate()
    opened = open_source(root, store=GatedStore(root, gate))
    found = await opened.array()
    codec = ChunkCodec.parse("int32", found.grid.chunk_shape, found.codecs)
    return Decoding(found, codec, ChunkCache(max_nbytes, opened.statistics), opened.statistics, gate)


@pytest.fixture(params=[CHUNK_SHAPE, (1, 32768)], ids=["at-once", "in-a-thread"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store(tmp_path / "a", document(LITTLE, ZSTD, chunk_shape=request.param))
    return tmp_path / "a"


@in_trio
async def test_tasks_that_want_one_chunk_share_one_decoding(source: Path) -> None:
    decoding = await open_decoding(source)
    await decoding.extent((3, 0))
    decoding.gate.close()
    got: list[bytes] = []

    async def ask() -> None:
        got.append(bytes(await decoding.get((3, 0))))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        decoding.gate.opened.set()
    assert len(got) == 5
    assert len(set(got)) == 1
    assert decoding.gate.reads == 1
    assert await decoding.get((3, 0)) == got[0]
    counts = decoding.statistics
    assert (counts.decoded_chunks, counts.decoded_bytes) == (1, decoding.codec.nbytes)
    assert counts.decode_hits == 5


@in_trio
async def test_who_waits_for_a_decoding_that_is_cancelled_decodes_itself(source: Path) -> None:
    decoding = await open_decoding(source)
    await decoding.extent((3, 0))
    decoding.gate.close()
    got: list[bytes] = []
    first = trio.CancelScope()

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            got.append(bytes(await decoding.get((3, 0))))

    async with trio.open_nursery() as nursery:
        for scope in (first, trio.CancelScope(), trio.CancelScope()):
            nursery.start_soon(ask, scope)
            await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        decoding.gate.opened.set()
    assert len(got) == 2
    assert decoding.gate.reads == 2


@in_trio
async def test_the_chunks_used_last_stay_within_the_bound(tmp_path: Path) -> None:
    store(tmp_path, document(LITTLE, ZSTD), VALUES)
    decoding = await open_decoding(tmp_path, max_nbytes=2 * NBYTES)
    for row in (0, 1, 0, 2, 0, 1):
        assert np.array_equal(np.frombuffer(await decoding.get((row, 0)), "<i4"), VALUES[row])
    # 1 went for 2, as 0 had been used since, and 2 for 1.
    assert decoding.statistics.decoded_chunks == 4
    assert decoding.statistics.decode_hits == 2


@in_trio
async def test_no_more_chunks_are_in_flight_than_there_is_room_for(tmp_path: Path) -> None:
    store(tmp_path, document(LITTLE, ZSTD), VALUES)
    decoding = await open_decoding(tmp_path)
    decoding.chunks = ChunkCache(2**20, decoding.statistics, in_flight_nbytes=4 * NBYTES)
    await decoding.extent((0, 0))
    decoding.gate.close()
    got: list[memoryview] = []

    async def ask(row: int) -> None:
        got.append(await decoding.get((row, 0)))

    async with trio.open_nursery() as nursery:
        for row in range(8):
            nursery.start_soon(ask, row)
        await trio.testing.wait_all_tasks_blocked()
        assert decoding.gate.reads in (2, 3)  # as far as chunks get smaller by encoding
        decoding.gate.opened.set()
    assert len(got) == decoding.gate.reads == 8


@in_trio
async def test_a_chunk_that_claims_far_more_bytes_than_it_decodes_to_is_not_read(tmp_path: Path) -> None:
    store(tmp_path, document(LITTLE, CRC32C, chunk_shape=(1, 100_000)))
    decoding = await open_decoding(tmp_path)
    small = ChunkCodec.parse("int32", (1, 8), decoding.array.codecs)
    extent = await decoding.extent((0, 0))
    with pytest.raises(CorruptionError, match="has 400004 bytes, and 32 decoded"):
        await decoding.chunks.get(decoding.array.layout, (0, 0), extent, small)
    assert decoding.gate.reads == 0


def test_threads_share_a_cache_that_stays_within_its_bounds() -> None:
    cache: SharedCache[int, bytes] = SharedCache(len, 1000)
    interval = sys.getswitchinterval()

    def work(first: int) -> None:
        for number in range(2000):
            key = (first + number * 7) % 40
            value = cache.peek(key)
            assert value is None or value == bytes([key]) * key
            if value is not None:
                cache.touch(key)
            cache.put(key, bytes([key]) * key)
            if number % 5 == 0:
                cache.forget((key + 1) % 40)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for each in [threads.submit(work, first) for first in range(4)]:
                each.result()
    finally:
        sys.setswitchinterval(interval)
    kept = [value for key in range(40) if (value := cache.peek(key)) is not None]
    assert sum(map(len, kept)) == cache._nbytes <= 1000
