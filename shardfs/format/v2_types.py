"""Data types of Zarr v2, as NumPy writes them, and those of Zarr v3 that mean the same.

Source: Zarr storage specification 2, "Data type encoding"; names of v3 types as zarr-python 3.1 writes them.
"""

import re
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.data_type import MAX_DEPTH, MAX_ITEM_NBYTES, DataType
from shardfs.format.metadata import Extension, Json, brief

VLEN_SERIALIZERS: Final = {
    "string": "vlen-utf8",
    "variable_length_bytes": "vlen-bytes",
    "bytes": "vlen-bytes",
}
"""Data types whose elements vary in size, and the codec, or v2 filter, that writes them."""

OBJECT_FILTERS: Final = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}

_SCALAR: Final = re.compile(r"[<>|]?[biufcmMSUVO][0-9]{0,9}(\[[0-9]{0,9}\w{1,8}\])?")
_NAMES: Final = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_NUMBER_NBYTES: Final = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_TIME_NAMES: Final = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}


def v2_dtype(data_type: Json, endian: str) -> Json:
    """Return the `dtype` of a `.zarray` for elements that are stored *endian*; raises `NotShownError`."""
    name = type_name(data_type)
    if name in VLEN_SERIALIZERS:
        Extension.parse(data_type, "data_type").expect()
        return "|O"
    parsed = DataType.parse(data_type)
    if not parsed.is_native:
        raise NotShownError(f"the data type {brief(name)} has no Zarr v2 form")
    if parsed.dtype.fields is None:
        return parsed.dtype.newbyteorder("<" if endian == "little" else ">").str
    parsed.check_endian(endian)
    return _fields(parsed.dtype.newbyteorder("<" if endian == "little" else ">"))


def parse_dtype(dtype: Json, depth: int = 0) -> np.dtype[Any]:
    """Read the `dtype` of a `.zarray`; raises `MetadataError`."""
    try:
        if isinstance(dtype, str) and _SCALAR.fullmatch(dtype):
            return np.dtype(dtype)
        if isinstance(dtype, list) and dtype and depth < MAX_DEPTH:
            return np.dtype([_parse_field(field, depth) for field in dtype])
    except (TypeError, ValueError, OverflowError):
        pass
    raise MetadataError(f"the dtype {brief(dtype)} is not known")


def v3_data_type(dtype: np.dtype[Any]) -> Json:
    """Return the `data_type` of a v3 document for *dtype*, in whichever byte order; raises `NotUnshardable`."""
    if dtype.itemsize > MAX_ITEM_NBYTES:
        raise NotUnshardable(f"elements of {dtype.itemsize} bytes are larger than the {MAX_ITEM_NBYTES} that are read")
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
