"""Shards that others append to: open extents read on, and new ones see what was appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardfs.dataset.array import Extent
from shardfs.errors import CorruptionError, StaleError
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.opened import in_trio, open_source

SHARD = "c/0/0"


async def read(found: Extent | None) -> bytes | None:
    return None if found is None else bytes(await found.read(0, 100))


@in_trio
async def test_open_extents_of_enclosed_shards_read_on_while_others_append(tmp_path: Path) -> None:
    chunks = store(tmp_path, array((8, 6), (4, 6), sharding((4, 6), sharding((2, 3)))))
    opened = await open_source(tmp_path).array()
    old = await opened.extent((0, 0))
    data = (tmp_path / SHARD).read_bytes()
    with (tmp_path / SHARD).open("ab") as file:
        file.write(b"a payload" + data[-20:])
    assert await read(old) == chunks["c/0/0"]
    assert await read(await opened.extent((0, 0))) == chunks["c/0/0"]


@in_trio
async def test_growth_does_not_hide_that_the_outermost_index_was_overwritten(tmp_path: Path) -> None:
    store(tmp_path, array((8, 6), (4, 6), sharding((4, 6), sharding((2, 3)))))
    extent = await (await open_source(tmp_path).array()).extent((0, 0))
    assert extent is not None
    data = (tmp_path / SHARD).read_bytes()
    (tmp_path / SHARD).write_bytes(data[:-20] + bytes(20) + data[-20:])
    with pytest.raises(StaleError):
        await extent.read(0, 100)


@in_trio
async def test_a_torn_append_harms_no_open_extent_and_is_an_error_for_new_ones(tmp_path: Path) -> None:
    chunks = store(tmp_path, array((8, 6), (4, 6), sharding((2, 3))))
    opened = await open_source(tmp_path).array()
    old = await opened.extent((0, 0))
    with (tmp_path / SHARD).open("ab") as file:
        file.write(b"half of a payload, and no ind")
    assert await read(old) == chunks["c/0/0"]
    with pytest.raises(CorruptionError):
        await opened.extent((0, 0))
    assert await read(old) == chunks["c/0/0"]
