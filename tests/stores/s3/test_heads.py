"""Directories from listings: each name once, each page once, and only what a file system can show."""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import pytest
import trio

from shardfs.errors import NotFoundError, StoreError
from shardfs.stores.base import Kind, ListedName
from shardfs.stores.objects.heads import (
    Absent,
    Directories,
    FoundObject,
    Heads,
    Known,
    KnownDirectory,
    NoObject,
    Unknown,
)
from shardfs.stores.objects.requests import ListPage, ObjectStat
from shardfs.stores.s3.store import S3Store
from shardfs.stores.ttl import begin_request
from tests.stores.s3.clients import client_of
from tests.support.fake_s3 import FakeS3
from tests.support.opened import in_session, session
from tests.support.s3_faults import Changed
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_reading import LATENCY, TTL, lists, on_mock_clock, reader_of
from tests.support.s3_server import Bucket

FILE, DIRECTORY = Kind.FILE, Kind.DIRECTORY


def bucket(*keys: str, **options: int) -> FakeS3:
    fake = FakeS3(latency=LATENCY, **options)
    for key in keys:
        fake.store(key, key.encode())
    return fake


async def names(store: S3Store, key: str) -> list[ListedName]:
    return sorted(await store.list(key))


@on_mock_clock
async def test_names_that_no_file_system_can_show_are_hidden_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    fake = bucket("a//b", "./x", "../y", "a/..", "n\0ul", "ok", "//z", ".hidden", "...")
    store = reader_of(fake)
    with caplog.at_level(logging.WARNING):
        assert await names(store, "") == [
            ListedName("...", FILE),
            ListedName(".hidden", FILE),
            ListedName("a", DIRECTORY),
            ListedName("ok", FILE),
        ]
        assert await names(store, "a") == []
    assert len(caplog.messages) == 1
    fake.take_log()
    for key in ("a//b", "./x", "a/..", "n\0ul"):
        with pytest.raises(NotFoundError):
            await store.stat(key)
        with pytest.raises(NotFoundError):
            await store.open(key)
    assert fake.take_log() == []


