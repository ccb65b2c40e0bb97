"""Records of the write-ahead log, and how they lie in its files.

The log is a directory of *segments*.  The name of a segment is `1`, its number in 8 digits, 9 random digits, and
`.journal`; numbers only grow.  A segment that held nothing any more may be used again: under a new name, which begins
with `2`.  What it is called tells the *salt* with which all its records begin, so that neither old records nor payloads
of the user can be taken for records.

A segment begins with 24 bytes, which all versions of the format share.  Integers are little endian.

    magic 8 | version uint32 | crc32c of the other fields uint32 | 8 bytes, here zero

Records follow, each right behind the other, and then the end mark, which each append writes anew:

    salt 8 | crc32c uint32 | crc32c of the payload uint32 | sequence uint64 | length of the payload uint64
    | length of the meta bytes uint32 | kind uint8 | 3 zero bytes | meta bytes | payload

The first checksum covers everything of the record but itself and the payload.  That of the payload is a
`reversed_checksum` in a segment that is used again, where old payloads may lie in the place of lost ones.  What is
behind the end mark is left of an earlier use.  Sequences ascend through all segments and are never used again, not even
after a failed append.

Meta bytes by kind.  Axes are uint64, strings are UTF-8 with undecodable bytes as they are:

- Put: mode, uid, gid (uint32), then as Erase.  The payload is the encoded inner chunk.
- Erase: fingerprint (16 bytes), superseded entry (flag, offset, nbytes), modification time (int64 seconds, uint32
  nanoseconds), number of axes (uint16), coordinates, path.
- Shrink: number of axes (uint16), shape, path.
- UndoRecord: the fields of `_UNDO`, coordinates of the shard, path, key and temporary key.  The payload is ranges of
  sequences, then for a shard that begins with its index the old index and the new one.
- Checkpoint: nothing.  The payload is ranges of sequences, each its first and the one behind its last (uint64).
- Carried: sequence (uint64), kind (uint8) and meta bytes of another record, which was live in a segment that was to go.
  It is that record still, by its sequence, wherever it is found.

What is read is input like any other: paths, keys and numbers may be of another's making.
"""

import enum
import errno
import hashlib
import os
import re
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import google_crc32c
import numpy as np
import trio

from shardfs.errors import CorruptionError, RefusedError, StoreError
from shardfs.format.sharding import MAX_INDEX_NBYTES
from shardfs.stores.base import Buffer, Content, Descriptor
from shardfs.stores.local.syscalls import translate

VERSION: Final = 3
HEADER_NBYTES: Final = 24
RECORD_NBYTES: Final = 40
"""Size of a record without its meta bytes and payload."""
MARK_NBYTES: Final = 8
"""Size of a salt and of an end mark."""
MAX_META_NBYTES: Final = 64 * 2**10
MAX_NAMED: Final = 2**24
"""How many records an undo record or a checkpoint names at most; a shard index has half as many entries."""

_MAGIC: Final = bytes.fromhex("d14a9be37c02f658")
_HEADER: Final = struct.Struct("<8sI")
_RECORD: Final = struct.Struct("<IQQIB3x")
_CHECKSUM: Final = struct.Struct("<I")
_COVERED: Final = MARK_NBYTES + _CHECKSUM.size
_MAX_SEQUENCE: Final = 2**62
_RANGE: Final = struct.Struct("<QQ")
_CHANGE: Final = struct.Struct("<16s?QQqIH")
_OWNER: Final = struct.Struct("<III")
_SHRINK: Final = struct.Struct("<H")
_UNDO: Final = struct.Struct("<?QQQQIQI16s16s?QHII")
_CARRIED: Final = struct.Struct("<QB")
_MAX_ENCODED_NBYTES: Final = MAX_INDEX_NBYTES + 2**10  # checksums come on top
_PIECE_NBYTES: Final = 2**20
_BLOCK_NBYTES: Final = 4096
_SECOND_NS: Final = 10**9


class Kind(enum.IntEnum):
    """Kinds of records, as files have them."""

    PUT = 1
    ERASE = 2
    SHRINK = 3
    UNDO = 4
    CHECKPOINT = 5
    CARRIED = 6


