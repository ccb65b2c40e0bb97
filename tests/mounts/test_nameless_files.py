"""A remote file whose name does not say what it is: its first bytes do, and every door opens it."""

import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import zarr
from zarr.storage import ZipStore

import shardfs
from shardfs.errors import SourceError
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.mounting import Mounter
from tests.support.s3_server import Bucket
from tests.support.serving import served
from tests.support.web_server import Web, web_server

pytestmark = pytest.mark.mount

VALUES = np.arange(60 * 8, dtype="<i4").reshape(60, 8)


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=VALUES, chunks=(6, 8), compression="gzip")


def write_hdf5_behind_a_block_of_the_user(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.create_dataset("g/x", data=VALUES, chunks=(6, 8), compression="gzip")


def write_zip(path: Path) -> None:
    with ZipStore(path, mode="w") as store:
        array: Any = zarr.create_group(store).create_array("g/x", shape=VALUES.shape, chunks=(6, 8), dtype="<i4")
        array[...] = VALUES


WRITERS: dict[str, Callable[[Path], None]] = {
    "hdf5": write_hdf5,
    "userblock": write_hdf5_behind_a_block_of_the_user,
    "zip": write_zip,
}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "web").mkdir()
    with web_server(tmp_path / "web") as server:
        yield server


@pytest.fixture(params=["web", "s3", "google"])
def place(
    request: pytest.FixtureRequest, web: Web, s3_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bytes], str]:
    """Stores bytes under a name in a place, and returns the URL."""
    for name, value in (s3_bucket.environment | {"GOOGLE_SKIP_SIGNATURE": "true"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GOOGLE_BASE_URL", s3_bucket.endpoint_url)

    def put(name: str, data: bytes) -> str:
        if request.param == "web":
            path = tmp_path / "web" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return f"{web.url}/{name}".replace(" ", "%20")
        s3_bucket.put(name, data)
        return s3_bucket.url(name) if request.param == "s3" else f"gs://{s3_bucket.name}/{name}"

    return put


def check(group: Any) -> None:
    np.testing.assert_array_equal(group["g/x"][...], VALUES)


def elements_of(sent: bytes) -> bytes:
    """What another process reads of a dataset that was sent to it."""
    with pickle.loads(sent) as dataset:
        found: Any = zarr.open_group(dataset.store(), mode="r")["g/x"]
        return bytes(np.ascontiguousarray(found[...]).tobytes())


@pytest.mark.parametrize("kind", WRITERS)
def test_every_door_opens_it(place: Callable[[str, bytes], str], mount: Mounter, tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / "file")
    url = place("some/file 1", (tmp_path / "file").read_bytes())
    check(zarr.open_group(mount(url).path, mode="r"))
    with served(url) as server:
        assert server.ask("/g/x/zarr.json").status == 200
        assert server.ask("/g/x/c/0/0").status == 200
    with shardfs.open(url) as dataset:
        check(zarr.open_group(dataset.store(), mode="r"))
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            assert pool.submit(elements_of, pickle.dumps(dataset)).result() == VALUES.tobytes()
    assert fsspec.filesystem("shardfs", fo=url).ls("g/x", detail=False)
    assert [each["path"] for each in run_json("info", "--json", url)["arrays"]] == ["g/x"]


@pytest.mark.parametrize("kind", ["hdf5", "zip"])
def test_commands_read_it_in_other_processes_too(place: Callable[[str, bytes], str], tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / "file")
    url = place("file", (tmp_path / "file").read_bytes())
    for name, arguments in {"packed": ["pack", "--shards=30,8"], "plain": ["unpack"]}.items():
        done = run(*arguments, "--jobs=2", url, tmp_path / name)
        assert done.returncode == 0, str(done)
        check(zarr.open_group(tmp_path / name, mode="r"))
        assert run("verify", "--jobs=2", url, tmp_path / name).returncode == 0
    report = run_json("verify", "--json", "--data", "--jobs=2", url)
    assert report["sound"] is True
    assert report["arrays"] == 1
    assert json.loads(run("refs", url).stdout)["refs"]["g/x/c/1/0"][0] == url


def test_workers_are_told_what_it_is(place: Callable[[str, bytes], str], tmp_path: Path) -> None:
    write_hdf5(tmp_path / "file")
    url = place("file", (tmp_path / "file").read_bytes())
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        shardfs.pack(url, tmp_path / "packed", shards=(30, 8), executor=pool)
        assert shardfs.verify(url, data=True, executor=pool)["sound"] is True
    check(zarr.open_group(tmp_path / "packed", mode="r"))


@pytest.mark.parametrize("data", [b"", b"x", b"nothing that is known" * 1000, b"\x89HDF"])
def test_another_file_is_refused_as_before(place: Callable[[str, bytes], str], data: bytes) -> None:
    url = place("file", data)
    said = one_line_of(run("info", url), SOURCE)
    assert "is a file; SOURCE is the folder" in said or "there is no zarr.json" in said or "nothing is stored" in said


def test_what_is_below_a_name_comes_before_the_file_of_that_name(
    s3_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_bucket.environment.items():
        monkeypatch.setenv(name, value)
    write_hdf5(tmp_path / "file")
    s3_bucket.put("data", (tmp_path / "file").read_bytes())
    s3_bucket.put("data/zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {"of": "a folder"}}')
    with shardfs.open(s3_bucket.url("data")) as dataset:
        assert dict(zarr.open_group(dataset.store(), mode="r").attrs) == {"of": "a folder"}
    with pytest.raises(SourceError, match="nothing is stored"):
        shardfs.open(s3_bucket.url("data/nothing"))


def test_a_name_with_a_slash_behind_it_is_no_file(web: Web, tmp_path: Path) -> None:
    write_hdf5(tmp_path / "web/file")
    assert "there is no zarr.json" in one_line_of(run("info", f"{web.url}/file/"), SOURCE)
    assert run("info", f"{web.url}/file").returncode == 0


def test_a_directory_with_the_name_of_a_file_is_opened_by_a_slash(
    s3_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_bucket.environment.items():
        monkeypatch.setenv(name, value)
    array: Any = zarr.create_group(tmp_path / "data.zip").create_array(
        "g/x", shape=VALUES.shape, chunks=(6, 8), shards=(12, 8), dtype="<i4"
    )
    array[...] = VALUES
    for path in (tmp_path / "data.zip").rglob("*"):
        if path.is_file():
            s3_bucket.put(str(path.relative_to(tmp_path)), path.read_bytes())
    url = s3_bucket.url("data.zip/")
    with pytest.raises(SourceError, match="end its name with a slash"):
        shardfs.open(url.rstrip("/"))
    with shardfs.open(url) as dataset:
        check(zarr.open_group(dataset.store(), mode="r"))
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            assert pool.submit(elements_of, pickle.dumps(dataset)).result() == VALUES.tobytes()
            shardfs.pack(url, tmp_path / "packed", executor=pool)
            assert shardfs.verify(url, data=True, executor=pool)["sound"] is True
    check(zarr.open_group(tmp_path / "packed", mode="r"))
    assert [each["path"] for each in run_json("info", "--json", url)["arrays"]] == ["g/x"]


def test_a_source_that_is_found_takes_no_request_more(web: Web, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "web/data").create_array("x", shape=(4,), dtype="u1")
    with shardfs.open(f"{web.url}/data"):
        pass
    assert not [path for method, path, _ in web.asked() if path == "/data"]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_local_file_is_known_by_its_first_bytes_too(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / "file")
    with shardfs.open(tmp_path / "file") as dataset:
        check(zarr.open_group(dataset.store(), mode="r"))
