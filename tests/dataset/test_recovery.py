"""What a recovery makes of journals and commits that were under way, beside other programs and faults that pass."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
import trio

from shardfs.dataset.state import StateDirectory
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import UndoRecord, unpack_ranges
from shardfs.dataset.wal.recovery import bring_home, read_left
from shardfs.errors import CorruptionError, ShardfsError, StoreError
from shardfs.stores.base import Splice
from shardfs.stores.local.shards import LocalEdit
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from tests.crash.harness import Process, stored
from tests.crash.histories import make_source, payload_of
from tests.support.locking import kept_busy
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio

in_leaps = partial(in_trio, jump_after=0.002)


# Commits that were under way


class DiedError(Exception):
    pass


async def tear(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch, part: Callable[[bytes], bytes] = lambda _: b"a part of it"
) -> bytes:
    """Leave a shard to which an append was torn, which wrote a *part* behind the old bytes; returns those."""

    async def torn(edit: LocalEdit, _: Splice) -> None:
        with (root / edit.key).open("ab") as file:
            file.write(part(before))
        raise DiedError

    process = await Process.start(root, QuickDisk())
    await process.write(path, 0, payload_of(path, 10))
    await process.commit()
    before = (root / path / "c/0").read_bytes()
    await process.write(path, 1, payload_of(path, 21))
    with monkeypatch.context() as patched:
        patched.setattr(LocalEdit, "splice", torn)
        with pytest.raises((DiedError, ExceptionGroup)):
            await process.commit()
    assert (root / path / "c/0").read_bytes() == before + part(before)
    return before


@pytest.mark.parametrize("path", ["end", "unchecked"])
@pytest.mark.parametrize("is_larger", [True, False], ids=["larger", "smaller"])
@in_leaps
async def test_a_shard_that_is_replaced_while_its_lock_is_waited_for_is_not_cut(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_larger: bool
) -> None:
    other = arrays.parent / "other"
    make_source(other)
    native = await Process.start(other, QuickDisk())
    for number in range(4):
        await native.write(path, number, payload_of(path, 900 + number))
    await native.commit()
    new = (other / path / "c/0").read_bytes() if is_larger else b"small"
    await tear(arrays, path, monkeypatch)
    shard = arrays / path / "c/0"
    with kept_busy(shard) as lock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Process.start, arrays, QuickDisk())
            await trio.sleep(5)
            lock.write_bytes(new)
            lock.rename(shard)
    assert shard.read_bytes() == new


@pytest.mark.parametrize("path", ["unchecked", "end"])
@in_leaps
async def test_what_is_torn_and_locked_at_the_start_is_taken_back_by_the_next_commit(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    shard = arrays / path / "c/0"
    await tear(arrays, path, monkeypatch)
    torn = shard.read_bytes()
    with kept_busy(shard):
        process = await Process.start(arrays, QuickDisk())
        assert shard.read_bytes() == torn
    await process.commit()
    assert [await process.read(path, n) for n in range(2)] == [payload_of(path, seed) for seed in (10, 21)]
    await process.finish()
    assert not list((arrays / ".shardfs").rglob("*.journal"))


def appended_by_another(old: bytes) -> bytes:
    """A chunk 3 and an index with it, behind a shard without it."""
    entries = np.frombuffer(old[-64:], "<u8").copy()
    entries[6:] = len(old), 100
    return b"x" * 100 + entries.tobytes()


PARTS: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda _: bytes(200),
    "all ones": lambda _: b"\xff" * 200,
    "the old index": lambda old: bytes(100) + old[-64:],
    "small numbers": lambda _: np.arange(1, 26, dtype="<u8").tobytes(),
    "half an index": lambda old: appended_by_another(old)[:132] + bytes(32),
    "of another program": appended_by_another,
}


@pytest.mark.parametrize("name", PARTS)
@in_leaps
async def test_of_an_index_without_checksum_only_one_of_another_program_is_left_alone(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = await tear(arrays, "unchecked", monkeypatch, PARTS[name])
    process = await Process.start(arrays, QuickDisk())
    process.check_done()
    is_left = name == "of another program"
    after = (arrays / "unchecked/c/0").read_bytes()
    assert after.startswith(before + (appended_by_another(before) if is_left else b""))
    expected = [payload_of("unchecked", 10), payload_of("unchecked", 21), None, b"x" * 100 if is_left else None]
    assert await stored(arrays, "unchecked", range(4)) == expected


@pytest.mark.parametrize("path", ["end", "start", "unchecked"])
@in_leaps
async def test_a_complete_commit_is_known_though_its_records_were_not_released(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Also where the array has other metadata by then."""
    process = await Process.start(arrays, QuickDisk())
    await process.write(path, 0, payload_of(path, 10))
    await process.commit()
    await process.write(path, 1, payload_of(path, 21))
    with monkeypatch.context() as patched:
        patched.setattr(WriteAheadLog, "release_soon", AsyncMock())
        await process.commit()
    shard = (arrays / path / "c/0").read_bytes()
    document = arrays / path / "zarr.json"
    document.write_text(json.dumps(json.loads(document.read_text()) | {"data_type": "int8"}))
    (await Process.start(arrays, QuickDisk())).check_done()
    assert (arrays / path / "c/0").read_bytes() == shard


