"""Opening files below a directory without ever leaving it.

The kernel opens a path without symbolic links by one call (`openat2`).  Else, and where it cannot, the path is walked
component by component from a descriptor of the directory: no link leads out, however it is swapped meanwhile.
"""

import ctypes
import errno
import os
import stat
from functools import cache
from typing import Final

from shardfs.errors import CorruptionError, OutsideSourceError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import translated

READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WRITE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WALK: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
ITSELF: Final = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
"""Flags: to read a file, to read and write it, to pass through a directory, and to get at what a name stands for, be it
a link."""

_MAX_LINKS: Final = 40

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_OPENAT2: Final = 437
_RESOLVE: Final = 0x02 | 0x04 | 0x08  # of linux/openat2.h: no magic links, no symbolic links, beneath the directory
_TO_BE_WALKED: Final = (errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.EAGAIN, errno.EINTR, errno.ENAMETOOLONG)
"""Errors of `openat2` that say little: there may be a link, or the path may be too long for one call."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_directory(path: str) -> Descriptor:
    """Open a directory of our own by its path."""
    with translated(os.path.realpath(path)):  # which may lead through a descriptor
        return Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def open_beneath(root: Descriptor, key: str, flags: int) -> Descriptor:
    """Open *key* with *flags* of `os.open`, following links within *root* only."""
    if _has_openat2():
        try:
            return Descriptor(_openat2(root.fd, os.fsencode(key) or b".", flags, _RESOLVE))
        except OSError as error:
            if error.errno not in _TO_BE_WALKED:
                raise
    return _walk(root, key, flags)


@cache
def _has_openat2() -> bool:
    """Whether the kernel has the call, and lets this process use it: containers may not."""
    try:
        Descriptor(_openat2(-1, b"/", WALK, 0))
    except OSError:
        return False
    return True


def _openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    if b"\0" in path:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags, 0, resolve)
    fd: int = _LIBC.syscall(_OPENAT2, dir_fd, path, ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def _walk(root: Descriptor, key: str, flags: int) -> Descriptor:
    """Open *key* component by component."""
    ancestors: list[Descriptor] = [root]
    pending = [(part, False) for part in reversed(key.split("/")) if part]
    links = 0
    while pending:
        part, is_of_link = pending.pop()
        if part == ".":
            continue
        if part == "..":
            if len(ancestors) == 1:
                raise OutsideSourceError(f"{key} is a link that leads out of the dataset")
            ancestors.pop()
            continue
        parent = ancestors[-1].fd
        try:
            fd = os.open(part, WALK if pending else flags, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ENOENT and is_of_link:
                raise CorruptionError(f"{key} is a dangling link") from None
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not _is_link(part, parent):
                raise
            links += 1
            if links > _MAX_LINKS:
                raise CorruptionError(f"{key} leads through too many links") from None
            target = os.readlink(part, dir_fd=parent)
            if target.startswith("/"):
                raise OutsideSourceError(f"{key} is a link that leads out of the dataset") from None
            pending.extend((step, True) for step in reversed(target.split("/")) if step)
            continue
        if not pending:
            return Descriptor(fd)
        ancestors.append(Descriptor(fd))
    return Descriptor(os.open(".", flags & ~os.O_NOFOLLOW, dir_fd=ancestors[-1].fd))


def _is_link(name: str, parent: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
