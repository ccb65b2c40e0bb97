"""Snapshots of local files: one version or `StaleError`, and no descriptor that outlives its use."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from shardfs.errors import OutsideSourceError, ShardfsError, StaleError
from shardfs.stores.local.reader import LocalSnapshot
from shardfs.stores.local.tree import LocalStore
from tests.support.datasets import LONG_AGO, age
from tests.support.opened import in_trio

OLD = b"old content, " * 100
NEW = b"new content, " * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    age(tmp_path)
    return path


async def opened(path: Path) -> LocalSnapshot:
    return await LocalStore(str(path.parent)).open(path.name)


async def whole(snapshot: LocalSnapshot) -> bytes:
    return bytes(await snapshot.read(0, len(OLD)))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("change", ["touch", "overwrite", "append", "truncate", "empty", "shrink and grow"])
@in_trio
async def test_a_change_in_place_is_stale(path: Path, change: str) -> None:
    snapshot = await opened(path)
    assert await whole(snapshot) == OLD
    match change:
        case "touch":
            os.utime(path)
        case "overwrite":
            overwrite(path, 3, b"x")
        case "append":
            overwrite(path, len(OLD), b"x")
        case "truncate":
            os.truncate(path, len(OLD) - 1)
        case "empty":
            os.truncate(path, 0)
        case "shrink and grow":
            os.truncate(path, 0)
            overwrite(path, 0, NEW)
    for _ in range(2):
        with pytest.raises(StaleError):
            await snapshot.read(0, 5)
    assert not await snapshot.is_current()


@in_trio
async def test_a_new_size_is_stale_even_under_the_old_time(path: Path) -> None:
    snapshot = await opened(path)
    os.truncate(path, len(OLD) - 1)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    with pytest.raises(StaleError):
        await snapshot.read(0, 5)


@in_trio
async def test_another_name_for_the_file_is_no_change_of_it(path: Path) -> None:
    snapshot = await opened(path)
    os.chmod(path, 0o600)
    os.link(path, path.parent / "other")
    assert await whole(snapshot) == OLD


@in_trio
async def test_growth_that_left_the_content_is_accepted(path: Path) -> None:
    snapshot = await opened(path)
    overwrite(path, len(OLD), b"appended")
    assert await snapshot.accept_growth(100, OLD[100:200])
    assert await whole(snapshot) == OLD
    assert bytes(await snapshot.read(len(OLD), 8)) == b"appended"
    overwrite(path, len(OLD) + 8, b" again")
    with pytest.raises(StaleError):
        await snapshot.read(0, 5)
    assert await snapshot.accept_growth(100, OLD[100:200])
    assert await whole(snapshot) == OLD


@in_trio
async def test_growth_that_changed_the_content_is_not_accepted(path: Path) -> None:
    snapshot = await opened(path)
    overwrite(path, 150, b"!")
    overwrite(path, len(OLD), b"appended")
    assert not await snapshot.accept_growth(100, OLD[100:200])
    with pytest.raises(StaleError):
        await snapshot.read(0, 5)


@pytest.mark.parametrize("size", [0, 100, 199, len(OLD)])
@in_trio
async def test_what_did_not_grow_is_not_accepted(path: Path, size: int) -> None:
    snapshot = await opened(path)
    os.truncate(path, size)
    os.utime(path)
    assert not await snapshot.accept_growth(100, OLD[100:200])
    with pytest.raises(StaleError):
        await snapshot.read(0, 5)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@in_trio
async def test_no_descriptor_is_left_behind(path: Path) -> None:
    (path.parent / "d").mkdir()
    (path.parent / "d" / "out").symlink_to("../..")
    (path.parent / "loop").symlink_to("loop")
    os.mkfifo(path.parent / "pipe")
    store = LocalStore(str(path.parent))
    before = descriptors()
    for _ in range(20):
        await whole(await store.open("f"))
        await store.list("")
        await store.list("d")
        await store.stat("d/out")
        await store.stat_in("d", ["out", "gone"])
        await store.attributes("f")
        await store.read_link("d/out")
        for key in ("gone", "d", "d/out/x", "loop", "pipe", "f/x", "d/gone/x"):
            with pytest.raises(ShardfsError):
                await store.open(key)
            with pytest.raises(ShardfsError):
                await store.list(key + "/x")
    assert descriptors() <= before


@in_trio
async def test_a_snapshot_holds_one_descriptor_until_its_last_reference(path: Path) -> None:
    store = LocalStore(str(path.parent))
    before = descriptors()
    snapshots = [await store.open("f") for _ in range(10)]
    assert descriptors() == before + 10
    kept = snapshots[3]
    snapshots.clear()
    assert descriptors() == before + 1
    assert await whole(kept) == OLD


@in_trio
async def test_an_error_that_is_kept_pins_nothing(path: Path) -> None:
    """The cache of shards keeps errors."""
    (path.parent / "d").mkdir()
    (path.parent / "d" / "out").symlink_to("../..")
    store = LocalStore(str(path.parent))
    before = descriptors()
    try:
        await store.open("d/out/x")
    except OutsideSourceError as error:
        kept = error.with_traceback(None)
    assert str(kept)
    assert descriptors() <= before
