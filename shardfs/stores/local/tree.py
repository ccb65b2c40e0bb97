"""The local file system as a store.

Calls that only touch names and attributes run in the event loop, as those that read do.  What waits for the disk
(content in bulk, and making things durable) runs in a thread.
"""

import errno
import os
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from typing import Final
from weakref import WeakSet

import trio

from shardfs.errors import (
    CorruptionError,
    ExistsError,
    IsADirectoryHereError,
    NoAttributeError,
    NotFoundError,
    RefusedError,
    SourceError,
    UnsupportedError,
)
from shardfs.stores.base import (
    MAGIC_NBYTES,
    MAX_TOP,
    Address,
    Buffer,
    Capacity,
    Descriptor,
    Entry,
    Expected,
    Kind,
    Stat,
    file_format,
)
from shardfs.stores.local.atomic_write import Rights, rename_to_absent, temporary_name, write_aside
from shardfs.stores.local.file_lock import FileLock, lock
from shardfs.stores.local.openat import ITSELF, READ, WALK, WRITE, open_beneath
from shardfs.stores.local.shards import LocalEdit
from shardfs.stores.local.snapshot import LocalSnapshot, to_stat
from shardfs.stores.local.syscalls import Syscalls, Target, changing, translated

_THREAD_NBYTES: Final = 256 * 2**10  # less is copied to the page cache faster than a thread takes over


class LocalFile:
    """An open regular file; its name is kept for messages only."""

    __slots__ = ("_descriptor", "_disk", "_key")

    def __init__(self, disk: Syscalls, key: str, descriptor: Descriptor) -> None:
        self._disk = disk
        self._key = key
        self._descriptor = descriptor

    def stat(self) -> Stat:
        """Return the present state."""
        with translated(self._key):
            return to_stat(os.fstat(self._descriptor.fd))

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        with translated(self._key):
            return await trio.to_thread.run_sync(os.pread, self._descriptor.fd, nbytes, offset)

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*."""
        with changing(self._key):
            if len(data) > _THREAD_NBYTES:
                await trio.to_thread.run_sync(self._disk.pwrite, self._descriptor.fd, [data], offset)
            else:
                self._disk.pwrite(self._descriptor.fd, [data], offset)
        return len(data)

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        with changing(self._key):
            await trio.to_thread.run_sync(self._disk.truncate, self._descriptor.fd, nbytes)

    async def sync(self) -> None:
        """Make what was written durable."""
        with changing(self._key):
            await trio.to_thread.run_sync(self._disk.sync, self._descriptor.fd)

    async def flush(self) -> None:
        """Return: what is written is stored at once."""

    async def close(self) -> None:
        """Return: the file is closed with the last reference to it."""

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Change what is given."""
        fd = self._descriptor.fd
        with changing(self._key):
            return change_attributes(self._disk, fd, fd, mode, uid, gid, atime_ns, mtime_ns)


def change_attributes(
    disk: Syscalls,
    target: Target,
    fd: int,
    mode: int | None,
    uid: int | None,
    gid: int | None,
    atime_ns: int | None,
    mtime_ns: int | None,
) -> Stat:
    """Change what is given of *target*, which *fd* is open for, and return the state after it."""
    if uid is not None or gid is not None:
        disk.chown(target, -1 if uid is None else uid, -1 if gid is None else gid)
    if mode is not None:  # after the owner, a change of which takes the set-user-ID bit away
        disk.chmod(target, mode & 0o7777)
    if atime_ns is not None or mtime_ns is not None:
        now = os.fstat(fd)
        times = now.st_atime_ns if atime_ns is None else atime_ns, now.st_mtime_ns if mtime_ns is None else mtime_ns
        disk.utime(target, times)
    return to_stat(os.fstat(fd))


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


_DISK: Final = Syscalls()
_DIRECTORY: Final = READ | os.O_DIRECTORY


