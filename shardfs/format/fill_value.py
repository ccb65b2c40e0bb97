"""Fill values: the `fill_value` member of a document, and the element that it stands for.

Sources: Zarr core specification 3.1, "Fill value"; the specifications of data types; zarr-python 3.1, which writes
base64 for bytes, raw bytes and structs.
"""

import base64
import math
import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.data_type import DataType
from shardfs.format.metadata import Json, brief

NOT_A_TIME: Final = -(2**63)
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


def parse_element(dtype: np.dtype[Any], value: Json) -> bytes | None:
    """Return the bytes of an element of *dtype*, which is little-endian; None if *value* is none of it."""
    match dtype.kind:
        case "b":
            return bytes([value]) if isinstance(value, bool) else None
        case "i" | "u":
            return _integer(value, dtype.itemsize, is_signed=dtype.kind == "i")
        case "M" | "m":
            return _integer(NOT_A_TIME if value == "NaT" else value, dtype.itemsize, is_signed=True)
        case "f":
            return _float(value, dtype.itemsize)
        case "c":
            is_pair = isinstance(value, list) and len(value) == 2
            return _joined(_float(part, dtype.itemsize // 2) for part in value) if is_pair else None
        case "U":
            return _text(value, dtype.itemsize)
        case _ if isinstance(value, dict):
            names = dtype.names
            is_whole = names is not None and value.keys() == set(names)
            return _joined(parse_element(dtype[name], value[name]) for name in names or ()) if is_whole else None
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
