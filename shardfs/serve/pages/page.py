"""The page of a directory: what it is, a picture of it, what is in it, and where its shards are.

All text is escaped, and the policy of a page lets a browser load and run what `/-/` has, and nothing else.
"""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from functools import cache
from html import escape
from importlib.resources import files as resources
from secrets import token_urlsafe
from typing import Final, NamedTuple
from urllib.parse import quote

import trio

from shardfs.bulk.info import ViewOptions, describe_node, facts, views_of
from shardfs.bulk.map import map_array
from shardfs.bulk.pictures import as_html, draw, styles, text_of
from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.node import Node
from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError, SourceError, printable, size
from shardfs.format.document import Json
from shardfs.format.dtype import DataType, type_name
from shardfs.format.lens.v3 import inline_copies
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.serve.exchange import ClientError, Connection, Exchange, Header
from shardfs.serve.files import is_answered
from shardfs.serve.pages.picture import COLORS, PARTS
from shardfs.serve.pages.planes import Choice, Pyramid, Query, find_image, find_pyramid
from shardfs.serve.pages.pyramid import attributes_in, image_in, label_paths
from shardfs.serve.pages.viewers import Subject, links, snippets
from shardfs.stores.base import Buffer, Kind, join_key
from shardfs.stores.parallel import for_each
from shardfs.vfs.all_views import Views
from shardfs.vfs.paths import Listed, Paths

_MAX_NAMES: Final = 2000
_AT_ONCE: Final = 16
_MAX_ATTRIBUTES: Final = 20_000
_MAP_SECONDS: Final = 10.0
_MAP_ROWS, _MAP_WIDTH, _MAP_LAYOUTS = 40, 96, 4
_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_KINDS: Final = {Kind.FILE: "file", Kind.DIRECTORY: "directory", Kind.SYMLINK: "link", Kind.SPECIAL: "special"}
_COMPLEX: Final = "c"
_COUNTED: Final = "biu"
_NUMBERS: Final = "biufc"
_CODECS: Final = frozenset({"bytes", "transpose", "gzip", "zstd", "blosc", "crc32c"})


class _Most(NamedTuple):
    """How many *directories* of a page are looked at to say what they are, and how many *shards* for its map."""

    directories: int
    shards: int


_LOCAL: Final = _Most(100, 4000)
_REMOTE: Final = _Most(32, 32)
"""Each is a request, or a few, that somebody may pay for."""


class PageAddress(NamedTuple):
    """Where a page is: *path* in the view of *paths*; *up* leads to the root of the server, whose URL is *origin*."""

    paths: Paths
    path: str
    prefix: str
    up: str
    origin: str
    query: str

    @property
    def source(self) -> str:
        """The name of the source, without where it is."""
        return self.paths.source.store.url.rstrip("/").rpartition("/")[2]


