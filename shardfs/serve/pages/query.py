"""What an address asks for: the fields of a query, and the plane of an array that they mean.

| field | what | default |
|---|---|---|
| `rows`, `columns` | the numbers of the two axes of the plane | those called y and x, or the last two |
| `i0`, `i1`, … | the index along each of the other axes | see `default_index` |
| `top`, `bottom`, `left`, `right` | the part of the plane, in elements | all |
| `row`, `column` | the element of the plane that is marked | none |
| `size` | the largest side of the picture | `DEFAULT_SIZE` |
| `low`, `high` | the percentiles at the ends of the colours | 1 and 99 |
| `min`, `max` | the numbers at the ends of the colours, in place of percentiles | none |
| `scale` | `linear` or `log` | linear |
| `part` | what is shown of complex numbers, one of `PARTS` | magnitude |
| `colors` | one of `COLORS` | what is usual for the array |
| `mark` | `missing`: chunks that were never stored are dotted | none |
| `channels` | numbers of channels that are shown at once, or `none` | those that the image says |
| `labels` | names of label images that are shown over the image | none |
| `axis` | the axis of a plot | |
| `from` | the first row of a table | 0 |

Elements are those of the array, or of the finest level of an image.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from shardfs.serve.exchange import ClientError
from shardfs.serve.pages.colors import COLORS
from shardfs.serve.pages.plane import MAX_PIXELS

DEFAULT_SIZE: Final = 1024
PARTS: Final = ("magnitude", "phase", "real", "imaginary")
"""What a picture of complex numbers shows."""
SCALES: Final = ("linear", "log")
MARKS: Final = ("none", "missing")
MAX_CHANNELS: Final = 8
"""How many channels are shown at once at most."""

_MIN_SIZE: Final = 16
_MAX_FIELDS: Final = 100
_MAX_DIGITS: Final = 18
_MAX_LABELS: Final = 4
_MAX_TEXT: Final = 2000
_FIRST: Final = frozenset({"c", "t", "channel", "time"})
_ACROSS: Final = ("x", "lon", "longitude", "easting")
_DOWN: Final = ("y", "lat", "latitude", "northing")

Span = tuple[int, int]


class Style(NamedTuple):
    """How elements become pixels.

    The percentiles *low* and *high* of finite numbers are at the ends of the colours, or *least* and *most* where these
    are set. With *colors* "labels", each number has a colour of its own, and 0 none; None is what is usual for the
    array. *part* is for complex numbers. *asks_percentiles*: somebody has chosen them.
    """

    low: float = 1.0
    high: float = 99.0
    part: str = PARTS[0]
    colors: str | None = None
    least: float | None = None
    most: float | None = None
    scale: str = SCALES[0]
    marks_missing: bool = False
    asks_percentiles: bool = False


class Query(NamedTuple):
    """What a request asks for; None and missing entries are left to us.

    *channels* are empty if one is to be shown alone; *first* is the first row of a table, and *axis* that of a plot.
    """

    rows: int | None
    columns: int | None
    indices: Mapping[int, int]
    edges: tuple[int | None, int | None, int | None, int | None]
    place: tuple[int | None, int | None]
    size: int | None
    style: Style
    channels: tuple[int, ...] | None
    labels: tuple[str, ...]
    axis: int | None
    first: int
    most_chunks: int | None

    @classmethod
    def parse(cls, text: str) -> "Query":
        """Parse the query of a target; raises `ClientError` for what means nothing."""
        try:
            fields = dict(parse_qsl(text, keep_blank_values=False, max_num_fields=_MAX_FIELDS))
        except ValueError:
            raise ClientError(400, "the query has too many fields") from None
        top, bottom, left, right = (_whole(fields, name) for name in ("top", "bottom", "left", "right"))
        indices = {
            int(name[1:]): _whole(fields, name) or 0
            for name in fields
            if name[:1] == "i" and name[1:].isascii() and name[1:].isdecimal() and len(name) < 5
        }
        pixels = _whole(fields, "size")
        return cls(
            _whole(fields, "rows"),
            _whole(fields, "columns"),
            indices,
            (top, bottom, left, right),
            (_whole(fields, "row"), _whole(fields, "column")),
            None if pixels is None else max(_MIN_SIZE, min(pixels, MAX_PIXELS)),
            _style(fields),
            _channels(fields),
            tuple(fields.get("labels", "")[:_MAX_TEXT].split(",", _MAX_LABELS)[:_MAX_LABELS])
            if "labels" in fields
            else (),
            _whole(fields, "axis"),
            _whole(fields, "from") or 0,
            _whole(fields, "most"),
        )

    @property
    def pixels(self) -> int:
        """The largest side of a picture."""
        return DEFAULT_SIZE if self.size is None else self.size


def _style(fields: Mapping[str, str]) -> Style:
    low, high = _percent(fields, "low", 1.0), _percent(fields, "high", 99.0)
    if low > high:
        raise ClientError(400, "low is more than high")
    least, most = _number(fields, "min"), _number(fields, "max")
    if least is not None and most is not None and least > most:
        raise ClientError(400, "min is more than max")
    return Style(
        low,
        high,
        _choice(fields, "part", PARTS),
        _choice(fields, "colors", COLORS) if "colors" in fields else None,
        least,
        most,
        _choice(fields, "scale", SCALES),
        _choice(fields, "mark", MARKS) == MARKS[1],
        "low" in fields or "high" in fields,
    )


def _whole(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ClientError(400, f"{name} must be a whole number")
    return int(text)


def _number(fields: Mapping[str, str], name: str) -> float | None:
    text = fields.get(name)
    if text is None:
        return None
    with suppress(ValueError):
        value = float(text)
        if math.isfinite(value):
            return value
    raise ClientError(400, f"{name} must be a number")


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


def _channels(fields: Mapping[str, str]) -> tuple[int, ...] | None:
    text = fields.get("channels")
    if text is None or text == "none":
        return None if text is None else ()
    parts = text.split(",")
    if len(parts) > MAX_CHANNELS or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise ClientError(400, f"channels must be up to {MAX_CHANNELS} numbers with commas between, or none")
    return tuple(dict.fromkeys(map(int, parts)))


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

    def placed(self, shape: Sequence[int], place: tuple[int | None, int | None]) -> "Choice":
        """Return the single element at a *place* of the plane, or its middle; raises `ClientError` if it is outside."""
        at = list(self.at)
        for axis, (start, stop), index, name in zip(
            self.axes,
            self.spans,
            place[-len(self.axes) :] if self.axes else (),
            ("row", "column")[-len(self.axes) :],
            strict=False,
        ):
            chosen = (start + stop) // 2 if index is None else index
            if chosen >= shape[axis]:
                raise ClientError(400, f"{name} must be less than {shape[axis]:,}")
            at[axis] = chosen
        return Choice((), (), tuple(at))

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
        columns = _named(names, _ACROSS, ndim - 1)
        columns = columns if columns != rows else (ndim - 2 if rows == ndim - 1 else ndim - 1)
    if rows is None:
        rows = _named(names, _DOWN, ndim - 2)
        rows = rows if rows != columns else (ndim - 2 if columns == ndim - 1 else ndim - 1)
    if rows == columns or max(rows, columns) >= ndim:
        raise ClientError(400, f"rows and columns must be two of the axes 0 to {ndim - 1}")
    return rows, columns


def _named(names: Sequence[str | None], wanted: Sequence[str], otherwise: int) -> int:
    return next((axis for axis, name in enumerate(names) if name is not None and name.lower() in wanted), otherwise)


def default_index(length: int, name: str | None) -> int:
    """Return the index that is shown first: the first channel or time, the middle of anything else."""
    return 0 if name in _FIRST else length // 2
