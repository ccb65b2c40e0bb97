"""Sharded arrays shown unsharded: the document with inner chunks as chunks, the shards behind it, and the way back.

Chunks may be shown decoded (`--decode`); then the document says so. An array that is stored unsharded is treated as a
special case: each of its chunk files is a shard of one chunk.

A program may change attributes, dimension names, the fill value, the shape, and members that need not be understood.
Whatever says where chunks are and what their bytes mean stays as it is stored, spelling included; only the chunk grid
is extended if a new shape requires it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError, UsageError
from shardfs.format.codecs import SHARDING, ChunkCodec, composed_order, parse_chain, split_chain
from shardfs.format.document import MAX_NDIM, Document, Extension, Json, brief, canonical, parse_codecs
from shardfs.format.dtype import DataType, item_nbytes
from shardfs.format.foreign import ForeignChunks
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding
from shardfs.format.index import ENTRY_NBYTES
from shardfs.format.metadata import (
    ArrayMetadata,
    are_same_codecs,
    normal_codecs,
    normal_data_type,
    normal_key_encoding,
    parse_array,
)
from shardfs.format.sharding import (
    MAX_INDEX_NBYTES,
    POSITION_BITS,
    CutOffGrid,
    ShardGrid,
    count_positions,
    parse_sharding,
)

ZARR_JSON: Final = "zarr.json"
_MAX_ENTRIES: Final = MAX_INDEX_NBYTES // ENTRY_NBYTES
_INDEX_CODECS: Final = ({"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"})
_TEXT_LENGTH: Final = 120


@dataclass(frozen=True)
class UnshardedArray:
    """An array shown unsharded.

    *document* describes it with its inner chunks as chunks, *grid* says where these are, and *codecs* are those of an
    inner chunk, after the transposes that preceded the sharding codec.
    """

    document: dict[str, Any]
    grid: ShardGrid
    key_encoding: ChunkKeyEncoding
    codecs: tuple[Extension, ...]


def describe(array: ArrayMetadata, drafts: tuple[str, ...] = ()) -> UnshardedArray:
    """Describe an array as an unsharded one; if it is stored unsharded, its chunks must all have one shape.

    It may be one that only *drafts* of the specification allow. Raises `NotUnshardable` with the reason if that is
    impossible; the array is then shown as stored.
    """
    try:
        return _describe_sharded(array, drafts) if array.is_sharded else _describe_unsharded(array)
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None


def fault_of(array: ArrayMetadata) -> str | None:
    """Return what is invalid or unsupported in the document of an unsharded array; None if nothing.

    Such an array is shown as stored, so this is only for messages.
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


def describe_foreign(chunks: ForeignChunks) -> UnshardedArray:
    """Describe an array of another format, or values by id; its key encoding is that of shards."""
    return UnshardedArray(chunks.document, chunks.grid, chunks.shard_names, chunks.codecs)


def _describe_sharded(array: ArrayMetadata, drafts: tuple[str, ...]) -> UnshardedArray:
    grid, order, inner_codecs = parse_sharding(
        ChunkGrid.parse(array.chunk_grid, array.shape),
        array.shape,
        parse_chain(array.codecs, "codecs"),
        item_nbytes(array.document["data_type"]),
        drafts,
    )
    if order == tuple(range(len(order))):
        return _described(array, grid, inner_codecs)
    return _described(array, grid, (Extension("transpose", {"order": list(order)}), *inner_codecs))


def _describe_unsharded(array: ArrayMetadata) -> UnshardedArray:
    chunk_shape = []
    for axis, dimension in enumerate(ChunkGrid.parse(array.chunk_grid, array.shape).dimensions):
        edges = tuple(dimension.edges)
        if len(edges) > 1:
            raise MetadataError(f"chunks have several lengths along axis {axis}")
        # Only a bounded grid has no edge at all, along an axis of length 0.
        chunk_shape.append(edges[0] if edges else array.chunk_grid.configuration["chunk_shape"][axis])
    grid = ShardGrid.of_chunks(ChunkGrid.regular(array.shape, tuple(chunk_shape)), tuple(chunk_shape))
    return _described(array, grid, parse_chain(array.codecs, "codecs"))


def _described(array: ArrayMetadata, grid: ShardGrid, codecs: tuple[Extension, ...]) -> UnshardedArray:
    _check_supported(array)
    key_encoding = ChunkKeyEncoding.parse(array.chunk_key_encoding)
    if count_positions(grid.grid_shape) > 2**POSITION_BITS:
        raise MetadataError(f"{math.prod(grid.grid_shape)} inner chunks are more than shardfs can count")
    chunk_grid: Json = {"name": "regular", "configuration": {"chunk_shape": list(grid.chunk_shape)}}
    if isinstance(grid, CutOffGrid):
        edges = [grid.edges(axis) for axis in range(grid.ndim)]
        chunk_grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": edges}}
    replaced = {
        "zarr_format": 3,  # not 3.0, which zarr-python refuses since 3.4
        "chunk_grid": chunk_grid,
        "chunk_key_encoding": key_encoding.to_json(),
        "codecs": [codec.to_json() for codec in codecs],
    }
    document = {**array.document, **replaced}
    if array.storage_transformer is not None:
        del document["storage_transformers"]
    return UnshardedArray(document, grid, key_encoding, codecs)


