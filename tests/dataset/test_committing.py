"""When commits happen, and what they meet: busy shards, arrays that are gone, documents that change."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardfs.dataset.layout import ShardQueue
from shardfs.dataset.maintenance.recover import find_torn, repair
from shardfs.dataset.writer import empty_outside
from shardfs.errors import ConflictError, CorruptionError, NoSpaceError, ShardfsError, StaleError, StoreError
from shardfs.stores.local import file_lock
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.entries.chunk import Chunk
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.session import Session
from tests.crash.harness import Process
from tests.crash.histories import INNER, PER_SHARD, make_source
from tests.support.locking import kept_busy
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import find, in_trio, run_in_leaps

in_leaps = partial(in_trio, jump_after=0.05)
OWNER = {"mode": 0o644, "uid": os.geteuid(), "gid": os.getegid()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"


async def put(process: Process, number: int, data: bytes, path: str = "end") -> None:
    content = MemoryContent(memoryview(data))
    await process.writing.writer.put(await process.array(path), (number,), content, mtime_ns=1, **OWNER)


async def begin_to_replace(process: Process) -> int:
    """Publish `end/c/0` and write it again; returns the handle, which is not closed yet."""
    files = process.writing.changes
    await put(process, 0, b"old")
    number, _ = await files.open((await find(process.fs, "end/c/0")).ino, os.O_WRONLY | os.O_TRUNC)
    await files.fs.open_files[number].write(0, b"new")
    return number


@asynccontextmanager
async def closed_during_a_commit(process: Process, number: int) -> AsyncIterator[None]:
    """Close a file while a commit in the block is storing its shard."""
    commits = process.writing.writer.commits
    execute = commits._store

    async def meanwhile(commit: Any) -> list[int]:
        nursery.start_soon(process.fs.open_files[number].flush)
        await wait_all_tasks_blocked()
        return await execute(commit)

    async with trio.open_nursery() as nursery:
        commits._store = meanwhile  # type: ignore[method-assign]
        yield
        commits._store = execute  # type: ignore[method-assign]


@in_trio
async def test_a_chunk_that_is_closed_while_its_array_is_resized_is_one_of_the_resized_array(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    number = await begin_to_replace(process)
    files = process.writing.changes
    document = dict((await process.array("end")).document)
    document["shape"] = [document["shape"][0] + INNER]
    text = json.dumps(document).encode()
    ino = (await find(process.fs, "end/zarr.json")).ino
    handle, _ = await files.open(ino, os.O_WRONLY | os.O_TRUNC)
    await files.fs.open_files[handle].write(0, text)
    async with closed_during_a_commit(process, number):
        await files.fs.open_files[handle].flush()
    attributes = await find(process.fs, "end/c/0")
    _, opened = await process.fs.open(attributes.ino)
    assert bytes(await opened.read(0, 9)) == b"new"


@pytest.mark.parametrize("gone", ["end", "end/zarr.json"])
@in_trio
async def test_what_was_published_in_an_array_that_another_program_removed_is_put_aside(root: Path, gone: str) -> None:
    process = await Process.start(root, QuickDisk())
    await put(process, 0, b"new")
    shutil.rmtree(root / gone) if (root / gone).is_dir() else (root / gone).unlink()
    with pytest.raises(
        ConflictError, match="another program has changed the array; `shardfs recover` shows 1 chunk of it"
    ):
        await process.writing.writer.commits.flush()
    assert process.writing.writer.commits.npending == 0
    assert process.writing.conflicts.live == 1


@in_leaps
async def test_who_publishes_in_a_shard_that_is_rewritten_waits_however_long_that_takes(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    commits, array = process.writing.writer.commits, await process.array("end")
    await put(process, 0, b"old")
    await commits.flush()
    is_begun = trio.Event()
    execute = commits._store

    async def slowly(commit: object) -> list[int]:
        is_begun.set()
        await trio.sleep(3600)
        return await execute(commit)  # type: ignore[arg-type]

    commits._store = slowly  # type: ignore[method-assign,assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: commits.rewrite(array.layout, (0,), {}, compact=True))
        await is_begun.wait()
        await put(process, 0, b"new")
    commits._store = execute  # type: ignore[method-assign]
    await commits.flush()
    found = await array.extent((0,))
    assert found is not None
    assert bytes(await found.read(0, 9)) == b"new"


@in_trio
async def test_who_publishes_in_another_shard_does_not_wait_for_the_disk_of_a_commit(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    writer, journal, may_end = process.writing.writer, process.writing.journal, threading.Event()
    await put(process, 0, b"new")
    sync = journal.sync

    def slowly() -> None:
        may_end.wait()
        sync()

    journal.sync = slowly  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.commits.flush)
        await wait_all_tasks_blocked(0.05)
        with trio.fail_after(5):
            await put(process, PER_SHARD, b"new")
            await put(process, 0, b"new", "unchecked")
        assert process.writing.source.statistics.commits == 0
        may_end.set()
    assert process.writing.source.statistics.commits == 1


@in_trio
async def test_an_unreadable_shard_keeps_no_other_from_being_emptied_outside_a_shape(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    commits = process.writing.writer.commits
    for number in (0, PER_SHARD):
        await put(process, number, b"new")
    await commits.flush()
    (root / "end/c/0").write_bytes(b"torn")
    with pytest.raises(CorruptionError):
        await empty_outside(commits, await process.array("end"), (INNER,))
    assert not (root / "end/c/1").exists()


@in_trio
async def test_a_shard_that_was_mended_meanwhile_is_not_cut(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    await put(process, 0, b"old")
    await process.writing.writer.commits.flush()
    shard = root / "end/c/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole + b"torn")
    torn = [torn async for torn in find_torn(process.writing.source)]
    shard.write_bytes(b"new!" + whole)  # of the same size
    with pytest.raises(StaleError):
        await repair(process.writing.source, torn[0], ".shardfs/torn")
    assert len(shard.read_bytes()) == len(whole) + 4


@in_trio
async def test_shards_that_take_much_memory_are_committed_one_after_the_other(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    commits, announced = process.writing.writer.commits, []
    announce = commits._announce

    async def counted(jobs: Sequence[object]) -> None:
        announced.append(len(jobs))
        await announce(jobs)

    commits._announce = counted  # type: ignore[method-assign]
    for path in ("end", "encoded"):
        for number in (0, PER_SHARD):
            await put(process, number, b"new", path)
        await process.writing.writer.commits.flush()
    assert announced == [2, 1, 1]


@in_leaps
async def test_a_shard_that_is_due_earlier_is_not_kept_waiting_by_one_that_is_due_later(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    commits = process.writing.writer.commits
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        await put(process, 0, b"less than an index")
        await trio.sleep(1)
        await put(process, PER_SHARD, b"more than an index" * 100)
        await trio.sleep(4)
        assert (root / "end/c/1").exists()
        assert not (root / "end/c/0").exists()
        nursery.cancel_scope.cancel()


@in_leaps
async def test_who_waits_for_room_waits_for_no_shard_that_only_keeps_old_segments(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    journal, commits = process.writing.journal, process.writing.writer.commits
    journal.max_nbytes, journal._segment_nbytes = 15_000, 4_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        await put(process, 0, b"less than an index")
        while journal.has_room(INNER):
            await put(process, 0, bytes(INNER), "unchecked")
            await trio.sleep(3)
        began = trio.current_time()
        await put(process, 0, bytes(INNER), "unchecked")
        assert trio.current_time() - began < 1
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def that_cannot_commit(root: Path, *paths: str) -> AsyncIterator[Process]:
    """A process with a small journal, where no shard of the arrays *paths* can be committed."""
    process = await Process.start(root, QuickDisk())
    journal, commits = process.writing.journal, process.writing.writer.commits
    journal.max_nbytes, journal._segment_nbytes = 100_000, 20_000
    plan = commits._plan

    async def fails(queue: ShardQueue, *more: Any, **options: Any) -> object:
        if queue.layout.path in paths:
            raise StoreError(f"{queue.key} cannot be written")
        return await plan(queue, *more, **options)

    commits._plan = fails  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        yield process
        nursery.cancel_scope.cancel()


@in_leaps
async def test_a_shard_that_cannot_be_committed_pins_its_own_bytes_and_nothing_else(root: Path) -> None:
    async with that_cannot_commit(root, "end") as process:
        journal = process.writing.journal
        await put(process, 0, b"a" * 5000)
        for number in range(300):
            await put(process, number % 8, bytes([number % 256]) * INNER, "unchecked")
            assert journal.nbytes < 110_000
        assert journal.live_nbytes > 5000
        for kept in (process, await Process.start(root, QuickDisk())):  # it is read from where it lies now
            found = await (await kept.array("end")).extent((0,))
            assert found is not None
            assert bytes(await found.read(0, 5000)) == b"a" * 5000


@in_leaps
async def test_what_a_flush_could_not_commit_is_tried_again_soon_though_it_would_not_be_due_yet(root: Path) -> None:
    async with that_cannot_commit(root, "end") as process:
        commits = process.writing.writer.commits
        await put(process, 0, b"less than an index")
        await trio.sleep(1)
        with pytest.raises(StoreError):
            await commits.flush()
        del commits._plan  # it can be committed again
        await trio.sleep(6)
        assert commits.npending == 0


@in_leaps
async def test_writers_of_what_cannot_be_committed_get_its_error_and_leave_room_for_others(root: Path) -> None:
    async with that_cannot_commit(root, "end", "start") as process:
        for path in ("end", "start"):
            await put(process, 0, b"a" * 20_000, path)
        await trio.sleep(100)
        for path in ("end", "start"):
            with pytest.raises(StoreError, match=f"{path}/c/0 cannot be written"):
                await put(process, 1, b"a" * 20_000, path)
        for number in range(300):
            await put(process, number % 8, bytes(INNER), "unchecked")


@in_leaps
async def test_a_journal_full_of_what_cannot_be_committed_is_no_space_to_others(root: Path) -> None:
    async with that_cannot_commit(root, "end") as process:
        await put(process, 0, b"a" * 120_000)  # an empty journal takes any
        await trio.sleep(100)
        with pytest.raises(NoSpaceError, match="cannot be committed: end/c/0 cannot be written"):
            await put(process, 0, bytes(INNER), "unchecked")
        with pytest.raises(StoreError, match=r"^end/c/0 cannot be written"):
            await put(process, 0, bytes(INNER))
        commits = process.writing.writer.commits
        del commits._plan  # it can be committed again
        await commits.flush()
        await put(process, 0, bytes(INNER), "unchecked")


@in_leaps
async def test_no_room_is_an_error_where_nothing_is_pending_that_could_make_some(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    journal, commits = process.writing.journal, process.writing.writer.commits
    await process.writing.writer.shrink("end", (INNER,))
    journal.max_nbytes = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        with pytest.raises(NoSpaceError):
            await put(process, 0, b"new")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_replayed", [False, True])
@in_leaps
async def test_what_was_published_before_another_program_resized_the_array_comes_before_what_is_published_then(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_replayed: bool
) -> None:
    process = await Process.start(root, QuickDisk())
    commits = process.writing.writer.commits
    await put(process, 0, b"old")
    await commits.flush()
    await put(process, 0, b"new")
    if is_replayed:
        monkeypatch.setattr(Session, "commit", AsyncMock())  # as if its shard could not be committed yet
        process = await Process.start(root, QuickDisk())
        commits = process.writing.writer.commits
        assert commits.npending == 1
    document = json.loads((root / "end/zarr.json").read_text())
    document["shape"] = [document["shape"][0] + INNER]
    (root / "end/zarr.json").write_text(json.dumps(document))
    await put(process, 0, b"newer")
    await put(process, 1, b"other")
    await commits.flush((await process.array("end")).layout)
    await commits.flush()
    found = await (await process.array("end")).extent((0,))
    assert found is not None
    assert bytes(await found.read(0, 9)) == b"newer"


@in_trio
async def test_a_chunk_that_is_closed_while_its_array_is_moved_is_one_of_the_moved_array(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    number = await begin_to_replace(process)
    async with closed_during_a_commit(process, number):
        await process.writing.changes.rename(ROOT, b"end", ROOT, b"moved", exclusive=False)
    attributes = await find(process.fs, "moved/c/0")
    _, opened = await process.fs.open(attributes.ino)
    assert bytes(await opened.read(0, 9)) == b"new"


@in_trio
async def test_a_flush_that_waits_for_its_buffer_does_not_stop_who_moves_its_array(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    files = process.writing.changes
    await put(process, 0, b"old")
    number, _ = await files.open((await find(process.fs, "end/c/0")).ino, os.O_WRONLY)
    await files.fs.open_files[number].write(0, b"new")
    opened = files.buffers.of_ino((await find(process.fs, "end/c/0")).ino)
    assert opened is not None
    with trio.fail_after(10):
        # The lock is held as by a write that must read the chunk first.
        async with trio.open_nursery() as nursery, opened.lock:
            nursery.start_soon(files.fs.open_files[number].flush)
            await wait_all_tasks_blocked()
            move = partial(process.writing.changes.rename, ROOT, b"end", ROOT, b"moved", exclusive=False)
            nursery.start_soon(move)
            await wait_all_tasks_blocked()
    _, shown = await process.fs.open((await find(process.fs, "moved/c/0")).ino)
    assert bytes(await shown.read(0, 9)) == b"new"


@in_trio
async def test_what_is_written_to_a_chunk_while_it_is_renamed_is_there_under_the_new_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, QuickDisk())
    files = process.writing.changes
    await put(process, 0, b"old")
    number, _ = await files.open((await find(process.fs, "end/c/0")).ino, os.O_WRONLY)
    await files.fs.open_files[number].write(0, b"new")
    remove = Chunk.remove

    async def meanwhile(chunk: Chunk) -> None:
        await files.fs.open_files[number].write(3, b"er")
        nursery.start_soon(files.fs.open_files[number].flush)
        await wait_all_tasks_blocked()
        await remove(chunk)

    directory = (await find(process.fs, "end/c")).ino
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            monkeypatch.setattr(Chunk, "remove", meanwhile)
            await process.writing.changes.rename(directory, b"0", directory, b"1", exclusive=False)
    array = await process.array("end")
    assert await array.extent((0,)) is None
    found = await array.extent((1,))
    assert found is not None
    assert bytes(await found.read(0, 9)) == b"newer"


def test_what_others_were_faster_to_change_is_left_alone_longer_each_time_but_not_for_ever(root: Path) -> None:
    async def main() -> None:
        process = await Process.start(root, QuickDisk())
        queue = ShardQueue((await process.array("end")).layout, (0,))
        longest = []
        for times in (1, 4, 40, 2000):
            delays = []
            for _ in range(50):
                queue.succeed()
                for _ in range(times):
                    queue.give_way(ConflictError("another host was faster"))
                assert queue.retry_at is not None
                delays.append(queue.retry_at - trio.current_time())
            assert min(delays) >= 0
            assert len(set(delays)) > 1
            longest.append(max(delays))
        assert longest[0] < longest[1] < longest[2]
        assert max(longest) <= 2.0

    trio.run(main, clock=MockClock())


@pytest.mark.parametrize("how", ["flush", "rewrite", "in the background", "compaction"])
def test_a_shard_that_another_program_has_locked_keeps_no_other_from_being_committed(root: Path, how: str) -> None:
    async def main() -> None:
        process = await Process.start(root, QuickDisk())
        commits, array = process.writing.writer.commits, await process.array("end")
        for number in (0, PER_SHARD):
            await put(process, number, b"old")
        await commits.flush()
        before = (root / "end/c/1").read_bytes()
        async with trio.open_nursery() as nursery, trio.open_nursery() as waiting:
            with kept_busy(root / "end/c/0") as lock:
                if how == "rewrite":
                    waiting.start_soon(lambda: commits.rewrite(array.layout, (0,), {}, compact=True))
                elif how == "compaction":
                    commits._auto_compact, commits._appended[commits.queue(array.layout, (0,))] = 0.0, None
                    nursery.start_soon(commits.run)
                else:
                    await put(process, 1, b"new")
                if how == "flush":
                    waiting.start_soon(commits.flush)
                await trio.sleep(3)
                with trio.fail_after(1):
                    await put(process, PER_SHARD + 1, b"new" * 1000)
                    if how in ("flush", "in the background"):
                        await put(process, 2, b"new" * 1000)
                if how != "compaction":
                    nursery.start_soon(commits.run)
                await trio.sleep(5)
                assert (root / "end/c/1").read_bytes() != before, "it is committed"
                assert not commits.failing
                lock.unlink()
            await commits.flush()
            assert commits.npending == 0
            nursery.cancel_scope.cancel()

    run_in_leaps(main, jump_after=0.01)


def test_a_shard_that_stays_locked_is_told_and_committed_when_it_is_free(root: Path) -> None:
    async def main() -> None:
        process = await Process.start(root, QuickDisk())
        commits = process.writing.writer.commits
        await put(process, 0, b"old")
        await commits.flush()
        before = (root / "end/c/0").read_bytes()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits.run)
            with kept_busy(root / "end/c/0") as lock:
                await put(process, 1, b"new" * 1000)
                await trio.sleep(20)
                assert not commits.failing
                await trio.sleep(20)
                assert commits.failing
                begun = trio.current_time()
                with pytest.raises(StoreError, match="end/c/0 is kept locked by another program"):
                    await commits.flush()
                assert 25 < trio.current_time() - begun < 40, "who flushes waits once more"
                assert (root / "end/c/0").read_bytes() == before
                lock.unlink()
            await trio.sleep(20)
            assert commits.npending == 0
            assert not commits.failing
            nursery.cancel_scope.cancel()

    run_in_leaps(main, jump_after=0.01)


@in_leaps
async def test_a_full_journal_hurries_no_shard_that_another_program_has_locked(root: Path) -> None:
    process = await Process.start(root, QuickDisk())
    commits, store = process.writing.writer.commits, process.writing.source.store
    process.writing.journal.max_nbytes = 2000
    await put(process, 0, b"old")
    await commits.flush()
    edit, attempts = store.edit, 0

    def counted(key: str, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        assert attempts < 100
        return edit(key, **options)

    store.edit = counted  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        with kept_busy(root / "end/c/0"):
            await put(process, 0, bytes(2000))
            nursery.start_soon(put, process, PER_SHARD, bytes(2000))
            await trio.sleep(10)
            assert commits.npending == 1
        await trio.sleep(10)
        assert commits.npending == 0
        nursery.cancel_scope.cancel()


class FailingOnce:
    """Fails one call of what looks at an open file, or unlocks it, as a network file system may do."""

    def __init__(self, number: int) -> None:
        self.left = number

    def of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def fails_once(*args: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith("shardfs."):
                self.left -= 1
                if self.left == -1:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*args)

        return fails_once


@partial(in_trio, jump_after=0.01)
async def test_a_network_file_system_that_fails_for_a_moment_keeps_nothing_from_being_committed(root: Path) -> None:
    for number in count():
        process, data = await Process.start(root, QuickDisk()), bytes([number]) * 200
        commits, array = process.writing.writer.commits, await process.array("end")
        once = FailingOnce(number)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits.run)
            with pytest.MonkeyPatch.context() as patched:
                for module, name in ((os, "fstat"), (os, "fstatvfs"), (file_lock, "ofd_unlock")):
                    patched.setattr(module, name, once.of(getattr(module, name)))
                with suppress(ShardfsError):
                    await put(process, 0, data)
                await trio.sleep(10)
            with suppress(ShardfsError):  # what became of it is in doubt
                await put(process, 0, data)
            await trio.sleep(10)
            assert commits.npending == 0
            found = await array.extent((0,))
            assert found is not None
            assert bytes(await found.read(0, found.nbytes)) == data
            nursery.cancel_scope.cancel()
        await process.finish()
        if once.left >= 0:  # there are no more calls
            assert number > 10
            break
