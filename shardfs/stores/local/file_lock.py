"""The lock that keeps other programs from replacing a file while shardfs changes it: that of tensorstore.

The lock of a file is another one beside it, `NAME.__lock`.  tensorstore makes it, locks it (`F_OFD_SETLK`), looks if
the name still stands for what it has locked, writes its new version into it, and renames it onto the file.  In its mode
`lockfile` it locks nothing, and relies on having made the file.  Who makes the file exclusively and locks it keeps both
away.  Such a lock belongs to the open file description, so that two edits in one process exclude each other as two
processes do, and goes with the process.

Our lock files stay empty, as tensorstore cuts off nothing before it writes.  They are made with the sticky bit, which
means nothing on files: by that one that a killed process or a power cut left is known for what it is.
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
"""Seconds: how long a lock is waited for, and how old a file is that nobody has locked if it is none of the mode
`lockfile` that is in use."""

_MODE: Final = stat.S_ISVTX | 0o666


def is_lock(name: str) -> bool:
    """Whether a name, in a directory of chunks or shards, is one of a lock file."""
    return name.endswith(LOCK_SUFFIX)


@dataclass(frozen=True, slots=True, eq=False)
class FileLock:
    """The lock file *name* in *directory*, made and locked, or taken over; what it does blocks."""

    syscalls: Syscalls
    directory: Descriptor
    name: str
    file: Descriptor

    def release(self) -> None:
        """Let others have it.  The file may stay where it cannot be removed, as one of a killed process does."""
        try:
            with suppress(OSError):
                if self.stands():
                    self.syscalls.unlink(self.name, self.directory.fd)
        finally:
            with suppress(OSError):  # it goes with its descriptor then
                ofd_unlock(self.file.fd)

    def stands(self) -> bool:
        """Whether the name stands for the file still: nobody has renamed or removed it."""
        try:
            found = os.stat(self.name, dir_fd=self.directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self.file.fd))


async def lock(
    store: LocalReader, directory: Descriptor, key: str, rights: Rights, waited: float = 0.0
) -> FileLock | None:
    """Take the lock of the file *key* of *store*, which lies in *directory*; *rights* give the owner of the lock file.

    None where nothing can be made in the directory, by this process.  Raises `LockedError` if others have the lock, and
    `StoreError` if they have it after the caller has *waited* for long, or have left it.
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
    """Make the lock file; None if another program has locked it before us, and will remove it."""
    file = Descriptor(syscalls.create(name, os.O_RDWR | os.O_EXCL, _MODE, directory.fd))
    made = FileLock(syscalls, directory, name, file)
    try:
        if not _locked(file) or not made.stands():
            return None
        with suppress(OSError):  # a courtesy: who may write the file can wait for it
            Rights(uid=rights.uid, gid=rights.gid).give(syscalls, file.fd)
    except Exception:
        made.release()
        raise
    return made


def _take(syscalls: Syscalls, directory: Descriptor, name: str, key: str, waited: float) -> FileLock | None:
    """Take the lock file that is there, if a killed process of ours left it; None if it is to be waited for."""
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
        pass  # it is another user's
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
    """Lock a file; return False if another description of it is locked."""
    try:
        return ofd_lock(file.fd)
    except OSError as error:
        raise StoreError(f"it cannot be locked: {error.strerror}") from None
