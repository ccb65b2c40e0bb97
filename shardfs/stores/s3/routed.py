"""A source in a bucket, with the names that shardfs reserves on this machine: `RoutedStore`."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Unpack
from weakref import WeakValueDictionary

import trio

from shardfs.errors import CrossDeviceError
from shardfs.stores.base import (
    Expected,
    Kind,
    ListedName,
    NewAttributes,
    NewDocument,
    NewObject,
    NewOwner,
    NewPermissions,
    ObjectEdit,
    OpenFile,
    Snapshot,
    Stat,
    is_reserved,
)
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.s3.store import S3Store


class RoutedStore:
    """The *remote* store, but for reserved names, which are in a local store, the *side*, from `start_writing` on.

    Files can be moved from one to the other.
    """

    root = None
    directory = None
    only_zarr = False

    def __init__(self, remote: S3Store) -> None:
        self.remote = remote
        self.side: LocalStore | None = None
        self.url = remote.url
        self.address = remote.address
        self.ttl = remote.ttl
        self.rewrites = remote.rewrites
        self.fetches_ahead = remote.fetches_ahead
        self.lists = remote.lists
        self._renaming: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def _store_of(self, key: str) -> LocalStore | S3Store:
        """Return the store that *key* belongs to."""
        return self._side_of(key) or self.remote

    def _side_of(self, key: str) -> LocalStore | None:
        """Return the side if *key* belongs to it."""
        return self.side if is_reserved(key.partition("/")[0]) else None

    # The source.

    def statistics(self) -> Mapping[str, object]:
        """Return the counts of the remote store."""
        return self.remote.statistics()

    def url_of(self, key: str) -> str:
        """Return the URL of *key*."""
        return self.remote.url_of(key)

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, unless there are too many."""
        return await self.remote.check()

    async def capacity(self) -> os.statvfs_result:
        """Return how much space there is in the remote store."""
        return await self.remote.capacity()

    async def start_writing(self, directory: str, own: str, *, single_writer: bool) -> None:
        """Prepare for changes; *directory* has the reserved names from now on, and *own* those of this session."""
        side = LocalStore(directory)
        await self.remote.start_writing(side, own, single_writer=single_writer)
        self.side = side

    # Names and their content.

    async def stat(self, key: str) -> Stat:
        """Return the status of *key*."""
        return await self._store_of(key).stat(key)

    async def fresh(self, key: str) -> Stat:
        """Return the status of the file *key* as it is stored now."""
        return await self._store_of(key).fresh(key)

    def forget(self, key: str) -> None:
        """Ask again for *key* at the next request."""
        self._store_of(key).forget(key)

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file."""
        return await self._store_of(key).open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing; False if that is unknown."""
        return await self._store_of(key).is_absent(key)

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory; at the top those of the remote store."""
        return await self._store_of(key).list(key)

    async def expect_names(self, key: str) -> None:
        """Note that several names in the directory *key* will be asked for soon."""
        await self._store_of(key).expect_names(key)

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several names in one directory."""
        return await self._store_of(key).stat_in(key, names)

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link."""
        return await self._store_of(key).read_link(key)

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute."""
        return await self._store_of(key).attribute(key, name)

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        return await self._store_of(key).attributes(key)

    # Names and files, changed at the request of programs.

    async def is_being_written(self, key: str) -> bool:
        """Whether a program of another session writes the file *key*, as far as that is known."""
        return await self._store_of(key).is_being_written(key)

    async def create(self, key: str, mode: int, *, exclusive: bool, **owner: Unpack[NewOwner]) -> OpenFile:
        """Open a regular file for reading and writing, creating it if there is none."""
        return await self._store_of(key).create(key, mode, exclusive=exclusive, **owner)

    async def open_passthrough(self, key: str) -> OpenFile:
        """Open a regular file to read it, without pinning a version."""
        return await self._store_of(key).open_passthrough(key)

    async def open_to_write(self, key: str) -> OpenFile:
        """Open a regular file to read and write it, without pinning a version."""
        return await self._store_of(key).open_to_write(key)

    async def replace(self, key: str, content: bytes, expected: Expected, **new: Unpack[NewDocument]) -> Stat:
        """Store *content* under *key* at once, replacing what is *expected* there."""
        return await self._store_of(key).replace(key, content, expected, **new)

    @asynccontextmanager
    async def documents_locked(self, path: str) -> AsyncIterator[None]:
        """Do nothing: the service checks what is expected."""
        yield

    async def keep(self, key: str, content: bytes, reason: str) -> None:
        """Keep what a program wrote to *key* and was refused."""
        await self._store_of(key).keep(key, content, reason)

    async def unlink(self, key: str) -> None:
        """Remove a name that is not a directory."""
        await self._store_of(key).unlink(key)

    async def remove_lock(self, key: str) -> None:
        """Remove a lock file that nobody holds, if there is one."""
        await self._store_of(key).remove_lock(key)

    async def mkdir(self, key: str, mode: int, **owner: Unpack[NewOwner]) -> None:
        """Make a directory."""
        await self._store_of(key).mkdir(key, mode, **owner)

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory."""
        await self._store_of(key).rmdir(key)

    async def make_directories(self, key: str) -> None:
        """Create the directory *key* and the missing ones above it."""
        await self._store_of(key).make_directories(key)

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*; a directory is only moved on the side, else `CrossDeviceError`."""
        side, side_of_to = self._side_of(key), self._side_of(to)
        async with AsyncExitStack() as stack:
            for name in sorted({key, to}):  # other names are moved meanwhile
                await stack.enter_async_context(self._renaming.setdefault(name, trio.Lock()))
            if side is None and side_of_to is None:
                await self.remote.rename(key, to, exclusive=exclusive)
            elif side is None:
                await self.remote.move_to_side(key, to, exclusive=exclusive)
            elif side_of_to is not None:
                await side.rename(key, to, exclusive=exclusive)
            else:
                await self._move_from(side, key, to, exclusive=exclusive)

    async def _move_from(self, side: LocalStore, key: str, to: str, *, exclusive: bool) -> None:
        """Move a file of the side to *to* in the remote store."""
        if (await side.stat(key)).kind is Kind.DIRECTORY:
            raise CrossDeviceError(f"{key} is not moved as a whole: {self.url} is on no disk of this machine")
        written = await side.open(key)
        await self.remote.store_as(to, written.content(0, written.size), exclusive=exclusive)
        await side.unlink(key)

    async def link(self, key: str, to: str) -> None:
        """Give a file a second name; one on the side has it there."""
        side = self._side_of(key)
        store = side if side is not None and self._side_of(to) is not None else self.remote
        await store.link(key, to)

    async def symlink(self, key: str, target: bytes) -> None:
        """Make *key* a symbolic link."""
        await self._store_of(key).symlink(key, target)

    async def set_attributes(self, key: str, **changes: Unpack[NewAttributes]) -> Stat:
        """Change the given attributes; return the new status."""
        return await self._store_of(key).set_attributes(key, **changes)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        await self._store_of(key).set_attribute(key, name, value)

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute."""
        await self._store_of(key).remove_attribute(key, name)

    async def sync_directory(self, key: str) -> None:
        """Make the names in a directory durable."""
        await self._store_of(key).sync_directory(key)

    async def flush(self) -> None:
        """Store what was written to open files; on the side it is stored already."""
        await self.remote.flush()

    async def check_writable(self, key: str) -> None:
        """Raise any known error that prevents changing or creating a regular file."""
        await self._store_of(key).check_writable(key)

    # Whole objects and shards, of which none has a reserved name.

    def new_object(self, key: str, nbytes: int, *, head_nbytes: int = 0) -> AbstractAsyncContextManager[NewObject]:
        """Begin an object that becomes *key*."""
        return self.remote.new_object(key, nbytes, head_nbytes=head_nbytes)

    async def discard(self, key: str) -> None:
        """Remove an object, if there is one."""
        await self.remote.discard(key)

    async def clear_unfinished(self, keys: Sequence[str]) -> None:
        """Remove what killed processes left of new objects."""
        await self.remote.clear_unfinished(keys)

    async def sync_new_objects(self) -> None:
        """Make durable what `new_object` made."""
        await self.remote.sync_new_objects()

    def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        waited: float = 0.0,
        **permissions: Unpack[NewPermissions],
    ) -> AbstractAsyncContextManager[ObjectEdit]:
        """Begin a change of a shard."""
        return self.remote.edit(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes, waited=waited, **permissions)
