"""The shard index: where the encoded bytes of each inner chunk are in the shard.

After an interrupted append there is no index at the end. The last valid index before it still describes everything that
was readable before the append: `find_last_index` finds it.

Source: specification of the `sharding_indexed` codec 1.0, "Binary shard format".
"""

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.codecs import (
    CRC32C_NBYTES,
    composed_order,
    crc32c,
    decode,
    encode,
    parse_chain,
    parse_endian,
    split_chain,
)
from shardfs.format.document import Extension
from shardfs.format.members import Buffer

EMPTY: Final = 2**64 - 1
ENTRY_NBYTES: Final = 16
_EMPTY: Final = np.uint64(EMPTY)
Entries = npt.NDArray[np.uint64]  # rows of `offset` and `nbytes`
_ROW: Final = 2048  # consecutive positions in a row of a block; the rows are processed side by side
_ROWS: Final = 1024
_ONES: Final = 0xFFFFFFFF
_DTYPES: Final[dict[str, np.dtype[np.uint64]]] = {"little": np.dtype("<u8"), "big": np.dtype(">u8")}


@dataclass(frozen=True, slots=True)
class IndexCodecs:
    """The index codecs of one sharding codec, all of fixed size."""

    endian: str
    order: tuple[int, ...]
    checksums: tuple[Extension, ...]

    @classmethod
    def parse(cls, codecs: Sequence[Extension], ndim: int) -> "IndexCodecs":
        """Parse the `index_codecs` of shards with *ndim* axes; the index itself has one axis more."""
        chain = split_chain(parse_chain(codecs, "index_codecs"), "index_codecs")
        if chain.serializer.name != "bytes":
            raise MetadataError(f"index_codecs cannot be serialized by {chain.serializer.name}")
        for codec in chain.before:
            if codec.name != "transpose":
                raise MetadataError(f"index_codecs has an unknown codec {codec.name!r}")
        for codec in chain.after:
            if codec.name != "crc32c":
                raise MetadataError(f"index_codecs has {codec.name}, which is unknown or of variable size")
            codec.expect()
        return cls(parse_endian(chain.serializer), composed_order(chain.before, ndim + 1), chain.after)

    @property
    def dtype(self) -> np.dtype[np.uint64]:
        """The type of a number in the stored index."""
        return _DTYPES[self.endian]

    def nbytes(self, nentries: int) -> int:
        """Return the size of an encoded index with *nentries* entries."""
        return ENTRY_NBYTES * nentries + CRC32C_NBYTES * len(self.checksums)

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> "ShardIndex":
        """Decode the index of a shard of *shard_nbytes* bytes.

        Raises `CorruptionError` if a checksum does not match. Entries are only checked when they are used, so that a
        damaged one does not affect others.
        """
        numbers: Buffer = memoryview(encoded)
        size = ENTRY_NBYTES * math.prod(chunks_per_shard)
        if self.checksums:
            numbers = decode(self.checksums, numbers, size)
        entries: npt.NDArray[np.uint64] = np.frombuffer(numbers, dtype=self.dtype)
        if self.order != tuple(range(len(self.order))):
            stored_shape = tuple((*chunks_per_shard, 2)[axis] for axis in self.order)
            entries = entries.reshape(stored_shape).transpose(np.argsort(self.order))
        native = np.ascontiguousarray(entries, dtype=np.uint64).reshape(-1)
        return ShardIndex(native.data.cast("B").cast("Q"), encoded, shard_nbytes)

    def encode(self, values: npt.NDArray[np.uint64], chunks_per_shard: tuple[int, ...]) -> bytes:
        """Encode an index given as rows of `offset` and `nbytes`, in C order."""
        stored = values.reshape(*chunks_per_shard, 2).transpose(self.order)
        return encode(self.checksums, stored.astype(self.dtype).tobytes())


