"""Journals that are damaged, torn or hostile: what is read is what was written, or nothing."""

from __future__ import annotations

import os
import random
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
from shardfs.dataset.wal.records import Erase, Kind, Put, Shrink
from shardfs.dataset.wal.segments import HEADER_NBYTES, RECORD_NBYTES, VERSION, checksum, pack_header, pack_record
from shardfs.errors import CorruptionError, StoreError
from shardfs.stores.local.syscalls import Syscalls
from tests.dataset.test_journal import contents_of, descriptor_of, intend, opened, plain, put, segments_of

MIB = 2**20
SALT = b"saltsalt"


class Written:
    """A journal of two segments with records of every kind, and where each of them lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        journal = opened(path, segment_nbytes=1100)
        put(journal, bytes(range(100)), superseded=(5, 6))
        first = put(journal, b"replaced").sequence
        journal.append(Erase(0, "b", (1, 2), b"g" * 16, (7, 8), 9))
        intend(journal, [1, 2])
        journal.append(Shrink(0, "a", (5, 0)))
        second = put(journal, b"x" * 500, coords=(7,)).sequence
        put(journal, b"the last", coords=(8,))
        put(journal, b"", coords=(9,))
        journal.finish([first, second])
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


def some_of(nbytes: int, chance: random.Random) -> list[int]:
    """Places in a segment: all in longer runs, else the first ones, and a third of the others."""
    if os.environ.get("SHARDFS_LONG"):
        return list(range(nbytes))
    first = min(nbytes, HEADER_NBYTES + 200)
    return [*range(first), *(at for at in range(first, nbytes) if chance.random() < 1 / 3)]


def test_a_flipped_bit_costs_no_more_than_its_record(written: Written, tmp_path: Path) -> None:
    chance = random.Random(1)
    for name, data in written.files.items():
        for at in some_of(len(data), chance):
            flipped = bytearray(data)
            flipped[at] ^= 1 << chance.randrange(8)
            path = written.damaged(tmp_path, name, bytes(flipped))
            lost = hit(written, name, at, at + 1)
            damage = check(path, written, lost)
            assert [found.segment for found in damage] == [name]
            assert damage[0].offset <= at < damage[0].offset + damage[0].nbytes


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


@given(st.data())
def test_bytes_that_went_or_came_harm_nothing_before_them_and_no_other_segment(written: Written, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(written.files)))
    content = written.files[name]
    begin = data.draw(st.integers(HEADER_NBYTES, len(content) - 1))
    end = data.draw(st.integers(begin, min(len(content), begin + 300)))
    path = written.path.parent / "moved"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    written.damaged(path, name, content[:begin] + data.draw(st.binary(max_size=300)) + content[end:])
    check(path, written, hit(written, name, begin, len(content)))


def test_a_segment_may_be_torn_anywhere(written: Written, tmp_path: Path) -> None:
    for name, data in written.files.items():
        for length in some_of(len(data), random.Random(2)):
            path = written.damaged(tmp_path, name, data[:length])
            damage = check(path, written, hit(written, name, length, len(data)))
            ends = {HEADER_NBYTES, 0} | {end for segment, _, end in written.places.values() if segment == name}
            assert len(damage) == (length not in ends)
            assert all(found.is_torn and found.offset + found.nbytes == length for found in damage)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    put(journal, b"x" * 100, path="image/ä", coords=(1, 22))
    put(journal, b"other")
    data = bytearray((tmp_path / "00000001.journal").read_bytes())
    data[data.index(b"x" * 100) + 50] ^= 1
    (tmp_path / "00000001.journal").write_bytes(data)
    contents = contents_of(tmp_path)
    assert [plain(record)[1] for record in contents.records] == [b"other"]
    [damage] = contents.damage
    assert damage.reason == "the bytes of chunk (1, 22) of 'image/ä' are damaged"
    assert (damage.offset, damage.is_torn) == (HEADER_NBYTES, False)


def test_a_payload_that_holds_records_is_not_taken_for_records(tmp_path: Path) -> None:
    """Be it that the header of the record around them is damaged."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    other = opened(inner)
    for n in range(3):
        put(other, b"forged", coords=(n,))
    journal = opened(outer)
    put(journal, (inner / "00000001.journal").read_bytes())
    put(journal, b"other")
    data = bytearray((outer / "00000001.journal").read_bytes())
    data[HEADER_NBYTES + 20] ^= 1
    (outer / "00000001.journal").write_bytes(data)
    contents = contents_of(outer)
    assert [plain(record)[1] for record in contents.records] == [b"other"]
    assert len(contents.damage) == 1


