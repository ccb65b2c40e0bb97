"""The client behind a proxy that breaks what it should: what is sent again, what is not, and what is said."""

import gzip
import logging
from functools import partial

import pytest
import trio

from shardfs.errors import ConflictError, NotFoundError, ShardfsError, StoreError, UnknownOutcomeError, UnreachableError
from shardfs.stores.objects.client import Backoff
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.pace import Timeouts
from shardfs.stores.objects.requests import Counts, ListPage, Range
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import Condition
from shardfs.stores.s3.service import S3Service
from tests.stores.s3.clients import HASTY, PLAIN, WHOLE, Memory, Tried, client_of, run
from tests.support.s3_faults import (
    Changed,
    Drip,
    Fault,
    Hang,
    HangMidBody,
    Ignore,
    LostReply,
    LostRequest,
    Reply,
    Truncated,
)
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

pytestmark = pytest.mark.slow

MIB = 2**20
ABSENT = Condition(None)
TRANSIENT = [
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


def of_libcurl(fault: Fault) -> int:
    """How many repetitions are libcurl's own: one, if a kept connection is closed before anything came."""
    return isinstance(fault, LostRequest | LostReply)


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
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    data = bytes(range(256)) * (MIB // 256)
    s3_bucket.put(key, data)
    for fault in (*TRANSIENT, Truncated(0), Truncated(MIB - 1)):
        tried.begin()
        s3_proxy.log.clear()
        s3_proxy.fail("GetObject", fault, times=3)
        assert bytes(run(partial(tried.client.get, key, Range(-2 * MIB, 2 * MIB))).data) == data, fault
        assert s3_proxy.log.operations() == {"GetObject": 4}, fault
        nretries = 3 - of_libcurl(fault)
        assert tried.pauses == [0.1, 0.2, 0.4][:nretries], fault
        assert tried.counts.requests == {"GetObject": 4}, fault
        assert (tried.counts.retries, tried.counts.bytes_received) == (nretries, MIB), fault
        words = f"GetObject of s3://{s3_bucket.name}/{key}: sent again, as its connection was closed"
        assert caplog.messages.count(words) == of_libcurl(fault), fault
        caplog.clear()


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
        *[(fault, [*WITH_A_BODY, *WITHOUT]) for fault in TRANSIENT],
        *[(fault, ["HeadObject"]) for fault in TRANSIENT if not isinstance(fault, Reply) or fault.status != 400],
        (Truncated(20), WITH_A_BODY),
        (Reply(200, "InternalError"), ["UploadPartCopy"]),
    ):
        for operation in operations:
            s3_proxy.fail(operation, fault)
        tried.begin()
        s3_proxy.log.clear()
        trio.run(main)
        nresent = of_libcurl(fault) * len({"ListObjectsV2", "HeadObject"}.intersection(operations))
        assert tried.counts.requests.total() == s3_proxy.log.operations().total(), fault
        assert tried.counts.retries == len(operations) - nresent, fault
        assert s3_bucket.objects() == {"key": b"x" * (2 * MIB)}
        s3_bucket.delete("key")


def test_after_six_attempts_one_error_says_what_failed(
    s3_proxy: S3Proxy, tried: Tried, caplog: pytest.LogCaptureFixture, bucket: Bucket
) -> None:
    s3_proxy.fail("GetObject", Reply(500, "InternalError"), times=None)
    with pytest.raises(StoreError, match=f"GetObject of s3://{bucket.name}/a\\\\nb failed 6 times: InternalError 500"):
        run(partial(tried.client.get, "a\nb", WHOLE))
    assert tried.pauses == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert tried.counts.requests == s3_proxy.log.operations() == {"GetObject": 6}
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("shardfs")]
    what = f"GetObject of s3://{bucket.name}/a\\nb: InternalError 500"
    assert lines == [f"{what}; trying again ({number} of 6)" for number in range(2, 7)]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("operation", ["GetObject", "PutObject"])
