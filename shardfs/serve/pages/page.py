"""The page of a directory: what it is, a picture of it, what is in it, and where its shards are.

All text is escaped, and the policy of a page lets a browser load and run what `/-/` has, and nothing else.
"""

import math
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

import trio

from shardfs.bulk.info import ViewOptions, views_of
from shardfs.bulk.map import map_array
from shardfs.bulk.map_page import section as map_section
from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.node import Node
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError, SourceError, counted, size
from shardfs.format.dtype import DataType, item_nbytes, type_name
from shardfs.format.lens.v3 import inline_copies
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.serve.exchange import ClientError, Connection, Exchange, only
from shardfs.serve.files import is_answered
from shardfs.serve.pages import form, group, html
from shardfs.serve.pages.axes import foresee_axes
from shardfs.serve.pages.describe import (
    attributes,
    dimensions_of,
    facts_of,
    kind_of,
    stored_in,
    stored_of,
    title_of,
)
from shardfs.serve.pages.group import PageLimits
from shardfs.serve.pages.html import text
from shardfs.serve.pages.pyramid import image_in, label_paths
from shardfs.serve.pages.query import Query
from shardfs.serve.pages.scene import Pyramid, Scene, find_image, find_pyramid, foresee
from shardfs.serve.pages.tables import ROWS, has_table, read_table
from shardfs.serve.pages.viewers import Subject, links, snippets
from shardfs.stores.base import Buffer, Kind, join_key
from shardfs.stores.parallel import for_each
from shardfs.vfs.all_views import Views
from shardfs.vfs.paths import Listed, Paths

_MAX_NAMES: Final = 2000
_AT_ONCE: Final = 16
_MAP_SECONDS: Final = 10.0
_VALUE_SECONDS: Final = 5.0
_MAP_LAYOUTS: Final = 8
_MAX_COUNTED: Final = 2000
"""How many objects of an array are looked at for the page of its group."""
_MAX_NBYTES: Final = 2**63
_KINDS: Final = {Kind.FILE: "file", Kind.DIRECTORY: "directory", Kind.SYMLINK: "link", Kind.SPECIAL: "special"}
_NUMBERS: Final = "biufc"
_CODECS: Final = frozenset({"bytes", "transpose", "gzip", "zstd", "blosc", "crc32c"})


class _Most(NamedTuple):
    """How many *directories* of a page are looked at to say what they are, *shards* for its map, and *pictures*."""

    directories: int
    shards: int
    pictures: int


_LOCAL: Final = _Most(100, 4000, 24)
_REMOTE: Final = _Most(32, 32, 8)
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

    @property
    def trail(self) -> list[tuple[str, str]]:
        """The texts and addresses that lead from the root of the view to this page."""
        names = self.path.split("/") if self.path else []
        above = [("/" + self.prefix, "../" * len(names) or "./")]
        return above + [(name, "../" * (len(names) - depth) or "./") for depth, name in enumerate(names, 1)]


