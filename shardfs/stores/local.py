"""The local file system as a store.

Calls that only touch metadata run in the event loop: they take microseconds, a hop to a thread costs more than ten
times as much.  Reads run there too where the page cache has the bytes (`RWF_NOWAIT`), else in a thread.

Paths are walked component by component from a descriptor of the source, so that no symbolic link, however it is
swapped, leads out of it.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import trio

from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    OutsideSourceError,
    ShardfsError,
    SourceError,
    StaleError,
    StoreError,
)
from shardfs.stores.base import Buffer, Capacity, Entry, Kind, Stat

_MAX_LINKS: Final = 40  # as the kernel allows
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_WALK: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_ITSELF: Final = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_USER: Final = b"user."
_ATTEMPTS: Final = 8
_LARGE_DIRECTORY: Final = 64 * 2**10  # bytes, some thousand names

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


class LocalStore:
    """A directory of this machine."""

    def __init__(self, root: str) -> None:
        """Open *root*; raises `SourceError` if it is not a directory that can be read."""
        if "\0" in root:
            raise SourceError(f"{root} has a NUL in it")
        self._root = os.path.realpath(root)
        try:
            self._descriptor = Descriptor(os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            os.close(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise SourceError(f"{root} does not exist") from None
        except NotADirectoryError:
            raise SourceError(f"{root} is a file; SOURCE is the directory of an array, a group or several") from None
        except OSError as error:
            raise SourceError(f"{root} cannot be read: {error.strerror}") from None

    @property
    def root(self) -> str:
        """Absolute path of the source, without symbolic links."""
        return self._root

    @property
    def url(self) -> str:
        """The source, as a user may write it."""
        return self._root

    def url_of(self, key: str) -> str:
        """Return the `file://` URL of *key*; names are not quoted, as fsspec takes them."""
        return f"file://{self._path(key)}"

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        with _translated(key):
            parent, name = self._parent(key)
            return _to_stat(os.stat(name, dir_fd=parent.fd, follow_symlinks=False))

    async def open(self, key: str) -> "LocalSnapshot":
        """Open a regular file."""
        with _translated(key):
            descriptor = Descriptor(self._walk(key, _OPEN))
            status = _to_stat(os.fstat(descriptor.fd))
        if status.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key} is a directory")
        if status.kind is not Kind.FILE:
            raise CorruptionError(f"{key} is not a regular file")
        return LocalSnapshot(self._path(key), descriptor, status)

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        with _translated(key):
            descriptor = Descriptor(self._walk(key, _OPEN | os.O_DIRECTORY))
            if os.fstat(descriptor.fd).st_size > _LARGE_DIRECTORY:
                return await trio.to_thread.run_sync(_scan, descriptor)
            return _scan(descriptor)

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""
        with _translated(key):
            directory = Descriptor(self._walk(key, _WALK))
        stats: list[Stat | None] = []
        for name in names:
            try:
                stats.append(_to_stat(os.stat(name, dir_fd=directory.fd, follow_symlinks=False)))
            except OSError:
                stats.append(None)
        return stats

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link."""
        with _translated(key):
            parent, name = self._parent(key)
            return os.fsencode(os.readlink(name, dir_fd=parent.fd))

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute in the `user` namespace."""
        if not name.startswith(_USER):
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        with _translated(key):
            itself = Descriptor(self._walk(key, _ITSELF))
            return os.getxattr(itself.path, name)

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes in the `user` namespace."""
        with _translated(key):
            itself = Descriptor(self._walk(key, _ITSELF))
            try:
                names = os.listxattr(itself.path)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    return []
                raise
        return [name for name in map(os.fsencode, names) if name.startswith(_USER)]

    async def capacity(self) -> Capacity:
        """Return the room on the file system of the source."""
        with _translated(""):
            room = os.statvfs(self._root)
        return Capacity(
            room.f_frsize, room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree, room.f_namemax
        )

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _parent(self, key: str) -> "tuple[Descriptor, str]":
        """Return the directory that holds *key*, and its name there."""
        parent, _, name = key.rpartition("/")
        return Descriptor(self._walk(parent, _WALK)), name or "."

    def _walk(self, key: str, flags: int) -> int:
        """Open *key* without leaving the source, following links inside it."""
        ancestors: list[Descriptor] = [self._descriptor]
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
                fd = os.open(part, _WALK if pending else flags, dir_fd=parent)
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
                return fd
            ancestors.append(Descriptor(fd))
        return os.open(".", flags & ~os.O_NOFOLLOW, dir_fd=ancestors[-1].fd)


class LocalSnapshot:
    """An open regular file.

    A rename over the file, or its removal, leaves the snapshot as it is.  A change in place shows in the size or the
    modification time, which are compared after each read with what they were at the beginning.
    """

    __slots__ = ("_descriptor", "_mtime_ns", "_path", "_size", "stat")

    def __init__(self, path: str, descriptor: "Descriptor", status: Stat) -> None:
        self._path = path
        self._descriptor = descriptor
        self.stat = status
        self._size = status.size
        self._mtime_ns = status.mtime_ns

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
                raise _translate(error, self._path) from None
            done = 0
        if done < nbytes:
            await trio.to_thread.run_sync(self._read_rest, buffer, offset, done)
        # One look after the read is enough: it is compared with what the file was when it was opened.
        self._check()
        return buffer

    async def is_current(self) -> bool:
        """Whether the name that was opened still stands for this version."""
        try:
            return _version(os.stat(self._path)) == self.stat.version
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

    async def read_live(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*, as the file is now."""
        return await trio.to_thread.run_sync(self._pread, offset, nbytes)

    def _pread(self, offset: int, nbytes: int) -> bytes:
        try:
            return os.pread(self._descriptor.fd, nbytes, offset)
        except OSError as error:
            raise _translate(error, self._path) from None

    def _check(self) -> None:
        # Not the change time: it also moves when another file is renamed over this one.
        now = os.fstat(self._descriptor.fd)
        if now.st_size != self._size or now.st_mtime_ns != self._mtime_ns:
            raise StaleError(f"{self._path} was changed in place while it was open")

    def _read_rest(self, buffer: memoryview, offset: int, done: int) -> None:
        while done < len(buffer):
            try:
                n = os.preadv(self._descriptor.fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise _translate(error, self._path) from None
            if n == 0:
                raise StaleError(f"{self._path} ended before byte {offset + len(buffer)}")
            done += n


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


def _to_stat(status: os.stat_result) -> Stat:
    return Stat(
        kind=_kind(status.st_mode),
        size=status.st_size,
        version=_version(status),
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


def _version(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.DIRECTORY
    return Kind.SYMLINK if stat.S_ISLNK(mode) else Kind.SPECIAL


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return Kind.SYMLINK
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIRECTORY
    return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.SPECIAL


def _scan(directory: Descriptor) -> list[Entry]:
    with os.scandir(directory.fd) as entries:
        return [Entry(entry.name, _entry_kind(entry)) for entry in entries]


def _is_link(name: str, parent: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translate(error, key) from None
    except ValueError:  # a NUL in the name
        raise NotFoundError(f"{key!r} is no name") from None


def _translate(error: OSError, key: str) -> ShardfsError:
    kind = _ERRORS.get(error.errno or 0, StoreError)
    return kind(f"{key or 'the source'}: {error.strerror}")
