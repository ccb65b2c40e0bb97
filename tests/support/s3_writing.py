"""S3 stores that may be changed, on a bucket in memory and a clock that jumps."""

from collections import Counter
from pathlib import Path
from typing import Any

import trio

from shardfs.stores.s3.routed import RoutedStore
from shardfs.stores.s3.store import S3Store
from tests.support.fake_s3 import FakeS3
from tests.support.opened import session

PREFIX = "data.zarr"
TTL = 60.0


def _clock() -> float:
    try:
        return trio.current_time()
    except RuntimeError:  # a file that is closed when the test is over
        return 0.0


def store_of(fake: FakeS3, **options: Any) -> RoutedStore:
    """Open the source below `PREFIX`, on trio's clock."""
    options = {"ttl": TTL, "clock": _clock} | options
    return RoutedStore(S3Store(fake.client_at(PREFIX), session(), **options))


async def writing(fake: FakeS3, directory: Path, **options: Any) -> RoutedStore:
    """Open it to be changed, with its local files in *directory*; the log of requests is empty then."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240
    store = store_of(fake, **options)
    await store.start_writing(str(directory), ".shardfs/0", single_writer=False)
    fake.take_log()
    return store


def objects(fake: FakeS3) -> dict[str, bytes]:
    """What the bucket holds below `PREFIX`."""
    return {key.removeprefix(f"{PREFIX}/"): found.data for key, found in fake.objects.items()}


def changes(fake: FakeS3) -> dict[str, int]:
    """How often each operation that changes something was asked for since the last call."""
    reading = ("GetObject", "HeadObject", "ListObjectsV2", "ListMultipartUploads")
    return dict(Counter(request.operation for request in fake.take_log() if request.operation not in reading))


async def put_file(store: RoutedStore, key: str, data: bytes) -> None:
    """Write a file that passes through, and close it."""
    file = await store.create(key, 0o644, exclusive=False)
    try:
        await file.truncate(0)
        await file.write(0, data)
        await file.flush()
    finally:
        await file.close()


async def text(store: RoutedStore, key: str) -> bytes:
    """Read a file that passes through."""
    file = await store.open_passthrough(key)
    return bytes(await file.read(0, file.stat().size))


async def names(store: RoutedStore, key: str = "") -> set[str]:
    """The names in a directory."""
    return {entry.name for entry in await store.list(key)}
