"""Shards whose chunks have 64-bit ids: the format `neuroglancer_uint64_sharded_v1`.

A hash of the id says in which shard a chunk is, and in which of the shard's minishards. The index at the start of a
shard has a range of bytes for each minishard: an index that lists ids, and where their chunks are in the shard. So a
shard has two levels, as if it held shards: an entry of the first is the number of a minishard, one of the second an id.

Source: neuroglancer, "Sharded format" of the precomputed data source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.codecs import decode
from shardfs.format.document import Extension, Json, brief
from shardfs.format.foreign import ForeignGrid
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.index import (
    EMPTY,
    ENTRY_NBYTES,
    NO_INDEX,
    Entries,
    IndexCodecs,
    ListedCodecs,
    ListedIndex,
    ShardIndex,
)
from shardfs.format.sharding import MAX_INDEX_NBYTES, ChunkLocation, ChunkRun, Coordinates, Coords, ShardingLevel

UINT64_SHARDED: Final = "neuroglancer_uint64_sharded_v1"
MAX_SHARD_BITS: Final = 60  # so that numbers of shards are lengths of an axis
_MAX_MINISHARD_BITS: Final = (MAX_INDEX_NBYTES // ENTRY_NBYTES).bit_length() - 1
_ID_BITS: Final = 64
_ROW_NBYTES: Final = 24  # id, offset and size of a chunk in the index of a minishard
_USUAL_ROWS: Final = 2**16  # so many may be listed of any grid, as some may be none of its chunks
_MAX_INFLATED: Final = 1032  # bytes that one byte of gzip becomes at most
_GZIP: Final = (Extension("gzip", {}),)
_ENCODINGS: Final[dict[str, tuple[Extension, ...]]] = {"raw": (), "gzip": _GZIP}
_MASK32: Final = 0xFFFFFFFF

Ids = npt.NDArray[np.uint64]
Numbers = Any
"""A number of 64 bits, or an array of them: arithmetic on both is the same."""


@dataclass(frozen=True)
class Uint64Sharding:
    """A sharding specification: which chunk is in which shard and minishard, and how indexes and data are encoded."""

    preshift_bits: int
    hash: str
    minishard_bits: int
    shard_bits: int
    minishard_index_encoding: str = "raw"
    data_encoding: str = "raw"

    @classmethod
    def parse(cls, value: Json) -> "Uint64Sharding":
        """Parse a `sharding` member; raises `MetadataError` with the reason why its shards cannot be read."""
        if not isinstance(value, dict):
            raise MetadataError(f"sharding must be an object, not {brief(value)}")
        kind = value.get("@type")
        if kind != UINT64_SHARDED:
            raise MetadataError(f"the sharding {brief(kind)} is not known")
        members = Extension("sharding", {name: member for name, member in value.items() if name != "@type"})
        for name in ("preshift_bits", "minishard_bits", "shard_bits"):
            if name not in value:
                raise MetadataError(f"sharding has no {name}")
        found = cls(
            members.integer("preshift_bits", 0, 0, _ID_BITS),
            members.choice("hash", None, ("identity", "murmurhash3_x86_128")),
            members.integer("minishard_bits", 0, 0, _ID_BITS),
            members.integer("shard_bits", 0, 0, _ID_BITS),
            members.choice("minishard_index_encoding", "raw", _ENCODINGS),
            members.choice("data_encoding", "raw", _ENCODINGS),
        )
        if found.minishard_bits + found.shard_bits > _ID_BITS:
            raise MetadataError("minishard_bits and shard_bits are more than the 64 bits of a hash")
        if found.minishard_bits > _MAX_MINISHARD_BITS:
            raise MetadataError(
                f"a shard index of 2**{found.minishard_bits} entries is larger than the "
                f"{MAX_INDEX_NBYTES // 2**20} MiB that are read"
            )
        if found.shard_bits > MAX_SHARD_BITS:
            raise MetadataError(f"2**{found.shard_bits} shards are more than shardfs can count")
        return found

    @property
    def nshards(self) -> int:
        """Number of shards."""
        return 1 << self.shard_bits

    @property
    def nminishards(self) -> int:
        """Number of minishards in each shard."""
        return 1 << self.minishard_bits

    def location(self, chunk_id: int) -> tuple[int, int]:
        """Return the numbers of the shard and of the minishard that the chunk *chunk_id* belongs to."""
        hashed: int = self._hashed(chunk_id >> self.preshift_bits)
        return hashed >> self.minishard_bits & self.nshards - 1, hashed & self.nminishards - 1

    def belong(self, ids: Ids, shard: int, minishard: int) -> npt.NDArray[np.bool_]:
        """Return which of *ids* belong to a minishard of a shard."""
        # A shift by all 64 bits is undefined in NumPy.
        shifted = ids >> np.uint64(self.preshift_bits) if self.preshift_bits < _ID_BITS else np.zeros_like(ids)
        mask = self.nshards * self.nminishards - 1
        return np.asarray(
            self._hashed(shifted) & np.uint64(mask) == np.uint64(shard << self.minishard_bits | minishard)
        )

    def _hashed(self, shifted: Numbers) -> Numbers:
        return shifted if self.hash == "identity" else murmurhash3_x86_128(shifted)

    def levels(self, max_nbytes: int, nchunks: int | None = None) -> tuple[ShardingLevel, ...]:
        """Return the levels that lead to a chunk, which has up to *max_nbytes* bytes when its gzip is undone.

        There are at most *nchunks* chunks, if anybody knows.
        """
        table = ShardingLevel((), (), MinishardRanges("little", (), (), self.nminishards), True, (), 0)
        nrows = max(nchunks, _USUAL_ROWS) if nchunks is not None else MAX_INDEX_NBYTES
        most = min(nrows * _ROW_NBYTES, MAX_INDEX_NBYTES)
        base = self.nminishards * ENTRY_NBYTES
        codecs = MinishardCodecs("little", (), (), self.minishard_index_encoding, base, most)
        levels = (table, ShardingLevel((), (), codecs, True, (), MAX_INDEX_NBYTES))
        if self.data_encoding == "raw":
            return levels
        return (*levels, ShardingLevel((), (), NO_INDEX, False, _GZIP, max_nbytes))


@dataclass(frozen=True, slots=True)
class IdGrid(ForeignGrid):
    """A grid of chunks with ids, in shards that are no boxes of it: an index lists which chunks are in a minishard."""

    sharding: Uint64Sharding

    def id_of(self, coords: Coords) -> int:
        """Return the id of the chunk at *coords*."""
        raise NotImplementedError

    def coordinates_of(self, ids: Ids) -> Coordinates:
        """Return the coordinates of the chunks with these *ids*, as rows; they may be outside the grid."""
        raise NotImplementedError

    def have_chunks(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which of *ids* are those of chunks of the grid."""
        raise NotImplementedError

    @property
    def is_scattered(self) -> bool:
        """True."""
        return True

    @property
    def nindexes(self) -> int:
        """Two: that of a shard, and that of a minishard."""
        return 2

    def locate(self, coords: Coords) -> ChunkLocation:
        """Return the location of the chunk at *coords*, which are within the grid."""
        chunk_id = self.id_of(coords)
        shard, minishard = self.sharding.location(chunk_id)
        entries, shapes = (minishard, chunk_id), ((self.sharding.nminishards,), ())
        if len(self.levels) > self.nindexes:
            return ChunkLocation((shard,), (*entries, 0), (*shapes, ()))
        return ChunkLocation((shard,), entries, shapes)

    def coords(self, location: ChunkLocation) -> Coords:
        """Return the coordinates of the chunk at *location*; of a minishard, those of the chunk with id 0."""
        chunk_id = location.entries[1] if len(location.entries) > 1 else 0
        found = self.coordinates_of(np.array([chunk_id], np.uint64))[0].tolist()
        return tuple(found)

    def index_shape(self, shard: Coords) -> tuple[int, ...]:
        """Return the shape of the index of a shard."""
        return (self.sharding.nminishards,)

    def inner_shape(self, depth: int) -> tuple[int, ...]:
        """Return (): the index of a minishard lists its chunks."""
        return ()

    def capacity(self, shard: Coords) -> int:
        """Return 0: how many belong to a shard would take a walk over all ids to find out, if anybody knows."""
        return 0

    def covered(self, axis: int, index: int) -> range:
        """Return all chunks along *axis*: any shard may have some of them."""
        return range(self.grid_shape[axis])

    def row(self, prefix: Coords, chunks: range) -> Iterator[ChunkRun]:
        """Yield each chunk of a row by itself."""
        for number in chunks:
            yield ChunkRun(number, 1, 1, self.locate((*prefix, number)))

    def belonging(self, index: ShardIndex, location: ChunkLocation) -> npt.NDArray[np.bool_]:
        """Return which ids that the index of a minishard lists are those of chunks that belong there."""
        belong = self.sharding.belong(index.keys, location.shard[0], location.entries[0])
        return np.asarray(belong & self.have_chunks(index.keys))

    def positions(self, index: ShardIndex, location: ChunkLocation) -> Coordinates:
        """Return the coordinates of the chunks that the index of a minishard lists; they may be outside the grid."""
        return self.coordinates_of(index.keys)

    def sizes(self, positions: Coordinates, entries: Entries) -> npt.NDArray[np.uint64] | None:
        """Return the sizes of the chunks at *positions*, whose *entries* say what is stored; None if nobody knows."""
        return np.asarray(entries[:, 1]) if len(self.levels) == self.nindexes else self.decoded_sizes(positions)


