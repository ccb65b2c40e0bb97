"""The cache of ranges: what it gives back, what it notices, what it evicts, and what it bears."""

import errno
import logging
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier, Event
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shardfs.errors import UsageError
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.objects.disk_cache import BLOCK_NBYTES, CachedRange, DiskCache
from shardfs.stores.objects.ranges import Span
from shardfs.stores.objects.requests import Counts

MIB = 2**20
NAME, ETAG = "http://localhost bucket key", '"etag"'


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class FailingDisk(Syscalls):
    """Fails with `error`, while it is set, when an entry is written; a part is written first."""

    error: int | None = None

    def pwrite(self, fd: int, buffers: Any, offset: int) -> None:
        if self.error is not None:
            super().pwrite(fd, [bytes(buffers[0])[:1]], offset)
            raise OSError(self.error, os.strerror(self.error))
        super().pwrite(fd, buffers, offset)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "made" / "cache"


Make = Callable[..., DiskCache]


@pytest.fixture
def make(directory: Path, clock: Clock) -> Make:
    """Make a cache as each mount makes its own, in the same directory."""

    def make(max_nbytes: int = 64 * MIB, **arguments: Any) -> DiskCache:
        arguments.setdefault("counts", Counts())
        return DiskCache(str(directory), max_nbytes, clock=clock, **arguments)

    return make


