"""What one server is asked, once, and what its replies mean: `Service`, of which each kind of server is a subclass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Final
from urllib.parse import quote

from shardfs.errors import NotFoundError, UnsupportedError
from shardfs.stores.base import Address
from shardfs.stores.objects import replies
from shardfs.stores.objects.failures import (
    COMPRESSED,
    NO_CONTENT_RANGE,
    NOT_PARTIAL,
    OTHER_RANGE,
    OTHER_VERSION,
    TOO_LONG,
    TOO_MUCH,
    TRUNCATED,
    FailedRequest,
    Failure,
)
from shardfs.stores.objects.http import Http, Judge, Reply
from shardfs.stores.objects.pace import PATIENCE, TIMEOUTS, Timeouts, Trouble
from shardfs.stores.objects.requests import Fetched, ListPage, Location, ObjectStat, Properties, Range, Request

_OK: Final = 200
_PARTIAL: Final = 206
_NOT_FOUND: Final = 404
_GONE: Final = 410
_NAMED: Final = frozenset({"NoSuchBucket", "NoSuchKey"})
_NOTHING: Final = memoryview(b"")


class Service(ABC):
    """Requests that read the source at *location*; each is sent once, blocks, and raises `FailedRequest`.

    Keys are relative to the source. No more is read of a reply than was asked for. A subclass says what URLs there are,
    how requests are signed, how failures are called, and what the server honours.
    """

    kind: str = "bucket"
    """What the service calls that which contains objects."""
    hint: str = ""
    """What is said after the words that there is no such container."""
    counts_from_end: bool = True
    """Whether it has ranges that count from the end."""
    not_partial: Failure = NOT_PARTIAL
    """What is said if it gives no parts of objects."""
    keeps_encodings: bool = False
    """Whether objects that are stored compressed come as they are stored."""

    def __init__(
        self,
        location: Location,
        address: Address,
        timeouts: Timeouts = TIMEOUTS,
        *,
        certificates: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.location = location
        self.address = address
        self.timeouts = timeouts
        self.trouble = Trouble(patience)
        self._http = Http(timeouts, certificates)

    def request(
        self, operation: str, key: str | None = None, *, is_conditional: bool = False, is_repeatable: bool = True
    ) -> Request:
        """Return a request for an object, as it is counted and named; without *key*, for the container.

        Raises `NotFoundError` for a name that cannot be a key, and so was never stored.
        """
        url = "" if key is None else self.location.url_of(key)
        require_utf8(url)
        container = f"the {self.kind} {self.location.bucket}"
        return Request(operation, container, url, is_conditional, is_repeatable, self.hint)

    def head(self, key: str, etag: str | None = None) -> Fetched:
        """Return state and properties of an object, and no bytes."""
        reply = self._send("HEAD", "HeadObject", self._url(key), _condition(etag), lambda status, headers: 0)
        stat = self._stat(replies.content_length(reply.headers), reply.headers)
        return Fetched(stat, 0, _NOTHING, self._properties(reply.headers))

    def get(self, key: str, part: Range, etag: str | None, *, with_properties: bool = False) -> Fetched:
        """Return a range of an object, of the version *etag* if given, and its properties if wanted.

        A range that counts from the end is only for a service that does.
        """
        last = "" if part.offset < 0 else str(part.offset + part.nbytes - 1)
        wanted = f"bytes=-{part.nbytes}" if part.offset < 0 else f"bytes={part.offset}-{last}"
        stat, offset = ObjectStat(0, "", 0), 0

        def judge(status: int, headers: Mapping[str, str]) -> int:
            nonlocal stat, offset
            found = replies.content_range(headers)
            if status != _PARTIAL or found is None:
                raise FailedRequest(NO_CONTENT_RANGE if status == _PARTIAL else self.not_partial)
            self._require_plain(headers)
            offset, nbytes, size = found
            stat = self._stat(size, headers)
            if etag is not None and stat.etag != etag:
                raise FailedRequest(OTHER_VERSION)
            if (offset, nbytes) != part.within(size):
                raise FailedRequest(OTHER_RANGE)
            length = headers.get("content-length")
            if length is not None and length != str(nbytes):
                raise FailedRequest(TOO_MUCH if replies.states_more(length, nbytes) else TRUNCATED)
            return nbytes

        reply = self._send("GET", "GetObject", self._url(key), {"Range": wanted, **_condition(etag)}, judge)
        if reply.body.nbytes != part.within(stat.size).nbytes:
            raise FailedRequest(TRUNCATED)
        return Fetched(stat, offset, reply.body, self._properties(reply.headers) if with_properties else None)

    def list_page(self, prefix: str, delimiter: str, token: str | None, limit: int) -> ListPage:
        """Return one page of the keys that begin with *prefix*; without *delimiter*, all of them."""
        raise UnsupportedError(f"{self.location.url} cannot be listed: a {self.kind} like this lists nothing")

    def container_check(self) -> Callable[[], None] | None:
        """Return what fails if there is no container, if HEAD of an object does not tell that; else None."""
        return None

    def is_mute(self, failure: Failure) -> bool:
        """Whether a *failure* of HEAD leaves open what GET would say, as a body has to say it."""
        return False

    def take_resent(self) -> int:
        """Return how often requests of this thread were sent again, since the last call, without anybody asking."""
        return self._http.take_resent()

    def _send(
        self,
        method: str,
        operation: str,
        url: str,
        headers: Mapping[str, str],
        judge: Judge,
        *,
        excess: Failure = TOO_MUCH,
    ) -> Reply:
        """Return a reply that is a success."""
        silence = self.timeouts.of(operation, is_doubtful=self.trouble.is_old())
        headers = {"Accept-Encoding": "identity", **headers}
        url = self._full_url(url)
        reply = self._http.send(method, url, headers, judge, sign=self._signed, excess=excess, silence=silence)
        if not reply.is_success or reply.status < _OK:
            raise FailedRequest(self._failure(reply))
        return reply

    def _full_url(self, url: str) -> str:
        """Return a URL with all that is part of no other; redirects do not get it."""
        return url

    def _require_plain(self, headers: Mapping[str, str]) -> None:
        if not self.keeps_encodings and headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise FailedRequest(COMPRESSED)

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return *headers* with all that the server wants to see."""
        return headers

    def _failure(self, reply: Reply) -> Failure:
        """Return what a reply means that is no success."""
        return Failure.of_reply(reply.status, replies.code_of(reply.body))

    def _stat(self, size: int, headers: Mapping[str, str]) -> ObjectStat:
        """Return the state of an object of *size* bytes, with the headers of GET or HEAD."""
        return replies.strict_stat(size, headers.get("etag"), replies.last_modified(headers))

    def _properties(self, headers: Mapping[str, str]) -> Properties | None:
        """Return what a change has to keep; None where nothing is changed."""
        return None

    @abstractmethod
    def _url(self, key: str) -> str:
        """Return the URL of an object, with all that is no plain character as %XX."""