def test_a_server_that_asks_for_fewer_requests_is_asked_for_30_seconds(
    s3_proxy: S3Proxy, tried: Tried, operation: str
) -> None:
    rule = s3_proxy.fail(operation, Reply(503, "SlowDown"), times=None)

    async def get() -> None:
        await tried.client.get("a\nb", WHOLE)

    with pytest.raises(StoreError, match=r"failed 12 times: SlowDown 503"):
        run(get if operation == "GetObject" else partial(_put, tried, ABSENT))
    assert sum(tried.pauses) == pytest.approx(30.0)
    assert max(tried.pauses) == 5.0
    assert (tried.counts.retries, tried.counts.requests) == (11, {operation: 12})
    assert rule.hits == 12


def test_waiting_for_a_server_that_asks_for_fewer_requests_ends_with_its_task(
    s3_bucket: Bucket, s3_proxy: S3Proxy, bucket: Bucket
) -> None:
    options = S3Options(endpoint_url=bucket.endpoint_url)
    slow = Backoff(first=1e6, most=1e6, patience=1e6, jitter=max)
    client = S3Client(S3Location(bucket.name, ""), options, Counts(), backoff=slow)
    rule = s3_proxy.fail("PutObject", Reply(503, "SlowDown"), times=None)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.put, "key", Memory(b"x"), PLAIN)
            await trio.to_thread.run_sync(rule.wait)
            nursery.cancel_scope.cancel()

    run(main)
    assert s3_bucket.keys() == []


def test_the_waits_of_requests_for_a_server_that_stays_silent_do_not_add_up(
    s3_bucket: Bucket, s3_proxy: S3Proxy, bucket: Bucket
) -> None:
    """The second request is sent once, and not by the library that would wait as long as the first."""
    s3_bucket.put("key", b"x")
    options = S3Options(endpoint_url=bucket.endpoint_url)
    timeouts = Timeouts(reading=0.5, doubtful=0.1)
    client = S3Client(S3Location(bucket.name, ""), options, Counts(), timeouts=timeouts, backoff=Backoff(patience=0.9))
    hang = Hang()
    s3_proxy.fail(None, hang, times=None)
    for count in (2, 3, 4):
        with pytest.raises(UnreachableError, match="no answer in time"):
            run(partial(client.get, "key", WHOLE))
        assert client.counts.requests == {"GetObject": count}
    hang.release()
    s3_proxy.heal()
    assert bytes(run(partial(client.get, "key", WHOLE)).data) == b"x"
    hang = Hang()
    rule = s3_proxy.fail(None, hang, times=1)
    assert bytes(run(partial(client.get, "key", WHOLE)).data) == b"x", "a reply has ended the trouble"
    assert rule.hits == 1
    hang.release()


@pytest.mark.parametrize(
    ("operation", "fault", "field"),
    [
        ("HeadObject", Changed.header("Content-Length", None), "Content-Length"),
        ("HeadObject", Changed.header("Content-Length", "many"), "Content-Length"),
        ("HeadObject", Changed.header("Last-Modified", None), "Last-Modified"),
        ("HeadObject", Changed.header("Last-Modified", "yesterday"), "Last-Modified"),
        ("HeadObject", Changed.header("ETag", None), "ETag"),
        ("GetObject", Changed.header("Last-Modified", "yesterday"), "Last-Modified"),
        ("GetObject", Changed.header("ETag", None), "ETag"),
        ("ListObjectsV2", Changed.body(b"<Size>1<", b"<Size>one<"), "Size"),
        ("ListObjectsV2", Changed.body(b"<Size>1<", b"<Size>-1<"), "Size"),
        ("ListObjectsV2", Changed.body(b"<Size>1</Size>", b""), "Size"),
        ("ListObjectsV2", Changed.body(b"<Key>key</Key>", b""), "Key"),
        ("ListObjectsV2", Changed.body(b"LastModified>", b"LastChanged>"), "LastModified"),
        ("ListObjectsV2", Changed.body(b"<LastModified>", b"<LastModified>x"), "LastModified"),
        ("ListObjectsV2", Changed.body(b"ETag>", b"Tag>"), "ETag"),
        ("ListObjectsV2", Changed.body(b"<Prefix>below/</Prefix>", b""), "Prefix"),
        ("PutObject", Changed.header("ETag", None), "ETag"),
        ("UploadPart", Changed.header("ETag", None), "ETag"),
        ("CreateMultipartUpload", Changed.body(b"UploadId>", b"Id>"), "UploadId"),
        ("UploadPartCopy", Changed.body(b"ETag>", b"Tag>"), "ETag"),
    ],
)
def test_a_field_of_a_reply_that_is_missing_or_makes_no_sense_is_named(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, operation: str, fault: Changed, field: str
) -> None:
    s3_bucket.put("key", b"x")
    s3_bucket.put("below/key", b"x")
    client = tried.client

    async def use() -> None:
        await client.head("key")
        await client.get("key", WHOLE)
        await client.list_page("")
        await client.put("new", Memory(b"y"), PLAIN)
        upload = await client.create_upload("other", PLAIN)
        await client.upload_part("other", upload, 1, Memory(b"z"))
        await client.copy_part("other", upload, 2, None, condition=None, source="key")

    s3_proxy.fail(operation, fault, times=None)
    with pytest.raises(StoreError, match=f"{operation} of .* failed 6 times: the reply has no valid {field}"):
        run(use)


