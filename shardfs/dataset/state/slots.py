"""Slots: the state directories of remote sources, in the user's home, and `hold`, which takes the one to write with.

A source that is not a local directory may be written by several processes, on one host or several. Each has a slot of
the user's state directory, `shardfs/remote/<name>-<hash>/<number>`, which contains `.shardfs`, and `source.json`, which
names the source. A process takes the first slot that nobody has, and of those one in which a killed process left
something. It removes the slot at its end, unless something is left. In a home that is shared by hosts that do not see
each other's locks, a slot belongs to the host that had it last, until somebody removes its lock file.
"""

import errno
import hashlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from shardfs.dataset.state.directory import (
    StateDirectory,
    make_directories,
    needed,
    prepare,
    state_home,
    sync_directory,
)
from shardfs.dataset.state.lock import (
    Holder,
    find_holder,
    is_lock_of,
    locked,
    states_above,
    tidy,
    try_lock,
    write_holder,
)
from shardfs.errors import SourceError, UsageError
from shardfs.stores.base import Address, Descriptor, Reader
from shardfs.stores.kept_files import read_note, write_note
from shardfs.stores.local.syscalls import ofd_unlock, require_linux

_SOURCE: Final = "source.json"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Slot:
    """What a process that writes to a source has, or left, on this machine; *holder* is that process.

    *address* is None if the slot does not name its source, or names another one than its path implies.
    """

    address: Address | None
    number: int
    state: StateDirectory
    holder: Holder | None

    @property
    def is_in_use(self) -> bool:
        """Whether a process on this machine has it."""
        return self.holder is not None and not self.holder.is_elsewhere


@contextmanager
def hold(store: Reader, mountpoint: str | None = None) -> Iterator[StateDirectory]:
    """Hold the directory that a process needs to write to *store*, which it mounts at *mountpoint*, if at all.

    Raises `SourceError` if it cannot be created, if another process writes to the local directory, and if something was
    left in a slot of another source.
    """
    require_linux(store.url)
    if store.root is not None:
        with locked(StateDirectory(store.root, store.directory), mountpoint) as state:
            yield state
        return
    directory = _directory(store.address)
    make_directories(directory)
    free = [slot for slot in _slots(directory) if slot.holder is None]
    for slot in sorted(free, key=lambda slot: (not slot.state.has_pending(), not slot.state.is_left())):
        if slot.address is None and slot.state.is_left():
            raise SourceError(f"{slot.state.root} does not name {store.address} as its source; move it away")
        if slot.address is not None and (file := _take(slot, mountpoint)) is not None:
            break
    else:
        slot, file = _new_slot(directory, store.address, mountpoint)
    with _released(slot.state, file):
        yield slot.state


@contextmanager
def hold_all(store: Reader) -> Iterator[Sequence[StateDirectory]]:
    """Hold the directory that `hold` does, and all others in which processes that ended left something."""
    with hold(store) as own, ExitStack() as held:
        states = [own]
        for slot in slots_of(store) if store.root is None else ():
            is_free = slot.holder is None and slot.address is not None
            if is_free and slot.state.is_left() and (file := _take(slot)) is not None:
                held.enter_context(_released(slot.state, file))
                states.append(slot.state)
        yield states


def slots_of(store: Reader) -> Sequence[Slot]:
    """Return the slots of a source on this machine; a local directory has one, its own `.shardfs`."""
    if store.root is not None:
        state = StateDirectory(store.root)
        return [Slot(store.address, 0, state, _holder_of(state))]
    return _slots(_directory(store.address))


def all_slots() -> Sequence[Slot]:
    """Return the slots of all remote sources."""
    home = _home()
    return [slot for name in sorted(_names(home)) for slot in _slots(os.path.join(home, name))]


