"""Exactly which requests readers of one object cause, whatever they read and when."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from shardfs.errors import StoreError
from shardfs.stores.base import Buffer
from shardfs.stores.disk_cache import DiskCache
from shardfs.stores.ranges import WINDOW_NBYTES
from shardfs.stores.s3.objects import S3Snapshot
from shardfs.stores.s3.requests import Counts
from tests.support.fake_s3 import FakeS3, Request
from tests.support.s3_reading import LATENCY, get, on_mock_clock, pattern, reader_of

KIB, MIB = 2**10, 2**20
CHUNK = 64 * KIB
SMALL = pattern(40 * KIB)
LARGE = pattern(4 * MIB) * 8


async def opened(data: bytes, **options: object) -> tuple[FakeS3, S3Snapshot, str]:
    """A bucket with the object "k", open, and its ETag; the log is empty."""
    fake = FakeS3(latency=LATENCY)
    etag = fake.store("k", data).etag
    snapshot = await reader_of(fake, **options).open("k")
    fake.take_log()
    return fake, snapshot, etag


async def read_all(snapshot: S3Snapshot, *ranges: tuple[int, int]) -> list[Buffer]:
    """Read ranges, from start to before stop, at the same time."""
    found: dict[int, Buffer] = {}

    async def read(i: int, start: int, stop: int) -> None:
        found[i] = await snapshot.read(start, stop - start)

    async with trio.open_nursery() as nursery:
        for i, (start, stop) in enumerate(ranges):
            nursery.start_soon(read, i, start, stop)
    return [found[i] for i in range(len(ranges))]


@on_mock_clock
async def test_more_is_gathered_while_all_connections_are_busy() -> None:
    fake, snapshot, etag = await opened(LARGE, max_connections=1)
    found = []

    async def read(start: int, wait: float) -> None:
        await trio.sleep(wait)
        found.append(bytes(await snapshot.read(start, CHUNK)) == LARGE[start : start + CHUNK])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, 0, 0)
        for i in range(4):
            nursery.start_soon(read, 8 * MIB + i * CHUNK, 0.003 * (i + 1))
    assert found == [True] * 5
    assert fake.take_log() == [get("k", 0, CHUNK, etag), get("k", 8 * MIB, 8 * MIB + 4 * CHUNK, etag)]
    assert fake.most_in_flight == 1


@on_mock_clock
async def test_what_is_in_flight_is_not_asked_for_again() -> None:
    fake, snapshot, etag = await opened(LARGE)

    async def read_late() -> None:
        await trio.sleep(LATENCY / 2)
        assert bytes(await snapshot.read(MIB + 10, 100)) == LARGE[MIB + 10 : MIB + 110]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(snapshot.read, MIB, CHUNK)
        nursery.start_soon(read_late)
    assert fake.take_log() == [get("k", MIB, MIB + CHUNK, etag)]


@pytest.mark.parametrize("nbytes", [CHUNK, 100_000, 7 * MIB, 8 * MIB, 20 * MIB + 5, 32 * MIB])
@on_mock_clock
async def test_an_object_that_is_expected_in_order_takes_a_request_for_each_8_mib(nbytes: int) -> None:
    fake, snapshot, _ = await opened(LARGE)
    snapshot.expect(0, nbytes)
    step = 60_000  # so that reads lie across the ends of windows
    for start in range(0, nbytes, step):
        stop = min(start + step, nbytes)
        assert bytes(await snapshot.read(start, stop - start)) == LARGE[start:stop]
    log = fake.take_log()
    assert len(log) <= max(1, nbytes // WINDOW_NBYTES)
    assert fetched(log) == [(0, nbytes)]


def fetched(log: list[Request]) -> list[tuple[int, int]]:
    """The ranges of requests that follow each other, joined; those that overlap stay apart."""
    joined: list[tuple[int, int]] = []
    for request in log:
        assert request.range is not None
        first, last = map(int, request.range.split("-"))
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last + 1)
        else:
            joined.append((first, last + 1))
    return joined


@on_mock_clock
async def test_parallel_readers_in_order_take_no_more_requests_than_one() -> None:
    fake, snapshot, _ = await opened(LARGE)
    snapshot.expect(0, len(LARGE))
    todo = iter(range(0, len(LARGE), CHUNK))

    async def reader() -> None:
        for start in todo:
            assert bytes(await snapshot.read(start, CHUNK)) == LARGE[start : start + CHUNK]

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(reader)
    assert fetched(fake.take_log()) == [(0, len(LARGE))]


@pytest.mark.parametrize("nbytes", [2 * CHUNK, MIB, 4 * MIB])
@on_mock_clock
async def test_a_chunk_that_is_read_in_pieces_is_one_request_and_no_byte_more(nbytes: int) -> None:
    fake, snapshot, etag = await opened(LARGE)
    place = (3 * MIB, nbytes)
    for offset in range(*place[:1], place[0] + nbytes, CHUNK):
        assert bytes(await snapshot.read(offset, CHUNK, place)) == LARGE[offset : offset + CHUNK]
    assert fake.take_log() == [get("k", 3 * MIB, 3 * MIB + nbytes, etag)]


@on_mock_clock
async def test_a_second_chunk_in_order_fetches_ahead_and_an_index_before_a_chunk_does_not() -> None:
    fake, snapshot, etag = await opened(LARGE)
    await snapshot.read(0, 1000)
    for chunk in range(2):
        for i in range(8):
            await snapshot.read(1000 + chunk * MIB + i * CHUNK, CHUNK, (1000 + chunk * MIB, MIB))
    first, second, third = fake.take_log()
    assert [first, second] == [get("k", 0, 1000, etag), get("k", 1000, 1000 + MIB, etag)]
    assert third.range is not None
    start, stop = map(int, third.range.split("-"))
    assert start == 1000 + MIB
    assert WINDOW_NBYTES <= stop + 1 - start < 2 * WINDOW_NBYTES


@on_mock_clock
async def test_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    fake = FakeS3()
    for name in "abc":
        fake.store(name, pattern(MIB, seed=ord(name)))
    store = reader_of(fake, memory_nbytes=2 * MIB)
    snapshots = {name: await store.open(name) for name in "abc"}
    for name in "abc":
        snapshots[name].expect(0, MIB)
        await snapshots[name].read(0, CHUNK)
        await snapshots["a"].read(CHUNK, CHUNK)
    fake.take_log()
    for name in "acb":
        await snapshots[name].read(5 * CHUNK, CHUNK)
    assert [request.key for request in fake.take_log()] == ["b"]


@on_mock_clock
async def test_a_failure_reaches_all_who_asked_each_as_an_error_of_its_own_and_is_forgotten() -> None:
    fake, snapshot, etag = await opened(LARGE)
    errors: list[StoreError] = []

    async def fail(request: Request) -> None:
        raise StoreError("SlowDown")

    async def read() -> None:
        try:
            await snapshot.read(MIB, CHUNK)
        except StoreError as error:
            errors.append(error)
            fake.before = None
            assert bytes(await snapshot.read(MIB, CHUNK)) == LARGE[MIB : MIB + CHUNK]

    fake.before = fail
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
    assert [str(error) for error in errors] == ["SlowDown"] * 3
    assert len({id(error) for error in errors}) == 3
    assert fake.take_log() == [get("k", MIB, MIB + CHUNK, etag)] * 2


@pytest.mark.parametrize("when", [0.0005, LATENCY / 2])
@pytest.mark.parametrize("place", [0, 1])
@on_mock_clock
async def test_a_reader_that_is_cancelled_breaks_no_other(when: float, place: int) -> None:
    fake, snapshot, etag = await opened(LARGE)
    found = []
    scopes = [trio.CancelScope() for _ in range(3)]

    async def read(scope: trio.CancelScope) -> None:
        with scope:
            found.append(bytes(await snapshot.read(MIB, CHUNK)))

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(read, scope)
        await trio.sleep(when)
        scopes[place].cancel()
    assert found == [LARGE[MIB : MIB + CHUNK]] * 2
    assert set(fake.take_log()) == {get("k", MIB, MIB + CHUNK, etag)}


def cache_in(directory: Path) -> DiskCache:
    return DiskCache(str(directory), 2**30, Counts())


@on_mock_clock
async def test_a_second_pass_over_an_object_comes_from_the_disk_alone(tmp_path: Path) -> None:
    fake, snapshot, _ = await opened(LARGE, cache=cache_in(tmp_path))
    ranges = [(start, min(start + 60_000, len(LARGE))) for start in range(0, len(LARGE), 60_000)]
    snapshot.expect(0, len(LARGE))
    for start, stop in ranges:
        await snapshot.read(start, stop - start, (start, stop - start))
    fake.take_log()
    counts = Counts()
    again = await reader_of(fake, cache=DiskCache(str(tmp_path), 2**30, counts)).open("k")
    again.expect(0, len(LARGE))
    for start, stop in ranges:
        assert bytes(await again.read(start, stop - start, (start, stop - start))) == LARGE[start:stop]
    assert fake.take_log() == [Request("HeadObject", "k")]
    assert counts.cache_hits < len(ranges) / 10  # for what is read in order is taken from the disk ahead


@on_mock_clock
async def test_what_the_disk_has_of_another_version_or_server_is_fetched(tmp_path: Path) -> None:
    fake, snapshot, _ = await opened(SMALL, cache=cache_in(tmp_path))
    await snapshot.read(0, 100)
    changed = pattern(len(SMALL), seed=1)
    fake.store("k", changed)
    again = await reader_of(fake, cache=cache_in(tmp_path)).open("k")
    assert bytes(await again.read(0, 100)) == changed[:100]
    fake.take_log()
    fake.endpoint_url = "http://localhost:2"
    other = await reader_of(fake, cache=cache_in(tmp_path)).open("k")
    await other.read(0, 100)
    assert len(fake.take_log()) == 2