class PageBuilder:
    """Makes pages for one source, which *views* shows; pictures are of its decoded view, if there is one."""

    def __init__(self, views: Views) -> None:
        self.decoded = views.others["decoded/v3"]
        self._shown = views.others
        self._source = views.main.source.beside()
        self._views = views_of(self._source)
        self._is_local = self._source.store.root is not None
        self._most = _LOCAL if self._is_local else _REMOTE

    async def show(self, exchange: Exchange, address: PageAddress) -> None:
        """Send the page of a directory; raises the error that prevents it before anything was sent."""
        nonce = html.new_nonce()
        caching = [("Cache-Control", "no-cache"), ("Vary", "Accept")]
        async with exchange.connection.while_present():
            await foresee(self._source, address.path)
        async with (
            address.paths.listing(address.path) as batches,
            aclosing(self._page(exchange.connection, address, nonce, batches)) as pieces,
        ):
            if not await is_answered(exchange, None, caching):
                await exchange.reply(200, [*html.headers(nonce), *caching], pieces)

    async def show_error(
        self, exchange: Exchange, status: int, reason: str, up: str, parents: list[tuple[str, str]]
    ) -> None:
        """Send a page that says why there is none, with ways back to the *parents*, texts and addresses."""
        nonce = html.new_nonce()
        title = f"{status} {HTTPStatus(status).phrase}"
        ways = "".join(
            f'<li><a href="{text(href)}">{"The start page" if href == up else f"The directory {text(name)}"}</a></li>\n'
            for name, href in parents[::-1]
        )
        parts = [
            html.head(title, up, nonce, [*parents, (title, "")]),
            html.problem(reason),
            f'<section id="ways">\n<h2>From here</h2>\n<ul>\n{ways}</ul>\n</section>\n',
            html.foot(),
        ]
        data = "".join(parts).encode()
        await exchange.reply(
            status, [*html.headers(nonce), ("Cache-Control", "no-store"), ("Vary", "Accept")], only(data), len(data)
        )

    async def contents(self, exchange: Exchange, path: str, *, counts: bool) -> None:
        """Send what the page of a group asks for when it is there."""
        most = _MAX_COUNTED if self._is_local else 10 * _MAX_COUNTED  # a listing has a thousand
        await group.show(exchange, self._source, self.decoded, path, most, counts or self._is_local)

    async def _page(
        self, client: Connection, address: PageAddress, nonce: str, batches: AsyncIterator[list[Listed]]
    ) -> AsyncGenerator[Buffer, None]:
        async with client.while_present():
            node = await _node_at(self._source.hierarchy, address.path)
            title = address.path.rpartition("/")[2] or address.source or "/"
            pyramid, body, openers = await self._body(address, node)
        yield f"{html.head(title, address.up, nonce, address.trail)}{body}".encode()
        if pyramid is not None and not isinstance(self.decoded, SourceError):
            async with client.while_present():  # the browser asks for the picture by now
                await foresee_axes(self.decoded, pyramid.base, pyramid.names, pyramid.image)
        if node is not None and has_table(node):
            async with client.while_present():
                table = await self._table(node, address.query)
            yield table.encode()
        async with aclosing(self._names(client, address, node, openers, batches)) as rows:
            async for row in rows:
                yield row.encode()
        if node is not None and node.any_array is not None:
            async with client.while_present():
                drawing = await self._storage(node)
            yield drawing.encode()
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
        return html.foot(f"The same in each view: {' · '.join(links)}")

    async def _body(self, address: PageAddress, node: Node | None) -> tuple[Pyramid | None, str, str]:
        """Return what the picture of a page is of, what the page says first, and what opens the node unless that does.

        First is what the node is, and its picture.
        """
        if node is None:
            return None, "", ""
        if has_table(node) or not (isinstance(node.metadata, ArrayMetadata) or image_in(node) is not None):
            openers = await self._openers(address, node, None)
            problem = html.problem(node.reason) if node.reason is not None else ""
            return None, _heading(node, openers) + problem, openers
        parts: list[str] = []
        pyramid = None
        try:
            pyramid = await self._pyramid(node)
        except ShardfsError as error:
            parts.append(f'<section id="picture">\n{html.problem(f"No picture: {error}")}</section>\n')
        else:
            if pyramid.base.shape:
                names = [path.rpartition("/")[2] for path in await self._labels(node)]
                names = [name for name in names if "," not in name]
                if pyramid.image is not None and not isinstance(node.metadata, ArrayMetadata):
                    parts.append(f"<p>{text(_of_image(pyramid))}</p>\n")
                parts.append(form.picture(address.up, pyramid, address.query, names))
            else:
                parts.append(await self._value(node.path))
        openers = await self._openers(address, node, pyramid)
        return pyramid, "".join([_heading(node, openers), *parts, openers]), ""

    def _details(self, node: Node) -> str:
        """Return what the document of a node says."""
        is_array = isinstance(node.metadata, ArrayMetadata)
        facts = html.section("facts", "Description", html.facts(facts_of(node, self._views))) if is_array else ""
        return facts + attributes(node)

    async def _pyramid(self, node: Node) -> Pyramid:
        """Return what is drawn for a node; raises the error that says why there is no picture."""
        if isinstance(self.decoded, SourceError):
            raise SourceError(str(self.decoded))
        return await find_pyramid(self.decoded, node.path)

    async def _value(self, path: str) -> str:
        """Return the number of an array without axes."""
        assert not isinstance(self.decoded, SourceError)
        shown = html.problem("It takes too long to read the value.")
        with trio.move_on_after(_VALUE_SECONDS):
            try:
                scene = await Scene.find(self.decoded, path, Query.parse(""))
                level, _, (plane,), _ = await scene.read_at(is_finest=True)
            except ShardfsError as error:
                shown = html.problem(f"No value: {error}")
            else:
                element, variable = plane.element, level.variable
                note = " (not stored: the fill value)" if plane.missing else ""
                value = plane.damage if element is None else variable.element_text(element, scene.style.part) + note
                shown = f'<p id="value">{text(value or "")}</p>\n'
        return html.section("picture", "Value", shown)

    async def _table(self, node: Node, query: str) -> str:
        """Return the first rows of an array that has no picture."""
        try:
            parsed = Query.parse(query)
        except ClientError:
            parsed = Query.parse("")
        found = None
        reason = "it takes too long to read them"
        with trio.move_on_after(_VALUE_SECONDS):
            try:
                found = await read_table(self.decoded, self._shown["v3"], node, parsed)
            except ShardfsError as error:
                reason = str(error)
        if found is None:
            return html.section("picture", "Rows", html.problem(f"No rows: {reason}"))
        last = found.first + len(found.rows)
        note = f"Rows {found.first:,} to {last - 1:,} of {found.total:,}. {found.note}".strip()
        pages = []
        if found.first:
            pages.append(_turn("Rows before", "prev", max(found.first - ROWS, 0), parsed))
        if last < found.total:
            pages.append(_turn("Next rows", "next", last, parsed))
        if found.total > ROWS:
            pages.append(_jump(found.total, found.first))
        body = html.table(found.columns, found.rows, "Rows")
        return html.section(
            "picture", "Rows", f'<p>{text(note)}</p>\n{body}<div class="turn">{" ".join(pages)}</div>\n'
        )

    async def _openers(self, address: PageAddress, node: Node, pyramid: Pyramid | None) -> str:
        """Return links to viewers, and lines for other programs."""
        is_array = isinstance(node.metadata, ArrayMetadata)
        if not is_array and not isinstance(node.metadata, GroupMetadata):
            return ""
        if self._views[ViewOptions("v3")].skipped(node) is not None:
            return ""
        image, own, base = None, image_in(node), node
        if is_array or own is not None:
            try:
                image, levels, _ = await find_image(self._source.hierarchy, node)
                base = node if is_array else await self._source.hierarchy.node(levels[0])
            except ShardfsError:
                return ""
        labels = await self._labels(node) if own is not None and not own.is_labels else []
        axes, shape = (pyramid.names, pyramid.base.shape) if pyramid is not None else ((), ())
        is_in_npy = is_array and bool(node.path) and self._views[ViewOptions("npy")].skipped(node) is None
        subject = Subject(
            node.path,
            labels,
            is_array=is_array,
            is_image=own is not None,
            is_labels=image is not None and image.is_labels,
            axes=axes,
            shape=shape,
            numbers=_numbers_in(base),
            is_transposed=base.any_array is not None and "transpose" in {c.name for c in base.any_array.codecs},
            in_v2=self._views[ViewOptions("v2")].skipped(base) is None,
            in_npy=is_in_npy,
            dataset=await self._dataset_of(node),
        )
        items = [
            f'<li><a href="{text(url)}" rel="noopener noreferrer" target="_blank">{text(name)}</a></li>\n'
            for name, url in links(address.origin, subject)
        ]
        lines = [
            f"<dt>{text(name)}</dt><dd><code>{text(line)}</code>"
            f'<button type="button" class="copy" aria-label="Copy the line for {text(name)}" hidden>Copy</button>'
            "</dd>\n"
            for name, line in snippets(address.origin, subject)
        ]
        listed = f'<ul class="links">\n{"".join(items)}</ul>\n' if items else ""
        programs = ", ".join(name for name, _ in snippets(address.origin, subject))
        details = html.folded(f"Lines for {programs}", f"<dl>\n{''.join(lines)}</dl>\n", is_open=not is_array)
        return html.section("viewers", "Open with", listed + details)

    async def _dataset_of(self, node: Node) -> str | None:
        """Return the path of the group by which xarray opens it, or the group of an array; None if it cannot.

        Over HTTP, it finds the variables that consolidated metadata describes, and their dimensions need names.
        """
        dataset, name = node, None
        if isinstance(node.metadata, ArrayMetadata):
            parent, _, name = node.path.rpartition("/")
            dataset = await self._source.hierarchy.node(parent)
        is_large = dataset.document is None or len(dataset.document) > LARGE_NBYTES
        stored = dataset.stored if dataset.copies and not is_large else None
        copies = inline_copies(stored.document) or {} if isinstance(stored, GroupMetadata) else {}
        arrays = {path: copy for path, copy in copies.items() if "/" not in path and isinstance(copy, dict)}
        arrays = {path: copy for path, copy in arrays.items() if copy.get("node_type") == "array"}
        names = [copy.get("dimension_names") or [None] * len(copy.get("shape", [])) for copy in arrays.values()]
        is_found = bool(arrays) if name is None else name in arrays
        return dataset.path if is_found and all(None not in each for each in names) else None

    async def _labels(self, node: Node) -> list[str]:
        own = image_in(node)
        if own is None or own.is_labels:
            return []
        with suppress(ShardfsError):
            found = await _node_at(self._source.hierarchy, join_key(node.path, "labels"))
            return [*label_paths(found)] if found is not None else []
        return []

    async def _names(
        self,
        client: Connection,
        address: PageAddress,
        node: Node | None,
        openers: str,
        batches: AsyncIterator[list[Listed]],
    ) -> AsyncGenerator[str, None]:
        """Yield what is in a directory: arrays and groups first, then *openers*, then the table of all names."""
        names: list[Listed] = []
        more = ""
        try:
            async for batch in batches:
                names += batch[: _MAX_NAMES - len(names)]
                if len(names) == _MAX_NAMES:
                    more = f"There are more than {_MAX_NAMES:,} names. With the header Accept: application/json, "
                    more += "this address lists all."
                    break
        except ShardfsError as error:
            more = f"The listing breaks off: {error}"
        is_array = node is not None and isinstance(node.metadata, ArrayMetadata)
        most = 0 if is_array else self._most.directories
        directories = [item.name for item in names if item.kind is Kind.DIRECTORY]
        async with client.while_present():
            kinds, nodes = await self._look(address, directories[:most])
        is_picture = node is not None and image_in(node) is not None
        limits = PageLimits(0 if is_picture else self._most.pictures, self._is_local)
        if node is not None:
            if isinstance(node.metadata, GroupMetadata):
                target = quote(os.fsencode(address.path), safe="/")
                yield group.dataset(nodes, address.up, target, limits, is_image=is_picture)
            yield openers + self._details(node)
        if len(directories) > most and not is_array:
            rest = f"Of {len(directories):,} directories, the first {most:,} are looked at to say what they are."
            more = f"{rest} {more}".strip()
        is_closed = is_array or (bool(nodes) and len(directories) <= most)
        yield '<section id="names">\n<h2>Files</h2>\n'
        yield f"<p>{text(more)}</p>\n" if more else ""
        yield f"<details{'' if is_closed else ' open'}><summary>{counted(len(names), 'name')}</summary>\n"
        yield '<div class="scroll" tabindex="0" role="region" aria-label="Files">\n<table>\n<thead><tr>'
        yield '<th scope="col">Name</th><th scope="col">Kind</th><th scope="col" class="number">Size</th></tr></thead>'
        yield "\n<tbody>\n"
        if address.path:
            yield '<tr><td><a href="../">..</a></td><td>directory</td><td></td></tr>\n'
        for listed in names:
            is_ours = listed.name == "-" and not address.path and not address.prefix  # `/-/` is no name there
            yield _row(listed, kinds.get(listed.name), "-/v3/" if is_ours else "")
        empty = "<p>There is nothing in it.</p>\n" if not names and not more else ""
        yield f"</tbody>\n</table>\n</div>\n</details>\n{empty}</section>\n"

    async def _look(self, address: PageAddress, names: list[str]) -> tuple[dict[str, str], dict[str, Node]]:
        """Say of directories which of them are arrays and groups, and return these in their order."""
        kinds: dict[str, str] = {}
        nodes: dict[str, Node] = {}

        async def look(name: str) -> None:
            try:
                node = await _node_at(self._source.hierarchy, join_key(address.path, name))
            except ShardfsError as error:
                kinds[name] = f"directory, which cannot be read: {error}"
            else:
                if node is not None and (node.document is not None or node.reason is not None):
                    kinds[name] = kind_of(node)
                    nodes[name] = node

        await for_each(names, look, _AT_ONCE)
        return kinds, {name: nodes[name] for name in names if name in nodes}

    async def _storage(self, node: Node) -> str:
        """Return what is stored of an array, and the map of its shards."""
        assert node.any_array is not None
        parts = []
        most = self._most.shards
        instead = "<p>There are too many shards to look at now: <code>shardfs map</code> shows them.</p>\n"
        with trio.move_on_after(_MAP_SECONDS) as scope:
            try:
                if node.array is not None:
                    found = await map_array(node.array, most=most, drawn=_MAP_LAYOUTS)
                    parts = [*map_section(found)] if found is not None else [instead]
                stored = None
                if node.array is None:
                    stored = await stored_in(self._source, node.any_array, most)
                elif found is not None and found.error is None:
                    stored = stored_of(found)
                if node.array is None or stored is not None:
                    if stored is not None:
                        nbytes, plain, ratio, count = stored.texts
                        objects = "shards" if node.array is not None else "chunks"
                        rows = [
                            ("stored", nbytes),
                            ("plain, of what is stored", plain),
                            ("ratio", ratio),
                            (objects, count),
                        ]
                        parts.insert(0, html.facts([row for row in rows if row[1]]))
                    else:
                        parts.append(
                            "<p>There are too many chunks to count now: <code>shardfs info</code> counts them.</p>\n"
                        )
            except ShardfsError as error:
                parts.append(html.problem(str(error)))
        if scope.cancelled_caught:
            parts.append(instead)
        return html.section("map", "Storage and map of shards" if node.array is not None else "Storage", "".join(parts))


