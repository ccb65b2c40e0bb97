"""What is said of S3 objects: state, properties, conditions, pages of listings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

TRANSACTIONS: Final = "shardfs-transactions"
"""The name in an object's user metadata under which the changes that made it are listed, the latest last."""


class ObjectStat(NamedTuple):
    """State of one version of an object; *etag* is as S3 quotes it."""

    size: int
    etag: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Properties:
    """What an object has besides its bytes, and keeps when its bytes change.

    *headers* are by the names of boto3's arguments (`ContentType`, `CacheControl`, `StorageClass`,
    `ServerSideEncryption`, ...); *metadata* is the user's, with lower-case names.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


class Range(NamedTuple):
    """*nbytes* bytes from *offset*; a negative offset counts from the end, and then they are that many."""

    offset: int
    nbytes: int


class Fetched(NamedTuple):
    """Bytes of an object from *offset* on, and the state of the version that they are of; *properties* if asked for."""

    stat: ObjectStat
    offset: int
    data: memoryview
    properties: Properties | None = None


class ListPage(NamedTuple):
    """One page of a listing: objects by their full keys, common prefixes, and what the next page begins with."""

    objects: Sequence[tuple[str, ObjectStat]]
    prefixes: Sequence[str]
    token: str | None


class Upload(NamedTuple):
    """A multipart upload that is under way; *initiated* in seconds since 1970."""

    key: str
    upload_id: str
    initiated: float


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of an object when it is changed: that it has the ETag *etag*, or that there is none."""

    etag: str | None
    """None: there must be no object."""
