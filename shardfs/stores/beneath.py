"""Opening files below a directory without ever leaving it.

Paths are walked component by component from a descriptor of the directory, so that no symbolic link, however it is
swapped meanwhile, leads out.  Errors of the operating system become those of `shardfs.errors` here.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NameTooLongError,
    NoAttributeError,
    NoSpaceError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    OutsideSourceError,
    ReadOnlyError,
    RefusedError,
    ShardfsError,
    StaleError,
    StoreError,
    TooLargeError,
)

READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WRITE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WALK: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
ITSELF: Final = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
"""Flags: to read a file, to read and write it, to pass through a directory, and to get at what a name stands for, be it
a link."""

_MAX_LINKS: Final = 40

_ERRORS: Final[dict[int, type[ShardfsError]]] = {
    errno.ENOENT: NotFoundError,
    errno.ENAMETOOLONG: NotFoundError,
    errno.ENOTDIR: NotADirectoryHereError,
    errno.EISDIR: IsADirectoryHereError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.ENODATA: NoAttributeError,
    errno.EOPNOTSUPP: NoAttributeError,
    errno.ESTALE: StaleError,
}

_ERRORS_OF_CHANGES: Final[dict[int, type[ShardfsError]]] = _ERRORS | {
    errno.EEXIST: ExistsError,
    errno.ENOTEMPTY: NotEmptyError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    errno.EROFS: ReadOnlyError,
    errno.EXDEV: CrossDeviceError,
    errno.EPERM: NotPermittedError,
    errno.EOPNOTSUPP: NotPermittedError,
    errno.EINVAL: RefusedError,
    errno.ELOOP: RefusedError,  # the name is a symbolic link: changes follow none
    errno.ENAMETOOLONG: NameTooLongError,
    errno.EFBIG: TooLargeError,
}


class Descriptor:
    """A file descriptor that is closed with its last reference.

    Snapshots are shared by open files and caches; the reference count that the interpreter keeps is the one that
    tells when a pinned file may go.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def path(self) -> str:
        """A path of what is open, whatever became of its name, for calls that take no descriptor of its kind."""
        return f"/proc/self/fd/{self.fd}"

    def __del__(self) -> None:
        os.close(self.fd)


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


@contextmanager
def translated(key: str) -> Iterator[None]:
    """Turn errors of the operating system, in the block, into those of shardfs; *key* is named in them."""
    try:
        yield
    except OSError as error:
        raise translate(error, key) from None
    except ValueError:  # a NUL in the name
        raise NotFoundError(f"{key!r} is no name") from None


@contextmanager
def changing(key: str) -> Iterator[None]:
    """Do as `translated`, for a block that changes what *key* stands for."""
    try:
        yield
    except OSError as error:
        raise translate_of_change(error, key) from None
    except ValueError:
        raise RefusedError(f"{key!r} is no name") from None


def translate(error: OSError, key: str) -> ShardfsError:
    """Return the error of shardfs that says what *error* says, of *key*."""
    return _as(_ERRORS.get(error.errno or 0, StoreError), error, key)


def translate_of_change(error: OSError, key: str) -> ShardfsError:
    """Return the error of shardfs that says what *error* says, of an attempt to change *key*."""
    return _as(_ERRORS_OF_CHANGES.get(error.errno or 0, StoreError), error, key)


def _as(kind: type[ShardfsError], error: OSError, key: str) -> ShardfsError:
    return kind(f"{key or 'the source'}: {error.strerror}")


def _is_link(name: str, parent: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
