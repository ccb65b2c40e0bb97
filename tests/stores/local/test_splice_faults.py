"""Splices that fail, die, lose power or meet another program: the old version or the new one, and nothing between."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.errors import ConflictError, NoSpaceError, ReadOnlyError, ShardfsError, StaleError, StoreError
from shardfs.stores.base import Buffer, Kept, is_reserved
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import (
    CASES,
    MIB,
    OLD,
    TAIL_NBYTES,
    Case,
    Counted,
    SpliceDisk,
    content_of,
    files,
    make,
    make_source,
)
from tests.support.lossy_disk import Fault, Killed, newest, oldest
from tests.support.opened import in_trio

CALLS = [(name, number) for name, case in CASES.items() for number in range(len(case.calls))]
FAILED = [
    (name, number, written)
    for name, number in CALLS
    for written in ([0, 1, 300] if CASES[name].calls[number].startswith("pwrite") else [0])
]
every_call = pytest.mark.parametrize(("name", "number"), CALLS, ids=lambda value: str(value))
pytestmark = pytest.mark.usefixtures("small_steps")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)

RENAMES = ("rename", "rename_exclusive")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


def is_past_rename(case: Case, number: int) -> bool:
    return any(call in RENAMES for call in case.calls[:number])


@pytest.mark.parametrize("number_of_error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize(("name", "number", "written"), FAILED, ids=lambda value: str(value))
@in_trio
async def test_a_failed_call_leaves_the_old_version(
    source: Path, name: str, number: int, written: int, number_of_error: int
) -> None:
    case = CASES[name]
    disk = SpliceDisk(source, {number: Fault(OSError(number_of_error, "injected"), written)})
    store = LocalStore(str(source), disk)
    snapshot = await store.open("d/f")
    with pytest.raises(StoreError if number_of_error == errno.EIO else NoSpaceError, match="injected"):
        async with store.edit(case.key, mode=0o640) as edit:
            await edit.splice(case.splice)
    if name == "cut" and number == 1:
        expected = OLD[:5000]  # what is cut off cannot be had back, nor is it wanted
    else:
        expected = case.new if is_past_rename(case, number) else case.old
        assert bytes(await snapshot.read(50, 100)) == OLD[50:150], "open snapshots serve on"
    assert content_of(source / case.key) == expected
    assert files(source) <= {"d/f", case.key}, "no temporary file stays"

    disk.faults = {}
    if not is_past_rename(case, number) and name != "cut":
        await make(source, disk, case)
        assert content_of(source / case.key) == case.new


@every_call
@in_trio
async def test_who_is_killed_leaves_all_that_was_there(source: Path, name: str, number: int) -> None:
    case = CASES[name]
    written = {"pwrite": 30, "pwrite_direct": 2500}.get(case.calls[number], 0)
    disk = SpliceDisk(source, {number: Fault(Killed(), written)})
    with pytest.raises(Killed):
        await make(source, disk, case)
    found = content_of(source / case.key)
    if not case.in_place:
        assert found == (case.new if is_past_rename(case, number) else case.old)
    elif name != "cut":
        assert found is not None
        assert found.startswith(OLD)
    strays = files(source) - {"d/f", case.key}
    names = [stray.rpartition("/")[2] for stray in strays]
    assert all(is_reserved(name) or is_lock(name) for name in names)


@pytest.mark.parametrize("number", range(1, 5))
@in_trio
async def test_who_is_killed_in_a_large_append_leaves_a_whole_tail(source: Path, number: int) -> None:
    case = CASES["large append"]
    with pytest.raises(Killed):
        await make(source, SpliceDisk(source, {number: Fault(Killed())}), case)
    found = (source / "d" / "f").read_bytes()
    assert len(found) == len(case.new)
    assert found.endswith(OLD[-TAIL_NBYTES:])


@every_case
@pytest.mark.parametrize("sync_keeps_name", [False, True])
@in_trio
async def test_what_was_stored_outlives_a_power_cut(source: Path, case: Case, sync_keeps_name: bool) -> None:
    disk = SpliceDisk(source)
    await make(source, disk, case)
    disk.after_power_cut(source.parent / "cut", oldest, sync_keeps_name=sync_keeps_name)
    assert content_of(source.parent / "cut" / case.key) == case.new
    assert files(source.parent / "cut") == {"d/f", case.key}


@every_call
@in_trio
async def test_a_power_cut_at_any_call_leaves_the_old_bytes(source: Path, name: str, number: int) -> None:
    case = CASES[name]
    disk = SpliceDisk(source)
    await make(source, disk, case)
    choices: list[Callable[[int], int]] = [oldest, newest, *(random.Random(seed).randrange for seed in range(20))]
    for place, choose in enumerate(choices):
        root = source.parent / f"cut{place}"
        disk.after_power_cut(root, choose, number)
        found = content_of(root / case.key)
        if not case.in_place:
            assert found in (case.old, case.new)
        elif name == "cut":
            assert found is not None
            assert found[:5000] == OLD[:5000]
        else:
            assert found is not None
            assert found.startswith(OLD)
            if name in ("large append", "append in two steps") and found.endswith(b"t" * TAIL_NBYTES):
                assert found == case.new, "a tail speaks of nothing that is not there"


@pytest.mark.parametrize("name", ["append", "append at once", "large append"])
@in_trio
async def test_what_cannot_be_taken_back_is_told(source: Path, name: str) -> None:
    faults = {0: Fault(OSError(errno.ENOSPC, "no room"), written=2500), 1: Fault(OSError(errno.EIO, "broken"))}
    with pytest.raises(StoreError, match=r"no room.*cannot be taken back: broken"):
        await make(source, SpliceDisk(source, faults), CASES[name])
    assert (source / "d" / "f").read_bytes().startswith(OLD)


@in_trio
async def test_a_full_disk_is_told_as_such(source: Path) -> None:
    for number, expected in ((errno.EDQUOT, NoSpaceError), (errno.EROFS, ReadOnlyError)):
        with pytest.raises(expected):
            await make(source, SpliceDisk(source, {0: Fault(OSError(number, "injected"))}), CASES["append"])


@every_case
@in_trio
async def test_an_error_of_the_content_leaves_the_old_version(source: Path, case: Case) -> None:
    class Broken(Counted):
        def read(self, offset: int, nbytes: int) -> Buffer:
            raise StoreError("the journal is gone")

    pieces = (*case.pieces[:-1], Broken(case.pieces[-1].nbytes))
    with pytest.raises(StoreError, match="journal"):
        await make(source, Syscalls(), Case(pieces, case.tail_nbytes, (), case.is_new))
    assert content_of(source / "d" / "f") == OLD
    assert files(source) == {"d/f"}


class MeddledDisk(Syscalls):
    """A disk on which another program does something before a call of a given name."""

    def __init__(self, call: str, meddle: Callable[[], None]) -> None:
        def wrapped(method: Any) -> Any:
            def run(*args: Any) -> Any:
                self.meddle()
                return method(*args)

            return run

        self._meddle: Callable[[], None] | None = meddle
        setattr(self, call, wrapped(getattr(self, call)))

    def meddle(self) -> None:
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()


def replace(path: Path, data: bytes = b"another") -> None:
    path.with_name("other").write_bytes(data)
    path.with_name("other").rename(path)


def touch(path: Path) -> None:
    os.utime(path)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("meddle", [replace, touch, grow, Path.unlink], ids=lambda meddle: meddle.__name__)
@every_case
@in_trio
async def test_a_change_before_the_splice_is_a_conflict(source: Path, case: Case, meddle: Any) -> None:
    if case.is_new:
        return
    store = LocalStore(str(source))
    async with store.edit("d/f") as edit:
        meddle(source / "d" / "f")
        after = content_of(source / "d" / "f")
        with pytest.raises(ConflictError):
            await edit.splice(case.splice)
    assert content_of(source / "d" / "f") == after
    assert files(source) <= {"d/f"}


@pytest.mark.parametrize("meddle", [replace, touch, grow, Path.unlink], ids=lambda meddle: meddle.__name__)
@in_trio
async def test_a_change_before_the_deletion_is_a_conflict(source: Path, meddle: Any) -> None:
    async with LocalStore(str(source)).edit("d/f") as edit:
        meddle(source / "d" / "f")
        after = content_of(source / "d" / "f")
        with pytest.raises(ConflictError):
            await edit.delete()
    assert content_of(source / "d" / "f") == after


@pytest.mark.parametrize("name", ["append", "append at once", "large append"])
@in_trio
async def test_a_file_that_is_replaced_during_a_change_in_place_is_a_conflict(source: Path, name: str) -> None:
    disk = MeddledDisk("sync", lambda: replace(source / "d" / "f"))
    with pytest.raises(ConflictError):
        await make(source, disk, CASES[name])
    assert (source / "d" / "f").read_bytes() == b"another"


@pytest.mark.parametrize("meddle", [replace, touch, grow, Path.unlink], ids=lambda meddle: meddle.__name__)
@pytest.mark.parametrize("name", ["compacted", "replaced"])
@in_trio
async def test_a_change_while_the_new_version_is_written_is_a_conflict(source: Path, name: str, meddle: Any) -> None:
    path = source / "d" / "f"
    with pytest.raises(ConflictError):
        await make(source, MeddledDisk("sync", lambda: meddle(path)), CASES[name])
    if meddle is replace:
        assert path.read_bytes() == b"another"
    assert files(source) <= {"d/f"}


@in_trio
async def test_a_kept_range_that_is_gone_meanwhile_is_a_conflict(source: Path) -> None:
    path = source / "d" / "f"
    disk = MeddledDisk("pwrite", lambda: os.truncate(path, 10))
    case = Case((Counted(9 * MIB), Kept(5000, 100)), 0, ())
    with pytest.raises(ConflictError):
        await make(source, disk, case)
    assert path.read_bytes() == OLD[:10]
    assert files(source) == {"d/f"}


@in_trio
async def test_what_another_program_made_meanwhile_is_not_replaced(source: Path) -> None:
    path = source / "a" / "b" / "f"
    with pytest.raises(ConflictError):
        await make(source, MeddledDisk("sync", lambda: path.write_bytes(b"another")), CASES["new"])
    assert path.read_bytes() == b"another"
    assert files(source) == {"d/f", "a/b/f"}


class PoorDisk(Syscalls):
    """A disk whose file system has no exclusive rename, and perhaps no links."""

    def __init__(self, *, links: bool) -> None:
        self.links = links

    def rename_exclusive(self, *args: Any) -> None:
        raise OSError(errno.EINVAL, "not here")

    def link(self, *args: Any) -> None:
        if not self.links:
            raise OSError(errno.EPERM, "not here")
        super().link(*args)


@pytest.mark.parametrize("links", [True, False])
@in_trio
async def test_a_new_file_replaces_nothing_on_poor_file_systems_either(source: Path, links: bool) -> None:
    await make(source, PoorDisk(links=links), CASES["new"])
    assert content_of(source / "a/b/f") == CASES["new"].new
    assert files(source) == {"d/f", "a/b/f"}
    assert (source / "a/b/f").stat().st_nlink == 1
    (source / "a/b/f").unlink()

    store = LocalStore(str(source), PoorDisk(links=links))
    async with store.edit("a/b/f") as edit:
        (source / "a/b/f").write_bytes(b"another")
        with pytest.raises(ConflictError):
            await edit.splice(CASES["new"].splice)
    assert content_of(source / "a/b/f") == b"another"
    assert files(source) == {"d/f", "a/b/f"}


@in_trio
async def test_a_change_by_another_program_is_not_taken_for_ours(source: Path) -> None:
    """What grew otherwise than the store made it is stale for open snapshots."""
    store = LocalStore(str(source), MeddledDisk("sync", lambda: grow(source / "d" / "f")))
    snapshot = await store.open("d/f")
    async with store.edit("d/f") as edit:
        await edit.splice(CASES["append"].splice)
    with pytest.raises(ShardfsError):
        await snapshot.read(0, 10)


@in_trio
async def test_what_another_program_shortens_during_a_change_is_stale_at_once(source: Path) -> None:
    async def read() -> None:
        with pytest.raises(StaleError):
            await snapshot.read(0, 10)
        seen.append(True)

    def meddle() -> None:
        os.truncate(source / "d" / "f", 5000)
        trio.from_thread.run(read)

    seen: list[bool] = []
    store = LocalStore(str(source), MeddledDisk("sync", meddle))
    snapshot = await store.open("d/f")
    async with store.edit("d/f") as edit:
        await edit.splice(CASES["append"].splice)
    await read()
    assert len(seen) == 2


@in_trio
async def test_who_waits_for_a_change_does_not_wait_for_ever_if_the_disk_cannot_tell_how_it_ended(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network file system may fail."""
    looks = [os.fstat]

    def fails(_: int) -> None:
        del looks[1:]
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def meddle() -> None:
        trio.from_thread.run(open_and_wait)
        looks.append(fails)  # is next, when the change is made

    async def open_and_wait() -> None:
        snapshot = await store.open("d/f")
        nursery.start_soon(snapshot.accept_growth, 0, OLD)

    store = LocalStore(str(source), MeddledDisk("sync", meddle))
    monkeypatch.setattr(os, "fstat", lambda fd: looks[-1](fd))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery, store.edit("d/f") as edit:
            await edit.splice(CASES["append"].splice)
    assert (source / "d/f").read_bytes() == CASES["append"].new


@every_case
@in_trio
async def test_a_splice_that_is_cancelled_is_brought_to_its_end(source: Path, case: Case) -> None:
    scope = trio.CancelScope()
    call = case.calls[0].replace("create", "pwrite")  # a lock is created, too
    store = LocalStore(str(source), MeddledDisk(call, lambda: trio.from_thread.run_sync(scope.cancel)))
    with scope:
        async with store.edit(case.key) as edit:
            await edit.splice(case.splice)
    # Where it began with a directory, that is made, and the file is not begun.
    assert content_of(source / case.key) == (None if case.is_new else case.new)
    assert files(source) == {"d/f"}


@every_case
@in_trio
async def test_a_splice_that_is_cancelled_before_it_begins_does_nothing(source: Path, case: Case) -> None:
    disk = SpliceDisk(source)
    with trio.CancelScope() as scope:
        async with LocalStore(str(source), disk).edit(case.key) as edit:
            scope.cancel()
            await edit.splice(case.splice)
    assert scope.cancelled_caught
    assert disk.calls == []
