"""Requests that change the objects of a source in a bucket: one method per S3 operation.

Requests that can safely be repeated are, with back-off. A conditional change is sent once: its outcome may then be
unknown.
"""

import io
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

import trio

from shardfs.errors import ConflictError, NotFoundError, ShardfsError, printable
from shardfs.stores.base import Content
from shardfs.stores.objects.client import BACKOFF, Backoff, Client
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.pace import TIMEOUTS, Timeouts
from shardfs.stores.objects.requests import Counts, Properties, Range, Request
from shardfs.stores.s3.replies import etag_of, text
from shardfs.stores.s3.requests import Condition
from shardfs.stores.s3.service import S3Service
from shardfs.stores.s3.session import S3Session

T = TypeVar("T")

log = logging.getLogger(__name__)

_PIECE: Final = 2**20
"""How much of a body is read at a time; that much is sent without asking the server first."""


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


class S3Client(Client):
    """Requests to the source at *location*, also those that change it.

    Every method raises the errors of `Client`. With a condition, `ConflictError` also stands for a 404 of the upload;
    an operation or condition that the server does not support is an `UnsupportedError`. A content to be stored may be
    read several times: for its signature, and for each attempt.
    """

    service: S3Service

    def __init__(
        self,
        location: S3Location,
        options: S3Options,
        counts: Counts,
        *,
        timeouts: Timeouts = TIMEOUTS,
        backoff: Backoff = BACKOFF,
    ) -> None:
        """Raise `SourceError` for what is known at once: an unknown profile, no credentials."""
        self._session = S3Session(location.bucket, options, timeouts)
        service = S3Service(location, self._session, timeouts, backoff.patience)
        super().__init__(service, counts, max_connections=options.max_connections, backoff=backoff)
        self.endpoint_url = self._session.endpoint_url
        self.clock = ServerClock()

    @property
    def location(self) -> S3Location:
        """Where the source is."""
        return self.service.location

    def of_bucket(self) -> "S3Client":
        """Return a client of the whole bucket."""
        client = copy(self)
        client.service = self.service.of_bucket()
        return client

    async def put(self, key: str, body: Content, properties: Properties, *, condition: Condition | None = None) -> str:
        """Store an object, streaming its body; return its ETag.

        Raises `UnknownOutcomeError` if there is a condition and no reply.
        """
        request = self._change("PutObject", key, condition)
        return await self._send_body(request, key, body, **properties.to_arguments(), **_if(condition))

    async def delete(self, key: str, *, condition: Condition | None = None) -> None:
        """Delete an object; no error if there is none. Raises the errors of `put`."""
        with suppress(NotFoundError):  # unconditionally
            await self._make(self._change("DeleteObject", key, condition), key, dict, **_if(condition))

    async def create_upload(self, key: str, properties: Properties) -> str:
        """Begin a multipart upload; return its id.

        If the reply is lost, the upload is left behind, and `list_uploads` shows it.
        """
        request = self._change("CreateMultipartUpload", key)
        return await self._make(request, key, partial(text, field="UploadId"), **properties.to_arguments())

    async def upload_part(self, key: str, upload_id: str, number: int, body: Content) -> str:
        """Send one part, streaming; return its ETag. Raises `ConflictError` if the upload is gone."""
        request = self._change("UploadPart", key)
        return await self._send_body(request, key, body, UploadId=upload_id, PartNumber=number)

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
        request = self.service.request("UploadPartCopy", key, is_conditional=condition is not None)
        return await self._make(
            request,
            key,
            lambda reply: etag_of(reply.get("CopyPartResult") or {}),
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": self.location.bucket, "Key": self.location.full(key if source is None else source)},
            **({} if part is None else {"CopySourceRange": f"bytes={part.offset}-{part.offset + part.nbytes - 1}"}),
            **({} if condition is None else {"CopySourceIfMatch": condition.etag}),
        )

    async def complete_upload(
        self, key: str, upload_id: str, etags: Sequence[str], *, condition: Condition | None
    ) -> str | None:
        """Make the object from its parts; return its ETag, None if the server (Ceph) does not tell.

        Raises the errors of `put`, and `UnknownOutcomeError` even without a condition: a completed upload is gone.
        """
        request = self.service.request(
            "CompleteMultipartUpload", key, is_conditional=condition is not None, is_repeatable=False
        )
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        return await self._make(
            request,
            key,
            lambda reply: etag_of(reply) if reply.get("ETag") else None,
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            **_if(condition),
        )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort a multipart upload; no error if there is none."""
        with suppress(ConflictError, NotFoundError):
            await self._make(self._change("AbortMultipartUpload", key), key, dict, UploadId=upload_id)

    async def give_up(self, key: str, upload_id: str) -> None:
        """Abort a failed multipart upload, even if this task is cancelled; log what remains."""
        with trio.CancelScope(shield=True):
            try:
                await self.abort_upload(key, upload_id)
            except ShardfsError as error:
                log.warning("an unfinished upload of %s stays: %s", printable(key), error)

    async def list_uploads(self, key: str) -> Sequence[str]:
        """Return the ids of the pending multipart uploads of an object, as far as one page contains them."""
        request, full = self.service.request("ListMultipartUploads"), self.location.full(key)

        def ids_of(reply: Mapping[str, Any]) -> Sequence[str]:
            decode = unquote_plus if reply.get("EncodingType") == "url" else str
            uploads = [(decode(text(entry, "Key")), text(entry, "UploadId")) for entry in reply.get("Uploads", ())]
            return [upload_id for key, upload_id in uploads if key == full]

        return await self._read(partial(self._call, request, ids_of, Prefix=full, EncodingType="url"))

    def _change(self, operation: str, key: str, condition: Condition | None = None) -> Request:
        """Return a request that changes an object, on a condition if there is one."""
        is_conditional = condition is not None
        return self.service.request(operation, key, is_conditional=is_conditional, is_repeatable=not is_conditional)

    def _call(self, request: Request, parse: Callable[[Mapping[str, Any]], T], **arguments: object) -> T:
        """Return what *parse* makes of the reply; one that it cannot use is no reply."""
        return self.send(request, lambda: parse(self._reply(request.operation, **arguments)))

    def _reply(self, operation: str, **arguments: object) -> Mapping[str, Any]:
        """Return the reply to a request that is sent once."""
        reply = self._session.call(operation, **arguments)
        self.clock.note(reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))
        return reply

    async def _make(
        self, request: Request, key: str, parse: Callable[[Mapping[str, Any]], T], **arguments: object
    ) -> T:
        # Not abandoned when cancelled: it would take effect some time later.
        return await trio.to_thread.run_sync(
            partial(self._call, request, parse, Key=self.location.full(key), **arguments), limiter=self.limiter
        )

    async def _send_body(self, request: Request, key: str, content: Content, **arguments: object) -> str:
        """Send a request with a body; return the ETag of what it makes."""

        def attempt() -> str:
            body = _Body(content)
            file = io.BufferedReader(body, _PIECE)
            try:
                reply = self._reply(
                    request.operation,
                    Key=self.location.full(key),
                    Body=file.read() if content.nbytes <= _PIECE else file,
                    ContentLength=content.nbytes,
                    **arguments,
                )
                return etag_of(reply)
            except Exception:  # boto3 reports all of them as broken connections
                if body.failure is not None:
                    raise body.failure from None
                raise

        etag = await trio.to_thread.run_sync(self.send, request, attempt, limiter=self.limiter)
        self.count(bytes_sent=content.nbytes)
        return etag


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


def _if(condition: Condition | None) -> dict[str, str]:
    """Return the arguments that make a change depend on *condition*."""
    if condition is None:
        return {}
    return {"IfNoneMatch": "*"} if condition.etag is None else {"IfMatch": condition.etag}