class BucketService(Service):
    """A service that lists, by default in the words of S3, which are those of Google, too."""

    def container_check(self) -> Callable[[], None] | None:
        """Return what fails if there is no bucket: HEAD of an object says the same of that."""
        return self._head_container

    def _head_container(self) -> None:
        self._send("HEAD", "HeadBucket", self._container_url(), {}, lambda status, headers: 0)

    def list_page(self, prefix: str, delimiter: str, token: str | None, limit: int) -> ListPage:
        """Return one page of the keys that begin with *prefix*; without *delimiter*, all of them."""
        full, start = self.location.full(prefix), len(self.location.full(""))
        url = f"{self._container_url()}?{query(self._listing(full, delimiter, token, limit))}"
        reply = self._send("GET", "ListObjectsV2", url, {}, _judge_xml, excess=TOO_LONG)
        return replies.below(self._page(reply.body), full, start)

    @abstractmethod
    def _container_url(self) -> str:
        """Return the URL of the bucket."""

    def _url(self, key: str) -> str:
        return f"{self._container_url().rstrip('/')}/{path(self.location.full(key))}"

    def _listing(self, full: str, delimiter: str, token: str | None, limit: int) -> dict[str, str]:
        """Return the query for a page of the keys in the bucket that begin with *full*."""
        wanted = {"list-type": "2", "prefix": full, "max-keys": str(limit), "encoding-type": "url"}
        if delimiter:
            wanted["delimiter"] = delimiter
        return wanted | ({} if token is None else {"continuation-token": token})

    def _failure(self, reply: Reply) -> Failure:
        """Return what a reply means that is no success."""
        return vague_unless_named(super()._failure(reply))

    def _page(self, body: memoryview) -> ListPage:
        """Return the page in a reply, with full keys."""
        return replies.s3_page(body)


def vague_unless_named(failure: Failure) -> Failure:
    """Return a failure; one that names nothing that is missing may come from anything else at the address.

    So may all replies to HEAD, which have no body to name anything.
    """
    is_vague = failure.status in (_NOT_FOUND, _GONE) and failure.code not in _NAMED
    return replace(failure, is_vague=failure.is_vague or is_vague)


def query(values: Mapping[str, str]) -> str:
    """Return the query of a URL; values have all that is no plain character as %XX."""
    return "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(values.items()))


def path(key: str) -> str:
    """Return a key as the path of a URL."""
    return quote(key, safe="/-_.~")


def require_utf8(key: str) -> None:
    """Raise `NotFoundError` for a name that cannot be a key, and so was never stored."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise NotFoundError(f"{key} does not exist: it is not UTF-8, as all keys of S3 are") from None


def _condition(etag: str | None) -> dict[str, str]:
    """Return the header by which a request depends on the version *etag*."""
    modified = replies.modified_of(etag) if etag is not None else None
    if modified is not None:
        return {"If-Unmodified-Since": formatdate(modified, usegmt=True)}
    return {} if etag is None else {"If-Match": etag}


def _judge_xml(status: int, headers: Mapping[str, str]) -> int:
    if status != _OK:
        raise FailedRequest(Failure.of_reply(status, ""))
    return replies.require_xml(headers)
