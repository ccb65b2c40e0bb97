"""Signatures of requests without a body: version 4 of AWS, as its reference has it ("Signature Version 4").

What boto3 makes costs as much as the rest of a small request; here the key for a day is kept.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import urlsplit

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_NOTHING: Final = hashlib.sha256().hexdigest()
"""The checksum of no body."""

_PORTS: Final = {"http": 80, "https": 443}


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
    key: AccessKey, region: str, method: str, url: str, headers: Mapping[str, str], now: datetime | None = None
) -> Mapping[str, str]:
    """Return the headers of a request with its signature.

    Path and query of *url* have all that is no plain character as %XX, and the query is in order.
    """
    parts = urlsplit(url)
    when = f"{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    added = {"x-amz-content-sha256": _NOTHING, "x-amz-date": when}
    if key.token:
        added["x-amz-security-token"] = key.token
    host = parts.netloc if parts.port != _PORTS[parts.scheme] else parts.netloc.rpartition(":")[0]
    lower = {name.lower(): value for name, value in headers.items()} | added | {"host": host}
    names = sorted(lower)
    lines = "".join([f"{name}:{' '.join(lower[name].split())}\n" for name in names])
    signed = ";".join(names)
    canonical = f"{method}\n{parts.path or '/'}\n{parts.query}\n{lines}\n{signed}\n{_NOTHING}"
    scope = f"{when[:8]}/{region}/s3/aws4_request"
    words = f"{_ALGORITHM}\n{when}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(_key_of_day(key.secret_key, when[:8], region), words.encode(), "sha256").hex()
    credential = f"Credential={key.access_key}/{scope}"
    authorization = f"{_ALGORITHM} {credential}, SignedHeaders={signed}, Signature={signature}"
    return {**headers, **added, "Authorization": authorization}


@lru_cache(maxsize=16)
def _key_of_day(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
