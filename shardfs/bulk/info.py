"""What the arrays of a source are, how much of each is stored, and which views show it."""

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from shardfs.bulk.nodes import BulkNode, find_node, walk
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.walk import Advance, Progress, array_nodes, no_progress, walk_shards
from shardfs.dataset.node import Node
from shardfs.errors import MetadataError, NotFoundError, ShardfsError, UnsupportedError, size
from shardfs.format.document import Json, brief, encode_json
from shardfs.format.dtype import item_nbytes
from shardfs.format.lens.unsharded import fault_of
from shardfs.format.lens.v2 import ZARRAY
from shardfs.format.metadata import ArrayMetadata
from shardfs.formats import VirtualStore
from shardfs.stores.base import Kind, Stat
from shardfs.vfs.views import View, make_view

Described = dict[str, Any]

_MAX_ELEMENTS: Final = 2**63  # larger sizes are mere claims of a document


class ViewOptions(NamedTuple):
    """The options of a mount that select the view."""

    view: str
    decode: bool = False

    @property
    def text(self) -> str:
        """The options as typed on the command line."""
        return f"--view {self.view}{' --decode' if self.decode else ''}"


_NPY: Final = ViewOptions("npy")
VIEW_OPTIONS: Final = (
    ViewOptions("v3"),
    ViewOptions("v3", decode=True),
    ViewOptions("v2"),
    ViewOptions("v2", decode=True),
    _NPY,
)


_SHOWN: Final = {
    ViewOptions("v3"): "unsharded",
    ViewOptions("v3", decode=True): "decoded",
    ViewOptions("v2"): "as Zarr v2",
    ViewOptions("v2", decode=True): "as Zarr v2, decoded",
    _NPY: "as a .npy file",
}
"""What each view shows an array as."""


def views_of(source: Source) -> dict[ViewOptions, View]:
    """Return all views of *source*."""
    source.hierarchy.look_above()
    views = {}
    for option in VIEW_OPTIONS:
        drafts = source.hierarchy.drafts if option.view == "v3" else ()
        views[option] = make_view(option.view, source.store, decoded=option.decode, drafts=drafts)
    return views


async def describe_source(
    source: Source, array: str | None = None, *, progress: Progress = no_progress
) -> list[Described]:
    """Describe every array of *source*, or the one at *array*, and how it appears in every view, as plain values.

    Also nodes whose document is broken, and stored names that a file of the npy view hides; and in a file that is a
    source, arrays of Zarr v2.
    """
    views = views_of(source)
    with progress("counting", None, "shard") as advance:
        described = [
            _describe_v2(node) | await _measure(source, node.array, advance) async for node in _v2_arrays(source, array)
        ]
        if array is None or not described:
            described += [
                describe_node(node, views)
                | await _measure(
                    source, node.any_array or node.shards, advance, has_elements=node.any_array is not None
                )
                async for node in array_nodes(source, array)
            ]
    return described


async def _v2_arrays(source: Source, path: str | None) -> AsyncIterator[BulkNode]:
    """Yield the arrays of Zarr v2, or the one at *path*, that nothing but a mount shows to programs."""
    if not isinstance(source.store, VirtualStore):
        return
    if path is None:
        nodes = [found async for _, _, found in walk(source) if isinstance(found, BulkNode)]
    else:
        nodes = []
        with suppress(NotFoundError):  # `array_nodes` raises a better error
            nodes = [found] if (found := await find_node(source, path)) is not None else []
    for node in nodes:
        if ZARRAY in node.documents:
            yield node


def _describe_v2(node: BulkNode) -> Described:
    assert isinstance(node.metadata, ArrayMetadata)
    document, codecs = node.metadata.document, [codec.name for codec in node.metadata.codecs]
    codecs = codecs if node.decoder is None else str(node.decoder).split(", ")
    item: Described = {
        "path": node.path,
        "zarr_format": 2,
        "shape": list(node.metadata.shape),
        "data_type": _shallow(document["data_type"]),
        "sharded": False,
        "storage_transformer": None,
        "chunk_grid": _shallow(document["chunk_grid"]),
        "codecs": codecs,
    }
    return item | {"reason": None, "views": [], "left_out": {}, "caveat": None}


