"""Names, states and versions of objects: what is asked for, what is believed, and what a version promises."""

import pytest
import trio

from shardfs.errors import NotFoundError, StaleError, StoreError
from shardfs.stores.objects.requests import ObjectStat, Properties
from shardfs.stores.s3.store import S3Store
from tests.support.fake_s3 import FakeS3, Request
from tests.support.s3_reading import LATENCY, TTL, get, on_mock_clock, pattern, reader_of

OLD = pattern(1000)
NEW = pattern(1000, seed=1)
PLAIN = Properties()


def stored(data: bytes = OLD, key: str = "k", **options: object) -> tuple[FakeS3, S3Store, ObjectStat]:
    fake = FakeS3(latency=LATENCY)
    stat = fake.store(key, data)
    return fake, reader_of(fake, **options), stat


@on_mock_clock
async def test_a_failure_is_never_absence() -> None:
    fake, store, _ = stored()

    async def fail(request: Request) -> None:
        raise StoreError("SlowDown")

    fake.before = fail
    assert not await store.is_absent("k")
    for ask in (store.stat, store.open, store.list):
        with pytest.raises(StoreError):
            await ask("k")
    fake.before = None
    assert (await store.stat("k")).size == 1000


@on_mock_clock
async def test_what_our_own_changes_kept_is_read_on_from_the_new_version() -> None:
    fake, store, first = stored()
    snapshot = await store.open("k")
    versions = [first]
    for i in range(3):
        new = fake.store("k", OLD[: 900 - 100 * i] + NEW)
        store.objects.changed("k", versions[-1], new, PLAIN, 900 - 100 * i)
        versions.append(new)
    fake.take_log()
    assert bytes(await snapshot.read(600, 100)) == OLD[600:700]
    assert fake.take_log() == [get("k", 600, 700, versions[-1].etag)]
    assert bytes(await trio.to_thread.run_sync(snapshot.content(600, 100).read, 0, 100)) == OLD[600:700]
    with pytest.raises(StaleError):
        await snapshot.read(600, 101)
    assert not await snapshot.is_current()
    fake.store("k", NEW)
    with pytest.raises(StaleError):
        await snapshot.read(0, 10)


@on_mock_clock
async def test_a_reader_that_finds_our_own_change_waits_until_it_is_known() -> None:
    fake, store, first = stored()
    snapshot = await store.open("k")

    async def change() -> None:
        with store.objects.changing("k"):
            new = fake.store("k", OLD + NEW)
            await trio.sleep(5 * LATENCY)  # until the reply came
            store.objects.changed("k", first, new, PLAIN, 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.sleep(LATENCY)
        assert bytes(await snapshot.read(0, 1000)) == OLD


@pytest.mark.parametrize("kept_nbytes", [0, 1000])
@on_mock_clock
async def test_a_version_that_another_host_brought_back_is_read(kept_nbytes: int) -> None:
    fake, store, first = stored()
    new = fake.store("k", OLD[:kept_nbytes] + NEW)
    store.objects.changed("k", first, new, PLAIN, kept_nbytes)
    fake.store("k", OLD)
    await trio.sleep(TTL)
    snapshot = await store.open("k")
    assert bytes(await snapshot.read(600, 100)) == OLD[600:700]
    assert bytes(await trio.to_thread.run_sync(snapshot.content(600, 100).read, 0, 100)) == OLD[600:700]


@on_mock_clock
async def test_our_own_change_is_believed_whatever_an_older_reply_says() -> None:
    _, store, _ = stored()
    new = ObjectStat(2000, '"new"', 5)

    async def change() -> None:
        await trio.sleep(LATENCY / 2)
        store.heads.changed("k", new)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await store.open("k")
    assert (await store.stat("k")).size == 2000
    store.heads.changed("k", None)
    with pytest.raises(NotFoundError):
        await store.stat("k")
    assert await store.is_absent("k")
