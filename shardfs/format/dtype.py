"""Data types and fill values: their layout in memory, and their names in Zarr v3 and Zarr v2.

Sources: Zarr core specification 3.1, "Data types"; the registered extensions (small floats and integers, complex pairs
of them, `numpy.datetime64`, `numpy.timedelta64`, `fixed_length_utf32`, `struct`); zarr-python 3.1 for `raw_bytes`,
`null_terminated_bytes` and `structured`; Zarr storage specification 2, "Data type encoding".

Fill values are little-endian bytes of one element. Both versions spell them alike, apart from raw bits in a v3
document, and what old libraries wrote into a `.zarray`. Other spellings that zarr-python reads in a document, such as
0 for false, are read as it does. Sources: Zarr core specification 3.1, "Fill value"; the specifications of data types;
zarr-python 3.1, which writes base64 for bytes, raw bytes and structs; Zarr storage specification 2, "Fill value
encoding"; zarr-python 2.18 as observed.
"""

import base64
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.document import Extension, Json, brief

MAX_ITEM_NBYTES: Final = 2**20
"""The largest size of an element: a limit of shardfs, not of the format."""

MAX_DEPTH: Final = 16
"""How deep structs may be nested: a limit of shardfs, not of the format."""

_MAX_SCALE_FACTOR: Final = 2**31 - 1
_TIME_UNITS: Final = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic")

