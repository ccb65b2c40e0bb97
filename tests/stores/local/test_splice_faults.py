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

from shardfs.errors import ConflictError, NoSpaceError, ShardfsError, StoreError
from shardfs.stores.base import Kept, is_reserved
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
    choices: list[Callable[[int], int]] = [oldest, newest, *(random.Random(seed).randrange for seed in range(6))]
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


class MeddledDisk(Syscalls):
    """A disk on which another program does something before the first call of a given name."""

    def __init__(self, call: str, meddle: Callable[[], object]) -> None:
        method, left = getattr(self, call), [meddle]

        def run(*args: Any) -> Any:
            while left:
                left.pop()()
            return method(*args)

        setattr(self, call, run)


def replace(path: Path, data: bytes = b"another") -> None:
    path.with_name("other").write_bytes(data)
    path.with_name("other").rename(path)


def touch(path: Path) -> None:
    os.utime(path)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


MEDDLES = [replace, touch, grow, Path.unlink]


@pytest.mark.parametrize("meddle", MEDDLES, ids=lambda meddle: meddle.__name__)
@pytest.mark.parametrize("name", [*(name for name, case in CASES.items() if not case.is_new), "delete"])
@in_trio
async def test_a_change_before_the_splice_is_a_conflict(source: Path, name: str, meddle: Any) -> None:
    async with LocalStore(str(source)).edit("d/f") as edit:
        meddle(source / "d/f")
        after = content_of(source / "d/f")
        with pytest.raises(ConflictError):
            await (edit.delete() if name == "delete" else edit.splice(CASES[name].splice))
    assert content_of(source / "d/f") == after
    assert files(source) <= {"d/f"}


@pytest.mark.parametrize(
    ("name", "meddle"),
    [
        *((name, replace) for name in ("append", "append at once", "large append", "new")),
        *((name, meddle) for name in ("compacted", "replaced") for meddle in MEDDLES),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@in_trio
async def test_a_change_while_the_new_version_is_written_is_a_conflict(source: Path, name: str, meddle: Any) -> None:
    case = CASES[name]
    path = source / case.key
    with pytest.raises(ConflictError):
        await make(source, MeddledDisk("sync", lambda: meddle(path)), case)
    if meddle is replace:
        assert path.read_bytes() == b"another"
    assert files(source) <= {"d/f", case.key}


@in_trio
async def test_a_kept_range_that_is_gone_meanwhile_is_a_conflict(source: Path) -> None:
    path = source / "d" / "f"
    disk = MeddledDisk("pwrite", lambda: os.truncate(path, 10))
    case = Case((Counted(9 * MIB), Kept(5000, 100)), 0, ())
    with pytest.raises(ConflictError):
        await make(source, disk, case)
    assert path.read_bytes() == OLD[:10]
    assert files(source) == {"d/f"}


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
    case, path = CASES["new"], source / "a/b/f"
    await make(source, PoorDisk(links=links), case)
    assert (content_of(path), path.stat().st_nlink, files(source)) == (case.new, 1, {"d/f", "a/b/f"})
    path.unlink()
    async with LocalStore(str(source), PoorDisk(links=links)).edit("a/b/f") as edit:
        path.write_bytes(b"another")
        with pytest.raises(ConflictError):
            await edit.splice(case.splice)
    assert (content_of(path), files(source)) == (b"another", {"d/f", "a/b/f"})


@in_trio
async def test_a_change_by_another_program_is_not_taken_for_ours(source: Path) -> None:
    """What grew otherwise than the store made it is stale for open snapshots."""
    store = LocalStore(str(source), MeddledDisk("sync", lambda: grow(source / "d" / "f")))
    snapshot = await store.open("d/f")
    async with store.edit("d/f") as edit:
        await edit.splice(CASES["append"].splice)
    with pytest.raises(ShardfsError):
        await snapshot.read(0, 10)


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
