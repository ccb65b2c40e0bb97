"""Requests for what is drawn, in the words of `query`: pictures, plots, and values under a pointer.

| target | what |
|---|---|
| `/-/plane/PATH?…` | a picture of a plane of the array or image at PATH, as PNG |
| `/-/plot/PATH?…&axis=N` | the values along an axis at the marked element, as SVG |
| `/-/values/PATH?…&row=…&column=…` | the marked element as JSON, with its coordinates |

A value is that of the level which a picture of `size` shows, or without `size` of the finest one. The header
`Shardfs-Picture` says as JSON what a picture or a plot shows.
"""

import json
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
import trio

from shardfs.errors import NotShownError, counted, printable
from shardfs.serve.conditions import RequestConditions
from shardfs.serve.exchange import ClientError, Exchange, Header, only
from shardfs.serve.files import is_answered
from shardfs.serve.pages.axes import Axes
from shardfs.serve.pages.colors import css_color
from shardfs.serve.pages.coordinates import Axis, as_json, ratio_of, scale_bar
from shardfs.serve.pages.picture import ColorRange, Picture, bar_ticks, compose, draw
from shardfs.serve.pages.plane import Cut, Decoded, Plane, Samples, describe, describe_damage, read_plane, sampled
from shardfs.serve.pages.plots import WIDTH, Line, edges, svg_of
from shardfs.serve.pages.query import Choice, Query
from shardfs.serve.pages.scene import Read, Scene
from shardfs.serve.pages.units import number, shortened
from shardfs.version import __version__
from shardfs.vfs.paths import Paths
from shardfs.vfs.versions import text_of

HEADER: Final = "Shardfs-Picture"
"""The header of a picture that says as JSON what it shows."""
MAX_POINTS: Final = 2000
"""How many values a plot has at most."""
FEW_CHUNKS: Final = 64
"""Plots of up to so many chunks are drawn without being asked for."""

_MIN_WIDTH: Final = 300
_AT_ONCE: Final = 2
"""How many pictures are made at a time: each may take some 300 MiB."""
_VALUES_AT_ONCE: Final = 4
"""How many elements are read at a time: a chunk may have 256 MiB."""
_MAX_WHERE: Final = 12
_MAX_TEXT: Final = 500
_MAX_NOTES, _MAX_NOTE = 4, 200


class Planes:
    """Answers requests for what is drawn of the arrays of a decoded view, *may_be_cached* by who asks."""

    def __init__(self, *, may_be_cached: bool) -> None:
        self._turns = trio.CapacityLimiter(_AT_ONCE)
        self._turns_of_values = trio.CapacityLimiter(_VALUES_AT_ONCE)
        self._may_be_cached = may_be_cached

    def _head(self, version: Hashable, ttl: float) -> tuple[str | None, list[Header]]:
        """Return the version of a picture, and the headers that tell it."""
        text = None if version is None else text_of((__version__, version))
        seconds = int(min(ttl, 2**31)) if self._may_be_cached else 0
        tag = [("ETag", f'"{text}"')] if text is not None else []
        return text, [*tag, ("Cache-Control", f"max-age={seconds}" if seconds else "no-cache")]

    async def show(self, exchange: Exchange, paths: Paths, path: str, query: Query) -> None:
        """Send the picture of a plane; raises the error that prevents it.

        Nothing is drawn for a client that has the picture, asks for its head alone, or goes away.
        """
        async with exchange.connection.while_present():
            scene = await Scene.find(paths, path, query)
            is_asked = exchange.method == "HEAD" or RequestConditions.of(exchange).name_versions
            seen = await scene.look() if is_asked else None
        limit = query.most_chunks
        nchunks = scene.nchunks
        if limit is not None and nchunks > limit:
            raise NotShownError(f"it takes {nchunks:,} chunks, more than {limit:,}")
        kind = [("Content-Type", "image/png"), ("X-Content-Type-Options", "nosniff")]
        if seen is not None:
            version, ttl = seen
            text, head = self._head(version and (version, scene.meaning), ttl)
            if await is_answered(exchange, text, head):
                return
            if exchange.method == "HEAD":
                await exchange.reply(200, [*head, *kind])
                return
        async with exchange.connection.while_present(), self._turns:
            read = await scene.read()
            picture, ranges = await trio.to_thread.run_sync(_draw, scene, read)
        _, head = self._head(read.version and (read.version, scene.meaning), read.ttl)
        head += [(HEADER, json.dumps(_about(scene, read, picture, ranges), separators=(",", ":"))), *kind]
        await exchange.reply(200, head, only(picture.png), len(picture.png))

    async def plot(self, exchange: Exchange, paths: Paths, path: str, query: Query) -> None:
        """Send the plot of the values along an axis; raises the error that prevents it."""
        async with exchange.connection.while_present():
            scene = await Scene.find(paths, path, query)
            cut = _along(scene)
            async with self._turns:
                plane = await read_plane(paths, cut)
                axes = await scene.axes()
            line, text = _line(scene, cut, plane, axes)
            width = min(max(query.size or WIDTH, _MIN_WIDTH), MAX_POINTS)
            svg = (await trio.to_thread.run_sync(svg_of, line, text, width)).encode()
        about = {
            "text": text,
            "edges": edges(width),
            "damage": describe_damage(plane, "skipped"),
            "notes": _notes(axes),
        }
        kind = [
            ("Content-Type", "image/svg+xml; charset=utf-8"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "default-src 'none'; sandbox"),
            ("Cache-Control", "no-cache"),
        ]
        await exchange.reply(200, [(HEADER, json.dumps(about)), *kind], only(svg), len(svg))

    async def values(self, exchange: Exchange, paths: Paths, path: str, query: Query) -> None:
        """Send the marked element, and where it is."""
        async with exchange.connection.while_present():
            scene = await Scene.find(paths, path, query)
            async with self._turns_of_values:
                level, choice, planes, labels = await scene.read_at(is_finest=query.size is None)
            axes = await scene.axes()
        about = {
            "values": _values(scene, level, planes),
            "labels": [[name, str(plane.element)] for name, plane in labels.items()],
            "where": _where(scene, axes, range(len(choice.at)), choice.at),
            "level": shortened(level.path) if level is not scene.pyramid.base else None,
            "plots": _costs(scene, choice) if query.size is None else [],
        }
        data = json.dumps(about).encode()
        kind = [("Content-Type", "application/json"), ("Cache-Control", "no-cache")]
        await exchange.reply(200, kind, only(data), len(data))


