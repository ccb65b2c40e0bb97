"""A bucket in memory behind the signatures of `S3Client`: conditions are honoured, each request is written down."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import trio

from shardfs.errors import ConflictError, NotFoundError, StoreError
from shardfs.stores.base import Content
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.requests import (
    Counts,
    Fetched,
    ListPage,
    ObjectStat,
    Properties,
    Range,
)
from shardfs.stores.s3.client import ServerClock
from shardfs.stores.s3.requests import Condition

if TYPE_CHECKING:
    from shardfs.stores.s3.client import S3Client

SECOND = 10**9
MIN_PART_NBYTES = 5 * 2**20


class Request(NamedTuple):
    """One request: an S3 operation, the key or prefix, the range in the words of HTTP, the ETag it depends on."""

    operation: str
    key: str
    range: str | None = None
    etag: str | None = None


@dataclass
class StoredObject:
    data: bytes
    stat: ObjectStat
    properties: Properties


@dataclass
class _Parts:
    key: str
    properties: Properties
    parts: dict[int, bytes] = field(default_factory=dict)


class FakeS3:
    """Objects by full key, and the log of requests to them.

    *latency* is how many seconds a request takes, on trio's clock; *page_size* how many keys a page has at most.
    `before` is awaited for each request, and may raise, wait or change the bucket; requests that block skip it.
    """

    endpoint_url = "http://localhost:1"

    def __init__(self, *, latency: float = 0.0, page_size: int = 1000, min_part_nbytes: int = MIN_PART_NBYTES) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.log: list[Request] = []
        self.latency = latency
        self.page_size = page_size
        self.min_part_nbytes = min_part_nbytes
        self.before: Callable[[Request], Awaitable[None]] | None = None
        self.in_flight = 0
        self.most_in_flight = 0
        self._now = 1_700_000_000
        self._uploads: dict[str, _Parts] = {}
        self._upload_number = 0

    @property
    def client(self) -> S3Client:
        """A client of the whole bucket."""
        return self.client_at("")

    def client_at(self, prefix: str) -> S3Client:
        """A client of the source below *prefix*."""
        return cast("S3Client", _Client(self, S3Location("bucket", prefix)))

    def store(self, key: str, data: bytes, properties: Properties | None = None) -> ObjectStat:
        """Change the bucket behind everybody's back."""
        return self._store(key, data, properties or Properties(), f'"{hashlib.md5(data).hexdigest()}"')

    def remove(self, key: str) -> None:
        del self.objects[key]

    def take_log(self) -> list[Request]:
        """Return the requests since the last call."""
        log, self.log = self.log, []
        return log

    async def get(self, key: str, part: Range, *, etag: str | None = None, with_properties: bool = False) -> Fetched:
        await self._pass(Request("GetObject", key, _http(part), etag))
        fetched = self._get(key, part, etag)
        return fetched._replace(properties=self.objects[key].properties) if with_properties else fetched

    def get_blocking(self, key: str, part: Range, *, etag: str | None = None) -> Fetched:
        self.log.append(Request("GetObject", key, _http(part), etag))
        return self._get(key, part, etag)

    async def head(self, key: str) -> Fetched:
        await self._pass(Request("HeadObject", key))
        found = self._object(key)
        return Fetched(found.stat, 0, memoryview(b""), found.properties)

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        await self._pass(Request("ListObjectsV2", prefix))
        objects: list[tuple[str, ObjectStat]] = []
        prefixes: list[str] = []
        last = token or ""
        for key in sorted(self.objects, key=str.encode):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            name = prefix + rest[: rest.index(delimiter) + len(delimiter)] if delimiter and delimiter in rest else key
            if name.encode() <= last.encode() and last:
                continue
            if len(objects) + len(prefixes) == min(limit, self.page_size):
                return ListPage(objects, prefixes, last)
            last = name
            if name != key or (delimiter and rest.endswith(delimiter)):
                prefixes.append(name)
            else:
                objects.append((key, self.objects[key].stat))
        return ListPage(objects, prefixes, None)

    async def put(self, key: str, body: Content, properties: Properties, *, condition: Condition | None = None) -> str:
        data = await _whole(body)
        await self._pass(Request("PutObject", key, None, _said(condition)))
        self._require(key, condition)
        return self.store(key, data, properties).etag

    async def delete(self, key: str, *, condition: Condition | None = None) -> None:
        await self._pass(Request("DeleteObject", key, None, _said(condition)))
        self._require(key, condition)
        self.objects.pop(key, None)

    async def create_upload(self, key: str, properties: Properties) -> str:
        await self._pass(Request("CreateMultipartUpload", key))
        self._upload_number += 1
        upload_id = f"upload-{self._upload_number}"
        self._uploads[upload_id] = _Parts(key, properties)
        return upload_id

    async def upload_part(self, key: str, upload_id: str, number: int, body: Content) -> str:
        data = await _whole(body)
        await self._pass(Request("UploadPart", key))
        return self._part(key, upload_id, number, data)

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
        await self._pass(Request("UploadPartCopy", key, _http(part), _said(condition)))
        source = key if source is None else source
        self._require(source, condition)
        data = self._object(source).data
        if part is not None:
            data = data[part.offset : part.offset + part.nbytes]
        if part is not None and len(data) != part.nbytes:
            raise StoreError(f"UploadPartCopy {key}: InvalidArgument")
        return self._part(key, upload_id, number, data)

    async def complete_upload(
        self, key: str, upload_id: str, etags: Sequence[str], *, condition: Condition | None
    ) -> str:
        await self._pass(Request("CompleteMultipartUpload", key, None, _said(condition)))
        upload = self._upload(key, upload_id)
        parts = [upload.parts[number] for number in range(1, len(etags) + 1)]
        if [_etag(part) for part in parts] != list(etags):
            raise StoreError(f"CompleteMultipartUpload {key}: InvalidPart")
        if any(len(part) < self.min_part_nbytes for part in parts[:-1]):
            raise StoreError(f"CompleteMultipartUpload {key}: EntityTooSmall")
        self._require(key, condition)
        del self._uploads[upload_id]
        digests = b"".join(hashlib.md5(part).digest() for part in parts)
        etag = f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'
        return self._store(key, b"".join(parts), upload.properties, etag).etag

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._pass(Request("AbortMultipartUpload", key))
        self._uploads.pop(upload_id, None)

    async def give_up(self, key: str, upload_id: str) -> None:
        await self.abort_upload(key, upload_id)

    async def list_uploads(self, key: str) -> Sequence[str]:
        await self._pass(Request("ListMultipartUploads", key))
        return [upload_id for upload_id, upload in self._uploads.items() if upload.key == key]

    async def _pass(self, request: Request) -> None:
        self.log.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await trio.sleep(self.latency)
            if self.before is not None:
                await self.before(request)
        finally:
            self.in_flight -= 1

    def _store(self, key: str, data: bytes, properties: Properties, etag: str) -> ObjectStat:
        self._now += 1
        stat = ObjectStat(len(data), etag, self._now * SECOND)
        self.objects[key] = StoredObject(bytes(data), stat, properties)
        return stat

    def _object(self, key: str) -> StoredObject:
        if key not in self.objects:
            raise NotFoundError(f"{key}: NoSuchKey")
        return self.objects[key]

    def _get(self, key: str, part: Range, etag: str | None) -> Fetched:
        found = self._object(key)
        if etag is not None and found.stat.etag != etag:
            raise ConflictError(f"GetObject {key}: PreconditionFailed")
        start, nbytes = part.within(len(found.data))
        return Fetched(found.stat, start, memoryview(found.data)[start : start + nbytes])

    def _require(self, key: str, condition: Condition | None) -> None:
        if condition is None:
            return
        found = self.objects.get(key)
        if (found.stat.etag if found else None) != condition.etag:
            raise ConflictError(f"{key}: PreconditionFailed")

    def _upload(self, key: str, upload_id: str) -> _Parts:
        if upload_id not in self._uploads or self._uploads[upload_id].key != key:
            raise ConflictError(f"{key}: NoSuchUpload")
        return self._uploads[upload_id]

    def _part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        self._upload(key, upload_id).parts[number] = bytes(data)
        return _etag(data)


