"""What is made of the words of the libraries, and of the codes of S3."""

import botocore.exceptions as boto
import obstore.exceptions
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
from shardfs.stores.s3.errors import (
    NO_SUCH_KEY,
    SILENT,
    TRUNCATED,
    UNEXPLAINED,
    Cause,
    Failure,
    Request,
    of_boto3,
    of_obstore,
)

ENDPOINT = "https://s3.example.org"
GET = Request("GetObject", "bucket", "key")
PUT_IF = Request("PutObject", "bucket", "key", is_conditional=True, is_repeatable=False)


def status_dump(status: int, body: str, key: str = "key") -> Exception:
    """What obstore 0.12 raises for a reply that is an error; *body* as Rust quotes it."""
    kind = obstore.exceptions.NotFoundError if status == 404 else obstore.exceptions.GenericError
    return kind(
        f"Generic S3 error: Error performing GET {ENDPOINT}/bucket/{key} in 1ms - Server returned {status}: {body}\n\n"
        "Debug source:\n"
        "Generic {\n"
        f'    path: "{key}",\n'
        "    source: RetryError(\n"
        "        RetryErrorImpl {\n"
        "            method: GET,\n"
        f"            uri: Some(\n                {ENDPOINT}/bucket/{key},\n            ),\n"
        "            inner: Status {\n"
        f"                status: {status},\n"
        f'                body: Some(\n                    "{body}",\n                ),\n'
        "            },\n        },\n    ),\n}"
    )


NO_KEY = "<Error><Code>NoSuchKey</Code></Error>"


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (status_dump(404, NO_KEY), NO_SUCH_KEY),
        (status_dump(404, "<Code>NoSuchBucket</Code>", key=NO_KEY), UNEXPLAINED),
        (status_dump(404, "not found", key=NO_KEY), UNEXPLAINED),
        (status_dump(503, NO_KEY), UNEXPLAINED),
    ],
)
def test_a_key_is_absent_only_if_the_server_says_so(error: Exception, failure: Failure) -> None:
    assert of_obstore(error) is failure


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
    return Failure(Cause.REPLY, f"{code} {status}", status, code, region)


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
