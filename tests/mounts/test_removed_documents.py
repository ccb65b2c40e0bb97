"""Documents that are removed through a mount: one array's failure is no other's."""

import errno
import json
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from shardfs.dataset.node import RemovedArray
from shardfs.stores.local.file_lock import DOCUMENTS_LOCK
from shardfs.stores.local.shards import LocalEdit
from shardfs.stores.local.syscalls import Syscalls, is_ofd_locked
from shardfs.vfs.inodes import ROOT
from tests.crash.harness import OWNER, Process
from tests.crash.histories import INNER, PER_SHARD, SHAPE, make_source
from tests.support.corpus import LITTLE, array, extension, sharding
from tests.support.datasets import store
from tests.support.hosts import PREFIX, Host
from tests.support.locking import kept_busy
from tests.support.lossy_disk import QuickDisk
from tests.support.mounting import Mount, Mounter, eventually, flush, refuses
from tests.support.opened import find, in_trio
from tests.support.writers import document_of

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3), LITTLE))
NEW = b"n" * 24
CONFLICT = ("kept 1 chunk of ", "another program has changed the array")
KEPT = "published for metadata that another program has changed"


def store_arrays(source: Path, *names: str) -> None:
    for name in names:
        store(source / name, DOCUMENT)


def make_conflict(mounted: Mount, path: str, key: str = "c/0/0") -> None:
    """Publish a chunk of an array whose data type another program then changes."""
    (mounted.path / path / key).write_bytes(NEW)
    stored = Path(mounted.source) / path / "zarr.json"
    stored.write_text(json.dumps(document_of(stored.parent) | {"data_type": "float32"}))


@pytest.mark.parametrize("end", ["flush", "umount"])
def test_a_conflict_in_one_array_keeps_no_removed_document_of_another(mount: Mounter, tmp_path: Path, end: str) -> None:
    store_arrays(tmp_path / "source", "a", "b")
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=0, expect=CONFLICT)
    (mounted.path / "b/zarr.json").unlink()
    make_conflict(mounted, "a")
    if end == "flush":
        with refuses(errno.EIO):
            flush(mounted.path)
    else:
        mounted.unmount(status=1)
    assert not (tmp_path / "source/b/zarr.json").exists()


def test_a_conflict_keeps_no_open_file_from_the_bucket(host: Host) -> None:
    mounted = host.mount(expect=CONFLICT)
    with (mounted.path / "notes.txt").open("wb", buffering=0) as file:
        file.write(b"notes")
        (mounted.path / "c/0/0").write_bytes(NEW)
        document = json.loads(host.bucket.get(f"{PREFIX}/zarr.json"))
        host.bucket.put(f"{PREFIX}/zarr.json", json.dumps(document | {"data_type": "float32"}).encode())
        with refuses(errno.EIO):
            flush(mounted.path)
        assert host.bucket.get(f"{PREFIX}/notes.txt") == b"notes"


