"""Arrays below the mount: extents and listings against the encoder, names of shards, and open shards."""

from __future__ import annotations

import gc
import os
import random
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.errors import CorruptionError
from shardfs.format.sharding import Coords
from tests.support.corpus import CRC32C, GZIP, Case, array, extension, rectilinear, sharding, transpose
from tests.support.datasets import store
from tests.support.opened import Opened, StoredCorpus, in_trio, open_source
from tests.support.parametrize import every_case


def all_coords(array: Array) -> list[Coords]:
    return list(product(*map(range, array.grid.grid_shape)))


async def whole(extent: Extent | None) -> bytes | None:
    return None if extent is None else bytes(await extent.read(0, extent.nbytes))


@every_case
@in_trio
async def test_a_cache_that_holds_next_to_nothing_changes_nothing_but_speed(stored: StoredCorpus, case: Case) -> None:
    array = await open_source(stored.path(case), max_nbytes=1, max_open=1).array()
    inner = stored.encoded[case.name].inner
    assert await array.has_shards() == bool(stored.encoded[case.name].files)
    for coords in all_coords(array):
        assert await whole((await array.find(coords))[1]) == inner.get(coords)

    async def read(coords: Coords) -> None:
        assert await whole(await array.extent(coords)) == inner.get(coords)

    async with trio.open_nursery() as nursery:
        for coords in reversed(all_coords(array)):
            nursery.start_soon(read, coords)


@pytest.mark.parametrize(
    "document",
    [
        array((40, 30), rectilinear([[2, 3], [4, 4], 18], [[3, 2], 6, [9, 2]]), sharding((2, 3))),
        array((40, 30), rectilinear([16, 8, 16], [12, 6, 12]), sharding((8, 6), sharding((2, 3)))),
        array((3, 40, 30), rectilinear(1, [20, 8, 12], 6), transpose(2, 0, 1), sharding((3, 1, 2)))
        | {"chunk_key_encoding": extension("v2", separator=".")},
        array((97,), rectilinear([6, 3, [9, 5], 51]), sharding((3,))),
    ],
    ids=str,
)
@in_trio
async def test_shards_of_different_lengths_are_never_taken_for_each_other(tmp_path: Path, document: Any) -> None:
    chunks = store(tmp_path, document)
    array = await open_source(tmp_path).array()
    order = all_coords(array)
    for coords in random.Random(1).sample(order, len(order)):
        assert await whole((await array.find(coords))[1]) == chunks[array.layout.key_encoding.encode(coords)]


# Names of shards


NESTED = array((8, 6), (4, 3), sharding((2, 3)))

every_encoding = pytest.mark.parametrize(
    "encoding", [extension(name, separator=separator) for name in ("default", "v2") for separator in "/."], ids=str
)


async def shards_of(array: Array) -> dict[int, list[int]]:
    return {i: list(await array.listing.children((i,))) for i in await array.listing.children(())}


@every_encoding
@in_trio
async def test_names_of_no_shard_of_the_grid_are_passed_over(tmp_path: Path, encoding: Any) -> None:
    store(tmp_path, NESTED | {"chunk_key_encoding": encoding})
    array = await open_source(tmp_path).array()
    key = array.layout.shard_key
    os.unlink(tmp_path / key((1, 1)))
    directory = (tmp_path / key((0, 0))).parent
    for name in ("00", "+1", "1~", "c.0", "c.0.00", "0.00", "README", "-1"):
        (directory / name).touch()
    for coords in ((0, 2), (2, 0), (9, 10**17)):
        (tmp_path / key(coords)).parent.mkdir(exist_ok=True)
        (tmp_path / key(coords)).touch()
    assert await shards_of(array) == {0: [0, 1], 1: [0]}


@every_encoding
@in_trio
async def test_a_listing_is_kept_no_longer_than_the_ttl(tmp_path: Path, encoding: Any) -> None:
    """Also if it was asked for piece by piece."""
    store(tmp_path, NESTED | {"chunk_key_encoding": encoding})
    source = open_source(tmp_path)
    array = await source.array()
    assert await array.listing.children(()) == [0, 1]
    os.unlink(tmp_path / array.layout.shard_key((0, 1)))
    source.clock.now += 0.75
    assert await array.listing.children((0,)) in ([0], [0, 1])
    source.clock.now += 0.5
    assert await array.listing.children((0,)) == [0]


@in_trio
async def test_files_where_directories_should_be_are_damage(tmp_path: Path) -> None:
    store(tmp_path, NESTED)
    source = open_source(tmp_path)
    array = await source.array()
    for path, coords in (("c/1", (2, 0)), ("c", (0, 0))):
        shutil.rmtree(tmp_path / path)
        (tmp_path / path).touch()
        source.clock.now += 1
        with pytest.raises(CorruptionError):
            await shards_of(array)
        with pytest.raises(CorruptionError):
            await array.extent(coords)


# Open shards


LINE = array((160,), (16,), sharding((2,)))
"""Ten shards of eight chunks; an index has 132 bytes."""


async def opened(root: Path, document: Any, **limits: int) -> tuple[Opened, Array]:
    store(root, document, np.zeros(document["shape"], np.int32))
    source = open_source(root, **limits)
    return source, await source.array()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@in_trio
async def test_who_reads_a_shard_at_the_same_time_loads_its_index_once_whoever_gives_up(tmp_path: Path) -> None:
    source, line = await opened(tmp_path, LINE | {"codecs": [*LINE["codecs"], GZIP, CRC32C]})

    async def read(number: int) -> None:
        assert await whole(await line.extent((number,))) == bytes(8)

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            await line.extent((0,))
        for number in range(16):
            nursery.start_soon(read, number)
    assert source.statistics.index_loads == 2


@pytest.mark.parametrize(
    ("limits", "nopen"),
    [({"max_open": 3}, 3), *(({"max_nbytes": nbytes}, max(1, nbytes // 260)) for nbytes in (1, 519, 520, 900))],
)
@in_trio
async def test_open_shards_are_bounded_by_number_and_bytes(tmp_path: Path, limits: dict[str, int], nopen: int) -> None:
    """An index of 132 bytes is kept as it was stored and decoded: 260 bytes."""
    gc.collect()  # what other tests left in cycles must not be closed while descriptors are counted
    before = descriptors()
    _, line = await opened(tmp_path, LINE, **limits)
    for number in (*range(80), *reversed(range(80))):
        assert await whole(await line.extent((number,))) == bytes(8)
        assert descriptors() <= before + 1 + nopen
    assert descriptors() == before + 1 + nopen


@in_trio
async def test_decoded_shards_are_bounded_by_bytes_and_decoded_again_for_what_is_open(tmp_path: Path) -> None:
    """Of ten shards that have 64 KiB decoded, three are kept, however many chunks of them are open."""
    document = array((10 * 2**14,), (2**14,), sharding((2**10,)), GZIP)
    source, line = await opened(tmp_path, document, max_nbytes=200_000)
    extents = [await line.extent((16 * number,)) for number in range(10)]
    for numbers, ndecoded in (((7, 8, 9), 10), ((0, 1, 2, 0, 1, 2), 13)):
        for number in numbers:
            assert await whole(extents[number]) == bytes(4096)
        assert source.statistics.whole_shard_decodes == ndecoded
