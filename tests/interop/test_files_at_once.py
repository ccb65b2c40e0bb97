"""Chunks of a file that is a source are read in the thread of who asks, also those that nobody has asked for before."""

import asyncio
import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import ZipStore

import shardfs
from shardfs.errors import CorruptionError
from shardfs.stores.local import reader as local_reader
from shardfs.vfs import chunk_cache
from tests.interop.test_reading_at_once import busy, to_bytes
from tests.support.corpus import LITTLE, array
from tests.support.zips import write_zip as write_members

SHAPE, CHUNKS = (16, 8, 8), (1, 8, 4)
VALUES = np.arange(16 * 64, dtype="<u2").reshape(SHAPE)


def write_hdf5(path: Path, values: Any = VALUES, **options: Any) -> None:
    with h5py.File(path.with_name("new"), "w") as file:
        file.create_dataset("g/x", data=values, chunks=CHUNKS, **options)
    path.with_name("new").replace(path)


def write_zip(path: Path, values: Any = VALUES, **options: Any) -> None:
    with ZipStore(path.with_name("new"), mode="w") as store:
        group: Any = zarr.create_group(store).create_group("g")
        group.create_array("x", shape=SHAPE, chunks=CHUNKS, dtype="<u2", **{"compressors": None} | options)[...] = (
            values
        )
    path.with_name("new").replace(path)


def write_contiguous(path: Path, values: Any = VALUES) -> None:
    with h5py.File(path.with_name("new"), "w") as file:
        file.create_dataset("g/x", data=values)
    path.with_name("new").replace(path)


WRITERS: dict[str, Callable[..., None]] = {"a.h5": write_hdf5, "a.zip": write_zip}


def stored(row: int, column: int, values: Any = VALUES) -> bytes:
    return bytes(values[row, :, 4 * column : 4 * column + 4].tobytes())


