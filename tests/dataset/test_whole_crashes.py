"""What is left of an unsharded array that was being written, wherever the process or the machine stopped.

The same is promised as of sharded ones: see `test_crashes`.  A chunk file is at any time one of its versions, or none.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from shardfs.stores.durable import Disk
from shardfs.stores.file_lock import is_lock
from shardfs.stores.local import LocalStore
from tests.support.crashing import Machine, QuickDisk
from tests.support.lossy_disk import Killed
from tests.support.whole import PATH, Life, store_document, whole_document

NCHUNKS = 4

Versions = dict[int, list[bytes | None]]
"""What each chunk may be after a power cut; the last is what it is after the end of a process."""


class Operation(NamedTuple):
    """One thing that is done: *what*, to the chunk *number*, which becomes *data*."""

    what: str
    number: int = 0
    data: bytes | None = None


op = Operation
STORED = [op("put", 0, b"old"), op("put", 1, b"one"), op("put", 3, b""), op("commit")]
HISTORIES = {
    "put": [op("put", 1, b"ONE"), op("sync"), op("put", 2, b"x" * 9000), op("put", 3, b"was empty"), op("commit")],
    "empty": [op("put", 2, b""), op("put", 1, b""), op("commit"), op("put", 1, b"1"), op("commit")],
    "erase": [op("erase", 0), op("erase", 3), op("sync"), op("commit"), op("put", 0, b"new"), op("commit")],
    "replace what is pending": [op("put", 1, b"a"), op("sync"), op("put", 1, b"b"), op("erase", 0), op("commit")],
    "the same again": [op("put", 1, b"one"), op("commit"), op("put", 1, b"two"), op("put", 1, b"one"), op("commit")],
}


class Book:
    """What was published, and what was about to be."""

    def __init__(self) -> None:
        self.versions: Versions = {number: [None] for number in range(NCHUNKS)}
        self.started: Operation | None = None
        self._times: dict[tuple[str, bytes], int] = {}

    def note_times(self, root: Path) -> None:
        """Note when the files were changed: the model of power cuts does not follow times."""
        for path in (root / "source" / PATH).glob("c/[0-9]"):
            self._times[path.name, path.read_bytes()] = path.stat().st_mtime_ns

    def set_times(self, root: Path) -> None:
        for path in (root / "source" / PATH).glob("c/[0-9]"):
            time = self._times.get((path.name, path.read_bytes()))
            if time is not None:
                os.utime(path, ns=(time, time))

    def end(self) -> None:
        operation = self.started
        assert operation is not None
        if operation.what in ("put", "erase"):
            self.versions[operation.number].append(operation.data)
        else:
            for versions in self.versions.values():
                del versions[:-1]
        self.started = None

    def allowed(self, number: int, *, power_cut: bool) -> list[bytes | None]:
        versions = self.versions[number] if power_cut else self.versions[number][-1:]
        is_started = self.started is not None and self.started.what in ("put", "erase")
        if is_started and self.started is not None and self.started.number == number:
            return [*versions, self.started.data]
        return versions


async def begin(root: Path, disk: Disk) -> Life:
    trio.to_thread.current_default_thread_limiter().total_tokens = 1  # so that calls come in one order
    return await Life.begin(LocalStore(str(root / "source"), disk), root / "state", disk=disk)


async def live(root: Path, disk: Disk, history: Sequence[Operation], book: Book) -> None:
    life = await begin(root, disk)
    for operation in history:
        book.started = operation
        match operation:
            case Operation("put", number, bytes(data)):
                await life.put((number,), data)
            case Operation("erase", number):
                await life.erase((number,))
            case Operation("sync"):
                await life.writer.sync()
            case _:
                await life.writer.committer.flush()
        book.end()
        book.note_times(root)
    life.kill()


async def recover(root: Path, disk: Disk) -> None:
    life = await begin(root, disk)
    assert not life.recovery.conflicts, "nobody else changed anything"
    assert not life.writer.committer.npending
    assert not life.writer.journal.live
    life.kill()


def is_killed(root: Path, machine: Machine, history: Sequence[Operation] | None, book: Book) -> bool:
    killed = []
    try:
        trio.run(recover, root, machine) if history is None else trio.run(live, root, machine, history, book)
    except* Killed as group:
        killed.append(group)
    machine.restart()
    return bool(killed)


def check(root: Path, book: Book, *, power_cut: bool) -> None:
    trio.run(recover, root, QuickDisk())
    for number in range(NCHUNKS):
        path = root / "source" / PATH / "c" / str(number)
        found = path.read_bytes() if path.exists() else None
        allowed = book.allowed(number, power_cut=power_cut)
        assert found in allowed, f"chunk {number}: {found!r}, not one of {allowed}"
    left = [path for path in (root / "source" / PATH / "c").iterdir() if not path.name.isdecimal()]
    if power_cut:  # what a lock is known to be of the next commit takes over
        left = [path for path in left if not (is_lock(path.name) and path.stat().st_mode & stat.S_ISVTX)]
    assert not left, f"left behind: {left}"


class Crashes:
    """One history, which is stopped again and again at other calls, always from the same beginning."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.history, self.chance = directory, HISTORIES[name], random.Random(name)
        self.template = directory / "template"
        (self.template / "source").mkdir(parents=True)
        self.stored = Book()
        trio.run(self._store)

    async def _store(self) -> None:
        store = LocalStore(str(self.template / "source"), QuickDisk())
        await store_document(store, whole_document((NCHUNKS,), (1,)))
        await live(self.template, QuickDisk(), STORED, self.stored)

    def begin(self) -> tuple[Path, Machine, Book]:
        root = self.directory / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.template, root)
        book = Book()
        book.versions = {number: [*versions] for number, versions in self.stored.versions.items()}
        book.note_times(root)
        return root, Machine(root), book

    def ncalls(self) -> int:
        root, machine, book = self.begin()
        assert not is_killed(root, machine, self.history, book)
        check(root, book, power_cut=False)
        return len(machine.calls)

    def stop(self, at: int) -> tuple[Path, Machine, Book]:
        root, machine, book = self.begin()
        machine.kill_at(at, self.chance.choice([0, 0, self.chance.randrange(1, 8000)]))
        assert is_killed(root, machine, self.history, book)
        return root, machine, book


