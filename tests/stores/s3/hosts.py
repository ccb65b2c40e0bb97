"""Hosts that change the objects of one bucket, each with its own memory of what it saw."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from shardfs.stores.base import Splice, Stat
from shardfs.stores.objects.client import Backoff
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.pace import Timeouts
from shardfs.stores.objects.requests import Counts
from shardfs.stores.objects.versions import ObjectSnapshot
from shardfs.stores.s3.change import Change, Changes
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.probe import HonouredConditions
from shardfs.stores.s3.store import S3Store
from shardfs.stores.s3.uploads import Uploads
from tests.support.opened import in_session, session
from tests.support.s3_server import Bucket

HONOURED: Final = HonouredConditions(put=True, copy=True, complete=True, delete=True)
IGNORED: Final = HonouredConditions(put=False, copy=False, complete=False, delete=False)
PREFIX: Final = "data/x.zarr"

T = TypeVar("T")


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run an asynchronous part of a test, for a bounded time."""

    async def bounded() -> T:
        with trio.fail_after(60):
            return await in_session(function)

    return trio.run(bounded)


class _SessionOfEachRun:
    """A host that goes through several runs, in each of which it is used by one task."""

    def start_soon(self, *task: Any) -> None:
        session().start_soon(*task)


@dataclass
class Host:
    """One host; keys are those of a store below PREFIX."""

    changes: Changes
    reader: S3Store
    counts: Counts
    directory: Path

    @property
    def client(self) -> S3Client:
        return self.changes.objects.client

    async def found(self, key: str) -> ObjectSnapshot | None:
        """The object as a change finds it."""
        return None if await self.reader.is_absent(key) else await self.reader.objects.open(key, tail_nbytes=1)

    async def edit(self, key: str) -> Change:
        return self.changes.of(key, await self.found(key))

    async def splice(self, key: str, splice: Splice) -> Stat:
        return await (await self.edit(key)).splice(splice)


def host(
    bucket: Bucket,
    directory: Path,
    *,
    conditions: HonouredConditions = HONOURED,
    single_writer: bool = False,
    silence: float = 10.0,
    attempts: int = 6,
) -> Host:
    """Begin a host whose files are in *directory*, with no waits between attempts."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = Counts()
    client = S3Client(
        S3Location(bucket.name, PREFIX),
        S3Options(endpoint_url=bucket.endpoint_url),
        counts,
        timeouts=Timeouts(silence=silence, work=silence),
        backoff=Backoff(attempts=attempts, pause=lambda seconds: None),
    )
    reader = S3Store(client, _SessionOfEachRun())  # type: ignore[arg-type]
    reader.heads.keep_properties()
    changes = Changes(reader.objects, Uploads(client, conditions, str(directory)), single_writer)
    return Host(changes, reader, counts, directory)
