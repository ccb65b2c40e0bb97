"""Requests to one source in a cloud, by obstore.

Every request that fails for a passing reason is repeated, with back-off: all only read. `errors` says what a failure
means.
"""

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import obstore
import trio
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StoreError,
    UnreachableError,
    printable,
)
from shardfs.stores.clouds.errors import (
    ABSENT,
    COMPRESSED,
    CUT_SHORT,
    NO_SUCH_SIZE,
    NO_VERSION,
    OTHER_RANGE,
    REPLACED,
    SLOW,
    TOO_MUCH,
    Cause,
    FailedAttempt,
    Failure,
    failures,
)
from shardfs.stores.clouds.location import CloudLocation
from shardfs.stores.s3.requests import DOCUMENT, Counts, Fetched, ListPage, ObjectStat, Range

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig

T = TypeVar("T")
log = logging.getLogger(__name__)

ATTEMPTS: Final = 4
_FIRST_PAUSE: Final = 0.2
_CHECKED_SECONDS: Final = 0.1
_SHOWN: Final = 200
_MAX_SIZE: Final = 2**63 - 1
_NOWHERE: Final = datetime.fromtimestamp(0, UTC)
"""What obstore has as time of a reply that states none."""

_PROBED: Final = f"shardfs-{uuid4().hex}"
"""A name that nothing has; it has no dot, because servers often refuse names that begin with one."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_VERSION: Final = re.compile(r"modified (\d+) with \d+ bytes")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, of silence, for a whole reply; after *grace*, a body comes at *rate* bytes per second."""

    connect: float = 5.0
    silence: float = 15.0
    whole: float = 3600.0
    grace: float = 15.0
    rate: float = 1024.0


_TIMEOUTS: Final = Timeouts()