def murmurhash3_x86_128(key: Numbers) -> Numbers:
    """Return the low 64 bits of the MurmurHash3_x86_128 of 64-bit numbers in little-endian order, with seed 0.

    Products of two 32-bit numbers fit 64 bits, so numbers and arrays of them take the same path.
    """
    c1, c2, c3 = 0x239B961B, 0xAB0E9789, 0x38B34AE5
    k1, k2 = key & _MASK32, key >> 32
    h1 = _rotated(k1 * c1 & _MASK32, 15) * c2 & _MASK32
    h2 = _rotated(k2 * c2 & _MASK32, 16) * c3 & _MASK32
    length = 8
    h1, h2, h3 = h1 ^ length, h2 ^ length, length  # the fourth equals the third, throughout
    h1 = h1 + h2 + 2 * h3 & _MASK32
    h2, h34 = h2 + h1 & _MASK32, h3 + h1 & _MASK32
    h1, h2, h34 = _mixed(h1), _mixed(h2), _mixed(h34)
    h1 = h1 + h2 + 2 * h34 & _MASK32
    h2 = h2 + h1 & _MASK32
    return h1 | h2 << 32


def _rotated(value: Numbers, bits: int) -> Numbers:
    return (value << bits | value >> 32 - bits) & _MASK32


