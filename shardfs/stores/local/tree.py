"""A local directory as a store: names are changed only through `Syscalls`."""

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import islice
from typing import Final, TypeVar, Unpack

import trio

from shardfs.errors import (
    LockedError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    RefusedError,
    ShardfsError,
    StaleError,
    UnsupportedError,
    UsageError,
)
from shardfs.stores.base import (
    ABSENT,
    Buffer,
    Descriptor,
    Expected,
    Kind,
    NewAttributes,
    NewDocument,
    NewOwner,
    NewPermissions,
    Stat,
    is_same_version,
    join_key,
)
from shardfs.stores.local.atomic_write import (
    SYSTEM_PERMISSIONS,
    THREAD_NBYTES,
    NewFile,
    Permissions,
    clear_unfinished,
    is_temporary,
    make_directories,
    new_file,
    rename_to_absent,
    temporary_name,
    write_and_rename,
)
from shardfs.stores.local.file_lock import DOCUMENTS_LOCK, FileLock, lock, remove_left, require_lockable
from shardfs.stores.local.reader import TTL, USER, LocalReader, read_range, to_stat
from shardfs.stores.local.shards import LocalEdit
from shardfs.stores.local.syscalls import (
    DIRECTORY,
    ITSELF,
    SYSCALLS,
    WALK,
    WRITE,
    Syscalls,
    Target,
    begin_to_write,
    changing,
    end_change,
    is_being_written,
    open_beneath,
    status_now,
    translated,
)

T = TypeVar("T")

_LOCKED_PAUSE: Final = 0.02
"""Seconds between two attempts to take the lock of documents: whoever has it is soon done."""

_MAX_LEFT: Final = 100  # temporary files in a directory: each is of another process that was killed


