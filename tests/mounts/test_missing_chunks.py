"""Chunks that are not stored, in the v2 view of arrays with named axes: shown, written, and removed."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.clients import ZARR2, read_zarr2
from tests.support.commands import run, run_json
from tests.support.corpus import GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import age, files_below
from tests.support.mounting import Mounter, eventually
from tests.support.writers import assert_sound, tool

SHAPE, CHUNKS = (10, 12), (4, 4)
NAMES = [f"{y}.{x}" for y in range(3) for x in range(3)]
MISSING_VALUE = {"_FillValue": "AAAAAAAA8L8="}
"""-1 as xarray writes it to v3."""
V2, SLASH = "--view=v2", "--dimension-separator=/"


def make_document(path: Path, data_type: str = "float32", **members: Any) -> None:
    members = {"data_type": data_type, "fill_value": 0, "dimension_names": ["y", "x"], **members}
    (path / "new").write_text(json.dumps(array(SHAPE, (8, 8), sharding(CHUNKS, LITTLE, GZIP), **members)))
    (path / "new").rename(path / "zarr.json")


def make(path: Path, data_type: str = "float32", **members: Any) -> None:
    """An array of which only the chunk 1.1 is stored."""
    path.mkdir(parents=True)
    make_document(path, data_type, **members)
    zarr.open_array(str(path), mode="r+")[4:8, 4:8] = 7


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """`null` has no missing value, `other` another one than its fill value, `same` that one; others are not sharded."""
    path = tmp_path / "data.zarr"
    zarr.create_group(str(path))
    make(path / "null")
    make(path / "other", attributes=MISSING_VALUE)
    make(path / "same", fill_value=-1, attributes=MISSING_VALUE)
    make(path / "nameless", dimension_names=None)
    for name, length in (("loose", 3000), ("scalar", None)):
        shape, names = ((length,), ["x"]) if length else ((), [])
        opened = zarr.create_array(
            str(path / name), shape=shape, chunks=(2,) * len(shape), dtype="f4", dimension_names=names
        )
        if length:
            opened[4:6] = 7
    age(path)
    return path


def chunks_of(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name[0] != ".")


def fill_value_of(path: Path) -> Any:
    return json.loads((path / ".zarray").read_text())["fill_value"]


def values_of(source: Path) -> dict[str, np.ndarray]:
    group = zarr.open_group(str(source), mode="r")
    return {name: np.asarray(opened[...]) for name, opened in group.arrays()}


@pytest.mark.parametrize("arguments", [[], ["--decode"]])
def test_missing_chunks_that_read_as_another_value_are_files(
    mount: Mounter, source: Path, tmp_path: Path, arguments: list[str]
) -> None:
    root = mount(source, arguments=[V2, *arguments]).path
    expected = values_of(source)
    shown = {name: (fill_value_of(root / name), len(chunks_of(root / name))) for name in expected}
    assert shown == {
        "null": (None, 9),
        "other": (-1, 9),
        "same": (-1, 1),
        "nameless": (0, 1),
        "loose": (None, 1500),
        "scalar": (None, 1),
    }
    assert chunks_of(root / "other") == NAMES
    for name in NAMES:
        path = root / "other" / name
        assert path.stat().st_size == len(path.read_bytes())
        if name != "1.1":
            assert os.getxattr(path, "user.shardfs.nbytes") == b"%d" % path.stat().st_size
    found = read_zarr2(root, list(expected), tmp_path)
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name
    for path in ("same/0.0", "null/3.0"):
        with pytest.raises(FileNotFoundError):
            (root / path).read_bytes()


def test_missing_chunks_are_other_files_when_another_program_changes_the_fill_value(
    mount: Mounter, source: Path
) -> None:
    root = mount(source, arguments=[V2, "--decode", "--page-cache", "--metadata-ttl=0.1"]).path
    chunk = root / "null/0.0"
    assert set(np.fromfile(chunk, "f4")) == {0}
    before = chunk.stat().st_ino
    make_document(source / "null", fill_value=3)
    eventually(lambda: chunk.stat().st_ino != before)
    assert set(np.fromfile(chunk, "f4")) == {3}


def test_with_fill_missing_no_fill_values_and_chunks_are_those_that_are_stored(mount: Mounter, source: Path) -> None:
    mounted = mount(source, arguments=[V2, "--fill-missing=no"])
    root = mounted.path
    for name, fill_value in (("null", 0), ("other", 0), ("same", -1), ("nameless", 0)):
        assert (chunks_of(root / name), fill_value_of(root / name)) == (["1.1"], fill_value)
        with pytest.raises(FileNotFoundError):
            (root / name / "0.0").read_bytes()
        warned = f"{name} is not read correctly by all users of the v2 view: xarray and netCDF take its fill value"
        assert (warned in mounted.log) == (name in ("null", "other"))


@pytest.mark.parametrize(("arguments", "separator"), [([SLASH], "/"), (["--decode"], ".")])
def test_a_chunk_that_is_removed_is_stored_as_the_fill_value_that_was_shown(
    mount: Mounter, source: Path, tmp_path: Path, arguments: list[str], separator: str
) -> None:
    mounted = mount(source, write=True, arguments=[V2, *arguments])
    expected = values_of(source)
    for name, shown in (("null", 0), ("other", -1)):
        for y, x in ((1, 1), (0, 2)):  # one that is stored, and one that is not
            (mounted.path / name / f"{y}{separator}{x}").unlink()
            expected[name][4 * y : 4 * y + 4, 4 * x : 4 * x + 4] = shown
    zarray = mounted.path / "other/.zarray"
    text = zarray.read_bytes()
    zarray.unlink()  # which changes nothing, if it is written anew
    zarray.write_bytes(text)
    (mounted.path / "same" / f"1{separator}1").unlink()
    expected["same"][...] = -1
    found = read_zarr2(mounted.path, ["null", "other", "same"], tmp_path)
    assert all(np.array_equal(found[name], expected[name]) for name in found)
    mounted.unmount()
    for name, values in values_of(source).items():
        assert np.array_equal(values, expected[name]), name
    assert files_below(source / "same").keys() == {"zarr.json"}
    assert_sound(source)


@pytest.mark.parametrize(("how", "arguments"), [("rm", [SLASH]), ("zarr 2", [])])
def test_an_array_that_is_removed_is_gone(mount: Mounter, source: Path, how: str, arguments: list[str]) -> None:
    mounted = mount(source, write=True, arguments=[V2, *arguments])
    for name in ("null", "other"):
        if how == "rm":
            tool("rm", "-r", mounted.path / name)
        else:
            ZARR2.run("import sys, zarr; del zarr.open_group(sys.argv[1])[sys.argv[2]]", mounted.path, name)
        assert not (mounted.path / name).exists()
    mounted.unmount()
    assert sorted(os.listdir(source)) == ["loose", "nameless", "same", "scalar", "zarr.json"]


def test_a_shrink_removes_chunks_and_growth_shows_what_is_stored(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True, arguments=[V2])
    program = """
