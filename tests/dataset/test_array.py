"""Every array of the corpus: extents and listings against the encoder."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import pytest
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.format.sharding import Coords
from tests.support.corpus import Case, array, extension, rectilinear, sharding, transpose
from tests.support.datasets import store
from tests.support.opened import Opened, StoredCorpus, in_trio, open_source
from tests.support.parametrize import every_case


def all_coords(array: Array) -> list[Coords]:
    return list(product(*map(range, array.grid.grid_shape)))


async def whole(extent: Extent | None) -> bytes | None:
    return None if extent is None else bytes(await extent.read(0, extent.nbytes))


async def opened(stored: StoredCorpus, case: Case, **limits: int) -> tuple[Opened, Array]:
    source = open_source(stored.path(case), **limits)
    return source, await source.array()


@every_case
@in_trio
async def test_a_cache_that_holds_next_to_nothing_changes_nothing_but_speed(stored: StoredCorpus, case: Case) -> None:
    _, array = await opened(stored, case, max_nbytes=1, max_open=1)
    inner = stored.encoded[case.name].inner
    assert await array.has_shards() == bool(stored.encoded[case.name].files)
    for coords in all_coords(array):
        assert await whole(await array.extent(coords)) == inner.get(coords)
        assert await whole((await array.find(coords))[1]) == inner.get(coords)

    async def read(coords: Coords) -> None:
        assert await whole(await array.extent(coords)) == inner.get(coords)

    async with trio.open_nursery() as nursery:
        for coords in reversed(all_coords(array)):
            nursery.start_soon(read, coords)


@in_trio
async def test_a_row_of_a_large_grid_is_found_without_counting_it_out(tmp_path: Any) -> None:
    document = array((2, 2**30), (2, 2**20), sharding((1, 2**10)), data_type="uint8")
    store(tmp_path / "a", array((2, 2**20), (2, 2**20), sharding((1, 2**10)), data_type="uint8"))
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(document))
    source = open_source(tmp_path)
    large = await source.array("a")
    runs = [run async for run in large.list_row((1,), 0)]
    assert [(run.first, run.length) for run in runs] == [(0, 1024)]
    assert await large.extent((1, 2**20 - 1)) is None
    assert source.statistics.index_loads == 1


@pytest.mark.parametrize(
    "document",
    [
        array((40, 30), rectilinear([[2, 3], [4, 4], 18], [[3, 2], 6, [9, 2]]), sharding((2, 3))),
        array((40, 30), rectilinear([20, 8, 12], [6, 24]), transpose(1, 0), sharding((3, 2))),
        array((40, 30), rectilinear([16, 8, 16], [12, 6, 12]), sharding((8, 6), sharding((2, 3)))),
        array((3, 40, 30), rectilinear(1, [20, 8, 12], 6), transpose(2, 0, 1), sharding((3, 1, 2)))
        | {"chunk_key_encoding": extension("v2", separator=".")},
        array((97,), rectilinear([6, 3, [9, 5], 51]), sharding((3,))),
    ],
    ids=str,
)
@in_trio
async def test_shards_of_different_lengths_are_never_taken_for_each_other(tmp_path: Any, document: Any) -> None:
    chunks = store(tmp_path / "a", document)
    source = open_source(tmp_path)
    array = await source.array("a")
    order = all_coords(array)
    for seed in range(3):
        for coords in random.Random(seed).sample(order, len(order)):
            extent = (await array.find(coords))[1]
            assert await whole(extent) == chunks[array.layout.key_encoding.encode(coords)]
