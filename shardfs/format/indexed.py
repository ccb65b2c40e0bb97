"""Arrays sharded by the storage transformer `indexed` of ZEP 2's first draft, in a document of final Zarr v3.

The chunks are those of the document. `chunks_per_shard` of them are in one shard, whose key is a chunk key with its
coordinates. A shard looks like one of `sharding_indexed`, with a little-endian index at the end and without a checksum.
So the array is described by a grid of shards and that codec, and no other module has to know about it.

Source: ZEP 2, "Sharding storage transformer" (draft of 2022).
"""

from collections.abc import Sequence
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.document import Extension, Json, brief

INDEXED: Final = "indexed"
_EXTENSIONS: Final = ("", "https://purl.org/zarr/spec/storage_transformers/sharding/1.0")
_INDEX_CODECS: Final = ({"name": "bytes", "configuration": {"endian": "little"}},)


def is_indexed(transformers: Sequence[Json]) -> bool:
    """Whether one of the `storage_transformers` is `indexed`, by its `type`, as in the draft, or its `name`."""
    return any(isinstance(t, dict) and INDEXED in (t.get("name"), t.get("type")) for t in transformers)


def sharding_of(
    transformers: Sequence[Json], shape: tuple[int, ...], grid: Extension, codecs: Sequence[Json]
) -> tuple[Extension, Extension]:
    """Return the chunk grid of shards and the sharding codec equivalent to *transformers*, for an array of *shape*.

    *grid* and *codecs* are those of its document. Raises `MetadataError` if the configuration is invalid.
    """
    transformer = transformers[0]
    if len(transformers) > 1 or transformer.get("name", INDEXED) != transformer.get("type", INDEXED):
        raise MetadataError(f"other storage transformers beside {INDEXED} are not supported")
    unknown = transformer.keys() - {"name", "type", "extension", "configuration", "must_understand"}
    if unknown:
        raise MetadataError(f"the storage transformer {INDEXED} has unknown members {sorted(unknown)}")
    if transformer.get("extension", "") not in _EXTENSIONS:
        raise MetadataError(f"the extension {brief(transformer['extension'])} of {INDEXED} is not known")
    parsed = Extension.parse({"name": INDEXED, "configuration": transformer.get("configuration")}, INDEXED)
    parsed.expect("chunks_per_shard")
    per_shard = parsed.lengths("chunks_per_shard", len(shape))
    if grid.name != "regular":
        raise MetadataError(f"chunks of a {brief(grid.name)} grid cannot be sharded by {INDEXED}")
    grid.expect("chunk_shape")
    chunk_shape = grid.lengths("chunk_shape", len(shape))
    shard_shape = [length * n for length, n in zip(chunk_shape, per_shard, strict=True)]
    configuration = {
        "chunk_shape": list(chunk_shape),
        "codecs": list(codecs),
        "index_codecs": list(_INDEX_CODECS),
        "index_location": "end",
    }
    return Extension("regular", {"chunk_shape": shard_shape}), Extension("sharding_indexed", configuration)
