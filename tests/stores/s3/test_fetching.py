"""Exactly which requests readers of one object cause, whatever they read and when."""

from pathlib import Path

import pytest
import trio

from shardfs.errors import StoreError
from shardfs.stores.disk_cache import DiskCache
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


@on_mock_clock
async def test_what_is_wanted_while_no_connection_is_free_is_fetched_together() -> None:
    fake = FakeS3(latency=LATENCY)
    etag = fake.store("k", LARGE).etag
    store = reader_of(fake)
    snapshot = await store.open("k")
    fake.take_log()
    limiter = store.objects.client.limiter
    limiter.total_tokens = 1
    async with trio.open_nursery() as nursery, limiter:
        for place in (5, 7, 6):
            nursery.start_soon(snapshot.read, place * CHUNK, CHUNK)
            await trio.sleep(1)
    assert fake.take_log() == [get("k", 5 * CHUNK, 8 * CHUNK, etag)]


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
