"""HDF5 and netCDF-4 files as a source: every door opens them, and shows what h5py reads."""

import errno
import io
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import xarray
import zarr

import shardfs
from tests.formats.hdf5.test_structure import write_netcdf
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.s3_mounts import Remote
from tests.support.serving import served
from tests.support.web_server import web_server

pytestmark = pytest.mark.mount

SIZES = {"gzip": (20, 30), "partial": (10, 7), "contiguous": (1237, 1023), "big": (7, 9), "lzf": (20, 30), "scalar": ()}
VIEWS = ["", "--decode", "--view=v2", "--view=v2 --decode", "--view=npy"]


def succeed(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.returncode == 0, str(done)
    return done.stdout + done.stderr


def write(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Write a file with arrays below two groups; returns their values."""
    random = np.random.default_rng(seed)
    values = {f"group/{name}": random.integers(0, 50, shape).astype("<i4") for name, shape in SIZES.items()}
    values["group/big"] = values["group/big"].astype(">f8")
    values["group/partial"][4:] = 9
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "a test"
        packed: dict[str, Any] = {"chunks": (6, 8), "compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("group/gzip", data=values["group/gzip"], **packed)
        file.create_dataset("group/lzf", data=values["group/lzf"], chunks=(6, 8), compression="lzf")
        made = file.create_dataset("group/partial", (10, 7), "<i4", chunks=(4, 7), fillvalue=9)
        made[:4] = values["group/partial"][:4]
        for name in ("contiguous", "big", "scalar"):
            file[f"group/{name}"] = values[f"group/{name}"]
        file["group/text"] = np.array(["a", "", "ü"], h5py.string_dtype())
        file["link"] = h5py.SoftLink("/group")
        file.create_dataset("skipped", data=np.arange(9), chunks=(3,), scaleoffset=0)
    return values


@pytest.mark.parametrize("options", VIEWS)
def test_a_mount_shows_the_values_that_h5py_reads_in_every_view(mount: Mounter, tmp_path: Path, options: str) -> None:
    values = write(tmp_path / "a.h5")
    root = mount(tmp_path / "a.h5", arguments=options.split()).path
    for path, expected in values.items():
        for name in (path, path.replace("group", "link")):
            if options == "--view=npy":
                found = np.load(root / f"{name}.npy")
            else:
                found = zarr.open_array(str(root / name), mode="r")[()]
            np.testing.assert_array_equal(found, expected)
    if options == "":
        assert zarr.open_group(root, mode="r")["group/text"][()].tolist() == ["a", "", "ü"]
        assert sorted(os.listdir(root)) == ["group", "link", "zarr.json"]
        assert sorted(os.listdir(root / "group/partial/c")) == ["0"], "a chunk that is not stored has no file"
        with h5py.File(tmp_path / "a.h5") as file:
            assert (root / "group/gzip/c/2/1").read_bytes() == file["group/gzip"].id.read_direct_chunk((12, 8))[1]


def test_a_mount_is_only_read_and_says_what_it_leaves_out(mount: Mounter, tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    mounted = mount(tmp_path / "a.h5")
    for change in (lambda: (mounted.path / "new").write_bytes(b""), (mounted.path / "group/gzip/c/0/0").unlink):
        with pytest.raises(OSError) as raised:
            change()
        assert raised.value.errno == errno.EROFS
    line = succeed("info", tmp_path / "a.h5").splitlines()[-1]
    reason = "skipped (Zarr has no codec for the filter scale-offset (6))"
    assert line == f"note: skipped, as Zarr has no form for it: {reason}"
    assert reason in run_json("info", "--json", tmp_path / "a.h5")["note"]


def test_every_command_takes_it(tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5")
    source = tmp_path / "a.h5"
    arrays = {item["path"]: item for item in run_json("info", "--json", source)["arrays"]}
    assert arrays["group/gzip"]["shape"] == [20, 30]
    assert "shardfs mount" in succeed("info", "--tools", source)
    verified = run_json("verify", "--data", "--json", source)
    assert verified["parts"] > 60
    reason = "it is not shown: Zarr has no codec for the filter scale-offset (6)"
    assert {"array": "skipped", "reason": reason} in verified["unchecked"]
    for words in (["pack"], ["unpack"], ["unpack", "--view=v2"]):
        copy = tmp_path / "_".join(words)
        succeed(*words, source, copy)
        assert "no difference found" in succeed("verify", source, copy)
        for path, expected in values.items():
            np.testing.assert_array_equal(zarr.open_array(str(copy / path), mode="r")[()], expected)
    assert zarr.open_array(str(tmp_path / "pack/group/gzip"), mode="r").shards is not None


def test_verify_names_what_is_damaged_and_all_that_is_skipped(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(5):
            file[f"g/{number}"] = h5py.ExternalLink("other.h5", "/x")
        file["g/damaged"] = np.arange(3)
        at = h5py.h5o.get_info(file["g/damaged"].id).addr
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.seek(at)
        raw.write(b"\xff" * 16)
    done = run("verify", "--json", tmp_path / "a.h5")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    reason = "it is not shown: it is a link to another file"
    assert found["unchecked"] == [{"array": f"g/{number}", "reason": reason} for number in range(5)]
    named = [(problem["shard"], problem["document"]) for problem in found["problems"]]
    assert named == [("g/damaged/zarr.json", None), (None, "g/damaged")]


def test_references_to_it_are_read_without_shardfs(tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5")
    words = ["refs", "--view=v2", "--output", tmp_path / "refs.json", tmp_path / "a.h5"]
    assert "group/lzf cannot be referenced: its chunks are not stored as they are shown" in run(*words).stderr
    done = run(*words, "--skip-encoded")
    references = json.loads((tmp_path / "refs.json").read_text())["refs"]
    with h5py.File(tmp_path / "a.h5") as file:
        info = file["group/gzip"].id.get_chunk_info_by_coord((12, 8))
    assert references["group/gzip/2.1"][1:] == [info.byte_offset, info.size], str(done)
    files = fsspec.filesystem("reference", fo=str(tmp_path / "refs.json"))
    for path in ("group/gzip", "group/partial", "group/big"):
        found = zarr.open_array(files.get_mapper(path), mode="r", zarr_format=2)[()]
        np.testing.assert_array_equal(found, values[path])


def test_it_is_served_in_every_view_and_with_pages(tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        stored = file["group/gzip"].id.read_direct_chunk((12, 8))[1]
    with served(tmp_path / "a.h5") as site:
        assert json.loads(site.ask("/group/gzip/zarr.json").body)["shape"] == [20, 30]
        assert site.ask("/group/gzip/c/2/1").body == site.ask("/-/v2/group/gzip/2.1").body == stored
        assert np.array_equal(np.load(io.BytesIO(site.ask("/-/npy/group/big.npy").body)), values["group/big"])
        for path in ("/group/", "/group/gzip/"):
            page = site.ask(path, accept="text/html")
            assert (page.status, page["Content-Type"]) == (200, "text/html; charset=utf-8")


def test_the_store_the_filesystem_and_read_chunk_open_it(tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5")
    with shardfs.open(tmp_path / "a.h5", decode=True) as dataset:
        assert dataset["group/lzf"].read_chunk((0, 0)) == values["group/lzf"][:6, :8].tobytes()
        found = zarr.open_group(dataset.store(), mode="r")
        np.testing.assert_array_equal(found["group/contiguous"][()], values["group/contiguous"])
        assert dataset.filesystem().isfile("group/gzip/c/0/0")


def test_xarray_opens_a_mounted_netcdf_file(mount: Mounter, tmp_path: Path) -> None:
    write_netcdf(tmp_path / "a.nc")
    with xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as expected:
        v3 = xarray.open_dataset(mount(tmp_path / "a.nc").path, engine="zarr", consolidated=False)
        xarray.testing.assert_identical(v3.load(), expected.load())
        v2 = mount(tmp_path / "a.nc", arguments=["--view=v2"]).path
        found = xarray.open_dataset(v2, engine="zarr", consolidated=False, zarr_format=2)
        for name in ("packed", "short", "bounds", "time"):
            np.testing.assert_array_equal(found[name], expected[name])


def test_a_web_server_and_a_bucket_are_read_by_ranges(mount: Mounter, remote: Remote, tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5")
    (tmp_path / "web").mkdir()
    shutil.copy(tmp_path / "a.h5", tmp_path / "web")
    remote.put("a.h5", (tmp_path / "a.h5").read_bytes())
    with web_server(tmp_path / "web") as web:
        for source in (f"{web.url}/a.h5", f"{remote.url}/a.h5"):
            env = remote.bucket.through(remote.proxy.url).environment
            root = zarr.open_group(mount(source, env=env).path, mode="r")
            for path, expected in values.items():
                np.testing.assert_array_equal(root[path][()], expected)


def test_a_file_that_is_replaced_is_shown_anew_and_what_is_open_stays(mount: Mounter, tmp_path: Path) -> None:
    values = write(tmp_path / "a.h5")
    root = mount(tmp_path / "a.h5", metadata_ttl=0).path
    chunk = root / "group/gzip/c/0/0"
    before = chunk.read_bytes()
    with chunk.open("rb", buffering=0) as opened:
        others = write(tmp_path / "new.h5", seed=1)
        (tmp_path / "new.h5").replace(tmp_path / "a.h5")
        assert opened.read() == before
    assert chunk.read_bytes() != before
    found = zarr.open_array(str(root / "group/lzf"), mode="r")[()]
    np.testing.assert_array_equal(found, others["group/lzf"])
    assert not np.array_equal(found, values["group/lzf"])


def test_a_file_that_is_written_to_is_stale_and_never_a_mixture(mount: Mounter, tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    root = mount(tmp_path / "a.h5", metadata_ttl=0).path
    old = (root / "group/lzf/c/0/0").read_bytes()
    with (root / "group/gzip/c/0/0").open("rb", buffering=0) as chunk, (root / "group/lzf/c/0/0").open("rb") as made:
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            file["group/gzip"][:6, :8] = 77
            file["group/lzf"][:6, :8] = 77
        with pytest.raises(OSError) as raised:
            chunk.read()
        assert raised.value.errno == errno.ESTALE
        with suppress(OSError):
            assert made.read() == old, "what was read before is kept"
    assert (zarr.open_array(str(root / "group/gzip"), mode="r")[:6, :8] == 77).all()
    assert (zarr.open_array(str(root / "group/lzf"), mode="r")[:6, :8] == 77).all()


def test_a_file_that_h5py_cannot_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(1000))
    assert "a.h5 cannot be read: libhdf5 cannot read it" in one_line_of(run("info", tmp_path / "a.h5"), SOURCE)


def test_files_below_are_those_of_the_documented_layout(mount: Mounter, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(6, dtype="i2")
        file.create_dataset("g/y", data=np.arange(6, dtype="i2").reshape(2, 3), chunks=(1, 2))
    found = files_below(mount(tmp_path / "a.h5").path)
    chunks = {f"g/y/c/{row}/{column}" for row in range(2) for column in range(2)}
    assert found.keys() == {"zarr.json", "x/zarr.json", "x/c/0", "g/zarr.json", "g/y/zarr.json"} | chunks
    assert found["x/c/0"] == np.arange(6, dtype="i2").tobytes()
