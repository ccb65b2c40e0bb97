"""The meaning of failed requests: one `Failure` for all services, and from that to our errors.

Messages contain only our own words: those of a library or a server may contain credentials.
"""

import enum
import re
from dataclasses import dataclass, replace
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
)
from shardfs.stores.objects.requests import Request


class Cause(enum.Enum):
    """How far a request got."""

    NO_CREDENTIALS = enum.auto()
    NOT_TRUSTED = enum.auto()
    """The server is not the one that its name says, as far as its certificate tells."""
    NOT_SENT = enum.auto()
    NO_REPLY = enum.auto()
    """The connection broke, or what came is no reply."""
    UNUSABLE = enum.auto()
    """The server, or something before it, makes replies that are of no use; to ask again changes nothing."""
    REPLY = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt at a request.

    A reply has a *status*, and the *code* of the service ("" if there is none). *is_silent*: the server did not answer
    in time. *is_vague*: HEAD may say more about why a GET failed. *kind* and *advice* are what is raised and said
    instead of what the status means; the advice may name the `{container}`.
    """

    cause: Cause
    reason: str
    status: int = 0
    code: str = ""
    is_silent: bool = False
    is_vague: bool = False
    kind: type[ShardfsError] | None = None
    advice: str = ""

    @classmethod
    def of_reply(cls, status: int, code: str) -> "Failure":
        """Return that of a reply with this *status*; its *code* counts only if it looks like one."""
        if not _IS_CODE.fullmatch(code) or code.isdecimal():
            code = ""
        failure = cls(Cause.REPLY, f"{code or 'status'} {status}" if status else code, status, code)
        if status == _RANGE_NOT_SATISFIABLE:  # the object may be shorter, or empty
            failure = replace(failure, is_vague=True)
        if code in _HINTS:
            kind, hint = _HINTS[code]
            failure = replace(failure, kind=kind, advice=f"{{what}} was refused ({code}): {hint}")
        return failure

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a moment later."""
        if self.cause is not Cause.REPLY:
            return self.cause in (Cause.NOT_SENT, Cause.NO_REPLY)
        return self.is_throttling or self.status in (408, 500, 502, 504) or self.code in _TRANSIENT_CODES

    @property
    def is_throttling(self) -> bool:
        """Whether the server asks for fewer requests, or has no time for any."""
        return self.cause is Cause.REPLY and (self.status in (429, 503) or self.code in _THROTTLING_CODES)

    @property
    def is_refusal(self) -> bool:
        """Whether it is certain that the request changed nothing.

        Servers send 501, 503 and 507 before they do anything. Without a code, these come from a proxy, which may have
        lost the server's reply.
        """
        if self.cause is Cause.REPLY:
            return self.status < 500 or (self.status in (501, 503, 507) and self.code != "")
        return self.cause not in (Cause.NO_REPLY, Cause.UNUSABLE)

    def is_conflict(self, request: Request) -> bool:
        """Whether the condition of the request did not hold."""
        if self.status == _PRECONDITION_FAILED or self.code in _CONFLICTS:
            return True
        return request.is_conditional and self.code not in _NO_CONTAINER and self.status in (_NOT_FOUND, _CONFLICT)

    def may_repeat(self, request: Request) -> bool:
        """Whether the same request may be sent again."""
        is_safe = request.is_repeatable or self.is_refusal
        return self.is_transient and is_safe and not self.is_conflict(request)

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
        if self.code in _NO_CONTAINER or (status == _NOT_FOUND and not request.is_of_object):
            return StoreError(f"{request.container} does not exist{request.hint}")
        if self.kind is not None:
            return self.kind(self.advice.replace("{what}", what).replace("{container}", request.container))
        if status in (405, 501) or self.code == "NotImplemented":
            return UnsupportedError(f"{what}: the server does not support this ({self.reason})")
        if status in (_NOT_FOUND, _GONE):
            return NotFoundError(f"{target} does not exist")
        if status in (401, 403, 407):
            why = "no permission" if self.code else "no permission, or wrong credentials"
            return AccessDeniedError(f"{what} was refused ({self.reason}): {why}")
        times = f" {attempts} times" if attempts > 1 else ""
        is_unreachable = self.is_silent or self.cause in (Cause.NOT_SENT, Cause.NOT_TRUSTED)
        return (UnreachableError if is_unreachable else StoreError)(f"{what} failed{times}: {self.reason}")


