"""Opening files below a directory without ever leaving it.

Paths are walked component by component from a descriptor of the directory, so that no symbolic link, however it is
swapped meanwhile, leads out.
"""

import errno
import os
import stat
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


def open_directory(path: str) -> Descriptor:
    """Open a directory of our own by its path."""
    with translated(os.path.realpath(path)):  # which may lead through a descriptor
        return Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def open_beneath(root: Descriptor, key: str, flags: int) -> Descriptor:
    """Open *key* with *flags* of `os.open`, following links within *root* only."""
    ancestors: list[Descriptor] = [root]
    pending = [(part, False) for part in reversed(key.split("/")) if part]
    links = 0
    while pending:
        part, is_of_link = pending.pop()
        if part == ".":
            continue
        if part == "..":
            if len(ancestors) == 1:
                raise OutsideSourceError(f"{key} is a link that leads out of the source")
            ancestors.pop()
            continue
        parent = ancestors[-1].fd
        try:
            fd = os.open(part, WALK if pending else flags, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ENOENT and is_of_link:
                raise CorruptionError(f"{key} is a link to nothing") from None
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not _is_link(part, parent):
                raise
            links += 1
            if links > _MAX_LINKS:
                raise CorruptionError(f"{key} leads through too many links") from None
            target = os.readlink(part, dir_fd=parent)
            if target.startswith("/"):
                raise OutsideSourceError(f"{key} is a link that leads out of the source") from None
            pending.extend((step, True) for step in reversed(target.split("/")) if step)
            continue
        if not pending:
            return Descriptor(fd)
        ancestors.append(Descriptor(fd))
    return Descriptor(os.open(".", flags & ~os.O_NOFOLLOW, dir_fd=ancestors[-1].fd))


def _is_link(name: str, parent: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
