"""Floating point numbers that NumPy does not have: their values, and the code nearest to a number.

Sources: the registered extensions `bfloat16`, `float8_*`, `float6_*` and `float4_*` of Zarr v3.
"""

import math
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from shardfs.errors import MetadataError

_BFLOAT16_NAN: Final = 0x7FC0


@dataclass(frozen=True)
class SmallFloat:
    """A format of one byte.

    *exponent_bits* and *mantissa_bits* follow a sign bit, if it *is_signed*; *bias* is that of the exponent.  *nan* is
    the code that stands for "NaN" and *infinity* that for infinity, if there is one; no code above *largest*, the sign
    left aside, is a finite number.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int
    nan: int | None = None
    infinity: int | None = None
    is_signed: bool = True

    @property
    def sign(self) -> int:
        """The code's bit that says that a number is negative."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @cached_property
    def _magnitudes(self) -> list[float]:
        """Values of the codes from 0 to *largest*, ascending, and the one that would be next."""
        return [self._magnitude(code) for code in range(self.largest + 2)]

    def _magnitude(self, code: int) -> float:
        exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        if not self.is_signed:
            return math.ldexp(1, exponent - self.bias)
        if exponent:
            mantissa += 1 << self.mantissa_bits
        return math.ldexp(mantissa, max(exponent, 1) - self.bias - self.mantissa_bits)

    def encode(self, value: float) -> int:
        """Return the code nearest to *value*, of two the even one; zero is the smallest where there is no zero.

        A number that is too large becomes infinity, else "NaN", else the largest one; a negative one without a sign is
        "NaN".  Raises `MetadataError` for a NaN that the format does not have.
        """
        is_negative = math.copysign(1, value) < 0
        if math.isnan(value) or (value < 0 and not self.is_signed):
            if self.nan is None:
                raise MetadataError(f"the data type has no number {value}")
            return self.nan
        magnitude = min(abs(value), self._magnitudes[-1])
        code = min(range(self.largest + 2), key=lambda i: (abs(self._magnitudes[i] - magnitude), i & 1))
        if code > self.largest:
            code = next(code for code in (self.infinity, self.nan, self.largest) if code is not None)
        # Where the code of -0 stands for NaN, zero has no sign.
        has_sign = self.is_signed and (code or self.nan != self.sign)
        return code | self.sign if is_negative and has_sign else code


SMALL_FLOATS: Final = {
    "float4_e2m1fn": SmallFloat(2, 1, 1, 0x7),
    "float6_e2m3fn": SmallFloat(2, 3, 1, 0x1F),
    "float6_e3m2fn": SmallFloat(3, 2, 3, 0x1F),
    "float8_e3m4": SmallFloat(3, 4, 3, 0x6F, nan=0x78, infinity=0x70),
    "float8_e4m3": SmallFloat(4, 3, 7, 0x77, nan=0x7C, infinity=0x78),
    "float8_e4m3b11fnuz": SmallFloat(4, 3, 11, 0x7F, nan=0x80),
    "float8_e4m3fn": SmallFloat(4, 3, 7, 0x7E, nan=0x7F),
    "float8_e4m3fnuz": SmallFloat(4, 3, 8, 0x7F, nan=0x80),
    "float8_e5m2": SmallFloat(5, 2, 15, 0x7B, nan=0x7E, infinity=0x7C),
    "float8_e5m2fnuz": SmallFloat(5, 2, 16, 0x7F, nan=0x80),
    "float8_e8m0fnu": SmallFloat(8, 0, 127, 0xFE, nan=0xFF, is_signed=False),
}


def encode_bfloat16(value: float) -> int:
    """Return the bits of the bfloat16 nearest to *value*, of two the even one, by way of float32."""
    if math.isnan(value):
        return _BFLOAT16_NAN
    try:
        data = struct.pack("<f", value)
    except OverflowError:
        data = struct.pack("<f", math.copysign(math.inf, value))
    bits = int.from_bytes(data, "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