def _check_supported(array: ArrayMetadata) -> None:
    if array.document.get("storage_transformers") and array.storage_transformer is None:
        raise MetadataError("storage transformers, which may change keys and bytes, are not supported")


def reshard(stored: ArrayMetadata, edited: ArrayMetadata) -> dict[str, Any]:
    """Return the stored document that is shown as *edited*, an edit of what is shown for *stored*.

    Raises `RefusedError` with the reason if *edited* would change what stored bytes mean, and `NotUnshardable` if
    *stored* is not shown unsharded at all. Whether shards keep their length is up to `check_resized`.
    """
    shown = describe(stored)
    try:
        _check_same(shown, edited)
        document = {
            **edited.document,
            "zarr_format": stored.document["zarr_format"],
            "chunk_grid": _resized_grid(stored, edited.shape),
            "chunk_key_encoding": stored.document["chunk_key_encoding"],
            "codecs": stored.document["codecs"],
        }
        if stored.storage_transformer is not None:
            document["storage_transformers"] = stored.document["storage_transformers"]
            document = {name: document[name] for name in stored.document if name in document} | document
        if describe(parse_array(document)).grid.chunk_shape != shown.grid.chunk_shape:
            raise RefusedError("the array would not be shown like this")
    except (MetadataError, NotUnshardable) as error:
        raise RefusedError(str(error)) from None
    return document


def _check_same(shown: UnshardedArray, edited: ArrayMetadata) -> None:
    """Refuse an edit that changes where chunks are or what their bytes mean."""
    if edited.is_sharded:
        raise RefusedError("the document is that of a sharded array, the array is shown unsharded")
    if edited.ndim != shown.grid.ndim:
        raise RefusedError(f"{edited.ndim} axes instead of {shown.grid.ndim}")
    document, data_type = shown.document, shown.document["data_type"]
    for what, new, old in (
        ("chunk grid", edited.chunk_grid.to_json(), document["chunk_grid"]),
        ("data type", normal_data_type(edited.document["data_type"]), normal_data_type(data_type)),
        ("chunk key encoding", normal_key_encoding(edited.chunk_key_encoding), shown.key_encoding.to_json()),
    ):
        if canonical(new) != canonical(old):
            raise RefusedError(f"{what} {_text(new)} instead of {_text(old)}")
    chain = parse_chain(edited.codecs, "codecs")
    # A codec that need not be understood would be lost, but the program that added it may apply it to what it writes.
    if len(chain) != len(edited.codecs) or not are_same_codecs(shown.codecs, chain, data_type):
        raise RefusedError(f"codecs {_text(edited.document['codecs'])} instead of {_text(document['codecs'])}")


def _resized_grid(stored: ArrayMetadata, shape: tuple[int, ...]) -> Json:
    """Return the chunk grid of *stored* in its spelling, with edges added if they do not cover *shape*."""
    grid = stored.document["chunk_grid"]
    if stored.chunk_grid.name != "rectilinear":
        return grid
    axes = stored.chunk_grid.configuration["chunk_shapes"]
    resized = [_resized_axis(axis, extent) for axis, extent in zip(axes, shape, strict=True)]
    return {**grid, "configuration": {**grid["configuration"], "chunk_shapes": resized}}