async def _node_at(hierarchy: Hierarchy, path: str) -> Node | None:
    """Return the node at *path* as it is now; None if it has no directory of its own, as in the npy view."""
    try:
        return await hierarchy.node(path, fresh=True)
    except (NotFoundError, NotADirectoryHereError):
        return None


def _heading(node: Node, openers: str) -> str:
    """Return the line that says what a node is, and leads to how it is opened."""
    title, unit = title_of(node)
    named = f"{title}{f' [{unit}]' if unit else ''} · " if title else f"unit {unit} · " if unit else ""
    what = _of_array(node.metadata) if isinstance(node.metadata, ArrayMetadata) else kind_of(node)
    leads = ' · <a href="#viewers">Open in Python and others</a>' if openers else ""
    return f'<p class="kind">{text(named + what)}{leads}</p>\n'


def _of_array(metadata: ArrayMetadata) -> str:
    """Say what the elements of an array are, and how large they are together."""
    itemsize, count = item_nbytes(metadata.document["data_type"]), math.prod(metadata.shape)
    plain = f" · {size(count * itemsize)}" if itemsize is not None and count * itemsize < _MAX_NBYTES else ""
    shape = dimensions_of(metadata) or "a single element"
    return f"array, {type_name(metadata.document['data_type'])}, {shape}{plain}"


