"""Data types and fill values of Zarr v2, as NumPy writes them, and those of Zarr v3 that mean the same.

Source: Zarr storage specification 2, "Data type encoding" and "Fill value encoding"; names of v3 types as zarr-python
3.1 writes them.
"""

import base64
import binascii
import math
import re
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.data_type import DataType
from shardfs.format.metadata import Extension, Json, brief

VLEN_SERIALIZERS: Final = {
    "string": "vlen-utf8",
    "variable_length_bytes": "vlen-bytes",
    "bytes": "vlen-bytes",
}
"""Data types whose elements vary in size, and the codec, or v2 filter, that writes them."""

OBJECT_FILTERS: Final = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}

_MAX_DEPTH: Final = 8
_SCALAR: Final = re.compile(r"[<>|]?[biufcmMSUVO][0-9]{0,9}(\[[0-9]{0,9}\w{1,8}\])?")
_NAMES: Final = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_NUMBER_NBYTES: Final = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_TIME_NAMES: Final = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
_NAT: Final = -(2**63)
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAN_BITS: Final = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}


def v2_dtype(data_type: Json, endian: str) -> Json:
    """Return the `dtype` of a `.zarray` for elements that are stored *endian*; raises `NotShownError`."""
    name = type_name(data_type)
    if name in VLEN_SERIALIZERS:
        Extension.parse(data_type, "data_type").expect()
        return "|O"
    parsed = DataType.parse(data_type)
    if not parsed.is_native or not parsed.nbytes:
        raise NotShownError(f"the data type {brief(name)} has no Zarr v2 form")
    if parsed.dtype.fields is None:
        return parsed.dtype.newbyteorder("<" if endian == "little" else ">").str
    if endian != "little" and name == "structured":
        raise NotShownError("libraries do not agree what big-endian bytes of a structured data type are")
    return _fields(parsed.dtype.newbyteorder("<" if endian == "little" else ">"))


def parse_dtype(dtype: Json, depth: int = 0) -> np.dtype[Any]:
    """Read the `dtype` of a `.zarray`; raises `MetadataError`."""
    try:
        if isinstance(dtype, str) and _SCALAR.fullmatch(dtype):
            return np.dtype(dtype)
        if isinstance(dtype, list) and dtype and depth < _MAX_DEPTH:
            return np.dtype([_parse_field(field, depth) for field in dtype])
    except (TypeError, ValueError, OverflowError):
        pass
    raise MetadataError(f"the dtype {brief(dtype)} is not known")


def v3_data_type(dtype: np.dtype[Any]) -> Json:
    """Return the `data_type` of a v3 document for *dtype*, in whichever byte order; raises `NotUnshardable`."""
    if dtype.fields is not None:
        return {"name": "structured", "configuration": {"fields": [_v3_field(dtype, n) for n in dtype.names or ()]}}
    kind, nbytes = dtype.kind, dtype.itemsize
    if nbytes in _NUMBER_NBYTES.get(kind, ()):
        return _NAMES[kind] if kind == "b" else f"{_NAMES[kind]}{8 * nbytes}"
    if kind in _TIME_NAMES:
        unit, count = np.datetime_data(dtype)
        return {"name": _TIME_NAMES[kind], "configuration": {"unit": unit, "scale_factor": count}}
    lengths = {"S": "null_terminated_bytes", "U": "fixed_length_utf32", "V": "raw_bytes"}
    if kind in lengths and nbytes and dtype.subdtype is None:
        return {"name": lengths[kind], "configuration": {"length_bytes": nbytes}}
    raise NotUnshardable(f"the dtype {dtype.str} has no Zarr v3 form")


def type_name(data_type: Json) -> str:
    """Return the name of a `data_type` member."""
    return str(data_type["name"] if isinstance(data_type, dict) else data_type)


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
    element = _parse_fill_value(dtype, value)
    if element is None:
        raise MetadataError(f"the fill value {brief(value)} is none of the dtype {dtype.str}")
    return element


def default_fill_value(dtype: np.dtype[Any]) -> Json:
    """Return the fill value of a v3 document where a `.zarray` has none: zero, empty text, not a time."""
    if dtype.kind in _TIME_NAMES:
        return "NaT"
    return v2_fill_value(dtype, bytes(dtype.itemsize))


