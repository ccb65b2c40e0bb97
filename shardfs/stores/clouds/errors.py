"""The meaning of failed requests: `Failure`.

Messages contain only our own words: those of a library or a server may contain what is secret.
"""

import enum
from dataclasses import dataclass
from typing import Final


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
OTHER_RANGE: Final = Failure(Cause.NO_RANGE, "the server answered another range than it was asked for", 206)
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
NO_RANGES: Final = Failure(
    Cause.NO_RANGE,
    "asked for a range, the server gives the whole file; programs cannot read parts of files there (`python -m "
    "http.server` is such)",
    200,
)
NO_CONTENT_RANGE: Final = Failure(Cause.NO_RANGE, "the server does not say which range it gives", 206)
NO_CONTENT_LENGTH: Final = Failure(Cause.NONSENSE, "the reply has no valid Content-Length", 200)
NO_LAST_MODIFIED: Final = Failure(Cause.NONSENSE, "the reply has no valid Last-Modified", 200)
TOO_MANY_REDIRECTS: Final = Failure(Cause.NONSENSE, "one redirect follows another without end", 302)
NO_URL: Final = Failure(Cause.NONSENSE, "the server redirects to what is no URL", 302)
LESS_SAFE: Final = Failure(Cause.NONSENSE, "the server redirects from https:// to http://, which is not followed", 302)
ENDLESS: Final = Failure(Cause.NONSENSE, "the server lists more and more names, without end", 200)
ODD_NAME: Final = Failure(
    Cause.NONSENSE,
    "something there has a name with an empty part, or with . or .. as a part, and obstore lists nothing beside such "
    "names; rename it, or remove it",
    200,
)
NOT_TRUSTED: Final = Failure(
    Cause.NOT_TRUSTED, "its certificate is not trusted; SSL_CERT_FILE can name a file with certificates to trust"
)
SILENT: Final = Failure(Cause.SILENT, "no answer in time")
NOT_CONNECTED: Final = Failure(Cause.SILENT, "the server cannot be reached")
NO_REPLY: Final = Failure(Cause.NO_REPLY, "no usable reply")
