"""Why a request failed, in words of this store: what may be done again, and what error it becomes."""

import enum
from dataclasses import dataclass
from typing import Final

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
    printable,
)


class Cause(enum.Enum):
    """How far a request came."""

    NO_CREDENTIALS = enum.auto()
    NOT_TRUSTED = enum.auto()
    NOT_SENT = enum.auto()
    NO_REPLY = enum.auto()
    REPLY = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt at a request that failed.

    *reason* is our own words, never those of a server or a library, which may hold credentials.  Of a reply there are
    its *status* and the *code* of S3 ("" if there was none), and the *region* in which the bucket is, if it says so.
    If *is_silent*, it took all the time that a server has to answer.
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
            return self.cause not in (Cause.NO_CREDENTIALS, Cause.NOT_TRUSTED)
        return self.status in _PASSING_STATUS or self.code in _PASSING_CODES

    @property
    def is_refusal(self) -> bool:
        """Whether it is certain that the request changed nothing."""
        if self.cause is Cause.REPLY:
            return self.status < _SERVER_ERRORS or self.status in _REFUSED
        return self.cause is not Cause.NO_REPLY


class FailedRequest(Exception):  # noqa: N818 - not an error yet: it may be tried again
    """Carries a `Failure` from where a library raised to where requests are repeated."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as it is counted and named in messages; *key* is "" for one that concerns the bucket.

    If *is_conditional*, it fails where something is not as expected.  If not *is_repeatable*, it must not be sent
    again once it may have been carried out.
    """

    operation: str
    bucket: str
    key: str = ""
    is_conditional: bool = False
    is_repeatable: bool = True

    @property
    def target(self) -> str:
        """What the request is about, as one printable word or two."""
        if not self.key:
            return f"the bucket {self.bucket}"
        # The end of a long key tells most, and the message goes on after it.
        key = self.key if len(self.key) <= _SHOWN else f"…{self.key[-_SHOWN:]}"
        return printable(f"s3://{self.bucket}/{key}")


def may_repeat(request: Request, failure: Failure) -> bool:
    """Whether the same request may be sent again."""
    if _is_conflict(request, failure):
        return False
    return failure.is_passing and (request.is_repeatable or failure.is_refusal)


def error_of(request: Request, failure: Failure, attempts: int) -> ShardfsError:
    """Return what a request that failed for good, after so many *attempts*, means."""
    target = request.target
    if failure.cause is Cause.NO_CREDENTIALS:
        return AccessDeniedError(f"{request.operation} of {target} was not sent: {failure.reason}")
    if _is_conflict(request, failure):
        return ConflictError(f"{target} was changed by somebody else ({request.operation}: {failure.reason})")
    if not request.is_repeatable and not failure.is_refusal:
        return UnknownOutcomeError(f"{request.operation} of {target}: {failure.reason}; it may have been carried out")
    if failure.code == "NoSuchBucket" or (failure.status == _NOT_FOUND and not request.key):
        return StoreError(f"the bucket {request.bucket} does not exist")
    if failure.region is not None or failure.code in _OTHER_REGION or failure.status in _REDIRECTED:
        where = f" ({failure.region}): --region {failure.region}" if failure.region else "; name it with --region"
        return StoreError(f"the bucket {request.bucket} is in another region{where}")
    if failure.code in _HINTS:
        kind, hint = _HINTS[failure.code]
        return kind(f"{request.operation} of {target} was refused ({failure.code}): {hint}")
    if failure.status in _NOT_IMPLEMENTED or failure.code == "NotImplemented":
        return UnsupportedError(f"{request.operation} of {target}: the server does not do this ({failure.reason})")
    if failure.status == _NOT_FOUND:
        return NotFoundError(f"{target} does not exist")
    if failure.status in _DENIED:
        return AccessDeniedError(f"{request.operation} of {target} was refused ({failure.reason}): no permission")
    times = f" {attempts} times" if attempts > 1 else ""
    kind = UnreachableError if failure.is_silent or failure.cause in (Cause.NOT_SENT, Cause.NOT_TRUSTED) else StoreError
    return kind(f"{request.operation} of {target} failed{times}: {failure.reason}")


def _is_conflict(request: Request, failure: Failure) -> bool:
    if failure.status == _PRECONDITION_FAILED or failure.code in _CONFLICTS:
        return True
    if not request.is_conditional or failure.code == "NoSuchBucket":
        return False
    return failure.status in (_NOT_FOUND, _CONFLICT)


_SHOWN: Final = 120
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_PRECONDITION_FAILED: Final = 412
_SERVER_ERRORS: Final = 500
_REFUSED: Final = (501, 503, 507)
"""Not implemented, unavailable, out of space: said before anything is done."""

_NOT_IMPLEMENTED: Final = (405, 501)
_DENIED: Final = (401, 403)
_REDIRECTED: Final = (301, 302, 307, 308)
_PASSING_STATUS: Final = (429, 500, 502, 503, 504)
_PASSING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
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
"""Codes that say that credentials are not valid any more."""

_HINTS: Final[dict[str, tuple[type[ShardfsError], str]]] = {
    "AllAccessDisabled": (AccessDeniedError, "the bucket is disabled"),
    "AccountProblem": (AccessDeniedError, "something is wrong with the account that owns the credentials"),
    "InvalidAccessKeyId": (AccessDeniedError, _WRONG),
    "SignatureDoesNotMatch": (AccessDeniedError, _WRONG),
    "InvalidObjectState": (StoreError, "the object is archived; restore it first"),
    "EntityTooLarge": (StoreError, "it is larger than the server takes"),
    "KeyTooLongError": (NameTooLongError, "the keys of S3 have at most 1024 bytes"),
    "QuotaExceeded": (NoSpaceError, "the quota is used up"),
    "RequestTimeTooSkewed": (StoreError, "the clock of this machine is wrong"),
    "XMinioAdminBucketQuotaExceeded": (NoSpaceError, "the quota of the bucket is used up"),
    "XMinioStorageFull": (NoSpaceError, "the server has no room left"),
    **dict.fromkeys(EXPIRED, (AccessDeniedError, _RENEW)),
}
