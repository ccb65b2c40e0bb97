"""From stored elements to numbers with a meaning: packed data, missing values and units of the CF conventions.

Sources: CF conventions 1.11, sections 2.5.1 (missing data) and 8.1 (packed data); xarray 2025.1, which writes the
missing value of floats in Zarr v3 as base64 of a little-endian float64. Attributes are claims: what means nothing
is skipped.
"""

import binascii
import math
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.format.document import Json
from shardfs.serve.pages.units import (
    decoded_times,
    exact_time,
    in_milliseconds,
    is_east,
    is_north,
    number,
    shortened,
    symbol,
    time_labels,
    with_unit,
)

Elements = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]

ATTRIBUTES: Final = (
    "units", "unit", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "long_name",
    "standard_name",
)  # fmt: skip
"""The attributes of an array that are read."""
_MAX_MISSING: Final = 8
_MAX_INTEGER: Final = 2**1023  # as a float
_MAX_TICKS: Final = 2.0**62  # of a time, beyond which they would wrap around


class Variable(NamedTuple):
    """What the elements of an array mean: each is *scale* times the stored one, and *offset*; *missing* ones are none.

    *title* is a name for people, "" if nobody says. *since* are CF units of time, and their calendar. It
    has latitudes if it is *north*, longitudes if it is *east*.
    """

    dtype: np.dtype[Any]
    unit: str = ""
    scale: float = 1.0
    offset: float = 0.0
    missing: tuple[float, ...] = ()
    title: str = ""
    since: tuple[str, str | None] | None = None
    north: bool = False
    east: bool = False

    @classmethod
    def of(cls, dtype: np.dtype[Any], attributes: Mapping[str, Json]) -> "Variable":
        """Return what these attributes say of an array."""
        title = attributes.get("long_name") or attributes.get("standard_name") or ""
        title = shortened(title) if isinstance(title, str) else ""
        units, calendar = attributes.get("units", attributes.get("unit")), attributes.get("calendar")
        if dtype.kind not in "iuf":
            return cls(dtype, symbol(units), title=title)
        since = None
        if isinstance(units, str) and " since " in units:
            since = units, calendar if isinstance(calendar, str) else None
        return cls(
            dtype,
            symbol(units),
            _finite(attributes.get("scale_factor"), 1.0),
            _finite(attributes.get("add_offset"), 0.0),
            _missing(attributes, dtype),
            title,
            since,
            is_north(units) or attributes.get("standard_name") == "latitude",
            is_east(units) or attributes.get("standard_name") == "longitude",
        )

    @property
    def is_plain(self) -> bool:
        """Whether numbers are the stored elements."""
        return self.scale == 1.0 and self.offset == 0.0

    def numbers(self, elements: Elements, part: str) -> Numbers:
        """Return real numbers for elements of any type that has some; NaN for what is missing, or no time."""
        match elements.dtype.kind:
            case "c":
                with np.errstate(all="ignore"):
                    wide = elements.astype(np.complex128)
                    parts = {"phase": np.angle(wide), "real": wide.real, "imaginary": wide.imag}
                    return np.asarray(parts[part] if part in parts else np.abs(wide), np.float64)
            case "m" | "M":
                ticks = elements.view(np.int64)
                return np.where(np.isnat(elements), np.nan, ticks.astype(np.float64))
        with np.errstate(all="ignore"):
            found = elements.astype(np.float64)
            if not self.is_plain:
                found = found * self.scale + self.offset
        if self.missing:
            found[np.isin(elements, np.array(self.missing).astype(elements.dtype))] = np.nan
        return found

    def is_missing(self, element: Any) -> bool:  # noqa: ANN401 - of any dtype
        """Whether the attributes say that this element is no number."""
        return bool(self.missing) and bool(np.isin(element, np.array(self.missing).astype(self.dtype)))

    def times(self, values: Numbers) -> npt.NDArray[np.datetime64] | None:
        """Return the times that some of the `numbers` stand for; None if they are no times."""
        if self.dtype.kind == "M" and (np.abs(values) < _MAX_TICKS).all():
            return in_milliseconds(values.astype(np.int64).view(self.dtype))
        return decoded_times(values, *self.since) if self.since is not None else None

    def text(self, value: float) -> str:
        """Return one of the `numbers` to be read, with its unit."""
        if math.isnan(value):
            return "NaN"
        times = self.times(np.array([value]))
        if times is not None:
            return time_labels(times)[0]
        if self.dtype.kind in "mM":
            unit, count = np.datetime_data(self.dtype)
            return with_unit(number(value * count), "" if unit == "generic" else unit)
        return with_unit(number(value), self.unit)

    def element_text(self, element: Any, part: str) -> str:  # noqa: ANN401 - of any dtype
        """Return one stored element to be read, exactly where that is short."""
        kind = self.dtype.kind
        if kind == "b":
            return "true" if element else "false"
        if kind == "c":
            return shortened(f"{complex(element):.6g}")
        if kind in "iu" and self.is_missing(element):
            return f"missing ({int(element)})"
        if kind in "iu" and self.is_plain and self.since is None:
            return with_unit(f"{int(element):,}", self.unit)
        stored = np.array([element], self.dtype)
        if kind == "M" and (time := exact_time(stored)) is not None:
            return time
        value = float(self.numbers(stored, part)[0])
        if kind in "mM" and math.isnan(value):
            return "no time"
        if kind == "f" and math.isnan(value) and not np.isnan(element):
            return f"missing ({number(element)})"
        return self.text(value)


def _finite(value: Json, default: float) -> float:
    if isinstance(value, list) and len(value) == 1:  # as some netCDF files have it
        value = value[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number and value == value else default


def _missing(attributes: Mapping[str, Json], dtype: np.dtype[Any]) -> tuple[float, ...]:
    found = []
    for name in ("_FillValue", "missing_value"):
        given = attributes.get(name)
        for value in (given if isinstance(given, list) else [given])[:_MAX_MISSING]:
            if isinstance(value, str) and dtype.kind == "f":
                try:
                    value = float(np.frombuffer(b64decode(value, validate=True), "<f8")[0])
                except (binascii.Error, ValueError, IndexError):
                    continue
            if isinstance(value, int | float) and not isinstance(value, bool) and _fits(value, dtype):
                found.append(float(value) if dtype.kind == "f" else value)
    return tuple(value for value in found if value == value)


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether some element may equal a number, which may be an integer of any size."""
    if dtype.kind == "f":
        return isinstance(value, float) or abs(value) < _MAX_INTEGER
    info = np.iinfo(dtype)
    return info.min <= value <= info.max and value == int(value)
