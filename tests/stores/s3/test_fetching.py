"""Exactly which requests readers of one object cause, whatever they read and when."""

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from shardfs.errors import StoreError
from shardfs.stores.base import Buffer
from shardfs.stores.objects.disk_cache import DiskCache
from shardfs.stores.objects.requests import Counts
from shardfs.stores.objects.versions import ObjectSnapshot
from shardfs.stores.s3.store import S3Store
from shardfs.stores.url import open_session
from tests.support.fake_s3 import FakeS3, Request
from tests.support.mounting import PATIENCE
from tests.support.opened import in_trio, session
from tests.support.s3_reading import LATENCY, TTL, get, on_mock_clock, pattern, reader_of

KIB, MIB = 2**10, 2**20
CHUNK = 64 * KIB
SMALL = pattern(40 * KIB)
LARGE = pattern(4 * MIB) * 8


async def opened(data: bytes, **options: object) -> tuple[FakeS3, ObjectSnapshot, str]:
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


@pytest.mark.slow
@in_trio
async def test_threads_read_what_is_in_memory_and_current_while_the_event_loop_changes_it() -> None:
    fake = FakeS3()
    contents = {name: pattern(8 * CHUNK, seed=ord(name)) for name in "abcd"}
    for name, data in contents.items():
        fake.store(name, data)
    store = reader_of(fake, memory_nbytes=16 * CHUNK, clock=time.monotonic)
    snapshots = {name: await store.open(name) for name in contents}
    is_over, counts = Event(), Counter[str]()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def read(name: str) -> None:
        while not is_over.is_set():
            for offset in range(0, 8 * CHUNK, CHUNK):
                data = snapshots[name].read_if_current(offset, CHUNK, waits=True)
                assert data is None or data == contents[name][offset : offset + CHUNK]
                counts[name] += data is not None

    async with trio.open_nursery() as nursery:
        for name in contents:
            nursery.start_soon(trio.to_thread.run_sync, read, name)
        try:
            for turn in range(80):
                for name, snapshot in snapshots.items():  # more than fits
                    snapshot.expect(0, 8 * CHUNK)
                    await snapshot.read(0, CHUNK)
                    if turn % 7 == 0:
                        await snapshot.distrust(CHUNK, CHUNK)
                    else:
                        assert await snapshot.read(CHUNK, CHUNK) == contents[name][CHUNK : 2 * CHUNK]
        finally:
            is_over.set()
            sys.setswitchinterval(interval)
    assert all(counts[name] for name in contents)
    fake.store("a", contents["b"])
    await store.fresh("a")
    assert snapshots["a"].read_if_current(0, CHUNK, waits=True) is None


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


