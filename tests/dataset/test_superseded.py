"""Over what a change was published: how that is noted, and what becomes of it if others stored something there."""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from shardfs.dataset.array import Array
from shardfs.dataset.journal import records
from shardfs.dataset.journal.recovery import read_left
from shardfs.dataset.state.directory import StateDirectory
from shardfs.format.sharding import Coords
from shardfs.stores.local.reader import LocalSnapshot
from tests.crash.harness import Process, stored
from tests.crash.histories import PER_SHARD, payload_of
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio

APPENDED = ["end", "unchecked", "nested"]
"""Arrays whose shards are appended to: the next version has the last one in it."""

WRITTEN_ANEW = ["start", "encoded"]
INDEX = 16 * PER_SHARD
NBYTES_OF_INDEXES = {"end": INDEX + 4, "unchecked": INDEX, "nested": 16 * 2 + 4 + 16 * 2 + 4}
NEW, OTHER = 70, 80


def shard(root: Path, path: str) -> Path:
    return root / path / "c/0"


async def store_two(root: Path, path: str) -> None:
    process = await Process.start(root, QuickDisk())
    for number in range(2):
        await process.write(path, number, payload_of(path, 50 + number))
    await process.commit()
    await process.finish()


async def publish(root: Path, path: str) -> Process:
    """Publish over chunk 0 in a process that does not commit that."""
    process = await Process.start(root, QuickDisk())
    await process.write(path, 0, payload_of(path, NEW))
    await process.sync()
    return process


async def recovered(root: Path, path: str) -> tuple[bytes | None, int]:
    """Let the next process recover: returns chunk 0 as it is stored then, and how many conflicts there are."""
    process = await Process.start(root, QuickDisk())
    await process.commit()
    await process.finish()
    (data,) = await stored(root, path, range(1))
    conflicts = Path(StateDirectory(str(root)).conflicts)
    return data, len(read_left(str(conflicts)).records)


async def as_others_store(root: Path, path: str, number: int, data: bytes) -> bytes:
    """A shard as it is when one of its chunks was stored by shardfs on another machine."""
    copied = root.parent / "copied"
    shutil.copytree(root, copied, ignore=shutil.ignore_patterns(".shardfs"))
    process = await Process.start(copied, QuickDisk())
    await process.write(path, number, data)
    await process.commit()
    await process.finish()
    changed = shard(copied, path).read_bytes()
    shutil.rmtree(copied)
    return changed


async def append_another(root: Path, path: str) -> None:
    old, new = shard(root, path).read_bytes(), await as_others_store(root, path, 1, payload_of(path, OTHER))
    assert new.startswith(old)
    with shard(root, path).open("ab") as file:
        file.write(new[len(old) :])


async def append_twice(root: Path, path: str) -> None:
    await append_another(root, path)
    old, new = shard(root, path).read_bytes(), await as_others_store(root, path, 3, payload_of(path, OTHER))
    assert new.startswith(old)
    with shard(root, path).open("ab") as file:
        file.write(new[len(old) :])


async def append_same(root: Path, path: str) -> None:
    shard(root, path).write_bytes(await as_others_store(root, path, 0, payload_of(path, OTHER)))


async def append_ours(root: Path, path: str) -> None:
    shard(root, path).write_bytes(await as_others_store(root, path, 0, payload_of(path, NEW)))


async def write_in_place(root: Path, path: str) -> None:
    data = bytearray(shard(root, path).read_bytes())
    data[10] ^= 1  # of chunk 0
    shard(root, path).write_bytes(data)


async def rename_over(root: Path, path: str) -> None:
    other = shard(root, path).with_suffix(".partial")
    shutil.copy(shard(root, path), other)
    await write_in_place(root, path)
    os.replace(other, shard(root, path))  # the same bytes, which nobody knows


async def remove(root: Path, path: str) -> None:
    shard(root, path).unlink()


async def copy_back(root: Path, path: str) -> None:
    shutil.copy2(shard(root, path), shard(root, path).with_suffix(".partial"))
    os.replace(shard(root, path).with_suffix(".partial"), shard(root, path))


async def nothing(root: Path, path: str) -> None:
    pass


@pytest.mark.parametrize("path", APPENDED)
@in_trio
async def test_a_chunk_that_is_overwritten_is_not_read(arrays: Path, path: str) -> None:
    await store_two(arrays, path)
    process = await Process.start(arrays, QuickDisk())
    read, nbytes = LocalSnapshot.read, list[int]()

    async def counted(self: LocalSnapshot, offset: int, count: int, extent: tuple[int, int] | None = None) -> object:
        if "/c/" in self._key:
            nbytes.append(count)
        return await read(self, offset, count, extent)

    with patch.object(LocalSnapshot, "read", counted):
        for seed in (NEW, OTHER):  # over what is stored, and over what is pending
            for number in range(2):
                await process.write(path, number, payload_of(path, seed + number))
        assert sum(nbytes) == NBYTES_OF_INDEXES[path], "each index once"


