"""From elements to a picture: ranges, colours, what is no number, and PNG. Pure."""

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.bulk.pictures import share_of
from shardfs.errors import counted
from shardfs.serve.pages import colors
from shardfs.serve.pages.colors import BALANCE, LABELS, Pixels
from shardfs.serve.pages.query import Style
from shardfs.serve.pages.units import log_numbers, nice_numbers, nice_times, number, time_labels
from shardfs.serve.pages.variable import Elements, Numbers, Variable

_NCOLORS: Final = 252
"""How many entries of a palette are colours of numbers; the rest is for what is none."""
_DOT, _STRIPE, _GAP, _NOTHING = 252, 253, 254, 255
_SPECIAL: Final = np.array([(120, 130, 140, 255), (200, 30, 30, 255), (250, 215, 215, 255), (0, 0, 0, 0)], np.uint8)
_COLOR_TYPES: Final = {1: 3, 4: 6}
"""The colour type of PNG by the number of channels: numbers of a palette, or colours with opacity."""
_LEVEL: Final = 3  # of zlib: larger ones take longer than the transfer that they save
_BINS: Final = 48
_LEAST_PIXELS: Final = 256
"""The longest side of a picture with patterns, at least: single elements would be no pattern."""
_OPACITY: Final = 0.55
_OPAQUE: Final = 255

Mask = npt.NDArray[np.bool_]


class ColorRange(NamedTuple):
    """The numbers at the ends of the colours; on a logarithmic *scale*, both are positive."""

    low: float
    high: float
    is_log: bool = False

    def shares(self, numbers: Numbers) -> Numbers:
        """Return where numbers are between both ends, from 0 to 1; if these are the same, what equals them is 0.5."""
        with np.errstate(all="ignore"):
            low, high = (np.log10(self.low), np.log10(self.high)) if self.is_log else (self.low, self.high)
            shown = np.log10(numbers) if self.is_log else numbers
            shown = np.where(numbers <= 0, -np.inf, shown) if self.is_log else shown
            half = high / 2 - low / 2  # the difference itself may be no number
            if half > 0:
                return np.clip((shown / 2 - low / 2) / half, 0.0, 1.0)
            return np.where(shown > high, 1.0, np.where(shown < low, 0.0, 0.5))

    def ticks(self, variable: Variable, most: int) -> list[tuple[float, str]]:
        """Return places from 0 to 1, and what numbers are there."""
        if not self.high > self.low:
            return [(0.5, variable.text(self.low))]
        ends = variable.times(np.array([self.low, self.high]))
        if ends is not None and not self.is_log:
            first, last = (float(end) for end in ends.astype(np.int64))
            if first == last:  # they are less than a millisecond apart
                return [(0.5, time_labels(ends)[0])]
            return [
                (round((at - first) / (last - first), 4), label) for at, label in nice_times(ends[0], ends[1], most)
            ]
        if variable.dtype.kind == "m":
            found = [self.low, self.high]
        else:
            found = log_numbers(self.low, self.high, most) if self.is_log else nice_numbers(self.low, self.high, most)
        shares = self.shares(np.array(found, np.float64))
        texts = [variable.text(value) if variable.dtype.kind == "m" else number(value) for value in found]
        return [(round(float(share), 4), text) for share, text in zip(shares, texts, strict=True)]


class ElementCounts(NamedTuple):
    """How many elements there are, how many are no numbers, infinite, or not positive where these have no place.

    *fills* have the fill value of the array, which is *fill*, and are not in the histogram.
    """

    elements: int
    missing: int = 0
    infinite: int = 0
    not_positive: int = 0
    fills: int = 0
    fill: str = ""

    def text(self) -> str:
        """Say it in words; "" if there is nothing to say."""
        parts = []
        if self.missing:
            everything = "all" if self.missing == self.elements else f"{self.missing:,}"
            parts.append(f"{everything} of {counted(self.elements, 'element')} NaN or missing, shown as nothing")
        if self.infinite:
            parts.append(f"{self.infinite:,} infinite")
        if self.not_positive:
            parts.append(f"{self.not_positive:,} not positive, in the first colour")
        if self.fills:
            share = share_of(self.fills, self.elements)
            parts.append(f"{self.fills:,} ({share}) have the fill value {self.fill}, not in the histogram")
        return "; ".join(parts)


class Picture(NamedTuple):
    """A PNG. *range* are the numbers at the ends of the colours, None if nothing is, or colours are of labels.

    *histogram* counts numbers from one end to the other, in per mille of the most frequent.
    """

    png: bytes
    range: ColorRange | None
    counts: ElementCounts
    histogram: tuple[int, ...] = ()
    colors: str = LABELS


class PlaneLayer(NamedTuple):
    """Elements to be drawn, where they *are_known* and *are_stored*, and what they mean; *fill* is the fill value."""

    elements: Elements
    are_known: Mask
    are_stored: Mask
    variable: Variable
    fill: bytes


