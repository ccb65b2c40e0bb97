"""The meaning of failed requests: from exceptions of the libraries to a `Failure`, and from that to our errors.

What obstore fails with is only understood as far as it is certain: boto3, which is asked next, tells more. Messages
contain only our own words: those of a library or a server may contain credentials.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import botocore.exceptions as boto
import obstore.exceptions
import urllib3.exceptions
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
from shardfs.stores.objects.requests import Request


class Cause(enum.Enum):
    """How far a request got."""

    NO_CREDENTIALS = enum.auto()
    NOT_TRUSTED = enum.auto()
    NOT_SENT = enum.auto()
    NO_REPLY = enum.auto()
    CHANGED_REPLY = enum.auto()
    """Something between here and the server changes replies, so that they are of no use."""
    REPLY = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt at a request.

    A reply has a *status*, the *code* of S3 ("" if there is none), and the *region* of the bucket if it states one.
    *is_silent*: the server did not answer in time.
    """

    cause: Cause
    reason: str
    status: int = 0
    code: str = ""
    region: str | None = None
    is_silent: bool = False

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a moment later."""
        if self.cause is not Cause.REPLY:
            return self.cause in (Cause.NOT_SENT, Cause.NO_REPLY)
        return self.is_throttling or self.status in (500, 502, 504) or self.code in _PASSING_CODES

    @property
    def is_throttling(self) -> bool:
        """Whether the server asks for fewer requests, or has no time for any."""
        return self.cause is Cause.REPLY and (self.status in (429, 503) or self.code in _THROTTLING_CODES)

    @property
    def is_refusal(self) -> bool:
        """Whether it is certain that the request changed nothing.

        Servers send 501, 503 and 507 before they do anything. Without a code of S3, these come from a proxy, which may
        have lost the server's reply.
        """
        if self.cause is Cause.REPLY:
            return self.status < 500 or (self.status in (501, 503, 507) and self.code != "")
        return self.cause not in (Cause.NO_REPLY, Cause.CHANGED_REPLY)

    @property
    def is_doubtful(self) -> bool:
        """Whether HEAD says more about why a GET failed.

        The server may not have the range, or ignore it, as some do for an empty object. A 404 that does not name a
        missing key may come from anything else that answers at the address.
        """
        is_vague = self.status == _NOT_FOUND and self.code not in ("NoSuchKey", "NoSuchBucket")
        return is_vague or self.status == _RANGE_NOT_SATISFIABLE or self is NOT_PARTIAL

    def is_conflict(self, request: Request) -> bool:
        """Whether the condition of the request did not hold."""
        if self.status == _PRECONDITION_FAILED or self.code in _CONFLICTS:
            return True
        return request.is_conditional and self.code != "NoSuchBucket" and self.status in (_NOT_FOUND, _CONFLICT)

    def may_repeat(self, request: Request) -> bool:
        """Whether the same request may be sent again."""
        is_safe = request.is_repeatable or self.is_refusal
        return self.is_passing and is_safe and not self.is_conflict(request)

    def error(self, request: Request, attempts: int) -> ShardfsError:
        """Return the error of a request that finally failed, after so many *attempts*."""
        target, status = request.target, self.status
        what = f"{request.operation} of {target}"
        if self.cause is Cause.NO_CREDENTIALS:
            return AccessDeniedError(f"{what} was not sent: {self.reason}")
        if self.is_conflict(request):
            return ConflictError(f"{target} was changed by somebody else ({request.operation}: {self.reason})")
        if not request.is_repeatable and not self.is_refusal:
            return UnknownOutcomeError(f"{what}: {self.reason}; it may have been carried out")
        if self.code == "NoSuchBucket" or (status == _NOT_FOUND and not request.key):
            return StoreError(
                f"the bucket {request.bucket} does not exist; check its name, and --endpoint-url if it is not on AWS"
            )
        if self.region is not None or self.code in _OTHER_REGION or status in (301, 302, 307, 308):
            where = f" ({self.region}): --region {self.region}" if self.region else "; name it with --region"
            return StoreError(f"the bucket {request.bucket} is in another region{where}")
        if self.code in _HINTS:
            kind, hint = _HINTS[self.code]
            return kind(f"{what} was refused ({self.code}): {hint}")
        if status in (405, 501) or self.code == "NotImplemented":
            return UnsupportedError(f"{what}: the server does not support this ({self.reason})")
        if status == _NOT_FOUND:
            return NotFoundError(f"{target} does not exist")
        if status in (401, 403):
            why = "no permission" if self.code else "no permission, or wrong credentials"
            return AccessDeniedError(f"{what} was refused ({self.reason}): {why}")
        times = f" {attempts} times" if attempts > 1 else ""
        is_unreachable = self.is_silent or self.cause in (Cause.NOT_SENT, Cause.NOT_TRUSTED)
        return (UnreachableError if is_unreachable else StoreError)(f"{what} failed{times}: {self.reason}")


def invalid(field: str) -> Failure:
    """Return the failure of a reply in which *field* is missing or makes no sense."""
    return Failure(Cause.NO_REPLY, f"the reply has no valid {field}")


class FailedRequest(Exception):  # noqa: N818 - not an error yet: it may be tried again
    """Carries a `Failure` from the library call to where requests are repeated."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


