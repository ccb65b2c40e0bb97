"""Local files that pass through, open."""

import os
from typing import Final

import trio

from shardfs.stores.base import Buffer, Stat
from shardfs.stores.beneath import Descriptor, changing, translated
from shardfs.stores.durable import Disk, Target
from shardfs.stores.local_snapshot import to_stat

_THREAD_NBYTES: Final = 256 * 2**10  # less is copied to the page cache faster than a thread takes over


class LocalFile:
    """An open regular file; its name is kept for messages only."""

    __slots__ = ("_descriptor", "_disk", "_key")

    def __init__(self, disk: Disk, key: str, descriptor: Descriptor) -> None:
        self._disk = disk
        self._key = key
        self._descriptor = descriptor

    def stat(self) -> Stat:
        """Return the present state."""
        with translated(self._key):
            return to_stat(os.fstat(self._descriptor.fd))

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        with translated(self._key):
            return await trio.to_thread.run_sync(os.pread, self._descriptor.fd, nbytes, offset)

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*."""
        with changing(self._key):
            if len(data) > _THREAD_NBYTES:
                await trio.to_thread.run_sync(self._disk.pwrite, self._descriptor.fd, [data], offset)
            else:
                self._disk.pwrite(self._descriptor.fd, [data], offset)
        return len(data)

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        with changing(self._key):
            await trio.to_thread.run_sync(self._disk.truncate, self._descriptor.fd, nbytes)

    async def sync(self) -> None:
        """Make what was written durable."""
        with changing(self._key):
            await trio.to_thread.run_sync(self._disk.sync, self._descriptor.fd)

    async def flush(self) -> None:
        """Return: what is written is stored at once."""

    async def close(self) -> None:
        """Return: the file is closed with the last reference to it."""

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Change what is given."""
        fd = self._descriptor.fd
        with changing(self._key):
            return change_attributes(self._disk, fd, fd, mode, uid, gid, atime_ns, mtime_ns)


def change_attributes(
    disk: Disk,
    target: Target,
    fd: int,
    mode: int | None,
    uid: int | None,
    gid: int | None,
    atime_ns: int | None,
    mtime_ns: int | None,
) -> Stat:
    """Change what is given of *target*, which *fd* is open for, and return the state after it."""
    if uid is not None or gid is not None:
        disk.chown(target, -1 if uid is None else uid, -1 if gid is None else gid)
    if mode is not None:  # after the owner, a change of which takes the set-user-ID bit away
        disk.chmod(target, mode & 0o7777)
    if atime_ns is not None or mtime_ns is not None:
        now = os.fstat(fd)
        times = now.st_atime_ns if atime_ns is None else atime_ns, now.st_mtime_ns if mtime_ns is None else mtime_ns
        disk.utime(target, times)
    return to_stat(os.fstat(fd))
