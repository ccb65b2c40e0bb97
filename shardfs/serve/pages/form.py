"""The picture of a page, and the form that selects another: a script submits it as the hand changes it."""

import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from shardfs.serve.exchange import ClientError
from shardfs.serve.pages.colors import COLORS, LABELS, css_color
from shardfs.serve.pages.html import text
from shardfs.serve.pages.query import PARTS, SCALES, Choice, Query
from shardfs.serve.pages.scene import Pyramid
from shardfs.serve.pages.units import shortened

_COMPLEX: Final = "c"
_COUNTED: Final = "iu"
_BOOLEAN: Final = "b"
_TABLES: Final = {
    "gray": "gray", "viridis": "viridis", "magma": "magma", "cividis": "cividis", "balance": "balance (around 0)",
    LABELS: "labels (a colour each)",
}  # fmt: skip
_BUTTONS: Final = (
    ("in", "Zoom in", "+"), ("out", "Zoom out", "−"), ("all", "Show all", "⤢"), ("left", "Move left", "←"),
    ("right", "Move right", "→"), ("up", "Move up", "↑"), ("down", "Move down", "↓"),
)  # fmt: skip
_KEYS: Final = (
    ("+ −", "zoom"), ("0", "show all"), ("← → ↑ ↓", "move"), ("m", "mark the middle"),
    ("Shift and ← → ↑ ↓", "move the mark"),
    ("Esc", "remove the mark"),
)  # fmt: skip


_HINT_OF_LINES: Final = "Point at it for values; a click or a tap keeps one."
_HINT: Final = "Point at it for values. A click or a tap marks an element, and draws the values along other axes."


def chosen(pyramid: Pyramid, query: str) -> tuple[Query, Choice]:
    """Return what an address selects of an array; the usual plane if it has none such."""
    shape, names = pyramid.base.shape, pyramid.names
    try:
        parsed = Query.parse(query)
        return parsed, Choice.of(shape, names, parsed)
    except ClientError:
        parsed = Query.parse("")
        return parsed, Choice.of(shape, names, parsed)


def picture(up: str, pyramid: Pyramid, address_query: str, labels: Sequence[str]) -> str:
    """Return the picture of a plane, or the plot of an array of one axis, and its form; *labels* name images."""
    query, choice = chosen(pyramid, address_query)
    base = pyramid.base
    path = quote(os.fsencode(base.path if pyramid.image is None else pyramid_path(pyramid)), safe="/")
    is_line = len(choice.axes) == 1
    sides = [(_label(pyramid, axis), base.shape[axis]) for axis in choice.axes]
    plane = " × ".join(f"{label} ({length:,})" for label, length in sides)
    shape = ",".join(str(length) for _, length in ([("", 1)] * (2 - len(sides)) + sides))
    endpoint = "plot" if is_line else "plane"
    source = f"{up}-/{endpoint}/{path}"
    first = text(f"{source}?{address_query}" if address_query else source)
    what = "Plot" if is_line else "Picture"
    wanted = [button for button in _BUTTONS if not (is_line and button[0] in ("up", "down"))]
    buttons = "".join(
        f'<button type="button" data-do="{name}" aria-label="{label}" title="{label}">{sign}</button>\n'
        for name, label, sign in wanted
    )
    keys = "".join(f"<li><kbd>{key}</kbd> {does}</li>" for key, does in _KEYS)
    kind = "line" if is_line else "plane"
    return (
        f'<section id="picture" class="is-{kind}" data-source="{text(source)}" '
        f'data-values="{text(f"{up}-/values/{path}")}" data-plot="{text(f"{up}-/plot/{path}")}" '
        f'data-bars="{up}-/bar/" data-shape="{shape}" data-kind="{kind}">\n<figure>\n'
        f'<div class="frame">\n<div class="ticks down" aria-hidden="true"></div>\n'
        f'<div class="view" tabindex="0" role="group" aria-label="{what}: keys are below it">\n'
        f'<img alt="Plane {text(plane)}" hidden>\n'
        f'<noscript><img alt="{what} of {text(plane)}" src="{first}"></noscript>\n'
        '<div class="mark" hidden></div><div class="scale" hidden></div>\n</div>\n'
        '<div class="ticks across" aria-hidden="true"></div>\n</div>\n'
        f'<p id="readout">{_HINT_OF_LINES if is_line else _HINT}</p>\n'
        f'<div class="legend" hidden></div>\n'
        f'<div class="buttons" role="toolbar" aria-label="Part that is shown" hidden>\n{buttons}</div>\n'
        f'<figcaption>{text(plane)}</figcaption>\n<p role="status" id="status"></p>\n'
        f'<details class="keys"><summary>Keys, and the picture as a file</summary>\n<ul>{keys}</ul>\n'
        f'<p><a id="file" href="{first}">The picture alone</a>. A click or a tap marks an element: its value is shown, '
        "and the values along the other axes. A double click zooms in.</p></details>\n</figure>\n"
        f'{_form(pyramid, query, choice, labels)}<div id="plots"></div>\n</section>\n'
    )


def pyramid_path(pyramid: Pyramid) -> str:
    """Return the path at which a pyramid with its first level is drawn."""
    image, base = pyramid.image, pyramid.base
    return pyramid.group if image is not None and image.levels[0] == base.path else base.path


def _label(pyramid: Pyramid, axis: int) -> str:
    return shortened(pyramid.names[axis] or f"axis {axis}", 40)


