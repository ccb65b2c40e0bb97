"""The journal: what is read is what was appended, or nothing; tests/crash stops it at any call."""

import errno
import os
import random
import shutil
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.dataset.journal import records
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.reading import Damage, JournalContents, read_journal
from shardfs.dataset.journal.records import (
    CLASSES,
    READABLE,
    RECORD_NBYTES,
    VERSION,
    Checkpoint,
    Erase,
    Put,
    Shrink,
    UndoRecord,
    pack_meta,
    pack_record,
    salt_of,
)
from shardfs.errors import NoSpaceError, StoreError
from shardfs.format.codecs import crc32c
from shardfs.stores.base import Buffer, Content, Descriptor
from shardfs.stores.local.syscalls import WALK, Syscalls
from shardfs.stores.memory import MemoryContent
from tests.support.lossy_disk import Fault, LossyDisk, QuickDisk

MIB = 2**20


def descriptor_of(path: Path) -> Descriptor:
    return Descriptor(os.open(path, WALK))


def opened(path: Path, disk: Syscalls | None = None, **options: int) -> Journal:
    return Journal(descriptor_of(path), disk or QuickDisk(), **options)


def contents_of(path: Path) -> JournalContents:
    return read_journal(descriptor_of(path))


def put(log: Journal, content: bytes | Content = b"bytes", *, coords: tuple[int, ...] | None = None) -> Put:
    """Append new bytes of a chunk, another one each time unless *coords* are given."""
    coords = (log.last_sequence + 100,) if coords is None else coords
    return log.append(new_put(coords), in_memory(content) if isinstance(content, bytes) else content)


def in_memory(data: bytes) -> Content:
    return MemoryContent(memoryview(data))


def new_put(coords: tuple[int, ...] = (0,), **fields: Any) -> Put:
    return replace(Put(0, "image/a", coords, b"f" * 16, None, 1, 0o644, 0, 0), **fields)


def new_undo() -> UndoRecord:
    return UndoRecord(0, "a", (1, 2), "a/c/1/2", "", 4, 100, 200, 7, b"o" * 16, b"n" * 16)


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
undo_fields = (st.just(0), names, coordinates, names, names, uint63, uint63, uint63, uint32, hashes, hashes)
undos = st.tuples(st.builds(UndoRecord, *undo_fields), st.just(b""))


@pytest.mark.slow
@given(st.lists(puts | erases | shrinks | undos, max_size=8), st.sampled_from([64, 300, 2**20]))
def test_what_is_appended_is_read_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, bytes]], segment_nbytes: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    log = opened(path, segment_nbytes=segment_nbytes)
    for record, payload in steps:
        log.append(replace(record), in_memory(payload))
    contents = contents_of(path)
    numbered = [(replace(record, sequence=number), payload) for number, (record, payload) in enumerate(steps, 1)]
    latest = {record.subject: plain(record, payload) for record, payload in numbered}
    expected = [plain(*each) for each in numbered if plain(*each) == latest[each[0].subject]]
    assert [plain(record) for record in contents.records] == expected
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


def test_of_several_records_of_a_chunk_the_last_one_counts_even_when_it_is_released(tmp_path: Path) -> None:
    log = opened(tmp_path)
    old, new, other = put(log, b"old", coords=(0,)), put(log, b"new", coords=(0,)), put(log, b"other")
    of_another = log.append(new_put(fingerprint=b"g" * 16))
    for released, kept in (([], [new, other, of_another]), ([old, new], [other, of_another])):
        log.release(released)
        assert log.nlive == len(kept)
        assert said_by(tmp_path) == [plain(record) for record in kept]