class CloudClient:
    """Requests to the source at *location*; all keys are relative to it. *counts* counts them.

    At most *max_connections* requests are made at a time, not counting those of `get_blocking`. Every method raises
    `NotFoundError`, `AccessDeniedError`, `UnreachableError` and `StoreError`, and with a condition `ConflictError`.

    Versions are told apart by strong ETags, else by Last-Modified and size; a reply with neither is refused. A web
    server that refuses access to whatever does not exist (403), as S3 does without the permission to list, says so of
    names that nothing has; then, and if the *document* of the source can be read, 403 means absent. Both are asked for
    at each 403, because a firewall may refuse anything for a while.
    """

    document = DOCUMENT

    def __init__(self, location: CloudLocation, *, max_connections: int = 64, timeouts: Timeouts = _TIMEOUTS) -> None:
        self.location = location
        self.address = location.address
        self.counts = Counts()
        self.limiter = trio.CapacityLimiter(max_connections)
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._store: AzureStore | GCSStore | HTTPStore | None = None
        self._has_warned = False

    def ask_for(self, document: str) -> None:
        """Take *document* for that of the source from now on."""
        self.document = document

    async def get(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Return a range of at least one byte of an object, of the version *etag* if given; less at its end."""
        return await self._in_thread(partial(self.get_blocking, key, part, etag=etag))

    def get_blocking(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Do what `get` does, in a worker thread."""
        with self._errors("GET", key):
            fetched = self._fetch(key, part, etag)
        with self._lock:
            self.counts.bytes_received += fetched.data.nbytes
        return fetched

    async def head(self, key: str) -> Fetched:
        """Return the state of an object, and no bytes."""
        stat = await self._in_thread(partial(self._head, key))
        return Fetched(stat, 0, memoryview(b""))

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        """Return all names below *prefix*, a directory with a slash at its end, or ""; obstore has no pages of them."""
        return await self._in_thread(partial(self._list, prefix))

    async def has_below(self, prefix: str) -> bool:
        """Whether any key begins with *prefix*, a directory with a slash at its end."""
        return await self._in_thread(partial(self._has_below, prefix))

    async def is_there(self, key: str) -> bool:
        """Whether the server says that *key* exists."""
        try:
            await self.head(key)
        except NotFoundError:
            return False
        return True

    async def has_nonsense(self) -> bool:
        """Whether the server has something under a name that nothing has, as pages of errors that say success."""
        return await self.is_there(_PROBED)

    def _fetch(self, key: str, part: Range, etag: str | None) -> Fetched:
        try:
            return self._send("GetObject", key, lambda: self._get(key, part, etag))
        except FailedAttempt as failed:
            if failed.failure.cause is not Cause.NO_RANGE:
                raise
            # It may be empty, or shorter; and not all servers count from the end.
            stat = self._head(key)
            _require(etag, stat)
            wanted = part.within(stat.size)
            if not wanted.nbytes:
                return Fetched(stat, wanted.offset, memoryview(b""))
            if part.offset >= 0:
                raise
        return self._send("GetObject", key, lambda: self._get(key, wanted, stat.etag))

    def _head(self, key: str) -> ObjectStat:
        with self._errors("HEAD", key):
            return self._send("HeadObject", key, lambda: self._attempt_head(key))

    def _attempt_head(self, key: str) -> ObjectStat:
        with failures():
            return _stat_of(obstore.head(self._obstore(), self._full(key)))

    def _get(self, key: str, part: Range, etag: str | None) -> Fetched:
        options: GetOptions = {
            "range": {"suffix": part.nbytes} if part.offset < 0 else (part.offset, part.offset + part.nbytes)
        }
        if etag is not None:
            modified = _VERSION.fullmatch(etag)
            if modified is None:
                options["if_match"] = etag
            else:
                options["if_unmodified_since"] = datetime.fromtimestamp(int(modified[1]), UTC)
        with failures():
            result = obstore.get(self._obstore(), self._full(key), options=options)
            stat = _stat_of(result.meta)
            if str(result.attributes.get("Content-Encoding") or "identity") != "identity":
                raise FailedAttempt(COMPRESSED)
            _require(etag, stat)
            expected, (start, stop) = part.within(stat.size), result.range
            if (start, stop - start) != expected:
                raise FailedAttempt(OTHER_RANGE)
            return Fetched(stat, start, self._body(result.stream(min_chunk_size=1), stop - start))

    def _body(self, pieces: Iterator[Any], nbytes: int) -> memoryview:
        body, begun = bytearray(), time.monotonic()
        for piece in pieces:
            body += piece
            seconds = time.monotonic() - begun
            if len(body) > nbytes:
                raise FailedAttempt(TOO_MUCH)
            if seconds > self._timeouts.grace and len(body) < self._timeouts.rate * seconds:
                raise FailedAttempt(SLOW)
        if len(body) < nbytes:
            raise FailedAttempt(CUT_SHORT)
        return memoryview(body)

    def _list(self, prefix: str) -> ListPage:
        full, start = self.location.full(prefix), len(self.location.full(""))

        def attempt() -> ListPage:
            with failures():
                listing = obstore.list_with_delimiter(self._obstore(), full or None)
                objects = [(meta["path"][start:], _stat_of(meta)) for meta in listing["objects"]]
                return ListPage(objects, [f"{name[start:].rstrip('/')}/" for name in listing["common_prefixes"]], None)

        with self._errors("LIST", prefix):
            return self._send("ListObjects", prefix, attempt)

    def _has_below(self, prefix: str) -> bool:
        def attempt() -> bool:
            with failures():
                return bool(next(iter(obstore.list(self._obstore(), self.location.full(prefix), chunk_size=1)), ()))

        with self._errors("LIST", prefix):
            return self._send("ListObjects", prefix, attempt)

    def _send(self, operation: str, key: str, attempt: Callable[[], T]) -> T:
        """Return the result of *attempt*; raises the last `FailedAttempt`."""
        nsilent = 0
        for number in range(1, ATTEMPTS + 1):
            with self._lock:
                self.counts.requests[operation] += 1
                self.counts.retries += number > 1
            try:
                return attempt()
            except FailedAttempt as failed:
                failure = failed.failure
                nsilent += failure.is_unreachable
                if not failure.is_passing or number == ATTEMPTS or nsilent == 2:
                    raise
                log.warning("%s of %s: %s; trying again", operation, self._shown(key), failure.reason)
            _pause(random.uniform(0, _FIRST_PAUSE * 2**number))  # noqa: S311 - nothing is kept secret
        raise AssertionError

    @contextmanager
    def _errors(self, method: str, key: str) -> Iterator[None]:
        """Turn `FailedAttempt` into what the methods of a client raise; all of them do their work in such a block."""
        try:
            yield
        except FailedAttempt as failed:
            raise self._error(method, key, failed.failure) from None

    def _error(self, method: str, key: str, failure: Failure) -> ShardfsError:
        target, status = self._shown(key), failure.status
        if method == "LIST" and status == 404:
            what = "container" if self.location.scheme == "az" else "bucket"
            return StoreError(f"the {what} {self.location.bucket} does not exist")
        if status in (404, 410) or (status == 403 and self._means_absent(key)):
            return NotFoundError(f"{key} does not exist")
        if status in (401, 403, 407):
            return AccessDeniedError(f"{target} may not be read (status {status}){_ANONYMOUS.get(status, '')}")
        if status == 412:
            with self._lock:
                self.counts.conflicts += 1
            return ConflictError(f"{target} was replaced")
        kind = UnreachableError if failure.is_unreachable else StoreError
        return kind(f"{method} of {target} failed: {failure.reason}")

    def _means_absent(self, key: str) -> bool:
        """Whether 403 for *key* means that nothing is there."""
        if not self.location.is_web or key in (self.document, _PROBED):
            return key == _PROBED
        try:
            # In this order: where the source can be read again, the name that nothing has is not refused any more.
            means_absent = self._status_of(self.document) == 200 and self._status_of(_PROBED) == 403
        except FailedAttempt:
            return False
        with self._lock:
            is_first = means_absent and not self._has_warned
            self._has_warned |= means_absent
        if is_first:
            log.warning(
                "%s answers 403 for names that do not exist: what it refuses is taken for absent", self.location.url
            )
        return means_absent

    def _status_of(self, key: str) -> int:
        try:
            self._send("HeadObject", key, lambda: self._attempt_head(key))
        except FailedAttempt as failed:
            if not failed.failure.status:
                raise
            return failed.failure.status
        return 200

    def _shown(self, key: str) -> str:
        url = self.location.url_of(key)
        return printable(url if len(url) <= _SHOWN else f"…{url[-_SHOWN:]}")

    def _full(self, key: str) -> str:
        """Return the key for obstore, which rejects or changes some; those stand for nothing."""
        full = self.location.full(key)
        try:
            full.encode()
            is_plain = _CONTROL.search(full) is None
        except UnicodeEncodeError:
            is_plain = False
        if not is_plain or any(part in ("", ".", "..") for part in full.split("/")):
            raise FailedAttempt(ABSENT)
        return full

    def _obstore(self) -> AzureStore | GCSStore | HTTPStore:
        with self._lock:  # created on first use: after a fork it would hang
            if self._store is None:
                self._store = make_store(self.location, self._timeouts)
            return self._store

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self.limiter)


