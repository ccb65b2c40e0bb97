"""What a recovery makes of a commit that was under way, beside other programs that change its shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock

import numpy as np
import pytest
import trio

from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import UndoRecord, unpack_ranges
from shardfs.dataset.wal.recovery import read_left
from shardfs.errors import StoreError
from shardfs.stores.base import Splice
from shardfs.stores.local.shards import LocalEdit
from tests.crash.harness import Process, stored
from tests.crash.histories import make_source, payload_of
from tests.support.locking import kept_busy
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio

in_leaps = partial(in_trio, jump_after=0.002)
GARBAGE = b"a part of it"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"


class DiedError(Exception):
    pass


async def tear(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch, part: Callable[[bytes], bytes] = lambda _: GARBAGE
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
    root: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_larger: bool
) -> None:
    other = root.parent / "other"
    make_source(other)
    shard = root / path / "c/0"
    native = await Process.start(other, QuickDisk())
    for number in range(4):
        await native.write(path, number, payload_of(path, 900 + number))
    await native.commit()
    new = (other / path / "c/0").read_bytes() if is_larger else b"small"
    await tear(root, path, monkeypatch)
    with kept_busy(shard) as lock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Process.start, root, QuickDisk())
            await trio.sleep(5)
            lock.write_bytes(new)
            lock.rename(shard)
    assert shard.read_bytes() == new


@pytest.mark.parametrize("path", ["unchecked", "end"])
@in_leaps
async def test_what_is_torn_and_locked_at_the_start_is_taken_back_by_the_next_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    shard = root / path / "c/0"
    before = await tear(root, path, monkeypatch)
    with kept_busy(shard):
        process = await Process.start(root, QuickDisk())
        assert shard.read_bytes() == before + GARBAGE
    await process.writing.writer.commits.flush()
    array = await process.array(path)
    for number, seed in ((0, 10), (1, 21)):
        expected = payload_of(path, seed)
        found = await array.extent((number,))
        assert found is not None
        assert bytes(await found.read(0, found.nbytes)) == expected
    await process.writing.finish()
    assert not list((root / ".shardfs").rglob("*.journal"))


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
}


@pytest.mark.parametrize("name", [*PARTS, "of another program"])
@in_leaps
async def test_of_an_index_without_checksum_only_one_of_another_program_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = await tear(root, "unchecked", monkeypatch, PARTS.get(name, appended_by_another))
    process = await Process.start(root, QuickDisk())
    process.check_done()
    after = (root / "unchecked/c/0").read_bytes()
    is_left = name == "of another program"
    assert after.startswith(before + (appended_by_another(before) if is_left else b""))
    found = await stored(root, "unchecked", range(4))
    assert found[:2] == [payload_of("unchecked", seed) for seed in (10, 21)]
    assert found[2:] == [None, b"x" * 100 if is_left else None]
    await process.finish()


@pytest.mark.parametrize("path", ["end", "start", "unchecked"])
@in_leaps
async def test_a_complete_commit_is_known_though_its_records_were_not_released(
    root: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Also where the array has other metadata by then."""
    process = await Process.start(root, QuickDisk())
    await process.write(path, 0, payload_of(path, 10))
    await process.commit()
    await process.write(path, 1, payload_of(path, 21))
    with monkeypatch.context() as patched:
        patched.setattr("shardfs.dataset.wal.log.WriteAheadLog.release_soon", AsyncMock())
        await process.commit()
    shard = (root / path / "c/0").read_bytes()
    document = root / path / "zarr.json"
    document.write_text(json.dumps(json.loads(document.read_text()) | {"data_type": "int8"}))
    (await Process.start(root, QuickDisk())).check_done()
    assert (root / path / "c/0").read_bytes() == shard


@in_leaps
async def test_what_is_carried_forward_does_not_pass_for_a_later_commit_of_its_shard(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def fails(*_: object) -> None:
        raise StoreError("the disk did not answer")

    async def clean_and_die(log: WriteAheadLog) -> None:
        for _ in range(2):  # the chunk, and the undo record of the commit that failed
            log.carry_forward({})
        raise DiedError

    process = await Process.start(root, QuickDisk())
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
    undos = [each for each in read_left(str(root / ".shardfs/journal")).records if isinstance(each, UndoRecord)]
    assert [len(unpack_ranges(undo)) for undo in undos][-1] == 2, "the later commit was of two chunks"
