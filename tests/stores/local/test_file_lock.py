"""Edits exclude each other, in one process and in several."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from shardfs.dataset.maintenance.walk import prune
from shardfs.errors import AccessDeniedError, LockedError, StoreError
from shardfs.stores.base import Descriptor, Kept, Splice, Stat
from shardfs.stores.local import file_lock, syscalls
from shardfs.stores.local.syscalls import Syscalls, ofd_lock
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import OLD, content, files
from tests.support.commands import run_program
from tests.support.locking import kept_busy
from tests.support.opened import in_trio
from tests.support.users import SOMEBODY, shared_directory

DIE = """
import os, sys, trio
from shardfs.stores.local.tree import LocalStore

async def main():
    async with LocalStore(sys.argv[1]).edit("d/f") as edit:
        os._exit(0)

trio.run(main)
"""


async def append(store: LocalStore, data: bytes) -> None:
    """Append, and try again while the file is locked."""
    begun, pause = trio.current_time(), 0.001
    while True:
        with suppress(LockedError):
            async with store.edit("d/f", waited=trio.current_time() - begun) as edit:
                assert edit.snapshot is not None
                await edit.splice(Splice((Kept(0, edit.snapshot.size), content(data))))
                return
        await trio.sleep(pause)
        pause = min(2 * pause, 1.0)


@pytest.mark.slow
@in_trio
async def test_appends_of_many_tasks_and_stores_lose_nothing(source: Path) -> None:
    stores = [LocalStore(str(source)) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for i in range(9):
            nursery.start_soon(append, stores[i % 3], bytes([i]))
    found = (source / "d/f").read_bytes()
    assert found.startswith(OLD)
    assert sorted(found[len(OLD) :]) == list(range(9))


@in_trio
async def test_a_file_that_the_holder_of_the_lock_renames_into_place_is_appended_to(source: Path) -> None:
    with kept_busy(source / "d/f") as lock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, LocalStore(str(source)), b" and ours")
            await wait_all_tasks_blocked()
            lock.write_bytes(b"theirs")
            lock.rename(source / "d/f")
    assert (source / "d/f").read_bytes() == b"theirs and ours"
    assert files(source) == {"d/f"}


@pytest.mark.slow
@partial(in_trio, jump_after=0.01)
async def test_a_lock_file_that_nobody_has_locked_is_waited_for_while_it_is_young(source: Path) -> None:
    """In its mode `lockfile` tensorstore makes it, and that is all."""
    lock = source / "d/f.__lock"
    lock.touch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(append, LocalStore(str(source)), b"x")
        await trio.sleep(50)
        assert (source / "d/f").read_bytes() == OLD
        lock.unlink()
    assert (source / "d/f").read_bytes() == OLD + b"x"


@pytest.mark.slow
@in_trio
async def test_the_lock_file_of_a_killed_process_is_taken_over(source: Path) -> None:
    await trio.run_process([sys.executable, "-c", DIE, str(source)])
    assert files(source) == {"d/f", "d/f.__lock"}
    with trio.fail_after(5):
        await append(LocalStore(str(source)), b"x")
    assert files(source) == {"d/f"}


@in_trio
async def test_a_lock_file_with_content_is_not_taken_over(source: Path) -> None:
    """tensorstore writes into a lock file of ours that was left, and would not truncate it the next time."""
    lock = source / "d/f.__lock"
    lock.write_bytes(b"theirs")
    lock.chmod(0o1666)
    with pytest.raises(LockedError):
        async with LocalStore(str(source)).edit("d/f"):
            pass
    assert lock.read_bytes() == b"theirs"


@in_trio
async def test_where_files_cannot_be_locked_no_lock_file_is_left(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(file_lock, "ofd_lock", no_locks)
    with pytest.raises(StoreError, match="No locks available"):
        async with LocalStore(str(source)).edit("d/f"):
            pass
    assert files(source) == {"d/f"}


@in_trio
async def test_a_lock_file_that_is_renamed_before_it_is_locked_is_no_lock(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the program that had it until then, which renames it onto the file."""

    def locked_late(fd: int) -> bool:
        (source / "d/f.__lock").rename(source / "d/f")
        return ofd_lock(fd)

    monkeypatch.setattr(file_lock, "ofd_lock", locked_late)
    with pytest.raises(LockedError):
        async with LocalStore(str(source)).edit("d/f"):
            pass


@in_trio
async def test_what_is_not_ours_by_now_is_not_removed(source: Path) -> None:
    lock = source / "d" / "f.__lock"
    async with LocalStore(str(source)).edit("d/f"):
        lock.unlink()
        lock.write_bytes(b"theirs")
    assert lock.read_bytes() == b"theirs"


class InPlace(Syscalls):
    """A file system where others see a part of an append."""

    def appends_at_once(self, fd: int) -> bool:
        return False


async def append_with_a_tail(store: LocalStore) -> None:
    async with store.edit("d/f") as edit:
        assert edit.snapshot is not None
        await edit.splice(Splice((Kept(0, edit.snapshot.size), content(b"x"), content(b"tail")), 4))


@in_trio
async def test_where_no_lock_file_can_be_made_beside_it_a_file_stays_as_it_is(source: Path) -> None:
    class Closed(Syscalls):
        def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
            raise PermissionError(errno.EACCES, "injected")

    with pytest.raises(AccessDeniedError, match="no permission to make a lock file"):
        await append_with_a_tail(LocalStore(str(source), Closed()))
    assert (source / "d/f").read_bytes() == OLD
    assert files(source) == {"d/f"}


