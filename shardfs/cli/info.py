"""`shardfs info`: every array, how a view shows it, and how to mount the source for which program."""

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import click
import trio

from shardfs.cli.clients import VIEW_OPTIONS, Advice, Adviser, ViewOptions
from shardfs.cli.options import command, complain, json_option, open_source, source_options, view_options
from shardfs.dataset.array import Array
from shardfs.dataset.foreign import what_else
from shardfs.dataset.hierarchy import Node
from shardfs.dataset.maintenance.verify import ShardUse, measure
from shardfs.dataset.maintenance.walk import walk_nodes, walk_shards
from shardfs.dataset.source import Source
from shardfs.errors import MetadataError, ShardfsError, printable
from shardfs.format.codecs import SHARDING
from shardfs.format.document import Json, brief, encode_json
from shardfs.format.lens.unsharded import fault_of
from shardfs.format.metadata import ArrayMetadata
from shardfs.fuse.options import MountOptions
from shardfs.stores.url import StoreOptions
from shardfs.vfs.entries.npy import npy_problems
from shardfs.vfs.views import NpyView, View, ZarrV2, make_view

Described = dict[str, Any]
Views = Mapping[ViewOptions, View]

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
        shapes = [item for item in self.arrays if "shape" in item]
        plain = "Nothing here is sharded: programs that read Zarr v3 read it without a mount.\n"
        is_plain = bool(shapes) and not any(item["sharded"] for item in shapes)
        advice = [_render_advice(self.advice)] if self.advice else []
        return "\n".join([*map(_render_array, self.arrays), *([plain] if is_plain else []), *advice])


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
            item = _describe_node(node) | _describe_view(node, shown, views)
            if shards and node.array is not None:
                item["shards"] = [{**asdict(use), "dead": use.dead} async for use in _measure(node.array)]
            arrays.append(item)
            if isinstance(node.metadata, ArrayMetadata):
                adviser.add(node)
    view = views[shown]
    if isinstance(view, NpyView):
        known = {item["path"] for item in arrays}
        problems = [problem async for problem in npy_problems(source, view)]
        arrays += [_describe_hidden(path, shown, reason) for path, reason in problems if path not in known]
    return Description(arrays, adviser.advice(typed, options), None if arrays else await what_else(source))


async def _measure(array: Array) -> AsyncIterator[ShardUse]:
    """Measure every shard; a directory of shards that cannot be read takes the place of those in it."""
    try:
        async for coords in walk_shards(array):
            yield await measure(array, coords)
    except ShardfsError as error:
        yield ShardUse(array.layout.path or "(root)", 0, 0, None, str(error))


def _describe_node(node: Node) -> Described:
    item: Described = {"path": node.path, "shown_unsharded": node.array is not None, "reason": _reason(node)}
    if not isinstance(node.metadata, ArrayMetadata):
        return item
    document, transformer = node.metadata.document, node.metadata.storage_transformer
    item |= {
        "shape": list(node.metadata.shape),
        "data_type": _shallow(document["data_type"]),
        "chunk_grid": _shallow(document["chunk_grid"] if transformer is None else node.metadata.chunk_grid.to_json()),
        "sharded": node.metadata.is_sharded,
        "storage_transformer": transformer,
        "codecs": [codec.name for codec in node.metadata.codecs],
    }
    if node.array is not None:
        item |= {
            "inner_chunk_shape": list(node.array.grid.chunk_shape),
            "inner_chunks": math.prod(node.array.grid.grid_shape),
            "nesting": len(node.array.grid.levels),
            "codecs": [codec.name for codec in node.array.codecs],
            "shard_codecs": [codec.name for codec in node.metadata.codecs if codec.name != SHARDING],
        }
    return item


def _reason(node: Node) -> str | None:
    """Return why nothing but what is stored can be shown of a node; None where an array just is not sharded."""
    if node.reason is None and node.array is None and isinstance(node.metadata, ArrayMetadata):
        return None if node.metadata.is_sharded else fault_of(node.metadata)
    return node.reason


def _shallow(part: Json) -> Json:
    """Return a part of a document as it is, or a text in its place if it is nested too deeply to be printed."""
    try:
        encode_json([[[part]]])  # as deep as it lies in the description
    except MetadataError:
        return brief(part)
    return part


