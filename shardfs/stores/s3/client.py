"""Requests to one bucket.

Each method is one S3 operation on full object keys.  What can be done again without harm is, with back-off; a change
that is conditional is sent once, and what became of it may be unknown then.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

import trio

from shardfs.errors import ConflictError, NotFoundError, RefusedError, StoreError
from shardfs.stores.base import Content
from shardfs.stores.s3.counts import Counts
from shardfs.stores.s3.failures import Request
from shardfs.stores.s3.getting import Getter, etag_of, stat_of
from shardfs.stores.s3.location import S3Options
from shardfs.stores.s3.objects import Condition, Fetched, ListPage, ObjectStat, Properties, Range, Upload
from shardfs.stores.s3.properties import properties_of, to_arguments
from shardfs.stores.s3.retrying import Backoff, Sender
from shardfs.stores.s3.session import Session, Timeouts
from shardfs.stores.s3.streaming import Streamed

T = TypeVar("T")

_TIMEOUTS: Final = Timeouts()
_BACKOFF: Final = Backoff()


class S3Client:
    """Requests to *bucket*, at most `options.max_connections` at a time, besides those of `get_blocking`.

    Every method raises `NotFoundError` (no such key), `AccessDeniedError`, `StoreError` (named request, bucket, key,
    code; after retries), and where a condition is given `ConflictError` if it does not hold (412, 409, and 404 of the
    object or of the upload).  A bucket that does not exist is a `StoreError`, an operation or a condition that the
    server does not know an `UnsupportedError`.  No message holds a credential.

    Bytes of objects are counted once, whatever was sent or received again.  A content that is stored may be read
    several times: for its signature, and for each attempt.
    """

    def __init__(
        self,
        bucket: str,
        options: S3Options,
        counts: Counts,
        *,
        timeouts: Timeouts = _TIMEOUTS,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        """Raise `SourceError` for what is known at once: a profile that does not exist, no credentials."""
        self._bucket = bucket
        self._session = Session(bucket, options, timeouts)
        self._sender = Sender(backoff, counts)
        self._getter = Getter(bucket, self._session, self._sender)
        self._limiter = trio.CapacityLimiter(options.max_connections)

    @property
    def endpoint_url(self) -> str:
        """The server that is asked, whoever named it."""
        return self._session.endpoint_url

    async def get(
        self, key: str, part: Range | None = None, *, etag: str | None = None, with_properties: bool = False
    ) -> Fetched:
        """Return a range of an object, or all of it; less where the object ends, of the version *etag* if given.

        The same request gives the properties, if they are wanted, but is slower then.
        Raises `ConflictError` if the object has another ETag, or is gone.  Reads again what came truncated.  A range
        that begins behind the end, and any of an empty object, is answered with no bytes and the state, which takes a
        second request.
        """
        _require_name(key)
        return await self._read(partial(self._getter.get, key, part, etag, with_properties=with_properties))

    def get_blocking(self, key: str, part: Range | None = None, *, etag: str | None = None) -> Fetched:
        """Do as `get`, in a worker thread."""
        _require_name(key)
        return self._getter.get(key, part, etag)

    async def head(self, key: str) -> tuple[ObjectStat, Properties]:
        """Return state and properties of an object.

        That there is none takes a second request, to tell it from a bucket that is missing.
        """
        _require_name(key)
        reply = await self._read(partial(self._getter.head, key))
        return stat_of(reply), properties_of(reply)

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        """Return one page of the keys that begin with *prefix*; no *delimiter* gives all of them.

        What begins otherwise is dropped: some servers list such for a prefix that ends with several slashes.
        """
        _require_name(prefix)
        arguments: dict[str, Any] = {"Prefix": prefix, "MaxKeys": limit}
        if delimiter:
            arguments["Delimiter"] = delimiter
        if token is not None:
            arguments["ContinuationToken"] = token
        request = self._request("ListObjectsV2", "")
        reply = await self._read(partial(self._call, request, arguments))
        following = reply.get("NextContinuationToken") if reply.get("IsTruncated") else None
        if reply.get("IsTruncated") and not following:
            raise StoreError(f"{request.target}: the server lists a part of the keys, and not how to get the others")
        return ListPage(
            [(key, stat_of(entry)) for entry in reply.get("Contents", ()) if (key := entry["Key"]).startswith(prefix)],
            [name for entry in reply.get("CommonPrefixes", ()) if (name := entry["Prefix"]).startswith(prefix)],
            following,
        )

    async def put(self, key: str, body: Content, properties: Properties, *, condition: Condition | None = None) -> str:
        """Store an object, streaming its body, and return its ETag.

        Raises `UnknownOutcomeError` if there is a condition, and no reply.
        """
        request = self._request("PutObject", key, condition=condition)
        arguments = {"Key": key, **to_arguments(properties), **_conditional(condition)}
        return etag_of(await self._change(partial(self._send, request, arguments, body)))

    async def delete(self, key: str, *, condition: Condition | None = None) -> None:
        """Delete an object; no error if there is none.  Raises as `put` does."""
        request = self._request("DeleteObject", key, condition=condition)
        try:
            await self._change(partial(self._call, request, {"Key": key, **_conditional(condition)}))
        except NotFoundError:  # without a condition
            return

    async def create_upload(self, key: str, properties: Properties) -> str:
        """Begin a multipart upload and return its id.

        One that was begun without a reply is left behind, for `list_uploads` to show.
        """
        request = self._request("CreateMultipartUpload", key)
        reply = await self._change(partial(self._call, request, {"Key": key, **to_arguments(properties)}))
        return str(reply["UploadId"])

    async def upload_part(self, key: str, upload_id: str, number: int, body: Content) -> str:
        """Send one part, streaming, and return its ETag; raises `ConflictError` if the upload is gone."""
        arguments = {"Key": key, "UploadId": upload_id, "PartNumber": number}
        return etag_of(await self._change(partial(self._send, self._request("UploadPart", key), arguments, body)))

    async def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        offset: int,
        nbytes: int,
        *,
        condition: Condition | None,
        source: str | None = None,
    ) -> str:
        """Make a part of a range of the object *source*, None being *key* itself, and return its ETag."""
        arguments = {
            "Key": key,
            "UploadId": upload_id,
            "PartNumber": number,
            "CopySource": self._source(key if source is None else source),
            "CopySourceRange": f"bytes={offset}-{offset + nbytes - 1}",
        }
        if condition is not None:
            arguments["CopySourceIfMatch"] = condition.etag
        # A part that is made twice is the same part: only what makes the object must not be sent again.
        request = Request("UploadPartCopy", self._bucket, key, is_conditional=condition is not None)
        reply = await self._change(partial(self._call, request, arguments))
        return etag_of(reply.get("CopyPartResult", {}))

    async def complete_upload(
        self, key: str, upload_id: str, etags: Sequence[str], *, condition: Condition | None
    ) -> str:
        """Make the object of its parts, and return its ETag.

        Raises as `put` does, and `UnknownOutcomeError` without a condition too: an upload that was completed is gone.
        """
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        arguments = {"Key": key, "UploadId": upload_id, "MultipartUpload": {"Parts": parts}, **_conditional(condition)}
        request = Request(
            "CompleteMultipartUpload",
            self._bucket,
            key,
            is_conditional=condition is not None,
            is_repeatable=False,
        )
        return etag_of(await self._change(partial(self._call, request, arguments)))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Give a multipart upload up; no error if there is none."""
        request = self._request("AbortMultipartUpload", key)
        try:
            await self._change(partial(self._call, request, {"Key": key, "UploadId": upload_id}))
        except (ConflictError, NotFoundError):
            return

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        """Return the multipart uploads under way whose keys begin with *prefix*."""
        uploads: list[Upload] = []
        markers: dict[str, Any] = {}
        while True:
            arguments = {"Prefix": prefix, "EncodingType": "url", **markers}
            reply = await self._read(partial(self._call, self._request("ListMultipartUploads", ""), arguments))
            decode = unquote_plus if reply.get("EncodingType") == "url" else str
            uploads += [
                Upload(decode(entry["Key"]), entry["UploadId"], entry["Initiated"].timestamp())
                for entry in reply.get("Uploads", ())
            ]
            following = {
                "KeyMarker": decode(reply.get("NextKeyMarker", "")),
                "UploadIdMarker": reply.get("NextUploadIdMarker", ""),
            }
            if not reply.get("IsTruncated") or following == markers:
                return uploads
            markers = following

    def _request(self, operation: str, key: str, *, condition: Condition | None = None) -> Request:
        if not _is_encodable(key):
            raise RefusedError(f"{key} cannot be stored: it is not UTF-8, as all keys of S3 are")
        is_conditional = condition is not None
        return Request(operation, self._bucket, key, is_conditional=is_conditional, is_repeatable=not is_conditional)

    def _source(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}

    def _call(self, request: Request, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._sender.send(request, partial(self._session.call, request.operation, **arguments))

    def _send(self, request: Request, arguments: Mapping[str, Any], content: Content) -> Mapping[str, Any]:
        """Make a call with a body."""
        streamed = Streamed(content)

        def attempt() -> Mapping[str, Any]:
            with streamed.hidden_failure():
                return self._session.call(
                    request.operation, Body=streamed.body(), ContentLength=content.nbytes, **arguments
                )

        reply = self._sender.send(request, attempt)
        self._sender.count_bytes(sent=content.nbytes)
        return reply

    async def _read(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter)

    async def _change(self, function: Callable[[], T]) -> T:
        # Not abandoned: it would be made at some time later.
        return await trio.to_thread.run_sync(function, limiter=self._limiter)


def _require_name(key: str) -> None:
    """Raise `NotFoundError` for what cannot be a key, and so was never stored."""
    if not _is_encodable(key):
        raise NotFoundError(f"{key} does not exist: it is not UTF-8, as all keys of S3 are")


def _is_encodable(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _conditional(condition: Condition | None) -> dict[str, str]:
    if condition is None:
        return {}
    return {"IfNoneMatch": "*"} if condition.etag is None else {"IfMatch": condition.etag}