@pytest.mark.parametrize("name", WRITERS)
def test_a_chunk_that_nobody_has_read_is_read_while_the_event_loop_is_busy(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with shardfs.open(tmp_path / name, metadata_ttl=60) as dataset:
        store, files = dataset.store("g/x"), dataset.filesystem()
        assert to_bytes(store, "c/3/0/0") == stored(3, 0)
        with busy(dataset):
            assert to_bytes(store, "c/4/0/1") == stored(4, 1), "in a directory that nobody has looked at"
            assert files.cat_file("g/x/c/5/0/0") == stored(5, 0)
            assert files.cat_file("/g/x/c/5/0/0", 3, 9) == stored(5, 0)[3:9]
            found = asyncio.run(store.get("c/6/0/1", default_buffer_prototype()))
            assert found is not None
            assert found.to_bytes() == stored(6, 1)


def test_a_chunk_of_contiguous_elements_is_read_so_too(tmp_path: Path) -> None:
    write_contiguous(tmp_path / "a.h5", np.zeros((8, 2**20), "u1"))
    with shardfs.open(tmp_path / "a.h5", metadata_ttl=60) as dataset:
        store = dataset.store("g/x")
        assert to_bytes(store, "c/0/0") == bytes(4 * 2**20)
        with busy(dataset):
            assert to_bytes(store, "c/1/0") == bytes(4 * 2**20)


@pytest.mark.parametrize("name", WRITERS)
def test_a_chunk_is_decoded_while_the_event_loop_is_busy(tmp_path: Path, name: str) -> None:
    if name == "a.h5":
        write_hdf5(tmp_path / name, compression="gzip", shuffle=True)
    else:
        write_zip(tmp_path / name, compressors="auto")
    with shardfs.open(tmp_path / name, metadata_ttl=60, decode=True) as dataset:
        store, files = dataset.store("g/x"), dataset.filesystem()
        assert to_bytes(store, "c/3/0/0") == stored(3, 0)
        with busy(dataset):
            for _ in range(2):  # the second time from the cache
                assert to_bytes(store, "c/4/0/1") == stored(4, 1)
            assert files.cat_file("g/x/c/5/0/0", 3, 9) == stored(5, 0)[3:9]
            assert files.cat_file("g/x/c/5/0/0") == stored(5, 0)
        statistics = dataset.loop.at_once(lambda paths: paths.source.statistics)
        assert statistics is not None
        assert (statistics.decoded_chunks, statistics.decode_hits) == (3, 2)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("why", ["a disk", "a decoder"])
def test_asyncio_waits_in_one_thread_and_not_for_the_event_loop(
    tmp_path: Path, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](tmp_path / name, **({"compression": "gzip"} if name == "a.h5" else {"compressors": "auto"}))
    with shardfs.open(tmp_path / name, metadata_ttl=60, decode=why == "a decoder") as dataset:
        store, files = dataset.store("g/x"), dataset.filesystem(asynchronous=True)
        if why == "a decoder":
            assert to_bytes(store, "c/0/0/0") == stored(0, 0)
            expected: dict[str, bytes | None] = {"c/3/0/0": stored(3, 0), "c/4/0/1": stored(4, 1)}
        else:
            expected = {key: to_bytes(store, key) for key in ("c/3/0/0", "c/4/0/1")}
        if why == "a disk":
            monkeypatch.setattr(local_reader, "read_cached", lambda *_: 0)
        else:
            monkeypatch.setattr(chunk_cache, "_AT_ONCE_NBYTES", 0)
        with busy(dataset):
            found = asyncio.run(store.get("c/4/0/1", default_buffer_prototype()))
            assert found is not None
            assert found.to_bytes() == expected["c/4/0/1"]
            assert asyncio.run(files._cat_file("g/x/c/3/0/0")) == expected["c/3/0/0"]


def test_a_chunk_of_an_open_shard_in_a_zip_file_is_read_while_the_event_loop_is_busy(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", shards=(16, 8, 8))
    with shardfs.open(tmp_path / "a.zip", metadata_ttl=60) as dataset:
        store = dataset.store("g/x")
        assert to_bytes(store, "c/3/0/0") == stored(3, 0)
        with busy(dataset):
            assert to_bytes(store, "c/9/0/1") == stored(9, 1)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("decode", [False, True])
def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path, name: str, decode: bool) -> None:
    encoded: dict[str, Any] = {"compression": "gzip"} if name == "a.h5" else {"compressors": "auto"}
    write = partial(WRITERS[name], tmp_path / name, **(encoded if decode else {}))
    write(VALUES)
    with shardfs.open(tmp_path / name, metadata_ttl=60, decode=decode) as dataset:
        store = dataset.store("g/x")
        assert to_bytes(store, "c/3/0/0") == stored(3, 0)
        for number in range(2, 5):
            write(VALUES * number)
            for _ in range(2):
                assert to_bytes(store, "c/3/0/0") == stored(3, 0, VALUES * number)
                assert to_bytes(store, "c/4/0/1") == stored(4, 1, VALUES * number)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("decode", [False, True])
def test_bytes_that_were_read_while_the_file_changed_are_not_returned(
    tmp_path: Path, name: str, decode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written to in place, by as many bytes, just before and just after its bytes are read."""
    WRITERS[name](tmp_path / name)
    before, path = (tmp_path / name).read_bytes(), tmp_path / name
    WRITERS[name](path, VALUES * 2)
    after = path.read_bytes()
    assert len(before) == len(after)
    path.write_bytes(before)
    pread, mtime_ns, turns = os.pread, path.stat().st_mtime_ns, iter(range(1, 10))

    def change(data: bytes) -> None:
        path.write_bytes(data)
        os.utime(path, ns=(mtime_ns, mtime_ns + next(turns)))

    with shardfs.open(path, metadata_ttl=60, decode=decode) as dataset:
        store = dataset.store("g/x")
        assert to_bytes(store, "c/3/0/0") == stored(3, 0)
        read: list[bytes] = []

        def changed_around(fd: int, nbytes: int, offset: int) -> bytes:
            monkeypatch.setattr(local_reader.os, "pread", pread)
            half = nbytes // 2
            head = pread(fd, half, offset)
            change(after)
            read.append(head + pread(fd, nbytes - half, offset + half))
            return read[0]

        monkeypatch.setattr(local_reader.os, "pread", changed_around)
        found = to_bytes(store, "c/4/0/1")
        assert read, "the bytes are read in this thread"
        assert found == stored(4, 1, VALUES * 2)


def test_a_member_that_is_damaged_is_an_error_also_where_it_is_read_at_once(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        header = archive.getinfo("g/x/c/5/0/0").header_offset
    chunk = data.index(stored(4, 0))
    data[chunk] ^= 1
    data[header + 14] ^= 1  # the checksum in a local header
    (tmp_path / "a.zip").write_bytes(data)
    with shardfs.open(tmp_path / "a.zip", metadata_ttl=60) as dataset:
        store = dataset.store("g/x")
        assert to_bytes(store, "c/3/0/0") == stored(3, 0)
        for _ in range(2):
            with pytest.raises(CorruptionError, match="checksum"):
                to_bytes(store, "c/4/0/0")
            with pytest.raises(CorruptionError, match="local header"):
                to_bytes(store, "c/5/0/0")
        assert to_bytes(store, "c/4/0/1") == stored(4, 1)


def members(tmp_path: Path, options: dict[str, Any] | None = None) -> dict[str, bytes]:
    """An unsharded array x, and in the place of its chunk 3, 0, 0 a shard of another array."""
    made = zarr.create_array(
        str(tmp_path / "s"),
        overwrite=True,
        shape=(2, 2),
        chunks=(1, 1),
        shards=(2, 2),
        dtype="u1",
        compressors=None,
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )
    made[...] = np.arange(1, 5).reshape(2, 2)
    found = {"zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"} | (options or {})).encode()}
    found["x/zarr.json"] = json.dumps(array((4, 4, 4), (1, 4, 4), LITTLE, data_type="uint8")).encode()
    found |= {f"x/c/{number}/0/0": bytes([number]) * 16 for number in range(3)}
    return found | {"x/c/3/0/0": (tmp_path / "s" / "0" / "0").read_bytes()}


@pytest.mark.filterwarnings("ignore")
def test_a_node_among_the_chunks_of_an_array_is_shown_as_by_a_mount(tmp_path: Path) -> None:
    """Nobody writes such a file, but a shard is never taken for a chunk."""
    found = members(tmp_path) | {"x/c/3/zarr.json": (tmp_path / "s" / "zarr.json").read_bytes()}
    write_members(tmp_path / "a.zip", found)
    with shardfs.open(tmp_path / "a.zip", metadata_ttl=60) as dataset:
        store = dataset.store("x")
        assert to_bytes(store, "c/0/0/0") == bytes(16)
        assert to_bytes(store, "c/3/0/0") == b"\1"
        assert to_bytes(store, "c/3/1/1") == b"\4"


def test_a_shard_that_only_consolidated_metadata_describes_is_an_error_as_on_a_mount(tmp_path: Path) -> None:
    found = members(tmp_path)
    copies = {"x/c/3": json.loads((tmp_path / "s" / "zarr.json").read_bytes())}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
    write_members(tmp_path / "a.zip", members(tmp_path, {"consolidated_metadata": consolidated}))
    with shardfs.open(tmp_path / "a.zip", metadata_ttl=60) as dataset:
        store = dataset.store("x")
        assert to_bytes(store, "c/0/0/0") == found["x/c/0/0/0"]
        with pytest.raises(CorruptionError, match="consolidated metadata"):
            to_bytes(store, "c/3/0/0")


def test_what_is_missing_or_beyond_the_grid_is_so_for_every_way_of_reading(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", SHAPE, "u2", chunks=CHUNKS)[3] = 1
    with shardfs.open(tmp_path / "a.h5", metadata_ttl=60) as dataset:
        store = dataset.store("x")
        assert to_bytes(store, "c/3/0/0") is not None
        for key in ("c/4/0/0", "c/16/0/0", "c/3/0", "c/3/0/0/0", "c/03/0/0", "c/x/0/0", "c", "3/0/0"):
            assert to_bytes(store, key) is None, key
        with pytest.raises(FileNotFoundError):
            dataset.filesystem().cat_file("x/c/4/0/0")
