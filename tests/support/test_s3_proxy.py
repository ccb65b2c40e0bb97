"""The proxy against itself: it forwards everything, writes down all of it, and each fault is what it says."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.support.s3_faults import Before, Ignore, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

MIB = 1 << 20


@pytest.fixture
def bucket(s3_bucket: Bucket, s3_proxy: S3Proxy) -> Bucket:
    """The bucket behind the proxy."""
    return s3_bucket.through(s3_proxy.url)


def test_what_fails_meanwhile_fails_the_test(s3_bucket: Bucket) -> None:
    def ask() -> None:
        with S3Proxy(s3_bucket.endpoint_url) as proxy:
            proxy.fail("GetObject", Before(lambda: 1 // 0))
            with pytest.raises(ConnectionClosedError):
                s3_bucket.through(proxy.url).get("a")

    with pytest.raises(ZeroDivisionError):
        ask()


def test_ignored_headers_play_a_server_that_knows_no_conditions(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put("a", b"1")
    rule = s3_proxy.fail("PutObject", Ignore("If-None-Match"), times=None)
    s3_proxy.fail("PutObject", Reply(503, "SlowDown"))
    with pytest.raises(ClientError, match="SlowDown"):
        bucket.put("a", b"2", IfNoneMatch="*")
    bucket.put("a", b"3", IfNoneMatch="*")
    assert (bucket.get("a"), rule.hits) == (b"3", 2)
    assert s3_proxy.log.of("PutObject")[-1].headers["if-none-match"] == "*"
    s3_proxy.heal()
    with pytest.raises(ClientError, match="PreconditionFailed"):
        bucket.put("a", b"4", IfNoneMatch="*")
