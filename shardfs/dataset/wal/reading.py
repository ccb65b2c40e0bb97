"""Reading a journal: what is live in it, and what is damaged.

Damage is skipped, and reported: what lies behind it is found by the salt of the segment.  Numbers in a journal are
believed only after they were compared with the size of its file; payloads stay where they are.
"""

import errno
import os
import re
import stat
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shardfs.dataset.wal.payload import Payload
from shardfs.dataset.wal.records import Checkpoint, Erase, Kind, Put, Record, Shrink, UndoRecord, unpack
from shardfs.dataset.wal.segments import (
    HEADER_NBYTES,
    RECORD_NBYTES,
    SALT_NBYTES,
    Head,
    Segment,
    checksum,
    damaged_name,
    meta_nbytes,
    segment_name,
    unpack_record,
    unpack_salt,
)
from shardfs.errors import CorruptionError, StoreError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.openat import READ
from shardfs.stores.local.syscalls import translate

_NAME: Final = re.compile(r"([0-9]{8}|[1-9][0-9]{8,17})\.(journal|damaged)")
_BLOCK_NBYTES: Final = 2**20
_SECTOR_NBYTES: Final = 4096
_MAX_FALSE_STARTS: Final = 10_000
"""How often a salt may be found where no record is; by chance it never is."""
_KIND_AT: Final = RECORD_NBYTES - 4
_SOME_KIND: Final = re.compile(b"[\\x01-%c]\\x00{3}" % max(Kind))
"""How each record ends before its meta bytes, whatever its salt is."""
_MAX_GUESSED_NBYTES: Final = 2**26
"""How much may be looked at in vain to find a record whose salt is not known."""

_KINDS: Final = frozenset(Kind)

Live = Put | Erase | Shrink | UndoRecord
"""A record that has to be remembered until it is done."""


class Damage(NamedTuple):
    """*nbytes* bytes from *offset* of a segment that hold no record.

    That is the name of its file: of a segment that an earlier process found damaged, the one under which it is kept.
    *is_torn*: they look like an append that never finished, so that nothing that was published is lost.
    """

    segment: str
    offset: int
    nbytes: int
    reason: str
    is_torn: bool = False


@dataclass(frozen=True, slots=True)
class LogContents:
    """What a journal held when it was read: *records* that are live, in order, and *damage* that was found.

    Of several records of one chunk the last one counts.  *carried* tells of those that were carried forward, by their
    sequences, those of the records that carry them.
    """

    records: list[Live]
    damage: list[Damage]
    segments: list[Segment]
    last_sequence: int
    last_number: int
    carried: Mapping[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.end for segment in self.segments)


def read_log(directory: Descriptor) -> LogContents:
    """Read the journal in *directory*, without a lock; blocks.

    Raises `StoreError` for a journal of a later version of shardfs, with records of a kind that is not known here, and
    if files cannot be opened.
    """
    reading = _Reading()
    numbers: list[int] = []
    damaged: list[int] = []
    last_number = 0
    try:
        for name in os.listdir(directory.path):
            if match := _NAME.fullmatch(name):
                last_number = max(last_number, int(match[1]))
                (numbers if match[2] == "journal" else damaged).append(int(match[1]))
        for number in sorted(damaged):
            reading.look_into(directory, number)
        for number in sorted(numbers):
            reading.read(directory, number)
    except OSError as error:
        raise translate(error, "the journal") from None
    for segment in reading.segments:
        segment.keep(reading.live)
    return LogContents(
        sorted(reading.live.values(), key=lambda record: record.sequence),
        reading.damage,
        reading.segments,
        reading.last_sequence,
        last_number,
        reading.carried,
    )


def live_records(segment: Segment) -> Iterator[tuple[Head, Record]]:
    """Yield the records of *segment* that are not done, with where they lie; blocks.

    Raises `CorruptionError` for one whose bytes are not what they were.
    """
    scan = _Scan(segment.descriptor, segment_name(segment.number), segment.end)
    for found in scan.results():
        if isinstance(found, Head) and segment.is_live(found.sequence):
            yield found, scan.record(found)


