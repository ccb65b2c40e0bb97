"""What a page says of a node: in a few words, as a table, its attributes, and how much of it is stored."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from shardfs.bulk.info import ViewOptions, describe_node, ratio_of
from shardfs.bulk.map import ArrayMap
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.walk import walk_shards
from shardfs.dataset.node import Node
from shardfs.errors import NotFoundError, size
from shardfs.format.document import Json, brief
from shardfs.format.dtype import item_nbytes, type_name
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.serve.pages.html import text
from shardfs.serve.pages.pyramid import attributes_in, image_in
from shardfs.serve.pages.units import shortened, symbol
from shardfs.vfs.views import View

_MAX_ATTRIBUTES: Final = 20_000
_MAX_PIECE: Final = 2_000
_MAX_SHOWN: Final = 200
_MAX_ELEMENTS: Final = 2**63
_NOT_SHARDED: Final = "each chunk is a file of its own"


class StoredSize(NamedTuple):
    """How many *objects* of an array are stored, of *possible* ones, in how many bytes, and for how many plain."""

    objects: int
    possible: int
    nbytes: int
    plain_nbytes: int | None

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """The size as it is stored and plain, how many times smaller it is, and the number of objects."""
        plain = "" if self.plain_nbytes is None else size(self.plain_nbytes)
        return (
            size(self.nbytes),
            plain,
            ratio_of(self.plain_nbytes, self.nbytes),
            f"{self.objects:,} of {self.possible:,}",
        )


async def stored_in(source: Source, array: Array, most: int) -> StoredSize | None:
    """Count what is stored of an array, by its listing; None if there are more than *most* objects."""
    count = nbytes = nelements = 0
    async for coords in walk_shards(array):
        if count == most:
            return None
        with suppress(NotFoundError):
            nbytes += (await source.store.stat(array.layout.shard_key(coords))).size
            nelements += array.grid.nelements_of(coords)
            count += 1
    return _stored(array, count, nbytes, nelements)


def stored_of(found: ArrayMap) -> StoredSize:
    """Count what is stored of an array of which there is a map."""
    array = found.array
    nbytes, nelements = sum(use.size for _, use in found.uses), sum(array.grid.nelements_of(at) for at, _ in found.uses)
    return _stored(array, len(found.uses), nbytes, nelements)


def _stored(array: Array, count: int, nbytes: int, nelements: int) -> StoredSize:
    itemsize = item_nbytes(array.document["data_type"])
    plain = None if itemsize is None or nelements > _MAX_ELEMENTS else itemsize * nelements
    return StoredSize(count, math.prod(dimension.nchunks for dimension in array.grid.shards.dimensions), nbytes, plain)


def kind_of(node: Node) -> str:
    """Say in a few words what a node is."""
    metadata = node.metadata
    if isinstance(metadata, ArrayMetadata):
        shape = " × ".join(f"{length:,}" for length in metadata.shape) or "a single element"
        return f"array, {type_name(metadata.document['data_type'])}, {shape}"
    if node.reason is not None:
        return "broken"
    if isinstance(metadata, GroupMetadata):
        image = image_in(node)
        return "group" if image is None else "labels, OME-Zarr" if image.is_labels else "image, OME-Zarr"
    return "directory"


def names_of(metadata: ArrayMetadata) -> tuple[str | None, ...]:
    """Return the names of the dimensions of an array."""
    return tuple(metadata.document.get("dimension_names") or [None] * metadata.ndim)


def dimensions_of(metadata: ArrayMetadata) -> str:
    """Return names and lengths of dimensions."""
    named = zip(names_of(metadata), metadata.shape, strict=True)
    return " × ".join(f"{shortened(name, 40)} {length:,}" if name else f"{length:,}" for name, length in named)


def title_of(node: Node) -> tuple[str, str]:
    """Return the name for people, and the unit of an array, that the attributes of a node say."""
    found = attributes_in(node) or {}
    is_array = isinstance(node.metadata, ArrayMetadata)
    names = ("long_name", "standard_name", "description") if is_array else ("title",)
    title = next((found[name] for name in names if isinstance(found.get(name), str)), "")
    unit = found.get("units", found.get("unit")) if is_array else None
    return shortened(str(title), _MAX_SHOWN), symbol(unit)


def facts_of(node: Node, views: Mapping[ViewOptions, View]) -> list[tuple[str, str]]:
    """Return what an array is, in words of the field."""
    metadata = node.metadata
    assert isinstance(metadata, ArrayMetadata)
    item = describe_node(node, views)
    title, unit = title_of(node)
    found = [("name", title), ("unit", unit), ("shape", " × ".join(f"{length:,}" for length in metadata.shape) or "()")]
    if any(names_of(metadata)):
        found.append(("dimensions", dimensions_of(metadata)))
    found.append(("data type", _type(metadata.document["data_type"])))
    found.append(("fill value", _compact(metadata.document["fill_value"])))
    itemsize = item_nbytes(metadata.document["data_type"])
    nelements = math.prod(metadata.shape)
    if itemsize is not None and nelements * itemsize < _MAX_ELEMENTS:
        found.append(("plain size", size(nelements * itemsize)))
    inner = item.get("inner_chunk_shape")
    grid = item["chunk_grid"]
    edges = grid.get("configuration", {}).get("chunk_shape") if isinstance(grid, dict) else None
    if inner is not None:
        found.append(("chunk shape", _shape(inner)))
        found.append(("chunks", f"{item['inner_chunks']:,}"))
    if item["sharded"]:
        found.append(("shard shape", _shape(edges) if isinstance(edges, list) else _grid(grid)))
        if (item.get("nesting") or 0) > 1:
            found.append(("shards within shards", f"{item['nesting']} levels"))
    elif inner is None:
        found.append(("chunk grid", _grid(grid)))
    if node.array is None and not item["sharded"]:
        found.append(("shards", f"none: {_NOT_SHARDED}"))
    codecs = item.get("inner_codecs") or item["codecs"]
    found.append(("codecs", ", ".join(map(str, codecs))[:_MAX_PIECE]))
    if item.get("checksum") not in (None, "none"):
        found.append(("damage is noticed by", str(item["checksum"])))
    if item["caveat"] is not None:
        found.append(("note", str(item["caveat"])))
    if item["reason"] is not None:
        found.append(("shown as it is stored, as", str(item["reason"])))
    return [(name, value) for name, value in found if value]


def _type(data_type: Json) -> str:
    name = type_name(data_type)
    given = data_type.get("configuration") if isinstance(data_type, dict) else None
    fields = given.get("fields") if isinstance(given, dict) else None
    if isinstance(fields, list):
        return shortened(f"{name} of {len(fields)} fields: {_compact(fields)}", _MAX_PIECE)
    return f"{name} {_compact(given)}" if given else name


def _compact(value: Json) -> str:
    """Return a part of a document in one line, which is not long."""
    if isinstance(value, str):
        return shortened(value or '""', _MAX_SHOWN)
    found = ""
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            found += part
            if len(found) > _MAX_SHOWN:
                break
    except RecursionError:
        return brief(value)
    return shortened(found, _MAX_SHOWN)


def _shape(lengths: Sequence[object]) -> str:
    return " × ".join(map(str, lengths))[:_MAX_SHOWN] or "()"


def _grid(grid: Json) -> str:
    return shortened(
        f"{grid['name']} {json.dumps(grid.get('configuration', {}))}" if isinstance(grid, dict) else str(grid),
        _MAX_SHOWN,
    )


def attributes(node: Node) -> str:
    """Return the attributes of a node, cut where they are very long."""
    found = attributes_in(node)
    if found is None and node.document is not None and node.metadata is not None:
        return _section(
            "<p>The document is too large to show its attributes here: <code>zarr.json</code> has them.</p>\n",
            is_open=True,
        )
    if not found:
        return ""
    rows, shown = "", 0
    for name, value in found.items():
        piece = _value(value)
        shown += len(piece) + len(name)
        if shown > _MAX_ATTRIBUTES:
            more = f"and more, which the document has: {len(found):,} attributes in all"
            rows += f'<tr><th scope="row">…</th><td>{more}</td></tr>\n'
            break
        body = (
            f'<pre tabindex="0" role="group" aria-label="Value">{text_lines(piece)}</pre>'
            if "\n" in piece
            else text(piece)
        )
        rows += f'<tr><th scope="row">{text(shortened(name, _MAX_SHOWN))}</th><td>{body}</td></tr>\n'
    return _section(f"<table>\n<tbody>\n{rows}</tbody>\n</table>\n", is_open=shown < 1000)


def _value(value: Json) -> str:
    if isinstance(value, str):
        return value if len(value) <= _MAX_PIECE else f"{value[:_MAX_PIECE]}…"
    found = ""
    try:
        for part in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(value):
            found += part
            if len(found) > _MAX_PIECE:
                return f"{found[:_MAX_PIECE]}\n…"
    except RecursionError:
        return brief(value)
    return found


def text_lines(lines: str) -> str:
    """Return text of several lines for a page."""
    return "\n".join(map(text, lines.split("\n")))


def _section(body: str, *, is_open: bool) -> str:
    return (
        f'<section id="attributes">\n<details{" open" if is_open else ""}><summary>Attributes</summary>\n'
        f"{body}</details>\n</section>\n"
    )
