"""`shardfs info`: the arrays of a source, one in detail, and how to mount the source for which program."""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import click

from shardfs.bulk.engine import in_session
from shardfs.bulk.info import VIEW_OPTIONS, Described, ViewOptions, describe_source, facts, ratio_of, views_of
from shardfs.bulk.verify import NO_CHECKSUM
from shardfs.cli.clients import TOOLS, OwnForm, Tool, own_form_of
from shardfs.cli.options import array_argument, command, draft_option, json_option
from shardfs.cli.output import complain, progress, show, table
from shardfs.cli.sources import source_options
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.walk import among_shards, array_nodes, note_on, what_else
from shardfs.errors import counted, first_of, size
from shardfs.format.codecs import SHARDING
from shardfs.format.document import Extension, Json
from shardfs.format.dtype import type_name
from shardfs.format.metadata import ArrayMetadata
from shardfs.formats import VirtualStore, format_faults
from shardfs.stores.url import StoreOptions

_MAX_NAMED: Final = 3
_LINKS: Final = "shards that are symbolic links are read, and never changed through a mount"
"""How many arrays are named in a line that is about several."""


@command(
    examples="""
    shardfs info data.zarr
    shardfs info data.zarr group/image
    shardfs info --tools data.zarr
    shardfs info --json data.zarr | jq '.arrays[].shape'
    shardfs info --profile lab s3://bucket/data.zarr
    """
)
@source_options
@array_argument
@draft_option
@click.option("--tools", is_flag=True, help="Print the mount command for each program, and what to do without.")
@json_option
def info(
    source: str, store_options: StoreOptions, array: str | None, draft: str | None, tools: bool, as_json: bool
) -> None:
    """List the arrays of SOURCE: shapes, codecs, how much of each is stored, and which views show it.

    The ratio is that of decoded to stored bytes, for shards that are stored. A view with a star needs --decode. With
    ARRAY, print everything about that array, and why a view leaves it out. Exit status 1 if consolidated metadata, by
    which programs go, describes an array or a group that has no document of its own there.
    """
    told = store_options if tools else None
    found, instead, contradictions = in_session(
        source, store_options, partial(_look, array=array, name=source, options=told), draft=draft
    )
    is_virtual = found.pop("is_virtual")
    lines: Sequence[str]
    if tools:
        lines = _render_advice(found["tools"])
    else:
        described = found["arrays"]
        lines = _render_table(described, is_virtual=is_virtual) if array is None else _render_array(described[0])
        lines = [*lines, f"note: {found['note']}"] if "note" in found else lines
    show(found, lines if instead is None else [f"There are no Zarr v3 arrays here: {instead}."], as_json=as_json)
    if as_json and instead is not None:
        complain(f"there are no Zarr v3 arrays here: {instead}")
    for complaint in (*format_faults(), *contradictions):
        complain(complaint)
    if contradictions:
        sys.exit(1)


async def _contradictions(source: Source, array: str | None) -> list[str]:
    """Return a line about each array that only a copy in a group describes."""
    nodes = array_nodes(source, array)
    return [f"{node.path}: {node.reason}" async for node in nodes if node.is_only_described]


async def _look(
    source: Source, array: str | None, name: str, options: StoreOptions | None
) -> tuple[dict[str, Any], str | None, list[str]]:
    """Return what to print, if that is nothing what the source is, and contradictions; with *options*, see `advise`."""
    found: dict[str, Any]
    if options is not None:
        found = {"tools": await advise(source, array, name, options)}
    else:
        found = {"arrays": await describe_source(source, array, progress=progress)}
    instead = await what_else(source) if not any(found.values()) else None
    is_v2 = array is not None and any("zarr_format" in item for item in found.get("arrays", ()))
    found["is_virtual"] = isinstance(source.store, VirtualStore)
    if found["is_virtual"] and array is None and (note := await note_on(source)) is not None:
        found["note"] = note
    return found, instead, [] if is_v2 else await _contradictions(source, array)


