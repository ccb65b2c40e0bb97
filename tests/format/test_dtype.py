"""Data types: the layout that NumPy and other readers give to elements, or the reason why there is none."""

import warnings
from typing import Any

import numpy as np
import pytest
import tensorstore
from hypothesis import given
from zarr.dtype import parse_dtype

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.dtype import MAX_ITEM_NBYTES, DataType, item_nbytes
from tests.support.corpus import extension
from tests.support.json_values import json_values

NUMPY = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"),
    *("M8", "M8[s]", "M8[10ns]", "m8[D]", "m8[7us]", "U1", "U5", "S1", "S3", "V1", "V6"),
    [("a", "u2"), ("b", "U2"), ("c", [("x", "f4"), ("y", "M8[s]")]), ("d", "?")],
]
SMALL = [
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("bfloat16", "int2", "int4", "uint2", "uint4"),
]


def written_by_zarr(dtype: np.dtype[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        return parse_dtype(dtype, zarr_format=3).to_json(zarr_format=3)


def struct(*fields: Any) -> dict[str, Any]:
    return extension("struct", fields=[{"name": name, "data_type": data_type} for name, data_type in fields])


def nested(depth: int) -> Any:
    data_type: Any = "uint8"
    for _ in range(depth):
        data_type = struct(("x", data_type))
    return data_type


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_what_zarr_python_calls_a_numpy_type_is_that_type(dtype: Any) -> None:
    expected = np.dtype(dtype).newbyteorder("<")
    parsed = DataType.parse(written_by_zarr(np.dtype(dtype)))
    assert parsed.dtype == expected
    assert parsed.is_native
    assert parsed.nbytes == expected.itemsize
    assert parsed.has_byte_order == (expected != expected.newbyteorder(">"))


@pytest.mark.parametrize("name", SMALL)
def test_types_that_numpy_does_not_have_are_laid_out_as_tensorstore_does(name: str) -> None:
    parsed = DataType.parse(name)
    assert not parsed.is_native
    if name not in ("float6_e2m3fn", "float6_e3m2fn", "float8_e4m3", "uint2", "uint4"):  # unknown there
        assert parsed.nbytes == tensorstore.dtype(name).numpy_dtype.itemsize
    assert parsed.nbytes == (2 if name == "bfloat16" else 1)
    if "float" in name:
        assert DataType.parse(f"complex_{name}").nbytes == 2 * parsed.nbytes


@pytest.mark.parametrize(
    ("data_type", "reason"),
    [
        ("string", "string vary in size"),
        ("bytes", "bytes vary in size"),
        (extension("variable_length_bytes"), "vary in size"),
        (struct(("a", "string")), "vary in size"),
        ("example.type", "'example.type' is not known"),
        ("rx", "'rx' is not known"),
        ("r²", "is not known"),
        (extension("raw_bytes", length_bytes=MAX_ITEM_NBYTES + 1), "larger than"),
        (extension("raw_bytes", length_bytes=10**30), "larger than"),
        ("r" + 60 * "8", "larger than"),
        (struct(*((str(i), extension("raw_bytes", length_bytes=MAX_ITEM_NBYTES)) for i in range(3))), "larger than"),
        (nested(40), "16 deep"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_sound_type_without_a_layout_here_is_not_shown(data_type: Any, reason: str) -> None:
    with pytest.raises(NotShownError, match=reason):
        DataType.of_fixed_size(data_type)
    assert item_nbytes(data_type) is None


@pytest.mark.parametrize(
    "data_type",
    [
        *("r0", "r08", "r00000000008000", "r12", None, 5, {}, [], {"name": 5}, extension("int8", endian="big")),
        *(extension("fixed_length_utf32", length_bytes=nbytes) for nbytes in (0, 6, -4, 4.0, True, None, "4")),
        *(extension(name) for name in ("raw_bytes", "null_terminated_bytes", "numpy.datetime64", "struct")),
        extension("raw_bytes", length_bytes=0),
        extension("raw_bytes", length_bytes=3, colour="blue"),
        extension("numpy.datetime64", unit="fortnight", scale_factor=1),
        extension("numpy.datetime64", unit=["s"], scale_factor=1),
        *(extension("numpy.timedelta64", unit="s", scale_factor=factor) for factor in (0, -1, 1.5, True, 2**31)),
        *(
            extension("struct", fields=fields)
            for fields in ([], {}, None, ["a"], [["a"]], [["", "int8"]], [[1, "int8"]])
        ),
        struct(("a", "int8"), ("a", "int8")),
        extension("struct", fields=[{"name": "a", "data_type": "int8", "offset": 4}]),
        struct(("a", "r4")),
    ],
    ids=str,
)
def test_a_known_type_that_is_written_wrongly_is_refused(data_type: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        DataType.parse(data_type)
    assert len(str(caught.value)) < 200


@pytest.mark.slow
@given(json_values)
def test_any_json_is_a_type_or_is_judged(value: Any) -> None:
    try:
        assert 1 <= DataType.parse(value).nbytes <= MAX_ITEM_NBYTES
    except (MetadataError, NotShownError):
        return
