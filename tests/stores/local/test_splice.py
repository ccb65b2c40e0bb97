"""Splices of local files: what becomes of the bytes, in how many calls, and what others see meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.errors import NotFoundError, StaleError, StoreError
from shardfs.stores.base import Kept, Splice, is_reserved
from shardfs.stores.local.syscalls import BLOCK, Syscalls
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import (
    CASES,
    MIB,
    OLD,
    OLD_TAIL,
    TAIL_NBYTES,
    WHOLE,
    Case,
    Counted,
    SpliceDisk,
    content,
    files,
    make,
    make_source,
)
from tests.support.opened import in_trio

pytestmark = pytest.mark.usefixtures("small_steps")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
in_place = pytest.mark.parametrize(
    "case", [case for name, case in CASES.items() if case.in_place and name != "cut"], ids=lambda case: case.calls
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


class WatchedDisk(Syscalls):
    """A disk with a look at what is there before and after each write, from the thread that writes."""

    def __init__(self, look: Any) -> None:
        self._look = look

    def pwrite(self, *args: Any) -> None:
        self._look()
        super().pwrite(*args)
        self._look()

    def pwrite_direct(self, *args: Any) -> None:
        self._look()
        super().pwrite_direct(*args)
        self._look()

    def sync(self, fd: int) -> None:
        self._look()
        super().sync(fd)
        self._look()


@every_case
@in_trio
async def test_the_new_version_is_the_pieces_one_behind_the_other(source: Path, case: Case) -> None:
    stat = await make(source, Syscalls(), case)
    store = LocalStore(str(source))
    assert stat == (await store.open(case.key)).stat == await store.stat(case.key)
    assert stat.size == len(case.new) == case.splice.nbytes
    assert stat.mode & 0o7777 == 0o640
    assert (source / case.key).read_bytes() == case.new
    assert files(source) == {"d/f", case.key}


@in_place
@in_trio
async def test_nobody_has_seen_the_time_of_the_new_version_on_a_part_of_it(source: Path, case: Case) -> None:
    """The kernel sets the time first, and then writes: tensorstore, which compares times, would overwrite the rest."""
    path, seen = source / case.key, set()

    def look() -> None:
        status = path.stat()
        seen.add((status.st_ino, status.st_mtime_ns))

    await make(source, WatchedDisk(look), case)
    status = path.stat()
    last_look_is_of_the_whole = 1  # before the last sync
    assert sum((status.st_ino, status.st_mtime_ns) == each for each in seen) <= last_look_is_of_the_whole
    assert len(seen) > 1


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


@every_case
@in_trio
async def test_a_splice_takes_these_calls(source: Path, case: Case) -> None:
    disk = SpliceDisk(source)
    await make(source, disk, case)
    assert tuple(disk.names) == case.calls


@in_trio
async def test_an_append_that_is_made_at_once_writes_the_last_block_again_and_nothing_else(source: Path) -> None:
    disk = SpliceDisk(source)
    payloads = [content(bytes([i % 256]) * 30) for i in range(3000)]  # more than one call takes as buffers
    padding = -(len(OLD) + 3000 * 30 + TAIL_NBYTES) % BLOCK
    pieces = (WHOLE, content(bytes(padding)), *payloads, content(b"t" * TAIL_NBYTES))
    await make(source, disk, Case(pieces, TAIL_NBYTES, ()))
    assert disk.names == ["pwrite_direct", "utime", "sync"]
    assert disk.written == len(OLD) % BLOCK + padding + 3000 * 30 + TAIL_NBYTES


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
    case, tails = CASES[name], []

    def look() -> None:
        tails.append((source / "d" / "f").read_bytes()[-TAIL_NBYTES:])

    await make(source, WatchedDisk(look), case)
    assert tails[0] == OLD[-TAIL_NBYTES:]
    assert tails[-1] == case.new[-TAIL_NBYTES:]
    assert set(tails) == {tails[0], tails[-1]}


@in_trio
async def test_whoever_opens_the_file_during_a_large_append_finds_a_whole_tail(source: Path) -> None:
    path = source / "d" / "f"
    tail = b"t" * 96  # within one page, at any of the ends that the file has
    old = bytes(4096 - 96) + b"o" * 96
    path.write_bytes(old)
    done, tails = threading.Event(), set()

    def read() -> None:
        while not done.is_set():
            with path.open("rb") as file:
                tails.add(os.pread(file.fileno(), 96, os.fstat(file.fileno()).st_size - 96))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        pieces = (Kept(0, len(old)), Counted(32 * 2**20 - 96), content(tail))
        await make(source, Syscalls(), Case(pieces, 96, ()))
    finally:
        done.set()
        reader.join()
    assert tails <= {b"o" * 96, tail}
    assert b"o" * 96 in tails


@pytest.mark.parametrize("kept", [(WHOLE,), (), (Kept(1, 2 * MIB),)], ids=["appended", "new", "copied"])
@in_trio
async def test_memory_is_bounded(source: Path, kept: tuple[Kept, ...]) -> None:
    if kept == (Kept(1, 2 * MIB),):
        with (source / "d" / "f").open("ab") as file:
            file.write(bytes(2 * MIB))
    large = [Counted(20 * MIB), *(Counted(MIB // 2) for _ in range(40))]
    disk = SpliceDisk(source)
    await make(source, disk, Case((*kept, *large), 0, ()))
    assert max(piece.largest for piece in large) <= MIB
    assert max(len(call.data) for call in disk.calls) <= 8 * MIB


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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
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


@pytest.mark.parametrize("piece", [Kept(0, len(OLD) + 1), Kept(len(OLD), 1), Kept(-1, 5), Kept(2**62, 2**62)])
@in_trio
async def test_what_is_not_there_cannot_be_kept(source: Path, piece: Kept) -> None:
    with pytest.raises(ValueError, match="keeps more"):
        await make(source, Syscalls(), Case((piece,), 0, ()))
    assert (source / "d" / "f").read_bytes() == OLD


@every_case
@in_trio
async def test_content_of_another_length_is_not_stored(source: Path, case: Case) -> None:
    class Short(Counted):
        def read(self, offset: int, nbytes: int) -> bytes:
            return bytes(nbytes - 1)

    pieces = tuple(piece if isinstance(piece, Kept) else Short(piece.nbytes) for piece in case.pieces)
    if all(isinstance(piece, Kept) for piece in pieces):
        return
    with pytest.raises(StoreError, match="that were to be stored"):
        await make(source, Syscalls(), Case(pieces, case.tail_nbytes, (), case.is_new))
    assert files(source) == {"d/f"}
    assert (source / "d" / "f").read_bytes() == OLD


@in_trio
async def test_an_edit_shows_what_it_finds_and_makes_one_change(source: Path) -> None:
    store = LocalStore(str(source))
    async with store.edit("d/f") as edit:
        assert edit.snapshot is not None
        assert edit.snapshot.stat == await store.stat("d/f")
        assert bytes(await edit.snapshot.read(5, 10)) == OLD[5:15]
        await edit.splice(Splice((content(b"x"),)))
        with pytest.raises(ValueError, match="one change"):
            await edit.delete()
    for key in ("d/gone", "gone/f"):
        async with store.edit(key) as edit:
            assert edit.snapshot is None
            with pytest.raises(NotFoundError):
                await edit.delete()
    assert files(source) == {"d/f"}
    assert not (source / "gone").exists()


@every_case
@in_trio
async def test_the_temporary_name_is_known_before_it_is_used(source: Path, case: Case) -> None:
    disk = SpliceDisk(source)
    store = LocalStore(str(source), disk)
    async with store.edit(case.key) as edit:
        directory, _, name = edit.temporary.rpartition("/")
        assert directory == case.key.rpartition("/")[0]
        assert is_reserved(name)
        assert disk.calls == []
        await edit.splice(case.splice)
    created = [call.files for call in disk.calls if call.name == "create"]
    assert created == ([] if case.in_place else [(name,)])
    async with store.edit(case.key) as another:
        assert another.temporary != edit.temporary


@in_trio
async def test_a_file_is_deleted_durably(source: Path) -> None:
    disk = SpliceDisk(source)
    store = LocalStore(str(source), disk)
    snapshot = await store.open("d/f")
    async with store.edit("d/f") as edit:
        await edit.delete()
    assert disk.names == ["unlink", "sync_directory"]
    assert files(source) == set()
    assert bytes(await snapshot.read(0, len(OLD))) == OLD
    assert not await snapshot.is_current()


@in_place
@in_trio
async def test_open_snapshots_serve_on_while_the_store_changes_the_file(source: Path, case: Case) -> None:
    """At every moment, and afterwards, without a look at what the change was."""
    served = []

    async def read() -> None:
        served.append(bytes(await snapshot.read(50, len(OLD) - 50)) == OLD[50:])
        served.append(snapshot.content(50, 200).read(100, 100) == OLD[150:250])

    disk = WatchedDisk(lambda: trio.from_thread.run(read))
    store = LocalStore(str(source), disk)
    snapshot = await store.open("d/f")
    for round_ in range(3):
        async with store.edit("d/f") as edit:
            assert edit.snapshot is not None
            first, *others = case.pieces
            nbytes = edit.snapshot.size
            kept = Kept(first.nbytes, nbytes - first.nbytes)
            pieces = (Kept(0, nbytes), *others) if isinstance(first, Kept) else (first, kept, *others[1:])
            if OLD_TAIL in case.pieces:
                pieces = tuple(Kept(nbytes - TAIL_NBYTES, TAIL_NBYTES) if p == OLD_TAIL else p for p in pieces)
            await edit.splice(Splice(pieces, case.tail_nbytes))
        await read()
        assert not await snapshot.is_current(), round_
    assert all(served)
    assert len(served) > 20
    os.utime(source / "d" / "f")
    with pytest.raises(StaleError):
        await read()


@in_trio
async def test_who_opens_a_file_while_an_append_ends_can_read_it(source: Path) -> None:
    """As they read a shard: what is stale is read again when the index is known to be where it was."""
    opened: list[Any] = []
    served: list[bytes] = []

    async def read(snapshot: Any) -> None:
        try:
            data = await snapshot.read(0, snapshot.size)
        except StaleError:
            if not await snapshot.accept_growth(0, OLD):
                raise
            data = await snapshot.read(0, snapshot.size)
        served.append(bytes(data))

    class Disk(Syscalls):
        def utime(self, *args: Any) -> None:
            opened.append(trio.from_thread.run(store.open, "d/f"))
            super().utime(*args)

        def sync(self, fd: int) -> None:
            trio.from_thread.run_sync(nursery.start_soon, read, opened[0])  # a disk takes its time
            super().sync(fd)

    store = LocalStore(str(source), Disk())
    async with trio.open_nursery() as nursery, store.edit("d/f") as edit:
        assert edit.snapshot is not None
        await edit.splice(Splice((Kept(0, edit.snapshot.size), content(b"more"))))
    await read(opened[0])
    assert served == [OLD + b"more"] * len(served)
    assert len(served) >= 2
    os.utime(source / "d/f")  # as another program would
    with pytest.raises(StaleError):
        await read(opened[0])


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
async def test_a_cut_is_stale_for_open_snapshots(source: Path) -> None:
    store = LocalStore(str(source))
    snapshot = await store.open("d/f")
    async with store.edit("d/f") as edit:
        await edit.splice(CASES["cut"].splice)
    with pytest.raises(StaleError):
        await snapshot.read(0, 10)


@in_trio
async def test_versions_differ_even_if_the_clock_of_the_disk_stands_still(source: Path) -> None:
    class Frozen(Syscalls):
        def pwrite(self, fd: int, buffers: Any, offset: int) -> None:
            before = os.fstat(fd)
            super().pwrite(fd, buffers, offset)
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))

    before = (await LocalStore(str(source)).stat("d/f")).mtime_ns
    stat = await make(source, Frozen(), CASES["large append without a tail"])
    assert stat.mtime_ns == before + 1
