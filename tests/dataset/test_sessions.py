"""Several sessions of one directory: what each of them published is in the shards, however any of them ended."""

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import zarr
from trio.testing import MockClock
from zarr.core.buffer import default_buffer_prototype

import shardfs
from shardfs.api.dataset import Dataset
from shardfs.dataset import layout
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal import recovery
from shardfs.dataset.journal.recovery import opened
from shardfs.dataset.maintenance import others
from shardfs.dataset.maintenance.others import OtherSessions, SessionsBeside
from shardfs.dataset.state import asking
from shardfs.dataset.state.asking import Asked
from shardfs.dataset.state.directory import StateDirectory
from shardfs.dataset.state.holding import hold
from shardfs.dataset.state.roots import StateRoot
from shardfs.dataset.state.slots import Slot
from shardfs.errors import ExistsError, ReadOnlyError, ShardfsError, StaleError, StoreError
from shardfs.stores.local.tree import LocalStore
from shardfs.vfs import documents
from shardfs.vfs.paths import Paths
from shardfs.vfs.writable import WritableFilesystem
from tests.dataset.test_state import SHARED, left_by_another_host, local
from tests.support.commands import run_program, running_program
from tests.support.corpus import LITTLE, array, sharding
from tests.support.mounting import PATIENCE, eventually
from tests.support.prepared import Prepared

pytestmark = pytest.mark.slow

NCHUNKS = 16


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An array of one shard with 16 inner chunks of 4 numbers, none of which is stored."""
    zarr.create_array(tmp_path / "a.zarr", shape=(64,), shards=(64,), chunks=(4,), dtype="u4", compressors=None)
    return tmp_path / "a.zarr"


def chunk(value: int) -> bytes:
    return np.full(4, value, "u4").tobytes()


def stored(source: Path) -> list[int]:
    """One number of each chunk, as a native reader finds it now."""
    values = np.asarray(zarr.open_array(source, mode="r")[...])
    assert (values.reshape(NCHUNKS, 4) == values[::4, None]).all()
    return [int(value) for value in values[::4]]


def write(dataset: Dataset, number: int, value: int | None) -> None:
    dataset[""].write_chunk((number,), None if value is None else chunk(value))


WRITING = """
import os, signal, sys
import numpy as np
import shardfs
from shardfs.api.dataset import Dataset
from shardfs.dataset.commit import GroupCommit

