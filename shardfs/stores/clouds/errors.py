"""The meaning of failed requests: from exceptions of obstore to a `Failure`.

Messages contain only our own words: those of a library or a server may contain what is secret.
"""

import enum
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)


class Cause(enum.Enum):
    """What was wrong with an attempt."""

    NOT_TRUSTED = enum.auto()
    """The server is not the one that its name says, as far as its certificate tells."""
    SILENT = enum.auto()
    """It cannot be reached, or does not answer in time."""
    NO_REPLY = enum.auto()
    """The connection broke, or what came is no reply."""
    REFUSED = enum.auto()
    """The reply has a status that is no success."""
    NO_RANGE = enum.auto()
    """It may not have such a range, or no ranges at all."""
    NONSENSE = enum.auto()
    """The reply contradicts the request, or lacks what is needed to use it."""


_PASSING: Final = frozenset({408, 429})
_NO_SUCH_RANGE: Final = 416


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt at a request; a reply has a *status*, else that is 0."""

    cause: Cause
    reason: str
    status: int = 0

    @classmethod
    def of_status(cls, status: int) -> "Failure":
        """Return that of a reply with this status."""
        cause = Cause.NO_RANGE if status == _NO_SUCH_RANGE else Cause.REFUSED
        return cls(cause, f"status {status}", status)

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a moment later."""
        if self.cause is Cause.REFUSED:
            return self.status in _PASSING or self.status >= 500
        return self.cause in (Cause.SILENT, Cause.NO_REPLY)

    @property
    def is_unreachable(self) -> bool:
        """Whether the next request, too, would probably take long and fail."""
        return self.cause in (Cause.SILENT, Cause.NOT_TRUSTED)


class FailedAttempt(Exception):  # noqa: N818 - not an error yet: it may be made again
    """Carries a `Failure` from the call of the library to where requests are repeated."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


SLOW: Final = Failure(Cause.SILENT, "the reply comes too slowly")
CUT_SHORT: Final = Failure(Cause.NO_REPLY, "the reply was cut short")
ABSENT: Final = Failure(Cause.REFUSED, "it does not exist", 404)
REPLACED: Final = Failure(Cause.REFUSED, "the server gave another version than it was asked for", 412)
TOO_MUCH: Final = Failure(Cause.NONSENSE, "the server sends more than the range that it states", 206)
OTHER_RANGE: Final = Failure(Cause.NONSENSE, "the server answered another range than it was asked for", 206)
NO_SUCH_SIZE: Final = Failure(Cause.NONSENSE, "the reply states a size that no file has", 200)
NO_VERSION: Final = Failure(
    Cause.NONSENSE,
    "the reply has neither a strong ETag nor Last-Modified, so versions of a file cannot be told apart",
    200,
)
COMPRESSED: Final = Failure(
    Cause.NONSENSE,
    "the reply is compressed (Content-Encoding); a proxy or a setting of the server that compresses does that: switch "
    "it off there",
    200,
)

_NO_RANGES: Final = "asked for a range, the server gives the whole file"
_WHICH_RANGE: Final = "the server does not say which range it gives"
_REASONS: Final = (
    (
        "RangeNotSupported",
        Cause.NO_RANGE,
        f"{_NO_RANGES}; programs cannot read parts of files there (`python -m http.server` is such)",
    ),
    ("UnexpectedRange", Cause.NO_RANGE, OTHER_RANGE.reason),
    ("NoContentRange", Cause.NO_RANGE, _WHICH_RANGE),
    ("ContentRange", Cause.NO_RANGE, _WHICH_RANGE),
    ("ContentLength", Cause.NONSENSE, "the reply has no valid Content-Length"),
    ("LastModified", Cause.NONSENSE, "the reply has no valid Last-Modified"),
)
_STATUS: Final = re.compile(r"^ +status: (\d{3}),$", re.MULTILINE)
_WITHOUT_REPLY: Final = (
    (
        re.compile(r"InvalidCertificate|UnknownIssuer|certificate"),
        Failure(
            Cause.NOT_TRUSTED,
            "its certificate is not trusted; SSL_CERT_FILE can name a file with certificates to trust",
        ),
    ),
    (
        re.compile(r"^ +kind: Timeout,$|^ +TimedOut,?$", re.MULTILINE),
        Failure(Cause.SILENT, "no answer in time"),
    ),
    (
        re.compile(r"ConnectError\(|kind: Connect,|ConnectionRefused|dns error"),
        Failure(Cause.SILENT, "the server cannot be reached"),
    ),
)


@contextmanager
def failures() -> Iterator[None]:
    """Turn whatever obstore raises into `FailedAttempt`."""
    try:
        yield
    except (BaseError, FileNotFoundError, InvalidPathError) as error:
        raise FailedAttempt(_of_obstore(error)) from None


def _of_obstore(error: Exception) -> Failure:
    """Return what an exception of obstore means.

    Its message ends with a dump of the cause, one member per line, in which strings are quoted and escaped: so a line
    with a member is no part of a key or of a reply.
    """
    dump = str(error).rpartition("\n\nDebug source:\n")[2]
    stated = _STATUS.search(dump)
    status = int(stated[1]) if stated is not None else 0
    if isinstance(error, PreconditionError):
        return REPLACED
    if isinstance(error, NotFoundError | FileNotFoundError):
        return Failure(Cause.REFUSED, ABSENT.reason, status or ABSENT.status)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return Failure(Cause.REFUSED, "access is refused", status or 403)
    for name, cause, reason in _REASONS:
        if re.search(rf"^ +source: \w*{name}|^ +source: Header \{{\n +source: \w*{name}", dump, re.MULTILINE):
            return Failure(cause, reason, 206)
    if status:
        return Failure.of_status(status)
    if isinstance(error, NotSupportedError):  # as ranges that count from the end, by Azure
        return Failure(Cause.NO_RANGE, _NO_RANGES, 200)
    for pattern, failure in _WITHOUT_REPLY:
        if pattern.search(dump):
            return failure
    return Failure(Cause.NO_REPLY, "no usable reply")