class _Reading:
    """Segments, from the oldest on, turned into what is live at the end."""

    def __init__(self) -> None:
        self.live: dict[int, Live] = {}  # by the sequence under which a record lies where it was found last
        self.carried: dict[int, int] = {}
        self.damage: list[Damage] = []
        self.segments: list[Segment] = []
        self.last_sequence = 0
        self._sequences = array("Q")
        # For each of them the place where to look for the next one that is not done, itself or behind it: a hostile
        # journal that names the same records over and over again costs no more than one that names them once.
        self._next = array("Q", [0])

    def read(self, directory: Descriptor, number: int) -> None:
        """Read one segment; it may have been removed meanwhile."""
        name = segment_name(number)
        opened = self._open(directory, name)
        if opened is None:
            return
        descriptor, nbytes = opened
        segment = Segment(number, descriptor, b"", nbytes)
        self.segments.append(segment)
        scan = _Scan(descriptor, name, nbytes)
        for found in scan.results():
            if isinstance(found, Head):
                try:
                    self._take(scan, found, segment)
                except CorruptionError as error:
                    found = Damage(name, found.begin, found.end - found.begin, str(error))
            if isinstance(found, Damage):
                self.damage.append(found)
                segment.is_damaged |= not found.is_torn

    def look_into(self, directory: Descriptor, number: int) -> None:
        """Say again what was lost of a segment that is kept because it is damaged; its records are done."""
        name = damaged_name(number)
        opened = self._open(directory, name)
        if opened is None:
            return
        descriptor, nbytes = opened
        scan, found = _Scan(descriptor, name, nbytes), []
        try:
            for each in scan.results():
                if isinstance(each, Damage):
                    found += [each] if not each.is_torn else []
                    continue
                try:
                    scan.record(each)
                except CorruptionError as error:
                    found.append(Damage(name, each.begin, each.end - each.begin, str(error)))
        except StoreError as error:
            found.append(Damage(name, 0, nbytes, str(error)))
        self.damage += found or [Damage(name, 0, nbytes, "an earlier mount could not read all of it")]

    def _open(self, directory: Descriptor, name: str) -> tuple[Descriptor, int] | None:
        """Open a file of the journal, and return its size too; None if there is none, or what is no file."""
        try:
            descriptor = Descriptor(os.open(name, READ, dir_fd=directory.fd))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            self.damage.append(Damage(name, 0, 0, "is not a regular file"))
            return None
        status = os.fstat(descriptor.fd)
        if not stat.S_ISREG(status.st_mode):
            self.damage.append(Damage(name, 0, 0, "is not a regular file"))
            return None
        return descriptor, status.st_size

    def _take(self, scan: "_Scan", head: Head, segment: Segment) -> None:
        if head.sequence <= self.last_sequence:
            raise CorruptionError(f"record {head.sequence} is out of order")
        self.last_sequence = head.sequence
        if head.kind not in _KINDS:
            raise StoreError(
                f"record {head.sequence} in {os.readlink(segment.descriptor.path)} is of a kind ({head.kind}) that "
                "this version of shardfs does not know; use the version that wrote it"
            )
        record = scan.record(head)
        if isinstance(record, Checkpoint):
            for sequences in record.records():
                self._forget(sequences)
            return
        if record.sequence != head.sequence:  # found twice, it is one record all the same
            before = self.carried.get(record.sequence, record.sequence)
            self._forget(range(before, before + 1))
            self.carried[record.sequence] = head.sequence
        self.live[head.sequence] = record
        segment.add(head.sequence, head.end - head.begin)
        self._sequences.append(head.sequence)
        self._next.append(len(self._sequences))

    def _forget(self, sequences: range) -> None:
        at = self._unfinished(bisect_left(self._sequences, sequences.start))
        while at < len(self._sequences) and self._sequences[at] < sequences.stop:
            self.carried.pop(self.live.pop(self._sequences[at]).sequence, None)
            self._next[at] = at + 1
            at = self._unfinished(at)

    def _unfinished(self, at: int) -> int:
        found = at
        while self._next[found] != found:
            found = self._next[found]
        while self._next[at] != found:
            self._next[at], at = found, self._next[at]
        return found


