"""Entering the sessions of a source: the directory of all slots, `.shardfs`, and its lock.

It has the permissions of the directory around it, and the sticky bit where others may write. Where it belongs to
somebody who could not remove this user's files anyway, another name is used (`directory.NAMES`). The last session that
ends removes it.

Of `.shardfs/lock` each session has one byte locked, and who must be alone all of it. So had earlier versions, with a
single slot, `.shardfs` itself.
"""

import errno
import os
import secrets
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from shardfs.dataset.state.directory import (
    DIRECTORY,
    NAMES,
    OTHERS_WRITE,
    StateDirectory,
    needed,
    shown,
    sync_directory,
)
from shardfs.dataset.state.holder import Holder, read_holder, write_holder
from shardfs.dataset.state.roots import NUMBER, SOURCE, StateRoot, names_in
from shardfs.dataset.state.slots import FORMER, Reach, has_former, slots_in
from shardfs.errors import SourceError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import (
    READ,
    WALK,
    WRITE,
    close_in_children,
    groups_of,
    is_ofd_locked,
    ofd_lock,
    ofd_unlock,
)

NEW, OLD = ".new-", ".old-"
"""How names of slots begin that are not complete yet, or not any more."""

_FIRST_NUMBERS: Final = 64  # beyond these, numbers are random
_MOST_NUMBERS: Final = 1000  # that are tried
LISTED: Final = 0o755
"""The mode of a slot."""

_ALONE, _TOGETHER = "alone", "together"
_ATTEMPTS: Final = 100
_LOCK_SECONDS: Final = 1.0
"""How long to wait for the lock of all slots: whoever leaves last has it for a moment."""


@contextmanager
def entered(root: StateRoot, *, alone: bool = False) -> Iterator[str]:
    """Be among the sessions of a source, or *alone*, for the length of a block; yields the name of their directory."""
    directory, file = _enter(root, alone=alone)
    lock = os.path.join(root.at, directory, "lock")
    write_holder(file.fd, Holder.here(file.fd, _ALONE if alone else _TOGETHER))  # earlier versions read it
    try:
        yield directory
    finally:
        with suppress(OSError):
            ofd_unlock(file.fd)
            if ofd_lock(file.fd) and is_file_at(lock, file):  # the last one leaves
                write_holder(file.fd, Holder())
                _remove_all(root, directory)
        with suppress(OSError):
            ofd_unlock(file.fd)


def _enter(root: StateRoot, *, alone: bool) -> tuple[str, Descriptor]:
    """Lock the directory of all slots, which is made if it is missing: the first that this user may use."""
    foreign: list[str] = []
    for directory in NAMES:
        path = os.path.join(root.at, directory)
        with needed(os.path.join(root.at, NAMES[0])):
            for attempt in range(_ATTEMPTS):
                try:
                    if not _make_trusted(root, path):
                        foreign.append(path)
                        break
                    file = open_lock(os.path.join(path, "lock"), os.stat(path).st_mode & 0o666)
                    _lock_all(root, directory, file, alone=alone)
                    if is_file_at(os.path.join(path, "lock"), file):
                        return directory, file
                except FileNotFoundError:  # whoever left last has removed it
                    if attempt == _ATTEMPTS - 1:
                        raise
    names = ", ".join(shown(path) for path in foreign[:3])
    raise SourceError(f"{names} and others belong to other users, who could remove what is published; move them away")


