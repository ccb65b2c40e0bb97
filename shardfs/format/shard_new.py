"""A new array that a program writes unsharded, to be stored sharded."""

import math
from typing import Any, Final

from shardfs.errors import MetadataError, NotUnshardable, UsageError
from shardfs.format.chunk_grid import ChunkGrid
from shardfs.format.codecs import SHARDING, parse_chain, split_chain
from shardfs.format.metadata import MAX_NDIM, ArrayMetadata, Json, brief, parse_node
from shardfs.format.shard_index import ENTRY_NBYTES
from shardfs.format.sharding_codec import MAX_INDEX_NBYTES
from shardfs.format.unshard import unshard

_MAX_ENTRIES: Final = MAX_INDEX_NBYTES // ENTRY_NBYTES
_INDEX_CODECS: Final = ({"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"})


def parse_chunks_per_shard(text: str) -> tuple[int, ...]:
    """Read the numbers of inner chunks along each axis of a shard, "8,8,8", or one for all axes, "8"."""
    parts = text.split(",")
    numbers = [int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) <= 9]
    if len(numbers) != len(parts) or min(numbers) < 1:
        raise UsageError(
            f"{brief(text)} does not say how many inner chunks a shard has: "
            "give a number of at least 1 for each axis, as in 8,8,8, or one for all axes, as in 8"
        )
    if len(numbers) > MAX_NDIM or math.prod(numbers) > _MAX_ENTRIES:
        raise UsageError(f"{brief(text)} is too much for one shard, which may have {_MAX_ENTRIES} inner chunks")
    return tuple(numbers)


def shard_new(edited: ArrayMetadata, chunks_per_shard: tuple[int, ...]) -> dict[str, Any]:
    """Return a sharded document that shows as *edited*, with *chunks_per_shard* of its chunks in a shard.

    A single number stands for all axes.  Raises `NotUnshardable` with the reason why *edited* has to be stored as it
    is written.
    """
    if edited.is_sharded:
        raise NotUnshardable("the array is sharded already")
    if not edited.ndim:
        raise NotUnshardable("an array without axes has a single chunk")
    if len(chunks_per_shard) == 1:
        chunks_per_shard *= edited.ndim
    if len(chunks_per_shard) != edited.ndim:
        raise NotUnshardable(f"shards are given for {len(chunks_per_shard)} axes, the array has {edited.ndim}")
    if edited.chunk_grid.name != "regular":
        raise NotUnshardable(f"chunks of a {brief(edited.chunk_grid.name)} grid cannot be put into shards")
    try:
        return _shard_new(edited, chunks_per_shard)
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None


def _shard_new(edited: ArrayMetadata, chunks_per_shard: tuple[int, ...]) -> dict[str, Any]:
    ChunkGrid.parse(edited.chunk_grid, edited.shape)
    inner: list[int] = edited.chunk_grid.configuration["chunk_shape"]
    sharding = {
        "name": SHARDING,
        "configuration": {
            "chunk_shape": inner,
            "codecs": _long_codecs(edited),
            "index_codecs": [dict(codec) for codec in _INDEX_CODECS],
            "index_location": "end",
        },
    }
    chunk_shape = [length * n for length, n in zip(inner, chunks_per_shard, strict=True)]
    document = {
        **edited.document,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "codecs": [sharding],
    }
    node = parse_node(document)
    if not isinstance(node, ArrayMetadata):
        raise MetadataError("the document is not one of an array")
    unshard(node)  # or the reason why it would not show as it was written
    return document


def _long_codecs(edited: ArrayMetadata) -> list[Json]:
    """Return the codecs as objects.  An empty configuration is kept: zarr-python demands one of some codecs."""
    chain = parse_chain(edited.codecs, "codecs")
    if len(chain) != len(edited.codecs):
        raise MetadataError("it has codecs that need not be understood, and would lose them")
    split_chain(chain, "codecs")
    return [
        {"name": codec.name, "configuration": dict(codec.configuration)}
        if isinstance(written, dict) and "configuration" in written
        else {"name": codec.name}
        for codec, written in zip(chain, edited.document["codecs"], strict=True)
    ]