@pytest.mark.parametrize("name", HISTORIES)
def test_a_process_killed_at_any_call_leaves_what_it_published(tmp_path: Path, name: str) -> None:
    crashes = Crashes(tmp_path, name)
    for at in range(crashes.ncalls()):
        root, _, book = crashes.stop(at)
        check(root, book, power_cut=False)


@pytest.mark.parametrize("name", HISTORIES)
def test_a_power_cut_at_any_call_leaves_what_was_synced(tmp_path: Path, name: str) -> None:
    crashes = Crashes(tmp_path, name)
    for at in range(crashes.ncalls()):
        root, machine, book = crashes.stop(at)
        after = tmp_path / "after"
        shutil.rmtree(after, ignore_errors=True)
        choose = crashes.chance.choice([lambda n: 0, lambda n: n - 1, crashes.chance.randrange])
        book.note_times(root)
        machine.after_power_cut(after, choose, at, keeps_inodes=True)
        book.set_times(after)
        check(after, book, power_cut=True)


@pytest.mark.parametrize("name", ["put", "erase"])
def test_a_recovery_killed_at_any_call_is_done_by_the_next(tmp_path: Path, name: str) -> None:
    crashes = Crashes(tmp_path, name)
    for at in crashes.chance.sample(range(crashes.ncalls()), 2):
        after, killed = 0, True
        while killed:
            root, machine, book = crashes.stop(at)
            machine.kill_at(len(machine.calls) + after)
            killed = is_killed(root, machine, None, book)
            check(root, book, power_cut=False)
            after += 1
