"""Reading a write-ahead log: what is live in it, and what is damaged.

Damage is skipped, and reported: what lies behind it is found by the salt of the segment.  Numbers in a log are believed
only after they were compared with the size of its file; payloads stay where they are.
"""

import errno
import os
import stat
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shardfs.dataset.wal.records import (
    EARLIER_SEGMENT,
    HEADER_NBYTES,
    MARK_NBYTES,
    RECORD_NBYTES,
    VERSION,
    Checkpoint,
    Head,
    Kind,
    Live,
    Marks,
    Payload,
    Put,
    Record,
    meta_nbytes,
    number_of,
    unpack,
    unpack_record,
    unpack_version,
)
from shardfs.errors import CorruptionError, StoreError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.openat import READ
from shardfs.stores.local.syscalls import translate

_BLOCK_NBYTES: Final = 2**20
_SECTOR_NBYTES: Final = 4096
_MAX_FALSE_STARTS: Final = 10_000
"""How often a salt may be found where no record is; by chance it never is."""

_KINDS: Final = frozenset(Kind)


class Damage(NamedTuple):
    """*nbytes* bytes from *offset* of a segment that hold no record.

    *segment* is the name of its file: of a segment that an earlier process found damaged, the one under which it is
    kept.  *is_torn*: they look like an append that never finished, so that nothing that was published is lost.
    """

    segment: str
    offset: int
    nbytes: int
    reason: str
    is_torn: bool = False


@dataclass(slots=True, eq=False)
class Segment:
    """One file: *end* is where its last record ends, *synced* how much of it is known to be durable.

    *nbytes* is the size of the file if that is more, as of one that is used again.  *is_ours*: this process made it.
    It knows sequences and sizes of its records, 16 bytes each; the size of a record that is released is 0.
    """

    name: str
    descriptor: Descriptor
    end: int
    nbytes: int = 0
    is_ours: bool = False
    synced: int = 0
    is_damaged: bool = False
    is_removed: bool = False
    live: int = 0
    live_nbytes: int = 0
    marks: Marks = field(init=False)
    _sequences: "array[int]" = field(default_factory=lambda: array("Q"))
    _sizes: "array[int]" = field(default_factory=lambda: array("Q"))

    def __post_init__(self) -> None:
        self.marks = Marks.of(self.name)

    def add(self, sequence: int, nbytes: int) -> None:
        """Take in a live record, the latest, of *nbytes* bytes in all."""
        self._sequences.append(sequence)
        self._sizes.append(nbytes)
        self.live += 1
        self.live_nbytes += nbytes

    def is_live(self, sequence: int) -> bool:
        """Whether the record of this sequence is here, and not released."""
        at = bisect_left(self._sequences, sequence)
        return at < len(self._sequences) and self._sequences[at] == sequence and self._sizes[at] > 0

    def release(self, sequences: Sequence[int]) -> list[int]:
        """Count records as released; return those of *sequences*, which ascend, that were here and live."""
        if not self._sequences:
            return []
        released = []
        begin, end = bisect_left(sequences, self._sequences[0]), bisect_right(sequences, self._sequences[-1])
        for sequence in sequences[begin:end]:
            at = bisect_left(self._sequences, sequence)
            if self._sequences[at] == sequence and self._sizes[at]:
                released.append(sequence)
                self.live -= 1
                self.live_nbytes -= self._sizes[at]
                self._sizes[at] = 0
        return released

    def keep(self, live: Container[int]) -> None:
        """Count all records as released but those in *live*."""
        self.release([sequence for sequence in self._sequences if sequence not in live])


@dataclass(frozen=True, slots=True)
class LogContents:
    """What a log held when it was read: *records* that are live, in order, and *damage* that was found.

    Of several records of one chunk the last one counts.  *carried* tells of those that were carried forward, by their
    sequences, those of the records that carry them.
    """

    records: list[Live] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    last_sequence: int = 0
    last_number: int = 0
    carried: Mapping[int, int] = field(default_factory=dict)


def read_log(directory: Descriptor) -> LogContents:
    """Read the log in *directory*, without a lock; blocks.

    Raises `StoreError` for a log of another version of shardfs, with records of a kind that is not known here, and if
    files cannot be opened.
    """
    reading = _Reading(directory)
    last_number = 0
    try:
        names = sorted(os.listdir(directory.path), key=lambda name: (number_of(name) or 0, name))
        for name in names:
            if EARLIER_SEGMENT.fullmatch(name):
                reading.note_earlier(name)
            number = number_of(name)
            last_number = max(last_number, number or 0)
            if number is not None and name.endswith(".damaged"):
                reading.look_into(name)
        for name in names:
            if number_of(name) is not None and name.endswith(".journal"):
                reading.read(name)
    except OSError as error:
        raise translate(error, "the journal") from None
    for segment in reading.segments:
        segment.keep(reading.live)
    records = sorted(reading.live.values(), key=lambda record: record.sequence)
    return LogContents(records, reading.damage, reading.segments, reading.last_sequence, last_number, reading.carried)


