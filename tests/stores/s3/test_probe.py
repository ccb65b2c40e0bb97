"""An endpoint is tried before several hosts rely on it, and nothing is left there."""

from contextlib import suppress
from pathlib import Path

import pytest

from shardfs.errors import SourceError
from shardfs.stores.base import is_reserved
from shardfs.stores.s3.probe import HonouredConditions, probe
from tests.stores.s3.hosts import Host, host, run
from tests.support.s3_faults import Ignore, LostReply, NoETag, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

pytestmark = pytest.mark.slow


@pytest.fixture
def here(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path) -> Host:
    return host(s3_bucket.through(s3_proxy.url), tmp_path)


def probed(one: Host) -> HonouredConditions:
    return run(lambda: probe(one.client))


def nothing_is_left(bucket: Bucket, one: Host) -> bool:
    return not bucket.keys() and not bucket.uploads()


def test_an_endpoint_that_honours_conditions_is_found_out(s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy) -> None:
    conditions = probed(here)
    assert conditions.put
    assert conditions.copy
    assert conditions.complete
    assert conditions.is_safe
    assert s3_proxy.log.operations() == {
        "PutObject": 4,
        "CreateMultipartUpload": 1,
        "UploadPartCopy": 2,
        "CompleteMultipartUpload": 2,
        "DeleteObject": 2,
    }
    assert not any("x-amz-copy-source-range" in request.headers for request in s3_proxy.log)  # of a small object
    assert nothing_is_left(s3_bucket, here)
    (key,) = {request.key for request in s3_proxy.log}
    assert key.startswith("data/x.zarr/.shardfs-probe-")
    assert is_reserved(key.rpartition("/")[2])


def test_an_endpoint_that_ignores_conditions_is_found_out(unconditional_bucket: Bucket, tmp_path: Path) -> None:
    one = host(unconditional_bucket, tmp_path)
    conditions = probed(one)
    assert not conditions.copy
    assert not conditions.complete
    assert not conditions.is_safe
    assert nothing_is_left(unconditional_bucket, one)


CONDITIONS = [
    ("PutObject", "if-match", "put"),
    ("PutObject", "if-none-match", "put"),
    ("UploadPartCopy", "x-amz-copy-source-if-match", "copy"),
    ("CompleteMultipartUpload", "if-match", "complete"),
    ("DeleteObject", "if-match", "delete"),
]


@pytest.mark.parametrize(
    ("operation", "header", "name", "how"),
    [
        (*condition, how)
        for condition in CONDITIONS
        for how in ("ignored", "refused", "unknown")
        if (condition[1], how) != ("if-none-match", "refused")  # nothing can be written there
    ],
)
def test_each_condition_that_is_not_honoured_is_found_out(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, operation: str, header: str, name: str, how: str
) -> None:
    faults = {
        "ignored": Ignore(header),
        "refused": Reply(412, "PreconditionFailed"),  # also if it holds
        "unknown": Reply(501, "NotImplemented"),
    }
    s3_proxy.fail(lambda request: request.operation == operation and header in request.headers, faults[how], times=None)
    conditions = probed(here)
    assert not getattr(conditions, name)
    assert all(getattr(conditions, other) for other in ("put", "copy", "complete") if other != name)
    assert nothing_is_left(s3_bucket, here)


def test_an_endpoint_that_completes_an_upload_whatever_the_condition_and_tells_no_etag_is_found_out(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy
) -> None:
    s3_proxy.fail("CompleteMultipartUpload", Ignore("if-match"))
    s3_proxy.fail("CompleteMultipartUpload", NoETag())
    conditions = probed(here)
    assert (conditions.put, conditions.copy, conditions.complete) == (True, True, False)
    assert nothing_is_left(s3_bucket, here)


@pytest.mark.parametrize(
    "operation", ["PutObject", "CreateMultipartUpload", "UploadPartCopy", "CompleteMultipartUpload", "DeleteObject"]
)
def test_a_lost_reply_does_not_mislead(s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, operation: str) -> None:
    """It may be an error, as the request may have been carried out, and never a wrong answer."""
    s3_proxy.fail(operation, LostReply())
    with suppress(SourceError):
        assert probed(here).is_safe
    assert not s3_bucket.keys()


def test_whoever_may_not_delete_may_write(s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy) -> None:
    s3_proxy.fail("DeleteObject", Reply(403, "AccessDenied"), times=None)
    conditions = probed(here)
    assert conditions.is_safe
    assert not conditions.delete
