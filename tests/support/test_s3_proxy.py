"""The proxy against itself: it forwards everything, writes down all of it, and each fault is what it says."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from tests.support.mounting import environment
from tests.support.s3_faults import (
    Before,
    Hang,
    HangMidBody,
    Ignore,
    LostReply,
    LostRequest,
    Reply,
    Then,
    Truncated,
)
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, Bucket

MIB = 1 << 20


@pytest.fixture
def bucket(s3_bucket: Bucket, s3_proxy: S3Proxy) -> Bucket:
    """The bucket behind the proxy."""
    return s3_bucket.through(s3_proxy.url)


@pytest.fixture
def hasty(bucket: Bucket) -> Any:
    """A client that waits for half a second at most."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=0.5, response_checksum_validation="when_required")
    return boto3.client(
        "s3",
        endpoint_url=bucket.endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=config,
    )


def test_what_goes_through_is_what_was_sent(bucket: Bucket, s3_bucket: Bucket) -> None:
    for key, data in {"empty": b"", "a/b c+%25?&ü": b"x" * 5, "large": bytes(range(256)) * (8 * MIB // 256)}.items():
        bucket.put(key, data, Metadata={"name": "value"}, ContentType="application/x-test")
        assert s3_bucket.get(key) == bucket.get(key) == data
        head = bucket.head(key)
        assert (head["ContentLength"], head["Metadata"]) == (len(data), {"name": "value"})
        assert head["ContentType"] == "application/x-test"
    assert bucket.keys() == s3_bucket.keys() == ["a/b c+%25?&ü", "empty", "large"]


def test_the_log_has_every_request_with_its_operation(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    etag = bucket.put("a/b", b"content", IfNoneMatch="*")
    bucket.client.get_object(Bucket=bucket.name, Key="a/b", Range="bytes=-3", IfMatch=etag)["Body"].read()
    bucket.head("a/b")
    bucket.keys("a/")
    bucket.client.copy_object(Bucket=bucket.name, Key="c", CopySource={"Bucket": bucket.name, "Key": "a/b"})
    upload = bucket.client.create_multipart_upload(Bucket=bucket.name, Key="m")["UploadId"]
    part = {"Bucket": bucket.name, "Key": "m", "UploadId": upload}
    bucket.client.upload_part_copy(
        **part, PartNumber=1, CopySource=f"{bucket.name}/a/b", CopySourceIfMatch=etag, CopySourceRange="bytes=0-3"
    )
    second = bucket.client.upload_part(**part, PartNumber=2, Body=b"more")["ETag"]
    parts = bucket.client.list_parts(**part)["Parts"]
    assert parts[1]["ETag"] == second
    numbers = [{"ETag": row["ETag"], "PartNumber": row["PartNumber"]} for row in parts]
    assert bucket.uploads() == ["m"]
    bucket.client.complete_multipart_upload(**part, MultipartUpload={"Parts": numbers}, IfNoneMatch="*")
    bucket.client.abort_multipart_upload(
        Bucket=bucket.name,
        Key="n",
        UploadId=bucket.client.create_multipart_upload(Bucket=bucket.name, Key="n")["UploadId"],
    )
    bucket.delete("c")
    log = s3_proxy.log
    assert [request.operation for request in log] == [
        "PutObject",
        "GetObject",
        "HeadObject",
        "ListObjectsV2",
        "CopyObject",
        "CreateMultipartUpload",
        "UploadPartCopy",
        "UploadPart",
        "ListParts",
        "ListMultipartUploads",
        "CompleteMultipartUpload",
        "CreateMultipartUpload",
        "AbortMultipartUpload",
        "DeleteObject",
    ]
    put, get, head, listed, *_ = log
    assert (put.method, put.bucket, put.key, put.status) == ("PUT", bucket.name, "a/b", 200)
    assert (put.headers["if-none-match"], put.bytes_in, put.bytes_out) == ("*", 7, 0)
    assert (get.range, get.headers["if-match"], get.status, get.bytes_out) == ("bytes=-3", etag, 206, 3)
    assert (head.status, head.bytes_out) == (200, 0)
    assert (listed.key, listed.query["prefix"]) == ("", "a/")
    (copy,) = log.of("UploadPartCopy")
    assert copy.headers["x-amz-copy-source"].removeprefix("/") == f"{bucket.name}/a/b"
    assert copy.headers["x-amz-copy-source-range"] == "bytes=0-3"
    assert copy.headers["x-amz-copy-source-if-match"] == etag
    assert copy.query["partNumber"] == "1"
    assert log.operations()["CreateMultipartUpload"] == 2
    assert log.keys("GetObject", "UploadPart") == ["a/b", "m"]
    assert log.max_in_flight() == 1
    assert all(request.finished and request.started < request.finished for request in log)
    log.clear()
    assert list(log) == []


def test_a_misspelled_operation_is_noticed(s3_proxy: S3Proxy) -> None:
    with pytest.raises(AssertionError, match="GetObjects"):
        s3_proxy.log.of("GetObjects")
    with pytest.raises(AssertionError, match="GetObjects"):
        s3_proxy.fail("GetObjects", LostReply())


def test_latency_lets_concurrent_requests_overlap(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put("a", b"x")
    s3_proxy.log.clear()
    s3_proxy.latency = 0.3
    began = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(bucket.get, ["a"] * 8)) == [b"x"] * 8
    assert time.perf_counter() - began >= 0.3
    assert s3_proxy.log.max_in_flight("GetObject") == 8


def test_a_reply_in_place_of_the_servers(bucket: Bucket, s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    s3_bucket.put("a", b"old")
    rule = s3_proxy.fail("PutObject", Reply(503, "SlowDown"), key="a", times=2, after=1)
    bucket.put("a", b"1")
    for _ in range(2):
        with pytest.raises(ClientError, match="SlowDown"):
            bucket.put("a", b"2")
    assert (s3_bucket.get("a"), rule.hits) == (b"1", 2)
    assert [request.status for request in s3_proxy.log.of("PutObject")] == [200, 503, 503]
    bucket.put("a", b"3")
    bucket.put("b", b"3")
    s3_proxy.fail("PutObject", Reply(500, "InternalError", forwarded=True))
    with pytest.raises(ClientError, match="InternalError"):
        bucket.put("a", b"4")
    assert s3_bucket.get("a") == b"4"


def test_a_reply_to_head_has_no_body_and_may_have_headers(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    s3_proxy.fail("HeadBucket", Reply(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"}), times=None)
    with pytest.raises(ClientError) as error:
        bucket.client.head_bucket(Bucket=bucket.name)
    assert error.value.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-bucket-region"] == "eu-west-1"
    bucket.put("a", b"1")


def test_lost_requests_do_not_reach_the_server_and_lost_replies_do(
    bucket: Bucket, s3_bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    s3_proxy.fail("PutObject", LostRequest(), key="a")
    with pytest.raises(ConnectionClosedError):
        bucket.put("a", b"1")
    assert s3_bucket.keys() == []
    s3_proxy.fail("PutObject", LostReply(), key="a")
    with pytest.raises(ConnectionClosedError):
        bucket.put("a", b"2")
    assert s3_bucket.objects() == {"a": b"2"}
    assert [request.status for request in s3_proxy.log] == [None, None]


def test_what_happens_before_and_after_the_server_answers(bucket: Bucket, s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    etag = s3_bucket.put("a", b"0")
    s3_proxy.fail("PutObject", Before(lambda: s3_bucket.put("a", b"1")))
    with pytest.raises(ClientError, match="PreconditionFailed"):
        bucket.put("a", b"2", IfMatch=etag)
    seen = []
    s3_proxy.fail("PutObject", Then(lambda: seen.append(s3_bucket.get("a"))))
    with pytest.raises(ConnectionClosedError):
        bucket.put("a", b"3", IfMatch=s3_bucket.etag("a"))
    assert seen == [b"3"]


def test_what_fails_meanwhile_fails_the_test(s3_bucket: Bucket) -> None:
    def ask() -> None:
        with S3Proxy(s3_bucket.endpoint_url) as proxy:
            proxy.fail("GetObject", Before(lambda: 1 // 0))
            with pytest.raises(ConnectionClosedError):
                s3_bucket.through(proxy.url).get("a")

    with pytest.raises(ZeroDivisionError):
        ask()


def test_truncated_bodies_have_the_length_of_the_whole(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put("a", b"x" * 3 * MIB)
    s3_proxy.fail("GetObject", Truncated(2 * MIB))
    body = bucket.client.get_object(Bucket=bucket.name, Key="a")
    assert body["ContentLength"] == 3 * MIB
    with pytest.raises((IncompleteReadError, ResponseStreamingError)):
        body["Body"].read()
    assert s3_proxy.log.bytes_out("GetObject") == 2 * MIB
    assert len(bucket.get("a")) == 3 * MIB


def test_a_request_hangs_until_it_is_released(bucket: Bucket, s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    hang = Hang()
    rule = s3_proxy.fail("PutObject", hang)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(bucket.put, "a", b"1")
        rule.wait()
        s3_proxy.log.wait_for("PutObject")
        assert s3_bucket.keys() == []
        assert s3_proxy.log.of("PutObject")[0].finished is None
        hang.release()
        assert put.result() == s3_bucket.etag("a")


def test_a_client_may_give_up_what_hangs(hasty: Any, bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put("a", b"x" * MIB)
    s3_proxy.fail("GetObject", Hang())
    with pytest.raises(ReadTimeoutError):
        hasty.get_object(Bucket=bucket.name, Key="a")
    s3_proxy.fail("GetObject", HangMidBody(MIB // 2))
    body = hasty.get_object(Bucket=bucket.name, Key="a")["Body"]
    with pytest.raises(ReadTimeoutError):
        body.read()


def test_a_body_that_hangs_goes_on_when_released(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put("a", b"x" * MIB)
    hang = HangMidBody(10)
    s3_proxy.fail("GetObject", hang)
    body = bucket.client.get_object(Bucket=bucket.name, Key="a")["Body"]
    assert body.read(10) == b"x" * 10
    hang.release()
    assert len(body.read()) == MIB - 10


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


def test_a_fault_may_be_for_whatever_a_function_tells(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put("a", b"123")
    s3_proxy.fail(lambda request: request.range == "bytes=0-0", Reply(500, "InternalError"))
    assert bucket.get("a") == b"123"
    assert len(s3_proxy.unused()) == 1
    with pytest.raises(ClientError, match="InternalError"):
        bucket.client.get_object(Bucket=bucket.name, Key="a", Range="bytes=0-0")
    assert s3_proxy.unused() == []


def test_a_server_that_is_down_refuses_connections_and_comes_back(
    hasty: Any, bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    bucket.put("a", b"1")
    rule = s3_proxy.fail("GetObject", Hang())
    broken = []

    def hang() -> None:
        try:
            bucket.get("a")
        except ConnectionClosedError as error:
            broken.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    rule.wait()
    with s3_proxy.down():
        thread.join()
        assert len(broken) == 1
        for _ in range(3):
            with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
                hasty.get_object(Bucket=bucket.name, Key="a")
    assert bucket.get("a") == b"1"


def test_one_connection_serves_more_requests_than_the_server_allows_per_connection(
    bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    bucket.put("a", b"1")
    for _ in range(1100):
        assert bucket.get("a") == b"1"
    assert s3_proxy.log.operations() == {"PutObject": 1, "GetObject": 1100}


def test_the_command_forwards_until_it_is_ended(s3_bucket: Bucket, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.s3_proxy", "--target", s3_bucket.endpoint_url, "--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout
        bucket = s3_bucket.through(process.stdout.readline().strip())
        bucket.put("a", b"1")
        began = time.perf_counter()
        assert bucket.get("a") == b"1"
        assert time.perf_counter() - began >= 0.05
        process.terminate()
        assert process.wait(30) == 0
