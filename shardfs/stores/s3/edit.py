"""One change of one object, on the condition that nobody else was faster.

Small objects are put as a whole.  Of others S3 copies what is kept, in a multipart upload that becomes the object when
it is complete; if it fails, it is aborted, and the object is what it was.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from shardfs.errors import ConflictError, NotFoundError, ShardfsError, UnsupportedError
from shardfs.stores.base import Splice, Stat
from shardfs.stores.s3.bodies import body_of
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.parts import S3_LIMITS, Copied, Part, Sent, kept_prefix, plan_parts
from shardfs.stores.s3.probe import Conditions
from shardfs.stores.s3.requests import Condition, ObjectStat, Properties
from shardfs.stores.s3.snapshot import S3Snapshot
from shardfs.stores.s3.transactions import Made, is_gone, is_made, new_transaction, once, with_transaction
from shardfs.stores.s3.uploads import Uploads
from shardfs.stores.s3.whole_objects import new_properties

_MAX_PARALLEL: Final = 8
"""How many parts are sent at a time; each may hold some megabytes of old bytes in memory."""


class ReadingHalf(Protocol):
    """What a change asks and tells the part of the store that reads."""

    async def properties(self, key: str, etag: str) -> Properties:
        """Return the properties of a version; raises `ConflictError` if it is not the present one."""

    def changing(self, key: str) -> AbstractContextManager[None]:
        """Give the time in which *key* may change and its readers are not told yet."""

    def note(self, key: str, stat: ObjectStat | None, properties: Properties | None = None) -> None:
        """Take *stat* for the state of *key*, as our own change has left it."""

    def followed(self, key: str, etag: str, new: ObjectStat, kept_nbytes: int) -> None:
        """Read the first *kept_nbytes* bytes of the version *etag* from the one that followed it."""

    def forget(self, key: str) -> None:
        """Ask again for *key* when it is wanted next."""

    def snapshot(self, key: str, state: ObjectStat) -> S3Snapshot:
        """Return a version of *key*."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What all changes of a source share.

    *scratch* is a directory of this machine for old bytes that are on their way into a new version.
    """

    client: S3Client
    location: Location
    reading: ReadingHalf
    uploads: Uploads
    conditions: Conditions
    single_writer: bool
    scratch: str


@dataclass(frozen=True, slots=True)
class _New:
    """A new version: the *parts* that it is made of, the *kept_nbytes* old bytes that it begins with."""

    parts: Sequence[Part]
    nbytes: int
    kept_nbytes: int
    properties: Properties


@dataclass(slots=True, eq=False)
class S3Edit:
    """A change of the object *key*, which is found as *snapshot*: nobody is kept from changing it meanwhile.

    If it fails for another reason than a conflict, its *transaction* tells later whether it was made.
    """

    writing: Writing
    key: str
    snapshot: S3Snapshot | None
    temporary: str = field(init=False, default="")
    append_alignment: int = field(init=False, default=1)
    written_nbytes: int = field(init=False, default=0)
    transaction: str = field(init=False, default_factory=new_transaction)
    _is_begun: bool = field(init=False, default=False)
    _source: tuple[S3Snapshot, str] | None = field(init=False, default=None)

    async def splice(self, splice: Splice, properties: Properties | None = None) -> Stat:
        """Store the new version: as a whole if nothing of it can be copied, else in parts.

        It has *properties*, or if that is None those of the old one.
        The state that is returned is not the present one if another host has changed the object again meanwhile.
        """
        self._begin()
        parts = plan_parts(splice, self.snapshot.size if self.snapshot is not None else 0)
        with self._forgotten_on_failure():
            found = await self._properties() if properties is None else properties
            new = _New(parts, splice.nbytes, kept_prefix(splice), with_transaction(found, self.transaction))
            match parts:
                case (Sent() as whole,):
                    return await self._put(whole, new)
                case _:
                    return await self._upload(new)

    async def copy(self, source: S3Snapshot, source_key: str) -> Stat:
        """Make the object what *source* is, a version of *source_key*, which S3 copies."""
        self._begin()
        with self._forgotten_on_failure():
            properties = await self.writing.reading.properties(source_key, source.object.etag)
            starts = range(0, source.size, S3_LIMITS.max_part)
            parts = [Copied(start, min(S3_LIMITS.max_part, source.size - start)) for start in starts]
            self._source = source, self.writing.location.object_key(source_key)
            return await self._upload(_New(parts, source.size, 0, with_transaction(properties, self.transaction)))

    @property
    def can_delete(self) -> bool:
        """Whether a change of another host cannot be lost by a delete."""
        return self.writing.conditions.delete or self.writing.single_writer

    async def delete(self) -> None:
        """Remove the object; `UnsupportedError` where another host's change of it might be lost by that."""
        self._begin()
        if self.snapshot is None:
            raise NotFoundError(f"{self._url} does not exist")
        honoured = self.writing.conditions.delete
        if not self.can_delete:
            raise UnsupportedError(f"{self._url} is not deleted: its endpoint does not honour conditions on DELETE")

        async def attempt() -> Made:
            condition = await self._condition(honoured)
            await self.writing.client.delete(self._object_key, condition=condition)
            return Made(None)

        with self._forgotten_on_failure(), self.writing.reading.changing(self.key):
            await once(self.writing.client, self._object_key, attempt, is_gone)
            self.writing.reading.note(self.key, None)

    @property
    def _object_key(self) -> str:
        return self.writing.location.object_key(self.key)

    @property
    def _url(self) -> str:
        return self.writing.location.url_of(self.key)

    @property
    def _etag(self) -> str | None:
        return self.snapshot.object.etag if self.snapshot is not None else None

    def _begin(self) -> None:
        if self._is_begun:
            raise ValueError("an edit makes one change")
        self._is_begun = True

    @contextmanager
    def _forgotten_on_failure(self) -> Iterator[None]:
        try:
            yield
        except ShardfsError:
            self.writing.reading.forget(self.key)
            raise

    async def _properties(self) -> Properties:
        """Return what the object has besides its bytes."""
        if self._etag is None:
            return new_properties(self.key)
        try:
            return await self.writing.reading.properties(self.key, self._etag)
        except NotFoundError:
            raise self._changed() from None

    async def _put(self, whole: Sent, new: _New) -> Stat:
        client, key = self.writing.client, self._object_key
        async with body_of(whole, client, key, self._etag, self.writing.scratch) as body:

            async def attempt() -> str:
                condition = await self._condition(self.writing.conditions.put)
                return await client.put(key, body, new.properties, condition=condition)

            return await self._make(new, attempt)

    async def _upload(self, new: _New) -> Stat:
        client, key = self.writing.client, self._object_key
        async with self.writing.uploads.begun(client, key, new.properties) as upload:
            etags = await self._send_parts(upload.upload_id, new.parts)

            async def attempt() -> str:
                condition = await self._condition(self.writing.conditions.complete)
                return await client.complete_upload(key, upload.upload_id, etags, condition=condition)

            stat = await self._make(new, attempt)
            upload.is_complete = True
            return stat

    async def _make(self, new: _New, attempt: Callable[[], Awaitable[str]]) -> Stat:
        """Make the new version by *attempt*, which returns its ETag, and tell the readers."""
        reading = self.writing.reading

        async def made_by_attempt() -> Made:
            etag = await attempt()
            return Made(ObjectStat(new.nbytes, etag, time.time_ns()))

        with reading.changing(self.key):
            made = await once(
                self.writing.client,
                self._object_key,
                made_by_attempt,
                lambda found: is_made(self.transaction, found),
            )
            self.written_nbytes = sum(part.nbytes for part in new.parts if isinstance(part, Sent))
            if made.stat is None:
                reading.forget(self.key)
                return reading.snapshot(self.key, ObjectStat(new.nbytes, self.transaction, time.time_ns())).stat
            reading.note(self.key, made.stat, new.properties)
            if self._etag is not None:
                reading.followed(self.key, self._etag, made.stat, new.kept_nbytes)
            return reading.snapshot(self.key, made.stat).stat

    async def _send_parts(self, upload_id: str, parts: Sequence[Part]) -> Sequence[str]:
        """Make the parts, several at a time, and return their ETags; the first that fails ends all."""
        etags = [""] * len(parts)
        failures: list[ShardfsError] = []
        limit = trio.CapacityLimiter(_MAX_PARALLEL)

        async def make(place: int, part: Part) -> None:
            async with limit:
                try:
                    etags[place] = await self._make_part(upload_id, place + 1, part)
                except ShardfsError as error:
                    failures.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for place, part in enumerate(parts):
                nursery.start_soon(make, place, part)
        if failures:
            raise failures[0]
        return etags

    async def _make_part(self, upload_id: str, number: int, part: Part) -> str:
        client, key = self.writing.client, self._object_key
        if isinstance(part, Copied):
            source, source_key = self._source if self._source is not None else (self.snapshot, key)
            assert source is not None
            condition = Condition(source.object.etag) if self.writing.conditions.copy else None
            place = part.offset, part.nbytes
            try:
                return await client.copy_part(key, upload_id, number, *place, condition=condition, source=source_key)
            except NotFoundError:
                raise self._changed() from None
        async with body_of(part, client, key, self._etag, self.writing.scratch) as body:
            return await client.upload_part(key, upload_id, number, body)

    async def _condition(self, honoured: bool) -> Condition | None:
        """Return the condition to send; where it would be ignored, look whether it holds, as well as that can be."""
        if honoured:
            return Condition(self._etag)
        try:
            etag: str | None = (await self.writing.client.head(self._object_key))[0].etag
        except NotFoundError:
            etag = None
        if etag != self._etag:
            raise self._changed()
        return None

    def _changed(self) -> ConflictError:
        return ConflictError(f"{self._url} was changed by another program")
