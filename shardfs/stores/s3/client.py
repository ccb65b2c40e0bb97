"""Requests to one source in a bucket: one method per S3 operation.

Requests that can safely be repeated are, with back-off. A conditional change is sent once: its outcome may then be
unknown.
"""

import io
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

import trio

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    ShardfsError,
    StoreError,
    printable,
)
from shardfs.stores.base import Content
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.requests import (
    Counts,
    Fetched,
    ListPage,
    Properties,
    Range,
    Request,
)
from shardfs.stores.s3.errors import NOT_PARTIAL, UNEXPLAINED, Cause, FailedRequest, Failure
from shardfs.stores.s3.replies import described, etag_of, listed, text
from shardfs.stores.s3.requests import Condition
from shardfs.stores.s3.session import S3Session, Timeouts

T = TypeVar("T")

log = logging.getLogger(__name__)

_CHECKED_SECONDS: Final = 0.1
"""How often it is checked in a pause whether the caller's task is cancelled."""

_PIECE: Final = 2**20
"""How much of a body is read at a time; that much is sent without asking the server first."""


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


@dataclass(slots=True)
class _Trouble:
    """Since when a server has served no request, so that the waits of requests, one after the other, do not add up.

    It *began* with the first attempt that failed because the server is silent or asks for fewer requests, and ends with
    any other reply, or if nothing has failed for *patience* seconds after the *last* one.
    """

    patience: float
    began: float | None = None
    last: float = 0.0
    reason: str = ""

    def note(self, failure: Failure | None, began: float, now: float) -> None:
        """Note how an attempt ended that *began* then; None stands for success."""
        if failure is not None and (failure.is_silent or failure.is_throttling):
            if not self.lasts(now):
                self.began = began
            self.last, self.reason = now, failure.reason
        elif failure is None or failure.cause is Cause.REPLY:
            self.began = None

    def lasts(self, now: float, *, seconds: float = 0.0) -> bool:
        """Whether it lasts, and has for so many seconds."""
        return self.began is not None and now - self.last < self.patience and now - self.began >= seconds


