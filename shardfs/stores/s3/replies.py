"""Replies of S3 as values: read at a least rate, and checked field by field.

Whoever answers may be no S3 server, or may be behind a proxy that changes what it passes on. Every function here raises
`FailedRequest` for a reply that cannot be used, with a reason that names the field.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from shardfs.stores.objects.requests import Fetched, ObjectStat, Properties
from shardfs.stores.s3.errors import COMPRESSED, SLOW, TOO_LONG, WEAK_ETAG, FailedRequest, invalid

_PIECE_NBYTES: Final = 2**18
_MAX_XML_NBYTES: Final = 64 * 2**20
"""More than any reply has that is no object: the longest are listings, of 1000 keys of 1024 bytes."""

_MAX_SIZE: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"\d{1,19}")
_NO_NUMBER: Final = re.compile(rb"<(Size|KeyCount|MaxKeys)>(?!\d{1,19}<)")
_OF_OBJECTS: Final = frozenset({"GetObject", "HeadObject"})
"""Operations whose headers are those of an object, which may be stored compressed."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a body must come: after *grace* seconds, at *rate* bytes per second on average."""

    grace: float
    rate: float
    clock: Callable[[], float] = time.monotonic

    def meter(self) -> "Meter":
        """Begin to measure."""
        return Meter(self, self.clock())


@dataclass(slots=True)
class Meter:
    """What has come of a body that began at the time *begun*."""

    pace: Pace
    begun: float
    nbytes: int = 0

    def count(self, nbytes: int) -> None:
        """Note that *nbytes* more bytes came; raises `FailedRequest` if they come too slowly."""
        self.nbytes += nbytes
        seconds = self.pace.clock() - self.begun
        if seconds > self.pace.grace and self.nbytes < self.pace.rate * seconds:
            raise FailedRequest(SLOW)


def read_body(read: Callable[[int], bytes], nbytes: int, pace: Pace) -> memoryview:
    """Return up to *nbytes* bytes of a body; *read* returns what has come, up to a number of bytes, b"" at the end."""
    body, meter = bytearray(), pace.meter()
    while len(body) < nbytes and (piece := read(min(_PIECE_NBYTES, nbytes - len(body)))):
        body += piece
        meter.count(len(piece))
    return memoryview(body)


def read_xml(read: Callable[[int], bytes], pace: Pace) -> bytes:
    """Return the body of a reply that is no object."""
    body = bytes(read_body(read, _MAX_XML_NBYTES + 1, pace))
    if len(body) > _MAX_XML_NBYTES:
        raise FailedRequest(TOO_LONG)
    wrong = _NO_NUMBER.search(body)
    if wrong is not None:
        raise FailedRequest(invalid(wrong[1].decode()))
    return body


def check_headers(operation: str, headers: Mapping[str, str]) -> None:
    """Check the headers that boto3 would stumble over; what is missing is noticed where it is needed."""
    length, modified = headers.get("Content-Length"), headers.get("Last-Modified")
    if length is not None and not _NUMBER.fullmatch(length):
        raise FailedRequest(invalid("Content-Length"))
    if modified is not None:
        try:
            parsedate_to_datetime(modified)
        except ValueError:
            raise FailedRequest(invalid("Last-Modified")) from None
    encoding = headers.get("Content-Encoding", "identity")
    if operation not in _OF_OBJECTS and encoding not in ("", "identity", "aws-chunked"):
        raise FailedRequest(COMPRESSED)


def object_stat(size: object, etag: object, modified: object, *, of_listing: bool = False) -> ObjectStat:
    """Return the state of an object; *of_listing* tells what the fields are called."""
    if not isinstance(size, int) or not 0 <= size <= _MAX_SIZE:
        raise FailedRequest(invalid("Size" if of_listing else "Content-Length"))
    if not isinstance(modified, datetime):
        raise FailedRequest(invalid("LastModified" if of_listing else "Last-Modified"))
    # In whole seconds: listings have fractions of seconds, HTTP headers do not.
    return ObjectStat(size, _quoted(etag), int(modified.timestamp()) * 10**9)


def stat_of(reply: Mapping[str, Any]) -> ObjectStat:
    """Return the state in a reply of boto3 to GET or HEAD."""
    return object_stat(reply.get("ContentLength"), reply.get("ETag"), reply.get("LastModified"))


def described(reply: Mapping[str, Any]) -> Fetched:
    """Return what a reply to HEAD says."""
    return Fetched(stat_of(reply), 0, memoryview(b""), Properties.of(reply))


def listed(entry: Mapping[str, Any]) -> tuple[str, ObjectStat]:
    """Return the key and the state of an object in a listing."""
    stat = object_stat(entry.get("Size"), entry.get("ETag"), entry.get("LastModified"), of_listing=True)
    return text(entry, "Key"), stat


def etag_of(reply: Mapping[str, Any]) -> str:
    """Return the ETag in a reply of boto3."""
    return _quoted(reply.get("ETag"))


def text(reply: Mapping[str, Any], field: str) -> str:
    """Return a field that is never empty."""
    value = reply.get(field)
    if not isinstance(value, str) or not value:
        raise FailedRequest(invalid(field))
    return value


def _quoted(etag: object) -> str:
    """Return an ETag with the quotes that some servers omit."""
    if not isinstance(etag, str) or not etag.strip('"'):
        raise FailedRequest(invalid("ETag, by which versions of an object are told apart"))
    if etag.startswith("W/"):
        raise FailedRequest(WEAK_ETAG)
    return etag if etag.endswith('"') else f'"{etag}"'