class _Scan:
    """One segment of *nbytes* bytes, from its first record to its last."""

    def __init__(self, descriptor: Descriptor, name: str, nbytes: int) -> None:
        self._descriptor = descriptor
        self._name = name
        self._nbytes = nbytes
        self._block = b""
        self._block_offset = 0
        self._salt = b""
        self._false_starts = 0

    def results(self) -> Iterator[Head | Damage]:
        """Yield heads of records, and damage, in the order in which they lie."""
        at = HEADER_NBYTES
        salt = unpack_salt(self._read(0, HEADER_NBYTES), self._name)
        if salt is None:
            # The first record tells the salt as well, if it is sound with it.
            self._salt = self._read(HEADER_NBYTES, SALT_NBYTES)
            if len(self._salt) == SALT_NBYTES and self._head(at) is not None:
                yield self._damage(0, HEADER_NBYTES, "the header of the segment is damaged")
            else:
                at = self._guess()
                if at:
                    yield self._damage(0, at, "the header of the segment is damaged", is_end=at == self._nbytes)
        else:
            self._salt = salt
        while at < self._nbytes:
            head = self._head(at)
            if head is None:
                following = self._search(at + 1)
                is_end = following == self._nbytes
                yield self._damage(at, following, "no record is here, or its checksum does not match", is_end=is_end)
                at = following
            elif head.end > self._nbytes:
                yield Damage(self._name, at, self._nbytes - at, "the segment ends within a record", is_torn=True)
                return
            else:
                yield head
                at = head.end

    def record(self, head: Head) -> Record:
        """Return a record; raises `CorruptionError` if it is none, or its payload is not what it was."""
        offset = head.end - head.payload_nbytes
        record = unpack(head.kind, head.sequence, head.meta, Payload(self._descriptor, offset, head.payload_nbytes))
        found = 0
        while offset < head.end:
            piece = self._read(offset, min(_BLOCK_NBYTES, head.end - offset))
            if not piece:
                break
            found = checksum(piece, found)
            offset += len(piece)
        if offset < head.end or found != head.payload_checksum:
            what = f"chunk {record.coords} of {record.path!r}" if isinstance(record, Put) else f"record {head.sequence}"
            raise CorruptionError(f"the bytes of {what} are damaged")
        return record

    def _damage(self, begin: int, end: int, reason: str, *, is_end: bool = False) -> Damage:
        return Damage(self._name, begin, end - begin, reason, is_end and self._is_torn(begin))

    def _is_torn(self, begin: int) -> bool:
        """Whether what is at *begin*, up to the end of the segment, may be an append that never finished."""
        data = self._read(begin, RECORD_NBYTES)
        if len(data) < RECORD_NBYTES or not any(data):  # large payloads are written before what precedes them
            return True
        return data.startswith(self._salt) and begin + RECORD_NBYTES + meta_nbytes(data) > self._nbytes

    def _head(self, at: int) -> Head | None:
        data = self._read(at, RECORD_NBYTES)
        if len(data) < RECORD_NBYTES or not data.startswith(self._salt):
            return None
        return unpack_record(self._salt, at, self._read(at, RECORD_NBYTES + meta_nbytes(data)))

    def _guess(self) -> int:
        """Take the salt from the first record from which on one follows the other up to the end; return its place.

        That is the end of the segment if there is none.  Records in a payload do not lead to the end, as other bytes
        follow them; but in that of the last record they may, where no sound record comes before them.
        """
        first = self._salt
        at, left = HEADER_NBYTES, _MAX_GUESSED_NBYTES + 2 * self._nbytes
        while at + RECORD_NBYTES <= self._nbytes:
            block = self._read(at, _BLOCK_NBYTES)
            for hit in _SOME_KIND.finditer(block, _KIND_AT):
                begin = place = at + hit.start() - _KIND_AT
                self._salt = block[begin - at : begin - at + SALT_NBYTES]
                head = self._head(place)
                left -= RECORD_NBYTES + meta_nbytes(block[begin - at : begin - at + RECORD_NBYTES])
                while head is not None and left > 0:
                    # What is far away is read for this alone.
                    left -= min(head.end - place, _BLOCK_NBYTES) if place > begin else _BLOCK_NBYTES
                    place = head.end
                    if place == self._nbytes:
                        return begin
                    head = self._head(place)
                if left <= 0:
                    break
            if left <= 0:
                break
            at += max(len(block) - RECORD_NBYTES + 1, _SECTOR_NBYTES)
        self._salt = first
        return self._nbytes

    def _search(self, at: int) -> int:
        """Return where the next record begins, from *at* on; the end of the segment if there is none."""
        while at < self._nbytes:
            block = self._read(at, _BLOCK_NBYTES)
            hit = block.find(self._salt)
            while hit >= 0:
                if self._head(at + hit) is not None:
                    return at + hit
                self._false_starts += 1
                if self._false_starts > _MAX_FALSE_STARTS:
                    return self._nbytes
                hit = block.find(self._salt, hit + 1)
            if len(block) < SALT_NBYTES:  # at the end, or at a sector that cannot be read
                at = at - at % _SECTOR_NBYTES + _SECTOR_NBYTES
            else:
                at += len(block) - SALT_NBYTES + 1
        return self._nbytes

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return up to *nbytes* bytes from *offset*, fewer at the end and where the disk cannot read."""
        nbytes = max(0, min(nbytes, self._nbytes - offset))
        begin = offset - self._block_offset
        if begin < 0 or begin + nbytes > len(self._block):
            try:
                self._block = os.pread(self._descriptor.fd, max(nbytes, _BLOCK_NBYTES), offset)
            except OSError:
                self._block = b""
            self._block_offset, begin = offset, 0
        return self._block[begin : begin + nbytes]
