"""The store for zarr-python: its own tests of stores, and what programs do with it."""

import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from pathlib import Path
from subprocess import PIPE
from typing import Any
from unittest.mock import patch

import dask.array
import numpy as np
import pytest
import zarr
from distributed import Client
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from zarr.core.buffer import Buffer, cpu
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import shardfs
from shardfs.api.dataset import Dataset
from shardfs.api.zarr_store import ShardfsStore
from shardfs.errors import NoSpaceError
from shardfs.stores.local.tree import LocalFile
from shardfs.vfs.paths import Listed
from tests.support.clients import ZARR34
from tests.support.clusters import local_cluster
from tests.support.mounting import PATIENCE, environment
from tests.support.processes import running
from tests.support.s3_server import Bucket, S3Server, credentials

NAME = "zarr.json"
ANY = "any.json"
NUMBERS = count()
TOP = Path(shardfs.__file__).parent.parent


class AnyDocument(ShardfsStore):
    """Documents under another name, because the tests of stores write documents that mean nothing."""

    def _key(self, key: str) -> str:
        return "/".join(ANY if name == NAME else name for name in super()._key(key).split("/"))

    async def _names(self, directory: str) -> Sequence[Listed]:
        return [
            listed._replace(name=NAME) if listed.name == ANY else listed for listed in await super()._names(directory)
        ]


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


read = Path.read_bytes


class OfStores(StoreTests[AnyDocument, cpu.Buffer]):
    """With a source that can be looked at, and changed, behind the store."""

    store_cls = AnyDocument
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, dataset: Dataset) -> dict[str, Any]:
        return {"dataset": dataset, "path": f"test-{next(NUMBERS)}"}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> AnyDocument:
        return sync(self.store_cls.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> AnyDocument:
        return self.store_cls(**store_kwargs)

    def test_store_repr(self, store: AnyDocument) -> None:
        assert repr(store) == f"ShardfsStore('shardfs://{store.path}::{store.dataset.url}')"

    def test_store_supports_writes(self, store: AnyDocument) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: AnyDocument) -> None:
        assert store.supports_listing


class InDirectory(OfStores):
    async def set(self, store: AnyDocument, key: str, value: Buffer) -> None:
        write(Path(store.dataset.url, store._key(key)), value.to_bytes())

    async def get(self, store: AnyDocument, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(read(Path(store.dataset.url, store._key(key))))


class InBucket(OfStores):
    bucket: Bucket

    async def set(self, store: AnyDocument, key: str, value: Buffer) -> None:
        self.bucket.put(store._key(key), value.to_bytes())

    async def get(self, store: AnyDocument, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(self.bucket.get(store._key(key)))


class TestDirectory(InDirectory):
    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
        with shardfs.open(tmp_path_factory.mktemp("source"), write=True) as dataset:
            yield dataset


class TestBucket(InBucket):
    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Dataset]:
        with pytest.MonkeyPatch.context() as patch:
            cls.bucket = bucket = bucket_for(patch, s3_server, tmp_path_factory.mktemp("state"))
            with shardfs.open(bucket.url(), write=True, metadata_ttl=0) as dataset:
                yield dataset


class ReadOnly:
    """Those tests that write nothing through the store."""

    READING = (
        *("get", "get_not_open", "get_raises", "get_many", "get_partial_values", "get_sync", "get_sync_missing"),
        *("get_bytes", "get_bytes_sync", "get_json", "get_json_sync", "getsize", "getsize_raises", "is_empty"),
        *("store_eq", "store_context_manager", "read_only_store_raises"),
    )

    def __init_subclass__(cls) -> None:
        for name in dir(StoreTests):
            if name.startswith("test_") and name.removeprefix("test_") not in cls.READING:
                setattr(cls, name, None)


class TestReadOnlyDirectory(ReadOnly, InDirectory):
    test_store_repr = test_store_supports_writes = test_store_supports_listing = None  # type: ignore[assignment]

    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
        with shardfs.open(tmp_path_factory.mktemp("source")) as dataset:
            yield dataset


class TestReadOnlyBucket(ReadOnly, InBucket):
    test_store_repr = test_store_supports_writes = test_store_supports_listing = None  # type: ignore[assignment]

    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Dataset]:
        with pytest.MonkeyPatch.context() as patch:
            cls.bucket = bucket = bucket_for(patch, s3_server, tmp_path_factory.mktemp("state"))
            with shardfs.open(bucket.url(), metadata_ttl=0) as dataset:
                yield dataset


