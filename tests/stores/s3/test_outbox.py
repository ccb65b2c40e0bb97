"""Files that pass through: changed on this machine, seen at once, sent a moment later, and never lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.errors import ExistsError, NotFoundError, StaleError, StoreError
from shardfs.stores.base import Kind
from shardfs.stores.s3.objects import Properties
from shardfs.stores.s3.outbox import IDLE_S
from tests.support.fake_s3 import FakeS3, Request
from tests.support.s3_reading import on_mock_clock
from tests.support.s3_writing import PREFIX, changes, names, objects, put_file, store_of, text, writing


@pytest.fixture
def fake() -> FakeS3:
    fake = FakeS3()
    fake.store(f"{PREFIX}/zarr.json", b"{}")
    return fake


def waiting(directory: Path) -> set[str]:
    """The files that wait below *directory*, or are being fetched."""
    return {
        str(path.relative_to(directory / ".shardfs"))
        for place in ("plain", "fetched")
        for path in (directory / ".shardfs" / place).rglob("*")
    }


async def until(condition: Callable[[], bool]) -> None:
    """Let time pass until *condition* holds; while a thread works, this clock runs on."""
    while not condition():  # noqa: ASYNC110 - of time there is as much as is wanted
        await trio.sleep(1.0)


# Seen at once, sent a moment later


@on_mock_clock
async def test_a_file_is_seen_at_once_and_is_in_the_bucket_once_it_was_left_alone(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    await put_file(store, "notes.txt", b"hello")
    assert await names(store) == {"zarr.json", "notes.txt"}
    assert (await store.stat("notes.txt")).size == 5
    assert await text(store, "notes.txt") == b"hello"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await trio.sleep(IDLE_S - 0.1)
        assert objects(fake) == {"zarr.json": b"{}"}
        await until(lambda: not waiting(tmp_path))
        assert objects(fake) == {"zarr.json": b"{}", "notes.txt": b"hello"}
        nursery.cancel_scope.cancel()
    assert await text(store, "notes.txt") == b"hello"
    assert (await store.stat("notes.txt")).size == 5


@on_mock_clock
async def test_a_temporary_name_that_is_moved_at_once_never_reaches_the_bucket(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/notes.txt", b"old")
    store = await writing(fake, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await put_file(store, ".notes.txt.a1b2", b"new")
        await store.rename(".notes.txt.a1b2", "notes.txt", exclusive=False)
        await until(lambda: not waiting(tmp_path))
        nursery.cancel_scope.cancel()
    assert objects(fake) == {"zarr.json": b"{}", "notes.txt": b"new"}
    assert changes(fake) == {"PutObject": 1}


@on_mock_clock
async def test_a_file_that_was_removed_before_it_was_sent_takes_no_request_that_changes_anything(
    fake: FakeS3, tmp_path: Path
) -> None:
    store = await writing(fake, tmp_path)
    await put_file(store, "d", b"x")
    await store.unlink("d")
    await store.flush()
    assert changes(fake) == {}
    assert waiting(tmp_path) == set()
    with pytest.raises(NotFoundError):
        await store.stat("d")


@on_mock_clock
async def test_a_file_that_is_written_again_and_again_is_sent_when_that_ends(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        file = await store.create("log", 0o644, exclusive=True)
        for i in range(8):
            await file.write(i, b"x")
            await trio.sleep(IDLE_S - 0.5)
        assert changes(fake) == {}
        await until(lambda: objects(fake).get("log") == b"x" * 8)
        await file.write(8, b"y")
        await until(lambda: objects(fake)["log"] == b"x" * 8 + b"y")
        assert waiting(tmp_path) == {"plain/log"}
        del file
        await until(lambda: not waiting(tmp_path))
        nursery.cancel_scope.cancel()
    assert changes(fake) == {"PutObject": 2}


@on_mock_clock
async def test_flush_sends_everything_at_once_also_what_is_open(fake: FakeS3, tmp_path: Path) -> None:
    fake.latency = 1.0
    store = await writing(fake, tmp_path)
    expected = {f"d/f{i}": bytes([i]) * i for i in range(10)}
    await store.mkdir("d", 0o755)
    for key, data in expected.items():
        await put_file(store, key, data)
    file = await store.create("open", 0o644, exclusive=True)
    await file.write(0, b"half")
    await store.flush()
    assert fake.most_in_flight > 1
    assert objects(fake) == {"zarr.json": b"{}", "open": b"half", **expected}
    assert waiting(tmp_path) == {"plain/open"}
    await file.write(4, b" more")
    await store.flush()
    assert objects(fake)["open"] == b"half more"


@on_mock_clock
async def test_what_is_written_while_the_file_is_sent_is_sent_too(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=True)
    await file.write(0, b"one")

    async def write(request: Request) -> None:
        fake.before = None
        await (await store.open_live("f", writable=True)).write(3, b"two")

    fake.before = write
    await store.flush()
    del file
    assert await text(store, "f") == b"onetwo"
    await store.flush()
    assert objects(fake)["f"] == b"onetwo"
    assert waiting(tmp_path) == set()


# What is in the bucket already


@on_mock_clock
async def test_an_object_is_fetched_only_when_it_is_changed(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    first = await store.open_live("f", writable=True)
    second = await store.open_live("f", writable=True)
    assert bytes(await first.read(2, 3)) == b"234"
    assert waiting(tmp_path) == set()
    await first.write(3, b"abc")
    assert bytes(await second.read(0, 100)) == b"012abc6789"
    assert second.stat().size == 10
    await second.truncate(4)
    assert bytes(await first.read(0, 100)) == b"012a"
    assert await text(store, "f") == b"012a"
    del first, second
    await store.flush()
    assert objects(fake)["f"] == b"012a"


@on_mock_clock
async def test_an_object_that_is_written_anew_is_not_fetched(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    file = await store.open_live("f", writable=True)
    opened = fake.take_log()
    await file.truncate(0)
    await file.write(0, b"new")
    assert fake.take_log() == []
    assert [request.operation for request in opened] == ["HeadObject"]
    await store.flush()
    assert objects(fake)["f"] == b"new"


@on_mock_clock
async def test_an_object_that_is_opened_and_not_written_stays(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=False)
    assert file.stat().size == 10
    del file
    await store.flush()
    assert changes(fake) == {}


@on_mock_clock
async def test_properties_of_an_object_survive_a_new_content(fake: FakeS3, tmp_path: Path) -> None:
    properties = Properties({"ContentType": "text/x-notes"}, {"owner": "me"})
    fake.store(f"{PREFIX}/f", b"old", properties)
    store = await writing(fake, tmp_path)
    await put_file(store, "f", b"new")
    await put_file(store, "new.json", b"{}")
    await store.flush()
    assert fake.objects[f"{PREFIX}/f"].properties == properties
    assert fake.objects[f"{PREFIX}/new.json"].properties.headers == {"ContentType": "application/json"}


@on_mock_clock
async def test_an_object_that_is_read_keeps_its_version_or_is_stale(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = store_of(fake)
    file = await store.open_live("f", writable=False)
    fake.store(f"{PREFIX}/f", b"other")
    with pytest.raises(StaleError):
        await file.read(0, 10)


@on_mock_clock
async def test_who_has_a_file_open_that_was_removed_or_replaced_goes_on_with_it(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/object", b"object")
    store = await writing(fake, tmp_path)
    await put_file(store, "f", b"first")
    file, stored = await store.open_live("f", writable=True), await store.open_live("object", writable=True)
    await store.unlink("object")
    await put_file(store, "g", b"second")
    await store.rename("g", "f", exclusive=False)
    await file.write(0, b"FIRST")
    assert bytes(await file.read(0, 10)) == b"FIRST"
    with pytest.raises(StaleError):
        await stored.write(0, b"x")
    await stored.truncate(0)
    await stored.write(0, b"nameless")
    await store.flush()
    assert objects(fake) == {"zarr.json": b"{}", "f": b"second"}
    assert waiting(tmp_path) == {"plain/f"} - {"plain/f"}


@on_mock_clock
async def test_who_opens_a_file_while_it_is_made_a_copy_writes_that(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    first = await store.open_live("f", writable=True)
    store.forget("f")

    async def write(request: Request) -> None:
        fake.before = None
        await first.write(0, b"first")

    fake.before = write
    second = await store.open_live("f", writable=True)
    await second.write(5, b"then")
    assert bytes(await first.read(0, 20)) == b"firstthen9"
    await store.flush()
    assert objects(fake)["f"] == b"firstthen9"


# Failures


@on_mock_clock
async def test_what_cannot_be_sent_stays_is_tried_again_and_said(
    fake: FakeS3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await writing(fake, tmp_path)
    await put_file(store, "f", b"data")
    await put_file(store, "g", b"data")

    tried: list[float] = []

    async def refuse(request: Request) -> None:
        if request.operation == "PutObject":
            tried.append(trio.current_time())
            raise StoreError("the bucket cannot be reached")

    fake.before = refuse
    with pytest.raises(StoreError, match=r"(f|g) \(and 1 more\) cannot be sent.*cannot be reached"):
        await store.flush()
    assert waiting(tmp_path) == {"plain/f", "plain/g"}
    assert await text(store, "f") == b"data"
    del tried[:]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await until(lambda: len(tried) >= 16)
        assert all(later - earlier > 2 for earlier, later in zip(tried, tried[2:], strict=False))
        assert tried[14] - tried[12] > 30
        assert "f is not in the bucket yet" in caplog.text
        fake.before = None
        await until(lambda: not waiting(tmp_path))
        nursery.cancel_scope.cancel()
    assert objects(fake) == {"zarr.json": b"{}", "f": b"data", "g": b"data"}


@on_mock_clock
async def test_the_next_mount_sends_what_a_killed_one_left(
    fake: FakeS3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await writing(fake, tmp_path)
    await store.make_directories("a/b")
    await put_file(store, "a/b/f", b"left")
    await put_file(store, "g", b"left too")
    (tmp_path / ".shardfs" / "fetched" / "half").write_bytes(b"hal")
    fake.store(f"{PREFIX}/g", b"of another host")
    fake.objects[f"{PREFIX}/g"].stat = fake.objects[f"{PREFIX}/g"].stat._replace(mtime_ns=2**62)

    store = await writing(fake, tmp_path)
    assert waiting(tmp_path) == {"plain/a", "plain/a/b", "plain/a/b/f", "plain/g"}
    assert await names(store) == {"a", "g", "zarr.json"}
    assert await text(store, "a/b/f") == b"left"
    with caplog.at_level(logging.WARNING):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            await until(lambda: not waiting(tmp_path))
            nursery.cancel_scope.cancel()
    assert objects(fake) == {"zarr.json": b"{}", "a/b/f": b"left", "g": b"left too"}
    assert "g of an earlier mount has replaced what was stored there since" in caplog.text
    assert "a/b/f of an earlier" not in caplog.text
    assert waiting(tmp_path) == set()


@on_mock_clock
async def test_a_fetch_that_fails_leaves_the_object_and_no_copy(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    file = await store.open_live("f", writable=True)

    async def refuse(request: Request) -> None:
        raise StoreError("the bucket cannot be reached")

    fake.before = refuse
    with pytest.raises(StoreError):
        await file.write(0, b"x")
    assert waiting(tmp_path) == set()
    fake.before = None
    await file.write(0, b"x")
    await store.flush()
    assert objects(fake)["f"] == b"x123456789"


@on_mock_clock
async def test_sync_makes_content_and_names_durable(fake: FakeS3, tmp_path: Path, monkeypatch: Any) -> None:
    store = await writing(fake, tmp_path)
    await store.make_directories("a/b")
    file = await store.create("a/b/f", 0o644, exclusive=True)
    assert store.copies is not None
    synced: list[str] = []
    disk = store.copies.side._disk
    monkeypatch.setattr(type(disk), "sync", lambda self, fd: synced.append("content"))
    monkeypatch.setattr(type(disk), "sync_directory", lambda self, fd: synced.append("names"))
    await file.sync()
    assert synced == ["content", "names", "names", "names"]
    await store.sync_directory("a/b")
    assert synced[4:] == ["names"] * 3
    assert changes(fake) == {}


@on_mock_clock
async def test_what_another_host_stored_meanwhile_is_overwritten(fake: FakeS3, tmp_path: Path) -> None:
    here = await writing(fake, tmp_path / "here")
    there = await writing(fake, tmp_path / "there")
    await put_file(here, "f", b"first here")
    await put_file(there, "f", b"then there")
    await here.flush()
    await there.flush()
    assert objects(fake)["f"] == b"then there"


@on_mock_clock
async def test_creation_is_exclusive_on_one_host(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/stored", b"x")
    store = await writing(fake, tmp_path)
    await put_file(store, "f", b"x")
    for key in ("f", "stored"):
        with pytest.raises(ExistsError):
            await store.create(key, 0o644, exclusive=True)


@on_mock_clock
async def test_times_of_a_file_that_waits_are_set_and_modes_are_those_of_objects(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o400, exclusive=True)
    assert file.set_attributes(mtime_ns=10**18, mode=0o777, uid=1234).mtime_ns == 10**18
    status = await store.set_attributes("f", mtime_ns=10**18 + 1, mode=0o600)
    assert (status.mtime_ns, status.mode & 0o7777, status.kind) == (10**18 + 1, 0o644, Kind.FILE)
    await store.flush()
    del file
    await store.flush()
    before = await store.stat("f")
    assert await store.set_attributes("f", mtime_ns=10**18, mode=0o600, uid=1, gid=1) == before
