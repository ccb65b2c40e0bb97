"""The journal while all goes well, or fails in ways that it has to say."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.reading import LogContents, read_log
from shardfs.dataset.wal.records import Erase, Put, Shrink, UndoRecord
from shardfs.errors import NoSpaceError, ReadOnlyError, RefusedError, StoreError
from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.local.openat import WALK
from shardfs.stores.local.syscalls import Syscalls
from tests.support.lossy_disk import Fault, LossyDisk
from tests.support.opened import in_trio

MIB = 2**20


def descriptor_of(path: Path) -> Descriptor:
    return Descriptor(os.open(path, WALK))


def opened(path: Path, disk: Syscalls | None = None, **options: int) -> WriteAheadLog:
    return WriteAheadLog(descriptor_of(path), disk or Syscalls(), **options)


def contents_of(path: Path) -> LogContents:
    return read_log(descriptor_of(path))


def put(journal: WriteAheadLog, content: Any = b"bytes", *, coords: tuple[int, ...] = (0,), **fields: Any) -> Put:
    defaults: dict[str, Any] = {
        "path": "image/a",
        "fingerprint": b"f" * 16,
        "superseded": None,
        "mtime_ns": 1,
        "mode": 0o644,
        "uid": 0,
        "gid": 0,
    }
    return journal.append_put(coords=coords, content=content, **(defaults | fields))


def intend(journal: WriteAheadLog, records: list[int], **fields: Any) -> UndoRecord:
    defaults: dict[str, Any] = {
        "path": "a",
        "shard": (1, 2),
        "key": "a/c/1/2",
        "identity": (3, 4),
        "old_nbytes": 100,
        "planned_nbytes": 200,
        "index_offset_old": 68,
        "is_replacement": False,
        "temporary": "",
        "old_index": b"old",
        "planned_index": b"planned",
    }
    return journal.append_undo(records=records, **(defaults | fields))


def plain(record: Any) -> tuple[Any, ...]:
    """Return all that a record says, to be compared."""
    if isinstance(record, Put):
        payload = record.payload.read(0, record.payload.nbytes)
        return ("Put", payload, repr(replace(record, payload=None)))  # type: ignore[arg-type]
    if isinstance(record, UndoRecord):
        said = (record.old_index, record.planned_index, list(record.records()))
        return ("UndoRecord", said, repr(replace(record, payload=None)))  # type: ignore[arg-type]
    return (type(record).__name__, repr(record))


def segments_of(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(".journal"))


class Scattered:
    """Content that is read in pieces."""

    def __init__(self, data: bytes, nbytes: int | None = None) -> None:
        self.data = data
        self.nbytes = len(data) if nbytes is None else nbytes
        self.reads: list[int] = []

    def read(self, offset: int, nbytes: int) -> Buffer:
        self.reads.append(nbytes)
        return memoryview(self.data)[offset : offset + nbytes]


# What is appended is read


uint32, uint63 = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just(os.fsdecode(b"a/\xff\xfe"))
coordinates = st.lists(st.integers(0, 2**64 - 1), max_size=5).map(tuple)
entries = st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
fingerprints = st.binary(min_size=16, max_size=16)
times = st.integers(-(2**70), 2**70)
changes = st.fixed_dictionaries(
    {"path": names, "coords": coordinates, "fingerprint": fingerprints, "superseded": entries, "mtime_ns": times}
)
puts = st.tuples(changes, st.fixed_dictionaries({"mode": uint32, "uid": uint32, "gid": uint32}), st.binary(max_size=99))
intents = st.fixed_dictionaries(
    {
        "path": names,
        "shard": coordinates,
        "key": names,
        "identity": st.none() | st.tuples(uint63, uint63),
        "old_nbytes": uint63,
        "planned_nbytes": uint63,
        "index_offset_old": uint63,
        "is_replacement": st.booleans(),
        "temporary": names,
        "old_index": st.binary(max_size=64),
        "planned_index": st.binary(max_size=64),
    }
)
appends = st.one_of(
    puts.map(lambda parts: lambda j: j.append_put(**parts[0], **parts[1], content=parts[2])),
    changes.map(lambda fields: lambda j: j.append(Erase(0, **fields))),
    st.tuples(names, coordinates).map(lambda parts: lambda j: j.append(Shrink(0, *parts))),
    st.tuples(intents, st.randoms()).map(
        lambda parts: (
            lambda j: j.append_undo(
                **parts[0], records=[n for n in range(1, j.last_sequence + 1) if parts[1].random() < 0.7]
            )
        )
    ),
)


@given(st.lists(appends, max_size=8), st.sampled_from([64, 300, 2**20]))
def test_what_is_appended_is_read_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Callable[[WriteAheadLog], Any]], segment_nbytes: int
) -> None:
    path = tmp_path_factory.mktemp("journal")
    journal = opened(path, segment_nbytes=segment_nbytes)
    records = [step(journal) for step in steps]
    contents = contents_of(path)
    assert [plain(record) for record in contents.records] == [plain(record) for record in records]
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert contents.damage == []


def test_an_intent_says_what_it_commits_and_both_indexes(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sequences = [put(journal).sequence for _ in range(6)]
    intend(journal, [sequences[n] for n in (4, 0, 1, 2)], identity=None, temporary="a/c/1/.shardfs-1.tmp")
    [*_, intent] = contents_of(tmp_path).records
    assert isinstance(intent, UndoRecord)
    assert list(intent.records()) == [range(1, 4), range(5, 6)]
    assert (intent.old_index, intent.planned_index) == (b"old", b"planned")
    assert (intent.identity, intent.temporary) == (None, "a/c/1/.shardfs-1.tmp")


def test_several_records_are_one_write(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    put(journal)
    before = len(disk.calls)
    records = journal.append_all([Erase(0, "a", (n,), b"f" * 16, None, 1) for n in range(3)])
    assert disk.names[before:] == ["pwrite"]
    assert [record.sequence for record in records] == [2, 3, 4]
    assert contents_of(tmp_path).records[1:] == records


def test_a_chunk_is_one_write(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    put(journal)
    before = len(disk.calls)
    put(journal, b"x" * 3 * MIB)
    put(journal, Scattered(b"x" * MIB))
    assert disk.names[before:] == ["pwrite", "pwrite"]


@pytest.mark.parametrize(
    "content",
    [b"", b"abcd", bytearray(b"abcd"), memoryview(b"xabcd")[1:], np.arange(6, dtype="<u4").reshape(2, 3).data],
    ids=["empty", "bytes", "bytearray", "memoryview", "numbers"],
)
def test_any_buffer_can_be_published(tmp_path: Path, content: Any) -> None:
    journal = opened(tmp_path)
    record = put(journal, content)
    [read] = contents_of(tmp_path).records
    assert isinstance(read, Put)
    for payload in (record.payload, read.payload):
        assert payload.read(0, payload.nbytes) == bytes(memoryview(content).cast("B") if len(content) else b"")


def test_large_content_is_read_in_pieces(tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 5)
    content = Scattered(data)
    record = put(opened(tmp_path), content)
    assert content.reads == [MIB, MIB, MIB, 5]
    [read] = contents_of(tmp_path).records
    assert plain(read) == plain(record)
    assert plain(read)[1] == data


@pytest.mark.parametrize("nbytes", [100, 3 * MIB])
def test_content_that_ends_early_is_an_error_and_leaves_nothing(tmp_path: Path, nbytes: int) -> None:
    journal = opened(tmp_path)
    put(journal, b"before")
    size = journal.nbytes
    with pytest.raises(StoreError, match="ended before"):
        put(journal, Scattered(b"x" * (nbytes - 1), nbytes))
    assert journal.nbytes == size == (tmp_path / "00000001.journal").stat().st_size
    put(journal, b"after")
    assert [plain(record)[1] for record in contents_of(tmp_path).records] == [b"before", b"after"]


def test_a_name_that_is_too_long_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    with pytest.raises(RefusedError, match="too long"):
        put(opened(tmp_path, disk), path="a" * 2**16)
    assert disk.calls == []


# Payloads


def test_a_part_of_a_payload_can_be_read_and_no_more(tmp_path: Path) -> None:
    payload = put(opened(tmp_path), b"0123456789").payload
    assert payload.read(3, 4) == b"3456"
    assert payload.read(10, 0) == b""
    for offset, nbytes in ((-1, 2), (0, 11), (11, 0), (3, -1)):
        with pytest.raises(ValueError, match="payload of 10"):
            payload.read(offset, nbytes)


@in_trio
async def test_a_payload_is_read_without_blocking(tmp_path: Path) -> None:
    payload = put(opened(tmp_path), b"0123456789").payload
    assert bytes(await payload.read_soon(3, 4)) == b"3456"
    with pytest.raises(ValueError, match="payload of 10"):
        await payload.read_soon(3, 8)


def test_a_payload_outlives_its_segment(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record = put(journal, b"0123456789")
    journal.finish([record.sequence])
    journal.close()
    assert segments_of(tmp_path) == []
    assert record.payload.read(0, 10) == b"0123456789"


def test_a_file_is_closed_with_the_last_of_its_payloads(tmp_path: Path) -> None:
    def is_open() -> bool:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return any(os.readlink(link).startswith(str(tmp_path)) for link in links if os.path.islink(link))

    journal = opened(tmp_path)
    record = put(journal)
    journal.close()
    del journal
    assert is_open()
    del record
    assert not is_open()


# What is done


def test_what_is_done_is_not_read_any_more(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    records = [put(journal, coords=(n,)) for n in range(9)]
    journal.finish(record.sequence for record in records if record.coords[0] % 3)
    assert [plain(record) for record in contents_of(tmp_path).records] == [plain(record) for record in records[::3]]
    assert journal.live == 3


def test_what_is_done_twice_counts_once(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    first, second = put(journal), put(journal)
    journal.finish([first.sequence, first.sequence])
    journal.finish([first.sequence, 77])
    assert journal.live == 1
    assert [record.sequence for record in contents_of(tmp_path).records] == [second.sequence]


def test_a_replaced_record_stays_until_its_replacement_is_durable(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    old, new, other = put(journal, b"old"), put(journal, b"new"), put(journal, coords=(1,))
    journal.forget(old.sequence, new.sequence)
    assert journal.live == 2
    journal.finish([other.sequence])
    assert [record.sequence for record in contents_of(tmp_path).records] == [old.sequence, new.sequence]
    journal.sync()
    journal.finish([])
    assert [record.sequence for record in contents_of(tmp_path).records] == [new.sequence]


def test_a_replaced_record_goes_with_its_replacement(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    first, second, third, other = (put(journal) for _ in range(4))
    journal.forget(first.sequence, second.sequence)
    journal.forget(second.sequence, third.sequence)
    journal.finish([third.sequence])
    assert [record.sequence for record in contents_of(tmp_path).records] == [other.sequence]


def test_sizes_and_counts_are_those_of_the_files(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=4096)
    records = [put(journal, b"x" * 1000) for _ in range(10)]
    assert journal.nbytes == sum((tmp_path / name).stat().st_size for name in segments_of(tmp_path))
    assert 10_000 < journal.live_nbytes < journal.nbytes
    one = journal.live_nbytes // 10
    journal.finish([records[3].sequence, records[7].sequence])
    assert (journal.live, journal.live_nbytes) == (8, 8 * one)
    assert journal.nbytes == sum((tmp_path / name).stat().st_size for name in segments_of(tmp_path))


def test_a_journal_has_room_up_to_its_size_and_again_when_nothing_is_live(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=4096, max_nbytes=10_000)
    assert journal.has_room(10**9)
    assert not journal.is_full
    records = [put(journal, b"x" * 3000) for _ in range(3)]
    assert journal.has_room(500)
    assert not journal.has_room(1000)
    assert not journal.is_full
    records.append(put(journal, b"x" * 3000))
    assert journal.is_full
    journal.finish(record.sequence for record in records[:2])
    assert not journal.is_full
    journal.finish(record.sequence for record in records[2:])
    assert journal.has_room(10**9)


def test_a_live_record_costs_little_memory_beyond_itself(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    put(journal)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20_000):
        put(journal)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert (after - before) / 20_000 < 50


# Segments


def test_a_full_segment_is_followed_by_another(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=4096)
    for _ in range(5):
        put(journal, b"x" * 1500)
    assert segments_of(tmp_path) == ["00000001.journal", "00000002.journal", "00000003.journal"]
    assert all((tmp_path / name).stat().st_size <= 4096 for name in segments_of(tmp_path))


def test_a_record_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=4096)
    records = [put(journal, b"x" * nbytes) for nbytes in (10, 9000, 10)]
    assert len(segments_of(tmp_path)) == 3
    assert [plain(record) for record in contents_of(tmp_path).records] == [plain(record) for record in records]


def one_per_segment(path: Path, count: int, disk: Syscalls | None = None) -> tuple[WriteAheadLog, list[int]]:
    journal = opened(path, disk, segment_nbytes=300)
    return journal, [put(journal, b"x" * 100).sequence for _ in range(count)]


def test_segments_are_removed_from_the_oldest_on(tmp_path: Path) -> None:
    journal, (first, second, third, fourth) = one_per_segment(tmp_path, 4)
    journal.finish([second, third])
    assert len(segments_of(tmp_path)) == 4
    journal.finish([first])
    assert segments_of(tmp_path) == ["00000004.journal"]
    journal.finish([fourth])
    journal.close()
    assert os.listdir(tmp_path) == []


def test_the_segment_that_is_written_goes_when_it_is_full_and_done(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=4096)
    small, large = put(journal, b"x"), put(journal, b"x" * 5000)
    journal.finish([small.sequence])
    assert segments_of(tmp_path) == ["00000002.journal"]
    journal.finish([large.sequence])
    assert segments_of(tmp_path) == []
    record = put(journal)
    assert [plain(read) for read in contents_of(tmp_path).records] == [plain(record)]


def test_what_is_done_is_durable_before_a_segment_goes_and_each_removal_before_the_next(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal, sequences = one_per_segment(tmp_path, 4, disk)
    journal.sync()
    before = len(disk.calls)
    journal.finish(sequences[:3])
    calls = disk.calls[before:]
    assert [call.name for call in calls] == [
        "pwrite", "sync", "unlink", "sync_directory", "unlink", "sync_directory", "unlink", "sync_directory",
    ]  # fmt: skip
    assert [call.files for call in calls if call.name == "unlink"] == [(f"0000000{n}.journal",) for n in (1, 2, 3)]


def test_finishing_without_removal_is_one_write(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    sequences = [put(journal).sequence for _ in range(100)]
    before = len(disk.calls)
    journal.finish(sequences)
    assert disk.names[before:] == ["pwrite"]
    assert len(disk.calls[-1].data) < 100


def test_numbers_of_segments_grow_while_any_is_there(tmp_path: Path) -> None:
    journal, sequences = one_per_segment(tmp_path, 3)
    journal.finish(sequences[:2])
    journal.close()
    journal, sequences = one_per_segment(tmp_path, 1)
    assert segments_of(tmp_path) == ["00000003.journal", "00000004.journal"]


def test_closing_with_live_records_leaves_them_durable(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    record = put(journal)
    journal.close()
    assert disk.names[-2:] == ["sync", "sync_directory"]
    assert [plain(read) for read in contents_of(tmp_path).records] == [plain(record)]
    with pytest.raises(ReadOnlyError, match="closed"):
        put(journal)


def test_an_unused_journal_leaves_no_trace(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    journal.finish([])
    journal.sync()
    journal.close()
    assert disk.calls == []


# A journal that is opened again


def test_a_journal_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    old = opened(tmp_path, segment_nbytes=4096)
    records = [put(old, b"x" * 1500) for _ in range(5)]
    old.finish([records[0].sequence])
    sizes = {name: (tmp_path / name).stat().st_size for name in segments_of(tmp_path)}
    contents = contents_of(tmp_path)
    assert contents.nbytes == old.nbytes
    disk = LossyDisk(tmp_path)
    journal = WriteAheadLog(descriptor_of(tmp_path), disk, contents)
    assert (journal.live, journal.nbytes, journal.live_nbytes) == (4, old.nbytes, old.live_nbytes)
    record = put(journal)
    assert record.sequence == old.last_sequence + 1
    assert {name: (tmp_path / name).stat().st_size for name in sizes} == sizes
    journal.sync()  # of what the old one never made durable, too
    assert disk.names.count("sync") == len(sizes) + 1
    journal.finish(record.sequence for record in contents.records)
    assert [plain(read) for read in contents_of(tmp_path).records] == [plain(record)]
    assert segments_of(tmp_path) == [f"{len(sizes) + 1:08}.journal"]


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=2000)
    live: list[Put] = []
    for n in range(50):
        live.append(put(journal, bytes([n]) * 300))
        if n % 7 == 0:
            journal.finish([live.pop(0).sequence])
        contents = contents_of(tmp_path)
        assert [plain(record) for record in contents.records] == [plain(record) for record in live]
        assert contents.damage == []


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
    journal = opened(tmp_path, disk)
    first = put(journal)
    disk.during = iter([lambda: put(journal)])
    journal.sync()
    assert (disk.syncs, journal.synced_sequence, journal.last_sequence) == (1, first.sequence, first.sequence + 1)
    journal.sync()
    assert (disk.syncs, journal.synced_sequence) == (2, first.sequence + 1)
    journal.sync()
    assert disk.syncs == 2


def test_a_segment_that_goes_while_a_sync_is_under_way_is_not_missed(tmp_path: Path) -> None:
    disk = HookedDisk()
    journal, _ = one_per_segment(tmp_path, 2, disk)
    other = descriptor_of(tmp_path)
    segment = journal._segments[0]

    def remove() -> None:
        segment.is_removed = True
        os.unlink("00000001.journal", dir_fd=other.fd)

    disk.during = iter([remove])
    journal.sync()
    journal.sync()
    assert not journal.is_failed


def test_a_sync_makes_new_names_durable_and_old_ones_not_again(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    for _ in range(3):
        put(journal)
        journal.sync()
    assert [name for name in disk.names if name.startswith("sync")] == ["sync", "sync_directory", "sync", "sync"]


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_after_a_failed_sync_nothing_is_taken_any_more(tmp_path: Path, call: str) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    record = put(journal)
    disk.faults[len(disk.calls) + ["sync", "sync_directory"].index(call)] = Fault(
        OSError(errno.EIO, "Input/output error")
    )
    with pytest.raises(StoreError, match="could not be made durable: Input/output error"):
        journal.sync()
    assert disk.names[-1] == call
    before = len(disk.calls)
    for use in (journal.sync, lambda: put(journal), lambda: journal.finish([record.sequence])):
        with pytest.raises(ReadOnlyError, match="could not be made durable"):
            use()
    journal.close()
    assert len(disk.calls) == before
    assert journal.is_failed
    assert journal.synced_sequence == 0
    assert record.payload.read(0, 5) == b"bytes"
    assert segments_of(tmp_path) == ["00000001.journal"]


# A full disk


def full(written: int = 0, number: int = errno.ENOSPC) -> Fault:
    return Fault(OSError(number, os.strerror(number)), written)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("written", [0, 20, 150])
def test_a_full_disk_fails_one_append_and_no_more(tmp_path: Path, number: int, written: int) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    first = put(journal, b"first")
    size = journal.nbytes
    disk.faults[len(disk.calls)] = full(written, number)
    with pytest.raises(NoSpaceError, match=f"no room for the journal in {tmp_path}"):
        put(journal, b"x" * 100)
    assert journal.nbytes == size == (tmp_path / "00000001.journal").stat().st_size
    second = put(journal, b"second")
    contents = contents_of(tmp_path)
    assert [plain(record) for record in contents.records] == [plain(first), plain(second)]
    assert contents.damage == []


def test_what_cannot_be_cut_off_again_is_overwritten_and_never_read(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    first = put(journal, b"first")
    erases = [Erase(0, "a", (n,), b"f" * 16, None, 1) for n in range(20)]
    disk.faults[len(disk.calls)] = full(written=1000)  # ten whole records and more
    disk.faults[len(disk.calls) + 1] = full(number=errno.EIO)
    with pytest.raises(NoSpaceError):
        journal.append_all(erases)
    for content in (b"second", b"x" * 61):
        put(journal, content)
    payloads = [plain(record)[1] for record in contents_of(tmp_path).records if isinstance(record, Put)]
    assert payloads == [plain(first)[1], b"second", b"x" * 61]
    assert [type(record) for record in contents_of(tmp_path).records] == [Put] * 3


@pytest.mark.parametrize("call", [0, 1], ids=["create", "header"])
def test_a_segment_that_cannot_be_made_is_tried_again(tmp_path: Path, call: int) -> None:
    disk = LossyDisk(tmp_path, {call: full(written=5)})
    journal = opened(tmp_path, disk)
    with pytest.raises(NoSpaceError):
        put(journal)
    assert os.listdir(tmp_path) == []
    record = put(journal)
    assert [plain(read) for read in contents_of(tmp_path).records] == [plain(record)]


def test_a_disk_that_is_too_full_to_note_what_is_done_is_emptied_all_the_same(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal, sequences = one_per_segment(tmp_path, 4, disk)
    disk.faults[len(disk.calls)] = full(written=30)
    journal.finish(sequences[:2])
    assert segments_of(tmp_path) == ["00000003.journal", "00000004.journal"]
    assert not journal.is_failed
    assert journal.live == 2


def test_what_was_not_noted_as_done_is_noted_with_the_next(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    first, second, third = (put(journal).sequence for _ in range(3))
    disk.faults[len(disk.calls)] = full()
    journal.finish([first])
    journal.finish([second])
    assert [record.sequence for record in contents_of(tmp_path).records] == [third]


def test_another_failure_to_write_is_said_and_the_journal_goes_on(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal = opened(tmp_path, disk)
    put(journal, b"first")
    disk.faults[len(disk.calls)] = full(written=9, number=errno.EIO)
    with pytest.raises(StoreError, match=os.strerror(errno.EIO)):
        put(journal, b"lost")
    put(journal, b"second")
    assert [plain(record)[1] for record in contents_of(tmp_path).records] == [b"first", b"second"]


def test_a_segment_that_cannot_be_removed_is_tried_again(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path)
    journal, sequences = one_per_segment(tmp_path, 3, disk)
    journal.sync()
    disk.faults[len(disk.calls) + 2] = full(number=errno.EBUSY)
    with pytest.raises(StoreError, match=os.strerror(errno.EBUSY)):
        journal.finish(sequences[:2])
    assert disk.names[-1] == "unlink"
    assert len(segments_of(tmp_path)) == 3
    journal.finish([])
    assert segments_of(tmp_path) == ["00000003.journal"]


# Somebody else at the files


def test_a_journal_that_was_removed_is_noticed_by_an_append(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.mkdir()
    journal = opened(path)
    record = put(journal)
    shutil.rmtree(path)
    with pytest.raises(StoreError, match=f"the journal in {path} has vanished"):
        put(journal)
    assert journal.is_failed
    for use in (journal.sync, lambda: put(journal)):
        with pytest.raises(ReadOnlyError, match="has vanished"):
            use()
    assert record.payload.read(0, 5) == b"bytes"


def test_a_journal_that_was_removed_is_noticed_by_a_sync(tmp_path: Path) -> None:
    journal, _ = one_per_segment(tmp_path, 3)
    journal.sync()
    (tmp_path / "00000001.journal").unlink()
    with pytest.raises(StoreError, match="has vanished"):
        journal.sync()
    assert journal.is_failed


def test_an_empty_journal_that_was_removed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.mkdir()
    journal = opened(path)
    path.rmdir()
    with pytest.raises(StoreError, match="has vanished"):
        put(journal)
    assert journal.is_failed


def test_a_segment_that_was_cut_is_noticed(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record = put(journal)
    os.truncate(tmp_path / "00000001.journal", 60)
    with pytest.raises(StoreError, match="cut short by another program"):
        put(journal)
    with pytest.raises(StoreError, match="cut short by another program"):
        record.payload.read(0, 5)


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    (tmp_path / "00000001.journal").write_bytes(b"another's")
    with pytest.raises(StoreError):
        put(journal)
    put(journal)
    assert (tmp_path / "00000001.journal").read_bytes() == b"another's"
    assert "00000002.journal" in segments_of(tmp_path)