class LocalStore(LocalReader):
    """A local directory."""

    def __init__(self, root: str, syscalls: Syscalls = SYSCALLS, *, ttl: float = TTL) -> None:
        """Open *root*; raises `SourceError` if it is not a readable directory."""
        super().__init__(root, syscalls, ttl=ttl)
        self._making_directories = trio.Lock()
        self._changes_documents: dict[str, trio.lowlevel.Task] = {}
        """By the path of a node, the task that has the lock of its documents."""

    async def start_writing(self, directory: str, own: str, *, single_writer: bool) -> None:
        """Remove what a killed `pack` left: reserved names are in the source, where `pack` works alone.

        Raises `UsageError` for a *single_writer*, of which there is no need.
        """
        if single_writer:
            raise UsageError(f"--single-writer is for s3:// sources, and {self.root} is on this machine")
        with suppress(ShardfsError):  # it only takes room
            await self.clear_unfinished(())

    async def flush(self) -> None:
        """Do nothing: what is written is stored at once."""

    async def check_writable(self, key: str) -> None:
        """Raise any error that prevents changing or creating a regular file."""
        with suppress(NotFoundError):
            await self._open_to_change(key)

        def look() -> None:
            above = key
            while above:
                above = above.rpartition("/")[0]
                with suppress(FileNotFoundError):  # it will be made, in the one above it
                    require_lockable(open_beneath(self.directory, above, WALK), key)
                    return

        with changing(key):
            await self.threads.on_names(look)

    @asynccontextmanager
    async def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        waited: float = 0.0,
        **permissions: Unpack[NewPermissions],
    ) -> AsyncIterator[LocalEdit]:
        """Begin an exclusive change of a regular file."""
        new = Permissions(**permissions)

        def look(parent: Descriptor, name: str) -> tuple[Descriptor, Permissions]:
            with suppress(FileNotFoundError):
                return parent, Permissions.of(os.stat(name, dir_fd=parent.fd, follow_symlinks=False))
            return parent, new

        held: FileLock | None = None
        with suppress(NotFoundError):  # the directory does not exist yet
            parent, owner = await self._change(key, look)
            held = await lock(self, parent, key, owner, waited)
        edit = LocalEdit(self, key, new, held, self.make_directories)
        try:
            try:
                file, status = await self._open_to_change(key)
                if held is None:  # both were made since the directory was looked for
                    raise LockedError(f"{key} was just made by another program")
                with changing(key):
                    edit.found(file, self.snapshot(key, file, status), waited)
                    if edit.was_interrupted:  # what was not made durable must not be built on
                        await self.threads.on_content(self.syscalls.sync, file.fd)
                if edit.was_interrupted:
                    await self.sync_directory(key.rpartition("/")[0])
            except NotFoundError:
                edit.found_none()
            yield edit
        finally:
            await edit.release()

    def new_object(self, key: str, nbytes: int, *, head_nbytes: int = 0) -> AbstractAsyncContextManager[NewFile]:
        """Begin a file that is written from first byte to last."""
        return new_file(self, key, head_nbytes)

    async def discard(self, key: str) -> None:
        """Remove a file, if there is one."""
        with suppress(NotFoundError, NotADirectoryHereError):
            await self.unlink(key)

    async def clear_unfinished(self, keys: Sequence[str]) -> None:
        """Remove all incomplete files, whatever their names would have been."""
        with changing(""):
            await self.threads.on_content(clear_unfinished, self)

    async def sync_new_objects(self) -> None:
        """Make everything durable that was written to the file system."""

        def sync() -> None:
            directory = open_beneath(self.directory, "", DIRECTORY)
            self.syscalls.sync_file_system(directory.fd)

        with changing(""):
            await self.threads.on_content(sync)

    async def create(self, key: str, mode: int, *, exclusive: bool, **owner: Unpack[NewOwner]) -> "LocalFile":
        """Open a regular file for reading and writing; if there is none, create it with *mode* and *owner*."""
        flags, mode = WRITE, mode & 0o7777

        def make(parent: Descriptor, name: str) -> Descriptor:
            try:
                file = Descriptor(self.syscalls.create(name, flags | os.O_EXCL, mode, parent.fd))
            except FileExistsError:
                if exclusive:
                    raise
                return _regular(key, Descriptor(self.syscalls.create(name, flags, mode, parent.fd)))[0]
            Permissions(mode, **owner).within(parent).give(self.syscalls, file.fd)
            return file

        return LocalFile(self, key, await self._change(key, make), writes=True)

    async def is_being_written(self, key: str) -> bool:
        """Whether a program of another session writes the file *key*."""
        file, _ = await self.open_to_read(key)
        return is_being_written(file.fd)

    async def open_passthrough(self, key: str) -> "LocalFile":
        """Open a regular file to read it, without pinning a version."""
        return LocalFile(self, key, (await self.open_to_read(key))[0])

    async def open_to_write(self, key: str) -> "LocalFile":
        """Open a regular file to read and write it, without pinning a version."""
        return LocalFile(self, key, (await self._open_to_change(key))[0], writes=True)

    async def replace(self, key: str, content: bytes, expected: Expected, **new: Unpack[NewDocument]) -> Stat:
        """Store *content* under *key*, durably and at once; a lock keeps other sessions away meanwhile."""
        exclusive, mtime_ns = expected is ABSENT, new.pop("mtime_ns", None)
        of_new: NewPermissions = {"mode": new.get("mode"), "uid": new.get("uid"), "gid": new.get("gid")}

        def replace() -> Stat:
            parent, _, name = key.rpartition("/")
            directory = open_beneath(self.directory, parent, DIRECTORY)
            permissions, now = Permissions(**of_new).within(directory), None
            with suppress(FileNotFoundError):
                old = status_now(name, directory.fd)
                if stat.S_ISLNK(old.st_mode) and not exclusive:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if stat.S_ISREG(old.st_mode):
                    permissions, now = Permissions.of(old), to_stat(old)
            if isinstance(expected, Stat) and (now is None or not is_same_version(now, expected)):
                raise StaleError(f"{key} was changed by another program; read it again")
            check = None if exclusive else lambda: None
            file, _ = write_and_rename(
                self.syscalls, directory, temporary_name(), name, permissions, [[content]], check=check
            )
            return _change_attributes(self.syscalls, file.fd, file.fd, {"mtime_ns": mtime_ns})

        _require_name(key)
        async with self.documents_locked(key.rpartition("/")[0]):
            with changing(key):
                return await self.threads.on_content(replace)

    @asynccontextmanager
    async def documents_locked(self, path: str) -> AsyncIterator[None]:
        """Let only this task replace documents of the node at *path* for the length of the block, also a nested one."""
        task, key = trio.lowlevel.current_task(), join_key(path, DOCUMENTS_LOCK)
        if self._changes_documents.get(path) is task:
            yield
            return
        begun = trio.current_time()
        while True:
            directory = await self._change(key, lambda parent, _: parent)
            try:
                waited = trio.current_time() - begun
                group = Permissions(gid=os.fstat(directory.fd).st_gid)
                held = await lock(self, directory, key, group, waited, DOCUMENTS_LOCK)
                break
            except LockedError:
                await trio.sleep(_LOCKED_PAUSE)
        self._changes_documents[path] = task
        try:
            yield
        finally:
            del self._changes_documents[path]
            with trio.CancelScope(shield=True):
                await self.threads.on_names(held.release)

    async def keep(self, key: str, content: bytes, reason: str) -> None:
        """Do nothing: the program that is refused has its file still."""

    async def unlink(self, key: str) -> None:
        """Remove a name that is not a directory."""
        await self._change(key, lambda parent, name: self.syscalls.unlink(name, parent.fd))

    async def remove_lock(self, key: str) -> None:
        """Remove a lock file that nobody holds, if there is one."""

        def remove(parent: Descriptor, name: str) -> None:
            with suppress(FileNotFoundError, PermissionError):  # or it belongs to another user
                remove_left(self.syscalls, parent, name)

        await self._change(key, remove)

    async def mkdir(self, key: str, mode: int, **owner: Unpack[NewOwner]) -> None:
        """Create a directory with *mode* and *owner*, and the set-group-ID bit of its parent."""

        def make(parent: Descriptor, name: str) -> None:
            self.syscalls.mkdir(name, mode & 0o7777, parent.fd)
            itself = Descriptor(os.open(name, ITSELF, dir_fd=parent.fd))
            new_mode = os.fstat(itself.fd).st_mode & ~0o777 | mode & 0o777
            Permissions(new_mode, **owner).within(parent).give(self.syscalls, itself.fd, itself.path)

        await self._change(key, make)

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory, with temporary files and the lock of killed processes."""

        def remove(parent: Descriptor, name: str) -> None:
            with suppress(OSError):  # then removing the directory says why not
                directory = Descriptor(os.open(name, DIRECTORY, dir_fd=parent.fd))
                with os.scandir(directory.fd) as entries:
                    names = {entry.name for entry in islice(entries, _MAX_LEFT)}
                temporary = names - {DOCUMENTS_LOCK}
                if all(map(is_temporary, temporary)) and (
                    temporary == names or remove_left(self.syscalls, directory, DOCUMENTS_LOCK)
                ):
                    for left in temporary:
                        self.syscalls.unlink(left, directory.fd)
            self.syscalls.rmdir(name, parent.fd)

        await self._change(key, remove)

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*."""

        def move(parent: Descriptor, name: str) -> None:
            _require_name(to)
            new_parent, new = self.parent(to)
            if exclusive:
                rename_to_absent(self.syscalls, name, new, parent.fd, new_parent.fd)
            else:
                self.syscalls.rename(name, new, parent.fd, new_parent.fd)

        await self._change(key, move)

    async def link(self, key: str, to: str) -> None:
        """Give a file the second name *to*."""

        def link(parent: Descriptor, name: str) -> None:
            _require_name(key)
            old_parent, old = self.parent(key)
            self.syscalls.link(old, name, old_parent.fd, parent.fd)

        await self._change(to, link)

    async def symlink(self, key: str, target: bytes) -> None:
        """Make *key* a symbolic link."""
        await self._change(key, lambda parent, name: self.syscalls.symlink(target, name, parent.fd))

    async def make_directories(self, key: str, permissions: Permissions = SYSTEM_PERMISSIONS) -> None:
        """Create the directory *key* and the missing ones above it, durably, with the owner in *permissions*."""
        # One at a time: whoever finds a directory may rely on it being durable.
        async with self._making_directories:
            with changing(key):
                await self.threads.on_content(make_directories, self.syscalls, self.directory, key, permissions)

    async def set_attributes(self, key: str, **changes: Unpack[NewAttributes]) -> Stat:
        """Change the given attributes, of the link itself if *key* is one."""
        return await self._change_itself(
            key, lambda itself: _change_attributes(self.syscalls, itself.path, itself.fd, changes)
        )

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise UnsupportedError(f"{key}: the attribute {name!r} is not in the namespace user")
        await self._change_itself(key, lambda itself: self.syscalls.set_attribute(itself.path, name, value))

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        await self._change_itself(key, lambda itself: self.syscalls.remove_attribute(itself.path, name))

    async def sync_directory(self, key: str) -> None:
        """Make the names in a directory durable."""

        def sync() -> None:
            directory = open_beneath(self.directory, key, DIRECTORY)
            self.syscalls.sync_directory(directory.fd)

        with changing(key):
            await self.threads.on_content(sync)

    async def _change(self, key: str, change: Callable[[Descriptor, str], T]) -> T:
        """Call *change* with the directory that contains *key*, and its name there."""
        _require_name(key)
        return await self._in_directory(key, change, changing)

    async def _change_itself(self, key: str, change: Callable[[Descriptor], T]) -> T:
        """Call *change* with *key* itself, even if it is a link."""
        return await self._opened(key, ITSELF, change, changing)

    async def _open_to_change(self, key: str) -> tuple[Descriptor, Stat]:
        def look(parent: Descriptor, name: str) -> tuple[Descriptor, Stat]:
            return _regular(key, Descriptor(os.open(name, WRITE, dir_fd=parent.fd)))

        try:
            return await self._change(key, look)
        except NotFoundError:
            if not self.threads.is_remote:
                raise
            await self.threads.on_names(self.ask_for_names_above, key)
            return await self._change(key, look)


