"""How much is read of a file, and how often a server is asked: tables of 100 GB, a million chunks, remote files."""

import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import trio
import zarr

import shardfs
from shardfs.formats import RangePart, TreeStore
from shardfs.formats.hdf5 import process
from shardfs.formats.hdf5.nodes import Hdf5Contents
from shardfs.stores.local.reader import LocalReader
from tests.support.opened import in_trio, session
from tests.support.web_server import web_server


class Counter:
    """Counts what the library reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nrequests = 0
        self.nbytes = 0
        original = process._Child._bytes

        async def counted(child: Any, offset: int, nbytes: int) -> Any:
            self.nrequests += 1
            self.nbytes += nbytes
            return await original(child, offset, nbytes)

        monkeypatch.setattr(process._Child, "_bytes", counted)


def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is asked of the library from now on."""
    asked: list[str] = []
    ask = process._Child.ask

    async def noted(child: Any, what: str, *arguments: Any) -> Any:
        asked.append(what)
        return await ask(child, what, *arguments)

    monkeypatch.setattr(process._Child, "ask", noted)
    return asked


@in_trio
async def test_the_first_chunk_of_100_gb_takes_no_more_than_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((2**20,))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    nchunks = 12_500
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((nchunks * 2**20,))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, space, properties)
        stored = made.get_chunk_info(nchunks - 1)
    size = (tmp_path / "a.h5").stat().st_size
    assert size > 100 * 10**9
    assert (tmp_path / "a.h5").stat().st_blocks * 512 < 2**26, "the file is sparse"
    counter = Counter(monkeypatch)
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"), session())
    found = await contents.find(f"x/c/{nchunks - 1}")
    assert found == RangePart(stored.byte_offset, 2**23)
    assert counter.nbytes < 32 * 2**20, "its tables are spread over the file, and a page is read for each"
    before = counter.nbytes
    for number in range(0, nchunks, 100):
        assert isinstance(await contents.find(f"x/c/{number}"), RangePart)
    assert counter.nbytes == before, "the tables are read once"


@pytest.mark.slow
@in_trio
async def test_a_million_chunks_take_little_memory_and_one_look_at_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 1000
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((1, 1))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # libhdf5 takes gigabytes to write as many
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((n, n), (h5py.h5s.UNLIMITED, n))  # of a fixed size, it would need no index
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, properties)
    assert (tmp_path / "a.h5").stat().st_size > 9 * n * n, "a byte of each chunk, and where it is"
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"), session())
    await contents.begin()
    tracemalloc.start()
    counter = Counter(monkeypatch)
    names = await contents.list("x/c")
    assert names is not None
    assert len(names) == n
    assert len(await contents.list("x/c/999") or ()) == n
    assert isinstance(await contents.find("x/c/999/999"), RangePart)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 80 * 2**20
    read = counter.nbytes
    assert len(await contents.list("x/c/0") or ()) == n
    assert counter.nbytes == read


@in_trio
async def test_of_many_chunks_the_first_ones_are_looked_up_without_all_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", (60_000,), "u1", chunks=(1,))
        for number in (*range(200), 59_999):
            made[number] = number % 200
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"), session())
    asked = questions(monkeypatch)
    for number in (0, 100, 59_999):
        assert isinstance(await contents.find(f"x/c/{number}"), RangePart)
    assert await contents.find("x/c/300") is None
    assert asked == ["begin", "node", "chunk", "chunk", "chunk", "chunk"]
    for number in range(20):
        assert isinstance(await contents.find(f"x/c/{number}"), RangePart)
    assert asked.count("chunks") == 1
    assert len(asked) == 11


@in_trio
async def test_what_many_want_at_the_same_time_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("g/x", data=np.arange(64), chunks=(1,))
        file["g/text"] = np.array(["a", "b"], h5py.string_dtype())
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"), session())
    await contents.find("g/x/zarr.json")
    await contents.find("g/text/zarr.json")
    asked = questions(monkeypatch)
    async with trio.open_nursery() as nursery:
        for number in range(64):
            nursery.start_soon(contents.find, f"g/x/c/{number}")
            nursery.start_soon(contents.find, "g/text/c/0")
            nursery.start_soon(contents.list, "g")
    assert sorted(asked) == ["chunks", "listing", "values"]


@pytest.mark.slow
@in_trio
async def test_ten_thousand_datasets_are_listed_by_one_question_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for number in range(10_000):
            file.create_dataset(f"{number:05}", data=np.int32(number))
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"), session())
    asked = questions(monkeypatch)
    for _ in range(2):
        names = await contents.list("")
        assert names is not None
        assert len(names) == 10_001
        assert all([await contents.is_directory(entry.name) for entry in names if entry.name != "zarr.json"])
    assert asked == ["begin", "listing"]


def test_a_remote_file_takes_few_requests(tmp_path: Path) -> None:
    values = np.arange(100 * 2**15, dtype="i4").reshape(100, 2**15)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["title"] = "a test"
        for name in "xyz":
            file.create_dataset(f"g/{name}", data=values, chunks=(1, 2**15), compression="gzip", compression_opts=1)
    with web_server(tmp_path) as web, shardfs.open(f"{web.url}/a.h5") as dataset:
        found = zarr.open_group(dataset.store(), mode="r")
        assert found["g/y"].shape == values.shape
        structure = len(web.log)
        assert structure <= 8
        assert np.array_equal(found["g/y"][7], values[7])
        assert len(web.log) - structure <= 8
        before = len(web.log)
        for row in (1, 50, 99):
            assert np.array_equal(found["g/y"][row], values[row])
        assert len(web.log) - before <= 3, "one for each chunk"


def test_nothing_in_a_file_is_taken_for_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of chunks are many, and four documents of other formats were looked for in each."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(64).reshape(4, 4, 4), chunks=(1, 1, 4))
    opened: set[str] = set()
    original = TreeStore.open

    async def noted(store: TreeStore, key: str, **options: Any) -> Any:
        opened.add(key.rpartition("/")[2])
        return await original(store, key, **options)

    monkeypatch.setattr(TreeStore, "open", noted)
    with shardfs.open(tmp_path / "a.h5") as dataset:
        assert dataset.filesystem().cat_file("x/c/2/3/0") == np.arange(44, 48).tobytes()
    assert opened == {"zarr.json", "0"}