def v3_fill_value(data_type: Json, dtype: np.dtype[Any], element: bytes) -> Json:
    """Return the `fill_value` of a v3 document, which spells elements as v2 does but for raw bits."""
    if re.fullmatch(r"r[0-9]+", type_name(data_type)):
        return list(element)
    return v2_fill_value(dtype, element)


def _fields(dtype: np.dtype[Any]) -> Json:
    if dtype.fields is None:
        return dtype.str
    return [[name, _fields(dtype[name])] for name in dtype.names or ()]


def _parse_field(field: Json, depth: int) -> tuple[Any, ...]:
    if not isinstance(field, list) or len(field) not in (2, 3) or not isinstance(field[0], str):
        raise MetadataError(f"the field {brief(field)} of a dtype is no pair of a name and a dtype")
    if len(field) == 2:
        return field[0], parse_dtype(field[1], depth + 1)
    shape = field[2]
    if not isinstance(shape, list) or not all(type(length) is int and 0 < length < 2**31 for length in shape):
        raise MetadataError(f"the shape {brief(shape)} of a field is none")
    return field[0], parse_dtype(field[1], depth + 1), tuple(shape)


def _v3_field(dtype: np.dtype[Any], name: str) -> Json:
    field = dtype[name]
    if field.subdtype is not None or field != field.newbyteorder("<"):
        raise NotUnshardable(f"the field {brief(name)} of the dtype has no Zarr v3 form")
    return [name, v3_data_type(field)]


def _time_to_json(dtype: np.dtype[Any], value: int) -> Json:
    if dtype.kind == "m" or np.datetime_data(dtype)[0] != "generic":
        return value
    if value != _NAT:
        raise NotShownError("a time without a unit is no fill value of Zarr v2")
    return "NaT"  # NumPy takes no number for one


def _float_to_json(element: bytes) -> Json:
    value = float(np.frombuffer(element, f"<f{len(element)}")[0])
    if math.isnan(value):
        if int.from_bytes(element, "little") != _NAN_BITS[len(element)]:
            raise NotShownError(f"the fill value is the NaN 0x{element[::-1].hex()}, and Zarr v2 knows a single NaN")
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _parse_fill_value(dtype: np.dtype[Any], value: Json) -> bytes | None:
    match dtype.kind:
        case "b":
            # Old libraries wrote 0 and 1, or 0.0.
            return bytes([bool(value)]) if isinstance(value, bool | int | float) and value in (0, 1) else None
        case "i" | "u":
            return _parse_int(value, dtype.itemsize, signed=dtype.kind == "i")
        case "m" | "M":
            return _parse_int(_NAT if value == "NaT" else value, 8, signed=True)
        case "f":
            return _parse_float(value, dtype.itemsize)
        case "c":
            if not isinstance(value, list):
                value = [value, 0.0]
            parts = [part for part in (_parse_float(part, dtype.itemsize // 2) for part in value) if part is not None]
            return b"".join(parts) if len(parts) == len(value) == 2 else None
        case "S" | "V" | "U":
            return _parse_text(dtype, value)
        case _:
            return None


def _parse_int(value: Json, nbytes: int, *, signed: bool) -> bytes | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        return None
    try:
        return value.to_bytes(nbytes, "little", signed=signed)
    except OverflowError:
        return None


def _parse_float(value: Json, nbytes: int) -> bytes | None:
    if isinstance(value, str):
        value = _SPECIAL.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isnan(number):
        return _NAN_BITS[nbytes].to_bytes(nbytes, "little")  # whatever bits this machine gives a NaN
    with np.errstate(over="ignore"):
        element = np.array(number, f"<f{nbytes}")
    return element.tobytes() if math.isinf(number) or np.isfinite(element) else None


def _parse_text(dtype: np.dtype[Any], value: Json) -> bytes | None:
    if type(value) in (int, float) and value == 0:
        return bytes(dtype.itemsize)  # as zarr-python 2 took its default of 0
    if not isinstance(value, str):
        return None
    try:
        if dtype.kind == "U":
            encoded = value.encode("utf-32-le", "surrogatepass")
        else:
            encoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return encoded.ljust(dtype.itemsize, b"\0") if len(encoded) <= dtype.itemsize else None
