"""What changes behind the tree: superseded numbers, unreadable shards, edited documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardfs.vfs.filesystem import Filesystem
from tests.support.corpus import array, sharding
from tests.support.datasets import age, store
from tests.support.opened import Opened, find, in_trio, open_source, open_tree, rows

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