@pytest.mark.parametrize("nbytes", [25, 30, 100])
def test_a_lost_beginning_of_a_segment_costs_no_more_than_its_records(
    written: Written, tmp_path: Path, nbytes: int
) -> None:
    for name, content in written.files.items():
        data = os.urandom(nbytes) + content[nbytes:]
        lost = hit(written, name, 0, nbytes)
        [damage] = check(written.damaged(tmp_path, name, data), written, lost)
        end = max(written.places[sequence][2] for sequence in lost)
        assert damage == Damage(name, 0, end, "the header of the segment is damaged")


def test_records_in_a_payload_are_none_where_a_beginning_is_lost(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    other = opened(inner)
    for n in range(3):
        put(other, b"forged", coords=(n,))
    journal = opened(outer)
    put(journal, (inner / "00000001.journal").read_bytes())
    put(journal, b"other")
    data = (outer / "00000001.journal").read_bytes()
    (outer / "00000001.journal").write_bytes(os.urandom(30) + data[30:])
    contents = contents_of(outer)
    assert [plain(record)[1] for record in contents.records] == [b"other"]
    assert len(contents.damage) == 1


def test_a_segment_of_which_nothing_is_left_is_damage_as_a_whole(written: Written, tmp_path: Path) -> None:
    name = "00000001.journal"
    data = b"?" * len(written.files[name])
    damage = check(written.damaged(tmp_path, name, data), written, hit(written, name, 0, len(data)))
    assert damage == [Damage(name, 0, len(data), "the header of the segment is damaged")]


# What becomes of damaged segments


def test_a_damaged_segment_is_kept_under_another_name(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=300)
    for _ in range(3):
        put(journal, b"x" * 100)
    name = "00000001.journal"
    data = bytearray((tmp_path / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / name).write_bytes(data)
    contents = contents_of(tmp_path)
    assert len(contents.records) == 2
    journal = WriteAheadLog(descriptor_of(tmp_path), Syscalls(), contents)
    journal.finish(record.sequence for record in contents.records)
    journal.close()
    assert os.listdir(tmp_path) == ["00000001.damaged"]
    assert (tmp_path / "00000001.damaged").read_bytes() == data
    [damage] = contents_of(tmp_path).damage
    assert damage == contents.damage[0]._replace(segment="00000001.damaged")
    assert not contents_of(tmp_path).records
    journal = opened(tmp_path)
    put(journal)
    assert segments_of(tmp_path) == ["00000002.journal"]


def test_a_torn_segment_is_removed_like_any_other(tmp_path: Path) -> None:
    put(opened(tmp_path), b"x" * 100)
    (tmp_path / "00000002.journal").write_bytes(bytes(5000))
    os.truncate(tmp_path / "00000001.journal", 150)
    contents = contents_of(tmp_path)
    assert len(contents.damage) == 2
    journal = WriteAheadLog(descriptor_of(tmp_path), Syscalls(), contents)
    record = put(journal)
    assert segments_of(tmp_path)[-1] == "00000003.journal"
    journal.finish([record.sequence])
    journal.close()
    assert os.listdir(tmp_path) == []


def test_a_journal_of_the_version_before_is_read(tmp_path: Path) -> None:
    record = put(opened(tmp_path))
    data = (tmp_path / "00000001.journal").read_bytes()
    earlier, salt = data[:8] + struct.pack("<I", 1), data[16:24]
    earlier += struct.pack("<I", checksum(salt, checksum(earlier))) + salt
    (tmp_path / "00000001.journal").write_bytes(earlier + data[24:])
    contents = contents_of(tmp_path)
    assert [plain(read) for read in contents.records] == [plain(record)]
    assert contents.damage == []


def test_a_journal_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    put(opened(tmp_path))
    data = (tmp_path / "00000001.journal").read_bytes()
    later = data[:8] + struct.pack("<I", VERSION + 1)
    salt = data[16:24]
    later += struct.pack("<I", checksum(salt, checksum(later))) + salt
    (tmp_path / "00000001.journal").write_bytes(later + b"what nobody knows yet")
    for use in (contents_of, opened):
        with pytest.raises(StoreError, match=rf"later version of shardfs \(format {VERSION + 1}\)"):
            use(tmp_path)
    assert (tmp_path / "00000001.journal").read_bytes() == later + b"what nobody knows yet"


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_file_is_no_segment(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "journal"
    path.mkdir()
    record = put(opened(path))
    name = path / "00000002.journal"
    if kind == "link":
        (path / "00000001.journal").rename(tmp_path / "elsewhere")
        name.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(name)
    else:
        name.mkdir()
    contents = contents_of(path)
    assert contents.damage == [Damage("00000002.journal", 0, 0, "is not a regular file")]
    assert [plain(read) for read in contents.records] == ([] if kind == "link" else [plain(record)])
    put(opened(path))
    assert "00000003.journal" in os.listdir(path)


def test_other_names_are_no_segments(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record = put(journal)
    data = (tmp_path / "00000001.journal").read_bytes()
    for name in (
        "1.journal",
        "000000002.journal",
        "00000002.journal~",
        "x00000002.journal",
        "lock",
    ):
        (tmp_path / name).write_bytes(data)
    contents = contents_of(tmp_path)
    assert [plain(read) for read in contents.records] == [plain(record)]
    assert contents.damage == []


# Journals that somebody made to do harm


def segment_of(path: Path, *records: bytes, nbytes: int = 0) -> Path:
    data = pack_header(SALT) + b"".join(records)
    (path / "00000001.journal").write_bytes(data)
    if nbytes:
        os.truncate(path / "00000001.journal", nbytes)
    return path


def record_of(sequence: int, kind: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    return pack_record(SALT, sequence, kind, meta, len(payload), checksum(payload)) + payload


def ranges(*bounds: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", *pair) for pair in bounds)


SHRINK = struct.pack("<HQ", 1, 5) + b"a"


def test_a_segment_that_is_made_here_is_a_sound_one(tmp_path: Path) -> None:
    contents = contents_of(segment_of(tmp_path, record_of(1, Kind.SHRINK, SHRINK)))
    assert contents.records == [Shrink(1, "a", (5,))]
    assert contents.damage == []


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (Kind.CARRIED, b""),
        (Kind.CARRIED, struct.pack("<QB", 1, Kind.SHRINK) + b"\1\0" + bytes(8) + b"a"),
        (Kind.CARRIED, struct.pack("<QB", 0, Kind.CARRIED) + struct.pack("<QB", 0, Kind.SHRINK)),
        (Kind.CARRIED, struct.pack("<QB", 0, Kind.CHECKPOINT)),
        (Kind.CARRIED, struct.pack("<QB", 0, 99)),
        (Kind.PUT, b""),
        (Kind.PUT, b"x" * 40),
        (Kind.ERASE, b"x" * 57),
        (Kind.SHRINK, b"\xff\xff"),
        (Kind.SHRINK, b""),
        (Kind.UNDO, b""),
        (Kind.UNDO, struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 1, 0, 0, 0, 0)),
        (Kind.UNDO, struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 0, 5, 0, 0, 0)),
        (Kind.UNDO, struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 2**60, 2**64 - 2**60, 0, 0, 0)),
        (Kind.UNDO, struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 0, 0, 0, 2**32 - 1, 0)),
        (Kind.UNDO, struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 0, 0, 9, 0, 0)),
    ],
)
def test_a_malformed_record_is_damage_and_the_next_is_read(tmp_path: Path, kind: int, meta: bytes) -> None:
    records = record_of(1, kind, meta), record_of(2, Kind.SHRINK, SHRINK)
    contents = contents_of(segment_of(tmp_path, *records))
    assert contents.records == [Shrink(2, "a", (5,))]
    assert [found.reason for found in contents.damage] == ["record 1 of the journal is malformed"]