def _mixed(value: Numbers) -> Numbers:
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK32
    return value ^ value >> 16


@dataclass(frozen=True, slots=True)
class MinishardRanges(IndexCodecs):
    """The index at the start of a shard: begin and end of the index of each minishard, counted from its own end."""

    nminishards: int

    def nbytes(self, nentries: int) -> int:
        """Return the size of the index."""
        return ENTRY_NBYTES * self.nminishards

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> ShardIndex:
        """Decode the index of a shard of *shard_nbytes* bytes; entries are only checked when they are used."""
        starts, stops = np.frombuffer(encoded, "<u8").astype(np.uint64).reshape(-1, 2).T
        # What is damaged stays so: an end before the beginning is a length beyond every shard.
        values = np.stack([np.minimum(starts, np.uint64(2**63)) + np.uint64(len(encoded)), stops - starts], axis=1)
        values[starts == stops] = EMPTY
        return ShardIndex(_numbers(values), encoded, shard_nbytes)


@dataclass(frozen=True, slots=True)
class MinishardCodecs(ListedCodecs):
    """The index of a minishard.

    Offsets are counted from *base*, the end of the shard's index. Decoded, none is larger than *max_nbytes*.
    """

    encoding: str
    base: int
    max_nbytes: int = MAX_INDEX_NBYTES

    def most_decoded(self, nbytes: int) -> int:
        """Return how many bytes an index of *nbytes* bytes may become at most."""
        return nbytes if self.encoding == "raw" else min(nbytes * _MAX_INFLATED, self.max_nbytes)

    def decode_listed(self, encoded: bytes, shard_nbytes: int) -> ListedIndex:
        """Decode the index of a minishard in a shard of *shard_nbytes* bytes.

        Raises `CorruptionError` if it cannot be decoded, is larger than what is read, or lists an id twice.
        """
        data = decode(_ENCODINGS[self.encoding], encoded, self.max_nbytes)
        if len(data) % _ROW_NBYTES:
            raise CorruptionError(f"the index of a minishard has {len(data)} bytes, no multiple of {_ROW_NBYTES}")
        rows = np.frombuffer(data, "<u8").astype(np.uint64).reshape(3, -1)
        # All three wrap around, as differences may be negative: chunks lie in any order.
        ids = np.cumsum(rows[0], dtype=np.uint64)
        sizes = rows[2]
        offsets = np.cumsum(rows[1], dtype=np.uint64) + np.cumsum(sizes, dtype=np.uint64) - sizes
        offsets += np.uint64(self.base)
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        repeated = np.flatnonzero(ids[1:] == ids[:-1])
        if len(repeated):
            raise CorruptionError(f"the index of a minishard lists chunk {ids[repeated[0]]} twice")
        return ListedIndex(_numbers(np.stack([offsets[order], sizes[order]], axis=1)), encoded, shard_nbytes, ids)


def _numbers(rows: Entries) -> "memoryview[int]":
    """Return rows of `offset` and `nbytes` as the numbers of an index."""
    return np.ascontiguousarray(rows, dtype=np.uint64).reshape(-1).data.cast("B").cast("Q")


@dataclass(frozen=True, slots=True)
class ShardNames(ChunkKeyEncoding):
    """The names of shards: numbers in hexadecimal, with zeros in front to *ndigits* digits, and `.shard`."""

    ndigits: int

    @classmethod
    def of(cls, sharding: Uint64Sharding) -> "ShardNames":
        """Return the names of the shards of *sharding*."""
        return cls("uint64_sharded", "", -(-sharding.shard_bits // 4))

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name* is that of a shard."""
        return self.decode(name, 1) is not None

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the name of the shard with the number in *coords*."""
        return f"{coords[0]:0{self.ndigits}x}.shard"

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the number of the shard *key*, as coordinates; None if it is no shard."""
        digits, _, suffix = key.partition(".")
        if suffix != "shard" or len(digits) > _ID_BITS // 4 or set(digits) - set("0123456789abcdef") or not digits:
            return None
        coords = (int(digits, 16),)
        return coords if self.encode(coords) == key else None
