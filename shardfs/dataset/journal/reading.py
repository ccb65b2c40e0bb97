"""Reading a journal: what is live in it, and what is damaged.

Damage is skipped and reported; what follows it is found by the salt of the segment. Numbers in a journal are checked
against the size of its file before they are used. Payloads are not loaded.
"""

import errno
import logging
import os
import stat
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.dataset.journal.records import (
    CLASSES,
    MAX_SEGMENTS,
    MAX_SEQUENCE,
    READABLE,
    RECORD_NBYTES,
    SALT_NBYTES,
    Checkpoint,
    Head,
    Live,
    Payload,
    Put,
    Record,
    meta_nbytes,
    numbers_of,
    salt_of,
    unpack,
    unpack_ranges,
    unpack_record,
)
from shardfs.errors import AccessDeniedError, CorruptionError, StoreError
from shardfs.format.codecs import crc32c
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import READ, read_at, translate, user_name

log = logging.getLogger(__name__)

_BLOCK_NBYTES: Final = 2**20
_SECTOR_NBYTES: Final = 4096
_MAX_FILES: Final = 10_000
_MAX_HOLE_NBYTES: Final = 8 * 2**30
"""More files, or more bytes that take no space on the disk, are in no journal that a session wrote."""

_MAX_FALSE_STARTS: Final = 10_000
"""How many times a salt may be found where there is no record; by chance it never is."""


class Damage(NamedTuple):
    """*nbytes* bytes from *offset* of a segment that contain no record.

    *segment* is the name of its file; if an earlier process found it damaged, the name under which it is kept.
    """

    segment: str
    offset: int
    nbytes: int
    reason: str


@dataclass(slots=True, eq=False)
class Segment:
    """One file: *end* is where its last record ends, *synced* how much of it is known to be durable, with its name.

    *nlive* of its records are live.
    """

    name: str
    descriptor: Descriptor
    end: int
    synced: int = 0
    is_damaged: bool = False
    is_removed: bool = False
    nlive: int = 0

    def appended(self, nbytes: int) -> None:
        """Note that a record of *nbytes* bytes is at the end."""
        self.end += nbytes

    def counts(self, change: int) -> None:
        """Note that one more of its records is live (1), or one less (-1)."""
        self.nlive += change

    def is_durable_to(self, end: int) -> None:
        """Note that it is durable up to *end*, with its name."""
        self.synced = end

    def removing(self, *, is_removed: bool) -> None:
        """Note that this process removes it, or that it could not."""
        self.is_removed = is_removed