@dataclass(frozen=True, slots=True)
class NoIndex(IndexCodecs):
    """The index of a chunk file of an unsharded array, treated as a shard of one chunk: it has no bytes.

    Its single entry covers the whole file, so an empty file is an empty chunk.
    """

    def nbytes(self, nentries: int) -> int:
        """Return 0."""
        return 0

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> "ShardIndex":
        """Return the index with its one entry: the whole shard of *shard_nbytes* bytes."""
        return ShardIndex(memoryview(array("Q", (0, shard_nbytes))), encoded, shard_nbytes)

    def encode(self, values: npt.NDArray[np.uint64], chunks_per_shard: tuple[int, ...]) -> bytes:
        """Return no bytes."""
        return b""


NO_INDEX: Final = NoIndex("little", (), ())


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """A decoded index: `offset` and `nbytes` of every entry, in C order.

    *values* is flat, of the format "Q": the two numbers of an entry, then those of the next. Both are `EMPTY` for a
    chunk that is not stored. *encoded* are the stored bytes, by which one can check later whether the index is still in
    place.
    """

    values: "memoryview[int]"
    encoded: bytes
    shard_nbytes: int

    @property
    def nbytes(self) -> int:
        """The memory taken by the index."""
        return len(self.encoded) + self.values.nbytes

    @property
    def nentries(self) -> int:
        """Number of entries, including empty ones."""
        return len(self.values) // 2

    def range(self, entry: int) -> tuple[int, int] | None:
        """Return offset and length of inner chunk *entry* within the shard; None if it is missing.

        Raises `CorruptionError` for a half-empty entry, and for one that extends beyond the shard.
        """
        offset = self.values[2 * entry]
        nbytes = self.values[2 * entry + 1]
        if offset + nbytes <= self.shard_nbytes:
            return offset, nbytes
        if offset == EMPTY and nbytes == EMPTY:
            return None
        raise CorruptionError(
            f"entry {entry} of the shard index names bytes {offset} to {offset + nbytes} of a shard of "
            f"{self.shard_nbytes} bytes"
        )

    @property
    def first_live_byte(self) -> int:
        """The offset of the first inner chunk; the end of the shard if there are no chunks."""
        return int(self.entries[self.sound, 0].min(initial=np.uint64(self.shard_nbytes)))

    @property
    def live_nbytes(self) -> int:
        """The size of all inner chunks and the index; bytes shared by entries count several times."""
        return int(self.entries[self.sound, 1].sum()) + len(self.encoded)

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """For each row of `entries`, the entry that it is of: here, its number."""
        return np.arange(self.nentries, dtype=np.uint64)

    def select(self, entry: int, count: int, stride: int) -> Entries:
        """Return the rows of *count* entries, the first of which is *entry*, *stride* apart."""
        return self.entries[entry : entry + stride * (count - 1) + 1 : stride]

    def entry(self, entry: int) -> tuple[int, int] | None:
        """Return offset and length of inner chunk *entry*, unchecked; None if it is missing."""
        offset, nbytes = self.values[2 * entry], self.values[2 * entry + 1]
        return None if offset == EMPTY and nbytes == EMPTY else (offset, nbytes)

    @property
    def entries(self) -> Entries:
        """A read-only view of all entries."""
        return np.frombuffer(self.values.toreadonly(), dtype=np.uint64).reshape(-1, 2)

    @property
    def sound(self) -> npt.NDArray[np.bool_]:
        """For each entry, whether its range is within the shard."""
        return are_sound(self.entries, self.shard_nbytes)


