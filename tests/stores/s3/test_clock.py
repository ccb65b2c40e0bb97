"""The time on the server: what own changes have, so that no later reply makes a modification time go back."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

import pytest
import trio

from shardfs.stores.objects.requests import Properties
from shardfs.stores.s3.client import ServerClock
from tests.stores.s3.test_client import Memory, client_of
from tests.support.s3_faults import Changed
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


def date(ns: int) -> str:
    return format_datetime(datetime.fromtimestamp(ns // SECOND, UTC), usegmt=True)


def test_the_time_on_the_server_is_in_whole_seconds_whatever_the_local_clock_says() -> None:
    local = NOW + 700_000_000
    clock = ServerClock(lambda: local)
    assert clock.now_ns() == NOW
    for ahead in (0, 86_400, -86_400, 20, 3):  # either clock may be set at any time
        for fraction in (0, 300_000_000, 900_000_000):
            server = local + ahead * SECOND + fraction
            clock.note(date(server))
            assert server - SECOND < clock.now_ns() <= server
            assert clock.now_ns() % SECOND == 0


@pytest.mark.parametrize("header", [None, "", "yesterday", "Mon, 99 Foo 9999 99:99:99 GMT"])
def test_a_reply_without_a_date_says_nothing(header: str | None) -> None:
    clock = ServerClock(lambda: NOW)
    clock.note(header)
    assert clock.now_ns() == NOW


@pytest.mark.slow
def test_what_is_stored_has_the_time_of_the_server_at_once(s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    """The server is a day ahead; the time of an object is, to a second, what a later request says."""

    def later(headers: dict[str, str], body: bytes) -> bytes:
        for name in ("date", "last-modified"):
            if name in headers:
                headers[name] = format_datetime(parsedate_to_datetime(headers[name]) + timedelta(days=1), usegmt=True)
        return body

    for operation in ("PutObject", "HeadObject"):
        s3_proxy.fail(operation, Changed(later), times=None)
    client = client_of(s3_bucket.through(s3_proxy.url)).client

    async def main() -> None:
        await client.put("key", Memory(b"data"), Properties())
        shown = client.clock.now_ns()
        stored = (await client.head("key")).stat.mtime_ns
        assert shown % SECOND == 0
        assert abs(shown - stored) <= SECOND

    trio.run(main)
