"""The upload log: multipart uploads that may have to be aborted, remembered on the local disk.

What was sent of an upload that nobody completes or aborts is paid for, and no listing of the bucket shows it.  So each
has a small file from before it begins until it is over; what a crash leaves is aborted by the next mount.
"""

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

import trio

from shardfs.errors import AccessDeniedError, NotFoundError, ShardfsError, UnsupportedError, printable
from shardfs.stores.base import join_key
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import Counts, Location, Properties

log = logging.getLogger(__name__)

UPLOADS: Final = ".shardfs/uploads"
"""The directory of these files, in that of the mount."""

_MAX_NBYTES: Final = 65_536
_BEFORE: Final = 5.0
_AFTER: Final = 60.0
"""Seconds around the time when an upload was begun, by our clock, in which it may have begun by that of S3."""


@dataclass(frozen=True, slots=True)
class _Record:
    """An upload of the object *key*, *begun* in seconds since 1970; *upload_id* is None until S3 has said it.

    If it is not *is_certain*, there may be another that was begun for it, whose id was lost with a reply.
    """

    key: str
    begun: float
    upload_id: str | None = None
    is_certain: bool = False


@dataclass(slots=True)
class Begun:
    """An upload that is under way; once it *is_complete*, there is nothing left to abort."""

    upload_id: str
    is_complete: bool = False


class Uploads:
    """The uploads to *location* of this process, in files in `UPLOADS` of the local store *side*."""

    def __init__(self, side: LocalStore, location: Location, counts: Counts) -> None:
        self._side = side
        self._location = location
        self._counts = counts

    @asynccontextmanager
    async def begun(self, client: S3Client, key: str, properties: Properties) -> AsyncIterator[Begun]:
        """Begin an upload; it is aborted unless the block completes it and says so."""
        name = join_key(UPLOADS, secrets.token_hex(8))
        record = _Record(key, time.time())
        await self._side.make_directories(UPLOADS)
        await self._write(name, record)
        upload: Begun | None = None
        retries = self._counts.retries
        try:
            try:
                upload = Begun(await client.create_upload(key, properties))
            except (AccessDeniedError, UnsupportedError):  # there is none, unless an earlier attempt made one
                record = replace(record, is_certain=self._counts.retries == retries)
                raise
            # Retries of other requests do no harm here: they cost a listing that finds nothing.
            record = replace(record, upload_id=upload.upload_id, is_certain=self._counts.retries == retries)
            await self._write(name, record)
            yield upload
        finally:
            with trio.CancelScope(shield=True):
                if upload is not None and upload.is_complete:
                    record = replace(record, upload_id=None)
                await self._give_up(client, name, record)

    async def clean(self, client: S3Client) -> None:
        """Abort what an earlier process has left; what cannot be aborted is logged, and kept for the next time."""
        try:
            names = sorted(entry.name for entry in await self._side.list(UPLOADS))
        except NotFoundError:
            return
        for name in (join_key(UPLOADS, name) for name in names):
            record = await self._read(name)
            if record is None:  # it was not complete when its process ended
                with suppress(ShardfsError):
                    await self._side.unlink(name)
            elif record.key.startswith(self._location.directory_prefix("")):
                await self._give_up(client, name, record)
            else:
                log.warning("an upload of %s stays: that is not in %s", printable(record.key), self._location.url)

    async def _give_up(self, client: S3Client, name: str, record: _Record) -> None:
        """Abort what is left of an upload, and forget it; never raises."""
        try:
            if record.upload_id is not None:
                await client.abort_upload(record.key, record.upload_id)
            if not record.is_certain:
                # Should one be another host's, that host commits again, as it would after this change of the object.
                for upload in await client.list_uploads(record.key):
                    if -_BEFORE <= upload.initiated - record.begun <= _AFTER:
                        await client.abort_upload(record.key, upload.upload_id)
            await self._side.unlink(name)
        except ShardfsError as error:
            log.warning("an unfinished upload of %s stays until the next mount: %s", printable(record.key), error)

    async def _write(self, name: str, record: _Record) -> None:
        await self._side.replace(name, json.dumps(asdict(record)).encode())

    async def _read(self, name: str) -> _Record | None:
        with suppress(ShardfsError, ValueError, KeyError, TypeError):
            snapshot = await self._side.open(name)
            note = json.loads(bytes(await snapshot.read(0, min(snapshot.size, _MAX_NBYTES))))
            upload_id = None if note["upload_id"] is None else str(note["upload_id"])
            return _Record(str(note["key"]), float(note["begun"]), upload_id, bool(note["is_certain"]))
        return None