dataset = shardfs.open(sys.argv[1], write=True)
"""
PUBLISH = 'dataset[""].write_chunk(({},), np.full(4, {}, "u4").tobytes())\n'
WAIT = 'print("ready", flush=True)\nsys.stdin.read()\n'
DIE = "os.kill(os.getpid(), signal.SIGKILL)\n"
DIE_AFTER_STORING = "GroupCommit._finish = lambda *_: os._exit(9)\ndataset.flush()\n"
"""The shard has its new version, and the journal does not know it yet."""


def run(source: Path, *parts: str) -> None:
    done = run_program("".join((WRITING, *parts)), source)
    assert done.returncode in (0, 9, -9), done.stderr


@contextmanager
def waiting(source: Path, published: str) -> Iterator[subprocess.Popen[bytes] | Prepared]:
    """A session in a process of its own that has published what it is to, and waits until it is killed."""
    with running_program(f"{WRITING}{published}{WAIT}", source) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process


def publishes(numbers: Sequence[int], value: int) -> str:
    return "".join(PUBLISH.format(number, value) for number in numbers)


def kill_three(source: Path) -> None:
    """Kill three sessions that live at the same time, after each has published a chunk: 1, 2 and 3."""
    with ExitStack() as stack:
        living = [stack.enter_context(waiting(source, publishes([n], n))) for n in (1, 2, 3)]
        for process in living:
            process.kill()
            process.wait(PATIENCE)


def test_a_flush_commits_what_all_living_sessions_published(source: Path) -> None:
    with shardfs.open(source, write=True) as first, shardfs.open(source, write=True) as second:
        write(first, 0, 1)
        write(second, 5, 2)
        first.flush()
        assert stored(source) == [1, 0, 0, 0, 0, 2] + [0] * 10
    assert sorted(os.listdir(source)) == ["c", "zarr.json"]


def test_the_end_of_a_session_commits_what_one_in_another_process_published(source: Path) -> None:
    with waiting(source, publishes(range(8), 7)) as process:
        with shardfs.open(source, write=True) as dataset:
            write(dataset, 9, 1)
        assert stored(source) == [7] * 8 + [0, 1] + [0] * 6
        process.kill()
        process.wait(PATIENCE)


def test_what_a_killed_session_published_is_committed_by_the_next_flush_of_another(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        for value in (1, 2, 3):  # one after the other, so that each takes the slot of the one before
            run(source, publishes([value], value), DIE)
        write(dataset, 0, 9)
        dataset.flush()
        assert stored(source) == [9, 1, 2, 3] + [0] * 12
    assert sorted(os.listdir(source)) == ["c", "zarr.json"]


def test_what_was_stored_before_a_kill_does_not_come_back_when_another_one_removed_it(source: Path) -> None:
    """Nor is it a conflict: it was in its shard, and removed there."""
    run(source, publishes([0, 3], 4), "dataset.flush()\n", publishes([1], 5), DIE_AFTER_STORING)
    assert stored(source)[:4] == [4, 5, 0, 4]
    assert (source / "c/0.__lock").exists()
    with shardfs.open(source, write=True) as dataset:
        write(dataset, 1, None)
        write(dataset, 2, 6)
    assert stored(source)[:4] == [4, 0, 6, 4]
    assert sorted(os.listdir(source)) == ["c", "zarr.json"], "nothing is pending, and nothing in conflict"
    assert os.listdir(source / "c") == ["0"]


def test_what_a_killed_session_published_replaces_nothing_that_was_stored_later(source: Path) -> None:
    run(source, publishes([0, 1], 1), DIE)
    with shardfs.open(source, write=True) as dataset:  # it has the slot, and commits what was in it
        write(dataset, 0, 2)
    assert stored(source)[:2] == [2, 1]
    shutil.rmtree(source / "c")
    run(source, publishes([0, 1], 3), DIE)
    native = zarr.open_array(source, mode="r+")
    native[:4] = 8
    with shardfs.open(source, write=True):
        pass
    assert stored(source)[:2] == [8, 3]
    (left,) = (source / ".shardfs").glob("*/conflicts/*")
    assert left.stat().st_size, "it is kept for `recover`"


def test_a_session_that_does_not_answer_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "_SEEN_SECONDS", 0.5)
    with waiting(source, publishes([3], 3)) as process:
        process.send_signal(signal.SIGSTOP)
        dataset = shardfs.open(source, write=True)
        write(dataset, 4, 4)
        with pytest.raises(StoreError, match=f"process {process.pid} on .* does not answer"):
            dataset.flush()
        assert stored(source)[3:5] == [0, 4]
        process.send_signal(signal.SIGCONT)
        dataset.close()
        assert stored(source)[3:5] == [3, 4]


def test_of_two_edits_of_a_document_the_second_is_refused(source: Path) -> None:
    prototype = default_buffer_prototype()
    with shardfs.open(source, write=True) as first, shardfs.open(source, write=True, metadata_ttl=0.0) as second:
        texts = [dataset.store().get_sync("zarr.json") for dataset in (first, second)]
        edits = [
            prototype.buffer.from_bytes(text.to_bytes().replace(b'"attributes": {', b'"attributes": {"n": %d' % n))
            for n, text in enumerate(texts)
            if text is not None
        ]
        first.store().set_sync("zarr.json", edits[0])
        with pytest.raises(StaleError):
            second.store().set_sync("zarr.json", edits[1])
        assert zarr.open_array(source, mode="r").attrs["n"] == 0
        assert second.store().get_sync("zarr.json") is not None
        second.store().set_sync("zarr.json", edits[1])
        assert zarr.open_array(source, mode="r").attrs["n"] == 1


def test_of_several_that_create_a_document_at_once_exactly_one_wins(tmp_path: Path) -> None:
    source = tmp_path / "d.zarr"
    zarr.create_group(source)
    text = (source / "zarr.json").read_bytes().replace(b'"attributes": {}', b'"attributes": {"by": "%d"}')

    def create(number: int) -> list[int]:
        """The groups that this session made of those that all try to make."""
        made = []
        with shardfs.open(source, write=True) as dataset:
            for group in range(20):
                barrier.wait()
                with suppress(ExistsError):
                    dataset.loop.call(Paths.publish, f"g{group}/zarr.json", text % number, exclusive=True)
                    made.append(group)
        return made

    barrier = Barrier(3)
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(create, range(3)))
    assert sorted(group for groups in made for group in groups) == list(range(20))
    for number, groups in enumerate(made):
        assert all(zarr.open_group(source, mode="r")[f"g{group}"].attrs["by"] == str(number) for group in groups)


def test_what_one_dead_session_left_is_undone_though_that_of_another_cannot_be(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anybody judges what is published over it."""
    tried: list[str] = []

    async def fails(_: Source, slot: Slot) -> None:
        tried.append(slot.state.key)
        raise StoreError("its journal cannot be read")

    async def look() -> None:
        store = LocalStore(str(source))
        with hold(store) as state:
            await OtherSessions(Source.of(store), state).undo()

    kill_three(source)
    monkeypatch.setattr(others, "undo", fails)
    trio.run(look)
    assert len(tried) == 2, "the third was taken"