class PageBuilder:
    """Makes pages for one source, which *views* shows; pictures are of its decoded view, if there is one."""

    def __init__(self, views: Views) -> None:
        self.decoded = views.others["decoded/v3"]
        self._shown = views.others
        self._source = views.main.source.beside()
        self._views = views_of(self._source)
        self._most = _REMOTE if self._source.store.root is None else _LOCAL

    async def show(self, exchange: Exchange, address: PageAddress) -> None:
        """Send the page of a directory; raises the error that prevents it before anything was sent."""
        nonce = token_urlsafe(16)
        head: list[Header] = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", _POLICY.format(nonce)),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        caching = [("Cache-Control", "no-cache"), ("Vary", "Accept")]
        async with (
            address.paths.listing(address.path) as batches,
            aclosing(self._page(exchange.connection, address, nonce, batches)) as pieces,
        ):
            if not await is_answered(exchange, None, caching):
                await exchange.reply(200, [*head, *caching], pieces)

    async def _page(
        self, client: Connection, address: PageAddress, nonce: str, batches: AsyncIterator[list[Listed]]
    ) -> AsyncGenerator[Buffer, None]:
        async with client.while_present():
            node = await _node_at(self._source.hierarchy, address.path)
            parts = [_head(address, nonce), await self._body(address, node)]
        yield "".join(parts).encode()
        async with aclosing(self._names(client, address, node, batches)) as rows:
            async for row in rows:
                yield row.encode()
        if node is not None and node.array is not None:
            yield b'<section id="map">\n<h2>Map of shards</h2>\n'
            async with client.while_present():
                drawing = await self._map(node)
            yield drawing.encode()
            yield b"</section>\n"
        async with client.while_present():
            foot = await self._foot(address, node)
        yield foot.encode()

    async def _foot(self, address: PageAddress, node: Node | None) -> str:
        """Return the end of a page, with links to the views that show the same."""
        is_array = node is not None and isinstance(node.metadata, ArrayMetadata)
        links = []
        for view, paths in self._shown.items():
            is_file = view == "npy" and is_array
            path = f"{address.path}.npy" if is_file else address.path
            if isinstance(paths, SourceError) or (is_file and not address.path):
                continue
            with suppress(ShardfsError):
                kind = (await paths.attributes(path)).status.kind
                if kind is (Kind.FILE if is_file else Kind.DIRECTORY):
                    target = quote(os.fsencode(path), safe="/") + ("" if is_file or not path else "/")
                    links.append(f'<a href="{address.up}-/{view}/{target}">{view}</a>')
        return f"</main>\n<footer>In each view: {' · '.join(links)}</footer>\n</body>\n</html>\n"

    async def _body(self, address: PageAddress, node: Node | None) -> str:
        """Return what a page says before the names."""
        if node is None:
            return ""
        parts = [f'<p class="kind">{text_of(_kind_of(node))}</p>\n']
        if isinstance(node.metadata, ArrayMetadata) or image_in(node) is not None:
            try:
                pyramid = await self._pyramid(node)
            except ShardfsError as error:
                reason = f'<p class="problem">No picture: {text_of(str(error))}</p>'
                parts.append(f'<section id="picture">\n{reason}\n</section>\n')
                parts.append(await self._openers(address, node, None))
            else:
                parts.append(_picture(address, pyramid))
                parts.append(await self._openers(address, node, pyramid))
        elif isinstance(node.metadata, GroupMetadata):
            parts.append(await self._openers(address, node, None))
        if isinstance(node.metadata, ArrayMetadata):
            parts.append(_facts(facts(describe_node(node, self._views))))
        elif node.reason is not None:
            parts.append(f'<p class="problem">{text_of(node.reason)}</p>\n')
        return "".join([*parts, _attributes(node)])

    async def _pyramid(self, node: Node) -> Pyramid:
        """Return what is drawn for a node; raises the error that says why there is no picture."""
        if isinstance(self.decoded, SourceError):
            raise SourceError(str(self.decoded))
        return await find_pyramid(self.decoded, node.path)

    async def _openers(self, address: PageAddress, node: Node, pyramid: Pyramid | None) -> str:
        """Return links to viewers, and lines for other programs."""
        if self._views[ViewOptions("v3")].left_out(node) is not None:
            return ""
        is_array = isinstance(node.metadata, ArrayMetadata)
        image, own, base = None, image_in(node), node
        if is_array or own is not None:
            try:
                image, levels = await find_image(self._source.hierarchy, node)
                base = node if is_array else await self._source.hierarchy.node(levels[0])
            except ShardfsError:
                return ""
        labels = await self._labels(node) if own is not None and not own.is_labels else []
        axes, shape = (pyramid.names, pyramid.base.shape) if pyramid is not None else ((), ())
        subject = Subject(
            node.path,
            labels,
            is_array=is_array,
            is_image=own is not None,
            is_labels=image is not None and image.is_labels,
            axes=axes,
            shape=shape,
            numbers=_numbers_in(base),
            in_v2=self._views[ViewOptions("v2")].left_out(base) is None,
            is_dataset=await self._is_dataset(node),
        )
        items = [
            f'<li><a href="{_attribute(url)}" rel="noopener noreferrer" target="_blank">{text_of(name)}</a></li>\n'
            for name, url in links(address.origin, subject)
        ]
        lines = [
            f"<dt>{text_of(name)}</dt><dd><code>{text_of(line)}</code></dd>\n"
            for name, line in snippets(address.origin, subject)
        ]
        listed = f'<ul class="links">\n{"".join(items)}</ul>\n' if items else ""
        return (
            f'<section id="viewers">\n<h2>Open with</h2>\n{listed}'
            f"<details><summary>From programs</summary>\n<dl>\n{''.join(lines)}</dl>\n</details>\n</section>\n"
        )

    async def _is_dataset(self, node: Node) -> bool:
        """Whether xarray finds variables in a group: over HTTP, those that consolidated metadata describes."""
        if not node.copies:
            return False
        group = (await self._source.hierarchy.copies.consolidated(node)).metadata
        copies = inline_copies(group.document) or {} if isinstance(group, GroupMetadata) else {}
        arrays = [copy for path, copy in copies.items() if "/" not in path and isinstance(copy, dict)]
        arrays = [copy for copy in arrays if copy.get("node_type") == "array"]
        names = [copy.get("dimension_names") or [None] * len(copy.get("shape", [])) for copy in arrays]
        return bool(arrays) and all(None not in each for each in names)

    async def _labels(self, node: Node) -> list[str]:
        found = await _node_at(self._source.hierarchy, join_key(node.path, "labels"))
        return [*label_paths(found)] if found is not None else []

    async def _names(
        self, client: Connection, address: PageAddress, node: Node | None, batches: AsyncIterator[list[Listed]]
    ) -> AsyncGenerator[str, None]:
        """Yield the table of the names in a directory."""
        yield '<section id="names">\n<h2>Files</h2>\n<table>\n<thead><tr><th scope="col">Name</th>'
        yield '<th scope="col">Kind</th><th scope="col" class="number">Size</th></tr></thead>\n<tbody>\n'
        if address.path:
            yield '<tr><td><a href="../">..</a></td><td>directory</td><td></td></tr>\n'
        count, more = 0, ""
        to_look_at = 0 if node is not None and isinstance(node.metadata, ArrayMetadata) else self._most.directories
        try:
            async for batch in batches:
                shown = batch[: _MAX_NAMES - count]
                directories = [item.name for item in shown if item.kind is Kind.DIRECTORY][:to_look_at]
                to_look_at -= len(directories)
                async with client.while_present():
                    kinds = await self._kinds(address, directories)
                for listed in shown:
                    is_ours = listed.name == "-" and not address.path and not address.prefix  # `/-/` is no name there
                    yield _row(listed, kinds.get(listed.name), "-/v3/" if is_ours else "")
                count += len(shown)
                if len(shown) < len(batch):
                    more = f"There are more than {_MAX_NAMES:,} names. With the header Accept: application/json, "
                    more += "this address lists all."
                    break
        except ShardfsError as error:
            more = f"The listing breaks off: {error}"
        note = f'<p class="problem">{text_of(more)}</p>\n' if more else ""
        empty = "<p>There is nothing in it.</p>\n" if not count and not more else ""
        yield f"</tbody>\n</table>\n{note}{empty}</section>\n"

    async def _kinds(self, address: PageAddress, names: list[str]) -> Mapping[str, str]:
        """Say of directories which of them are arrays and groups."""
        found: dict[str, str] = {}

        async def look(name: str) -> None:
            try:
                node = await _node_at(self._source.hierarchy, join_key(address.path, name))
            except ShardfsError as error:
                found[name] = f"directory, which cannot be read: {error}"
            else:
                if node is not None and (node.document is not None or node.reason is not None):
                    found[name] = _kind_of(node)

        await for_each(names, look, _AT_ONCE)
        return found

    async def _map(self, node: Node) -> str:
        """Return the map of the shards of an array, or why there is none."""
        assert node.array is not None
        instead = "<p>There are too many shards to look at now: <code>shardfs map</code> shows them.</p>\n"
        with trio.move_on_after(_MAP_SECONDS):
            try:
                found = await map_array(node.array, most=self._most.shards, drawn=_MAP_LAYOUTS)
            except ShardfsError as error:
                return f'<p class="problem">{text_of(str(error))}</p>\n'
            if found is None:
                return instead
            lines = "\n".join(map(as_html, draw([found], {}, _MAP_ROWS, _MAP_WIDTH)))
            return f'<pre tabindex="0" role="group" aria-label="Map of shards">\n{lines}\n</pre>\n'
        return instead