def test_segments_go_from_the_oldest_on(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_nbytes=300)
    first, second, third, fourth = (put(log, b"x" * 100) for _ in range(4))
    log.release([second, third])
    assert numbers_of(tmp_path) == [1, 2, 3, 4]
    log.release([first])
    assert numbers_of(tmp_path) == [4]
    log.release([fourth])
    log.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_old_record_keeps_no_more_than_itself(tmp_path: Path, is_replaced: bool) -> None:
    """Records of all kinds in several segments, the oldest of which is carried forward again and again."""
    log = opened(tmp_path, segment_nbytes=4096)
    shrink = log.append(Shrink(0, "image/a", (4,)))
    first, large = put(log, b"first", coords=(1,)), put(log, os.urandom(2 * MIB), coords=(2,))
    erase = log.append(Erase(0, "image/a", (3,), b"f" * 16, (5, 6), 1))
    record = log.append(new_undo())
    released = [put(log, os.urandom(1500)) for _ in range(6)]
    log.sync()
    log.release(released)
    for _ in range(log.nsegments):
        log.carry_forward()
    assert 1 not in numbers_of(tmp_path)
    assert log.dead_nbytes < 700 < log.live_nbytes
    kept = [shrink, first, large, erase, record]
    if is_replaced:
        new = put(log, b"new", coords=(1,))
        log.carry_forward()
        kept = [shrink, large, erase, record, new]
    for number in range(len(kept) + 1):
        contents = contents_of(tmp_path)
        assert sorted(map(unnumbered, contents.records)) == sorted(map(unnumbered, kept[number:]))
        assert contents.damage == []
        log.release(kept[number : number + 1])
    Journal(descriptor_of(tmp_path), QuickDisk(), contents_of(tmp_path)).close()
    assert segments_of(tmp_path) == []


@pytest.mark.slow
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
            log.release(record for record, _ in published[n - 49 : n])
            log.carry_forward()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    kept = [record for n, (record, _) in enumerate(published) if n % 50 == 0 or n > 950]
    assert sorted(map(unnumbered, contents_of(tmp_path).records)) == sorted(map(unnumbered, kept))


def test_what_comes_while_a_sync_is_under_way_is_not_counted_as_durable(tmp_path: Path) -> None:
    class Disk(Syscalls):
        def sync(self, fd: int) -> None:
            synced.append(fd)
            if len(synced) == 1:
                put(log)

    synced: list[int] = []
    log = opened(tmp_path, Disk())
    first = put(log)
    log.sync()
    assert (len(synced), log.synced_sequence, log.last_sequence) == (1, first.sequence, first.sequence + 1)
    for _ in range(2):
        log.sync()
        assert (len(synced), log.synced_sequence) == (2, first.sequence + 1)


# A full disk, and other failures


def full(written: int = 0, number: int = errno.ENOSPC) -> Fault:
    return Fault(OSError(number, os.strerror(number)), written)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("written", [0, 20, 150, 1000, 10_000])
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
    message = os.strerror(number) if number == errno.EIO else f"no space for the journal in {tmp_path}"
    with pytest.raises(StoreError if number == errno.EIO else NoSpaceError, match=message):
        put(log, b"y" * 2000)
    assert log.nbytes == size
    records = [first, put(log, b"second"), put(log, b"x" * 61)]
    contents = contents_of(tmp_path)
    found = [record for record in contents.records if record.payload.nbytes < 2000]  # what failed may be there
    assert [plain(record) for record in found] == [plain(record) for record in records]
    assert contents.damage == []


def test_a_segment_that_was_cut_is_noticed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    record = put(log)
    os.truncate(tmp_path / segments_of(tmp_path)[0], 60)
    with pytest.raises(StoreError, match="cut short by another program"):
        put(log)
    with pytest.raises(StoreError, match="cut short by another program"):
        record.payload.read(0, 5)


@pytest.mark.parametrize("version", READABLE)
def test_records_of_every_version_that_is_read_say_what_they_said(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "VERSION", version)
    undo = UndoRecord(9, "a", (1,), "a/c/1", "", 4, 100, 200, 5, b"old", b"new", 6 if version > 6 else -1)
    for record in (
        Put(9, "a", (1, 2), b"f", (3, 4), 5, 0o644, 6, 7),
        Erase(9, "a", (1, 2), b"f", None, 5),
        Shrink(9, "a", (4, 5)),
        undo,
        replace(undo, first_sequence=3 if version > 7 else 0),
        Put(9, "a", (1, 2), b"f", None, 5, 0o644, 6, 7, first_sequence=3 if version > 8 else 0),
    ):
        assert records.unpack(record.KIND, 9, pack_meta(record), record.payload, version) == record


