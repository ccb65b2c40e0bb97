"""The unsharded document: what the view shows for a stored array, and the arrangement of shards behind it."""

import math
from dataclasses import dataclass
from typing import Any, Final

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.chunk_grid import ChunkGrid
from shardfs.format.chunk_key import ChunkKeyEncoding
from shardfs.format.codecs import item_nbytes, parse_chain
from shardfs.format.metadata import ArrayMetadata, Extension
from shardfs.format.sharding import ShardGrid
from shardfs.format.sharding_codec import parse_sharding

POSITION_BITS: Final = 36
"""Bits of an inode number that hold the position in the grid of inner chunks and of directories above them."""


@dataclass(frozen=True)
class UnshardedArray:
    """A sharded array as an unsharded one.

    *document* describes the array with its inner chunks as chunks; *grid* says where these lie; *codecs* are those
    of an inner chunk, transposes that stood before the sharding codec first.
    """

    document: dict[str, Any]
    grid: ShardGrid
    key_encoding: ChunkKeyEncoding
    codecs: tuple[Extension, ...]


def unshard(array: ArrayMetadata) -> UnshardedArray:
    """Describe a sharded array as an unsharded one.

    Raises `NotUnshardable` with the reason if that is not possible; the array is then shown as it is stored.
    """
    if not array.is_sharded:
        raise NotUnshardable("the array is not sharded")
    try:
        return _unshard(array)
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None


def _unshard(array: ArrayMetadata) -> UnshardedArray:
    key_encoding = ChunkKeyEncoding.parse(array.chunk_key_encoding)
    shards = ChunkGrid.parse(array.chunk_grid, array.shape)
    grid, order, inner_codecs = parse_sharding(
        shards, array.shape, parse_chain(array.codecs, "codecs"), item_nbytes(array.document["data_type"])
    )
    if count_positions(grid.grid_shape) > 2**POSITION_BITS:
        raise MetadataError(f"{math.prod(grid.grid_shape)} inner chunks are more than inode numbers can count")
    if order == tuple(range(len(order))):
        codecs = inner_codecs
    else:
        codecs = (Extension("transpose", {"order": list(order)}), *inner_codecs)
    replaced = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(grid.chunk_shape)}},
        "chunk_key_encoding": key_encoding.to_json(),
        "codecs": [codec.to_json() for codec in codecs],
    }
    return UnshardedArray({**array.document, **replaced}, grid, key_encoding, codecs)


def count_positions(grid_shape: tuple[int, ...]) -> int:
    """Return the number of inner chunks and of the directories above them, if each axis is a directory level."""
    return sum(math.prod(grid_shape[:depth]) for depth in range(len(grid_shape) + 1))
