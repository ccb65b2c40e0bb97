"""A format in a package of its own, found as an entry point: every door opens it, and nothing of shardfs knows it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from shardfs.formats import formats
from tests.support.commands import run, run_json
from tests.support.mounting import Mounter
from tests.support.prepared import TOP, fresh_environment
from tests.support.serving import served
from tests.support.web_server import web_server

TOY = TOP / "tests" / "toy_format"
PYTHONPATH = f"{fresh_environment()['PYTHONPATH']}{os.pathsep}{TOY}"
VIEWS = ["", "--decode", "--view=v2", "--view=v2 --decode"]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process find the package, too."""
    monkeypatch.syspath_prepend(TOY)
    formats.cache_clear()
    yield
    formats.cache_clear()


def succeed(*arguments: str | Path) -> str:
    done = run(*arguments, PYTHONPATH=PYTHONPATH)
    assert done.returncode == 0, str(done)
    return done.stdout + done.stderr


def write(path: Path, dtype: str = ">i4") -> np.ndarray:
    values = np.arange(7 * 5 * 3).reshape(7, 5, 3).astype(dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return values


def read_zarr(path: Path) -> np.ndarray:
    return np.asarray(zarr.open_array(str(path), mode="r")[()])


def test_it_is_one_folder_and_short() -> None:
    (module,) = TOY.rglob("*.py")
    assert len(module.read_text().splitlines()) <= 150
    assert "npy" in [each.name for each in formats()]


@pytest.mark.parametrize("options", VIEWS)
def test_a_file_is_mounted_listed_and_read(mount: Mounter, tmp_path: Path, options: str) -> None:
    values = write(tmp_path / "data.npy")
    root = mount(tmp_path / "data.npy", arguments=options.split(), env={"PYTHONPATH": PYTHONPATH}).path
    assert np.array_equal(read_zarr(root), values)
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    is_v2 = "v2" in options
    chunks = {f"{row}.0.0" if is_v2 else f"c/{row}/0/0" for row in range(7)}
    assert names == chunks | {".zarray" if is_v2 else "zarr.json"}


def test_a_directory_in_a_tree_is_an_array(mount: Mounter, tmp_path: Path) -> None:
    values = write(tmp_path / "source" / "deep" / "a" / "rows.npy", "<f8")
    other = write(tmp_path / "source" / "plain.npy")
    root = mount(tmp_path / "source", env={"PYTHONPATH": PYTHONPATH}).path
    assert np.array_equal(read_zarr(root / "deep" / "a"), values)
    assert (root / "deep/a/c/3/0/0").read_bytes() == values[3].tobytes()
    assert not (root / "deep/a/rows.npy").exists()
    assert np.array_equal(np.load(root / "plain.npy"), other)
    assert os.getxattr(root / "deep/a/c/3/0/0", "user.shardfs.shard") == b"deep/a/rows.npy"


def test_without_the_package_it_is_a_file_like_others(mount: Mounter, tmp_path: Path) -> None:
    write(tmp_path / "source" / "a" / "rows.npy")
    root = mount(tmp_path / "source").path
    assert os.listdir(root / "a") == ["rows.npy"]
    done = run("info", tmp_path / "source" / "a" / "rows.npy")
    assert done.returncode != 0
    assert "SOURCE is the folder" in done.stderr


def test_it_is_packed_unpacked_verified_and_described(tmp_path: Path) -> None:
    values = write(tmp_path / "data.npy")
    (item,) = run_json("info", "--json", tmp_path / "data.npy", PYTHONPATH=PYTHONPATH)["arrays"]
    assert (item["shape"], item["inner_chunk_shape"], item["stored_shards"]) == ([7, 5, 3], [1, 5, 3], 1)
    assert item["reason"] is None
    assert "zarr-python" in succeed("info", "--tools", tmp_path / "data.npy")
    report = run_json("verify", "--json", "--data", tmp_path / "data.npy", PYTHONPATH=PYTHONPATH)
    assert (report["sound"], report["arrays"], report["shards"]) == (True, 1, 1)
    (mapped,) = run_json("map", "--json", tmp_path / "data.npy", PYTHONPATH=PYTHONPATH)["arrays"]
    assert [shard["chunks"] for shard in mapped["shards"]] == [7]
    succeed("pack", "--shards", "4,1,1", tmp_path / "data.npy", tmp_path / "packed")
    packed = zarr.open_array(str(tmp_path / "packed"), mode="r")
    assert np.array_equal(packed[()], values)
    assert packed.shards == (4, 5, 3)
    succeed("verify", tmp_path / "data.npy", tmp_path / "packed")
    succeed("unpack", tmp_path / "data.npy", tmp_path / "unpacked")
    assert np.array_equal(read_zarr(tmp_path / "unpacked"), values)


def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "data.npy")
    os.truncate(tmp_path / "data.npy", (tmp_path / "data.npy").stat().st_size - 1)
    report = run_json("verify", "--json", tmp_path / "data.npy", status=1, PYTHONPATH=PYTHONPATH)
    assert "bytes" in report["problems"][0]["message"]


def test_it_is_served_and_opened_without_a_mount(tmp_path: Path) -> None:
    values = write(tmp_path / "data.npy")
    with served(tmp_path / "data.npy") as site:
        assert json.loads(site.ask("/zarr.json").body)["shape"] == [7, 5, 3]
        assert site.ask("/c/3/0/0").body == values[3].tobytes()
        assert site.ask("/-/v2/.zarray").status == 200
    with shardfs.open(tmp_path / "data.npy") as dataset:
        assert np.array_equal(zarr.open_array(dataset.store(), mode="r")[()], values)
        assert dataset[""].read_chunk((6, 0, 0)) == values[6].tobytes()


def test_it_is_read_by_ranges_from_the_web(tmp_path: Path) -> None:
    values = write(tmp_path / "data.npy")
    with web_server(tmp_path) as web, shardfs.open(f"{web.url}/data.npy") as dataset:
        assert np.array_equal(zarr.open_array(dataset.store(), mode="r")[()], values)


def test_what_changes_is_seen_and_what_is_removed_is_an_error(mount: Mounter, tmp_path: Path) -> None:
    write(tmp_path / "data.npy")
    mounted = mount(tmp_path / "data.npy", metadata_ttl=0, env={"PYTHONPATH": PYTHONPATH})
    assert read_zarr(mounted.path).dtype == np.int32
    values = write(tmp_path / "data.npy", "<f8")
    assert np.array_equal(read_zarr(mounted.path), values)
    (tmp_path / "data.npy").unlink()
    mounted.expect("is missing|is gone")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / "c/3/0/0").read_bytes()


def test_a_package_that_cannot_be_loaded_is_named_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "site" / "broken-1.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = (
        "[shardfs.formats]\nnone = no_such_package:FORMAT\nother = json:dumps\nthird = shardfs.formats.wkw:FORMAT\n"
    )
    (broken / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path / "site")
    formats.cache_clear()
    names = [each.name for each in formats()]
    assert "npy" in names
    assert len(names) == len(set(names))
    assert not {"none", "other"} & set(names)
    assert "has the name wkw of another one" in caplog.text
    assert "no_such_package" in caplog.text
    assert "is no shardfs.formats.Format" in caplog.text