# Logs that are damaged or torn


NAME = f"100000001123456789.v{VERSION}.journal"
SALT = salt_of(NAME)


class Written:
    """A journal of two segments with records of every kind, and where each of them lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        log = opened(path, segment_nbytes=1100)
        log.append(new_put(superseded=(5, 6)), in_memory(bytes(range(100))))
        first = put(log, b"released")
        log.append(Erase(0, "b", (1, 2), b"g" * 16, (7, 8), 9))
        log.append(new_undo())
        log.append(Shrink(0, "a", (5, 0)))
        second = put(log, b"x" * 500, coords=(7,))
        put(log, b"the last", coords=(8,))
        put(log, b"", coords=(9,))
        log.release([first, second])
        assert len(segments_of(path)) == 2
        self.files = {name: (path / name).read_bytes() for name in segments_of(path)}
        contents = contents_of(path)
        assert contents.damage == []
        self.done = {first.sequence, second.sequence}
        self.live = {record.sequence: plain(record) for record in contents.records}
        self.places = dict(places_of(self.files))
        assert len(self.places) == 9

    def damaged(self, path: Path, name: str, data: bytes) -> Path:
        for other, content in self.files.items():
            (path / other).write_bytes(data if other == name else content)
        return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("written"))


def places_of(files: dict[str, bytes]) -> Iterator[tuple[int, tuple[str, int, int]]]:
    """Yield sequences with the segment, begin and end of their records, by the format's description."""
    for name, data in files.items():
        at = 0
        while at < len(data):
            sequence, payload_nbytes, meta_nbytes = struct.unpack_from("<QQI", data, at + 16)
            end = at + RECORD_NBYTES + meta_nbytes + payload_nbytes
            yield sequence, (name, at, end)
            at = end


def check(path: Path, written: Written, lost: set[int]) -> list[Damage]:
    """Read: nothing is garbage, and nothing is missing but *lost*."""
    contents = contents_of(path)
    sequences = [record.sequence for record in contents.records]
    assert sequences == sorted(sequences)
    for record in contents.records:
        if record.sequence in written.live:
            assert plain(record) == written.live[record.sequence]
        else:
            assert record.sequence in written.done  # what said that they are done is what was lost
            assert lost - written.live.keys() - written.done
    assert written.live.keys() - lost <= set(sequences)
    return contents.damage


def hit(written: Written, name: str, begin: int, end: int) -> set[int]:
    return {
        n for n, (segment, start, stop) in written.places.items() if segment == name and start < end and begin < stop
    }


@pytest.mark.slow
@given(st.data())
def test_overwritten_ranges_cost_no_more_than_their_records(written: Written, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(written.files)))
    content = written.files[name]
    begin = data.draw(st.integers(0, len(content) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=400) | st.integers(1, 1000).map(bytes))
    overwritten = (content[:begin] + garbage + content[begin + len(garbage) :])[: len(content)]
    path = written.path.parent / "overwritten"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    written.damaged(path, name, overwritten)
    check(path, written, hit(written, name, begin, begin + len(garbage)))


@pytest.mark.slow
def test_a_segment_may_be_torn_anywhere(written: Written, tmp_path: Path) -> None:
    for name, data in written.files.items():
        for length in (*range(100), *range(100, len(data), 3)):
            path = written.damaged(tmp_path, name, data[:length])
            damage = check(path, written, hit(written, name, length, len(data)))
            assert damage == []


