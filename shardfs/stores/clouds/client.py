"""Requests to one source in a cloud, or on a web server.

Every request that fails for a passing reason is repeated, with back-off: all only read. `errors` says what a failure
means.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

import trio

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    ShardfsError,
    StoreError,
    UnreachableError,
    printable,
)
from shardfs.stores.clouds.attempts import Attempts, require_version
from shardfs.stores.clouds.errors import Cause, FailedAttempt, Failure
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.requests import (
    DOCUMENT,
    Counts,
    Fetched,
    ListPage,
    ObjectStat,
    Range,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

ATTEMPTS: Final = 4
_FIRST_PAUSE: Final = 0.2
_CHECKED_SECONDS: Final = 0.1
_SHOWN: Final = 200

_PROBED: Final = f"shardfs-{uuid4().hex}"
"""A name that nothing has; it has no dot, because servers often refuse names that begin with one."""


class CloudClient:
    """Requests to the source at *location*, made of *attempts*; all keys are relative to it. *counts* counts them.

    At most *max_connections* requests are made at a time, not counting those of `get_blocking`. Every method raises
    `NotFoundError`, `AccessDeniedError`, `UnreachableError` and `StoreError`, and with a condition `ConflictError`.

    Versions are told apart by strong ETags, else by Last-Modified and size; a reply with neither is refused. A web
    server that refuses access to whatever does not exist (403), as S3 does without the permission to list, says so of
    names that nothing has; then, and if the document of the source can be read, 403 means absent. Both are asked for
    at each 403, because a firewall may refuse anything for a while.
    """

    def __init__(self, location: CloudLocation, attempts: Attempts, *, max_connections: int = 64) -> None:
        self.location = location
        self.address = location.address
        self.counts = Counts()
        self.limiter = trio.CapacityLimiter(max_connections)
        self._attempts = attempts
        self._document = DOCUMENT
        self._lock = threading.Lock()
        self._has_warned = False

    def ask_for(self, document: str) -> None:
        """Take *document* for that of the source from now on."""
        self._document = document

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
        """Return all names below *prefix*, a directory with a slash at its end, or "".

        There is one page, whatever the other arguments say: obstore has no pages, and web servers no listings.
        """
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
            return self._send("GetObject", key, lambda: self._attempts.get(key, part, etag))
        except FailedAttempt as failed:
            if failed.failure.cause is not Cause.NO_RANGE:
                raise
            # It may be empty, or shorter; and not all servers count from the end.
            stat = self._head(key)
            require_version(etag, stat)
            wanted = part.within(stat.size)
            if not wanted.nbytes:
                return Fetched(stat, wanted.offset, memoryview(b""))
            if part.offset >= 0:
                raise
        return self._send("GetObject", key, lambda: self._attempts.get(key, wanted, stat.etag))

    def _head(self, key: str) -> ObjectStat:
        with self._errors("HEAD", key):
            return self._send("HeadObject", key, lambda: self._attempts.head(key))

    def _list(self, prefix: str) -> ListPage:
        with self._errors("LIST", prefix):
            return self._send("ListObjects", prefix, lambda: self._attempts.list(prefix))

    def _has_below(self, prefix: str) -> bool:
        with self._errors("LIST", prefix):
            return self._send("ListObjects", prefix, lambda: self._attempts.has_below(prefix))

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
        if not self.location.is_web or key in (self._document, _PROBED):
            return key == _PROBED
        try:
            # In this order: where the source can be read again, the name that nothing has is not refused any more.
            means_absent = self._status_of(self._document) == 200 and self._status_of(_PROBED) == 403
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
            self._send("HeadObject", key, lambda: self._attempts.head(key))
        except FailedAttempt as failed:
            if not failed.failure.status:
                raise
            return failed.failure.status
        return 200

    def _shown(self, key: str) -> str:
        url = self.location.url_of(key)
        return printable(url if len(url) <= _SHOWN else f"…{url[-_SHOWN:]}")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self.limiter)


_ANONYMOUS: Final = {401: ": it wants a name and a password, and shardfs sends none to web servers"}


def _pause(seconds: float) -> None:
    """Sleep; if the caller's task is cancelled meanwhile, end with that."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        with suppress(RuntimeError):  # outside trio's threads there is no cancellation
            trio.from_thread.check_cancelled()
        time.sleep(min(rest, _CHECKED_SECONDS))
