"""How bytes get to the server: new versions of objects, and new objects of bulk work.

Small objects are put as a whole. For others, S3 copies what is kept, in a multipart upload that becomes the object when
it is complete; if that fails, it is aborted, and the object is as it was. `change` says what becomes of the last
request.
"""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import trio

from shardfs.errors import ConflictError, UnknownOutcomeError
from shardfs.stores.base import Buffer, Content, Kept, Splice, Stat
from shardfs.stores.local.syscalls import changing, translated
from shardfs.stores.memory import JoinedContent, MemoryContent, Slice
from shardfs.stores.objects.requests import ObjectStat, Properties, Range
from shardfs.stores.objects.versions import ObjectSnapshot, file_stat, require_all
from shardfs.stores.parallel import for_each
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.parts import S3_LIMITS, Part, Sent, plan_fetches, plan_parts
from shardfs.stores.s3.probe import HonouredConditions
from shardfs.stores.s3.requests import Condition

_SENDING_ALL: Final = replace(S3_LIMITS, min_part=S3_LIMITS.max_object)
"""Limits with which nothing is large enough to be copied."""

_MAX_PARALLEL: Final = 8
"""How many parts are sent at a time; each may hold some megabytes of old bytes in memory."""

_AT_ONCE: Final = 4
"""How many parts of a new object are under way at a time."""

_IN_MEMORY: Final = 8 * 2**20
"""How many fetched bytes are held in memory for one body; more go to a file."""


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The one request that makes a change; all before it change no object.

    *send* sends it, on a condition, and returns what the object is then, None for nothing. It raises the errors of
    `S3Client.put`. It *is_honoured* if the server refuses it when the condition does not hold.
    """

    send: Callable[[Condition | None], Awaitable[ObjectStat | None]]
    is_honoured: bool


@dataclass(frozen=True, slots=True)
class Uploads:
    """How new versions of the objects of a source get to the server, which honours *conditions*.

    *scratch* is a local directory for old bytes on their way into a new version.
    """

    client: S3Client
    conditions: HonouredConditions
    scratch: str

    def prepared(
        self, key: str, splice: Splice, properties: Properties, source: ObjectSnapshot | None
    ) -> AbstractAsyncContextManager[LastRequest]:
        """Do all that makes *splice* of *source* the object *key*, but for the last request; that is for the block."""
        if source is None:
            parts = plan_parts(splice, 0)
        else:
            parts = plan_parts(splice, source.size, S3_LIMITS if self._may_copy(source.key) else _SENDING_ALL)
        match parts:
            case (Sent() as whole,):
                return self._whole(key, whole, properties, source)
            case _:
                return self._upload(key, parts, properties, source)

    @asynccontextmanager
    async def _whole(
        self, key: str, whole: Sent, properties: Properties, source: ObjectSnapshot | None
    ) -> AsyncIterator[LastRequest]:
        """Have the body of an object that is put as a whole."""
        async with self._body(whole, source) as body:

            async def put(condition: Condition | None) -> ObjectStat:
                etag = await self.client.put(key, body, properties, condition=condition)
                return ObjectStat(body.nbytes, etag, self.client.clock.now_ns())

            yield LastRequest(put, self.conditions.put)

    @asynccontextmanager
    async def _upload(
        self, key: str, parts: Sequence[Part], properties: Properties, source: ObjectSnapshot | None
    ) -> AsyncIterator[LastRequest]:
        """Begin an upload, and make its parts; if that or the block fails, it is aborted."""
        upload_id = await self.client.create_upload(key, properties)

        async def complete(condition: Condition | None) -> ObjectStat:
            etag = await self.client.complete_upload(key, upload_id, etags, condition=condition)
            if etag is None:  # this is like a lost reply: others may have changed the object
                url = self.client.location.url_of(key)
                raise UnknownOutcomeError(f"the server does not tell the ETag of {url}")
            return ObjectStat(sum(part.nbytes for part in parts), etag, self.client.clock.now_ns())

        try:
            etags = await self._make_parts(key, upload_id, parts, source)
            yield LastRequest(complete, self.conditions.complete)
        except BaseException:
            await self.client.give_up(key, upload_id)
            raise

    async def _make_parts(
        self, key: str, upload_id: str, parts: Sequence[Part], source: ObjectSnapshot | None
    ) -> Sequence[str]:
        """Make the parts, several at a time; return their ETags. The first failure ends all."""
        etags = [""] * len(parts)

        async def make(index: int) -> None:
            part, number = parts[index], index + 1
            if isinstance(part, Sent):
                async with self._body(part, source) as body:
                    etags[index] = await self.client.upload_part(key, upload_id, number, body)
                return
            assert source is not None
            condition = Condition(source.object.etag) if self.conditions.copy else None
            etags[index] = await self.client.copy_part(
                key, upload_id, number, Range(part.offset, part.nbytes), condition=condition, source=source.key
            )

        await for_each(range(len(parts)), make, _MAX_PARALLEL)
        return etags

    @asynccontextmanager
    async def _body(self, part: Sent, source: ObjectSnapshot | None) -> AsyncIterator[Content]:
        """Provide the body of *part*, including the old bytes in it.

        These are fetched before the request begins: so it is known early if the version is gone, and sending a body
        again costs no more. If they are many, they are held in a nameless file.
        """
        # What could not be written is written again when the file is closed.
        with changing(self.scratch), tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=self.scratch) as file:

            def read_fetched(offset: int, nbytes: int) -> Buffer:
                with translated("what was fetched to be sent again"):
                    file.seek(offset)
                    return file.read(nbytes)

            contents: list[Content] = []
            position = 0
            for piece in part.pieces:
                if isinstance(piece, Kept):
                    contents.append(Slice(read_fetched, position, piece.nbytes))
                    position += piece.nbytes
                else:
                    contents.append(piece)
            for group in plan_fetches(part.pieces):
                assert source is not None
                first, last = group[0].offset, group[-1]
                wanted = Range(first, last.offset + last.nbytes - first)
                data = (await self.client.get(source.key, wanted, etag=source.object.etag)).data
                require_all(source.key, wanted.nbytes, data)
                pieces = [data[kept.offset - first :][: kept.nbytes] for kept in group]
                await trio.to_thread.run_sync(file.writelines, pieces)
            yield JoinedContent(contents)

    def _may_copy(self, key: str) -> bool:
        """Whether the server can be asked to copy from *key*.

        Ceph (16.2) decodes % in the name of what is to be copied twice, and so copies another object. Only a server
        that honours the condition would notice.
        """
        return self.conditions.copy or "%" not in self.client.location.full(key)


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
            stored = (await self._client.head(self._key)).stat
            if stored.size != self._nbytes:
                raise ConflictError(f"{self._client.location.url_of(self._key)} was changed by another program")
            etag = stored.etag
        self.stat = ObjectStat(self._nbytes, etag, self._client.clock.now_ns())
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
