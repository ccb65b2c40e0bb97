"""The local file system as a store.

Calls that only touch names and attributes run in the event loop, as those that read do.  What waits for the disk
(content in bulk, and making things durable) runs in a thread.
"""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

from shardfs.errors import ExistsError, NoAttributeError, NotFoundError, RefusedError, UnsupportedError
from shardfs.stores.base import Expected, Stat
from shardfs.stores.beneath import ITSELF, READ, WALK, WRITE, Descriptor, changing, open_beneath
from shardfs.stores.durable import Disk
from shardfs.stores.file_lock import FileLock, lock
from shardfs.stores.local_edit import LocalEdit
from shardfs.stores.local_live import LocalFile, change_attributes
from shardfs.stores.local_reader import TTL, USER, LocalReader
from shardfs.stores.local_snapshot import LocalSnapshot, to_stat
from shardfs.stores.new_file import Rights, rename_to_absent, temporary_name, write_aside

_DISK: Final = Disk()
_DIRECTORY: Final = READ | os.O_DIRECTORY


class LocalStore(LocalReader):
    """A directory of this machine, which is changed through *disk* only."""

    def __init__(self, root: str, disk: Disk = _DISK, *, ttl: float = TTL) -> None:
        """Open *root*; raises `SourceError` if it is not a directory that can be read."""
        super().__init__(root, ttl=ttl)
        self._disk = disk
        self._making_directories = trio.Lock()

    async def start_writing(self, directory: str, *, single_writer: bool) -> None:
        """Do nothing: reserved names live in the source, and its lock keeps other mounts away."""

    async def flush(self) -> None:
        """Return: what is written is stored at once."""

    async def check_writable(self, key: str) -> None:
        """Raise what keeps a regular file from being changed or made."""
        with suppress(NotFoundError):
            self._open_to_change(key)

    @asynccontextmanager
    async def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        waited: float | None = None,
    ) -> AsyncIterator[LocalEdit]:
        """Begin a change of a regular file, alone."""
        rights = Rights(mode, uid, gid)
        held = await self._lock(key, rights, waited)
        try:
            descriptor: Descriptor | None = None
            snapshot: LocalSnapshot | None = None
            with suppress(NotFoundError):
                descriptor = self._open_to_change(key)
                snapshot = self._snapshot(key, descriptor, to_stat(os.fstat(descriptor.fd)))
            edit = LocalEdit(
                self._disk,
                self._descriptor,
                key,
                rights,
                self._snapshots,
                self.make_directories,
                held,
                descriptor,
                snapshot,
            )
        except BaseException:
            if held is not None:
                held.release()
            raise
        try:
            yield edit
        finally:
            edit.release()

    async def _lock(self, key: str, rights: Rights, waited: float | None) -> FileLock | None:
        """Take the lock of *key*; None where there is no directory for it, or one in which nothing can be made."""
        with changing(key):
            try:
                parent, name = self._place(key)
            except FileNotFoundError:
                return None
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=parent.fd, follow_symlinks=False)
                rights = Rights.of(status)
        return await lock(self._disk, parent, key, rights, waited)

    def _open_to_change(self, key: str) -> Descriptor:
        with changing(key):
            parent, name = self._place(key)
            descriptor = Descriptor(os.open(name, WRITE, dir_fd=parent.fd))
        _require_regular(key, descriptor)
        return descriptor

    async def create(self, key: str, mode: int, *, exclusive: bool) -> LocalFile:
        """Open a regular file to read and write, and make it with *mode* if there is none."""
        with changing(key):
            parent, name = self._place(key)
            try:
                descriptor = Descriptor(self._disk.create(name, WRITE | os.O_EXCL, mode & 0o7777, parent.fd))
            except FileExistsError:
                if exclusive:
                    raise
                descriptor = Descriptor(self._disk.create(name, WRITE, mode & 0o7777, parent.fd))
                _require_regular(key, descriptor)
            else:
                Rights(mode).give(self._disk, descriptor.fd)
        return LocalFile(self._disk, key, descriptor)

    async def open_live(self, key: str, *, writable: bool) -> LocalFile:
        """Open a regular file as it is at any time."""
        return LocalFile(self._disk, key, self._open_to_change(key) if writable else self._open(key)[0])

    @property
    def nchanges(self) -> int:
        """None: a lock keeps other mounts away."""
        return 0

    def note_shown(self, key: str, state: Stat | None, *, since: int | None = None) -> None:
        """Do nothing: a lock keeps other mounts away."""

    async def replace(
        self,
        key: str,
        content: bytes,
        *,
        exclusive: bool = False,
        mode: int | None = None,
        expected: Expected | None = None,
    ) -> Stat:
        """Store *content* under *key*, durably and at once, in place of what is there."""
        with changing(key):
            _require_name(key)
            return await trio.to_thread.run_sync(self._replace, key, content, exclusive, mode)

    async def unlink(self, key: str) -> None:
        """Remove a name that is no directory."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.unlink(name, parent.fd)

    async def mkdir(self, key: str, mode: int) -> None:
        """Make a directory with *mode*, and the set-group-ID bit of the one above."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.mkdir(name, mode & 0o7777, parent.fd)
            itself = Descriptor(os.open(name, ITSELF, dir_fd=parent.fd))
            made = os.fstat(itself.fd).st_mode & 0o7777
            if (made ^ mode) & 0o777:
                self._disk.chmod(itself.path, made & ~0o777 | mode & 0o777)

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.rmdir(name, parent.fd)

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*."""
        with changing(key):
            old_parent, old = self._place(key)
            new_parent, new = self._place(to)
            if exclusive:
                rename_to_absent(self._disk, old, new, old_parent.fd, new_parent.fd)
            else:
                self._disk.rename(old, new, old_parent.fd, new_parent.fd)

    async def link(self, key: str, to: str) -> None:
        """Give a file the second name *to*."""
        with changing(to):
            old_parent, old = self._place(key)
            new_parent, new = self._place(to)
            self._disk.link(old, new, old_parent.fd, new_parent.fd)

    async def symlink(self, key: str, target: bytes) -> None:
        """Make *key* a symbolic link."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.symlink(target, name, parent.fd)

    async def make_directories(self, key: str) -> None:
        """Make the directory *key* and all above it that are missing, durably."""
        # One at a time: whoever finds a directory there may rely on it as one that is durable.
        async with self._making_directories:
            with changing(key):
                await trio.to_thread.run_sync(self._make_directories, key)

    async def set_attributes(
        self,
        key: str,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Change what is given, of the link itself if *key* is one."""
        with changing(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            return change_attributes(self._disk, itself.path, itself.fd, mode, uid, gid, atime_ns, mtime_ns)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise UnsupportedError(f"{key}: the attribute {name!r} is not one of users")
        with changing(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            self._disk.set_attribute(itself.path, name, value)

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        with changing(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            self._disk.remove_attribute(itself.path, name)

    async def sync_directory(self, key: str) -> None:
        """Make the names in a directory durable."""
        with changing(key):
            directory = open_beneath(self._descriptor, key, _DIRECTORY)
            await trio.to_thread.run_sync(self._disk.sync_directory, directory.fd)

    def _replace(self, key: str, content: bytes, exclusive: bool, mode: int | None) -> Stat:
        parent, _, name = key.rpartition("/")
        directory = open_beneath(self._descriptor, parent, _DIRECTORY)
        rights = Rights(mode)
        with suppress(FileNotFoundError):
            old = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            if exclusive:
                raise ExistsError(f"{key} exists")
            if stat.S_ISREG(old.st_mode):
                rights = Rights.of(old)
        temporary = temporary_name()

        def take_name(_: int) -> None:
            rename = partial(rename_to_absent, self._disk) if exclusive else self._disk.rename
            rename(temporary, name, directory.fd, directory.fd)

        return write_aside(self._disk, directory, temporary, rights, [[content]], take_name)[1]

    def _make_directories(self, key: str) -> None:
        parts = [part for part in key.split("/") if part]
        try:
            open_beneath(self._descriptor, key, WALK)
        except FileNotFoundError:
            pass
        else:
            return
        directory = open_beneath(self._descriptor, "", _DIRECTORY)
        for stop in range(1, len(parts) + 1):
            path = "/".join(parts[:stop])
            try:
                directory = open_beneath(self._descriptor, path, _DIRECTORY)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    self._disk.mkdir(parts[stop - 1], 0o777, directory.fd)
                self._disk.sync_directory(directory.fd)
                directory = open_beneath(self._descriptor, path, _DIRECTORY)

    def _place(self, key: str) -> tuple[Descriptor, str]:
        """Return the directory that holds *key*, and its name there, which is to be changed."""
        _require_name(key)
        return self._parent(key)


def _require_name(key: str) -> None:
    if key.rpartition("/")[2] in ("", ".", ".."):
        raise RefusedError(f"{key or 'the source'} cannot be changed so")


def _require_regular(key: str, descriptor: Descriptor) -> None:
    if not stat.S_ISREG(os.fstat(descriptor.fd).st_mode):
        raise RefusedError(f"{key} is not a regular file")
