"""Logs that are damaged, torn or hostile: what is read is what was written, or nothing."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.reading import Damage
from shardfs.dataset.wal.records import (
    HEADER_NBYTES,
    RECORD_NBYTES,
    Erase,
    Kind,
    Shrink,
    UndoRecord,
    pack_header,
    pack_meta,
    pack_record,
    salt_of,
    unpack_ranges,
)
from shardfs.errors import CorruptionError
from shardfs.format.codecs import crc32c
from tests.dataset.test_log import (
    contents_of,
    descriptor_of,
    in_memory,
    new_put,
    opened,
    plain,
    put,
    said_by,
    segments_of,
    undo,
)
from tests.support.lossy_disk import QuickDisk

MIB = 2**20
NAME = "100000001123456789.journal"
SALT = salt_of(NAME)


class Written:
    """A journal of two segments with records of every kind, and where each of them lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        log = opened(path, segment_nbytes=1100)
        log.append(new_put(superseded=(5, 6)), in_memory(bytes(range(100))))
        first = put(log, b"replaced").sequence
        log.append(Erase(0, "b", (1, 2), b"g" * 16, (7, 8), 9))
        log.append(undo([])[0], in_memory(ranges((1, 3))))
        log.append(Shrink(0, "a", (5, 0)))
        second = put(log, b"x" * 500, coords=(7,)).sequence
        put(log, b"the last", coords=(8,))
        put(log, b"", coords=(9,))
        log.release([first, second])
        assert len(segments_of(path)) == 2
        self.files = {name: (path / name).read_bytes() for name in segments_of(path)}
        contents = contents_of(path)
        assert contents.damage == []
        self.done = {first, second}
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
        at = HEADER_NBYTES
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


@given(st.data())
def test_overwritten_ranges_cost_no_more_than_their_records(written: Written, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(written.files)))
    content = written.files[name]
    begin = data.draw(st.integers(HEADER_NBYTES, len(content) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=400) | st.integers(1, 1000).map(bytes))
    overwritten = (content[:begin] + garbage + content[begin + len(garbage) :])[: len(content)]
    path = written.path.parent / "overwritten"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    written.damaged(path, name, overwritten)
    check(path, written, hit(written, name, begin, begin + len(garbage)))


def test_a_segment_may_be_torn_anywhere(written: Written, tmp_path: Path) -> None:
    for name, data in written.files.items():
        for length in (*range(HEADER_NBYTES + 100), *range(HEADER_NBYTES + 100, len(data), 3)):
            path = written.damaged(tmp_path, name, data[:length])
            damage = check(path, written, hit(written, name, length, len(data)))
            assert damage == []