def _make_trusted(root: StateRoot, path: str) -> bool:
    """Make the directory of slots at *path* unless it exists; whether this user may have a slot there, safely."""
    around = os.stat(root.at)
    mode = stat.S_IMODE(around.st_mode) & 0o3777
    if mode & OTHERS_WRITE:
        mode |= stat.S_ISVTX
    with suppress(FileExistsError):
        os.mkdir(path, mode & 0o777)
        created = Descriptor(os.open(path, WALK))
        if os.fstat(created.fd).st_gid != around.st_gid:
            with suppress(OSError):
                os.chown(created.path, -1, around.st_gid)
        os.chmod(created.path, mode)
        sync_directory(root.at)
        return True
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return False
    me = os.geteuid()
    if status.st_uid == me and stat.S_IMODE(status.st_mode) != mode:  # of an earlier version, or from other times
        os.chmod(path, mode)
        status = os.lstat(path)
    is_safe = status.st_uid in (me, 0, around.st_uid)
    if not around.st_mode & stat.S_ISVTX:  # they could remove it whoever has made it
        is_safe = is_safe or _may_write(around, status.st_uid)
    if status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        is_safe = is_safe and not around.st_mode & stat.S_ISVTX and bool(around.st_mode & OTHERS_WRITE)
    return is_safe and os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _may_write(status: os.stat_result, uid: int) -> bool:
    """Whether a user may create names in a directory with this *status*, by its mode."""
    if uid in (0, status.st_uid):
        return True
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and status.st_gid in groups_of(uid)


def _lock_all(root: StateRoot, directory: str, file: Descriptor, *, alone: bool) -> None:
    """Take the lock of all slots; raises `SourceError` if that is not possible, with who has it."""
    state = StateDirectory(root.path, directory, root.opened)
    until, byte = time.monotonic() + _LOCK_SECONDS, 1 + secrets.randbelow(2**48)
    while True:
        is_mine = (alone or has_former(state)) and ofd_lock(file.fd)
        if is_mine and has_former(state):
            _move_former(root, directory)
        if is_mine and not alone:
            ofd_unlock(file.fd, 0, byte)
            ofd_unlock(file.fd, byte + 1)
        if is_mine or (not alone and ofd_lock(file.fd, byte, 1)):
            break
        if time.monotonic() >= until:
            raise SourceError(_not_entered(root, state, file))
        time.sleep(0.01)
    close_in_children(file)
    holder = read_holder(state.lock)  # of one who is alone, or of an earlier version: sessions have it in their slots
    is_other = holder.is_elsewhere and holder.pid is not None and holder.door != _TOGETHER
    if is_other and not Reach.of(root, proven=False).has_ended(holder):
        raise SourceError(refusal(f"{root.path} is", state, holder))


def _not_entered(root: StateRoot, state: StateDirectory, file: Descriptor) -> str:
    if is_ofd_locked(file.fd):
        return refusal(f"{root.path} is", state, read_holder(state.lock))
    for slot in slots_in(root):
        if slot.holder is not None:
            return refusal(f"{root.path} is", slot.state, slot.holder)
    return kept_locked(state.lock)


def _move_former(root: StateRoot, directory: str) -> None:
    """Make a slot of what a version with a single slot left in a directory whose lock this process has alone."""
    above = os.path.join(root.at, directory)
    former = [name for name in FORMER if os.path.lexists(os.path.join(above, name))]
    with suppress(PermissionError):  # then it is of another user, who may do it
        owner = os.lstat(os.path.join(above, former[0]))
        new = tempfile.mkdtemp(prefix=NEW, dir=above)
        os.chmod(new, LISTED)
        if owner.st_uid != os.geteuid():
            os.chown(new, owner.st_uid, owner.st_gid)
        # It has its number first: nobody looks elsewhere for what is in it, should this process be killed meanwhile.
        slot = rename_to_number(root, directory, new)
        for name in former:
            os.rename(os.path.join(above, name), os.path.join(slot.path, name))
        for path in (slot.path, above):
            sync_directory(path)


def move_numbered(path: str) -> None:
    """Make slots of those of versions that had `NUMBER/.shardfs` for each process, if they are dead."""
    for number in filter(NUMBER.fullmatch, names_in(path)):
        state = StateDirectory(os.path.join(path, number), DIRECTORY)
        holder = read_holder(state.lock)
        with suppress(OSError):
            file = Descriptor(os.open(state.lock, WRITE))
            if not Reach.of(StateRoot(path, None), proven=False).has_ended(holder) or not ofd_lock(file.fd):
                continue
            if not os.path.lexists(os.path.join(path, SOURCE)):
                os.rename(os.path.join(state.root, SOURCE), os.path.join(path, SOURCE))
            root = StateRoot(path, None)
            with suppress(FileExistsError):
                os.mkdir(os.path.join(path, DIRECTORY), 0o700)
            rename_to_number(root, DIRECTORY, state.path)
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(state.root, SOURCE))
            os.rmdir(state.root)
            sync_directory(path)