@pytest.mark.parametrize("has", ["second name", "attribute", "nothing more"])
@in_trio
async def test_an_append_by_a_clone_drops_no_attributes_and_changes_no_other_name(source: Path, has: str) -> None:
    class Cloning(InPlace):
        def clone(self, fd: int, source: int) -> None:
            os.pwrite(fd, os.pread(source, 2 * len(OLD), 0), 0)

    file = source / "d/f"
    before = file.stat().st_ino
    if has == "second name":
        os.link(file, source / "d" / "second")
    elif has == "attribute":
        try:
            os.setxattr(file, "user.label", b"kept")
        except OSError:
            pytest.skip("the file system has no attributes")
    await append_with_a_tail(LocalStore(str(source), Cloning()))
    assert file.read_bytes() == OLD + b"xtail"
    assert (file.stat().st_ino == before) == (has == "attribute")
    if has == "second name":
        assert (source / "d" / "second").read_bytes() == OLD
    elif has == "attribute":
        assert os.getxattr(file, "user.label") == b"kept"


def left(source: Path) -> Path:
    """The lock file of `d/f`, as a process leaves it that is killed while it has the lock."""
    subprocess.run([sys.executable, "-c", DIE, source], check=True)
    return source / "d/f.__lock"


@in_trio
async def test_that_a_killed_process_changed_a_file_is_seen_by_all_until_it_is_written_anew(source: Path) -> None:
    lock, before = left(source), (source / "d/f").stat().st_ino
    for _ in range(3):
        async with LocalStore(str(source)).edit("d/f") as edit:
            assert edit.was_interrupted
        assert lock.exists()
    async with LocalStore(str(source)).edit("d/f") as edit:
        await edit.splice(Splice((Kept(0, len(OLD)), content(b"new"))))
    assert (source / "d/f").read_bytes() == OLD + b"new"
    assert (source / "d/f").stat().st_ino != before, "what is still written to the old file is not in the new one"
    async with LocalStore(str(source)).edit("d/f") as edit:
        assert not edit.was_interrupted
    assert files(source) == {"d/f"}


@pytest.mark.parametrize("is_undone", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
@in_trio
async def test_what_a_killed_process_did_is_settled_in_place_unless_its_host_may_still_write(
    source: Path, monkeypatch: pytest.MonkeyPatch, is_undone: bool, is_shared: bool
) -> None:
    left(source)
    path = source / "d/f"
    before = path.stat()
    if is_shared:
        monkeypatch.setattr(syscalls, "_file_system_of", lambda _: 0x6969)
    async with LocalStore(str(source)).edit("d/f") as edit:
        splice = Splice((Kept(0, 2),), mtime_ns=10**18) if is_undone else None
        await edit.settle(before.st_ino, splice)
    after = path.stat()
    assert path.read_bytes() == (OLD[:2] if is_undone else OLD)
    assert after.st_mtime_ns == (10**18 if is_undone else before.st_mtime_ns)
    assert (after.st_ino == before.st_ino) == (not is_shared)
    assert files(source) == {"d/f"}, "nothing tells of the killed process any more"


UNDO = """
import sys, trio
from shardfs.stores.base import Kept, Splice
from shardfs.stores.local.tree import LocalStore

async def main():
    async with LocalStore(sys.argv[1]).edit("f") as edit:
        await edit.splice(Splice((Kept(0, 3),), mtime_ns=10**18))

trio.run(main)
"""


@pytest.mark.parametrize("is_sticky", [False, True])
def test_what_another_user_undoes_gets_its_time_again_where_that_user_may_replace_it(is_sticky: bool) -> None:
    with shared_directory() as top:
        directory = top / "shared"
        directory.mkdir()
        directory.chmod(0o1777 if is_sticky else 0o777)
        path = directory / "f"
        path.write_bytes(b"oldnew")
        path.chmod(0o666)
        done = run_program(UNDO, directory, user=SOMEBODY)
        assert (done.returncode, done.stderr) == (0, "")
        assert path.read_bytes() == b"old"
        assert (path.stat().st_mtime_ns == 10**18) == (not is_sticky)
        assert path.stat().st_mode & 0o777 == 0o666


@in_trio
async def test_a_file_that_is_made_with_its_directory_is_not_changed_without_its_lock(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, opened = LocalStore(str(source)), LocalStore._open_to_change

    async def made_meanwhile(self: LocalStore, key: str) -> tuple[Descriptor, Stat]:
        (source / "new").mkdir(exist_ok=True)
        (source / "new/f").write_bytes(OLD)
        return await opened(self, key)

    monkeypatch.setattr(LocalStore, "_open_to_change", made_meanwhile)
    with pytest.raises(LockedError, match="just made"):
        async with store.edit("new/f"):
            pytest.fail("it is not locked")
    async with store.edit("new/f") as edit:
        assert edit.lock is not None


@in_trio
async def test_a_directory_is_removed_with_the_locks_that_nobody_holds_and_no_others(source: Path) -> None:
    store = LocalStore(str(source))
    (source / "c/0").mkdir(parents=True)
    (source / "c/0/left.__lock").touch()
    with kept_busy(source / "c/0/0") as held:
        await prune(store, "c", locks=True)
        assert os.listdir(source / "c/0") == [held.name]
    await prune(store, "c", locks=True)
    assert not (source / "c").exists()