class Payload:
    """The bytes of one record, in the file of its segment; they stay readable when the file has been removed."""

    __slots__ = ("_place", "nbytes")

    def __init__(self, descriptor: Descriptor, offset: int, nbytes: int) -> None:
        self._place = descriptor, offset
        self.nbytes = nbytes

    @property
    def offset(self) -> int:
        """Where they lie in the file."""
        return self._place[1]

    def move(self, to: "Payload") -> None:
        """Read them from where *to*, which has the same bytes, has them; readers may be at work in other threads."""
        self._place = to._place

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return exactly *nbytes* bytes from *offset*, which lie within the payload; blocks."""
        self._check(offset, nbytes)
        descriptor, begin = self._place
        found = b""
        while len(found) < nbytes:
            try:
                piece = os.pread(descriptor.fd, nbytes - len(found), begin + offset + len(found))
            except OSError as error:
                raise translate(error, "the journal") from None
            if not piece:
                raise StoreError("the journal was cut short by another program")
            found = found + piece if found else piece
        return found

    async def read_soon(self, offset: int, nbytes: int) -> Buffer:
        """Return what `read` returns: at once if the page cache has it, else by a thread."""
        self._check(offset, nbytes)
        buffer = np.empty(nbytes, np.uint8).data
        descriptor, begin = self._place
        try:
            if os.preadv(descriptor.fd, [buffer], begin + offset, os.RWF_NOWAIT) == nbytes:
                return buffer
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise translate(error, "the journal") from None
        return await trio.to_thread.run_sync(self.read, offset, nbytes)

    def _check(self, offset: int, nbytes: int) -> None:
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of a payload of {self.nbytes}")


_UNPLACED: Final = Payload.__new__(Payload)
"""What a record has for a payload before it is appended."""


@dataclass(slots=True)
class Put:
    """An inner chunk is to have the bytes *payload*; an append to a log gives a record its sequence and its payload.

    *path* and *fingerprint* are those of its array, *superseded* is the entry (offset, nbytes) of the shard index that
    the chunk had when it was published, or what `Array.stored_entry` says instead, None if there was no chunk.
    """

    kind: ClassVar[Kind] = Kind.PUT

    sequence: int
    path: str
    coords: tuple[int, ...]
    fingerprint: bytes
    superseded: tuple[int, int] | None
    mtime_ns: int
    mode: int
    uid: int
    gid: int
    payload: Payload = _UNPLACED

    def meta(self) -> bytes:
        """Return the meta bytes; raises `RefusedError` if they are too many."""
        return _OWNER.pack(self.mode, self.uid, self.gid) + _change_meta(self)


@dataclass(slots=True)
class Erase:
    """An inner chunk is to be emptied; fields as in `Put`."""

    kind: ClassVar[Kind] = Kind.ERASE

    sequence: int
    path: str
    coords: tuple[int, ...]
    fingerprint: bytes
    superseded: tuple[int, int] | None
    mtime_ns: int

    def meta(self) -> bytes:
        """Return the meta bytes; raises `RefusedError` if they are too many."""
        return _change_meta(self)


Change = Put | Erase
"""What is to become of one inner chunk."""


@dataclass(slots=True)
class Shrink:
    """Everything of the array at *path* that lies outside *shape* is to be emptied."""

    kind: ClassVar[Kind] = Kind.SHRINK

    sequence: int
    path: str
    shape: tuple[int, ...]

    def meta(self) -> bytes:
        """Return the meta bytes; raises `RefusedError` if they are too many."""
        return _bounded(_SHRINK.pack(len(self.shape)) + _pack_axes(self.shape) + _encoded(self.path))


@dataclass(slots=True)
class UndoRecord:
    """The shard at *shard* of the array at *path*, stored under *key*, is about to get its next version.

    *inode* is that of the file that is changed in place, None where another file or object takes its place, written
    under the key *temporary* ("" if there is none).  Its size goes from *old_nbytes* to *planned_nbytes*, and
    *checksum* is the `reversed_checksum` of what it will have from *checked_from* on: of all bytes that the commit
    writes, but for a new index at the beginning.  The old index lies at *index_offset*; hashes are those of `hash_of`.
    If *replaces_head* the index is at the beginning of the shard.
    """

    kind: ClassVar[Kind] = Kind.UNDO

    sequence: int
    path: str
    shard: tuple[int, ...]
    key: str
    inode: int | None
    old_nbytes: int
    planned_nbytes: int
    checked_from: int
    checksum: int
    index_offset: int
    index_nbytes: int
    old_index_hash: bytes
    new_index_hash: bytes
    replaces_head: bool
    temporary: str
    nranges: int
    payload: Payload = _UNPLACED

    @property
    def old_head(self) -> bytes:
        """The index that the shard begins with, if *replaces_head*; blocks."""
        return self._head(0)

    @property
    def new_head(self) -> bytes:
        """The index that it is to begin with; blocks."""
        return self._head(1)

    def records(self) -> Iterator[range]:
        """Yield the sequences of the records that the new version holds; blocks.

        Raises `CorruptionError` if they are not earlier ones.
        """
        return unpack_ranges(self.payload, self.nranges, self.sequence)

    def meta(self) -> bytes:
        """Return the meta bytes; raises `RefusedError` if they are too many."""
        path, key, temporary = (_encoded(text) for text in (self.path, self.key, self.temporary))
        fixed = _UNDO.pack(
            self.inode is not None,
            self.inode or 0,
            self.old_nbytes,
            self.planned_nbytes,
            self.checked_from,
            self.checksum,
            self.index_offset,
            self.index_nbytes,
            self.old_index_hash,
            self.new_index_hash,
            self.replaces_head,
            self.nranges,
            len(self.shard),
            len(path),
            len(key),
        )
        return _bounded(fixed + _pack_axes(self.shard) + path + key + temporary)

    def _head(self, which: int) -> bytes:
        nbytes = self.index_nbytes if self.replaces_head else 0
        return self.payload.read(self.nranges * _RANGE.size + which * nbytes, nbytes)


@dataclass(slots=True)
class Checkpoint:
    """Records that need not be remembered any more."""

    sequence: int
    payload: Payload

    def records(self) -> Iterator[range]:
        """Yield their sequences; blocks.  Raises `CorruptionError` if they are not earlier ones."""
        return unpack_ranges(self.payload, self.payload.nbytes // _RANGE.size, self.sequence)


Live = Put | Erase | Shrink | UndoRecord
"""A record that has to be remembered until it is released."""

Record = Live | Checkpoint


def unpack(kind: int, sequence: int, meta: bytes, payload: Payload) -> Record:
    """Return the record that *meta* packs, with its own sequence; raises `CorruptionError` if it is none."""
    try:
        match kind:
            case Kind.PUT:
                mode, uid, gid = _OWNER.unpack_from(meta)
                return Put(sequence, *_unpack_change(meta, _OWNER.size), mode, uid, gid, payload)
            case Kind.ERASE:
                return Erase(sequence, *_unpack_change(meta, 0))
            case Kind.SHRINK:
                (ndim,) = _SHRINK.unpack_from(meta)
                shape, end = _unpack_axes(meta, _SHRINK.size, ndim)
                return Shrink(sequence, _text(meta[end:]), shape)
            case Kind.UNDO:
                return _unpack_undo(sequence, meta, payload)
            case Kind.CHECKPOINT if payload.nbytes % _RANGE.size == 0:
                return Checkpoint(sequence, payload)
            case Kind.CARRIED:
                own, kind = _CARRIED.unpack_from(meta)
                if own < sequence and kind not in (Kind.CHECKPOINT, Kind.CARRIED):
                    return unpack(kind, own, meta[_CARRIED.size :], payload)
    except (struct.error, CorruptionError):
        pass
    raise CorruptionError(f"record {sequence} of the journal is malformed")


def meta_of_carried(sequence: int, kind: int, meta: bytes) -> bytes:
    """Return the meta bytes of a record that is carried forward, of which these are its own."""
    return meta if kind == Kind.CARRIED else _CARRIED.pack(sequence, kind) + meta


def pack_ranges(sequences: Iterable[int]) -> list[bytes]:
    """Return *sequences*, which ascend, as packed ranges."""
    packed: list[bytes] = []
    start = stop = 0
    for sequence in sequences:
        if sequence != stop:
            if start < stop:
                packed.append(_RANGE.pack(start, stop))
            start = sequence
        stop = sequence + 1
    if start < stop:
        packed.append(_RANGE.pack(start, stop))
    return packed


def unpack_ranges(payload: Payload, nranges: int, limit: int) -> Iterator[range]:
    """Yield the first *nranges* ranges of a payload; raises `CorruptionError` if one is not before *limit*."""
    last = named = 0
    step = _PIECE_NBYTES // _RANGE.size
    for first in range(0, nranges, step):
        packed = payload.read(first * _RANGE.size, min(step, nranges - first) * _RANGE.size)
        for start, stop in _RANGE.iter_unpack(packed):
            named += stop - start
            if not last <= start < stop <= limit or named > MAX_NAMED:
                raise CorruptionError(f"record {limit} of the journal names records {start} to {stop}")
            yield range(start, stop)
            last = stop


def hash_of(index: Buffer) -> bytes:
    """Return what an undo record says of an index."""
    return hashlib.blake2b(index, digest_size=16).digest()


# Segments


_SEGMENT: Final = re.compile(r"[12]([0-9]{8})[0-9]{9}\.(journal|damaged)")
EARLIER_SEGMENT: Final = re.compile(r"[0-9]{8,17}\.(journal|damaged)")
"""What versions before this one call a segment."""


def new_name(number: int, *, is_used_again: bool = False) -> str:
    """Return a name that no segment ever had, for the segment *number*."""
    return f"{2 if is_used_again else 1}{number:08}{secrets.randbelow(10**9):09}.journal"


def number_of(name: str) -> int | None:
    """Return the number of a segment, damaged or not; None if *name* is not that of one."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match is not None else None


