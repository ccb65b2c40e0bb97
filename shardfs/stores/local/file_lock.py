"""The lock that keeps other programs from replacing a file while shardfs changes it: tensorstore's.

The lock of a file is another file beside it, `NAME.__lock`. tensorstore creates it, locks it (`F_OFD_SETLK`), checks
that the name still stands for the file it has locked, writes its new version into it, and renames it onto the file. In
its mode `lockfile`, it does not lock, and relies on having created the file. To create the file exclusively and lock it
keeps both away. Such a lock belongs to the open file description, so two edits in one process exclude each other like
two processes, and it ends with the process.

Our lock files stay empty, because tensorstore does not truncate before it writes. They have the sticky bit, which means
nothing on files: it identifies locks that a killed process or a power cut left.
"""

import errno
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from shardfs.errors import AccessDeniedError, LockedError, StoreError
from shardfs.stores.base import Descriptor, join_key
from shardfs.stores.local.atomic_write import Permissions
from shardfs.stores.local.reader import LocalReader
from shardfs.stores.local.syscalls import (
    READ,
    WRITE,
    Syscalls,
    changing,
    close_in_children,
    ofd_lock,
    ofd_unlock,
)

LOCK_SUFFIX: Final = ".__lock"

DOCUMENTS_LOCK: Final = ".shardfs-documents"
"""The lock file of the documents of a node, in its directory: tensorstore's would be in its way on a mount."""

PATIENCE: Final = 30.0
_LIFE: Final = 60.0
"""Seconds to wait for a lock, and the age at which an unlocked file is no lock of the mode `lockfile` any more."""

_MODE: Final = stat.S_ISVTX | 0o600


def is_lock(name: str) -> bool:
    """Whether a name, in a directory of chunks or shards, is that of a lock file."""
    return name.endswith(LOCK_SUFFIX)


@dataclass(frozen=True, slots=True, eq=False)
class FileLock:
    """The lock file *name* in *directory*, created and locked, or taken over; its methods block.

    *was_left*: a process that was killed while it changed the file had it before.
    """

    syscalls: Syscalls
    directory: Descriptor
    name: str
    file: Descriptor
    was_left: bool = False

    def release(self, *, stays: bool = False) -> None:
        """Release the lock. The file *stays*, like that of a killed process, also if it cannot be removed."""
        try:
            with suppress(OSError):
                if not stays and self.is_current():
                    self.syscalls.unlink(self.name, self.directory.fd)
        finally:
            with suppress(OSError):  # then the lock ends with its descriptor
                ofd_unlock(self.file.fd)

    def is_current(self) -> bool:
        """Whether the name still stands for the file: nobody has renamed or removed it.

        Of a file system that hosts share, only an open asks the server: what `stat` says may be known from before.
        """
        status = os.fstat(self.file.fd)
        if not status.st_nlink:
            return False
        try:
            now = Descriptor(os.open(self.name, READ, dir_fd=self.directory.fd))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES):
                return False
            raise
        return os.path.samestat(os.fstat(now.fd), status)


async def lock(
    store: LocalReader,
    directory: Descriptor,
    key: str,
    permissions: Permissions,
    waited: float = 0.0,
    name: str | None = None,
) -> FileLock:
    """Take the lock of the file *key* of *store*, in *directory*, or another one of that *name*.

    *permissions* give the owner of the lock file.

    Raises `LockedError` if others have the lock, and `StoreError` if they still have it after the caller has *waited*
    for so many seconds, or have left it behind. Raises `AccessDeniedError` if this process cannot create files in the
    directory: others know by a lock file alone that a session changed the file that was killed, or whose commit failed.
    """
    name = name or key.rpartition("/")[2] + LOCK_SUFFIX
    with changing(join_key(key.rpartition("/")[0], name)):
        try:
            return await store.threads.on_names(_take, store.syscalls, directory, name, key, permissions, waited)
        except PermissionError:
            raise _no_lock_file(key) from None


def require_lockable(directory: Descriptor, key: str) -> None:
    """Raise `AccessDeniedError` if this process cannot make the lock file of the file *key* in *directory*; blocks."""
    is_other = os.geteuid() != os.getuid()  # else the call that old containers do not know is not needed
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=directory.fd, effective_ids=is_other):
        raise _no_lock_file(key)


def _no_lock_file(key: str) -> AccessDeniedError:
    why = "this user has no permission to make a lock file beside it, without which others could lose what they write"
    return AccessDeniedError(f"{key} is not changed: {why}")


def remove_left(syscalls: Syscalls, directory: Descriptor, name: str) -> bool:
    """Remove the lock file *name* that a killed process left; returns False if somebody has the lock."""
    left = FileLock(syscalls, directory, name, Descriptor(os.open(name, WRITE, dir_fd=directory.fd)))
    if not ofd_lock(left.file.fd):
        return False
    left.release()
    return True


def _mode(permissions: Permissions, directory: Descriptor) -> int:
    """Return the mode of a lock file: whoever may write the file, or make it in *directory*, may lock it."""
    mode = permissions.mode if permissions.mode is not None else os.fstat(directory.fd).st_mode
    return _MODE | (0o060 if mode & stat.S_IWGRP else 0o040) | (0o006 if mode & stat.S_IWOTH else 0o004)


def _take(
    syscalls: Syscalls, directory: Descriptor, name: str, key: str, permissions: Permissions, waited: float
) -> FileLock:
    """Create and lock the lock file, or take it over if one of our killed processes left it."""
    lock: FileLock | None = None
    is_new, mode = False, _mode(permissions, directory)
    try:
        file = Descriptor(syscalls.create(name, os.O_RDWR | os.O_EXCL, mode, directory.fd))
        lock, is_new = FileLock(syscalls, directory, name, file), True
    except FileExistsError:
        with suppress(FileNotFoundError, PermissionError):  # it is gone again, or belongs to another user
            lock = FileLock(syscalls, directory, name, Descriptor(os.open(name, WRITE, dir_fd=directory.fd)))
    try:
        if lock is None or not ofd_lock(lock.file.fd):
            if waited >= PATIENCE:
                raise StoreError(f"{key} is kept locked by another program, with {name}")
        elif lock.is_current():
            status = os.fstat(lock.file.fd)
            if is_new or (not status.st_size and status.st_mode & stat.S_ISVTX):
                if is_new:
                    with suppress(
                        OSError
                    ):  # so that those who may write the file can wait for its lock, or take it over
                        Permissions(mode, permissions.uid, permissions.gid).give(syscalls, lock.file.fd)
                close_in_children(lock.file)
                return replace(lock, was_left=not is_new)
            if max(waited, time.time() - status.st_mtime) >= _LIFE:
                raise StoreError(
                    f"{key} is not changed: the lock file {name} was left beside it; remove that if no program uses it"
                )
    except OSError:
        if lock is not None and is_new:
            lock.release()
        raise
    raise LockedError(f"{key} is locked by another program, with {name}")
