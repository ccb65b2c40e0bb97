"""The stores that have to behave alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardfs.stores.base import Store
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.requests import Counts
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.routed import RoutedStore
from shardfs.stores.s3.store import S3Store
from tests.support.opened import session

PREFIX = "data.zarr"
STORES = ["local", "s3"]


@dataclass(frozen=True)
class Subject:
    """A store with nothing in it: *begin* opens it to be changed, *again* opens what is stored then, to be read."""

    name: str
    begin: Callable[[], Awaitable[Store]]
    again: Callable[[Store], Awaitable[Store]]


def local(directory: Path) -> Subject:
    async def begin() -> Store:
        directory.mkdir(parents=True)  # noqa: ASYNC240
        return LocalStore(str(directory))

    async def again(_: Store) -> Store:
        return LocalStore(str(directory))

    return Subject("local", begin, again)


def s3(client: S3Client, directory: Path) -> Subject:
    """A source in a bucket, with local files in *directory*."""

    async def begin() -> Store:
        directory.mkdir(parents=True)  # noqa: ASYNC240
        store = RoutedStore(S3Store(client, session()))
        await store.start_writing(str(directory), ".shardfs/0", single_writer=False)
        return store

    async def again(_: Store) -> Store:
        return RoutedStore(S3Store(client, session()))

    return Subject("s3", begin, again)


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    """Each kind of store."""
    match request.param:
        case "local":
            return local(tmp_path / "source")
        case _:
            bucket = request.getfixturevalue("s3_bucket")
            client = S3Client(S3Location(bucket.name, PREFIX), S3Options(endpoint_url=bucket.endpoint_url), Counts())
            return s3(client, tmp_path / "state")