class LocalStore(LocalReader):
    """A directory of this machine, which is changed through *disk* only."""

    def __init__(self, root: str, disk: Syscalls = _DISK, *, ttl: float = TTL) -> None:
        """Open *root*; raises `SourceError` if it is not a directory that can be read."""
        super().__init__(root, ttl=ttl)
        self._disk = disk
        self._making_directories = trio.Lock()

    async def start_writing(self, directory: str, *, single_writer: bool) -> None:
        """Do nothing: reserved names live in the source, and its lock keeps other mounts away."""

    async def flush(self) -> None:
        """Return: what is written is stored at once."""

    async def check_writable(self, key: str) -> None:
        """Raise what keeps a regular file from being changed or made."""
        with suppress(NotFoundError):
            self._open_to_change(key)

    @asynccontextmanager
    async def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        waited: float | None = None,
    ) -> AsyncIterator[LocalEdit]:
        """Begin a change of a regular file, alone."""
        rights = Rights(mode, uid, gid)
        held = await self._lock(key, rights, waited)
        try:
            descriptor: Descriptor | None = None
            snapshot: LocalSnapshot | None = None
            with suppress(NotFoundError):
                descriptor = self._open_to_change(key)
                snapshot = self._snapshot(key, descriptor, to_stat(os.fstat(descriptor.fd)))
            edit = LocalEdit(
                self._disk,
                self._descriptor,
                key,
                rights,
                self._snapshots,
                self.make_directories,
                held,
                descriptor,
                snapshot,
            )
        except BaseException:
            if held is not None:
                held.release()
            raise
        try:
            yield edit
        finally:
            edit.release()

    async def _lock(self, key: str, rights: Rights, waited: float | None) -> FileLock | None:
        """Take the lock of *key*; None where there is no directory for it, or one in which nothing can be made."""
        with changing(key):
            try:
                parent, name = self._place(key)
            except FileNotFoundError:
                return None
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=parent.fd, follow_symlinks=False)
                rights = Rights.of(status)
        return await lock(self._disk, parent, key, rights, waited)

    def _open_to_change(self, key: str) -> Descriptor:
        with changing(key):
            parent, name = self._place(key)
            descriptor = Descriptor(os.open(name, WRITE, dir_fd=parent.fd))
        _require_regular(key, descriptor)
        return descriptor

    async def create(self, key: str, mode: int, *, exclusive: bool) -> LocalFile:
        """Open a regular file to read and write, and make it with *mode* if there is none."""
        with changing(key):
            parent, name = self._place(key)
            try:
                descriptor = Descriptor(self._disk.create(name, WRITE | os.O_EXCL, mode & 0o7777, parent.fd))
            except FileExistsError:
                if exclusive:
                    raise
                descriptor = Descriptor(self._disk.create(name, WRITE, mode & 0o7777, parent.fd))
                _require_regular(key, descriptor)
            else:
                Rights(mode).give(self._disk, descriptor.fd)
        return LocalFile(self._disk, key, descriptor)

    async def open_passthrough(self, key: str, *, writable: bool) -> LocalFile:
        """Open a regular file as it is at any time."""
        return LocalFile(self._disk, key, self._open_to_change(key) if writable else self._open(key)[0])

    @property
    def nchanges(self) -> int:
        """None: a lock keeps other mounts away."""
        return 0

    def note_shown(self, key: str, state: Stat | None, *, since: int | None = None) -> None:
        """Do nothing: a lock keeps other mounts away."""

    async def replace(
        self,
        key: str,
        content: bytes,
        *,
        exclusive: bool = False,
        mode: int | None = None,
        expected: Expected | None = None,
    ) -> Stat:
        """Store *content* under *key*, durably and at once, in place of what is there."""
        with changing(key):
            _require_name(key)
            return await trio.to_thread.run_sync(self._replace, key, content, exclusive, mode)

    async def unlink(self, key: str) -> None:
        """Remove a name that is no directory."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.unlink(name, parent.fd)

    async def mkdir(self, key: str, mode: int) -> None:
        """Make a directory with *mode*, and the set-group-ID bit of the one above."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.mkdir(name, mode & 0o7777, parent.fd)
            itself = Descriptor(os.open(name, ITSELF, dir_fd=parent.fd))
            made = os.fstat(itself.fd).st_mode & 0o7777
            if (made ^ mode) & 0o777:
                self._disk.chmod(itself.path, made & ~0o777 | mode & 0o777)

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.rmdir(name, parent.fd)

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*."""
        with changing(key):
            old_parent, old = self._place(key)
            new_parent, new = self._place(to)
            if exclusive:
                rename_to_absent(self._disk, old, new, old_parent.fd, new_parent.fd)
            else:
                self._disk.rename(old, new, old_parent.fd, new_parent.fd)

    async def link(self, key: str, to: str) -> None:
        """Give a file the second name *to*."""
        with changing(to):
            old_parent, old = self._place(key)
            new_parent, new = self._place(to)
            self._disk.link(old, new, old_parent.fd, new_parent.fd)

    async def symlink(self, key: str, target: bytes) -> None:
        """Make *key* a symbolic link."""
        with changing(key):
            parent, name = self._place(key)
            self._disk.symlink(target, name, parent.fd)

    async def make_directories(self, key: str) -> None:
        """Make the directory *key* and all above it that are missing, durably."""
        # One at a time: whoever finds a directory there may rely on it as one that is durable.
        async with self._making_directories:
            with changing(key):
                await trio.to_thread.run_sync(self._make_directories, key)

    async def set_attributes(
        self,
        key: str,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Change what is given, of the link itself if *key* is one."""
        with changing(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            return change_attributes(self._disk, itself.path, itself.fd, mode, uid, gid, atime_ns, mtime_ns)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise UnsupportedError(f"{key}: the attribute {name!r} is not one of users")
        with changing(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            self._disk.set_attribute(itself.path, name, value)

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        with changing(key):
            itself = open_beneath(self._descriptor, key, ITSELF)
            self._disk.remove_attribute(itself.path, name)

    async def sync_directory(self, key: str) -> None:
        """Make the names in a directory durable."""
        with changing(key):
            directory = open_beneath(self._descriptor, key, _DIRECTORY)
            await trio.to_thread.run_sync(self._disk.sync_directory, directory.fd)

    def _replace(self, key: str, content: bytes, exclusive: bool, mode: int | None) -> Stat:
        parent, _, name = key.rpartition("/")
        directory = open_beneath(self._descriptor, parent, _DIRECTORY)
        rights = Rights(mode)
        with suppress(FileNotFoundError):
            old = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            if exclusive:
                raise ExistsError(f"{key} exists")
            if stat.S_ISREG(old.st_mode):
                rights = Rights.of(old)
        temporary = temporary_name()

        def take_name(_: int) -> None:
            rename = partial(rename_to_absent, self._disk) if exclusive else self._disk.rename
            rename(temporary, name, directory.fd, directory.fd)

        return write_aside(self._disk, directory, temporary, rights, [[content]], take_name)[1]

    def _make_directories(self, key: str) -> None:
        parts = [part for part in key.split("/") if part]
        try:
            open_beneath(self._descriptor, key, WALK)
        except FileNotFoundError:
            pass
        else:
            return
        directory = open_beneath(self._descriptor, "", _DIRECTORY)
        for stop in range(1, len(parts) + 1):
            path = "/".join(parts[:stop])
            try:
                directory = open_beneath(self._descriptor, path, _DIRECTORY)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    self._disk.mkdir(parts[stop - 1], 0o777, directory.fd)
                self._disk.sync_directory(directory.fd)
                directory = open_beneath(self._descriptor, path, _DIRECTORY)

    def _place(self, key: str) -> tuple[Descriptor, str]:
        """Return the directory that holds *key*, and its name there, which is to be changed."""
        _require_name(key)
        return self._parent(key)


def _require_name(key: str) -> None:
    if key.rpartition("/")[2] in ("", ".", ".."):
        raise RefusedError(f"{key or 'the source'} cannot be changed so")


def _require_regular(key: str, descriptor: Descriptor) -> None:
    if not stat.S_ISREG(os.fstat(descriptor.fd).st_mode):
        raise RefusedError(f"{key} is not a regular file")
