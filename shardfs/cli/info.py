"""`shardfs info`: every array, how a view shows it, and how to mount the source for which program."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import click
import trio

from shardfs.cli.clients import VIEW_OPTIONS, Advice, Adviser, ViewOptions
from shardfs.cli.options import command, json_option, open_source, source_options, view_options
from shardfs.cli.output import complain
from shardfs.dataset.array import Array
from shardfs.dataset.foreign import what_else
from shardfs.dataset.hierarchy import Node
from shardfs.dataset.maintenance.verify import ShardUse, measure
from shardfs.dataset.maintenance.walk import walk_nodes, walk_shards
from shardfs.dataset.source import Source
from shardfs.errors import MetadataError, ShardfsError, printable
from shardfs.format.document import Json, brief, encode_json
from shardfs.format.lens.unsharded import fault_of
from shardfs.format.metadata import ArrayMetadata
from shardfs.fuse.options import MountOptions
from shardfs.stores.url import StoreOptions
from shardfs.vfs.views import View, ZarrV2, make_view

Described = dict[str, Any]
Views = Mapping[ViewOptions, View]

_SHOWN: Final = {
    ViewOptions("v3"): "unsharded",
    ViewOptions("v3", decode=True): "decoded",
    ViewOptions("v2"): "as Zarr v2",
    ViewOptions("v2", decode=True): "as Zarr v2, decoded",
    ViewOptions("npy"): "as a .npy file",
}
_MAX_MISSING: Final = 3
"""How many of the arrays that a tool does not read are named in the text for people."""


@command(
    examples="""
    shardfs info data.zarr
    shardfs info --view v2 data.zarr
    shardfs info --shards data.zarr
    shardfs info --json data.zarr | jq '.[].shape'
    shardfs info --profile lab s3://bucket/data.zarr
    """
)
@source_options
@view_options
@click.option("--shards", is_flag=True, help="Also list every shard: size, chunks, live and dead bytes.")
@json_option
def info(source: str, store_options: StoreOptions, view: str, decode: bool, shards: bool, as_json: bool) -> None:
    """Describe every array of SOURCE: how a view shows it, or why not, and which mount your program reads.

    At the end is a line for each program: what to type, with MNT for your mount point.
    """
    MountOptions(view=view, decode=decode)  # refuses what no mount can show
    opened = open_source(source, store_options)
    usual = StoreOptions().to_arguments()
    options = [option for option in store_options.to_arguments() if option not in usual]
    shown = ViewOptions(view, decode)
    described = trio.run(partial(describe, opened, shown, shards=shards, typed=source, options=options))
    click.echo(json.dumps(described.as_list(), indent=2) if as_json else described.render(), nl=as_json)
    if as_json and described.instead is not None:
        complain(f"there are no Zarr v3 arrays here: {described.instead}")


@dataclass(frozen=True)
class Description:
    """The arrays of a source, and how to mount it for which tool.

    Beside them are nodes whose document is broken, and stored names that a file of the npy view hides.  *instead* says
    what a source without arrays is.
    """

    arrays: list[Described]
    advice: list[Advice]
    instead: str | None = None

    def as_list(self) -> list[Described]:
        """Return plain values, one item per array."""
        return [{**item, "tools": _tool_items(self.advice, item)} for item in self.arrays]

    def render(self) -> str:
        """Return the text for people."""
        if not self.arrays:
            return f"There are no Zarr v3 arrays here: {printable(self.instead or '')}.\n"
        parts = [_render_array(item) for item in self.arrays]
        if {item["sharded"] for item in self.arrays if "sharded" in item} == {False}:
            parts.append("Nothing here is sharded: programs that read Zarr v3 read it without a mount.\n")
        if self.advice:
            parts.append(_render_advice(self.advice))
        return "\n".join(parts)


async def describe(
    source: Source, shown: ViewOptions, *, shards: bool, typed: str, options: Sequence[str]
) -> Description:
    """Describe every array of *source*, and what else the view *shown* cannot show.

    With *shards*, each shard too.  *typed* is what the user calls the source, *options* are those that reach it.
    """
    views = {each: make_view(each.view, source.store, decoded=each.decode) for each in VIEW_OPTIONS}
    source.hierarchy.looks_above = True
    arrays, adviser = [], Adviser(views)
    async for node in walk_nodes(source):
        if isinstance(node.metadata, ArrayMetadata) or node.reason is not None:
            item = _describe_node(node, shown, views)
            if shards and node.array is not None:
                item["shards"] = [{**asdict(use), "dead": use.dead} async for use in _measure(node.array)]
            arrays.append(item)
            if isinstance(node.metadata, ArrayMetadata):
                adviser.add(node)
    return Description(arrays, adviser.advice(typed, options), None if arrays else await what_else(source))


async def _measure(array: Array) -> AsyncIterator[ShardUse]:
    """Measure every shard; a directory of shards that cannot be read takes the place of those in it."""
    try:
        async for coords in walk_shards(array):
            yield await measure(array, coords)
    except ShardfsError as error:
        yield ShardUse(array.layout.path or "(root)", 0, 0, None, str(error))


def _describe_node(node: Node, shown: ViewOptions, views: Views) -> Described:
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
    if node.array is not None:
        item |= {
            "inner_chunk_shape": list(node.array.grid.chunk_shape),
            "inner_chunks": node.array.grid.nchunks,
            "nesting": len(node.array.grid.levels),
            "inner_codecs": [codec.name for codec in node.array.codecs],
        }
    left_out = {each: view.left_out(node) for each, view in views.items()}
    caveats = [view.caveat(node) for view in views.values() if isinstance(view, ZarrV2)]
    how = _SHOWN[shown]
    if left_out[shown] is not None:
        how = "not at all"
    elif reason is not None or (shown == ViewOptions("v3") and node.array is None):
        how = "as stored"
    return item | {
        "shown": how,
        "reason": reason,
        "left_out": left_out[shown],
        "views": [each.text for each, why in left_out.items() if (why or reason) is None],
        "caveat": next((caveat for caveat in caveats if caveat is not None), None),
    }


def _shallow(part: Json) -> Json:
    """Return a part of a document as it is, or a text in its place if it is nested too deeply to be printed."""
    try:
        encode_json([[[part]]])  # as deep as it lies in the description
    except MetadataError:
        return brief(part)
    return part


def _tool_items(advice: Sequence[Advice], item: Described) -> list[Described]:
    reasons = [(found, found.missing.get(item["path"])) for found in advice if "shape" in item]
    return [
        {"tool": found.tool.name, "mount": None if reason else found.command, "reason": reason}
        for found, reason in reasons
    ]


def _render_array(item: Described) -> str:
    lines = [item["path"] or "(root)"]
    for name, value in item.items():
        if name not in ("path", "shards") and value is not None and value != []:
            lines.append(f"  {name.replace('_', ' '):<20}{_text(value)}")
    for use in item.get("shards", []):
        waste = "encoded as a whole" if use["live"] is None else f"{use['live']:,} live, {use['dead']:,} dead"
        state = f"UNREADABLE: {use['error']}" if use["error"] else f"{use['chunks']:,} chunks, {waste}"
        lines.append(f"    {use['key']}  {use['size']:,} bytes, {state}")
    return "\n".join(map(printable, lines)) + "\n"


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return f"{value['name']} {json.dumps(value.get('configuration', {}))}"[:100]
    if isinstance(value, list):
        return (", " if isinstance(value[0], str) else " × ").join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _render_advice(advice: Sequence[Advice]) -> str:
    """Return the table of tools."""
    width = max(len(found.tool.name) for found in advice)
    lines = [f"{'your tool':<{width}}  mount it with"]
    for found in advice:
        lines.append(f"{found.tool.name:<{width}}  {found.command or 'no view: it reads none of the arrays'}")
        named = [f"{path or '(root)'}: {reason}" for path, reason in found.missing.items()]
        lines += [f"{'':<{width}}    not {text}" for text in named[:_MAX_MISSING]]
        if len(named) > _MAX_MISSING:
            lines.append(f"{'':<{width}}    nor {len(named) - _MAX_MISSING} more, which --json names")
    return "\n".join(map(printable, lines)) + "\n"