def rename_to_number(root: StateRoot, directory: str, path: str) -> StateDirectory:
    """Give a new slot, at *path*, the first number that is free in *directory*."""
    for number in range(_MOST_NUMBERS):
        if number >= _FIRST_NUMBERS:
            number = secrets.randbelow(10**9)
        state = StateDirectory(root.path, f"{directory}/{number}", root.opened)
        try:
            os.rename(path, state.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EPERM, errno.EACCES, errno.ENOTDIR):
                raise
        else:
            return state
    raise SourceError(f"{shown(os.path.join(root.at, directory))} takes no more slots; move it away")


def _remove_all(root: StateRoot, directory: str) -> None:
    """Remove the directory of slots, whose lock this process has alone, if there are none; also what kills left."""
    path = os.path.join(root.at, directory)
    for slot in slots_in(root):  # of sessions that were killed
        if slot.can_be_taken and slot.state.key.startswith(f"{directory}/") and not slot.state.is_left():
            _remove_empty(slot.state)
    for name in names_in(path):
        state = StateDirectory(root.path, f"{directory}/{name}", root.opened)
        if name.startswith((NEW, OLD)) and not state.is_left():
            _remove_empty(state)
        with suppress(OSError):  # what was not empty stays: files of a run that was interrupted, and slots
            os.rmdir(state.path)
    if os.listdir(path) == ["lock"]:
        os.unlink(os.path.join(path, "lock"))
        os.rmdir(path)


def _remove_empty(state: StateDirectory) -> None:
    """Remove a slot in which nothing is left: its lock file, requests, and directories; whatever else appears stays."""
    for name in names_in(state.asked):
        os.unlink(os.path.join(state.asked, name))
    with suppress(FileNotFoundError):
        os.unlink(state.lock)
    for path, _, _ in os.walk(state.path, topdown=False):
        os.rmdir(path)


def is_file_at(path: str, file: Descriptor) -> bool:
    """Whether the name at *path* still stands for *file*."""
    with suppress(OSError):
        now = Descriptor(os.open(path, READ))  # what `stat` says may be known from before
        return os.path.samestat(os.fstat(file.fd), os.fstat(now.fd))
    return False


def open_lock(path: str, mode: int) -> Descriptor:
    """Open a lock file, which is created if it is missing, to write if this user may."""
    with suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        file = Descriptor(os.open(path, flags, mode))
        os.fchmod(file.fd, mode)  # whatever the umask
        with suppress(OSError):  # who shares the directory by its group shares the file
            os.fchown(file.fd, -1, os.stat(os.path.dirname(path)).st_gid)
        return file
    try:
        return Descriptor(os.open(path, WRITE))
    except PermissionError:
        return Descriptor(os.open(path, READ))


def refusal(what: str, state: StateDirectory, holder: Holder | None) -> str:
    """Return the message that something is being written by *holder*, whose lock is in *state*, with the way out."""
    if holder is not None and holder.is_elsewhere:
        way_out = f"unmount it there first. If that host or process is gone, remove {shown(state.lock)}"
    elif holder is not None and holder.mountpoint is not None:
        way_out = f"run `{shlex.join(['shardfs', 'umount', holder.mountpoint])}` first, or mount without --write"
    else:
        way_out = "wait until it is done, or unmount it there first"
    return f"{what} already being written by {holder or Holder()}; {way_out}"


def kept_locked(path: str) -> str:
    """Return the message about a lock file that somebody keeps locked who does not write."""
    return (
        f"{shown(path)} is kept locked by a program that only reads it, which shardfs never does; "
        f"`fuser -v {shlex.quote(shown(path))}` names it: end it and try again"
    )