@dataclass(frozen=True, eq=False)
class ListedIndex(ShardIndex):
    """An index that lists its entries: *ids* in order. An entry is an id, not a position."""

    ids: npt.NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        """The memory taken by the index."""
        return len(self.encoded) + self.values.nbytes + self.ids.nbytes

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """The ids."""
        return self.ids

    def range(self, entry: int) -> tuple[int, int] | None:
        """Return offset and length of the chunk with the id *entry* in the shard; None if it is not listed."""
        position = self._position(entry)
        if position is None:
            return None
        offset, nbytes = self.values[2 * position], self.values[2 * position + 1]
        if offset + nbytes <= self.shard_nbytes:
            return offset, nbytes
        raise CorruptionError(
            f"an index that lists ids names bytes {offset} to {offset + nbytes} of a shard of {self.shard_nbytes} "
            f"bytes for chunk {entry}"
        )

    def entry(self, entry: int) -> tuple[int, int] | None:
        """Return offset and length of the chunk with the id *entry*, unchecked; None if it is not listed."""
        position = self._position(entry)
        return None if position is None else (self.values[2 * position], self.values[2 * position + 1])

    def select(self, entry: int, count: int, stride: int) -> Entries:
        """Return the row of the id *entry*; ids that follow it are in no order that readers want."""
        return np.array([self.entry(entry) or (EMPTY, EMPTY)], dtype=np.uint64)

    def _position(self, entry: int) -> int | None:
        position = int(np.searchsorted(self.ids, np.uint64(entry)))
        return position if position < len(self.ids) and int(self.ids[position]) == entry else None


@dataclass(frozen=True, slots=True)
class ListedCodecs(IndexCodecs):
    """An index that lists ids, in bytes of its own: its chunks lie elsewhere in the shard around it.

    A subclass decodes it; it has no size that is known before, so `nbytes` and `decode` have no meaning here.
    """

    def most_decoded(self, nbytes: int) -> int:
        """Return how many bytes an index of *nbytes* bytes may become at most."""
        raise NotImplementedError

    def decode_listed(self, encoded: bytes, shard_nbytes: int) -> ListedIndex:
        """Decode an index in a shard of *shard_nbytes* bytes; raises `CorruptionError` if that is impossible."""
        raise NotImplementedError


def are_sound(entries: Entries, shard_nbytes: int) -> npt.NDArray[np.bool_]:
    """Return for each entry whether its range is within a shard of *shard_nbytes* bytes."""
    offsets, nbytes, size = entries[:, 0], entries[:, 1], np.uint64(shard_nbytes)
    # A sum that overflows does no harm: one of its parts is too large by itself.
    return np.asarray((offsets <= size) & (nbytes <= size) & (offsets + nbytes <= size))