_NATIVE: Final = {
    "bool": "?", "int8": "i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
    "uint8": "u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8",
    "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
    "complex_float32": "<c8", "complex_float64": "<c16",
}  # fmt: skip
_SMALL_FLOATS: Final = (
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
_LAID_OUT: Final = {
    # One byte per element, whatever its upper bits are.
    "int2": "i1", "int4": "i1", "uint2": "u1", "uint4": "u1",
    "bfloat16": "<u2",
    **dict.fromkeys(_SMALL_FLOATS, "u1"),
}  # fmt: skip
_COMPLEX_PARTS: Final = {f"complex_{name}": name for name in ("float16", "bfloat16", *_SMALL_FLOATS)}
_CONFIGURED: Final = {
    "numpy.datetime64": "M",
    "numpy.timedelta64": "m",
    "fixed_length_utf32": "U",
    "null_terminated_bytes": "S",
    "raw_bytes": "V",
}  # types with a unit or a length, and their kind of dtype in NumPy

VLEN_SERIALIZERS: Final = {"string": "vlen-utf8", "variable_length_bytes": "vlen-bytes", "bytes": "vlen-bytes"}
"""Data types whose elements vary in size, and the codec, or v2 filter, that writes them."""

_NAMES: Final = {np.dtype(code): name for name, code in reversed(_NATIVE.items())}
_NAMES_BY_KIND: Final = {kind: name for name, kind in _CONFIGURED.items()}
_RAW_BITS: Final = re.compile("r([0-9]+)")
_V2_SCALAR: Final = re.compile(r"[<>|]?[biufcmMSUVO][0-9]{0,9}(\[[0-9]{0,9}\w{1,8}\])?")


@dataclass(frozen=True, slots=True)
class DataType:
    """A data type.

    *dtype* is the NumPy layout of an element, little-endian, for swapping bytes and moving axes; a type of objects if
    elements vary in size. *is_native*: it is NumPy's own type. bfloat16, for example, is laid out as an unsigned
    integer, and is not native.
    """

    name: str
    dtype: np.dtype[Any]
    is_native: bool

    @classmethod
    def parse(cls, data_type: Json) -> "DataType":
        """Parse the `data_type` member of an array; raises `NotShownError` if it is unknown.

        Raises `MetadataError` for a known type that is not written according to its specification.
        """
        return _parse(data_type, 0)

    @classmethod
    def of_fixed_size(cls, data_type: Json) -> "DataType":
        """Do what `parse` does; raises `NotShownError` also if elements vary in size."""
        return _parse_fixed(data_type, 0)

    @classmethod
    def find(cls, data_type: Json) -> "DataType | None":
        """Parse the `data_type` member of an array; None where `parse` raises."""
        try:
            return _parse(data_type, 0)
        except (MetadataError, NotShownError):
            return None

    @property
    def varies(self) -> bool:
        """Whether elements vary in size."""
        return self.dtype.hasobject

    @property
    def nbytes(self) -> int:
        """Size of an element in bytes, if it does not vary."""
        return self.dtype.itemsize

    @property
    def has_byte_order(self) -> bool:
        """Whether the byte order of a `bytes` codec matters."""
        return self.dtype.newbyteorder(">") != self.dtype

    def check_endian(self, endian: str) -> None:
        """Raise `NotShownError` if libraries disagree about bytes in this order.

        zarr-python and zarrs read those of `structured` as little-endian whatever the codec says; tensorstore does not.
        """
        if endian == "big" and self.name == "structured" and self.has_byte_order:
            raise NotShownError("libraries disagree on the bytes of big-endian structured data types")


def item_nbytes(data_type: Json) -> int | None:
    """Return the size of an element in bytes; None if it varies or the type is unknown."""
    found = DataType.find(data_type)
    return None if found is None or found.varies else found.nbytes


def _parse_fixed(data_type: Json, depth: int) -> DataType:
    parsed = _parse(data_type, depth)
    if parsed.varies:
        raise NotShownError(f"elements of the data type {parsed.name} vary in size")
    return parsed


def _parse(data_type: Json, depth: int) -> DataType:
    extension = Extension.parse(data_type, "data_type")
    name = extension.name
    if name in _NATIVE or name in _LAID_OUT:
        extension.expect()
        return DataType(name, np.dtype(_NATIVE.get(name) or _LAID_OUT[name]), name in _NATIVE)
    if name in _COMPLEX_PARTS:
        extension.expect()
        part = _parse(_COMPLEX_PARTS[name], depth)
        return _record(name, [("real", part), ("imag", part)], is_native=False)
    if kind := _CONFIGURED.get(name):
        return DataType(name, _parse_time(extension, kind) if kind in "Mm" else _parse_sized(extension, kind), True)
    if name in ("struct", "structured"):
        return _parse_struct(extension, depth)
    if raw := _RAW_BITS.fullmatch(name):
        extension.expect()
        digits = raw[1]
        nbits = int(digits[:12])  # with more of them it is too large anyway
        if digits.startswith("0") or nbits % 8:
            raise MetadataError(f"the data type {brief(name)} has no whole number of bytes")
        return DataType(name, _sized("V", nbits // 8), True)
    if name in VLEN_SERIALIZERS:
        extension.expect()
        return DataType(name, np.dtypes.StringDType() if name == "string" else np.dtype(object), True)
    raise NotShownError(f"the data type {brief(name)} is not known")


def _parse_struct(extension: Extension, depth: int) -> DataType:
    """Parse a struct; fields are objects, or pairs of name and data type, as zarr-python 3.1 writes `structured`."""
    extension.expect("fields")
    fields = extension.configuration.get("fields")
    if not isinstance(fields, list) or not fields:
        raise MetadataError(f"the fields of {extension.name} must be a list of at least one, not {brief(fields)}")
    if depth == MAX_DEPTH:
        raise NotShownError(f"structs more than {MAX_DEPTH} deep are not read")
    parsed: dict[str, DataType] = {}
    for field in fields:
        match field:
            case [str(name), data_type]:
                pass
            case {"name": str(name), "data_type": data_type, **rest} if not rest:
                pass
            case _:
                raise MetadataError(f"a field of {extension.name} must have a name and a data type, not {brief(field)}")
        if not name or name in parsed:
            raise MetadataError(f"the fields of {extension.name} need names of their own, not {brief(name)}")
        parsed[name] = _parse_fixed(data_type, depth + 1)
    is_native = all(field.is_native for field in parsed.values())
    return _record(extension.name, list(parsed.items()), is_native=is_native)


def _record(name: str, fields: list[tuple[str, DataType]], *, is_native: bool) -> DataType:
    _check_size(sum(field.nbytes for _, field in fields))
    return DataType(name, np.dtype([(key, field.dtype) for key, field in fields]), is_native)


def _parse_time(extension: Extension, kind: str) -> np.dtype[Any]:
    extension.expect("unit", "scale_factor")
    unit = extension.configuration.get("unit")
    if unit not in _TIME_UNITS:
        raise MetadataError(f"{extension.name} has no unit {brief(unit)}")
    factor = extension.integer("scale_factor", 1, 1, _MAX_SCALE_FACTOR)
    return np.dtype(f"<{kind}8[{factor}{unit}]" if unit != "generic" else f"<{kind}8")


def _parse_sized(extension: Extension, kind: str) -> np.dtype[Any]:
    extension.expect("length_bytes")
    nbytes = extension.configuration.get("length_bytes")
    unit_nbytes = 4 if kind == "U" else 1
    if type(nbytes) is not int or nbytes < 1 or nbytes % unit_nbytes:
        raise MetadataError(
            f"the length_bytes of {extension.name} must be a multiple of {unit_nbytes}, not {brief(nbytes)}"
        )
    return _sized(kind, nbytes)


def _sized(kind: str, nbytes: int) -> np.dtype[Any]:
    _check_size(nbytes)
    return np.dtype(f"<U{nbytes // 4}" if kind == "U" else f"{kind}{nbytes}")


def _check_size(nbytes: int) -> None:
    if nbytes > MAX_ITEM_NBYTES:
        raise NotShownError(f"elements of {nbytes} bytes are larger than the {MAX_ITEM_NBYTES} that are read")


def v2_dtype(data_type: DataType, endian: str) -> Json:
    """Return the `dtype` of a `.zarray` for elements stored in byte order *endian*; raises `NotShownError`."""
    if data_type.varies:
        return "|O"
    if not data_type.is_native:
        raise NotShownError(f"the data type {brief(data_type.name)} has no Zarr v2 form")
    data_type.check_endian(endian)
    return v2_fields(data_type.dtype.newbyteorder("<" if endian == "little" else ">"))


def parse_v2_dtype(dtype: Json, depth: int = 0) -> np.dtype[Any]:
    """Parse the `dtype` of a `.zarray`; raises `MetadataError`."""
    try:
        if isinstance(dtype, str) and _V2_SCALAR.fullmatch(dtype):
            return np.dtype(dtype)
        if isinstance(dtype, list) and dtype and depth < MAX_DEPTH:
            return np.dtype([_parse_v2_field(field, depth) for field in dtype])
    except (TypeError, ValueError, OverflowError):
        pass
    raise MetadataError(f"the dtype {brief(dtype)} is not known")


def v3_data_type(dtype: np.dtype[Any]) -> Json:
    """Return the v3 `data_type` of *dtype*, in either byte order; raises `NotUnshardable`."""
    if dtype.itemsize > MAX_ITEM_NBYTES:
        raise NotUnshardable(f"elements of {dtype.itemsize} bytes are larger than the {MAX_ITEM_NBYTES} that are read")
    if dtype.fields is not None:
        return {"name": "structured", "configuration": {"fields": [_v3_field(dtype, n) for n in dtype.names or ()]}}
    if name := _NAMES.get(dtype.newbyteorder("<")):
        return name
    if (name := _NAMES_BY_KIND.get(dtype.kind)) and dtype.itemsize and dtype.subdtype is None:
        if dtype.kind not in "Mm":
            return {"name": name, "configuration": {"length_bytes": dtype.itemsize}}
        unit, count = np.datetime_data(dtype)
        return {"name": name, "configuration": {"unit": unit, "scale_factor": count}}
    raise NotUnshardable(f"the dtype {dtype.str} has no Zarr v3 form")


def type_name(data_type: Json) -> str:
    """Return the name of a `data_type` member."""
    return str(data_type["name"] if isinstance(data_type, dict) else data_type)


def v2_fields(dtype: np.dtype[Any]) -> Json:
    """Return the `dtype` of a `.zarray` for *dtype*, in its byte order."""
    if dtype.fields is None:
        return dtype.str
    return [_v2_field(name, dtype[name]) for name in dtype.names or ()]


def _v2_field(name: str, field: np.dtype[Any]) -> Json:
    return [name, v2_fields(field.base), *([list(field.shape)] if field.subdtype is not None else [])]


def _parse_v2_field(field: Json, depth: int) -> tuple[Any, ...]:
    if not isinstance(field, list) or len(field) not in (2, 3) or not isinstance(field[0], str):
        raise MetadataError(f"the field {brief(field)} of a dtype is not a pair of a name and a dtype")
    if len(field) == 2:
        return field[0], parse_v2_dtype(field[1], depth + 1)
    shape = field[2]
    if not isinstance(shape, list) or not all(type(length) is int and 0 < length < 2**31 for length in shape):
        raise MetadataError(f"the shape {brief(shape)} of a field is not valid")
    return field[0], parse_v2_dtype(field[1], depth + 1), tuple(shape)


def _v3_field(dtype: np.dtype[Any], name: str) -> Json:
    field = dtype[name]
    if field.subdtype is not None or field != field.newbyteorder("<"):
        raise NotUnshardable(f"the field {brief(name)} of the dtype has no Zarr v3 form")
    return [name, v3_data_type(field)]


_NOT_A_TIME: Final = -(2**63)
_DECIMAL: Final = re.compile(r"\s*[+-]?[0-9]{1,40}\s*", re.ASCII)
_NUMBER: Final = re.compile(
    r"\s*[+-]?(([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,9})?|nan|inf|infinity)\s*",
    re.ASCII | re.IGNORECASE,
)
"""Integers and floats as Python reads them."""
_SPECIAL_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def fill_element(data_type: Json, fill_value: Json) -> bytes:
    """Return the element for missing chunks as little-endian bytes, or as UTF-8 for text of varying size.

    Raises `MetadataError` if *fill_value* is invalid for *data_type*, and `NotShownError` for a type that NumPy does
    not have: no view that needs its elements shows it. Bytes of varying size can only be empty.
    """
    parsed = DataType.parse(data_type)
    if not parsed.is_native:
        raise NotShownError(f"fill values of the data type {parsed.name} are not read")
    element = parse_element(parsed.dtype, _specified(parsed.dtype, fill_value))
    if element is None:
        raise MetadataError(f"the data type {parsed.name} has no fill value {brief(fill_value)}")
    return element


def v2_fill_element(data_type: Json, fill_value: Json) -> bytes:
    """Return what `fill_element` does, for the `fill_value` of a `.zarray`; null is only valid for text."""
    parsed = DataType.parse(data_type)
    if not parsed.varies:
        return v2_element(parsed.dtype, fill_value)
    # zarr-python 2 writes null or 0 as a default.
    is_default = fill_value is None or (type(fill_value) is int and not fill_value)
    return fill_element(data_type, "" if is_default else fill_value)


def v3_fill_value(data_type: Json, element: bytes) -> Json:
    """Return the v3 `fill_value` for *element*: as in v2, apart from raw bits and bytes of varying size."""
    name = type_name(data_type)
    if name in VLEN_SERIALIZERS:
        return element.decode(errors="surrogatepass")
    return list(element) if _RAW_BITS.fullmatch(name) else v2_fill_value(data_type, element)


def v2_fill_value(data_type: Json, element: bytes) -> Json:
    """Return the `fill_value` of a `.zarray` for *element*.

    Raises `NotShownError` for a NaN other than that of "NaN", and for invalid text.
    """
    dtype = DataType.parse(data_type).dtype
    match dtype.kind:
        case "T":
            return element.decode(errors="surrogatepass")
        case "O":
            return None  # zarr-python 2 would read text as text, and its filter refuses to encode that
        case "f":
            return _float_to_json(element)
        case "c":
            half = len(element) // 2
            return [_float_to_json(element[:half]), _float_to_json(element[half:])]
        case "m" | "M":
            value = int.from_bytes(element, "little", signed=True)
            if dtype.kind == "m" or np.datetime_data(dtype)[0] != "generic":
                return value
            if value != _NOT_A_TIME:
                raise NotShownError("a time without a unit is not a fill value of Zarr v2")
            return "NaT"  # NumPy accepts no number for it
        case "S" | "V":
            return base64.b64encode(element).decode("ascii")
        case "U":
            try:
                return element.decode("utf-32-le", "surrogatepass").rstrip("\0")
            except UnicodeDecodeError:
                raise NotShownError("the fill value is not text") from None
        case _:
            return np.frombuffer(element, dtype)[0].item()


def parse_element(dtype: np.dtype[Any], value: Json) -> bytes | None:
    """Return the bytes of an element of the little-endian *dtype*; None if *value* is invalid for it."""
    try:
        return _element(dtype, value)
    except (ValueError, TypeError, OverflowError):
        return None


def v2_element(dtype: np.dtype[Any], value: Json) -> bytes:
    """Return the little-endian element for the `fill_value` of a `.zarray` with this *dtype*.

    Accepts the spellings of Zarr v2, but not those that only v3 has. Raises `MetadataError`, also for null.
    """
    value, dtype = reordered_fill(dtype, value), dtype.newbyteorder("<")
    is_number = type(value) in (int, float)
    has_bits = any(str(part).startswith("0x") for part in (value if isinstance(value, list) else [value]))
    element = None
    if dtype.kind in "SU" and is_number and value == 0:
        value = "0" if dtype.kind == "U" else "MA=="  # as zarr-python reads the 0 that version 2 writes for text
    if dtype.kind in "SUV" and (value == "" or (is_number and value == 0)):
        element = bytes(dtype.itemsize)
    elif dtype.kind == "c" and not isinstance(value, list):
        return v2_element(dtype, [value, 0.0])
    elif not (dtype.kind in "fc" and has_bits) and not (dtype.kind in "SUV" and not isinstance(value, str)):
        element = parse_element(dtype, _specified(dtype, value))
    if element is None or value is None:
        raise MetadataError(f"the fill value {brief(value)} is not one of the dtype {dtype.str}")
    return element


def reordered_fill(dtype: np.dtype[Any], value: Json) -> Json:
    """Return the `fill_value` of a `.zarray` of *dtype* as that of a little-endian one, and the other way round.

    It differs for structs: their base64 has the bytes of an element, each field in its own byte order.
    """
    if dtype.names is not None and isinstance(value, str):
        with suppress(ValueError):
            element = base64.b64decode(value, validate=True)
            if len(element) == dtype.itemsize:
                return base64.b64encode(_reordered(dtype, element)).decode("ascii")
    return value


def _reordered(dtype: np.dtype[Any], element: bytes) -> bytes:
    if dtype.subdtype is not None:
        base = dtype.base
        starts = range(0, len(element), base.itemsize or 1)
        return b"".join(_reordered(base, element[start : start + base.itemsize]) for start in starts)
    if dtype.fields is not None:
        fields = [dtype.fields[name] for name in dtype.names or ()]
        return b"".join(_reordered(field[0], element[field[1] : field[1] + field[0].itemsize]) for field in fields)
    if not element or dtype == dtype.newbyteorder("<"):
        return element
    return np.frombuffer(element, dtype).byteswap().tobytes()


def _specified(dtype: np.dtype[Any], value: Json) -> Json:
    """Return a fill value as its specification spells it; as it is if zarr-python reads no other spelling of it.

    zarr-python converts it as Python and NumPy do. It takes any text for true, "false" too, so that is skipped.
    """
    kind = dtype.kind
    if kind == "b" and (value is None or isinstance(value, int | float)):
        return bool(value)
    if isinstance(value, bool) and kind in "iufmM":
        return int(value)
    if isinstance(value, str) and kind in "iu" and _DECIMAL.fullmatch(value):
        return int(value)
    if isinstance(value, str) and kind == "f" and _NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, list) and kind == "c":
        return [int(part) if isinstance(part, bool) else part for part in value]
    if isinstance(value, str) and kind == "U":
        return value[: dtype.itemsize // 4]
    if isinstance(value, str) and kind in "SV" and dtype.names is None:
        with suppress(ValueError):
            element = base64.b64decode(value, validate=True)[: dtype.itemsize].ljust(dtype.itemsize, b"\0")
            return base64.b64encode(element).decode("ascii")
    if isinstance(value, int | float) and kind == "T":
        return str(value)
    return value


def _element(dtype: np.dtype[Any], value: Json) -> bytes:
    """Do what `parse_element` does; raises `ValueError`, `TypeError` or `OverflowError` if *value* is invalid."""
    nbytes = dtype.itemsize
    match dtype.kind:
        case "b" if isinstance(value, bool):
            return bytes([value])
        case "i" | "u":
            return _integer(value, nbytes, is_signed=dtype.kind == "i")
        case "M" | "m":
            return _integer(_NOT_A_TIME if value == "NaT" else value, nbytes, is_signed=True)
        case "f":
            return _float(value, nbytes)
        case "c" if isinstance(value, list):
            real, imaginary = value
            return _float(real, nbytes // 2) + _float(imaginary, nbytes // 2)
        case "U" if isinstance(value, str):
            # JSON may contain an unpaired surrogate, and NumPy accepts it.
            element = value.encode("utf-32-le", "surrogatepass").ljust(nbytes, b"\0")
        case "T" if isinstance(value, str):
            return value.encode(errors="surrogatepass")
        case "O" if value == "":
            return b""
        case "V" if isinstance(value, dict) and dtype.names is not None and value.keys() == set(dtype.names):
            return b"".join(_element(dtype[name], value[name]) for name in dtype.names)
        case "V" if isinstance(value, list) and dtype.names is None and all(type(byte) is int for byte in value):
            element = bytes(value)
        case "S":  # null-terminated bytes may be shorter
            element = base64.b64decode(value, validate=True).ljust(nbytes, b"\0")
        case "V":
            element = base64.b64decode(value, validate=True)
        case _:
            raise ValueError
    if len(element) != nbytes:
        raise ValueError
    return element


def _integer(value: Json, nbytes: int, *, is_signed: bool) -> bytes:
    # An integer may be written with a zero fraction: JavaScript does not distinguish them.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise ValueError
    return value.to_bytes(nbytes, "little", signed=is_signed)


def _float(value: Json, nbytes: int) -> bytes:
    if isinstance(value, str) and re.fullmatch(f"0x[0-9a-fA-F]{{{2 * nbytes}}}", value):
        return bytes.fromhex(value[2:])[::-1]  # its bits, most significant first
    if isinstance(value, str):
        value = _SPECIAL_FLOATS.get(value)
    if type(value) not in (int, float):
        raise ValueError
    number = float(value)
    if math.isnan(number):
        number = math.nan  # the bits of a computed NaN depend on the machine
    with np.errstate(over="ignore"):
        return np.array(number, f"<f{nbytes}").tobytes()


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
