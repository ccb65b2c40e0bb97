"""The system calls on local files, and the meaning of their errors.

Everything that shardfs writes to a local disk goes through `Syscalls`: a test double can count the calls, make them
fail, and show what is left after a power cut. The calls block, and raise `OSError` unchanged; their order, what to make
durable, and what an error means is up to the caller.

`open_beneath` opens files below a directory without ever leaving it. A path without symbolic links is opened by a
single call (`openat2`). Otherwise, and where the kernel lacks it, the path is walked component by component from the
directory's descriptor, so no link leads out, even if it is exchanged meanwhile.

Systems without Linux's calls are read with portable ones, and not written to: see `require_linux`.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, reduce
from mmap import mmap
from operator import or_
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

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
    SourceError,
    StaleError,
    StoreError,
    TooLargeError,
    TooManyOpenFilesError,
)
from shardfs.stores.base import Buffer, Descriptor

try:
    import fcntl
    import pwd
except ImportError:  # on Windows, where only remote sources are read
    _HAS_OFD_LOCKS = _HAS_USERS = False
else:
    _HAS_OFD_LOCKS, _HAS_USERS = hasattr(fcntl, "F_OFD_SETLK"), True

IS_LINUX: Final = hasattr(os, "O_PATH") and hasattr(os, "RWF_NOWAIT") and _HAS_OFD_LOCKS
"""Whether this system has the calls of Linux that writing needs; reading does without."""

_WALKS: Final = hasattr(os, "O_NOFOLLOW") and os.stat in os.supports_dir_fd  # as `os.open` then is, too
"""Whether a path can be walked without following a link out of the source."""


def _libc() -> Any:  # noqa: ANN401 - a library has whatever functions it has
    try:
        return ctypes.CDLL(None, use_errno=True)
    except TypeError:  # on Windows
        return object()


_LIBC: Final = _libc()
_MAX_BUFFERS: Final = 1024  # IOV_MAX of Linux
_RENAME_NOREPLACE: Final = 1
_SYNC_FILE_RANGE_WRITE: Final = 2
_NO_DIRECTORY_SYNC: Final = (errno.EINVAL, errno.EOPNOTSUPP)

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MAX_FREED_PIECE: Final = 16 * 2**20
_MAX_FREED: Final = 64 * 2**20

_FICLONE: Final = 0x40049409
_AT_ONCE: Final = (0xEF53, 0x58465342)  # ext4 and its predecessors, XFS; others accept such writes too
_LOCAL: Final = frozenset(
    (
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # btrfs
        0x2FC12FC1,  # ZFS
        0xCA451A4E,  # bcachefs
        0xF2F52010,  # F2FS
        0x3153464A,  # JFS
        0x52654973,  # ReiserFS
        0x3434,  # NILFS
        0x01021994,  # tmpfs
        0x858458F6,  # ramfs
        0x794C7630,  # overlay
        0x4D44,  # FAT
        0x2011BAB0,  # exFAT
        0x7366746E,  # NTFS, of the kernel
    )
)

_CHANGED_BYTE: Final = 2**62
"""Where in a file the byte is that is locked while it is changed in place: far beyond any that it has."""

_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, nbytes (0: all), pid (0: of the description)

NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
"""The errors of a process, or a machine, that may open no more files."""

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a disk that has no space left, for anybody or for this user."""

BLOCK: Final = 4096
"""Direct writes begin and end at multiples of this."""

_ERRORS: Final[dict[int, type[ShardfsError]]] = {
    errno.ENOENT: NotFoundError,
    errno.ENAMETOOLONG: NameTooLongError,
    errno.ENOTDIR: NotADirectoryHereError,
    errno.EISDIR: IsADirectoryHereError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.ENODATA: NoAttributeError,
    errno.EOPNOTSUPP: NoAttributeError,
    errno.ESTALE: StaleError,
    errno.EMFILE: TooManyOpenFilesError,
    errno.ENFILE: TooManyOpenFilesError,
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
    errno.ELOOP: NotPermittedError,
    errno.EFBIG: TooLargeError,
}

Target = int | str
"""A descriptor, or the path in `/proc/self/fd` of one opened with `O_PATH`."""


