"""Damaged shards: an error for exactly what is damaged, and for nothing else."""

import gzip
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardfs.dataset.array import Array
from shardfs.errors import CorruptionError, StoreError
from tests.support.corpus import CRC32C, GZIP, LITTLE, array, sharding
from tests.support.datasets import age, store
from tests.support.encoder import EMPTY
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source

BARE = array((8, 6), (4, 6), sharding((2, 3), index_codecs=[LITTLE]))
CHECKED = array((8, 6), (4, 6), sharding((2, 3)))
AT_START = array((8, 6), (4, 6), sharding((2, 3), index_location="start"))
ENCODED = array((8, 6), (4, 6), sharding((2, 3)), GZIP)
NESTED = array((16, 12), (8, 12), sharding((4, 6), sharding((2, 3))))
BETWEEN = array((16, 12), (8, 12), sharding((4, 6), sharding((2, 3)), CRC32C))
SHARD = "c/0/0"


async def outcomes(array: Array) -> dict[tuple[int, ...], bytes | None]:
    """Every chunk's bytes; None for those that are corrupt."""
    found: dict[tuple[int, ...], bytes | None] = {}
    for coords in product(*map(range, array.grid.grid_shape)):
        for _ in range(2):
            try:
                extent = await array.extent(coords)
            except CorruptionError:
                found[coords] = None
            else:
                assert extent is not None, "damage must not look like absence"
                found[coords] = bytes(await extent.read(0, extent.nbytes))
    return found


async def check(root: Path, chunks: dict[str, bytes], damaged: set[tuple[int, ...]]) -> None:
    array = await open_source(root).array("a")
    expected = {tuple(map(int, key.split("/")[1:])): data for key, data in chunks.items()}
    assert await outcomes(array) == expected | dict.fromkeys(damaged)


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))
    age(path.parent.parent.parent)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def entries_changed(changes: dict[int, tuple[int, int]]) -> Callable[[bytes], bytes]:
    """Replace entries of the four of an index of 64 bytes at the end."""

    def change(data: bytes) -> bytes:
        index = np.frombuffer(data[-64:], "<u8").reshape(4, 2).copy()
        for entry, value in changes.items():
            index[entry] = value
        return data[:-64] + index.tobytes()

    return change


WHOLE = {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize(
    ("document", "change", "damaged"),
    [
        (BARE, lambda data: b"", WHOLE),
        (CHECKED, lambda data: data[:-1], WHOLE),
        (CHECKED, lambda data: data + b"\0", WHOLE),
        (CHECKED, lambda data: flipped(data, -1), WHOLE),
        (AT_START, lambda data: flipped(data, 0), WHOLE),
        (AT_START, lambda data: data[:-1], {(1, 1)}),
        (AT_START, lambda data: data[: 68 + 30], {(0, 1), (1, 0), (1, 1)}),
        (AT_START, lambda data: data[:68], WHOLE),
        (BARE, entries_changed({1: (96 + 64, 1)}), {(0, 1)}),
        (BARE, entries_changed({2: (0, EMPTY)}), {(1, 0)}),
        (BARE, entries_changed({0: (EMPTY - 3, 4), 3: (1, EMPTY - 1)}), {(0, 0), (1, 1)}),
        (BARE, entries_changed({3: (2**63, 2**63)}), {(1, 1)}),
        (ENCODED, lambda data: data[:-1], WHOLE),
        (ENCODED, lambda data: flipped(data, -6), WHOLE),
        (ENCODED, lambda data: gzip.compress(b"short"), WHOLE),
        (NESTED, lambda data: flipped(data, -1), {(i, j) for i in range(4) for j in range(4)}),
        (NESTED, lambda data: flipped(data, 96 + 67), WHOLE),
        (NESTED, lambda data: flipped(data, 2 * (96 + 68) - 1), {(0, 2), (0, 3), (1, 2), (1, 3)}),
        (BETWEEN, lambda data: flipped(data, 0), WHOLE),
        (BETWEEN, lambda data: flipped(data, 96 + 68 + 3), WHOLE),
    ],
)
@in_trio
async def test_exactly_what_is_damaged_is_an_error(
    tmp_path: Path, document: Any, change: Callable[[bytes], bytes], damaged: set[tuple[int, ...]]
) -> None:
    chunks = store(tmp_path / "a", document)
    damage(tmp_path / "a" / SHARD, change)
    await check(tmp_path, chunks, damaged)


@in_trio
async def test_zero_bytes_are_a_chunk_and_shared_ranges_are_fine(tmp_path: Path) -> None:
    chunks = store(tmp_path / "a", BARE)
    damage(tmp_path / "a" / SHARD, entries_changed({0: (96 + 64, 0), 1: (0, 160), 2: (48, 24)}))
    shard = (tmp_path / "a" / SHARD).read_bytes()
    await check(tmp_path, chunks | {"c/0/0": b"", "c/0/1": shard, "c/1/0": chunks["c/1/0"]}, set())


@in_trio
async def test_a_link_to_nothing_is_damage(tmp_path: Path) -> None:
    chunks = store(tmp_path / "a", CHECKED)
    os.unlink(tmp_path / "a" / SHARD)
    os.symlink("../../not-fetched", tmp_path / "a" / SHARD)
    await check(tmp_path, chunks, WHOLE)
    os.unlink(tmp_path / "a" / SHARD)
    os.mkfifo(tmp_path / "a" / SHARD)
    with pytest.raises(CorruptionError):
        await (await open_source(tmp_path).array("a")).extent((0, 0))


@pytest.mark.parametrize("fresh", [True, False])
@in_trio
async def test_a_read_that_failed_once_is_tried_again(tmp_path: Path, fresh: bool) -> None:
    """The disk's or the network's error says nothing of the shard."""
    chunks = store(tmp_path / "a", CHECKED)
    failures = [StoreError("the disk sulks")]

    async def hook(key: str, offset: int, nbytes: int) -> None:
        if key == "a/c/0/0" and failures:
            raise failures.pop()

    array = await open_source(tmp_path, store=GatedStore(tmp_path, hook)).array("a")
    with pytest.raises(StoreError, match="sulks"):
        await array.extent((0, 0))
    _, extent = await array.find((0, 0), fresh=fresh)
    assert extent is not None
    assert bytes(await extent.read(0, 100)) == chunks["c/0/0"]
