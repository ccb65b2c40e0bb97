"""The client behind a proxy that breaks what it should: what is sent again, what is not, and what is said."""

import logging
from functools import partial

import pytest
import trio

from shardfs.errors import ConflictError, NotFoundError, ShardfsError, StoreError, UnknownOutcomeError, UnreachableError
from shardfs.stores.s3.requests import Condition, Range
from shardfs.stores.s3.session import Session
from tests.stores.s3.clients import HASTY, PLAIN, WHOLE, Memory, Tried, client_of, run
from tests.support.s3_faults import Hang, HangMidBody, Ignore, LostReply, LostRequest, Reply, Truncated
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

MIB = 2**20
ABSENT = Condition(None)
PASSING = [
    Reply(500, "InternalError"),
    Reply(502, "BadGateway"),
    Reply(503, "SlowDown"),
    Reply(503, "ServiceUnavailable"),
    Reply(504, "GatewayTimeout"),
    Reply(429, "TooManyRequests"),
    Reply(400, "RequestTimeout"),
    Reply(400, "ThrottlingException"),
    LostRequest(),
    LostReply(),
]
ids = pytest.mark.parametrize("key", ["plain", "not//plain"])


@pytest.fixture
def bucket(s3_bucket: Bucket, s3_proxy: S3Proxy) -> Bucket:
    return s3_bucket.through(s3_proxy.url)


@pytest.fixture
def tried(bucket: Bucket) -> Tried:
    return client_of(bucket)


@pytest.fixture
def hasty(bucket: Bucket) -> Tried:
    return client_of(bucket, timeouts=HASTY)


@ids
def test_a_read_is_sent_again_until_all_of_it_came(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, key: str
) -> None:
    data = bytes(range(256)) * (MIB // 256)
    s3_bucket.put(key, data)
    for fault in (*PASSING, Truncated(0), Truncated(MIB - 1)):
        tried.begin()
        s3_proxy.log.clear()
        s3_proxy.fail("GetObject", fault, times=3)
        assert bytes(run(partial(tried.client.get, key, Range(-2 * MIB, 2 * MIB))).data) == data, fault
        assert tried.pauses == [0.1, 0.2, 0.4][key == "plain" :], f"{fault}: boto3 is asked at once"
        assert tried.counts.requests == s3_proxy.log.operations() == {"GetObject": 4}, fault
        assert (tried.counts.retries, tried.counts.bytes_received) == (3, MIB), fault


WITH_A_BODY = ["ListObjectsV2", "CreateMultipartUpload", "UploadPartCopy", "ListMultipartUploads"]
WITHOUT = ["PutObject", "UploadPart", "AbortMultipartUpload", "DeleteObject"]


@pytest.mark.slow
def test_what_changes_nothing_or_the_same_twice_is_sent_again(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried
) -> None:
    async def main() -> None:
        client = tried.client
        await client.put("key", Memory(b"x" * (2 * MIB)), PLAIN)
        await client.list_page("")
        upload = await client.create_upload("key", PLAIN)
        await client.copy_part("key", upload, 1, Range(0, 5), condition=Condition(s3_bucket.etag("key")))
        await client.upload_part("key", upload, 2, Memory(b"y" * (2 * MIB)))
        await client.list_uploads("")
        await client.abort_upload("key", upload)
        await client.head("key")
        await client.delete("copy")

    for fault, operations in (
        *[(fault, [*WITH_A_BODY, *WITHOUT]) for fault in PASSING],
        *[(fault, ["HeadObject"]) for fault in PASSING if not isinstance(fault, Reply) or fault.status != 400],
        (Truncated(20), WITH_A_BODY),
        (Reply(200, "InternalError"), ["UploadPartCopy"]),
    ):
        for operation in operations:
            s3_proxy.fail(operation, fault)
        tried.begin()
        s3_proxy.log.clear()
        trio.run(main)
        assert tried.counts.requests == s3_proxy.log.operations(), fault
        assert tried.counts.retries == len(operations), fault
        assert s3_bucket.objects() == {"key": b"x" * (2 * MIB)}
        s3_bucket.delete("key")


def test_after_six_attempts_one_error_says_what_failed(
    s3_proxy: S3Proxy, tried: Tried, caplog: pytest.LogCaptureFixture, bucket: Bucket
) -> None:
    s3_proxy.fail("GetObject", Reply(503, "SlowDown"), times=None)
    with pytest.raises(StoreError, match=f"GetObject of s3://{bucket.name}/a\\\\nb failed 6 times: SlowDown 503"):
        run(partial(tried.client.get, "a\nb", WHOLE))
    assert tried.pauses == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert tried.counts.requests == s3_proxy.log.operations() == {"GetObject": 6}
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("shardfs")]
    assert lines == [
        f"GetObject of s3://{bucket.name}/a\\nb: SlowDown 503; trying again ({number} of 6)" for number in range(2, 7)
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def _put(client_: Tried, condition: Condition | None) -> None:
    await client_.client.put("key", Memory(b"new"), PLAIN, condition=condition)


async def _put_large(client_: Tried, condition: Condition | None) -> None:
    await client_.client.put("key", Memory(b"n" * (3 * MIB)), PLAIN, condition=condition)


async def _delete(client_: Tried, condition: Condition | None) -> None:
    await client_.client.delete("key", condition=condition)


async def _complete(client_: Tried, condition: Condition | None) -> None:
    upload = await client_.client.create_upload("key", PLAIN)
    part = await client_.client.upload_part("key", upload, 1, Memory(b"new"))
    await client_.client.complete_upload("key", upload, [part], condition=condition)


CHANGES = [
    pytest.param(_put, "PutObject", id="put"),
    pytest.param(_put_large, "PutObject", id="put-large"),
    pytest.param(_delete, "DeleteObject", id="delete"),
    pytest.param(_complete, "CompleteMultipartUpload", id="complete"),
]
conditional_changes = pytest.mark.parametrize(("change", "operation"), CHANGES)


@conditional_changes
def test_a_conditional_change_without_a_reply_is_sent_once_and_its_outcome_is_unknown(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, change: object, operation: str
) -> None:
    for fault in (
        *[Reply(500, "InternalError"), Reply(502, "BadGateway"), Reply(504, "GatewayTimeout"), LostRequest()],
        *[LostReply(), Reply(500, "InternalError", forwarded=True)],
    ):
        etag = s3_bucket.put("key", b"old")
        tried.begin()
        s3_proxy.log.clear()
        s3_proxy.fail(operation, fault)
        with pytest.raises(UnknownOutcomeError, match=f"{operation} of s3://{s3_bucket.name}/key: .*may have been"):
            run(partial(change, tried, Condition(etag)))
        assert s3_proxy.log.operations()[operation] == tried.counts.requests[operation] == 1, fault
        assert (tried.counts.retries, tried.counts.conflicts, tried.pauses) == (0, 0, []), fault
        changed = s3_bucket.keys() != ["key"] or s3_bucket.get("key") != b"old"
        assert changed == (isinstance(fault, LostReply) or (isinstance(fault, Reply) and fault.forwarded)), fault


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("InternalError", UnknownOutcomeError),
        ("SlowDown", UnknownOutcomeError),
        ("PreconditionFailed", ConflictError),
        ("NoSuchUpload", ConflictError),
    ],
)
def test_an_error_in_a_reply_of_success_is_an_error(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, code: str, error: type[ShardfsError]
) -> None:
    etag = s3_bucket.put("key", b"old")
    s3_proxy.fail("CompleteMultipartUpload", Reply(200, code))
    with pytest.raises(error):
        run(partial(_complete, tried, Condition(etag)))
    assert tried.counts.requests["CompleteMultipartUpload"] == 1


