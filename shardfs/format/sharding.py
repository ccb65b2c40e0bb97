"""Where an inner chunk lies: its coordinates in the unsharded grid to a shard and the entries that lead to it.

Shards may nest, and axes may be transposed before each sharding codec, so a place is a shard and one entry per level
of sharding.  The grid that is shown counts innermost chunks along the array's own axes.

Source: specification of the `sharding_indexed` codec 1.0; transposes by the core specification's codec chain.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from shardfs.format.chunk_grid import ChunkGrid, FixedDimension
from shardfs.format.metadata import Extension
from shardfs.format.shard_index import NO_INDEX, IndexCodecs, NoIndex

Coords = tuple[int, ...]

_LARGE_INDEX_NBYTES: Final = 16 * 2**20
MAX_DECODED_NBYTES: Final = 512 * 2**20
"""Size up to which a shard under another codec is read and decoded; both need that much memory."""


@dataclass(frozen=True, slots=True)
class ShardingLevel:
    """One sharding codec of an array.

    *order* transposes the axes of what the codec is given into those that it works on; *span* is the length of its
    inner chunks along the latter, counted in innermost chunks.  *after* are the codecs around the encoded shard, which
    itself has up to *max_nbytes* bytes.
    """

    order: tuple[int, ...]
    span: tuple[int, ...]
    index_codecs: IndexCodecs
    index_at_start: bool
    after: tuple[Extension, ...]
    max_nbytes: int

    def chunks_per_shard(self, shard_span: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the index of a shard that is *shard_span* innermost chunks long before *order*."""
        return tuple([shard_span[axis] // span for axis, span in zip(self.order, self.span, strict=True)])


class Place(NamedTuple):
    """An inner chunk: the coordinates of its shard, and an entry in the index of each level, outermost first.

    *shapes* are the chunks per shard of these indexes.
    """

    shard: Coords
    entries: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


class Segment(NamedTuple):
    """A run along the last axis of inner chunks that share an innermost shard.

    Chunk *first* + i lies in entry `place.entries[-1]` + i × *stride* of that shard, for i < *length*.
    """

    first: int
    length: int
    stride: int
    place: Place


@dataclass(frozen=True, slots=True)
class ShardGrid:
    """The arrangement of inner chunks in the shards of an array.

    *row_axis* is the axis of an innermost index that the array's last axis became.
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
    def nchunks(self) -> int:
        """Number of inner chunks that overlap the array."""
        return math.prod(self.grid_shape)

    @property
    def is_encoded(self) -> bool:
        """Whether shards are encoded as a whole, so that no range of a stored one is an inner chunk."""
        return any(level.after for level in self.levels)

    @property
    def is_whole(self) -> bool:
        """Whether the array is unsharded: every "shard" is the file of one chunk, and nothing but that."""
        return isinstance(self.levels[0].index_codecs, NoIndex)

    @property
    def segment_length(self) -> int:
        """Length of the segments of a row, if all but the last are of one length; else 1, as any run can be cut so."""
        if not self.ndim:
            return 1
        if len(self.levels) > 1:
            outer, inner = self.levels[-2:]
            return outer.span[inner.order[self.row_axis]]
        dimension = self.shards.dimensions[-1]
        return dimension.edge // self.chunk_shape[-1] if isinstance(dimension, FixedDimension) else 1

    @classmethod
    def of_chunks(cls, chunks: ChunkGrid, chunk_shape: tuple[int, ...]) -> "ShardGrid":
        """Return the arrangement of an unsharded array with *chunks* of one *chunk_shape*: each is a shard."""
        ndim = len(chunk_shape)
        level = ShardingLevel(tuple(range(ndim)), (1,) * ndim, NO_INDEX, False, (), MAX_DECODED_NBYTES)
        return cls(chunks, chunk_shape, (level,), chunks.shape, max(ndim - 1, 0))

    def stride(self, place: Place) -> int:
        """Return how many entries further the next chunk of a row lies, in the innermost shard of *place*."""
        return math.prod(place.shapes[-1][self.row_axis + 1 :])

    def contains(self, coords: Coords) -> bool:
        """Whether *coords* are those of an inner chunk that overlaps the array."""
        return len(coords) == len(self.grid_shape) and all(
            0 <= i < n for i, n in zip(coords, self.grid_shape, strict=True)
        )

    def locate(self, coords: Coords) -> Place:
        """Return where the inner chunk at *coords*, which are within the grid, lies."""
        shard, rest, span = [], [], []
        for i, length, dimension in zip(coords, self.chunk_shape, self.shards.dimensions, strict=True):
            index = dimension.chunk_at(i * length)
            start, edge = dimension.span(index)
            shard.append(index)
            rest.append(i - start // length)
            span.append(edge // length)
        entries, shapes = [], []
        offset, extent = tuple(rest), tuple(span)
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
        return Place(tuple(shard), tuple(entries), tuple(shapes))

    def coords(self, place: Place) -> Coords:
        """Return the coordinates of the inner chunk at *place*, or of the first one in it if it is a shard.

        This is the inverse of `locate`.  The chunk may lie beyond the array: shards at its edge have entries for it.
        """
        offset = (0,) * self.ndim
        for level, entry, shape in reversed(list(zip(self.levels, place.entries, place.shapes, strict=False))):
            inner = list(offset)
            for axis in reversed(range(self.ndim)):
                entry, position = divmod(entry, shape[axis])
                inner[axis] += position * level.span[axis]
            offset = tuple(inner[level.order.index(axis)] for axis in range(self.ndim))
        starts = (
            d.span(i)[0] // n for d, i, n in zip(self.shards.dimensions, place.shard, self.chunk_shape, strict=True)
        )
        return tuple(start + i for start, i in zip(starts, offset, strict=True))

    def is_large(self, index_shape: tuple[int, ...]) -> bool:
        """Whether opening an outermost shard may take much memory: it is decoded whole, or its index is long."""
        level = self.levels[0]
        return bool(level.after) or level.index_codecs.nbytes(math.prod(index_shape)) > _LARGE_INDEX_NBYTES

    def index_shape(self, shard: Coords) -> tuple[int, ...]:
        """Return the chunks per shard, in the axes of its index, of the outermost shard at *shard*."""
        span = tuple(
            dimension.span(index)[1] // length
            for index, dimension, length in zip(shard, self.shards.dimensions, self.chunk_shape, strict=True)
        )
        return self.levels[0].chunks_per_shard(span)

    def nchunks_of(self, shard: Coords) -> int:
        """Return how many inner chunks the shard at *shard* has room for, those beyond the array included."""
        spans = (dimension.span(index)[1] for dimension, index in zip(self.shards.dimensions, shard, strict=True))
        return math.prod(span // length for span, length in zip(spans, self.chunk_shape, strict=True))

    def index_nbytes(self, shard: Coords) -> int:
        """Return the size of the index of the outermost shard at *shard*."""
        return self.levels[0].index_codecs.nbytes(math.prod(self.index_shape(shard)))

    def row(self, prefix: Coords, chunks: range) -> Iterator[Segment]:
        """Yield the segments of *chunks* of the row below *prefix*, which are all coordinates but the last."""
        axis = self.row_axis
        start = chunks.start
        while start < chunks.stop:
            place = self.locate((*prefix, start))
            if len(self.levels) == 1:
                stop = self.covered(self.ndim - 1, place.shard[-1]).stop
            else:
                n = place.shapes[-1][axis]
                stop = start - start % n + n
            stop = min(stop, chunks.stop)
            yield Segment(start, stop - start, self.stride(place), place)
            start = stop

    def covered(self, axis: int, index: int) -> range:
        """Return which inner chunks along *axis* the shards with coordinate *index* cover, within the grid."""
        dimension = self.shards.dimensions[axis]
        if not 0 <= index < dimension.nchunks:
            return range(0)
        start, edge = dimension.span(index)
        length = self.chunk_shape[axis]
        return range(start // length, min((start + edge) // length, self.grid_shape[axis]))