def keep_freed_memory() -> None:
    """Let this process reuse freed memory, up to a limit, because the kernel fills new memory with zeros.

    Reading a mebibyte into new memory takes four times as long. To be called before threads are started.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _MAX_FREED_PIECE)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, _MAX_FREED)
        _LIBC.mallopt(_M_ARENA_MAX, 1)  # else each thread keeps as much, and cannot use what others freed


def require_linux(what: str) -> None:
    """Raise `SourceError` if *what* cannot be written by this system."""
    if not IS_LINUX:
        raise SourceError(f"{what} cannot be written here: shardfs writes on Linux only, and reads on this system too")


def require_walks(what: str) -> None:
    """Raise `SourceError` if *what*, a directory, cannot be read by this system."""
    if not _WALKS:
        raise SourceError(f"{what} cannot be read here: on this system only s3:// sources are read")


def count_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def status_now(name: str, dir_fd: int | None = None) -> os.stat_result:
    """Return the status of *name*, and not of what a link points to, as it is at this moment.

    On a file system that hosts share, `stat` is answered from what this host has seen of a name some seconds ago; an
    open asks the server. Only of what cannot be opened to be read it is the former.
    """
    try:
        fd = os.open(name, READ, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def user_name(uid: int) -> str:
    """Return the name of a user, or a substitute."""
    with suppress(KeyError):
        if _HAS_USERS:
            return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


def groups_of(uid: int) -> Sequence[int]:
    """Return the groups of a user, as far as this machine knows that one."""
    with suppress(KeyError):
        if _HAS_USERS:
            user = pwd.getpwuid(uid)
            return os.getgrouplist(user.pw_name, user.pw_gid)
    return ()


def is_local(fd: int) -> bool:
    """Whether a file is on a file system of a single host; others may be slow, and shared by several hosts."""
    return _file_system_of(fd) in _LOCAL


def locks_reach_server(fd: int) -> bool | None:
    """Whether locks of a file, on a file system that hosts may share, are kept by all of these; None if unknown.

    That is told by its type and the options with which it is mounted.
    """
    device = os.fstat(fd).st_dev
    with suppress(OSError, ValueError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in table:
            mount, _, rest = line.partition(" - ")
            if mount.split(" ")[2] == wanted:
                kind, _, options = rest.rstrip("\n").split(" ", 2)
                return judge_locks(kind, options)
    return None


def judge_locks(kind: str, options: str) -> bool | None:
    """Return what `locks_reach_server` does, of a file system type and the options of its mount."""
    chosen = set(options.split(","))
    if kind in ("nfs", "nfs4"):
        return "nolock" not in chosen and not any(
            option.startswith("local_lock=") and option != "local_lock=none" for option in chosen
        )
    if kind == "lustre":
        return "flock" in chosen
    if kind == "ceph":
        return True
    if kind == "gpfs":
        return True
    if kind in ("cifs", "smb3") and "nobrl" in chosen:
        return False
    return None


def ofd_lock(fd: int, start: int = 0, nbytes: int = 0) -> bool:
    """Lock an open file description, or *nbytes* bytes of it from *start* on, which need not exist; 0 is all.

    Returns False if another one has any of them locked, or it was opened to be read only.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, nbytes, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EBADF):
            return False
        raise
    return True


def begin_change(fd: int) -> bool:
    """Lock a file that is to be changed in place; return False if another session changes it.

    Locks of other programs do not count: one that renames its lock file onto it may hold that for a while.
    """
    if ofd_lock(fd, _CHANGED_BYTE, 1):
        return True
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _CHANGED_BYTE, 1, 0)
    kind, _, start, nbytes, _ = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return bool(kind == fcntl.F_UNLCK or (start, nbytes) != (_CHANGED_BYTE, 1))


def begin_to_write(fd: int) -> None:
    """Note on an open file that a program writes it: any number may, and `is_being_written` tells it to others."""
    with suppress(OSError):  # on a file system without locks nobody else is to be told
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, _CHANGED_BYTE, 1, 0))


