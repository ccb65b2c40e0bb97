"""Faults that pass, and moments between two states: never taken for a verdict on the data."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing

from shardfs.dataset import hierarchy
from shardfs.dataset.array import Array
from shardfs.errors import AccessDeniedError, StoreError
from shardfs.stores.local.reader import LocalSnapshot
from shardfs.stores.local.tree import LocalStore
from tests.crash.harness import Process
from tests.crash.histories import make_source
from tests.support.datasets import age
from tests.support.gated import GatedStore
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio, open_source


@in_trio
async def test_a_document_that_cannot_be_read_at_the_moment_does_not_show_shards(root: Path) -> None:
    async def fail(key: str, offset: int, nbytes: int) -> None:
        if key.endswith("zarr.json") and failing:
            raise StoreError("the disk did not answer")

    failing = True
    source = open_source(root, store=GatedStore(root, fail))
    with pytest.raises(StoreError):
        await source.hierarchy.node("a")
    failing = False
    assert (await source.hierarchy.node("a")).array is not None


@in_trio
async def test_a_document_that_is_being_written_in_place_does_not_show_shards(root: Path) -> None:
    source = open_source(root)
    array = await source.array("a")
    document = root / "a" / "zarr.json"
    text = document.read_text()
    document.write_text(text[:40])
    source.clock.now += 1
    with pytest.raises(StoreError):
        await source.hierarchy.node("a")
    document.write_text(text)
    source.clock.now += 1
    assert (await source.array("a")).layout is array.layout


@in_trio
async def test_a_document_that_may_not_be_read_any_more_does_not_show_shards(root: Path) -> None:
    class Denied(LocalStore):
        async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> LocalSnapshot:
            if denied and key.endswith("zarr.json"):
                raise AccessDeniedError(f"{key}: Permission denied")
            return await super().open(key)

    denied = False
    source = open_source(root, store=Denied(str(root)))
    await source.array("a")
    denied = True
    os.utime(root / "a" / "zarr.json")
    source.clock.now += 1
    with pytest.raises(AccessDeniedError):
        await source.hierarchy.node("a")


@in_trio
async def test_a_document_being_written_is_none_even_if_its_node_was_forgotten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchy, "_MAX_NODES", 1)
    (root / "x").mkdir()
    source = open_source(root)
    await source.array("a")
    (root / "a" / "zarr.json").write_text("{")
    await source.hierarchy.node("x")
    with pytest.raises(StoreError):
        await source.hierarchy.node("a")


@in_trio
async def test_a_document_that_stays_broken_is_a_verdict(root: Path) -> None:
    source = open_source(root)
    await source.array("a")
    (root / "a" / "zarr.json").write_text("{")
    age(root)
    source.clock.now += 1
    node = await source.hierarchy.node("a")
    assert node.array is None
    assert node.reason


@in_trio
async def test_an_array_keeps_its_arrangement_when_its_node_was_forgotten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchy, "_MAX_NODES", 2)
    for name in ("x", "y", "z"):
        (root / name).mkdir()
    source = open_source(root)
    before = (await source.array("a")).layout
    for name in ("x", "y", "z"):
        await source.hierarchy.node(name)
    assert (await source.array("a")).layout is before


@in_trio
async def test_an_open_that_joins_an_older_load_asks_again(root: Path) -> None:
    loading, replaced = trio.Event(), trio.Event()

    async def hold(key: str, offset: int, nbytes: int) -> None:
        if key.endswith("c/0/0") and not loading.is_set():
            loading.set()
            await replaced.wait()

    source = open_source(root, store=GatedStore(root, hold))
    array = await source.array("a")
    shard = root / "a" / "c/0/0"
    found: list[bytes | None] = []

    async def read() -> None:
        extent = await array.extent((0, 0))
        found.append(None if extent is None else bytes(await extent.read(0, extent.nbytes)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await loading.wait()
        other = root / "a" / "c/0/other"
        other.write_bytes((root / "a" / "c/0/1").read_bytes())
        other.rename(shard)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        replaced.set()
    expected = await (await open_source(root).array("a")).extent((0, 0))
    assert expected is not None
    assert found[-1] == bytes(await expected.read(0, expected.nbytes))


@in_trio
async def test_a_chunk_that_is_written_after_an_earlier_version_could_not_be_compared_stays_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "source"
    make_source(root)
    await (await Process.start(root, QuickDisk())).write("end", 0, b"older")
    with monkeypatch.context() as patched:
        patched.setattr(Array, "stored_entry", AsyncMock(side_effect=StoreError("the disk did not answer")))
        process = await Process.start(root, QuickDisk())
    assert process.writing.journal.live == 1
    await process.write("end", 0, b"newer")
    await process.clean()
    recovered = await Process.start(root, QuickDisk())
    found = await (await recovered.array("end")).extent((0,))
    assert found is not None
    assert bytes(await found.read(0, found.nbytes)) == b"newer"
    recovered.check_done()
