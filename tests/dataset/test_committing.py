"""What commits and recoveries meet: busy shards, torn ones, arrays that are gone, other programs, faults that pass."""

import errno
import gc
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import google_crc32c
import numpy as np
import pytest
import trio
import trio.testing

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.reading import JournalContents
from shardfs.dataset.journal.records import Payload, Put, UndoRecord
from shardfs.dataset.journal.recovery import Recovery, opened, read_left, replay
from shardfs.dataset.layout import ShardQueue
from shardfs.dataset.maintenance import others, recover
from shardfs.dataset.maintenance.recover import Leftover, find_torn, recover_source, repair, show_source
from shardfs.dataset.state.directory import StateDirectory
from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    CorruptionError,
    MetadataError,
    NoSpaceError,
    ShardfsError,
    StaleError,
    StoreError,
)
from shardfs.format.index import IndexLayout
from shardfs.stores.base import Descriptor, Snapshot, Splice, Stat, Store
from shardfs.stores.local import shards
from shardfs.stores.local.shards import LocalEdit
from shardfs.stores.local.tree import LocalFile, LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.session import WritingSession
from tests.crash.harness import Process, make_state, stored
from tests.crash.histories import INNER, NCHUNKS, PER_SHARD, make_source, payload_of
from tests.support.documents import GROUP, write
from tests.support.gated import GatedStore
from tests.support.locking import kept_busy
from tests.support.lossy_disk import Machine, QuickDisk, oldest
from tests.support.opened import find, in_trio, read_file

in_leaps = partial(in_trio, jump_after=0.001)


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
        plan = commits.planner.plan

        async def fails(queue: ShardQueue, *more: Any, **options: Any) -> object:
            if queue.layout.path in paths:
                raise StoreError(f"{queue.key} cannot be written")
            return await plan(queue, *more, **options)

        commits.planner.plan = fails  # type: ignore[method-assign]
        yield process


@in_trio
async def test_what_was_put_aside_is_told_once_and_before_what_cannot_be_committed(arrays: Path) -> None:
    """A flush raises one error: what stays pending is an error of the next one, too."""
    async with that_cannot_commit(arrays, "start") as process:
        await process.write("end", 0, b"new")
        await process.write("start", 0, b"new")
        shutil.rmtree(arrays / "end")
        with pytest.raises(ConflictError, match="put aside: end"):
            await process.fs.flush_all()
        with pytest.raises(StoreError, match="start/c/0 cannot be written"):
            await process.fs.flush_all()
        assert [type(error) for error in (await process.fs.try_flush_all()).errors] == [StoreError]


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
    assert process.writing.conflicts.nlive == 1
    await process.finish()
    for call in range(synced, len(disk.calls) + 1):
        disk.after_power_cut(oldest, call).build(cut)
        assert any(read_left(str(cut / f".shardfs/0/{log}")).records for log in ("journal", "conflicts"))
        shutil.rmtree(cut)


@in_trio
async def test_who_waits_for_the_commit_of_an_array_is_not_told_of_the_conflicts_of_another(arrays: Path) -> None:
    """As a rename of a directory does, which would fail."""
    process = await Process.start(arrays, QuickDisk())
    commits, conflicts = process.writing.writer.commits, list[str]()
    for path in ("start", "end"):
        await process.write(path, 0, b"new")
    shutil.rmtree(arrays / "start")

    async def flush(path: str) -> None:
        try:
            await commits.flush(below=path)
        except ConflictError:
            conflicts.append(path)

    async with trio.open_nursery() as nursery, commits._turn():
        for path in ("start", "end"):
            nursery.start_soon(flush, path)
            await trio.testing.wait_all_tasks_blocked()
    assert conflicts == ["start"]
    assert await stored(arrays, "end", range(1)) == [b"new"]


@in_trio
async def test_a_shard_that_was_mended_meanwhile_is_not_cut(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"old")
    await process.commit()
    shard = arrays / "end/c/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole + b"torn")
    torn = [torn async for torn in find_torn(process.writing.source, [])]
    shard.write_bytes(b"new!" + whole)  # of the same size
    with pytest.raises(StaleError):
        await repair(process.writing.source, torn[0], ".shardfs/0/torn")
    assert len(shard.read_bytes()) == len(whole) + 4