def live_records(segment: Segment) -> Iterator[tuple[Head, Record]]:
    """Yield the records of *segment* that are live, with where they lie; blocks.

    Raises `CorruptionError` for one whose bytes are not what they were.
    """
    scan = _Scan(segment.name, segment.descriptor, segment.end)
    for found in scan.results():
        if isinstance(found, Head) and segment.is_live(found.sequence):
            yield found, scan.record(found)


class _Reading:
    """Segments, from the oldest on, turned into what is live at the end."""

    def __init__(self, directory: Descriptor) -> None:
        self._directory = directory
        self.live: dict[int, Live] = {}  # by the sequence under which a record lies where it was found last
        self.carried: dict[int, int] = {}
        self.damage: list[Damage] = []
        self.segments: list[Segment] = []
        self.last_sequence = 0
        self._sequences = array("Q")
        # For each of them the place where to look for the next one that is live, itself or behind it: a hostile
        # log that names the same records over and over again costs no more than one that names them once.
        self._next = array("Q", [0])

    def note_earlier(self, name: str) -> None:
        """Note a damaged segment that an earlier version of the format kept; raises `StoreError` for a sound one."""
        opened = self._open(name)
        if opened is None:
            return
        if name.endswith(".damaged"):
            self.damage.append(Damage(name, 0, opened[1], "an earlier version of shardfs could not read all of it"))
            return
        version = unpack_version(os.pread(opened[0].fd, HEADER_NBYTES, 0))
        other = "an earlier" if (version or 0) < VERSION else "a later"
        raise StoreError(
            f"{name} of the journal was written by {other} version of shardfs (format {version}, not {VERSION}). "
            "Nothing is lost: mount once with --write and the version that wrote it, which brings it into the shards "
            "(formats 1 and 2: builds of 0.1.0 before this one)"
        )

    def read(self, name: str) -> None:
        """Read one segment; it may have been removed meanwhile."""
        opened = self._open(name)
        if opened is None:
            return
        segment = Segment(name, *opened)
        self.segments.append(segment)
        damage = self._damage(name, *opened, lambda scan, head: self._take(scan, head, segment))
        segment.is_damaged = any(not found.is_torn for found in damage)
        self.damage += damage

    def look_into(self, name: str) -> None:
        """Say again what was lost of a segment that is kept because it is damaged; its records are released."""
        opened = self._open(name)
        if opened is None:
            return
        try:
            damage = [found for found in self._damage(name, *opened, _Scan.record) if not found.is_torn]
        except StoreError as error:
            damage = [Damage(name, 0, opened[1], str(error))]
        self.damage += damage or [Damage(name, 0, opened[1], "an earlier mount could not read all of it")]

    def _damage(
        self, name: str, descriptor: Descriptor, nbytes: int, take: "Callable[[_Scan, Head], object]"
    ) -> list[Damage]:
        """Have each record of a segment taken; return what could not be."""
        scan, damage = _Scan(name, descriptor, nbytes), []
        for found in scan.results():
            if isinstance(found, Damage):
                damage.append(found)
                continue
            try:
                take(scan, found)
            except CorruptionError as error:
                # In a segment that is used again the rest of a write that never finished is old bytes.
                is_torn = scan.is_used_again and scan.is_last(found.begin)
                damage.append(Damage(name, found.begin, found.end - found.begin, str(error), is_torn))
        return damage

    def _open(self, name: str) -> tuple[Descriptor, int] | None:
        """Open a file of the log, and return its size too; None if there is none, or what is no file."""
        try:
            descriptor = Descriptor(os.open(name, READ, dir_fd=self._directory.fd))
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
        if head.own_kind not in _KINDS:
            raise StoreError(
                f"record {head.sequence} in {os.readlink(segment.descriptor.path)} is of a kind ({head.own_kind}) that "
                "this version of shardfs does not know; use the version that wrote it"
            )
        record = scan.record(head)
        if isinstance(record, Checkpoint):
            for sequences in record.records():
                self._release(sequences)
            return
        if record.sequence != head.sequence:  # found twice, it is one record all the same
            before = self.carried.get(record.sequence, record.sequence)
            self._release(range(before, before + 1))
            self.carried[record.sequence] = head.sequence
        self.live[head.sequence] = record
        segment.add(head.sequence, head.end - head.begin)
        self._sequences.append(head.sequence)
        self._next.append(len(self._sequences))

    def _release(self, sequences: range) -> None:
        at = self._unreleased(bisect_left(self._sequences, sequences.start))
        while at < len(self._sequences) and self._sequences[at] < sequences.stop:
            self.carried.pop(self.live.pop(self._sequences[at]).sequence, None)
            self._next[at] = at + 1
            at = self._unreleased(at)

    def _unreleased(self, at: int) -> int:
        found = at
        while self._next[found] != found:
            found = self._next[found]
        while self._next[at] != found:
            self._next[at], at = found, self._next[at]
        return found


