"""What commits meet: busy shards, shards that cannot be written, arrays that are gone, documents that change."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio

from shardfs.dataset.layout import ShardQueue
from shardfs.dataset.maintenance.recover import find_torn, repair
from shardfs.dataset.wal.recovery import read_left
from shardfs.errors import ConflictError, NoSpaceError, StaleError, StoreError
from shardfs.vfs.session import Session
from tests.crash.harness import Process, make_state
from tests.crash.histories import INNER, PER_SHARD
from tests.support.locking import kept_busy
from tests.support.lossy_disk import Machine, QuickDisk, oldest
from tests.support.opened import in_trio

in_leaps = partial(in_trio, jump_after=0.05)
in_short_leaps = partial(in_trio, jump_after=0.01)


@asynccontextmanager
async def that_commits(root: Path) -> AsyncIterator[Process]:
    """A process that commits by itself what is due, for the length of a block."""
    process = await Process.start(root, QuickDisk())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.writing.writer.commits.run)
        yield process
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def that_cannot_commit(root: Path, *paths: str) -> AsyncIterator[Process]:
    """The same with a small journal, where no shard of the arrays *paths* can be committed."""
    async with that_commits(root) as process:
        journal, commits = process.writing.journal, process.writing.writer.commits
        journal.max_nbytes, journal._segment_nbytes = 100_000, 20_000
        plan = commits._plan

        async def fails(queue: ShardQueue, *more: Any, **options: Any) -> object:
            if queue.layout.path in paths:
                raise StoreError(f"{queue.key} cannot be written")
            return await plan(queue, *more, **options)

        commits._plan = fails  # type: ignore[method-assign]
        yield process


@pytest.mark.parametrize("gone", ["end", "end/zarr.json"])
@in_trio
async def test_what_was_published_in_an_array_that_another_program_removed_is_put_aside(
    arrays: Path, gone: str
) -> None:
    make_state(arrays)
    disk, cut = Machine(arrays), arrays.parent / "cut"
    process = await Process.start(arrays, disk)
    await process.write("end", 0, b"new")
    await process.sync()
    synced = len(disk.calls)
    shutil.rmtree(arrays / gone) if (arrays / gone).is_dir() else (arrays / gone).unlink()
    with pytest.raises(ConflictError, match="has changed the array; `shardfs recover` shows 1 chunk of it"):
        await process.commit()
    assert process.writing.writer.commits.npending == 0
    assert process.writing.conflicts.live == 1
    for call in range(synced, len(disk.calls) + 1):
        disk.after_power_cut(cut, oldest, call)
        assert any(read_left(str(cut / f".shardfs/{log}")).records for log in ("journal", "conflicts"))
        shutil.rmtree(cut)


@in_trio
async def test_a_shard_that_was_mended_meanwhile_is_not_cut(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"old")
    await process.commit()
    shard = arrays / "end/c/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole + b"torn")
    torn = [torn async for torn in find_torn(process.writing.source)]
    shard.write_bytes(b"new!" + whole)  # of the same size
    with pytest.raises(StaleError):
        await repair(process.writing.source, torn[0], ".shardfs/torn")
    assert len(shard.read_bytes()) == len(whole) + 4


@in_leaps
async def test_a_shard_that_cannot_be_committed_pins_its_own_bytes_and_nothing_else(arrays: Path) -> None:
    async with that_cannot_commit(arrays, "end") as process:
        journal = process.writing.journal
        await process.write("end", 0, b"a" * 5000)
        for number in range(300):
            await process.write("unchecked", number % 8, bytes([number % 256]) * INNER)
            assert journal.nbytes < 110_000
        assert journal.live_nbytes > 5000
        for kept in (process, await Process.start(arrays, QuickDisk())):  # it is read from where it lies now
            assert await kept.read("end", 0) == b"a" * 5000


@in_leaps
async def test_a_journal_full_of_what_cannot_be_committed_is_no_space_to_others(arrays: Path) -> None:
    async with that_cannot_commit(arrays, "end") as process:
        await process.write("end", 0, b"a" * 120_000)  # an empty journal takes any
        await trio.sleep(100)
        with pytest.raises(NoSpaceError, match="cannot be committed: end/c/0 cannot be written"):
            await process.write("unchecked", 0, bytes(INNER))
        with pytest.raises(StoreError, match=r"^end/c/0 cannot be written"):
            await process.write("end", 0, bytes(INNER))
        del process.writing.writer.commits._plan  # it can be committed again
        await process.commit()
        await process.write("unchecked", 0, bytes(INNER))


@pytest.mark.parametrize("is_replayed", [False, True])
@in_leaps
async def test_what_was_published_before_another_program_resized_the_array_comes_before_what_is_published_then(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, is_replayed: bool
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"old")
    await process.commit()
    await process.write("end", 0, b"new")
    if is_replayed:
        monkeypatch.setattr(Session, "commit", AsyncMock())  # as if its shard could not be committed yet
        process = await Process.start(arrays, QuickDisk())
        assert process.writing.writer.commits.npending == 1
    document = json.loads((arrays / "end/zarr.json").read_text())
    document["shape"] = [document["shape"][0] + INNER]
    (arrays / "end/zarr.json").write_text(json.dumps(document))
    await process.write("end", 0, b"newer")
    await process.write("end", 1, b"other")
    await process.writing.writer.commits.flush((await process.array("end")).layout)
    await process.commit()
    assert await process.read("end", 0) == b"newer"


@pytest.mark.parametrize("how", ["flush", "rewrite", "in the background", "compaction"])
@in_short_leaps
async def test_a_shard_that_another_program_has_locked_keeps_no_other_from_being_committed(
    arrays: Path, how: str
) -> None:
    process = await Process.start(arrays, QuickDisk())
    commits, layout = process.writing.writer.commits, (await process.array("end")).layout
    for number in (0, PER_SHARD):
        await process.write("end", number, b"old")
    await process.commit()
    before = (arrays / "end/c/1").read_bytes()
    async with trio.open_nursery() as nursery, trio.open_nursery() as waiting:
        with kept_busy(arrays / "end/c/0") as lock:
            match how:
                case "rewrite":
                    waiting.start_soon(lambda: commits.rewrite(layout, (0,), {}, compact=True))
                case "compaction":
                    commits._auto_compact, commits._appended[commits.queue(layout, (0,))] = 0.0, None
                    nursery.start_soon(commits.run)
                case _:
                    await process.write("end", 1, b"new")
            if how == "flush":
                waiting.start_soon(commits.flush)
            await trio.sleep(3)
            with trio.fail_after(1):
                await process.write("end", PER_SHARD + 1, b"new" * 1000)
                if how in ("flush", "in the background"):
                    await process.write("end", 2, b"new" * 1000)
            if how != "compaction":
                nursery.start_soon(commits.run)
            await trio.sleep(5)
            assert (arrays / "end/c/1").read_bytes() != before, "it is committed"
            assert not commits.failing
            lock.unlink()
        await process.commit()
        assert commits.npending == 0
        nursery.cancel_scope.cancel()


@in_short_leaps
async def test_a_shard_that_stays_locked_is_told_and_committed_when_it_is_free(arrays: Path) -> None:
    async with that_commits(arrays) as process:
        commits = process.writing.writer.commits
        await process.write("end", 0, b"old")
        await process.commit()
        before = (arrays / "end/c/0").read_bytes()
        with kept_busy(arrays / "end/c/0") as lock:
            await process.write("end", 1, b"new" * 1000)
            await trio.sleep(20)
            assert not commits.failing
            await trio.sleep(20)
            assert commits.failing
            begun = trio.current_time()
            with pytest.raises(StoreError, match="end/c/0 is kept locked by another program"):
                await process.commit()
            assert 25 < trio.current_time() - begun < 40, "who flushes waits once more"
            assert (arrays / "end/c/0").read_bytes() == before
            lock.unlink()
        await trio.sleep(20)
        assert commits.npending == 0
        assert not commits.failing
