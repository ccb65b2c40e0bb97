"""`shardfs.open(..., write=True)`: a writing mount without FUSE, and what a dataset tells of its nodes."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfs
from shardfs import errors
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.shard_cache import ShardCache
from shardfs.format.sharding import ChunkLocation
from shardfs.stores.base import Kind
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.paths import Paths
from tests.support import commands
from tests.support.damage import document
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, environment
from tests.support.s3_server import Bucket

pytestmark = pytest.mark.slow

NEW = b"a new chunk"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    store(directory / "image", document() | {"attributes": {"unit": "nm"}})
    (directory / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}')
    (directory / "notes.txt").write_text("passed through")
    return directory


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same source, wherever it can be."""
    if request.param == "directory":
        return str(source)
    bucket: Bucket = request.getfixturevalue("s3_bucket")
    bucket.upload(source, "data.zarr")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    return bucket.url("data.zarr")


def test_what_is_written_is_read_at_once_and_is_in_the_shard_after_flush_and_close(url: str) -> None:
    with shardfs.open(url, write=True) as dataset:
        image = dataset["image"]
        image.write_chunk((0, 0), NEW)
        assert image.read_chunk((0, 0)) == NEW
        dataset.flush()
        assert shardfs.open(url)["image"].read_chunk((0, 0)) == NEW
        image.write_chunk((1, 3), NEW * 2)
        image.write_chunk((0, 1), None)
        assert image.read_chunk((0, 1)) is None
    reopened = shardfs.open(url)["image"]
    assert [reopened.read_chunk(coords) for coords in ((0, 0), (1, 3), (0, 1))] == [NEW, NEW * 2, None]


@pytest.mark.slow
def test_what_was_written_survives_a_kill_of_the_process(url: str) -> None:
    code = """
import os, shardfs, signal, sys
dataset = shardfs.open(sys.argv[1], write=True)
dataset["image"].write_chunk((0, 0), b"a new chunk")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code, url], env=environment() | os.environ, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    assert shardfs.open(url)["image"].read_chunk((0, 0)) != NEW
    with shardfs.open(url, write=True) as dataset:
        assert dataset["image"].read_chunk((0, 0)) == NEW
    assert shardfs.open(url)["image"].read_chunk((0, 0)) == NEW


@pytest.mark.slow
def test_what_nobody_closed_is_committed_at_the_exit_of_the_process(url: str) -> None:
    code = """
import shardfs, sys
image = shardfs.open(sys.argv[1], write=True)["image"]
image.write_chunk((0, 0), b"a new chunk")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, url], env=environment() | os.environ, timeout=PATIENCE, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert shardfs.open(url)["image"].read_chunk((0, 0)) == NEW


