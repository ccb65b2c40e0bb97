"""Edits exclude each other, in one process and in several."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardfs.errors import ConflictError, LockedError, NoSpaceError, RefusedError, StoreError
from shardfs.stores.base import Kept, Splice
from shardfs.stores.local.syscalls import BLOCK, Syscalls
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import OLD, content, files, make_source
from tests.support.opened import in_trio, run_in_leaps

HOLD = """
import sys, trio
from shardfs.stores.local.tree import LocalStore

async def main():
    async with LocalStore(sys.argv[1]).edit("d/f") as edit:
        print("locked", flush=True)
        sys.stdin.readline()

trio.run(main)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


def lock_as_tensorstore(file: BinaryIO) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


async def refused_for(source: Path, match: str, at_least: float, at_most: float) -> None:
    before = trio.current_time()
    with pytest.raises(StoreError, match=match):
        await append(LocalStore(str(source)), b"never")
    assert at_least <= trio.current_time() - before <= at_most
    assert (source / "d" / "f").read_bytes() == OLD


@contextmanager
def held_elsewhere(source: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds `d/f` until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            yield process
        finally:
            process.kill()


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


@in_trio
async def test_appends_of_many_tasks_and_stores_lose_nothing(source: Path) -> None:
    stores = [LocalStore(str(source)) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for i in range(12):
            nursery.start_soon(append, stores[i % 3], bytes([i]))
    found = (source / "d" / "f").read_bytes()
    assert found.startswith(OLD)
    assert sorted(found[len(OLD) :]) == list(range(12))


def test_a_lock_goes_with_its_process(source: Path) -> None:
    async def main(process: subprocess.Popen[bytes]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, LocalStore(str(source)), b"then")
            await wait_all_tasks_blocked()
            assert (source / "d" / "f").read_bytes() == OLD
            process.kill()

    with held_elsewhere(source) as process:
        trio.run(main, process)
    assert (source / "d" / "f").read_bytes() == OLD + b"then"


def test_a_lock_file_that_another_program_has_locked_counts(source: Path) -> None:
    with (source / "d" / "f.__lock").open("xb") as file:
        lock_as_tensorstore(file)
        trio.run(refused_for, source, "f.__lock", 25, 40, clock=MockClock(autojump_threshold=0))
        file.close()
        assert (source / "d" / "f.__lock").exists(), "it is not ours to remove"


def test_what_is_renamed_over_the_file_by_who_has_its_lock_is_what_is_changed_then(source: Path) -> None:
    async def main() -> None:
        with (source / "d" / "f.__lock").open("xb") as file:
            lock_as_tensorstore(file)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, LocalStore(str(source)), b" and ours")
                await wait_all_tasks_blocked()
                file.write(b"theirs")
                file.flush()
                os.rename(source / "d" / "f.__lock", source / "d" / "f")

    trio.run(main)
    assert (source / "d" / "f").read_bytes() == b"theirs and ours"
    assert files(source) == {"d/f"}


def test_a_lock_file_that_nobody_has_locked_is_waited_for_while_it_is_young(source: Path) -> None:
    """In its mode `lockfile` tensorstore makes it, and that is all."""

    async def main() -> None:
        lock = source / "d" / "f.__lock"
        lock.touch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, LocalStore(str(source)), b"x")
            await trio.sleep(50)
            assert (source / "d" / "f").read_bytes() == OLD
            lock.unlink()
        assert (source / "d" / "f").read_bytes() == OLD + b"x"

    run_in_leaps(main, jump_after=0.01)


def test_a_lock_file_that_was_left_is_named_and_stays(source: Path) -> None:
    lock = source / "d" / "f.__lock"
    lock.write_bytes(b"half")
    trio.run(refused_for, source, "f.__lock was left", 55, 65, clock=MockClock(autojump_threshold=0))
    os.utime(lock, (1e9, 1e9))
    trio.run(refused_for, source, "f.__lock was left", 0, 0, clock=MockClock(autojump_threshold=0))
    assert lock.read_bytes() == b"half"


@in_trio
async def test_the_lock_file_of_a_killed_process_is_taken_over(source: Path) -> None:
    with held_elsewhere(source) as process:
        process.kill()
        process.wait()
    assert files(source) == {"d/f", "d/f.__lock"}
    with trio.fail_after(5):
        await append(LocalStore(str(source)), b"x")
    assert files(source) == {"d/f"}


def test_the_lock_file_is_empty_and_of_the_owner_of_the_file(source: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(source / "d" / "f", 1234, 1235)
    with held_elsewhere(source):
        status = (source / "d" / "f.__lock").stat()
        assert (status.st_size, status.st_uid, status.st_gid) == (0, 1234, 1235)


@in_trio
async def test_what_is_not_ours_by_now_is_not_removed(source: Path) -> None:
    lock = source / "d" / "f.__lock"
    async with LocalStore(str(source)).edit("d/f"):
        lock.unlink()
        lock.write_bytes(b"theirs")
    assert lock.read_bytes() == b"theirs"


@in_trio
async def test_where_nothing_can_be_made_a_file_is_changed_without_a_lock(source: Path) -> None:
    class Closed(Syscalls):
        def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
            raise PermissionError(errno.EACCES, "injected")

    await append(LocalStore(str(source), Closed()), b"x")
    assert (source / "d" / "f").read_bytes() == OLD + b"x"


@in_trio
async def test_of_two_that_make_a_file_the_second_is_told(source: Path) -> None:
    store = LocalStore(str(source))
    async with store.edit("n/new") as first, store.edit("n/new") as second:
        await first.splice(Splice((content(b"first"),)))
        with pytest.raises(ConflictError):
            await second.splice(Splice((content(b"second"),)))
    assert (source / "n" / "new").read_bytes() == b"first"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("f", path)], ids=["pipe", "dir", "link"])
