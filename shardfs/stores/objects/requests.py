"""Requests to what stores objects, its answers as values, and counts of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import trio

from shardfs.errors import StoreError, printable
from shardfs.stores.base import Address

DOCUMENT: Final = "zarr.json"
"""The object that shows that there is an array or a group, if nothing can be listed."""

_MAX_EMPTY_PAGES: Final = 100
_SHOWN: Final = 120
_HEADERS: Final = (
    "BucketKeyEnabled",
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


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as it is counted and named in messages: about the object at *url*, or if that is "", the *container*.

    *is_conditional*: it fails if the object is not as expected. Unless it *is_repeatable*, it must not be sent again
    once it may have been carried out. If the container does not exist, the message ends with *hint*.
    """

    operation: str
    container: str
    url: str = ""
    is_conditional: bool = False
    is_repeatable: bool = True
    hint: str = ""

    @property
    def is_of_object(self) -> bool:
        """Whether it is about an object."""
        return self.url != ""

    @property
    def target(self) -> str:
        """What the request is about, printable and short."""
        if not self.url:
            return self.container
        scheme, _, rest = self.url.partition("://")
        server, _, key = rest.partition("/")
        key = key if len(key) <= _SHOWN else f"…{key[-_SHOWN:]}"  # the end of a key says most
        return printable(f"{scheme}://{server}/{key}" if key else self.url)


class ObjectStat(NamedTuple):
    """One version of an object; *etag* includes the quotes of S3."""

    size: int
    etag: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Properties:
    """What an object has besides its bytes, and keeps when its bytes change.

    *headers* have the names of boto3's arguments (`ContentType`, `StorageClass`, ...); *metadata* is the user's, with
    lower-case names.
    """

    headers: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_new(cls, key: str) -> "Properties":
        """Return the properties of an object that does not exist yet."""
        is_json = key.endswith(".json") or key.rpartition("/")[2].startswith(".z")
        return cls({"ContentType": "application/json" if is_json else "application/octet-stream"})

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> "Properties":
        """Return the properties in a reply of boto3 to GET or HEAD."""
        headers = {name: reply[name] for name in _HEADERS if reply.get(name)}
        if "Expires" in reply and reply.get("ExpiresString"):  # else it is no date, and cannot be sent
            headers["Expires"] = reply["ExpiresString"]
        return cls(headers, dict(reply.get("Metadata", {})))

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments of boto3 that give a new object these properties."""
        return {**self.headers, "Metadata": dict(self.metadata)}


class Range(NamedTuple):
    """*nbytes* bytes from *offset*; a negative offset counts from the end, and *nbytes* is its size."""

    offset: int
    nbytes: int

    def within(self, size: int) -> "Range":
        """Return the part of the range within an object of *size* bytes, counted from the start."""
        offset = max(0, size + self.offset) if self.offset < 0 else min(self.offset, size)
        return Range(offset, min(self.nbytes, size - offset))


class Fetched(NamedTuple):
    """Bytes of the version *stat* of an object, from *offset* on; with *properties* if they were requested."""

    stat: ObjectStat
    offset: int
    data: memoryview
    properties: Properties | None = None


class ListPage(NamedTuple):
    """One page of a listing: objects by full key, common prefixes, and the token of the next page."""

    objects: Sequence[tuple[str, ObjectStat]]
    prefixes: Sequence[str]
    token: str | None


class Location(Protocol):
    """Where a source is."""

    @property
    def bucket(self) -> str:
        """The name of what contains it."""

    @property
    def url(self) -> str:
        """Its URL, as a user may write it."""

    def full(self, key: str) -> str:
        """Return the key in the bucket of a key of the source."""

    def url_of(self, key: str) -> str:
        """Return the URL of a key of the store."""


class Requests(Protocol):
    """Requests that read objects, wherever they are: see `client.Client`."""

    @property
    def location(self) -> Location:
        """Where the source is."""

    @property
    def address(self) -> Address:
        """The permanent name of the source."""

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """What each request holds while it is under way."""

    async def get(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Return a range of at least one byte of an object, of the version *etag* if given; less at its end."""

    def get_blocking(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Do what `get` does, in a worker thread."""

    async def head(self, key: str) -> Fetched:
        """Return the state of an object, and no bytes."""

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        """Return one page of the keys that begin with *prefix*; without *delimiter*, all of them.

        It may be empty though others follow: see `page_with_keys`.
        """


async def page_with_keys(
    requests: Requests, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
) -> ListPage:
    """Return the first page, from *token* on, that is not empty, or else the last one.

    Servers pass over many removed keys, or from one of their machines to another, by pages without keys. Raises
    `StoreError` if these have no end.
    """
    for _ in range(_MAX_EMPTY_PAGES + 1):
        page = await requests.list_page(prefix, delimiter=delimiter, token=token, limit=limit)
        if page.objects or page.prefixes or page.token is None:
            return page
        token = page.token
    where = requests.location.url_of(prefix)
    raise StoreError(f"{where} cannot be listed: the server gives empty pages without end")


@dataclass(slots=True)
class Counts:
    """Running counts; *requests* by S3 operation ("GetObject", ...), counting each that was sent.

    *conflicts* are conditions that did not hold, *retries* the attempts after failed ones: not what was sent again only
    because a connection that was kept open turned out to be closed.
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
