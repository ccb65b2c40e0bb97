"""Changing local files: a new version is made from a `Splice` in place if possible, else written anew.

Memory is bounded by a batch and the tail of the object. A failed change in place is undone.
"""

import errno
import mmap
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import trio

from shardfs.errors import AccessDeniedError, ConflictError, LockedError, NotFoundError, StoreError
from shardfs.stores.base import APPEND_NBYTES, Descriptor, Kept, Splice, Stat, join_key
from shardfs.stores.local.atomic_write import NoCloneError, Permissions, temporary_name, write_and_rename
from shardfs.stores.local.file_lock import PATIENCE, FileLock, lock
from shardfs.stores.local.reader import LocalReader, LocalSnapshot, to_stat
from shardfs.stores.local.syscalls import (
    BLOCK,
    DIRECTORY,
    WALK,
    Syscalls,
    begin_change,
    changing,
    close_in_children,
    end_change,
    is_local,
    open_beneath,
    read_fully,
    status_now,
)
from shardfs.stores.memory import JoinedContent, Slice

BATCH_NBYTES: Final = 8 * 2**20
"""The largest write, apart from a tail."""

_STEP_NBYTES: Final = APPEND_NBYTES + BLOCK
_NO_FILE: Final = -1


class _Change:
    """A splice of the open file *fd* of *old_nbytes* bytes; raises `ValueError` if it keeps others.

    The file *is_appended* to, or *is_cut*; otherwise another file replaces it. *content* is the new version.
    """

    def __init__(self, splice: Splice, fd: int, old_nbytes: int) -> None:
        pieces, old = splice.joined(old_nbytes), partial(_read, fd)
        kept = [Slice(old, piece.offset, piece.nbytes) if isinstance(piece, Kept) else piece for piece in pieces]
        self.content = JoinedContent(kept)
        self.tail_nbytes = splice.tail_nbytes
        self.nbytes = splice.nbytes
        self.ends = splice.ends or (splice.nbytes,)
        self.old_nbytes = old_nbytes
        self.is_cut = pieces == [Kept(0, self.nbytes)]
        self.is_appended = not self.is_cut and pieces[:1] == [Kept(0, old_nbytes)]
        self.mtime_ns = splice.mtime_ns


def change_in_place(syscalls: Syscalls, fd: int, change: _Change, *, at_once: bool) -> None:
    """Make *change* of the open file durably.

    *at_once*: readers see a direct write beyond the end of the file as a whole or not at all.
    """
    if change.is_appended:
        _append(syscalls, fd, change, at_once=at_once)
        return
    if change.nbytes < change.old_nbytes:
        syscalls.truncate(fd, change.nbytes)
    if change.mtime_ns is not None:
        _restore_time(syscalls, fd, change.mtime_ns)
    syscalls.sync(fd)