def _of_image(pyramid: Pyramid) -> str:
    """Say what the elements of an image are."""
    sides = " × ".join(
        f"{name or 'axis'} {length:,}" for name, length in zip(pyramid.names, pyramid.base.shape, strict=True)
    )
    return f"{pyramid.base.dtype.name}, {sides}, {counted(len(pyramid.levels), 'level')}"


def _numbers_in(node: Node) -> str | None:
    """Return the data type of an array of numbers whose chunks every library decodes; None of another one."""
    array = node.any_array
    if array is None or array.document.get("chunk_grid", {}).get("name") != "regular":
        return None
    found = DataType.find(array.document["data_type"])
    is_plain = found is not None and not found.varies and found.dtype.kind in _NUMBERS
    return type_name(array.document["data_type"]) if is_plain and {c.name for c in array.codecs} <= _CODECS else None


def _row(listed: Listed, kind: str | None, base: str) -> str:
    slash = "/" if listed.kind is Kind.DIRECTORY else ""
    href = base + quote(os.fsencode(listed.name), safe="") + slash
    nbytes = size(listed.size) if listed.kind is Kind.FILE and listed.size is not None else ""
    exact = f' title="{listed.size:,} bytes"' if nbytes else ""
    return (
        f'<tr><td><a href="./{href}">{text(listed.name)}{slash}</a></td>'
        f'<td>{text(kind or _KINDS[listed.kind])}</td><td class="number"{exact}>{nbytes}</td></tr>\n'
    )


def _turn(label: str, rel: str, first: int, query: Query) -> str:
    fields = {"from": first, **{f"i{axis}": index for axis, index in query.indices.items()}}
    return f'<a rel="{rel}" href="{text(f"./?{urlencode(fields)}")}">{label}</a>'


def _jump(total: int, first: int) -> str:
    return (
        '<form method="get" action="./" class="jump"><label for="from">Row</label>'
        f'<input type="number" id="from" name="from" min="0" max="{total - 1}" value="{first}">'
        "<button>Show</button></form>"
    )
