"""Where an inner chunk is: from its coordinates in the unsharded grid to a shard and the index entries that lead to it.

Shards may be nested, and axes may be transposed before each sharding codec, so a location is a shard and one entry per
level. The grid that is shown counts innermost chunks along the array's own axes.

Sources: specification of the `sharding_indexed` codec 1.0, "Configuration parameters"; transposes by the core
specification's codec chain; for the draft of 1.1, zarr-specs pull request 370 as it was in August 2026.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import floordiv
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.errors import MetadataError
from shardfs.format.codecs import (
    SHARDING,
    CodecChain,
    compose,
    composed_order,
    decode,
    is_decodable,
    parse_chain,
    permute,
    split_chain,
)
from shardfs.format.document import SHARDING_1_1, Extension, Json, parse_codecs
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, Dimension
from shardfs.format.index import ENTRY_NBYTES, NO_INDEX, Entries, IndexCodecs, IndexLayout, NoIndex, ShardIndex
from shardfs.format.members import Buffer

Coords = tuple[int, ...]
Coordinates = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
"""Coordinates of several chunks, as rows."""

MAX_LEVELS: Final = 16
POSITION_BITS: Final = 36
"""Bits of an inode number for the position in the grid of inner chunks and directories of chunks."""
MAX_INDEX_NBYTES: Final = 128 * 2**20
_LARGE_INDEX_NBYTES: Final = 16 * 2**20
_MAX_CUT_OFF: Final = 2**16
_MAX_NAMED: Final = 3
MAX_DECODED_NBYTES: Final = 512 * 2**20
"""The largest shard under another codec that is read and decoded; both its forms take that much memory."""
_MAX_CHUNK_NBYTES: Final = 2**40


@dataclass(frozen=True, slots=True)
class ShardingLevel:
    """One sharding codec of an array.

    *order* transposes the axes of its input into those that it works on. *span* is the length of its inner chunks along
    the latter, in innermost chunks. *after* are the codecs around the encoded shard, which has at most *max_nbytes*
    bytes itself.
    """

    order: tuple[int, ...]
    span: tuple[int, ...]
    index_codecs: IndexCodecs
    index_at_start: bool
    after: tuple[Extension, ...]
    max_nbytes: int

    def chunks_per_shard(self, shard_span: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the index of a shard of *shard_span* innermost chunks, before *order*."""
        return tuple([shard_span[axis] // span for axis, span in zip(self.order, self.span, strict=True)])

    @property
    def decoded_nbytes(self) -> int | None:
        """Size of every shard when *after* is undone, if that is known, and no index is stored in it; else None."""
        return None

    @property
    def most_encoded(self) -> int:
        """The largest size of a shard with *after* that is decoded."""
        return MAX_DECODED_NBYTES

    def decode(self, encoded: Buffer) -> Buffer:
        """Undo *after*; raises `CorruptionError` if *encoded* cannot be decoded."""
        return decode(self.after, encoded, self.max_nbytes)


class ChunkLocation(NamedTuple):
    """The location of an inner chunk: the coordinates of its shard, and an index entry for each level, outermost first.

    *shapes* are the chunks per shard at each level.
    """

    shard: Coords
    entries: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


class ChunkRun(NamedTuple):
    """Inner chunks along the last axis that are in one innermost shard.

    For i < *length*, chunk *first* + i has the entry `location.entries[-1]` + i × *stride*.
    """

    first: int
    length: int
    stride: int
    location: ChunkLocation


@dataclass(frozen=True, slots=True)
class ShardGrid:
    """How the inner chunks of an array are arranged in its shards.

    *row_axis* is the axis of the innermost index that corresponds to the last axis of the array.
    """

    shards: ChunkGrid
    chunk_shape: tuple[int, ...]
    levels: tuple[ShardingLevel, ...]
    grid_shape: tuple[int, ...]
    row_axis: int

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.chunk_shape)

    @property
    def shard_ndim(self) -> int:
        """Number of coordinates of a shard."""
        return len(self.shards.dimensions)

    @property
    def is_scattered(self) -> bool:
        """Whether shards are no boxes of the grid: which chunks are in one is listed by its index."""
        return False

    @property
    def is_read_only(self) -> bool:
        """Whether shards are of a format that is only read."""
        return False

    @property
    def chunk_header(self) -> bytes:
        """Bytes that are in front of each chunk that is shown, and not stored."""
        return b""

    @property
    def nindexes(self) -> int:
        """Number of levels with an index: all of them, but for chunks that are encoded around their own codecs."""
        return len(self.levels)

    @property
    def nchunks(self) -> int:
        """Number of inner chunks that overlap the array."""
        return math.prod(self.grid_shape)

    @property
    def is_encoded(self) -> bool:
        """Whether shards are encoded as a whole, so that inner chunks are not ranges of the stored shard."""
        return any(level.after for level in self.levels)

    @property
    def max_chunk_nbytes(self) -> int:
        """The size of the largest inner chunk that can be stored: a shard that is decoded as a whole has a limit."""
        return min([_MAX_CHUNK_NBYTES, *(level.max_nbytes for level in self.levels if level.after)])

    @property
    def has_data_before(self) -> bool:
        """Whether data lie directly before each chunk that belong to it, and have no entry of their own."""
        return False

    def nbytes_before(self, chunk: Buffer) -> int:
        """Return how many bytes before *chunk* belong to it; raises `CorruptionError` if it does not say so."""
        return 0

    @property
    def is_unsharded(self) -> bool:
        """Whether the array is unsharded: every "shard" is the file of one chunk."""
        return isinstance(self.levels[0].index_codecs, NoIndex)

    @property
    def is_appended_to(self) -> bool:
        """Whether a shard that was appended to has its former version in it, with the index of that."""
        level = self.levels[0]
        return not (level.index_at_start or level.after or self.is_unsharded)

    @classmethod
    def of_chunks(cls, chunks: ChunkGrid, chunk_shape: tuple[int, ...]) -> "ShardGrid":
        """Describe an unsharded array with *chunks* of *chunk_shape*: each chunk is a shard of its own."""
        ndim = len(chunk_shape)
        level = ShardingLevel(tuple(range(ndim)), (1,) * ndim, NO_INDEX, False, (), MAX_DECODED_NBYTES)
        return cls(chunks, chunk_shape, (level,), chunks.shape, max(ndim - 1, 0))

    def belonging(self, index: ShardIndex, location: ChunkLocation) -> npt.NDArray[np.bool_]:
        """Return which rows of *index*, the innermost one at *location*, are of chunks that belong there: here, all."""
        return np.ones(index.nentries, np.bool_)

    def positions(self, index: ShardIndex, location: ChunkLocation) -> Coordinates:
        """Return the coordinates of the chunks whose rows are in *index*, the innermost one at *location*."""
        within = len(location.shapes) - 1
        outer = location.entries[:within]
        found = [self.coords(location._replace(entries=(*outer, entry))) for entry in index.keys.tolist()]
        return np.array(found, np.int64).reshape(-1, self.ndim)

    def sizes(self, positions: Coordinates, entries: Entries) -> npt.NDArray[np.uint64] | None:
        """Return the sizes of the chunks at *positions*, whose *entries* say what is stored; None if nobody knows."""
        return np.asarray(entries[:, 1])

    def decoded_sizes(self, positions: Coordinates) -> npt.NDArray[np.uint64] | None:
        """Return the sizes that the chunks at *positions* have if they are sound; None if nobody knows."""
        return None

    def nelements_at(self, location: ChunkLocation) -> int:
        """Return how many elements the chunk at *location* has."""
        return math.prod(self.chunk_shape)

    def chunk_name(self, coords: Coords, keys: ChunkKeyEncoding) -> str:
        """Return the name of the chunk at *coords* for messages; *keys* are those of shards."""
        return keys.encode(coords)

    def stride(self, location: ChunkLocation) -> int:
        """Return the distance between the entries of neighbours in a row in the innermost shard at *location*."""
        return math.prod(location.shapes[-1][self.row_axis + 1 :])

    def contains(self, coords: Coords) -> bool:
        """Whether there is an inner chunk at *coords* that overlaps the array."""
        return len(coords) == len(self.grid_shape) and all(
            0 <= i < n for i, n in zip(coords, self.grid_shape, strict=True)
        )

    def locate(self, coords: Coords) -> ChunkLocation:
        """Return the location of the inner chunk at *coords*, which are within the grid."""
        shard, offset, extent = self._shard_around(coords)
        entries, shapes = [], []
        for level in self.levels:
            shape = level.chunks_per_shard(extent)
            entry = 0
            inner = []
            for axis, n, length in zip(level.order, shape, level.span, strict=True):
                position, remainder = divmod(offset[axis], length)
                entry = entry * n + position
                inner.append(remainder)
            entries.append(entry)
            shapes.append(shape)
            offset, extent = tuple(inner), level.span
        return ChunkLocation(shard, tuple(entries), tuple(shapes))

    def _shard_around(self, coords: Coords) -> tuple[Coords, Coords, Coords]:
        """Return the shard of the inner chunk at *coords*, the location of the chunk within it, and the shard's length.

        Both are in inner chunks.
        """
        shard, offset, extent = [], [], []
        for i, length, dimension in zip(coords, self.chunk_shape, self.shards.dimensions, strict=True):
            index = dimension.chunk_at(i * length)
            start, edge = dimension.span(index)
            shard.append(index)
            offset.append(i - start // length)
            extent.append(edge // length)
        return tuple(shard), tuple(offset), tuple(extent)

    def shard_at(self, axis: int, chunk: int) -> int:
        """Return the coordinate along *axis* of the shards that have the inner chunks with coordinate *chunk*."""
        return self.shards.dimensions[axis].chunk_at(chunk * self.chunk_shape[axis])

    def coords(self, location: ChunkLocation) -> Coords:
        """Return the coordinates of the inner chunk at *location*, or of the first chunk in it, if it is a shard.

        This is the inverse of `locate`. The chunk may be outside the array: shards at its edge have entries for such
        chunks.
        """
        offset = (0,) * self.ndim
        for level, entry, shape in reversed(list(zip(self.levels, location.entries, location.shapes, strict=False))):
            inner = list(offset)
            for axis in reversed(range(self.ndim)):
                entry, position = divmod(entry, shape[axis])
                inner[axis] += position * level.span[axis]
            offset = tuple(inner[level.order.index(axis)] for axis in range(self.ndim))
        return tuple(
            self._chunks(axis, i)[0] + n for axis, (i, n) in enumerate(zip(location.shard, offset, strict=True))
        )

    def is_large(self, index_shape: tuple[int, ...]) -> bool:
        """Whether opening an outermost shard may take much memory: it is decoded as a whole, or its index is long."""
        level = self.levels[0]
        return bool(level.after) or level.index_codecs.nbytes(math.prod(index_shape)) > _LARGE_INDEX_NBYTES

    def index_shape(self, shard: Coords) -> tuple[int, ...]:
        """Return the shape of the index of the outermost shard at *shard*."""
        return self.levels[0].chunks_per_shard(self._span(shard))

    def inner_shape(self, depth: int) -> tuple[int, ...]:
        """Return the shape of the index of a shard at the level *depth*, which is not the outermost."""
        return self.levels[depth].chunks_per_shard(self.levels[depth - 1].span)

    def index_layouts(self, shard: Coords) -> tuple[IndexLayout, IndexLayout | None]:
        """Return the layout of the index of the shard at *shard*, and that of the shards in it.

        The second is None if there are none, or they are encoded.
        """
        level = self.levels[0]
        outer = IndexLayout(level.index_codecs, self.index_shape(shard), level.index_at_start)
        if len(self.levels) == 1 or self.levels[1].after:
            return outer, None
        level = self.levels[1]
        return outer, IndexLayout(level.index_codecs, self.inner_shape(1), level.index_at_start)

    def nelements_of(self, shard: Coords) -> int:
        """Return how many elements of the array are in the shard at *shard*."""
        return math.prod(
            min(start + edge, dimension.extent) - start
            for dimension, index in zip(self.shards.dimensions, shard, strict=True)
            for start, edge in (dimension.span(index),)
        )

    def capacity(self, shard: Coords) -> int:
        """Return how many inner chunks within the array the shard at *shard* has."""
        return math.prod(len(self.covered(axis, index)) for axis, index in enumerate(shard))

    def nchunks_of(self, shard: Coords) -> int:
        """Return how many inner chunks the shard at *shard* has room for, including those outside the array."""
        return math.prod(self._span(shard))

    def _span(self, shard: Coords) -> tuple[int, ...]:
        """Return the length of the shard at *shard* along each axis, in inner chunks."""
        return tuple(self._chunks(axis, index)[1] for axis, index in enumerate(shard))

    def _chunks(self, axis: int, index: int) -> tuple[int, int]:
        """Return the first inner chunk, along *axis*, of the shards with coordinate *index*, and how many they have."""
        start, edge = self.shards.dimensions[axis].span(index)
        length = self.chunk_shape[axis]
        return start // length, edge // length

    def index_nbytes(self, shard: Coords) -> int:
        """Return the size of the index of the outermost shard at *shard*."""
        return self.levels[0].index_codecs.nbytes(math.prod(self.index_shape(shard)))

    def row(self, prefix: Coords, chunks: range) -> Iterator[ChunkRun]:
        """Yield the segments of *chunks* in the row *prefix*, which is all coordinates but the last."""
        axis = self.row_axis
        start = chunks.start
        while start < chunks.stop:
            location = self.locate((*prefix, start))
            if len(self.levels) == 1:
                stop = self.covered(self.ndim - 1, location.shard[-1]).stop
            else:
                n = location.shapes[-1][axis]
                stop = start - start % n + n
            stop = min(stop, chunks.stop)
            yield ChunkRun(start, stop - start, self.stride(location), location)
            start = stop

    def covered(self, axis: int, index: int) -> range:
        """Return which inner chunks along *axis* the shards with coordinate *index* cover, within the grid."""
        if not 0 <= index < self.shards.dimensions[axis].nchunks:
            return range(0)
        first, count = self._chunks(axis, index)
        return range(first, min(first + count, self.grid_shape[axis]))


@dataclass(frozen=True, slots=True)
class CutOffGrid(ShardGrid):
    """Inner chunks that do not divide their shards, which are not nested: see `SHARDING_1_1`.

    *chunks* are the shards of `shards`, counted in inner chunks.
    """

    chunks: ChunkGrid

    @classmethod
    def of(cls, grid: ShardGrid) -> "CutOffGrid":
        """Return *grid* with inner chunks that are cut off at the end of each shard."""
        chunks = ChunkGrid(tuple(map(_in_chunks, grid.shards.dimensions, grid.chunk_shape)))
        shape = tuple(dimension.extent for dimension in chunks.dimensions)
        return cls(grid.shards, grid.chunk_shape, grid.levels, shape, grid.row_axis, chunks)

    def _shard_around(self, coords: Coords) -> tuple[Coords, Coords, Coords]:
        shard = tuple(dimension.chunk_at(i) for i, dimension in zip(coords, self.chunks.dimensions, strict=True))
        offset = tuple(
            i - self._chunks(axis, index)[0] for axis, (i, index) in enumerate(zip(coords, shard, strict=True))
        )
        return shard, offset, self._span(shard)

    def nelements_at(self, location: ChunkLocation) -> int:
        """Return how many elements the chunk at *location* has."""
        lengths = []
        for axis, (index, chunk) in enumerate(zip(location.shard, self.coords(location), strict=True)):
            start = (chunk - self._chunks(axis, index)[0]) * self.chunk_shape[axis]
            lengths.append(min(self.shards.dimensions[axis].span(index)[1] - start, self.chunk_shape[axis]))
        return math.prod(lengths)

    def shard_at(self, axis: int, chunk: int) -> int:
        """Return the coordinate along *axis* of the shards that have the inner chunks with coordinate *chunk*."""
        return self.chunks.dimensions[axis].chunk_at(chunk)

    def _chunks(self, axis: int, index: int) -> tuple[int, int]:
        return self.chunks.dimensions[axis].span(index)

    def edges(self, axis: int) -> Json:
        """Return the lengths of inner chunks along *axis*, as the axis of a rectilinear grid.

        Raises `MetadataError` if there are too many to list.
        """
        dimension, length = self.shards.dimensions[axis], self.chunk_shape[axis]
        if not dimension.nchunks or not any(edge % length for edge in dimension.edges):
            return length
        if dimension.nchunks > _MAX_CUT_OFF:
            raise MetadataError(f"more than {_MAX_CUT_OFF} inner chunks along axis {axis} are cut off")
        runs: list[Json] = []
        for index in range(dimension.nchunks):
            whole, rest = divmod(dimension.span(index)[1], length)
            runs += [[length, whole]] if whole > 1 else [length] * whole
            runs += [rest] if rest else []
        return runs


def _in_chunks(shards: Dimension, length: int) -> Dimension:
    """Return *shards* along an axis counted in inner chunks of *length*, the last of which may be shorter."""
    chunks = Dimension(tuple((-(-edge // length), count) for edge, count in shards.runs), 0)
    if not shards.nchunks:
        return chunks
    start, _ = shards.span(shards.nchunks - 1)
    first, _ = chunks.span(shards.nchunks - 1)
    return replace(chunks, extent=first - (start - shards.extent) // length)


def count_positions(grid_shape: tuple[int, ...]) -> int:
    """Return the number of inner chunks and of directories above them, if each axis is a directory level."""
    return sum(math.prod(grid_shape[:depth]) for depth in range(len(grid_shape) + 1))


def parse_sharding(
    shards: ChunkGrid,
    shape: tuple[int, ...],
    codecs: tuple[Extension, ...],
    item_nbytes: int | None,
    drafts: tuple[str, ...] = (),
) -> tuple[ShardGrid, tuple[int, ...], tuple[Extension, ...]]:
    """Parse the codec chain of a sharded array; *item_nbytes* is the size of an element, None if it varies.

    What only *drafts* of the specification allow is invalid without them. Returns the grid of inner chunks, the order
    of axes in an inner chunk, and its codecs. Raises `MetadataError` for a chain that is invalid, or whose inner chunks
    cannot be shown.
    """
    ndim = len(shape)
    order = tuple(range(ndim))
    edges = tuple(dimension.edges for dimension in shards.dimensions)
    parsed: list[ShardingLevel] = []  # spans are in elements until the innermost chunk is known
    is_cut_off = False
    while any(codec.name == SHARDING for codec in codecs):
        if len(parsed) == MAX_LEVELS:
            raise MetadataError(f"shards are nested more than {MAX_LEVELS} deep")
        level, codecs = _parse_level(split_chain(codecs, "codecs"), edges, item_nbytes, drafts)
        outer = permute(edges, level.order)
        is_cut_off |= any(edge % length for length, axis in zip(level.span, outer, strict=True) for edge in axis)
        edges = tuple(frozenset({length}) for length in level.span)
        order = compose(order, level.order)
        parsed.append(level)

    # The lengths of the innermost chunk, along the axes of each level from the inside out, and finally the array's.
    lengths = parsed[-1].span
    levels: list[ShardingLevel] = []
    for level in reversed(parsed):
        levels.insert(0, replace(level, span=tuple(map(floordiv, level.span, lengths))))
        lengths = permute(lengths, tuple(level.order.index(axis) for axis in range(ndim)))
    row_axis = order.index(ndim - 1) if ndim else 0
    grid = ShardGrid(shards, lengths, tuple(levels), ChunkGrid.regular(shape, lengths).shape, row_axis)
    if is_cut_off and len(levels) > 1:
        raise MetadataError("inner chunks that do not divide shards are not read where shards are nested")
    return CutOffGrid.of(grid) if is_cut_off else grid, order, codecs


def _parse_level(
    chain: CodecChain, edges: tuple[frozenset[int], ...], item_nbytes: int | None, drafts: tuple[str, ...]
) -> tuple[ShardingLevel, tuple[Extension, ...]]:
    """Parse one sharding codec and those around it; returns it, with its span in elements, and the codecs within it.

    *edges* are the possible lengths of its shards along each axis, before any transpose.
    """
    for codec in chain.before:
        if codec.name != "transpose":
            raise MetadataError(f"the codec {codec.name} before sharding_indexed cannot be moved into inner chunks")
    order = composed_order(chain.before, len(edges))
    for codec in chain.after:
        if not is_decodable(codec):
            raise MetadataError(f"the codec {codec.name} after sharding_indexed is not known")
    codec, configuration = chain.serializer, chain.serializer.configuration
    codec.expect("chunk_shape", "codecs", "index_codecs", "index_location")
    chunk_shape = codec.lengths("chunk_shape", len(edges))
    for axis, (length, outer) in enumerate(zip(chunk_shape, permute(edges, order), strict=True)):
        if any(edge % length for edge in outer) and SHARDING_1_1 not in drafts:
            lengths = " and ".join(map(str, sorted(outer)[:_MAX_NAMED]))
            raise MetadataError(
                f"inner chunks of length {length} do not divide shards of length {lengths} (axis {axis}); only a draft "
                f"of the specification allows that, which the v3 view reads with --draft {SHARDING_1_1}"
            )
    location = codec.choice("index_location", "end", ("start", "end"))
    index_codecs = IndexCodecs.parse(parse_codecs(configuration.get("index_codecs"), "index_codecs"), len(edges))
    largest = [max(lengths, default=0) for lengths in permute(edges, order)]
    nentries = math.prod(-(-length // inner) for length, inner in zip(largest, chunk_shape, strict=True))
    if index_codecs.nbytes(nentries) > MAX_INDEX_NBYTES:
        raise MetadataError(
            f"a shard index of {nentries} entries is larger than the {MAX_INDEX_NBYTES // 2**20} MiB that are read"
        )
    codecs = parse_chain(parse_codecs(configuration.get("codecs"), "codecs"), "codecs of sharding_indexed")
    max_nbytes = MAX_DECODED_NBYTES
    if item_nbytes is not None:
        # Payloads and indexes, with a generous share for gaps and for chunks that grew by encoding.
        max_nbytes = min(4 * math.prod(largest) * (item_nbytes + ENTRY_NBYTES) + 2**20, MAX_DECODED_NBYTES)
    return ShardingLevel(order, chunk_shape, index_codecs, location == "start", chain.after, max_nbytes), codecs
