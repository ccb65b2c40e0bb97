"""How many requests a program waits for that reads an array in a bucket, and which are made, by the order of its reads.

A program has two threads, as zarr-python on two CPUs; all requests take the same time on a clock that jumps.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import trio
import zarr

from shardfs.dataset import ahead
from shardfs.dataset.ahead import reading_ahead
from shardfs.dataset.hierarchy import Source
from shardfs.stores.parallel import open_nursery
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths
from tests.support.corpus import array, extension, sharding
from tests.support.datasets import store
from tests.support.fake_s3 import FakeS3, Request
from tests.support.s3_reading import LATENCY, on_mock_clock, reader_of

KIB, MIB = 2**10, 2**20
Order = Literal["C", "Morton"]


@dataclass(frozen=True)
class Bucket:
    """An array of bytes in a bucket, and its chunks."""

    fake: FakeS3
    grid: tuple[int, ...]
    chunks: dict[str, bytes]

    @property
    def nbytes(self) -> int:
        """How many bytes the chunks have."""
        return sum(map(len, self.chunks.values()))

    @property
    def every(self) -> list[str]:
        """The chunks in C order, as zarr-python reads an array."""
        return [f"c/{'/'.join(map(str, place))}" for place in product(*map(range, self.grid))]


def bucket(
    directory: Path,
    grid: tuple[int, ...],
    shards: tuple[int, ...],
    chunk: tuple[int, ...],
    order: Order = "C",
    missing: slice = slice(0),
) -> Bucket:
    """Store an array of *grid* chunks, with *shards* chunks in a shard, which are in *order*.

    Elements *missing* along the first axis have the fill value, so that chunks of Morton order are not stored.
    """
    shape = tuple(count * length for count, length in zip(grid, chunk, strict=True))
    shard = tuple(count * length for count, length in zip(shards, chunk, strict=True))
    values = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    values[missing] = 0
    if order == "C":
        document = array(shape, shard, sharding(chunk, extension("bytes")), data_type="uint8")
        store(directory, document, values=values)
    else:
        made = zarr.create_array(directory, shape=shape, chunks=chunk, shards=shard, dtype="u1", compressors=None)
        made[...] = values
    fake = FakeS3(latency=LATENCY)
    for file in directory.rglob("*"):
        if file.is_file():
            fake.store(str(file.relative_to(directory)), file.read_bytes())
    boxes = product(*(range(0, length, step) for length, step in zip(shape, chunk, strict=True)))
    slices = [tuple(slice(start, start + n) for start, n in zip(box, chunk, strict=True)) for box in boxes]
    found = Bucket(fake, grid, {})
    found.chunks.update(zip(found.every, (values[where].tobytes() for where in slices), strict=True))
    return found


@dataclass(frozen=True)
class Reading:
    """What reading took: the requests for shards, and how many one after another."""

    requests: list[Request]
    waits: float

    @property
    def nbytes(self) -> int:
        return sum(int(end) - int(start) + 1 for start, end in self._ranges())

    def _ranges(self) -> Iterator[list[str]]:
        for request in self.requests:
            if request.range is not None and not request.range.startswith("-"):
                yield request.range.split("-")


async def read(stored: Bucket, names: Sequence[str], *, is_ahead: bool = True, nthreads: int = 2) -> Reading:
    """Read chunks in this order by *nthreads* at a time, and check them."""
    source = Source.of(reader_of(stored.fake))
    async with (
        reading_ahead() if is_ahead else nullcontext() as source.shards.ahead,
        open_paths(source, TreeOptions()) as paths,
    ):
        await paths.attributes(names[0])
        stored.fake.take_log()
        begun, rest = trio.current_time(), iter(names)

        async def go_on() -> None:
            for name in rest:
                assert await read_one(paths, name) == stored.chunks[name]

        async with open_nursery() as nursery:
            for _ in range(nthreads):
                nursery.start_soon(go_on)
        waits = (trio.current_time() - begun) / LATENCY
        await trio.sleep(1)
    return Reading([request for request in stored.fake.take_log() if request.operation == "GetObject"], waits)


async def read_one(paths: Paths, name: str) -> bytes:
    """Read a chunk as the Store does."""
    known = paths.read_known(name, 0, None, waits=True)
    return bytes(await paths.read(name) if known is None else known)


@dataclass(frozen=True)
class Stored:
    """An array: how many chunks it has, and each shard has, the shape of a chunk, and how many requests it takes."""

    grid: tuple[int, ...]
    shards: tuple[int, ...]
    chunk: tuple[int, ...]
    nrequests: dict[Order, int]


ARRAYS = {
    "16 shards of 2 MiB": Stored((8, 8, 8), (4, 4, 2), (16, 64, 64), {"C": 24, "Morton": 24}),
    "16 shards of 2 MiB in a row": Stored((512,), (32,), (64 * KIB,), {"C": 17, "Morton": 17}),
    "8 shards of 8 MiB": Stored((8, 8, 16), (4, 4, 8), (16, 64, 64), {"C": 16, "Morton": 16}),
    "2 shards of 32 MiB": Stored((4, 4, 8), (4, 4, 4), (64, 64, 128), {"C": 10, "Morton": 112}),
    "2 shards of 32 MiB with small chunks": Stored((8, 16, 8), (8, 8, 8), (16, 64, 64), {"C": 12, "Morton": 20}),
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "Morton"])
@pytest.mark.parametrize("name", ARRAYS)
@on_mock_clock
async def test_a_whole_array_takes_few_requests_most_of_which_are_under_way_together(
    tmp_path: Path, name: str, order: Order
) -> None:
    grid, shards, chunk, nrequests = astuple(ARRAYS[name])
    stored = bucket(tmp_path / "a", grid, shards, chunk, order)
    found = await read(stored, stored.every)
    assert found.waits < 10
    assert len(found.requests) <= nrequests[order]
    assert stored.nbytes <= found.nbytes < 1.05 * stored.nbytes
    assert stored.fake.most_in_flight <= 64


@pytest.mark.slow
@on_mock_clock
async def test_who_reads_here_and_there_makes_the_same_requests_as_without_reading_ahead(tmp_path: Path) -> None:
    stored = bucket(tmp_path / "a", (8, 8, 8), (4, 4, 2), (16, 64, 64))
    for seed in range(5):
        names = random.Random(seed).sample(stored.every, 64)
        plain, found = [await read(stored, names, is_ahead=is_ahead, nthreads=1) for is_ahead in (False, True)]
        assert plain.requests == found.requests


def is_of_index(request: Request) -> bool:
    """Whether a request is for the last bytes of a shard only."""
    return request.range is not None and request.range.startswith("-")


@pytest.mark.slow
@on_mock_clock
async def test_most_shards_that_are_read_from_their_beginning_come_with_their_index_by_one_request(
    tmp_path: Path,
) -> None:
    stored = bucket(tmp_path / "a", (8, 8, 16), (4, 4, 8), (16, 64, 64))
    found = await read(stored, stored.every)
    assert sum(map(is_of_index, found.requests)) <= 5  # of 8: some are met with one chunk at first


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "Morton"])
@on_mock_clock
async def test_who_reads_one_chunk_of_each_row_gets_no_whole_shards(tmp_path: Path, order: Order) -> None:
    stored = bucket(tmp_path / "a", (8, 8, 16), (4, 4, 8), (16, 64, 64), order)
    names = [f"c/{i}/{j}/11" for i, j in product(range(8), range(8))]
    found = await read(stored, names)
    assert found.nbytes == len(names) * 64 * KIB if order == "C" else found.nbytes <= 32 * MIB


@pytest.mark.slow
@on_mock_clock
async def test_what_comes_beside_the_chunks_that_are_read_in_morton_order_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_MAX_NBYTES", 4 * MIB)
    stored = bucket(tmp_path / "a", (16, 256), (16, 8), (64 * KIB, 1), "Morton")
    names = [f"c/0/{number}" for number in range(128)]
    found = await read(stored, names, nthreads=1)
    assert len({request.key for request in found.requests}) >= 16
    assert found.nbytes <= 48 * MIB  # of 128 MiB in 16 shards


@pytest.mark.slow
@on_mock_clock
async def test_a_shard_that_is_larger_than_the_one_before_is_read_as_it_is(tmp_path: Path) -> None:
    stored = bucket(tmp_path / "a", (48,), (24,), (512 * KIB,), "Morton", missing=slice(6 * MIB, 12 * MIB))
    names = [*stored.every[:12], *stored.every[24:]]
    found = await read(stored, names)
    assert any(is_of_index(request) and request.key.endswith("c/1") for request in found.requests)


@pytest.mark.slow
@on_mock_clock
async def test_large_chunks_are_not_fetched_ahead_beyond_a_limit_though_their_size_is_not_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_MAX_NBYTES", 8 * MIB)
    stored = bucket(tmp_path / "a", (16,), (16,), (4 * MIB,))
    found = await read(stored, stored.every[:5], nthreads=1)
    assert found.nbytes <= (20 + 8 + 8) * MIB  # those that were read, what the shard is read ahead by, and the limit


@pytest.mark.slow
@on_mock_clock
async def test_shards_that_are_encoded_as_a_whole_are_not_read_ahead(tmp_path: Path) -> None:
    shape = (64,)
    document = array(shape, (4,), sharding((1,), extension("bytes")), extension("gzip", level=1), data_type="uint8")
    store(tmp_path / "a", document, values=np.arange(64, dtype=np.uint8))
    fake = FakeS3(latency=LATENCY)
    for file in (tmp_path / "a").rglob("*"):
        if file.is_file():
            fake.store(str(file.relative_to(tmp_path / "a")), file.read_bytes())
    stored = Bucket(fake, shape, {f"c/{number}": bytes([number]) for number in range(64)})
    found = await read(stored, stored.every[:16], nthreads=1)
    assert {request.key for request in found.requests} <= {f"c/{number}" for number in range(4)}


@pytest.mark.parametrize("are_large", [False, True])
@on_mock_clock
async def test_shards_with_large_indexes_are_opened_ahead_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_large: bool
) -> None:
    if are_large:
        monkeypatch.setattr("shardfs.format.sharding._LARGE_INDEX_NBYTES", 0)
    stored = bucket(tmp_path / "a", (32,), (1,), (64,))
    await read(stored, stored.every, nthreads=1)
    assert (stored.fake.most_in_flight <= 4) == are_large