def _resized_axis(axis: Json, extent: int) -> Json:
    """Repeat the last edge of an axis of a rectilinear grid until *extent* is covered; no edge is removed."""
    if not isinstance(axis, list):
        return axis
    runs = [run if isinstance(run, list) else [run, 1] for run in axis]
    missing = extent - sum(edge * count for edge, count in runs)
    if missing <= 0:
        return axis
    edge, count = runs[-1]
    more = -(-missing // edge)
    if isinstance(axis[-1], list):
        return [*axis[:-1], [edge, count + more]]
    return [*axis, edge if more == 1 else [edge, more]]


def check_resized(stored: ArrayMetadata, document: Document) -> None:
    """Raise `RefusedError` if a shard that overlaps the array would change its length under *document*.

    Only the last shard can: all others are wholly within both extents.
    """
    resized = parse_array(document)
    old = ChunkGrid.parse(stored.chunk_grid, stored.shape).dimensions
    new = ChunkGrid.parse(resized.chunk_grid, resized.shape).dimensions
    for axis, (was, will) in enumerate(zip(old, new, strict=True)):
        last = min(was.nchunks, will.nchunks) - 1
        if last < 0:
            continue
        (_, old_edge), (_, new_edge) = was.span(last), will.span(last)
        if old_edge != new_edge:
            raise RefusedError(
                f"the shape cannot change like this: shards of this grid end with the array, and those at {last} "
                f"along axis {axis} would be {new_edge} instead of {old_edge} elements long"
            )


def _text(value: Json) -> str:
    text = canonical(value)
    return text if len(text) <= _TEXT_LENGTH else text[:_TEXT_LENGTH] + "…"


def codec_of(shown: UnshardedArray) -> ChunkCodec:
    """Return the codec of the chunks; raises `NotShownError` with the reason why they cannot be decoded."""
    if isinstance(shown.grid, CutOffGrid):
        raise NotShownError("its inner chunks have several shapes; without --decode, the v3 view shows them")
    return ChunkCodec.parse(shown.document["data_type"], shown.grid.chunk_shape, shown.codecs)


def decoded_document(shown: UnshardedArray) -> dict[str, Any]:
    """Return the document of *shown* for decoded chunks: little-endian `bytes` and no other codec.

    Raises `NotShownError` with the reason why they cannot be decoded.
    """
    return {**shown.document, "codecs": [_bytes_codec(codec_of(shown).data_type).to_json()]}


def accept_decoded(shown: UnshardedArray, edited: ArrayMetadata) -> ArrayMetadata:
    """Return *edited*, an edit of `decoded_document(shown)`, as an edit of the document of *shown*.

    Raises `RefusedError` if it does not say that chunks are decoded.
    """
    require_decoded(edited)
    codecs: Json = shown.document["codecs"]
    return replace(edited, document={**edited.document, "codecs": codecs}, codecs=parse_codecs(codecs, "codecs"))


def require_decoded(edited: ArrayMetadata) -> None:
    """Raise `RefusedError` unless the chunks of a new array are decoded, as whatever is written is taken to be."""
    data_type = edited.document["data_type"]
    try:
        expected = normal_codecs([_bytes_codec(DataType.of_fixed_size(data_type))], data_type)
        # A codec that need not be understood is not in the normal form, but its writer may apply it.
        if len(edited.codecs) == 1 and canonical(normal_codecs(edited.codecs, data_type)) == canonical(expected):
            return
    except (MetadataError, NotShownError) as error:
        raise RefusedError(str(error)) from None
    names = ", ".join(codec.name for codec in edited.codecs)
    raise RefusedError(
        f"codecs {names}: chunks are decoded here; make the array without compressor and filters, little-endian "
        "and in C order"
    )


def _bytes_codec(data_type: DataType) -> Extension:
    return Extension("bytes", {"endian": "little"} if data_type.nbytes > 1 else {})


def parse_chunks_per_shard(text: str) -> tuple[int, ...]:
    """Parse the number of inner chunks along each axis of a shard, "8,8,8", or one for all axes, "8"."""
    parts = text.split(",")
    numbers = [int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) <= 9]
    if len(numbers) != len(parts) or min(numbers) < 1:
        raise UsageError(
            f"{brief(text)} does not say how many inner chunks a shard has: "
            "give a number from 1 to 999999999 for each axis, as in 8,8,8, or one for all axes, as in 8"
        )
    if len(numbers) > MAX_NDIM or math.prod(numbers) > _MAX_ENTRIES:
        raise UsageError(f"{brief(text)} is too much for one shard, which can have {_MAX_ENTRIES} inner chunks")
    return tuple(numbers)


def shard_new(
    edited: ArrayMetadata, chunks_per_shard: tuple[int, ...], *, index_at_start: bool = False
) -> dict[str, Any]:
    """Return a sharded document that is shown as *edited*, with *chunks_per_shard* chunks in a shard.

    A single number is for all axes. Raises `NotUnshardable` with the reason why *edited* must be stored as written.
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
        ChunkGrid.parse(edited.chunk_grid, edited.shape)
        chain = parse_chain(edited.codecs, "codecs")
        split_chain(chain, "codecs")
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None
    if len(chain) != len(edited.codecs):
        raise NotUnshardable("it has codecs that need not be understood, and would lose them")
    inner: list[int] = edited.chunk_grid.configuration["chunk_shape"]
    configuration = {
        "chunk_shape": inner,
        "codecs": [codec.to_json() for codec in chain],
        "index_codecs": [dict(codec) for codec in _INDEX_CODECS],
        "index_location": "start" if index_at_start else "end",
    }
    chunk_shape = [length * n for length, n in zip(inner, chunks_per_shard, strict=True)]
    document = {
        **edited.document,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "codecs": [{"name": SHARDING, "configuration": configuration}],
    }
    describe(parse_array(document))  # or the reason why it would not be shown as it was written
    return document
