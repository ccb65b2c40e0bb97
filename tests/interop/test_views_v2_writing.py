"""Writers of Zarr v2 change sharded v3 arrays through the v2 view, and make new ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray
import zarr

from tests.support.clients import ZARR2, open_tensorstore_v2
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same
from tests.support.viewed import ATTRIBUTES, write_source
from tests.support.writers import assert_sound, document_of, tool

EDIT = """
import sys, numpy, zarr
group = zarr.open_group(sys.argv[1], mode="r+")
image, plane, nested = group["image"], group["plane"], group["nested"]
image[3:13, 5:20, 2:9] = 7
image[0:8, 0:8, 0:4] = 0
image.attrs["title"] = "new"
image.attrs["limits"] = [0, 1]
plane.resize(20, 40)
plane[18:, 25:] = 5
nested.append(numpy.full((3, 24, 28), 11, "i4"))
group["reversed"][1, :, 3] = 2.5
group["big"][3:7] = -1e300
group["plain"][5:9, 3:20] = 12
del group["rectilinear"]
group.attrs["made by"] = "zarr-python 2"
group.create_group("more").attrs["depth"] = 1
zarr.consolidate_metadata(sys.argv[1])
consolidated = zarr.open_consolidated(sys.argv[1])
assert consolidated["plane"].shape == (20, 40) and consolidated["image"].attrs["title"] == "new"
assert sorted(consolidated) == ["big", "image", "more", "nested", "plain", "plane", "reversed"], sorted(consolidated)
"""


def test_zarr_python_2_edits_resizes_appends_removes_and_consolidates(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "data.zarr"
    expected = write_source(source)
    before = {name: document_of(source / name) for name in expected}
    mounted = mount(source, write=True, shards="2", arguments=["--view=v2"])
    ZARR2.run(EDIT, mounted.path)
    opened = open_tensorstore_v2(mounted.path / "plane")
    opened[2:5, 1:9].write(77).result()
    del opened
    mounted.unmount()

    expected["image"][3:13, 5:20, 2:9] = 7
    expected["image"][0:8, 0:8, 0:4] = 0
    plane = np.full((20, 40), 9, "u1")
    plane[:, :28] = expected["plane"][:20]
    plane[18:, 25:], plane[2:5, 1:9] = 5, 77
    expected["plane"] = plane
    expected["nested"] = np.concatenate([expected["nested"], np.full((3, 24, 28), 11, "i4")])
    expected["reversed"][1, :, 3] = 2.5
    expected["big"][3:7] = -1e300
    expected["plain"][5:9, 3:20] = 12
    for name in ("image", "plane", "plain", "nested", "big"):
        for read in READERS.values():
            assert_same(read(source / name), expected[name])
    for name in ("reversed", "turned"):
        assert_same(READERS["tensorstore"](source / name), expected[name])
    assert not (source / "rectilinear").exists()
    for name, (member, value) in {
        "image": ("attributes", ATTRIBUTES | {"title": "new", "limits": [0, 1]}),
        "plane": ("shape", [20, 40]),
        "nested": ("shape", [23, 24, 28]),
        "reversed": ("shape", [20, 24, 28]),
    }.items():
        assert document_of(source / name) == before[name] | {member: value}, "and nothing else changes"
    root = document_of(source)
    assert root["attributes"] == {"made by": "zarr-python 2"}
    assert "turned" in root["consolidated_metadata"]["metadata"], "what the view cannot show stays consolidated"
    assert zarr.open_group(str(source), mode="r", use_consolidated=False)["more"].attrs["depth"] == 1
    assert_sound(source)


NEW = """
import sys, numpy, zarr, xarray
from numcodecs import Blosc, Delta, GZip, Zstd
group = zarr.open_group(sys.argv[1], mode="a")
values = numpy.arange(1, 601).reshape(20, 30)
def make(name, dtype, **options):
    group.create_dataset(name, data=values.astype(dtype), chunks=(4, 5), **options)
