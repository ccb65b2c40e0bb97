"""xarray and netCDF read of the v2 view the values that xarray reads natively, and write those that it reads then."""

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
import xarray

from tests.support.clients import MAIN, NETCDF4, ZARR2, netcdf_url, output_of, read_netcdf, read_zarr2
from tests.support.datasets import age
from tests.support.mounting import Mounter
from tests.support.science import (
    READ_BY_NETCDF4,
    READ_BY_XARRAY,
    WRITERS,
    Values,
    assert_equal,
    decoded,
    natively,
    stored,
)
from tests.support.writers import assert_sound, document_of

VIEWS = {
    "encoded": ["--view=v2"],
    "decoded": ["--view=v2", "--decode"],
}


def read_new(root: Path, *, consolidated: bool = False, group: str | None = None) -> Values:
    with xarray.open_zarr(root, zarr_format=2, chunks=None, consolidated=consolidated, group=group) as opened:
        return decoded(opened)


def read_old(root: Path, directory: Path, *options: str) -> Values:
    return ZARR2.arrays(READ_BY_XARRAY, directory, root, *options)


@pytest.mark.parametrize(("name", "view"), [("dataset", "encoded"), ("as-before", "decoded")])
def test_xarray_reads_the_values_that_it_reads_natively(mount: Mounter, tmp_path: Path, name: str, view: str) -> None:
    source = tmp_path / "data.zarr"
    WRITERS[name](source)
    age(source)
    expected, raw = natively(source), stored(source)
    root = mount(source, arguments=VIEWS[view]).path
    assert_equal(read_new(root), expected)
    assert_equal(read_old(root, tmp_path), expected)
    assert_equal(read_new(root, consolidated=True), expected)
    assert_equal(read_old(root, tmp_path, "consolidated"), expected)
    assert_equal(read_zarr2(root, list(raw), tmp_path), raw)


@pytest.mark.parametrize("name", ["bare", "as-before"])
def test_netcdf_reads_the_values_that_are_stored(mount: Mounter, tmp_path: Path, name: str) -> None:
    source = tmp_path / "data.zarr"
    WRITERS[name](source)
    age(source)
    expected = stored(source)
    root = mount(source, arguments=VIEWS["decoded"]).path
    expected = {array: values for array, values in expected.items() if values.ndim}  # it has no others
    assert_equal(read_netcdf(netcdf_url(root), *expected), expected)
    assert_equal(NETCDF4.arrays(READ_BY_NETCDF4, tmp_path, netcdf_url(root)), expected)
    if name == "bare":
        head = output_of("ncdump", "-h", netcdf_url(root))
        assert "floats:_FillValue = NaN ;" in head
        assert "counts:" not in head


def test_a_group_of_arrays_without_axes_reads_as_natively(mount: Mounter, tmp_path: Path) -> None:
    """Old and new xarray; what one of them writes back leaves the array without names, as it was."""
    source = tmp_path / "data.zarr"
    crs = xarray.Dataset({"crs": ((), 0, {"grid": "latitude"}), "height": ((), 0.0)})
    tree = xarray.DataTree.from_dict({"/": xarray.Dataset({"n": ("z", [0, 1])}), "/mapping": crs})
    tree.to_zarr(source, zarr_format=3, consolidated=True)
    age(source)
    for below in ("", "mapping"):
        root = mount(source / below, arguments=["--view=v2"]).path
        group = "mapping" if not below else None
        with xarray.open_zarr(root, zarr_format=2, chunks=None, consolidated=not below, group=group) as found:
            assert_equal(decoded(found), natively(source, "mapping"))
        assert_equal(read_old(root / (group or ""), tmp_path), natively(source, "mapping"))
    stored_before = document_of(source / "mapping" / "crs")
    root = mount(source, arguments=["--view=v2", "--write"]).path
    attributes = json.loads((root / "mapping" / "crs" / ".zattrs").read_text())
    assert attributes == {"grid": "latitude", "_ARRAY_DIMENSIONS": []}
    (root / "mapping" / "crs" / ".zattrs").write_text(json.dumps({**attributes, "new": 1}))
    changed = {**stored_before, "attributes": {**stored_before["attributes"], "new": 1}}
    assert document_of(source / "mapping" / "crs") == changed


APPEND = """
import sys, numpy, xarray
root, *options = sys.argv[1:]
options = {"zarr_format": int(option) for option in options}
opened = xarray.open_zarr(root, chunks=None, consolidated=False, **options).load()
late = opened[["temperature", "packed"]].isel(time=slice(0, 2)).drop_vars(["crs", "height"], errors="ignore")
late = late.assign_coords(time=opened.time[-2:].values + numpy.timedelta64(2, "D"))
late["temperature"][0, :8] = numpy.nan
late["packed"][1] = numpy.nan
for variable in late.variables.values():
    variable.encoding.clear()
late.to_zarr(root, append_dim="time", consolidated=False, **options)
part = opened[["temperature", "mask"]].isel(lat=slice(8, 16))
part = part.drop_vars(["time", "lon", "crs", "height"], errors="ignore")
part["temperature"][:, :, :8] = numpy.nan
part["temperature"][:, :, 8:16] = 0
part["mask"][:] = 0
whole = {"lat": slice(8, 16)}
part[["temperature"]].drop_vars("lat").to_zarr(
    root, region={"time": slice(0, 4), **whole, "lon": slice(0, 24)}, consolidated=False, **options
)
part[["mask"]].drop_vars("lat").to_zarr(root, region={**whole, "lon": slice(0, 24)}, consolidated=False, **options)
"""


@cache
def appended_natively(name: str) -> tuple[Values, Values]:
    """What xarray reads, and what is stored, when the same is done to a dataset without a mount."""
    with tempfile.TemporaryDirectory() as directory:
        reference = Path(directory, "reference.zarr")
        WRITERS[name](reference)
        MAIN.run(APPEND, reference, "3")
        return natively(reference), stored(reference)


@pytest.mark.parametrize(
    ("name", "library", "view"),
    [
        ("dataset", "new", "decoded"),
        ("as-before", "old", "encoded"),
    ],
)
def test_what_xarray_appends_and_writes_in_regions_it_reads_natively(
    mount: Mounter, tmp_path: Path, name: str, library: str, view: str
) -> None:
    source = tmp_path / "data.zarr"
    WRITERS[name](source)
    age(source)
    expected, raw = appended_natively(name)
    before = {path.parent.name: document_of(path.parent) for path in source.glob("*/zarr.json")}
    mounted = mount(source, write=True, arguments=VIEWS[view])
    MAIN.run(APPEND, mounted.path, "2") if library == "new" else ZARR2.run(APPEND, mounted.path)
    assert_equal(read_new(mounted.path), expected)
    assert_equal(read_old(mounted.path, tmp_path), expected)
    assert_equal(read_zarr2(mounted.path, list(raw), tmp_path), raw)
    mounted.unmount()
    assert_equal(natively(source), expected)
    for array, document in before.items():
        now = document_of(source / array)
        assert {**now, "shape": 0} == {**document, "shape": 0}, "only the shape has changed"
    assert_sound(source)
