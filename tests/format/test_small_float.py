"""Small floats: every value of every format, and rounding, as ml_dtypes has them."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardfs.errors import MetadataError
from shardfs.format.small_float import SMALL_FLOATS, encode_bfloat16

floats = st.floats(width=32).filter(lambda value: not math.isnan(value)) | st.floats(-600, 600, width=32)


@pytest.mark.parametrize("name", SMALL_FLOATS)
@given(values=st.lists(floats, min_size=1, max_size=20))
@example(
    values=[0.0, -0.0, math.inf, -math.inf, 1e-30, -1e-30, 1e30, 448, 464, 480, 15.75, 6.5, 7.75, 30, 57344, 61440]
)
def test_numbers_become_the_codes_that_ml_dtypes_gives_them(name: str, values: list[float]) -> None:
    if name == "float8_e8m0fnu":  # what lies half way between two powers is none's nearest
        values = [math.ldexp(1, math.frexp(value)[1]) if 0 < value < 2**126 else -1 for value in values]
        values = [max(value, 2**-127) if value > 0 else value for value in values]
    expected = np.array(values, "f4").astype(np.dtype(getattr(ml_dtypes, name))).view("u1")
    assert [SMALL_FLOATS[name].encode(value) for value in values] == expected.tolist()


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_every_code_is_the_code_of_its_value(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(2 ** (4 if "float4" in name else 6 if "float6" in name else 8), dtype="u1")
    for code, value in zip(codes.tolist(), codes.view(dtype).astype("f8").tolist(), strict=True):
        if not math.isnan(value):
            assert SMALL_FLOATS[name].encode(value) == code


def test_not_a_number_is_the_one_that_the_specification_names() -> None:
    nan = {name: small.nan for name, small in SMALL_FLOATS.items() if small.nan is not None}
    assert nan["float8_e4m3"] == 0x7C
    assert {name: SMALL_FLOATS[name].encode(math.nan) for name in nan} == nan
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):
        with pytest.raises(MetadataError):
            SMALL_FLOATS[name].encode(math.nan)


@given(floats)
@example(math.nan)
@example(3.3961775e38)
def test_bfloat16_is_rounded_as_ml_dtypes_rounds_it(value: float) -> None:
    assert encode_bfloat16(value) == np.array(value, "f4").astype(ml_dtypes.bfloat16).view("u2")


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_what_no_float32_holds_is_infinite_as_bfloat16(value: float) -> None:
    assert encode_bfloat16(value) == encode_bfloat16(math.copysign(math.inf, value))
