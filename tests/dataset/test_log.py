"""The write-ahead log while all goes well, or fails in ways that it has to say.

What a kill, a power cut or an error at any call leaves of it is in `tests/crash/test_log.py`.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.reading import LogContents, read_log
from shardfs.dataset.wal.records import Erase, Put, Shrink, UndoRecord, pack_ranges
from shardfs.errors import NoSpaceError, ReadOnlyError, StoreError
from shardfs.stores.base import Buffer, Content, Descriptor
from shardfs.stores.local.syscalls import WALK, Syscalls
from shardfs.stores.memory import MemoryContent
from tests.support.lossy_disk import Fault, LossyDisk, QuickDisk

MIB = 2**20


def descriptor_of(path: Path) -> Descriptor:
    return Descriptor(os.open(path, WALK))


def opened(path: Path, disk: Syscalls | None = None, **options: int) -> WriteAheadLog:
    return WriteAheadLog(descriptor_of(path), disk or QuickDisk(), **options)


def contents_of(path: Path) -> LogContents:
    return read_log(descriptor_of(path))


def put(log: WriteAheadLog, content: bytes | Content = b"bytes", *, coords: tuple[int, ...] = (0,)) -> Put:
    return log.append(new_put(coords), in_memory(content) if isinstance(content, bytes) else content)


def in_memory(data: bytes) -> Content:
    return MemoryContent(memoryview(data))


def new_put(coords: tuple[int, ...] = (0,), **fields: Any) -> Put:
    return replace(Put(0, "image/a", coords, b"f" * 16, None, 1, 0o644, 0, 0), **fields)


def undo(records: list[int], **fields: Any) -> tuple[UndoRecord, bytes]:
    hashes = b"o" * 16, b"n" * 16
    record = UndoRecord(0, "a", (1, 2), "a/c/1/2", 4, 100, 200, 100, 7, 68, 32, *hashes, "")
    return replace(record, **fields), pack_ranges(records)


def plain(record: Any, payload: bytes | None = None) -> tuple[Any, ...]:
    """Return all that a record says, to be compared; *payload* is its own unless it is given."""
    payload = bytes(record.payload.read(0, record.payload.nbytes)) if payload is None else payload
    return (type(record).__name__, payload, repr(replace(record, payload=None)))


def unnumbered(record: Any) -> tuple[Any, ...]:
    """What it says but for its sequence, of which what is carried forward gets another."""
    return plain(replace(record, sequence=0))


def said_by(path: Path) -> list[tuple[Any, ...]]:
    return [plain(record) for record in contents_of(path).records]


def segments_of(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(".journal"))


def numbers_of(path: Path) -> list[int]:
    """The numbers of the segments, which begin with a digit for their use."""
    return sorted(int(name[1:9]) for name in segments_of(path))


@dataclass
class Short:
    """Content that ends before it has *nbytes* bytes."""

    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        return bytes(self.nbytes - 1)[offset : offset + nbytes]


# What is appended is read


uint32, uint63 = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just(os.fsdecode(b"a/\xff\xfe"))
coordinates = st.lists(st.integers(0, 2**64 - 1), max_size=5).map(tuple)
entries = st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
hashes = st.binary(min_size=16, max_size=16)
fields = (st.just(0), names, coordinates, hashes, entries, st.integers(-(2**70), 2**70))
puts = st.tuples(st.builds(Put, *fields, uint32, uint32, uint32), st.binary(max_size=99))
erases = st.tuples(st.builds(Erase, *fields), st.just(b""))
shrinks = st.tuples(st.builds(Shrink, st.just(0), names, coordinates), st.just(b""))
undos = st.builds(
    lambda which, **fields: undo([n for n in range(1, 9) if which.random() < 0.5], **fields),
    st.randoms(),
    path=names,
    shard=coordinates,
    key=names,
    inode=uint63,
    old_nbytes=uint63,
    planned_nbytes=uint63,
    checked_from=uint63,
    checksum=uint32,
    index_offset=uint63,
    index_nbytes=uint63,
    old_index_hash=hashes,
    new_index_hash=hashes,
    temporary=names,
)


@given(st.lists(puts | erases | shrinks | undos, max_size=8), st.sampled_from([64, 300, 2**20]))
def test_what_is_appended_is_read_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, bytes]], segment_nbytes: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    log = opened(path, segment_nbytes=segment_nbytes)
    for record, payload in steps:
        log.append(replace(record), in_memory(payload))
    contents = contents_of(path)
    expected = [(replace(record, sequence=number), payload) for number, (record, payload) in enumerate(steps, 1)]
    assert [plain(record) for record in contents.records] == [plain(record, payload) for record, payload in expected]
    assert contents.damage == []


@pytest.mark.parametrize("nbytes", [100, 3 * MIB + 5])
def test_content_is_stored_as_a_whole_or_not_at_all(tmp_path: Path, nbytes: int) -> None:
    log, data = opened(tmp_path), os.urandom(nbytes)
    put(log, data)
    size = log.nbytes
    with pytest.raises(StoreError, match="ended before"):
        put(log, Short(nbytes))
    assert log.nbytes == size
    put(log, b"after")
    assert [said[1] for said in said_by(tmp_path)] == [data, b"after"]


# What is released


def test_a_superseded_record_stays_until_its_replacement_is_durable_or_released(tmp_path: Path) -> None:
    log = opened(tmp_path)
    old, new, other, third = put(log, b"old"), put(log, b"new"), put(log, coords=(1,)), put(log, b"third")
    log.supersede(old.sequence, new.sequence)
    assert log.live == 3
    log.release([other.sequence])
    assert [record.sequence for record in contents_of(tmp_path).records] == [1, 2, 4]
    log.sync()
    log.release([])
    assert [record.sequence for record in contents_of(tmp_path).records] == [2, 4]
    log.supersede(new.sequence, third.sequence)
    log.release([third.sequence])
    assert contents_of(tmp_path).records == []


def test_segments_go_from_the_oldest_on(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_nbytes=300)
    first, second, third, fourth = (put(log, b"x" * 100).sequence for _ in range(4))
    log.release([second, third])
    assert numbers_of(tmp_path) == [1, 2, 3, 4]
    log.release([first])
    assert numbers_of(tmp_path) == [4]
    log.release([fourth])
    log.close()
    assert os.listdir(tmp_path) == []


def test_a_log_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    old = opened(tmp_path, segment_nbytes=4096)
    records = [put(old, b"x" * 1500) for _ in range(5)]
    old.release([records[0].sequence])
    before = {name: (tmp_path / name).read_bytes() for name in segments_of(tmp_path)}
    contents = contents_of(tmp_path)
    disk = LossyDisk(tmp_path)
    log = WriteAheadLog(descriptor_of(tmp_path), disk, contents)
    assert (log.live, log.live_nbytes) == (4, old.live_nbytes)
    record = put(log)
    assert record.sequence == old.last_sequence + 1
    assert before.items() <= {name: (tmp_path / name).read_bytes() for name in segments_of(tmp_path)}.items()
    log.sync()  # of what the old one never made durable, too
    assert disk.names.count("sync") == len(before) + 1
    log.release(record.sequence for record in contents.records)
    assert said_by(tmp_path) == [plain(record)]
    assert numbers_of(tmp_path) == [len(before) + 1]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_old_record_keeps_no_more_than_itself(tmp_path: Path, is_replaced: bool) -> None:
    """Records of all kinds in several segments, the oldest of which is carried forward again and again."""
    log = opened(tmp_path, segment_nbytes=4096)
    shrink = log.append(Shrink(0, "image/a", (4,)))
    first, large = put(log, b"first", coords=(1,)), put(log, os.urandom(2 * MIB), coords=(2,))
    erase = log.append(Erase(0, "image/a", (3,), b"f" * 16, (5, 6), 1))
    record = log.append(undo([])[0], in_memory(pack_ranges([first.sequence, erase.sequence])))
    released = [put(log, os.urandom(1500)).sequence for _ in range(6)]
    log.sync()
    log.release(released)
    for _ in range(log.nsegments):
        log.carry_forward([shrink, first, large, erase, record])
    assert 1 not in numbers_of(tmp_path)
    assert log.dead_nbytes < 700 < log.live_nbytes
    kept = [shrink, first, large, erase, record]
    if is_replaced:
        new = put(log, b"new", coords=(1,))
        log.supersede(first.sequence, new.sequence)
        log.carry_forward([shrink, new, large, erase, record])
        log.sync()
        log.release([])
        kept = [shrink, large, erase, record, new]
    for number in range(len(kept) + 1):
        contents = contents_of(tmp_path)
        assert sorted(map(unnumbered, contents.records)) == sorted(map(unnumbered, kept[number:]))
        assert contents.damage == []
        log.release(each.sequence for each in kept[number : number + 1])
    WriteAheadLog(descriptor_of(tmp_path), QuickDisk(), contents_of(tmp_path)).close()
    assert segments_of(tmp_path) == []


def test_reads_and_syncs_run_beside_appends_and_what_is_carried_forward(tmp_path: Path) -> None:
    log = opened(tmp_path, Syscalls(), segment_nbytes=100_000)
    carried = put(log, b"carried" * 100)
    published: list[tuple[Put, bytes]] = [(carried, b"carried" * 100)]
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                action()
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        for record, content in (published[0], *published[-20:]):
            assert record.payload.read(0, len(content)) == content

    def sync() -> None:
        before = log.last_sequence
        log.sync()
        assert log.synced_sequence >= before

    threads = [threading.Thread(target=repeat, args=(action,)) for action in (read, sync, sync)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    for n in range(1, 1000):
        content = chance.randbytes(chance.randrange(3000))
        published.append((put(log, content), content))
        if n % 50 == 0:
            log.release(record.sequence for record, _ in published[n - 49 : n])
            log.carry_forward(record for record, _ in published)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    kept = [record for n, (record, _) in enumerate(published) if n % 50 == 0 or n > 950]
    assert sorted(map(unnumbered, contents_of(tmp_path).records)) == sorted(map(unnumbered, kept))


# Syncing


class HookedDisk(Syscalls):
    """A disk that does something while it makes a file durable."""

    def __init__(self) -> None:
        self.during: Iterator[Callable[[], object]] = iter(())
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        next(self.during, lambda: None)()
        super().sync(fd)


def test_what_comes_while_a_sync_is_under_way_is_not_counted_as_durable(tmp_path: Path) -> None:
    disk = HookedDisk()
    log = opened(tmp_path, disk)
    first = put(log)
    disk.during = iter([lambda: put(log)])
    log.sync()
    assert (disk.syncs, log.synced_sequence, log.last_sequence) == (1, first.sequence, first.sequence + 1)
    log.sync()
    assert (disk.syncs, log.synced_sequence) == (2, first.sequence + 1)
    log.sync()
    assert disk.syncs == 2


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_after_a_failed_sync_nothing_is_taken_any_more(tmp_path: Path, call: str) -> None:
    disk = LossyDisk(tmp_path)
    log = opened(tmp_path, disk)
    record = put(log)
    disk.faults[len(disk.calls) + ["sync", "sync_directory"].index(call)] = full(number=errno.EIO)
    with pytest.raises(StoreError, match="could not be made durable: Input/output error"):
        log.sync()
    before = len(disk.calls)
    for use in (log.sync, lambda: put(log), lambda: log.release([record.sequence])):
        with pytest.raises(ReadOnlyError, match="could not be made durable"):
            use()
    log.close()
    assert len(disk.calls) == before
    assert (bool(log.failure), log.synced_sequence) == (True, 0)
    assert record.payload.read(0, 5) == b"bytes"
    assert numbers_of(tmp_path) == [1]


# A full disk, and other failures


def full(written: int = 0, number: int = errno.ENOSPC) -> Fault:
    return Fault(OSError(number, os.strerror(number)), written)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("written", [0, 20, 150, 1000])
@pytest.mark.parametrize("is_cut_off", [True, False], ids=["cut off", "left there"])
def test_a_failed_write_fails_one_append_and_no_more(
    tmp_path: Path, number: int, written: int, is_cut_off: bool
) -> None:
    disk = LossyDisk(tmp_path)
    log = opened(tmp_path, disk)
    first = put(log, b"first")
    size = log.nbytes
    disk.faults[len(disk.calls)] = full(written, number)
    if not is_cut_off:
        disk.faults[len(disk.calls) + 1] = full(number=errno.EIO)
    message = os.strerror(number) if number == errno.EIO else f"no room for the journal in {tmp_path}"
    with pytest.raises(StoreError if number == errno.EIO else NoSpaceError, match=message):
        put(log, b"y" * 2000)
    assert log.nbytes == size
    records = [first, put(log, b"second"), put(log, b"x" * 61)]
    contents = contents_of(tmp_path)
    assert [plain(record) for record in contents.records] == [plain(record) for record in records]
    assert contents.damage == []


def test_a_segment_that_was_cut_is_noticed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    record = put(log)
    os.truncate(tmp_path / segments_of(tmp_path)[0], 60)
    with pytest.raises(StoreError, match="cut short by another program"):
        put(log)
    with pytest.raises(StoreError, match="cut short by another program"):
        record.payload.read(0, 5)