make("default", "u1")
make("default", "i4", overwrite=True)
make("fortran", "f4", order="F", compressor=GZip(5), fill_value=float("nan"))
make("big", ">u2", compressor=Zstd(3))
make("delta", "i8", filters=[Delta("i8")], compressor=Blosc("zstd", 5, Blosc.BITSHUFFLE))
make("raw", "u1", compressor=None, fill_value=3)
group["default"].attrs["unit"] = "m"
dataset = xarray.Dataset({"height": (("y", "x"), values.astype("f8"), {"unit": "m"})}, attrs={"title": "hills"})
dataset.chunk(y=4, x=5).to_zarr(sys.argv[1] + "/hills")
xarray.testing.assert_identical(xarray.open_zarr(sys.argv[1] + "/hills").compute(), dataset)
"""
VALUES = np.arange(1, 601).reshape(20, 30)
NEW_TYPES = {"default": "i4", "fortran": "f4", "big": ">u2", "delta": "i8", "raw": "u1"}


def test_with_shards_zarr_python_2_and_an_old_xarray_make_sharded_v3_arrays(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "data.zarr"
    zarr.create_group(str(source))
    mounted = mount(source, write=True, shards="3", arguments=["--view=v2"])
    ZARR2.run(NEW, mounted.path)
    mounted.unmount()
    assert not [path for path in source.rglob("*") if path.name.startswith(".z")]
    for name, dtype in NEW_TYPES.items():
        opened = zarr.open_array(str(source / name), mode="r")
        assert (opened.shards, opened.chunks, opened.metadata.zarr_format) == ((12, 15), (4, 5), 3)
        assert np.array_equal(opened[...], VALUES.astype(dtype)), name
        assert sum(1 for path in (source / name / "c").rglob("*") if path.is_file()) == 4
    assert dict(zarr.open_array(str(source / "default")).attrs) == {"unit": "m"}
    with xarray.open_zarr(source / "hills", consolidated=True) as hills:
        height = hills["height"]
        assert (hills.attrs, height.attrs, height.dims) == ({"title": "hills"}, {"unit": "m"}, ("y", "x"))
        assert np.array_equal(height.values, VALUES)
    assert document_of(source / "hills" / "height")["codecs"][0]["name"] == "sharding_indexed"
    assert_sound(source)


def test_without_shards_new_arrays_of_zarr_python_2_are_stored_as_written(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "data.zarr"
    zarr.create_group(str(source))
    write_source(source / "old")
    mounted = mount(source, write=True, arguments=["--view=v2", "--dimension-separator=/"])
    ZARR2.run(NEW, mounted.path)
    assert json.loads((mounted.path / "default" / ".zarray").read_text())["chunks"] == [4, 5]
    mounted.unmount()
    for name, dtype in NEW_TYPES.items():
        opened = zarr.open_array(str(source / name), mode="r", zarr_format=2)
        assert np.array_equal(opened[...], VALUES.astype(dtype)), name
    assert (source / "old" / "image" / "zarr.json").exists()
    assert_sound(source)


def test_decoded_chunks_that_libraries_write_are_encoded_by_the_arrays_own_chain(
    mount: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "data.zarr"
    expected = write_source(source)
    mounted = mount(source, write=True, arguments=["--view=v2", "--decode"])
    names = ["image", "plain", "big", "nested", "reversed", "turned"]
    program = """
import sys, zarr
for name in sys.argv[2:]:
    zarr.open_array(f"{sys.argv[1]}/{name}", mode="r+")[..., 3:9, 5:20] = 42