import sys, zarr
opened = zarr.open_array(sys.argv[1], mode="r+")
opened.resize(4, 4)
assert opened[...].tolist() == [[0] * 4] * 4
opened.resize(10, 12)
assert not opened[...].any()
"""
    for name in ("null", "other"):
        ZARR2.run(program, mounted.path / name)
    mounted.unmount()
    for name in ("null", "other"):
        assert not values_of(source)[name].any()
        assert files_below(source / name).keys() == {"zarr.json"}, "nothing is stored"


def test_an_array_whose_chunks_cannot_be_encoded_is_as_stored_and_info_says_so(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "data.zarr"
    zarr.create_group(str(source))
    make(source / "odd", "int16", attributes={"_FillValue": "text"})
    make(source / "large", "uint8", attributes={"_FillValue": 256})
    delta = extension("numcodecs.delta", dtype="<f4")
    document = array(SHAPE, CHUNKS, delta, LITTLE, data_type="float32", fill_value=0, dimension_names=["y", "x"])
    (source / "delta").mkdir()
    (source / "delta" / "zarr.json").write_text(json.dumps(document))
    mounted = mount(source, arguments=[V2])
    assert (chunks_of(mounted.path / "delta"), fill_value_of(mounted.path / "delta")) == ([], 0)
    assert "delta is not read correctly by all users of the v2 view: xarray takes" in mounted.log
    for name in ("odd", "large"):
        assert "_FillValue" not in json.loads((mounted.path / name / ".zattrs").read_text())
        assert fill_value_of(mounted.path / name) is None
    caveats = {item["path"]: item["caveat"] for item in run_json("info", "--json", source)["arrays"]}
    assert "the codec delta of a single value is not encoded here" in caveats["delta"]
    assert "its _FillValue 'text' is not a value of 'int16'" in caveats["odd"].replace('"', "'")
    assert "256" in caveats["large"]
    assert f"  caveat              {caveats['odd']}\n" in run("info", source, "odd").stdout


def test_an_array_that_is_created_shows_what_its_writer_wrote(mount: Mounter, source: Path, tmp_path: Path) -> None:
    """`cp -r` makes every name itself, and takes it for an error if one is there."""
    copied = mount(source, arguments=[V2, SLASH]).path / "null"
    sparse, target = tmp_path / "sparse", tmp_path / "target"
    target.mkdir()
    mounted = mount(target, write=True, shards="2", arguments=[V2, SLASH])
    tool("cp", "-r", copied, mounted.path / "null")
    tool("cp", "-r", copied, sparse)
    (sparse / "0" / "0").unlink()
    tool("cp", "-r", sparse, mounted.path / "sparse")
    assert files_below(mounted.path / "null") == files_below(copied)
    mounted.unmount()
    for name in ("null", "sparse"):
        assert np.array_equal(zarr.open_array(str(target / name))[...], values_of(source)["null"])