TRUNCATED: Final = Failure(Cause.NO_REPLY, "the reply was cut short")
SILENT: Final = Failure(Cause.NO_REPLY, "no answer in time", is_silent=True)
SLOW: Final = Failure(Cause.NO_REPLY, "the reply comes too slowly", is_silent=True)
TOO_LONG: Final = Failure(Cause.NO_REPLY, "the reply is too long")
_PROXY: Final = "something between here and the server does that, such as a proxy that compresses: switch it off there"
COMPRESSED: Final = Failure(Cause.CHANGED_REPLY, f"the reply is compressed (Content-Encoding); {_PROXY}")
WEAK_ETAG: Final = Failure(
    Cause.CHANGED_REPLY, f"the reply has a weak ETag (W/…), which stands for several versions of an object; {_PROXY}"
)
NOT_PARTIAL: Final = Failure(
    Cause.REPLY,
    "asked for a range, the server gives the whole object, or does not say which range it gives",
    200,
    "NotPartial",
)
OTHER_RANGE: Final = Failure(Cause.REPLY, "the server answered another range than it was asked for", 206, "OtherRange")
OTHER_ETAG: Final = Failure(Cause.REPLY, "the server gave another version than it was asked for", 412)
NO_SUCH_KEY: Final = Failure(Cause.REPLY, "NoSuchKey 404", 404, "NoSuchKey")
UNEXPLAINED: Final = Failure(Cause.NO_REPLY, "no usable reply")
"""What obstore failed with for any other reason: boto3 is asked at once."""

NO_CREDENTIALS: Final = "there are no credentials; see `aws configure`, `aws sso login`, --profile, --anonymous"

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_PRECONDITION_FAILED: Final = 412
_RANGE_NOT_SATISFIABLE: Final = 416
_PASSING_CODES: Final = frozenset({"InternalError", "OperationAborted", "RequestTimeout"})
_THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_CONFLICTS: Final = frozenset({"ConditionalRequestConflict", "NoSuchUpload", "PreconditionFailed"})
_OTHER_REGION: Final = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "IncorrectEndpoint",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_WRONG: Final = "the credentials are wrong, or not for this endpoint"
_RENEW: Final = "the credentials have expired, or are wrong: renew them"
EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
"""The codes for credentials that are not valid any more."""

_HINTS: Final[dict[str, tuple[type[ShardfsError], str]]] = {
    "AllAccessDisabled": (AccessDeniedError, "the bucket is disabled"),
    "AccountProblem": (AccessDeniedError, "something is wrong with the account that owns the credentials"),
    "InvalidAccessKeyId": (AccessDeniedError, f"{_WRONG}: there is no such access key"),
    "SignatureDoesNotMatch": (AccessDeniedError, f"{_WRONG}: the secret key does not belong to the access key"),
    "InvalidObjectState": (StoreError, "the object is archived; restore it first"),
    "EntityTooLarge": (StoreError, "it is larger than the server accepts"),
    "KeyTooLongError": (NameTooLongError, "the keys of S3 have at most 1024 bytes"),
    "QuotaExceeded": (NoSpaceError, "the quota is used up"),
    "RequestTimeTooSkewed": (StoreError, "the clock of this machine is wrong; set it with: timedatectl set-ntp true"),
    "XMinioAdminBucketQuotaExceeded": (NoSpaceError, "the quota of the bucket is used up"),
    "XMinioStorageFull": (NoSpaceError, "the server has no room left"),
    **dict.fromkeys(EXPIRED, (AccessDeniedError, _RENEW)),
}

_BROKEN: Final = "the connection was broken"
_NONSENSE: Final = "the reply is invalid"
_WITHOUT_REPLY: Final = (
    ((boto.ReadTimeoutError, urllib3.exceptions.TimeoutError), SILENT),
    ((boto.IncompleteReadError, boto.ResponseStreamingError, urllib3.exceptions.IncompleteRead), TRUNCATED),
    ((boto.HTTPClientError, boto.ConnectionError, urllib3.exceptions.HTTPError), Failure(Cause.NO_REPLY, _BROKEN)),
    ((ResponseParserError,), Failure(Cause.NO_REPLY, _NONSENSE)),
)
_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.NoAuthTokenError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.RefreshWithMFAUnsupportedError,
    boto.MetadataRetrievalError,
    boto.LoginError,
)
_CREDENTIAL_OPERATIONS: Final = ("AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials", "CreateToken")


@contextmanager
def failures(endpoint: str, region: str) -> Iterator[None]:
    """Turn whatever boto3 raises for a request to *endpoint*, for *region*, into `FailedRequest`."""
    failure: Failure | None = None
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, ResponseParserError, urllib3.exceptions.HTTPError) as error:
        failure = of_boto3(error, endpoint, region)
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # botocore checks no field of a reply
        failure = _stumbled(error)
    if failure is not None:
        raise FailedRequest(failure)


