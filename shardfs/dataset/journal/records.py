"""Records of the journal, and how they lie in its files.

The journal is a directory of *segments*. The name of a segment is `1`, its number in 8 digits, 9 random digits, `.v`,
the version of the format, and `.journal`; numbers only grow. What it is called tells the *salt* with which all its
records begin, so that no payload of the user can be taken for records.

A segment consists of records, each right behind the other. Integers are little endian.

    salt 8 | crc32c uint32 | crc32c of the payload uint32 | sequence uint64 | length of the payload uint64
    | length of the meta bytes uint32 | kind uint8 | 3 zero bytes | meta bytes | payload

The first checksum covers everything of the record but itself and the payload. Sequences ascend through all segments
and are never used again, not even after a failed append. Meta bytes are the fields of a record, but for its sequence
and payload, in the order in which its class has them and as `FIELDS` says, and its first sequence, which
checkpoints have not.

Segments of versions 6 to 8 are read, too. In version 8 only undo records have a first sequence, before none. In
version 6 what changes supersede is always two numbers, and undo records have no time.

The payload of a Put is the encoded inner chunk, that of a Checkpoint ranges of sequences, each its first and the one
behind its last (uint64). Others have none.

What is read is input like any other: paths, keys and numbers may be of another's making.
"""

import hashlib
import re
import secrets
import struct
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from shardfs.errors import CorruptionError, RefusedError, StoreError
from shardfs.format.codecs import crc32c
from shardfs.stores.base import PIECE_NBYTES, Buffer, Content, Descriptor, in_pieces
from shardfs.stores.local.syscalls import read_cached, read_fully, translated

VERSION: Final = 9
READABLE: Final = (6, 7, 8, VERSION)
"""The versions of segments that are read."""

RECORD_NBYTES: Final = 40
"""The size of a record without its meta bytes and payload."""
SALT_NBYTES: Final = 8
MAX_META_NBYTES: Final = 64 * 2**10
MAX_RANGES: Final = 2**20
"""The largest number of sequence ranges in a record."""

UNKNOWN_TIME: Final = -1
MAX_SEQUENCE: Final = 2**62
MAX_SEGMENTS: Final = 90_000_000
"""A log that has such numbers is not appended to: a later sequence, or longer name, might not be read again."""

_RECORD: Final = struct.Struct("<IQQIB3x")
_CHECKSUM: Final = struct.Struct("<I")
_COVERED: Final = SALT_NBYTES + _CHECKSUM.size
_RANGE_NBYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")
_MARK: Final = struct.Struct("<QQ16s")
_INTEGERS: Final = {"w": 4, "q": 8, "i": 16}
_SECONDS: Final = range(-(2**63), 2**63)
"""The times of files."""
_BLOCK_NBYTES: Final = 4096