class LocalFile:
    """An open regular file; its name is only for messages."""

    __slots__ = ("_fd", "_file", "_key", "_syscalls", "_threads", "_writes")

    def __init__(self, store: LocalReader, key: str, file: Descriptor, *, writes: bool = False) -> None:
        self._syscalls = store.syscalls
        self._threads = store.threads
        self._key = key
        self._file = file
        self._fd = file.fd
        self._writes = writes
        if writes:
            begin_to_write(file.fd)

    def stat(self) -> Stat:
        """Return the present status."""
        with translated(self._key):
            return to_stat(os.fstat(self._fd))

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        return await read_range(self._threads, self._fd, offset, nbytes, self._key)

    async def write(self, offset: int | None, data: Buffer) -> int:
        """Write all of *data* at *offset*, or at the end."""
        run = self._threads.on_content if len(data) > THREAD_NBYTES else self._threads.on_names
        with changing(self._key):
            if offset is None:
                await run(self._syscalls.append, self._fd, data)
            else:
                await run(self._syscalls.pwrite, self._fd, [data], offset)
        return len(data)

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        with changing(self._key):
            await self._threads.on_content(self._syscalls.truncate, self._fd, nbytes)

    async def sync(self) -> None:
        """Make what was written durable."""
        with changing(self._key):
            await self._threads.on_content(self._syscalls.sync, self._fd)

    def give_up(self) -> None:
        """Do nothing: what is written is stored at once."""

    async def flush(self) -> None:
        """Do nothing: what is written is stored at once."""

    async def close(self) -> None:
        """Let others know that it is written no more; the file is closed with the last reference to it."""
        if self._writes:
            with suppress(OSError):
                end_change(self._fd)

    def set_attributes(self, **changes: Unpack[NewAttributes]) -> Stat:
        """Change the given attributes."""
        with changing(self._key):
            return _change_attributes(self._syscalls, self._fd, self._fd, changes)


