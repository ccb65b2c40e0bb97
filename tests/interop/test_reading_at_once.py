"""Chunks of open shards are read in the thread of who asks; what only the event loop knows is asked there."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

import shardfs
from shardfs.api.dataset import Dataset
from shardfs.api.zarr_store import ShardfsStore
from shardfs.vfs.paths import Paths
from tests.support.datasets import age
from tests.support.mounting import PATIENCE, eventually
from tests.support.s3_server import Bucket

SHAPE, CHUNKS, SHARDS = (64, 64), (8, 8), (32, 32)
NBYTES = 64
KEY = "c/0/0"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data.zarr"
    array = zarr.create_array(str(path), shape=SHAPE, dtype="u1", chunks=CHUNKS, shards=SHARDS, compressors=None)
    array[...] = 1
    age(path)
    return path


@pytest.fixture(params=["directory", "bucket"])
def stored(request: pytest.FixtureRequest, source: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of *source*, or of a copy in a bucket."""
    if request.param == "directory":
        return str(source)
    bucket: Bucket = request.getfixturevalue("s3_bucket")
    bucket.upload(source, "data.zarr")
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.url("data.zarr")


def to_bytes(store: ShardfsStore, key: str = KEY) -> bytes | None:
    found = store.get_sync(key)
    return None if found is None else found.to_bytes()


def put(store: ShardfsStore, value: int, key: str = KEY) -> None:
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(bytes([value]) * NBYTES))


@contextmanager
def busy(dataset: Dataset) -> Iterator[None]:
    """The event loop does nothing for the length of the block."""
    begun, end = threading.Event(), threading.Event()

    async def wait(_: Paths) -> bool:
        begun.set()
        return end.wait(PATIENCE)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(dataset.loop.call, wait)
        begun.wait()
        try:
            yield
        finally:
            end.set()
        assert waiting.result(), "the block waited for the event loop"


def test_a_chunk_of_an_open_shard_is_read_while_the_event_loop_is_busy(stored: str) -> None:
    with shardfs.open(stored, metadata_ttl=60) as dataset:
        store, key = dataset.store(), "c/0/1"
        for each in (KEY, key):  # in order, so that the rest of the shard comes from a bucket
            assert to_bytes(store, each) == bytes([1]) * NBYTES
        with busy(dataset):
            assert to_bytes(store, key) == bytes([1]) * NBYTES
            part = store.get_sync(key, byte_range=RangeByteRequest(3, 10))
            assert part is not None
            assert part.to_bytes() == bytes([1]) * 7
            last = asyncio.run(store.get(key, default_buffer_prototype(), SuffixByteRequest(5)))
            assert last is not None
            assert last.to_bytes() == bytes([1]) * 5


@pytest.mark.parametrize("stored", ["bucket"], indirect=True)
def test_of_who_reads_in_order_chunks_of_the_next_shard_come_before_they_are_asked_for(stored: str) -> None:
    with shardfs.open(stored, metadata_ttl=60) as dataset:
        store = dataset.store()
        with ThreadPoolExecutor(2) as threads:
            assert set(threads.map(lambda place: to_bytes(store, f"c/0/{place}"), range(4))) == {bytes([1]) * NBYTES}
        name = "c/0/6"  # of the next shard, whose bytes nobody has asked for
        eventually(lambda: dataset.loop.at_once(Paths.read_known, name, 0, None, waits=True) is not None)
        for row in range(1, 4):  # and the dataset is closed while more comes
            to_bytes(store, f"c/{row}/0")


def test_what_another_program_stores_is_read_at_once(source: Path) -> None:
    with shardfs.open(source, metadata_ttl=60) as dataset:
        store = dataset.store()
        for value in range(2, 6):
            zarr.open_array(str(source), mode="r+")[:8, :8] = value
            assert to_bytes(store) == bytes([value]) * NBYTES


def test_what_was_just_written_is_read_back_before_and_after_it_is_committed(stored: str) -> None:
    with shardfs.open(stored, write=True, metadata_ttl=60) as dataset:
        store = dataset.store()
        for value in range(2, 6):
            assert to_bytes(store) is not None
            put(store, value)
            assert to_bytes(store) == bytes([value]) * NBYTES
            dataset.flush()
            assert to_bytes(store) == bytes([value]) * NBYTES
        store.delete_sync(KEY)
        assert to_bytes(store) is None
        dataset.flush()
        assert to_bytes(store) is None


def test_a_damaged_entry_is_an_error_here_too(source: Path) -> None:
    with shardfs.open(source, metadata_ttl=60) as dataset:
        store = dataset.store()
        assert to_bytes(store) is not None
        shard = source / "c" / "0" / "0"
        data = bytearray(shard.read_bytes())
        data[-10] ^= 0xFF
        shard.write_bytes(data)
        with pytest.raises(shardfs.errors.CorruptionError):
            to_bytes(store)


def test_nothing_is_read_of_a_dataset_that_is_closed(stored: str) -> None:
    with shardfs.open(stored, metadata_ttl=60) as dataset:
        store = dataset.store()
        assert to_bytes(store) is not None
    with pytest.raises(shardfs.errors.ClosedError):
        to_bytes(store)


def test_readers_in_threads_see_whole_versions_in_their_order_while_others_write_and_commit(stored: str) -> None:
    """Each of four chunks of a shard is counted up; no reader sees a mixture, or an older version than before."""
    keys = [f"c/0/{column}" for column in range(4)]
    done = threading.Event()
    with shardfs.open(stored, write=True, metadata_ttl=60) as dataset:
        store = dataset.store()

        def write() -> None:
            try:
                for value in range(2, 100):
                    for key in keys:
                        put(store, value, key)
                    if value % 5 == 0:
                        dataset.flush()
            finally:
                done.set()

        def read(key: str) -> int:
            newest = nread = 0
            while not done.is_set() or not nread:
                found = to_bytes(store, key)
                assert found is not None
                assert len(set(found)) == 1
                assert found[0] >= newest
                newest, nread = found[0], nread + 1
            return nread

        with ThreadPoolExecutor(5) as threads:
            writer = threads.submit(write)
            readers = [threads.submit(read, key) for key in keys]
            assert all(reader.result() for reader in readers)
            writer.result()
    with shardfs.open(stored) as dataset:
        assert (np.asarray(zarr.open_array(dataset.store(), mode="r")[:8, :32]) == 99).all()