@pytest.mark.parametrize("kind", [0, 7, 255])
def test_a_record_of_a_kind_that_is_not_known_is_an_error_that_says_so(tmp_path: Path, kind: int) -> None:
    path = segment_of(tmp_path, record_of(1, Kind.SHRINK, SHRINK), record_of(2, kind, SHRINK))
    with pytest.raises(StoreError, match=rf"record 2 in .*/00000001.journal is of a kind \({kind}\)"):
        contents_of(path)


def peak_of_reading(path: Path) -> int:
    contents_of(path)  # what is imported or cached the first time
    tracemalloc.start()
    contents_of(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


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
    contents = contents_of(path)
    assert contents.records == [Shrink(1, "a", (5,))]
    assert len(contents.damage) == 1
    assert peak_of_reading(path) < 4 * MIB
    put(opened(path))  # there are numbers left


def test_huge_payloads_cost_no_memory(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    put(journal, b"x" * 64 * MIB)
    intend(journal, [1], old_index=bytes(32 * MIB), planned_index=bytes(32 * MIB))
    assert len(contents_of(tmp_path).records) == 2
    assert peak_of_reading(tmp_path) < 4 * MIB


def test_an_index_that_is_larger_than_any_is_damage(tmp_path: Path) -> None:
    nbytes = 200 * MIB
    meta = struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 0, nbytes, 0, 0, 0)
    payload = bytes(nbytes)
    contents = contents_of(segment_of(tmp_path, record_of(1, Kind.UNDO, meta, payload)))
    assert contents.records == []
    assert [found.reason for found in contents.damage] == ["record 1 of the journal is malformed"]


@pytest.mark.parametrize("bounds", [(1, 2**60), (0, 2), (5, 3), (1, 11), (2**64 - 1, 2**64 - 1), (3, 3)])
def test_done_records_that_are_none_forget_nothing_they_should_not(tmp_path: Path, bounds: tuple[int, int]) -> None:
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


def test_an_intent_that_names_more_than_there_can_be_is_not_believed(tmp_path: Path) -> None:
    meta = struct.pack("<?QQQQQ?QQHII", False, 0, 0, 0, 0, 0, False, 1, 0, 0, 0, 0)
    record = record_of(2**50, Kind.UNDO, meta, ranges((1, 2**49)))
    [intent] = contents_of(segment_of(tmp_path, record)).records
    with pytest.raises(CorruptionError, match="names records 1 to"):
        list(intent.records())  # type: ignore[union-attr]


def test_a_segment_full_of_false_beginnings_is_given_up(tmp_path: Path) -> None:
    path = segment_of(tmp_path, record_of(1, Kind.SHRINK, SHRINK), SALT * 4 * MIB, record_of(2, Kind.SHRINK, SHRINK))
    contents = contents_of(path)
    assert contents.records == [Shrink(1, "a", (5,))]
    assert len(contents.damage) == 1
    assert not contents.damage[0].is_torn


@pytest.mark.parametrize("what", ["salts", "heads", "chains"])
def test_a_segment_without_a_header_that_is_full_of_false_beginnings_is_given_up(tmp_path: Path, what: str) -> None:
    shrink = record_of(1, Kind.SHRINK, SHRINK)
    false = pack_record(b"othersal", 1, Kind.SHRINK, b"x" * 60_000, 0, 0)[:RECORD_NBYTES]
    fill = {"salts": SALT * 2 * MIB, "heads": false * (8 * MIB // len(false)), "chains": shrink * 100_000 + b"?"}[what]
    segment_of(tmp_path, fill)
    segment = tmp_path / "00000001.journal"
    segment.write_bytes(b"?" * 30 + segment.read_bytes()[30:])
    contents = contents_of(tmp_path)  # in no time, not in one for each pair
    assert contents.records == []
    assert [(found.offset, found.nbytes) for found in contents.damage] == [(0, segment.stat().st_size)]


def test_records_out_of_order_are_damage(tmp_path: Path) -> None:
    records = [record_of(n, Kind.SHRINK, SHRINK) for n in (1, 5, 3, 5, 6)]
    contents = contents_of(segment_of(tmp_path, *records))
    assert [record.sequence for record in contents.records] == [1, 5, 6]
    assert [found.reason for found in contents.damage] == ["record 3 is out of order", "record 5 is out of order"]


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_whatever_make_reading_fail(written: Written, noise: bytes, with_header: bool) -> None:
    path = written.path.parent / "noise"
    path.mkdir(exist_ok=True)
    (path / "00000001.journal").write_bytes((pack_header(SALT) if with_header else b"") + noise)
    assert contents_of(path).records == []


@given(st.sampled_from(sorted(Kind)), st.binary(max_size=200), st.binary(max_size=100))
def test_no_record_whatever_makes_reading_fail(written: Written, kind: int, meta: bytes, payload: bytes) -> None:
    path = written.path.parent / "made"
    path.mkdir(exist_ok=True)
    contents = contents_of(segment_of(path, record_of(7, kind, meta, payload), record_of(8, Kind.SHRINK, SHRINK)))
    assert contents.records[-1] == Shrink(8, "a", (5,))
    assert len(contents.records) + len(contents.damage) == 2 or kind == Kind.CHECKPOINT
    for record in contents.records:
        assert isinstance(record, Put | Erase | Shrink) or record.old_index_nbytes <= len(payload)
