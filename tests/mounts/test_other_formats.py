"""A format in a package of its own, found as an entry point: every door opens it, and nothing of shardfs knows it."""

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from shardfs.errors import NotFoundError, StoreError
from shardfs.formats import formats, load_formats
from shardfs.vfs.paths import Paths
from tests.support.commands import run, run_json
from tests.support.mounting import Mounter
from tests.support.serving import served
from tests.support.users import TOP
from tests.support.web_server import web_server

TOY = TOP / "tests" / "toy_format"
VIEWS = ["", "--decode", "--view=v2", "--view=v2 --decode"]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process find the package, too."""
    monkeypatch.syspath_prepend(TOY)
    load_formats.cache_clear()
    yield
    load_formats.cache_clear()


def succeed(*arguments: str | Path) -> str:
    done = run(*arguments, TEST_PACKAGES=str(TOY))
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
    root = mount(tmp_path / "data.npy", arguments=options.split(), env={"TEST_PACKAGES": str(TOY)}).path
    assert np.array_equal(read_zarr(root), values)
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    is_v2 = "v2" in options
    chunks = {f"{row}.0.0" if is_v2 else f"c/{row}/0/0" for row in range(7)}
    assert names == chunks | {".zarray" if is_v2 else "zarr.json"}


def test_a_directory_in_a_tree_is_an_array(mount: Mounter, tmp_path: Path) -> None:
    values = write(tmp_path / "source" / "deep" / "a" / "rows.npy", "<f8")
    other = write(tmp_path / "source" / "plain.npy")
    root = mount(tmp_path / "source", env={"TEST_PACKAGES": str(TOY)}).path
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
    (item,) = run_json("info", "--json", tmp_path / "data.npy", TEST_PACKAGES=str(TOY))["arrays"]
    assert (item["shape"], item["inner_chunk_shape"], item["stored_shards"]) == ([7, 5, 3], [1, 5, 3], 1)
    assert item["reason"] is None
    assert "zarr-python" in succeed("info", "--tools", tmp_path / "data.npy")
    report = run_json("verify", "--json", "--data", tmp_path / "data.npy", TEST_PACKAGES=str(TOY))
    assert (report["sound"], report["arrays"], report["shards"]) == (True, 1, 1)
    (mapped,) = run_json("map", "--json", tmp_path / "data.npy", TEST_PACKAGES=str(TOY))["arrays"]
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
    report = run_json("verify", "--json", tmp_path / "data.npy", status=1, TEST_PACKAGES=str(TOY))
    assert "bytes" in report["problems"][0]["message"]


def test_a_file_that_is_not_supported_is_named_by_every_command_with_the_reason(tmp_path: Path) -> None:
    source, reason = tmp_path / "data.npy", "only numbers in C order have rows here"
    np.save(source, np.asfortranarray(np.arange(6).reshape(2, 3)))
    for command, status, *more in (("verify", 3), ("refs", 1), ("pack", 2, tmp_path / "packed")):
        done = run(command, source, *more, TEST_PACKAGES=str(TOY))
        assert done.returncode == status, str(done)
        assert reason in done.stderr
        assert done.stdout == ""
    assert os.listdir(tmp_path) == ["data.npy"]
    assert reason in succeed("info", source)


@pytest.mark.parametrize("option", [None, "--output", "--parquet"])
def test_references_to_it_are_refused_and_nothing_is_written(tmp_path: Path, option: str | None) -> None:
    source = tmp_path / "data.npy"
    write(source)
    done = run("refs", *([option, tmp_path / "refs"] if option else []), source, TEST_PACKAGES=str(TOY))
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{source} cannot be referenced: shardfs writes references only" in done.stderr
    assert "shardfs pack" in done.stderr
    assert os.listdir(tmp_path) == ["data.npy"]


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
    mounted = mount(tmp_path / "data.npy", metadata_ttl=0, env={"TEST_PACKAGES": str(TOY)})
    assert read_zarr(mounted.path).dtype == np.int32
    values = write(tmp_path / "data.npy", "<f8")
    assert np.array_equal(read_zarr(mounted.path), values)
    (tmp_path / "data.npy").unlink()
    mounted.expect("is missing|is gone")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / "c/3/0/0").read_bytes()


def replace_file(path: Path, dtype: str) -> np.ndarray:
    """Replace a file by another one in one step, as programs do that write safely."""
    values = write(path.with_name("new.npy"), dtype)
    path.with_name("new.npy").replace(path)
    return values


def test_places_of_chunks_are_never_those_of_another_version_of_the_file(tmp_path: Path) -> None:
    """However long what was read of its header is trusted."""
    write(tmp_path / "data.npy")
    with shardfs.open(tmp_path / "data.npy", metadata_ttl=600) as dataset:
        assert dataset[""].metadata["data_type"] == "int32"
        for dtype, data_type in (("<f8", "float64"), ("<i2", "int16")):
            values = replace_file(tmp_path / "data.npy", dtype)
            assert dataset[""].read_chunk((6, 0, 0)) == values[6].tobytes()
            assert dataset[""].metadata["data_type"] == data_type


def test_versions_are_not_mixed_where_a_file_is_replaced_over_and_over(mount: Mounter, tmp_path: Path) -> None:
    versions = [write(tmp_path / "data.npy", dtype) for dtype in ("<i4", "<f8")]
    root = mount(tmp_path / "data.npy", metadata_ttl=600, env={"TEST_PACKAGES": str(TOY)}).path
    nread, failures = 0, set()
    for number in range(200):
        if not number % 4:
            replace_file(tmp_path / "data.npy", versions[number // 4 % 2].dtype.str)
        row = number % 7
        try:
            read = (root / f"c/{row}/0/0").read_bytes()
        except OSError as error:
            failures.add(error.errno)
        else:
            nread += 1
            assert read in {values[row].tobytes() for values in versions}
    assert failures <= {errno.ESTALE}
    assert nread > 50


@pytest.mark.parametrize("content", [b"", b"no array"], ids=["empty", "other"])
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "directory"])
def test_an_array_that_cannot_be_read_any_more_is_an_error_and_no_fill_value(
    mount: Mounter, tmp_path: Path, content: bytes, *, is_file: bool
) -> None:
    path = tmp_path / "source" / "rows.npy"
    values = write(path)
    source = path if is_file else path.parent
    mounted = mount(source, metadata_ttl=0, env={"TEST_PACKAGES": str(TOY)})
    array = zarr.open_array(str(mounted.path), mode="r")
    assert np.array_equal(array[()], values)
    path.write_bytes(content)
    for age in (0, 3600):
        os.utime(path, (time.time() - age, time.time() - age))
        with pytest.raises(OSError, match=r"Input/output|Stale"):
            array[()]
        with pytest.raises(OSError, match="Input/output"):
            (mounted.path / "c/3/0/0").read_bytes()
    mounted.expect("is not what it was")
    assert np.array_equal(write(path, "<f8"), read_zarr(mounted.path))


def test_an_array_that_was_read_long_ago_is_an_error_too_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    async def forget(paths: Paths) -> None:
        paths.forget()

    write(tmp_path / "a" / "rows.npy")
    with shardfs.open(tmp_path, metadata_ttl=0) as dataset:
        assert dataset["a"].metadata["shape"] == [7, 5, 3]
        os.truncate(tmp_path / "a" / "rows.npy", 20)
        dataset.loop.call(forget)
        with pytest.raises(StoreError, match=r"a/rows.npy is not what it was"):
            dataset["a"].read_chunk((0, 0, 0))
        (tmp_path / "a" / "rows.npy").unlink()
        with pytest.raises(NotFoundError, match="a is not an array or group"):
            dataset["a"].read_chunk((0, 0, 0))


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
    load_formats.cache_clear()
    names = [each.name for each in formats()]
    assert "npy" in names
    assert len(names) == len(set(names))
    assert not {"none", "other"} & set(names)
    assert "has the name wkw of another one" in caplog.text
    assert "no_such_package" in caplog.text
    assert "is no shardfs.formats.Format" in caplog.text