def _batches(content: JoinedContent, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
    """Yield the bytes from *start* to before *stop* of the new version, `BATCH_NBYTES` at a time.

    Raises `ConflictError` if the old version ends too early.
    """
    for offset in range(start, stop, BATCH_NBYTES):
        yield [*content.views(offset, min(offset + BATCH_NBYTES, stop))]


def _append(syscalls: Syscalls, fd: int, change: _Change, *, at_once: bool) -> None:
    before, begin = os.fstat(fd), (change.old_nbytes, *change.ends)[-2]
    at_once = at_once and change.nbytes - begin - change.tail_nbytes < _STEP_NBYTES
    at_once = at_once and change.tail_nbytes > 0 and not any(end % BLOCK for end in change.ends)
    try:
        if not at_once or not _append_directly(syscalls, fd, change):
            _append_through_cache(syscalls, fd, change)
        _move_time(syscalls, fd, before)
        syscalls.sync(fd)
    except Exception as error:
        try:
            nbytes = os.fstat(fd).st_size
            if nbytes > change.old_nbytes:
                syscalls.truncate(fd, change.old_nbytes)
            if nbytes >= change.old_nbytes:  # else another program has shortened it
                _restore_time(syscalls, fd, before.st_mtime_ns)
        except OSError as second:
            raise StoreError(f"{error}; what was written cannot be taken back: {second.strerror}") from error
        raise


def _append_directly(syscalls: Syscalls, fd: int, change: _Change) -> bool:
    """Append by direct writes, after each of which the file ends with a whole tail; return False if impossible."""
    start = change.old_nbytes
    for end in change.ends:
        # A large batch is written into a hole in front of the tail, once that is in place.
        hole = end - start - change.tail_nbytes
        if hole < _STEP_NBYTES:
            hole = 0
        begin = start + hole
        first = begin // BLOCK * BLOCK
        buffer = mmap.mmap(-1, end - first)  # it begins at a page
        buffer.write(bytes(begin - first) if hole else _read(fd, first, begin - first))
        for view in change.content.views(begin, end):
            buffer.write(view)
        try:
            syscalls.pwrite_direct(fd, buffer, first)
        except OSError as error:
            if error.errno != errno.EINVAL or end != change.ends[0]:
                raise
            return False
        if hole:
            _write(syscalls, fd, change.content, start, begin)
            syscalls.sync(fd)  # else a power cut may leave the last tail without the bytes it refers to
        start = end
    return True


def _append_through_cache(syscalls: Syscalls, fd: int, change: _Change) -> None:
    """Append by ordinary writes, which show intermediate sizes.

    Whoever opens the file meanwhile finds the old tail at its end, except while a tail is being written.
    """
    start, stop = change.old_nbytes, change.nbytes
    tail = stop - change.tail_nbytes
    if change.tail_nbytes > start or tail < start or not change.tail_nbytes:
        _write(syscalls, fd, change.content, start, stop)
        return
    syscalls.pwrite(fd, [_read(fd, start - change.tail_nbytes, change.tail_nbytes)], tail)
    _write(syscalls, fd, change.content, start, tail)
    if tail - start > BATCH_NBYTES:
        syscalls.sync(fd)  # else a power cut may leave the new tail without the bytes it refers to
    syscalls.pwrite(fd, [change.content.read(tail, stop - tail)], tail)  # joined into one buffer


def _move_time(syscalls: Syscalls, fd: int, before: os.stat_result) -> None:
    """Give a changed file an mtime that nobody saw on its state *before*, or on a partial change.

    tensorstore distinguishes versions only by inode and mtime. The kernel sets the time before it writes, so a program
    that looks in between sees that time with the old bytes. And its clock ticks more slowly than commits may follow
    each other.
    """
    after = os.fstat(fd)
    try:
        syscalls.utime(fd, (after.st_atime_ns, max(before.st_mtime_ns, after.st_mtime_ns) + 1))
    except PermissionError:  # only its owner may set any time; others may set the present one, and the clock ticks soon
        while os.fstat(fd).st_mtime_ns in (before.st_mtime_ns, after.st_mtime_ns):
            syscalls.utime(fd)


def _restore_time(syscalls: Syscalls, fd: int, mtime_ns: int) -> None:
    """Give a file that is an earlier version again the time of that, by which it is known; only its owner may."""
    now = os.fstat(fd)
    if now.st_mtime_ns != mtime_ns:
        with suppress(PermissionError):
            syscalls.utime(fd, (now.st_atime_ns, mtime_ns))


def _has_several_names(status: os.stat_result | None) -> bool:
    return status is not None and status.st_nlink > 1


def _may_give_time(status: os.stat_result | None) -> bool:
    """Whether this process may give a file any time."""
    return status is None or os.geteuid() in (0, status.st_uid)


def _write(syscalls: Syscalls, fd: int, content: JoinedContent, start: int, stop: int) -> None:
    for batch in _batches(content, start, stop):
        syscalls.pwrite(fd, batch, start)
        start += sum(view.nbytes for view in batch)


def _read(fd: int, offset: int, nbytes: int) -> memoryview:
    buffer = np.empty(nbytes, np.uint8).data
    if read_fully(fd, buffer, offset) < nbytes:
        raise ConflictError("the old version was shortened meanwhile")
    return buffer


@dataclass(slots=True, eq=False)
class LocalEdit:
    """A change of *key* in *store*: the open *file*, or nothing yet.

    It has the *lock* of the key until it is released; where there is no directory yet, from the change on. There is
    nothing to be left if there is no file, as opposed to one that could not be looked at.
    *permissions* are for a new file, and *make_directories* makes missing ones above it.
    """

    store: LocalReader
    key: str
    permissions: Permissions
    lock: FileLock | None
    make_directories: Callable[[str, Permissions], Awaitable[None]]
    file: Descriptor | None = None
    snapshot: LocalSnapshot | None = None
    can_delete: bool = field(init=False, default=True)
    append_alignment: int = field(init=False, default=1)
    temporary: str = field(init=False)
    _found: Descriptor | None = field(init=False, default=None)
    _is_settled: bool = field(init=False, default=False)
    _is_left: bool = field(init=False, default=False)
    _is_absent: bool = field(init=False, default=False)
    _parent: str = field(init=False)
    _name: str = field(init=False)

    def __post_init__(self) -> None:
        self._parent, _, self._name = self.key.rpartition("/")
        self.temporary = join_key(self._parent, temporary_name())

    @property
    def was_interrupted(self) -> bool:
        """Whether a process that changed the file was killed meanwhile, and nobody knows what it did."""
        return self.lock is not None and self.lock.was_left and not self._is_settled

    def found(self, file: Descriptor, snapshot: LocalSnapshot, waited: float) -> None:
        """Set the file that the key stands for, open as *file*.

        The lock file beside it may be removed by anybody, and programs that write the file through a session have none.
        So the file itself is locked, too. Raises `LockedError` if another process has that lock, and `StoreError` if it
        still has it after so long a wait.
        """
        if not begin_change(file.fd):
            if waited >= PATIENCE:
                raise StoreError(f"{self.key} is kept open by another session, which writes it")
            raise LockedError(f"{self.key} is being changed by another process")
        close_in_children(file)
        self.file = self._found = file
        self.snapshot = snapshot
        if self.store.syscalls.appends_at_once(file.fd):
            self.append_alignment = BLOCK

    def found_none(self) -> None:
        """Note that the key stands for no file, or not any more."""
        self._is_absent = self.snapshot is None

    async def splice(self, splice: Splice, check: Callable[[], None] | None = None) -> Stat:
        """Store the new version: in place if it begins with the whole old one, or is its beginning, else anew.

        An append that others would see in part is made to a clone, if possible. A file with several names is written
        anew: another name may be that of a snapshot, which so keeps the old version. So is one that a killed process
        was changing: an undo record would take what is appended for a part of its own append, and the host of that
        process may still write. And one that is to have its time again, which only the owner of a file can give it.
        """
        return await self._splice(splice, check, is_known=not self.was_interrupted)

    async def _splice(self, splice: Splice, check: Callable[[], None] | None = None, *, is_known: bool) -> Stat:
        """Store the new version; the file stays as it is unless it *is_known* what is in it."""
        old_nbytes = self.snapshot.stat.size if self.snapshot else 0
        change = _Change(splice, self.file.fd if self.file else _NO_FILE, old_nbytes)
        with changing(self.key):
            status = None if self.file is None else await self.store.threads.on_names(os.fstat, self.file.fd)
            is_frozen = not is_known or (change.is_appended and _has_several_names(status))
            if change.is_appended and change.tail_nbytes and (self.append_alignment == 1 or is_frozen):
                with suppress(NoCloneError):
                    return await self.store.threads.on_content(self._write_new, change, self.file)
            if change.is_cut and not is_frozen and change.mtime_ns is not None and not _may_give_time(status):
                with suppress(PermissionError):
                    return await self.store.threads.on_content(self._write_new, change, None)
            if not is_frozen and (change.is_cut or change.is_appended):
                return await self._change_in_place(change)
            if self.snapshot is None:
                await self.make_directories(self._parent, self.permissions)
            if self.lock is None:
                look = partial(open_beneath, self.store.directory, self._parent, WALK)
                self.lock = await lock(self.store, await self.store.threads.on_names(look), self.key, self.permissions)
            return await self.store.threads.on_content(partial(self._write_new, change, None, check))

    async def settle(self, inode: int, splice: Splice | None = None) -> None:
        """Make durable what a killed process did to the file *inode*, by *splice* if that is to be undone.

        Where hosts share files, it is written anew: the host of that process may still write to it.
        """
        if self.file is not None and self.snapshot is not None:
            await self._settle(self.file, self.snapshot.stat, inode, splice)
        self._is_settled = True

    async def _settle(self, file: Descriptor, stat: Stat, inode: int, splice: Splice | None) -> None:
        is_exposed = stat.file is not None and stat.file[1] == inode and not is_local(file.fd)
        if is_exposed:
            same = Splice((Kept(0, stat.size),), mtime_ns=stat.mtime_ns)
            change = _Change(splice or same, file.fd, stat.size)
            with suppress(AccessDeniedError), changing(self.key):
                await self.store.threads.on_content(self._write_new, change, None)
                return
        if splice is not None:
            await self._splice(splice, is_known=True)
        else:
            with changing(self.key):
                await self.store.threads.on_content(self.store.syscalls.sync, file.fd)

    def leave(self) -> None:
        """Let `release` leave the lock file, as a killed process does."""
        self._is_left = True

    async def delete(self) -> None:
        """Remove the file durably."""
        with changing(self.key):
            await self.store.threads.on_content(self._delete)

    async def release(self) -> None:
        """Release the lock: the change is durable, or was undone, unless the file is left."""
        held, self.lock, stays = self.lock, None, (self.was_interrupted or self._is_left) and not self._is_absent
        if self._found is not None:
            with suppress(OSError):  # others may have it open still
                end_change(self._found.fd)
            self._found = None
        if held is not None:
            with trio.CancelScope(shield=True):
                await self.store.threads.on_names(partial(held.release, stays=stays))

    async def _change_in_place(self, change: _Change) -> Stat:
        assert self.file is not None
        assert self.snapshot is not None
        fd, old, threads = self.file.fd, self.snapshot.stat, self.store.threads
        await threads.on_names(self._require_unchanged)
        version, now = self.snapshot.version, old
        if not change.is_cut:
            version.begin_change()
        try:
            at_once = self.append_alignment > 1
            await threads.on_content(partial(change_in_place, self.store.syscalls, fd, change, at_once=at_once))
        finally:
            with suppress(OSError):  # else open files find out by themselves
                now = to_stat(os.fstat(fd))
            is_whole = now.size in (old.size, change.nbytes)
            version.end_change((now.size, now.mtime_ns) if is_whole else None)
        after = await threads.on_names(self._look)
        if after is None or after.identity != now.identity:
            raise ConflictError(f"{self.key} was replaced while it was changed")
        return now

    def _write_new(
        self, change: _Change, clone_of: Descriptor | None, last_check: Callable[[], None] | None = None
    ) -> Stat:
        directory = open_beneath(self.store.directory, self._parent, DIRECTORY)
        temporary = self.temporary.rpartition("/")[2]
        permissions, kept = self.permissions.within(directory), 0
        if self.file is not None:
            status = os.fstat(self.file.fd)
            permissions = Permissions.of(status)
            kept = 0 if clone_of is None else status.st_size
        content = _batches(change.content, kept, change.nbytes)
        clone_fd = None if clone_of is None else clone_of.fd

        def check() -> None:
            self._require_unchanged()
            if last_check is not None:
                last_check()

        try:
            self.file, stat = write_and_rename(
                self.store.syscalls,
                directory,
                temporary,
                self._name,
                permissions,
                content,
                check=check if self.snapshot is not None else None,
                clone_of=clone_fd,
                mtime_ns=change.mtime_ns,
            )
        except FileExistsError:
            raise ConflictError(f"{self.key} was made by another program meanwhile") from None
        self._is_settled = True
        return stat

    def _delete(self) -> None:
        if self.snapshot is None:
            raise NotFoundError(f"{self.key} does not exist")
        directory = open_beneath(self.store.directory, self._parent, DIRECTORY)
        self._require_unchanged()
        self.store.syscalls.unlink(self._name, directory.fd)
        self.store.syscalls.sync_directory(directory.fd)
        self._is_settled = True

    def _require_unchanged(self) -> None:
        assert self.snapshot is not None
        now, old = self._look(), self.snapshot.stat
        if now is None or (now.identity, now.size, now.mtime_ns) != (old.identity, old.size, old.mtime_ns):
            raise ConflictError(f"{self.key} was changed or replaced by another program")

    def _look(self) -> Stat | None:
        """Return the present status of *key*."""
        with suppress(FileNotFoundError, NotADirectoryError):
            directory, name = self.store.parent(self.key)
            return to_stat(status_now(name, directory.fd))
        return None