def some_bytes(nbytes: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(nbytes)


def entries(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/*/*") if CachedRange.parse(path.name))


def folder(directory: Path) -> Path:
    """The cache in *directory*, which holds nothing else."""
    (path,) = directory.iterdir()
    return path


def only_entry(directory: Path) -> Path:
    (path,) = entries(directory)
    return path


def disk_nbytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in entries(directory))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# Damage


def claim_more(path: Path) -> None:
    path.rename(f"{str(path).rpartition('-')[0]}-{2**62}")


def give_it_the_name_of_another(path: Path) -> None:
    path.rename(str(path).replace("-5-105", "-0-100"))


def make_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "first byte": lambda path: flip(path, 0),
    "last byte": lambda path: flip(path, 99),
    "checksum": lambda path: flip(path, 100),
    "shortened": lambda path: os.truncate(path, 50),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "link": make_a_link,
    "pipe": make_a_pipe,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("is_later", [False, True], ids=["same mount", "later mount"])
def test_damage_is_noticed_counted_and_mended(
    make: Make, directory: Path, damage: Callable[[Path], None], is_later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    counts = Counts()
    cache = make(counts=counts)
    cache.add(NAME, ETAG, 5, b"x" * 100)
    path = only_entry(directory)
    damage(path)
    if is_later:
        cache = make(counts=counts)
    for _ in range(3):
        assert cache.find(NAME, ETAG, 5, 100) is None
    assert counts.cache_damaged == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(directory) in record.getMessage()
    assert not os.path.lexists(path)
    cache.add(NAME, ETAG, 5, b"x" * 100)
    assert cache.find(NAME, ETAG, 5, 100) == b"x" * 100


@pytest.mark.parametrize("damage", [claim_more, give_it_the_name_of_another])
def test_a_name_that_is_not_that_of_its_bytes_hides_nothing(
    make: Make, directory: Path, damage: Callable[[Path], None]
) -> None:
    counts = Counts()
    cache = make()
    cache.add(NAME, ETAG, 5, b"y" * 100)
    damage(only_entry(directory))
    cache.add(NAME, ETAG, 10, b"x" * 200)
    later = make(counts=counts)
    assert later.find(NAME, ETAG, 0, 200) is None
    assert later.find(NAME, ETAG, 10, 200) == b"x" * 200
    assert counts.cache_damaged == 1


def test_damage_that_two_readers_find_at_the_same_time_is_counted_once(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, meeting, read = Counts(), Barrier(2), CachedRange.read
    make().add(NAME, ETAG, 0, bytes(MIB))
    (path,) = directory.rglob("*-0-*")
    path.write_bytes(b"x" * path.stat().st_size)

    def read_together(entry: CachedRange, fd: int, span: Span) -> memoryview:
        meeting.wait(10)
        return read(entry, fd, span)

    monkeypatch.setattr(CachedRange, "read", read_together)
    cache = make(counts=counts)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda offset: cache.find(NAME, ETAG, offset, 100), (0, BLOCK_NBYTES)))
    assert (found, counts.cache_damaged) == ([None, None], 1)


# Eviction


@pytest.mark.slow
def test_several_mounts_exceed_the_size_by_a_tenth_each_at_most(make: Make, directory: Path) -> None:
    mounts = [make(4 * MIB) for _ in range(3)]
    for i in range(300):
        mounts[i % 3].add(f"{i}", ETAG, 0, bytes(40_000))
        if i % 10 == 0:
            assert disk_nbytes(directory) <= 4 * MIB * 1.3 + 45_056


def test_while_one_thread_evicts_no_other_waits(make: Make) -> None:
    begun, go_on = Event(), Event()

    class Slow(Syscalls):
        """Removes nothing before it may go on."""

        def unlink(self, path: str, dir_fd: int) -> None:
            begun.set()
            assert go_on.wait(50)
            super().unlink(path, dir_fd)

    cache = make(MIB, disk=Slow())

    def fill() -> None:
        for i in range(10):
            cache.add(f"{i}", ETAG, 0, bytes(MIB // 8))

    with ThreadPoolExecutor(2) as pool:
        filling = pool.submit(fill)
        assert begun.wait(50)
        try:
            pool.submit(cache.add, "other", ETAG, 0, b"data").result(5)
            pool.submit(cache.find, "other", ETAG, 0, 4).result(5)
        finally:
            go_on.set()
        filling.result()


# What it bears


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_is_said_once_and_tried_again(
    make: Make, directory: Path, clock: Clock, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    disk = FailingDisk()
    cache = make(disk=disk)
    cache.add("old", ETAG, 0, b"data")
    disk.error = error
    for i in range(300):
        cache.add(f"{i}", ETAG, 0, b"data")
        clock.pass_by(1)
    assert cache.find("old", ETAG, 0, 4) == b"data"
    (record,) = caplog.records
    assert str(directory) in record.getMessage()
    assert not list(directory.glob("*/new-*"))
    disk.error = None
    clock.pass_by(60)
    cache.add("new", ETAG, 0, b"data")
    assert cache.find("new", ETAG, 0, 4) == b"data"


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(make: Make, directory: Path) -> None:
    make()
    half = folder(directory) / "new-0123456789abcdef"
    half.write_bytes(b"half an ent")
    os.utime(half, (0, 0))
    seen: list[list[str]] = []

    class Watching(Syscalls):
        """Starts another mount while an entry is written."""

        is_watching = False

        def pwrite(self, fd: int, buffers: Any, offset: int) -> None:
            super().pwrite(fd, buffers, offset)
            if self.is_watching:
                make().add("other", ETAG, 0, b"data")
                seen.append(sorted(path.name for path in directory.glob("*/new-*")))

    disk = Watching()
    cache = make(disk=disk)
    cache.add("first", ETAG, 0, b"data")
    assert not list(directory.glob("*/new-*"))
    disk.is_watching = True
    cache.add(NAME, ETAG, 0, b"data")
    ((name,),) = seen
    assert name != half.name
    assert cache.find(NAME, ETAG, 0, 4) == b"data"


# The directory


@pytest.mark.slow
def test_however_many_entries_there_are_no_memory_is_taken_before_they_are_wanted(make: Make, directory: Path) -> None:
    make()
    for i in range(4000):
        version = f"{i:064x}"[::-1]
        (folder(directory) / version[:3]).mkdir(exist_ok=True)
        (folder(directory) / CachedRange(version, Span(0, 4096)).path).touch()
    tracemalloc.start()
    kept = make()
    kept.add("other", ETAG, 0, b"data")
    nbytes, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.find(NAME, ETAG, 0, 1) is None
    assert nbytes < 100_000
    assert peak < 500_000


def test_what_other_processes_have_evicted_takes_no_memory(make: Make, directory: Path, clock: Clock) -> None:
    cache = make()
    for number in range(50):
        cache.add(NAME, f'"{number}"', 0, b"data")
    for path in entries(directory):
        path.unlink()
    for _ in range(2):  # the second time, the directory is read again
        clock.pass_by(60)
        for number in range(50):
            assert cache.find(NAME, f'"{number}"', 0, 4) is None
    assert not any(cache._known.values())


def test_what_else_is_in_its_directory_is_left_alone(make: Make, directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_bytes(b"mine" * MIB)
    cache = make(100_000)
    for number in range(50):
        cache.add(f"{number}", ETAG, 0, bytes(20_000))
    path = entries(directory)[0]
    assert [p.stat().st_mode & 0o777 for p in (path.parent.parent, path.parent, path)] == [0o700, 0o700, 0o600]
    assert (directory / "thesis.txt").read_bytes() == b"mine" * MIB
    (directory / "thesis.txt").unlink()
    assert disk_nbytes(directory) <= 110_000


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_cache_that_others_may_write_is_refused(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    make()
    if is_ours:
        folder(directory).chmod(0o770)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(UsageError, match="others may write"):
        make()


@pytest.mark.parametrize("planted", ["cache", "drawer", "tag", "drawer is a pipe", "entry is a directory"])
def test_what_is_planted_in_a_cache_leads_nowhere_and_is_not_believed(
    make: Make, directory: Path, tmp_path: Path, planted: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"kept")
    make().add(NAME, ETAG, 0, b"x" * 100)
    cache, entry = folder(directory), only_entry(directory)
    match planted:
        case "cache":
            cache.rename(elsewhere / "cache")
            cache.symlink_to(elsewhere / "cache")
            with pytest.raises(UsageError):
                make()
            return
        case "drawer":
            entry.parent.rename(elsewhere / "drawer")
            entry.parent.symlink_to(elsewhere / "drawer")
        case "tag":
            (cache / "CACHEDIR.TAG").unlink()
            (cache / "CACHEDIR.TAG").symlink_to(elsewhere / "kept")
        case "drawer is a pipe":
            entry.unlink()
            entry.parent.rmdir()
            os.mkfifo(entry.parent)
        case "entry is a directory":
            entry.unlink()
            entry.mkdir()
    later = make(1000)
    assert later.find(NAME, ETAG, 0, 100) == (b"x" * 100 if planted == "tag" else None)
    for number in range(20):  # more than there is room for
        later.add(NAME, f'"{number}"', 0, b"y" * 200)
    later.add(NAME, ETAG, 0, b"z" * 100)
    later.discard(NAME, ETAG, Span(0, 100))
    assert (elsewhere / "kept").read_bytes() == b"kept"
    if planted == "drawer":
        assert (elsewhere / "drawer" / entry.name).read_bytes().startswith(b"x" * 100)


def test_entries_of_other_versions_of_the_format_are_neither_read_nor_removed(make: Make, directory: Path) -> None:
    make().add(NAME, ETAG, 0, b"x" * 100)
    entry, name = only_entry(directory), folder(directory).name
    number = int(name.rpartition("-")[2])
    for other in (number - 1, number + 1):
        shutil.copytree(directory / name, directory / f"shardfs-{other}")
    entry.unlink()
    later = make(1000)
    assert later.find(NAME, ETAG, 0, 100) is None
    for version in range(20):
        later.add(NAME, f'"{version}"', 0, b"y" * 200)
    for other in (number - 1, number + 1):
        assert (
            (directory / f"shardfs-{other}" / entry.relative_to(directory / name)).read_bytes().startswith(b"x" * 100)
        )


def test_a_directory_that_cannot_be_made_is_refused(make: Make, directory: Path) -> None:
    directory.parent.write_text("a file")
    with pytest.raises(UsageError, match="cannot be used as a directory for a cache: Not a directory"):
        make()


# A model

OBJECT_NBYTES = 3 * BLOCK_NBYTES
VERSIONS = [(name, etag) for name in "ab" for etag in "12"]
CONTENT = {version: some_bytes(OBJECT_NBYTES, seed) for seed, version in enumerate(VERSIONS)}
positions = st.integers(0, OBJECT_NBYTES) | st.sampled_from(range(0, OBJECT_NBYTES + 1, BLOCK_NBYTES // 2))
ranges = st.tuples(positions, positions).map(sorted).filter(lambda bounds: bounds[0] < bounds[1])
versions = st.sampled_from(VERSIONS)
mounts = st.integers(0, 1)


class TwoMounts(RuleBasedStateMachine):
    """Two mounts with one directory: what they find is right, and what is there they find.

    What a mount knows itself of a place, be it less, hides what the other one has added there.
    """

    max_nbytes = 64 * MIB

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.counts = Counts()
        self.mounts = [self.start(), self.start()]
        self.added: dict[tuple[str, str], list[tuple[int, int, int]]] = {version: [] for version in VERSIONS}

    def start(self) -> DiskCache:
        return DiskCache(str(self.directory), self.max_nbytes, self.counts, clock=self.clock)

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(mount=mounts, version=versions, bounds=ranges)
    def add(self, mount: int, version: tuple[str, str], bounds: tuple[int, int]) -> None:
        begin, end = bounds
        self.clock.pass_by(70)
        self.mounts[mount].add(*version, begin, CONTENT[version][begin:end])
        self.added[version].append((mount, begin, end))

    @rule(mount=mounts, version=versions, bounds=ranges)
    def find(self, mount: int, version: tuple[str, str], bounds: tuple[int, int]) -> None:
        begin, end = bounds
        self.clock.pass_by(70)
        found = self.mounts[mount].find(*version, begin, end - begin)
        nbytes = len(found or b"")
        assert (found or b"") == CONTENT[version][begin : begin + nbytes]
        kept_by = self.kept_by(version, begin, end)
        assert nbytes or not kept_by
        assert begin + nbytes == end or mount not in kept_by

    def kept_by(self, version: tuple[str, str], begin: int, end: int) -> set[int]:
        return {mount for mount, first, last in self.added[version] if first <= begin and end <= last}

    @rule(mount=mounts)
    def remount(self, mount: int) -> None:
        self.mounts[mount] = self.start()

    @precondition(lambda self: entries(self.directory))
    @rule(place=st.integers(0, 1000), at=st.integers(0, 10**6), how=st.sampled_from(["flip", "cut", "remove"]))
    def harm(self, place: int, at: int, how: str) -> None:
        paths = entries(self.directory)
        path = paths[place % len(paths)]
        nbytes = path.stat().st_size
        if how == "remove" or not nbytes:
            path.unlink()
        elif how == "cut":
            os.truncate(path, at % nbytes)
        else:
            flip(path, at % nbytes)
        for bounds in self.added.values():
            bounds.clear()


class TwoSmallMounts(TwoMounts):
    """The same with little room: what is found is right, and the room is enough."""

    max_nbytes = 384 * 1024

    def kept_by(self, version: tuple[str, str], begin: int, end: int) -> set[int]:
        return set()

    @invariant()
    def the_room_is_kept(self) -> None:
        assert disk_nbytes(self.directory) <= self.max_nbytes * 1.2 + OBJECT_NBYTES


SETTINGS = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestTwoMounts = TwoMounts.TestCase
TestTwoMounts.pytestmark = pytest.mark.slow
TestTwoMounts.settings = SETTINGS
TestTwoSmallMounts = TwoSmallMounts.TestCase
TestTwoSmallMounts.pytestmark = pytest.mark.slow
TestTwoSmallMounts.settings = SETTINGS


def test_counting_a_cache_keeps_no_entries_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(str(tmp_path), 2**20, Counts())
    dropped: list[int] = []

    def entries(_: DiskCache) -> Iterator[tuple[float, int, CachedRange]]:
        for number in range(20_000):
            yield 3.0 * (number * 7919 % 20_000), 2**10, CachedRange(f"{number:064x}", Span(0, 1))

    monkeypatch.setattr(DiskCache, "_entries", entries)
    monkeypatch.setattr(DiskCache, "_drop", lambda _, entry: dropped.append(int(entry.version, 16) * 7919 % 20_000))
    tracemalloc.start()
    try:
        cache._count()
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
    assert sorted(dropped) == list(range(20_000 - int(0.9 * 2**10))), "the least recently used"