def _form(pyramid: Pyramid, query: Query, choice: Choice, labels: Sequence[str]) -> str:
    base, style = pyramid.base, query.style
    kind = base.dtype.kind
    defaults = Choice.of(base.shape, pyramid.names, Query.parse(""))
    fields = [
        _slider(axis, _label(pyramid, axis), length, choice.at[axis], defaults.at[axis])
        for axis, length in enumerate(base.shape)
        if axis not in choice.axes
    ]
    if len(base.shape) > 2:
        options = [(str(axis), _label(pyramid, axis)) for axis in range(len(base.shape))]
        for field, axis, other in zip(("rows", "columns"), choice.axes, defaults.axes, strict=True):
            fields.append(_select(field, field.capitalize(), options, str(axis), str(other)))
    fields.append(_channels(pyramid, query, choice))
    if labels and len(choice.axes) == 2:
        boxes = [(name, shortened(name, 40), name in query.labels, "") for name in labels]
        fields.append(_boxes("labels", "Labels over the image", boxes, ""))
    if kind == _COMPLEX:
        fields.append(_select("part", "Part", [(part, part) for part in PARTS], style.part, PARTS[0]))
    if len(choice.axes) == 2 and kind != _BOOLEAN:
        usual = pyramid.usual_colors
        tables = [(name, _TABLES[name]) for name in COLORS if name != LABELS or kind in _COUNTED]
        fields.append(_select("colors", "Colours", tables, style.colors or usual, usual))
    if kind != _BOOLEAN:
        fields.append(_select("scale", "Scale", [(name, name) for name in SCALES], style.scale, SCALES[0]))
    if len(choice.axes) == 2 and kind != _BOOLEAN:
        channels = pyramid.channels
        has_windows = channels is not None and any(channel.window is not None for channel in channels.channels)
        placeholders = ("the image's window", "the image's window") if has_windows else ("1", "99")
        low, high = (f"{style.low:g}", f"{style.high:g}") if style.asks_percentiles else ("", "")
        fields.append(
            '<fieldset class="range"><legend>Range of the colours</legend>\n'
            + _number("low", "From percentile", low, "", f'min="0" max="100" placeholder="{placeholders[0]}"')
            + _number("high", "To percentile", high, "", f'min="0" max="100" placeholder="{placeholders[1]}"')
            + _number("min", "or from value", "" if style.least is None else f"{style.least:g}", "", "")
            + _number("max", "or to value", "" if style.most is None else f"{style.most:g}", "", "")
            + "</fieldset>\n"
        )
    if choice.axes:
        box = [("missing", "Mark chunks that are not stored", style.marks_missing, "")]
        fields.append(_boxes("mark", "", box, "") if len(choice.axes) == 2 else "")
    hidden = {
        **dict(zip(("top", "bottom", "left", "right"), query.edges, strict=True)),
        **dict(zip(("row", "column"), query.place, strict=True)),
    }
    inputs = "".join(
        f'<input type="hidden" name="{name}" value="{"" if value is None else value}" data-default="">\n'
        for name, value in hidden.items()
    )
    return (
        f'<form method="get" action="./" aria-label="What is shown">\n{"".join(fields)}{inputs}'
        "<noscript><button>Show</button></noscript>\n"
        '<p><button type="reset" id="reset" hidden>Reset</button></p>\n</form>\n'
    )


def _channels(pyramid: Pyramid, query: Query, choice: Choice) -> str:
    channels = pyramid.channels
    if channels is None or channels.axis in choice.axes or len(choice.axes) != 2:
        return ""
    shown = channels.usual if query.channels is None else query.channels
    if query.channels is None and channels.axis in query.indices and not channels.are_colors:
        shown = ()
    boxes = [
        (str(number), channel.name, number in shown, css_color(channel.color))
        for number, channel in enumerate(channels.channels)
    ]
    usual = ",".join(map(str, channels.usual)) or "none"
    return f'<input type="hidden" name="channels" value="none" data-axis="i{channels.axis}">' + _boxes(
        "channels", "Channels together", boxes, usual
    )


def _slider(axis: int, label: str, length: int, value: int, default: int) -> str:
    return (
        f'<div class="field"><label for="i{axis}">{text(label)}</label>'
        f'<input type="range" id="i{axis}" name="i{axis}" min="0" max="{length - 1}" value="{value}" '
        f'data-default="{default}">'
        f'<output for="i{axis}">{value}</output>'
        f'<input type="number" class="index" data-of="i{axis}" aria-label="Index along {text(label)}" min="0" '
        f'max="{length - 1}" value="{value}" hidden></div>\n'
    )


def _select(name: str, label: str, options: Sequence[tuple[str, str]], value: str, default: str) -> str:
    items = "".join(
        f'<option value="{key}"{" selected" if key == value else ""}>{text(shown)}</option>' for key, shown in options
    )
    return (
        f'<div class="field"><label for="{name}">{label}</label>'
        f'<select id="{name}" name="{name}" data-default="{default}">{items}</select></div>\n'
    )


def _number(name: str, label: str, value: str, default: str, limits: str) -> str:
    return (
        f'<div class="field"><label for="{name}">{label}</label><input type="number" id="{name}" name="{name}" '
        f'{limits} step="any" value="{value}" data-default="{default}"></div>\n'
    )


def _boxes(name: str, legend: str, boxes: Sequence[tuple[str, str, bool, str]], default: str) -> str:
    items = "".join(
        f'<label class="box"><input type="checkbox" name="{name}" value="{text(value)}"{" checked" if is_on else ""}>'
        f"{_swatch(color)}{text(label)}</label>\n"
        for value, label, is_on, color in boxes
    )
    title = f"<legend>{legend}</legend>\n" if legend else ""
    tag = "fieldset" if legend else "div"
    return f'<{tag} class="boxes" data-boxes="{name}" data-default="{text(default)}">{title}{items}</{tag}>\n'


def _swatch(color: str) -> str:
    if not color:
        return ""
    return f'<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><path d="M0 0h1v1H0z" fill="{color}"/></svg>'