def test_a_conditional_change_whose_reply_has_no_etag_has_an_unknown_outcome(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried
) -> None:
    s3_proxy.fail("PutObject", Changed.header("ETag", None), times=None)
    with pytest.raises(UnknownOutcomeError, match="no valid ETag"):
        run(partial(_put, tried, ABSENT))
    assert s3_proxy.log.operations() == {"PutObject": 1}


def _gzip(headers: dict[str, str], body: bytes) -> bytes:
    headers["content-encoding"] = "gzip"
    return gzip.compress(body)


@pytest.mark.parametrize(
    ("operation", "fault", "words"),
    [
        ("ListObjectsV2", Changed(_gzip), r"the reply is compressed \(Content-Encoding\); .*proxy that compresses"),
        ("GetObject", Changed.header("ETag", 'W/"abc"'), r"the reply has a weak ETag \(W/…\).*proxy that compresses"),
        ("HeadObject", Changed.header("ETag", 'W/"abc"'), r"the reply has a weak ETag \(W/…\).*proxy that compresses"),
    ],
)
def test_a_proxy_that_compresses_is_recognised_at_once(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tried: Tried, operation: str, fault: Changed, words: str
) -> None:
    s3_bucket.put("key", b"x")

    async def use() -> None:
        await tried.client.head("key")
        await tried.client.get("key", WHOLE)
        await tried.client.list_page("")

    s3_proxy.fail(operation, fault, times=None)
    with pytest.raises(StoreError, match=f"{operation} of .*: {words}"):
        run(use)
    assert s3_proxy.log.operations()[operation] <= 2
    assert tried.pauses == []


def test_an_object_that_is_stored_compressed_is_read_as_it_is(s3_bucket: Bucket, tried: Tried) -> None:
    data = gzip.compress(b"x" * 1000)
    for key in ("plain", "not//plain"):
        s3_bucket.put(key, data, ContentEncoding="gzip")
        assert bytes(run(partial(tried.client.get, key, WHOLE)).data) == data
        assert run(partial(tried.client.head, key)).stat.size == len(data)


@ids
def test_a_body_that_comes_byte_by_byte_is_given_up(
    s3_bucket: Bucket, s3_proxy: S3Proxy, bucket: Bucket, key: str
) -> None:
    s3_bucket.put(key, b"x" * 1000)
    tried = client_of(bucket, timeouts=Timeouts(grace=0.3, rate=1e6))
    s3_proxy.fail("GetObject", Drip(0.01), times=None)
    with pytest.raises(UnreachableError, match=r"failed [23] times: the reply comes too slowly"):
        run(partial(tried.client.get, key, WHOLE))
    s3_proxy.heal()
    s3_proxy.fail("ListObjectsV2", Drip(0.01), times=None)
    with pytest.raises(UnreachableError, match="failed 2 times: the reply comes too slowly"):
        run(partial(tried.client.list_page, ""))
    s3_proxy.heal()
    assert bytes(run(partial(tried.client.get, key, WHOLE)).data) == b"x" * 1000


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
    assert s3_proxy.log.operations() == {"GetObject": 1, "HeadObject": 1, "HeadBucket": 1}
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
    monkeypatch.setattr(S3Service, "list_page", lambda *_: ListPage((), (), token or ""))
    with pytest.raises(StoreError, match="lists only some of the keys"):
        run(partial(tried.client.list_page, "", token=token))