class _Client:
    """The bucket for one source, whose keys are those below its prefix."""

    def __init__(self, fake: FakeS3, location: S3Location) -> None:
        self.limiter = trio.CapacityLimiter(64)
        self.clock = ServerClock()
        self.location = location
        self.counts = Counts()
        self.endpoint_url = fake.endpoint_url
        self.address = location.address(self.endpoint_url)
        self._fake = fake

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the bucket that takes a key of the source."""

        def method(key: str, *args: Any, **options: Any) -> Any:
            if options.get("source") is not None:
                options["source"] = self.location.full(options["source"])
            return getattr(self._fake, name)(self.location.full(key), *args, **options)

        return method

    async def list_page(self, prefix: str, **options: Any) -> ListPage:
        page, start = await self._fake.list_page(self.location.full(prefix), **options), len(self.location.full(""))
        objects = [(key[start:], stat) for key, stat in page.objects]
        return ListPage(objects, [name[start:] for name in page.prefixes], page.token)


async def _whole(body: Content) -> bytes:
    return bytes(await trio.to_thread.run_sync(body.read, 0, body.nbytes))


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _said(condition: Condition | None) -> str | None:
    if condition is None:
        return None
    return "*" if condition.etag is None else condition.etag


def _http(part: Range | None) -> str | None:
    if part is None:
        return None
    return f"-{part.nbytes}" if part.offset < 0 else f"{part.offset}-{part.offset + part.nbytes - 1}"
