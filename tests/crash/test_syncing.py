"""What a program syncs is durable, whoever wrote it, and however the program has opened it."""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from shardfs.stores.base import Kept, Splice
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from tests.crash.crashes import recover
from tests.crash.harness import OWNER, Process, stored
from tests.crash.histories import payload_of
from tests.support.lossy_disk import LossyDisk, Machine, QuickDisk, oldest
from tests.support.opened import find

NEW = payload_of("unchecked", 77)


async def _sync(process: Process, path: str) -> None:
    """Do what `sync FILE` does."""
    handle = (await process.fs.open((await find(process.fs, path)).ino)).number
    await process.fs.sync(handle)
    await process.fs.close(handle)


async def _write_chunk(process: Process) -> None:
    await process.write("unchecked", 1, NEW)
    await _sync(process, "unchecked/c/1")


async def _write_another(process: Process) -> None:
    await process.write("unchecked", 1, NEW)
    await _sync(process, "unchecked/c/2")


async def _write_before_a_document(process: Process) -> None:
    await process.write("unchecked", 1, NEW)
    await _sync(process, "unchecked/zarr.json")


def lost_power(directory: Path, template: Path, change: Callable[[Process], Awaitable[None]]) -> Path:
    """Return what is left if all is lost that was not synced."""
    root, after = directory / "source", directory / "after"
    shutil.copytree(template, root)
    disk = LossyDisk(root)

    async def live() -> None:
        await change(await Process.start(root, disk))

    trio.run(live)
    disk.after_power_cut(oldest, keeps_inodes=True).build(after)
    trio.run(recover, after, QuickDisk(), False)
    return after


@pytest.mark.parametrize("change", [_write_chunk, _write_another, _write_before_a_document])
def test_chunks_are_durable_once_a_reader_of_a_file_has_synced_it(
    tmp_path: Path, template: Path, change: Callable[[Process], Awaitable[None]]
) -> None:
    after = lost_power(tmp_path, template, change)
    assert trio.run(stored, after, "unchecked", range(1, 2)) == [NEW]


def test_a_file_is_durable_once_a_reader_has_synced_it(tmp_path: Path, template: Path) -> None:
    async def change(process: Process) -> None:
        directory = (await find(process.fs, "")).ino
        handle, _, _ = await process.fs.create(directory, b"notes", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
        await process.fs.open_files[handle].write(0, b"new")
        await _sync(process, "notes")
        await process.fs.sync_directory(directory)

    after = lost_power(tmp_path, template, change)
    assert (after / "notes").read_bytes() == b"new"


async def _write_file(process: Process, name: str, data: bytes) -> None:
    """Write a chunk file of the unsharded array as the file that it is, and sync nothing."""
    directory = (await find(process.fs, "unsharded/c")).ino
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    handle, _, _ = await process.fs.create(directory, name.encode(), 0o644, flags, OWNER)
    await process.fs.open_files[handle].write(0, data)
    await process.fs.close(handle)


async def _create_file(process: Process) -> None:
    await _write_file(process, "3", payload_of("unsharded", 55))


async def _overwrite_file(process: Process) -> None:
    await _write_file(process, "1", payload_of("unsharded", 55))


async def _remove_file(process: Process) -> None:
    await process.fs.unlink((await find(process.fs, "unsharded/c")).ino, b"1")


@pytest.mark.parametrize(
    ("before", "publishes"),
    [(_create_file, True), (_overwrite_file, True), (_remove_file, True), (_overwrite_file, False)],
)
def test_what_is_synced_is_no_conflict_though_what_it_replaced_was_not_durable(
    tmp_path: Path, template: Path, before: Callable[[Process], Awaitable[None]], publishes: bool
) -> None:
    root, after = tmp_path / "source", tmp_path / "after"
    shutil.copytree(template, root)
    disk = Machine(root)
    number, new = 3 if before is _create_file else 1, payload_of("unsharded", 77) if publishes else None

    async def write_as_file() -> None:
        await before(await Process.start(root, disk))

    async def publish_and_sync() -> None:
        process = await Process.start(root, disk, v2=True)
        if new is None:
            await process.remove("unsharded", number)
        else:
            await process.write("unsharded", number, new)
        await process.sync()

    trio.run(write_as_file)
    trio.run(publish_and_sync)
    disk.after_power_cut(oldest, keeps_inodes=True).build(after)
    trio.run(recover, after, QuickDisk(), True)
    chunk = after / f"unsharded/c/{number}"
    assert (chunk.read_bytes() if chunk.exists() else None) == new


def test_what_is_synced_is_no_conflict_though_another_session_appended_between_and_synced_nothing(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, after = tmp_path / "source", tmp_path / "after"
    shutil.copytree(template, root)
    disk, (first, second) = Machine(root, at_once=False), (payload_of("unchecked", seed) for seed in (77, 78))

    async def publish_beside_another() -> None:
        process = await Process.start(root, disk)
        await process.write("unchecked", 1, first)
        with monkeypatch.context() as patch:  # of the other session
            for name in ("sync", "sync_directory"):
                patch.setattr(Machine, name, lambda *_: None)
            async with LocalStore(str(root), disk).edit("unchecked/c/0") as edit:
                assert edit.snapshot is not None
                index = bytes(await edit.snapshot.read(edit.snapshot.size - 64, 64))
                pieces = Kept(0, edit.snapshot.size), MemoryContent(memoryview(bytes(100) + index))
                await edit.splice(Splice(pieces, 64))
        await process.write("unchecked", 2, second)
        await process.sync()

    trio.run(publish_beside_another)
    disk.after_power_cut(oldest, keeps_inodes=True).build(after)
    trio.run(recover, after, QuickDisk(), False)
    assert trio.run(stored, after, "unchecked", range(1, 3)) == [first, second]