@pytest.mark.parametrize("nbytes", [1, 25, 30])
def test_a_payload_that_holds_records_is_not_taken_for_records(tmp_path: Path, nbytes: int) -> None:
    """Be it that the header of the record around them is damaged, or the beginning of the segment is lost."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    other, log = opened(inner), opened(outer)
    for n in range(3):
        put(other, b"forged", coords=(n,))
    put(log, (inner / segments_of(inner)[0]).read_bytes())
    put(log, b"other")
    segment = outer / segments_of(outer)[0]
    data, begin = segment.read_bytes(), HEADER_NBYTES + 20 if nbytes == 1 else 0
    segment.write_bytes(
        data[:begin] + bytes(255 - byte for byte in data[begin : begin + nbytes]) + data[begin + nbytes :]
    )
    assert [said[1] for said in said_by(outer)] == [b"other"]
    assert contents_of(outer).damage


@pytest.mark.parametrize("nbytes", [25, 30, 100])
def test_a_lost_beginning_of_a_segment_costs_no_more_than_its_records(
    written: Written, tmp_path: Path, nbytes: int
) -> None:
    for name, content in written.files.items():
        data = os.urandom(nbytes) + content[nbytes:]
        damage = check(written.damaged(tmp_path, name, data), written, hit(written, name, 0, nbytes))
        assert damage[0] == Damage(name, 0, HEADER_NBYTES, "the header of the segment is damaged")


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
    log = WriteAheadLog(descriptor_of(tmp_path), QuickDisk(), contents)
    log.release(record.sequence for record in contents.records)
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
    (path / NAME).write_bytes(pack_header() + b"".join(records))
    if nbytes:
        os.truncate(path / NAME, nbytes)
    return path


def record_of(sequence: int, kind: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    return pack_record(SALT, sequence, kind, meta, len(payload), crc32c(payload)) + payload


def ranges(*bounds: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", *pair) for pair in bounds)


SHRINK = pack_meta(Shrink(0, "a", (5,)))
UNDO = pack_meta(undo([])[0])


LENGTHS = [
    pack_record(SALT, 2, Kind.PUT, b"", 2**63, 0),
    pack_record(SALT, 2, Kind.CHECKPOINT, b"", 2**40, 0),
    pack_record(SALT, 2, Kind.PUT, b"", 2**64 - 1, 0),
    SALT + struct.pack("<IIQQIB3x", 0, 0, 2, 0, 2**32 - 1, Kind.PUT),
    pack_record(SALT, 2**64 - 1, Kind.SHRINK, SHRINK, 0, 0),
]


@pytest.mark.parametrize("record", LENGTHS)
def test_huge_numbers_cost_no_memory(tmp_path: Path, record: bytes) -> None:
    path = segment_of(tmp_path, record_of(1, Kind.SHRINK, SHRINK), record, nbytes=64 * MIB)
    contents_of(path)  # what is imported or cached the first time
    tracemalloc.start()
    contents = contents_of(path)
    assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    tracemalloc.stop()
    assert contents.records == [Shrink(1, "a", (5,))]
    put(opened(path))  # there are numbers left


@pytest.mark.parametrize("bounds", [(1, 2**60), (0, 2), (5, 3), (1, 11), (2**64 - 1, 2**64 - 1), (3, 3)])
def test_a_checkpoint_of_what_is_none_releases_nothing_it_should_not(tmp_path: Path, bounds: tuple[int, int]) -> None:
    shrinks = [record_of(n, Kind.SHRINK, SHRINK) for n in range(1, 10)]
    contents = contents_of(segment_of(tmp_path, *shrinks, record_of(10, Kind.CHECKPOINT, b"", ranges(bounds))))
    is_sound = bounds[0] < bounds[1] <= 10
    assert len(contents.records) == (8 if is_sound else 9)
    assert len(contents.damage) == (not is_sound)


def test_naming_the_same_records_over_and_over_costs_no_more_than_once(tmp_path: Path) -> None:
    count = 20_000
    shrinks = [record_of(n, Kind.SHRINK, SHRINK) for n in range(1, count)]
    dones = [record_of(count + n, Kind.CHECKPOINT, b"", ranges((1, count))) for n in range(count)]
    contents = contents_of(segment_of(tmp_path, *shrinks, *dones))  # in no time, not in one for each pair
    assert contents.records == []
    assert contents.damage == []


def test_an_undo_record_that_names_more_than_there_can_be_is_not_believed(tmp_path: Path) -> None:
    for named in (ranges((1, 9)), ranges((3, 5), (2, 4)), b"x", bytes(16 * (2**20 + 1))):
        [found] = contents_of(segment_of(tmp_path, record_of(8, Kind.UNDO, UNDO, named))).records
        assert isinstance(found, UndoRecord)
        with pytest.raises(CorruptionError, match="record 8 of the journal"):
            unpack_ranges(found)


def test_a_segment_full_of_false_beginnings_is_given_up(tmp_path: Path) -> None:
    path = segment_of(tmp_path, record_of(1, Kind.SHRINK, SHRINK), SALT * 4 * MIB, record_of(2, Kind.SHRINK, SHRINK))
    contents = contents_of(path)
    assert contents.records == [Shrink(1, "a", (5,))]
    assert len(contents.damage) == 1


def test_records_out_of_order_are_damage(tmp_path: Path) -> None:
    records = [record_of(n, Kind.SHRINK, SHRINK) for n in (1, 5, 3, 5, 6)]
    contents = contents_of(segment_of(tmp_path, *records))
    assert [record.sequence for record in contents.records] == [1, 5, 6]
    assert [found.reason for found in contents.damage] == ["record 3 is out of order", "record 5 is out of order"]


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_whatever_make_reading_fail(written: Written, noise: bytes, with_header: bool) -> None:
    path = written.path.parent / "noise"
    path.mkdir(exist_ok=True)
    (path / NAME).write_bytes((pack_header() if with_header else b"") + noise)
    assert contents_of(path).records == []


@given(st.sampled_from(sorted(Kind)), st.binary(max_size=200), st.binary(max_size=100))
def test_no_record_whatever_makes_reading_fail(written: Written, kind: int, meta: bytes, payload: bytes) -> None:
    path = written.path.parent / "made"
    path.mkdir(exist_ok=True)
    contents = contents_of(segment_of(path, record_of(7, kind, meta, payload), record_of(8, Kind.SHRINK, SHRINK)))
    assert contents.records[-1] == Shrink(8, "a", (5,))
    assert len(contents.records) + len(contents.damage) == 2 or kind == Kind.CHECKPOINT
