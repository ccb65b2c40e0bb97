"""Clients for tests, which do not wait between attempts."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from shardfs.stores.objects.client import Backoff
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.pace import Timeouts
from shardfs.stores.objects.requests import Counts, Properties, Range
from shardfs.stores.s3.client import S3Client
from tests.support.s3_server import Bucket

T = TypeVar("T")

PLAIN = Properties()
WHOLE = Range(0, 2**21)
"""A range that objects of tests are within."""

HASTY = Timeouts(connect=5, silence=0.3, work=0.3)
PATIENT = Timeouts()


@dataclass
class Memory:
    """Content in memory, which notes what was read of it."""

    data: bytes
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, nbytes: int) -> bytes:
        assert offset + nbytes <= len(self.data)
        self.reads.append((offset, nbytes))
        return self.data[offset : offset + nbytes]


@dataclass
class Tried:
    """A client, what it counts, and for how long it would have waited between attempts."""

    client: S3Client
    counts: Counts
    pauses: list[float]

    def begin(self) -> None:
        """Count from nothing again."""
        self.counts.__init__()  # type: ignore[misc]
        self.pauses.clear()


def client_of(bucket: Bucket, *, timeouts: Timeouts = PATIENT, **options: object) -> Tried:
    """A client of *bucket* that always takes the longest of the pauses it may choose from, in no time."""
    counts, pauses = Counts(), []
    backoff = Backoff(pause=pauses.append, jitter=max)
    full = S3Options(**{"endpoint_url": bucket.endpoint_url, **options})
    return Tried(
        S3Client(S3Location(bucket.name, ""), full, counts, timeouts=timeouts, backoff=backoff), counts, pauses
    )


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run one call of a client."""
    return trio.run(function)
