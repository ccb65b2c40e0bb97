"""The lock that keeps other programs from replacing a file while shardfs changes it: tensorstore's.

The lock of a file is another file beside it, `NAME.__lock`. tensorstore creates it, locks it (`F_OFD_SETLK`), checks
that the name still stands for the file it has locked, writes its new version into it, and renames it onto the file. In
its mode `lockfile`, it does not lock, and relies on having created the file. To create the file exclusively and lock it
keeps both away. Such a lock belongs to the open file description, so two edits in one process exclude each other like
two processes, and it ends with the process.

Our lock files stay empty, because tensorstore does not truncate before it writes. They have the sticky bit, which means
nothing on files: it identifies locks that a killed process or a power cut left.
"""

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shardfs.errors import LockedError, StoreError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.atomic_write import Rights
from shardfs.stores.local.reader import LocalReader
from shardfs.stores.local.syscalls import CANNOT_MAKE, WRITE, Syscalls, changing, ofd_lock, ofd_unlock

LOCK_SUFFIX: Final = ".__lock"

_PATIENCE: Final = 30.0
_LIFE: Final = 60.0
"""Seconds to wait for a lock, and the age at which an unlocked file is no lock of the mode `lockfile` any more."""

_MODE: Final = stat.S_ISVTX | 0o666


def is_lock(name: str) -> bool:
    """Whether a name, in a directory of chunks or shards, is that of a lock file."""
    return name.endswith(LOCK_SUFFIX)


@dataclass(frozen=True, slots=True, eq=False)
class FileLock:
    """The lock file *name* in *directory*, created and locked, or taken over; its methods block."""

    syscalls: Syscalls
    directory: Descriptor
    name: str
    file: Descriptor

    def release(self) -> None:
        """Release the lock. If the file cannot be removed, it stays, like that of a killed process."""
        try:
            with suppress(OSError):
                if self.stands():
                    self.syscalls.unlink(self.name, self.directory.fd)
        finally:
            with suppress(OSError):  # then the lock ends with its descriptor
                ofd_unlock(self.file.fd)

    def stands(self) -> bool:
        """Whether the name still stands for the file: nobody has renamed or removed it."""
        try:
            found = os.stat(self.name, dir_fd=self.directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self.file.fd))


async def lock(
    store: LocalReader, directory: Descriptor, key: str, rights: Rights, waited: float = 0.0
) -> FileLock | None:
    """Take the lock of the file *key* of *store*, in *directory*; *rights* give the owner of the lock file.

    Returns None if this process cannot create files in the directory. Raises `LockedError` if others have the lock, and
    `StoreError` if they still have it after the caller has *waited* for so many seconds, or have left it behind.
    """
    name = key.rpartition("/")[2] + LOCK_SUFFIX

    def attempt() -> FileLock | None:
        with suppress(FileExistsError):
            made = _make(store.syscalls, directory, name, rights)
            if made is not None:
                return made
        return _take(store.syscalls, directory, name, key, waited)

    with changing(key):
        try:
            taken = await store.threads.on_names(attempt)
        except OSError as error:
            if error.errno in CANNOT_MAKE:
                return None
            raise
    if taken is None:
        raise LockedError(f"{key} is locked by another program, with {name}")
    return taken


def _make(syscalls: Syscalls, directory: Descriptor, name: str, rights: Rights) -> FileLock | None:
    """Create the lock file; None if another program has locked it before us, and will remove it."""
    file = Descriptor(syscalls.create(name, os.O_RDWR | os.O_EXCL, _MODE, directory.fd))
    made = FileLock(syscalls, directory, name, file)
    try:
        if not _locked(file) or not made.stands():
            return None
        with suppress(OSError):  # so that those who may write the file can wait for its lock
            Rights(uid=rights.uid, gid=rights.gid).give(syscalls, file.fd)
    except Exception:
        made.release()
        raise
    return made


def _take(syscalls: Syscalls, directory: Descriptor, name: str, key: str, waited: float) -> FileLock | None:
    """Take over the lock file if one of our killed processes left it; None if it must be waited for."""
    found: FileLock | None = None
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mode):
            raise StoreError(
                f"{key} is not changed: {name} beside it is not a regular file, so it cannot be a lock; remove it"
            )
        found = FileLock(syscalls, directory, name, Descriptor(os.open(name, WRITE, dir_fd=directory.fd)))
    except FileNotFoundError:
        return None
    except PermissionError:
        pass  # it belongs to another user
    if found is None or not _locked(found.file):
        if waited >= _PATIENCE:
            raise StoreError(f"{key} is kept locked by another program, with {name}")
        return None
    status = os.fstat(found.file.fd)
    if not found.stands():
        return None
    if not status.st_size and status.st_mode & stat.S_ISVTX:
        return found
    if max(waited, time.time() - status.st_mtime) >= _LIFE:
        raise StoreError(
            f"{key} is not changed: the lock file {name} was left beside it; remove that if no program uses it"
        )
    return None


def _locked(file: Descriptor) -> bool:
    """Lock a file; return False if another open file description has it locked."""
    try:
        return ofd_lock(file.fd)
    except OSError as error:
        raise StoreError(f"it cannot be locked: {error.strerror}") from None
