"""Names that are moved, between the bucket, the copies that wait to be sent, and the side.

What is on this machine is moved there.  S3 moves nothing: an object is copied and deleted, so that a directory with
objects is not moved as a whole, but for one that is put aside.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from shardfs.errors import (
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    RefusedError,
)
from shardfs.stores.base import Entry, Kind, Stat, join_key
from shardfs.stores.s3.copies import Copies
from shardfs.stores.s3.overlay import is_on_side
from shardfs.stores.s3.whole_objects import MAX_WHOLE_NBYTES, WholeObjects


class Directories(Protocol):
    """The part of a store that is looked at before a name is moved."""

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory."""


class Renames:
    """Moves names of *store*, which has *objects* and *copies*, one at a time."""

    def __init__(self, store: Directories, objects: WholeObjects, copies: Copies) -> None:
        self._store = store
        self._objects = objects
        self._copies = copies
        self._side = copies.side

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*; raises as `Store.rename` does."""
        async with self._copies.moving:
            await self._rename(key, to, exclusive=exclusive)

    async def _rename(self, key: str, to: str, *, exclusive: bool) -> None:
        if is_on_side(key) and is_on_side(to):
            await self._side.rename(key, to, exclusive=exclusive)
            return
        status = await self._store.stat(key)
        await self._check_target(key, status, to, exclusive=exclusive)
        if key == to:
            return
        if is_on_side(key):
            await self._move_in(key, to)
        elif status.kind is Kind.DIRECTORY:
            await self._move_directory(key, to)
        elif is_on_side(to):
            await self._move_out(key, to, exclusive=exclusive)
        else:
            await self._move(key, to, status)

    async def _check_target(self, key: str, status: Stat, to: str, *, exclusive: bool) -> None:
        """Raise what keeps *to* from taking what *key* is."""
        is_directory = status.kind is Kind.DIRECTORY
        if not is_on_side(to):
            self._objects.check_key(to)
        if (await self._store.stat(to.rpartition("/")[0])).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{to} is not in a directory")
        if not key or not to or (is_directory and to.startswith(key + "/")):
            raise RefusedError(f"{key or 'the source'} cannot become {to or 'the source'}")
        try:
            target = await self._store.stat(to)
        except NotFoundError:
            return
        if exclusive:
            raise ExistsError(f"{to} exists")
        if key == to:
            return
        if target.kind is not Kind.DIRECTORY:
            if is_directory:
                raise NotADirectoryHereError(f"{to} is no directory")
        elif not is_directory:
            raise IsADirectoryHereError(f"{to} is a directory")
        elif await self._store.list(to):
            raise NotEmptyError(f"{to} is not empty")
        else:
            await self._store.rmdir(to)

    async def _move(self, key: str, to: str, status: Stat) -> None:
        """Move a file that passes through."""
        async with self._copies.alone(key) as copy, self._copies.alone(to) as replaced:
            if copy is not None and copy.is_here:
                await self._copies.rename(copy, to)
            elif status.size > MAX_WHOLE_NBYTES:
                await self._copies.fetch(await self._objects.open(key), to)
                if copy is not None:
                    await self._copies.remove(copy)
            else:
                await self._objects.copy_object(key, to)
                if replaced is not None:
                    await self._copies.remove(replaced)
                if copy is not None:
                    copy.snapshot = await self._objects.open(to)
                    await self._copies.rename(copy, to)
            await self._delete([key], key)

    async def _move_in(self, key: str, to: str) -> None:
        """Make a name of the side one that passes through."""
        async with self._copies.alone(to):
            await self._copies.put(key, to)

    async def _move_out(self, key: str, to: str, *, exclusive: bool) -> None:
        """Make a file that passes through one of the side."""
        async with self._copies.alone(key) as copy:
            if copy is not None and copy.is_here:
                await self._copies.take(copy, to, exclusive=exclusive)
            else:
                await self._copies.fetch_aside(await self._objects.open(key), to, exclusive=exclusive)
            await self._delete([key], key)

    async def _move_directory(self, key: str, to: str) -> None:
        found: Sequence[str] = await self._objects_below(key) if await self._is_in_bucket(key) else ()
        if found and not is_on_side(to):
            raise CrossDeviceError(f"{key} holds objects, which S3 does not move")
        for name in found:
            if self._copies.find(name) is None:
                await self._copies.fetch(await self._objects.open(name), name)
        async with AsyncExitStack() as stack:
            for copy in self._copies.below(key):
                await stack.enter_async_context(self._copies.alone(copy.key))
            if is_on_side(to):
                await self._copies.take_directory(key, to)
            else:
                await self._copies.rename_directory(key, to)
            await self._delete(found, key)
            await self._objects.delete_marker(key)

    async def _is_in_bucket(self, key: str) -> bool:
        try:
            await self._objects.stat(key)
        except NotFoundError:
            return False
        return True

    async def _objects_below(self, directory: str) -> list[str]:
        """Return the keys of all objects below a directory."""
        found: list[str] = []
        for entry in await self._objects.list(directory):
            key = join_key(directory, entry.name)
            if entry.kind is Kind.DIRECTORY:
                found += await self._objects_below(key)
            else:
                found.append(key)
        return found

    async def _delete(self, keys: Sequence[str], moved: str) -> None:
        """Delete the objects *keys*, for which *moved* has another name now; the directory above it stays."""
        for key in keys:
            await self._objects.delete_object(key)
        self._copies.names.add(moved.rpartition("/")[0], Kind.DIRECTORY)
