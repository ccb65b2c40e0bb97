"""How long the kernel may believe what it was answered."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from shardfs.errors import StaleError
from shardfs.vfs.inodes import ROOT
from tests.support.corpus import array, sharding
from tests.support.datasets import age, store
from tests.support.opened import find, in_trio, open_source, open_tree, rows


@in_trio
async def test_answers_carry_the_time_that_remains(tmp_path: Path) -> None:
    store(tmp_path / "a", array((8, 6), (4, 6), sharding((2, 3))))
    age(tmp_path)
    opened = open_source(tmp_path)
    fs = await open_tree(opened)
    await find(fs, "a/c/0/0")
    opened.clock.now += 0.25
    for path in ("a/c/0/0", "a/c/0", "a/c", "a/zarr.json", "a/c/0/1", "a/c/0/7", "a/c/9"):
        assert (await find(fs, path)).ttl == 0.75
    ino = (await find(fs, "a/c/0")).ino
    assert {each.ttl async for _, each in rows(fs, ino)} == {0.75}


@pytest.mark.parametrize("forgets_at_once", [True, False])
@in_trio
async def test_no_number_of_a_chunk_comes_back_when_its_array_gets_another_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets_at_once: bool
) -> None:
    """A program may have asked for the document before anybody looked at the chunks again."""
    if forgets_at_once:
        monkeypatch.setattr("shardfs.dataset.layout._MAX_RETIRED", 1)
    root = tmp_path / "array"

    def write(version: int, shape: tuple[int, int]) -> None:
        values = np.full(shape, version, "i4")
        store(root, array(shape, (4, 6), sharding((2, 3))), values=values)
        for path in root.rglob("*"):
            os.utime(path, ns=(1_600_000_000_000_000_000 + version * 10**9,) * 2)

    write(0, (8, 6))
    opened = open_source(root)
    fs = await open_tree(opened)
    directory = (await fs.lookup(ROOT, b"c")).ino

    async def number() -> int:
        return (await fs.lookup((await fs.lookup(directory, b"0")).ino, b"0")).ino

    numbers = [await number()]
    opened.clock.now += 2
    write(1, (8, 6))
    document = (await fs.lookup(ROOT, b"zarr.json")).ino
    numbers.append(await number())
    write(2, (12, 6))
    with suppress(StaleError):
        await fs.close((await fs.open(document))[0])
    with suppress(StaleError):
        numbers.append(await number())
    assert len(set(numbers)) == len(numbers) >= 2
