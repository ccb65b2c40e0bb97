"""Holding a slot for the length of a block: to write with, or to take over what a killed session left in it."""

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from shardfs.dataset.state.around import overlapping_first, require_in_place, require_no_overlap
from shardfs.dataset.state.directory import DIRECTORY, StateDirectory, needed, prepare, sync_directory
from shardfs.dataset.state.entering import (
    LISTED,
    NEW,
    OLD,
    entered,
    kept_locked,
    move_numbered,
    open_lock,
    refusal,
    rename_to_number,
)
from shardfs.dataset.state.holder import Holder, write_holder
from shardfs.dataset.state.roots import StateRoot, made_root, names_in, root_of
from shardfs.dataset.state.slots import Slot, is_current, is_private, slots_in, slots_of
from shardfs.errors import SourceError
from shardfs.stores.base import Descriptor, Reader
from shardfs.stores.local.syscalls import close_in_children, is_ofd_locked, ofd_lock, ofd_unlock, require_linux

TAKES_OVER: Final = "recovery"
"""What a process notes in the slot of a dead session that it takes over: it answers no requests there."""

_LOCK_MODE: Final = 0o644  # others read who has a slot


@contextmanager
def hold(store: Reader, *, door: str | None = None, mountpoint: str | None = None) -> Iterator[StateDirectory]:
    """Hold a slot to write to *store* with, by *door*; *mountpoint* is where the process mounts it, if it does.

    A slot in which a killed session of this user left something is taken first. Raises `SourceError` if none can be
    had: if a source around or within it is being written or has a journal, if an earlier version of shardfs writes it,
    or if a process on another host may, of which nobody here can tell whether it is alive.
    """
    require_linux(store.url)
    root = made_root(store)
    if store.root is None:
        move_numbered(root.path)
    with ExitStack() as held:
        with overlapping_first(store, root):
            directory = held.enter_context(entered(root))
            state, file = _own_slot(root, directory, door, mountpoint)
            held.callback(_release, state, file)
            prepare(state)
            if store.root is not None:
                require_in_place(root)
                require_no_overlap(root.path)
                _require_known(root, state)
        yield state


@contextmanager
def hold_alone(store: Reader) -> Iterator[None]:
    """Write to the local directory of *store* while nobody else does; raises the errors of `hold`."""
    require_linux(store.url)
    root = root_of(store)
    with ExitStack() as held:
        with overlapping_first(store, root):
            if held.enter_context(entered(root, alone=True)) != DIRECTORY:  # where files are that are not complete
                raise SourceError(f"{root.path}/{DIRECTORY} belongs to another user; move it away")
            require_in_place(root)
            require_no_overlap(root.path)
            for slot in slots_in(root):
                if slot.counts and slot.holder is not None:
                    raise SourceError(refusal(f"{root.path} is", slot.state, slot.holder))
        yield


@contextmanager
def hold_all(store: Reader) -> Iterator[Sequence[StateDirectory]]:
    """Hold a slot as `hold` does, and all other slots of this user in which sessions that ended left something."""
    with hold(store, door="recover") as own, ExitStack() as held:
        states = [own]
        for slot in slots_of(store):
            if slot.state != own and slot.state.is_left() and (file := take(slot)) is not None:
                held.callback(_release, slot.state, file)
                prepare(slot.state)
                states.append(slot.state)
        yield states


@contextmanager
def taken_over(slot: Slot) -> Iterator[StateDirectory | None]:
    """Hold the slot of a dead session for the length of a block; None if it is not to be had any more."""
    file = take(slot)
    if file is None:
        yield None
        return
    try:
        prepare(slot.state)
        yield slot.state
    finally:
        _release(slot.state, file)


def take(slot: Slot) -> Descriptor | None:
    """Lock the slot of a dead session of this user; None if it is none, or another process has it, or removed it."""
    if not slot.can_be_taken:
        return None
    with needed(slot.state.path), suppress(FileNotFoundError):
        file = _lock_slot(slot.state)
        if file is not None and is_current(slot.state, file) and is_private(slot.state):
            write_holder(file.fd, Holder.here(file.fd, TAKES_OVER))
            return file
    return None


