"""Elements that NumPy would take for other ones than h5py: padded text, large ones, fill values that are arrays."""

import ctypes
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr
from h5py import h5d, h5p, h5s, h5t

import shardfs
from tests.formats.hdf5.test_values import check
from tests.support.commands import run_json

PADDINGS = {"nulls": h5t.STR_NULLPAD, "a null": h5t.STR_NULLTERM, "blanks": h5t.STR_SPACEPAD}
TEXTS = [b"ab    ", b"ab\0cd\0", b"abcdef", b"      ", b"\0bcdef", b" a"]


def text_type(nbytes: int, padding: str) -> Any:
    kind = h5t.C_S1.copy()
    kind.set_size(nbytes)
    kind.set_strpad(PADDINGS[padding])
    return kind


def add(file: h5py.File, name: str, kind: Any, shape: tuple[int, ...], fill: bytes | None = None) -> Any:
    """Add a dataset of a low-level type in chunks of two, with the *fill* value as it lies in memory."""
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((2,) * len(shape))
    if fill is not None:  # h5py converts no arrays
        loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        (library,) = (path for path in loaded if "/h5py.libs/libhdf5-" in path)  # netCDF4 has one, too
        done = ctypes.CDLL(library).H5Pset_fill_value(ctypes.c_int64(properties.id), ctypes.c_int64(kind.id), fill)
        assert done == 0
    return h5d.create(file.id, name.encode(), kind, h5s.create_simple(shape), properties)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("nbytes", [1, 6])
def test_text_ends_where_h5py_says(tmp_path: Path, padding: str, nbytes: int) -> None:
    stored = np.array([text[:nbytes] for text in TEXTS], f"S{nbytes}")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = text_type(nbytes, padding)
        add(file, "x", kind, (6,)).write(h5s.ALL, h5s.ALL, stored, mtype=kind)
        pair = h5t.create(h5t.COMPOUND, nbytes + 1)
        pair.insert(b"text", 0, kind)
        pair.insert(b"number", nbytes, h5t.STD_U8LE)
        made = np.zeros(6, [("text", f"S{nbytes}"), ("number", "u1")])
        made["text"] = stored
        add(file, "pair", pair, (6,)).write(h5s.ALL, h5s.ALL, made, mtype=pair)
    assert check(tmp_path / "a.h5") == 2


@pytest.mark.parametrize("count", [1, 20])
def test_a_large_element_is_skipped_and_stops_nothing_else(tmp_path: Path, count: int) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(count):
            file[f"large {number}"] = np.bytes_(b"x" * 9_000_000)
            file[f"small {number}"] = np.bytes_(b"x" * 900_000)
        file["numbers"] = np.arange(3)
        file.create_dataset("filled", (4,), "S50000", chunks=(2,), fillvalue=b"y" * 50_000)
    with shardfs.open(tmp_path / "a.h5") as dataset:
        group: Any = zarr.open_group(dataset.store(), mode="r")
        assert sorted(group) == ["filled", "numbers", *sorted(f"small {number}" for number in range(count))]
        assert group["numbers"][...].tolist() == [0, 1, 2]
        assert group["small 0"][()] == b"x" * 900_000
        assert group["filled"][1] == b"y" * 50_000
    report = run_json("verify", "--json", tmp_path / "a.h5")
    assert {each["array"] for each in report["unchecked"]} == {f"large {number}" for number in range(count)}
    assert all("9,000,000 bytes" in each["reason"] for each in report["unchecked"])


FIELDS = [("a", "<i4"), ("b", ">f4")]


@pytest.mark.parametrize("values", [np.array([5, 5], "<f4"), np.array([np.nan] * 2, "<f4"), np.zeros(2, ">i8")])
def test_the_fill_value_of_arrays_is_that_of_their_parts_if_these_are_equal(tmp_path: Path, values: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        add(file, "x", h5t.array_create(h5t.py_create(values.dtype), (2,)), (5,), values.tobytes())
        file["x"][0:1] = (values + 1)[None]
    assert check(tmp_path / "a.h5") == 1


def test_fill_values_that_cannot_be_shown_leave_out_their_datasets_and_are_named(tmp_path: Path) -> None:
    tagged = h5t.create(h5t.OPAQUE, 5)
    tagged.set_tag(b"by somebody")
    pair = h5t.py_create(np.dtype(FIELDS))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        add(file, "opaque", tagged, (4,), b"abcde")
        add(file, "differ", h5t.array_create(h5t.IEEE_F32LE, (2,)), (4,), np.array([5, 6], "<f4").tobytes())
        add(file, "pairs", h5t.array_create(pair, (2,)), (4,), np.array([(1, 2), (3, 4)], FIELDS).tobytes())
        add(file, "same", h5t.array_create(pair, (2,)), (4,), np.array([(1, 2), (1, 2)], FIELDS).tobytes())
    with shardfs.open(tmp_path / "a.h5") as dataset:
        group: Any = zarr.open_group(dataset.store(), mode="r")
        assert sorted(group) == ["same"]
        assert group["same"][...].tolist() == [[(1, 2.0)] * 2] * 4
    reasons = {each["array"]: each["reason"] for each in run_json("verify", "--json", tmp_path / "a.h5")["unchecked"]}
    assert "h5py does not read its fill value" in reasons["opaque"]
    assert "the parts of its fill value differ" in reasons["differ"]
    assert "the parts of its fill value differ" in reasons["pairs"]


def test_a_missing_value_that_is_no_number_is_left_out_of_the_document(tmp_path: Path) -> None:
    values = xarray.Dataset({"x": ("t", np.array([1, np.nan], "<f4"))})
    values.to_netcdf(tmp_path / "a.nc", encoding={"x": {"_FillValue": None}}, engine="h5netcdf")
    with h5py.File(tmp_path / "a.nc", "r+") as file:
        file["x"].attrs["missing_value"] = np.float32(np.nan)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    with shardfs.open(tmp_path / "a.nc") as dataset:
        text = dataset.filesystem().cat_file("x/zarr.json")
        assert json.loads(text, parse_constant=refuse)["shape"] == [2]
        found = xarray.open_zarr(dataset.store(), consolidated=False)
        expected = xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf")
        xarray.testing.assert_identical(found.load(), expected.load())
