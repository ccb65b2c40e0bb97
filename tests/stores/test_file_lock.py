"""Edits exclude each other, in one process and in several."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardfs.errors import ConflictError, RefusedError, StoreError
from shardfs.stores import file_lock
from shardfs.stores.base import Kept, Splice
from shardfs.stores.local import LocalStore
from tests.stores.splices import OLD, content, make_source
from tests.support.opened import in_trio

HOLD = """
import sys, trio
from shardfs.stores.local import LocalStore

async def main():
    async with LocalStore(sys.argv[1]).edit("d/f") as edit:
        print("locked", flush=True)
        sys.stdin.readline()

trio.run(main)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


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
    async with store.edit("d/f") as edit:
        assert edit.snapshot is not None
        await edit.splice(Splice((Kept(0, edit.snapshot.size), content(data))))


@in_trio
async def test_appends_of_many_tasks_and_stores_lose_nothing(source: Path) -> None:
    stores = [LocalStore(str(source)) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for i in range(30):
            nursery.start_soon(append, stores[i % 3], bytes([i]))
    found = (source / "d" / "f").read_bytes()
    assert found.startswith(OLD)
    assert sorted(found[len(OLD) :]) == list(range(30))


def test_who_finds_it_locked_waits(source: Path) -> None:
    order = []

    async def main() -> None:
        store = LocalStore(str(source))

        async def second() -> None:
            await append(store, b"second")
            order.append("second")

        async with trio.open_nursery() as nursery, store.edit("d/f") as edit:
            nursery.start_soon(second)
            await trio.sleep(20)
            await edit.splice(Splice((content(b"first"),)))
            order.append("first")

    trio.run(main, clock=MockClock(autojump_threshold=0.01))
    assert order == ["first", "second"]
    assert (source / "d" / "f").read_bytes() == b"firstsecond", "the second saw what the first had made"


def test_patience_ends(source: Path) -> None:
    async def main() -> None:
        store = LocalStore(str(source))
        async with store.edit("d/f"):
            before = trio.current_time()
            with pytest.raises(StoreError, match="locked"):
                await append(store, b"never")
            assert 25 < trio.current_time() - before < 40
        await append(store, b"now")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_processes_exclude_each_other(source: Path) -> None:
    async def refused() -> None:
        with pytest.raises(StoreError, match="locked"):
            await append(LocalStore(str(source)), b"never")

    with held_elsewhere(source):
        trio.run(refused, clock=MockClock(autojump_threshold=0))
    assert (source / "d" / "f").read_bytes() == OLD


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


def test_a_lock_of_another_program_counts(source: Path) -> None:
    async def refused() -> None:
        with pytest.raises(StoreError, match="locked"):
            await append(LocalStore(str(source)), b"never")

    with (source / "d" / "f").open("r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 5, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        trio.run(refused, clock=MockClock(autojump_threshold=0))


@in_trio
async def test_a_lock_ends_with_the_edit_though_its_snapshot_stays(source: Path) -> None:
    store = LocalStore(str(source))
    async with store.edit("d/f") as edit:
        snapshot = edit.snapshot
    assert snapshot is not None
    with trio.fail_after(5):
        await append(store, b"x")
    assert bytes(await snapshot.read(0, 10)) == OLD[:10]


@in_trio
async def test_a_lock_ends_with_an_error_in_the_edit(source: Path) -> None:
    store = LocalStore(str(source))
    with pytest.raises(RuntimeError):
        async with store.edit("d/f"):
            raise RuntimeError
    with trio.fail_after(5):
        await append(store, b"x")


def test_what_was_replaced_while_it_was_waited_for_is_opened_again(source: Path) -> None:
    async def main() -> None:
        store = LocalStore(str(source))

        async def second() -> None:
            async with store.edit("d/f") as edit:
                assert edit.snapshot is not None
                assert bytes(await edit.snapshot.read(0, 3)) == b"new"

        async def third() -> None:
            async with store.edit("d/f") as edit:
                assert edit.snapshot is None

        async with trio.open_nursery() as nursery, store.edit("d/f") as edit:
            nursery.start_soon(second)
            await trio.sleep(1)
            await edit.splice(Splice((content(b"new"),)))
        async with trio.open_nursery() as nursery, store.edit("d/f") as edit:
            nursery.start_soon(third)
            await trio.sleep(1)
            await edit.delete()

    trio.run(main, clock=MockClock(autojump_threshold=0.01))


@in_trio
async def test_what_is_replaced_before_it_is_locked_is_opened_again(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(fd: int) -> bool:
        monkeypatch.undo()
        (source / "new").write_bytes(b"new")
        (source / "new").rename(source / "d" / "f")
        return file_lock.lock(fd)

    monkeypatch.setattr(file_lock, "lock", lock)
    async with LocalStore(str(source)).edit("d/f") as edit:
        assert edit.snapshot is not None
        assert bytes(await edit.snapshot.read(0, 3)) == b"new"


@in_trio
async def test_what_was_replaced_is_free_under_its_other_name(source: Path) -> None:
    os.link(source / "d" / "f", source / "d" / "second")
    store = LocalStore(str(source))
    async with store.edit("d/f") as edit:
        await edit.splice(Splice((content(b"new"),)))
    with trio.fail_after(5):
        async with store.edit("d/second") as second:
            assert second.snapshot is not None
            assert bytes(await second.snapshot.read(0, 10)) == OLD[:10]


@in_trio
async def test_of_two_that_make_a_file_the_second_is_told(source: Path) -> None:
    store = LocalStore(str(source))
    async with store.edit("d/new") as first, store.edit("d/new") as second:
        await first.splice(Splice((content(b"first"),)))
        with pytest.raises(ConflictError):
            await second.splice(Splice((content(b"second"),)))
    assert (source / "d" / "new").read_bytes() == b"first"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("f", path)], ids=["pipe", "dir", "link"])
@in_trio
async def test_only_regular_files_are_edited(source: Path, make: object) -> None:
    make(source / "d" / "x")  # type: ignore[operator]
    expected = RefusedError if not (source / "d" / "x").is_dir() else Exception
    with pytest.raises(expected):
        async with LocalStore(str(source)).edit("d/x"):
            pass
    assert (source / "d" / "f").read_bytes() == OLD