def test_threads_write_chunks_of_one_shard_at_the_same_time_and_lose_none(url: str) -> None:
    with shardfs.open(url, write=True) as dataset:
        image, together = dataset["image"], threading.Barrier(8)

        def write(number: int) -> None:
            together.wait()
            image.write_chunk(divmod(number, 4), b"%d" % number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reopened = shardfs.open(url)["image"]
    assert [reopened.read_chunk(divmod(number, 4)) for number in range(8)] == [b"%d" % number for number in range(8)]


def test_a_second_writer_writes_beside_the_first(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        with shardfs.open(source, write=True) as second:
            second["image"].write_chunk((0, 1), NEW)
            dataset["image"].write_chunk((0, 0), NEW)
        assert commands.run("verify", source).returncode == 0
        assert [shardfs.open(source)["image"].read_chunk((0, j)) for j in range(2)] == [NEW, NEW]
    assert not (source / ".shardfs").exists()


def test_without_write_nothing_can_be_changed(source: Path) -> None:
    with shardfs.open(source) as dataset:
        with pytest.raises(errors.ReadOnlyError, match="write=True"):
            dataset["image"].write_chunk((0, 0), NEW)
        dataset.flush()
    assert not (source / ".shardfs").exists()


def test_what_cannot_be_committed_is_said_at_the_end_and_stays(source: Path) -> None:
    dataset = shardfs.open(source, write=True)
    dataset["image"].write_chunk((0, 0), NEW)
    shard = source / "image/c/0/0"
    shard.rename(source / "aside")
    shard.mkdir()
    with pytest.raises(errors.IsADirectoryHereError):
        dataset.flush()
    with pytest.raises(errors.StoreError, match="could be committed: image/c/0/0: Is a directory; it stays in"):
        dataset.close()
    shard.rmdir()
    (source / "aside").rename(shard)
    with shardfs.open(source, write=True) as dataset:
        assert dataset["image"].read_chunk((0, 0)) == NEW


def test_nodes_tell_what_a_mount_and_map_show(source: Path) -> None:
    with shardfs.open(source) as dataset, shardfs.open(source, view="v2") as v2:
        image = dataset["image"]
        assert image.metadata["chunk_grid"]["configuration"]["chunk_shape"] == [4, 3]
        assert image.attrs == v2["image"].attrs == {"unit": "nm"}
        assert dataset[""].attrs == v2[""].attrs == {"a": 1}
        assert v2["image"].metadata["chunks"] == [4, 3]
        (mapped,) = commands.run_json("map", "--json", source)["arrays"]
        assert [{k: v for k, v in shard.items() if k != "coords"} for shard in image.shards()] == mapped["shards"]
        with pytest.raises(errors.NotUnshardable):
            dataset[""].shards()


def test_other_views_are_read_and_written_too(source: Path) -> None:
    values = np.arange(12, dtype="<i4").reshape(4, 3)
    with shardfs.open(source, view="v2", decode=True, write=True) as dataset:
        dataset["image"].write_chunk((0, 0), values.tobytes())
        assert dataset["image"].read_chunk((0, 0)) == values.tobytes()
    with shardfs.open(source, decode=True) as dataset:
        assert dataset["image"].read_chunk((0, 0)) == values.tobytes()


def in_tree(dataset: Any, work: Any, *args: Any, **options: Any) -> Any:
    return dataset.loop.call(work, *args, **options)


def test_paths_are_those_of_a_mount(source: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to("image/c/0")
    (source / "image/absolute").symlink_to(tmp_path)
    (source / "up").symlink_to("image/../../data.zarr/notes.txt")
    (source / "round").symlink_to("round")
    with shardfs.open(source) as dataset:
        first = dataset["image"].read_chunk((0, 0))
        assert in_tree(dataset, Paths.read, "image/c/0/0") == in_tree(dataset, Paths.read, "link/0") == first
        assert in_tree(dataset, Paths.read, "image/c/0/0", 1, 3) == first[1:3]
        assert in_tree(dataset, Paths.read, "image/c/0/0", -3) == first[-3:]
        for gone in ("nowhere", "image/c/0/9", "image/c/0/0/0", "../data.zarr/notes.txt", "image//c", "./notes.txt"):
            with pytest.raises((errors.NotFoundError, errors.NotADirectoryHereError)):
                in_tree(dataset, Paths.read, gone)
        for outside in ("image/absolute/data.zarr", "up", "round"):
            with pytest.raises(errors.OutsideSourceError):
                in_tree(dataset, Paths.read, outside)
        names = {listed.name: (listed.kind, listed.size) for listed in in_tree(dataset, Paths.names, "image/c/0")}
        assert names == {str(j): (Kind.FILE, len(dataset["image"].read_chunk((0, j)))) for j in range(4)}


@pytest.mark.parametrize("write", [False, True])
def test_a_chunk_is_read_by_one_look_at_its_shard_in_a_directory_that_was_found_within_the_ttl(
    source: Path, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    looked_up: list[bytes] = []
    shards: list[str] = []
    lookup, open_shard = Filesystem.lookup, ShardCache.open

    async def look(fs: Filesystem, parent: int, name: bytes) -> Any:
        looked_up.append(name)
        return await lookup(fs, parent, name)

    async def open_one(cache: ShardCache, layout: ArrayLayout, place: ChunkLocation, *, fresh: bool = False) -> Any:
        shards.append(layout.shard_key(place.shard))
        return await open_shard(cache, layout, place, fresh=fresh)

    monkeypatch.setattr(Filesystem, "lookup", look)
    monkeypatch.setattr(ShardCache, "open", open_one)
    flat = document() | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
    store(source / "flat", flat)
    for directory, separator, ttl, above in (
        ("image/c/0", "/", 3600, []),
        ("image/c/0", "/", 0, [b"image", b"c", b"0"]),
        ("flat", "/0.", 3600, []),
        ("flat", "/0.", 0, [b"flat"]),
    ):
        with shardfs.open(source, write=write, metadata_ttl=ttl) as dataset:
            in_tree(dataset, Paths.read, f"{directory}{separator}0")
            looked_up.clear()
            shards.clear()
            data = in_tree(dataset, Paths.read, f"{directory}{separator}1")
            assert (looked_up, len(shards)) == (above, 1)
            assert data == dataset["image"].read_chunk((0, 1))


def test_a_directory_that_was_found_is_found_anew_after_a_change(source: Path) -> None:
    with shardfs.open(source, write=True, metadata_ttl=3600) as dataset:
        text = in_tree(dataset, Paths.read, "image/zarr.json")
        chunk = dataset["image"].read_chunk((0, 0))
        in_tree(dataset, Paths.publish, "new/c/0/0", b"no chunk yet")
        assert in_tree(dataset, Paths.read, "new/c/0/0") == b"no chunk yet"
        in_tree(dataset, Paths.remove_below, "new")
        with pytest.raises(errors.NotFoundError):
            in_tree(dataset, Paths.read, "new/c/0/0")
        in_tree(dataset, Paths.publish, "new/zarr.json", text)
        in_tree(dataset, Paths.publish, "new/c/0/0", chunk)
        assert in_tree(dataset, Paths.read, "new/c/0/0") == chunk
        in_tree(dataset, Paths.remove, "new/c/0/0")
        with pytest.raises(errors.NotFoundError):
            in_tree(dataset, Paths.read, "new/c/0/0")
        in_tree(dataset, Paths.publish, "new/c/0/1", chunk)
        changed = json.loads(bytes(text)) | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}}
        in_tree(dataset, Paths.remove_below, "new")
        in_tree(dataset, Paths.publish, "new/zarr.json", json.dumps(changed).encode())
        in_tree(dataset, Paths.publish, "new/0/1", chunk)
        assert in_tree(dataset, Paths.read, "new/0/1") == chunk
        with pytest.raises(errors.NotFoundError):
            in_tree(dataset, Paths.read, "new/c/0/1")


def test_a_directory_that_another_program_replaces_is_found_anew(source: Path) -> None:
    (source / "plain").mkdir()
    (source / "plain/file").write_text("old")
    with shardfs.open(source, metadata_ttl=0) as dataset:
        assert in_tree(dataset, Paths.read, "plain/file") == b"old"
        (source / "plain").rename(source / "moved")
        (source / "plain").mkdir()
        (source / "plain/file").write_text("new")
        assert in_tree(dataset, Paths.read, "plain/file") == b"new"
        assert in_tree(dataset, Paths.read, "moved/file") == b"old"


@pytest.mark.parametrize(
    ("door", "library", "requirement"),
    [("store", "zarr.abc.store", "zarr>=3.1"), ("filesystem", "fsspec.asyn", "fsspec")],
)
def test_what_a_door_needs_is_named_if_it_is_not_installed(
    source: Path, monkeypatch: pytest.MonkeyPatch, door: str, library: str, requirement: str
) -> None:
    for name in ("shardfs.api.zarr_store", "shardfs.api.fsspec_filesystem"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with shardfs.open(source) as dataset, pytest.raises(errors.UsageError, match=f"pip install '{requirement}'$"):
        getattr(dataset, door)()


def test_a_document_that_is_refused_leaves_everything_as_it_was(source: Path) -> None:
    before = (source / "image/zarr.json").read_bytes()
    with shardfs.open(source, write=True) as dataset:
        for nothing in (b"", b"{", b"{}"):
            with pytest.raises(errors.ShardfsError):
                in_tree(dataset, Paths.publish, "image/zarr.json", nothing)
        with pytest.raises(errors.ExistsError):
            in_tree(dataset, Paths.publish, "image/c/0/0", NEW, exclusive=True)
        assert dataset["image"].read_chunk((0, 0)) is not None
    assert (source / "image/zarr.json").read_bytes() == before


def test_names_that_are_made_and_removed_are_not_remembered(source: Path) -> None:
    async def rows(paths: Paths) -> int:
        return len(paths.fs.inodes)

    async def make_and_remove(paths: Paths) -> None:
        for path in ("image/c/1/3", "new.txt", "another/zarr.json"):
            await paths.publish(path, b'{"zarr_format": 3, "node_type": "group"}')
            await paths.remove(path)

    with shardfs.open(source, write=True) as dataset:
        dataset.loop.call(make_and_remove)
        before = dataset.loop.call(rows)
        for _ in range(20):
            dataset.loop.call(make_and_remove)
        assert dataset.loop.call(rows) == before


def test_a_dataset_that_is_closed_has_no_file_open(source: Path) -> None:
    def files() -> list[str]:
        return [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]

    dataset = shardfs.open(source)
    filesystem, image = dataset.filesystem(), dataset["image"]
    image.read_chunk((0, 0))
    assert any(name.startswith(str(source)) for name in files())
    dataset.close()
    gc.collect()
    assert not any(name.startswith(str(source)) for name in files())
    assert filesystem.dataset is dataset


def test_a_directory_is_removed_with_all_that_is_below_it(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        dataset["image"].write_chunk((0, 0), NEW)
        in_tree(dataset, Paths.publish, "new/below/file", b"text")
        in_tree(dataset, Paths.remove_below, "image")
        with pytest.raises(errors.NotFoundError):
            dataset["image"]
        assert in_tree(dataset, Paths.read, "new/below/file") == b"text"
        in_tree(dataset, Paths.remove_below, "")
        assert in_tree(dataset, Paths.names, "") == []
    assert os.listdir(source) == []