def _draw(scene: Scene, read: Read) -> tuple[Picture, list[ColorRange | None]]:
    layers = read.layers(scene)
    if scene.shown:
        return compose(layers, scene.tints, scene.style, read.labels)
    return draw(layers[0], scene.style, read.labels), []


def _about(scene: Scene, read: Read, picture: Picture, ranges: Sequence[ColorRange | None]) -> dict[str, Any]:
    """Say what a picture shows: less than 3 KiB, as proxies take no longer headers."""
    axes, choice, variable = read.axes, scene.choice, scene.level.variable
    about: dict[str, Any] = {"text": shortened(describe(scene.cuts[0], read.planes[0]), _MAX_TEXT)}
    about |= {"notes": _notes_on(scene, read, picture), "black": None, "white": None}
    about["damage"] = shortened(_damage(scene, read.planes), _MAX_TEXT)
    if picture.range is not None:
        about |= {"black": number(picture.range.low), "white": number(picture.range.high)}
        about["bar"] = {
            "colors": picture.colors,
            "ticks": bar_ticks(picture, variable),
            "unit": variable.unit,
            "title": variable.title,
            "histogram": picture.histogram,
        }
    if scene.shown and scene.pyramid.channels is not None:
        of = scene.pyramid.channels.channels
        about["channels"] = [
            [channel, shortened(of[channel].name, 24), css_color(of[channel].color), *_ends(chosen)]
            for channel, chosen in zip(scene.shown, ranges, strict=True)
        ]
    about["where"] = _where(scene, axes, _others(scene), choice.at)
    if len(choice.axes) == 2:
        rows, columns = (axes[axis] for axis in choice.axes)
        (top, bottom), (left, right) = choice.spans
        down = [(1 - tick.place if read.are_flipped else tick.place, tick.label) for tick in rows.ticks(top, bottom, 6)]
        about["rows"], about["columns"] = down, as_json(columns.ticks(left, right, 6))
        about["ratio"] = round(ratio_of(rows, columns, bottom - top, right - left), 5)
        about["flipped"] = read.are_flipped
        bar = scale_bar(columns, right - left)
        if bar is not None:
            about["scale"] = bar
    if not choice.axes:
        element = read.planes[0].element
        about["value"] = "damaged" if element is None else variable.element_text(element, scene.style.part)
    return about


def _damage(scene: Scene, planes: Sequence[Plane]) -> str:
    """Say what is damaged, and if that differs between channels, in which; "" if nothing is."""
    texts = [describe_damage(plane, "hatched") for plane in planes]
    if len(set(texts)) == 1:
        return texts[0]
    assert scene.pyramid.channels is not None
    names = (scene.pyramid.channels.channels[number].name for number in scene.shown)
    return "; ".join(f"{shortened(name, 24)}: {text}" for name, text in zip(names, texts, strict=True) if text)


def _ends(chosen: ColorRange | None) -> tuple[str, str] | tuple[()]:
    return () if chosen is None else (number(chosen.low), number(chosen.high))


def _notes_on(scene: Scene, read: Read, picture: Picture) -> list[str]:
    """Say what else is to be known of a picture."""
    notes = ["north is up: the last row is drawn first"] if read.are_flipped else []
    counts = picture.counts.text()
    notes += [counts] if counts else []
    notes += [axis.note for axis in read.axes.axes if axis.note is not None]
    return [shortened(note, _MAX_NOTE) for note in [*notes, *scene.problems][:_MAX_NOTES]]


def _others(scene: Scene) -> list[int]:
    """Return the axes along which one index is shown."""
    hidden = {scene.pyramid.channels.axis} if scene.shown and scene.pyramid.channels is not None else set()
    return [axis for axis in range(len(scene.choice.at)) if axis not in scene.choice.axes and axis not in hidden]


