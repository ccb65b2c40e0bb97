"""Bytes and state of objects: GET, by obstore where it can name the key, else by boto3, and HEAD."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardfs.errors import AccessDeniedError, NotFoundError, StoreError
from shardfs.stores.s3.failures import Cause, FailedRequest, Failure, Request
from shardfs.stores.s3.objects import Fetched, ObjectStat, Range
from shardfs.stores.s3.properties import properties_of
from shardfs.stores.s3.retrying import Sender
from shardfs.stores.s3.session import Session
from shardfs.stores.s3.vendor_errors import NOT_PARTIAL, OTHER_RANGE, TRUNCATED

if TYPE_CHECKING:
    from obstore import GetOptions

_NOT_FOUND: Final = 404
_RANGE_NOT_SATISFIABLE: Final = 416
_MISSING: Final = ("NoSuchKey", "NoSuchBucket")
_ATTEMPTS: Final = 3
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_OTHER_ETAG: Final = Failure(Cause.REPLY, "the server gave another version than it was asked for", 412)


class Getter:
    """Reads objects of *bucket*; every method blocks."""

    def __init__(self, bucket: str, session: Session, sender: Sender) -> None:
        self._bucket = bucket
        self._session = session
        self._sender = sender

    def get(self, key: str, part: Range | None, etag: str | None, *, with_properties: bool = False) -> Fetched:
        """Do as `S3Client.get`."""
        request = Request("GetObject", self._bucket, key, is_conditional=etag is not None)
        # obstore does not give all properties.
        get = self._get_by_boto3 if with_properties or not is_plain(key) else self._get_by_obstore
        reason = "the server does not give what the object has"
        for _ in range(_ATTEMPTS):
            fetched: Fetched | Failure | None = None
            if part is None or part.nbytes > 0:
                fetched = self._sender.send(request, partial(get, key, part, etag))
            if fetched is NOT_PARTIAL:
                reason = NOT_PARTIAL.reason
            elif isinstance(fetched, Fetched):
                self._sender.count_bytes(received=fetched.data.nbytes)
                return fetched
            reply = self.head(key, etag)
            stat = stat_of(reply)
            offset, nbytes = _place(part, stat.size)
            if nbytes == 0:
                return Fetched(stat, offset, memoryview(b""), properties_of(reply))
            # It was replaced, or made, between the two requests.
        raise StoreError(f"{request.target}: {reason}")

    def head(self, key: str, etag: str | None = None) -> Mapping[str, Any]:
        """Return the reply to HEAD; raises as `S3Client.head` does, and `ConflictError` if there is another ETag."""
        request = Request("HeadObject", self._bucket, key, is_conditional=etag is not None)
        condition = {} if etag is None else {"IfMatch": etag}
        try:
            return self._sender.send(request, partial(self._session.call, "HeadObject", Key=key, **condition))
        except NotFoundError:
            self._require_bucket()
            raise

    def _require_bucket(self) -> None:
        """Raise `StoreError` if there is no bucket: HEAD says the same of a key that is missing."""
        try:
            self._sender.send(Request("HeadBucket", self._bucket), partial(self._session.call, "HeadBucket"))
        except AccessDeniedError:
            return  # it exists

    def _get_by_obstore(self, key: str, part: Range | None, etag: str | None) -> Fetched | Failure:
        """Send one GET; returns the failure if HEAD has to tell what it means."""
        options: GetOptions = {}
        if part is not None:
            suffix = part.offset < 0
            options["range"] = {"suffix": part.nbytes} if suffix else (part.offset, part.offset + part.nbytes)
        if etag is not None:
            options["if_match"] = etag
        try:
            result, data = self._session.get(key, options)
        except FailedRequest as error:
            return _doubtful(error)
        meta = result.meta
        stat = ObjectStat(meta["size"], _quoted(meta["e_tag"]), mtime_ns_of(meta["last_modified"]))
        return _checked(part, etag, Fetched(stat, result.range[0], data))

    def _get_by_boto3(self, key: str, part: Range | None, etag: str | None) -> Fetched | Failure:
        arguments = {} if etag is None else {"IfMatch": etag}
        if part is not None:
            last = part.offset + part.nbytes - 1
            arguments["Range"] = f"bytes=-{part.nbytes}" if part.offset < 0 else f"bytes={part.offset}-{last}"
        try:
            reply = self._session.call("GetObject", Key=key, **arguments)
        except FailedRequest as error:
            return _doubtful(error)
        size, offset, nbytes = reply["ContentLength"], 0, reply["ContentLength"]
        if part is not None:
            found = _CONTENT_RANGE.fullmatch(reply.get("ContentRange", ""))
            if found is None:
                return NOT_PARTIAL
            size, offset = int(found[3]), int(found[1])
            nbytes = min(nbytes, part.nbytes)
        data = memoryview(self._session.read(reply["Body"], nbytes))
        return _checked(part, etag, Fetched(stat_of(reply)._replace(size=size), offset, data, properties_of(reply)))


def is_plain(key: str) -> bool:
    """Whether obstore names exactly this key: it refuses some, and drops slashes at both ends."""
    return _CONTROL.search(key) is None and not any(part in ("", ".", "..") for part in key.split("/"))


def stat_of(reply: Mapping[str, Any]) -> ObjectStat:
    """Return the state that a reply of boto3 to GET or HEAD, or an entry of a listing, gives; raises `StoreError`."""
    size = reply["Size"] if "Size" in reply else reply["ContentLength"]
    return ObjectStat(size, etag_of(reply), mtime_ns_of(reply["LastModified"]))


def etag_of(reply: Mapping[str, Any]) -> str:
    """Return the ETag in a reply, quoted, as some servers do not; raises `StoreError` if there is none."""
    return _quoted(reply.get("ETag"))


def mtime_ns_of(time: datetime) -> int:
    """Return a time in ns, in whole seconds: HTTP headers have no others, listings do."""
    return int(time.timestamp()) * 10**9


def _quoted(etag: str | None) -> str:
    if not etag:
        raise StoreError("the server gives no ETag, by which versions of an object are told apart")
    return etag if etag.endswith('"') else f'"{etag}"'


def _place(part: Range | None, size: int) -> tuple[int, int]:
    """Return offset and length of what an object of *size* bytes has of *part*."""
    if part is None:
        return 0, size
    if part.offset < 0:
        nbytes = min(part.nbytes, size)
        return size - nbytes, nbytes
    offset = min(part.offset, size)
    return offset, min(part.nbytes, size - offset)


def _doubtful(error: FailedRequest) -> Failure:
    """Return the failure of which HEAD tells more, else raise *error*.

    The server may not have the range, or ignore it as some do of an empty object.  That there is no such object is a
    thing that S3 says: a 404 in other words may come from whatever else answers at this address.
    """
    failure = error.failure
    is_vague = failure.status == _NOT_FOUND and failure.code not in _MISSING
    if not is_vague and failure.status != _RANGE_NOT_SATISFIABLE and failure is not NOT_PARTIAL:
        raise error
    return failure


def _checked(part: Range | None, etag: str | None, fetched: Fetched) -> Fetched:
    """Return *fetched* if it is what was asked for, else raise `FailedRequest`."""
    if etag is not None and fetched.stat.etag != etag:
        raise FailedRequest(_OTHER_ETAG)
    offset, nbytes = _place(part, fetched.stat.size)
    if fetched.offset != offset or fetched.data.nbytes > nbytes:
        raise FailedRequest(OTHER_RANGE)
    if fetched.data.nbytes < nbytes:
        raise FailedRequest(TRUNCATED)
    return fetched