def _change_attributes(syscalls: Syscalls, target: Target, fd: int, changes: NewAttributes) -> Stat:
    """Change attributes of *target*, whose descriptor is *fd*; return the new status."""
    mode, uid, gid = changes.get("mode"), changes.get("uid"), changes.get("gid")
    atime_ns, mtime_ns = changes.get("atime_ns"), changes.get("mtime_ns")
    if uid is not None or gid is not None:
        syscalls.chown(target, -1 if uid is None else uid, -1 if gid is None else gid)
    if mode is not None:  # after the owner, because changing that clears the set-user-ID bit
        syscalls.chmod(target, mode & 0o7777)
    if atime_ns is not None or mtime_ns is not None:
        old = os.fstat(fd)
        times = old.st_atime_ns if atime_ns is None else atime_ns, old.st_mtime_ns if mtime_ns is None else mtime_ns
        syscalls.utime(target, times)
    return to_stat(os.fstat(fd))


def _require_name(key: str) -> None:
    if key.rpartition("/")[2] in ("", ".", ".."):
        raise RefusedError(f"{key or 'the source'} cannot be changed like this")


def _regular(key: str, file: Descriptor) -> tuple[Descriptor, Stat]:
    status = to_stat(os.fstat(file.fd))
    if status.kind is not Kind.FILE:
        raise RefusedError(f"{key} is not a regular file")
    return file, status
