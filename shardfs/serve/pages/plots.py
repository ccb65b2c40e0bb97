"""Plots of values along one axis, as SVG: drawn here, coloured by the style of the page. Pure; all text is escaped."""

import math
import sys
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

import numpy as np

from shardfs.errors import printable
from shardfs.serve.pages.coordinates import Tick
from shardfs.serve.pages.picture import ColorRange
from shardfs.serve.pages.variable import Numbers, Variable

WIDTH: Final = 760
"""How many pixels a plot is wide if nobody says."""
_HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 86, 14, 14, 34
_CHARACTER: Final = 7
_MAX_TICKS: Final = 5


class Line(NamedTuple):
    """A *number* at each *place* between 0 and 1 along an axis called *across*, whose *ticks* are there.

    *mark* is the place of the element that is shown elsewhere on the page.
    """

    places: Numbers
    numbers: Numbers
    variable: Variable
    down: str
    across: str
    ticks: Sequence[Tick]
    is_log: bool = False
    mark: float | None = None
    is_discrete: bool = False


def svg_of(line: Line, title: str, full: int) -> str:
    """Return a plot that is *full* pixels wide."""
    finite = line.numbers[np.isfinite(line.numbers) & ((line.numbers > 0) if line.is_log else True)]
    low, high = (float(np.min(finite)), float(np.max(finite))) if finite.size else (0.0, 1.0)
    if not high > low:
        pad = abs(low) * 0.05 or 0.5
        low, high = (low / 2 or low, low * 2) if line.is_log else (low - pad, low + pad)
        low, high = max(low, -sys.float_info.max), min(high, sys.float_info.max)
    shown = ColorRange(low, high, line.is_log)
    width, height = full - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {full} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor" stroke="none">'
        f"<title>{_text(title)}</title>\n"
    ]
    for share, text in shown.ticks(line.variable, _MAX_TICKS):
        y = _TOP + height * (1 - share)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{full - _RIGHT}" stroke="currentColor" opacity=".18"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_text(text[:12])}</text>\n')
    end = -math.inf
    for tick in line.ticks:
        x, half = _LEFT + width * tick.place, _CHARACTER * len(tick.label) / 2
        x = min(max(x, half + 2), full - half - 2)
        if x - half < end + 8:
            continue
        end = x + half
        at = _LEFT + width * tick.place
        parts.append(f'<path d="M{at:.1f} {_TOP + height}v5" stroke="currentColor"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP + height + 19}" text-anchor="middle">{_text(tick.label)}</text>\n')
    parts.append(f'<path d="M{_LEFT} {_TOP}V{_TOP + height}H{full - _RIGHT}" stroke="currentColor" fill="none"/>\n')
    if line.mark is not None:
        x = _LEFT + width * line.mark
        parts.append(
            f'<path class="mark" d="M{x:.1f} {_TOP}V{_TOP + height}" stroke="currentColor" stroke-dasharray="4 3"/>\n'
        )
    parts.append(_curve(line, shown, width, height))
    if not finite.size:
        parts.append(
            f'<text x="{_LEFT + width / 2}" y="{_TOP + height / 2}" text-anchor="middle">no numbers here</text>'
        )
    return "".join([*parts, "</svg>\n"])


def _curve(line: Line, shown: ColorRange, width: float, height: float) -> str:
    """Return the curve, with gaps where there are no numbers, and a dot for what is alone."""
    with np.errstate(all="ignore"):
        shares = shown.shares(line.numbers)
    are_shown = np.isfinite(line.numbers) & ((line.numbers > 0) if line.is_log else True)
    xs, ys = _LEFT + width * line.places, _TOP + height * (1 - shares)
    path, dots, is_open = [], [], False
    few = len(xs) <= width // 8
    for number, is_here in enumerate(are_shown):
        if not is_here:
            is_open = False
            continue
        path.append(f"{'L' if is_open else 'M'}{xs[number]:.1f} {ys[number]:.1f}")
        is_alone = not is_open and (number + 1 == len(xs) or not are_shown[number + 1])
        if few or is_alone:
            dots.append(f'<circle cx="{xs[number]:.1f}" cy="{ys[number]:.1f}" r="{2.5 if few else 1.5}"/>')
        is_open = True
    curve = (
        f'<path class="curve" d="{"".join(path)}" fill="none" stroke="currentColor" stroke-width="1.5"/>\n'
        if path
        else ""
    )
    return f'{curve}<g class="dots">{"".join(dots)}</g>\n' if dots else curve


def edges(full: int) -> tuple[float, float]:
    """Return where the first and the last element are across a plot, from 0 to 1."""
    return _LEFT / full, 1 - _RIGHT / full


def _text(text: str) -> str:
    return escape(printable(text))