def describe_node(node: Node, views: Mapping[ViewOptions, View]) -> Described:
    """Describe a node of a source whose *views* are those of `views_of`, as its document says."""
    item: Described = {"path": node.path}
    reason = node.reason
    if isinstance(node.metadata, ArrayMetadata):
        metadata, transformer = node.metadata, node.metadata.storage_transformer
        if reason is None and not metadata.is_sharded:
            reason = fault_of(metadata)
        grid = metadata.document["chunk_grid"] if transformer is None else metadata.chunk_grid.to_json()
        item |= {
            "shape": list(metadata.shape),
            "data_type": _shallow(metadata.document["data_type"]),
            "sharded": metadata.is_sharded,
            "storage_transformer": transformer,
            "chunk_grid": _shallow(grid),
            "codecs": [codec.name for codec in metadata.codecs],
        }
    if node.foreign is not None:
        item |= node.foreign.facts
    if node.any_array is not None:
        item |= {
            "inner_chunk_shape": list(node.any_array.grid.chunk_shape),
            "inner_chunks": node.any_array.grid.nchunks,
            "nesting": node.any_array.grid.nindexes if node.array is not None else 0,
            "inner_codecs": [codec.name for codec in node.any_array.codecs],
            "checksum": node.checksum or "none",
        }
    shown = {each: view.shown(node) for each, view in views.items()}
    skipped = {each.text: found.reason for each, found in shown.items() if found.reason is not None}
    if node.foreign is not None and node.foreign.names is not None:
        skipped[_NPY.text] = "values by id are shown as they are stored"
    caveats = [found.caveat for each, found in shown.items() if each.view == "v2"]
    return item | {
        "reason": reason,
        "views": [option.text for option in views if reason is None and option.text not in skipped],
        "left_out": skipped,
        "caveat": next((caveat for caveat in caveats if caveat is not None), None),
    }


_NOT_COUNTED: Final = (
    "how much is stored is not known, because web servers list nothing; --assume-complete asks for each shard"
)


async def _measure(source: Source, array: Array | None, advance: Advance, *, has_elements: bool = True) -> Described:
    """Return how much of an array is stored, if that is known; an unsharded one is stored chunk by chunk."""
    if array is None:
        return {}
    stored = stored_nbytes = nelements = nlinks = 0
    error = None
    nodes: list[str] = []
    try:
        async for coords in walk_shards(array, others=lambda strays: nodes.extend(strays.nodes)):
            stat: Stat | None = None
            with suppress(NotFoundError):
                stat = await source.store.stat(array.layout.shard_key(coords))
            nlinks += stat is not None and stat.kind is Kind.SYMLINK
            if stat is None or stat.kind is not Kind.FILE:
                state = await array.shard(coords)  # a link to a shard counts as one
                state.check()
                stat = state.stat
            stored_nbytes += stat.size if stat is not None else 0
            nelements += array.grid.nelements_of(coords)
            stored += 1
            advance(1)
    except UnsupportedError:  # by a source that cannot be listed
        return {"not_counted": _NOT_COUNTED}
    except ShardfsError as failure:
        error = str(failure)
    itemsize = item_nbytes(array.document["data_type"]) if has_elements else None
    return {
        "shards": math.prod(dimension.nchunks for dimension in array.grid.shards.dimensions),
        "stored_shards": stored,
        "linked_shards": nlinks,
        "stored_nbytes": stored_nbytes,
        "decoded_nbytes": None if itemsize is None or nelements > _MAX_ELEMENTS else itemsize * nelements,
        "error": error,
        "among_shards": nodes,
    }


def _shallow(part: Json) -> Json:
    """Return a part of a document, or a text instead if it is nested too deeply to be printed."""
    try:
        encode_json([[[part]]])  # its depth in the description included
    except MetadataError:
        return brief(part)
    return part


def facts(item: Described) -> list[tuple[str, str]]:
    """Return the names and values of a description of one array, and what each view shows of it, for people."""
    found = []
    for name, value in item.items():
        if name in ("shape", "inner_chunk_shape") and value == []:
            value = "()"
        if name not in ("path", "views", "left_out") and value is not None and value != []:
            text = f"{size(value)} ({value:,} bytes)" if name.endswith("_nbytes") else _text(value)
            found.append((name.replace("_nbytes", "").replace("_", " "), text))
    if ratio := ratio_of(item.get("decoded_nbytes"), item.get("stored_nbytes")):
        found.append(("ratio", ratio))
    for options, how in _SHOWN.items():
        shown = "as files by id" if "values" in item else how
        what = shown if options.text in item["views"] else item["left_out"].get(options.text, "as stored")
        found.append((options.text, what))
    return found


def ratio_of(decoded: int | None, stored: int | None) -> str:
    """Return how many times smaller the stored bytes are; nothing if that is not known."""
    if not decoded or not stored:
        return ""
    return f"{decoded / stored:.2f}" if decoded < 100 * stored else f"{decoded / stored:,.0f}"


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return f"{value['name']} {json.dumps(value.get('configuration', {}))}"[:1000]
    if isinstance(value, list):
        return (", " if isinstance(value[0], str) else " × ").join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
