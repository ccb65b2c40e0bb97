"""What a program syncs is durable, whoever wrote it, and however the program has opened it."""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.crash.crashes import recover
from tests.crash.harness import OWNER, Process, stored
from tests.crash.histories import payload_of
from tests.support.lossy_disk import LossyDisk, QuickDisk, oldest
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
    disk.after_power_cut(after, oldest, keeps_inodes=True)
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
