"""Files that are written under a temporary name, and renamed when they are complete.

`write_and_rename` writes given content; a `NewFile` is written from first byte to last in the directory `UNFINISHED`.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from shardfs.stores.base import Buffer, Descriptor, Stat, is_reserved
from shardfs.stores.local.reader import LocalReader, to_stat
from shardfs.stores.local.syscalls import DIRECTORY, ITSELF, WALK, Syscalls, Target, changing, open_beneath

_NOT_EXCLUSIVE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_NOT_TO_BE_OWNER: Final = (errno.EPERM, errno.EACCES, errno.EINVAL)  # the last: not in this user namespace
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
_STEP_NBYTES: Final = 2**16
"""For a larger write, the kernel looks for contiguous memory, which may cost several times the write itself."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Mode and owner of a new file; None is up to the system."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def of(cls, status: os.stat_result) -> "Permissions":
        """Return those of a file that is to be replaced."""
        return cls(status.st_mode, status.st_uid, status.st_gid)

    def within(self, directory: Descriptor) -> "Permissions":
        """Return those of a new file in *directory*, whose group it gets if the set-group-ID bit is set there."""
        has_group = os.fstat(directory.fd).st_mode & stat.S_ISGID
        return replace(self, gid=None) if has_group else self

    def give(self, syscalls: Syscalls, fd: int, target: Target | None = None) -> None:
        """Set them; *target* is given if *fd* is open only for its path.

        An owner that this process may not set does not change, as with other programs that rename.
        """
        target = fd if target is None else target
        status = os.fstat(fd)
        uid = status.st_uid if self.uid is None else self.uid
        gid = status.st_gid if self.gid is None else self.gid
        if (uid, gid) != (status.st_uid, status.st_gid) and not _chown(syscalls, target, uid, gid):
            _chown(syscalls, target, -1, gid)
        if self.mode is not None and (self.mode ^ os.fstat(fd).st_mode) & 0o7777:
            syscalls.chmod(target, self.mode & 0o7777)


SYSTEM_PERMISSIONS: Final = Permissions()
_LISTED: Final = 0o755


class NoCloneError(Exception):
    """A file cannot be cloned here, or not without loss; nothing was changed."""


_TEMPORARY: Final = re.compile(r"\.shardfs-[0-9a-f]{16}\.tmp")


def temporary_name() -> str:
    """Return an unused name."""
    return f".shardfs-{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Whether a name may be one of `temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None


def write_and_rename(
    syscalls: Syscalls,
    directory: Descriptor,
    temporary: str,
    name: str,
    permissions: Permissions,
    content: Iterable[Sequence[Buffer]],
    *,
    check: Callable[[], None] | None,
    clone_of: int | None = None,
    mtime_ns: int | None = None,
) -> tuple[Descriptor, Stat]:
    """Write *content* to the new file *temporary*, make it durable, rename it to *name*, and make that durable.

    *check* is called before it replaces what has the name; with None, nothing may have it, else `FileExistsError` is
    raised. With *clone_of*, *content* follows the content of that open file; raises `NoCloneError` if it cannot be had
    without a copy, or would lose attributes. The file gets the time *mtime_ns*, if that is given. Returns the open file
    and its status; after any error *temporary* is gone.
    """
    initial = 0o666 if permissions.mode is None else permissions.mode & 0o700
    try:
        file = Descriptor(syscalls.create(temporary, os.O_RDWR | os.O_EXCL, initial, directory.fd))
    except OSError as error:
        if clone_of is not None:
            raise NoCloneError from error
        raise
    fd = file.fd
    try:
        offset = 0
        if clone_of is not None:
            _clone(syscalls, fd, clone_of)
            offset = os.fstat(fd).st_size
        for buffers in content:
            _write(syscalls, fd, buffers, offset)
            offset += sum(len(buffer) for buffer in buffers)
        if mtime_ns is not None:
            syscalls.utime(fd, (mtime_ns, mtime_ns))
        permissions.give(syscalls, fd)
        syscalls.sync(fd)
        if check is None:
            rename_to_absent(syscalls, temporary, name, directory.fd, directory.fd)
        else:
            check()
            syscalls.rename(temporary, name, directory.fd, directory.fd)
        syscalls.sync_directory(directory.fd)
    except Exception:
        with suppress(OSError):
            syscalls.unlink(temporary, directory.fd)
        raise
    return file, to_stat(os.fstat(fd))


def _clone(syscalls: Syscalls, fd: int, source: int) -> None:
    try:
        if _attributes(source) != _attributes(fd):
            raise NoCloneError
        syscalls.clone(fd, source)
    except OSError as error:
        raise NoCloneError from error


def _attributes(fd: int) -> dict[str, bytes]:
    """Return the extended attributes of a file: access control lists, and labels that a new file may get by itself."""
    try:
        return {name: os.getxattr(fd, name) for name in os.listxattr(fd)}
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise


def _chown(syscalls: Syscalls, target: Target, uid: int, gid: int) -> bool:
    """Set the owner; return False if this process may not."""
    try:
        syscalls.chown(target, uid, gid)
    except OSError as error:
        if error.errno not in _NOT_TO_BE_OWNER:
            raise
        return False
    return True


