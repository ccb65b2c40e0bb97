"""The local file system, as far as it is read.

Calls that only touch metadata run in the event loop: they take microseconds, a hop to a thread costs more than ten
times as much.  Reads run there too where the page cache has the bytes (`RWF_NOWAIT`), else in a thread.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final
from weakref import WeakSet

import trio

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NoAttributeError,
    SourceError,
)
from shardfs.stores.address import Address
from shardfs.stores.base import Capacity, Entry, Kind, Stat
from shardfs.stores.beneath import ITSELF, READ, WALK, Descriptor, open_beneath, translated
from shardfs.stores.file_format import MAGIC_NBYTES, MAX_TOP, file_format
from shardfs.stores.local_snapshot import LocalSnapshot, to_stat

USER: Final = b"user."
TTL: Final = 1.0
"""For how many seconds what was seen is believed by default; to look again costs microseconds."""

_LARGE_DIRECTORY: Final = 64 * 2**10  # bytes, some thousand names


class LocalReader:
    """A directory of this machine, of which nothing is changed."""

    rewrites = False
    directory_stat = None

    def __init__(self, root: str, *, ttl: float = TTL) -> None:
        """Open *root*; raises `SourceError` if it is not a directory that can be read."""
        self.ttl = ttl
        if "\0" in root:
            raise SourceError(f"{root} has a NUL in it")
        self._root = os.path.realpath(root)
        try:
            self._descriptor = Descriptor(os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            os.close(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise SourceError(f"{root} does not exist") from None
        except NotADirectoryError:
            raise SourceError(f"{root} is {file_format(self._root, _first_bytes(self._root))}") from None
        except OSError as error:
            raise SourceError(f"{root} cannot be read: {error.strerror}") from None
        self._snapshots: WeakSet[LocalSnapshot] = WeakSet()

    @property
    def root(self) -> str:
        """Absolute path that the source had when it was opened, without symbolic links."""
        return self._root

    @property
    def directory(self) -> Descriptor:
        """The source, held open."""
        return self._descriptor

    @property
    def url(self) -> str:
        """The source, as a user may write it."""
        return self._root

    @property
    def address(self) -> Address:
        """The source by its absolute path."""
        return Address(self._root)

    def url_of(self, key: str) -> str:
        """Return the `file://` URL of *key*; names are not quoted, as fsspec takes them."""
        return f"file://{self._path(key)}"

    def statistics(self) -> Mapping[str, object]:
        """Return nothing: what the system does with local files is for it to count."""
        return {}

    def forget(self, key: str) -> None:
        """Do nothing: names are looked at each time."""

    async def check(self) -> Sequence[Entry] | None:
        """Return the names at the top, if they are not very many; opening the source was looking at it."""
        with translated(""), os.scandir(self._root) as found:
            entries = [Entry(entry.name, _entry_kind(entry)) for entry in islice(found, MAX_TOP + 1)]
        return entries if len(entries) <= MAX_TOP else None

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        with translated(key):
            parent, name = self._parent(key)
            return to_stat(os.stat(name, dir_fd=parent.fd, follow_symlinks=False))

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing, not even a link."""
        try:
            os.stat(key, dir_fd=self._descriptor.fd, follow_symlinks=False)
        except FileNotFoundError:
            return True
        except (OSError, ValueError):
            return False
        return False

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> LocalSnapshot:
        """Open a regular file."""
        descriptor, status = self._open(key)
        return self._snapshot(key, descriptor, status)

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        with translated(key):
            descriptor = open_beneath(self._descriptor, key, READ | os.O_DIRECTORY)
            if os.fstat(descriptor.fd).st_size > _LARGE_DIRECTORY:
                return await trio.to_thread.run_sync(_scan, descriptor)
            return _scan(descriptor)

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""
        with translated(key):
            directory = open_beneath(self._descriptor, key, WALK)
        stats: list[Stat | None] = []
        for name in names:
            try:
                stats.append(to_stat(os.stat(name, dir_fd=directory.fd, follow_symlinks=False)))
            except OSError:
                stats.append(None)
        return stats

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link."""
        with translated(key):
            parent, name = self._parent(key)
            return os.fsencode(os.readlink(name, dir_fd=parent.fd))

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        with translated(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            return os.getxattr(itself.path, name)

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes in the `user` namespace."""
        with translated(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            try:
                names = os.listxattr(itself.path)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    return []
                raise
        return [name for name in map(os.fsencode, names) if name.startswith(USER)]

    async def capacity(self) -> Capacity:
        """Return the room on the file system of the source."""
        with translated(""):
            room = os.statvfs(self._descriptor.path)
        return Capacity(
            room.f_frsize, room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree, room.f_namemax
        )

    def _open(self, key: str) -> tuple[Descriptor, Stat]:
        with translated(key):
            descriptor = open_beneath(self._descriptor, key, READ)
            status = to_stat(os.fstat(descriptor.fd))
        if status.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key} is a directory")
        if status.kind is not Kind.FILE:
            raise CorruptionError(f"{key} is not a regular file")
        return descriptor, status

    def _snapshot(self, key: str, descriptor: Descriptor, status: Stat) -> LocalSnapshot:
        snapshot = LocalSnapshot(self._descriptor, key, descriptor, status)
        self._snapshots.add(snapshot)
        return snapshot

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _parent(self, key: str) -> tuple[Descriptor, str]:
        """Return the directory that holds *key*, and its name there."""
        parent, _, name = key.rpartition("/")
        return open_beneath(self._descriptor, parent, WALK), name or "."


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return Kind.SYMLINK
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIRECTORY
    return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.SPECIAL


def _first_bytes(path: str) -> bytes:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, MAGIC_NBYTES)
        finally:
            os.close(descriptor)
    return b""


def _scan(directory: Descriptor) -> list[Entry]:
    with os.scandir(directory.fd) as entries:
        return [Entry(entry.name, _entry_kind(entry)) for entry in entries]
