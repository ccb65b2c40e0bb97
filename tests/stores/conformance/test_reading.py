"""What every reader of remote objects does, by the protocols of S3, Google, Azure, and of web servers."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from shardfs.errors import (
    ConflictError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    StaleError,
    StoreError,
    UnsupportedError,
)
from shardfs.stores.base import Kind
from shardfs.stores.clouds.azure import AzureService
from shardfs.stores.clouds.google import GoogleService
from shardfs.stores.clouds.store import CloudBucketStore, WebFiles
from shardfs.stores.clouds.web import WebClient, WebService
from shardfs.stores.objects.client import Backoff, Client
from shardfs.stores.objects.location import CloudLocation, S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.requests import Counts, Range
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import Condition
from shardfs.stores.s3.store import S3Store
from tests.stores.s3.clients import PLAIN, Memory
from tests.support.opened import in_trio, session
from tests.support.web_server import MOST_NBYTES, Web, web_server

pytestmark = pytest.mark.slow

KEY = "c29tZSBzZWNyZXQga2V5"
SCHEMES = ["s3", "gs", "az", "http"]
QUICK = Backoff(pause=lambda seconds: None)

Reads = S3Store | CloudBucketStore | WebFiles


class Remote(NamedTuple):
    """A source with `zarr.json`, `d/f` and `d/e/g`, behind a server that lies as a test says."""

    scheme: str
    web: Web

    @property
    def files(self) -> Path:
        return self.web.root / "bucket/data.zarr"

    def client(self) -> S3Client | Client:
        """A client that does not wait between attempts."""
        match self.scheme:
            case "s3":
                return S3Client(S3Location("bucket", "data.zarr"), S3Options(), Counts(), backoff=QUICK)
            case "http":
                place = CloudLocation.parse(f"{self.web.url}/bucket/data.zarr")
                return WebClient(WebService(place), Counts(), backoff=QUICK)
            case scheme:
                place = CloudLocation.parse(f"{scheme}://bucket/data.zarr")
                return Client((GoogleService if scheme == "gs" else AzureService)(place), Counts(), backoff=QUICK)

    def opened(self) -> Reads:
        match self.client():
            case S3Client() as client:
                return S3Store(client, session())
            case WebClient() as client:
                return WebFiles(client, session())
            case client:
                return CloudBucketStore(client, session())


@pytest.fixture(params=SCHEMES)
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    files = tmp_path / "files/bucket/data.zarr"
    (files / "d/e").mkdir(parents=True)
    for name, data in {"zarr.json": b"{}", "d/f": b"0123456789", "d/e/g": b"g"}.items():
        (files / name).write_bytes(data)
    with web_server(tmp_path / "files") as web:
        settings = {
            "AWS_ENDPOINT_URL": web.url,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": "us-east-1",
            "GOOGLE_BASE_URL": web.url,
            "GOOGLE_SKIP_SIGNATURE": "true",
            "AZURE_STORAGE_ENDPOINT": web.url,
            "AZURE_STORAGE_ACCOUNT_NAME": "somebody",
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield Remote(request.param, web)


@in_trio
async def test_names_have_states(remote: Remote) -> None:
    store = remote.opened()
    assert (await store.fresh("d/f")).size == 10
    assert [await store.is_absent(key) for key in ("d/f", "d/nothing")] == [False, True]
    with pytest.raises(NotFoundError):
        await store.fresh("d/nothing")
    if isinstance(store, WebFiles):
        with pytest.raises(UnsupportedError):
            await store.list("d")
        return
    stats = [await store.stat(key) for key in ("", "d", "d/e", "d/f")]
    assert [stat.kind for stat in stats] == [Kind.DIRECTORY] * 3 + [Kind.FILE]
    for missing in ("nothing", "d/nothing", "d/f/g", "nothing/f"):
        with pytest.raises(NotFoundError):
            await store.stat(missing)
    assert {entry.name: entry.kind for entry in await store.list("d")} == {"e": Kind.DIRECTORY, "f": Kind.FILE}
    with pytest.raises(NotFoundError):
        await store.list("nothing")
    with pytest.raises(NotADirectoryHereError):
        await store.list("d/f")
    listed = await store.stat_in("d", ["e", "nothing", "f"])
    assert [stat and stat.kind for stat in listed] == [Kind.DIRECTORY, None, Kind.FILE]
    assert listed[2] == await store.stat("d/f") == (await store.open("d/f")).stat


@in_trio
async def test_ranges_are_read_exactly(remote: Remote) -> None:
    for hints in ({}, {"head_nbytes": 4}, {"tail_nbytes": 4}, {"tail_nbytes": 100}):
        snapshot = await remote.opened().open("d/f", **hints)
        assert snapshot.size == snapshot.stat.size == 10
        snapshot.expect(0, 10)
        assert bytes(await snapshot.read(3, 4)) == b"3456"
        assert bytes(await snapshot.read(0, 10)) == b"0123456789"
        assert bytes(await snapshot.read(10, 0)) == b""
        part = snapshot.content(2, 5)
        assert bytes(await trio.to_thread.run_sync(part.read, 1, 3)) == b"345"


@in_trio
async def test_a_range_is_what_the_object_has_of_it(remote: Remote) -> None:
    client = remote.client()
    (remote.files / "empty").write_bytes(b"")
    etag = (await client.head("d/f")).stat.etag
    for part, offset, data in (
        (Range(8, 10), 8, b"89"),
        (Range(-4, 4), 6, b"6789"),
        (Range(-40, 40), 0, b"0123456789"),
        (Range(10, 1), 10, b""),
        (Range(100, 7), 10, b""),
    ):
        fetched = await client.get("d/f", part, etag=etag)
        assert (fetched.offset, bytes(fetched.data), fetched.stat.size) == (offset, data, 10), part
    for part in (Range(0, 5), Range(-5, 5)):
        assert (await client.get("empty", part)).data.nbytes == 0
    with pytest.raises(ConflictError):
        await client.get("d/f", Range(0, 1), etag='"another"')


@in_trio
async def test_a_version_that_is_replaced_is_stale_and_never_mixed(remote: Remote) -> None:
    store = remote.opened()
    snapshot, content = await store.open("d/f"), (await store.open("d/f")).content(0, 10)
    assert await snapshot.is_current()
    (remote.files / "d/f").write_bytes(b"ABCDEFGHIJ")
    os.utime(remote.files / "d/f", (2e9, 2e9))
    with pytest.raises(StaleError):
        await snapshot.read(2, 4)
    with pytest.raises(StaleError):
        await trio.to_thread.run_sync(content.read, 2, 4)
    assert not await snapshot.is_current()
    again = await store.open("d/f")
    assert bytes(await again.read(0, 10)) == b"ABCDEFGHIJ"
    assert again.stat.version != snapshot.stat.version


@in_trio
async def test_a_failure_that_passes_is_repeated_and_one_that_stays_is_named(remote: Remote) -> None:
    client = remote.client()
    remote.web.failures = 2
    assert bytes((await client.get("d/f", Range(0, 3))).data) == b"012"
    assert client.counts.retries == 2
    remote.web.failures, remote.web.failing = 10**6, 500
    remote.web.asked()
    with pytest.raises(StoreError, match=r"GetObject of .*d/f failed 6 times: .*500"):
        await client.get("d/f", Range(0, 3))
    assert len(remote.web.asked()) == 6


@asynccontextmanager
async def bounded(web: Web) -> AsyncIterator[None]:
    """The block ends soon, and reads no more of bodies without end than connections hold."""
    web.nsent = 0
    with trio.fail_after(30):
        yield
    assert 0 < web.nsent < MOST_NBYTES // 4


@pytest.mark.parametrize("status", [200, 302, 401, 403, 404, 416, 500])
@in_trio
async def test_a_reply_that_states_a_terabyte_ends_no_process(remote: Remote, status: int) -> None:
    """Nothing is allocated by it, whether it is a success or an error."""
    client, web = remote.client(), remote.web
    web.endless.add(status)
    web.absent = status
    if status == 200:
        web.faults.add("whole")
    async with bounded(web):
        with pytest.raises(ShardfsError):
            await client.get("d/f" if status == 200 else "nothing", Range(0, 10))
    web.endless.clear()
    web.faults.clear()
    assert bytes((await client.get("d/f", Range(0, 3))).data) == b"012"


@pytest.mark.parametrize("status", [200, 403, 500])
@in_trio
async def test_a_listing_that_states_a_terabyte_ends_no_process(remote: Remote, status: int) -> None:
    if remote.scheme == "http":
        with pytest.raises(UnsupportedError):
            await remote.client().list_page("d/")
        return
    client, web = remote.client(), remote.web
    web.endless.add(status)
    if status != 200:
        web.failures, web.failing = 10**6, status
    async with bounded(web):
        with pytest.raises(ShardfsError):
            await client.list_page("d/")


@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.parametrize("status", [200, 403, 500])
@in_trio
async def test_the_reply_to_a_change_that_states_a_terabyte_ends_no_process(remote: Remote, status: int) -> None:
    client, web = remote.client(), remote.web
    assert isinstance(client, S3Client)
    web.endless.add(status)
    web.failing = status
    for change in (
        partial(client.put, "new", Memory(b"x"), PLAIN, condition=Condition(None)),
        partial(client.create_upload, "new", PLAIN),
    ):
        async with bounded(web):
            with pytest.raises(ShardfsError):
                await change()
