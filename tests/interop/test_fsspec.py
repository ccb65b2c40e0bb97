"""Programs of before Zarr v3 read sharded arrays through fsspec, without FUSE."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from tests.support.clients import ZARR2
from tests.support.commands import run, run_json
from tests.support.s3_server import Bucket
from tests.support.science import WRITERS, assert_equal, natively, stored

TOP = Path(shardfs.__file__).parent.parent

_BEGIN = f"""
import sys, fsspec, numpy, xarray, zarr
sys.path.insert(0, {str(TOP)!r})
sys.modules["pyfuse3"] = None
from shardfs.api.fsspec_filesystem import ShardfsFileSystem
fsspec.register_implementation("shardfs", ShardfsFileSystem)  # an installation does that
assert zarr.__version__ < "3" and xarray.__version__ < "2025.2"
found, source, *names = sys.argv[1:]
"""
_READ_ZARR = f"""{_BEGIN}
by_chain = zarr.open_group(f"shardfs://::{{source}}", mode="r", storage_options={{"shardfs": {{"view": "v2"}}}})
by_fo = zarr.open_group(fsspec.filesystem("shardfs", fo=source, view="v2").get_mapper(""), mode="r")
for name in names:
    numpy.testing.assert_array_equal(by_chain[name][...], by_fo[name][...])
numpy.savez(found, **{{name: by_fo[name][...] for name in names}})
"""
_READ_XARRAY = f"""{_BEGIN}
options = {{"shardfs": {{"view": "v2"}}}}
def plain(values):
    return values.astype("M8[s]").astype("f8") if values.dtype.kind == "M" else values.astype("f8")
with xarray.open_zarr(f"shardfs://::{{source}}", storage_options=options, chunks={{}}, consolidated=False) as opened:
    numpy.savez(found, **{{name: plain(opened[name].compute().values) for name in names}})
"""


@pytest.fixture(params=["directory", "s3"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """What programs open, and the directory that it is a copy of."""
    directory = tmp_path / "data.zarr"
    WRITERS["dataset"](directory)
    if request.param == "directory":
        return str(directory), directory
    bucket: Bucket = request.getfixturevalue("s3_bucket")
    bucket.upload(directory, "data.zarr")
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.url("data.zarr"), directory


def test_zarr_python_2_and_its_xarray_read_without_fuse(source: tuple[str, Path], tmp_path: Path) -> None:
    url, directory = source
    raw, values = stored(directory), natively(directory)
    assert_equal(ZARR2.arrays(_READ_ZARR, tmp_path, url, *raw), raw)
    found = ZARR2.arrays(_READ_XARRAY, tmp_path, url, *values)
    assert_equal(found, values)


def test_what_info_says_about_each_tool_works_without_a_mount(source: tuple[str, Path], tmp_path: Path) -> None:
    url, directory = source
    raw, values = stored(directory), natively(directory)
    advice = {tool["tool"]: tool["without_mount"] for tool in run_json("info", "--tools", "--json", url)["tools"]}
    program = f"""{_BEGIN}
import shardfs
group = {advice["zarr-python 2.18"]}
numpy.savez(found, **{{name: group[name][...] for name in names}})
"""
    assert_equal(ZARR2.arrays(program, tmp_path, url, *raw), raw)
    program = f"""{_BEGIN}
import shardfs
opened = {advice["xarray and dask on zarr-python 2"]}
numpy.savez(found, **{{name: opened[name].astype("f8").values for name in names}})
"""
    numbers = {name: found for name, found in values.items() if found.dtype.kind != "M"}
    assert ZARR2.arrays(program, tmp_path, url, *numbers).keys() == numbers.keys()
    name = next(iter(raw))
    for tool, opened in (("zarr-python 3.1", f"[{name!r}][...]"), ("numpy, Julia, MATLAB, C", "")):
        line = advice[tool].replace("image.npy", f"{name}.npy")
        found = eval(f"{line}{opened}", {"numpy": np, "shardfs": shardfs, "zarr": zarr})
        np.testing.assert_array_equal(found, raw[name])
    for tool, kind in (("netCDF-C 4.9 (Debian 12)", ".zarray"), ("cp, rsync, sha256sum", "zarr.json")):
        to = tmp_path / tool
        done = run(*shlex.split(advice[tool].replace("DIR", shlex.quote(str(to))))[1:])
        assert done.returncode == 0, str(done)
        assert (to / name / kind).is_file()


@pytest.mark.parametrize(("kind", "path"), [("WKW", "color/1"), ("an array", ""), ("directories", "some/where")])
def test_what_info_says_of_a_source_that_is_no_group_works_without_a_mount(
    tmp_path: Path, kind: str, path: str
) -> None:
    directory = tmp_path / "data"
    if kind == "WKW":
        pytest.importorskip("wkw")
        from tests.support.wkw import LZ4, layer, write_properties, write_wkw

        values = np.random.default_rng(3).integers(1, 5, (1, 37, 20, 18)).astype("u2")
        write_wkw(directory / path, values, LZ4)
        write_properties(directory, layer("color", [(0, 0, 0), values.shape[1:]]))
    else:
        values = np.arange(1, 257, dtype="u2").reshape(16, 16)
        zarr.create_array(directory / path, data=values, chunks=(4, 4), shards=(8, 8))
    advice = {tool["tool"]: tool["without_mount"] for tool in run_json("info", "--tools", "--json", directory)["tools"]}
    program = f"""{_BEGIN}
import dask.array, shardfs
array = {advice["zarr-python 2.18"]}
by_dask = {advice["xarray and dask on zarr-python 2"]}
numpy.savez(found, zarr=array[...], dask=by_dask.compute())
"""
    for tool, found in ZARR2.arrays(program, tmp_path, str(directory)).items():
        np.testing.assert_array_equal(found, values, tool)
    for tool in ("zarr-python 3.1", "zarr-python 3.4"):
        found = eval(advice[tool], {"shardfs": shardfs, "zarr": zarr})
        np.testing.assert_array_equal(found[...], values)


def test_zarr_python_2_raises_an_error_for_a_damaged_chunk(tmp_path: Path) -> None:
    directory = tmp_path / "data.zarr"
    group = zarr.create_group(directory)
    group.create_array("image", shape=(16,), chunks=(4,), shards=(8,), dtype="u2", fill_value=7)[:] = np.arange(16)
    shard = directory / "image/c/1"
    shard.write_bytes(bytes(shard.stat().st_size))
    program = f"""{_BEGIN}
image = zarr.open_group(fsspec.filesystem("shardfs", fo=source, view="v2").get_mapper(""), mode="r")["image"]
assert image[:8].tolist() == list(range(8))
try:
    image[8:]
except Exception as error:
    assert type(error).__name__ == "CorruptionError", repr(error)
else:
    raise AssertionError("a damaged chunk was read as fill value")
"""
    ZARR2.run(program, tmp_path / "nothing", directory)