"""
    ZARR2.run(program, mounted.path, *names)
    for name in names:
        expected[name][..., 3:9, 5:20] = 42
    expected["plane"][:8, :4] = np.arange(32, dtype="u1").reshape(8, 4)
    np.arange(32, dtype="u1").tofile(mounted.path / "plane" / "0.0")
    mounted.unmount()
    for name in ("image", "plain", "big", "nested", "plane"):
        assert_same(READERS["zarr"](source / name), expected[name])
    for name in (*names, "plane"):
        assert_same(READERS["tensorstore"](source / name), expected[name])
    assert_sound(source)


MAKE = """
import sys, numpy, zarr
store = zarr.DirectoryStore(sys.argv[1])
group = zarr.open_group(store, mode="w")
group.attrs["title"] = "root"
values = numpy.arange(240).reshape(12, 20)
group.create_dataset("a", data=values, chunks=(3, 4)).attrs.update(unit="m", _ARRAY_DIMENSIONS=["y", "x"])
group.create_dataset("deep/b", data=values.astype("f8"), chunks=(5, 7), fill_value=None).attrs["z"] = [1]
group["deep"].attrs["is deep"] = True
group.create_dataset("scalar", data=numpy.float32(3.5))
group.create_dataset("text", data=numpy.array([b"ab", b"c"], "S3"), chunks=(1,))
zarr.consolidate_metadata(store)
"""


def is_document(key: str) -> bool:
    return key.rpartition("/")[2].startswith(".z")


ORDERS = {
    "documents last": lambda key: (is_document(key), key),
    "attributes first": lambda key: (not key.endswith(".zattrs"), key),
    "groups last": lambda key: (key.endswith(".zgroup"), key.endswith(".zmetadata"), key),
    "backwards": lambda key: [-ord(letter) for letter in key],
}


def content_of(root: Path) -> dict[str, Any]:
    """The files, documents as what they say, but for the separator, which a mount always tells."""

    def said(document: Any) -> Any:
        spelled = {"fill_value": "AAAA"} if document.get("dtype") == "|S3" else {}
        return {name: value for name, value in document.items() if name != "dimension_separator"} | spelled

    found: dict[str, Any] = dict(files_below(root))
    for key in filter(is_document, found):
        document = json.loads(found[key])
        copies = document.get("metadata")
        found[key] = {name: said(copy) for name, copy in copies.items()} if copies else said(document)
    return found


def test_a_consolidated_dataset_becomes_v3_in_any_order_of_its_files(mount: Mounter, tmp_path: Path) -> None:
    plain, source = tmp_path / "plain", tmp_path / "source"
    ZARR2.run(MAKE, plain)
    values = np.arange(240).reshape(12, 20)
    source.mkdir()
    mounted = mount(source, write=True, shards="2", arguments=["--view=v2"])
    root, expected = mounted.path, content_of(plain)
    for name, order in ORDERS.items():
        archive = tmp_path / "archive.tar"
        tool("tar", "cf", archive, "-C", plain, *sorted(expected, key=order))
        (root / name).mkdir()
        tool("tar", "xf", archive, "-C", root / name)
        assert content_of(root / name) == expected, name
    tool("rsync", "-a", f"{plain}/", root / "synced")
    tool("rm", "-r", root / "attributes first")
    assert content_of(root / "synced") == expected
    mounted.unmount()
    assert not list(source.rglob(".z*"))
    assert not (source / "attributes first").exists()
    for name in ("documents last", "groups last", "synced"):
        group = zarr.open_consolidated(str(source / name), zarr_format=3)
        assert sorted(path for path, _ in group.members(max_depth=None)) == ["a", "deep", "deep/b", "scalar", "text"]
        arrays = {path: array for path, array in group.members(max_depth=None) if isinstance(array, zarr.Array)}
        assert np.array_equal(arrays["a"][...], values)
        assert np.array_equal(arrays["deep/b"][...], values)
        assert arrays["scalar"][...] == 3.5
        assert {path for path, array in arrays.items() if array.shards is None} == {"scalar"}
        assert dict(arrays["a"].attrs) == {"unit": "m", "_FillValue": 0}, "as xarray takes the fill value of v2"
    assert_sound(source)
