"""Fill values: how Zarr v3 and Zarr v2 spell the element that was never written, and its bytes.

Elements are little-endian bytes.  Both versions spell them alike, but for raw bits of a v3 document, and for what old
libraries wrote into a `.zarray`.

Sources: Zarr core specification 3.1, "Fill value"; the specifications of data types; zarr-python 3.1, which writes
base64 for bytes, raw bytes and structs; Zarr storage specification 2, "Fill value encoding"; zarr-python 2.18 as
observed.
"""

import base64
import math
import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.dtype import DataType, is_raw_bits, type_name
from shardfs.format.metadata import Json, brief

_NOT_A_TIME: Final = -(2**63)
_SPECIAL_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_FORMATS: Final = {2: "<e", 4: "<f", 8: "<d"}


def fill_element(data_type: DataType, fill_value: Json) -> bytes:
    """Return the bytes of an element that was never written, little-endian.

    Raises `MetadataError` if *fill_value* is none of *data_type*, and `NotShownError` for a type that NumPy does not
    have: no view that needs its elements shows it.
    """
    if not data_type.is_native:
        raise NotShownError(f"fill values of the data type {data_type.name} are not read")
    element = parse_element(data_type.dtype, fill_value)
    if element is None:
        raise MetadataError(f"the data type {data_type.name} has no fill value {brief(fill_value)}")
    return element


def check_vlen_fill_value(data_type: Json, fill_value: Json) -> str:
    """Return the fill value of elements that vary in size: any text of a string, and of bytes only none.

    Raises `MetadataError` for another one.
    """
    name = type_name(data_type)
    if not isinstance(fill_value, str):
        raise MetadataError(f"the fill value {brief(fill_value)} is none of {name}")
    if fill_value and name != "string":
        raise MetadataError(f"a fill value of {name}, as {brief(fill_value)}, is not read")
    return fill_value


def parse_element(dtype: np.dtype[Any], value: Json) -> bytes | None:
    """Return the bytes of an element of *dtype*, which is little-endian; None if *value* is none of it."""
    match dtype.kind:
        case "b":
            return bytes([value]) if isinstance(value, bool) else None
        case "i" | "u":
            return _integer(value, dtype.itemsize, is_signed=dtype.kind == "i")
        case "M" | "m":
            return _integer(_NOT_A_TIME if value == "NaT" else value, dtype.itemsize, is_signed=True)
        case "f":
            return _float(value, dtype.itemsize)
        case "c":
            is_pair = isinstance(value, list) and len(value) == 2
            return _joined(_float(part, dtype.itemsize // 2) for part in value) if is_pair else None
        case "U":
            return _text(value, dtype.itemsize)
        case _ if isinstance(value, dict):
            names = dtype.names
            is_unsharded = names is not None and value.keys() == set(names)
            return _joined(parse_element(dtype[name], value[name]) for name in names or ()) if is_unsharded else None
        case _:
            return _raw(value, dtype)


def _joined(parts: Iterable[bytes | None]) -> bytes | None:
    """Return *parts* one after another; None if one of them is none."""
    joined = bytearray()
    for part in parts:
        if part is None:
            return None
        joined += part
    return bytes(joined)


def _integer(value: Json, nbytes: int, *, is_signed: bool) -> bytes | None:
    # An integer may be written with a fraction of zero, as JavaScript does not tell.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        return None
    try:
        return value.to_bytes(nbytes, "little", signed=is_signed)
    except OverflowError:
        return None


def _float(value: Json, nbytes: int) -> bytes | None:
    if isinstance(value, str):
        if value.startswith("0x"):
            return _bits(value, nbytes)
        value = _SPECIAL_FLOATS.get(value)
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isnan(number):
        number = math.nan  # whatever bits a machine gives the result of its arithmetic
    try:
        return struct.pack(_FLOAT_FORMATS[nbytes], number)
    except OverflowError:
        return struct.pack(_FLOAT_FORMATS[nbytes], math.copysign(math.inf, number))


def _bits(text: str, nbytes: int) -> bytes | None:
    """Read a number as the hexadecimal digits of its bits, most significant first."""
    try:
        bits = bytes.fromhex(text[2:])
    except ValueError:
        return None
    return bits[::-1] if len(bits) == nbytes and len(text) == 2 + 2 * nbytes else None


def _text(value: Json, nbytes: int) -> bytes | None:
    if not isinstance(value, str) or 4 * len(value) > nbytes:
        return None
    # JSON can hold half of a surrogate pair, and NumPy takes it.
    return value.encode("utf-32-le", "surrogatepass").ljust(nbytes, b"\0")


def _raw(value: Json, dtype: np.dtype[Any]) -> bytes | None:
    """Read bytes as base64, or raw ones as a list of integers; null-terminated ones may be fewer."""
    try:
        if isinstance(value, list) and dtype.kind == "V" and dtype.names is None:
            raw = bytes(value) if all(type(byte) is int for byte in value) else b""
        else:
            raw = base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        return None
    if dtype.kind == "S":
        raw = raw.ljust(dtype.itemsize, b"\0")
    return raw if len(raw) == dtype.itemsize else None


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


def v2_fill_element(dtype: np.dtype[Any], value: Json) -> bytes:
    """Return the element, little-endian, that the `fill_value` of a `.zarray` stands for; raises `MetadataError`.

    *dtype* is little-endian.  Null is refused: it stands for no element.
    """
    element = _parse_v2_element(dtype, value)
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
    if is_raw_bits(data_type):
        return list(element)
    return v2_fill_value(dtype, element)


def _parse_v2_element(dtype: np.dtype[Any], value: Json) -> bytes | None:
    """Return the bytes of an element; reads the spellings of Zarr v2, and not those that only v3 has."""
    is_number = type(value) in (int, float)
    match dtype.kind:
        case "b" if is_number and value in (0, 1):
            return bytes([int(value)])  # as old libraries wrote it
        case "S" | "U" | "V":
            if value == "" or (is_number and value == 0):
                return bytes(dtype.itemsize)  # as zarr-python 2 took its default of 0
            return parse_element(dtype, value) if isinstance(value, str) else None
        case "c" if not isinstance(value, list):
            return _parse_v2_element(dtype, [value, 0.0])
        case "f" | "c":
            parts = value if isinstance(value, list) else [value]
            has_bits = any(isinstance(part, str) and part.startswith("0x") for part in parts)
            return None if has_bits else parse_element(dtype, value)
        case _:
            return parse_element(dtype, value)


def _time_to_json(dtype: np.dtype[Any], value: int) -> Json:
    if dtype.kind == "m" or np.datetime_data(dtype)[0] != "generic":
        return value
    if value != _NOT_A_TIME:
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
