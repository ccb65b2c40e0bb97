"""Locks on local files that shardfs takes before it changes them, and other programs may take too.

A lock belongs to the open file description (`F_OFD_SETLK`), so that two edits in one process exclude each other as two
processes do, and it goes with the process.
"""

import errno
import fcntl
import os
import stat
import struct
from typing import Final

import trio

from shardfs.errors import RefusedError, StoreError
from shardfs.stores.beneath import WALK, WRITE, Descriptor, changing, open_beneath

_PATIENCE: Final = 30.0
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.1
"""Seconds: how long a lock is waited for, and how often it is tried."""

_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, nbytes (0: all), pid (0: of the description)


async def open_locked(root: Descriptor, key: str) -> Descriptor | None:
    """Open the regular file *key* to read and write, locked; None if there is none.

    The key stood for the file after it was locked.  Raises `StoreError` if others keep it locked.
    """
    deadline = trio.current_time() + _PATIENCE
    pause = _FIRST_PAUSE
    while True:
        with changing(key):
            parent, _, name = key.rpartition("/")
            try:
                directory = open_beneath(root, parent, WALK)
                descriptor = Descriptor(os.open(name, WRITE, dir_fd=directory.fd))
            except FileNotFoundError:
                return None
            status = os.fstat(descriptor.fd)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError(f"{key} is not a regular file")
            if lock(descriptor.fd) and _stands_for(name, directory.fd, status):
                return descriptor
        if trio.current_time() >= deadline:
            raise StoreError(f"{key} is kept locked by another program")
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def lock(fd: int) -> bool:
    """Lock a file; return False if another description of it is locked."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise StoreError(f"no lock can be had: {error.strerror}") from None
    return True


def unlock(descriptor: Descriptor) -> None:
    """Release the lock, though snapshots may hold the file open still."""
    fcntl.fcntl(descriptor.fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))


def _stands_for(name: str, dir_fd: int, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), status)
    except FileNotFoundError:
        return False
