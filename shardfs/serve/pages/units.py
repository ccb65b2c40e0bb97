"""Numbers with units, as people read them: times by the CF conventions, degrees, units of OME, ticks.

Sources: CF conventions 1.11, sections 4.1, 4.2 and 4.4 (coordinates and calendars) and 8.1 (packed data); OME-NGFF 0.5,
"axes". Times are decoded in the calendars of the ISO and of history; in all others they stay numbers with their unit.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import printable

MAX_LABEL: Final = 48
"""How long a label of anything is at most."""

_SYMBOLS: Final = {
    "angstrom": "Å", "nanometer": "nm", "micrometer": "µm", "micron": "µm", "microns": "µm", "um": "µm",
    "millimeter": "mm",
    "centimeter": "cm", "meter": "m", "kilometer": "km", "metre": "m", "meters": "m", "metres": "m",
    "second": "s", "seconds": "s",
    "millisecond": "ms", "microsecond": "µs", "nanosecond": "ns", "minute": "min", "hour": "h", "day": "d",
    "degC": "°C", "deg_C": "°C", "celsius": "°C", "degree_Celsius": "°C", "kelvin": "K", "degrees": "°", "degree": "°",
    "percent": "%", "1": "", "dimensionless": "", "pixel": "px",
}  # fmt: skip
_NORTH: Final = frozenset({"degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"})
_EAST: Final = frozenset({"degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"})
_LENGTHS: Final = ("Å", "nm", "µm", "mm", "cm", "m", "km")
"""Units of a scale bar."""

_MS: Final = {
    "millisecond": 1, "msec": 1, "ms": 1, "second": 1000, "sec": 1000, "s": 1000, "minute": 60_000, "min": 60_000,
    "hour": 3_600_000, "hr": 3_600_000, "h": 3_600_000, "day": 86_400_000, "d": 86_400_000,
    "microsecond": 1e-3, "us": 1e-3, "µs": 1e-3, "nanosecond": 1e-6, "ns": 1e-6,
}  # fmt: skip
_SINCE: Final = re.compile(
    r"\s*(\w{1,12}?)s?\s+since\s+(\d{1,4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T\s]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.\d{0,9})?)?)?\s*(?:Z|UTC|GMT|[+-]?0{1,2}(?::?00)?)?\s*",
    re.ASCII | re.IGNORECASE,
)
_ISO: Final = frozenset({"proleptic_gregorian"})
_OF_HISTORY: Final = frozenset({"standard", "gregorian", ""})
_REFORM: Final = np.datetime64("1582-10-15", "ms")
_MAX_MS: Final = 2.0**59
_MS_OF: Final = {
    "Y": 366 * 864e5, "M": 31 * 864e5, "W": 7 * 864e5, "D": 864e5, "h": 36e5, "m": 6e4, "s": 1e3, "ms": 1.0,
    "us": 1e-3, "ns": 1e-6, "ps": 1e-9, "fs": 1e-12, "as": 1e-15,
}  # fmt: skip
"""How many milliseconds a unit of NumPy has at most."""

Times = npt.NDArray[np.datetime64]


def symbol(unit: object) -> str:
    """Return a unit as it is written behind a number; "" for none."""
    if not isinstance(unit, str):
        return ""
    text = _SYMBOLS.get(unit, _SYMBOLS.get(unit.lower(), unit))
    return shortened(text.strip())


def is_length(unit: str) -> bool:
    """Whether a symbol is that of a length."""
    return unit in _LENGTHS


def is_north(units: object) -> bool:
    """Whether numbers in these units are latitudes."""
    return isinstance(units, str) and units in _NORTH


def is_east(units: object) -> bool:
    """Whether numbers in these units are longitudes."""
    return isinstance(units, str) and units in _EAST


def shortened(text: str, most: int = MAX_LABEL) -> str:
    """Return a text of at most about so many characters, and none that a terminal or a browser would obey."""
    return printable(text if len(text) <= most else text[: most - 1] + "…")


def number(value: float) -> str:
    """Return a number to be read: six digits, and whole numbers exactly."""
    if isinstance(value, int | np.integer):
        return f"{int(value):,}" if abs(int(value)) >= 100_000 else str(int(value))
    return f"{float(value):.6g}"


def with_unit(text: str, unit: str) -> str:
    """Return a number with its unit."""
    return f"{text}{'' if unit in ('°', '%', '') else ' '}{unit}"


def degrees(value: float, positive: str, negative: str) -> str:
    """Return a latitude or longitude."""
    text = f"{abs(value):.6g}"
    return f"{text}°" if text == "0" else f"{text}°{negative if value < 0 else positive}"


def decoded_times(values: npt.NDArray[Any], units: object, calendar: object = None) -> Times | None:
    """Return times for numbers "days since …"; None if these units are none, or the calendar is another one."""
    found = _SINCE.fullmatch(units) if isinstance(units, str) and len(units) < 100 else None
    of = calendar.lower() if isinstance(calendar, str) else ""
    if found is None or of not in _ISO | _OF_HISTORY:
        return None
    factor = _MS.get(found[1]) or _MS.get(found[1].lower())
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[1:])
    if factor is None or not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    begin = 86_400_000 * _days(year, month, day, is_of_history=of in _OF_HISTORY)
    begin += 1000 * (3600 * hour + 60 * minute + second)
    numbers = values.astype(np.float64)
    is_time = np.isfinite(numbers)
    milliseconds = np.round(np.where(is_time, numbers, 0) * factor + begin)
    if (np.abs(milliseconds) > _MAX_MS).any():
        return None
    times = milliseconds.astype(np.int64).astype("datetime64[ms]")
    times[~is_time] = np.datetime64("NaT", "ms")
    known = times[is_time]
    is_too_early = of in _OF_HISTORY and known.size and known.min() < _REFORM
    return None if is_too_early else times


def _days(year: int, month: int, day: int, *, is_of_history: bool) -> int:
    """Return the number of a day, 0 being 1970-01-01; the calendar of history is Julian before 1582-10-15."""
    begin = (14 - month) // 12
    years, months = year + 4800 - begin, month + 12 * begin - 3
    days = day + (153 * months + 2) // 5 + 365 * years + years // 4
    if is_of_history and (year, month, day) < (1582, 10, 15):
        return days - 32083 - 2440588
    return days - years // 100 + years // 400 - 32045 - 2440588


def in_milliseconds(times: Times) -> Times | None:
    """Return times of any unit in milliseconds; None if they have no unit, or some are too far from 1970."""
    unit, count = np.datetime_data(times.dtype)
    if unit == "generic":
        return None
    ticks = np.abs(times[~np.isnat(times)].astype(np.int64).astype(np.float64)) * count
    is_near = (ticks * _MS_OF[unit] < _MAX_MS) & (ticks < 8 * _MAX_MS)  # near the ends of int64, NumPy counts wrong
    return times.astype("datetime64[ms]") if is_near.all() else None


def exact_time(time: Times) -> str | None:
    """Return a single time as people write it, with all of its digits; None if it has no unit."""
    unit, count = np.datetime_data(time.dtype)
    if unit == "generic" or np.isnat(time[0]):
        return None if unit == "generic" else "no time"
    milliseconds = in_milliseconds(time)
    is_whole = not int(time[0].astype(np.int64)) * count % max(round(1 / _MS_OF[unit]), 1)
    return time_labels(milliseconds)[0] if milliseconds is not None and is_whole else str(time[0]).replace("T", " ")


def time_labels(times: Times) -> list[str]:
    """Return times as people write them: without what is the same for all, such as midnight."""
    known = times[~np.isnat(times)].astype("datetime64[ms]")
    if not known.size:
        return ["no time"] * len(times)
    within = known.astype(np.int64) % 86_400_000
    unit = (
        "D" if not within.any() else "m" if not (within % 60_000).any() else "s" if not (within % 1000).any() else "ms"
    )
    return [
        "no time" if np.isnat(time) else str(time.astype(f"datetime64[{unit}]")).replace("T", " ") for time in times
    ]


def nice_step(span: float, most: int, steps: Sequence[float] = (1, 2, 5, 10)) -> float:
    """Return the least step of 1, 2 or 5 times a power of ten of which at most so many fit in a span."""
    least = span / max(most, 1)
    if not (least > 0 and math.isfinite(least)):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    if not power:  # it is less than all powers of ten
        return least
    return next((step * power for step in steps if step * power >= least * (1 - 1e-9)), 10 * power)


_DEGREES: Final = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0)


def nice_numbers(low: float, high: float, most: int, *, are_degrees: bool = False) -> list[float]:
    """Return round numbers from *low* to *high*, about as many as *most*."""
    if not (math.isfinite(low) and math.isfinite(high)) or not high > low:
        return [low] if math.isfinite(low) else []
    span = high - low
    step = nice_step(span, most)
    if are_degrees and span > _DEGREES[0] * most:
        step = next((each for each in _DEGREES if span / each <= most), step)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    if not 0 <= last - first < 100:
        return []
    return [(first + count) * step for count in range(last - first + 1)]


_TIME_STEPS: Final = (
    *(("m", each) for each in (1, 2, 5, 10, 15, 30)), *(("h", each) for each in (1, 2, 3, 6, 12)),
    *(("D", each) for each in (1, 2, 5, 10)), *(("M", each) for each in (1, 2, 3, 6)),
    *(("Y", each * 10**power) for power in range(9) for each in (1, 2, 5)),
)  # fmt: skip
_DAYS_OF: Final = {"m": 1 / 1440, "h": 1 / 24, "D": 1.0, "M": 30.0, "Y": 365.0}


def nice_times(first: np.datetime64, last: np.datetime64, most: int) -> list[tuple[float, str]]:
    """Return round times from *first* to *last*, about as many as *most*: milliseconds since 1970, and labels.

    Both ends are in milliseconds.
    """
    days = (int(last.astype(np.int64)) - int(first.astype(np.int64))) / 86_400_000  # the difference may be no timedelta
    unit, count = next((each for each in _TIME_STEPS if days / (each[1] * _DAYS_OF[each[0]]) <= most), _TIME_STEPS[-1])
    begin, end = (int(time.astype(f"datetime64[{unit}]").astype(np.int64)) for time in (first, last))
    aligned = -(-begin // count) * count
    if unit == "D" and count > 1:  # from the first of a month on, as people count
        months = np.arange(first.astype("datetime64[M]"), last.astype("datetime64[M]") + np.timedelta64(1, "M"))
        offsets = np.arange(0, 28, count)
        found = (months.astype("datetime64[D]")[:, np.newaxis] + offsets.astype("timedelta64[D]")).ravel()
    else:
        found = np.arange(aligned, end + 1, count).astype(f"datetime64[{unit}]")
    times = found.astype("datetime64[ms]")
    inside = (times >= first) & (times <= last)
    minutes = ":00" if unit == "h" else ""
    labels = [str(time).replace("T", " ") + minutes for time in found[inside]]
    return [(float(time), label) for time, label in zip(times[inside].astype(np.int64), labels, strict=True)]


def log_numbers(low: float, high: float, most: int) -> list[float]:
    """Return powers of ten from *low* to *high*, both positive, or round numbers if there are none."""
    if not 0 < low <= high < math.inf:
        return []
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = [10.0**each for each in range(first, last + 1, max(1, -(-(last - first + 1) // max(most, 1))))]
    return powers if len(powers) > 1 else nice_numbers(low, high, most)
