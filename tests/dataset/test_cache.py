"""Open shards: how often an index is loaded, what stays, and how much memory and how many descriptors that takes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.errors import StaleError
from shardfs.format.sharding import Coords
from tests.support.corpus import CRC32C, GZIP, array, sharding
from tests.support.datasets import store
from tests.support.opened import Opened, in_trio, open_source

LINE = array((160,), (16,), sharding((2,)))
"""Ten shards of eight chunks; an index has 132 bytes."""


@pytest.fixture(autouse=True)
def without_leftovers() -> None:
    """What other tests left in cycles must not be closed while descriptors are counted."""
    gc.collect()


async def opened(root: Path, document: dict, **options: object) -> tuple[Opened, Array]:
    store(root / "a", document, np.zeros(document["shape"], np.int32))
    source = open_source(root, **options)
    return source, await source.array("a")


async def read(extent: Extent | None) -> bytes:
    assert extent is not None
    return bytes(await extent.read(0, extent.nbytes))


async def read_all(array: Array, coords: Iterable[Coords]) -> None:
    for each in coords:
        extent = await array.extent(each)
        assert extent is not None
        assert len(await extent.read(0, 10**6)) == extent.nbytes


def shard(number: int) -> list[Coords]:
    return [(8 * number + i,) for i in range(8)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "document", [LINE, array((160,), (16,), sharding((2,)), GZIP, CRC32C)], ids=["plain", "encoded"]
)
@in_trio
async def test_fifty_readers_load_each_index_once(tmp_path: Path, document: dict) -> None:
    source, line = await opened(tmp_path, document)
    async with trio.open_nursery() as nursery:
        for i in range(50):
            nursery.start_soon(read_all, line, [(i % 80,), (79 - i % 80,), (0,)])
    loads = len({c[0] // 8 for i in range(50) for c in ((i,), (79 - i,), (0,))})
    assert source.statistics.index_loads == loads
    assert source.statistics.index_bytes == 132 * loads
    await read_all(line, [(i,) for i in range(80)])
    assert source.statistics.index_loads == 10
    source.clock.now += 100
    await read_all(line, [(i,) for i in range(80)])
    assert source.statistics.index_loads == 10, "the same file needs no second look inside"


@in_trio
async def test_a_reader_that_gives_up_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    source, line = await opened(tmp_path, array((160,), (16,), sharding((2,)), GZIP))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            await line.extent((0,))
        nursery.start_soon(read_all, line, shard(0))
        nursery.start_soon(read_all, line, shard(0))
    assert source.statistics.index_loads == 1


@in_trio
async def test_shards_that_are_used_stay_open(tmp_path: Path) -> None:
    source, line = await opened(tmp_path, LINE, max_open=3)
    for number in (0, 1, 2, 0, 3, 0, 4, 0, 5, 0):
        await read_all(line, shard(number))
    assert source.statistics.index_loads == 6
    await read_all(line, shard(1))
    assert source.statistics.index_loads == 7


@in_trio
async def test_no_more_shards_are_open_than_allowed(tmp_path: Path) -> None:
    before = descriptors()
    _, line = await opened(tmp_path, LINE, max_open=3)
    for number in (*range(10), *reversed(range(10))):
        await read_all(line, shard(number))
        assert descriptors() <= before + 1 + 3


@pytest.mark.parametrize("nbytes", [1, 264, 265, 528, 900])
@in_trio
async def test_indexes_are_bounded_by_bytes(tmp_path: Path, nbytes: int) -> None:
    """An index of 132 bytes is kept as it was stored and decoded: 260 bytes."""
    before = descriptors()
    _, line = await opened(tmp_path, LINE, max_nbytes=nbytes)
    for number in range(10):
        await read_all(line, shard(number))
        assert descriptors() <= before + 1 + max(1, nbytes // 260)
    assert descriptors() >= before + 1 + min(10, max(1, nbytes // 260))


@in_trio
async def test_decoded_shards_are_bounded_by_bytes_and_decoded_again_for_what_is_open(tmp_path: Path) -> None:
    """Of ten shards that have 64 KiB decoded, three are kept, however many chunks of them are open."""
    document = array((10 * 2**14,), (2**14,), sharding((2**10,)), GZIP)
    source, line = await opened(tmp_path, document, max_nbytes=200_000)
    extents = [await line.extent((16 * number,)) for number in range(10)]
    assert source.statistics.whole_shard_decodes == 10
    for number in (7, 8, 9):
        assert await read(extents[number]) == bytes(4096)
    assert source.statistics.whole_shard_decodes == 10
    for number in (0, 1, 2, 0, 1, 2):
        assert await read(extents[number]) == bytes(4096)
    assert source.statistics.whole_shard_decodes == 13


@in_trio
async def test_a_shard_that_was_overwritten_cannot_be_decoded_again(tmp_path: Path) -> None:
    source, line = await opened(tmp_path, array((160,), (16,), sharding((2,)), GZIP), max_nbytes=1)
    first, second = await line.extent((0,)), await line.extent((8,))
    assert source.statistics.whole_shard_decodes == 2
    (tmp_path / "a/c/0").write_bytes((tmp_path / "a/c/1").read_bytes())
    with pytest.raises(StaleError):
        await read(first)
    assert await read(second) == bytes(8)


@in_trio
async def test_a_source_that_is_dropped_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    source, line = await opened(tmp_path, LINE)
    await read_all(line, [(i,) for i in range(80)])
    assert descriptors() == before + 1 + 10
    del source, line
    gc.collect()
    assert descriptors() == before
