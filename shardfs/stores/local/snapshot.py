"""Snapshots of local files: one version, held by an open descriptor."""

import errno
import mmap
import os
import stat
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from shardfs.errors import StaleError
from shardfs.stores.base import Buffer, Descriptor, Kind, Stat
from shardfs.stores.local.syscalls import translate, translated
from shardfs.stores.local.threads import Threads

_ATTEMPTS: Final = 8


class LocalSnapshot:
    """An open regular file.

    A rename over the file, or its removal, leaves the snapshot as it is.  A change in place shows in the size or the
    modification time, which are compared after each read with what they were at the beginning.  A change that the store
    itself makes in place moves no byte: the store announces it, and tells how it ended.
    """

    __slots__ = (
        "__weakref__",
        "_changes",
        "_descriptor",
        "_is_held",
        "_key",
        "_root",
        "_state",
        "_threads",
        "stat",
    )

    def __init__(
        self,
        root: Descriptor,
        threads: Threads,
        key: str,
        descriptor: Descriptor,
        status: Stat,
        changes: Mapping[Hashable, trio.Event],
    ) -> None:
        self._root = root
        self._threads = threads
        self._key = key
        self._descriptor = descriptor
        self.stat = status
        self._state = status.size, status.mtime_ns
        self._is_held = False
        self._changes = changes

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._state[0]

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        buffer = np.empty(nbytes, np.uint8).data  # bytearray would fill it with zeros first
        done = 0 if self._threads.is_remote else read_cached(self._descriptor.fd, buffer, offset, self._key)
        if done < nbytes:
            await self._threads.on_content(self._read_rest, buffer, offset, done)
        else:
            self._check()
        return buffer

    def read_blocking(self, offset: int, nbytes: int) -> Buffer:
        """Do as `read`, in a worker thread."""
        buffer = np.empty(nbytes, np.uint8).data
        self._read_rest(buffer, offset, 0)
        return buffer

    def expect(self, offset: int, nbytes: int) -> None:
        """Do nothing: the kernel reads ahead by itself."""

    def content(self, offset: int, nbytes: int) -> "SnapshotContent":
        """Return *nbytes* bytes from *offset*, which are read later."""
        return SnapshotContent(self, offset, nbytes)

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        """Map the file into memory, to search it; for commands only: a file that is cut meanwhile ends the process."""
        if not self.size:  # there is no mapping of nothing
            yield memoryview(b"")
            return
        with mmap.mmap(self._descriptor.fd, self.size, prot=mmap.PROT_READ) as mapping:
            view = memoryview(mapping)
            try:
                yield view
            finally:
                view.release()

    async def is_current(self) -> bool:
        """Whether the name that was opened still stands for this version."""
        try:
            return await self._threads.on_names(self._present_version) == self.stat.version
        except OSError:
            return False

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Accept the file's present state if it is larger and holds *content* at *offset* still.

        A change that the store makes is waited for: who opened the file in the middle of it is told then how it ended.
        """
        if (change := self._changes.get(self.stat.identity)) is not None:
            await change.wait()
        for _ in range(_ATTEMPTS):
            before = self._state
            state = await self._threads.on_names(self._now)
            if state == before:
                return True
            if state[0] <= before[0]:
                return False
            if await self._threads.on_content(self._pread, offset, len(content)) != content:
                return False
            if await self._threads.on_names(self._now) == state and self._state == before:
                self._state = state
                return True
        return False

    def hold(self, status: Stat) -> bool:
        """Serve on while the store changes the file in place; return False if it was not in the state *status*."""
        if self.stat.identity != status.identity or self._state != (status.size, status.mtime_ns):
            return False
        self._is_held = True
        return True

    def settle(self, status: Stat) -> None:
        """Take *status* for the state of this version too, after a change in place."""
        self._is_held = False
        self._state = status.size, status.mtime_ns

    def _present_version(self) -> tuple[int, int, int, int, int]:
        return version_of(os.stat(self._key, dir_fd=self._root.fd))

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor.fd)
        return status.st_size, status.st_mtime_ns

    def _pread(self, offset: int, nbytes: int) -> bytes:
        with translated(self._key):
            return os.pread(self._descriptor.fd, nbytes, offset)

    def _read_rest(self, buffer: memoryview, offset: int, done: int) -> None:
        """Read what is missing after *done* bytes, and check."""
        while done < len(buffer):
            try:
                n = os.preadv(self._descriptor.fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise translate(error, self._key) from None
            if n == 0:
                raise StaleError(f"{self._key} ended before byte {offset + len(buffer)}")
            done += n
        self._check()

    def _check(self) -> None:
        """Raise `StaleError` if the file was changed since it was opened; one look after the read is enough."""
        while True:
            expected = self._is_held, self._state
            # Not the change time: it also moves when another file is renamed over this one.
            now = self._now()
            if expected == (self._is_held, self._state):  # else the store changed the file meanwhile
                break
        if now[0] < self.size if self._is_held else now != self._state:
            raise StaleError(f"{self._key} was changed in place while it was open")


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """*nbytes* bytes from *start* of one version of a file."""

    snapshot: LocalSnapshot
    start: int
    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of them."""
        return self.snapshot.read_blocking(self.start + offset, nbytes)


def read_cached(fd: int, buffer: memoryview, offset: int, key: str) -> int:
    """Read what the page cache has from *offset* on, without waiting; return how many bytes that is."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return 0
        raise translate(error, key) from None


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
