"""New objects that are written from first byte to last, for bulk work: small ones by one PUT, others in parts."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from shardfs.errors import ConflictError
from shardfs.stores.base import PART_NBYTES, Buffer, Stat
from shardfs.stores.memory import MemoryContent
from shardfs.stores.parallel import open_nursery
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.heads import Heads
from shardfs.stores.s3.objects import file_stat
from shardfs.stores.s3.parts import S3_LIMITS
from shardfs.stores.s3.requests import ObjectStat, Properties

_AT_ONCE: Final = 4
"""How many parts are under way at a time."""


class NewS3Object:
    """An object that becomes *key*: parts of *part_nbytes* are sent while the next ones are written.

    With a head, the first part waits for that.
    """

    def __init__(self, client: S3Client, key: str, part_nbytes: int, head_nbytes: int, nursery: trio.Nursery) -> None:
        self.stat: ObjectStat | None = None
        self._client = client
        self._key = key
        self._part_nbytes = part_nbytes
        self._head_nbytes = head_nbytes
        self._nursery = nursery
        self._pending = bytearray(head_nbytes)
        self._first: bytearray | None = None
        self._nbytes = head_nbytes
        self._upload_id: str | None = None
        self._etags: list[str] = []
        self._room = trio.Semaphore(_AT_ONCE)

    async def write(self, data: Sequence[Buffer]) -> None:
        """Append *data*, and send complete parts; waits for room for each."""
        for piece in data:
            view = memoryview(piece).cast("B")
            self._nbytes += view.nbytes
            while view.nbytes:
                room = self._part_nbytes - len(self._pending)
                if not room:
                    await self._send()
                    continue
                self._pending += view[:room]
                view = view[room:]

    async def finish(self, head: Buffer = b"") -> Stat:
        """Send the rest, and make the object."""
        if self._upload_id is None:
            self._pending[: len(head)] = head
            etag: str | None = await self._client.put(
                self._key, MemoryContent(memoryview(self._pending)), Properties.of_new(self._key)
            )
        else:
            if self._first is not None:
                self._first[: len(head)] = head
                await self._start(1, self._first)
            if self._pending:
                await self._send()
            for _ in range(_AT_ONCE):  # nothing else is being sent then
                await self._room.acquire()
            etag = await self._client.complete_upload(self._key, self._upload_id, self._etags, condition=None)
            self._upload_id = None
        if etag is None:
            found, _ = await self._client.head(self._key)
            if found.size != self._nbytes:
                raise ConflictError(f"{self._client.location.url_of(self._key)} was changed by another program")
            etag = found.etag
        self.stat = ObjectStat(self._nbytes, etag, time.time_ns())
        return file_stat(self._key, self.stat)

    async def abort(self) -> None:
        """Abort the upload, if one was begun and is not complete."""
        if self._upload_id is not None:
            await self._client.give_up(self._key, self._upload_id)

    async def _send(self) -> None:
        """Send what is pending as the next part."""
        if self._upload_id is None:
            self._upload_id = await self._client.create_upload(self._key, Properties.of_new(self._key))
        self._etags.append("")
        part, self._pending = self._pending, bytearray()
        if len(self._etags) == 1 and self._head_nbytes:
            self._first = part
        else:
            await self._start(len(self._etags), part)

    async def _start(self, number: int, part: bytearray) -> None:
        await self._room.acquire()
        self._nursery.start_soon(self._put_part, number, part)

    async def _put_part(self, number: int, part: bytearray) -> None:
        assert self._upload_id is not None
        body = MemoryContent(memoryview(part))
        self._etags[number - 1] = await self._client.upload_part(self._key, self._upload_id, number, body)
        self._room.release()


class NewS3Objects:
    """The part of a store for bulk work: no conditions, and no memory of uploads."""

    heads: Heads
    _client: S3Client

    @asynccontextmanager
    async def new_object(self, key: str, nbytes: int, *, head_nbytes: int = 0) -> AsyncIterator[NewS3Object]:
        """Begin an object that becomes *key*; unless it is finished in the block, it is aborted."""
        part_nbytes = max(PART_NBYTES, -(-(nbytes + nbytes // 8) // S3_LIMITS.max_parts), head_nbytes)
        new: NewS3Object | None = None
        try:
            async with open_nursery() as nursery:  # a failed part ends the block
                new = NewS3Object(self._client, key, part_nbytes, head_nbytes, nursery)
                yield new
        finally:
            if new is not None and new.stat is not None:
                self.heads.changed(key, new.stat)
            elif new is not None:
                await new.abort()

    async def discard(self, key: str) -> None:
        """Remove an object, if there is one."""
        await self._client.delete(key)
        self.heads.changed(key, None)

    async def clear_unfinished(self, keys: Sequence[str]) -> None:
        """Abort all uploads of *keys*."""
        for key in keys:
            for upload_id in await self._client.list_uploads(key):
                await self._client.abort_upload(key, upload_id)

    async def settle(self) -> None:
        """Do nothing: what S3 accepted is durable."""
