"""What is asked of S3 and what it answers, as values, and the counts of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from shardfs.errors import printable

_SHOWN: Final = 120
_HEADERS: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "SSEKMSKeyId",
    "ServerSideEncryption",
    "StorageClass",
    "WebsiteRedirectLocation",
)
_BUCKET_KEY: Final = "BucketKeyEnabled"


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as it is counted and named in messages; *key* is "" if it concerns the bucket.

    *is_conditional*: it fails if the object is not as expected.  Not *is_repeatable*: it must not be sent again once it
    may have been carried out.
    """

    operation: str
    bucket: str
    key: str = ""
    is_conditional: bool = False
    is_repeatable: bool = True

    @property
    def target(self) -> str:
        """What the request is about, printable and short."""
        if not self.key:
            return f"the bucket {self.bucket}"
        key = self.key if len(self.key) <= _SHOWN else f"…{self.key[-_SHOWN:]}"  # the end of a key tells most
        return printable(f"s3://{self.bucket}/{key}")


class ObjectStat(NamedTuple):
    """One version of an object; *etag* is in the quotes of S3."""

    size: int
    etag: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Properties:
    """What an object has besides its bytes, and keeps when its bytes change.

    *headers* have the names of boto3's arguments (`ContentType`, `StorageClass`, ...); *metadata* is the user's, with
    lower-case names.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> "Properties":
        """Return the properties in a reply of boto3 to GET or HEAD."""
        headers = {name: str(reply[name]) for name in _HEADERS if reply.get(name)}
        if reply.get(_BUCKET_KEY):
            headers[_BUCKET_KEY] = "true"
        if "Expires" in reply:  # else it is no date, and could not be sent
            headers["Expires"] = str(reply["ExpiresString"])
        return cls(headers, dict(reply.get("Metadata", {})))

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments of boto3 that give a new object these properties."""
        arguments: dict[str, Any] = {**self.headers, "Metadata": dict(self.metadata)}
        if _BUCKET_KEY in arguments:
            arguments[_BUCKET_KEY] = True
        return arguments


class Range(NamedTuple):
    """*nbytes* bytes from *offset*; a negative offset counts from the end, and then they are that many."""

    offset: int
    nbytes: int

    def within(self, size: int) -> "Range":
        """Return the part of the range that an object of *size* bytes has, counted from the start."""
        offset = max(0, size + self.offset) if self.offset < 0 else min(self.offset, size)
        return Range(offset, min(self.nbytes, size - offset))


class Fetched(NamedTuple):
    """Bytes of the version *stat* of an object, from *offset* on; with *properties* if they were asked for."""

    stat: ObjectStat
    offset: int
    data: memoryview
    properties: Properties | None = None


class ListPage(NamedTuple):
    """One page of a listing: objects by full key, common prefixes, and the token of the next page."""

    objects: Sequence[tuple[str, ObjectStat]]
    prefixes: Sequence[str]
    token: str | None


class Upload(NamedTuple):
    """A multipart upload under way; *initiated* in seconds since 1970."""

    upload_id: str
    initiated: float


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a change: the object has the ETag *etag*, or if that is None, there is no object."""

    etag: str | None


@dataclass(slots=True)
class Counts:
    """Running counts; *requests* by S3 operation ("GetObject", ...), each attempt counted.

    *conflicts* are conditions that did not hold, *retries* the attempts beyond each first.
    """

    requests: Counter[str] = field(default_factory=Counter)
    bytes_received: int = 0
    bytes_sent: int = 0
    retries: int = 0
    conflicts: int = 0
    cache_hits: int = 0
    cache_bytes: int = 0
    cache_damaged: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the counts as plain values."""
        return asdict(self) | {"requests": dict(sorted(self.requests.items()))}
