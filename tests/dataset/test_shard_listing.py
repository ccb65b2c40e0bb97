"""Which shards are stored: what a listing of the store says, and what is no shard's name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.array import Array
from shardfs.errors import CorruptionError
from tests.support.corpus import array, extension, sharding
from tests.support.datasets import store
from tests.support.opened import in_trio, open_source

NESTED = array((8, 6), (4, 3), sharding((2, 3)))
ENCODINGS = {
    "default": extension("default", separator="/"),
    "default flat": extension("default", separator="."),
    "v2": extension("v2", separator="/"),
    "v2 flat": extension("v2", separator="."),
}
every_encoding = pytest.mark.parametrize("kind", ENCODINGS)


def document(kind: str) -> dict[str, Any]:
    return NESTED | {"chunk_key_encoding": ENCODINGS[kind]}


async def stored(array: Array) -> dict[int, list[int]]:
    return {i: list(await array.listing.children((i,))) for i in await array.listing.children(())}


async def covered(array: Array) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i in [i async for part in array.covered(()) for i in part]
        for j in [j async for part in array.covered((i,)) for j in part]
    ]


@every_encoding
@in_trio
async def test_shards_are_found_by_their_names(tmp_path: Path, kind: str) -> None:
    store(tmp_path, document(kind))
    array = await open_source(tmp_path).array()
    assert await stored(array) == {0: [0, 1], 1: [0, 1]}
    assert await covered(array) == [(i, j) for i in range(4) for j in range(2)]


@every_encoding
@in_trio
async def test_names_of_no_shard_of_the_grid_are_passed_over(tmp_path: Path, kind: str) -> None:
    store(tmp_path, document(kind))
    array = await open_source(tmp_path).array()
    key = array.layout.shard_key
    os.unlink(tmp_path / key((1, 1)))
    directory = (tmp_path / key((0, 0))).parent
    for name in ("00", "+1", "1~", "c.0", "c.0.00", "0.00", "README", "-1"):
        (directory / name).touch()
    for coords in ((0, 2), (2, 0), (9, 10**17)):
        (tmp_path / key(coords)).parent.mkdir(exist_ok=True)
        (tmp_path / key(coords)).touch()
    assert await stored(array) == {0: [0, 1], 1: [0]}
    assert await covered(array) == [*((i, j) for i in (0, 1) for j in (0, 1)), (2, 0), (3, 0)]


@every_encoding
@in_trio
async def test_a_listing_is_kept_no_longer_than_the_ttl(tmp_path: Path, kind: str) -> None:
    """Also if it was asked for piece by piece."""
    store(tmp_path, document(kind))
    source = open_source(tmp_path)
    array = await source.array()
    assert await array.listing.children(()) == [0, 1]
    os.unlink(tmp_path / array.layout.shard_key((0, 1)))
    source.clock.now += 0.75
    assert await array.listing.children((0,)) in ([0], [0, 1])
    source.clock.now += 0.5
    assert await array.listing.children((0,)) == [0]


@every_encoding
@in_trio
async def test_an_array_without_shards_has_none(tmp_path: Path, kind: str) -> None:
    store(tmp_path, document(kind), absent=[(i, j) for i in range(4) for j in range(2)])
    array = await open_source(tmp_path).array()
    assert await stored(array) == {}
    assert await covered(array) == []
    assert not await array.has_shards()


@in_trio
async def test_files_where_directories_should_be_are_damage(tmp_path: Path) -> None:
    store(tmp_path, NESTED)
    source = open_source(tmp_path)
    array = await source.array()
    shutil.rmtree(tmp_path / "c" / "1")
    (tmp_path / "c" / "1").touch()
    with pytest.raises(CorruptionError):
        await stored(array)
    with pytest.raises(CorruptionError):
        await array.extent((2, 0))
    shutil.rmtree(tmp_path / "c")
    (tmp_path / "c").touch()
    source.clock.now += 1
    with pytest.raises(CorruptionError):
        await stored(array)
    with pytest.raises(CorruptionError):
        await array.extent((0, 0))