def damaged_name(name: str) -> str:
    """Return the name under which a segment is kept if it is damaged."""
    return name.partition(".")[0] + ".damaged"


class Marks(NamedTuple):
    """What records of a segment begin with, what is behind its last one, and how payloads are checked."""

    salt: bytes
    end: bytes
    checksum: Callable[[Buffer, int], int]

    @classmethod
    def of(cls, name: str) -> "Marks":
        """Return those of the segment called *name*."""
        digest = hashlib.blake2b(name.partition(".")[0].encode(), digest_size=2 * MARK_NBYTES).digest()
        return cls(digest[:MARK_NBYTES], digest[MARK_NBYTES:], reversed_checksum if name[0] == "2" else checksum)


class Head(NamedTuple):
    """A record whose own checksum matches; its payload was not looked at.  *begin* and *end* are its bounds."""

    begin: int
    end: int
    kind: int
    sequence: int
    meta: bytes
    payload_nbytes: int
    payload_checksum: int

    @property
    def own_kind(self) -> int:
        """Kind of the record, also where it was carried forward."""
        is_carried = self.kind == Kind.CARRIED and len(self.meta) >= _CARRIED.size
        return self.meta[_CARRIED.size - 1] if is_carried else self.kind


def pack_header(version: int = VERSION) -> bytes:
    """Return the first bytes of a segment."""
    salt = bytes(MARK_NBYTES)
    return (
        _HEADER.pack(_MAGIC, version) + _CHECKSUM.pack(checksum(salt, checksum(_HEADER.pack(_MAGIC, version)))) + salt
    )