def test_what_is_written_while_a_mount_ends_is_committed_despite_a_conflict(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store_arrays(source, "a", "b", "locked")
    mounted = mount(source, write=True, metadata_ttl=0, expect=CONFLICT)
    make_conflict(mounted, "a")
    (mounted.path / "locked/c/0/0").write_bytes(NEW)
    with kept_busy(source / "locked/c/0/0"):
        mounted.ends = (1,)
        mounted.process.terminate()
        eventually(lambda: KEPT in mounted.log)
        (mounted.path / "b/c/0/0").write_bytes(NEW)
    mounted.process.wait(60)
    for name in ("b", "locked"):
        assert NEW in (source / name / "c/0/0").read_bytes()
    assert not list((source / ".shardfs/0/journal").glob("*.journal"))


def test_a_removed_document_stays_removed_when_its_mode_or_its_directory_changes(
    mount: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    store_arrays(source, "a")
    mounted = mount(source, write=True, metadata_ttl=0)
    (mounted.path / "a/zarr.json").unlink()
    (source / "a/zarr.json").chmod(0o600)  # as `chmod -R` does
    assert os.listdir(mounted.path / "a") == ["c"]
    chunk = (mounted.path / "a/c/0/0").read_bytes()
    (mounted.path / "a").rename(mounted.path / "b")
    assert os.listdir(mounted.path / "b") == ["c"]
    assert (mounted.path / "b/c/0/0").read_bytes() == chunk
    mounted.unmount()
    assert os.listdir(source / "b") == ["c"]


@pytest.mark.parametrize("has_lock", [True, False])
@in_trio
async def test_a_document_that_another_program_stores_while_a_removed_one_is_dropped_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_lock: bool
) -> None:
    make_source(tmp_path / "source")
    process = await Process.start(tmp_path / "source", QuickDisk())
    document = tmp_path / "source/end/zarr.json"
    new, is_current = document.read_bytes().replace(b"{}", b'{"new":1}'), RemovedArray.is_current
    locked, looks = ExitStack(), 0

    async def is_current_then(self: RemovedArray) -> bool:
        nonlocal looks
        answer, looks = await is_current(self), looks + 1
        if has_lock and looks == 1:
            locked.enter_context(kept_busy(document))

            async def write() -> None:
                await trio.sleep(0.3)
                document.write_bytes(new)
                locked.close()

            nursery.start_soon(write)
        elif not has_lock:
            document.write_bytes(new)
        return answer

    await process.fs.unlink((await find(process.fs, "end")).ino, b"zarr.json")
    monkeypatch.setattr(RemovedArray, "is_current", is_current_then)
    (removed,) = process.fs.hierarchy.all_removed
    async with trio.open_nursery() as nursery:
        await removed.drop(process.fs.writable.store)
    assert document.read_bytes() == new


@in_trio
async def test_no_document_is_stored_between_the_last_look_at_a_removed_one_and_its_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other sessions wait for the lock of the documents of its node."""
    make_source(tmp_path / "source")
    process, delete = await Process.start(tmp_path / "source", QuickDisk()), LocalEdit.delete
    are_held: list[bool] = []

    async def delete_then(edit: LocalEdit) -> None:
        with (tmp_path / "source/end" / DOCUMENTS_LOCK).open("rb") as file:
            are_held.append(is_ofd_locked(file.fileno()))
        await delete(edit)

    monkeypatch.setattr(LocalEdit, "delete", delete_then)
    await process.fs.unlink((await find(process.fs, "end")).ino, b"zarr.json")
    (removed,) = process.fs.hierarchy.all_removed
    await removed.drop(process.fs.writable.store)
    assert are_held == [True]
    assert not (tmp_path / "source/end/zarr.json").exists()


def test_native_readers_see_what_is_appended_without_a_flush(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store_arrays(source, "a")
    root = mount(source, write=True, metadata_ttl=0).path / "a"
    (root / "zarr.json").write_text(json.dumps(document_of(root) | {"shape": [16, 12]}))
    (root / "c/0/0").write_bytes(NEW)  # within the old shape
    (root / "c/4/0").write_bytes(NEW)
    eventually((source / "a/c/2/0").exists)
    assert NEW in (source / "a/c/2/0").read_bytes()


@in_trio
async def test_chunks_that_are_appended_are_due_at_once(tmp_path: Path) -> None:
    make_source(tmp_path / "source")
    process = await Process.start(tmp_path / "source", Syscalls())
    await process.edit("end", lambda document: document.update(shape=[4 * SHAPE]))
    before, beyond = 0, SHAPE // INNER
    # A chunk that is replaced is not: readers find the one before.
    for number, is_due in ((before, False), (beyond, True), (beyond, False), (beyond + 1, True)):
        await process.write("end", number, b"data")
        [queue] = process.writing.writer.commits.pending
        assert (queue.due_at <= trio.current_time()) == is_due
        await process.fs.flush_all()


@in_trio
async def test_an_array_that_takes_the_place_of_one_that_grew_has_not_grown(tmp_path: Path) -> None:
    make_source(tmp_path / "source")
    process = await Process.start(tmp_path / "source", Syscalls(), shards=(PER_SHARD,))
    await process.edit("unchecked", lambda document: document.update(shape=[4 * SHAPE]))
    await process.fs.unlink((await find(process.fs, "unchecked")).ino, b"zarr.json")
    await process.fs.rmdir(ROOT, b"unchecked")
    directory = (await process.fs.mkdir(ROOT, b"unchecked", 0o755, OWNER)).ino
    document = array([4 * SHAPE], [INNER], extension("bytes"), data_type="uint8")
    await process.write_file(directory, b"zarr.json", json.dumps(document).encode())
    assert document_of(tmp_path / "source/unchecked")["codecs"][0]["name"] == "sharding_indexed"
    await process.fs.mkdir(directory, b"c", 0o755, OWNER)
    await process.write("unchecked", SHAPE // INNER, b"data")
    [queue] = process.writing.writer.commits.pending
    assert queue.due_at > trio.current_time()
    await process.finish()


@in_trio
async def test_how_many_arrays_grew_is_known_of_a_limited_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardfs.dataset.schedule._MAX_GROWN", 10)
    make_source(tmp_path / "source")
    process = await Process.start(tmp_path / "source", QuickDisk())
    commits = process.writing.writer.commits
    for number in range(100):
        commits.growth.grew(f"a{number}", (1,))
        commits.growth.grew("end", (SHAPE,))
    assert commits.growth.narrays == 10
    await process.edit("end", lambda document: document.update(shape=[4 * SHAPE]))
    await process.write("end", SHAPE // INNER, b"data")
    [queue] = commits.pending
    assert queue.due_at <= trio.current_time()


@partial(in_trio, jump_after=0.01)
async def test_a_program_that_appends_chunk_by_chunk_does_not_cause_a_commit_for_each(tmp_path: Path) -> None:
    make_source(tmp_path / "source")
    process = await Process.start(tmp_path / "source", QuickDisk())
    commits = process.writing.writer.commits
    await process.edit("end", lambda document: document.update(shape=[40 * SHAPE]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        for number in range(100):
            await process.write("end", SHAPE // INNER + number, b"data")
            await trio.sleep(0.01)  # on a clock that jumps
        assert 1 <= process.writing.source.statistics.commits <= 2 * 100 // PER_SHARD
        nursery.cancel_scope.cancel()
    await process.finish()


@pytest.mark.parametrize("name", ["zarr.json", "below/zarr.json"])
def test_a_directory_in_which_a_document_is_being_written_is_not_empty(
    mount: Mounter, tmp_path: Path, name: str
) -> None:
    """Else the document would come to what takes the place of the directory, and a smaller shape removes chunks."""
    store_arrays(tmp_path / "source", "old")
    root = mount(tmp_path / "source", write=True).path
    (root / "old/c/1/3").write_bytes(NEW)
    (root / "new" / name).parent.mkdir(parents=True)
    smaller = json.dumps(array((4, 6), (4, 6), sharding((2, 3), LITTLE))).encode()
    with (root / "new" / name).open("wb", buffering=0) as file:
        file.write(smaller)
        with refuses(errno.ENOTEMPTY):
            os.rename(root / "old", root / "new")
        with refuses(errno.ENOTEMPTY):
            (root / "new" / name).parent.rmdir()
    assert (root / "new" / name).read_bytes() == smaller
    assert json.loads((root / "old/zarr.json").read_bytes())["shape"] == [8, 12]
    assert (root / "old/c/1/3").read_bytes() == NEW
