"""Fill values: the `fill_value` member of a document, and the element that it stands for.

Sources: Zarr core specification 3.1, "Fill value"; the specifications of data types; zarr-python 3.1, which writes
base64 for bytes, raw bytes and structs.
"""

import base64
import math
import struct
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.data_type import DataType
from shardfs.format.metadata import Json, brief
from shardfs.format.small_float import SMALL_FLOATS, encode_bfloat16

_NOT_A_TIME: Final = -(2**63)
_SPECIAL_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SMALL_INTEGERS: Final = {"int2": (-2, 1), "int4": (-8, 7), "uint2": (0, 3), "uint4": (0, 15)}
_FLOAT_FORMATS: Final = {"float16": "<e", "float32": "<f", "float64": "<d"}
_COMPLEX_PARTS: Final = {
    "complex64": "float32",
    "complex128": "float64",
    "complex_float32": "float32",
    "complex_float64": "float64",
}


def fill_element(data_type: DataType, fill_value: Json) -> bytes:
    """Return the bytes of an element that was never written, little-endian; raises `MetadataError`."""
    match data_type.dtype.kind:
        case "b":
            if not isinstance(fill_value, bool):
                raise _no_element(data_type, fill_value)
            return bytes([fill_value])
        case "i" | "u" if data_type.is_native or data_type.name in _SMALL_INTEGERS:
            return _integer(data_type, fill_value)
        case "M" | "m":
            return _integer(data_type, _NOT_A_TIME if fill_value == "NaT" else fill_value)
        case "f" | "u":
            return _float(data_type.name, data_type.nbytes, fill_value)
        case "c":
            part = _COMPLEX_PARTS[data_type.name]
            real, imaginary = _pair(data_type, fill_value)
            return _float(part, data_type.nbytes // 2, real) + _float(part, data_type.nbytes // 2, imaginary)
        case "U":
            return _text(data_type, fill_value)
        case _:
            return _record(data_type, fill_value) if data_type.fields else _raw(data_type, fill_value)


def _integer(data_type: DataType, fill_value: Json) -> bytes:
    # An integer may be written with a fraction of zero, as JavaScript does not tell.
    if isinstance(fill_value, float) and fill_value.is_integer():
        fill_value = int(fill_value)
    is_unsigned = data_type.dtype.kind == "u"
    nbits = 8 * data_type.nbytes
    low, high = (0, 2**nbits - 1) if is_unsigned else (-(2 ** (nbits - 1)), 2 ** (nbits - 1) - 1)
    low, high = _SMALL_INTEGERS.get(data_type.name, (low, high))
    if type(fill_value) is not int or not low <= fill_value <= high:
        raise _no_element(data_type, fill_value)
    return fill_value.to_bytes(data_type.nbytes, "little", signed=not is_unsigned)


def _float(name: str, nbytes: int, fill_value: Json) -> bytes:
    if isinstance(fill_value, str) and fill_value.startswith("0x"):
        return _bits(name, nbytes, fill_value)
    value = _SPECIAL_FLOATS.get(fill_value) if isinstance(fill_value, str) else _number(fill_value)
    if value is None:
        raise MetadataError(f"the data type {name} has no fill value {brief(fill_value)}")
    if name in SMALL_FLOATS:
        return bytes([SMALL_FLOATS[name].encode(value)])
    if name == "bfloat16":
        return encode_bfloat16(value).to_bytes(2, "little")
    try:
        return struct.pack(_FLOAT_FORMATS[name], value)
    except OverflowError:
        return struct.pack(_FLOAT_FORMATS[name], math.copysign(math.inf, value))


def _number(fill_value: Json) -> float | None:
    if type(fill_value) not in (int, float):
        return None
    try:
        return float(fill_value)
    except OverflowError:
        return None


def _bits(name: str, nbytes: int, text: str) -> bytes:
    """Read a number as the hexadecimal digits of its bits, most significant first."""
    try:
        value = bytes.fromhex(text[2:])[::-1]
    except ValueError:
        value = b""
    if len(value) != nbytes or len(text) != 2 + 2 * nbytes:
        raise MetadataError(f"{brief(text)} is not the hexadecimal form of a {name}")
    return value


def _pair(data_type: DataType, fill_value: Json) -> tuple[Json, Json]:
    if not isinstance(fill_value, list) or len(fill_value) != 2:
        raise _no_element(data_type, fill_value)
    return fill_value[0], fill_value[1]


def _text(data_type: DataType, fill_value: Json) -> bytes:
    if not isinstance(fill_value, str) or 4 * len(fill_value) > data_type.nbytes:
        raise _no_element(data_type, fill_value)
    # JSON can hold half of a surrogate pair, and NumPy takes it.
    return fill_value.encode("utf-32-le", "surrogatepass").ljust(data_type.nbytes, b"\0")


def _record(data_type: DataType, fill_value: Json) -> bytes:
    """Read the parts of a complex number as a pair; of a struct by name, or the whole as base64."""
    if data_type.name.startswith("complex_"):
        values = _pair(data_type, fill_value)
        return b"".join(fill_element(part, value) for (_, part), value in zip(data_type.fields, values, strict=True))
    if isinstance(fill_value, str):
        return _raw(data_type, fill_value)
    if not isinstance(fill_value, dict) or fill_value.keys() != {name for name, _ in data_type.fields}:
        raise _no_element(data_type, fill_value)
    return b"".join(fill_element(field, fill_value[name]) for name, field in data_type.fields)


def _raw(data_type: DataType, fill_value: Json) -> bytes:
    """Read bytes as base64, or raw ones as a list of integers; null-terminated ones may be fewer."""
    is_terminated = data_type.dtype.kind == "S"
    try:
        if isinstance(fill_value, list) and all(type(byte) is int for byte in fill_value) and not is_terminated:
            value = bytes(fill_value)
        else:
            value = base64.b64decode(fill_value, validate=True)
    except (ValueError, TypeError):
        raise _no_element(data_type, fill_value) from None
    if is_terminated:
        value = value.ljust(data_type.nbytes, b"\0")
    if len(value) != data_type.nbytes:
        raise MetadataError(f"the fill value has {len(value)} bytes, an element {data_type.nbytes}")
    return value


def _no_element(data_type: DataType, fill_value: Json) -> MetadataError:
    return MetadataError(f"the data type {data_type.name} has no fill value {brief(fill_value)}")