@pytest.mark.parametrize("path", APPENDED)
@pytest.mark.parametrize(
    ("happens", "seed", "nconflicts"),
    [
        (nothing, NEW, 0),
        (copy_back, NEW, 0),
        (append_another, NEW, 0),
        (append_twice, NEW, 0),
        (append_ours, NEW, 0),
        (append_same, OTHER, 1),
        (write_in_place, None, 1),
        (rename_over, 50, 1),
        (remove, None, 1),
    ],
)
@in_trio
async def test_after_a_crash_a_change_is_made_if_its_chunk_is_what_it_was_else_a_conflict(
    arrays: Path, path: str, happens: Callable[[Path, str], Awaitable[None]], seed: int | None, nconflicts: int
) -> None:
    await store_two(arrays, path)
    await publish(arrays, path)
    await happens(arrays, path)
    (before,) = await stored(arrays, path, range(1))
    data, found = await recovered(arrays, path)
    assert found == nconflicts
    assert data == (before if seed is None else payload_of(path, seed))


@pytest.mark.parametrize("seconds", [-1, 0, 10_413_792_000], ids=["1969", "1970", "2300"])
@in_trio
async def test_a_shard_may_have_any_time(arrays: Path, seconds: int) -> None:
    await store_two(arrays, "end")
    os.utime(shard(arrays, "end"), (seconds, seconds))
    await publish(arrays, "end")
    assert await recovered(arrays, "end") == (payload_of("end", NEW), 0)


@pytest.mark.parametrize("path", WRITTEN_ANEW)
@pytest.mark.parametrize("happens", [nothing, append_same, append_ours, remove])
@in_trio
async def test_the_same_where_commits_write_shards_anew(
    arrays: Path, path: str, happens: Callable[[Path, str], Awaitable[None]]
) -> None:
    await store_two(arrays, path)
    await publish(arrays, path)
    await happens(arrays, path)
    (before,) = await stored(arrays, path, range(1))
    is_ours = happens in (nothing, append_ours)
    assert await recovered(arrays, path) == (payload_of(path, NEW) if is_ours else before, not is_ours)


@pytest.mark.parametrize("path", WRITTEN_ANEW)
@in_trio
async def test_where_commits_write_shards_anew_those_of_other_chunks_by_others_are_no_conflicts(
    arrays: Path, path: str
) -> None:
    await store_two(arrays, path)
    await publish(arrays, path)
    shard(arrays, path).write_bytes(await as_others_store(arrays, path, 1, payload_of(path, OTHER)))
    assert await recovered(arrays, path) == (payload_of(path, NEW), 0)


@pytest.mark.parametrize("path", [*APPENDED, *WRITTEN_ANEW])
@pytest.mark.parametrize("happens", [nothing, append_another, append_same, write_in_place, remove])
@in_trio
async def test_a_journal_of_the_version_before_is_replayed(
    arrays: Path, path: str, happens: Callable[[Path, str], Awaitable[None]]
) -> None:
    """Its records have a checksum of the chunk, and say so whatever else was stored in the shard."""
    if path not in APPENDED and happens in (append_another, write_in_place):
        return

    async def note(self: Array, coords: Coords) -> records.Superseded:
        place = self.layout.locate(coords)
        _, opened = await self._shards.open(self.layout, place, fresh=True)
        return None if opened is None else await self._identify(opened, place.entries[-1])

    await store_two(arrays, path)
    with patch.object(records, "VERSION", 6), patch.object(Array, "note", note):
        await publish(arrays, path)
    (segment,) = os.listdir(StateDirectory(str(arrays)).journal)
    assert segment.endswith(".v6.journal")
    await happens(arrays, path)
    (before,) = await stored(arrays, path, range(1))
    is_made = happens in (nothing, append_another)
    assert await recovered(arrays, path) == (payload_of(path, NEW) if is_made else before, not is_made)


@pytest.mark.parametrize("path", APPENDED + WRITTEN_ANEW)
@in_trio
async def test_what_seems_to_be_changed_while_its_shard_is_being_written_is_judged_under_the_lock(
    arrays: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes over what another session left may itself be appending to the shard at that moment."""
    await store_two(arrays, path)
    await publish(arrays, path)
    is_as_noted, looks = Array.is_as_noted, list[bool]()

    async def looks_twice(array: Array, *arguments: Any) -> bool:
        looks.append((arrays / path / "c/0.__lock").exists())
        return await is_as_noted(array, *arguments) if looks[-1] else False

    monkeypatch.setattr(Array, "is_as_noted", looks_twice)
    assert await recovered(arrays, path) == (payload_of(path, NEW), 0)
    assert looks[:2] == [False, True]
