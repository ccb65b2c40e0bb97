"""The shard index: where the encoded bytes of each inner chunk are in the shard.

Source: specification of the `sharding_indexed` codec 1.0, "Binary shard format".
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.codecs import (
    CRC32C_NBYTES,
    Buffer,
    composed_order,
    decode,
    encode,
    parse_chain,
    parse_endian,
    split_chain,
)
from shardfs.format.document import Extension

EMPTY: Final = 2**64 - 1
ENTRY_NBYTES: Final = 16
_EMPTY: Final = np.uint64(EMPTY)
Entries = npt.NDArray[np.uint64]  # rows of `offset` and `nbytes`
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

    *encoded* are the stored bytes, by which one can check later whether the index is still in place.
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
