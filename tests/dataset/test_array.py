"""Arrays below the mount: extents against the encoder, listings of shards, and what is kept of open ones."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import pytest
import trio

from shardfs.dataset import layout
from shardfs.dataset.array import Array, Extent
from shardfs.errors import CorruptionError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer
from shardfs.stores.local.reader import LocalSnapshot
from tests.support.corpus import GZIP, LITTLE, Case, array, extension, sharding
from tests.support.datasets import store
from tests.support.opened import StoredCorpus, in_trio, open_source
from tests.support.parametrize import every_case


def all_coords(array: Array) -> list[Coords]:
    return list(product(*map(range, array.grid.grid_shape)))


async def whole(extent: Extent | None) -> bytes | None:
    return None if extent is None else bytes(await extent.read(0, extent.nbytes))


@pytest.mark.slow
@every_case
@in_trio
async def test_a_cache_that_holds_next_to_nothing_changes_nothing_but_speed(stored: StoredCorpus, case: Case) -> None:
    array = await open_source(stored.path(case), max_nbytes=1, max_open=1).array()
    inner = stored.encoded[case.name].inner
    assert await array.has_shards() == bool(stored.encoded[case.name].files)
    for coords in all_coords(array):
        assert await whole((await array.find(coords))[1]) == inner.get(coords)

    async def read(coords: Coords) -> None:
        assert await whole(await array.extent(coords)) == inner.get(coords)

    async with trio.open_nursery() as nursery:
        for coords in reversed(all_coords(array)):
            nursery.start_soon(read, coords)


@in_trio
async def test_zero_bytes_are_a_chunk_and_shared_ranges_are_fine(tmp_path: Path) -> None:
    chunks = store(tmp_path, array((4, 6), (4, 6), sharding((2, 3), index_codecs=[LITTLE])))
    shard = tmp_path / "c/0/0"
    data = shard.read_bytes()
    shard.write_bytes(data[:-64] + np.array([[160, 0], [0, 160]], "<u8").tobytes() + data[-32:])
    opened = await open_source(tmp_path).array()
    found = [await whole(await opened.extent(coords)) for coords in all_coords(opened)]
    assert found == [b"", shard.read_bytes(), chunks["c/1/0"], chunks["c/1/1"]]


NESTED = array((8, 6), (4, 3), sharding((2, 3)))


@pytest.mark.parametrize(
    "encoding", [extension(name, separator=separator) for name in ("default", "v2") for separator in "/."], ids=str
)
@in_trio
async def test_a_listing_is_kept_no_longer_than_the_ttl(tmp_path: Path, encoding: Any) -> None:
    """Also if it was asked for piece by piece."""
    store(tmp_path, NESTED | {"chunk_key_encoding": encoding})
    source = open_source(tmp_path)
    array = await source.array()
    assert await array.listing.children(()) == [0, 1]
    os.unlink(tmp_path / array.layout.shard_key((0, 1)))
    source.clock.now += 0.75
    assert await array.listing.children((0,)) in ([0], [0, 1])
    source.clock.now += 0.5
    assert await array.listing.children((0,)) == [0]


@in_trio
async def test_files_where_directories_should_be_are_damage(tmp_path: Path) -> None:
    store(tmp_path, NESTED)
    source = open_source(tmp_path)
    array = await source.array()
    for path, prefix, coords in (("c/1", (1,), (2, 0)), ("c", (), (0, 0))):
        shutil.rmtree(tmp_path / path)
        (tmp_path / path).touch()
        source.clock.now += 1
        with pytest.raises(CorruptionError):
            await array.listing.children(prefix)
        with pytest.raises(CorruptionError):
            await array.extent(coords)


@in_trio
async def test_decoded_shards_are_bounded_by_bytes_and_decoded_again_for_what_is_open(tmp_path: Path) -> None:
    """Of ten shards that have 64 KiB decoded, three are kept, however many chunks of them are open."""
    document = array((10 * 2**14,), (2**14,), sharding((2**10,)), GZIP)
    store(tmp_path, document, np.zeros(document["shape"], np.int32))
    source = open_source(tmp_path, max_nbytes=200_000)
    line = await source.array()
    extents = [await line.extent((16 * number,)) for number in range(10)]
    for numbers, ndecoded in (((7, 8, 9), 10), ((0, 1, 2, 0, 1, 2), 13)):
        for number in numbers:
            assert await whole(extents[number]) == bytes(4096)
        assert source.statistics.whole_shard_decodes == ndecoded


@in_trio
async def test_shards_that_are_large_before_or_after_decoding_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile shard may be large though it decodes to little: many of them must not be in memory at once."""
    document = array((8 * 2**14,), (2**14,), sharding((2**10,)), GZIP)
    store(tmp_path, document, np.ones(document["shape"], np.int32))
    for number in range(8):
        os.truncate(tmp_path / f"c/{number}", 9 * 2**20)
    source = open_source(tmp_path)
    line = await source.array()
    at_once = most = 0
    read = LocalSnapshot.read

    async def counted(self: LocalSnapshot, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        data = await read(self, offset, nbytes, extent)
        at_once -= 1
        return data

    async def decode(number: int) -> None:
        with suppress(CorruptionError):
            await line.extent((16 * number,))

    monkeypatch.setattr(LocalSnapshot, "read", counted)
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(decode, number)
    assert 0 < most <= 2


def test_threads_that_each_have_a_source_open_locate_chunks_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they remember together is bounded: two of them drop the oldest."""
    store(tmp_path / "a", array((8, 2), (2, 2), sharding((1, 1))))
    meeting = Barrier(2)

    class Runs(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            oldest = next(super().__iter__())
            with suppress(BrokenBarrierError):
                meeting.wait(0.2)
            return iter([oldest])

    async def locate() -> None:
        found = await open_source(tmp_path).array("a")
        for n in range(8):
            assert found.layout.locate((n, 1)).shard == (n // 2, 0)

    monkeypatch.setattr(layout, "_RUNS", Runs())
    monkeypatch.setattr(layout, "_MAX_RUNS", 1)
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(trio.run, locate) for _ in range(2)]:
            future.result()
