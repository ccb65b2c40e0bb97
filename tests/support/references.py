"""HDF5 files, and references to them, as kerchunk and VirtualiZarr write them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from kerchunk.df import refs_to_dataframe
from kerchunk.hdf import SingleHdf5ToZarr


def write_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Write a file with arrays of several kinds; returns their values."""
    random = np.random.default_rng(5)
    values = {
        "packed": random.integers(0, 50, (20, 30)).astype("i4"),
        "plain": random.random((7, 9)),
        "partial": np.where(np.arange(40)[:, None] < 8, random.random((40, 6)), 0),
        "scalar": np.array(42.5),
    }
    with h5py.File(path, "w") as file:
        for name, options in {
            "packed": {"chunks": (6, 8), "compression": "gzip", "shuffle": True},
            "plain": {"chunks": None},
            "partial": {},
            "scalar": {},
        }.items():
            if name == "partial":
                made = file.create_dataset(name, (40, 6), "f8", chunks=(8, 6), fillvalue=0)
                made[:8] = values[name][:8]
            else:
                file.create_dataset(name, data=values[name], **options)
    return values


def kerchunked(path: Path, url: str | None = None) -> dict[str, Any]:
    """The references that kerchunk makes of an HDF5 file, as if it were at *url*."""
    with path.open("rb") as file:
        return dict(SingleHdf5ToZarr(file, url or str(path), inline_threshold=0).translate())


def write_document(path: Path, references: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(references))
    return path


def write_records(path: Path, references: Mapping[str, Any], record_size: int = 4) -> Path:
    """Write Parquet as kerchunk does."""
    refs_to_dataframe(dict(references), str(path), record_size=record_size)
    return path


def files_in(root: Path) -> dict[str, bytes]:
    """The bytes of all files below *root*, by their relative paths."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
