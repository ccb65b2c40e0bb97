"""Where an S3 source is, and how to get there."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from shardfs.errors import SourceError
from shardfs.stores.base import Address

DOCUMENT: Final = "zarr.json"
"""The object that says that there is an array or a group, where nothing can be listed."""

_SCHEME: Final = "s3://"
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_MAX_PREFIX: Final = 1000
"""A key has at most 1024 bytes, and something follows the prefix."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach S3; what is None comes from the environment and the AWS configuration files, as boto3 finds it."""

    profile: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    anonymous: bool = False
    request_payer: bool = False
    max_connections: int = 64


@dataclass(frozen=True, slots=True)
class Location:
    """A part of a bucket: the objects whose keys begin with *prefix* and a slash, or all if it is ""."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Return what an `s3://` URL names; raises `SourceError`.

        Names are taken as they are: a `%20`, a `?` or a `#` is a part of the key.  Slashes at the end mean nothing.
        """
        if not url.startswith(_SCHEME):
            raise SourceError(f"{url} is not an s3:// URL")
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if "@" in bucket:
            # It is not quoted: what stands before the @ may be a secret.
            raise SourceError("an s3:// URL has no credentials in it; use the environment, or --profile")
        if not _BUCKET.fullmatch(bucket):
            raise SourceError(f"{url} names no bucket; write for example s3://bucket/path/data.zarr")
        prefix = prefix.rstrip("/")
        if any(part in (".", "..") for part in prefix.split("/")):
            raise SourceError(f"{url} has . or .. in it, which mean nothing in a bucket")
        try:
            nbytes = len(prefix.encode())
        except UnicodeEncodeError:
            raise SourceError(f"{url} is not UTF-8, as all keys of S3 are") from None
        if nbytes > _MAX_PREFIX:
            raise SourceError(f"an s3:// URL with a path of {nbytes} bytes is too long: keys have at most 1024 bytes")
        return cls(bucket, prefix)

    @property
    def url(self) -> str:
        """The URL, as a user may write it."""
        return self.url_of("")

    def address(self, endpoint_url: str) -> Address:
        """Return what names the source for good; the servers of AWS all have the same buckets."""
        is_aws = (urlsplit(endpoint_url).hostname or "").endswith(".amazonaws.com")
        return Address(self.url, "" if is_aws else endpoint_url.rstrip("/"))

    def url_of(self, key: str) -> str:
        """Return the URL of a key of the store."""
        full = self.object_key(key).removesuffix("/")
        return f"s3://{self.bucket}/{full}" if full else f"s3://{self.bucket}"

    def object_key(self, key: str) -> str:
        """Return the full object key of a key of the store; of the source itself, with its slash."""
        if not key:
            return f"{self.prefix}/" if self.prefix else ""
        return f"{self.prefix}/{key}" if self.prefix else key

    def directory_prefix(self, key: str) -> str:
        """Return what the object keys below a directory of the store begin with."""
        full = self.object_key(key)
        return full if not full or full.endswith("/") else full + "/"
