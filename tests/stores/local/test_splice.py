"""Splices of local files: the new version or the old one, whatever fails, dies, loses power or comes between."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.errors import ConflictError, NoSpaceError, ShardfsError, StaleError, StoreError
from shardfs.stores.base import Kept, Splice
from shardfs.stores.local import shards
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import (
    CASES,
    OLD,
    TAIL_NBYTES,
    Case,
    Counted,
    SpliceDisk,
    content,
    content_of,
    files,
    make,
)
from tests.support.lossy_disk import Fault, newest, oldest
from tests.support.opened import in_trio

pytestmark = pytest.mark.usefixtures("small_steps")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class WatchedDisk(Syscalls):
    """A disk with a look at what is there before and after each write, from the thread that writes."""

    def __init__(self, look: Callable[[], object]) -> None:
        def looked_at(method: Callable[..., None]) -> Callable[..., None]:
            def call(*args: Any) -> None:
                look()
                method(*args)
                look()

            return call

        for name in ("pwrite", "pwrite_direct", "sync"):
            setattr(self, name, looked_at(getattr(self, name)))


@every_case
@in_trio
async def test_the_new_version_is_the_pieces_one_behind_the_other(source: Path, case: Case) -> None:
    disk = SpliceDisk(source)
    stat = await make(source, disk, case)
    assert tuple(disk.names) == case.calls
    store = LocalStore(str(source))
    assert stat == (await store.open(case.key)).stat == await store.stat(case.key)
    assert stat.size == len(case.new) == case.splice.nbytes
    assert stat.mode & 0o7777 == 0o640
    assert (source / case.key).read_bytes() == case.new
    assert files(source) == {"d/f", case.key}


@in_trio
async def test_appends_that_follow_each_other_within_a_tick_of_the_clock_have_times_of_their_own(source: Path) -> None:
    path, times = source / "d/f", list[int]()
    case = CASES["append at once"]
    for _ in range(20):
        path.write_bytes(OLD)
        if times:
            os.utime(path, ns=(times[-1], times[-1]))
        await make(source, MeddledDisk("utime", lambda: times.append(path.stat().st_mtime_ns)), case)
        times.append(path.stat().st_mtime_ns)
    assert times == sorted(set(times)), "nor is it the time that a program sees that looks before the end"


@pytest.mark.parametrize("name", ["append", "append at once", "large append", "append in two steps"])
@in_trio
async def test_where_others_would_see_a_part_of_it_a_clone_is_appended_to(source: Path, name: str) -> None:
    disk = SpliceDisk(source, at_once=False, clones=True)
    store = LocalStore(str(source), disk)
    snapshot = await store.open("d/f")
    stat = await make(source, disk, CASES[name])
    assert (source / "d" / "f").read_bytes() == CASES[name].new
    assert (disk.names[:2], disk.names[-4:]) == (["create", "clone"], ["chmod", "sync", "rename", "sync_directory"])
    assert (stat.mode & 0o7777, files(source)) == (0o640, {"d/f"})
    assert bytes(await snapshot.read(0, len(OLD))) == OLD


@pytest.mark.parametrize("name", ["append at once", "append in two steps"])
@in_trio
async def test_without_direct_writes_and_clones_the_old_tail_is_copied_first(source: Path, name: str) -> None:
    disk = SpliceDisk(source, at_once=False)
    await make(source, disk, CASES[name])
    assert (source / "d" / "f").read_bytes() == CASES[name].new
    writes = [call for call in disk.calls if call.name == "pwrite"]
    assert writes[0].data == OLD[-TAIL_NBYTES:]
    assert {call.offset + len(call.data) for call in (writes[0], writes[-1])} == {len(CASES[name].new)}


@in_trio
async def test_where_direct_writes_are_refused_after_all_others_are_made(source: Path) -> None:
    class Refusing(Syscalls):
        def pwrite_direct(self, *args: Any) -> None:
            raise OSError(errno.EINVAL, "not here")

    await make(source, Refusing(), CASES["append in two steps"])
    assert (source / "d" / "f").read_bytes() == CASES["append in two steps"].new


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "append" in name and case.tail_nbytes])
@in_trio
async def test_every_call_of_an_append_leaves_a_whole_tail(source: Path, name: str) -> None:
    """And nobody sees the time of the new version on a part of it, which tensorstore would take for the whole then."""
    case, path, tails, times = CASES[name], source / "d/f", [], set()

    def look() -> None:
        data = path.read_bytes()
        tails.append(data[-TAIL_NBYTES:])
        times.add((path.stat().st_mtime_ns, data == case.new))

    await make(source, WatchedDisk(look), case)
    assert tails[0] == OLD[-TAIL_NBYTES:]
    assert tails[-1] == case.new[-TAIL_NBYTES:]
    assert set(tails) == {tails[0], tails[-1]}
    assert [is_last for time, is_last in times if time == path.stat().st_mtime_ns] == [True]


@pytest.mark.parametrize("message", ["that were to be stored", "the journal is gone"])
@every_case
@in_trio
async def test_content_that_is_short_or_fails_is_not_stored(source: Path, case: Case, message: str) -> None:
    class Bad(Counted):
        def read(self, offset: int, nbytes: int) -> bytes:
            if message == "the journal is gone":
                raise StoreError(message)
            return bytes(nbytes - 1)

    pieces = (*case.pieces[:-1], Bad(case.pieces[-1].nbytes))
    with pytest.raises(StoreError, match=message):
        await make(source, Syscalls(), Case(pieces, case.tail_nbytes, (), case.is_new))
    assert files(source) == {"d/f"}
    assert (source / "d/f").read_bytes() == OLD


@pytest.mark.parametrize("name", ["append", "append at once", "large append"])
@in_trio
async def test_open_snapshots_serve_on_while_the_store_changes_the_file(source: Path, name: str) -> None:
    """At every moment, and afterwards, without a look at what the change was."""
    case, served = CASES[name], []

    async def read() -> None:
        served.append(bytes(await snapshot.read(50, len(OLD) - 50)) == OLD[50:])
        served.append(snapshot.content(50, 200).read(100, 100) == OLD[150:250])

    store = LocalStore(str(source), WatchedDisk(lambda: trio.from_thread.run(read)))
    snapshot = await store.open("d/f")
    for _ in range(3):
        async with store.edit("d/f") as edit:
            assert edit.snapshot is not None
            await edit.splice(Splice((Kept(0, edit.snapshot.size), *case.pieces[1:]), case.tail_nbytes))
        await read()
        assert not await snapshot.is_current()
    assert all(served)
    assert len(served) > 20
    os.utime(source / "d/f")
    with pytest.raises(StaleError):
        await read()


@in_trio
async def test_snapshots_of_other_versions_stay_what_they_are(source: Path) -> None:
    store = LocalStore(str(source))
    pinned = await store.open("d/f")
    await make(source, Syscalls(), CASES["replaced"])
    stale = await store.open("d/f")
    with (source / "d" / "f").open("ab") as file:
        file.write(b"by another program")
    async with store.edit("d/f") as edit:
        assert edit.snapshot is not None
        await edit.splice(Splice((Kept(0, edit.snapshot.size), content(b"more"))))
    assert bytes(await pinned.read(0, len(OLD))) == OLD
    with pytest.raises(StaleError):
        await stale.read(0, 1)


@in_trio
async def test_a_name_that_a_file_got_since_it_was_opened_keeps_the_old_version(source: Path) -> None:
    case = CASES["append at once"]
    async with LocalStore(str(source)).edit(case.key) as edit:
        os.link(source / case.key, source / "snapshot")
        await edit.splice(case.splice)
    assert (source / "snapshot").read_bytes() == OLD
    assert (source / case.key).read_bytes() == case.new


# What fails, dies, loses power or meets another program


CALLS = [(name, number) for name, case in CASES.items() for number in range(len(case.calls))]
FAILED = [
    (name, number, written)
    for name, number in CALLS
    for written in ([0, 1, 300] if CASES[name].calls[number].startswith("pwrite") else [0])
]
RENAMES = ("rename", "rename_exclusive")


def is_past_rename(case: Case, number: int) -> bool:
    return any(call in RENAMES for call in case.calls[:number])


@pytest.mark.parametrize("number_of_error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize(("name", "number", "written"), FAILED, ids=str)
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


@pytest.mark.parametrize(("name", "number"), [*CALLS, *((name, len(CASES[name].calls)) for name in CASES)], ids=str)
@in_trio
async def test_a_power_cut_at_any_call_leaves_the_old_bytes(source: Path, name: str, number: int) -> None:
    case = CASES[name]
    disk = SpliceDisk(source)
    await make(source, disk, case)
    choices: list[Callable[[int], int]] = [oldest, newest, *(random.Random(seed).randrange for seed in range(6))]
    for place, choose in enumerate(choices):
        root = source.parent / f"cut{place}"
        disk.after_power_cut(choose, number, sync_keeps_name=place == 0).build(root)
        found = content_of(root / case.key)
        if number == len(case.calls):
            assert found == case.new
            assert files(root) == {"d/f", case.key}
        elif not case.in_place:
            assert found in (case.old, case.new)
        elif name == "cut":
            assert found is not None
            assert found[:5000] == OLD[:5000]
        else:
            assert found is not None
            assert found.startswith(OLD)
            if name in ("large append", "append in two steps") and found.endswith(b"t" * TAIL_NBYTES):
                assert found == case.new, "a tail speaks of nothing that is not there"


@in_trio
async def test_a_removed_file_stays_removed_after_a_power_cut(source: Path) -> None:
    disk = SpliceDisk(source)
    async with LocalStore(str(source), disk).edit("d/f") as edit:
        await edit.delete()
    disk.after_power_cut(oldest).build(source.parent / "cut")
    assert not files(source.parent / "cut")


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


@pytest.mark.parametrize("name", ["append", "append at once"])
@in_trio
async def test_what_another_program_shortened_is_not_made_longer_again(
    source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change_in_place = shards.change_in_place

    def meddled(*args: Any, **options: Any) -> int:
        (source / "d/f").write_bytes(b"another")
        return change_in_place(*args, **options)

    monkeypatch.setattr(shards, "change_in_place", meddled)
    with pytest.raises(ConflictError, match="was shortened meanwhile"):
        await make(source, SpliceDisk(source, at_once=True), CASES[name])
    assert (source / "d/f").read_bytes() == b"another"


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
