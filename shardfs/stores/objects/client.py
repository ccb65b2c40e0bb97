"""Requests that read one source, repeated where that is safe: `Client`, and the one loop that repeats them."""

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from shardfs.errors import AccessDeniedError, ConflictError, NotFoundError, ShardfsError, StoreError
from shardfs.stores.base import Address
from shardfs.stores.objects.failures import FailedRequest, Failure
from shardfs.stores.objects.requests import Counts, Fetched, ListPage, Location, Range, Request
from shardfs.stores.objects.service import Service, require_utf8

T = TypeVar("T")

log = logging.getLogger(__name__)

_OK: Final = 200
_PARTIAL: Final = 206
_VERSIONS: Final = 4
"""How many versions of an object are tried, one after another, if each is replaced before it is read."""
_FIRST_BYTE: Final = Range(0, 1)
_NOTHING: Final = memoryview(b"")
_CHECKED_SECONDS: Final = 0.1
"""How often it is checked in a pause whether the caller's task is cancelled."""


def _pause(seconds: float) -> None:
    """Sleep; if the caller's task is cancelled meanwhile, end with that."""
    end = time.monotonic() + seconds
    while True:
        with suppress(RuntimeError):  # outside trio's threads there is no cancellation
            trio.from_thread.check_cancelled()
        rest = end - time.monotonic()
        if rest <= 0:
            return
        time.sleep(min(rest, _CHECKED_SECONDS))


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try something, and how long to wait in between.

    The wait is random, up to *first* seconds, then up to twice as long, and so on, at most *most*. A silent server has
    made its client wait already, so there are at most *silent_attempts* of that kind. For a server that asks for fewer
    requests, all waits together are as long as *patience*.
    """

    attempts: int = 6
    silent_attempts: int = 2
    patience: float = 30.0
    first: float = 0.1
    most: float = 5.0
    pause: Callable[[float], None] = _pause
    jitter: Callable[[float, float], float] = random.uniform

    def delay(self, attempt: int) -> float:
        """Return the wait in seconds after attempt number *attempt*, beginning with 1."""
        return self.jitter(0.0, min(self.most, self.first * 2 ** (attempt - 1)))


BACKOFF: Final = Backoff()


class Client:
    """Requests to the source of *service*; all keys, in arguments and replies, are relative to it.

    At most *max_connections* requests are made at a time, not counting those of `get_blocking`. *counts* counts them.

    Every method raises `NotFoundError` (no such key), `AccessDeniedError`, `UnreachableError`, `StoreError` (after
    retries; it names the request, bucket, key and code), and with a condition `ConflictError` if that does not hold
    (412, 409, or 404 of the object). A missing bucket is a `StoreError`; what the server does not support is an
    `UnsupportedError`. No message contains a credential. Bytes of objects are counted once, even if they were received
    again.
    """

    def __init__(
        self,
        service: Service,
        counts: Counts,
        *,
        max_connections: int = 64,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.service = service
        self.counts = counts
        self.limiter = trio.CapacityLimiter(max_connections)
        """What each request holds while it is under way."""
        self._backoff = backoff
        self._lock = threading.Lock()

    @property
    def location(self) -> Location:
        """Where the source is."""
        return self.service.location

    @property
    def address(self) -> Address:
        """The permanent name of the source."""
        return self.service.address

    def trouble(self) -> str:
        """Return why the server serves no requests at the moment, as far as is known; else ""."""
        return self.service.trouble.reason

    async def get(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Return a range of at least one byte of an object, of the version *etag* if given; less at its end.

        The same request can return the properties. Raises `ConflictError` if the object has another ETag, or is gone.
        Truncated replies are read again. A range that begins after the end, and any range of an empty object, returns
        no bytes and the state, which takes a second request.
        """
        return await self._read(partial(self.get_blocking, key, part, etag=etag, with_properties=with_properties))

    def get_blocking(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Do what `get` does, in a worker thread."""
        request = self.service.request("GetObject", key, is_conditional=etag is not None)
        if part.offset < 0 and not self.service.counts_from_end:
            return self._get_otherwise(key, part, etag, request, None)

        def attempt() -> Fetched | Failure:
            try:
                return self.service.get(key, part, etag, with_properties=with_properties)
            except FailedRequest as error:
                if error.failure.is_vague:
                    return error.failure
                raise

        fetched = self.send(request, attempt)
        if isinstance(fetched, Failure):
            return self._get_otherwise(key, part, etag, request, fetched)
        with self._lock:
            self.counts.bytes_received += fetched.data.nbytes
        return fetched

    def _get_otherwise(
        self, key: str, part: Range, etag: str | None, request: Request, failure: Failure | None
    ) -> Fetched:
        """Return what can be had by HEAD, perhaps after a *failure*.

        The range may be empty, and not all servers count from the end. Who wants no certain version gets a newer one if
        the object is replaced, or created, meanwhile.
        """
        is_known = failure is not None and failure.status in (_OK, _PARTIAL)
        for _ in range(_VERSIONS):
            state = self._head(key, etag)
            if etag is not None and state.stat.etag != etag:  # from a server that ignores conditions
                self.count(conflicts=1)
                raise ConflictError(f"{request.target} was replaced")
            wanted = part.within(state.stat.size)
            if not wanted.nbytes:
                return state._replace(offset=wanted.offset)
            if failure is not None and (failure.status == _OK or (part.offset >= 0 and (is_known or etag is not None))):
                reason = failure.reason if is_known else "the server does not give what the object has"
                raise StoreError(f"{request.target}: {reason}")
            try:
                return self.get_blocking(key, wanted, etag=state.stat.etag)
            except ConflictError:
                if etag is not None:
                    raise
            self.count(retries=1)
        raise StoreError(f"{request.target} was replaced each of the {_VERSIONS} times that it was read")

    async def head(self, key: str) -> Fetched:
        """Return state and properties of an object, and no bytes.

        If there is none, a second request may be needed to tell that from a missing bucket.
        """
        return await self._read(partial(self._head, key))

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        """Return one page of the keys below the source that begin with *prefix*; without *delimiter*, all of them."""
        require_utf8(prefix)
        request = self.service.request("ListObjectsV2")
        ask = partial(self.service.list_page, prefix, delimiter, token, limit)
        page = await self._read(partial(self.send, request, ask))
        if page.token is not None and page.token in ("", token):
            raise StoreError(f"{request.target}: the server lists only some of the keys, and not how to get the others")
        return page

    def _head(self, key: str, etag: str | None = None) -> Fetched:
        request = self.service.request("HeadObject", key, is_conditional=etag is not None)
        try:
            return self.send(request, partial(self._head_once, key, etag))
        except NotFoundError:
            check = self.service.container_check()
            if check is not None:
                with suppress(AccessDeniedError):  # the bucket exists
                    self.send(self.service.request("HeadBucket"), check)
            raise

    def _head_once(self, key: str, etag: str | None) -> Fetched:
        """Do what HEAD does; where a refusal has no code, GET of one byte says why, or answers in its place."""
        try:
            return self.service.head(key, etag)
        except FailedRequest as error:
            if not self.service.is_mute(error.failure):
                raise
            mute = error.failure
        self._count_request("GetObject")
        try:
            found = self.service.get(key, _FIRST_BYTE, etag, with_properties=True)
        except FailedRequest as error:
            raise FailedRequest(mute if error.failure.is_vague else error.failure) from None
        return found._replace(data=_NOTHING)

    async def _read(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self.limiter)

    def send(self, request: Request, attempt: Callable[[], T]) -> T:
        """Return the result of *attempt*, which sends the request once and raises `FailedRequest`; blocks.

        Raises `UnknownOutcomeError` if the request is not repeatable and may have been carried out, else the error for
        the last failure.
        """
        number, nordinary, nsilent, waited = 1, 0, 0, 0.0
        while True:
            began = time.monotonic()
            self._count_request(request.operation)
            is_old = self.service.trouble.is_old()
            failure: Failure | None = None
            try:
                result = attempt()
            except FailedRequest as error:
                failure = error.failure
            self._count_resent(request)
            self.service.trouble.note(failure, began, time.monotonic())
            if failure is None:
                return result
            nordinary += not failure.is_throttling
            nsilent += failure.is_silent
            if failure.is_throttling:
                is_last = is_old or waited >= self._backoff.patience
            else:
                is_last = nordinary == self._backoff.attempts or nsilent == self._backoff.silent_attempts
                is_last = is_last or (is_old and failure.is_silent)
            if is_last or not failure.may_repeat(request):
                break
            delay = min(self._backoff.delay(number), self._backoff.patience - waited)
            ordinal = f"{nordinary + 1} of {self._backoff.attempts}"
            limit = f"for {self._backoff.patience:.0f} s at most" if failure.is_throttling else ordinal
            what = f"{request.operation} of {request.target}: {failure.reason}"
            log.warning("%s; trying again (%s)", what, limit)
            self._backoff.pause(delay)
            waited += delay
            number += 1
            self.count(retries=1)
        final = self.error_of(request, failure, number)
        self.count(conflicts=isinstance(final, ConflictError))
        raise final

    def _count_resent(self, request: Request) -> None:
        """Count what was sent again below the last attempt."""
        resent = self.service.take_resent()
        if resent:
            self._count_request(request.operation, resent)
            log.info("%s of %s: sent again, as its connection was closed", request.operation, request.target)

    def _count_request(self, operation: str, times: int = 1) -> None:
        with self._lock:
            self.counts.requests[operation] += times

    def error_of(self, request: Request, failure: Failure, attempts: int) -> ShardfsError:
        """Return what is raised for a request that finally failed."""
        return failure.error(request, attempts)

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, count in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)
