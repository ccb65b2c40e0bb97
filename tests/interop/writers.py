"""What worker processes of tests do, by a store that they open or that was sent to them.

Each of them imports it: it needs nothing else of the tests.
"""

import os
from itertools import product
from typing import Any

import numpy as np
import zarr

from shardfs.api.dataset import Dataset

Cell = tuple[slice, ...]

SHAPE, CHUNKS, SHARDS = (100, 100, 100), (25, 25, 25), (2, 2, 2)
VALUES = np.arange(100**3).reshape(SHAPE)
CELLS: list[Cell] = [
    tuple(slice(begin, begin + 25) for begin in begins) for begins in product(range(0, 100, 25), repeat=3)
]


def make_image(dataset: Dataset) -> zarr.Array[Any]:
    """Make the array of which the chunks are `CELLS`."""
    array = zarr.create_group(dataset.store()).create_array("image", shape=SHAPE, chunks=CHUNKS, dtype="i8")
    dataset.flush()
    return array


def write_cell(store: Any, cell: Cell, data: np.ndarray) -> int:
    """Write a part of the array of a store; return who did."""
    zarr.open_array(store, mode="r+")[cell] = data
    return os.getpid()