class FailedRequest(Exception):  # noqa: N818 - not an error yet: it may be tried again
    """Carries a `Failure` from one attempt to where requests are repeated."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def invalid(field: str) -> Failure:
    """Return the failure of a reply in which *field* is missing or makes no sense."""
    return Failure(Cause.NO_REPLY, f"the reply has no valid {field}")


TRUNCATED: Final = Failure(Cause.NO_REPLY, "the reply was cut short")
SILENT: Final = Failure(Cause.NO_REPLY, "no answer in time", is_silent=True)
SLOW: Final = Failure(Cause.NO_REPLY, "the reply comes too slowly", is_silent=True)
TOO_LONG: Final = Failure(Cause.NO_REPLY, "the reply is too long")
BROKEN: Final = Failure(Cause.NO_REPLY, "the connection was broken")
NONSENSE: Final = Failure(Cause.NO_REPLY, "the reply is invalid")
TOO_MUCH: Final = Failure(Cause.UNUSABLE, "the server sends more than the range that it states")
NO_SUCH_SIZE: Final = Failure(Cause.UNUSABLE, "the reply states a size that no file has")
NO_VERSION: Final = Failure(
    Cause.UNUSABLE,
    "the reply has neither a strong ETag nor Last-Modified, so versions of a file cannot be told apart",
)
_PROXY: Final = "something between here and the server does that, such as a proxy that compresses: switch it off there"
COMPRESSED: Final = Failure(Cause.UNUSABLE, f"the reply is compressed (Content-Encoding); {_PROXY}")
WEAK_ETAG: Final = Failure(
    Cause.UNUSABLE, f"the reply has a weak ETag (W/…), which stands for several versions of an object; {_PROXY}"
)
NOT_PARTIAL: Final = Failure(Cause.REPLY, "asked for a range, the server gives the whole object", 200, is_vague=True)
NO_CONTENT_RANGE: Final = Failure(Cause.REPLY, "the server does not say which range it gives", 206, is_vague=True)
OTHER_RANGE: Final = Failure(Cause.REPLY, "the server answered another range than it was asked for", 206, is_vague=True)
OTHER_VERSION: Final = Failure(Cause.REPLY, "the server gave another version than it was asked for", 412)
ABSENT: Final = Failure(Cause.REPLY, "it does not exist", 404)
TOO_MANY_REDIRECTS: Final = Failure(Cause.UNUSABLE, "one redirect follows another without end")
NO_URL: Final = Failure(Cause.UNUSABLE, "the server redirects to what is no URL of a server")
WITH_PASSWORD: Final = Failure(
    Cause.UNUSABLE, "the server redirects to a URL that holds a name or a password, which shardfs does not send"
)
LESS_SAFE: Final = Failure(Cause.UNUSABLE, "the server redirects from https:// to http://, which is not followed")

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_GONE: Final = 410
_PRECONDITION_FAILED: Final = 412
_RANGE_NOT_SATISFIABLE: Final = 416
_IS_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")

# What the codes of services mean: those of S3, which are Google's too, and those of Azure.

_TRANSIENT_CODES: Final = frozenset({"InternalError", "OperationAborted", "OperationTimedOut", "RequestTimeout"})
_THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServerBusy",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_CONFLICTS: Final = frozenset({"ConditionNotMet", "ConditionalRequestConflict", "NoSuchUpload", "PreconditionFailed"})
_NO_CONTAINER: Final = frozenset({"ContainerNotFound", "NoSuchBucket"})
_WRONG: Final = "the credentials are wrong, or not for this endpoint"
_RENEW: Final = "the credentials have expired, or are wrong: renew them"
EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
"""The codes for credentials that are not valid any more."""

_HINTS: Final[dict[str, tuple[type[ShardfsError], str]]] = {
    "AllAccessDisabled": (AccessDeniedError, "the bucket is disabled"),
    "AccountProblem": (AccessDeniedError, "something is wrong with the account that owns the credentials"),
    "InvalidAccessKeyId": (AccessDeniedError, f"{_WRONG}: there is no such access key"),
    "SignatureDoesNotMatch": (AccessDeniedError, f"{_WRONG}: the secret key does not belong to the access key"),
    "AuthenticationFailed": (AccessDeniedError, f"{_WRONG}, or have expired"),
    "BlobArchived": (StoreError, "the object is archived; restore it first"),
    "InvalidObjectState": (StoreError, "the object is archived; restore it first"),
    "EntityTooLarge": (StoreError, "it is larger than the server accepts"),
    "KeyTooLongError": (NameTooLongError, "the keys of S3 have at most 1024 bytes"),
    "QuotaExceeded": (NoSpaceError, "the quota is used up"),
    "RequestTimeTooSkewed": (StoreError, "the clock of this machine is wrong; set it with: timedatectl set-ntp true"),
    "XMinioAdminBucketQuotaExceeded": (NoSpaceError, "the quota of the bucket is used up"),
    "XMinioStorageFull": (NoSpaceError, "the server has no space left"),
    **dict.fromkeys(EXPIRED, (AccessDeniedError, _RENEW)),
}
