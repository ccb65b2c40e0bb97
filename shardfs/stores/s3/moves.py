"""Names that are moved, in the bucket and between it and the side.

S3 moves nothing.  What a file holds is stored under its new name, in place of what programs were shown of that, and
the old one is deleted.  A directory in which anything is stored is not moved: programs then move its files one by one.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from shardfs.errors import (
    ConflictError,
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    RefusedError,
    StaleError,
)
from shardfs.stores.base import Kind, Splice, Stat, join_key
from shardfs.stores.s3.requests import ObjectStat
from shardfs.stores.s3.spools import Spools, is_on_side

if TYPE_CHECKING:
    from shardfs.stores.s3.store import S3Store

log = logging.getLogger(__name__)

COPIED_NBYTES: Final = 8 * 2**20
"""From this size on an object is copied by S3, in three requests, and does not go through this machine, in two."""


class Moves:
    """Moves names of *store*, which has *spools*, one at a time."""

    def __init__(self, store: "S3Store", spools: Spools) -> None:
        self._store = store
        self._spools = spools
        self._lock = trio.Lock()

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*; raises as `Store.rename` does."""
        async with self._lock:
            store = self._store
            aside, to_aside = is_on_side(key), is_on_side(to)
            if aside and to_aside:
                await self._spools.side.rename(key, to, exclusive=exclusive)
                return
            status = await store.stat(key)
            found = await self._check_target(key, status, to, exclusive=exclusive)
            if key == to:
                return
            try:
                if status.kind is Kind.DIRECTORY:
                    await self._move_directory(key, to, is_aside=aside or to_aside)
                elif to_aside:
                    await self._move_out(key, to, exclusive=exclusive)
                elif aside:
                    await self._move_in(key, to, found, exclusive=exclusive)
                else:
                    await self._move(key, to, found, exclusive=exclusive)
            except ConflictError:
                if exclusive:
                    raise ExistsError(f"{to} exists: another program has made it") from None
                raise StaleError(
                    f"{to} was changed by another program since this mount showed it; read it again"
                ) from None

    async def _check_target(self, key: str, status: Stat, to: str, *, exclusive: bool) -> Stat | None:
        """Return what *to* stands for; raises what keeps it from taking what *key* is."""
        store, is_directory = self._store, status.kind is Kind.DIRECTORY
        if not is_on_side(to):
            store.objects.check_key(to)
        if (await store.stat(to.rpartition("/")[0])).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{to} is not in a directory")
        if not key or not to or (is_directory and to.startswith(key + "/")):
            raise RefusedError(f"{key or 'the source'} cannot become {to or 'the source'}")
        try:
            target = await store.stat(to)
        except NotFoundError:
            return None
        if exclusive:
            raise ExistsError(f"{to} exists")
        if key == to:
            return target
        if target.kind is not Kind.DIRECTORY:
            if is_directory:
                raise NotADirectoryHereError(f"{to} is no directory")
            return target
        if not is_directory:
            raise IsADirectoryHereError(f"{to} is a directory")
        if await store.list(to):
            raise NotEmptyError(f"{to} is not empty")
        await store.rmdir(to)
        return None

    async def _move(self, key: str, to: str, found: Stat | None, *, exclusive: bool) -> None:
        """Move a file that passes through to *to*, which was *found*."""
        store, objects = self._store, self._store.objects
        async with self._spools.alone(key), self._spools.alone(to):
            expected = None if exclusive else store.expected(to, found)
            spool = self._spools.find(key)
            if spool is not None and spool.is_here:
                source = spool.expected
                await self._spools.store(spool, to, expected)
            else:
                snapshot = await objects.open(key)
                source = snapshot.object
                if snapshot.size >= COPIED_NBYTES:
                    await store.put_by(to, expected, lambda edit: edit.copy(snapshot, key))
                else:
                    splice = Splice((snapshot.content(0, snapshot.size),))
                    properties = await objects.properties(key, source.etag)
                    await store.put_by(to, expected, lambda edit: edit.splice(splice, properties))
                if spool is not None:
                    spool.snapshot = await objects.open(to)
            self._spools.detach(to)
            if spool is not None:
                self._spools.rename(spool, to)
            if source is not None:
                await self._delete(key, source)
        store.moved_away(key)

    async def _move_in(self, key: str, to: str, found: Stat | None, *, exclusive: bool) -> None:
        """Make a file of the side one that passes through, *to*, which was *found*."""
        snapshot = await self._spools.side.open(key)
        async with self._spools.alone(to):
            expected = None if exclusive else self._store.expected(to, found)
            await self._store.put(to, snapshot.content(0, snapshot.size), expected)
            self._spools.detach(to)
        await self._spools.side.unlink(key)

    async def _move_out(self, key: str, to: str, *, exclusive: bool) -> None:
        """Make a file that passes through one of the side."""
        async with self._spools.alone(key):
            spool = self._spools.here(key)
            if spool is not None:
                source = spool.expected
                await self._spools.take(spool, to, exclusive=exclusive)
            else:
                snapshot = await self._store.objects.open(key)
                source = snapshot.object
                await self._spools.fetch(snapshot, to, exclusive=exclusive)
                self._spools.detach(key)
            if source is not None:
                await self._delete(key, source)
        self._store.moved_away(key)

    async def _move_directory(self, key: str, to: str, *, is_aside: bool) -> None:
        if is_aside or not await self._is_empty(key):
            raise CrossDeviceError(f"{key} is not moved as a whole: S3 has no directories")
        await self._store.objects.delete_marker(key)
        self._store.directories.move(key, to)
        self._store.moved_away(key)

    async def _is_empty(self, key: str) -> bool:
        """Whether nothing is stored in a directory, or about to be, but directories that are empty themselves."""
        for entry in await self._store.list(key):
            if entry.kind is not Kind.DIRECTORY or not await self._is_empty(join_key(key, entry.name)):
                return False
        return True

    async def _delete(self, key: str, source: ObjectStat) -> None:
        """Delete the version *source* of an object that has another name now, and no other."""
        edit = self._store.change(key, source)
        if not edit.can_delete:
            await self._store.objects.delete_object(key)
            return
        try:
            await edit.delete()
        except ConflictError:
            log.warning("%s stays under its old name too: another program has changed it meanwhile", key)
