"""What can go wrong between a client and an S3 server, and when it does."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from tests.support.s3_log import OPERATIONS, Request


@dataclass(frozen=True)
class Reply:
    """An error in the words of S3 instead of the server's reply; the server gets the request only if *forwarded*."""

    status: int
    code: str
    headers: Mapping[str, str] = field(default_factory=dict)
    forwarded: bool = False


@dataclass(frozen=True)
class LostRequest:
    """The connection ends before the server gets the request."""


@dataclass(frozen=True)
class LostReply:
    """The server does as it is asked, and the connection ends without a reply."""


@dataclass(frozen=True)
class Then:
    """The same, and before the connection ends *action* is called: what another host does, say."""

    action: Callable[[], object]


@dataclass(frozen=True)
class Before:
    """*action* is called before the server gets the request; nothing fails."""

    action: Callable[[], object]


@dataclass(frozen=True)
class Truncated:
    """The reply ends, and the connection, after *nbytes* bytes of a body that its head says is longer."""

    nbytes: int


@dataclass(frozen=True)
class _Held:
    _released: Future[None] = field(default_factory=Future, init=False, compare=False, repr=False)

    def release(self) -> None:
        """Go on as if nothing had happened, even if the client has given up."""
        if not self._released.done():
            self._released.set_result(None)

    @property
    def released(self) -> Future[None]:
        return self._released


@dataclass(frozen=True)
class Hang(_Held):
    """Nothing happens until it is released; the server gets the request only then."""


@dataclass(frozen=True)
class HangMidBody(_Held):
    """The reply begins, and stops after *nbytes* bytes of its body until it is released."""

    nbytes: int


@dataclass(frozen=True)
class Ignore:
    """The server does not see a header, as one that does not know it."""

    header: str


@dataclass(frozen=True)
class NoETag:
    """The ETag in the body of the reply is empty, as in Ceph's reply to CompleteMultipartUpload."""


@dataclass(frozen=True)
class Changed:
    """*change* gets the headers of the reply, by names in lower case, and its body; it returns the new body."""

    change: Callable[[dict[str, str], bytes], bytes]

    @classmethod
    def header(cls, name: str, value: str | None) -> "Changed":
        """Give a header another value; None takes it away."""

        def change(headers: dict[str, str], body: bytes) -> bytes:
            headers.pop(name.lower(), None)
            if value is not None:
                headers[name.lower()] = value
            return body

        return cls(change)

    @classmethod
    def body(cls, old: bytes, new: bytes) -> "Changed":
        """Replace bytes of the body."""

        def change(_: dict[str, str], body: bytes) -> bytes:
            assert old in body, body
            return body.replace(old, new)

        return cls(change)


@dataclass(frozen=True)
class Drip:
    """The body comes byte by byte, with *seconds* between them."""

    seconds: float


Fault = (
    Reply | LostRequest | LostReply | Then | Before | Truncated | Hang | HangMidBody | Ignore | NoETag | Changed | Drip
)

Match = str | Callable[[Request], bool] | None
"""The name of an operation, what tells of a request whether it is meant, or None for all requests."""


class Rule:
    """That requests which match meet a fault; *hits* of them did so far."""

    def __init__(self, match: Match, fault: Fault, key: str, times: int | None, after: int) -> None:
        assert not isinstance(match, str) or match in OPERATIONS, f"no such operation: {match}"
        self.fault = fault
        self.hits = 0
        self._match = match
        self._key = key
        self._times = times
        self._after = after
        self._came = threading.Event()

    def __repr__(self) -> str:
        return f"{self._match} {self._key}: {self.fault}"

    def takes(self, request: Request) -> bool:
        """Whether a request meets the fault, which counts it."""
        if not self._matches(request) or self.hits == self._times:
            return False
        if self._after:
            self._after -= 1
            return False
        self.hits += 1
        self._came.set()
        return True

    def wait(self, patience: float = 60.0) -> None:
        """Wait until a request met the fault."""
        assert self._came.wait(patience), f"no request met the fault: {self}"

    def _matches(self, request: Request) -> bool:
        if self._key not in request.key:
            return False
        if isinstance(self._match, str):
            return request.operation == self._match
        return self._match is None or self._match(request)
