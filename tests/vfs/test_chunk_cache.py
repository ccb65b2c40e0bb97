"""Decoded chunks: each decoded once however many ask, kept within bounds, and never of another version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.statistics import Statistics
from shardfs.errors import ShardfsError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.sharding import Coords
from shardfs.vfs.chunk_cache import ChunkCache, DecodedChunk
from tests.support.corpus import LITTLE, ZSTD, array, sharding
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
    """Counts the reads of payloads, and keeps them waiting while it is closed; may fail or cancel them."""

    def __init__(self) -> None:
        self.reads = 0
        self.opened = trio.Event()
        self.opened.set()
        self.error: ShardfsError | None = None

    def close(self) -> None:
        self.opened = trio.Event()

    async def __call__(self, key: str, offset: int, nbytes: int) -> None:
        if key.endswith("zarr.json"):
            return
        self.reads += 1
        await self.opened.wait()
        if self.error is not None:
            raise self.error


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

    async def plain(self, coords: Coords) -> DecodedChunk:
        return DecodedChunk(self.chunks, self.array.layout, coords, await self.extent(coords), self.codec)


async def open_decoding(root: Path, max_nbytes: int = 2**20) -> Decoding:
    gate = Gate()
    opened = open_source(root, store=GatedStore(root, gate))
    found = await opened.array()
    codec = ChunkCodec.parse("int32", found.grid.chunk_shape, found.codecs)
    return Decoding(found, codec, ChunkCache(max_nbytes, opened.statistics), opened.statistics, gate)


@asynccontextmanager
async def waiting(decoding: Decoding, ntasks: int, coords: Coords) -> AsyncIterator[list[object]]:
    """Tasks that ask for one chunk while its read waits; what they got, or what they raised."""
    got: list[object] = []

    async def ask() -> None:
        try:
            got.append(bytes(await decoding.get(coords)))
        except ShardfsError as error:
            got.append(error)

    await decoding.extent(coords)
    decoding.gate.close()
    async with trio.open_nursery() as nursery:
        for _ in range(ntasks):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        yield got


@pytest.fixture(params=[CHUNK_SHAPE, (1, 32768)], ids=["at-once", "in-a-thread"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store(tmp_path / "a", document(LITTLE, ZSTD, chunk_shape=request.param))
    return tmp_path / "a"


@in_trio
async def test_tasks_that_want_one_chunk_share_one_decoding(source: Path) -> None:
    decoding = await open_decoding(source)
    async with waiting(decoding, 5, (3, 0)) as got:
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
