"""What is made of the words of the libraries, and of the codes of S3."""

import botocore.exceptions as boto
import pytest
from botocore.parsers import ResponseParserError

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NameTooLongError,
    NoSpaceError,
    NotFoundError,
    ShardfsError,
    StoreError,
    UnknownOutcomeError,
    UnreachableError,
    UnsupportedError,
)
from shardfs.stores.objects.failures import SILENT, TRUNCATED, Cause, Failure
from shardfs.stores.objects.requests import Request
from shardfs.stores.s3.failures import explained, of_boto3

ENDPOINT = "https://s3.example.org"
GET = Request("GetObject", "the bucket bucket", "s3://bucket/key")
PUT_IF = Request("PutObject", "the bucket bucket", "s3://bucket/key", is_conditional=True, is_repeatable=False)


def client_error(status: int, code: str, operation: str = "GetObject", **error: str) -> Exception:
    response = {"Error": {"Code": code, **error}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}}
    return boto.ClientError(response, operation)


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (
            boto.EndpointConnectionError(endpoint_url="u", error="[Errno 111] Connection refused"),
            Cause.NOT_SENT,
            "refus",
        ),
        (
            boto.EndpointConnectionError(endpoint_url="u", error="NameResolutionError"),
            Cause.NOT_SENT,
            "name cannot be resolved",
        ),
        (boto.ConnectTimeoutError(endpoint_url="u", error="timed out"), Cause.NOT_SENT, "no answer in time"),
        (boto.ReadTimeoutError(endpoint_url="u"), Cause.NO_REPLY, "no answer in time"),
        (boto.ConnectionClosedError(endpoint_url="u"), Cause.NO_REPLY, "broken"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), Cause.NO_REPLY, "cut short"),
        (boto.SSLError(endpoint_url="u", error="UNEXPECTED_EOF"), Cause.NO_REPLY, "TLS"),
        (ResponseParserError("x"), Cause.NO_REPLY, "the reply is invalid"),
        (boto.UnauthorizedSSOTokenError(), Cause.NO_CREDENTIALS, "aws sso login"),
        (client_error(403, "AccessDenied", "AssumeRole"), Cause.NO_CREDENTIALS, "no credentials"),
        (boto.ParamValidationError(report="x"), Cause.REPLY, "S3 does not accept a name"),
        (client_error(403, "AccessDenied"), Cause.REPLY, "AccessDenied 403"),
        (client_error(403, "Signature=secret"), Cause.REPLY, "status 403"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_boto3_says_becomes_our_words(error: Exception, cause: Cause, words: str) -> None:
    failure = of_boto3(error, ENDPOINT, "us-east-1")
    assert failure.cause is cause
    assert words in failure.reason
    assert "secret" not in failure.reason


def reply(status: int, code: str = "", region: str | None = None) -> Failure:
    return explained(Failure.of_reply(status, code), region, "us-east-1")


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (reply(404, "NoSuchKey"), NotFoundError),
        (reply(404, "NoSuchBucket"), StoreError),
        (reply(403), AccessDeniedError),
        (reply(400, "ExpiredToken"), AccessDeniedError),
        (reply(403, "RequestTimeTooSkewed"), StoreError),
        (reply(400, "KeyTooLongError"), NameTooLongError),
        (reply(507, "XMinioStorageFull"), NoSpaceError),
        (reply(501, "NotImplemented"), UnsupportedError),
        (reply(412), ConflictError),
        (reply(404, "NoSuchUpload"), ConflictError),
        (reply(301), StoreError),
        (Failure(Cause.NO_CREDENTIALS, "none"), AccessDeniedError),
        (Failure(Cause.NOT_SENT, "down"), UnreachableError),
        (SILENT, UnreachableError),
        (TRUNCATED, StoreError),
    ],
    ids=str,
)
def test_every_failure_of_a_read_becomes_an_error(failure: Failure, error: type[ShardfsError]) -> None:
    assert type(failure.error(GET, 1)) is error


@pytest.mark.parametrize(
    ("failure", "repeated", "error"),
    [
        (reply(503, "SlowDown"), True, StoreError),
        (reply(503), False, UnknownOutcomeError),
        (Failure(Cause.NOT_SENT, "down"), True, UnreachableError),
        (SILENT, False, UnknownOutcomeError),
        (reply(500, "InternalError"), False, UnknownOutcomeError),
        (reply(500, "SlowDown"), False, UnknownOutcomeError),
        (reply(501, "NotImplemented"), False, UnsupportedError),
        (reply(507, "XMinioStorageFull"), False, NoSpaceError),
        (reply(409, "OperationAborted"), False, ConflictError),
        (reply(404, "NoSuchKey"), False, ConflictError),
        (reply(404, "NoSuchBucket"), False, StoreError),
        (reply(403, "AccessDenied"), False, AccessDeniedError),
    ],
    ids=str,
)
def test_a_conditional_change_is_repeated_only_if_it_was_not_made(
    failure: Failure, repeated: bool, error: type[ShardfsError]
) -> None:
    assert failure.may_repeat(PUT_IF) == repeated
    assert type(failure.error(PUT_IF, 1)) is error