@in_trio
async def test_only_regular_files_are_edited(source: Path, make: object) -> None:
    make(source / "d" / "x")  # type: ignore[operator]
    expected = RefusedError if not (source / "d" / "x").is_dir() else Exception
    with pytest.raises(expected):
        async with LocalStore(str(source)).edit("d/x"):
            pass
    assert (source / "d" / "f").read_bytes() == OLD


@in_trio
async def test_a_lock_that_cannot_be_made_is_an_error_and_nothing_is_changed(source: Path) -> None:
    class Full(Syscalls):
        def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
            raise OSError(errno.ENOSPC, "injected")

    with pytest.raises(NoSpaceError, match="injected"):
        await append(LocalStore(str(source), Full()), b"never")
    assert (source / "d" / "f").read_bytes() == OLD
    assert files(source) == {"d/f"}


@in_trio
async def test_a_lock_that_cannot_be_removed_is_none_for_the_next_edit(source: Path) -> None:
    class Stuck(Syscalls):
        def unlink(self, name: str, dir_fd: int) -> None:
            raise OSError(errno.EIO, "injected")

    await append(LocalStore(str(source), Stuck()), b"x")
    assert files(source) == {"d/f", "d/f.__lock"}
    with trio.fail_after(5):
        await append(LocalStore(str(source)), b"y")
    assert (source / "d" / "f").read_bytes() == OLD + b"xy"
    assert files(source) == {"d/f"}


class InPlace(Syscalls):
    """A file system where others see a part of an append."""

    def appends_at_once(self, fd: int) -> bool:
        return False


async def append_with_a_tail(store: LocalStore) -> None:
    async with store.edit("d/f") as edit:
        assert edit.snapshot is not None
        await edit.splice(Splice((Kept(0, edit.snapshot.size), content(b"x"), content(b"tail")), 4))


@in_trio
async def test_where_nothing_can_be_made_beside_it_a_file_is_appended_to_in_place(source: Path) -> None:
    class Closed(InPlace):
        def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
            raise PermissionError(errno.EACCES, "injected")

    await append_with_a_tail(LocalStore(str(source), Closed()))
    assert (source / "d" / "f").read_bytes() == OLD + b"xtail"


@pytest.mark.parametrize("has", ["second name", "attribute", "nothing more"])
@in_trio
async def test_an_append_by_a_clone_drops_no_names_and_attributes(source: Path, has: str) -> None:
    class Cloning(InPlace):
        def clone(self, fd: int, source: int) -> None:
            os.pwrite(fd, os.pread(source, 2 * len(OLD), 0), 0)

    file = source / "d" / "f"
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
    assert (file.stat().st_ino == before) == (has != "nothing more")
    if has == "second name":
        assert (source / "d" / "second").read_bytes() == OLD + b"xtail"
    elif has == "attribute":
        assert os.getxattr(file, "user.label") == b"kept"


@pytest.mark.parametrize("piece", ["append", "replace"])
@in_trio
async def test_an_owner_that_cannot_be_given_keeps_no_file_from_being_changed(source: Path, piece: str) -> None:
    class Unmapped(Syscalls):
        def chown(self, target: object, uid: int, gid: int) -> None:
            raise OSError(errno.EINVAL, "an owner that the user namespace does not know")

    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(source / "d" / "f", 1234, 1235)
    store = LocalStore(str(source), Unmapped())
    if piece == "append":
        await append(store, b"x")
        assert (source / "d" / "f").read_bytes() == OLD + b"x"
    else:
        async with store.edit("d/f") as edit:
            await edit.splice(Splice((content(b"new"),)))
        assert (source / "d" / "f").read_bytes() == b"new"
    assert files(source) == {"d/f"}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("f", path)], ids=["pipe", "dir", "link"])
def test_what_is_no_file_in_place_of_the_lock_is_named_at_once(source: Path, make: object) -> None:
    make(source / "d" / "f.__lock")  # type: ignore[operator]
    trio.run(
        refused_for, source, "f.__lock beside it is not a regular file", 0, 0, clock=MockClock(autojump_threshold=0)
    )


@in_trio
async def test_an_append_leaves_alone_the_room_that_only_root_has(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstatvfs = os.fstatvfs

    def nearly_full(fd: int) -> os.statvfs_result:
        room = list(fstatvfs(fd))
        room[4] = 0  # f_bavail
        return os.statvfs_result(room)

    monkeypatch.setattr(os, "fstatvfs", nearly_full)
    (source / "d" / "f").write_bytes(bytes(BLOCK))
    store = LocalStore(str(source))
    async with store.edit("d/f") as edit:
        if edit.append_alignment == 1:
            pytest.skip("the file system has no direct writes that are seen as a whole")
        with pytest.raises(NoSpaceError):
            await edit.splice(Splice((Kept(0, BLOCK), content(bytes(BLOCK - 4)), content(b"tail")), 4))
    assert (source / "d" / "f").read_bytes() == bytes(BLOCK)
