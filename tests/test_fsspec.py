"""The filesystem for fsspec: its own tests for reading, and what a program may rely on."""

import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import pytest
import trio
from fsspec.tests import abstract

import shardfs
from shardfs import errors
from shardfs.api.fsspec_filesystem import ShardfsFileSystem
from shardfs.vfs.paths import Paths
from tests.support.damage import document
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, environment
from tests.support.s3_server import Bucket
from tests.support.web_server import web_server

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent

fsspec.register_implementation("shardfs", ShardfsFileSystem, clobber=True)  # whatever was installed here before


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    store(directory / "image", document())
    (directory / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (directory / "notes.txt").write_text("passed through")
    return directory


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, source: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        return str(source)
    bucket: Bucket = request.getfixturevalue("s3_bucket")
    bucket.upload(source, "data.zarr")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    return bucket.url("data.zarr")


class Prepared(ShardfsFileSystem):
    """Files are written into the source, behind the filesystem, as that only reads."""

    def _stored(self, path: str) -> str:
        return f"{self.dataset.url.removeprefix('file://')}/{path}"

    def mkdir(self, path: str, *_: Any, **__: Any) -> None:
        os.makedirs(self._stored(path), exist_ok=True)

    makedirs = mkdir

    def touch(self, path: str, *_: Any, **__: Any) -> None:
        Path(self._stored(path)).parent.mkdir(parents=True, exist_ok=True)
        Path(self._stored(path)).touch()

    def pipe(self, path: str, value: bytes) -> None:
        self.touch(path)
        Path(self._stored(path)).write_bytes(value)

    def rm(self, path: str, *_: Any, **__: Any) -> None:
        shutil.rmtree(self._stored(path))


class TestItsOwnTestsOfReading(abstract.AbstractGetTests, abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, source: Path) -> Iterator[Prepared]:
        with shardfs.open(source, metadata_ttl=0) as dataset:
            yield Prepared(dataset=dataset, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "tests"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)


def test_the_protocol_is_installed_with_the_package() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["shardfs"].rpartition(".")
    assert getattr(import_module(module), name) is ShardfsFileSystem


def test_chunks_are_read_by_path_by_range_and_many_at_a_time(url: str) -> None:
    with shardfs.open(url) as dataset:
        fs, image = dataset.filesystem(), dataset["image"]
        chunks = {f"image/c/{i}/{j}": image.read_chunk((i, j)) for i in range(2) for j in range(4)}
        assert fs.cat(list(chunks)) == chunks
        assert fs.cat_ranges(list(chunks), [1] * 8, [-1] * 8) == [chunk[1:-1] for chunk in chunks.values()]
        assert fs.cat_file("shardfs://image/c/0/1", start=-3) == chunks["image/c/0/1"][-3:]
        assert {info["name"]: info["size"] for info in fs.ls("image/c/0")} == {
            key: len(chunk) for key, chunk in chunks.items() if key.startswith("image/c/0/")
        }
        assert fs.ls("notes.txt", detail=False) == ["notes.txt"]
        assert set(fs.find("")) >= {*chunks, "image/zarr.json", "notes.txt", "zarr.json"}
        with fs.open("image/c/1/2") as file:
            file.seek(2)
            assert file.read(5) == chunks["image/c/1/2"][2:7]
        with fs.open("notes.txt", "rt") as text:
            assert text.read() == "passed through"
        assert fs.info("image/c/0/0")["type"] == "file"
        assert fs.modified("image/c/0/0").timestamp() == fs.info("image/c/0/0")["mtime"]


def test_ranges_are_read_at_the_same_time(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, nreading, read = trio.Event(), 0, Paths.read

    async def read_with_others(paths: Paths, *args: Any) -> Any:
        nonlocal nreading
        nreading += 1
        if nreading == 8:
            together.set()
        with trio.fail_after(PATIENCE):
            await together.wait()
        return await read(paths, *args)

    with shardfs.open(source) as dataset:
        chunks = [dataset["image"].read_chunk(divmod(number, 4)) for number in range(8)]
        monkeypatch.setattr(Paths, "read", read_with_others)
        paths = [f"image/c/{i}/{j}" for i in range(2) for j in range(4)]
        assert dataset.filesystem().cat_ranges(paths, 0, 4) == [chunk[:4] for chunk in chunks]


def test_a_chained_url_may_be_on_a_web_server(source: Path) -> None:
    with web_server(source.parent) as web, fsspec.open(f"shardfs://notes.txt::{web.url}/data.zarr") as file:
        assert file.read() == (source / "notes.txt").read_bytes()


def test_a_chained_url_and_fo_open_the_same_source(
    source: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = (source / "notes.txt").read_bytes()
    with fsspec.open(f"shardfs://notes.txt::{source}") as file:
        assert file.read() == stored
    monkeypatch.chdir(source.parent)
    assert fsspec.filesystem("shardfs", fo="data.zarr", view="v2").exists("image/.zarray")
    s3_bucket.upload(source, "data.zarr")
    options = {"endpoint_url": s3_bucket.endpoint_url, "client_kwargs": {"region_name": "us-east-1"}}
    for key, value in s3_bucket.environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    place = s3_bucket.url("data.zarr").removeprefix("s3://")  # as fsspec passes it on
    fs = fsspec.filesystem("shardfs", fo=place, target_protocol="s3", target_options=options)
    assert fs.cat_file("notes.txt") == stored


def test_a_filesystem_is_of_what_its_name_stands_for_now_and_open(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fsspec.filesystem("shardfs", fo=str(source))
    kept = first.cat_file("notes.txt")
    source.rename(tmp_path / "old")
    source.mkdir()
    (source / "notes.txt").write_text("another one")
    (source / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert fsspec.filesystem("shardfs", fo=str(source)).cat_file("notes.txt") == b"another one"
    assert first.cat_file("notes.txt") == kept
    monkeypatch.chdir(source)
    assert fsspec.filesystem("shardfs", fo=".").cat_file("notes.txt") == b"another one"
    monkeypatch.chdir(tmp_path / "old")
    second = fsspec.filesystem("shardfs", fo=".")
    assert second.cat_file("notes.txt") == kept
    second.dataset.close()
    assert fsspec.filesystem("shardfs", fo=".").cat_file("notes.txt") == kept


def test_options_that_cannot_be_are_refused_by_name(source: Path) -> None:
    for options, message in (
        ({"target_protocol": "s3", "target_options": {"secret": "x"}}, "S3 option secret"),
        ({"target_protocol": "ftp"}, "ftp://"),
        ({"target_protocol": "https", "target_options": {"headers": {"Authorization": "hunter2"}}}, "option headers"),
        ({"write": True}, "write=True"),
    ):
        with pytest.raises(errors.UsageError, match=message):
            fsspec.filesystem("shardfs", fo=str(source), **options)


def test_what_is_no_file_is_told_from_what_cannot_be_read(source: Path) -> None:
    with shardfs.open(source) as dataset:
        fs = dataset.filesystem()
        for missing in ("nowhere", "image/c/0/9", "notes.txt/below", "../data.zarr/notes.txt"):
            with pytest.raises(FileNotFoundError):
                fs.cat_file(missing)
            with pytest.raises(FileNotFoundError):
                fs.open(missing)
            assert not fs.exists(missing)
            assert not fs.isfile(missing)
            assert not fs.isdir(missing)
        with pytest.raises(IsADirectoryError):
            fs.cat_file("image")
        with pytest.raises(IsADirectoryError):
            fs.open("image")
    shard = source / "image/c/0/0"
    shard.write_bytes(bytes(shard.stat().st_size))
    with shardfs.open(source) as dataset:
        fs, mapper = dataset.filesystem(), dataset.filesystem().get_mapper("image")
        for read in (fs.cat_file, fs.exists, fs.isfile, fs.info):
            with pytest.raises(errors.CorruptionError):
                read("image/c/0/0")
        with pytest.raises(errors.CorruptionError):
            mapper["c/0/0"]
        (answer,) = mapper.getitems(["c/0/0"], on_error="return").values()
        assert isinstance(answer, errors.CorruptionError)
        assert not isinstance(answer, OSError)


def test_an_open_file_keeps_its_version(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        fs = dataset.filesystem()
        with fs.open("image/c/0/0", cache_type="none") as file:
            before = dataset["image"].read_chunk((0, 0))
            first = file.read(2)
            dataset["image"].write_chunk((0, 0), b"another chunk")
            assert first + file.read() == before
        forgotten = fs.open("image/c/0/1", cache_type="none")
    with pytest.raises(errors.ClosedError):
        forgotten.read(2)
    forgotten.close()
    with shardfs.open(source) as dataset:
        fs = dataset.filesystem()
        assert fs.cat_file("image/c/0/0") == b"another chunk"


def test_nothing_is_changed_through_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "local").write_text("text")
    with shardfs.open(source, write=True) as dataset:
        fs = dataset.filesystem()
        for change in (
            lambda: fs.pipe_file("new", b"data"),
            lambda: fs.open("new", "wb"),
            lambda: fs.touch("new"),
            lambda: fs.put(str(tmp_path / "local"), "new"),
            lambda: fs.copy("notes.txt", "new"),
            lambda: fs.rm("notes.txt"),
            lambda: fs.mkdir("new"),
            lambda: fs.get_mapper("").__setitem__("new", b"data"),
        ):
            with pytest.raises(errors.ReadOnlyError, match=r"\.store\(\)"):
                change()
        assert fs.ls("", detail=False) == ["image", "notes.txt", "zarr.json"]


def test_links_are_followed_in_the_source_and_never_out_of_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "inside").symlink_to("notes.txt")
    (source / "outside").symlink_to(tmp_path / "secret")
    with shardfs.open(source) as dataset:
        fs = dataset.filesystem()
        assert {info["name"]: info["type"] for info in fs.ls("")} == {
            "image": "directory", "inside": "file", "notes.txt": "file", "outside": "other", "zarr.json": "file"
        }  # fmt: skip
        assert fs.cat_file("inside") == b"passed through"
        with pytest.raises(errors.OutsideSourceError):
            fs.cat_file("outside")


@pytest.mark.slow
def test_filesystems_of_other_options_are_others_and_the_same_in_another_process(source: Path) -> None:
    with shardfs.open(source) as v3, shardfs.open(source, view="v2") as v2:
        assert v3.filesystem() == v3.filesystem() != v2.filesystem()
        assert v3.filesystem().ukey("zarr.json") != v3.filesystem().ukey("notes.txt")
        assert pickle.loads(pickle.dumps(v2.filesystem())).dataset is v2
        code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).cat_file('image/.zarray').decode())"
        line = [sys.executable, "-P", "-c", code]
        sent = pickle.dumps(v2.filesystem())
        done = subprocess.run(line, input=sent, env=environment(), capture_output=True, timeout=PATIENCE, check=True)
        assert done.stdout.strip() == v2.filesystem().cat_file("image/.zarray").strip()


def test_a_file_is_fetched_whole_or_not_at_all(source: Path, tmp_path: Path) -> None:
    shard = source / "image/c/0/0"
    shard.write_bytes(bytes(shard.stat().st_size))
    with shardfs.open(source) as dataset:
        fs = dataset.filesystem()
        fs.get("image/c/1/3", str(tmp_path / "fetched"))
        assert (tmp_path / "fetched").read_bytes() == dataset["image"].read_chunk((1, 3))
        with pytest.raises(errors.CorruptionError):
            fs.get("image/c/0/0", str(tmp_path / "damaged"))
    assert not (tmp_path / "damaged").exists()
