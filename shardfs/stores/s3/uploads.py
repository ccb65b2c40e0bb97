"""The upload log: multipart uploads that may have to be aborted, remembered on the local disk.

What was sent of an upload that nobody completes or aborts is paid for, and no listing of the bucket shows it.  So each
has a small file from before it begins until it is over; what a crash leaves is aborted by the next mount.
"""

import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

import trio

from shardfs.errors import AccessDeniedError, ShardfsError, UnsupportedError, printable
from shardfs.stores.local.openat import open_directory
from shardfs.stores.local.syscalls import Syscalls, changing
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.requests import Counts, Properties, Upload

log = logging.getLogger(__name__)

_DISK: Final = Syscalls()
_SUFFIX: Final = ".json"
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

    def may_be(self, upload: Upload) -> bool:
        """Whether *upload* was begun for it, as far as is known."""
        return upload.key == self.key and -_BEFORE <= upload.initiated - self.begun <= _AFTER


@dataclass(slots=True)
class Begun:
    """An upload that is under way; once it *is_complete*, there is nothing left to abort."""

    upload_id: str
    is_complete: bool = False


class Uploads:
    """The uploads to *location* of this process, in files in *directory*, which is made when it is needed.

    No other process may use the directory at the same time.
    """

    def __init__(self, directory: str, location: Location, counts: Counts, disk: Syscalls = _DISK) -> None:
        self._directory = directory
        self._location = location
        self._counts = counts
        self._disk = disk

    @asynccontextmanager
    async def begun(self, client: S3Client, key: str, properties: Properties) -> AsyncIterator[Begun]:
        """Begin an upload; it is aborted unless the block completes it and says so."""
        name = secrets.token_hex(8) + _SUFFIX
        record = _Record(key, time.time())
        await trio.to_thread.run_sync(self._write, name, record)
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
            await trio.to_thread.run_sync(self._write, name, record)
            yield upload
        finally:
            with trio.CancelScope(shield=True):
                if upload is not None and upload.is_complete:
                    record = replace(record, upload_id=None)
                await self._give_up(client, name, record)

    async def clean(self, client: S3Client) -> None:
        """Abort what an earlier process has left; what cannot be aborted is logged, and kept for the next time."""
        below = self._location.directory_prefix("")
        for name, record in await trio.to_thread.run_sync(self._read_all):
            if record.key.startswith(below):
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
                    if record.may_be(upload):
                        await client.abort_upload(upload.key, upload.upload_id)
            await trio.to_thread.run_sync(self._remove, name)
        except ShardfsError as error:
            log.warning("an unfinished upload of %s stays until the next mount: %s", printable(record.key), error)

    def _write(self, name: str, record: _Record) -> None:
        with changing(self._directory):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            directory, temporary = open_directory(self._directory), name + ".tmp"
            fd = self._disk.create(temporary, os.O_WRONLY | os.O_TRUNC, 0o600, directory.fd)
            try:
                self._disk.pwrite(fd, [json.dumps(asdict(record)).encode()], 0)
                self._disk.sync(fd)
            finally:
                os.close(fd)
            self._disk.rename(temporary, name, directory.fd, directory.fd)
            self._disk.sync_directory(directory.fd)

    def _remove(self, name: str) -> None:
        with changing(self._directory):
            directory = open_directory(self._directory)
            self._disk.unlink(name, directory.fd)
        with suppress(OSError):  # there are others
            os.rmdir(self._directory)

    def _read_all(self) -> Sequence[tuple[str, _Record]]:
        """Return what is remembered, and remove what holds nothing."""
        records: list[tuple[str, _Record]] = []
        names: Sequence[str] = ()
        with suppress(OSError):
            names = sorted(os.listdir(self._directory))
        for name in names:
            record = _parse(os.path.join(self._directory, name)) if name.endswith(_SUFFIX) else None
            if record is not None:
                records.append((name, record))
                continue
            with suppress(ShardfsError):
                self._remove(name)
        return records


def _parse(path: str) -> _Record | None:
    try:
        with open(path, "rb") as file:
            fields = json.loads(file.read(_MAX_NBYTES))
        record = _Record(**{name: fields[name] for name in ("key", "begun", "upload_id", "is_certain")})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_sound = isinstance(record.key, str) and isinstance(record.begun, float)
    is_sound = is_sound and isinstance(record.upload_id, str | None) and isinstance(record.is_certain, bool)
    return record if is_sound else None
