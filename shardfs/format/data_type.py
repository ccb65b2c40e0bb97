"""Data types: how elements lie in plain array bytes, and what NumPy calls them.

Source: Zarr core specification 3.1, "Data types", and the registered extensions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardfs.format.metadata import Json


@dataclass(frozen=True, slots=True)
class DataType:
    """A data type whose elements all have one size.

    *dtype* lays an element out in NumPy, little-endian, so that bytes can be swapped and axes moved.  *is_native* tells
    whether NumPy also means the same by it: bfloat16 is laid out as an unsigned integer, and is none.
    """

    name: str
    dtype: np.dtype[Any]
    is_native: bool

    @classmethod
    def parse(cls, data_type: Json) -> "DataType":
        """Read the `data_type` member of an array; raises `NotShownError` where elements vary in size or are unknown.

        Raises `MetadataError` for a known type that is not written as its specification says.
        """
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Size of an element in bytes."""
        return self.dtype.itemsize
