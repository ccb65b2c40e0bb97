"""One change of one object, on the condition that nobody else was faster; and new objects, for bulk work.

Small objects are put as a whole. For others, S3 copies what is kept, in a multipart upload that becomes the object when
it is complete; if it fails, it is aborted, and the object is as it was.

Each change appends a *commit id* to a list in the object's properties. If a reply is lost, the id tells that the
change was made, even if another host has changed the object since.
"""

import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import trio

from shardfs.errors import (
    ConflictError,
    NotFoundError,
    ShardfsError,
    StoreError,
    UnknownOutcomeError,
    UnreachableError,
)
from shardfs.stores.base import Buffer, Content, Kept, Splice, Stat
from shardfs.stores.local.syscalls import changing, translated
from shardfs.stores.memory import JoinedContent, MemoryContent, Slice
from shardfs.stores.parallel import for_each
from shardfs.stores.s3.client import Backoff, S3Client
from shardfs.stores.s3.objects import Objects, S3Snapshot, file_stat, require_all
from shardfs.stores.s3.parts import S3_LIMITS, Part, Sent, kept_prefix, plan_fetches, plan_parts
from shardfs.stores.s3.probe import Conditions
from shardfs.stores.s3.requests import Condition, Fetched, ObjectStat, Properties, Range

COMMIT_IDS: Final = "shardfs-transactions"
"""The name, in an object's user metadata or Cache-Control, of the ids of the changes that made it, the latest last."""

_MAX_IDS: Final = 16
_MAX_METADATA: Final = 2048
"""How many bytes of user metadata S3 accepts, names and values together."""

_ID: Final = re.compile(r"[0-9a-f]{16}")
_DIRECTIVE: Final = re.compile(rf'(?:^|, *){COMMIT_IDS}="([0-9a-f,]*)"')
_SENDING_ALL: Final = replace(S3_LIMITS, min_part=S3_LIMITS.max_object)
"""Limits with which nothing is large enough to be copied."""

_BACKOFF: Final = Backoff(attempts=4, first=0.2)
_MAX_PARALLEL: Final = 8
"""How many parts are sent at a time; each may hold some megabytes of old bytes in memory."""

_AT_ONCE: Final = 4
"""How many parts of a new object are under way at a time."""

_IN_MEMORY: Final = 8 * 2**20
"""How many fetched bytes are held in memory for one body; more go to a file."""


def commit_ids(properties: Properties | None) -> Sequence[str]:
    """Return the ids of the last changes of an object, the latest last."""
    if properties is None:
        return []
    listed = properties.metadata.get(COMMIT_IDS)
    if listed is None:
        directive = _DIRECTIVE.search(properties.headers.get("CacheControl", ""))
        listed = directive[1] if directive is not None else ""
    return _ID.findall(listed)


def with_commit_id(properties: Properties, commit_id: str) -> Properties:
    """Return *properties* with *commit_id* added to the ids of earlier changes, of which the last ones stay.

    The ids are in the user metadata. Where these have no room for them, because programs have filled it, they are a
    directive of Cache-Control, which counts for no limit: whoever does not know a directive has to ignore it.
    """
    ids = ",".join([*commit_ids(properties), commit_id][-_MAX_IDS:])
    metadata = {name: value for name, value in properties.metadata.items() if name != COMMIT_IDS}
    headers = dict(properties.headers)
    others = _DIRECTIVE.sub("", headers.pop("CacheControl", ""))
    used = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if used + len(COMMIT_IDS) + len(ids) <= _MAX_METADATA:
        metadata[COMMIT_IDS] = ids
    else:
        others = f'{others}{", " if others else ""}{COMMIT_IDS}="{ids}"'
    if others:
        headers["CacheControl"] = others
    return replace(properties, headers=headers, metadata=metadata)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writing:
    """What all changes of a source share.

    *scratch* is a local directory for old bytes on their way into a new version.
    """

    objects: Objects[S3Client]
    conditions: Conditions
    single_writer: bool
    scratch: str

    def may_copy(self, key: str) -> bool:
        """Whether the server can be asked to copy from *key*.

        Ceph (16.2) decodes % in the name of what is to be copied twice, and so copies another object. Only a server
        that honours the condition would notice.
        """
        return self.conditions.copy or "%" not in self.objects.client.location.full(key)


