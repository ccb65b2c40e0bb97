"""S3 sources on a bucket in memory and a clock that jumps: what a test of reading needs."""

from functools import partial
from typing import Any

import numpy as np
import trio

from shardfs.stores.s3.store import S3Store
from tests.support.fake_s3 import FakeS3, Request
from tests.support.opened import in_trio, session

TTL = 60.0
LATENCY = 0.02


on_mock_clock = partial(in_trio, jump_after=0.01)


def reader_of(fake: FakeS3, *, prefix: str = "", **options: Any) -> S3Store:
    """Open *prefix* of the bucket, on trio's clock."""
    options = {"ttl": TTL, "clock": trio.current_time} | options
    return S3Store(fake.client_at(prefix), session(), **options)


def get(key: str, start: int, stop: int, etag: str | None) -> Request:
    """The request for the bytes from *start* to before *stop*."""
    return Request("GetObject", key, f"{start}-{stop - 1}", etag)


def lists(*prefixes: str) -> list[Request]:
    return [Request("ListObjectsV2", prefix) for prefix in prefixes]


def pattern(nbytes: int, seed: int = 0) -> bytes:
    """Bytes no two ranges of which are alike, of some length."""
    numbers = np.arange(-(-nbytes // 4), dtype="u8") * 2654435761 + seed
    return numbers.astype("<u4").tobytes()[:nbytes]