def are_empty(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return for each entry whether it stands for a missing chunk."""
    return np.asarray((entries == _EMPTY).all(axis=1))


def damaged(entries: Entries, shard_nbytes: int) -> list[int]:
    """Return for each entry of a shard of *shard_nbytes* bytes whether it is neither sound nor empty."""
    found: list[int] = np.flatnonzero(~(are_sound(entries, shard_nbytes) | are_empty(entries))).tolist()
    return found


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """The layout of a shard's index; *chunks_per_shard* is its shape."""

    codecs: IndexCodecs
    chunks_per_shard: tuple[int, ...]
    at_start: bool

    @property
    def nentries(self) -> int:
        """Number of entries."""
        return math.prod(self.chunks_per_shard)

    @property
    def nbytes(self) -> int:
        """Size of the encoded index."""
        return self.codecs.nbytes(self.nentries)


def find_last_index(
    layout: IndexLayout, nbytes: int, read: Callable[[int, int], Buffer], inner: IndexLayout | None = None
) -> int | None:
    """Return the offset of the last valid index in *nbytes* bytes: a shard, and what an append left behind it.

    *read* returns some of them, by offset and size; it is asked for a few MB at a time, from the end backwards.

    An index is valid if its checksums match and every entry is empty or within the bytes before it. With *inner*, its
    entries are shards with an index of that layout: else that of an inner shard, which has a checksum, too, could be
    taken for the one that is looked for. It may be at any offset; the search time depends only on its distance from the
    end. Returns None if there is none. Raises `ValueError` for a layout whose index has no checksum to recognise it by,
    or is not at the end.
    """
    if layout.at_start or not layout.codecs.checksums:
        raise ValueError("only an index at the end, with a checksum, can be searched for")
    stop = nbytes - layout.nbytes + 1
    window = _Window(ENTRY_NBYTES * layout.nentries)
    while stop > 0:
        start = max(stop - _ROW * _ROWS, 0)
        block = np.frombuffer(read(start, stop - 1 + layout.nbytes - start), dtype=np.uint8)
        for offset in window.matches(block, stop - start)[::-1].tolist():
            index = _valid_index(layout, block[offset : offset + layout.nbytes].tobytes(), start + offset)
            if index is not None and (inner is None or _has_shards(index, inner, read)):
                return int(start + offset)
        stop = start
    return None


def _valid_index(layout: IndexLayout, encoded: bytes, shard_nbytes: int) -> ShardIndex | None:
    try:
        index = layout.codecs.decode(encoded, layout.chunks_per_shard, shard_nbytes)
    except CorruptionError:
        return None
    return None if damaged(index.entries, shard_nbytes) else index


def _has_shards(index: ShardIndex, inner: IndexLayout, read: Callable[[int, int], Buffer]) -> bool:
    """Whether the entries of *index*, most of them as some may be damaged, are shards with an index like *inner*."""
    entries, nshards = index.entries[~are_empty(index.entries)].tolist(), 0
    for offset, nbytes in entries:
        start = offset if inner.at_start else offset + nbytes - inner.nbytes
        if nbytes >= inner.nbytes:
            nshards += _valid_index(inner, bytes(read(start, inner.nbytes)), nbytes) is not None
    return 2 * nshards >= len(entries)


class _Window:
    """Finds windows of *nbytes* bytes followed by their crc32c, at the same cost for any size.

    Without its inversions, crc32c is linear: moving the window by one byte shifts the checksum, adds one byte and
    removes another. *taken_out* is the contribution of a byte that has just left the window.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._leaving = [_linear(bytes(nbytes), 1 << bit) for bit in range(32)]
        self._taken_in = np.array([_linear(bytes([byte])) for byte in range(256)], dtype=np.uint32)
        self._taken_out = np.array([_apply(self._leaving, int(x)) for x in self._taken_in], dtype=np.uint32)
        self._zeros = _apply(self._leaving, _ONES) ^ _ONES

    def matches(self, block: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int64]:
        """Return the offsets of matching windows among the first *count* offsets."""
        nbytes = self._nbytes
        rows = -(-count // _ROW)
        changes = np.zeros(rows * _ROW, dtype=np.uint32)
        changes[:count] = self._taken_in[block[nbytes : count + nbytes]] ^ self._taken_out[block[:count]]
        columns = np.ascontiguousarray(changes.reshape(rows, _ROW).T)
        state = np.array(list(self._row_states(block, count)), dtype=np.uint32)
        for column in columns:
            # Each column is replaced by the checksums at its positions once it is not needed any more.
            following = self._taken_in[state & 0xFF] ^ (state >> 8) ^ column
            column[:] = state
            state = following
        checksums = columns.T.reshape(-1)[:count] ^ np.uint32(self._zeros)
        stored = np.ndarray((count,), dtype="<u4", buffer=block, offset=nbytes, strides=(1,))
        return np.flatnonzero(checksums == stored)

    def _row_states(self, block: npt.NDArray[np.uint8], count: int) -> Iterator[int]:
        """Yield the checksum of the first window, and of that at the start of every following row."""
        state = _linear(block[: self._nbytes])
        yield state
        for row in range(_ROW, count, _ROW):
            left = _linear(block[row - _ROW : row])
            state = _linear(block[row - _ROW + self._nbytes : row + self._nbytes], state)
            state ^= _apply(self._leaving, left)
            yield state


def _linear(data: npt.NDArray[np.uint8] | bytes, state: int = 0) -> int:
    """Return the crc32c of *data* without inversions, continuing from *state*."""
    return crc32c(data, state ^ _ONES) ^ _ONES


def _apply(operator: list[int], state: int) -> int:
    """Apply a linear operator, given by its results for single bits."""
    return reduce(xor, (image for bit, image in enumerate(operator) if state >> bit & 1), 0)
