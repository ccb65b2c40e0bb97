"""An edited unsharded document back to the stored one: the inverse of `describe`, for what may be edited.

A program may change attributes, dimension names, the fill value, the shape, and members that need not be understood.
What says where chunks lie and what their bytes mean stays as it is stored, spelling included; only the chunk grid
follows a new shape where it has to.
"""

from typing import Any, Final

from shardfs.errors import MetadataError, NotUnshardable, RefusedError
from shardfs.format.chunk_grid import ChunkGrid
from shardfs.format.codecs import parse_chain
from shardfs.format.metadata import ArrayMetadata, Extension, Json, parse_node
from shardfs.format.normal_form import (
    canonical,
    is_encoded_alike,
    normal_codecs,
    normal_data_type,
    normal_key_encoding,
)
from shardfs.format.unshard import UnshardedArray, describe

_TEXT_LENGTH: Final = 120


def reshard(stored: ArrayMetadata, edited: ArrayMetadata) -> dict[str, Any]:
    """Return the stored document that shows as *edited*, which was written over what shows of *stored*.

    Raises `RefusedError` with the reason if *edited* would change what stored bytes mean, or the length of a shard
    that the array has before and after; and `NotUnshardable` if *stored* does not show unsharded at all.
    """
    document = describe_sharded(stored, edited)
    grid = Extension.parse(document["chunk_grid"], "chunk_grid")
    _check_spans(ChunkGrid.parse(stored.chunk_grid, stored.shape), ChunkGrid.parse(grid, edited.shape))
    return document


def describe_sharded(stored: ArrayMetadata, edited: ArrayMetadata) -> dict[str, Any]:
    """Return what `reshard` does, for a copy of a document: it moves no shard, so any shape is as good as another."""
    shown = describe(stored)
    try:
        _check_same(shown, stored, edited)
        document = {
            **edited.document,
            "chunk_grid": _resized_grid(stored, edited.shape),
            "chunk_key_encoding": stored.document["chunk_key_encoding"],
            "codecs": stored.document["codecs"],
        }
        _check_shown(document, shown, edited.shape)
    except (MetadataError, NotUnshardable) as error:
        raise RefusedError(str(error)) from None
    return document


def _check_same(shown: UnshardedArray, stored: ArrayMetadata, edited: ArrayMetadata) -> None:
    """Refuse an edited document that says anything else of where chunks lie and what their bytes mean."""
    if edited.is_sharded:
        raise RefusedError("the document is that of a sharded array, the array is shown unsharded")
    if edited.ndim != stored.ndim:
        raise RefusedError(f"{edited.ndim} axes instead of {stored.ndim}")
    chunk_shape = shown.grid.chunk_shape
    if ChunkGrid.parse(edited.chunk_grid, edited.shape) != ChunkGrid.regular(edited.shape, chunk_shape):
        if edited.chunk_grid.name != "regular":
            raise RefusedError(f"chunk grid {edited.chunk_grid.name} instead of regular")
        raise RefusedError(
            f"chunk shape {edited.chunk_grid.configuration['chunk_shape']} instead of {list(chunk_shape)}"
        )
    for what, new, old in (
        ("data type", normal_data_type(edited.document["data_type"]), normal_data_type(stored.document["data_type"])),
        ("chunk key encoding", normal_key_encoding(edited.chunk_key_encoding), shown.key_encoding.to_json()),
    ):
        if canonical(new) != canonical(old):
            raise RefusedError(f"{what} {_text(new)} instead of {_text(old)}")
    _check_codecs(shown.codecs, edited.codecs, stored.document["data_type"])


def _check_codecs(old: tuple[Extension, ...], new: tuple[Extension, ...], data_type: Json) -> None:
    chain = parse_chain(new, "codecs")
    if len(chain) != len(new):
        # Nobody would know of it afterwards, but the program that added it may apply it to what it writes.
        raise RefusedError("codecs that need not be understood cannot be added")
    old_names, new_names = [codec.name for codec in old], [codec.name for codec in chain]
    if old_names != new_names:
        raise RefusedError(f"codecs {', '.join(new_names)} instead of {', '.join(old_names)}")
    pairs = zip(old, chain, normal_codecs(old, data_type), normal_codecs(chain, data_type), strict=True)
    for was, codec, old_normal, new_normal in pairs:
        if canonical(old_normal) != canonical(new_normal) or not is_encoded_alike(was, codec):
            raise RefusedError(f"codecs {_text(codec.to_json())} instead of {_text(was.to_json())}")


def _resized_grid(stored: ArrayMetadata, shape: tuple[int, ...]) -> Json:
    """Return the chunk grid of *stored* as it is written, with edges added where they do not cover *shape*."""
    grid = stored.document["chunk_grid"]
    if stored.chunk_grid.name != "rectilinear":
        return grid
    axes = stored.chunk_grid.configuration["chunk_shapes"]
    resized = [_resized_axis(axis, extent) for axis, extent in zip(axes, shape, strict=True)]
    return {**grid, "configuration": {**grid["configuration"], "chunk_shapes": resized}}


def _resized_axis(axis: Json, extent: int) -> Json:
    """Repeat the last edge of an axis of a rectilinear grid until *extent* is covered; no edge ever goes."""
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


def _check_spans(old: ChunkGrid, new: ChunkGrid) -> None:
    """Refuse a change of shape by which a shard that overlaps the array before and after gets another length.

    Grids differ in the last of these at most: all before it lie wholly within both extents.
    """
    for axis, (was, will) in enumerate(zip(old.dimensions, new.dimensions, strict=True)):
        last = min(was.nchunks, will.nchunks) - 1
        if last < 0:
            continue
        (_, old_edge), (_, new_edge) = was.span(last), will.span(last)
        if old_edge != new_edge:
            raise RefusedError(
                f"the shape cannot change so: shards of this grid end with the array, and those at {last} along axis "
                f"{axis} would be {new_edge} instead of {old_edge} elements long"
            )


def _check_shown(document: dict[str, Any], shown: UnshardedArray, shape: tuple[int, ...]) -> None:
    """Refuse a result that does not show as it should."""
    node = parse_node(document)
    if isinstance(node, ArrayMetadata) and node.shape == shape:
        again = describe(node)
        if (again.grid.chunk_shape, again.key_encoding, again.codecs) == (
            shown.grid.chunk_shape,
            shown.key_encoding,
            shown.codecs,
        ):
            return
    raise RefusedError("the array would not show as this document")


def _text(value: Json) -> str:
    text = canonical(value)
    return text if len(text) <= _TEXT_LENGTH else text[:_TEXT_LENGTH] + "…"
