"""Where a remote source is, from its URL."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from shardfs.errors import SourceError, without_secrets
from shardfs.stores.base import Address

SCHEMES: Final = ("http", "https", "gs", "az")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_MAX_NBYTES: Final = 1000
"""A key has at most 1024 bytes, and something follows the prefix."""

_S3: Final = "s3://"
_SAFE: Final = "/%:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class S3Location:
    """A part of a bucket: the objects whose keys begin with *prefix* and a slash, or all if it is ""."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> "S3Location":
        """Return the location in an `s3://` URL; raises `SourceError`.

        Names are taken literally: `%20` or `#` is part of the key. But ? may begin a signature, and is refused; what is
        refused is shown without secrets. Slashes at the end are ignored.
        """
        shown = without_secrets(url)
        if not url.startswith(_S3):
            raise SourceError(f"{shown} is not an s3:// URL")
        bucket, _, prefix = url.removeprefix(_S3).partition("/")
        if "@" in bucket:
            raise SourceError(f"{shown}: an s3:// URL has no credentials in it; use the environment, or --profile")
        if "?" in url:
            raise SourceError(
                f"{shown} has a query, which shardfs does not send: credentials come from the environment, or "
                "--profile; if ? is part of a key, open a prefix above it"
            )
        if not _BUCKET.fullmatch(bucket):
            raise SourceError(f"{shown} names no bucket; write for example s3://bucket/path/data.zarr")
        prefix = prefix.rstrip("/")
        if any(part in (".", "..") for part in prefix.split("/")):
            raise SourceError(f"{shown} has . or .. in it, which mean nothing in a bucket")
        try:
            nbytes = len(prefix.encode())
        except UnicodeEncodeError:
            raise SourceError(f"{shown} is not UTF-8, as all keys of S3 are") from None
        if nbytes > _MAX_NBYTES:
            raise SourceError(f"an s3:// URL with a path of {nbytes} bytes is too long: keys have at most 1024 bytes")
        return cls(bucket, prefix)

    @property
    def url(self) -> str:
        """The URL, as a user may write it."""
        return self.url_of("")

    def address(self, endpoint_url: str) -> Address:
        """Return the permanent name of the source; all servers of AWS have the same buckets."""
        is_aws = (urlsplit(endpoint_url).hostname or "").endswith(".amazonaws.com")
        return Address(self.url, "" if is_aws else endpoint_url.rstrip("/"))

    def url_of(self, key: str) -> str:
        """Return the URL of a key of the store."""
        full = self.full(key).removesuffix("/")
        return f"s3://{self.bucket}/{full}" if full else f"s3://{self.bucket}"

    def full(self, key: str) -> str:
        """Return the key in the bucket of a key of the source."""
        return f"{self.prefix}/{key}" if self.prefix else key


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """What is below one URL. *base* is the URL of the server, or of the bucket, and *prefix* the rest, if any."""

    scheme: str
    base: str
    prefix: str

    @classmethod
    def parse(cls, source: str) -> "CloudLocation":
        """Return the location in a URL of one of the `SCHEMES`; raises `SourceError`, which repeats no secret.

        In a bucket, names are taken literally: `%20` is part of the key; but ? and # may begin a signature, and are
        refused. Slashes at the end are ignored.
        """
        shown = without_secrets(source)
        scheme, _, rest = source.partition("://")
        scheme = scheme.lower()
        is_web = scheme in ("http", "https")
        host, _, path = rest.partition("/")
        path = path.rstrip("/")
        if "@" in host:
            raise SourceError(f"{shown} holds a name or a password, which shardfs does not send")
        if "?" in rest or "#" in rest:
            way = "; in a path, ? and # are %3F and %23" if is_web else ": credentials come from the environment"
            raise SourceError(f"{shown} has a query or a fragment, which shardfs does not send{way}")
        if any(part in (".", "..") for part in path.split("/")) or any(char < " " for char in source):
            raise SourceError(f"{shown} has . or .. or a control character in its path, which mean nothing there")
        try:
            nbytes = len(path.encode())
            is_server = bool(urlsplit(f"{scheme}://{host}").hostname) and urlsplit(f"{scheme}://{host}").port != 0
        except ValueError:  # of the port, or of the encoding
            raise SourceError(f"{shown} is not a valid URL") from None
        if nbytes > _MAX_NBYTES:
            raise SourceError(f"a URL with a path of {nbytes} bytes is too long for a source")
        if is_web and not is_server:
            raise SourceError(f"{shown} names no server; write for example https://example.org/path/data.zarr")
        if not is_web and not _BUCKET.fullmatch(host):
            what = "container" if scheme == "az" else "bucket"
            raise SourceError(f"{shown} names no {what}; write for example {scheme}://{what}/path/data.zarr")
        return cls(scheme, f"{scheme}://{host}", quote(path, safe=_SAFE) if is_web else path)

    @property
    def is_web(self) -> bool:
        """Whether it is on a web server, which lists nothing, and not in a bucket."""
        return self.scheme in ("http", "https")

    @property
    def bucket(self) -> str:
        """The name of the bucket, or of the server."""
        return self.base.partition("://")[2]

    @property
    def url(self) -> str:
        """The URL, as a user may write it."""
        return f"{self.base}/{self.prefix}" if self.prefix else self.base

    @property
    def address(self) -> Address:
        """The permanent name of the source."""
        return Address(self.url)

    def url_of(self, key: str) -> str:
        """Return the URL of a key of the store."""
        name = quote(key, errors="surrogateescape") if self.is_web else key
        return f"{self.url}/{name.removesuffix('/')}" if key else self.url

    def full(self, key: str) -> str:
        """Return the key as the service knows it, which in a bucket begins at its root."""
        return f"{self.prefix}/{key}" if self.prefix and not self.is_web else key
