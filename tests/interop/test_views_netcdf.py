"""netCDF-C, which decompresses no chunks that others compressed, reads the decoded v2 view."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray

from tests.support.clients import netcdf_url, output_of, read_gdal, read_netcdf, read_zarr2
from tests.support.datasets import age
from tests.support.mounting import Mounter
from tests.support.viewed import DOCUMENTS, Viewed, write_source


@pytest.fixture(scope="module")
def viewed(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    source = tmp_path_factory.mktemp("viewed") / "data.zarr"
    values = write_source(source)
    return Viewed(module_mount(source, arguments=["--view=v2", "--decode"]), source, values)


def test_ncdump_and_nccopy_read_all_arrays(viewed: Viewed, tmp_path: Path) -> None:
    assert "variables:" not in output_of("ncdump", "-h", netcdf_url(viewed.source)), "natively: nothing, and success"
    copy = tmp_path / "copy.nc"
    output_of("nccopy", netcdf_url(viewed.root), copy)
    for dataset in (netcdf_url(viewed.root), copy):
        head = output_of("ncdump", "-h", str(dataset))
        assert "ushort turned(z, y, x) ;" in head
        assert ':made\\ by = "a test" ;' in head
        assert 'image:title = "cells" ;' in head
        found = read_netcdf(dataset)
        assert sorted(found) == sorted(DOCUMENTS)
        for name, values in found.items():
            assert np.array_equal(values, viewed.values[name].ravel()), name


def test_readers_of_encoded_chunks_read_decoded_ones_and_more_arrays(viewed: Viewed, tmp_path: Path) -> None:
    found = read_zarr2(viewed.root, list(DOCUMENTS), tmp_path)
    for name in DOCUMENTS:
        assert np.array_equal(found[name], viewed.values[name]), name
    assert np.array_equal(read_gdal(viewed.root, "turned"), viewed.values["turned"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_attributes_in_any_language_are_what_was_written(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "data.zarr"
    written = xarray.Dataset({"t": ("x", np.arange(4), {"units": "°C", "who": "雨 🌧"})}, attrs={"title": "tëst"})
    written.to_zarr(source, zarr_format=3, consolidated=True)
    age(source)
    root = mount(source, arguments=["--view=v2", "--decode"]).path
    head = output_of("ncdump", "-h", netcdf_url(root))
    assert [text in head for text in ('t:units = "°C"', 't:who = "雨 🌧"', ':title = "tëst"')] == [True] * 3