def slot_with_changes(store: Reader) -> Slot | None:
    """Return the first slot of *store*, or of a directory above it, that may have published changes it does not have.

    Conflicts count if nobody has the slot: else only its holder can tell what they are. Of a remote source, only what
    processes of this user have on this machine is known. Raises `SourceError` for a directory that cannot be read.
    """
    candidates: list[Slot] = []
    with suppress(UsageError):  # there is no home directory, and nothing in it
        slots = slots_of(store)
        candidates += [slot for slot in slots if store.root is not None or slot.holder != Holder()]
    if store.root is not None:
        above = (state for state in states_above(store.root) if state.has_pending())
        candidates += [Slot(Address(state.root), 0, state, _holder_of(state)) for state in above]
    is_left = (slot.state.has_pending() if slot.holder is not None else slot.state.has_journal() for slot in candidates)
    return next((slot for slot, is_it in zip(candidates, is_left, strict=True) if is_it), None)


def _home() -> str:
    return os.path.join(state_home(), "shardfs", "remote")


def _directory(address: Address) -> str:
    name = re.sub(r"[^\w.-]+", "-", address.url.partition("://")[2], flags=re.ASCII).strip("-.")[:_MAX_NAME]
    digest = hashlib.sha256("\n".join(address).encode(errors="surrogateescape")).hexdigest()[:16]
    return os.path.join(_home(), f"{name}-{digest}")


def _take(slot: Slot, mountpoint: str | None = None) -> Descriptor | None:
    """Lock a slot; None if another process has it, or has removed it."""
    with needed(slot.state.path), suppress(FileNotFoundError):
        return try_lock(slot.state, mountpoint)
    return None


def _new_slot(directory: str, address: Address, mountpoint: str | None) -> tuple[Slot, Descriptor]:
    """Make and lock a slot, which gets the first free number when it is complete."""
    with needed(directory):
        new = StateDirectory(tempfile.mkdtemp(prefix=".new-", dir=directory))
        file = try_lock(new, mountpoint)
        assert file is not None
        prepare(new)
        write_note(os.path.join(new.root, _SOURCE), address._asdict())
        for number in count():
            state = StateDirectory(os.path.join(directory, str(number)))
            try:
                os.rename(new.root, state.root)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                break
        sync_directory(directory)
    return Slot(address, number, state, None), file


@contextmanager
def _released(state: StateDirectory, file: Descriptor) -> Iterator[None]:
    """Release the lock of a slot after the block, and remove the slot unless something is left in it.

    The lock file of one that stays says on which host it was.
    """
    try:
        prepare(state)
        yield
    finally:
        tidy(state, file)
        with suppress(OSError):
            if is_lock_of(state, file) and not state.is_left():
                away = StateDirectory(tempfile.mkdtemp(prefix=".old-", dir=os.path.dirname(state.root)))
                os.rename(state.root, away.root)  # at once: nobody may find it without its source
                os.unlink(away.lock)
                os.rmdir(away.path)
                os.unlink(os.path.join(away.root, _SOURCE))
                os.rmdir(away.root)
            write_holder(file.fd, Holder(host=socket.gethostname()))
        ofd_unlock(file.fd)


def _names(directory: str) -> Sequence[str]:
    with suppress(OSError):
        return os.listdir(directory)
    return []


def _slots(directory: str) -> Sequence[Slot]:
    slots = []
    for number in sorted(int(name) for name in _names(directory) if _NUMBER.fullmatch(name)):
        state, address = StateDirectory(os.path.join(directory, str(number))), None
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            note = read_note(os.path.join(state.root, _SOURCE))
            address = Address(str(note["url"]), str(note["endpoint"]))
        if address is not None and _directory(address) != directory:
            address = None
        slots.append(Slot(address, number, state, _holder_of(state)))
    return slots


def _holder_of(state: StateDirectory) -> Holder | None:
    """Return who holds the lock of a directory, without a name if that cannot be determined; None if nobody does."""
    try:
        return find_holder(state)
    except SourceError:  # it is of another user
        return Holder()
