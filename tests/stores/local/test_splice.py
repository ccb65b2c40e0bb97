"""Splices of local files: what becomes of the bytes, in how many calls, and what others see meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.errors import StaleError, StoreError
from shardfs.stores.base import Kept, Splice
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
    files,
    make,
)
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
    path, times = source / "d/f", []
    case = CASES["append at once"]
    for _ in range(20):
        path.write_bytes(OLD)
        if times:
            os.utime(path, ns=(times[-1], times[-1]))
        await make(source, Syscalls(), case)
        times.append(path.stat().st_mtime_ns)
    assert times == sorted(set(times))


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


@st.composite
def splices(draw: st.DrawFn) -> tuple[Splice, bytes]:
    """Splices of OLD, and what they make of it."""
    pieces, expected = [], b""
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            start, stop = sorted((draw(st.integers(0, len(OLD))), draw(st.sampled_from([0, 1, 50, len(OLD)]))))
            pieces.append(Kept(start, stop - start))
            expected += OLD[start:stop]
        else:
            data = draw(st.binary(max_size=20))
            pieces.append(content(data))
            expected += data
    return Splice(tuple(pieces), draw(st.integers(0, len(expected)))), expected


@given(splices())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_any_splice_gives_its_bytes(tmp_path: Path, drawn: tuple[Splice, bytes]) -> None:
    splice, expected = drawn
    (tmp_path / "f").write_bytes(OLD)

    async def run() -> None:
        store = LocalStore(str(tmp_path))
        before = await store.open("f")
        async with store.edit("f") as edit:
            stat = await edit.splice(splice)
        assert (tmp_path / "f").read_bytes() == expected
        assert (await store.open("f")).stat.version == stat.version
        is_same = expected == OLD and all(isinstance(piece, Kept) for piece in splice.pieces if piece.nbytes)
        assert stat.version != before.stat.version or is_same

    trio.run(run)
    assert os.listdir(tmp_path) == ["f"]


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