def unpack_version(header: bytes) -> int | None:
    """Return the version of the format of the segment that begins with *header*; None if that is damaged."""
    if len(header) < HEADER_NBYTES:
        return None
    magic, version = _HEADER.unpack_from(header)
    found = checksum(header[-MARK_NBYTES:], checksum(header[: _HEADER.size]))
    is_sound = magic == _MAGIC and header[_HEADER.size : -MARK_NBYTES] == _CHECKSUM.pack(found)
    return int(version) if is_sound else None


def pack_record(
    salt: bytes, sequence: int, kind: int, meta: bytes, payload_nbytes: int, payload_checksum: int
) -> bytes:
    """Return a record up to its payload."""
    covered = _RECORD.pack(payload_checksum, sequence, payload_nbytes, len(meta), kind) + meta
    return salt + _CHECKSUM.pack(checksum(covered, checksum(salt))) + covered


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
    if data[MARK_NBYTES:_COVERED] != _CHECKSUM.pack(checksum(data[_COVERED:stop], checksum(salt))):
        return None
    end = begin + stop + payload_nbytes
    return Head(begin, end, kind, sequence, data[RECORD_NBYTES:stop], payload_nbytes, payload_checksum)


# Checksums


def checksum(data: Buffer, before: int = 0) -> int:
    """Return the crc32c of *data*, behind bytes whose crc32c is *before*."""
    if not isinstance(data, bytes):  # the library takes no other kind of buffer as it is
        if not len(data):
            return before
        data = np.frombuffer(data, np.uint8)  # type: ignore[assignment]
    value: int = google_crc32c.extend(before, data)
    return value


