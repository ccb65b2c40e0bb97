"""What one attempt at a request is, whoever makes it: `web` or `buckets`; and checks of what comes back."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from shardfs.stores.clouds.errors import (
    ABSENT,
    CUT_SHORT,
    NO_SUCH_SIZE,
    NO_VERSION,
    REPLACED,
    SLOW,
    TOO_MUCH,
    FailedAttempt,
)
from shardfs.stores.objects.requests import (
    Fetched,
    ListPage,
    ObjectStat,
    Range,
)

_MAX_SIZE: Final = 2**63 - 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, of silence, for a whole reply; after *grace*, a body comes at *rate* bytes per second.

    A *listing* of a directory of a bucket must end within that time, however many replies it takes.
    """

    connect: float = 5.0
    silence: float = 15.0
    whole: float = 3600.0
    grace: float = 15.0
    rate: float = 1024.0
    listing: float = 600.0


TIMEOUTS: Final = Timeouts()


class Attempts(Protocol):
    """Requests to one source, each sent once; they block, and raise `FailedAttempt`. Keys are relative to the source.

    No more is read of a reply than was asked for.
    """

    def head(self, key: str) -> ObjectStat:
        """Return the state of an object."""

    def get(self, key: str, part: Range, etag: str | None) -> Fetched:
        """Return a range of an object, of the version *etag* if given."""

    def list(self, prefix: str) -> ListPage:
        """Return all names below *prefix*, a directory with a slash at its end, or ""."""

    def has_below(self, prefix: str) -> bool:
        """Whether any key begins with *prefix*, a directory with a slash at its end."""


def object_stat(size: int, etag: str | None, modified: int | None) -> ObjectStat:
    """Return the state of an object; its ETag names a version also if the server has no strong ETag for it.

    *modified* is a time in seconds.
    """
    if not 0 <= size <= _MAX_SIZE:
        raise FailedAttempt(NO_SUCH_SIZE)
    seconds = max(0, modified or 0)
    if etag and not etag.startswith("W/"):
        version = etag if etag.startswith('"') else f'"{etag}"'
    elif modified is not None:
        version = f"modified {seconds} with {size} bytes"
    else:
        raise FailedAttempt(NO_VERSION)
    return ObjectStat(size, version, seconds * 10**9)


def modified_of(etag: str) -> int | None:
    """Return the time that names a version; None if a strong ETag does."""
    words = etag.split()
    return int(words[1]) if len(words) == 5 and words[0] == "modified" else None


def check_key(key: str) -> None:
    """Raise `FailedAttempt` for a key that stands for nothing, and that a client or a server might change."""
    try:
        key.encode()
        is_plain = _CONTROL.search(key) is None
    except UnicodeEncodeError:
        is_plain = False
    if not is_plain or any(part in ("", ".", "..") for part in key.split("/")):
        raise FailedAttempt(ABSENT)


def require_version(etag: str | None, stat: ObjectStat) -> None:
    """Raise `FailedAttempt` if the server gave another version than *etag*."""
    if etag is not None and stat.etag != etag:
        raise FailedAttempt(REPLACED)


def read_body(pieces: Iterable[bytes], nbytes: int, timeouts: Timeouts) -> memoryview:
    """Return a body of *nbytes* bytes, which comes in *pieces*."""
    body, begun = bytearray(), time.monotonic()
    for piece in pieces:
        body += piece
        seconds = time.monotonic() - begun
        if len(body) > nbytes:
            raise FailedAttempt(TOO_MUCH)
        if seconds > timeouts.grace and len(body) < timeouts.rate * seconds:
            raise FailedAttempt(SLOW)
    if len(body) < nbytes:
        raise FailedAttempt(CUT_SHORT)
    return memoryview(body)
