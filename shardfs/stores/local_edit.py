"""One change of one local file."""

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from shardfs.errors import ConflictError, NotFoundError
from shardfs.stores.base import Splice, Stat, join_key
from shardfs.stores.beneath import READ, WALK, Descriptor, open_beneath, translate_of_change
from shardfs.stores.durable import BLOCK, Disk
from shardfs.stores.file_lock import FileLock, lock
from shardfs.stores.local_snapshot import LocalSnapshot, to_stat
from shardfs.stores.new_file import NoCloneError, Rights, rename_to_absent, temporary_name, write_aside
from shardfs.stores.splicing import Arranged, Form, arrange, batches, change_in_place

_DIRECTORY: Final = READ | os.O_DIRECTORY
_NO_FILE: Final = -1


@dataclass(slots=True, eq=False)
class LocalEdit:
    """A change of what *key* stands for: the file open as *descriptor*, or nothing yet.

    It has the *lock* of the key until it is made or failed; where there is no directory yet, only while it is made.
    *snapshots* are those of any file that are open, *rights* those of a new file.
    """

    disk: Disk
    root: Descriptor
    key: str
    rights: Rights
    snapshots: Iterable[LocalSnapshot]
    make_directories: Callable[[str], Awaitable[None]]
    lock: FileLock | None
    descriptor: Descriptor | None
    snapshot: LocalSnapshot | None
    can_delete: bool = field(init=False, default=True)
    append_alignment: int = field(init=False, default=1)
    temporary: str = field(init=False)
    written_nbytes: int = field(init=False, default=0)
    _is_made: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.temporary = join_key(self._parent, temporary_name())
        if self.descriptor is not None and self.disk.appends_at_once(self.descriptor.fd):
            self.append_alignment = BLOCK

    async def splice(self, splice: Splice) -> Stat:
        """Store the new version: in place if it keeps the whole old one, with a new head or tail, else written anew.

        What is appended where others would see a part of it is appended to a clone, if one can be had.
        """
        self._begin()
        change = arrange(splice, self.snapshot.stat.size if self.snapshot else 0)
        try:
            if change.form is Form.APPENDED and change.tail_nbytes and self.append_alignment == 1:
                with suppress(NoCloneError):
                    return await trio.to_thread.run_sync(self._write_new, change, self.descriptor)
            if change.form is not Form.WRITTEN_NEW:
                return await self._change_in_place(change)
            if self.snapshot is None:
                await self.make_directories(self._parent)
            if self.lock is None:
                directory = open_beneath(self.root, self._parent, WALK)
                self.lock = await lock(self.disk, directory, self.key, self.rights)
            return await trio.to_thread.run_sync(self._write_new, change)
        except OSError as error:
            raise translate_of_change(error, self.key) from None
        finally:
            self.release()

    async def delete(self) -> None:
        """Remove the file durably."""
        self._begin()
        try:
            await trio.to_thread.run_sync(self._delete)
        except OSError as error:
            raise translate_of_change(error, self.key) from None
        finally:
            self.release()

    def release(self) -> None:
        """Let others change the file: what was changed is durable, or was taken back."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    @property
    def _parent(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def _name(self) -> str:
        return self.key.rpartition("/")[2]

    def _begin(self) -> None:
        if self._is_made:
            raise ValueError("an edit makes one change")
        self._is_made = True

    async def _change_in_place(self, change: Arranged) -> Stat:
        assert self.descriptor is not None
        assert self.snapshot is not None
        fd, old = self.descriptor.fd, self.snapshot.stat
        self._require_unchanged()
        held = [] if change.form is Form.CUT else [s for s in list(self.snapshots) if s.hold(old, change.overwritten)]
        try:
            make = partial(change_in_place, self.disk, fd, old.size, change, at_once=self.append_alignment > 1)
            self.written_nbytes = await trio.to_thread.run_sync(make)
        finally:
            now = to_stat(os.fstat(fd))
            is_ours = now.size in (old.size, change.nbytes)
            for snapshot in held:
                snapshot.settle(now if is_ours else old)
        after = self._look()
        if after is None or after.identity != now.identity:
            raise ConflictError(f"{self.key} was replaced while it was changed")
        return now

    def _write_new(self, change: Arranged, clone_of: Descriptor | None = None) -> Stat:
        directory = open_beneath(self.root, self._parent, _DIRECTORY)
        fd = _NO_FILE if self.descriptor is None else self.descriptor.fd
        rights = self.rights if self.descriptor is None else Rights.of(os.fstat(fd))
        kept = os.fstat(fd).st_size if clone_of is not None else 0
        content = batches(change.pieces, fd, kept, change.nbytes)
        temporary = self.temporary.rpartition("/")[2]
        take_name = partial(self._take_name, temporary, directory.fd)
        clone_fd = clone_of.fd if clone_of is not None else None
        self.descriptor, status = write_aside(
            self.disk, directory, temporary, rights, content, take_name, clone_of=clone_fd
        )
        self.written_nbytes = change.nbytes - kept
        return status

    def _take_name(self, temporary: str, dir_fd: int, _: int) -> None:
        if self.snapshot is not None:
            self._require_unchanged()
            self.disk.rename(temporary, self._name, dir_fd, dir_fd)
            return
        try:
            rename_to_absent(self.disk, temporary, self._name, dir_fd, dir_fd)
        except FileExistsError:
            raise ConflictError(f"{self.key} was made by another program meanwhile") from None

    def _delete(self) -> None:
        if self.snapshot is None:
            raise NotFoundError(f"{self.key} does not exist")
        directory = open_beneath(self.root, self._parent, _DIRECTORY)
        self._require_unchanged()
        self.disk.unlink(self._name, directory.fd)
        self.disk.sync_directory(directory.fd)

    def _require_unchanged(self) -> None:
        assert self.snapshot is not None
        now, old = self._look(), self.snapshot.stat
        if now is None or (now.identity, now.size, now.mtime_ns) != (old.identity, old.size, old.mtime_ns):
            raise ConflictError(f"{self.key} was changed or replaced by another program")

    def _look(self) -> Stat | None:
        """Return the state of what *key* stands for at this moment."""
        try:
            parent = open_beneath(self.root, self._parent, WALK)
            return to_stat(os.stat(self._name, dir_fd=parent.fd, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None