class ServerClock:
    """What time it is on the server, in whole seconds, as it states of all that it stores; may be called in any thread.

    Each reply says so. It is the local time until one came, and follows when either clock is set.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._ahead_ns: int | None = None

    def note(self, date: str | None) -> None:
        """Note the header `Date` of a reply that has just come: it was cut off to a second."""
        try:
            stated_ns = int(parsedate_to_datetime(date or "").timestamp()) * _SECOND
        except (ValueError, OverflowError):
            return
        ahead_ns, known = stated_ns - self._clock(), self._ahead_ns
        if known is None or not ahead_ns <= known <= ahead_ns + _MOST_LATE:
            self._ahead_ns = ahead_ns

    def now_ns(self) -> int:
        """Return the time in nanoseconds, cut off to a second."""
        return (self._clock() + (self._ahead_ns or 0)) // _SECOND * _SECOND


_SECOND: Final = 10**9
_MOST_LATE: Final = 5 * _SECOND
"""How much later than it was cut off to a reply comes at most; if it is more, a clock was set."""

_TIMEOUTS: Final = Timeouts()
_BACKOFF: Final = Backoff()


class S3Client:
    """Requests to the source at *location*; all keys, in arguments and replies, are relative to it.

    At most `options.max_connections` requests are made at a time, not counting those of `get_blocking`. *counts* counts
    them.

    Every method raises `NotFoundError` (no such key), `AccessDeniedError`, `StoreError` (after retries; it names the
    request, bucket, key and code), and with a condition `ConflictError` if that does not hold (412, 409, or 404 of the
    object or the upload). A missing bucket is a `StoreError`; an operation or condition that the server does not
    support is an `UnsupportedError`. No message contains a credential. Bytes of objects are counted once, even if they
    were sent or received again. A content to be stored may be read several times: for its signature, and for each
    attempt.
    """

    def __init__(
        self,
        location: S3Location,
        options: S3Options,
        counts: Counts,
        *,
        timeouts: Timeouts = _TIMEOUTS,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        """Raise `SourceError` for what is known at once: an unknown profile, no credentials."""
        self.location = location
        self.counts = counts
        self._session = S3Session(location.bucket, options, timeouts, self._is_silent)
        self.endpoint_url = self._session.endpoint_url
        self.address = location.address(self.endpoint_url)
        self._backoff = backoff
        self._trouble = _Trouble(backoff.patience)
        self._lock = threading.Lock()
        self.clock = ServerClock()
        self.limiter = trio.CapacityLimiter(options.max_connections)
        """What each request holds while it is under way."""

    @property
    def trouble(self) -> str:
        """Why the server serves no requests at the moment, as far as is known; else ""."""
        return self._trouble.reason if self._trouble.began is not None else ""

    def of_bucket(self) -> "S3Client":
        """Return a client of the whole bucket."""
        client = copy(self)
        client.location = S3Location(self.location.bucket, "")
        return client

    async def get(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Return a range of at least one byte of an object, of the version *etag* if given; less at its end.

        The same request can return the properties, but is slower then. Raises `ConflictError` if the object has another
        ETag, or is gone. Truncated replies are read again. A range that begins after the end, and any range of an empty
        object, returns no bytes and the state, which takes a second request.
        """
        return await self._read(partial(self.get_blocking, key, part, etag=etag, with_properties=with_properties))

    def get_blocking(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        """Do what `get` does, in a worker thread."""
        request = self._request("GetObject", key, is_conditional=etag is not None)
        tries = count()

        def attempt() -> Fetched | Failure:
            is_first = next(tries) == 0
            try:
                return self._session.get(request.key, part, etag, quickly=is_first and not with_properties)
            except FailedRequest as error:
                if error.failure.is_doubtful:
                    return error.failure
                raise

        fetched = self._send(request, attempt)
        if isinstance(fetched, Fetched):
            self._count(bytes_received=fetched.data.nbytes)
            return fetched
        state = self._head(key, etag)
        if etag is not None and state.stat.etag != etag:  # from a server that ignores conditions
            raise ConflictError(f"{request.target} was replaced")
        wanted = part.within(state.stat.size)
        if wanted.nbytes:
            reason = NOT_PARTIAL.reason if fetched is NOT_PARTIAL else "the server does not give what the object has"
            raise StoreError(f"{request.target}: {reason}")
        return state._replace(offset=wanted.offset)

    async def head(self, key: str) -> Fetched:
        """Return state and properties of an object, and no bytes.

        If there is none, a second request distinguishes that from a missing bucket.
        """
        return await self._read(partial(self._head, key))

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        """Return one page of the keys below the source that begin with *prefix*; without *delimiter*, all of them.

        Keys that do not begin with it are dropped: some servers list them if a prefix ends with several slashes.
        """
        full, start = self.location.full(prefix), len(self.location.full(""))
        _require_name(full)
        request = self._request("ListObjectsV2")
        arguments: dict[str, Any] = {"Prefix": full, "MaxKeys": limit}
        if delimiter:
            arguments["Delimiter"] = delimiter
        if token is not None:
            arguments["ContinuationToken"] = token

        def page_of(reply: Mapping[str, Any]) -> ListPage:
            objects = [listed(entry) for entry in reply.get("Contents", ())]
            prefixes = [text(entry, "Prefix") for entry in reply.get("CommonPrefixes", ())]
            return ListPage(
                [(key[start:], stat) for key, stat in objects if key.startswith(full)],
                [name[start:] for name in prefixes if name.startswith(full)],
                (reply.get("NextContinuationToken") or "") if reply.get("IsTruncated") else None,
            )

        page = await self._read(partial(self._call, request, page_of, **arguments))
        if page.token is not None and page.token in ("", token):
            raise StoreError(f"{request.target}: the server lists only some of the keys, and not how to get the others")
        return page

    async def put(self, key: str, body: Content, properties: Properties, *, condition: Condition | None = None) -> str:
        """Store an object, streaming its body; return its ETag.

        Raises `UnknownOutcomeError` if there is a condition and no reply.
        """
        request = self._change("PutObject", key, condition)
        return await self._send_body(request, body, **properties.to_arguments(), **_if(condition))

    async def delete(self, key: str, *, condition: Condition | None = None) -> None:
        """Delete an object; no error if there is none. Raises the errors of `put`."""
        with suppress(NotFoundError):  # unconditionally
            await self._make(self._change("DeleteObject", key, condition), dict, **_if(condition))

    async def create_upload(self, key: str, properties: Properties) -> str:
        """Begin a multipart upload; return its id.

        If the reply is lost, the upload is left behind, and `list_uploads` shows it.
        """
        request = self._change("CreateMultipartUpload", key)
        return await self._make(request, partial(text, field="UploadId"), **properties.to_arguments())

    async def upload_part(self, key: str, upload_id: str, number: int, body: Content) -> str:
        """Send one part, streaming; return its ETag. Raises `ConflictError` if the upload is gone."""
        request = self._change("UploadPart", key)
        return await self._send_body(request, body, UploadId=upload_id, PartNumber=number)

    async def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        part: Range | None,
        *,
        condition: Condition | None,
        source: str | None = None,
    ) -> str:
        """Make a part from a range of the object *source*, None being *key* itself; return its ETag.

        No range is all of it: S3 documents that it copies ranges only of objects of more than 5 MB.
        """
        # A part may be made twice: only the request that makes the object must not be repeated.
        request = self._request("UploadPartCopy", key, is_conditional=condition is not None)
        return await self._make(
            request,
            lambda reply: etag_of(reply.get("CopyPartResult") or {}),
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": request.bucket, "Key": self.location.full(key if source is None else source)},
            **({} if part is None else {"CopySourceRange": f"bytes={part.offset}-{part.offset + part.nbytes - 1}"}),
            **({} if condition is None else {"CopySourceIfMatch": condition.etag}),
        )

    async def complete_upload(
        self, key: str, upload_id: str, etags: Sequence[str], *, condition: Condition | None
    ) -> str | None:
        """Make the object from its parts; return its ETag, None if the server (Ceph) does not tell.

        Raises the errors of `put`, and `UnknownOutcomeError` even without a condition: a completed upload is gone.
        """
        request = self._request(
            "CompleteMultipartUpload", key, is_conditional=condition is not None, is_repeatable=False
        )
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        return await self._make(
            request,
            lambda reply: etag_of(reply) if reply.get("ETag") else None,
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            **_if(condition),
        )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort a multipart upload; no error if there is none."""
        with suppress(ConflictError, NotFoundError):
            await self._make(self._change("AbortMultipartUpload", key), dict, UploadId=upload_id)

    async def give_up(self, key: str, upload_id: str) -> None:
        """Abort a failed multipart upload, even if this task is cancelled; log what remains."""
        with trio.CancelScope(shield=True):
            try:
                await self.abort_upload(key, upload_id)
            except ShardfsError as error:
                log.warning("an unfinished upload of %s stays: %s", printable(key), error)

    async def list_uploads(self, key: str) -> Sequence[str]:
        """Return the ids of the pending multipart uploads of an object, as far as one page contains them."""
        request, full = self._request("ListMultipartUploads"), self.location.full(key)

        def ids_of(reply: Mapping[str, Any]) -> Sequence[str]:
            decode = unquote_plus if reply.get("EncodingType") == "url" else str
            uploads = [(decode(text(entry, "Key")), text(entry, "UploadId")) for entry in reply.get("Uploads", ())]
            return [upload_id for key, upload_id in uploads if key == full]

        return await self._read(partial(self._call, request, ids_of, Prefix=full, EncodingType="url"))

    def _head(self, key: str, etag: str | None = None) -> Fetched:
        request = self._request("HeadObject", key, is_conditional=etag is not None)
        try:
            return self._call(request, described, Key=request.key, **({} if etag is None else {"IfMatch": etag}))
        except NotFoundError:
            with suppress(AccessDeniedError):  # the bucket exists
                self._call(self._request("HeadBucket"), dict)  # HEAD returns the same for a missing bucket
            raise

    def _request(
        self, operation: str, key: str | None = None, *, is_conditional: bool = False, is_repeatable: bool = True
    ) -> Request:
        """Return a request for an object; without *key*, for the bucket."""
        full = "" if key is None else self.location.full(key)
        _require_name(full)
        return Request(operation, self.location.bucket, full, is_conditional, is_repeatable)

    def _change(self, operation: str, key: str, condition: Condition | None = None) -> Request:
        """Return a request that changes an object, on a condition if there is one."""
        is_conditional = condition is not None
        return self._request(operation, key, is_conditional=is_conditional, is_repeatable=not is_conditional)

    def _call(self, request: Request, parse: Callable[[Mapping[str, Any]], T], **arguments: object) -> T:
        """Return what *parse* makes of the reply; one that it cannot use is no reply."""
        return self._send(request, lambda: parse(self._reply(request.operation, **arguments)))

    def _reply(self, operation: str, **arguments: object) -> Mapping[str, Any]:
        """Return the reply to a request that is sent once."""
        reply = self._session.call(operation, **arguments)
        self.clock.note(reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))
        return reply

    async def _make(self, request: Request, parse: Callable[[Mapping[str, Any]], T], **arguments: object) -> T:
        # Not abandoned when cancelled: it would take effect some time later.
        return await trio.to_thread.run_sync(
            partial(self._call, request, parse, Key=request.key, **arguments), limiter=self.limiter
        )

    async def _send_body(self, request: Request, content: Content, **arguments: object) -> str:
        """Send a request with a body; return the ETag of what it makes."""

        def attempt() -> str:
            body = _Body(content)
            file = io.BufferedReader(body, _PIECE)
            try:
                reply = self._reply(
                    request.operation,
                    Key=request.key,
                    Body=file.read() if content.nbytes <= _PIECE else file,
                    ContentLength=content.nbytes,
                    **arguments,
                )
                return etag_of(reply)
            except Exception:  # boto3 reports all of them as broken connections
                if body.failure is not None:
                    raise body.failure from None
                raise

        etag = await trio.to_thread.run_sync(self._send, request, attempt, limiter=self.limiter)
        self._count(bytes_sent=content.nbytes)
        return etag

    async def _read(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self.limiter)

    def _send(self, request: Request, attempt: Callable[[], T]) -> T:
        """Return the result of *attempt*, which sends the request once and raises `FailedRequest`; blocks.

        Raises `UnknownOutcomeError` if the request is not repeatable and may have been carried out, else the error for
        the last failure.
        """
        number, nordinary, nsilent, waited = 1, 0, 0, 0.0
        while True:
            began = time.monotonic()
            with self._lock:
                self.counts.requests[request.operation] += 1
                lasts = self._trouble.lasts(began, seconds=self._backoff.patience)
            failure: Failure | None = None
            try:
                result = attempt()
            except FailedRequest as error:
                failure = error.failure
            with self._lock:
                self._trouble.note(failure, began, time.monotonic())
            if failure is None:
                return result
            nordinary += not failure.is_throttling
            nsilent += failure.is_silent
            if failure.is_throttling:
                is_last = lasts or waited >= self._backoff.patience
            else:
                is_last = nordinary == self._backoff.attempts or nsilent == self._backoff.silent_attempts
                is_last = is_last or (lasts and failure.is_silent)
            if is_last or not failure.may_repeat(request):
                break
            if failure is not UNEXPLAINED:
                delay = min(self._backoff.delay(number), self._backoff.patience - waited)
                ordinal = f"{nordinary + 1} of {self._backoff.attempts}"
                limit = f"for {self._backoff.patience:.0f} s at most" if failure.is_throttling else ordinal
                what = f"{request.operation} of {request.target}: {failure.reason}"
                log.warning("%s; trying again (%s)", what, limit)
                self._backoff.pause(delay)
                waited += delay
            number += 1
            self._count(retries=1)
        final = failure.error(request, number)
        self._count(conflicts=isinstance(final, ConflictError))
        raise final

    def _is_silent(self) -> bool:
        """Whether the server has served no request for so long that nobody should wait as long for it as usual."""
        with self._lock:
            return self._trouble.lasts(time.monotonic(), seconds=self._backoff.patience)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)


class _Body(io.RawIOBase):
    """A content as a file for boto3; *failure* is the error that prevented reading it."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._whole = content
        self._position = 0
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._whole.nbytes}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        nbytes = max(0, min(len(buffer), _PIECE, self._whole.nbytes - self._position))
        if nbytes == 0:
            return 0
        try:
            buffer[:nbytes] = self._whole.read(self._position, nbytes)
        except Exception as error:  # also if less was read
            self.failure = error
            raise
        self._position += nbytes
        return nbytes


def _require_name(key: str) -> None:
    """Raise `NotFoundError` for a name that cannot be a key, and so was never stored."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise NotFoundError(f"{key} does not exist: it is not UTF-8, as all keys of S3 are") from None


def _if(condition: Condition | None) -> dict[str, str]:
    """Return the arguments that make a change depend on *condition*."""
    if condition is None:
        return {}
    return {"IfNoneMatch": "*"} if condition.etag is None else {"IfMatch": condition.etag}