class Tint(NamedTuple):
    """How a channel is added to others: its *color*, and the *window* of numbers, None for percentiles."""

    color: tuple[int, int, int]
    window: tuple[float, float] | None


def draw(layer: PlaneLayer, style: Style, overlays: Sequence[tuple[Elements, Mask]] = ()) -> Picture:
    """Return the picture of booleans, numbers or times, with *overlays* of labels; what is no number is transparent."""
    marked = style.marks_missing and not layer.are_stored.all()
    if style.colors == LABELS and layer.elements.dtype.kind in "iu":
        pixels = _of_labels(layer.elements, layer.are_known)
        counts = ElementCounts(int(layer.are_known.sum()))
        return Picture(png_of(_patterned(_with_labels(pixels, overlays), layer, marked)), None, counts)
    is_bool = layer.elements.dtype.kind == "b"
    numbers = layer.variable.numbers(layer.elements, style.part)
    is_log = style.scale == "log" and not is_bool
    counts = _counts(layer, numbers, is_log=is_log)
    chosen = ColorRange(0.0, 1.0) if is_bool else range_of(numbers[layer.are_known], style, is_log=is_log)
    name = style.colors if style.colors in colors.TABLES else colors.TABLES[0]
    assert name is not None
    are_shown = layer.are_known & ~np.isnan(numbers)
    shares = (chosen or ColorRange(0.0, 0.0)).shares(numbers)
    indices = np.where(are_shown, np.round(np.nan_to_num(shares) * (_NCOLORS - 1)), _NOTHING).astype(np.uint8)
    are_counted = are_shown & np.isfinite(numbers)
    if counts.fills:
        are_counted &= layer.elements != np.frombuffer(layer.fill, layer.elements.dtype)[0]
    histogram = _histogram(shares[are_counted]) if chosen is not None else ()
    if overlays:
        palette = _palette(name)
        pixels = _patterned(_with_labels(palette[indices], overlays), layer, marked)
        return Picture(png_of(pixels), chosen, counts, histogram, name)
    indices = _patterned(indices[..., np.newaxis], layer, marked)
    return Picture(png_of(indices, _palette(name)), chosen, counts, histogram, name)


def compose(
    layers: Sequence[PlaneLayer], tints: Sequence[Tint], style: Style, overlays: Sequence[tuple[Elements, Mask]] = ()
) -> tuple[Picture, list[ColorRange | None]]:
    """Return the picture of several channels, whose colours are added, and the range of each."""
    sums = np.zeros((*layers[0].elements.shape, 3), np.float32)
    are_shown = np.zeros(layers[0].elements.shape, np.bool_)
    ranges: list[ColorRange | None] = []
    for layer, tint in zip(layers, tints, strict=True):
        numbers = layer.variable.numbers(layer.elements, style.part)
        window = None if style.asks_percentiles else tint.window
        is_log = style.scale == "log"
        chosen = ColorRange(*window) if window is not None else range_of(numbers[layer.are_known], style, is_log=is_log)
        here = layer.are_known & ~np.isnan(numbers)
        shares = np.where(here, np.nan_to_num((chosen or ColorRange(0.0, 0.0)).shares(numbers)), 0)
        sums += shares[..., np.newaxis].astype(np.float32) * np.array(tint.color, np.float32)
        are_shown |= here
        ranges.append(chosen)
    opacity = np.where(are_shown, _OPAQUE, 0)[..., np.newaxis]
    pixels = np.concatenate([np.minimum(sums + 0.5, 255), opacity], axis=-1).astype(np.uint8)
    whole = _combined(layers)
    marked = style.marks_missing and not whole.are_stored.all()
    counts = ElementCounts(int(whole.are_known.sum()), int((whole.are_known & ~are_shown).sum()))
    picture = Picture(
        png_of(_patterned(_with_labels(pixels, overlays), whole, marked)), None, counts, colors="channels"
    )
    return picture, ranges


def _combined(layers: Sequence[PlaneLayer]) -> PlaneLayer:
    known, stored = layers[0].are_known, layers[0].are_stored
    for layer in layers[1:]:
        known, stored = known & layer.are_known, stored & layer.are_stored
    return layers[0]._replace(are_known=known, are_stored=stored)


def range_of(numbers: Numbers, style: Style, *, is_log: bool) -> ColorRange | None:
    """Return the numbers at the ends of the colours for these *numbers*; None if there are none."""
    finite = numbers[np.isfinite(numbers)]
    if is_log:
        finite = finite[finite > 0]
    least, most = style.least, style.most
    if is_log:
        least, most = (None if end is not None and end <= 0 else end for end in (least, most))
    if least is None or most is None:
        if not finite.size:
            return None
        low, high = (float(bound) for bound in np.percentile(finite, [style.low, style.high]))
        least, most = (low if least is None else least), (high if most is None else most)
        most = max(least, most)
    if style.colors == BALANCE and not is_log and style.least is None and style.most is None:
        most = max(abs(least), abs(most))
        least = -most
    return ColorRange(least, most, is_log)