def is_being_written(fd: int) -> bool:
    """Whether a program writes a file by another open file, in any session."""
    with suppress(OSError):
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _CHANGED_BYTE, 1, 0)
        kind, _, start, nbytes, _ = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK and (start, nbytes) == (_CHANGED_BYTE, 1))
    return False


def end_change(fd: int) -> None:
    """Unlock a file that was changed in place, or written."""
    ofd_unlock(fd, _CHANGED_BYTE, 1)


_CLOSED_IN_CHILDREN: Final[WeakSet[Descriptor]] = WeakSet()


def close_in_children(descriptor: Descriptor) -> None:
    """Let no process that is forked from this one keep *descriptor*: a lock would live on in it."""
    _CLOSED_IN_CHILDREN.add(descriptor)


def _close_in_child() -> None:
    for descriptor in [*_CLOSED_IN_CHILDREN]:  # its number stays in use until it is closed by its owner
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, descriptor.fd, inheritable=False)
        os.close(nothing)


if IS_LINUX:
    os.register_at_fork(after_in_child=_close_in_child)


def ofd_unlock(fd: int, start: int = 0, nbytes: int = 0) -> None:
    """Unlock a file, or a part of it, before its descriptor is closed."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, start, nbytes, 0))


def is_ofd_locked(fd: int) -> bool:
    """Whether another open file description, or process, has locked a file to write, as who may only read it cannot."""
    lock = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return bool(struct.unpack(_FLOCK, lock)[0] != fcntl.F_UNLCK)


def _file_system_of(fd: int) -> int | None:
    """Return the number of the file system type (`linux/magic.h`); None if it is unknown."""
    if not IS_LINUX:  # others have it in another location
        return None
    status = ctypes.create_string_buffer(512)
    if _LIBC.fstatfs(fd, status) != 0:
        return None
    return int(struct.unpack_from("l", status)[0]) & 0xFFFFFFFF


def read_cached(fd: int, buffer: memoryview, offset: int, key: str) -> int:
    """Read what the page cache has from *offset* on, without waiting; return the number of bytes."""
    if not IS_LINUX:
        return 0
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return 0
        raise translate(error, key) from None


def read_fully(fd: int, buffer: memoryview, offset: int, done: int = 0) -> int:
    """Fill *buffer*, which has *done* bytes already, from *offset* of a file on; return how many it has in the end."""
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """Return *nbytes* bytes from *offset* of a file, fewer only at its end: one call returns less than 2 GiB."""
    data = os.pread(fd, nbytes, offset)
    while len(data) < nbytes and (more := os.pread(fd, nbytes - len(data), offset + len(data))):
        data += more
    return data


class Syscalls:
    """The local disk. Names are relative to the directory *dir_fd*, and final links are not followed."""

    def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
        """Open *name* with *flags* of `os.open` and `O_CREAT`; return a descriptor owned by the caller."""
        return os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=dir_fd)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all *buffers*, one after another, from *offset* on, in one call if the kernel takes them.

        After an error, any part may have been written.
        """
        pending = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
        first = 0
        while first < len(pending):
            done = os.pwritev(fd, pending[first : first + _MAX_BUFFERS], offset)
            if done == 0:
                raise OSError(errno.EIO, "a write wrote nothing")
            offset += done
            while first < len(pending) and done >= pending[first].nbytes:
                done -= pending[first].nbytes
                first += 1
            if done:
                pending[first] = pending[first][done:]

    def append(self, fd: int, data: Buffer) -> None:
        """Write all of *data* at the end of a file, in one call if the kernel takes it: others may append, too."""
        pending = memoryview(data).cast("B")
        while pending:
            done = os.pwritev(fd, [pending], 0, os.RWF_APPEND)
            if done == 0:
                raise OSError(errno.EIO, "a write wrote nothing")
            pending = pending[done:]

    def appends_at_once(self, fd: int) -> bool:
        """Whether its file system shows a direct write beyond the end of a file as a whole or not at all."""
        return _file_system_of(fd) in _AT_ONCE

    def pwrite_direct(self, fd: int, buffer: mmap, offset: int) -> None:
        """Write all of *buffer* from *offset* on, past the page cache, in one call; EINVAL if that is impossible.

        Offset and size are multiples of `BLOCK`.
        """
        room = os.fstatvfs(fd)
        if room.f_bavail * room.f_frsize < len(buffer):  # else only part of it would be written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        direct = Descriptor(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC))
        done = os.pwrite(direct.fd, buffer, offset)
        if done < len(buffer):
            self.pwrite(fd, [buffer[done:]], offset + done)

    def reserve(self, nbytes: int, step: int, dir_fd: int) -> int:
        """Take room on the disk of a directory: return the descriptor of a file without a name, owned by the caller.

        Each *step* by which it is truncated frees room at once: btrfs frees no part of what was allocated together.
        """
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        try:
            for start in range(0, nbytes, step):
                os.posix_fallocate(fd, start, step)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def clone(self, fd: int, source: int) -> None:
        """Give the empty file *fd* the content of *source*, without copying; raises EOPNOTSUPP and others."""
        fcntl.ioctl(fd, _FICLONE, source)

    def begin_to_sync(self, fd: int, offset: int, nbytes: int) -> None:
        """Start writing content to disk, so that a later `sync` has less to wait for; only a hint."""
        _LIBC.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)

    def truncate(self, fd: int, nbytes: int) -> None:
        """Give a file the size *nbytes*."""
        os.ftruncate(fd, nbytes)

    def sync(self, fd: int) -> None:
        """Make content and attributes of a file durable; after an error, nothing is known about them."""
        os.fsync(fd)

    def sync_file_system(self, fd: int) -> None:
        """Make durable everything that was written to the file system of an open file."""
        _call(_LIBC.syncfs, fd)

    def sync_directory(self, fd: int) -> None:
        """Make the names in a directory durable, if its file system can do that."""
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise

    def rename(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        """Rename *name* to *new*, atomically replacing what *new* stands for."""
        os.rename(name, new, src_dir_fd=dir_fd, dst_dir_fd=new_dir_fd)

    def rename_exclusive(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        """Rename *name* to *new*, which must not exist; EINVAL or ENOSYS if this is not possible atomically."""
        if not hasattr(_LIBC, "renameat2"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flags = ctypes.c_uint(_RENAME_NOREPLACE)
        _call(_LIBC.renameat2, dir_fd, os.fsencode(name), new_dir_fd, os.fsencode(new), flags)

    def link(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        """Give *name* the second name *new*, which must not exist."""
        os.link(name, new, src_dir_fd=dir_fd, dst_dir_fd=new_dir_fd, follow_symlinks=False)

    def symlink(self, target: bytes, name: str, dir_fd: int) -> None:
        """Make *name*, which must not exist, a symbolic link."""
        os.symlink(target, os.fsencode(name), dir_fd=dir_fd)

    def unlink(self, name: str, dir_fd: int) -> None:
        """Remove a name that is not a directory."""
        os.unlink(name, dir_fd=dir_fd)

    def mkdir(self, name: str, mode: int, dir_fd: int) -> None:
        """Create a directory."""
        os.mkdir(name, mode, dir_fd=dir_fd)

    def rmdir(self, name: str, dir_fd: int) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=dir_fd)

    def chmod(self, target: Target, mode: int) -> None:
        """Set the permissions of a file."""
        os.chmod(target, mode)

    def chown(self, target: Target, uid: int, gid: int) -> None:
        """Set the owner of a file; -1 changes nothing."""
        os.chown(target, uid, gid)

    def utime(self, target: Target, times: tuple[int, int] | None = None) -> None:
        """Set access and modification time of a file, in ns; without them, to the present."""
        if times is None:
            os.utime(target)
        else:
            os.utime(target, ns=times)

    def set_attribute(self, target: Target, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        os.setxattr(target, name, value)

    def remove_attribute(self, target: Target, name: bytes) -> None:
        """Remove an extended attribute."""
        os.removexattr(target, name)


SYSCALLS: Final = Syscalls()


def _call(function: Callable[..., int], *args: object) -> int:
    """Call a function of the C library that Python's `os` lacks; raises `OSError` if it fails."""
    if any(isinstance(value, bytes) and b"\0" in value for value in args):
        raise ValueError("embedded null byte")
    result = function(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class _Translated(AbstractContextManager[None]):
    """A block whose errors become errors of shardfs.

    No generator: what one raises for another error refers to itself, through the frames that it came by, and stays in
    memory with all that these refer to until Python collects garbage. Absent names are looked up often.
    """

    def __init__(self, key: str, errors: Mapping[int, type[ShardfsError]]) -> None:
        self._key, self._errors = key, errors

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise translate(error, self._key, self._errors) from None
        if isinstance(error, ValueError):  # a NUL character in the name
            unnamed = NotFoundError if self._errors is _ERRORS else RefusedError
            raise unnamed(f"{self._key!r} is not a name") from None


def translated(key: str) -> AbstractContextManager[None]:
    """Turn operating system errors in the block into errors of shardfs that name *key*."""
    return _Translated(key, _ERRORS)


def changing(key: str) -> AbstractContextManager[None]:
    """Do what `translated` does, for a block that changes *key*."""
    return _Translated(key, _ERRORS_OF_CHANGES)


def translate(error: OSError, key: str, errors: Mapping[int, type[ShardfsError]] = _ERRORS) -> ShardfsError:
    """Return the error of shardfs for *error* about *key*."""
    why = error.strerror
    if error.errno == errno.ELOOP and errors is _ERRORS_OF_CHANGES:
        why = "it is a symbolic link, through which nothing is changed; replace the link by the file that it names"
    return errors.get(error.errno or 0, StoreError)(f"{key or 'the source'}: {why}")


def _flags(*names: str) -> int:
    """Return flags of `os`; where one is missing, `require_walks` refuses whatever needs it."""
    return reduce(or_, (getattr(os, name, 0) for name in names))


READ: Final = _flags("O_RDONLY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY")
WRITE: Final = _flags("O_RDWR", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY")
DIRECTORY: Final = READ | _flags("O_DIRECTORY")
_AT: Final = os.O_PATH if IS_LINUX else _flags("O_RDONLY", "O_NONBLOCK")
WALK: Final = _AT | _flags("O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW")
ITSELF: Final = _AT | _flags("O_CLOEXEC", "O_NOFOLLOW")
"""Flags: to read a file, to read and write it, to list a directory, to pass through it, to get at a name itself."""

_MAX_LINKS: Final = 40

_OPENAT2: Final = 437
_RESOLVE: Final = 0x02 | 0x04 | 0x08  # from linux/openat2.h: no magic links, no symbolic links, beneath the directory
_TO_BE_WALKED: Final = (errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.EAGAIN, errno.EINTR, errno.ENAMETOOLONG)
"""Errors of `openat2` that are inconclusive: there may be a link, or the path may be too long for one call."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_directory(path: str) -> Descriptor:
    """Open a directory of our own by its path."""
    with translated(os.path.realpath(path)):  # which may lead through a descriptor
        return Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def open_beneath(root: Descriptor, key: str, flags: int) -> Descriptor:
    """Open *key* with *flags* of `os.open`, following links only within *root*."""
    if _has_openat2():
        try:
            return Descriptor(_openat2(root.fd, os.fsencode(key) or b".", flags, _RESOLVE))
        except OSError as error:
            if error.errno not in _TO_BE_WALKED:
                raise
    return _walk(root, key, flags)


@cache
def _has_openat2() -> bool:
    """Whether the kernel has the call and permits it: containers may not."""
    try:
        if IS_LINUX:
            Descriptor(_openat2(-1, b"/", WALK, 0))
    except OSError:
        return False
    return IS_LINUX


def attribute_of(file: Descriptor, name: bytes) -> bytes:
    """Return an extended attribute of what was opened as `ITSELF`."""
    if not IS_LINUX:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return os.getxattr(file.path, name)


def attributes_of(file: Descriptor) -> Sequence[str]:
    """Return the names of the extended attributes of what was opened as `ITSELF`."""
    return os.listxattr(file.path) if IS_LINUX else ()


def _openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    how = _OpenHow(flags, 0, resolve)
    return _call(_LIBC.syscall, _OPENAT2, dir_fd, path, ctypes.byref(how), ctypes.sizeof(how))


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
