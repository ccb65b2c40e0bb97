"""Buckets behind servers that lie, break off or never end, by every protocol: an error, and never wrong bytes."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shardfs.dataset.hierarchy import Source, open_source
from shardfs.errors import AccessDeniedError, NotFoundError, ShardfsError, SourceError, StaleError, StoreError
from shardfs.stores.clouds.azure import AzureService
from shardfs.stores.clouds.google import GoogleService
from shardfs.stores.objects.client import Client
from shardfs.stores.objects.heads import Absent, FoundObject, Heads, KnownDirectory
from shardfs.stores.objects.location import CloudLocation, S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.requests import Counts, ListPage, Range
from shardfs.stores.s3.client import S3Client
from shardfs.stores.url import StoreOptions
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths
from tests.stores.clouds.test_web import write_group
from tests.support.opened import in_trio
from tests.support.web_server import MOST_NBYTES, Web, web_server

pytestmark = pytest.mark.slow

KEY = "c29tZSBzZWNyZXQga2V5"
CHUNK, OTHER = "s/1/c/0/0", "s/1/c/1/1"


class Cloud(NamedTuple):
    """A bucket with the image of `write_group`, behind a server that lies as the test says."""

    url: str
    web: Web

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0]


@pytest.fixture(params=["s3", "gs", "az"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    write_group(tmp_path / "files/bucket/image.zarr")
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
        yield Cloud(f"{request.param}://bucket/image.zarr", web)


@asynccontextmanager
async def opened(cloud: Cloud) -> AsyncIterator[tuple[Source, Paths]]:
    async with open_source(cloud.url, StoreOptions()) as source, open_paths(source, TreeOptions()) as paths:
        yield source, paths


def client_of(cloud: Cloud) -> Client:
    if cloud.scheme == "s3":
        return S3Client(S3Location("bucket", "image.zarr"), S3Options(), Counts())
    place = CloudLocation.parse(cloud.url)
    return Client((GoogleService if cloud.scheme == "gs" else AzureService)(place), Counts())


@in_trio
async def test_a_bucket_is_listed_and_read(cloud: Cloud) -> None:
    cloud.web.page = 2
    async with opened(cloud) as (_, paths):
        assert {one.name for one in await paths.names("")} == {"zarr.json", "0", "s", "labels", "beside"}
        assert await paths.read(CHUNK)
        assert {one.name for one in await paths.names("0/c")} == {str(number) for number in range(4)}


LIES = {
    "whole": "whole file|whole object",
    "other range": "range|server gives",
    "no range": "range|server gives",
    "nonsense range": "range|server gives|part",
    "huge": "version|size|range|replaced|Content-Length",
    "longer": "range|more",
    "shorter": "cut short|range|incomplete|truncated",
}


@pytest.mark.parametrize("fault", LIES)
@in_trio
async def test_a_reply_that_is_not_what_was_asked_for_is_an_error(cloud: Cloud, fault: str) -> None:
    async with opened(cloud) as (_, paths):
        await paths.read(CHUNK)
        expected = bytes(await paths.read(OTHER))
    async with opened(cloud) as (_, paths):
        await paths.read(CHUNK)
        cloud.web.asked()
        cloud.web.faults.add(fault)
        with pytest.raises(ShardfsError, match=LIES[fault]):
            await paths.read(OTHER)
        assert len(cloud.web.asked()) < 20
        cloud.web.faults.clear()
        assert bytes(await paths.read(OTHER)) == expected


@in_trio
async def test_a_body_that_breaks_off_is_an_error_or_all_that_was_asked_for(cloud: Cloud) -> None:
    async with opened(cloud) as (_, paths):
        expected = bytes(await paths.read(OTHER))
    async with opened(cloud) as (_, paths):
        await paths.read(CHUNK)
        cloud.web.faults.add("breaks off")
        with suppress(StoreError):
            assert bytes(await paths.read(OTHER)) == expected
        cloud.web.faults.add("shorter")
        with pytest.raises(StoreError):
            await paths.read("s/1/c/1/0")


@in_trio
async def test_a_version_that_changes_with_each_reply_is_never_mixed(cloud: Cloud) -> None:
    async with opened(cloud) as (_, paths):
        expected = bytes(await paths.read(OTHER))
    async with opened(cloud) as (_, paths):
        await paths.read(CHUNK)
        cloud.web.faults.add("changing")
        cloud.web.conditions = False
        cloud.web.asked()
        with suppress(StaleError):  # unless index and chunk came in one reply
            assert bytes(await paths.read(OTHER)) == expected
        assert 0 < len(cloud.web.asked()) < 20


class Everything(set[str]):
    """All paths."""

    def __contains__(self, path: object) -> bool:
        return True


def refuse(web: Web) -> None:
    web.refused = Everything()


def fail(web: Web) -> None:
    web.failures, web.failing = 10**9, 500


@pytest.mark.parametrize(
    ("stop", "error", "reason", "most"),
    [(refuse, AccessDeniedError, None, 9), (fail, StoreError, r"500|fail|error", 19)],
    ids=["refuses everything", "fails for ever"],
)
@in_trio
async def test_a_server_that_answers_nothing_any_more_is_given_up(
    cloud: Cloud, stop: Callable[[Web], None], error: type[ShardfsError], reason: str | None, most: int
) -> None:
    async with opened(cloud) as (_, paths):
        await paths.read(CHUNK)
        cloud.web.asked()
        stop(cloud.web)
        with pytest.raises(error, match=reason):
            await paths.read("0/c/0/0")
        assert len(cloud.web.asked()) <= most
    with pytest.raises(SourceError):
        async with opened(cloud):
            pass


@in_trio
async def test_a_404_that_is_not_in_the_words_of_the_service_is_no_absence(cloud: Cloud) -> None:
    client = client_of(cloud)
    for fault in ("404 of a proxy", "404 of a proxy to GET"):
        cloud.web.faults.add(fault)
        for key in ("zarr.json", "nothing"):
            with pytest.raises((StoreError, NotFoundError)) as failed:
                await client.get(key, Range(0, 10))
            is_known = key == "nothing" and fault == "404 of a proxy to GET" and cloud.scheme != "az"
            assert isinstance(failed.value, NotFoundError) == is_known, (fault, key)
        if fault == "404 of a proxy":
            with pytest.raises(StoreError, match=r"does not exist|not Azure"):
                await client.head("zarr.json")
        cloud.web.faults.clear()
    with pytest.raises(NotFoundError):
        await client.get("nothing", Range(0, 10))


@in_trio
async def test_of_a_whole_object_without_end_no_more_is_read_than_a_connection_holds(cloud: Cloud) -> None:
    client = client_of(cloud)
    cloud.web.faults.add("whole")
    cloud.web.endless.add(200)
    with pytest.raises(StoreError, match="whole"):
        await client.get("zarr.json", Range(0, 10))
    assert 0 < cloud.web.nsent < MOST_NBYTES // 4


ENDLESS = ("same page", "page after page", "empty pages")


@pytest.mark.parametrize("fault", ENDLESS)
@in_trio
async def test_a_listing_without_end_is_an_error_and_its_requests_end(cloud: Cloud, fault: str) -> None:
    heads = Heads(client_of(cloud), ttl=0)
    cloud.web.page = 2
    cloud.web.faults.add(fault)
    with pytest.raises(StoreError, match=r"cannot be listed|lists"):
        await heads.list("0")
    cloud.web.faults.clear()
    cloud.web.asked()
    assert set((await heads.list("0")).names) == {"c", "zarr.json"}
    assert len(cloud.web.asked()) < 5


@in_trio
async def test_empty_pages_without_end_do_not_tell_that_nothing_is_there(cloud: Cloud) -> None:
    client = client_of(cloud)
    cloud.web.faults.add("empty pages")
    with pytest.raises(StoreError, match=r"cannot be listed|lists"):
        await Heads(client, ttl=0).list("0")


@in_trio
async def test_a_name_is_not_absent_because_a_page_is_empty_of_which_others_follow(cloud: Cloud) -> None:
    """As Azure gives them where another machine goes on, and S3 where keys were removed."""
    client = client_of(cloud)
    list_page = client.list_page

    async def late(prefix: str, *, token: str | None = None, **options: Any) -> ListPage:
        begun = None if token is not None and token.endswith("empty") else token
        if begun is None and token != "eeempty":
            return ListPage([], [], f"e{token or 'mpty'}")
        return await list_page(prefix, token=begun, **options)

    client.list_page = late  # type: ignore[method-assign]
    heads = Heads(client, ttl=0)
    assert isinstance(await heads.stored("zarr.json"), FoundObject)
    assert isinstance(await heads.stored("0"), KnownDirectory)
    assert isinstance(await heads.stored("nothing"), Absent)


NO_LISTINGS = ("page of HTML", "JSON", "half of a listing", "huge sizes", "negative sizes", "no times", "entities")


@pytest.mark.parametrize("fault", [*NO_LISTINGS, "compressed listing"])
@in_trio
async def test_a_reply_that_is_no_listing_is_an_error(cloud: Cloud, fault: str) -> None:
    async with opened(cloud) as (source, _):
        cloud.web.faults.add(fault)
        with pytest.raises(StoreError):
            await source.store.list("0")


@in_trio
async def test_names_outside_of_the_directory_that_is_listed_are_dropped(cloud: Cloud) -> None:
    async with opened(cloud) as (source, _):
        cloud.web.faults.add("outside")
        assert {entry.name for entry in await source.store.list("0")} == {"c", "zarr.json"}


@in_trio
async def test_names_that_no_file_system_has_are_hidden(cloud: Cloud) -> None:
    async with opened(cloud) as (source, _):
        cloud.web.faults.add("odd")
        assert {entry.name for entry in await source.store.list("0")} == {"c", "zarr.json"}


@in_trio
async def test_a_redirect_to_another_host_is_followed_as_the_docs_warn_and_gets_no_signature(
    cloud: Cloud, tmp_path: Path
) -> None:
    shard = "image.zarr/s/1/c/0/0"
    async with opened(cloud) as (_, paths):
        expected = bytes(await paths.read(CHUNK))
    (tmp_path / "other").mkdir()
    (cloud.web.root / "bucket" / shard).rename(tmp_path / "other/shard")
    with web_server(tmp_path / "other") as other:
        cloud.web.moved[f"/bucket/{shard}"] = f"{other.url.replace('127.0.0.1', 'localhost')}/shard"
        async with opened(cloud) as (_, paths):
            assert bytes(await paths.read(CHUNK)) == expected
        assert other.log
        assert not other.signed
        assert {method for method, _, _ in other.log} <= {"GET", "HEAD"}