def of_boto3(error: Exception, endpoint: str, region: str) -> Failure:
    """Return the failure in an exception of boto3, botocore or urllib3 for a request to *endpoint*, for *region*."""
    if isinstance(error, _CREDENTIALS) or getattr(error, "operation_name", None) in _CREDENTIAL_OPERATIONS:
        return Failure(Cause.NO_CREDENTIALS, NO_CREDENTIALS)
    if isinstance(error, boto.ClientError):
        return _of_reply(error.response, region)
    if isinstance(error, boto.SSLError):
        return _not_connected(endpoint, str(error), Cause.NO_REPLY)
    if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)):
        is_silent = isinstance(error, boto.ConnectTimeoutError)
        return replace(_not_connected(endpoint, str(error.kwargs.get("error")), Cause.NOT_SENT), is_silent=is_silent)
    for kinds, failure in _WITHOUT_REPLY:
        if isinstance(error, kinds):
            return failure
    return Failure(Cause.REPLY, "S3 does not accept a name or a property", 400)


def of_obstore(error: Exception) -> Failure:
    """Return the failure in an exception of obstore for a GET.

    Its message ends with a dump of the cause, one member per line, in which strings are quoted and escaped: so a line
    with a member is not part of a key.
    """
    if isinstance(error, obstore.exceptions.PreconditionError):
        return OTHER_ETAG
    dump = str(error).rpartition("\n\nDebug source:\n")[2]
    if isinstance(error, (obstore.exceptions.NotFoundError, FileNotFoundError)) and _NO_SUCH_KEY.search(dump):
        return NO_SUCH_KEY
    return SILENT if _TIMED_OUT.search(dump) else UNEXPLAINED


def _stumbled(error: Exception) -> Failure:
    """Return the failure in what botocore stumbled over, with the name of the field if that is known."""
    if isinstance(error, KeyError) and _IS_CODE.fullmatch(str(error.args[0])):
        return invalid(error.args[0])
    return invalid("date") if "timestamp" in str(error) else Failure(Cause.NO_REPLY, _NONSENSE)


def _of_reply(response: Mapping[str, Any], region: str) -> Failure:
    """Return the failure in a reply; its code, and the region that it states, are only used if they look like one."""
    error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    status, code = int(metadata.get("HTTPStatusCode", 0)), str(error.get("Code", ""))
    if not _IS_CODE.fullmatch(code) or code.isdecimal():
        code = ""
    other = error.get("Region")
    if other is None and status in (301, 307, 400):  # a reply to HEAD has no body
        other = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    if other == region or not _IS_REGION.fullmatch(str(other)):
        other = None
    return Failure(Cause.REPLY, f"{code or 'status'} {status}" if status else code, status, code, other)


def _not_connected(endpoint: str, words: str, cause: Cause) -> Failure:
    """Return why a connection could not be made, as far as the *words* of a library tell."""
    for pattern, reason in _UNTRUSTED:
        if pattern.search(words):
            return Failure(Cause.NOT_TRUSTED, f"{endpoint} is not trusted: {reason}")
    proxy = _proxy_of(endpoint)
    where = f"the proxy {proxy}, through which {endpoint} is asked," if proxy else endpoint
    for pattern, reason in _UNREACHABLE:
        if pattern.search(words):
            return Failure(cause, f"{where} cannot be reached: {reason}")
    return Failure(cause, f"{where} cannot be reached")


def _proxy_of(endpoint: str) -> str | None:
    """Return host and port of the proxy for *endpoint* in the environment, and the name of the variable."""
    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.netloc):
        return None
    host = urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]  # without a password
    return f"{host} ({parts.scheme.upper()}_PROXY)"


_UNTRUSTED: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        ("certificate has expired", "its certificate has expired"),
        ("not yet valid", "its certificate is not valid yet; is the clock of this machine right?"),
        ("[Mm]ismatch|doesn't match|not valid for", "its certificate is for another name"),
        (
            "self.signed|local issuer|CERTIFICATE_VERIFY_FAILED",
            "its certificate is signed by an unknown authority; AWS_CA_BUNDLE can name a file with certificates to "
            "trust",
        ),
    )
)
_UNREACHABLE: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        ("NameResolutionError|Name or service not known", "its name cannot be resolved"),
        ("Connection refused", "the connection is refused"),
        ("[Uu]nreachable", "there is no network"),
        (
            "WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
            "it does not speak TLS; does its URL begin with http://?",
        ),
        ("[Tt]unnel", "it does not connect to the server"),
        ("imed out", SILENT.reason),
        ("SSL|TLS", "TLS failed"),
    )
)
_NO_SUCH_KEY: Final = re.compile(r"^ +body: Some\(\n *.*<Code>NoSuchKey</Code>", re.MULTILINE)
_TIMED_OUT: Final = re.compile(r"^ +kind: Timeout,$", re.MULTILINE)
_IS_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_IS_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
