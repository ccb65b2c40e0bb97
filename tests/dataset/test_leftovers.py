"""Journals that other processes left: brought into the store, or kept as they are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio

import shardfs
from shardfs.dataset.state import StateDirectory
from shardfs.dataset.wal.reading import read_log
from shardfs.dataset.wal.recovery import bring_home
from shardfs.errors import CorruptionError, ShardfsError, StoreError
from shardfs.stores.local.syscalls import open_directory
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from tests.crash.harness import Process
from tests.crash.histories import make_source
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio

OWNER = {"mode": 0o644, "uid": os.geteuid(), "gid": os.getegid()}


class FailingStore(LocalStore):
    """A store of which no shard can be opened; unless *is_local*, it says that it is no directory of this machine."""

    def __init__(self, root: Path, error: ShardfsError, *, is_local: bool = False) -> None:
        super().__init__(str(root))
        self._error = error
        if not is_local:
            self.rewrites, self.root = True, None

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Any:
        if key.endswith("zarr.json"):
            return await super().open(key)
        raise self._error


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"


async def put(process: Process, number: int, data: bytes) -> None:
    content = MemoryContent(memoryview(data))
    await process.writing.writer.put(await process.array("end"), (number,), content, mtime_ns=1, **OWNER)


async def leave(root: Path) -> StateDirectory:
    """A journal with a new version of one chunk, and the old one in its shard."""
    process = await Process.start(root, QuickDisk())
    await put(process, 0, b"old")
    await process.writing.writer.commits.flush()
    await put(process, 0, b"new")
    return StateDirectory(str(root))


async def stored(root: Path) -> bytes | None:
    """The chunk as it is in its shard, whatever is pending."""
    return await trio.to_thread.run_sync(lambda: shardfs.open(root)["end"].read_chunk((0,)))


def left(directory: str) -> int:
    return len(read_log(open_directory(directory)).records)


@in_trio
async def test_a_journal_stays_while_the_store_fails(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = await leave(root)
    await bring_home(FailingStore(root, StoreError("no network")), [state])
    assert await stored(root) == b"old"
    assert (left(state.journal), left(state.conflicts)) == (1, 0)
    assert "stays for the next mount" in caplog.text
    assert "no network" in caplog.text
    await bring_home(LocalStore(str(root)), [state])
    assert await stored(root) == b"new"


@in_trio
async def test_what_the_disk_fails_to_read_waits_in_the_journal_for_the_next_mount(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = await leave(root)
    await bring_home(FailingStore(root, StoreError("Input/output error"), is_local=True), [state])
    assert (left(state.journal), left(state.conflicts)) == (1, 0)
    assert "chunk 0 of end: end/c/0: Input/output error; it stays in the journal" in caplog.text
    await bring_home(LocalStore(str(root)), [state])
    assert await stored(root) == b"new"


@in_trio
async def test_what_belongs_into_a_damaged_shard_is_put_aside(root: Path) -> None:
    state = await leave(root)
    await bring_home(FailingStore(root, CorruptionError("damaged")), [state])
    assert (left(state.journal), left(state.conflicts)) == (0, 1)


@in_trio
async def test_one_journal_that_cannot_be_read_keeps_no_other_from_its_shards(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = await leave(root)
    await bring_home(LocalStore(str(root)), [StateDirectory(str(tmp_path / "nowhere")), state])
    assert "nowhere" in caplog.text
    assert await stored(root) == b"new"


@in_trio
async def test_no_journal_makes_a_file_that_runs_as_its_owner(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    content = MemoryContent(memoryview(b"#!/bin/sh"))
    rights = OWNER | {"mode": 0o6751}
    await process.writing.writer.put(await process.array("end"), (0,), content, mtime_ns=1, **rights)
    await bring_home(LocalStore(str(root)), [StateDirectory(str(root))])
    assert await stored(root) == b"#!/bin/sh"
    assert stat.S_IMODE((root / "end/c/0").stat().st_mode) == 0o751
