"""Replies that boto3 gets to changes: read at a least rate, and checked field by field."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from shardfs.stores.objects.failures import COMPRESSED, SLOW, TOO_LONG, FailedRequest, invalid
from shardfs.stores.objects.pace import Timeouts
from shardfs.stores.objects.replies import MAX_XML_NBYTES, quoted, require_little_markup, states_more

_PIECE_NBYTES: Final = 2**18
_NUMBER: Final = re.compile(r"\d{1,19}")


def read_xml(length: str, read: Callable[[int], bytes], timeouts: Timeouts) -> bytes:
    """Return a body whose *length* is stated, if that is a number.

    *read* returns what has come, up to a number of bytes, b"" at the end.
    """
    if states_more(length, MAX_XML_NBYTES):
        raise FailedRequest(TOO_LONG)
    body, begun = bytearray(), time.monotonic()
    while piece := read(_PIECE_NBYTES):
        body += piece
        if len(body) > MAX_XML_NBYTES:
            raise FailedRequest(TOO_LONG)
        if timeouts.is_too_slow(len(body), time.monotonic() - begun):
            raise FailedRequest(SLOW)
    data = bytes(body)
    require_little_markup(data)
    return data


def check_headers(headers: Mapping[str, str]) -> None:
    """Check the headers that boto3 would stumble over; what is missing is noticed where it is needed."""
    length = headers.get("Content-Length")
    if length is not None and not _NUMBER.fullmatch(length):
        raise FailedRequest(invalid("Content-Length"))
    if headers.get("Content-Encoding", "identity") not in ("", "identity", "aws-chunked"):
        raise FailedRequest(COMPRESSED)


def etag_of(reply: Mapping[str, Any]) -> str:
    """Return the ETag in a reply."""
    return quoted(reply.get("ETag"))


def text(reply: Mapping[str, Any], field: str) -> str:
    """Return a field that is never empty."""
    value = reply.get(field)
    if not isinstance(value, str) or not value:
        raise FailedRequest(invalid(field))
    return value