def test_a_payload_that_holds_records_is_not_taken_for_records(tmp_path: Path) -> None:
    """Though the record around them is damaged."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    other, log = opened(inner), opened(outer)
    for _ in range(3):
        put(other, b"forged")
    put(log, (inner / segments_of(inner)[0]).read_bytes())
    put(log, b"other")
    segment = outer / segments_of(outer)[0]
    data = segment.read_bytes()
    segment.write_bytes(data[:20] + bytes([255 - data[20]]) + data[21:])
    assert [said[1] for said in said_by(outer)] == [b"other"]
    assert contents_of(outer).damage


@pytest.mark.parametrize("is_released", [True, False])
def test_where_the_latest_record_of_a_chunk_is_damaged_an_earlier_one_does_not_take_its_place(
    tmp_path: Path, is_released: bool
) -> None:
    log = opened(tmp_path)
    first, latest, other = put(log, b"1", coords=(1,)), put(log, b"latest", coords=(1,)), put(log, b"2", coords=(2,))
    if is_released:
        log.release([latest])
    (name,) = segments_of(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes().replace(b"latest", b"l4test"))
    contents = contents_of(tmp_path)
    assert [found.reason for found in contents.damage] == ["the bytes of chunk (1,) of 'image/a' are damaged"]
    assert [record.sequence for record in contents.records] == [first.sequence, other.sequence][is_released:]
    assert contents.outdated == (set() if is_released else {first.subject})


def test_a_damaged_segment_is_kept_under_another_name(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_nbytes=300)
    for _ in range(3):
        put(log, b"x" * 100)
    name = min(segments_of(tmp_path))
    data = bytearray((tmp_path / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / name).write_bytes(data)
    contents = contents_of(tmp_path)
    assert len(contents.records) == 2
    log = Journal(descriptor_of(tmp_path), QuickDisk(), contents)
    log.release(contents.records)
    log.close()
    kept = name.replace("journal", "damaged")
    assert os.listdir(tmp_path) == [kept]
    assert (tmp_path / kept).read_bytes() == data
    again = contents_of(tmp_path)
    assert again.damage == [Damage(kept, 0, len(data), "an earlier mount could not read all of it")]
    assert not again.records


@pytest.mark.parametrize("is_link", [True, False], ids=["link", "pipe"])
def test_what_is_no_file_is_no_segment(tmp_path: Path, is_link: bool) -> None:
    path = tmp_path / "journal"
    path.mkdir()
    record = put(opened(path))
    name = path / NAME.replace("1123", "2123")
    if is_link:
        (path / segments_of(path)[0]).rename(tmp_path / "elsewhere")
        name.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(name)
    contents = contents_of(path)
    assert contents.damage == [Damage(name.name, 0, 0, "is not a regular file")]
    assert [plain(read) for read in contents.records] == ([] if is_link else [plain(record)])


# Logs that somebody made to do harm


def segment_of(path: Path, *records: bytes, nbytes: int = 0) -> Path:
    (path / NAME).write_bytes(b"".join(records))
    if nbytes:
        os.truncate(path / NAME, nbytes)
    return path


def record_of(sequence: int, kind: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    return pack_record(SALT, sequence, kind, meta, len(payload), crc32c(payload)) + payload


def ranges(*bounds: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", *pair) for pair in bounds)


def shrink_of(sequence: int) -> bytes:
    """A record that nothing replaces."""
    return record_of(sequence, Shrink.KIND, pack_meta(Shrink(0, "a", (sequence,))))


SHRINK = pack_meta(Shrink(0, "a", (5,)))
UNDO = pack_meta(new_undo())


LENGTHS = [
    pack_record(SALT, 2, Put.KIND, b"", 2**63, 0),
    pack_record(SALT, 2, Checkpoint.KIND, b"", 2**40, 0),
    pack_record(SALT, 2, Put.KIND, b"", 2**64 - 1, 0),
    SALT + struct.pack("<IIQQIB3x", 0, 0, 2, 0, 2**32 - 1, Put.KIND),
]


@pytest.mark.parametrize("record", LENGTHS)
def test_huge_numbers_cost_no_memory(tmp_path: Path, record: bytes) -> None:
    path = segment_of(tmp_path, record_of(1, Shrink.KIND, SHRINK), record, nbytes=64 * MIB)
    contents_of(path)  # what is imported or cached the first time
    tracemalloc.start()
    contents = contents_of(path)
    assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    tracemalloc.stop()
    assert contents.records == [Shrink(1, "a", (5,))]
    put(opened(path))  # there are numbers left


@pytest.mark.parametrize("name", ["199999999000000000.v6.journal", NAME])
def test_numbers_behind_which_nothing_could_be_read_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pack_record(salt_of(name), 2**62 - (name != NAME), Shrink.KIND, SHRINK, 0, 0))
    with pytest.raises(StoreError, match=f"the journal in {tmp_path} .* move it away"):
        opened(tmp_path)


@pytest.mark.parametrize("bounds", [(1, 2**60), (0, 2), (5, 3), (1, 11), (2**64 - 1, 2**64 - 1), (3, 3)])
def test_a_checkpoint_of_what_is_none_releases_nothing_it_should_not(tmp_path: Path, bounds: tuple[int, int]) -> None:
    shrinks = [shrink_of(n) for n in range(1, 10)]
    contents = contents_of(segment_of(tmp_path, *shrinks, record_of(10, Checkpoint.KIND, b"", ranges(bounds))))
    is_sound = bounds[0] < bounds[1] <= 10
    assert len(contents.records) == (8 if is_sound else 9)
    assert len(contents.damage) == (not is_sound)


@pytest.mark.slow
def test_naming_the_same_records_over_and_over_costs_no_more_than_once(tmp_path: Path) -> None:
    count = 20_000
    shrinks = [shrink_of(n) for n in range(1, count)]
    dones = [record_of(count + n, Checkpoint.KIND, b"", ranges((1, count))) for n in range(count)]
    dones.append(record_of(2 * count, Checkpoint.KIND, b"", ranges((5, 6))))
    contents = contents_of(segment_of(tmp_path, *shrinks, *dones))  # in no time, not in one for each pair
    assert contents.records == []
    assert contents.damage == []


@pytest.mark.parametrize("named", [b"x", bytes(16 * (2**20 + 1))])
def test_a_checkpoint_that_is_no_list_of_ranges_is_damage(tmp_path: Path, named: bytes) -> None:
    contents = contents_of(segment_of(tmp_path, shrink_of(1), record_of(8, Checkpoint.KIND, b"", named)))
    assert (len(contents.records), len(contents.damage)) == (1, 1)


def test_a_segment_full_of_false_beginnings_is_given_up(tmp_path: Path) -> None:
    path = segment_of(tmp_path, shrink_of(1), SALT * 4 * MIB, shrink_of(2))
    contents = contents_of(path)
    assert contents.records == [Shrink(1, "a", (1,))]
    assert len(contents.damage) == 1


def test_records_out_of_order_are_damage(tmp_path: Path) -> None:
    records = [shrink_of(n) for n in (1, 5, 3, 5, 6)]
    contents = contents_of(segment_of(tmp_path, *records))
    assert [record.sequence for record in contents.records] == [1, 5, 6]
    assert [found.reason for found in contents.damage] == ["record 3 is out of order", "record 5 is out of order"]


@pytest.mark.slow
@given(st.sampled_from(sorted(CLASSES)), st.binary(max_size=200), st.binary(max_size=100))
def test_no_record_whatever_makes_reading_fail(written: Written, kind: int, meta: bytes, payload: bytes) -> None:
    path = written.path.parent / "made"
    path.mkdir(exist_ok=True)
    contents = contents_of(segment_of(path, record_of(7, kind, meta, payload), record_of(8, Shrink.KIND, SHRINK)))
    assert contents.records[-1] == Shrink(8, "a", (5,))
    assert len(contents.records) + len(contents.damage) == 2 or kind == Checkpoint.KIND
