"""Requests for pictures: `GET /-/plane/PATH?…`, where PATH is an array, or an image of OME-Zarr.

| field | what | default |
|---|---|---|
| `rows`, `columns` | the numbers of the two axes of the plane | those called y and x, or the last two |
| `i0`, `i1`, … | the index along each of the other axes | see `default_index` |
| `top`, `bottom`, `left`, `right` | the part of the plane, in elements | all |
| `size` | the largest side of the picture | `DEFAULT_SIZE` |
| `low`, `high` | the percentiles that are black and white | 1 and 99 |
| `part` | what is shown of complex numbers, one of `PARTS` | magnitude |
| `colors` | `gray` or `labels` | gray |

Elements are those of the array, or of the finest level of an image; coarser levels are read if they have enough.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import trio

from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.node import Node, groups_above
from shardfs.errors import NotFoundError, ShardfsError
from shardfs.format.metadata import ArrayMetadata
from shardfs.serve.conditions import RequestConditions
from shardfs.serve.exchange import ClientError, Exchange, Header, only
from shardfs.serve.files import is_answered
from shardfs.serve.pages.picture import COLORS, PARTS, Picture, Style, draw
from shardfs.serve.pages.plane import (
    MAX_PIXELS,
    Cut,
    Decoded,
    Plane,
    Seen,
    describe,
    look_at,
    open_decoded,
    read_plane,
    sampled,
)
from shardfs.serve.pages.pyramid import Image, image_in
from shardfs.stores.parallel import for_each
from shardfs.version import __version__
from shardfs.vfs.paths import Paths
from shardfs.vfs.versions import text_of

DEFAULT_SIZE: Final = 1024
HEADER: Final = "Shardfs-Picture"
"""The header of a picture that says as JSON what it shows."""

_MIN_SIZE: Final = 16
_MAX_FIELDS: Final = 100
_MAX_DIGITS: Final = 18
_AT_ONCE: Final = 2
"""How many pictures are made at a time: each may take some 300 MiB."""
_FAR_ABOVE: Final = 4
"""How many groups above an array may say that it is a level of an image."""
_FIRST: Final = frozenset({"c", "t", "channel", "time"})

Span = tuple[int, int]


class Query(NamedTuple):
    """What a request asks for; None and missing entries are left to us."""

    rows: int | None
    columns: int | None
    indices: Mapping[int, int]
    edges: tuple[int | None, int | None, int | None, int | None]
    size: int
    style: Style

    @classmethod
    def parse(cls, text: str) -> "Query":
        """Parse the query of a target; raises `ClientError` for what means nothing."""
        try:
            fields = dict(parse_qsl(text, keep_blank_values=False, max_num_fields=_MAX_FIELDS))
        except ValueError:
            raise ClientError(400, "the query has too many fields") from None
        edges = tuple(_whole(fields, name) for name in ("top", "bottom", "left", "right"))
        indices = {
            int(name[1:]): _whole(fields, name) or 0
            for name in fields
            if name[:1] == "i" and name[1:].isascii() and name[1:].isdecimal() and len(name) < 5
        }
        low, high = _percent(fields, "low", 1.0), _percent(fields, "high", 99.0)
        if low > high:
            raise ClientError(400, "low is more than high")
        style = Style(
            low, high, _choice(fields, "part", PARTS), _choice(fields, "colors", COLORS) if "colors" in fields else None
        )
        pixels = _whole(fields, "size")
        pixels = DEFAULT_SIZE if pixels is None else max(_MIN_SIZE, min(pixels, MAX_PIXELS))
        return cls(_whole(fields, "rows"), _whole(fields, "columns"), indices, edges, pixels, style)  # type: ignore[arg-type]


def _whole(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ClientError(400, f"{name} must be a whole number")
    return int(text)


def _percent(fields: Mapping[str, str], name: str, default: float) -> float:
    text = fields.get(name)
    with suppress(ValueError):
        value = default if text is None else float(text)
        if 0 <= value <= 100:
            return value
    raise ClientError(400, f"{name} must be a number from 0 to 100")


def _choice(fields: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    value = fields.get(name, choices[0])
    if value not in choices:
        raise ClientError(400, f"{name} must be one of {', '.join(choices)}")
    return value


class Choice(NamedTuple):
    """A plane of an array of this *shape*: its *axes*, none or one or two, a span of each, and the index of all."""

    axes: tuple[int, ...]
    spans: tuple[Span, ...]
    at: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], names: Sequence[str | None], query: Query) -> "Choice":
        """Return the plane that a query asks for; raises `ClientError` if the array has no such plane."""
        axes = _axes(shape, names, query)
        at = []
        for axis, length in enumerate(shape):
            index = query.indices.get(axis)
            index = default_index(length, names[axis]) if index is None else index
            if index >= length:
                raise ClientError(400, f"i{axis} must be less than {length:,}")
            at.append(index)
        spans = []
        bounds = [query.edges[:2], query.edges[2:]]
        for axis, (start, stop) in zip(axes, bounds[-len(axes) :] if axes else [], strict=True):
            start, stop = start or 0, shape[axis] if stop is None else min(stop, shape[axis])
            if start >= stop:
                raise ClientError(400, "that part of the plane is empty")
            spans.append((start, stop))
        return cls(axes, tuple(spans), tuple(at))

    def scaled(self, shape: Sequence[int], smaller: Sequence[int]) -> "Choice":
        """Return the same plane of the same image with a *smaller* shape."""
        spans = []
        for axis, (start, stop) in zip(self.axes, self.spans, strict=True):
            begin = start * smaller[axis] // shape[axis]
            spans.append((begin, max(begin + 1, -(-stop * smaller[axis] // shape[axis]))))
        at = (index * after // before for index, before, after in zip(self.at, shape, smaller, strict=True))
        return self._replace(spans=tuple(spans), at=tuple(at))

    @property
    def pixels(self) -> int:
        """The longest side."""
        return max((stop - start for start, stop in self.spans), default=1)


def _axes(shape: Sequence[int], names: Sequence[str | None], query: Query) -> tuple[int, ...]:
    ndim = len(shape)
    rows, columns = query.rows, query.columns
    if ndim < 2:
        return tuple(range(ndim))
    if columns is None:
        columns = names.index("x") if "x" in names else ndim - 1
        columns = columns if columns != rows else (ndim - 2 if rows == ndim - 1 else ndim - 1)
    if rows is None:
        rows = names.index("y") if "y" in names else ndim - 2
        rows = rows if rows != columns else (ndim - 2 if columns == ndim - 1 else ndim - 1)
    if rows == columns or max(rows, columns) >= ndim:
        raise ClientError(400, f"rows and columns must be two of the axes 0 to {ndim - 1}")
    return rows, columns


def default_index(length: int, name: str | None) -> int:
    """Return the index that is shown first: the first channel or time, the middle of anything else."""
    return 0 if name in _FIRST else length // 2


class Pyramid(NamedTuple):
    """The *levels* of an image, the finest first, or an array alone; *image* is what they are part of."""

    levels: tuple[Decoded, ...]
    names: tuple[str | None, ...]
    image: Image | None

    @property
    def base(self) -> Decoded:
        """The array whose elements are counted."""
        return self.levels[0]

    @property
    def usual_colors(self) -> str:
        """How the numbers are shown if nobody says otherwise."""
        return COLORS[1] if self.image is not None and self.image.is_labels else COLORS[0]

    def fitting(self, choice: Choice, pixels: int) -> tuple[Decoded, Choice]:
        """Return the coarsest level that has enough elements, and the plane in it."""
        base, best = self.base, (self.base, choice)
        wanted = min(pixels, choice.pixels)
        for level in self.levels[1:]:
            scaled = choice.scaled(base.shape, level.shape)
            if wanted <= scaled.pixels < best[1].pixels:
                best = level, scaled
        return best


async def find_pyramid(paths: Paths, path: str) -> Pyramid:
    """Return what is drawn for the array or the image at *path* of a decoded view.

    Raises `NotFoundError` if it is neither, and `NotShownError` with the reason if there is no picture of it.
    """
    node = await paths.source.hierarchy.node(path)
    image, wanted = await find_image(paths.source.hierarchy, node)
    opened: dict[str, Decoded] = {}

    async def look(level: str) -> None:
        try:
            opened[level] = await open_decoded(paths, level)
        except ShardfsError:
            if level == wanted[0]:
                raise

    await for_each(wanted, look, len(wanted))
    base = opened[wanted[0]]
    levels = [opened[level] for level in wanted if level in opened]
    usable = tuple(level for level in levels if _is_smaller(level, base))
    names = base.names
    if image is not None and not any(names) and len(image.axes) == len(base.shape):
        names = image.axes
    return Pyramid(usable, names, image)


def _is_smaller(level: Decoded, base: Decoded) -> bool:
    if level is base:
        return True
    return len(level.shape) == len(base.shape) and all(
        after <= before for after, before in zip(level.shape, base.shape, strict=True)
    )


async def find_image(hierarchy: Hierarchy, node: Node) -> tuple[Image | None, Sequence[str]]:
    """Return the image that *node* is, or is a level of, and the paths of its levels from the node on.

    Raises `NotFoundError` for a node that is no array either.
    """
    image = image_in(node)
    if image is not None:
        return image, image.levels
    if not isinstance(node.metadata, ArrayMetadata) and node.reason is None:
        raise NotFoundError(f"{node.path or 'the source'} is neither a Zarr v3 array nor an image of OME-Zarr")
    for above, _ in list(groups_above(node.path))[:_FAR_ABOVE]:
        image = image_in(await hierarchy.node(above))
        if image is not None and node.path in image.levels:
            return image, image.levels[image.levels.index(node.path) :]
    return None, [node.path]


class Planes:
    """Answers requests for pictures of the arrays of a decoded view."""

    def __init__(self) -> None:
        self._turns = trio.CapacityLimiter(_AT_ONCE)

    async def show(self, exchange: Exchange, paths: Paths, path: str, query: Query, *, may_be_cached: bool) -> None:
        """Send the picture of a plane; raises the error that prevents it.

        Nothing is drawn for a client that has the picture, asks for its head alone, or goes away.
        """

        def head_of(seen: Seen) -> tuple[str | None, list[Header]]:
            """Return the version of the picture, and the headers that tell it."""
            version = None if seen.version is None else text_of((__version__, seen.version, style))
            seconds = int(min(seen.ttl, 2**31)) if may_be_cached else 0
            tag = [("ETag", f'"{version}"')] if version is not None else []
            return version, [*tag, ("Cache-Control", f"max-age={seconds}" if seconds else "no-cache")]

        async with exchange.connection.while_present():
            pyramid = await find_pyramid(paths, path)
            choice = Choice.of(pyramid.base.shape, pyramid.names, query)
            level, scaled = pyramid.fitting(choice, query.size)
            cut = Cut(level, scaled.axes, sampled(level, scaled.axes, scaled.spans, query.size), scaled.at)
            style = query.style._replace(colors=query.style.colors or pyramid.usual_colors)
            is_asked = exchange.method == "HEAD" or RequestConditions.of(exchange).name_versions
            seen = await look_at(paths, cut) if is_asked else None
        kind = [("Content-Type", "image/png"), ("X-Content-Type-Options", "nosniff")]
        if seen is not None:
            version, head = head_of(seen)
            if await is_answered(exchange, version, head):
                return
            if exchange.method == "HEAD":
                await exchange.reply(200, [*head, *kind])
                return
        async with exchange.connection.while_present(), self._turns:
            plane = await read_plane(paths, cut)
            picture = await trio.to_thread.run_sync(_draw, plane, len(cut.axes), style)
        _, head = head_of(plane.seen)
        head += [(HEADER, _about(cut, plane, picture)), *kind]
        await exchange.reply(200, head, only(picture.png), len(picture.png))


def _draw(plane: Plane, naxes: int, style: Style) -> Picture:
    shape = {0: (1, 1), 1: (1, -1), 2: plane.elements.shape}[naxes]
    return draw(plane.elements.reshape(shape), plane.are_known.reshape(shape), style)


def _about(cut: Cut, plane: Plane, picture: Picture) -> str:
    about: dict[str, object] = {
        "text": describe(cut, plane),
        "black": _number(picture.black),
        "white": _number(picture.white),
    }
    if plane.elements.size == 1:
        about["value"] = str(plane.elements.ravel()[0])
    return json.dumps(about)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