class _Scan:
    """One segment of *nbytes* bytes, from its first record to its end mark."""

    def __init__(self, name: str, descriptor: Descriptor, nbytes: int) -> None:
        self._name = name
        self.is_used_again = name.startswith("2")
        self._marks = Marks.of(name)
        self._descriptor = descriptor
        self._nbytes = nbytes
        self._block = b""
        self._block_offset = 0
        self._false_starts = 0

    def results(self) -> Iterator[Head | Damage]:
        """Yield heads of records, and damage, in the order in which they lie.

        Raises `StoreError` if another version of shardfs wrote the segment.
        """
        version = unpack_version(self._read(0, HEADER_NBYTES))
        if version not in (None, VERSION):
            raise StoreError(
                f"{self._name} of the journal was written by a later version of shardfs (format {version})"
            )
        at = min(HEADER_NBYTES, self._nbytes)
        if version is None and self._nbytes:
            is_torn = self._nbytes < HEADER_NBYTES or (not any(self._read(0, at)) and self.is_last(0))
            yield Damage(self._name, 0, at, "the header of the segment is damaged", is_torn)
        while at < self._nbytes and self._read(at, MARK_NBYTES) != self._marks.end:
            head = self._head(at)
            if head is None:
                following = self._search(at + 1)
                reason = "no record is here, or its checksum does not match"
                end = self._nbytes if following is None else following
                yield Damage(self._name, at, end - at, reason, is_torn=following is None and self._is_torn(at))
                at = end
            elif head.end > self._nbytes:
                yield Damage(self._name, at, self._nbytes - at, "the segment ends within a record", is_torn=True)
                return
            else:
                yield head
                at = head.end

    def is_last(self, at: int) -> bool:
        """Whether neither a record nor the end mark, which each finished append leaves, is behind *at*."""
        return self._search(at + 1) is None

    def _is_torn(self, at: int) -> bool:
        """Whether what is last, at *at*, may be an append that never finished, and no damage."""
        data = self._read(at, RECORD_NBYTES)
        if self.is_used_again or len(data) < RECORD_NBYTES or not any(data):  # large payloads come before their heads
            return True
        return data.startswith(self._marks.salt) and at + RECORD_NBYTES + meta_nbytes(data) > self._nbytes

    def record(self, head: Head) -> Record:
        """Return a record; raises `CorruptionError` if it is none, or its payload is not what it was."""
        offset = head.end - head.payload_nbytes
        payload = Payload(self._descriptor, offset, head.payload_nbytes)
        record = unpack(head.kind, head.sequence, head.meta, payload)
        found = 0
        while offset < head.end:
            piece = self._read(offset, min(_BLOCK_NBYTES, head.end - offset))
            if not piece:
                break
            found = self._marks.checksum(piece, found)
            offset += len(piece)
        if offset < head.end or found != head.payload_checksum:
            what = f"chunk {record.coords} of {record.path!r}" if isinstance(record, Put) else f"record {head.sequence}"
            raise CorruptionError(f"the bytes of {what} are damaged")
        return record

    def _head(self, at: int) -> Head | None:
        data = self._read(at, RECORD_NBYTES)
        if len(data) < RECORD_NBYTES or not data.startswith(self._marks.salt):
            return None
        return unpack_record(self._marks.salt, at, self._read(at, RECORD_NBYTES + meta_nbytes(data)))

    def _search(self, at: int) -> int | None:
        """Return where the next record or the end mark lies, from *at* on; None if there is neither."""
        while at < self._nbytes:
            block = self._read(at, _BLOCK_NBYTES)
            end = block.find(self._marks.end)
            hit = block.find(self._marks.salt)
            while hit >= 0 and (hit < end or end < 0):
                if self._head(at + hit) is not None:
                    return at + hit
                self._false_starts += 1
                if self._false_starts > _MAX_FALSE_STARTS:
                    return self._nbytes
                hit = block.find(self._marks.salt, hit + 1)
            if end >= 0:
                return at + end
            if len(block) < MARK_NBYTES:  # at the end, or at a sector that cannot be read
                at = at - at % _SECTOR_NBYTES + _SECTOR_NBYTES
            else:
                at += len(block) - MARK_NBYTES + 1
        return None

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