def test_a_dataset_in_a_forked_process_has_a_session_of_its_own(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        write(dataset, 0, 1)
        child = os.fork()
        if not child:
            try:
                write(dataset, 1, 2)
                dataset.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        write(dataset, 2, 3)
    assert stored(source)[:4] == [1, 2, 3, 0]


def test_what_a_thread_has_locked_when_a_process_is_forked_stops_nothing_there(source: Path) -> None:
    with shardfs.open(source) as older, shardfs.open(source) as newer:
        assert older == newer
        with older._opening, newer._opening, layout._remembering:
            child = os.fork()
            if not child:
                signal.alarm(int(PATIENCE))
                try:
                    values = [dataset[""].read_chunk((0,)) for dataset in (older, newer)]
                    os._exit(values != [None, None])
                finally:
                    os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("how", ["flush", "close"])
@pytest.mark.parametrize("who", ["a commit that nobody waits for", "another session"])
def test_who_publishes_what_is_put_aside_is_told_by_its_next_flush_or_close_whoever_had_it_committed(
    source: Path, who: str, how: str
) -> None:
    root = source.parent / "group"
    root.mkdir()
    with shardfs.open(root, write=True, shards=(4,)) as dataset:
        zarr.create_group(dataset.store()).create_array("a", shape=(64,), chunks=(4,), dtype="u4", compressors=None)
    dataset, other = (shardfs.open(root, write=True) for _ in range(2))
    dataset["a"].write_chunk((0,), chunk(1))
    shutil.rmtree(root / "a")
    if who == "another session":
        other.flush()
    else:
        dataset.loop.call(commit_quietly)
    other.close()
    with pytest.raises(ShardfsError, match="1 chunk of it, put aside: a"):
        dataset.close() if how == "close" else dataset.flush()
    if how == "flush":
        dataset.close()


def test_what_a_living_session_cannot_commit_in_one_array_prevents_no_change_of_another(source: Path) -> None:
    root = source.parent / "group"
    group = zarr.create_group(root)
    for name in ("a", "b"):
        group.create_array(name, shape=(64,), shards=(64,), chunks=(4,), dtype="u4", compressors=None)
    document = root / "a/zarr.json"
    text = document.read_text()
    dataset, other = (shardfs.open(root, write=True) for _ in range(2))
    dataset["a"].write_chunk((0,), chunk(1))
    document.write_text("{")
    os.utime(document, (1e9, 1e9))  # it is not being written at this moment
    with pytest.raises(ShardfsError):
        other.flush()
    zarr.open_array(other.store("b"), mode="r+").resize((32,))
    assert zarr.open_array(root / "b", mode="r").shape == (32,)
    document.write_text(text)
    other.close()
    dataset.close()
    assert zarr.open_array(root / "a", mode="r")[0] == 1


@pytest.mark.parametrize("how", ["a request for the array", "a request for all"])
def test_what_another_session_could_not_remove_is_gone_before_an_array_grows(
    source: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def fails(*_: object) -> None:
        raise StoreError("the shard is busy")

    dataset, other = (shardfs.open(source, write=True, metadata_ttl=0.0) for _ in range(2))
    for number in range(NCHUNKS):
        write(dataset, number, 7)
    dataset.flush()
    with monkeypatch.context() as patched:
        patched.setattr(documents, "empty_outside", fails)
        with pytest.raises(StoreError, match="busy"):
            zarr.open_array(dataset.store(), mode="r+").resize((32,))
    assert zarr.open_array(source, mode="r").shape == (32,)
    with monkeypatch.context() as patched:
        patched.setattr(recovery, "empty_outside", fails)
        with pytest.raises(StoreError, match="still made smaller: the shard is busy"):
            zarr.open_array(other.store(), mode="r+").resize((64,))
    assert zarr.open_array(source, mode="r").shape == (32,)
    if how == "a request for all":
        monkeypatch.setattr(asking, "_TEXT_NBYTES", 0)
    zarr.open_array(other.store(), mode="r+").resize((64,))
    assert stored(source) == [7] * 8 + [0] * 8
    other.close()
    dataset.close()


def test_an_array_grows_only_after_another_session_has_made_it_smaller(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, taken, events = Event(), Event(), list[str]()
    empty_outside, take, answer = documents.empty_outside, Asked.take, Asked.answer

    async def empty_once_asked(*arguments: Any) -> None:
        begun.set()
        assert await trio.to_thread.run_sync(taken.wait, PATIENCE)
        await trio.testing.wait_all_tasks_blocked(0.1)  # whoever answers has done so, or waits
        await empty_outside(*arguments)
        events.append("removed")

    def note_taken(asked: Asked, most: int) -> Mapping[str, str | None]:
        requests = take(asked, most)
        if requests:
            taken.set()
        return requests

    def note_answer(asked: Asked, tokens: Sequence[str], reason: str | None) -> None:
        events.append("answered")
        answer(asked, tokens, reason)

    dataset, other = (shardfs.open(source, write=True, metadata_ttl=0.0) for _ in range(2))
    for number in range(NCHUNKS):
        write(dataset, number, 7)
    dataset.flush()
    with monkeypatch.context() as patched, ThreadPoolExecutor() as pool:
        patched.setattr(documents, "empty_outside", empty_once_asked)
        patched.setattr(Asked, "take", note_taken)
        patched.setattr(Asked, "answer", note_answer)
        smaller = pool.submit(lambda: zarr.open_array(dataset.store(), mode="r+").resize((32,)))
        assert begun.wait(PATIENCE)
        zarr.open_array(other.store(), mode="r+").resize((64,))
        smaller.result(PATIENCE)
    assert events == ["removed", "answered"]
    assert stored(source) == [7] * 8 + [0] * 8
    other.close()
    dataset.close()


def test_an_array_is_made_again_beside_a_session_that_writes_chunks_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, rmdir, names = tmp_path / "group", WritableFilesystem.rmdir, list[bytes]()
    with shardfs.open(root.parent, write=True, shards=(4,)) as dataset:
        zarr.create_group(dataset.store("group"))
    dataset, other = (shardfs.open(root, write=True, shards=(4,), metadata_ttl=0.0) for _ in range(2))
    make = partial(zarr.create_array, shape=(64,), chunks=(4,), dtype="u4", compressors=None)
    make(dataset.store("a"))[:8] = 1

    async def beside(fs: WritableFilesystem, parent: int, name: bytes) -> None:
        names.append(name)
        if names.count(name) == 1:  # it was found empty
            await trio.to_thread.run_sync(write_and_commit, other)
        await rmdir(fs, parent, name)

    with monkeypatch.context() as patched:
        patched.setattr(WritableFilesystem, "rmdir", beside)
        make(dataset.store("a"), overwrite=True)
    assert {b"c", b"a"} <= {*names}
    assert not dataset.store("a").get_sync("c/3")
    other["a"].write_chunk((5,), chunk(5))
    dataset.close()
    with suppress(ShardfsError):  # for what it published while there was no array
        other.close()
    assert zarr.open_array(root / "a", mode="r")[8:24:4].tolist() == [0, 0, 0, 5]


def write_and_commit(dataset: Dataset) -> None:
    with suppress(ShardfsError):
        dataset["a"].write_chunk((3,), chunk(3))
        dataset.loop.call(commit_quietly)


async def commit_quietly(paths: Paths) -> None:
    """Commit what is due, as is done all the time."""
    assert paths.fs.writable is not None
    commits = paths.fs.writable.writer.commits
    await commits._commit([*commits.pending])


@pytest.fixture
def suspended(source: Path, file_system: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataset]:
    """A session with a chunk that is pending, after that of another host came, whose locks do not reach."""
    file_system(SHARED[0])
    monkeypatch.setattr(others, "_WATCH_SECONDS", 0.02)
    monkeypatch.setattr(others, "_AGAIN_SECONDS", 0.02)
    dataset = shardfs.open(source, write=True)
    with suppress(ShardfsError), dataset:
        write(dataset, 0, 7)
        left_by_another_host(source, 9)
        eventually(lambda: refuses(dataset))
        yield dataset


def refuses(dataset: Dataset) -> bool:
    """Whether a chunk can not be removed that is not stored, which changes nothing if it can."""
    with suppress(ReadOnlyError):
        write(dataset, 15, None)
        return False
    return True


def test_nothing_is_written_beside_another_host_that_may_write_until_it_is_gone(
    source: Path, suspended: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ReadOnlyError, match=f"process 1 on elsewhere.*remove {source}/.shardfs/9/lock"):
        write(suspended, 1, 8)
    with pytest.raises(ReadOnlyError):
        suspended.store().set_sync("zarr.json", default_buffer_prototype().buffer.from_bytes(b"{}"))
    with pytest.raises(ReadOnlyError, match="elsewhere"):
        suspended.flush()
    assert stored(source)[0] == 0, "its chunk stays in the journal"
    lines = [record.getMessage() for when in ("setup", "call") for record in caplog.get_records(when)]
    assert sum(line.startswith("nothing is written for now, and what is pending") for line in lines) == 1
    shutil.rmtree(source / ".shardfs/9")
    eventually(lambda: not refuses(suspended))
    write(suspended, 1, 8)
    suspended.flush()
    assert stored(source)[:2] == [7, 8]


def test_what_was_pending_when_another_host_came_stays_in_the_journal(source: Path, suspended: Dataset) -> None:
    with pytest.raises(StoreError, match="stays in"):
        suspended.close()
    assert stored(source)[0] == 0
    shutil.rmtree(source / ".shardfs/9")
    shardfs.open(source, write=True).close()
    assert stored(source)[0] == 7


def test_what_a_dead_session_left_stays_there_while_another_host_may_write(
    source: Path, suspended: Dataset, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.zarr"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".shardfs"))
    run(copy, publishes([3], 3), DIE)
    shutil.copytree(copy / ".shardfs/0", source / ".shardfs/5")
    with pytest.raises(ReadOnlyError, match="elsewhere"):
        suspended.flush()
    assert stored(source)[3] == 0
    shutil.rmtree(source / ".shardfs/9")
    eventually(lambda: stored(source)[3] == 3)


def test_another_host_that_is_refused_at_once_stops_nobody(tmp_path: Path, file_system: Callable[..., None]) -> None:
    """It makes its slot, sees ours, and removes its own again."""
    file_system(SHARED[0])
    told: list[bool] = []

    def comes() -> None:
        left_by_another_host(tmp_path)

    def leaves() -> None:
        shutil.rmtree(tmp_path / ".shardfs/0")

    after = [comes, leaves, comes, lambda: None, leaves, lambda: scope.cancel()]

    def suspend(reason: str) -> None:
        told.append(bool(reason))
        after[len(told) - 1]()

    async def main() -> None:
        source = cast(Source, SimpleNamespace(store=local(tmp_path)))
        with scope:
            await OtherSessions(source, StateDirectory(str(tmp_path), ".shardfs/7")).watch(suspend)

    scope = trio.CancelScope()
    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert told == [False, False, False, False, True, False]


def test_a_file_system_that_does_not_answer_stops_no_reader_while_slots_are_looked_for(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, is_asked = Event(), Event()
    look = others.slots_in

    def hangs(root: StateRoot) -> Sequence[Slot]:
        is_asked.set()
        assert answers.wait(PATIENCE), "nothing else was done meanwhile"
        return look(root)

    with shardfs.open(source, write=True) as dataset:
        write(dataset, 0, 1)
        dataset.flush()
        write(dataset, 1, 2)
        monkeypatch.setattr(others, "slots_in", hangs)
        with ThreadPoolExecutor(1) as threads:
            flushed = threads.submit(dataset.flush)
            assert is_asked.wait(PATIENCE)
            assert dataset[""].read_chunk((0,)) == chunk(1)
            write(dataset, 8, 3)
            assert not flushed.done()
            answers.set()
            flushed.result()
    assert stored(source)[:9] == [1, 2, 0, 0, 0, 0, 0, 0, 3]


def test_who_takes_over_moves_nothing_that_another_session_has_published_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each inner shard gets a new version, so the shard around them could be laid out anew."""
    monkeypatch.setattr(others, "_WATCH_SECONDS", 0.02)
    source = tmp_path / "n.zarr"
    source.mkdir()
    document = array((64,), (64,), sharding((16,), sharding((4,), LITTLE)), data_type="uint32", fill_value=0)
    (source / "zarr.json").write_text(json.dumps(document))
    with shardfs.open(source, write=True) as dataset:
        for number in range(NCHUNKS):
            write(dataset, number, 1)
    with shardfs.open(source, write=True) as dataset, waiting(source, publishes([1], 5)) as living:
        run(source, publishes([0, 4, 8, 12], 7), DIE)
        eventually(lambda: stored(source)[::4] == [7] * 4)
        assert stored(source)[1] == 1, "the other session has not committed yet"
        living.kill()
        living.wait(PATIENCE)
        dataset.flush()
        assert stored(source) == [7, 5, 1, 1, *([7, 1, 1, 1] * 3)]
    assert not (source / ".shardfs").exists(), "nothing is in conflict"


def test_nothing_is_left_of_sessions_that_were_killed_when_all_they_published_is_committed(source: Path) -> None:
    """Several at once: each of them had a slot, and one may have been asked to commit when it was killed."""
    kill_three(source)
    (source / ".shardfs/1/asked/0123456789abcdef").touch()
    with shardfs.open(source, write=True):
        pass
    assert stored(source)[:4] == [0, 1, 2, 3]
    assert sorted(os.listdir(source)) == ["c", "zarr.json"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_slot_that_another_host_removes_while_it_is_looked_at_stops_no_flush(
    source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """NFS says that the directory is stale."""
    shutil.copytree(source, source.parent / "copy")
    run(source.parent / "copy", publishes([3], 3), DIE)
    with shardfs.open(source, write=True) as dataset:
        shutil.copytree(source.parent / "copy/.shardfs/0", source / ".shardfs/5")
        listdir = os.listdir

        def looks(path: str) -> list[str]:
            if str(path).endswith(".shardfs/5/journal"):
                raise OSError(number, os.strerror(number))
            return listdir(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", looks)
            write(dataset, 0, 1)
            dataset.flush()
        assert stored(source)[:4] == [1, 0, 0, 0]
    assert stored(source)[:4] == [1, 0, 0, 3]


def test_a_shard_is_not_compacted_while_another_session_has_published_over_it(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        for value in (1, 2):
            write(dataset, 0, value)
            dataset.flush()
    before = (source / "c/0").read_bytes()
    with waiting(source, publishes([0], 3)) as living:
        trio.run(compact_beside, source)
        assert (source / "c/0").read_bytes() == before
        living.kill()
        living.wait(PATIENCE)
    with shardfs.open(source, write=True):
        pass
    assert stored(source)[0] == 3
    assert sorted(os.listdir(source)) == ["c", "zarr.json"]


async def compact_beside(path: Path) -> None:
    """Try to compact the shard: with a look at the other sessions, and with one that sees them at the last moment."""
    source = Source.of(LocalStore(str(path)), ttl=0.0)
    array = (await source.hierarchy.node("")).array
    assert array is not None
    with hold(source.writable, door="compact") as state:
        beside = SessionsBeside(source, state)
        async with opened(source, state, beside) as (_, commits):
            assert not await commits.rewrite(array.layout, (0,))
            looks = [False, True]

            async def have_pending() -> bool:
                return looks.pop(0)

            beside.have_pending = have_pending  # type: ignore[method-assign]
            assert not await commits.rewrite(array.layout, (0,))
            assert not looks
