"""What was asked of an S3 server, exactly, for tests that count."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter_ns
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

_OF_INTEREST: Final = (
    "host",
    "range",
    "if-match",
    "if-none-match",
    "x-amz-copy-source",
    "x-amz-copy-source-range",
    "x-amz-copy-source-if-match",
    "x-amz-request-payer",
    "x-amz-storage-class",
    "authorization",
    "content-type",
)
_OF_BUCKETS: Final = {
    "GET": (("list-type", "ListObjectsV2"), ("uploads", "ListMultipartUploads")),
    "HEAD": (("", "HeadBucket"),),
}
_OF_OBJECTS: Final = {
    "GET": (("", "GetObject"),),
    "HEAD": (("", "HeadObject"),),
    "PUT": (("uploadId", "UploadPart"), ("", "PutObject")),
    "POST": (("uploads", "CreateMultipartUpload"), ("uploadId", "CompleteMultipartUpload")),
    "DELETE": (("uploadId", "AbortMultipartUpload"), ("", "DeleteObject")),
}
_COPIES: Final = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}

OPERATIONS: Final = frozenset(
    name for table in (_OF_BUCKETS, _OF_OBJECTS) for rows in table.values() for _, name in rows
) | {*_COPIES.values()}
"""Names of the operations that are told apart."""


@dataclass(slots=True)
class Request:
    """A request that came, and what became of it.

    *headers* are those of interest, by their names in lower case; *status* is None where no reply was given, and
    *bytes_in* and *bytes_out* are those of the bodies that came and were sent. *started* and *finished* are in ns of
    `time.perf_counter_ns`: when all of it was there, and when the reply began or was given up, else None.
    """

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    operation: str
    headers: Mapping[str, str]
    bytes_in: int
    started: int
    status: int | None = None
    bytes_out: int = 0
    finished: int | None = None

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], nbytes: int) -> Request:
        """Tell what a request asks for that has *headers*, by their names in lower case, and so many bytes."""
        url = urlsplit(target)
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {name: headers[name] for name in _OF_INTEREST if name in headers}
        operation = _operation(method, key, query, "x-amz-copy-source" in headers)
        return cls(method, bucket, key, query, operation, headers, nbytes, perf_counter_ns())

    @property
    def range(self) -> str | None:
        """The range header."""
        return self.headers.get("range")


def _operation(method: str, key: str, query: Mapping[str, str], copies: bool) -> str:
    rows = (_OF_OBJECTS if key else _OF_BUCKETS).get(method, ())
    name = next((name for mark, name in rows if not mark or mark in query), f"{method} of something else")
    return _COPIES.get(name, name) if copies else name


class RequestLog:
    """Requests in the order in which they came; a reply is in it before the client can see it."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.of())

    def __len__(self) -> int:
        return len(self._requests)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def add(self, request: Request) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._requests = []

    def of(self, *operations: str) -> list[Request]:
        """Requests of some operations, or all."""
        _check(operations)
        with self._changed:
            return [request for request in self._requests if not operations or request.operation in operations]

    def keys(self, *operations: str) -> list[str]:
        """Keys that were asked for, by some operations or any, in order and as often as they were."""
        return [request.key for request in self.of(*operations)]

    def operations(self) -> Counter[str]:
        """How often each operation was asked for."""
        return Counter(request.operation for request in self.of())

    def bytes_in(self, *operations: str) -> int:
        """Bytes of the bodies that clients sent."""
        return sum(request.bytes_in for request in self.of(*operations))

    def bytes_out(self, *operations: str) -> int:
        """Bytes of the bodies that clients were sent."""
        return sum(request.bytes_out for request in self.of(*operations))

    def max_in_flight(self, *operations: str) -> int:
        """How many requests of some operations, or of any, were under way at the same time."""
        requests = self.of(*operations)
        changes = [(request.started, 1) for request in requests]
        changes += [(request.finished, -1) for request in requests if request.finished is not None]
        return max(accumulate((change for _, change in sorted(changes)), initial=0))

    def longest_row(self) -> list[Request]:
        """As many requests as there are that came one after the other, each when the one before was answered."""
        row: list[Request] = []
        for request in sorted(self.of(), key=lambda request: request.finished or sys.maxsize):
            if not row or (row[-1].finished or sys.maxsize) <= request.started:
                row.append(request)
        return row

    def wait_for(self, operation: str, count: int = 1, patience: float = 60.0) -> None:
        """Wait until an operation was asked for so often since the last `clear`."""
        _check((operation,))
        with self._changed:
            came = self._changed.wait_for(
                lambda: sum(request.operation == operation for request in self._requests) >= count, patience
            )
        assert came, f"{operation} was not asked for {count} times:\n{self}"


def _check(operations: Iterable[str]) -> None:
    unknown = set(operations) - OPERATIONS
    assert not unknown, f"no such operations: {unknown}"
