"""Fill values: the element that other readers see where no chunk is, to the last bit."""

import base64
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.dtype import parse_dtype

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.dtype import DataType, fill_element
from tests.support.corpus import LITTLE, array, extension
from tests.support.encoder import numpy_dtype
from tests.support.json_values import json_values
from tests.support.readers import read_zarr

NATIVE = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
DATE = extension("numpy.datetime64", unit="ns", scale_factor=10)
TEXT = extension("fixed_length_utf32", length_bytes=16)
BYTES = extension("null_terminated_bytes", length_bytes=4)
RAW = extension("raw_bytes", length_bytes=3)
STRUCT = extension("struct", fields=[{"name": "x", "data_type": "int16"}, {"name": "y", "data_type": TEXT}])
PAIRS = extension("structured", fields=[["x", "int16"], ["y", TEXT]])


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def filled(data_type: Any, fill_value: Any) -> bytes:
    return fill_element(data_type, fill_value)


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
@given(data=st.data())
def test_every_element_that_zarr_python_writes_is_read_as_it_was(name: str, data: st.DataObject) -> None:
    dtype = numpy_dtype(name).newbyteorder("<")
    raw = data.draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    value = np.frombuffer(bytes([raw[0] & 1]) if name == "bool" else raw, dtype)[0]
    written = parse_dtype(dtype, zarr_format=3).to_json_scalar(value, zarr_format=3)
    read = np.frombuffer(filled(name, json.loads(json.dumps(written))), dtype)[0]
    np.testing.assert_equal(read, value)  # one NaN is as good as another here


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("M8[10ns]", np.datetime64(12345, "10ns")),
        ("M8[s]", np.datetime64("NaT", "s")),
        ("m8[D]", np.timedelta64(-3, "D")),
        ("U4", "µ\U0001f600b"),
        ("U4", ""),
        ("S4", b"ab"),
        ("S4", b"abcd"),
        ("V3", np.void(b"\0\xff\1")),
        ([("x", "i2"), ("y", "U4")], np.array((-5, "µ"), [("x", "i2"), ("y", "U4")])[()]),
    ],
    ids=str,
)
def test_zarr_python_shows_the_same_element(tmp_path: Path, dtype: Any, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        zarr.create_array(str(tmp_path), shape=(2,), chunks=(2,), dtype=dtype, fill_value=value)
    document = json.loads((tmp_path / "zarr.json").read_bytes())
    expected = np.full(2, value, np.dtype(dtype).newbyteorder("<"))
    assert filled(document["data_type"], document["fill_value"]) * 2 == expected.tobytes()
    read = read_zarr(tmp_path)
    assert read.tobytes() == expected.tobytes()


@pytest.mark.parametrize("data_type", ["bfloat16", "int4", "float8_e5m2", "complex_bfloat16", "complex_float16"])
def test_elements_that_numpy_does_not_have_are_not_read(data_type: str) -> None:
    with pytest.raises(NotShownError, match=data_type):
        filled(data_type, 0)
    with pytest.raises(NotShownError, match="struct"):
        filled(extension("struct", fields=[{"name": "x", "data_type": data_type}]), {"x": 0})


@pytest.mark.parametrize(
    ("data_type", "fill_value"),
    [
        *(("bool", value) for value in ("true", "false", "0", "", [False])),
        *(("int8", value) for value in (128, -129, 0.5, "0x01", "1.0", "128", None, [0], math.nan, math.inf, 10**400)),
        *(("uint64", value) for value in (-1, 2**64, 1e30)),
        *(("float32", value) for value in ("", "0x", "0x7fc0", "0x7fc000000", "0x7fc0000g", "0x 7fc0000", "1e")),
        *(("float32", value) for value in (None, [1.0], {}, 10**400, "0x7fc00000 ")),
        *(("complex64", value) for value in (0, [0], [0, 0, 0], "NaN", None, ["x", 0], ["0", 0], {"re": 0, "im": 0})),
        *((DATE, value) for value in ("now", "0", 0.5, 2**63, None)),
        *((TEXT, value) for value in (5, None)),
        *((BYTES, value) for value in ("abc", "ÄÄÄÄ", [1, 2], None, 5)),
        *((RAW, value) for value in ([1, 2], [1, 2, 256], [1, 2, -1], [1, 2, True], {}, "ab", 0)),
        *(
            (STRUCT, value)
            for value in ({"x": 1}, {"x": 1, "y": "", "z": 0}, {"x": 1, "y": 5}, "AA==", 0, None, [1, ""])
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_element_is_refused_by_name(data_type: Any, fill_value: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        filled(data_type, fill_value)
    assert len(str(caught.value)) < 200


SPELLINGS: list[tuple[Any, list[Any]]] = [
    ("bool", [0, 1, 0.0, 1.0, 2, None]),
    ("int8", [True, False, 1.0, "0", "-1", "+5", " 7 "]),
    ("uint64", [True, "0", "18446744073709551615"]),
    ("float32", [True, "0", "0.0", "1.5", ".5", "5.", "1e3", "1e999", "nan", "NaN", "inf", "-inf", "+Infinity"]),
    ("float64", [False, "-0.0", "infinity", "0x7ff8000000000001"]),
    ("complex64", [[True, 0], ["NaN", "0x3f800000"]]),
    (DATE, [True, "NaT", -(2**63)]),
    (TEXT, ["abcde", "a"]),
    (BYTES, [base64_of(b"abcde"), base64_of(b"a")]),
    (RAW, [base64_of(b"ab"), base64_of(b"abcd"), ""]),
]
"""Fill values that zarr-python reads, and the specification does not have."""


@pytest.mark.parametrize(("data_type", "values"), SPELLINGS, ids=str)
def test_a_fill_value_in_another_spelling_is_the_element_that_zarr_python_reads(
    tmp_path: Path, data_type: Any, values: list[Any]
) -> None:
    for value in values:
        (tmp_path / "zarr.json").write_text(
            json.dumps(array((2,), (2,), LITTLE, data_type=data_type, fill_value=value))
        )
        assert filled(data_type, value) * 2 == read_zarr(tmp_path).astype(DataType.parse(data_type).dtype).tobytes()


@pytest.mark.slow
@given(st.sampled_from([*NATIVE, DATE, TEXT, BYTES, RAW, STRUCT, PAIRS]), json_values)
def test_any_json_is_an_element_or_is_refused(data_type: Any, fill_value: Any) -> None:
    try:
        assert len(filled(data_type, fill_value)) == DataType.parse(data_type).nbytes
    except (MetadataError, NotShownError):
        return