def reversed_checksum(data: Buffer, before: int = 0) -> int:
    """Return the crc32c of *data* with the bytes of each 4 KiB reversed, behind bytes of which that is *before*.

    Bytes that end with their own crc32c, as chunks and indexes do, have one crc32c whatever they are: it does not tell
    new bytes from old ones in their place.  Data that comes in pieces comes in multiples of 4 KiB.
    """
    found = np.frombuffer(data, np.uint8)
    nbytes = len(found) // _BLOCK_NBYTES * _BLOCK_NBYTES
    blocks = found[:nbytes].view(np.uint64).reshape(-1, _BLOCK_NBYTES // 8)[:, ::-1].byteswap()
    value = checksum(np.ascontiguousarray(blocks).view(np.uint8).reshape(-1).data, before)
    return checksum(found[nbytes:][::-1].tobytes(), value)


def checksum_of(contents: Iterable[Content]) -> int:
    """Return the `reversed_checksum` of contents behind each other; blocks."""
    found, waiting = 0, bytearray()
    for content in contents:
        for start in range(0, content.nbytes, _PIECE_NBYTES):
            waiting += content.read(start, min(_PIECE_NBYTES, content.nbytes - start))
            if len(waiting) >= _PIECE_NBYTES:
                nbytes = len(waiting) // _BLOCK_NBYTES * _BLOCK_NBYTES
                found = reversed_checksum(bytes(waiting[:nbytes]), found)
                del waiting[:nbytes]
    return reversed_checksum(bytes(waiting), found)


# Fields


def _unpack_undo(sequence: int, meta: bytes, payload: Payload) -> UndoRecord:
    has_inode, inode, *fields, nranges, ndim, path_nbytes, key_nbytes = _UNDO.unpack_from(meta)
    shard, path_at = _unpack_axes(meta, _UNDO.size, ndim)
    key_at = path_at + path_nbytes
    path, key, temporary = meta[path_at:key_at], meta[key_at : key_at + key_nbytes], meta[key_at + key_nbytes :]
    rest: list[Any] = [inode if has_inode else None, *fields, _text(temporary), nranges, payload]
    undo = UndoRecord(sequence, _text(path), shard, _text(key), *rest)
    heads_nbytes = 2 * undo.index_nbytes if undo.replaces_head else 0
    if key_at + key_nbytes > len(meta) or nranges > MAX_NAMED or undo.index_nbytes > _MAX_ENCODED_NBYTES:
        raise struct.error
    if payload.nbytes != nranges * _RANGE.size + heads_nbytes:
        raise struct.error
    return undo


def _change_meta(change: Put | Erase) -> bytes:
    if len(change.fingerprint) != 16:
        raise ValueError(f"a fingerprint of {len(change.fingerprint)} bytes")
    entry, time = change.superseded or (0, 0), divmod(change.mtime_ns, _SECOND_NS)
    fixed = _CHANGE.pack(change.fingerprint, change.superseded is not None, *entry, *time, len(change.coords))
    return _bounded(fixed + _pack_axes(change.coords) + _encoded(change.path))


def _unpack_change(meta: bytes, offset: int) -> tuple[str, tuple[int, ...], bytes, tuple[int, int] | None, int]:
    fingerprint, has_chunk, start, nbytes, seconds, ns, ndim = _CHANGE.unpack_from(meta, offset)
    coords, end = _unpack_axes(meta, offset + _CHANGE.size, ndim)
    superseded = (start, nbytes) if has_chunk else None
    return _text(meta[end:]), coords, fingerprint, superseded, seconds * _SECOND_NS + ns


def _pack_axes(axes: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(axes)}Q", *axes)


def _unpack_axes(meta: bytes, offset: int, ndim: int) -> tuple[tuple[int, ...], int]:
    return struct.unpack_from(f"<{ndim}Q", meta, offset), offset + 8 * ndim


def _bounded(meta: bytes) -> bytes:
    if len(meta) > MAX_META_NBYTES - _CARRIED.size - _OWNER.size:
        raise RefusedError(f"a name of {len(meta)} bytes is too long for the journal")
    return meta


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogateescape")