@dataclass(slots=True)
class JournalContents:
    """What a journal contained when it was read: the *live* records with their segments, in order, and the *damage*.

    *latest* are the sequences of the latest record of each subject, though its payload may be damaged. The subjects of
    *outdated* are those where it is, and was not released: what is live of them is an earlier record.
    """

    live: list[tuple[Segment, Live]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    latest: dict[Hashable, int] = field(default_factory=dict)
    outdated: frozenset[Hashable] = frozenset()
    last_sequence: int = 0
    last_number: int = 0

    @property
    def records(self) -> list[Live]:
        """The live records, in order."""
        return [record for _, record in self.live]

    def forget(self, records: Collection[Live]) -> None:
        """Forget live records, which were released."""
        gone = {id(record) for record in records}
        self.live = [entry for entry in self.live if id(entry[1]) not in gone]


def read_journal(directory: Descriptor) -> JournalContents:
    """Read the journal in *directory*, without a lock; blocks.

    Raises `StoreError` if the journal was written by another version of shardfs, contains an unknown kind of record,
    cannot be opened, has far too many files, or leaves no numbers for what would be appended.
    """
    contents = JournalContents()
    released: list[npt.NDArray[np.uint64]] = []
    try:
        with os.scandir(directory.path) as entries:
            names = [entry.name for entry in islice(entries, _MAX_FILES + 1)]
        if len(names) > _MAX_FILES:
            where = os.readlink(directory.path)
            raise StoreError(f"the journal in {where} has more files than any session leaves; move it away")
        for name in sorted(names):
            numbers = numbers_of(name)
            if numbers is not None:
                contents.last_number = max(contents.last_number, numbers[0])
                _read_segment(directory, name, numbers[1], contents, released)
    except PermissionError:
        where, owner = os.readlink(directory.path), user_name(os.fstat(directory.fd).st_uid)
        raise AccessDeniedError(f"only {owner} and root can read the journal in {where}") from None
    except OSError as error:
        raise translate(error, "the journal") from None
    if contents.last_sequence >= MAX_SEQUENCE or contents.last_number >= MAX_SEGMENTS:
        where = os.readlink(directory.path)
        raise StoreError(f"the journal in {where} has numbers that no version of shardfs gives; move it away")
    readable = {record.subject: record.sequence for record in contents.records}
    unreleased = _unreleased({*contents.latest.values(), *readable.values()}, released)
    live = {subject for subject, latest in contents.latest.items() if latest in unreleased}
    current = {sequence for subject, sequence in readable.items() if subject in live and sequence in unreleased}
    contents.outdated = frozenset(subject for subject in live if readable.get(subject) != contents.latest[subject])
    contents.live = [entry for entry in contents.live if entry[1].sequence in current]
    for segment, _ in contents.live:
        segment.counts(1)
    return contents


def _unreleased(sequences: Collection[int], released: Sequence[npt.NDArray[np.uint64]]) -> set[int]:
    """Return which of *sequences* are in none of the ranges *released*."""
    numbers = np.array([*sequences], np.uint64)
    return {*numbers[~are_within(numbers, np.concatenate([np.empty((0, 2), np.uint64), *released]))].tolist()}


def are_within(sequences: npt.NDArray[np.uint64], ranges: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return for each of *sequences* whether it is in one of *ranges*, which may overlap."""
    if not len(ranges):
        return np.zeros(len(sequences), bool)
    ranges = ranges[np.argsort(ranges[:, 0])]
    stops = np.maximum.accumulate(ranges[:, 1])
    before = np.searchsorted(ranges[:, 0], sequences, side="right")
    within: npt.NDArray[np.bool_] = (before > 0) & (stops[before - 1] > sequences)
    return within


def _read_segment(
    directory: Descriptor, name: str, version: int, contents: JournalContents, released: list[npt.NDArray[np.uint64]]
) -> None:
    """Read one segment of the format *version*, which may have been removed meanwhile."""
    damage = contents.damage
    try:
        descriptor = Descriptor(os.open(name, READ, dir_fd=directory.fd))
        status = os.fstat(descriptor.fd)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        damage.append(Damage(name, 0, 0, "is not a regular file"))
        return
    if status.st_size - 512 * status.st_blocks > _MAX_HOLE_NBYTES:
        damage.append(Damage(name, 0, status.st_size, "hardly any of its bytes are on the disk"))
        return
    if name.endswith(".damaged"):
        damage.append(Damage(name, 0, status.st_size, "an earlier mount could not read all of it"))
        return
    if version not in READABLE:
        other = "an earlier" if version < READABLE[0] else "a later"
        raise StoreError(
            f"{name} of the journal was written by {other} version of shardfs. Nothing is lost: mount once with "
            "--write and the version that wrote it, which brings it into the shards"
        )
    segment = Segment(name, descriptor, status.st_size)
    contents.segments.append(segment)
    scan = _Scan(name, descriptor, status.st_size, version)
    for head in scan.results():
        if isinstance(head, Damage):
            segment.is_damaged = True
            damage.append(head)
            continue
        last, contents.last_sequence = contents.last_sequence, max(contents.last_sequence, head.sequence)
        try:
            record = scan.record(head, behind=last)
            if not isinstance(record, Checkpoint):
                contents.latest[record.subject] = record.sequence
            scan.check_payload(head, record)
            if isinstance(record, Checkpoint):
                released.append(unpack_ranges(record))
            else:
                record.placed(record.sequence, record.payload, head.end - head.begin)
                contents.live.append((segment, record))
        except CorruptionError as error:
            segment.is_damaged = True
            damage.append(Damage(name, head.begin, head.end - head.begin, str(error)))


class _Scan:
    """One segment of *nbytes* bytes, read from its first record to its last."""

    def __init__(self, name: str, descriptor: Descriptor, nbytes: int, version: int) -> None:
        self._name = name
        self._version = version
        self._salt = salt_of(name)
        self._descriptor = descriptor
        self._nbytes = nbytes
        self._block = b""
        self._block_offset = 0
        self._false_starts = 0

    def results(self) -> Iterator[Head | Damage]:
        """Yield heads of records, and damage, in their order in the file.

        What looks like an unfinished append is logged, but is no damage: it was not published.
        """
        at = 0
        while at < self._nbytes:
            head = self._head(at)
            if head is not None and head.end <= self._nbytes:
                yield head
                at = head.end
                continue
            following = self._search(at + 1) if head is None else None
            if head is not None or (following is None and self._is_torn(at)):
                log.info("%s ends with %d bytes of a write that did not finish", self._name, self._nbytes - at)
                return
            end = self._nbytes if following is None else following
            yield Damage(self._name, at, end - at, "no record is here, or its checksum does not match")
            at = end

    def _is_torn(self, at: int) -> bool:
        """Whether the end of the segment, from *at* on, may be an unfinished append rather than damage."""
        data = self._read(at, RECORD_NBYTES)
        if len(data) < RECORD_NBYTES or not any(data):  # large payloads are written before their heads
            return True
        return data.startswith(self._salt) and at + RECORD_NBYTES + meta_nbytes(data) > self._nbytes

    def record(self, head: Head, *, behind: int = 0) -> Record:
        """Return a record, of which the payload may be damaged.

        Raises `CorruptionError` if it is malformed, or its sequence is not *behind* the previous one.
        """
        if head.sequence <= behind:
            raise CorruptionError(f"record {head.sequence} is out of order")
        if head.kind not in CLASSES:
            raise StoreError(
                f"record {head.sequence} in {os.readlink(self._descriptor.path)} is of a kind ({head.kind}) that this "
                "version of shardfs does not know; use the version that wrote it"
            )
        payload = Payload(self._descriptor, head.end - head.payload_nbytes, head.payload_nbytes)
        return unpack(head.kind, head.sequence, head.meta, payload, self._version)

    def check_payload(self, head: Head, record: Record) -> None:
        """Raise `CorruptionError` if the payload of *record*, which begins with *head*, is damaged."""
        offset, checksum = head.end - head.payload_nbytes, 0
        while offset < head.end:
            piece = self._read(offset, min(_BLOCK_NBYTES, head.end - offset))
            if not piece:
                break
            checksum = crc32c(piece, checksum)
            offset += len(piece)
        if offset < head.end or checksum != head.payload_checksum:
            what = f"chunk {record.coords} of {record.path!r}" if isinstance(record, Put) else f"record {head.sequence}"
            raise CorruptionError(f"the bytes of {what} are damaged")

    def _head(self, at: int) -> Head | None:
        data = self._read(at, RECORD_NBYTES)
        if len(data) < RECORD_NBYTES or not data.startswith(self._salt):
            return None
        return unpack_record(self._salt, at, self._read(at, RECORD_NBYTES + meta_nbytes(data)))

    def _search(self, at: int) -> int | None:
        """Return where the next record begins, from *at* on; None if there is none."""
        while at < self._nbytes:
            block = self._read(at, _BLOCK_NBYTES)
            if block and not any(block):
                at = self._next_data(at + max(1, len(block) - SALT_NBYTES + 1))
                continue
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
        return None

    def _next_data(self, at: int) -> int:
        """Return where the next bytes are, from *at* on, that take room on the disk; a hole has none."""
        with suppress(OSError):  # there are none any more, or the file system does not tell
            return max(at, os.lseek(self._descriptor.fd, at, os.SEEK_DATA) - SALT_NBYTES)
        return self._nbytes

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return up to *nbytes* bytes from *offset*; fewer at the end, or where the disk cannot read."""
        nbytes = max(0, min(nbytes, self._nbytes - offset))
        begin = offset - self._block_offset
        if begin < 0 or begin + nbytes > len(self._block):
            try:
                self._block = read_at(self._descriptor.fd, max(nbytes, _BLOCK_NBYTES), offset)
            except OSError:
                self._block = b""
            self._block_offset, begin = offset, 0
        return self._block[begin : begin + nbytes]
