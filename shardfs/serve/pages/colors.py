"""Tables of colours for numbers: which colour each share of a range has.

`viridis`, `magma` and `cividis` are those of matplotlib (CC0), at eighteen places and linear between; `balance` is RdBu
of ColorBrewer 2 (Apache 2.0), for numbers on both sides of 0. All but `balance` grow lighter from one end to the other,
so that they also order numbers in gray, and for the colour-blind.
"""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

_PLACES: Final = {
    "gray": "000000 ffffff",
    "viridis": "440154 481769 472a7a 433d84 3d4e8a 355e8d 2e6d8e 297b8e 23898e 1f978b 21a585 2eb37c 46c06f 65cb5e "
    "89d548 b0dd2f d8e219 fde725",
    "magma": "000004 090720 1a1042 311165 4a1079 621980 792282 912b81 aa337d c23b75 d9466b ec5860 f7725c fc8e64 feaa74 "
    "fec68a fde2a3 fcfdbf",
    "cividis": "00224e 002d68 163770 2e416d 3f4c6c 4e566c 5c616e 696b71 767676 838179 928c78 a09875 afa471 bfb06b "
    "cfbd62 dfca57 f0d846 fee838",
    "balance": "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
}

TABLES: Final = tuple(_PLACES)
"""The names of the tables."""
LABELS: Final = "labels"
"""A colour for each number, none for 0, in place of a table."""
COLORS: Final = (*TABLES, LABELS)
BALANCE: Final = "balance"
"""The table whose middle is 0."""


@cache
def table(name: str, length: int) -> Pixels:
    """Return *length* colours of a table, in rows of red, green and blue."""
    places = np.array([list(bytes.fromhex(place)) for place in _PLACES[name].split()], np.float64)
    at, known = np.linspace(0, len(places) - 1, length), np.arange(len(places))
    found = np.stack([np.interp(at, known, places[:, channel]) for channel in range(3)], axis=-1)
    return np.round(found).astype(np.uint8)


def of_labels(numbers: npt.NDArray[np.integer[npt.NBitBase]]) -> Pixels:
    """Return red, green and blue for each number: they differ for neighbouring ones, bright on black and on white."""
    mixed = numbers.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio
    hue = (mixed >> np.uint64(48)).astype(np.float32) * np.float32(6 / 0x10000)
    light = 0.45 + 0.15 * ((mixed >> np.uint64(32)) & np.uint64(0xFF)).astype(np.float32) / 255
    channels = [
        255 * (light + 0.35 * (np.clip(np.abs((hue + turn) % 6 - 3) - 1, 0, 1) - 0.5)) for turn in (0.0, 4.0, 2.0)
    ]
    return np.stack(channels, axis=-1).astype(np.uint8)


def css_color(color: tuple[int, int, int]) -> str:
    """Return a colour as style sheets write it."""
    return f"#{bytes(color).hex()}"