async def advise(source: Source, array: str | None, name: str, options: StoreOptions) -> Sequence[Described]:
    """Say for every tool in which view it reads most arrays of *source*, or the one *array*, and what it misses.

    It is opened by the *name* with *options*.
    """
    views, start = views_of(source), shlex.join(["shardfs", "mount", *options.to_arguments(), name, "MNT"])
    missing: dict[tuple[Tool, ViewOptions], dict[str, str]] = {
        (tool, shown): {} for tool in TOOLS for shown in tool.views
    }
    first: dict[tuple[Tool, ViewOptions], str] = {}
    own: OwnForm | None = None
    count = 0
    with progress("reading documents", None, "array") as advance:
        async for node in array_nodes(source, array):
            advance(1)
            if isinstance(node.metadata, ArrayMetadata):
                count += 1
                own = own_form_of(node) if own is None else own
                skipped = {shown: view.skipped(node) for shown, view in views.items()}
                for (tool, shown), reasons in missing.items():
                    reason = tool.misses(node, shown, skipped[shown])
                    if reason is not None:
                        reasons[node.path] = reason
                    else:
                        first.setdefault((tool, shown), node.path)
    top = await source.hierarchy.node("")
    items = []
    for tool in TOOLS if count else ():
        if not tool.opens and own is None:
            continue
        shown = min(tool.views, key=lambda shown: len(missing[tool, shown]))  # of equals, the first is the best
        reasons = missing[tool, shown]
        reads_any = len(reasons) < count
        view = views[shown]
        mount = " ".join([start, shown.text, *(f"--draft={draft}" for draft in view.lens.drafts)])
        command = mount if reads_any and not tool.is_remote else None
        opened = None if view.is_group(top) else first.get((tool, shown))
        instead = tool.without_mount(name, shown, options, drafts=view.lens.drafts, array=opened) if reads_any else None
        items.append(
            {
                "tool": tool.name,
                "mount": command,
                "without_mount": instead,
                "volume": tool.to_open(own) if own is not None and reads_any else None,
                "missing": reasons,
                "caveat": tool.caveat or None,
            }
        )
    return items


def _render_table(described: Sequence[Described], *, is_virtual: bool) -> list[str]:
    header = ("path", "shape", "dtype", "inner chunk", "shard", "codecs", "shards", "bytes", "ratio", "view")
    same = ("dtype", "inner chunk", "shard", "codecs", "view")
    spare = ("ratio", "codecs", "view", "dtype", "shard")
    lines = table(
        header, [_row(item) for item in described], right=("shards", "bytes", "ratio"), same=same, spare=spare
    )
    notes: dict[tuple[str, str], list[str]] = {}
    for item in described:
        found = [("as stored", item["reason"]), ("note", item["caveat"]), ("damaged", item.get("error"))]
        found.append(("note", item.get("not_counted")))
        if item.get("checksum") == "none":
            found.append(("no checksum", NO_CHECKSUM))
        if item.get("linked_shards"):
            found.append(("note", _LINKS))
        for kind, note in found:
            if note is not None:
                notes.setdefault((kind, note), []).append(item["path"] or "(root)")
    for item in described:
        if item.get("among_shards"):
            notes.setdefault(("not read", among_shards(item["path"])), []).extend(item["among_shards"])
    lines += [f"{kind}: {first_of(paths, _MAX_NAMED)}: {note}" for (kind, note), paths in notes.items()]
    sized = [item for item in described if "shards" in item]
    sharded = [item for item in sized if item["sharded"]]
    known = [item for item in sized if item["decoded_nbytes"] is not None]
    stored, shards = (sum(item[key] for item in sharded) for key in ("stored_shards", "shards"))
    nvalues = sum("values" in item for item in described)
    narrays = len(described) - nvalues
    total = counted(narrays, "array") if narrays or not nvalues else ""
    total = ", ".join(filter(None, (total, counted(nvalues, "collection") if nvalues else "")))
    total += f", {stored:,} of {counted(shards, 'shard')} stored" if sharded else ""
    total += f", {size(sum(item['stored_nbytes'] for item in sized))}" if sized else ""
    ratio = ratio_of(*(sum(item[key] for item in known) for key in ("decoded_nbytes", "stored_nbytes")))
    lines.append(f"{total}, ratio {ratio}" if ratio else total)
    if any("zarr_format" in item for item in described):
        lines.append("Arrays of Zarr v2 are shown as they are, in every view.")
    elif {item["sharded"] for item in described if "sharded" in item} == {False} and not is_virtual:
        lines.append("Nothing here is sharded: programs that read Zarr v3 read it without a mount.")
    lines.append(
        "`shardfs info SOURCE ARRAY` describes one array; `shardfs info --tools SOURCE` shows how to mount it for each "
        "program."
    )
    return lines


