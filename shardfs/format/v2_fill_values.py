"""Fill values of Zarr v2, as elements and back; those of Zarr v3 are spelled alike, but for raw bits.

Source: Zarr storage specification 2, "Fill value encoding"; zarr-python 2.18 as observed.
"""

import base64
import math
import re
from typing import Any

import numpy as np

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.fill_value import NOT_A_TIME, parse_element
from shardfs.format.metadata import Json, brief
from shardfs.format.v2_types import type_name


def v2_fill_value(dtype: np.dtype[Any], element: bytes) -> Json:
    """Return the `fill_value` of a `.zarray` for an element of *dtype*, which is little-endian.

    Raises `NotShownError` for a NaN other than the one that "NaN" stands for, and for text that is none.
    """
    match dtype.kind:
        case "f":
            return _float_to_json(element)
        case "c":
            half = len(element) // 2
            return [_float_to_json(element[:half]), _float_to_json(element[half:])]
        case "m" | "M":
            return _time_to_json(dtype, int.from_bytes(element, "little", signed=True))
        case "S" | "V":
            return base64.b64encode(element).decode("ascii")
        case "U":
            try:
                return element.decode("utf-32-le", "surrogatepass").rstrip("\0")
            except UnicodeDecodeError:
                raise NotShownError("the fill value is not text") from None
        case _:
            return np.frombuffer(element, dtype)[0].item()


def parse_fill_value(dtype: np.dtype[Any], value: Json) -> bytes:
    """Return the element, little-endian, that the `fill_value` of a `.zarray` stands for; raises `MetadataError`.

    *dtype* is little-endian.  A null has no element: it stands for whatever a program likes.
    """
    element = _parse(dtype, value)
    if element is None:
        raise MetadataError(f"the fill value {brief(value)} is none of the dtype {dtype.str}")
    return element


def default_fill_value(dtype: np.dtype[Any]) -> Json:
    """Return the fill value of a v3 document where a `.zarray` has none: zero, empty text, not a time."""
    if dtype.kind in "mM":
        return "NaT"
    return v2_fill_value(dtype, bytes(dtype.itemsize))


def v3_fill_value(data_type: Json, dtype: np.dtype[Any], element: bytes) -> Json:
    """Return the `fill_value` of a v3 document, which spells elements as v2 does but for raw bits."""
    if re.fullmatch(r"r[0-9]+", type_name(data_type)):
        return list(element)
    return v2_fill_value(dtype, element)


def _parse(dtype: np.dtype[Any], value: Json) -> bytes | None:
    """Read what Zarr v3 knows too, in the spellings that only Zarr v2 knows, and not in those that only v3 does."""
    is_number = type(value) in (int, float)
    match dtype.kind:
        case "b" if is_number and value in (0, 1):
            return bytes([int(value)])  # as old libraries wrote it
        case "S" | "U" | "V":
            if value == "" or (is_number and value == 0):
                return bytes(dtype.itemsize)  # as zarr-python 2 took its default of 0
            return parse_element(dtype, value) if isinstance(value, str) else None
        case "c" if not isinstance(value, list):
            return _parse(dtype, [value, 0.0])
        case "f" | "c":
            parts = value if isinstance(value, list) else [value]
            has_bits = any(isinstance(part, str) and part.startswith("0x") for part in parts)
            return None if has_bits else parse_element(dtype, value)
        case _:
            return parse_element(dtype, value)


def _time_to_json(dtype: np.dtype[Any], value: int) -> Json:
    if dtype.kind == "m" or np.datetime_data(dtype)[0] != "generic":
        return value
    if value != NOT_A_TIME:
        raise NotShownError("a time without a unit is no fill value of Zarr v2")
    return "NaT"  # NumPy takes no number for one


def _float_to_json(element: bytes) -> Json:
    dtype = np.dtype(f"<f{len(element)}")
    value = float(np.frombuffer(element, dtype)[0])
    if math.isnan(value):
        if element != parse_element(dtype, "NaN"):
            raise NotShownError(f"the fill value is the NaN 0x{element[::-1].hex()}, and Zarr v2 knows a single NaN")
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
