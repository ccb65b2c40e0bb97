"""What xarray refuses to write into shards, as Dask chunks are smaller, is written through the store and a mount."""

from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr

import shardfs
from tests.support.mounting import Mounter

PART = {"y": slice(8, 16), "x": slice(0, 32)}


def data() -> xarray.Dataset:
    values = np.arange(32 * 32.0).reshape(32, 32)
    return xarray.Dataset({"height": (("y", "x"), values)}).chunk({"y": 8, "x": 8})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The data in one shard, of which a part is to be written."""
    zarr_chunks = {"height": {"chunks": (8, 8), "shards": (32, 32)}}
    data().compute().to_zarr(tmp_path / "data.zarr", encoding=zarr_chunks, zarr_format=3, consolidated=False)
    return tmp_path / "data.zarr"


def write(where: object) -> None:
    (data() + 1).isel(PART).to_zarr(where, region=PART, consolidated=False)


def assert_written(source: Path) -> None:
    expected = data()["height"].values.copy()
    expected[8:16] += 1
    stored = zarr.open_group(source, mode="r")["height"]
    assert stored.shards == (32, 32)
    np.testing.assert_array_equal(stored[...], expected)


def test_xarray_refuses_it_natively(source: Path) -> None:
    with pytest.raises(ValueError, match="overlap multiple Dask chunks"):
        write(source)


def test_through_the_store_it_is_written(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        write(dataset.store())
    assert_written(source)


def test_through_a_mount_it_is_written(source: Path, mount: Mounter) -> None:
    mounted = mount(source, arguments=["--write"])
    write(mounted.path)
    mounted.unmount()
    assert_written(source)