def _where(scene: Scene, axes: Axes, numbers: Sequence[int], at: Sequence[int]) -> list[tuple[int, str, str, int]]:
    """Return for each axis its number, its name, and what the index stands for."""
    hidden = scene.pyramid.channels.axis if scene.shown and scene.pyramid.channels is not None else None
    wanted = [number for number in numbers if number != hidden][:_MAX_WHERE]
    return [(axis, shortened(axes[axis].name, 24), _label(scene, axes, axis, at[axis]), at[axis]) for axis in wanted]


def _label(scene: Scene, axes: Axes, axis: int, index: int) -> str:
    """Return what an index stands for, of channels their name."""
    channels = scene.pyramid.channels
    if channels is not None and channels.axis == axis and index < len(channels.channels):
        return shortened(channels.channels[index].name, 24)
    return axes[axis].label(index)


def _notes(axes: Axes) -> list[str]:
    return [axis.note for axis in axes.axes if axis.note is not None][:_MAX_NOTES]


def _values(scene: Scene, level: Decoded, planes: Sequence[Plane]) -> list[tuple[str, str]]:
    """Return the name of each channel, "" for none, and its element."""
    variable, found = level.variable, []
    of = scene.pyramid.channels
    for number_of, plane in enumerate(planes):
        name = of.channels[scene.shown[number_of]].name if scene.shown and of is not None else ""
        element = plane.element
        text = "damaged" if element is None else variable.element_text(element, scene.style.part)
        found.append((name, f"{text} (not stored)" if plane.missing else text))
    return found


def _costs(scene: Scene, choice: Choice) -> list[dict[str, Any]]:
    """Return along which axes there are plots, and how many chunks each takes."""
    base, found = scene.pyramid.base, []
    for axis, length in enumerate(base.shape):
        if length > 1:
            samples = sampled(base, (axis,), ((0, length),), MAX_POINTS)
            nchunks = Cut(base, (axis,), samples, choice.at).nchunks
            is_channel = (
                bool(scene.shown) and scene.pyramid.channels is not None and axis == scene.pyramid.channels.axis
            )
            is_plane = axis in scene.choice.axes or is_channel
            name = printable(shortened(scene.pyramid.names[axis] or f"axis {axis}"))
            found.append(
                {"axis": axis, "name": name, "chunks": nchunks, "plane": is_plane, "few": nchunks <= FEW_CHUNKS}
            )
    return found


def _along(scene: Scene) -> Cut:
    """Return the cut along the axis of a plot; raises `ClientError` if there is none."""
    base, choice = scene.pyramid.base, scene.choice
    axis = scene.query.axis if scene.query.axis is not None else (choice.axes[-1] if choice.axes else 0)
    if axis >= len(base.shape):
        raise ClientError(400, f"axis must be less than {len(base.shape)}")
    at = scene.at(choice.placed(base.shape, scene.query.place).at)[0]
    span = dict(zip(choice.axes, choice.spans, strict=True)).get(axis) if len(choice.axes) == 1 else None
    return Cut(base, (axis,), sampled(base, (axis,), [span or (0, base.shape[axis])], MAX_POINTS), at)


def _line(scene: Scene, cut: Cut, plane: Plane, axes: Axes) -> tuple[Line, str]:
    """Return the line of a plot, and what it is in words."""
    (axis,), (samples,) = cut.axes, cut.samples
    variable, style = cut.array.variable, scene.style
    numbers = variable.numbers(plane.elements, style.part)
    numbers = np.where(plane.are_known, numbers, np.nan)
    places = (np.arange(samples.length) * samples.step + 0.5) / (samples.stop - samples.start)
    of: Axis = axes[axis]
    is_whole = len(scene.choice.axes) == 1
    mark = (
        None
        if is_whole and scene.query.place[1] is None
        else (cut.at[axis] + 0.5 - samples.start) / (samples.stop - samples.start)
    )
    mark = mark if mark is not None and 0 <= mark <= 1 else None
    title = variable.title or shortened(cut.array.path.rpartition("/")[2] or "values")
    line = Line(
        places, numbers, variable, title, of.name, of.ticks(samples.start, samples.stop, 6), style.scale == "log", mark
    )
    channels = scene.pyramid.channels
    name = (
        channels.channels[scene.shown[0]].name if scene.shown and channels is not None and axis != channels.axis else ""
    )
    return line, _words_of_line(cut, plane, of, samples, name)


def _words_of_line(cut: Cut, plane: Plane, of: Axis, samples: Samples, name: str) -> str:
    unit = f" in {cut.array.variable.unit}" if cut.array.variable.unit else ""
    part = f" of {samples.stop - samples.start:,}" if samples.step > 1 else ""
    text = f"{samples.length:,}{part} values{f' of {name}' if name else ''}{unit} along {of.name}"
    text += f", from {counted(plane.nchunks, 'chunk')}"
    if plane.missing:
        text += f"; {plane.missing:,} not stored, shown as the fill value"
    return text