@in_leaps
async def test_what_is_carried_forward_does_not_pass_for_a_later_commit_of_its_shard(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise StoreError("the disk did not answer")

    async def clean_and_die(log: WriteAheadLog) -> None:
        for _ in range(2):  # the chunk, and the undo record of the commit that failed
            log.carry_forward([*process.writing.writer.commits.live_records()])
        raise DiedError

    process = await Process.start(arrays, QuickDisk())
    process.writing.journal._segment_nbytes = 1
    await process.write("end", 0, payload_of("end", 10))
    await process.commit()
    await process.write("end", 1, payload_of("end", 21))
    monkeypatch.setattr(LocalEdit, "splice", fails)
    with pytest.raises(StoreError):
        await process.commit()
    await process.write("end", 2, payload_of("end", 32))
    monkeypatch.setattr(WriteAheadLog, "sync_soon", clean_and_die)
    with pytest.raises(DiedError):
        await process.commit()
    undos = [each for each in read_left(str(arrays / ".shardfs/journal")).records if isinstance(each, UndoRecord)]
    assert [len(unpack_ranges(undo)) for undo in undos][-1] == 2, "the later commit was of two chunks"


# Journals that were left


class FailingStore(LocalStore):
    """A store of which no shard can be opened; unless *is_local*, it says that it is no directory of this machine."""

    def __init__(self, root: Path, error: ShardfsError, *, is_local: bool) -> None:
        super().__init__(str(root))
        self._error = error
        if not is_local:
            self.rewrites, self.root = True, None

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Any:
        if key.endswith("zarr.json"):
            return await super().open(key)
        raise self._error


@pytest.mark.parametrize(
    ("error", "is_local", "left", "message"),
    [
        (StoreError("no network"), False, (1, 0), "journal stays for the next mount: end/c/0: no network"),
        (StoreError("no answer"), True, (0, 1), "chunk 0 of end: end/c/0: no answer; it is kept, and `shardfs recover"),
        (CorruptionError("damaged"), False, (0, 1), "damaged; it is kept, and `shardfs recover --apply` applies it"),
    ],
)
@in_trio
async def test_what_cannot_be_brought_into_its_shard_waits_for_the_next_mount_or_is_put_aside(
    arrays: Path,
    caplog: pytest.LogCaptureFixture,
    error: ShardfsError,
    is_local: bool,
    left: tuple[int, int],
    message: str,
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"old")
    await process.commit()
    await process.write("end", 0, b"new")
    state = StateDirectory(str(arrays))
    await bring_home(FailingStore(arrays, error, is_local=is_local), [state])
    assert await stored(arrays, "end", range(1)) == [b"old"]
    assert (len(read_left(state.journal).records), len(read_left(state.conflicts).records)) == left
    assert message in caplog.text
    nowhere = StateDirectory(str(arrays / "nowhere"))  # and keeps no other from its shards
    await bring_home(LocalStore(str(arrays)), [nowhere, state])
    assert await stored(arrays, "end", range(1)) == [b"new" if left == (1, 0) else b"old"]


@in_trio
async def test_no_journal_makes_a_file_that_runs_as_its_owner(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    content, rights = (
        MemoryContent(memoryview(b"#!/bin/sh")),
        {"mode": 0o6751, "uid": os.geteuid(), "gid": os.getegid()},
    )
    await process.writing.writer.put(await process.array("end"), (0,), content, mtime_ns=1, **rights)
    await bring_home(LocalStore(str(arrays)), [StateDirectory(str(arrays))])
    assert await stored(arrays, "end", range(1)) == [b"#!/bin/sh"]
    assert stat.S_IMODE((arrays / "end/c/0").stat().st_mode) == 0o751
