"""HDF5 files, and references to them, as kerchunk and VirtualiZarr write them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from kerchunk.df import refs_to_dataframe
from kerchunk.hdf import SingleHdf5ToZarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser


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


def write_axes(path: Path) -> dict[str, np.ndarray]:
    """Write a file with an array whose axes have values, as netCDF has."""
    values = {
        "x": np.arange(20.0),
        "y": np.arange(10.0),
        "t": np.random.default_rng(1).integers(0, 9, (20, 10)).astype("i4"),
    }
    with h5py.File(path, "w") as file:
        for name in ("x", "y"):
            file.create_dataset(name, data=values[name]).make_scale(name)
        made = file.create_dataset("t", data=values["t"], chunks=(6, 4), compression="gzip", shuffle=True)
        for axis, name in enumerate(("x", "y")):
            made.dims[axis].attach_scale(file[name])
    return values


def virtualized(path: Path, written: Path, form: str) -> Path:
    """Write the references that VirtualiZarr makes of an HDF5 file; returns where."""
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    found = open_virtual_dataset(f"file://{path}", registry=registry, parser=HDFParser())
    found.vz.to_kerchunk(str(written), format=form)
    return written


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
