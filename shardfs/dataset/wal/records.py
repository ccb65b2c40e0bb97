"""What a journal holds: records of changes that were published and are not in the store yet.

Here is what a record says, and how that is packed; `shardfs.dataset.wal.segments` puts it into files.  A record
has *meta* bytes of bounded length and a payload, which stays in its file: memory holds a reference.

Meta, little endian, by kind.  Axes are uint64, strings are UTF-8 with undecodable bytes as they are:

- Put: fingerprint (16 bytes), superseded (flag, offset, nbytes), modification time (int64 seconds, uint32 nanoseconds),
  mode, uid, gid (uint32), number of axes (uint16), coordinates, path.  The payload is the encoded inner chunk.
- Erase: as Put, without mode, uid and gid.  No payload.
- Shrink: number of axes (uint16), shape, path.  No payload.
- UndoRecord: identity (flag, device, inode), sizes and flags as in `_INTENT`, coordinates of the shard, path, key and
  temporary key.  The payload is ranges of sequences, the old index, the planned index.
- Checkpoint: nothing.  The payload is ranges of sequences, each its first and the one behind its last (uint64).
- Carried: another record, which was live in a segment that was to go: its sequence (uint64), its kind (uint8), its
  meta.  The payload is that of the record.  It is that record still, by its sequence, wherever it is found.

What is read is input like any other: paths, keys and numbers may be of another's making.
"""

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from shardfs.dataset.wal.payload import Payload
from shardfs.errors import CorruptionError, RefusedError
from shardfs.format.sharding import MAX_INDEX_NBYTES

MAX_META_NBYTES: Final = 64 * 2**10
MAX_NAMED: Final = 2**24
"""How many records an intent or a done record names at most; a shard index has half as many entries."""

RANGE_NBYTES: Final = 16

_RANGE: Final = struct.Struct("<QQ")
_ERASE: Final = struct.Struct("<16s?QQqIH")
_OWNER: Final = struct.Struct("<III")
_SHRINK: Final = struct.Struct("<H")
_INTENT: Final = struct.Struct("<?QQQQQ?QQHII")
_CARRIED: Final = struct.Struct("<QB")
_MAX_ENCODED_NBYTES: Final = MAX_INDEX_NBYTES + 2**10  # checksums come on top
_PIECE_RANGES: Final = 2**16
_SECOND_NS: Final = 10**9


class Kind(enum.IntEnum):
    """Kinds of records, as files have them."""

    PUT = 1
    ERASE = 2
    SHRINK = 3
    UNDO = 4
    CHECKPOINT = 5
    CARRIED = 6


@dataclass(frozen=True, slots=True)
class Put:
    """An inner chunk is to have the bytes *payload*.

    *path* and *fingerprint* are those of its array, *superseded* is the entry (offset, nbytes) of the shard index that
    the chunk had when it was published, or what `Array.stored_entry` says instead, None if there was no chunk.
    """

    sequence: int
    path: str
    coords: tuple[int, ...]
    fingerprint: bytes
    superseded: tuple[int, int] | None
    mtime_ns: int
    mode: int
    uid: int
    gid: int
    payload: Payload


