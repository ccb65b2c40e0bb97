"""Groups, links, attributes and dimensions of HDF5 files, and what is skipped by name."""

import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import kerchunk.hdf
import netCDF4
import numpy as np
import pytest
import xarray
import zarr

import shardfs
from shardfs.errors import ShardfsError, SourceError
from tests.formats.hdf5.files import elements, filters
from tests.formats.hdf5.test_values import check


def attributes_of(path: Path, name: str = "") -> dict[str, Any]:
    with shardfs.open(path) as dataset:
        return dict(zarr.open(dataset.store(), path=name, mode="r").attrs)


def tree(path: Path) -> dict[str, str]:
    """Return all nodes below the root, each with what it is, as the store lists them."""
    with shardfs.open(path) as dataset:
        found = zarr.open_group(dataset.store(), mode="r")
        return {name: type(node).__name__ for name, node in found.members(max_depth=None)}


def note_on(path: Path) -> str:
    with shardfs.open(path) as dataset:
        note: str | None = dataset.loop.call(lambda paths: paths.source.store.note())
    return note or ""


# Attributes.

ATTRIBUTES: dict[str, tuple[Any, Any]] = {
    "integer": (np.int16(-5), -5),
    "large": (np.uint64(2**64 - 1), 2**64 - 1),
    "float": (np.float64(0.1), 0.1),
    "float32": (np.float32(0.1), float(np.float32(0.1))),
    "big-endian": (np.array([1, 2], ">i4"), [1, 2]),
    "infinity": (np.float64("inf"), float("inf")),
    "boolean": (True, True),
    "booleans": (np.array([True, False]), [True, False]),
    "text": ("Größe", "Größe"),
    "texts": (np.array(["a", "ü"], h5py.string_dtype()), ["a", "ü"]),
    "bytes": (np.bytes_(b"abc"), "abc"),
    "bytes of UTF-8": (np.bytes_("ü".encode()), "ü"),
    "bytes of Latin-1": (np.bytes_("°C".encode("latin-1")), "°C"),
    "array of bytes": (np.array([b"a", b"bcd"]), ["a", "bcd"]),
    "one in an array": (np.array([1.5]), 1.5),
    "one text in an array": (np.array(["a"], h5py.string_dtype()), "a"),
    "an array of two axes": (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    "empty text": (h5py.Empty("S1"), ""),
    "empty numbers": (h5py.Empty("f4"), []),
    "no elements": (np.zeros(0), []),
    "complex": (1 + 2j, [1.0, 2.0]),
    "record": (np.array((1, 2.5), [("a", "i4"), ("b", "f8")]), {"a": 1, "b": 2.5}),
    "name ü / with a slash": (1, 1),
}


def test_attributes_of_every_kind_are_shown_as_h5py_reads_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        for node in (file, file["x"], file.create_group("g")):
            for name, (value, _) in ATTRIBUTES.items():
                node.attrs[name] = value
            node.attrs.create("enum", 2, dtype=h5py.enum_dtype({"A": 1, "B": 2}, basetype="i1"))
            ragged = np.empty(2, object)
            ragged[:] = [np.arange(2, dtype="i4"), np.arange(3, dtype="i4")]
            node.attrs.create("ragged", ragged, dtype=h5py.vlen_dtype("i4"))
    expected = {name: value for name, (_, value) in ATTRIBUTES.items()} | {"enum": 2, "ragged": [[0, 1], [0, 1, 2]]}
    for name in ("", "x", "g"):
        assert attributes_of(tmp_path / "a.h5", name) == expected


def test_what_has_no_form_in_json_is_skipped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("g").attrs["sound"] = 1
        file["g"].attrs["reference"] = file.ref
        file["g"].attrs["opaque"] = np.void(b"abc")
    with caplog.at_level(logging.WARNING):
        assert attributes_of(tmp_path / "a.h5", "g") == {"sound": 1}
    for name in ("reference", "opaque"):
        assert f"g: the attribute {name} is skipped" in caplog.text


def test_attributes_of_two_megabytes_are_shown_and_those_of_ten_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.attrs["two"] = np.full(250_000, 1, "i8")
        file.attrs["x" * 10 + "ten"] = np.zeros(1_250_000, "i8")
    with caplog.at_level(logging.WARNING):
        assert list(attributes_of(tmp_path / "a.h5")) == ["two"]
    assert "ten is skipped" in caplog.text


# Links.


def write_links(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a/x"] = np.arange(3)
        file["hard"] = file["a/x"]
        file["group"] = file["a"]
        file["soft"] = h5py.SoftLink("/a/x")
        file["relative"] = h5py.SoftLink("a/./x")
        file["chain"] = h5py.SoftLink("relative")
        file["soft group"] = h5py.SoftLink("/a")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["to itself"] = h5py.SoftLink("to itself")
        file["a/loop"] = file["/"]
        file["a/soft loop"] = h5py.SoftLink("/a")
        file["external"] = h5py.ExternalLink("other.h5", "/")
        file["soft to external"] = h5py.SoftLink("/external/x")
        file["type"] = np.dtype("i4")
        file["empty group"] = file.create_group("e")
        file["zarr.json"] = 1
        file[".."] = 1


def test_links_within_the_file_are_followed_and_no_others(tmp_path: Path) -> None:
    write_links(tmp_path / "a.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(5)
    arrays = ["a/x", "hard", "group/x", "soft", "relative", "chain", "soft group/x"]
    groups = ["a", "group", "soft group", "e", "empty group"]
    assert tree(tmp_path / "a.h5") == dict.fromkeys(arrays, "Array") | dict.fromkeys(groups, "Group")
    with shardfs.open(tmp_path / "a.h5") as dataset:
        found = zarr.open_group(dataset.store(), mode="r")
        for name in arrays:
            assert found[name][...].tolist() == [0, 1, 2]
        for name in ("external", "external/x", "soft to external", "a/loop/a/x", "type"):
            assert name not in found
    note = note_on(tmp_path / "a.h5")
    assert note.startswith("skipped, as Zarr has no form for it: ")
    assert "10 more" in note


def test_links_to_groups_do_not_multiply_without_end(tmp_path: Path) -> None:
    """Each of 30 groups has two links to the next one: a billion paths."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("0")
        for number in range(1, 30):
            below = group.create_group("a")
            group["b"] = below
            below["x"] = number
            group = below
    names = tree(tmp_path / "a.h5")
    assert "0/a/x" in names
    assert "0/b/b/x" in names
    assert len(names) < 100


@pytest.mark.parametrize("name", ["B8LE", "B16LE", "B16BE", "B32BE", "B64LE"])
def test_bitfields_are_numbers_as_they_are_stored(tmp_path: Path, name: str) -> None:
    kind = getattr(h5py.h5t, f"STD_{name}")
    values = np.arange(1, 4).astype(kind.dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
    with shardfs.open(tmp_path / "a.h5") as dataset:
        assert dataset.filesystem().cat_file("x/c/0") == values.tobytes()
        assert zarr.open_group(dataset.store(), mode="r")["x"][...].tolist() == [1, 2, 3]


# What is skipped.


def _virtual(file: h5py.File) -> None:
    file.create_virtual_dataset("x", h5py.VirtualLayout((3,), "i4"))


def _scale_offset(file: h5py.File) -> None:
    file.create_dataset("x", data=np.arange(9), chunks=(3,), scaleoffset=0)


def _nbit(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((3,))
    properties.set_filter(h5py.h5z.FILTER_NBIT)
    h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((9,)), properties)


LEFT_OUT: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "virtual": (_virtual, "in other datasets (a virtual dataset)"),
    "external": (
        lambda file: file.create_dataset("x", (3,), "i4", external=[("/etc/passwd", 0, 12)]),
        "in another file (external storage)",
    ),
    "scale-offset": (_scale_offset, "no codec for the filter scale-offset (6)"),
    "n-bit": (_nbit, "no codec for the filter nbit (5)"),
    "lz4": (lambda file: file.create_dataset("x", data=np.arange(9), chunks=(3,), **hdf5plugin.LZ4()), "lz4 (32004)"),
    "zfp": (lambda file: file.create_dataset("x", data=np.ones(9), chunks=(9,), **hdf5plugin.Zfp()), "zfp (32013)"),
    "null": (lambda file: file.create_dataset("x", data=h5py.Empty("f4")), "a null dataspace"),
    "ragged": (lambda file: file.create_dataset("x", (3,), h5py.vlen_dtype("i4")), "vary in size"),
    "references": (lambda file: file.create_dataset("x", (3,), h5py.ref_dtype), "references"),
    "long doubles": (lambda file: file.create_dataset("x", (3,), np.longdouble), "floats of 128 bits"),
    "fields": (lambda file: file.create_dataset("x", (3,), [("a", "i4", (2,))]), "fields that are arrays"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_zarr_has_no_form_for_is_skipped_and_named(tmp_path: Path, name: str) -> None:
    make, reason = LEFT_OUT[name]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
        file["sound"] = np.arange(3)
    assert tree(tmp_path / "a.h5") == {"sound": "Array"}
    note = note_on(tmp_path / "a.h5")
    assert note.startswith("skipped, as Zarr has no form for it: x (")
    assert reason in note


# Chunks that are not stored as the filters of their dataset say.


FILTERED: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "gzip with shuffle and checksum": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc": dict(hdf5plugin.Blosc()),
}


@pytest.mark.parametrize("name", FILTERED)
def test_chunks_that_were_stored_without_their_filters_have_their_values(tmp_path: Path, name: str) -> None:
    """As HDF5 stores those that a filter makes no smaller."""
    values = np.random.default_rng(3).integers(0, 2**31, (10, 16), "i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", (10, 16), "<i4", chunks=(4, 16), **FILTERED[name])
        nfilters = made.id.get_create_plist().get_nfilters()
        whole = np.zeros((12, 16), "<i4")
        whole[:10] = values
        made[:4] = values[:4]
        for row in (4, 8):
            made.id.write_direct_chunk((row, 0), whole[row : row + 4].tobytes(), filter_mask=2**nfilters - 1)
        assert np.array_equal(made[...], values)
    with shardfs.open(tmp_path / "a.h5") as dataset:
        assert np.array_equal(zarr.open_group(dataset.store(), mode="r")["x"][...], values)


def test_chunks_at_the_edge_that_were_stored_without_filters_have_their_values(tmp_path: Path) -> None:
    """Of a size that tells: no mask says it where a dataset has H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS."""
    values = np.arange(60, dtype="<i4").reshape(10, 6)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", data=values, chunks=(4, 6), compression="gzip", shuffle=True)
        assert made.id.get_chunk_info(2).size != 96
        encoded = made.id.read_direct_chunk((8, 0))[1]
        made.id.write_direct_chunk((8, 0), encoded.ljust(96, b"\0"))  # of that size by chance
    with shardfs.open(tmp_path / "a.h5") as dataset:
        assert np.array_equal(zarr.open_group(dataset.store(), mode="r")["x"][...], values)


@pytest.mark.parametrize("dtype", ["u1", "<i4", "<f8", "S3", [("a", "<f8"), ("b", "u1")]])
@pytest.mark.parametrize("order", list(itertools.permutations(["shuffle", "gzip", "fletcher32"])), ids="-".join)
def test_filters_are_undone_in_whatever_order_they_are(tmp_path: Path, dtype: Any, order: tuple[str, ...]) -> None:
    """netCDF4 has the checksum before all else."""
    add: dict[str, Callable[[Any], None]] = {
        "shuffle": lambda properties: properties.set_shuffle(),
        "gzip": lambda properties: properties.set_deflate(4),
        "fletcher32": lambda properties: properties.set_fletcher32(),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((5, 3))
        for name in order:
            add[name](properties)
        kind, space = h5py.h5t.py_create(np.dtype(dtype)), h5py.h5s.create_simple((7, 4))
        made = h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, space, properties))
        made[...] = np.random.default_rng(0).integers(0, 99, (7, 4)).astype(dtype)
    assert check(tmp_path / "a.h5") == 1
    with shardfs.open(tmp_path / "a.h5", decode=True) as dataset, h5py.File(tmp_path / "a.h5") as file:
        found: Any = zarr.open_array(dataset.store(), path="x", mode="r")
        assert np.array_equal(found[...], file["x"][...])


def test_chunks_are_those_that_the_file_has_byte_for_byte(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", data=np.arange(400.0).reshape(20, 20), chunks=(6, 7), compression="gzip")
        stored = {coords: made.id.read_direct_chunk((6 * coords[0], 7 * coords[1]))[1] for coords in np.ndindex(4, 3)}
    with shardfs.open(tmp_path / "a.h5") as dataset:
        files = dataset.filesystem()
        for (row, column), data in stored.items():
            assert files.cat_file(f"x/c/{row}/{column}") == data


@pytest.mark.parametrize("maxshape", [(8, None), (None, 12), (None, None), (4, 12), (30, None)])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_are_in_their_places_whatever_axes_are_unlimited(
    tmp_path: Path, maxshape: tuple[int | None, ...], libver: str
) -> None:
    """libhdf5 2.0 lists those of a second unlimited axis in wrong places."""
    values = np.arange(48, dtype="i4").reshape(4, 12)
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        made = file.create_dataset("x", (4, 12), "i4", chunks=(2, 3), maxshape=maxshape)
        made[:, 3:] = values[:, 3:]
    with shardfs.open(tmp_path / "a.h5") as dataset:
        array = zarr.open_group(dataset.store(), mode="r")["x"]
        assert array[:, 3:].tolist() == values[:, 3:].tolist()
        assert not array[:, :3].any()


@pytest.mark.parametrize("name", ["zstd", "blosc", "bzip2"])
def test_chunks_at_the_edge_that_have_the_size_of_elements_by_chance_are_read_without_a_plugin(
    tmp_path: Path, name: str
) -> None:
    options = {"zstd": hdf5plugin.Zstd(), "blosc": hdf5plugin.Blosc(shuffle=0), "bzip2": hdf5plugin.BZip2()}[name]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for length in range(12, 90):  # of some length, what is encoded is as long as what is not
            made = file.create_dataset(f"{length}", (length - 1,), "u1", chunks=(length,), maxshape=(None,), **options)
            made[...] = np.arange(length - 1) % 7
        same = [length for length in range(12, 90) if file[f"{length}"].id.get_chunk_info(0).size == length]
    assert same
    with shardfs.open(tmp_path / "a.h5") as dataset:
        found = zarr.open_group(dataset.store(), mode="r")
        for length in same:
            assert found[f"{length}"][...].tolist() == [number % 7 for number in range(length - 1)]


# netCDF-4.


def write_netcdf(path: Path) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.title = "a test"
        file.setncattr("number", np.float32(1.5))
        file.setncattr_string("names", ["a", "b"])
        for name, length in {"time": None, "x": 7, "nv": 2, "strlen": 5}.items():
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(4)
        file.createVariable("x", "f4", ("x",))[:] = np.arange(7)
        options: dict[str, Any] = {"zlib": True, "shuffle": True, "fletcher32": True, "chunksizes": (2, 3)}
        packed = file.createVariable("packed", "i2", ("time", "x"), fill_value=-99, **options)
        packed.scale_factor, packed.add_offset = 0.5, 5.0
        packed[:] = np.arange(28).reshape(4, 7)
        packed[0, 0] = np.ma.masked
        file.createVariable("short", "f4", ("time", "x"), fill_value=1e20, zlib=True)[:2] = 5
        file.createVariable("bounds", "f8", ("time", "nv"), fill_value=np.nan)[:3] = 1
        file.createVariable("label", str, ("time",), fill_value="none")[:] = np.array(["a", "bc", "", "ü"], object)
        characters = netCDF4.stringtochar(np.array(["ab"] * 7, "S5"))
        file.createVariable("characters", "S1", ("x", "strlen"))[:] = characters
        file.createVariable("crs", "i4").grid_mapping_name = "latitude_longitude"
        file.createVariable("large", "u8", ("x",))[:] = 2**63 + 1
        file.createVariable("big", ">f4", ("x",))[:] = np.arange(7)
        file.createVariable("never", "i1", ("nv", "x"))
        group = file.createGroup("group")
        group.createDimension("y", 3)
        group.createVariable("v", "f4", ("x", "y"), compression="zstd")[:] = 1
        group.createVariable("y", "f4", ("y",))[:] = [1, 2, 3]


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
@pytest.mark.parametrize("group", [None, "group"])
def test_xarray_reads_the_same_dataset_as_from_the_netcdf_file(tmp_path: Path, engine: Any, group: str | None) -> None:
    """Names and lengths of dimensions, unlimited ones too; missing values, packing, times, text, groups, attributes."""
    write_netcdf(tmp_path / "a.nc")
    with shardfs.open(tmp_path / "a.nc") as dataset:
        found = xarray.open_zarr(dataset.store(), group=group, consolidated=False).load()
    with xarray.open_dataset(tmp_path / "a.nc", engine=engine, group=group) as expected:
        xarray.testing.assert_identical(found, expected.load())


def test_chunks_and_dimensions_are_those_of_kerchunk(tmp_path: Path) -> None:
    write_netcdf(tmp_path / "a.nc")
    translated = kerchunk.hdf.SingleHdf5ToZarr(str(tmp_path / "a.nc"), inline_threshold=0).translate()["refs"]
    data = (tmp_path / "a.nc").read_bytes()
    ncompared = 0
    with shardfs.open(tmp_path / "a.nc") as dataset:
        files = dataset.filesystem()
        for key, reference in translated.items():
            path, _, name = key.rpartition("/")
            if path not in ("packed", "short", "bounds", "x", "time", "big", "large") or name.startswith("."):
                if name == ".zattrs" and path in ("packed", "short", "bounds"):
                    dimensions = json.loads(reference)["_ARRAY_DIMENSIONS"]
                    assert json.loads(files.cat_file(f"{path}/zarr.json"))["dimension_names"] == dimensions
                continue
            if isinstance(reference, str):  # filters that kerchunk has undone
                continue
            shown = files.cat_file(f"{path}/c/{name.replace('.', '/')}")
            _, offset, nbytes = reference
            stored = data[offset : offset + nbytes]
            assert shown[: len(stored)] == stored
            ncompared += 1
    assert ncompared == 9


def test_axes_without_scales_have_their_labels_or_no_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["labelled"] = np.zeros((2, 3))
        file["labelled"].dims[1].label = "column"
        file["plain"] = np.zeros((2, 3))
        file["x"] = np.arange(2)
        file["x"].make_scale("another name")
        file["scaled"] = np.zeros((2, 3))
        file["scaled"].dims[0].attach_scale(file["x"])
    with shardfs.open(tmp_path / "a.h5") as dataset:
        found = zarr.open_group(dataset.store(), mode="r")
        names = {name: found[name].metadata.dimension_names for name in ("labelled", "plain", "x", "scaled")}
    assert names == {"labelled": (None, "column"), "plain": None, "x": ("x",), "scaled": ("x", None)}


# Large ones.


@pytest.mark.slow
def test_ten_thousand_datasets_are_listed_and_each_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for number in range(10_000):
            file.create_dataset(f"{number:05}", data=np.int32(number))
    with shardfs.open(tmp_path / "a.h5") as dataset:
        files = dataset.filesystem()
        names = {name.rpartition("/")[2] for name in files.ls("", detail=False)}
        assert names == {f"{number:05}" for number in range(10_000)} | {"zarr.json"}
        assert zarr.open_group(dataset.store(), mode="r")["07777"][()] == 7777


@pytest.mark.parametrize(
    ("data", "way_out"),
    [
        (b"CDF\1" + bytes(100), "nccopy -k nc4"),
        (b"CDF\5", "nccopy -k nc4"),
        (b"\x0e\x03\x13\x01" + bytes(100), "h4toh5"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_a_file_of_another_kind_says_what_to_do(tmp_path: Path, data: bytes, way_out: str) -> None:
    (tmp_path / "a.nc").write_bytes(data)
    with pytest.raises(SourceError, match=way_out):
        shardfs.open(tmp_path / "a.nc")


def test_a_file_that_h5py_cannot_open_says_why(tmp_path: Path) -> None:
    for name, data in {"a.h5": b"", "b.h5": b"\x89HDF\r\n\x1a\n" + bytes(100), "c.nc": b"CDF" + bytes(100)}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ShardfsError, match="libhdf5 cannot read it"), shardfs.open(tmp_path / name):
            pass


def test_random_filters_are_among_those_that_are_shown() -> None:
    """So that the differential tests do not pass because everything is skipped."""
    rng = np.random.default_rng(0)
    chosen = [filters(rng, np.dtype("<u4")) for _ in range(200)]
    names = {str(each.get("compression")) for each in chosen}
    assert {"gzip", "lzf", "32015", "32001", "307"} <= names
    assert elements(rng, np.dtype("S3"), (2,)).shape == (2,)