def _row(item: Described) -> list[str]:
    path, views = item["path"] or "(root)", _views(item["views"]) or "as stored"
    if "shape" not in item:
        sizes = _sizes(item)
        return [path, item.get("values", ""), "", "", item.get("shard_type", ""), "", *sizes, views]
    chunks = _chunks(item["chunk_grid"])
    inner = _times(item["inner_chunk_shape"]) or "()" if "inner_chunk_shape" in item else ""
    names = [name for name in (item.get("inner_codecs") or item["codecs"]) if name != "bytes"]
    codecs = " ".join(names) or "none"
    if "inner_codecs" in item and SHARDING in item["codecs"][:-1]:
        codecs += f" in {' '.join(item['codecs'][item['codecs'].index(SHARDING) + 1 :])}"
    shapes = [inner, chunks] if item["sharded"] else [chunks, ""]
    return [path, _times(item["shape"]) or "()", type_name(item["data_type"]), *shapes, codecs, *_sizes(item), views]


def _sizes(item: Described) -> list[str]:
    if "shards" not in item:
        return ["", "", ""]
    ratio = ratio_of(item["decoded_nbytes"], item["stored_nbytes"])
    return [f"{item['stored_shards']:,}/{item['shards']:,}", size(item["stored_nbytes"]), ratio]


def _times(lengths: Sequence[int]) -> str:
    return "×".join(map(str, lengths))


def _chunks(grid: Json) -> str:
    """Return the chunk shape of a grid, or the name of the grid if there are several."""
    extension = Extension.parse(grid, "chunk_grid")
    shape = extension.configuration.get("chunk_shape")
    return (_times(shape) or "()") if extension.name == "regular" and isinstance(shape, list) else extension.name


def _views(shown: Sequence[str]) -> str:
    """Return the names of views, with a star for those that need --decode."""
    names = [option.view for option in VIEW_OPTIONS if option.text in shown]
    return " ".join(name if f"--view {name}" in shown else f"{name}*" for name in dict.fromkeys(names))


def _render_array(item: Described) -> list[str]:
    """Return everything about one array, one line each."""
    return [item["path"] or "(root)", *(f"  {name:<20}{text}" for name, text in facts(item))]


def _render_advice(advice: Sequence[Described]) -> list[str]:
    """Return the table of tools."""
    width = max((len(found["tool"]) for found in advice), default=0)
    lines = [f"{'your tool':<{width}}  mount it with, or without a mount"]
    for found in advice:
        command = found["mount"] or found["without_mount"] or "no view: it reads none of the arrays"
        lines.append(f"{found['tool']:<{width}}  {command}")
        ways = [f"or {found['without_mount']}"] if found["mount"] else []
        ways += [f"then {found['volume']}; it reads the sharded volume, too"] if found["volume"] else []
        named = [f"not {path or '(root)'}: {reason}" for path, reason in found["missing"].items()]
        more = [f"nor {len(named) - _MAX_NAMED} more, which --json names"] if len(named) > _MAX_NAMED else []
        caveat = [f"note: {found['caveat']}"] if found["caveat"] else []
        lines += [f"{'':<{width}}    {text}" for text in [*ways, *named[:_MAX_NAMED], *more, *caveat]]
    return lines