@in_trio
async def test_a_shard_that_is_cut_while_an_older_index_is_looked_for_stops_no_search(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by its writer, which takes back an append that failed."""
    for path in ("end", "nested"):
        await tear(arrays, path, monkeypatch)  # which undoes the one before
    with (arrays / "end/c/0").open("ab") as file:
        file.write(b"torn")
    search = recover._search

    def cut(layouts: tuple[IndexLayout, IndexLayout | None], snapshot: Snapshot) -> int | None:
        os.truncate(arrays / "end/c/0", 100)
        return search(layouts, snapshot)

    monkeypatch.setattr(recover, "_search", cut)
    source = Source.of(LocalStore(str(arrays)))
    found = {torn.key: (torn.stop, torn.reason) async for torn in find_torn(source, [])}
    assert found["end/c/0"][0] is None
    assert "an older index cannot be looked for" in found["end/c/0"][1]
    assert found["nested/c/0"][0] is not None


@pytest.mark.slow
@in_leaps
async def test_writers_of_what_cannot_be_committed_get_its_error_and_leave_room_for_others(arrays: Path) -> None:
    async with that_cannot_commit(arrays, "end", "start") as process:
        for path in ("end", "start"):
            await process.write(path, 0, b"a" * 20_000)
        await trio.sleep(100)
        for path in ("end", "start"):
            with pytest.raises(StoreError, match=f"{path}/c/0 cannot be written"):
                await process.write(path, 1, b"a" * 20_000)
        for number in range(100):
            await process.write("unchecked", number % 8, bytes(INNER))


@pytest.mark.slow
@in_leaps
async def test_a_journal_full_of_what_cannot_be_committed_is_no_space_to_others(arrays: Path) -> None:
    async with that_cannot_commit(arrays, "end") as process:
        await process.write("end", 0, b"a" * 120_000)  # an empty journal takes any
        await trio.sleep(100)
        with pytest.raises(NoSpaceError, match="cannot be committed: end/c/0 cannot be written"):
            await process.write("unchecked", 0, bytes(INNER))
        with pytest.raises(StoreError, match=r"^end/c/0 cannot be written"):
            await process.write("end", 0, bytes(INNER))
        del process.writing.writer.commits.planner.plan  # it can be committed again
        await process.commit()
        await process.write("unchecked", 0, bytes(INNER))


@in_trio
async def test_a_chunk_that_the_journal_cannot_give_back_keeps_no_other_shard_from_being_committed(
    arrays: Path,
) -> None:
    process = await Process.start(arrays, QuickDisk())
    for number in (0, PER_SHARD):
        await process.write("end", number, b"old")
    await process.commit()
    for number in (0, PER_SHARD):
        await process.write("end", number, b"new")
    commits = process.writing.writer.commits
    lost = (await process.array("end")).change((0,))
    assert isinstance(lost, Put)
    with (arrays / "end/zarr.json").open("rb") as short:
        lost.payload = Payload(Descriptor(os.dup(short.fileno())), 2**30, 3)
    with pytest.raises(StoreError, match="cut short"):
        await process.commit()
    assert await stored(arrays, "end", range(0, NCHUNKS, PER_SHARD)) == [b"old", b"new"]
    assert [queue.key for queue in commits.pending] == ["end/c/0"]


@in_trio
async def test_a_flush_commits_what_is_carried_forward_meanwhile(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    commits = process.writing.writer.commits
    commit = commits._commit

    async def later(_: object) -> None:
        commits._commit = commit  # type: ignore[method-assign]
        await process.clean()

    await process.write("end", 0, b"new")
    commits._commit = later  # type: ignore[method-assign]
    await process.commit()
    assert commits.npending == 0


def edit_behind(document: Path, **changes: Any) -> None:
    """Change a stored document as another program does."""
    document.write_text(json.dumps(json.loads(document.read_text()) | changes))


@pytest.mark.parametrize("is_replayed", [False, True])
@in_leaps
async def test_what_is_published_stays_in_its_order_while_another_program_resizes_the_array(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, is_replayed: bool
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"old")
    await process.commit()
    await process.write("end", 0, b"new")
    if is_replayed:
        monkeypatch.setattr(WritingSession, "commit", AsyncMock())  # as if its shard could not be committed yet
        process = await Process.start(arrays, QuickDisk())
        assert process.writing.writer.commits.npending == 1
    await process.write("end", PER_SHARD, b"of a shard that is not stored")
    edit_behind(arrays / "end/zarr.json", shape=[INNER * (NCHUNKS + 1)])
    array = await process.array("end")
    listed = [run.numbers async for run in array.list_row((), 0)]
    assert [number for numbers in listed for number in numbers] == [0, PER_SHARD]
    assert await process.read("end", 0) == b"new"
    await process.write("end", 0, b"newer")
    await process.write("end", 1, b"other")
    await process.commit()
    assert await stored(arrays, "end", range(2)) == [b"newer", b"other"]


class CommittingStore(GatedStore):
    """A store that awaits its hook also after each look at files."""

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        stats = await super().stat_in(key, names)
        await self.hook(key, 0, 0)
        return stats


@pytest.mark.parametrize("path", ["nested", "unsharded"])
@in_trio
async def test_what_is_committed_while_it_is_listed_is_listed(arrays: Path, path: str) -> None:
    async def commit(*_: object) -> None:
        if is_listing:
            await process.commit()

    is_listing = False
    process = await Process.start(arrays, QuickDisk(), v2=True)
    process.writing.source.shards.store = CommittingStore(arrays, commit)
    await process.write(path, 0, payload_of(path, 1))
    await process.commit()
    await process.write(path, 1, payload_of(path, 2))
    array = (await process.writing.source.hierarchy.node(path)).any_array
    assert array is not None
    os.utime(arrays / path / "c/0")
    await array.shard((0,))  # so that only the index of the inner shard is still to be read
    is_listing = True
    numbers = [number async for run in array.list_row((), 0) for number in run.numbers]
    assert numbers == [0, 1]
    assert not process.writing.writer.commits.npending


@in_leaps
async def test_while_a_document_is_broken_what_was_published_stays_pending(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"new")
    document = arrays / "end/zarr.json"
    text = document.read_text()
    document.write_text(text[:40])
    os.utime(document, (1e9, 1e9))  # it is not being written at this moment
    with pytest.raises(MetadataError, match=r"end/zarr.json cannot be read: "):
        await process.commit()
    document.write_text(text)
    await trio.sleep(10)
    await process.commit()
    assert await stored(arrays, "end", range(1)) == [b"new"]
    process.check_done()


@in_trio
async def test_a_commit_is_seen_at_once_if_another_program_resizes_the_array_meanwhile(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"old")
    await process.commit()
    for number in (0, PER_SHARD):
        await process.write("end", number, b"new")
    process.writing.source.shards.ttl = 60.0
    splice = LocalEdit.splice

    async def check() -> None:
        array = await process.array("end")
        assert [number async for run in array.list_row((), 0) for number in run.numbers] == [0, PER_SHARD]
        extent = (await array.find((0,)))[1]
        assert extent is not None
        assert await extent.read(0, extent.nbytes) == b"new"

    async def resize(edit: LocalEdit, planned: Splice, _: object) -> Stat:
        edit_behind(arrays / "end/zarr.json", shape=[INNER * (NCHUNKS + 1)])
        await check()
        return await splice(edit, planned)

    monkeypatch.setattr(LocalEdit, "splice", resize)
    await process.commit()
    await check()


@pytest.mark.parametrize(("path", "nbytes"), [("unchecked", 2**40), ("start", 2**26)])
@in_trio
async def test_a_chunk_that_names_much_of_a_sparse_shard_is_replaced_and_keeps_nobody_waiting(
    arrays: Path, path: str, nbytes: int
) -> None:
    async def pass_by() -> None:
        nonlocal npasses
        while True:
            await trio.lowlevel.checkpoint()
            npasses += 1

    npasses = 0
    process = await Process.start(arrays, QuickDisk())
    await process.write(path, 1, b"stored")
    await process.commit()
    shard = arrays / path / "c/0"
    data = shard.read_bytes()
    index = np.frombuffer(data[-16 * PER_SHARD :] if path == "unchecked" else data[: 16 * PER_SHARD], "<u8").copy()
    index[:2] = 0, nbytes
    with shard.open("r+b") as file:
        file.seek(nbytes)
        file.write(index.tobytes())
        if path == "start":
            file.seek(0)
            file.write(index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_by)
        with trio.fail_after(20):
            await process.write(path, 0, b"new")
        assert nbytes == 2**40 or npasses > 50
        nursery.cancel_scope.cancel()
    await process.commit()
    assert await stored(arrays, path, range(2)) == [b"new", b"stored"]


@in_trio
async def test_what_was_published_for_other_codecs_is_not_shown(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    for number in range(2):
        await process.write("end", number, b"stored")
    await process.commit()
    await process.write("end", 0, b"pending")
    await process.remove("end", 1)
    await process.write("end", 2, b"pending")
    edit_behind(arrays / "end/zarr.json", data_type="int8")
    array = await process.array("end")
    assert [await process.read("end", n) for n in range(3)] == [b"stored", b"stored", None]
    assert [(list(run.numbers), list(run.sizes)) async for run in array.list_row((), 0)] == [([0, 1], [6, 6])]


@pytest.mark.parametrize("is_pending", [False, True])
@in_trio
async def test_what_is_published_is_shown_though_an_array_before_had_a_shard_of_the_same_name(
    arrays: Path, is_pending: bool
) -> None:
    """The queue of the shard may be of that array, if something is pending in it, which is put aside, or holds it."""
    process = await Process.start(arrays, QuickDisk())
    document = arrays / "end/zarr.json"
    edit_behind(document, chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}})
    await process.write_file((await find(process.fs, "end")).ino, b"0", b"before")
    [before] = process.writing.writer.commits.pending
    if not is_pending:
        await process.commit()
    edit_behind(document, chunk_key_encoding={"name": "v2", "configuration": {"separator": "/"}})
    await process.write_file((await find(process.fs, "end")).ino, b"1", b"after ")
    expected = [None if is_pending else b"before", b"after "]
    assert [await process.read("end", number) for number in range(2)] == expected
    await process.commit()
    assert [await process.read("end", number) for number in range(2)] == expected
    assert not before.changes
    await process.finish()


@in_leaps
async def test_a_conflict_is_kept_whatever_is_published_in_another_array_of_its_path(arrays: Path) -> None:
    document = arrays / "unchecked/zarr.json"
    former, state = document.read_text(), StateDirectory(str(arrays))
    process = await Process.start(arrays, QuickDisk())
    for number, data_type in enumerate(("uint8", "int8", "int16")):
        await process.write("unchecked", 0, payload_of("unchecked", number))
        edit_behind(document, data_type=data_type)
    await process.finish()
    kept = [bytes(each.payload.read(0, INNER)) for each in read_left(state.conflicts).records]
    assert kept == [payload_of("unchecked", number) for number in range(1, 3)]
    for _ in range(2):
        document.write_text(former)
        found: list[Leftover] = []
        await recover_source(Source.of(LocalStore(str(arrays))), found, single_writer=False)
    assert await stored(arrays, "unchecked", range(1)) == kept[:1]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flush", "rewrite", "in the background"])
@in_leaps
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
                    waiting.start_soon(commits.rewrite, layout, (0,))
                case _:
                    await process.write("end", 1, b"new")
            if how == "flush":
                waiting.start_soon(commits.flush)
            await trio.sleep(3)
            with trio.fail_after(1):
                await process.write("end", PER_SHARD + 1, b"new" * 1000)
                if how in ("flush", "in the background"):
                    await process.write("end", 2, b"new" * 1000)
            nursery.start_soon(commits.run)
            await trio.sleep(5)
            assert (arrays / "end/c/1").read_bytes() != before, "it is committed"
            assert not commits.failing
            lock.unlink()
        await process.commit()
        assert commits.npending == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@in_leaps
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


@pytest.mark.slow
@pytest.mark.parametrize("others", ["flush", "rewrite"])
@in_leaps
async def test_who_waits_for_a_locked_shard_gets_the_error_however_many_others_come_to_wait(
    arrays: Path, others: str
) -> None:
    process = await Process.start(arrays, QuickDisk())
    commits, layout = process.writing.writer.commits, (await process.array("end")).layout
    await process.write("end", 0, b"old")
    await process.commit()

    async def wait_too() -> None:
        with suppress(StoreError):
            await (commits.flush() if others == "flush" else commits.rewrite(layout, (0,)))

    with kept_busy(arrays / "end/c/0"):
        await process.write("end", 1, b"new")
        async with trio.open_nursery() as nursery:

            async def keep_coming() -> None:
                while True:
                    nursery.start_soon(wait_too)
                    await trio.sleep(10)

            nursery.start_soon(keep_coming)
            await trio.sleep(1)
            with trio.fail_after(80), pytest.raises(StoreError, match="end/c/0 is kept locked by another program"):
                await commits.flush()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "change", [{"shape": [24000, 1]}, {"shape": [12000]}, {"chunk_key_encoding": {"name": "v2"}}], ids=str
)
@in_trio
async def test_a_chunk_that_waits_while_another_program_changes_its_array_is_refused(
    arrays: Path, change: dict[str, Any]
) -> None:
    """Else its writer is told that it is published, and finds it in the conflict journal."""
    process = await Process.start(arrays, QuickDisk())
    commits, before = process.writing.writer.commits, await process.array("end")
    refused, queue = False, commits.queue(before.layout, (1,))

    async def write() -> None:
        nonlocal refused
        try:
            await process.write("end", PER_SHARD, b"new")
        except StaleError:
            refused = True

    async with trio.open_nursery() as nursery, queue.lock:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        if len(change.get("shape", ())) == 2:
            document = json.loads((arrays / "end/zarr.json").read_text())
            document["chunk_grid"]["configuration"]["chunk_shape"] = [4 * INNER, 1]
            document["codecs"][0]["configuration"]["chunk_shape"] = [INNER, 1]
            (arrays / "end/zarr.json").write_text(json.dumps(document))
        edit_behind(arrays / "end/zarr.json", **change)
        await process.array("end")
    assert refused
    assert commits.npending == 0
    assert process.writing.conflicts.nlive == 0


@in_leaps
async def test_writers_that_wait_for_one_shard_together_keep_to_the_room_in_the_journal(arrays: Path) -> None:
    async with that_commits(arrays) as process:
        journal, commits = process.writing.journal, process.writing.writer.commits
        journal.max_nbytes, journal._segment_nbytes = 100_000, 20_000
        sizes, append = list[int](), journal.append

        def noting(*arguments: Any, **options: Any) -> Any:
            record = append(*arguments, **options)
            sizes.append(journal.nbytes)
            return record

        journal.append = noting  # type: ignore[method-assign]
        queue = commits.queue((await process.array("unchecked")).layout, (0,))
        async with trio.open_nursery() as nursery, queue.lock:
            for number in range(PER_SHARD):
                nursery.start_soon(process.write, "unchecked", number, os.urandom(33_000))
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert max(sizes) < 100_000 + 1000


# Commits that were under way


class DiedError(Exception):
    pass


async def tear(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch, part: Callable[[bytes], bytes] = lambda _: b"a part of it"
) -> bytes:
    """Leave a shard to which an append was torn, which wrote a *part* behind the old bytes; returns those."""

    async def torn(edit: LocalEdit, *_: object) -> None:
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


@pytest.mark.slow
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


@in_leaps
async def test_a_shard_that_is_larger_than_the_commit_would_have_made_it_is_not_cut(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await tear(arrays, "end", monkeypatch, lambda _: bytes(10**6))
    process = await Process.start(arrays, QuickDisk())
    assert (arrays / "end/c/0").read_bytes() == before + bytes(10**6)
    assert process.writing.conflicts.nlive == 1, "the change that was to be committed is kept"
    await process.finish()


@pytest.mark.parametrize("path", ["end", "start", "unchecked", "nested"])
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
        patched.setattr(Journal, "release_soon", AsyncMock())
        await process.commit()
    shard = (arrays / path / "c/0").read_bytes()
    edit_behind(arrays / path / "zarr.json", data_type="int8")
    (await Process.start(arrays, QuickDisk())).check_done()
    assert (arrays / path / "c/0").read_bytes() == shard


@pytest.mark.slow
@in_leaps
async def test_what_is_published_while_an_array_is_made_smaller_survives_a_kill_at_any_call(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard at the edge loses chunks by a commit that does not bring in what is pending in it."""
    process = await Process.start(arrays, QuickDisk())
    for number in range(PER_SHARD):
        await process.write("end", number, payload_of("end", number + 1))
    await process.commit()
    with monkeypatch.context() as patched:
        patched.setattr(GroupCommit, "rewrite", AsyncMock(side_effect=StoreError("the disk is away")))
        with pytest.raises(StoreError, match="away"):
            await process.edit("end", lambda document: document.update(shape=[2 * INNER]))
    await process.write("end", 1, payload_of("end", 77))
    await process.sync()
    # A state that is built keeps inode numbers by second names.
    monkeypatch.setattr("shardfs.stores.local.shards._has_several_names", lambda _: False)
    machine = Machine(arrays)
    await (await Process.start(arrays, machine)).finish()
    for at in range(len(machine.calls) + 1):
        root = arrays.parent / f"killed{at}"
        machine.after_kill(at).build(root)
        await (await Process.start(root, QuickDisk())).finish()
        assert await stored(root, "end", range(2)) == [payload_of("end", seed) for seed in (1, 77)], at


async def made_smaller_and_interrupted(root: Path) -> Process:
    """A process that could not remove what is outside the new shape of an array, whose shard another program locked."""
    process = await Process.start(root, QuickDisk())
    for number in (0, PER_SHARD):
        await process.write("end", number, payload_of("end", number + 1))
    await process.commit()
    with kept_busy(root / "end/c/1"), pytest.raises(StoreError, match="end/c/1 is kept locked"):
        await process.edit("end", resize(PER_SHARD * INNER))
    return process


def resize(length: int) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(shape=[length])


@in_leaps
async def test_an_array_that_was_made_smaller_shows_nothing_of_before_when_it_grows_again(arrays: Path) -> None:
    process = await made_smaller_and_interrupted(arrays)
    await process.edit("end", resize(NCHUNKS * INNER))
    assert await process.read("end", PER_SHARD) is None
    await process.finish()
    await (await Process.start(arrays, QuickDisk())).finish()
    assert await stored(arrays, "end", range(PER_SHARD + 1)) == [payload_of("end", 1), *[None] * PER_SHARD]


@pytest.mark.parametrize("path", ["end", "start"])
@in_trio
async def test_what_a_killed_session_published_is_seen_at_once_by_who_takes_it_over(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """As to judge what another killed session had published there: that a chunk is removed."""
    with monkeypatch.context() as patched:
        patched.setattr(others.SessionsBeside, "_slots", lambda _: [])
        one, other = [await Process.start(arrays, QuickDisk(), slot=slot) for slot in (0, 1)]
        await one.write(path, 0, payload_of(path, 1))
        await one.remove(path, 0)
        await other.write(path, 1, payload_of(path, 2))
        for process in (one, other):
            await process.sync()
    del one, other, process
    gc.collect()
    again = await Process.start(arrays, QuickDisk(), ttl=60.0)
    array = await again.array(path)
    assert [(await array.find((number,)))[1] is not None for number in (0, 1)] == [False, True]


@in_leaps
async def test_what_a_dead_session_could_not_finish_is_tried_once_by_who_flushes(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made_smaller_and_interrupted(arrays)
    gc.collect()
    tried, again = list[JournalContents](), others.replay

    async def count(source: Source, contents: JournalContents, commits: GroupCommit) -> Recovery:
        tried.append(contents)
        return await again(source, contents, commits)

    monkeypatch.setattr(others, "replay", count)
    with kept_busy(arrays / "end/c/1"):
        process = await Process.start(arrays, QuickDisk(), slot=1)
        assert len(tried) == 1
    await process.finish()
    assert len(tried) == 2, "at the end, when it is free"
    assert not (arrays / "end/c/1").exists()


@pytest.mark.parametrize("left", ["a torn append", "a change of shape"])
@in_leaps
async def test_what_a_dead_session_left_in_one_array_prevents_no_change_of_another(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    busy: AbstractContextManager[object] = nullcontext()
    if left == "a torn append":
        await tear(arrays, "end", monkeypatch)
        (arrays / "end/zarr.json").write_text("{")
        os.utime(arrays / "end/zarr.json", (1e9, 1e9))  # it is not being written at this moment
    else:
        await made_smaller_and_interrupted(arrays)
        busy = kept_busy(arrays / "end/c/1")
    gc.collect()
    with busy:
        process = await Process.start(arrays, QuickDisk(), slot=1)
        await process.edit("start", resize(INNER))
        assert (await process.array("start")).grid.grid_shape == (1,)
        if left == "a change of shape":
            with pytest.raises(StoreError, match="end is not changed while another session has to commit"):
                await process.edit("end", resize(INNER))
        assert len(await process.writing.others.flush()) == 1, "who flushes all is told"


@pytest.mark.parametrize("other", ["a group", "an array with smaller shards"])
@in_trio
async def test_files_of_who_made_something_else_of_an_array_stay_when_that_is_made_smaller(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", PER_SHARD, payload_of("end", 1))
    await process.commit()
    rewrite = GroupCommit.rewrite

    async def replaced(commits: GroupCommit, *arguments: Any, **options: Any) -> bool:
        document = json.loads((arrays / "end/zarr.json").read_text())
        document["chunk_grid"]["configuration"]["chunk_shape"] = [PER_SHARD * INNER // 2]
        write(arrays / "end", GROUP if other == "a group" else document)
        os.utime(arrays / "end/zarr.json", (1e9, 1e9))
        return await rewrite(commits, *arguments, **options)

    monkeypatch.setattr(GroupCommit, "rewrite", replaced)
    await process.edit("end", resize(PER_SHARD * INNER))
    assert (arrays / "end/c/1").exists()


class RecordingDisk(QuickDisk):
    """A disk that notes which files were made durable, by the last two parts of their paths, and removed segments."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def sync(self, fd: int) -> None:
        self.events.append("/".join(os.readlink(f"/proc/self/fd/{fd}").split("/")[-2:]))

    def unlink(self, name: str, dir_fd: int) -> None:
        if name.endswith(".journal"):
            self.events.append("unlink")
        super().unlink(name, dir_fd)


@pytest.mark.parametrize("when", ["at first", "when it is committed"])
@in_trio
async def test_what_another_program_stored_is_durable_before_the_journal_forgets_it(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, payload_of("end", 1))
    await process.sync()
    make_source(arrays.parent / "other")
    native = await Process.start(arrays.parent / "other", QuickDisk())
    await native.write("end", 0, payload_of("end", 1))
    await native.finish()
    shutil.copytree(arrays.parent / "other/end", arrays / "end", dirs_exist_ok=True)
    if when != "at first":
        looks = [True]
        look = Array.is_as_noted

        async def as_before(array: Array, *arguments: Any) -> bool:
            return looks.pop() if looks else await look(array, *arguments)

        monkeypatch.setattr(Array, "is_as_noted", as_before)
    disk = RecordingDisk()
    again = await Process.start(arrays, disk)
    await again.finish()
    again.check_done()
    assert "c/0" in disk.events[: disk.events.index("unlink")]


@in_leaps
async def test_all_that_was_published_in_a_busy_shard_is_judged_after_one_wait(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others.SessionsBeside, "_slots", lambda _: [])
    process = await Process.start(arrays, QuickDisk())
    for number in range(PER_SHARD):
        await process.write("end", number, payload_of("end", number + 1))
    await process.sync()
    native = await Process.start(arrays, QuickDisk(), slot=1)
    for number in range(PER_SHARD):
        await native.write("end", number, payload_of("end", 77))
    await native.finish()
    with kept_busy(arrays / "end/c/0"):
        begun = trio.current_time()
        await Process.start(arrays, QuickDisk())
        assert trio.current_time() - begun < 75, "one wait to judge, and one to commit"


@pytest.mark.parametrize("fails", [(LocalFile, "sync"), (LocalStore, "open_passthrough")], ids=["sync", "open"])
@in_leaps
async def test_what_is_stored_and_cannot_be_made_durable_stays_in_the_journal(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[type, str]
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, payload_of("end", 10))
    await process.commit()
    await process.write("end", 1, payload_of("end", 21))
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "release_soon", AsyncMock())
        await process.commit()
    with kept_busy(arrays / "end/c/0"), monkeypatch.context() as patched:
        patched.setattr(*fails, AsyncMock(side_effect=StoreError("the disk is away")))
        again = await Process.start(arrays, QuickDisk())
    assert [one.key for one in again.writing.writer.commits.pending] == ["end/c/0"]
    await again.finish()
    again.check_done()


@in_trio
async def test_a_directory_of_another_user_that_cannot_be_listed_keeps_nothing_pending(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, payload_of("end", 10))
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "release_soon", AsyncMock())
        await process.commit()
    gc.collect()
    sync = LocalStore.sync_directory

    async def refused(store: LocalStore, key: str) -> None:
        if key == "end":
            raise AccessDeniedError("end: Permission denied")
        await sync(store, key)

    monkeypatch.setattr(LocalStore, "sync_directory", refused)
    again = await Process.start(arrays, QuickDisk())
    assert await again.writing.finish()
    again.check_done()


def locks_in(root: Path) -> list[Path]:
    return [*root.rglob("*.__lock")]


@pytest.mark.parametrize("error", ["append", "append and note", "all from then on"])
@in_trio
async def test_a_commit_that_cannot_be_announced_leaves_a_lock_only_if_that_may_be_known(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """On a full disk, where a shard should not be written anew without need."""
    process = await Process.start(arrays, QuickDisk())
    for number in (0, PER_SHARD):
        await process.write("end", number, payload_of("end", 1))
    await process.commit()
    for number in (1, PER_SHARD + 1):
        await process.write("end", number, payload_of("end", 2))
    append, undos = Journal.append, list[UndoRecord]()

    def full(journal: Journal, record: Any, *more: Any, **options: Any) -> Any:
        if isinstance(record, UndoRecord):
            undos.append(record)
        if len(undos) > 1 and (isinstance(record, UndoRecord) or error == "append and note"):
            if error == "all from then on":  # as if a sync beside it had failed
                journal._lost("could not be made durable")
            raise NoSpaceError("the disk is full")
        return append(journal, record, *more, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", full)
        with pytest.raises(ShardfsError):
            await process.commit()
    assert bool(locks_in(arrays)) == (error != "append")
    if error == "all from then on":
        process = await Process.start(arrays, QuickDisk())
    await process.finish()
    process.check_done()
    assert not locks_in(arrays)


@pytest.mark.parametrize("path", ["end", "unchecked"])
@in_leaps
async def test_what_was_torn_is_undone_once_its_document_can_be_read(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    before = await tear(arrays, path, monkeypatch)
    document = arrays / path / "zarr.json"
    text = document.read_text()
    document.write_text(text[:40])
    os.utime(document, (1e9, 1e9))  # it is not being written at this moment
    await Process.start(arrays, QuickDisk())
    document.write_text(text)
    await (await Process.start(arrays, QuickDisk())).finish()
    assert (arrays / path / "c/0").read_bytes().startswith(before)
    assert await stored(arrays, path, range(1)) == [payload_of(path, 10)]


@in_leaps
async def test_what_is_carried_forward_does_not_pass_for_a_later_commit_of_its_shard(
    arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise StoreError("the disk did not answer")

    async def clean_and_die(log: Journal) -> None:
        for _ in range(2):  # the chunk, and what there is of the commit that failed
            log.carry_forward()
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
    monkeypatch.setattr(Journal, "sync_soon", clean_and_die)
    with pytest.raises(DiedError):
        await process.commit()
    [undo] = [each for each in read_left(str(arrays / ".shardfs/0/journal")).records if isinstance(each, UndoRecord)]
    added = undo.planned_nbytes - undo.old_nbytes
    assert added > len(payload_of("end", 21)) + len(payload_of("end", 32)), "the later commit was of two chunks"


# Journals that were left


async def bring_home(store: Store, root: Path) -> None:
    """Commit what is in a journal, as the next mount does."""
    source = Source.of(store)
    async with opened(source, StateDirectory(str(root))) as (contents, commits):
        await replay(source, contents, commits)
        await commits.flush()


@in_leaps
async def test_where_programs_would_not_see_what_is_pending_it_is_committed_first(
    arrays: Path,
) -> None:
    class FullDisk(QuickDisk):
        def create(self, *_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    process = await Process.start(arrays, QuickDisk(), v2=True)
    await process.write("unsharded", 1, b"stored")
    await process.commit()
    await process.write("unsharded", 0, b"published")
    await process.remove("unsharded", 1)
    with pytest.raises(StoreError, match=r"in the view v2 must be committed .* unsharded/c/0.*: No space left"):
        await Process.start(arrays, FullDisk(), journal=QuickDisk())
    process = await Process.start(arrays, FullDisk(), journal=QuickDisk(), v2=True)
    assert await read_file(process.fs, (await find(process.fs, "unsharded/0")).ino) == b"published"
    await Process.start(arrays, QuickDisk())
    assert [path.read_bytes() for path in (arrays / "unsharded/c").iterdir()] == [b"published"]


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
        (StoreError("no network"), False, (1, 0), ""),
        (StoreError("no answer"), True, (1, 0), ""),
        (CorruptionError("damaged"), False, (0, 1), "damaged; it is kept, and it cannot be applied while that is so"),
    ],
)
@in_trio
async def test_what_cannot_be_brought_into_its_shard_now_waits_or_is_put_aside(
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
    with pytest.raises(type(error)) if left == (1, 0) else nullcontext():
        await bring_home(FailingStore(arrays, error, is_local=is_local), arrays)
    assert await stored(arrays, "end", range(1)) == [b"old"]
    assert (len(read_left(state.journal).records), len(read_left(state.conflicts).records)) == left
    assert message in caplog.text
    await bring_home(LocalStore(str(arrays)), arrays)
    assert await stored(arrays, "end", range(1)) == [b"new" if left == (1, 0) else b"old"]


def damage_in_journal(root: Path, payload: bytes) -> None:
    """Flip a bit of a payload in the only segment of the journal."""
    (segment,) = (root / ".shardfs/0/journal").iterdir()
    data = segment.read_bytes()
    assert data.count(payload) == 1
    segment.write_bytes(data.replace(payload, bytes([payload[0] ^ 1]) + payload[1:]))


@in_trio
async def test_where_the_latest_version_of_a_chunk_is_damaged_the_one_before_is_committed(
    arrays: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been synced, and a power cut have damaged the latest, which was not."""
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"stored")
    await process.commit()
    for number, data in ((0, b"first"), (1, b"other"), (0, b"second")):
        await process.write("end", number, data)
    damage_in_journal(arrays, b"second")
    findings: list[Leftover] = []
    await show_source(Source.of(LocalStore(str(arrays))), findings)
    later = "a later version of the chunk is in a damaged part of the journal"
    assert f"journal: the new bytes of chunk 0 of end; {later}" in [finding.message for finding in findings]
    await bring_home(LocalStore(str(arrays)), arrays)
    assert await stored(arrays, "end", range(2)) == [b"first", b"other"]
    assert f"committing the new bytes of chunk 0 of end: {later}" in caplog.text
    assert caplog.text.count(later) == 1


@in_trio
async def test_what_was_committed_is_not_undone_by_damage_of_its_record(arrays: Path) -> None:
    """Though an earlier record of the chunk is still in the journal, and fits what is stored."""
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 0, b"twice")
    await process.commit()
    await process.write("start", 0, b"waits")  # and keeps the others in the journal
    await process.write("end", 0, b"between")
    await process.write("end", 0, b"twice")
    await process.writing.writer.commits.flush(below="end")
    damage_in_journal(arrays, b"twice")
    await bring_home(LocalStore(str(arrays)), arrays)
    assert await stored(arrays, "end", range(1)) == [b"twice"]
    assert await stored(arrays, "start", range(1)) == [b"waits"]
    assert not read_left(StateDirectory(str(arrays)).conflicts).records


@in_trio
async def test_no_journal_makes_a_file_that_runs_as_its_owner(arrays: Path) -> None:
    process = await Process.start(arrays, QuickDisk())
    content, permissions = (
        MemoryContent(memoryview(b"#!/bin/sh")),
        {"mode": 0o6751, "uid": os.geteuid(), "gid": os.getegid()},
    )
    await process.writing.writer.put(await process.array("end"), (0,), content, ino=1, mtime_ns=1, **permissions)
    await bring_home(LocalStore(str(arrays)), arrays)
    assert await stored(arrays, "end", range(1)) == [b"#!/bin/sh"]
    assert stat.S_IMODE((arrays / "end/c/0").stat().st_mode) == 0o751


# Who reads beside another session


@pytest.mark.parametrize("path", ["end", "unchecked", "nested"])
@in_trio
async def test_a_chunk_that_is_opened_in_the_middle_of_a_commit_by_another_session_can_be_read_after_it(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The shard is appended to, and gets its last time afterwards."""
    process = await Process.start(arrays, QuickDisk())
    await process.write(path, 0, payload_of(path, 10))
    await process.commit()
    array = await Source.of(LocalStore(str(arrays)), ttl=0.0).hierarchy.array(path)
    assert array is not None
    move, opened_meanwhile = shards._move_time, list[Extent | None]()

    def moves(*args: Any) -> None:
        opened_meanwhile.append(trio.from_thread.run(array.extent, (0,)))
        move(*args)

    await process.write(path, 1, payload_of(path, 21))
    with monkeypatch.context() as patched:
        patched.setattr(shards, "_move_time", moves)
        await process.commit()
    (extent,) = opened_meanwhile
    assert extent is not None
    assert await extent.read(0, extent.nbytes) == payload_of(path, 10)
