"""Signatures of requests without a body: version 4 of AWS, as its reference has it ("Signature Version 4").

What boto3 makes costs as much as the rest of a small request; here the key for a day is kept.
"""

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import urlsplit

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_NOTHING: Final = hashlib.sha256().hexdigest()
"""The checksum of no body."""

_BLOCK: Final = 64
_CHANGED_ON_THE_WAY: Final = {"accept-encoding"}
"""Headers that are not signed, as proxies, and Google's servers, put another one in their place."""

_PORTS: Final = {"http": "80", "https": "443"}


class AccessKey(Protocol):
    """Credentials as they are at one moment."""

    @property
    def access_key(self) -> str:
        """The name of the key."""

    @property
    def secret_key(self) -> str:
        """The key itself."""

    @property
    def token(self) -> str | None:
        """What belongs to a key that is valid for a while."""


def signed_headers(
    key: AccessKey, region: str, method: str, url: str, headers: Mapping[str, str], now: int | None = None
) -> Mapping[str, str]:
    """Return the headers of a request with its signature.

    Path and query of *url* have all that is no plain character as %XX, and the query is in order. *now* is in seconds
    since 1970.
    """
    parts = urlsplit(url)
    when = _words_of(int(time.time()) if now is None else now)
    added = {"x-amz-content-sha256": _NOTHING, "x-amz-date": when}
    if key.token:
        added["x-amz-security-token"] = key.token
    lower = {"host": _host_of(parts.scheme, parts.netloc), **added}
    for name, value in headers.items():
        if name.lower() not in _CHANGED_ON_THE_WAY:
            lower[name.lower()] = " ".join(value.split()) if "  " in value else value
    names = sorted(lower)
    lines = "".join([f"{name}:{lower[name]}\n" for name in names])
    signed = ";".join(names)
    canonical = f"{method}\n{parts.path or '/'}\n{parts.query}\n{lines}\n{signed}\n{_NOTHING}"
    scope = f"{when[:8]}/{region}/s3/aws4_request"
    words = f"{_ALGORITHM}\n{when}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = _key_of_day(key.secret_key, when[:8], region).sign(words.encode()).hex()
    credential = f"Credential={key.access_key}/{scope}"
    authorization = f"{_ALGORITHM} {credential}, SignedHeaders={signed}, Signature={signature}"
    return {**headers, **added, "Authorization": authorization}


class _Hmac:
    """A key of HMAC-SHA256. `hmac` lets other threads go on for each signature, which takes longer than to sign."""

    def __init__(self, key: bytes) -> None:
        key = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def sign(self, words: bytes) -> bytes:
        """Return the signature of *words*."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(words)
        outer.update(inner.digest())
        return outer.digest()


@lru_cache(maxsize=2)
def _words_of(now: int) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"


@lru_cache(maxsize=16)
def _host_of(scheme: str, netloc: str) -> str:
    """Return a host as a request names it: without the port that it has anyway."""
    host, _, port = netloc.rpartition(":")
    return host if port == _PORTS[scheme] else netloc


@lru_cache(maxsize=16)
def _key_of_day(secret: str, day: str, region: str) -> _Hmac:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = _Hmac(key).sign(part.encode())
    return _Hmac(key)