def rename_to_absent(syscalls: Syscalls, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
    """Rename *name* to *new*, which must not exist; raises `FileExistsError`.

    Atomic, except on file systems that have neither an exclusive rename nor links.
    """
    try:
        syscalls.rename_exclusive(name, new, dir_fd, new_dir_fd)
    except OSError as error:
        if error.errno not in _NOT_EXCLUSIVE:
            raise
    else:
        return
    try:
        syscalls.link(name, new, dir_fd, new_dir_fd)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        syscalls.unlink(name, dir_fd)
        return
    with suppress(FileNotFoundError):
        os.stat(new, dir_fd=new_dir_fd, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    syscalls.rename(name, new, dir_fd, new_dir_fd)


def make_directories(
    syscalls: Syscalls,
    root: Descriptor,
    key: str,
    permissions: Permissions = SYSTEM_PERMISSIONS,
    *,
    is_durable: bool = True,
) -> None:
    """Create the directory *key* below *root* and the missing ones above it, with the owner in *permissions*.

    Whoever walks the source can list what is in our own, whatever the umask.
    """
    with suppress(FileNotFoundError):
        open_beneath(root, key, WALK)
        return
    parent, _, name = key.rpartition("/")
    make_directories(syscalls, root, parent, permissions, is_durable=is_durable)
    directory = open_beneath(root, parent, DIRECTORY)
    with suppress(FileExistsError):
        syscalls.mkdir(name, 0o777, directory.fd)
        itself = Descriptor(os.open(name, ITSELF, dir_fd=directory.fd))
        mode = _LISTED if is_reserved(key.partition("/")[0]) else None
        replace(permissions.within(directory), mode=mode).give(syscalls, itself.fd, itself.path)
    if is_durable:
        syscalls.sync_directory(directory.fd)


UNFINISHED: Final = ".shardfs/unfinished"
"""The directory of incomplete files, where those of killed processes are found."""

_DURABLE_NBYTES: Final = 2**20
"""From this size on, a file is made durable by itself; many small ones are made durable together."""

THREAD_NBYTES: Final = 256 * 2**10
"""Less is copied to the page cache faster than a thread starts."""


def _write(syscalls: Syscalls, fd: int, data: Sequence[Buffer], offset: int) -> None:
    """Write the pieces of *data*, one after another, from *offset* on, in steps of `_STEP_NBYTES`."""
    step: list[memoryview] = []
    room = _STEP_NBYTES
    for view in (memoryview(piece).cast("B") for piece in data):
        while view.nbytes:
            step.append(view[:room])
            view = view[room:]
            room -= step[-1].nbytes
            if not room:
                syscalls.pwrite(fd, step, offset)
                offset += _STEP_NBYTES
                step, room = [], _STEP_NBYTES
    syscalls.pwrite(fd, step, offset)


class NewFile:
    """A file that becomes *key*, open for writing in the directory `UNFINISHED`; making one blocks."""

    def __init__(self, store: LocalReader, key: str, head_nbytes: int) -> None:
        self._store = store
        self._syscalls = store.syscalls
        self._key = key
        self._nbytes = head_nbytes
        self._name = temporary_name()
        self._directory = self._open_directory(UNFINISHED)
        self._file = Descriptor(self._syscalls.create(self._name, os.O_RDWR | os.O_EXCL, 0o666, self._directory.fd))

    async def write(self, data: Sequence[Buffer]) -> None:
        """Append *data*."""
        nbytes = sum(memoryview(piece).nbytes for piece in data)
        run = self._store.threads.on_content if nbytes > THREAD_NBYTES else self._store.threads.on_names
        with changing(self._key):
            await run(self._write, data, nbytes)

    async def finish(self, head: Buffer = b"") -> Stat:
        """Write *head*, and rename the file to its name."""
        is_large = self._nbytes >= _DURABLE_NBYTES
        run = self._store.threads.on_content if is_large else self._store.threads.on_names
        with changing(self._key):
            return await run(self._finish, head, is_large)

    def remove(self) -> None:
        """Remove the file, unless it has its name."""
        with suppress(OSError):
            self._syscalls.unlink(self._name, self._directory.fd)

    def _write(self, data: Sequence[Buffer], nbytes: int) -> None:
        _write(self._syscalls, self._file.fd, data, self._nbytes)
        if nbytes >= _DURABLE_NBYTES:
            self._syscalls.begin_to_sync(self._file.fd, self._nbytes, nbytes)
        self._nbytes += nbytes

    def _finish(self, head: Buffer, is_large: bool) -> Stat:
        self._syscalls.pwrite(self._file.fd, [head], 0)
        if is_large:
            self._syscalls.sync(self._file.fd)
        parent, _, name = self._key.rpartition("/")
        directory = self._open_directory(parent)
        self._syscalls.rename(self._name, name, self._directory.fd, directory.fd)
        if is_large:
            self._syscalls.sync_directory(directory.fd)
        return to_stat(os.fstat(self._file.fd))

    def _open_directory(self, key: str) -> Descriptor:
        """Open a directory, creating it if it is missing."""
        make_directories(self._syscalls, self._store.directory, key, is_durable=False)
        return open_beneath(self._store.directory, key, DIRECTORY)


@asynccontextmanager
async def new_file(store: LocalReader, key: str, head_nbytes: int) -> AsyncIterator[NewFile]:
    """Begin a file that becomes *key*; it is removed unless it is finished in the block."""
    with changing(key):
        file = await store.threads.on_names(NewFile, store, key, head_nbytes)
    try:
        yield file
    except BaseException:
        file.remove()
        raise


def clear_unfinished(store: LocalReader) -> None:
    """Remove all incomplete files of `NewFile`, and their directory."""
    with suppress(FileNotFoundError):
        directory = open_beneath(store.directory, UNFINISHED, DIRECTORY)
        for name in filter(is_temporary, os.listdir(directory.fd)):  # a hostile link may lead to others
            store.syscalls.unlink(name, directory.fd)
        above, _, name = UNFINISHED.rpartition("/")
        directory = open_beneath(store.directory, above, DIRECTORY)
        store.syscalls.rmdir(name, directory.fd)
