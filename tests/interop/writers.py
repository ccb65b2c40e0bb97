"""What worker processes of tests do, by a store that they open or that was sent to them."""

import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zarr

import shardfs

Cell = tuple[slice, ...]


def write_cell(store: Any, cell: Cell, data: np.ndarray) -> int:
    """Write a part of the array of a store; return who did."""
    zarr.open_array(store, mode="r+")[cell] = data
    return os.getpid()


def write_cells(url: str, path: str, cells: list[tuple[Cell, np.ndarray]], sender: Connection) -> None:
    """Open a dataset and write parts of an array, of which the number is sent as soon as each is written."""
    with shardfs.open(url, write=True) as dataset:
        array = zarr.open_array(dataset.store(path), mode="r+")
        for number, (cell, data) in enumerate(cells):
            array[cell] = data
            sender.send(number)
            sender.recv()