_ANONYMOUS: Final = {401: ": it wants a name and a password, and shardfs sends none to web servers"}


_SETTINGS: Final = {
    "az": "AZURE_STORAGE_ACCOUNT_NAME, or another setting of Azure in the environment, is missing or invalid",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or another setting of Google in the environment, is missing or invalid",
}
_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")
"""Variables that name a server other than that of the cloud, such as an emulator."""


def make_store(location: CloudLocation, timeouts: Timeouts = _TIMEOUTS) -> AzureStore | GCSStore | HTTPStore:
    """Return the client of obstore for *location*; it takes credentials for buckets from the environment."""
    client_options: ClientConfig = {
        "allow_http": location.scheme == "http" or any(os.environ.get(n, "").startswith("http:") for n in _ENDPOINTS),
        "connect_timeout": timedelta(seconds=timeouts.connect),
        "read_timeout": timedelta(seconds=timeouts.silence),
        "timeout": timedelta(seconds=timeouts.whole),
        "default_headers": {"accept-encoding": "identity"},
    }
    retry_config: Any = {"max_retries": 0}
    try:
        match location.scheme:
            case "gs":
                return GCSStore(location.bucket, client_options=client_options, retry_config=retry_config)
            case "az":
                return AzureStore(location.bucket, client_options=client_options, retry_config=retry_config)
            case _:
                return HTTPStore(location.url, client_options=client_options, retry_config=retry_config)
    except (BaseError, ValueError):
        raise SourceError(
            f"{location.url} cannot be opened: {_SETTINGS.get(location.scheme, 'the URL is not valid')}"
        ) from None


def _require(etag: str | None, stat: ObjectStat) -> None:
    """Raise `FailedAttempt` if the server gave another version than *etag*."""
    if etag is not None and stat.etag != etag:
        raise FailedAttempt(REPLACED)


def _stat_of(meta: Mapping[str, Any]) -> ObjectStat:
    """Return the state of an object; its ETag names a version also if the server has no strong ETag for it."""
    etag, modified, size = meta["e_tag"], meta["last_modified"], meta["size"]
    if not 0 <= size <= _MAX_SIZE:
        raise FailedAttempt(NO_SUCH_SIZE)
    seconds = int(modified.timestamp())
    if etag and not etag.startswith("W/"):
        version = etag if etag.startswith('"') else f'"{etag}"'
    elif modified != _NOWHERE:
        version = f"modified {max(0, seconds)} with {size} bytes"
    else:
        raise FailedAttempt(NO_VERSION)
    return ObjectStat(size, version, max(0, seconds) * 10**9)


def _pause(seconds: float) -> None:
    """Sleep; if the caller's task is cancelled meanwhile, end with that."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        with suppress(RuntimeError):  # outside trio's threads there is no cancellation
            trio.from_thread.check_cancelled()
        time.sleep(min(rest, _CHECKED_SECONDS))
