"""Shards and documents that change or cannot be read for a moment: when it is seen, and what open extents read."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from shardfs.dataset import hierarchy
from shardfs.dataset.array import Array, Extent
from shardfs.dataset.layout import OwnVersion
from shardfs.errors import AccessDeniedError, ShardfsError, StaleError, StoreError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Stat
from shardfs.stores.local.tree import LocalStore
from tests.support.corpus import GZIP, array, edited, sharding
from tests.support.datasets import store
from tests.support.documents import GROUP, write
from tests.support.gated import GatedStore
from tests.support.opened import Opened, in_trio, open_source

PLAIN = array((8, 6), (4, 6), sharding((2, 3)))
DOCUMENTS = {
    "plain": PLAIN,
    "encoded": array((8, 6), (4, 6), sharding((2, 3)), GZIP),
    "nested": array((8, 6), (4, 6), sharding((4, 6), sharding((2, 3)))),
}
SHARD = "a/c/0/0"


class Versions:
    """An array on disk with two versions of its first shard."""

    def __init__(self, root: Path, kind: str) -> None:
        document = DOCUMENTS[kind]
        self.shard = root / SHARD
        store(root / "b", document, np.arange(1000, 1048, dtype=np.int32).reshape(8, 6))
        self.new_shard = (root / "b" / "c" / "0" / "0").read_bytes()
        self.new = store(root / "b", document, np.arange(1000, 1048, dtype=np.int32).reshape(8, 6))["c/0/0"]
        self.old = store(root / "a", document)["c/0/0"]
        self.old_shard = self.shard.read_bytes()
        assert self.old != self.new

    def replace(self) -> None:
        temporary = self.shard.parent / "temporary"
        temporary.write_bytes(self.new_shard)
        temporary.rename(self.shard)


async def opened(root: Path, **options: Any) -> tuple[Opened, Array]:
    source = open_source(root, **options)
    return source, await source.array("a")


async def extent(array: Array, coords: Coords = (0, 0)) -> Extent:
    found = await array.extent(coords)
    assert found is not None
    return found


async def read(found: Extent | None) -> bytes | None:
    return None if found is None else bytes(await found.read(0, 100))


@in_trio
async def test_a_shard_that_appears_or_goes_is_seen_in_time(tmp_path: Path) -> None:
    versions = Versions(tmp_path, "plain")
    os.unlink(versions.shard)
    source, array = await opened(tmp_path)
    assert (await array.find((0, 0)))[1] is None
    versions.shard.write_bytes(versions.old_shard)
    assert (await array.find((0, 0)))[1] is None, "nothing was asked within the ttl"
    source.clock.now += 1
    assert await read((await array.find((0, 0)))[1]) == versions.old
    os.unlink(versions.shard)
    assert await read((await array.find((0, 0)))[1]) == versions.old
    source.clock.now += 1
    assert (await array.find((0, 0)))[1] is None
    versions.shard.write_bytes(versions.new_shard)
    assert await read(await extent(array)) == versions.new


@pytest.mark.parametrize("fresh", [True, False])
@in_trio
async def test_a_read_that_failed_once_is_tried_again(tmp_path: Path, fresh: bool) -> None:
    """The disk's or the network's error says nothing of the shard."""
    versions, failures = Versions(tmp_path, "plain"), [StoreError("the disk sulks")]

    async def fail(key: str, offset: int, nbytes: int) -> None:
        if key == SHARD and failures:
            raise failures.pop()

    _, opened_array = await opened(tmp_path, store=GatedStore(tmp_path, fail))
    with pytest.raises(StoreError, match="sulks"):
        await opened_array.extent((0, 0))
    assert await read((await opened_array.find((0, 0), fresh=fresh))[1]) == versions.old


@in_trio
async def test_a_shard_that_is_rewritten_while_it_is_opened_is_opened_again(tmp_path: Path) -> None:
    versions = Versions(tmp_path, "plain")
    writes = 3

    async def rewrite(key: str, offset: int, nbytes: int) -> None:
        nonlocal writes
        if key == SHARD and writes:
            writes -= 1
            os.utime(versions.shard, ns=(writes, writes))

    _, opened_array = await opened(tmp_path, store=GatedStore(tmp_path, rewrite))
    assert await read(await extent(opened_array)) == versions.old
    assert writes == 0


@pytest.mark.parametrize("kind", ["nested", "plain"])
@in_trio
async def test_an_enclosed_shard_of_the_old_version_is_never_taken_for_one_of_the_new(
    tmp_path: Path, kind: str
) -> None:
    """A slow reader of the old version and a reader of the new one ask for the same index."""
    versions = Versions(tmp_path, kind)
    slow, reached = trio.Event(), trio.Event()
    gate = True

    async def hold(key: str, offset: int, nbytes: int) -> None:
        nonlocal gate
        if gate and key == SHARD and (offset < 100 or kind == "plain"):  # the index of the innermost shard
            gate = False
            reached.set()
            await slow.wait()

    _, opened_array = await opened(tmp_path, store=GatedStore(tmp_path, hold))
    found: dict[str, bytes | None] = {}

    async def reader(name: str) -> None:
        found[name] = await read(await extent(opened_array))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader, "old")
        await reached.wait()
        versions.replace()
        nursery.start_soon(reader, "new")
        await trio.testing.wait_all_tasks_blocked()
        slow.set()
    assert found == {"old": versions.old, "new": versions.new}
    assert await read(await extent(opened_array)) == versions.new


@in_trio
async def test_growth_does_not_hide_that_the_outermost_index_was_overwritten(tmp_path: Path) -> None:
    versions = Versions(tmp_path, "nested")
    _, array = await opened(tmp_path)
    old = await extent(array)
    data = versions.old_shard
    versions.shard.write_bytes(data[:-20] + bytes(20) + data[-20:])
    with pytest.raises(StaleError):
        await old.read(0, 100)


@in_trio
async def test_a_shard_that_was_overwritten_cannot_be_decoded_again(tmp_path: Path) -> None:
    versions = Versions(tmp_path, "encoded")
    source, array = await opened(tmp_path, max_nbytes=1)
    first, second = await extent(array), await extent(array, (2, 0))
    assert source.statistics.whole_shard_decodes == 2
    versions.shard.write_bytes(versions.new_shard)
    with pytest.raises(StaleError):
        await read(first)
    assert await read(second) is not None


@in_trio
async def test_chunks_of_the_shards_that_are_forgotten_look_changed_once(tmp_path: Path) -> None:
    store(tmp_path / "a", array((80,), (2,), sharding((1,))))
    source, opened_array = await opened(tmp_path, max_own=8)
    seen = {}
    for number in range(0, 80, 2):
        seen[number] = (await opened_array.find((number,)))[0].generation
        source.shards.generations.own(opened_array.layout, (number,), OwnVersion(number, number))
    assert [n for n in range(0, 80, 2) if opened_array.version((n,)).own] == [*range(62, 80, 2)]
    assert (await opened_array.find((78,)))[0].generation == seen[78]
    assert (await opened_array.find((0,)))[0].generation > seen[0], "else its number was that of what was replaced"


# Documents


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "rewritten"])
@in_trio
async def test_a_document_that_changes_while_it_is_loaded_is_loaded_again(root: Path, is_replaced: bool) -> None:
    """Else its writer is shown what was there before, for the length of a TTL."""
    changed = edited(("attributes",), {"changed": 1})

    async def change(key: str, offset: int, nbytes: int) -> None:
        if key == "a/zarr.json" and not (root / "old").exists():
            (root / "old").touch()
            if is_replaced:
                write(root / "a", changed)
                source.hierarchy.forget("a")
            else:
                (root / key).write_text(json.dumps(changed))
                os.utime(root / key, (1e9, 1e9))

    source = open_source(root, ttl=60.0, store=GatedStore(root, change))
    for _ in range(2):
        assert (await source.array("a")).document["attributes"] == {"changed": 1}


@pytest.mark.parametrize(
    ("error", "is_known"),
    [(StoreError("no answer"), False), (StoreError("no answer"), True), (AccessDeniedError("not now"), True)],
)
@in_trio
async def test_a_document_that_cannot_be_read_at_the_moment_does_not_show_shards(
    root: Path, error: ShardfsError, is_known: bool
) -> None:
    async def fail(key: str, offset: int, nbytes: int) -> None:
        if key.endswith("zarr.json") and failing:
            raise error

    failing = False
    source = open_source(root, store=GatedStore(root, fail))
    if is_known:
        await source.array("a")
        os.utime(root / "a/zarr.json")
        source.clock.now += 1
    failing = True
    with pytest.raises(type(error)):
        await source.hierarchy.node("a")
    failing = False
    await source.array("a")


@pytest.mark.parametrize("max_nodes", [hierarchy._MAX_NODES, 1], ids=["known", "forgotten"])
@in_trio
async def test_a_document_that_is_being_written_in_place_does_not_show_shards(
    root: Path, monkeypatch: pytest.MonkeyPatch, max_nodes: int
) -> None:
    monkeypatch.setattr(hierarchy, "_MAX_NODES", max_nodes)
    source = open_source(root)
    array = await source.array("a")
    await source.hierarchy.node("")
    document = root / "a/zarr.json"
    text = document.read_text()
    document.write_text(text[:40])
    source.clock.now += 1
    with pytest.raises(StoreError):
        await source.hierarchy.node("a")
    document.write_text(text)
    source.clock.now += 1
    assert (await source.array("a")).layout is array.layout


def test_directories_that_are_always_looked_at_are_looked_at_once_for_each_question(tmp_path: Path) -> None:
    """What one is depends on all above it, and those on all above them."""
    names = "abcdefgh"
    (tmp_path / "/".join(names)).mkdir(parents=True)
    write(tmp_path, GROUP)
    asked: list[str] = []

    class Noting(LocalStore):
        async def stat(self, key: str) -> Stat:
            asked.append(key)
            return await super().stat(key)

    async def main() -> None:
        opened = open_source(tmp_path, ttl=0, store=Noting(str(tmp_path)))
        for depth in range(1, len(names) + 1):
            asked.clear()
            opened.clock.now += 1
            await opened.hierarchy.node("/".join(names[:depth]))
            directories = ["/".join(names[:n]) for n in range(depth + 1)]
            assert sorted(key for key in asked if key in directories) == directories

    trio.run(main)