def _counts(layer: PlaneLayer, numbers: Numbers, *, is_log: bool) -> ElementCounts:
    known = numbers[layer.are_known]
    finite = int(np.isfinite(known).sum())
    missing = int(np.isnan(known).sum())
    fill = np.frombuffer(layer.fill, layer.elements.dtype)[0]
    is_number = layer.elements.dtype.kind in "iuf" and not (layer.elements.dtype.kind == "f" and np.isnan(fill))
    fills = (
        int((layer.elements[layer.are_known] == fill).sum()) if is_number and not layer.variable.is_missing(fill) else 0
    )
    not_positive = int((known <= 0).sum()) if is_log else 0
    text = layer.variable.element_text(fill, "real") if fills else ""
    return ElementCounts(known.size, missing, known.size - finite - missing, not_positive, fills, text)


def _histogram(shares: Numbers) -> tuple[int, ...]:
    if not shares.size:
        return ()
    found = np.bincount(np.minimum((shares * _BINS).astype(np.intp), _BINS - 1), minlength=_BINS)
    most = max(int(np.max(found)), 1)
    return tuple(int(count) for count in np.ceil(1000 * found / most))


def _palette(name: str) -> Pixels:
    opaque = np.full((_NCOLORS, 1), _OPAQUE, np.uint8)
    return np.concatenate([np.concatenate([colors.table(name, _NCOLORS), opaque], axis=-1), _SPECIAL])


def _of_labels(numbers: Elements, are_known: Mask) -> Pixels:
    opacity = np.where(are_known & (numbers != 0), _OPAQUE, 0)[..., np.newaxis]
    return np.concatenate([colors.of_labels(numbers), opacity], axis=-1).astype(np.uint8)


def _with_labels(pixels: Pixels, overlays: Sequence[tuple[Elements, Mask]]) -> Pixels:
    """Return *pixels*, colours with opacity, with labels over them, half transparent."""
    for numbers, are_known in overlays:
        over = (are_known & (numbers != 0))[..., np.newaxis]
        mixed = (1 - _OPACITY) * pixels[..., :3] + _OPACITY * colors.of_labels(numbers)
        opaque = np.full_like(pixels[..., 3:], _OPAQUE)
        pixels = np.where(over, np.concatenate([mixed.astype(np.uint8), opaque], axis=-1), pixels)
    return pixels


def _patterned(pixels: Pixels, layer: PlaneLayer, marked: bool) -> Pixels:
    """Return *pixels* with stripes where chunks are damaged, and if they are *marked*, dots where they are missing."""
    is_damaged = not layer.are_known.all()
    if not is_damaged and not marked:
        return pixels
    times = max(1, -(-_LEAST_PIXELS // max(pixels.shape[:2])))
    enlarged = pixels.repeat(times, axis=0).repeat(times, axis=1)
    rows, columns = np.indices(enlarged.shape[:2])
    entries = np.arange(256)[:, np.newaxis] if pixels.shape[-1] == 1 else np.concatenate([np.zeros((252, 4)), _SPECIAL])
    if is_damaged:
        damaged = ~layer.are_known.repeat(times, axis=0).repeat(times, axis=1)
        stripes = np.where(((rows + columns) % 12 < 4), _STRIPE, _GAP)
        enlarged[damaged] = entries[stripes[damaged]]
    if marked:
        dotted = (~layer.are_stored).repeat(times, axis=0).repeat(times, axis=1) & (rows % 8 < 2) & (columns % 8 < 2)
        enlarged[dotted] = entries[_DOT]
    return enlarged


def png_of(pixels: Pixels, palette: Pixels | None = None) -> bytes:
    """Return the PNG of *pixels*: rows, columns, and numbers of colours of a *palette*, or colours with opacity."""
    height, width, nchannels = pixels.shape
    rows = np.zeros((height, 1 + width * nchannels), np.uint8)  # each row begins with its filter, 0 for none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[nchannels], 0, 0, 0)
    chunks = [(b"IHDR", head)]
    if palette is not None:
        chunks += [(b"PLTE", palette[:, :3].tobytes()), (b"tRNS", palette[:, 3].tobytes())]
    chunks += [(b"IDAT", zlib.compress(rows.tobytes(), _LEVEL)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def bar(name: str) -> bytes:
    """Return the PNG of a table of colours, from left to right."""
    return png_of(np.arange(_NCOLORS, dtype=np.uint8)[np.newaxis, :, np.newaxis], _palette(name))


def bar_ticks(picture: Picture, variable: Variable, most: int = 5) -> list[tuple[float, str]]:
    """Return the ticks of the colour bar of a picture."""
    return picture.range.ticks(variable, most) if picture.range is not None else []