def _describe_view(node: Node, shown: ViewOptions, views: Views) -> Described:
    reason = _reason(node)
    reasons = {each: view.left_out(node) or reason for each, view in views.items()}
    caveats = [view.caveat(node) for view in views.values() if isinstance(view, ZarrV2)]
    return {
        "caveat": next((caveat for caveat in caveats if caveat is not None), None),
        "view": shown.view,
        "decode": shown.decode,
        "left_out": views[shown].left_out(node),
        "views": [each.text for each, reason in reasons.items() if reason is None],
    }


def _describe_hidden(path: str, shown: ViewOptions, reason: str) -> Described:
    """Describe a stored name that is not seen in a view, as a generated file has that name."""
    return {"path": path, "shown_unsharded": False, "reason": None, "left_out": reason, "views": [], **shown._asdict()}


def _tool_items(advice: Sequence[Advice], item: Described) -> list[Described]:
    reasons = [(found, found.missing.get(item["path"])) for found in advice if "shape" in item]
    return [
        {"tool": found.tool.name, "mount": None if reason else found.command, "reason": reason}
        for found, reason in reasons
    ]


def _render_array(item: Described) -> str:
    lines = [item["path"] or "(root)"]
    if "shape" in item:
        data_type = item["data_type"] if isinstance(item["data_type"], str) else item["data_type"].get("name")
        lines.append(f"  shape          {_lengths(item['shape'])} {data_type}")
        lines.append(f"  {'shards' if item['sharded'] else 'chunks':<15}{_grid(item['chunk_grid'])}")
        if item["storage_transformer"] is not None:
            lines.append(
                f"  sharded by     {item['storage_transformer']}, a storage transformer of ZEP 2's first draft"
            )
    if item["shown_unsharded"]:
        nesting = f", shards nested {item['nesting']} deep" if item["nesting"] > 1 else ""
        lines.append(
            f"  inner chunks   {_lengths(item['inner_chunk_shape'])}, {item['inner_chunks']:,} of them{nesting}"
        )
        lines.append(f"  codecs         {', '.join(item['codecs'])}")
        if item["shard_codecs"]:
            lines.append(f"  around shards  {', '.join(item['shard_codecs'])}")
    elif item["reason"] is None and "codecs" in item:
        lines.append(f"  codecs         {', '.join(item['codecs'])}")
    lines.append(f"  shown          {_how(item)}")
    if item.get("caveat") is not None:
        lines.append(f"  but in v2      {item['caveat']}")
    for use in item.get("shards", []):
        waste = "encoded as a whole" if use["live"] is None else f"{use['live']:,} live, {use['dead']:,} dead"
        state = f"UNREADABLE: {use['error']}" if use["error"] else f"{use['chunks']:,} chunks, {waste}"
        lines.append(f"    {use['key']}  {use['size']:,} bytes, {state}")
    return "\n".join(map(printable, lines)) + "\n"


def _grid(grid: Json) -> str:
    grid = {"name": grid} if isinstance(grid, str) else grid
    configuration = grid.get("configuration", {})
    lengths = configuration.get("chunk_shape")
    if grid["name"] == "regular" and isinstance(lengths, list):
        return _lengths(lengths)
    return f"{grid['name']} {json.dumps(configuration)}"[:100]


def _lengths(lengths: list[Json]) -> str:
    return " × ".join(map(str, lengths)) or "no axes"


def _how(item: Described) -> str:
    """Say how the view shows an array, or why not."""
    if item["left_out"] is not None:
        others = f" (but with {', or '.join(item['views'])})" if item["views"] else ""
        return f"not at all: {item['left_out']}{others}"
    if item["reason"] is not None:
        return f"as stored: {item['reason']}"
    if item["view"] == "npy":
        return "as a .npy file"
    if item["view"] == "v2":
        return "as Zarr v2, decoded" if item["decode"] else "as Zarr v2"
    if item["decode"]:
        return "unsharded, decoded" if item["sharded"] else "decoded"
    return "unsharded" if item["sharded"] else "as stored: the array is not sharded"


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