async def _node_at(hierarchy: Hierarchy, path: str) -> Node | None:
    """Return the node at *path* as it is now; None if it has no directory of its own, as in the npy view."""
    try:
        return await hierarchy.node(path, fresh=True)
    except (NotFoundError, NotADirectoryHereError):
        return None


def _numbers_in(node: Node) -> str | None:
    """Return the data type of an array of numbers whose chunks every library decodes; None of another one."""
    array = node.any_array
    if array is None or array.document.get("chunk_grid", {}).get("name") != "regular":
        return None
    found = DataType.find(array.document["data_type"])
    is_plain = found is not None and not found.varies and found.dtype.kind in _NUMBERS
    return type_name(array.document["data_type"]) if is_plain and {c.name for c in array.codecs} <= _CODECS else None


def _kind_of(node: Node) -> str:
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


def _row(listed: Listed, kind: str | None, base: str) -> str:
    slash = "/" if listed.kind is Kind.DIRECTORY else ""
    href = base + quote(os.fsencode(listed.name), safe="") + slash
    nbytes = size(listed.size) if listed.kind is Kind.FILE and listed.size is not None else ""
    exact = f' title="{listed.size:,} bytes"' if nbytes else ""
    return (
        f'<tr><td><a href="./{href}">{text_of(listed.name)}{slash}</a></td>'
        f'<td>{text_of(kind or _KINDS[listed.kind])}</td><td class="number"{exact}>{nbytes}</td></tr>\n'
    )


