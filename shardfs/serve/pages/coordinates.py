"""The axes of an array: what an index along each means, its label, and ticks at the edge of a picture. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.serve.pages import units
from shardfs.serve.pages.units import shortened

_BAR_SHARE: Final = 0.3


class Tick(NamedTuple):
    """A *label* at a *place* between 0, where a span begins, and 1."""

    place: float
    label: str


@dataclass(frozen=True)
class Axis:
    """An axis of *length*, with a *name* for people.

    *values* are its coordinates: numbers, times or texts; None if it is counted, or if *step* and *first* say what they
    are. *unit* is that of numbers, and *kind* how they are read: "north", "east" or "".
    """

    name: str
    length: int
    unit: str = ""
    kind: str = ""
    values: npt.NDArray[Any] | None = None
    step: float | None = None
    first: float = 0.0
    note: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether only indices are known."""
        return self.values is None and self.step is None

    @property
    def grows_north(self) -> bool:
        """Whether rows that begin with the first index would have south up."""
        return (
            self.kind == "north"
            and self.values is not None
            and self.length > 1
            and self._is_monotonic
            and bool(self.values[-1] > self.values[0])
        )

    @property
    def spacing(self) -> float | None:
        """How far neighbouring coordinates are apart, in its unit; None if that differs, or nobody knows."""
        if self.step is not None:
            return abs(self.step)
        if self.values is None or self.values.dtype.kind != "f" or self.length < 2:
            return None
        steps = np.diff(self.values)
        mean = float(steps.mean())
        return abs(mean) if mean and np.allclose(steps, mean, rtol=0.01, atol=0) else None

    @property
    def _is_monotonic(self) -> bool:
        assert self.values is not None
        steps = np.diff(self.values.astype(np.float64))
        return bool((steps > 0).all() or (steps < 0).all())

    def labels(self, indices: Sequence[int]) -> list[str]:
        """Return what these indices stand for."""
        if self.step is not None:
            return [units.with_unit(units.number(self.first + self.step * index), self.unit) for index in indices]
        if self.values is None:
            return [f"{index:,}" for index in indices]
        found = self.values[list(indices)]
        match found.dtype.kind:
            case "M":
                return units.time_labels(found)
            case "f":
                return [self._number(float(value)) for value in found]
        return [shortened(_text(value)) for value in found]

    def label(self, index: int) -> str:
        """Return what an index stands for; of times, as exactly as all of them need."""
        if self.values is not None and self.values.dtype.kind == "M":
            return units.time_labels(self.values[[0, index, -1]])[1]
        return self.labels([index])[0]

    def _number(self, value: float) -> str:
        if math.isnan(value):
            return "NaN"
        if self.kind == "north":
            return units.degrees(value, "N", "S")
        if self.kind == "east":
            return units.degrees(value, "E", "W")
        return units.with_unit(units.number(value), self.unit)

    def ticks(self, start: int, stop: int, most: int) -> list[Tick]:
        """Return up to about *most* ticks of the elements from *start* to before *stop*, in order."""
        length = stop - start

        def placed(index: float) -> float:
            return (index + 0.5 - start) / length

        is_number = self.step is not None or (self.values is not None and self.values.dtype.kind == "f")
        if is_number and length > 1 and (self.step is not None or self._is_monotonic):
            first, last = self._at(start), self._at(stop - 1)
            numbers = units.nice_numbers(min(first, last), max(first, last), most, are_degrees=bool(self.kind))
            if len(numbers) > 1:
                indices = [self._index_of(value, start, stop) for value in numbers]
                ticks = [
                    Tick(round(placed(at), 4), self._number(value)) for at, value in zip(indices, numbers, strict=True)
                ]
                return sorted(ticks)
        if self.values is not None and self.values.dtype.kind == "M" and length > 1 and self._is_monotonic:
            times = self.values[start:stop]
            chosen_times = units.nice_times(times.min(), times.max(), most)
            if len(chosen_times) > 1:
                ticks = [
                    Tick(round(placed(self._index_of(time, start, stop)), 4), label) for time, label in chosen_times
                ]
                return sorted(ticks)
        step = max(1, math.ceil(units.nice_step(length, most)))
        if self.is_counted:
            chosen = list(range(-(-start // step) * step, stop, step))
        else:
            shown = min(length, most)
            chosen = sorted({start + (2 * count + 1) * length // (2 * shown) for count in range(shown)})
        return [Tick(round(placed(at), 4), label) for at, label in zip(chosen, self.labels(chosen), strict=True)]

    def _at(self, index: int) -> float:
        return self.first + self.step * index if self.step is not None else float(self.values[index])  # type: ignore[index]

    def _index_of(self, value: float, start: int, stop: int) -> float:
        if self.step is not None:
            return (value - self.first) / self.step
        assert self.values is not None
        part = self.values[start:stop].astype(np.float64)
        rises = part[-1] > part[0]
        at = np.interp(value, part if rises else part[::-1], np.arange(len(part)))
        return start + (float(at) if rises else len(part) - 1 - float(at))

    def span_text(self) -> str:
        """Return the first and the last coordinate."""
        if self.length == 1:
            return self.label(0)
        first, last = self.labels([0, self.length - 1])
        return f"{first} … {last}"


def _text(value: object) -> str:
    return bytes(value).rstrip(b"\0").decode("utf-8", "replace") if isinstance(value, bytes | np.void) else str(value)


def ratio_of(rows: Axis, columns: Axis, height: int, width: int) -> float:
    """Return how many times wider than high a plane of so many elements is."""
    down, across = rows.spacing, columns.spacing
    is_same = rows.unit == columns.unit and not rows.is_counted and not columns.is_counted
    factor = across / down if is_same and down and across else 1.0
    found = width * factor / height
    plain = width / height
    return found if 1 / 20 <= found <= 20 and math.isfinite(found) else plain


def scale_bar(columns: Axis, width: int) -> Tick | None:
    """Return a round length along a plane of so many columns, and its share of the width; None without a unit."""
    spacing = columns.spacing
    if not units.is_length(columns.unit) or not spacing or columns.kind:
        return None
    length = units.nice_step(spacing * width * _BAR_SHARE, 1)
    length = length if length <= spacing * width * 0.5 else length / 2
    return Tick(round(length / (spacing * width), 4), units.with_unit(units.number(length), columns.unit))


def as_json(ticks: Sequence[Tick]) -> list[tuple[float, str]]:
    """Return ticks for a script."""
    return [(tick.place, tick.label) for tick in ticks]