@ids
def test_a_server_that_ignores_conditions_of_reads_is_noticed(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, key: str
) -> None:
    old = s3_bucket.put(key, b"old")
    s3_bucket.put(key, b"new")
    s3_proxy.fail(None, Ignore("If-Match"), times=None)
    with pytest.raises(ConflictError):
        run(partial(tried.client.get, key, Range(0, 2), etag=old))
    s3_bucket.put(key, b"")  # what is asked for is behind the end of that, so HEAD answers
    with pytest.raises(ConflictError):
        run(partial(tried.client.get, key, Range(0, 2), etag=old))


@ids
@pytest.mark.parametrize("code", ["", "404 page not found", "NotFound"])
def test_a_404_that_is_not_in_the_words_of_s3_is_no_absence(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, key: str, code: str
) -> None:
    s3_proxy.fail("GetObject", Reply(404, code), times=None)
    with pytest.raises(NotFoundError):
        run(partial(tried.client.get, key, WHOLE))
    assert s3_proxy.log.operations() == {"GetObject": 1 + (key == "plain"), "HeadObject": 1, "HeadBucket": 1}
    s3_bucket.put(key, b"data")
    with pytest.raises(StoreError, match="does not give what the object has"):
        run(partial(tried.client.get, key, WHOLE))
    s3_bucket.delete(key)
    s3_proxy.fail("HeadBucket", Reply(404, code))
    with pytest.raises(StoreError, match=r"bucket .* does not exist"):
        run(partial(tried.client.get, key, WHOLE))


def test_a_read_is_abandoned_when_it_is_cancelled(s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried) -> None:
    s3_bucket.put("key", b"x")
    fault = Hang()
    rule = s3_proxy.fail("GetObject", fault)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tried.client.get, "key", WHOLE)
            await trio.to_thread.run_sync(rule.wait)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert s3_proxy.log.of("GetObject")[0].status is None
    fault.release()


def test_a_change_is_finished_when_it_is_cancelled(s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried) -> None:
    fault = Hang()
    rule = s3_proxy.fail("PutObject", fault)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tried.client.put, "key", Memory(b"x"), PLAIN)
            await trio.to_thread.run_sync(rule.wait)
            nursery.cancel_scope.cancel()
            fault.release()

    trio.run(main)
    assert s3_bucket.get("key") == b"x"


@ids
@pytest.mark.parametrize("nbytes", [None, 0, 100])
def test_a_server_that_stays_silent_is_given_up_after_the_second_time(
    s3_bucket: Bucket, s3_proxy: S3Proxy, hasty: Tried, key: str, nbytes: int | None
) -> None:
    s3_bucket.put(key, b"x" * MIB)
    fault = Hang() if nbytes is None else HangMidBody(nbytes)
    s3_proxy.fail("GetObject", fault, times=None)
    with pytest.raises(UnreachableError, match="failed 2 times: no answer in time"):
        run(partial(hasty.client.get, key, WHOLE))
    assert hasty.counts.requests == {"GetObject": 2}
    fault.release()


@pytest.mark.parametrize("token", [None, "the same"])
def test_a_listing_that_never_ends_is_an_error(
    tried: Tried, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    reply = {"IsTruncated": True, "NextContinuationToken": token}
    monkeypatch.setattr(Session, "call", lambda *_, **__: reply)
    with pytest.raises(StoreError, match="lists only some of the keys"):
        run(partial(tried.client.list_page, "", token=token))