def _head(address: PageAddress, nonce: str) -> str:
    title = text_of(address.path or address.source or "/")
    names = address.path.split("/") if address.path else []
    trail = [f'<a href="{"../" * len(names) or "./"}">{text_of("/" + address.prefix)}</a>']
    trail += [
        f'<a href="{"../" * (len(names) - depth) or "./"}">{text_of(name)}</a>' for depth, name in enumerate(names, 1)
    ]
    trail[-1] = trail[-1].replace("<a ", '<a aria-current="page" ')
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · shardfs</title>\n"
        f'<link rel="icon" href="{address.up}-/icon.svg">\n'
        f'<link rel="stylesheet" nonce="{nonce}" href="{address.up}-/page.css">\n'
        f'<script nonce="{nonce}" src="{address.up}-/page.js" defer></script>\n</head>\n<body>\n'
        f'<nav aria-label="Path">{" › ".join(trail)}</nav>\n<main>\n<h1>{title}</h1>\n'
    )


def _attribute(text: str) -> str:
    return escape(printable(text))


def _facts(found: list[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{text_of(name)}</th><td>{text_of(text)}</td></tr>\n' for name, text in found)
    return f'<section id="facts">\n<h2>Description</h2>\n<table>\n{rows}</table>\n</section>\n'


def _attributes(node: Node) -> str:
    attributes: Mapping[str, Json] | None = attributes_in(node)
    if not attributes:
        return ""
    text = ""
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(attributes):
        text += part
        if len(text) > _MAX_ATTRIBUTES:
            text = text[:_MAX_ATTRIBUTES] + "\n… and more, which the document has"
            break
    lines = "\n".join(map(text_of, text.split("\n")))
    return (
        f'<section id="attributes">\n<details{" open" if len(text) < 1000 else ""}><summary>Attributes</summary>\n'
        f'<pre tabindex="0" role="group" aria-label="Attributes">{lines}</pre>\n</details>\n</section>\n'
    )


def _picture(address: PageAddress, pyramid: Pyramid) -> str:
    """Return a picture with what selects its plane; what the address selects, if there is such a plane."""
    base = pyramid.base
    try:
        query = Query.parse(address.query)
        choice = Choice.of(base.shape, pyramid.names, query)
    except ClientError:
        query = Query.parse("")
        choice = Choice.of(base.shape, pyramid.names, query)
    return _figure(address, pyramid, query, choice)


def _figure(address: PageAddress, pyramid: Pyramid, query: Query, choice: Choice) -> str:
    """Return the picture of a plane, and a form that selects another: scripts submit it as the hand changes it."""
    base, names = pyramid.base, pyramid.names
    target = f"{address.up}-/plane/{quote(os.fsencode(base.path), safe='/')}"
    labels = [name or f"axis {axis}" for axis, name in enumerate(names)]
    fields = [_slider(axis, labels[axis], length, choice.at[axis]) for axis, length in enumerate(base.shape)
              if axis not in choice.axes]  # fmt: skip
    if len(base.shape) > 2:
        for field, chosen in zip(("rows", "columns"), choice.axes, strict=True):
            options = [(str(axis), label) for axis, label in enumerate(labels)]
            fields.append(_select(field, field.capitalize(), options, str(chosen)))
    if base.dtype.kind == _COMPLEX:
        fields.append(_select("part", "Part", [(part, part) for part in PARTS], query.style.part))
    if base.dtype.kind in _COUNTED:
        fields.append(
            _select("colors", "Colours", [(name, name) for name in COLORS], query.style.colors or pyramid.usual_colors)
        )
    if base.dtype.kind != "b":
        fields.append(_number("low", "Black below percentile", query.style.low))
        fields.append(_number("high", "White above percentile", query.style.high))
    edges = zip(("top", "bottom", "left", "right"), query.edges, strict=True)
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{"" if value is None else value}">\n' for name, value in edges
    )
    sides = [(labels[axis], base.shape[axis]) for axis in choice.axes]
    plane = " × ".join(f"{label} ({length:,})" for label, length in sides) or "the single element"
    shape = ",".join(str(length) for _, length in ([("", 1)] * (2 - len(sides)) + sides))
    first = escape(f"{target}?{address.query}" if address.query else target)
    buttons = "".join(
        f'<button type="button" data-do="{name}" aria-label="{label}" title="{label}">{sign}</button>\n'
        for name, label, sign in (
            ("in", "Zoom in", "+"), ("out", "Zoom out", "−"), ("all", "Show all", "⤢"), ("left", "Move left", "←"),
            ("right", "Move right", "→"), ("up", "Move up", "↑"), ("down", "Move down", "↓"),
        )
    )  # fmt: skip
    return (
        f'<section id="picture" data-source="{escape(target)}" data-shape="{shape}">\n<figure>\n'
        f'<div class="view" tabindex="0" role="group" aria-label="Picture: + and − zoom, 0 shows all, arrows move">\n'
        f'<img alt="Plane {text_of(plane)}" hidden>\n<noscript><img alt="Plane {text_of(plane)}" src="{first}">'
        f'</noscript>\n</div>\n<div class="buttons" role="toolbar" aria-label="Part of the plane" hidden>\n{buttons}'
        f'</div>\n<figcaption>{text_of(plane)}</figcaption>\n<p role="status" id="status"></p>\n</figure>\n'
        f'<form method="get" action="./">\n{"".join(fields)}{hidden}'
        "<noscript><button>Show</button></noscript>\n</form>\n"
        "</section>\n"
    )


def _slider(axis: int, label: str, length: int, value: int) -> str:
    return (
        f'<div class="field"><label for="i{axis}">{text_of(label)}</label>'
        f'<input type="range" id="i{axis}" name="i{axis}" min="0" max="{length - 1}" value="{value}">'
        f'<output for="i{axis}">{value}</output></div>\n'
    )


def _select(name: str, label: str, options: list[tuple[str, str]], chosen: str) -> str:
    items = "".join(
        f'<option value="{value}"{" selected" if value == chosen else ""}>{text_of(text)}</option>'
        for value, text in options
    )
    return (
        f'<div class="field"><label for="{name}">{label}</label>'
        f'<select id="{name}" name="{name}">{items}</select></div>\n'
    )


def _number(name: str, label: str, value: float) -> str:
    return (
        f'<div class="field"><label for="{name}">{label}</label>'
        f'<input type="number" id="{name}" name="{name}" min="0" max="100" step="any" value="{value:g}"></div>\n'
    )


@cache
def asset(name: str) -> bytes:
    """Return a file that pages load, `page.css`, `page.js` or `icon.svg`."""
    text = resources(__package__).joinpath(name).read_text(encoding="utf-8")
    return (text + styles() if name == "page.css" else text).encode()