class SlowCache(DiskCache):
    """A cache whose disk adds nothing, or ends no look, until the test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory), 2**30, Counts())
        self.adds, self.finds, self.begun = Event(), Event(), Event()
        self.finds.set()
        self.added: list[int] = []

    def add(self, name: str, etag: str, offset: int, data: Buffer) -> None:
        self.added.append(offset)
        self.begun.set()
        assert self.adds.wait(PATIENCE)
        super().add(name, etag, offset, data)

    def find(self, name: str, etag: str, offset: int, nbytes: int) -> memoryview | None:
        found = super().find(name, etag, offset, nbytes)
        assert self.finds.wait(PATIENCE)
        return found


async def settle(cache: SlowCache, snapshot: ObjectSnapshot) -> list[int]:
    """Let the disk work; return where what it was given begins, once it has all of that."""
    cache.adds.set()
    for flight in [*snapshot.version._on_way_to_disk]:
        await flight.over.wait()
    return sorted(cache.added)


@asynccontextmanager
async def without_threads(threads: trio.CapacityLimiter) -> AsyncIterator[None]:
    """In the block, others have all threads of the cache: what needs the disk has not begun."""
    borrowers = [object() for _ in range(int(threads.total_tokens))]
    for borrower in borrowers:
        await threads.acquire_on_behalf_of(borrower)
    try:
        yield
    finally:
        for borrower in borrowers:
            threads.release_on_behalf_of(borrower)


def give(fake: FakeS3, data: bytes) -> None:
    """Let the server send *data* as the version that is there."""
    fake.objects["k"] = replace(fake.objects["k"], data=data)


@on_mock_clock
async def test_readers_do_not_wait_for_the_disk_and_share_what_is_on_its_way_there(tmp_path: Path) -> None:
    cache = SlowCache(tmp_path)
    fake, snapshot, etag = await opened(LARGE, cache=cache)
    for _ in range(2):
        assert bytes(await snapshot.read(MIB, CHUNK)) == LARGE[MIB : MIB + CHUNK]
        assert bytes(await snapshot.read(MIB + 5, 10)) == LARGE[MIB + 5 : MIB + 15]
    assert fake.take_log() == [get("k", MIB, MIB + CHUNK, etag)]
    assert await settle(cache, snapshot) == [MIB]


@pytest.mark.parametrize("is_begun", [True, False], ids=["while it is added", "before it is added"])
@on_mock_clock
async def test_what_is_dropped_on_its_way_to_the_disk_does_not_stay_there(tmp_path: Path, is_begun: bool) -> None:
    cache = SlowCache(tmp_path)
    fake = FakeS3(latency=LATENCY)
    fake.store("k", LARGE)
    store = reader_of(fake, cache=cache)
    snapshot = await store.open("k")
    async with trio.open_nursery() as nursery:
        async with AsyncExitStack() as others:

            async def damage(_: Request) -> None:
                give(fake, bytes(len(LARGE)))
                if not is_begun:
                    await others.enter_async_context(without_threads(store.objects._threads))

            fake.before = damage
            assert bytes(await snapshot.read(MIB, CHUNK)) == bytes(CHUNK)
            fake.before = None
            give(fake, LARGE)
            for _ in range(2):  # several readers find the damage
                nursery.start_soon(snapshot.distrust, MIB, CHUNK)
            await wait_all_tasks_blocked()
            if is_begun:
                await trio.to_thread.run_sync(cache.begun.wait, PATIENCE)
            assert cache.added == ([MIB] if is_begun else [])
        cache.adds.set()
    assert bytes(await snapshot.read(MIB, CHUNK)) == LARGE[MIB : MIB + CHUNK]
    again = await reader_of(fake, cache=cache_in(tmp_path)).open("k")
    assert bytes(await again.read(MIB, CHUNK)) == LARGE[MIB : MIB + CHUNK]


@on_mock_clock
async def test_what_is_dropped_while_another_reader_looks_for_it_on_disk_is_fetched_again(tmp_path: Path) -> None:
    cache = SlowCache(tmp_path)
    fake, snapshot, _ = await opened(LARGE, cache=cache)
    give(fake, bytes(len(LARGE)))
    assert bytes(await snapshot.read(MIB, CHUNK)) == bytes(CHUNK)
    await settle(cache, snapshot)
    give(fake, LARGE)
    values: list[bytes] = []

    async def look() -> None:
        values.append(bytes(await snapshot.read(MIB, CHUNK, (MIB, CHUNK))))

    cache.finds.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        await snapshot.distrust(MIB, CHUNK)
        cache.finds.set()
    assert values == [LARGE[MIB : MIB + CHUNK]]


@on_mock_clock
async def test_what_was_fetched_gets_to_the_disk_though_the_session_ends(tmp_path: Path) -> None:
    fake = FakeS3(latency=LATENCY)
    fake.store("k", LARGE)
    async with open_session() as nursery:
        store = S3Store(fake.client_at(""), nursery, ttl=TTL, clock=trio.current_time, cache=cache_in(tmp_path))
        snapshot = await store.open("k")
        await snapshot.read(0, 1)
        others = AsyncExitStack()
        fake.before = lambda _: others.enter_async_context(without_threads(store.objects._threads))
        await snapshot.read(MIB, CHUNK)
        session().start_soon(end_soon, others)
    again = await reader_of(fake, cache=cache_in(tmp_path)).open("k")
    fake.take_log()
    assert bytes(await again.read(MIB, CHUNK)) == LARGE[MIB : MIB + CHUNK]
    assert fake.take_log() == []


async def end_soon(others: AsyncExitStack) -> None:
    await wait_all_tasks_blocked()
    await others.aclose()


@pytest.mark.slow
@on_mock_clock
async def test_what_comes_faster_than_the_disk_takes_it_is_not_kept_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardfs.stores.objects.versions._MAX_WAITING_NBYTES", CHUNK)
    cache = SlowCache(tmp_path)
    _, snapshot, _ = await opened(LARGE, cache=cache)
    for number in range(2, 16, 2):
        assert len(await snapshot.read(number * MIB, CHUNK)) == CHUNK
    assert await settle(cache, snapshot) == [2 * MIB, 4 * MIB]
