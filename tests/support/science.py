"""Datasets as xarray writes them, with missing values of every kind, and what it reads of them."""

import json
from pathlib import Path

import numpy as np
import xarray
import zarr

Values = dict[str, np.ndarray]

_SIDE = 24
_CUBE = {"chunks": (1, 8, 8), "shards": (2, 24, 24)}
_PLANE = {"chunks": (8, 8), "shards": (24, 24)}


def write_dataset(source: Path) -> None:
    """Coordinates and attributes, missing values that are numbers, packed ones, and chunks that are nowhere."""
    random = np.random.default_rng(1)
    temperature = random.normal(size=(4, _SIDE, _SIDE)).astype("f4")
    temperature[0, 0, :5], temperature[1, 3, 3] = np.nan, 0
    temperature[3] = np.nan
    packed = 10 * random.normal(size=(4, _SIDE, _SIDE))
    packed[0, 1], packed[3], packed[2, :8, :8] = np.nan, np.nan, 0
    dataset = xarray.Dataset(
        {
            "temperature": (("time", "lat", "lon"), temperature),
            "packed": (("time", "lat", "lon"), packed),
            "mask": (("lat", "lon"), _mask(random)),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        coords={
            "time": ("time", np.arange(4), {"units": "days since 2000-01-01"}),
            "lat": ("lat", np.arange(_SIDE) - 10.0, {"units": "degrees_north"}),
            "lon": ("lon", np.arange(_SIDE) * 1.0, {"units": "degrees_east"}),
            "height": ((), 0.0),
        },
        attrs={"title": "weather"},
    )
    encoding = {
        "temperature": {"_FillValue": np.float32(-9999), **_CUBE},
        "packed": {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32767, **_CUBE},
        "mask": _PLANE,
    }
    decoded = xarray.decode_cf(dataset)
    decoded.to_zarr(source, zarr_format=3, encoding=encoding, consolidated=True)


def write_bare(source: Path) -> None:
    """No coordinates and no attributes."""
    random = np.random.default_rng(2)
    mask = _mask(random)
    dataset = xarray.Dataset(
        {"floats": (("y", "x"), np.where(mask, mask * 1.5, np.nan)), "counts": (("y", "x"), mask.astype("i4"))}
    )
    dataset.to_zarr(source, zarr_format=3, encoding={"floats": _PLANE, "counts": _PLANE}, consolidated=False)


def write_as_before(source: Path) -> None:
    """The dataset with the fill values of an older xarray: 0 whatever the missing value is."""
    write_dataset(source)
    for path in source.glob("*/zarr.json"):
        document = json.loads(path.read_text())
        if document["data_type"].startswith("float"):
            document["fill_value"] = 0.0
        path.write_text(json.dumps(document))
    zarr.consolidate_metadata(str(source))


WRITERS = {"dataset": write_dataset, "bare": write_bare, "as-before": write_as_before}


def decoded(dataset: xarray.Dataset) -> Values:
    """What xarray makes of all variables: NaN for what is missing."""
    return {str(name): _plain(variable.values) for name, variable in dataset.load().variables.items()}


def natively(source: Path, group: str | None = None) -> Values:
    """What xarray reads of the source, without a mount."""
    with xarray.open_zarr(source, group=group, chunks=None, consolidated=False) as opened:
        return decoded(opened)


def stored(source: Path) -> Values:
    """What zarr-python reads of the source, without a mount, and without a meaning for any value."""
    group = zarr.open_group(str(source), mode="r", use_consolidated=False)
    return {name: np.asarray(array[...]) for name, array in group.arrays()}


def assert_equal(found: Values, expected: Values) -> None:
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        is_float = values.dtype.kind == "f"
        assert np.array_equal(found[name].ravel(), values.ravel(), equal_nan=is_float), name


def _plain(values: np.ndarray) -> np.ndarray:
    return values.astype("M8[s]").astype("f8") if values.dtype.kind == "M" else values.astype("f8")


def _mask(random: np.random.Generator) -> np.ndarray:
    mask = random.integers(0, 2, size=(_SIDE, _SIDE)).astype("u1")
    mask[:8, :8] = 0
    return mask


READ_BY_XARRAY = """
import sys, numpy, xarray
found, root, *options = sys.argv[1:]
def plain(values):
    return values.astype("M8[s]").astype("f8") if values.dtype.kind == "M" else values.astype("f8")
opened = xarray.open_zarr(root, consolidated="consolidated" in options, chunks=None).load()
numpy.savez(found, **{str(name): plain(variable.values) for name, variable in opened.variables.items()})
"""
READ_BY_NETCDF4 = """
import sys, numpy, netCDF4
found, url = sys.argv[1:]
opened = netCDF4.Dataset(url)
opened.set_auto_mask(False)
opened.set_auto_scale(False)
numpy.savez(found, **{name: variable[...] for name, variable in opened.variables.items()})
"""
