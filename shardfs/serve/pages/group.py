"""What is in a group, as the representation of a dataset by xarray says it: dimensions, coordinates, data variables.

The page has what documents say. What takes more, the range of coordinates and what is stored, a script asks for when
the page is there: `/-/contents/PATH`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.node import Node
from shardfs.errors import ShardfsError, SourceError
from shardfs.format.dtype import DataType, type_name
from shardfs.format.metadata import ArrayMetadata
from shardfs.serve.exchange import ClientError, Exchange, only
from shardfs.serve.pages.axes import coordinates
from shardfs.serve.pages.coordinates import Axis
from shardfs.serve.pages.describe import dimensions_of, kind_of, names_of, stored_in, title_of
from shardfs.serve.pages.html import section, text
from shardfs.serve.pages.plane import NUMBERS, Samples
from shardfs.serve.pages.pyramid import image_in
from shardfs.serve.pages.query import Choice, Query
from shardfs.serve.pages.units import shortened
from shardfs.stores.base import Kind, join_key
from shardfs.stores.parallel import for_each
from shardfs.vfs.paths import Paths

MAX_CHILDREN: Final = 128
"""Of how many arrays more is said than their documents say."""
THUMBNAIL_CHUNKS: Final = 16
"""From how many chunks a small picture is drawn at most."""

_SIZE: Final = 128
_SECONDS: Final = 5.0
_AT_ONCE: Final = 8
_MAX_DIMENSIONS: Final = 32
_FACTS: Final = {"stored": "Stored", "plain": "Plain", "ratio": "Ratio", "shards": "Objects"}
_COUNTED: Final = "".join(
    f'<td class="number" data-fact="{fact}" data-label="{label}"></td>' for fact, label in _FACTS.items()
)


class PageLimits(NamedTuple):
    """How many small *pictures* a page has, and whether sizes are counted without being asked for."""

    pictures: int
    counts: bool


def dataset(nodes: Mapping[str, Node], up: str, target: str, limits: PageLimits, *, is_image: bool) -> str:
    """Return the parts of a page about the arrays and groups in a group; "" if there are none."""
    arrays = {name: node for name, node in nodes.items() if isinstance(node.metadata, ArrayMetadata)}
    groups = {name: node for name, node in nodes.items() if name not in arrays and node.document is not None}
    along = {name: node for name, node in arrays.items() if _is_coordinate(name, node)}
    variables = {name: node for name, node in arrays.items() if name not in along}
    left = limits.pictures
    parts = []
    lengths = {} if is_image else _dimensions(arrays)
    if lengths:
        items = "".join(f"<li>{text(shortened(name, 40))}: {length}</li>\n" for name, length in lengths.items())
        parts.append(section("dimensions", "Dimensions", f'<ul class="inline">\n{items}</ul>\n'))
    if along:
        rows = "".join(_row(name, node, "", has_range=True) for name, node in along.items())
        parts.append(section("coordinates", "Coordinates", _table(rows, "Coordinates", "Range")))
    if variables:
        title = "Levels" if is_image else "Data variables" if lengths else "Arrays"
        rows = ""
        for name, node in variables.items():
            thumbnail, left = _thumbnail(name, node, up, left)
            rows += _row(name, node, thumbnail, has_range=False)
        parts.append(section("variables", title, _table(rows, title, "")))
    if groups:
        rows = ""
        for name, node in groups.items():
            thumbnail, left = _thumbnail(name, node, up, left)
            title, _ = title_of(node)
            small = f"<br><small>{text(title)}</small>" if title else ""
            rows += (
                f'<tr><td>{thumbnail}<a href="./{quote(os.fsencode(name), safe="")}/">{text(name)}/</a>{small}</td>'
                f"<td>{text(kind_of(node))}</td></tr>\n"
            )
        parts.append(
            section("groups", "Groups and images", _scrolling("Groups and images", f"<tbody>\n{rows}</tbody>\n"))
        )
    if arrays:
        asks = "" if limits.counts else '<p><button type="button" id="count" hidden>Count what is stored</button></p>\n'
        url = text(f"{up}-/contents/{target}")
        mine = f'<div id="contents" data-source="{url}" data-counts="{int(limits.counts)}">\n'
        return f'{mine}{"".join(parts)}{asks}<p id="counted" role="status"></p>\n</div>\n'
    return "".join(parts)


def _is_coordinate(name: str, node: Node) -> bool:
    assert isinstance(node.metadata, ArrayMetadata)
    return node.metadata.ndim == 1 and names_of(node.metadata) == (name,)


def _dimensions(arrays: Mapping[str, Node]) -> dict[str, str]:
    found: dict[str, set[int]] = {}
    documents = [node.metadata for node in arrays.values() if isinstance(node.metadata, ArrayMetadata)]
    for metadata in sorted(documents, key=lambda metadata: -metadata.ndim):
        for name, length in zip(names_of(metadata), metadata.shape, strict=True):
            if name is not None and len(found) < _MAX_DIMENSIONS:
                found.setdefault(name, set()).add(length)
    return {name: " or ".join(f"{length:,}" for length in sorted(lengths)[:4]) for name, lengths in found.items()}


def _row(name: str, node: Node, thumbnail: str, *, has_range: bool) -> str:
    assert isinstance(node.metadata, ArrayMetadata)
    title, unit = title_of(node)
    said = " ".join(part for part in (title, f"[{unit}]" if unit and not has_range else "") if part)
    ranged = '<td data-fact="range" data-label="Range"></td>' if has_range else ""
    small = f"<br><small>{text(said)}</small>" if said else ""
    return (
        f'<tr data-child="{text(name)}"><td>{thumbnail}'
        f'<a href="./{quote(os.fsencode(name), safe="")}/">{text(name)}</a>{small}</td>'
        f"<td>{text(dimensions_of(node.metadata) or 'scalar')}</td>"
        f"<td>{text(type_name(node.metadata.document['data_type']))}</td>{ranged}{_COUNTED}</tr>\n"
    )


def _table(rows: str, label: str, more: str) -> str:
    names = ["Name", "Dimensions", "Type", *([more] if more else [])]
    columns = "".join(f'<th scope="col">{name}</th>' for name in names)
    columns += "".join(f'<th scope="col" class="number">{name}</th>' for name in _FACTS.values())
    return _scrolling(label, f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{rows}</tbody>\n")


def _scrolling(label: str, body: str) -> str:
    scrolling = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
    return f'{scrolling}\n<table class="contents">\n{body}</table>\n</div>\n'


def _thumbnail(name: str, node: Node, up: str, left: int) -> tuple[str, int]:
    """Return a small picture of a node, if one is cheap and *left*, and how many are left then."""
    if left <= 0 or not _is_cheap(node):
        return "", left
    target = f"{up}-/plane/{quote(os.fsencode(node.path), safe='/')}?size={_SIZE}&most={THUMBNAIL_CHUNKS}"
    return f'<img class="thumbnail" src="{text(target)}" alt="" width="64" height="64" loading="lazy">', left - 1


def _is_cheap(node: Node) -> bool:
    """Whether a small picture takes few chunks, as far as the document of the node tells."""
    metadata, array = node.metadata, node.any_array
    if not isinstance(metadata, ArrayMetadata):
        return image_in(node) is not None
    found = DataType.find(metadata.document["data_type"])
    is_drawn = found is not None and found.is_native and not found.varies and found.dtype.kind in NUMBERS
    if array is None or metadata.ndim < 2 or 0 in metadata.shape or not is_drawn:
        return False
    choice = Choice.of(metadata.shape, names_of(metadata), Query.parse(""))
    step = max(-(-choice.pixels // _SIZE), 1)
    nchunks = 1
    for axis, (start, stop) in zip(choice.axes, choice.spans, strict=True):
        nchunks *= Samples(start, stop, step).nchunks(array.grid.chunk_shape[axis])
    return nchunks <= THUMBNAIL_CHUNKS


async def show(
    exchange: Exchange, source: Source, decoded: Paths | SourceError, path: str, most: int, counts: bool
) -> None:
    """Send what a page asks for of the arrays in the group at *path*, as JSON: of up to *most* objects of each."""
    names = await _children(source, path)
    found: dict[str, dict[str, Any]] = {}

    async def look(name: str) -> None:
        try:
            node = await source.hierarchy.node(join_key(path, name))
        except ShardfsError:
            return
        if not isinstance(node.metadata, ArrayMetadata):
            return
        about: dict[str, Any] = {}
        if _is_coordinate(name, node) and not isinstance(decoded, SourceError):
            about["range"] = await _range(decoded, node)
        if counts and node.any_array is not None:
            try:
                stored = await stored_in(source, node.any_array, most)
            except ShardfsError as error:
                about["stored"] = f"not known: {shortened(str(error), 200)}"
            else:
                about |= (
                    {"stored": "more than is counted here"}
                    if stored is None
                    else dict(zip(_FACTS, stored.texts, strict=True))
                )
        found[name] = about

    is_done = False
    async with exchange.connection.while_present():
        with trio.move_on_after(_SECONDS):
            await for_each(names, look, _AT_ONCE)
            is_done = True
    note = "" if is_done else "Not all of it was counted: that takes too long here."
    data = json.dumps({"children": found, "note": note}).encode()
    head = [("Content-Type", "application/json"), ("Cache-Control", "no-cache"), ("X-Content-Type-Options", "nosniff")]
    await exchange.reply(200, head, only(data), len(data))


async def _children(source: Source, path: str) -> Sequence[str]:
    node = await source.hierarchy.node(path)
    if isinstance(node.metadata, ArrayMetadata):
        raise ClientError(400, "an array has no contents")
    entries = await source.store.list(path)
    return sorted(entry.name for entry in entries if entry.kind is not Kind.FILE)[:MAX_CHILDREN]


async def _range(paths: Paths, node: Node) -> str:
    """Return the first and the last coordinate of the array *node*."""
    assert isinstance(node.metadata, ArrayMetadata)
    try:
        axis, _, _ = await coordinates(paths, node.path, Axis("", node.metadata.shape[0]))
    except ShardfsError as error:
        return shortened(str(error), 100)
    return "" if axis.is_counted else axis.span_text()