@on_mock_clock
async def test_a_listing_goes_on_when_the_one_who_began_it_is_cancelled() -> None:
    fake = bucket(*(f"f{i}" for i in range(6)), page_size=2)
    store = reader_of(fake)
    found: list[int] = []

    async def begin() -> None:
        with trio.move_on_after(1.5 * LATENCY):
            await store.list("")

    async def ask() -> None:
        found.append(len(await store.list("")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        await trio.sleep(LATENCY / 2)
        nursery.start_soon(ask)
        await trio.sleep(1.5 * LATENCY)
        nursery.start_soon(ask)
    assert found == [6, 6]
    assert fake.take_log() == lists("") * 4  # the second page was cancelled


@on_mock_clock
async def test_names_that_are_expected_take_one_request_together_unless_their_directory_is_long() -> None:
    fake = bucket("short/a", "short/b", *(f"long/{number}" for number in range(4)), page_size=3)
    store = reader_of(fake)
    for directory, taken in (("short", 0), ("long", 2), ("absent", 0)):
        for _ in range(2):
            await store.expect_names(directory)
        assert fake.take_log() == lists(f"{directory}/")
        for name in ("info", "zarr.json"):
            with pytest.raises(NotFoundError):
                await store.open(f"{directory}/{name}", head_nbytes=1)
        assert len(fake.take_log()) == taken
    await trio.sleep(TTL)
    await store.expect_names("short")
    assert fake.take_log() == lists("short/")


@on_mock_clock
async def test_nothing_is_listed_that_is_known_to_be_absent() -> None:
    fake = bucket("a")
    store = reader_of(fake)
    await store.list("")
    fake.take_log()
    await store.expect_names("absent")
    await store.expect_names("absent/below")
    assert fake.take_log() == []


async def _by_request(store: S3Store, key: str) -> None:
    with suppress(NotFoundError):
        await store.heads.head(key)


async def _by_name(store: S3Store, key: str) -> None:
    await store.heads.stored(key)


async def _by_listing(store: S3Store, key: str) -> None:
    await store.heads.list("")


_FOUND: Final[Known] = FoundObject(ObjectStat(0, "", 0))  # whichever version


@pytest.mark.parametrize(
    ("requests", "both", "file", "directory", "missing"),
    [
        ([], Unknown(), Unknown(), Unknown(), Unknown()),
        ([_by_request], _FOUND, _FOUND, NoObject(), NoObject()),
        ([_by_name], KnownDirectory(), _FOUND, KnownDirectory(), Absent()),
        ([_by_listing], KnownDirectory(), _FOUND, KnownDirectory(), Absent()),
        ([_by_request, _by_name], _FOUND, _FOUND, KnownDirectory(), Absent()),
        ([_by_request, _by_listing], KnownDirectory(), _FOUND, KnownDirectory(), Absent()),
        ([_by_name, _by_request], KnownDirectory(), _FOUND, KnownDirectory(), Absent()),
        ([_by_listing, _by_request], KnownDirectory(), _FOUND, KnownDirectory(), Absent()),
    ],
)
@on_mock_clock
async def test_each_kind_of_request_tells_what_it_can_and_no_more(
    requests: list[Callable[[S3Store, str], Awaitable[None]]],
    both: Known,
    file: Known,
    directory: Known,
    missing: Known,
) -> None:
    fake = bucket("both", "both/x", "file", "directory/x")
    for key, expected in (("both", both), ("file", file), ("directory", directory), ("missing", missing)):
        store = reader_of(fake)
        for request in requests:
            await request(store, key)
        known = store.heads.find(key)
        assert (_FOUND if isinstance(known, FoundObject) else known) == expected


@on_mock_clock
async def test_keys_below_an_object_are_not_taken_for_missing() -> None:
    store = reader_of(bucket("a", "a/x"))
    assert (await store.open("a")).size == 1  # nobody has seen that it is a directory
    assert (await store.open("a/x")).size == 3
    assert not await store.is_absent("a/x")


@on_mock_clock
async def test_our_own_changes_correct_what_was_listed() -> None:
    fake = bucket("a/x", "a/y")
    store = reader_of(fake)
    await store.list("")
    await store.list("a")
    fake.take_log()
    store.heads.changed("a/x", None)
    store.heads.changed("a/new", ObjectStat(7, '"e"', 1))
    store.heads.changed("b/c/d", ObjectStat(8, '"f"', 1))
    assert await names(store, "a") == [ListedName("new", FILE), ListedName("y", FILE)]
    assert await names(store, "") == [ListedName("a", DIRECTORY), ListedName("b", DIRECTORY)]
    assert (await store.stat("b/c")).kind is DIRECTORY
    assert (await store.stat("a/new")).size == 7
    assert await store.is_absent("a/x")
    assert fake.take_log() == []


@on_mock_clock
async def test_our_own_change_while_a_listing_is_on_its_way_is_not_lost() -> None:
    fake = bucket("a", "b", "c", page_size=1)
    store = reader_of(fake)

    async def change() -> None:
        await trio.sleep(1.5 * LATENCY)
        store.heads.changed("a", None)
        store.heads.changed("new", ObjectStat(7, '"e"', 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        assert await names(store, "") == [ListedName("b", FILE), ListedName("c", FILE), ListedName("new", FILE)]
    assert (await store.stat("new")).size == 7


@on_mock_clock
async def test_the_names_that_are_kept_are_bounded() -> None:
    fake = bucket(*(f"{directory}/{i}" for directory in "abc" for i in range(4)))
    heads = Heads(fake.client, ttl=TTL, clock=trio.current_time, max_names=10)
    for key in "abac":
        await heads.list(key)
    heads.changed("a/new", ObjectStat(1, '"e"', 1))
    fake.take_log()
    assert sorted((await heads.list("a")).names) == ["0", "1", "2", "3", "new"]
    await heads.list("c")
    assert fake.take_log() == []
    await heads.list("b")
    assert fake.take_log() == lists("b/")
    for number in range(30):  # that there are no names is known too
        await heads.list(f"none{number}")
    assert len(heads._listings) <= 10


@on_mock_clock
async def test_a_listing_of_far_too_many_names_is_an_error() -> None:
    fake = bucket(*(f"d/{i}" for i in range(31)), *(f"e/{i}" for i in range(30)))
    heads = Heads(fake.client, ttl=TTL, clock=trio.current_time, max_names=3)
    assert len((await heads.list("e")).names) == 30
    with pytest.raises(StoreError, match="/d cannot be listed: it has more names than 30"):
        await heads.list("d")


@on_mock_clock
async def test_names_that_are_forgotten_one_by_one_take_no_memory_in_the_end() -> None:
    fake = bucket("d/a")
    heads = Heads(fake.client, ttl=TTL, clock=trio.current_time)
    await heads.list("d")
    for number in range(5000):
        heads.forget(f"d/{number}")
    assert sum(len(listing.doubtful) for listing in heads._listings.values()) <= 1000
    fake.take_log()
    assert list((await heads.list("d")).names) == ["a"]
    assert fake.take_log() == lists("d/")


def test_directories_without_anything_in_them_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardfs.stores.objects.heads._MAX_DIRECTORIES", 10)
    directories = Directories()
    for number in range(30):
        directories.add_with_parents(f"d/{number}")
        directories.add_with_parents(f"d/{number}")
    assert len([*directories.children("d")]) in (9, 10)
    assert "d/29" in directories
    for number in range(30):
        directories.discard(f"d/{number}")
    assert not [*directories.children("d")]


@on_mock_clock
async def test_what_another_host_made_is_found_once_it_was_forgotten_though_its_directory_was_not_there() -> None:
    fake = bucket("x")
    store = reader_of(fake)
    await store.list("")
    fake.store("a/b/c", b"1")
    with pytest.raises(NotFoundError):
        await store.open("a/b/c")
    store.forget("a/b/c")
    assert (await store.open("a/b/c")).size == 1
    assert (await store.stat("a")).kind is Kind.DIRECTORY


def _delay_replies(fake: FakeS3) -> None:
    """Let replies be on their way for a second."""
    for name in ("head", "list_page"):
        setattr(fake, name, _late(getattr(fake, name)))


def _late(ask: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    async def late(*args: object, **options: object) -> object:
        try:
            return await ask(*args, **options)
        finally:
            await trio.sleep(1)

    return late


@pytest.mark.parametrize(
    ("request_", "asked", "replaced", "was_there"),
    [
        (_by_request, "k", "k", True),
        (_by_name, "k", "k", True),
        (_by_name, "k", "k", False),
        (_by_listing, "", "k", True),
        (_by_listing, "", "k", False),
        (_by_name, "d", "d/k", False),
        (_by_listing, "", "d/k", False),
    ],
)
@on_mock_clock
async def test_a_reply_that_was_on_its_way_when_its_key_was_forgotten_is_not_believed(
    request_: Callable[[S3Store, str], Awaitable[None]], asked: str, replaced: str, was_there: bool
) -> None:
    fake = bucket(*[replaced] * was_there, "other")
    _delay_replies(fake)
    store = reader_of(fake)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(request_, store, asked)
        await trio.sleep(0.5)
        fake.store(replaced, b"of another host")
        store.forget(replaced)
    assert (await store.stat(replaced)).size == 15


@pytest.mark.parametrize("is_ours", [False, True])
@on_mock_clock
async def test_a_name_forgotten_while_later_pages_are_missing_is_asked_for_again(*, is_ours: bool) -> None:
    fake = bucket("d/a", "d/b", "d/c", page_size=1)
    store = reader_of(fake)
    found: list[list[ListedName]] = []

    async def ask() -> None:
        found.append(await names(store, "d"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(1.5 * LATENCY)
        if is_ours:
            store.heads.changed("d/a", fake.store("d/a", b"ours"))
        fake.store("d/a", b"of another host")
        fake.store("d/0", b"of another host")
        store.forget("d/a")
        store.forget("d/0")
        nursery.start_soon(ask)
    assert (await store.stat("d/a")).size == 15
    assert found[1] == [ListedName(name, FILE) for name in ("0", "a", "b", "c")]


@on_mock_clock
async def test_a_directory_forgotten_while_its_listing_is_on_its_way_is_listed_again() -> None:
    fake = bucket("d/a", "d/b", page_size=1)
    store = reader_of(fake)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.list, "d")
        await trio.sleep(1.5 * LATENCY)
        fake.store("d/0", b"of another host")
        store.forget("d")
    assert await names(store, "d") == [ListedName(name, FILE) for name in ("0", "a", "b")]


def test_a_request_does_not_believe_a_listing_that_began_before_it() -> None:
    async def main() -> None:
        fake = FakeS3(latency=0.1)
        fake.store("d/k", b"k")
        store = reader_of(fake, ttl=0, clock=time.monotonic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.list, "d")
            await trio.sleep(0.01)
            begin_request()
            await store.list("d")  # on its way already
            await store.list("d")
            await store.list("d")
        assert fake.take_log() == lists("d/", "d/")

    trio.run(in_session, main)


@on_mock_clock
async def test_a_lookup_takes_two_requests_however_many_names_come_before_the_keys_below() -> None:
    fake = bucket("a", *(f"a.{i:03}" for i in range(100)), "a/x", "b", *(f"b.{i:03}" for i in range(100)))
    store = reader_of(fake)
    for key, kind in (("a", DIRECTORY), ("b", FILE)):
        assert (await store.stat(key)).kind is kind
        assert len(fake.take_log()) <= 2
    with pytest.raises(NotFoundError):
        await store.stat("c")
    assert len(fake.take_log()) <= 2


class Endless:
    """A server that says of each page that more follow, and how to get them."""

    def __init__(self, body: Callable[[bytes], bytes]) -> None:
        self.count = 0
        self._body = body
        self._first = b""

    def __call__(self, _: dict[str, str], body: bytes) -> bytes:
        self._first = self._first or self._body(body)
        self.count += 1
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>" % self.count
        return self._first.replace(b"<IsTruncated>false</IsTruncated>", more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words", "nrequests"),
    [
        (lambda body: body, "the same keys again and again", 2),
        (lambda body: re.sub(rb"<Contents>.*</Contents>", b"", body), "empty pages without end", 101),
    ],
    ids=["same", "empty"],
)
def test_a_listing_without_progress_is_an_error_and_ends(
    s3_bucket: Bucket, s3_proxy: S3Proxy, body: Callable[[bytes], bytes], words: str, nrequests: int
) -> None:
    s3_bucket.put("some/key", b"x")
    s3_bucket.put("some/other", b"x")
    endless = Endless(body)
    s3_proxy.fail("ListObjectsV2", Changed(endless), times=None)

    async def main() -> None:
        store = S3Store(client_of(s3_bucket.through(s3_proxy.url)).client, session())
        with pytest.raises(StoreError, match=rf"/some cannot be listed: the server gives {words}"):
            await store.list("some")
        assert endless.count == nrequests
        s3_proxy.heal()
        assert {entry.name for entry in await store.list("some")} == {"key", "other"}

    trio.run(in_session, main)


@on_mock_clock
async def test_empty_pages_before_others_are_passed_over() -> None:
    fake = bucket("a", "b")
    pages = [ListPage([], [], str(number)) for number in range(5)]
    whole = await fake.list_page("")

    async def list_page(*_: object, **__: object) -> ListPage:
        return pages.pop() if pages else whole

    fake.list_page = list_page  # type: ignore[method-assign]
    assert len(await reader_of(fake).list("")) == 2
