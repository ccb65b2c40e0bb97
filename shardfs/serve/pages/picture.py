"""From elements to a picture: contrast, colours, and PNG."""

import struct
import zlib
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Elements = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]

PARTS: Final = ("magnitude", "phase", "real", "imaginary")
"""What a picture of complex numbers shows."""
COLORS: Final = ("gray", "labels")

_COLOR_TYPES: Final = {1: 0, 2: 4, 4: 6}
"""The colour type of PNG by the number of channels: gray, gray with opacity, colours with opacity."""
_LEVEL: Final = 3  # of zlib: larger ones take longer than the transfer that they save
_GRAY: Final = 128
_OPAQUE: Final = 255


class Style(NamedTuple):
    """How elements become pixels.

    The percentiles *low* and *high* of finite numbers are black and white. With *colors* "labels", each number has a
    colour of its own, and 0 none; None is what is usual for the array. *part* is for complex numbers.
    """

    low: float = 1.0
    high: float = 99.0
    part: str = PARTS[0]
    colors: str | None = None


class Picture(NamedTuple):
    """A PNG; *black* and *white* are the numbers that are shown as such, None if nothing is or colours are labels."""

    png: bytes
    black: float | None
    white: float | None


def draw(elements: Elements, is_known: npt.NDArray[np.bool_], style: Style) -> Picture:
    """Return the picture of a plane of booleans, numbers or times; what is not known, and NaN, is transparent."""
    numbers = _real(elements, style.part)
    if style.colors == "labels" and numbers.dtype.kind in "iu":
        return Picture(png_of(_labels(numbers, is_known)), None, None)
    if elements.dtype.kind == "b":
        return Picture(png_of(_with_opacity(np.where(numbers, 255, 0).astype(np.uint8), is_known)), 0.0, 1.0)
    numbers = numbers.astype(np.float64, copy=False)
    finite = numbers[np.isfinite(numbers) & is_known]
    is_known = is_known & ~np.isnan(numbers)
    if not finite.size:
        return Picture(png_of(_with_opacity(_clipped(numbers, 0.0, 0.0), is_known)), None, None)
    black, white = (float(bound) for bound in np.percentile(finite, [style.low, style.high]))
    return Picture(png_of(_with_opacity(_clipped(numbers, black, white), is_known)), black, white)


def _real(elements: Elements, part: str) -> Elements:
    """Return real numbers, or integers, for elements of any type that has some; NaN for no time."""
    match elements.dtype.kind:
        case "c":
            with np.errstate(all="ignore"):
                wide = elements.astype(np.complex128)
                parts = {"phase": np.angle(wide), "real": wide.real, "imaginary": wide.imag}
                return parts[part] if part in parts else np.abs(wide)
        case "m" | "M":
            ticks = elements.view(np.int64)
            return np.where(np.isnat(elements), np.nan, ticks.astype(np.float64))
        case "b":
            return elements.astype(np.uint8)
        case _:
            return elements


def _clipped(numbers: npt.NDArray[np.float64], black: float, white: float) -> Pixels:
    """Return the gray of each number; between numbers that are the same, all that is neither less nor more is gray."""
    with np.errstate(all="ignore"):
        half = white / 2 - black / 2  # the difference itself may be no number
        if half > 0:
            shares = np.clip((numbers / 2 - black / 2) / half, 0.0, 1.0)
            return np.nan_to_num(shares * 255).astype(np.uint8)
        return np.where(numbers > white, 255, np.where(numbers < black, 0, _GRAY)).astype(np.uint8)


def _with_opacity(gray: Pixels, is_known: npt.NDArray[np.bool_]) -> Pixels:
    if is_known.all():
        return gray[..., np.newaxis]
    return np.stack([gray, np.where(is_known, _OPAQUE, 0).astype(np.uint8)], axis=-1)


def _labels(numbers: Elements, is_known: npt.NDArray[np.bool_]) -> Pixels:
    """Return colours that differ for neighbouring numbers, bright enough on black and on white."""
    mixed = numbers.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio
    hue = (mixed >> np.uint64(48)).astype(np.float32) * np.float32(6 / 0x10000)
    light = 0.45 + 0.15 * ((mixed >> np.uint64(32)) & np.uint64(0xFF)).astype(np.float32) / 255
    channels = [
        255 * (light + 0.35 * (np.clip(np.abs((hue + turn) % 6 - 3) - 1, 0, 1) - 0.5)) for turn in (0.0, 4.0, 2.0)
    ]
    opacity = np.where(is_known & (numbers != 0), _OPAQUE, 0)
    return np.stack([*channels, opacity], axis=-1).astype(np.uint8)


def png_of(pixels: Pixels) -> bytes:
    """Return the PNG of *pixels*: rows, columns and channels, which are one of `_COLOR_TYPES`."""
    height, width, nchannels = pixels.shape
    rows = np.zeros((height, 1 + width * nchannels), np.uint8)  # each row begins with its filter, 0 for none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[nchannels], 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), _LEVEL)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
