"""What changes behind the tree: superseded numbers, unreadable shards, edited documents."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from shardfs.errors import StaleError
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.inodes import ROOT
from tests.support.corpus import array, sharding
from tests.support.datasets import age, store
from tests.support.gated import GatedStore
from tests.support.opened import Opened, find, in_trio, open_source, open_tree, read_file, rows

NESTED = array((8, 6), (4, 6), sharding((2, 3)))


class Source:
    """An array `a` that changes."""

    def __init__(self, root: Path) -> None:
        self.path = root / "a"
        self.chunks = store(root / "a", NESTED)
        (root / "f").write_bytes(b"old")
        age(root)
        self.opened: Opened = open_source(root)
        self.shard = self.path / "c" / "0" / "0"

    async def tree(self) -> Filesystem:
        return await open_tree(self.opened)

    def later(self) -> None:
        self.opened.clock.now += 1

    def replace(self, change: Callable[[bytes], bytes]) -> None:
        """Put another shard in place, by rename."""
        (self.path / "temporary").write_bytes(change(self.shard.read_bytes()))
        (self.path / "temporary").rename(self.shard)

    def write_document(self, **members: Any) -> None:
        (self.path / "temporary").write_text(json.dumps(NESTED | members))
        (self.path / "temporary").rename(self.path / "zarr.json")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


@in_trio
async def test_a_superseded_number_answers_for_its_handles_and_cannot_be_opened_again(source: Source) -> None:
    fs = await source.tree()
    old, other = await find(fs, "a/c/0/0"), await find(fs, "a/c/2/0")
    number, handle = await fs.open(old.ino)
    store(source.path.parent / "b", NESTED, np.ones((8, 6), np.int32))
    source.replace(lambda _: (source.path.parent / "b/c/0/0").read_bytes())
    with pytest.raises(StaleError):
        await fs.open(old.ino)
    source.later()
    assert (await fs.attributes(old.ino))[:2] == (old.ino, 24)
    assert bytes(await handle.read(0, 100)) == source.chunks["c/0/0"]
    new = await find(fs, "a/c/0/0")
    assert new.ino != old.ino
    assert await read_file(fs, new.ino) == np.ones(6, np.int32).tobytes()
    assert (await find(fs, "a/c/2/0")).ino == other.ino, "other shards keep their numbers"
    fs.open_files.pop(number)
    with pytest.raises(StaleError):
        await fs.attributes(old.ino)


@pytest.mark.parametrize(
    "change", ["unlinked", "damaged", "a directory", "array removed", "document removed", "reshaped"]
)
@in_trio
async def test_an_open_chunk_answers_whatever_becomes_of_its_name(source: Source, change: str) -> None:
    """Programs open, `fstat` and read."""
    fs = await source.tree()
    old = await find(fs, "a/c/0/0")
    _, handle = await fs.open(old.ino)
    match change:
        case "unlinked":
            os.unlink(source.shard)
        case "damaged":
            source.replace(lambda data: data[:-1])
        case "a directory":
            os.unlink(source.shard)
            os.mkdir(source.shard)
        case "array removed":
            shutil.rmtree(source.path)
        case "document removed":
            os.unlink(source.path / "zarr.json")
        case "reshaped":
            source.write_document(shape=[4, 6])
    source.later()
    attributes = await fs.attributes(old.ino)
    assert (attributes.ino, attributes.size, attributes.status.mode) == (old.ino, 24, old.status.mode)
    assert bytes(await handle.read(0, 100)) == source.chunks["c/0/0"]


@pytest.mark.parametrize("change", ["unlinked", "replaced", "directory removed"])
@in_trio
async def test_an_open_file_that_passes_through_answers_whatever_becomes_of_its_name(
    source: Source, change: str
) -> None:
    (source.path / "f").write_bytes(b"old")
    fs = await source.tree()
    old = await find(fs, "a/f")
    number, handle = await fs.open(old.ino)
    match change:
        case "unlinked":
            os.unlink(source.path / "f")
        case "replaced":
            (source.path / "temporary").write_bytes(b"newer")
            os.rename(source.path / "temporary", source.path / "f")
        case "directory removed":
            shutil.rmtree(source.path)
    source.later()
    attributes = await fs.attributes(old.ino)
    assert (attributes.ino, attributes.size) == (old.ino, 3)
    assert bytes(await handle.read(0, 100)) == b"old"
    if change == "replaced":
        assert (await find(fs, "a/f")).ino != old.ino
        with pytest.raises(StaleError):
            await fs.open(old.ino)
    fs.open_files.pop(number)


@in_trio
async def test_a_file_that_passes_through_shows_changes_in_place(source: Source) -> None:
    fs = await source.tree()
    ino = (await find(fs, "f")).ino
    _, handle = await fs.open(ino)
    (source.path.parent / "f").write_bytes(b"new content")
    assert bytes(await handle.read(0, 100)) == b"new content"
    assert (await fs.attributes(ino)).size == 11
    assert (await find(fs, "f")).ino == ino


@in_trio
async def test_answers_carry_the_time_that_remains(source: Source) -> None:
    fs = await source.tree()
    await find(fs, "a/c/0/0")
    source.opened.clock.now += 0.25
    for path in ("a/c/0/0", "a/c/0", "a/c", "a/zarr.json", "a/c/0/1", "a/c/0/7", "a/c/9"):
        assert (await find(fs, path)).ttl == 0.75
    ino = (await find(fs, "a/c/0")).ino
    assert {each.ttl async for _, each in rows(fs, ino)} == {0.75}


@in_trio
async def test_first_lookups_at_the_same_time_give_numbers_that_hold(source: Source) -> None:
    async def slow(key: str, offset: int, nbytes: int) -> None:
        await trio.lowlevel.checkpoint()

    fs = await open_tree(open_source(source.path.parent, store=GatedStore(source.path.parent, slow)))
    parent = (await fs.lookup(ROOT, b"a")).ino
    found: list[int] = []

    async def look_up() -> None:
        found.append((await fs.lookup(parent, b"c")).ino)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(look_up)
    assert len(set(found)) == 1
    for ino in found:
        assert stat.S_ISDIR((await fs.attributes(ino)).status.mode)