def bucket_for(patch: pytest.MonkeyPatch, server: S3Server, state: Path) -> Bucket:
    """Make a bucket that this process, and those that it starts, reach without options."""
    bucket = server.make_bucket()
    for name, value in (credentials() | {"AWS_ENDPOINT_URL": bucket.endpoint_url}).items():
        patch.setenv(name, value)
    patch.setenv("XDG_STATE_HOME", str(state))
    return bucket


STATEFUL = settings(max_examples=5, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where there is nothing yet."""
    if request.param == "s3":
        return bucket_for(monkeypatch, s3_server, tmp_path / "state").url()
    (tmp_path / "data.zarr").mkdir()
    return str(tmp_path / "data.zarr")


def test_any_sequence_of_requests_has_the_results_of_a_dictionary(url: str) -> None:
    with shardfs.open(url, write=True) as dataset:
        store = AnyDocument(dataset)
        run_state_machine_as_test(lambda: ZarrStoreStateMachine(store), settings=STATEFUL)


def test_any_hierarchy_that_zarr_python_makes_is_as_in_memory(url: str) -> None:
    with shardfs.open(url, write=True) as dataset:
        run_state_machine_as_test(lambda: ZarrHierarchyStateMachine(dataset.store()), settings=STATEFUL)


# What programs do

SHAPE, CHUNKS, SHARDS = (64, 64), (8, 8), (32, 32)
CELLS = [(i, j) for i in range(0, 64, 8) for j in range(0, 64, 8)]
"""Where each inner chunk begins."""


@pytest.fixture
def stored(url: str) -> str:
    """A sharded array of zeros, whose shards are stored; `image` in a group."""
    with shardfs.open(url, write=True, shards=(4,)) as dataset:
        image = zarr.create_group(dataset.store()).create_array("image", shape=SHAPE, chunks=CHUNKS, dtype="i4")
        image[...] = 1
    return url


def values(url: str) -> np.ndarray:
    with shardfs.open(url) as dataset:
        return zarr.open_group(dataset.store(), mode="r")["image"][...]


def shards_of(url: str) -> list[dict[str, Any]]:
    with shardfs.open(url) as dataset:
        return dataset["image"].shards()


def test_a_slice_that_is_written_is_appended_to_its_shard_as_an_inner_chunk(stored: str) -> None:
    before = shards_of(stored)
    assert [shard["chunks"] for shard in before] == [16] * 4
    with shardfs.open(stored, write=True) as dataset:
        image = zarr.open_group(dataset.store())["image"]
        image[8:16, 0:8] = 7
        assert (image[8:16, 0:8] == 7).all()
        assert (image[0:8, 0:8] == 1).all()
    after = shards_of(stored)
    assert [shard["size"] for shard in after[1:]] == [shard["size"] for shard in before[1:]]
    if not stored.startswith("s3:"):
        assert after[0]["size"] > before[0]["size"]  # the old chunk stays, dead
        assert (zarr.open_group(stored)["image"][8:16, 0:8] == 7).all()


def test_a_kill_of_the_process_loses_no_chunk_that_was_written(stored: str) -> None:
    code = """
import sys, shardfs, zarr
image = zarr.open_group(shardfs.open(sys.argv[1], write=True).store())["image"]
for number in range(64):
    i, j = divmod(number, 8)
    image[8 * i : 8 * i + 8, 8 * j : 8 * j + 8] = 100 + number
    print(number, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, stored]
    with running(command, stdin=PIPE, stdout=PIPE, env=environment() | os.environ) as process:
        for line in process.stdout:
            if int(line) == 40:
                process.kill()
                break
    with shardfs.open(stored, write=True):
        pass
    found = values(stored)[::8, ::8].ravel()
    assert list(found[:41]) == [100 + number for number in range(41)]
    assert all(value in (1, 100 + number) for number, value in enumerate(found))


def test_threads_and_dask_write_into_one_shard_and_lose_nothing(stored: str) -> None:
    expected = np.arange(64 * 64, dtype="i4").reshape(SHAPE)
    with shardfs.open(stored, write=True) as dataset:
        image = zarr.open_group(dataset.store())["image"]
        with ThreadPoolExecutor(8) as pool:

            def write_one(cell: tuple[int, int]) -> None:
                where = slice(cell[0], cell[0] + 8), slice(cell[1], cell[1] + 8)
                image[where] = expected[where]

            list(pool.map(write_one, CELLS))
        assert (image[...] == expected).all()
        dask.array.store(
            dask.array.from_array(-expected, chunks=CHUNKS), image, lock=False, scheduler="threads", num_workers=8
        )
    assert (values(stored) == -expected).all()


def test_a_file_that_cannot_be_written_whole_replaces_none_and_nobody_sees_it(url: str) -> None:
    with shardfs.open(url, write=True) as dataset:
        store, write = dataset.store(), LocalFile.write
        whole, other = cpu.Buffer.from_bytes(b"whole"), cpu.Buffer.from_bytes(b"other" * 1000)
        sync(store.set("a/old", whole))
        seen: list[list[str]] = []

        async def half(file: LocalFile, offset: int, data: bytes) -> int:
            await write(file, offset, data[:1])
            if not url.startswith("s3:"):
                seen.append([name for name in os.listdir(f"{url}/a") if not name.startswith(".")])
            raise NoSpaceError("the disk is full")

        with patch.object(LocalFile, "write", half):
            for key in ("a/old", "a/new"):
                with pytest.raises(NoSpaceError):
                    sync(store.set(key, other))
            with pytest.raises(NoSpaceError):
                sync(store.set_if_not_exists("a/new", other))
    assert seen in ([], [["old"]] * 3)
    with shardfs.open(url) as dataset:
        store = dataset.store()
        assert sync_all(store.list_dir("a")) == ["old"]
        assert sync(store.get("a/old", cpu.buffer_prototype)).to_bytes() == b"whole"


def sync_all(names: AsyncIterator[str]) -> list[str]:
    async def all_of() -> list[str]:
        return [name async for name in names]

    return sync(all_of())


def fill(store: ShardfsStore, value: int) -> None:
    zarr.open_array(store)[...] = value


def test_keys_below_an_array_are_those_of_no_other_whose_name_begins_like_it(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "source")
    for name in ("lat", "lat_bnds"):
        group.create_array(name, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")[:2] = 1
    with shardfs.open(tmp_path / "source") as dataset:
        store = dataset.store()
        assert zarr.open_group(store, mode="r")["lat"].nchunks_initialized == 1

        async def keys(prefix: str) -> list[str]:
            return sorted([key async for key in store.list_prefix(prefix)])

        assert sync(keys("lat")) == sync(keys("lat/")) == ["lat/c/0", "lat/zarr.json"]
        assert sync(keys("lat_")) == ["lat_bnds/c/0", "lat_bnds/zarr.json"]


def test_an_array_of_a_dataset_that_is_only_read_is_copied_and_not_onto_itself(tmp_path: Path) -> None:
    made = zarr.create_array(tmp_path / "source", shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
    made[...] = np.arange(8)
    with shardfs.open(tmp_path / "source") as only_read, shardfs.open(tmp_path / "source", write=True) as written:
        array = zarr.open_array(only_read.store(), mode="r")
        assert (zarr.from_array(zarr.storage.MemoryStore(), data=array, overwrite=True)[...] == np.arange(8)).all()
        with pytest.raises(ValueError, match="paths overlap"):
            zarr.from_array(written.store(), data=array, overwrite=True)
        assert only_read.store() == written.store()
        assert only_read.store() != written.store("c")
    assert (made[...] == np.arange(8)).all()


@pytest.mark.parametrize("url", ["directory"], indirect=True)  # in S3, several processes write
def test_a_store_that_is_sent_to_another_process_reads_and_writes_there(stored: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with shardfs.open(stored) as dataset:
            assert (pool.submit(zarr.open_array, dataset.store("image"), mode="r").result(PATIENCE)[...] == 1).all()
        with shardfs.open(stored, write=True) as dataset:
            pool.submit(fill, dataset.store("image"), 2).result(PATIENCE)
            dataset.flush()
            assert (values(stored) == 2).all()


def test_on_s3_the_workers_of_a_dask_cluster_write_into_one_shard(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket_for(monkeypatch, s3_server, tmp_path / "state").url()
    expected = np.arange(64 * 64, dtype="i4").reshape(SHAPE)

    def write_one(store: ShardfsStore, cell: tuple[int, int], data: np.ndarray) -> int:
        import zarr

        zarr.open_array(store)[cell[0] : cell[0] + 8, cell[1] : cell[1] + 8] = data
        store.dataset.flush()
        return os.getpid()

    with shardfs.open(url, write=True, shards=(8,)) as dataset:
        zarr.create_group(dataset.store()).create_array("image", shape=SHAPE, chunks=CHUNKS, dtype="i4")
        dataset.flush()
        with (
            local_cluster(2, 4) as cluster,
            Client(cluster) as client,
        ):
            data = [expected[i : i + 8, j : j + 8] for i, j in CELLS]
            futures = client.map(write_one, [dataset.store("image")] * len(CELLS), CELLS, data)
            assert len(set(client.gather(futures))) == 2
    (shard,) = shards_of(url)
    assert shard["chunks"] == 64
    assert (values(url) == expected).all()


def change(store: ShardfsStore) -> None:
    """Change what is there in every way, and be killed."""
    store.dataset["image"].write_chunk((0, 0), None)
    sync(store.delete_dir("removed"))
    sync(store.delete("without/zarr.json"))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_on_s3_what_another_process_removes_is_gone_when_the_call_returns(stored: str) -> None:
    with shardfs.open(stored, write=True, shards=(4,)) as dataset:
        group = zarr.open_group(dataset.store())
        for name in ("removed", "without"):
            group.create_array(name, shape=SHAPE, chunks=CHUNKS, dtype="i4")[...] = 1
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with shardfs.open(stored, write=True) as dataset, pytest.raises(BrokenProcessPool):
            pool.submit(change, dataset.store()).result(PATIENCE)
        with shardfs.open(stored) as elsewhere:
            names = sync_all(elsewhere.store().list())
    assert "image/c/0/1" in names
    assert "image/c/0/0" not in names
    assert not [name for name in names if name.startswith("removed/") or name == "without/zarr.json"]


def test_zarr_python_of_a_newer_python_reads_and_writes_too(stored: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(TOP)!r})
import numpy, shardfs, zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
with shardfs.open(sys.argv[2], write=True) as dataset:
    image = zarr.open_group(dataset.store())["image"]
    image[0:8, 0:8] = 5
    store, key = dataset.store(), "image/c/0/1"
    whole = sync(store.get(key, default_buffer_prototype())).to_bytes()
    if hasattr(store, "get_ranges"):
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest

        async def ranges():
            wanted = [RangeByteRequest(0, 4), RangeByteRequest(8, 16), SuffixByteRequest(4)]
            groups = store.get_ranges(key, wanted, prototype=default_buffer_prototype())
            return {{number: data.to_bytes() async for group in groups for number, data in group}}

        assert sync(ranges()) == {{0: whole[:4], 1: whole[8:16], 2: whole[-4:]}}
    image[8:16, 8:16] = image.fill_value
    sync(store.delete("image/c/7/7"))
    with zarr.config.set({{"array.read_missing_chunks": False}}):
        try:
            zarr.open_group(store)["image"][56:, 56:]
        except Exception as error:
            assert "ChunkNotFound" in type(error).__name__ or "missing" in str(error).lower(), repr(error)
        else:
            raise AssertionError("a missing chunk was read")
    numpy.savez(sys.argv[1], image=image[...])
"""
    found = ZARR34.arrays(program, tmp_path, stored)["image"]
    assert (found == values(stored)).all()
    assert (found[0:8, 0:8] == 5).all()
    assert (found[0:8, 8:16] == 1).all()