def _lock_slot(state: StateDirectory) -> Descriptor | None:
    """Lock a slot, whose lock file may have been removed; None if another process has it.

    Raises `SourceError` if a program that only reads the lock file keeps it locked.
    """
    file = open_lock(state.lock, _LOCK_MODE)
    if ofd_lock(file.fd):
        close_in_children(file)
        return file
    if is_ofd_locked(file.fd) or ofd_lock(file.fd):
        return None
    raise SourceError(kept_locked(state.lock))


def _own_slot(
    root: StateRoot, directory: str, door: str | None, mountpoint: str | None
) -> tuple[StateDirectory, Descriptor]:
    """Take the slot of a dead session, or make one in *directory*; note durably who has it."""
    slots = [slot for slot in slots_in(root) if slot.can_be_taken]
    for slot in sorted(slots, key=lambda slot: (not slot.state.has_pending(), not slot.state.is_left())):
        if (file := take(slot)) is not None:
            state = slot.state
            break
    else:
        with needed(os.path.join(root.at, directory)):
            state, file = _new_slot(root, directory)
    with needed(state.path):
        write_holder(file.fd, Holder.here(file.fd, door, mountpoint))
        os.fsync(file.fd)  # before others are looked at: of two hosts that begin at once, one sees the other
        for path in (state.path, os.path.dirname(state.path)):
            sync_directory(path)
    return state, file


def _new_slot(root: StateRoot, directory: str) -> tuple[StateDirectory, Descriptor]:
    """Make and lock a slot, which gets the first free number when it is complete."""
    above = os.path.join(root.at, directory)
    new = StateDirectory(
        root.path, f"{directory}/{os.path.basename(tempfile.mkdtemp(prefix=NEW, dir=above))}", root.opened
    )
    os.chmod(new.path, LISTED)
    file = _lock_slot(new)
    assert file is not None
    prepare(new)
    return rename_to_number(root, directory, new.path), file


def _release(state: StateDirectory, file: Descriptor) -> None:
    """Release the lock of a slot, and remove the slot unless something is left in it.

    The lock file of one that stays says on which host it was.
    """
    _tidy(state, file)
    with suppress(OSError):
        if is_current(state, file) and not state.is_left():
            _remove(state)
        write_holder(file.fd, Holder(host=socket.gethostname()))
    with suppress(OSError):
        ofd_unlock(file.fd)


def _tidy(state: StateDirectory, file: Descriptor) -> None:
    """Remove requests, and the empty directories of a slot locked by *file*, unless the next session needs them."""
    if is_current(state, file):
        # Who asks, and finds its request gone, takes that for an answer: so it stays while anything is pending.
        for name in names_in(state.asked) if not state.has_pending() else ():
            with suppress(OSError):
                os.unlink(os.path.join(state.asked, name))
        if not state.has_journal():
            for directory, _, _ in os.walk(state.path, topdown=False):
                with suppress(OSError):
                    if directory != state.path:
                        os.rmdir(directory)


def _remove(state: StateDirectory) -> None:
    """Remove a slot that has nothing but its lock file: at once, as nobody may find half of one."""
    above = os.path.dirname(state.path)
    away = tempfile.mkdtemp(prefix=OLD, dir=above)
    os.rename(state.path, away)
    os.unlink(os.path.join(away, "lock"))
    for name in names_in(above):  # on NFS, `away` has the lock file until that is closed, as had those before
        if name.startswith(OLD):
            with suppress(OSError):
                os.rmdir(os.path.join(above, name))


def _require_known(root: StateRoot, own: StateDirectory) -> None:
    """Raise `SourceError` if a process on another host may have a slot, and nobody here can tell.

    Whoever takes a slot meanwhile whose session has ended notes that before looking at others, as this process has, so
    one of the two sees the other.
    """
    for slot in slots_in(root):
        if slot.state != own and slot.is_in_doubt():
            raise SourceError(refusal(f"{root.path} is", slot.state, slot.holder))
