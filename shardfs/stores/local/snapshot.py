"""Snapshots of local files: one version, held by an open descriptor."""

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from shardfs.errors import StaleError
from shardfs.stores.base import Buffer, Descriptor, Kind, Stat
from shardfs.stores.local.syscalls import translate

_ATTEMPTS: Final = 8


class LocalSnapshot:
    """An open regular file.

    A rename over the file, or its removal, leaves the snapshot as it is.  A change in place shows in the size or the
    modification time, which are compared after each read with what they were at the beginning.  A change that the store
    itself makes in place moves no byte but those of a head: the store announces it, and tells how it ended.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_is_held",
        "_key",
        "_mtime_ns",
        "_overwritten",
        "_root",
        "_size",
        "stat",
    )

    def __init__(self, root: Descriptor, key: str, descriptor: Descriptor, status: Stat) -> None:
        self._root = root
        self._key = key
        self._descriptor = descriptor
        self.stat = status
        self._size = status.size
        self._mtime_ns = status.mtime_ns
        self._is_held = False
        self._overwritten = 0

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._size

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        buffer = np.empty(nbytes, np.uint8).data  # bytearray would fill it with zeros first
        try:
            done = os.preadv(self._descriptor.fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise translate(error, self._key) from None
            done = 0
        if done < nbytes:
            await trio.to_thread.run_sync(self._read_rest, buffer, offset, done)
        # One look after the read is enough: it is compared with what the file was when it was opened.
        self._check(offset)
        return buffer

    def expect(self, offset: int, nbytes: int) -> None:
        """Do nothing: the kernel reads ahead by itself."""

    def content(self, offset: int, nbytes: int) -> "SnapshotContent":
        """Return *nbytes* bytes from *offset*, which are read later."""
        return SnapshotContent(self, offset, nbytes)

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        """Map the file into memory, to search it; for commands only: a file that is cut meanwhile ends the process."""
        if not self._size:  # there is no mapping of nothing
            yield memoryview(b"")
            return
        with mmap.mmap(self._descriptor.fd, self._size, prot=mmap.PROT_READ) as mapping:
            view = memoryview(mapping)
            try:
                yield view
            finally:
                view.release()

    def read_blocking(self, offset: int, nbytes: int) -> Buffer:
        """Do as `read`, in a worker thread."""
        buffer = np.empty(nbytes, np.uint8).data
        self._read_rest(buffer, offset, 0)
        self._check(offset)
        return buffer

    async def is_current(self) -> bool:
        """Whether the name that was opened still stands for this version."""
        try:
            return version_of(os.stat(self._key, dir_fd=self._root.fd)) == self.stat.version
        except OSError:
            return False

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Accept the file's present state if it is larger and holds *content* at *offset* still."""
        for _ in range(_ATTEMPTS):
            now = os.fstat(self._descriptor.fd)
            if (now.st_size, now.st_mtime_ns) == (self._size, self._mtime_ns):
                return True
            if now.st_size <= self._size:
                return False
            present = await trio.to_thread.run_sync(self._pread, offset, len(content))
            if present != content:
                return False
            after = os.fstat(self._descriptor.fd)
            if (after.st_size, after.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
                self._size, self._mtime_ns = now.st_size, now.st_mtime_ns
                return True
        return False

    def hold(self, status: Stat, overwritten: int) -> bool:
        """Serve on while the store changes the file in place, which was in the state *status*.

        The first *overwritten* bytes are lost to this version.  Returns False if the snapshot is not of that state.
        """
        if (self.stat.identity, self._size, self._mtime_ns) != (status.identity, status.size, status.mtime_ns):
            return False
        self._is_held = True
        self._overwritten = max(self._overwritten, overwritten)
        return True

    def settle(self, status: Stat) -> None:
        """Take *status* for the state of this version too, after a change in place."""
        self._is_held = False
        self._size, self._mtime_ns = status.size, status.mtime_ns

    async def read_live(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*, as the file is now."""
        return await trio.to_thread.run_sync(self._pread, offset, nbytes)

    def _pread(self, offset: int, nbytes: int) -> bytes:
        try:
            return os.pread(self._descriptor.fd, nbytes, offset)
        except OSError as error:
            raise translate(error, self._key) from None

    def _check(self, offset: int) -> None:
        # Not the change time: it also moves when another file is renamed over this one.
        now = os.fstat(self._descriptor.fd)
        if self._is_held:
            is_changed = now.st_size < self._size
        else:
            is_changed = now.st_size != self._size or now.st_mtime_ns != self._mtime_ns
        if is_changed or offset < self._overwritten:
            raise StaleError(f"{self._key} was changed in place while it was open")

    def _read_rest(self, buffer: memoryview, offset: int, done: int) -> None:
        while done < len(buffer):
            try:
                n = os.preadv(self._descriptor.fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise translate(error, self._key) from None
            if n == 0:
                raise StaleError(f"{self._key} ended before byte {offset + len(buffer)}")
            done += n


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """*nbytes* bytes from *start* of one version of a file."""

    snapshot: LocalSnapshot
    start: int
    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of them."""
        return self.snapshot.read_blocking(self.start + offset, nbytes)


def to_stat(status: os.stat_result) -> Stat:
    """Return what the operating system says of a file, as stores say it."""
    return Stat(
        kind=_kind(status.st_mode),
        size=status.st_size,
        version=version_of(status),
        identity=(status.st_dev, status.st_ino),
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        nlink=status.st_nlink,
        rdev=status.st_rdev,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def version_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what changes whenever the content of a name does."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.DIRECTORY
    return Kind.SYMLINK if stat.S_ISLNK(mode) else Kind.SPECIAL
