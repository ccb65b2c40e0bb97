"""Data sets as scientists have them, to be looked at: a climate cube, an image of five dimensions, tables, damage."""

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.support.datasets import age
from tests.support.images import put, write_group

LATITUDES = np.linspace(-80, 80, 17)
LONGITUDES = np.arange(0, 360, 15.0)
NTIMES = 30


def climate(directory: Path, latitudes: np.ndarray = LATITUDES, **of_time: Any) -> np.ndarray:
    """Store a group with a temperature along time, lat and lon, and return its values; south is colder than north."""
    write_group(directory, {"title": "A climate"})
    north = 280 + latitudes / 10
    values = np.add.outer(np.arange(NTIMES) / 10, np.add.outer(north, np.cos(np.deg2rad(LONGITUDES)))).astype("float32")
    axes: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "time": (
            np.arange(NTIMES, dtype="int64"),
            {"units": "days since 2020-02-28", "calendar": "standard", **of_time},
        ),
        "lat": (latitudes.astype("float64"), {"units": "degrees_north"}),
        "lon": (LONGITUDES, {"units": "degrees_east"}),
    }
    for name, (coordinates, attributes) in axes.items():
        put(directory / name, coordinates, (100,), (100,), dimension_names=[name], attributes=attributes)
    about = {"long_name": "Air temperature", "units": "K"}
    shape = (10, len(latitudes), 12)
    members = {"dimension_names": ["time", "lat", "lon"], "attributes": about, "fill_value": "NaN"}
    put(directory / "tas", values, (10, len(latitudes), 24), shape, **members)
    age(directory)
    return values


COLORS = ("FF0000", "00FF00", "0000FF")


def cells(directory: Path, side: int = 64) -> np.ndarray:
    """Store an image of OME-Zarr along t, c, z, y and x with omero and labels; return its finest level."""
    down, across = np.indices((side, side))
    planes = [across, down, across + down]
    values = np.zeros((2, 3, 4, side, side), "uint16")
    for time in range(2):
        for channel, plane in enumerate(planes):
            for depth in range(4):
                values[time, channel, depth] = plane * 10 + depth + 100 * time
    labels = np.zeros((2, 1, 4, side, side), "uint16")
    labels[..., 8:24, 8:24], labels[..., 40:56, 40:56] = 1, 2
    _pyramid(directory, values, {"omero": {"channels": [
        {"label": f"stain {number}", "color": color, "active": number < 2, "window": {"start": 0, "end": 10 * side}}
        for number, color in enumerate(COLORS)
    ]}})  # fmt: skip
    write_group(directory / "labels", {"ome": {"version": "0.5", "labels": ["nuclei"]}})
    _pyramid(directory / "labels/nuclei", labels, {"image-label": {}})
    age(directory)
    return values


def _pyramid(directory: Path, values: np.ndarray, others: dict[str, Any]) -> None:
    axes = [{"name": "t", "type": "time", "unit": "second"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    datasets = []
    for level in range(2):
        step = 2**level
        smaller = np.ascontiguousarray(values[..., ::step, ::step])
        shape = (1, 1, values.shape[2], *smaller.shape[-2:])
        put(directory / str(level), smaller, shape, (1, 1, 1, 16, 16), dimension_names=list("tczyx"))
        scale = {"type": "scale", "scale": [5.0, 1.0, 2.0, 0.5 * step, 0.5 * step]}
        datasets.append({"path": str(level), "coordinateTransformations": [scale]})
    write_group(directory, {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}], **others}})


def tables(directory: Path) -> None:
    """Store texts of varying and of fixed size, structs, a number, a picture in colours, and numbers that are none."""
    group = zarr.create_group(directory, zarr_format=3)
    names = group.create_array("names", shape=(130,), chunks=(40,), shards=(160,), dtype=str, dimension_names=["gene"])
    names[:] = np.array([f"gene {number} <b>µ</b>" for number in range(130)], dtype=object)
    fixed = group.create_array("fixed", shape=(6, 3), chunks=(3, 3), shards=(6, 3), dtype="U12")
    fixed[:] = np.array([[f"r{row}c{column}" for column in range(3)] for row in range(6)])
    spots = np.zeros(7, dtype=[("id", "i4"), ("x", "f8"), ("name", "S8")])
    spots["id"], spots["x"], spots["name"] = np.arange(7), np.arange(7) / 4, b"spot"
    structs = group.create_array("spots", shape=(7,), chunks=(4,), dtype=spots.dtype)  # zarr 3.1 cannot shard it
    structs[:] = spots
    answer = group.create_array("answer", shape=(), chunks=(), dtype="int32", attributes={"units": "m"})
    answer[...] = 42
    down, across = np.indices((32, 32))
    photo = np.stack([down * 8, across * 8, 255 - down * 8], axis=-1).astype("uint8")
    put(directory / "photo", photo, (32, 32, 3), (16, 16, 3), dimension_names=["y", "x", "rgb"])
    put(directory / "nothing", np.full((8, 8), np.nan, "float32"), (8, 8), (4, 4), fill_value=0.0)
    age(directory)