@dataclass(frozen=True, slots=True)
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
        """Return the packed record, without its sequence."""
        return _pack_change(self.path, self.coords, self.fingerprint, self.superseded, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class Shrink:
    """Everything of the array at *path* that lies outside *shape* is to be emptied."""

    kind: ClassVar[Kind] = Kind.SHRINK

    sequence: int
    path: str
    shape: tuple[int, ...]

    def meta(self) -> bytes:
        """Return the packed record, without its sequence."""
        return _bounded(_SHRINK.pack(len(self.shape)) + _pack_axes(self.shape) + _encoded(self.path))


@dataclass(frozen=True, slots=True)
class UndoRecord:
    """The shard at *shard* of the array at *path*, stored under *key*, is about to get its next version.

    *identity* is (device, inode) of the object and *old_nbytes* its size, None and 0 if it is new.
    *index_offset_old* is where its index lies.  With *is_replacement* the new version is written under *temporary*
    ("" if there is none) and takes the place of the old one; else it is an append.
    """

    sequence: int
    path: str
    shard: tuple[int, ...]
    key: str
    identity: tuple[int, int] | None
    old_nbytes: int
    planned_nbytes: int
    index_offset_old: int
    is_replacement: bool
    temporary: str
    nranges: int
    old_index_nbytes: int
    payload: Payload

    @property
    def old_index(self) -> bytes:
        """The encoded index that the shard has; blocks."""
        return self.payload.read(self.nranges * RANGE_NBYTES, self.old_index_nbytes)

    @property
    def planned_index(self) -> bytes:
        """The encoded index that the shard is to have; blocks."""
        begin = self.nranges * RANGE_NBYTES + self.old_index_nbytes
        return self.payload.read(begin, self.payload.nbytes - begin)

    def records(self) -> Iterator[range]:
        """Yield the sequences of the records that the new version holds; blocks.

        Raises `CorruptionError` if they are not earlier ones.
        """
        return unpack_ranges(self.payload, self.nranges, self.sequence)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Records that need not be remembered any more."""

    sequence: int
    payload: Payload

    def records(self) -> Iterator[range]:
        """Yield their sequences; blocks.  Raises `CorruptionError` if they are not earlier ones."""
        return unpack_ranges(self.payload, self.payload.nbytes // RANGE_NBYTES, self.sequence)


Record = Put | Erase | Shrink | UndoRecord | Checkpoint


def meta_of_put(
    path: str,
    coords: tuple[int, ...],
    fingerprint: bytes,
    superseded: tuple[int, int] | None,
    mtime_ns: int,
    mode: int,
    uid: int,
    gid: int,
) -> bytes:
    """Return the meta bytes of a `Put`; raises `RefusedError` if they are too many."""
    return _OWNER.pack(mode, uid, gid) + _pack_change(path, coords, fingerprint, superseded, mtime_ns)


def meta_of_undo(
    path: str,
    shard: tuple[int, ...],
    key: str,
    identity: tuple[int, int] | None,
    old_nbytes: int,
    planned_nbytes: int,
    index_offset_old: int,
    is_replacement: bool,
    temporary: str,
    nranges: int,
    old_index_nbytes: int,
) -> bytes:
    """Return the meta bytes of an `UndoRecord`; raises `RefusedError` if they are too many."""
    names = [_encoded(text) for text in (path, key, temporary)]
    fixed = _INTENT.pack(
        identity is not None,
        *(identity or (0, 0)),
        old_nbytes,
        planned_nbytes,
        index_offset_old,
        is_replacement,
        nranges,
        old_index_nbytes,
        len(shard),
        len(names[0]),
        len(names[1]),
    )
    return _bounded(fixed + _pack_axes(shard) + b"".join(names))


def pack_ranges(sequences: Iterable[int]) -> bytes:
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
    return b"".join(packed)


def unpack_ranges(payload: Payload, nranges: int, limit: int) -> Iterator[range]:
    """Yield the first *nranges* ranges of a payload; raises `CorruptionError` if one is not before *limit*."""
    last = named = 0
    for first in range(0, nranges, _PIECE_RANGES):
        count = min(_PIECE_RANGES, nranges - first)
        for start, stop in _RANGE.iter_unpack(payload.read(first * RANGE_NBYTES, count * RANGE_NBYTES)):
            named += stop - start
            if not last <= start < stop <= limit or named > MAX_NAMED:
                raise CorruptionError(f"record {limit} of the journal names records {start} to {stop}")
            yield range(start, stop)
            last = stop


def meta_of_carried(sequence: int, kind: int, meta: bytes) -> bytes:
    """Return the meta bytes of a record that is carried forward, of which these are its own."""
    return meta if kind == Kind.CARRIED else _CARRIED.pack(sequence, kind) + meta


def unpack(kind: int, sequence: int, meta: bytes, payload: Payload) -> Record:
    """Return the record that *meta* packs, with its own sequence; raises `CorruptionError` if it is none."""
    try:
        match kind:
            case Kind.PUT:
                mode, uid, gid = _OWNER.unpack_from(meta)
                path, coords, fingerprint, superseded, mtime_ns = _unpack_change(meta, _OWNER.size)
                return Put(sequence, path, coords, fingerprint, superseded, mtime_ns, mode, uid, gid, payload)
            case Kind.ERASE:
                return Erase(sequence, *_unpack_change(meta, 0))
            case Kind.SHRINK:
                (ndim,) = _SHRINK.unpack_from(meta)
                shape, end = _unpack_axes(meta, _SHRINK.size, ndim)
                return Shrink(sequence, _text(meta[end:]), shape)
            case Kind.UNDO:
                return _unpack_intent(sequence, meta, payload)
            case Kind.CHECKPOINT if payload.nbytes % RANGE_NBYTES == 0:
                return Checkpoint(sequence, payload)
            case Kind.CARRIED:
                own, kind = _CARRIED.unpack_from(meta)
                if own < sequence and kind not in (Kind.CHECKPOINT, Kind.CARRIED):
                    return unpack(kind, own, meta[_CARRIED.size :], payload)
    except (struct.error, CorruptionError):
        pass
    raise CorruptionError(f"record {sequence} of the journal is malformed")


def _unpack_intent(sequence: int, meta: bytes, payload: Payload) -> UndoRecord:
    has_identity, device, inode, old, planned, index_offset, is_replacement, nranges, old_index, ndim, path, key = (
        _INTENT.unpack_from(meta)
    )
    shard, at = _unpack_axes(meta, _INTENT.size, ndim)
    planned_index = payload.nbytes - nranges * RANGE_NBYTES - old_index
    if at + path + key > len(meta) or nranges > MAX_NAMED:
        raise struct.error
    if old_index > _MAX_ENCODED_NBYTES or not 0 <= planned_index <= _MAX_ENCODED_NBYTES:
        raise struct.error
    return UndoRecord(
        sequence,
        _text(meta[at : at + path]),
        shard,
        _text(meta[at + path : at + path + key]),
        (device, inode) if has_identity else None,
        old,
        planned,
        index_offset,
        is_replacement,
        _text(meta[at + path + key :]),
        nranges,
        old_index,
        payload,
    )


def _pack_change(
    path: str,
    coords: tuple[int, ...],
    fingerprint: bytes,
    superseded: tuple[int, int] | None,
    mtime_ns: int,
) -> bytes:
    if len(fingerprint) != 16:
        raise ValueError(f"a fingerprint of {len(fingerprint)} bytes")
    has_chunk, entry = superseded is not None, superseded or (0, 0)
    fixed = _ERASE.pack(fingerprint, has_chunk, *entry, *divmod(mtime_ns, _SECOND_NS), len(coords))
    return _bounded(fixed + _pack_axes(coords) + _encoded(path))


def _unpack_change(meta: bytes, offset: int) -> tuple[str, tuple[int, ...], bytes, tuple[int, int] | None, int]:
    fingerprint, has_chunk, start, nbytes, seconds, ns, ndim = _ERASE.unpack_from(meta, offset)
    coords, end = _unpack_axes(meta, offset + _ERASE.size, ndim)
    superseded = (start, nbytes) if has_chunk else None
    return _text(meta[end:]), coords, fingerprint, superseded, seconds * _SECOND_NS + ns


def _pack_axes(axes: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(axes)}Q", *axes)


def _unpack_axes(meta: bytes, offset: int, ndim: int) -> tuple[tuple[int, ...], int]:
    return struct.unpack_from(f"<{ndim}Q", meta, offset), offset + 8 * ndim


def _bounded(meta: bytes) -> bytes:
    if len(meta) > MAX_META_NBYTES - _CARRIED.size:
        raise RefusedError(f"a name of {len(meta)} bytes is too long for the journal")
    return meta


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogateescape")