class S3Edit:
    """A change of the object *key*, found as *snapshot*; nobody is kept from changing it meanwhile.

    *source* is the object that the bytes to be kept, and the properties, are taken from: by default *snapshot*. If the
    change fails for a reason other than a conflict, its *commit_id* tells later whether it was made.
    """

    temporary = ""
    append_alignment = 1

    def __init__(
        self, writing: Writing, key: str, snapshot: S3Snapshot | None, source: S3Snapshot | None = None
    ) -> None:
        self.key = key
        self.snapshot = snapshot
        self.commit_id = secrets.token_hex(8)
        self._source = source or snapshot
        self._writing = writing
        self._conditions = writing.conditions
        self._objects = writing.objects
        self._client = writing.objects.client
        self._etag = snapshot.object.etag if snapshot is not None else None
        self._url = self._client.location.url_of(key)

    async def splice(self, splice: Splice) -> Stat:
        """Store the new version: as a whole if nothing can be copied, else in parts.

        If another host has changed the object again meanwhile, the returned state is not the present one.
        """
        with self._begun():
            if self._source is None:
                parts, properties = plan_parts(splice, 0), Properties.of_new(self.key)
            else:
                limits = S3_LIMITS if self._writing.may_copy(self._source.key) else _SENDING_ALL
                parts = plan_parts(splice, self._source.size, limits)
                properties = await self._objects.heads.properties(self._source.key, self._source.object.etag)
            properties = with_commit_id(properties, self.commit_id)
            match parts:
                case (Sent() as whole,):
                    async with self._body(whole) as body:

                        async def put(condition: Condition | None) -> str:
                            return await self._client.put(self.key, body, properties, condition=condition)

                        return await self._make(splice, properties, self._conditions.put, put)
                case _:
                    return await self._upload(splice, properties, parts)

    @property
    def can_delete(self) -> bool:
        """Whether deleting it cannot lose a change by another host."""
        return self._conditions.delete or self._writing.single_writer

    async def delete(self) -> None:
        """Remove the object, checked as well as possible to be this version (`can_delete`)."""
        if self.snapshot is None:
            raise NotFoundError(f"{self._url} does not exist")

        async def delete(condition: Condition | None) -> None:
            await self._client.delete(self.key, condition=condition)

        with self._begun(), self._objects.changing(self.key):
            await self._once(self._conditions.delete, delete, lambda found: found is None)
            self._objects.heads.changed(self.key, None)

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Make the change; if it fails, forget what is known about the objects."""
        try:
            yield
        except ShardfsError as error:
            self._objects.heads.forget(self.key)
            if self._source is not None:
                self._objects.heads.forget(self._source.key)
            if isinstance(error, NotFoundError):  # what was to be kept is not there
                raise self._changed() from None
            raise

    async def _upload(self, splice: Splice, properties: Properties, parts: Sequence[Part]) -> Stat:
        """Make the new version from parts."""
        upload_id = await self._client.create_upload(self.key, properties)

        async def complete(condition: Condition | None) -> str:
            etag = await self._client.complete_upload(self.key, upload_id, etags, condition=condition)
            if etag is None:  # this is like a lost reply: others may have changed the object
                raise UnknownOutcomeError(f"the server does not tell the ETag of {self._url}")
            return etag

        try:
            etags = await self._make_parts(upload_id, parts)
            return await self._make(splice, properties, self._conditions.complete, complete)
        except BaseException:
            await self._client.give_up(self.key, upload_id)
            raise

    async def _make(
        self,
        splice: Splice,
        properties: Properties,
        honoured: bool,
        attempt: Callable[[Condition | None], Awaitable[str]],
    ) -> Stat:
        """Make the new version by *attempt*, which returns its ETag, and inform the readers."""
        with self._objects.changing(self.key):
            reply = await self._once(
                honoured, attempt, lambda found: found is not None and self.commit_id in commit_ids(found.properties)
            )
            if isinstance(reply, str):
                made = ObjectStat(splice.nbytes, reply, time.time_ns())
            elif reply is not None and commit_ids(reply.properties)[-1] == self.commit_id:
                made = reply.stat
            else:  # another change has already followed
                self._objects.heads.forget(self.key)
                return file_stat(self.key, ObjectStat(splice.nbytes, self.commit_id, time.time_ns()))
            old = self.snapshot.object if self.snapshot is not None else None
            kept_nbytes = kept_prefix(splice) if self._source is self.snapshot else 0
            self._objects.changed(self.key, old, made, properties, kept_nbytes)
            return file_stat(self.key, made)

    async def _once(
        self,
        honoured: bool,
        attempt: Callable[[Condition | None], Awaitable[T]],
        is_made: Callable[[Fetched | None], bool],
    ) -> T | Fetched | None:
        """Make a change, once, by *attempt*, on the condition that the object is the expected one; return its result.

        If the condition would not be *honoured*, it is checked here, as well as possible. If there is no reply,
        *is_made* decides by what is found then. If it was made, what was found is returned; if not, the request is sent
        again. Raises `ConflictError` if another change was first, and `StoreError` if it is unknown whether the change
        was made.
        """
        for count in range(_BACKOFF.attempts):
            if count:
                await trio.sleep(_BACKOFF.delay(count))
            refusal: ConflictError | None = None
            try:
                if honoured:
                    return await attempt(Condition(self._etag))
                found = await self._find()
                if (None if found is None else found.stat.etag) != self._etag:
                    raise self._changed()
                return await attempt(None)
            except UnknownOutcomeError as error:
                reason: ShardfsError = error
            except ConflictError as error:
                if not count:
                    raise
                reason = refusal = error  # perhaps because of an earlier attempt
            try:
                found = await self._find()
            except ShardfsError as error:
                kind = UnreachableError if isinstance(error, UnreachableError) else StoreError
                raise kind(f"cannot tell whether {self._url} was changed: {reason}; then {error}") from None
            if is_made(found):
                return found
            if refusal is not None:
                raise refusal
        attempts = _BACKOFF.attempts
        raise StoreError(f"a change of {self._url} was not made, in {attempts} attempts without a reply: {reason}")

    async def _find(self) -> Fetched | None:
        """Return what the object is now; None if there is none."""
        try:
            return await self._client.head(self.key)
        except NotFoundError:
            return None

    async def _make_parts(self, upload_id: str, parts: Sequence[Part]) -> Sequence[str]:
        """Make the parts, several at a time; return their ETags. The first failure ends all."""
        etags = [""] * len(parts)

        async def make(place: int) -> None:
            part, number = parts[place], place + 1
            if isinstance(part, Sent):
                async with self._body(part) as body:
                    etags[place] = await self._client.upload_part(self.key, upload_id, number, body)
                return
            assert self._source is not None
            condition = Condition(self._source.object.etag) if self._conditions.copy else None
            etags[place] = await self._client.copy_part(
                self.key,
                upload_id,
                number,
                Range(part.offset, part.nbytes),
                condition=condition,
                source=self._source.key,
            )

        await for_each(range(len(parts)), make, _MAX_PARALLEL)
        return etags

    @asynccontextmanager
    async def _body(self, part: Sent) -> AsyncIterator[Content]:
        """Provide the body of *part*, including the old bytes in it.

        These are fetched before the request begins: so it is known early if the version is gone, and sending a body
        again costs no more. If they are many, they are held in a nameless file.
        """
        scratch = self._writing.scratch
        # What could not be written is written again when the file is closed.
        with changing(scratch), tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=scratch) as file:

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
                assert self._source is not None
                first, last = group[0].offset, group[-1]
                wanted = Range(first, last.offset + last.nbytes - first)
                data = (await self._client.get(self._source.key, wanted, etag=self._source.object.etag)).data
                require_all(self._source.key, wanted.nbytes, data)
                pieces = [data[kept.offset - first :][: kept.nbytes] for kept in group]
                await trio.to_thread.run_sync(file.writelines, pieces)
            yield JoinedContent(contents)

    def _changed(self) -> ConflictError:
        return ConflictError(f"{self._url} was changed by another program")


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
            found = (await self._client.head(self._key)).stat
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