class Payload:
    """The bytes of one record, in the file of its segment; they stay readable after the file is removed."""

    __slots__ = ("_begin", "_descriptor", "nbytes")

    def __init__(self, descriptor: Descriptor, offset: int, nbytes: int) -> None:
        self._descriptor = descriptor
        self._begin = offset
        self.nbytes = nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*, which are within the payload; blocks."""
        self._check(offset, nbytes)
        buffer = np.empty(nbytes, np.uint8).data
        with translated("the journal"):
            if read_fully(self._descriptor.fd, buffer, self._begin + offset) < nbytes:
                raise StoreError("the journal was cut short by another program")
        return buffer

    async def read_soon(self, offset: int, nbytes: int) -> Buffer:
        """Return what `read` does: at once if the bytes are in the page cache, else from a thread."""
        self._check(offset, nbytes)
        buffer = np.empty(nbytes, np.uint8).data
        if read_cached(self._descriptor.fd, buffer, self._begin + offset, "the journal") == nbytes:
            return buffer
        return await trio.to_thread.run_sync(self.read, offset, nbytes)

    def _check(self, offset: int, nbytes: int) -> None:
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of a payload of {self.nbytes}")


_UNPLACED: Final = Payload.__new__(Payload)
"""The payload of a record that is not appended yet."""


@dataclass(slots=True)
class _Record:
    """A record gets its *sequence*, its *payload*, and *nbytes*, its size in all, when it is appended to a journal."""

    FIELDS: ClassVar[str]
    """How each is packed: text, bytes, numbers of 4 or 8 bytes (w, q), times (i), axes, what is superseded (e)."""

    KIND: ClassVar[int]
    """Its number in files."""

    sequence: int
    payload: Payload = field(default=_UNPLACED, kw_only=True, compare=False)
    nbytes: int = field(default=0, kw_only=True, compare=False, repr=False)

    def placed(self, sequence: int, payload: Payload, nbytes: int) -> None:
        """Note where it is in a journal."""
        self.sequence, self.payload, self.nbytes = sequence, payload, nbytes


@dataclass(slots=True)
class _LiveRecord(_Record):
    """A record that is kept until it is released, and may be carried forward until then.

    *first_sequence* is the sequence that it had before, if it was carried forward, else 0.
    """

    first_sequence: int = field(default=0, kw_only=True)

    @property
    def since(self) -> int:
        """The sequence that it had first: what it is about happened then, after all that has earlier ones."""
        return self.first_sequence or self.sequence

    def carried(self) -> None:
        """Note that it is about to be carried forward."""
        self.first_sequence = self.since

    def published(self) -> None:
        """Note that it is about to be appended as what happens now, in whatever journal it was before."""
        self.first_sequence = 0


class ShardMark(NamedTuple):
    """A version of a shard that others are appended to: size, 64 bits of its time, and the `hash_of` its index.

    Another program that writes it anew, with other bytes at the same offsets, gives it another time. An append leaves
    the index where it was, so later processes find this version in what has grown out of it.
    """

    nbytes: int
    mtime_ns: int
    index_hash: bytes


Superseded = ShardMark | tuple[int, int] | None
"""What tells whether a stored chunk is still the same: see `Array.note`."""


@dataclass(slots=True)
class _ChunkRecord(_LiveRecord):
    """A change of one inner chunk.

    *path* and *fingerprint* are those of its array. *superseded* is what `Array.note` returned for the chunk when the
    change was published, None if there was no chunk.
    """

    FIELDS: ClassVar[str] = "tabei"

    path: str
    coords: tuple[int, ...]
    fingerprint: bytes
    superseded: Superseded
    mtime_ns: int

    @property
    def subject(self) -> Hashable:
        """What it is about: the latest record of a subject counts, and none of another array that had the path."""
        return "chunk", self.path, self.coords, self.fingerprint

    def supersedes(self, stored: Superseded) -> None:
        """Note over what it is about to be published."""
        self.superseded = stored


@dataclass(slots=True)
class Put(_ChunkRecord):
    """The inner chunk gets the bytes *payload*."""

    FIELDS: ClassVar[str] = "tabeiwww"
    KIND: ClassVar[int] = 1

    mode: int
    uid: int
    gid: int

    def grant(self, mode: int, uid: int, gid: int) -> None:
        """Let a new shard that is made for the chunk have this mode and owner; records on disk stay as they are."""
        self.mode, self.uid, self.gid = mode, uid, gid


@dataclass(slots=True)
class Erase(_ChunkRecord):
    """The inner chunk is removed."""

    KIND: ClassVar[int] = 2


@dataclass(slots=True)
class Shrink(_LiveRecord):
    """Everything of the array at *path* outside *shape* is removed."""

    FIELDS: ClassVar[str] = "ta"
    KIND: ClassVar[int] = 3

    path: str
    shape: tuple[int, ...]

    @property
    def subject(self) -> Hashable:
        """What it is about: the latest record of a subject counts."""
        return "shrink", self.path, self.shape


@dataclass(slots=True)
class UndoRecord(_LiveRecord):
    """The shard at *shard* of the array at *path*, stored under *key*, is about to get its next version.

    Another file or object may replace it, written under the key *temporary* ("" if there is none). If the file with
    the number *inode* (else 0) is appended to, its size changes from *old_nbytes* to *planned_nbytes*, *checksum* is
    the `reversed_checksum` of the new bytes, the hashes are the `hash_of` the index at the old end and of that at the
    new one, and *old_mtime_ns* is the time of the old version, −1 if it is not known. The commit stored no record
    that is later than `since`.
    """

    FIELDS: ClassVar[str] = "tattqqqqbbi"
    KIND: ClassVar[int] = 4

    path: str
    shard: tuple[int, ...]
    key: str
    temporary: str
    inode: int = 0
    old_nbytes: int = 0
    planned_nbytes: int = 0
    checksum: int = 0
    old_index_hash: bytes = b""
    new_index_hash: bytes = b""
    old_mtime_ns: int = UNKNOWN_TIME

    @property
    def subject(self) -> Hashable:
        """What it is about: the latest attempt found the shard whole, so earlier ones do not matter."""
        return "shard", self.key


@dataclass(slots=True)
class Checkpoint(_Record):
    """The payload lists records that are released."""

    FIELDS: ClassVar[str] = ""
    KIND: ClassVar[int] = 5


ChunkChange = Put | Erase
"""A change of one inner chunk."""

Live = Put | Erase | Shrink | UndoRecord
"""A record that is kept until it is released."""

Record = Live | Checkpoint

CLASSES: Final[dict[int, type[Record]]] = {
    record.KIND: record for record in (Put, Erase, Shrink, UndoRecord, Checkpoint)
}
"""The classes of records by their numbers in files."""

_NAMES: Final = {
    cls: [*(item.name for item in fields(cls)[1:] if not item.kw_only), "first_sequence"] for cls in CLASSES.values()
}
"""The fields of each class in the order in which they are packed."""


def _fields_of(cls: type[Record], version: int) -> str:
    """Return how the fields of a class are packed in a version: each version has those of the one before, and more."""
    if issubclass(cls, _LiveRecord) and version >= (8 if cls is UndoRecord else 9):
        return cls.FIELDS + "q"
    return cls.FIELDS[:-1] if cls is UndoRecord and version == 6 else cls.FIELDS


def pack_meta(record: Record) -> bytes:
    """Return the meta bytes of a record; raises `RefusedError` if they are too long."""
    packed, cls = b"", type(record)
    for name, how in zip(_NAMES[cls], _fields_of(cls, VERSION), strict=False):
        value: Any = getattr(record, name)
        if how in _INTEGERS:
            packed += value.to_bytes(_INTEGERS[how], "little", signed=how == "i")
            continue
        if how == "t":
            value = value.encode("utf-8", "surrogateescape")
        elif isinstance(value, ShardMark):
            value = _MARK.pack(*value)
        elif how != "b":
            value = struct.pack(f"<{len(value or ())}Q", *value or ())
        packed += _LENGTH.pack(len(value)) + value
    if len(packed) > MAX_META_NBYTES:
        raise RefusedError(f"a name of {len(packed)} bytes is too long for the journal")
    return packed


def unpack(kind: int, sequence: int, meta: bytes, payload: Payload, version: int = VERSION) -> Record:
    """Return the record packed in *meta*, of this *version*; raises `CorruptionError` if it is invalid."""
    cls = CLASSES[kind]
    values: list[Any] = []
    at = 0
    try:
        for how in _fields_of(cls, version):
            if how in _INTEGERS:
                at += _INTEGERS[how]
                values.append(int.from_bytes(meta[at - _INTEGERS[how] : at], "little", signed=how == "i"))
                if how == "i" and values[-1] // 10**9 not in _SECONDS:
                    raise CorruptionError(f"record {sequence} of the journal has a time that no file has")
                continue
            (nbytes,) = _LENGTH.unpack_from(meta, at)
            at += _LENGTH.size + nbytes
            data = meta[at - nbytes : at]
            if how == "a":
                values.append(struct.unpack(f"<{nbytes // 8}Q", data))
            elif how == "e":
                values.append(ShardMark(*_MARK.unpack(data)) if nbytes == _MARK.size else _two_numbers(data))
            else:
                values.append(data if how == "b" else data.decode("utf-8", "surrogateescape"))
    except struct.error:
        at = -1
    if at != len(meta):
        raise CorruptionError(f"record {sequence} of the journal is malformed")
    make: Callable[..., Record] = cls
    return make(sequence, payload=payload, **dict(zip(_NAMES[cls], values, strict=False)))


def _two_numbers(data: bytes) -> tuple[int, int] | None:
    return struct.unpack("<QQ", data) if data else None


def pack_ranges(sequences: Iterable[int]) -> bytes:
    """Return *sequences*, which ascend, as packed ranges."""
    numbers = np.fromiter(sequences, np.int64)
    is_first = np.diff(numbers, prepend=-2) != 1
    is_last = np.append(is_first[1:], True)[: len(numbers)]
    return np.stack([numbers[is_first], numbers[is_last] + 1], axis=1).astype("<u8").tobytes()


def unpack_ranges(record: Checkpoint) -> npt.NDArray[np.uint64]:
    """Return the ranges in the payload of a record, as rows; blocks.

    Raises `CorruptionError` if they do not precede the record.
    """
    nbytes = record.payload.nbytes
    if nbytes % _RANGE_NBYTES or nbytes > MAX_RANGES * _RANGE_NBYTES:
        raise CorruptionError(f"record {record.sequence} of the journal is malformed")
    bounds = np.frombuffer(record.payload.read(0, nbytes), "<u8")
    ranges = bounds.reshape(-1, 2)
    if (bounds[1:] < bounds[:-1]).any() or (ranges[:, 0] == ranges[:, 1]).any() or (bounds > record.sequence).any():
        raise CorruptionError(f"record {record.sequence} of the journal names records that are not before it")
    return ranges


def hash_of(index: Buffer) -> bytes:
    """Return the hash of an index, as used in undo records."""
    return hashlib.blake2b(index, digest_size=16).digest()


# Segments


_SEGMENT: Final = re.compile(r"[0-9]([0-9]{7,8})[0-9]{0,9}(?:\.v([0-9]{1,9}))?\.(?:journal|damaged)")


def new_name(number: int) -> str:
    """Return a unique name for the segment *number*."""
    return f"1{number:08}{secrets.randbelow(10**9):09}.v{VERSION}.journal"


def numbers_of(name: str) -> tuple[int, int] | None:
    """Return number and version of a segment, damaged or not; None if *name* is not that of a segment.

    Names of versions before 5 do not tell the version, which is then 4.
    """
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), int(match[2] or 4)) if match is not None else None


def damaged_name(name: str) -> str:
    """Return the name under which a damaged segment is kept."""
    return name.rpartition(".")[0] + ".damaged"


def salt_of(name: str) -> bytes:
    """Return the first bytes of all records of the segment *name*."""
    return hashlib.blake2b(name.partition(".")[0].encode(), digest_size=SALT_NBYTES).digest()


class Head(NamedTuple):
    """A record whose own checksum is right; its payload is not checked. *begin* and *end* are its bounds."""

    begin: int
    end: int
    kind: int
    sequence: int
    meta: bytes
    payload_nbytes: int
    payload_checksum: int


def pack_record(
    salt: bytes, sequence: int, kind: int, meta: bytes, payload_nbytes: int, payload_checksum: int
) -> bytes:
    """Return a record up to its payload."""
    covered = _RECORD.pack(payload_checksum, sequence, payload_nbytes, len(meta), kind) + meta
    return salt + _CHECKSUM.pack(crc32c(covered, crc32c(salt))) + covered


def meta_nbytes(data: bytes) -> int:
    """Return how many meta bytes the record that begins with *data* claims to have; 0 if it claims too many."""
    nbytes: int = _RECORD.unpack_from(data, _COVERED)[3]
    return nbytes if nbytes <= MAX_META_NBYTES else 0


def unpack_record(salt: bytes, begin: int, data: bytes) -> Head | None:
    """Return the record at *begin*; None if it is damaged, or if *data*, from there on, is too short."""
    if not data.startswith(salt) or len(data) < RECORD_NBYTES:
        return None
    payload_checksum, sequence, payload_nbytes, length, kind = _RECORD.unpack_from(data, _COVERED)
    stop = RECORD_NBYTES + length
    if length > MAX_META_NBYTES or len(data) < stop:
        return None
    if data[SALT_NBYTES:_COVERED] != _CHECKSUM.pack(crc32c(data[_COVERED:stop], crc32c(salt))):
        return None
    end = begin + stop + payload_nbytes
    return Head(begin, end, kind, sequence, data[RECORD_NBYTES:stop], payload_nbytes, payload_checksum)


# Checksums


def reversed_checksum(data: Buffer, before: int = 0) -> int:
    """Return the crc32c of *data* with the bytes of each 4 KiB reversed, continuing from *before*.

    All data that ends with its own crc32c, as chunks and indexes do, has the same crc32c, which so could not tell new
    bytes from old ones. Data in several pieces is passed in multiples of 4 KiB.
    """
    octets = np.frombuffer(data, np.uint8)
    nbytes = len(octets) // _BLOCK_NBYTES * _BLOCK_NBYTES
    blocks = octets[:nbytes].view(np.uint64).reshape(-1, _BLOCK_NBYTES // 8)[:, ::-1].byteswap()
    value = crc32c(np.ascontiguousarray(blocks).view(np.uint8).reshape(-1).data, before)
    return crc32c(octets[nbytes:][::-1].tobytes(), value)


def checksum_of(contents: Iterable[Content]) -> int:
    """Return the `reversed_checksum` of several contents, one after another; blocks."""
    value, waiting = 0, bytearray()
    for content in contents:
        for start, count in in_pieces(content.nbytes):
            waiting += content.read(start, count)
            if len(waiting) >= PIECE_NBYTES:
                nbytes = len(waiting) // _BLOCK_NBYTES * _BLOCK_NBYTES
                value = reversed_checksum(bytes(waiting[:nbytes]), value)
                del waiting[:nbytes]
    return reversed_checksum(bytes(waiting), value)
