"""The files of a journal: how they are called, and how records lie in them.

A journal is a directory of *segments*, `00000001.journal` and so on, whose numbers only grow.  A segment begins with
24 bytes, which all versions of the format share (numbers are little endian):

    magic 8 | version uint32 | crc32c of the other fields uint32 | salt 8

Records follow, each right behind the other:

    salt 8 | crc32c uint32 | crc32c of the payload uint32 | sequence uint64 | length of the payload uint64
    | length of the meta bytes uint32 | kind uint8 | 3 zero bytes | meta bytes | payload

The first checksum covers everything of the record but itself and the payload.  The salt is drawn for each segment:
whoever writes a payload does not know it, so that no payload can be taken for records when damage has to be skipped.
Sequences ascend through all segments; a record that was carried forward keeps its own inside of the one that carries
it, and is found by either.  A number is never used again, not even after a failed append, so that what such
an append may have left behind is out of order.  What a done record names need not be remembered.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from shardfs.dataset.wal.records import MAX_META_NBYTES
from shardfs.errors import StoreError
from shardfs.stores.base import Buffer, Descriptor

VERSION: Final = 2
"""Format 1 has no records that were carried forward."""
HEADER_NBYTES: Final = 24
RECORD_NBYTES: Final = 40
"""Size of a record without its meta bytes and payload."""
SALT_NBYTES: Final = 8

_MAGIC: Final = bytes.fromhex("d14a9be37c02f658")
_BEGINNING: Final = struct.Struct("<8sI")
_RECORD: Final = struct.Struct("<IQQIB3x")
_CHECKSUM: Final = struct.Struct("<I")
_COVERED: Final = SALT_NBYTES + _CHECKSUM.size
_MAX_SEQUENCE: Final = 2**62


@dataclass(slots=True, eq=False)
class Segment:
    """One file: *end* is where its last record ends, *synced* how much of it is known to be durable.

    It knows sequences and sizes of its records, 16 bytes each; the size of a record that is done is 0.
    """

    number: int
    descriptor: Descriptor
    salt: bytes
    end: int
    synced: int = 0
    is_damaged: bool = False
    is_removed: bool = False
    live: int = 0
    live_nbytes: int = 0
    _sequences: "array[int]" = field(default_factory=lambda: array("Q"))
    _sizes: "array[int]" = field(default_factory=lambda: array("Q"))

    def add(self, sequence: int, nbytes: int) -> None:
        """Take in a live record, the latest, of *nbytes* bytes in all."""
        self._sequences.append(sequence)
        self._sizes.append(nbytes)
        self.live += 1
        self.live_nbytes += nbytes

    def is_live(self, sequence: int) -> bool:
        """Whether the record of this sequence is here, and not done."""
        at = bisect_left(self._sequences, sequence)
        return at < len(self._sequences) and self._sequences[at] == sequence and self._sizes[at] > 0

    def finish(self, sequences: Sequence[int]) -> list[int]:
        """Count records as done; return those of *sequences*, which ascend, that were here and live."""
        if not self._sequences:
            return []
        begin, end = bisect_left(sequences, self._sequences[0]), bisect_right(sequences, self._sequences[-1])
        return [sequence for sequence in sequences[begin:end] if self._finish(sequence)]

    def keep(self, live: Container[int]) -> None:
        """Count all records as done but those in *live*."""
        self.finish([sequence for sequence in self._sequences if sequence not in live])

    def _finish(self, sequence: int) -> bool:
        at = bisect_left(self._sequences, sequence)
        if self._sequences[at] != sequence or not self._sizes[at]:
            return False
        self.live -= 1
        self.live_nbytes -= self._sizes[at]
        self._sizes[at] = 0
        return True


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:08}.journal"


def damaged_name(number: int) -> str:
    """Return the file name under which a damaged segment is kept."""
    return f"{number:08}.damaged"


def kept_as(name: str) -> str:
    """Return the file name under which the segment in the file *name* is kept if it is damaged."""
    return damaged_name(int(name.partition(".")[0]))


def checksum(data: Buffer, before: int = 0) -> int:
    """Return the crc32c of *data*, behind bytes whose crc32c is *before*."""
    if not isinstance(data, bytes):  # the library takes no other kind of buffer as it is
        if not len(data):
            return before
        data = np.frombuffer(data, np.uint8)  # type: ignore[assignment]
    value: int = google_crc32c.extend(before, data)
    return value


def pack_header(salt: bytes) -> bytes:
    """Return the first bytes of a segment."""
    beginning = _BEGINNING.pack(_MAGIC, VERSION)
    return beginning + _CHECKSUM.pack(checksum(salt, checksum(beginning))) + salt


def pack_record(
    salt: bytes, sequence: int, kind: int, meta: bytes, payload_nbytes: int, payload_checksum: int
) -> bytes:
    """Return a record up to its payload."""
    covered = _RECORD.pack(payload_checksum, sequence, payload_nbytes, len(meta), kind) + meta
    return salt + _CHECKSUM.pack(checksum(covered, checksum(salt))) + covered


class Head(NamedTuple):
    """A record whose own checksum matches; its payload was not looked at.  *begin* and *end* are its bounds."""

    begin: int
    end: int
    kind: int
    sequence: int
    meta: bytes
    payload_nbytes: int
    payload_checksum: int


def unpack_salt(header: bytes, name: str) -> bytes | None:
    """Return the salt of the segment that begins with *header*; None if that is damaged.

    Raises `StoreError` if a later version of shardfs wrote it.
    """
    if len(header) < HEADER_NBYTES:
        return None
    magic, version = _BEGINNING.unpack_from(header)
    salt = header[HEADER_NBYTES - SALT_NBYTES :]
    expected = _CHECKSUM.pack(checksum(salt, checksum(header[: _BEGINNING.size])))
    if magic != _MAGIC or header[_BEGINNING.size : _BEGINNING.size + _CHECKSUM.size] != expected:
        return None
    if version > VERSION:
        raise StoreError(f"{name} of the journal was written by a later version of shardfs (format {version})")
    return salt


def meta_nbytes(data: bytes) -> int:
    """Return how many meta bytes a record claims to have that begins with *data*; 0 if it claims too many."""
    nbytes: int = _RECORD.unpack_from(data, _COVERED)[3]
    return nbytes if nbytes <= MAX_META_NBYTES else 0


def unpack_record(salt: bytes, begin: int, data: bytes) -> Head | None:
    """Return the record that lies at *begin*; None if it is damaged, or if *data*, from there on, is too short."""
    if not data.startswith(salt) or len(data) < RECORD_NBYTES:
        return None
    payload_checksum, sequence, payload_nbytes, length, kind = _RECORD.unpack_from(data, _COVERED)
    stop = RECORD_NBYTES + length
    if length > MAX_META_NBYTES or len(data) < stop or sequence >= _MAX_SEQUENCE:
        return None
    if data[SALT_NBYTES:_COVERED] != _CHECKSUM.pack(checksum(data[_COVERED:stop], checksum(salt))):
        return None
    end = begin + stop + payload_nbytes
    return Head(begin, end, kind, sequence, data[RECORD_NBYTES:stop], payload_nbytes, payload_checksum)
