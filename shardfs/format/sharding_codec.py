"""The sharding codec in metadata: a codec chain to the arrangement of inner chunks, or the reason why there is none.

Source: specification of the `sharding_indexed` codec 1.0, "Configuration parameters".
"""

import math
from dataclasses import dataclass
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.chunk_grid import ChunkGrid
from shardfs.format.codecs import (
    SHARDING,
    CodecChain,
    compose,
    composed_order,
    is_decodable,
    parse_chain,
    permute,
    split_chain,
)
from shardfs.format.metadata import Extension, brief, parse_codecs, parse_lengths
from shardfs.format.shard_index import ENTRY_NBYTES, IndexCodecs
from shardfs.format.sharding import MAX_DECODED_NBYTES, ShardGrid, ShardingLevel

MAX_LEVELS: Final = 16
MAX_INDEX_NBYTES: Final = 128 * 2**20


@dataclass(frozen=True, slots=True)
class _ParsedLevel:
    """A sharding codec as its configuration says, and the transposes before it, as one."""

    order: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    index_codecs: IndexCodecs
    index_at_start: bool
    after: tuple[Extension, ...]
    max_elements: int


def parse_sharding(
    shards: ChunkGrid, shape: tuple[int, ...], codecs: tuple[Extension, ...], item_nbytes: int | None
) -> tuple[ShardGrid, tuple[int, ...], tuple[Extension, ...]]:
    """Read the codec chain of a sharded array of *shape*; *item_nbytes* is the size of an element, None if it varies.

    Returns the arrangement of its inner chunks, the transpose that leads from the array's axes to those of an inner
    chunk, and the codecs of an inner chunk.  Raises `MetadataError` with the reason why there is none.
    """
    ndim = len(shape)
    order = tuple(range(ndim))
    edges: tuple[frozenset[int], ...] = tuple(frozenset(dimension.edges) for dimension in shards.dimensions)
    parsed: list[_ParsedLevel] = []
    while any(codec.name == SHARDING for codec in codecs):
        if len(parsed) == MAX_LEVELS:
            raise MetadataError(f"shards are nested more than {MAX_LEVELS} deep")
        level, codecs = _parse_level(split_chain(codecs, "codecs"), edges)
        edges = tuple(frozenset({length}) for length in level.chunk_shape)
        order = compose(order, level.order)
        parsed.append(level)

    # The innermost chunk's lengths, along the axes of each level from the inside out, and at last along the array's.
    lengths = parsed[-1].chunk_shape
    levels: list[ShardingLevel] = []
    for level in reversed(parsed):
        span = tuple(outer // inner for outer, inner in zip(level.chunk_shape, lengths, strict=True))
        nbytes = MAX_DECODED_NBYTES
        if item_nbytes is not None:
            # Payloads and indexes; a generous share for gaps, and for chunks that encoding made larger.
            nbytes = min(4 * level.max_elements * (item_nbytes + ENTRY_NBYTES) + 2**20, MAX_DECODED_NBYTES)
        levels.insert(
            0, ShardingLevel(level.order, span, level.index_codecs, level.index_at_start, level.after, nbytes)
        )
        lengths = permute(lengths, tuple(level.order.index(axis) for axis in range(ndim)))
    row_axis = order.index(ndim - 1) if ndim else 0
    grid = ShardGrid(shards, lengths, tuple(levels), ChunkGrid.regular(shape, lengths).shape, row_axis)
    _check_index_sizes(grid)
    return grid, order, codecs


def _parse_level(chain: CodecChain, edges: tuple[frozenset[int], ...]) -> tuple[_ParsedLevel, tuple[Extension, ...]]:
    """Read one sharding codec and those around it, and return the codecs of its inner chunks too.

    *edges* are the lengths that its shards may have along each axis, before any transpose.
    """
    for codec in chain.before:
        if codec.name != "transpose":
            raise MetadataError(f"the codec {codec.name} before sharding_indexed cannot be moved into inner chunks")
    order = composed_order(chain.before, len(edges))
    for codec in chain.after:
        if not is_decodable(codec):
            raise MetadataError(f"the codec {codec.name} after sharding_indexed is not known")
    edges = tuple(edges[axis] for axis in order)
    chunk_shape, index_codecs, at_start, codecs = _parse_configuration(chain.serializer, edges)
    max_elements = math.prod(max(lengths, default=0) for lengths in edges)
    return _ParsedLevel(order, chunk_shape, index_codecs, at_start, chain.after, max_elements), codecs


def _parse_configuration(
    codec: Extension, edges: tuple[frozenset[int], ...]
) -> tuple[tuple[int, ...], IndexCodecs, bool, tuple[Extension, ...]]:
    """Read one sharding codec; *edges* are the lengths along each axis that its shards may have."""
    codec.expect("chunk_shape", "codecs", "index_codecs", "index_location")
    for member in ("chunk_shape", "codecs", "index_codecs"):
        if member not in codec.configuration:
            raise MetadataError(f"sharding_indexed has no {member}")
    chunk_shape = parse_lengths(codec.configuration["chunk_shape"], "chunk_shape", minimum=1, ndim=len(edges))
    for axis, (length, outer) in enumerate(zip(chunk_shape, edges, strict=True)):
        for edge in outer:
            if edge % length:
                raise MetadataError(
                    f"inner chunks of length {length} do not divide shards of length {edge} (axis {axis})"
                )
    location = codec.configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise MetadataError(f'index_location must be "start" or "end", not {brief(location)}')
    index_codecs = IndexCodecs.parse(parse_codecs(codec.configuration["index_codecs"], "index_codecs"), len(edges))
    codecs = parse_chain(parse_codecs(codec.configuration["codecs"], "codecs"), "codecs of sharding_indexed")
    return chunk_shape, index_codecs, location == "start", codecs


def _check_index_sizes(grid: ShardGrid) -> None:
    spans = tuple(
        max(dimension.edges, default=0) // length
        for dimension, length in zip(grid.shards.dimensions, grid.chunk_shape, strict=True)
    )
    for level in grid.levels:
        nentries = math.prod(level.chunks_per_shard(spans))
        if level.index_codecs.nbytes(nentries) > MAX_INDEX_NBYTES:
            raise MetadataError(
                f"a shard index of {nentries} entries is larger than the {MAX_INDEX_NBYTES // 2**20} MiB that are read"
            )
        spans = level.span
