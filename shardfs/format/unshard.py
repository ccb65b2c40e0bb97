"""The unsharded document: what the view shows for a stored array, and the arrangement of shards behind it.

An array that is stored unsharded is the one-entry case of the same: each of its chunk files is a shard of one chunk.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.chunk_grid import ChunkGrid
from shardfs.format.chunk_key import ChunkKeyEncoding
from shardfs.format.codecs import composed_order, item_nbytes, parse_chain
from shardfs.format.metadata import ArrayMetadata, Extension
from shardfs.format.sharding import ShardGrid
from shardfs.format.sharding_codec import parse_sharding

POSITION_BITS: Final = 36
"""Bits of an inode number that hold the position in the grid of inner chunks and of directories above them."""


@dataclass(frozen=True)
class UnshardedArray:
    """An array as an unsharded one.

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


def whole(array: ArrayMetadata) -> UnshardedArray:
    """Describe an array that is stored unsharded, whose chunks all have one shape.

    Raises `NotUnshardable` with the reason if it is another one.
    """
    if array.is_sharded:
        raise NotUnshardable("the array is sharded")
    try:
        return _whole(array)
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None


def describe(array: ArrayMetadata) -> UnshardedArray:
    """Describe an array, sharded or not, as an unsharded one; raises `NotUnshardable` with the reason."""
    return unshard(array) if array.is_sharded else whole(array)


def fault_of(array: ArrayMetadata) -> str | None:
    """Return what is wrong, or not supported, in the document of an array that is stored unsharded; None if nothing.

    Such an array is shown as it is stored, so nothing depends on it but what users are told.
    """
    try:
        _check_supported(array)
        ChunkGrid.parse(array.chunk_grid, array.shape)
        ChunkKeyEncoding.parse(array.chunk_key_encoding)
        chain = parse_chain(array.codecs, "codecs")
        composed_order([codec for codec in chain if codec.name == "transpose"], array.ndim)
    except MetadataError as error:
        return str(error)
    return None


def _unshard(array: ArrayMetadata) -> UnshardedArray:
    grid, order, inner_codecs = parse_sharding(
        ChunkGrid.parse(array.chunk_grid, array.shape),
        array.shape,
        parse_chain(array.codecs, "codecs"),
        item_nbytes(array.document["data_type"]),
    )
    if order == tuple(range(len(order))):
        return _described(array, grid, inner_codecs)
    return _described(array, grid, (Extension("transpose", {"order": list(order)}), *inner_codecs))


def _whole(array: ArrayMetadata) -> UnshardedArray:
    chunk_shape = []
    for axis, dimension in enumerate(ChunkGrid.parse(array.chunk_grid, array.shape).dimensions):
        edges = tuple(dimension.edges)
        if len(edges) > 1:
            raise MetadataError(f"chunks have several lengths along axis {axis}")
        # Only a bounded grid has no edge at all, along an axis without elements.
        chunk_shape.append(edges[0] if edges else array.chunk_grid.configuration["chunk_shape"][axis])
    grid = ShardGrid.of_chunks(ChunkGrid.regular(array.shape, tuple(chunk_shape)), tuple(chunk_shape))
    return _described(array, grid, parse_chain(array.codecs, "codecs"))


def _described(array: ArrayMetadata, grid: ShardGrid, codecs: tuple[Extension, ...]) -> UnshardedArray:
    _check_supported(array)
    key_encoding = ChunkKeyEncoding.parse(array.chunk_key_encoding)
    if count_positions(grid.grid_shape) > 2**POSITION_BITS:
        raise MetadataError(f"{math.prod(grid.grid_shape)} inner chunks are more than inode numbers can count")
    replaced = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(grid.chunk_shape)}},
        "chunk_key_encoding": key_encoding.to_json(),
        "codecs": [codec.to_json() for codec in codecs],
    }
    return UnshardedArray({**array.document, **replaced}, grid, key_encoding, codecs)


def _check_supported(array: ArrayMetadata) -> None:
    if array.document.get("storage_transformers"):
        raise MetadataError("storage transformers, which may change keys and bytes, are not supported")


def count_positions(grid_shape: tuple[int, ...]) -> int:
    """Return the number of inner chunks and of the directories above them, if each axis is a directory level."""
    return sum(math.prod(grid_shape[:depth]) for depth in range(len(grid_shape) + 1))
