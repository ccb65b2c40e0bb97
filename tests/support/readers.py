"""Zarr readers that are not ours."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorstore
import zarr


def read_zarr(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        return np.asarray(zarr.open_array(str(path), mode="r")[...])


def read_tensorstore(path: Path, **options: str) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, **options}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


READERS: dict[str, Callable[[Path], np.ndarray]] = {"zarr": read_zarr, "tensorstore": read_tensorstore}


def assert_same(read: np.ndarray, expected: np.ndarray) -> None:
    assert (read.shape, read.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "T":
        assert read.tolist() == expected.tolist()
    else:
        assert read.tobytes() == expected.tobytes()
