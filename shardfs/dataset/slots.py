"""What a process that writes to a source has on this machine: a directory in the source, or a slot.

The journals of a source that is not a local directory are in the user's state directory. Several processes may write to
such a source, on one host or several. Each claims the first slot that nobody holds,
`shardfs/remote/<name>-<hash>/<number>`, which contains `.shardfs`, and `source.json`, which names the source. A free
slot that is not empty was left by a process that was killed; the next process on that host takes it over.

The state directory may be in a home shared by hosts that do not see each other's locks. So the lock file of a slot says
who holds it, and a slot of another host is left alone until somebody removes that file. Slots are claimed and released
one at a time, so that none disappears while it is examined.
"""

import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from shardfs.dataset.state import (
    Holder,
    StateDirectory,
    find_holder,
    locked,
    make_directory,
    needed,
    prepare,
    read_holder,
    release,
    sync_directory,
    tidy,
    try_lock,
)
from shardfs.errors import ShardfsError, SourceError, UsageError
from shardfs.stores.base import Address, Descriptor, Store
from shardfs.stores.kept_files import KeptFile, KeptFiles, read_note, write_note
from shardfs.stores.local.syscalls import ofd_lock, ofd_unlock

log = logging.getLogger(__name__)

_SOURCE: Final = "source.json"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_MAX_NAME: Final = 80


_TAKEN_OVER: Final = ("spools", "scratch", "staged")


@dataclass(frozen=True, slots=True)
class Claim:
    """The directory *state* to write to, and directories that were *left* with a journal by processes that ended.

    All of them are locked as long as the claim lasts.
    """

    state: StateDirectory
    left: Sequence[StateDirectory] = ()

    @property
    def directories(self) -> Sequence[StateDirectory]:
        """All of them; first those that were left, whose journals are committed first."""
        return (*self.left, self.state)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a process that writes to a source has, or left, on this machine; *holder* is that process.

    *address* is None if the slot does not name its source, or names another one than its path implies.
    """

    address: Address | None
    number: int
    state: StateDirectory
    holder: Holder | None


@contextmanager
def hold(store: Store) -> Iterator[Claim]:
    """Hold what a process needs to write to *store*; empty directories are removed at the end.

    Raises `SourceError` if it cannot be created, if another process writes to the local directory, and if a slot
    belongs to another source.
    """
    if store.root is not None:
        with locked(StateDirectory(store.root, store.directory)) as state:
            yield Claim(state)
        return
    with ExitStack() as held:
        with _alone():
            claim = _claim(store.address, held)
        yield claim


def slots_of(store: Store) -> list[Slot]:
    """Return the slots of a source on this machine; for a local directory, its own `.shardfs`, whoever holds it."""
    if store.root is not None:
        return [Slot(store.address, 0, StateDirectory(store.root), None)]
    return _slots(_directory(store.address))


def all_slots() -> list[Slot]:
    """Return the slots of all remote sources."""
    home = _home()
    return [slot for name in sorted(_names(home)) for slot in _slots(os.path.join(home, name))]


def has_journal(store: Store) -> bool:
    """Whether a process that ended may have left published changes that are not in *store*."""
    with suppress(UsageError):  # there is no home directory, and nothing in it
        return any(slot.holder is None and slot.state.has_journal() for slot in slots_of(store))
    return False


def kept_files(state: StateDirectory, *, in_use: bool = False) -> Sequence[KeptFile]:
    """Return the files that a remote store does not have; if the directory is *in_use*, only those it refused."""
    return [file for file in KeptFiles(state.spools).find() if file.reason or not in_use]


def state_home() -> str:
    """Return the user's directory for state that outlives a process; raises `UsageError` if it is unknown."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return state
    home = os.path.expanduser("~")
    if not os.path.isabs(home) or not os.path.isdir(home):
        raise UsageError(
            f"this user has no home directory ({home}); set XDG_STATE_HOME to a directory for logs and state"
        )
    return os.path.join(home, ".local/state")


def _home() -> str:
    return os.path.join(state_home(), "shardfs", "remote")


def _directory(address: Address) -> str:
    name = re.sub(r"[^\w.-]+", "-", address.url.partition("://")[2], flags=re.ASCII).strip("-.")[:_MAX_NAME]
    digest = hashlib.sha256("\n".join(address).encode(errors="surrogateescape")).hexdigest()[:16]
    return os.path.join(_home(), f"{name}-{digest}")


def _claim(address: Address, held: ExitStack) -> Claim:
    """Claim the first slot that was left, or else is free; *held* releases the lock."""
    directory = _directory(address)
    left: list[StateDirectory] = []
    used = set()
    for number in _numbers(directory):
        state = StateDirectory(os.path.join(directory, str(number)))
        holder = find_holder(state)
        if holder is not None and holder.is_elsewhere and state.has_journal():
            log.warning(
                "%s has a journal of %s, which may be running; `shardfs recover` says how to get at it if it is not",
                state.root,
                holder,
            )
        file = try_lock(state) if _is_complete(state) else None
        if file is None:
            used.add(number)
            continue
        _tidy(state, file)
        if os.path.isdir(state.path):
            held.callback(_release, state, file)
            _require_source(state, address)
            left.append(state)
    own = left.pop(0) if left else _make_slot(directory, used, address, held)
    for state in (own, *left):
        prepare(state)
        if state is not own:
            _take_over(state, own)
    return Claim(own, tuple(state for state in left if state.has_journal()))


def _make_slot(directory: str, used: set[int], address: Address, held: ExitStack) -> StateDirectory:
    """Create the first slot that nobody has, on this host or another one."""
    for number in count():
        root = os.path.join(directory, str(number))
        if number not in used:
            _make_directories(directory)
            with needed(root), suppress(FileExistsError):
                os.mkdir(root, mode=0o700)
                break
    state = StateDirectory(root)
    file = try_lock(state)
    if file is None:
        raise SourceError(f"{state.lock} is held by another process, which does not use shardfs")
    held.callback(_release, state, file)
    sync_directory(directory)
    note = os.path.join(root, _SOURCE)
    with needed(note):
        write_note(note, address._asdict())
    return state


def _is_complete(state: StateDirectory) -> bool:
    """Whether a slot is more than what another host is just creating or removing."""
    is_recorded = read_holder(state).host is not None
    return is_recorded or any(names and names != ["lock"] for _, _, names in os.walk(state.path))


def _release(state: StateDirectory, file: Descriptor) -> None:
    with suppress(ShardfsError), _alone():
        _tidy(state, file)
    release(state, file, Holder(host=Holder.own().host))


def _tidy(state: StateDirectory, file: Descriptor) -> None:
    """Remove a slot, locked by *file*, if it is empty."""
    tidy(state, file)
    if os.path.isdir(state.path):
        return
    with suppress(OSError):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(state.root, _SOURCE))
        os.rmdir(state.root)
        os.rmdir(os.path.dirname(state.root))


@contextmanager
def _alone() -> Iterator[None]:
    """Prevent all other processes from claiming and releasing slots."""
    home = _home()
    _make_directories(home)
    path = os.path.join(home, "lock")
    with needed(path, "; set XDG_STATE_HOME to a directory on a file system with locks"):
        file = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        ofd_lock(file.fd, wait=True)
    try:
        yield
    finally:
        ofd_unlock(file.fd)


def _make_directories(path: str) -> None:
    """Create a directory and the missing ones above it, durably."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_directories(parent)
        make_directory(path)
        sync_directory(parent)


def _names(directory: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(directory)
    return []


def _numbers(directory: str) -> list[int]:
    return sorted(int(name) for name in _names(directory) if _NUMBER.fullmatch(name))


def _slots(directory: str) -> list[Slot]:
    found = []
    for number in _numbers(directory):
        state = StateDirectory(os.path.join(directory, str(number)))
        address = _read_source(state.root)
        if address is not None and _directory(address) != directory:
            address = None
        found.append(Slot(address, number, state, find_holder(state)))
    return found


def _require_source(state: StateDirectory, address: Address) -> None:
    """Raise `SourceError` if a slot belongs to another source: somebody moved or copied it."""
    found = _read_source(state.root)
    if found != address:
        whose = f"belongs to {found}" if found is not None else "does not name its source"
        raise SourceError(f"{state.root}, which should hold the journal of {address}, {whose}; move it away")


def _read_source(root: str) -> Address | None:
    try:
        found = read_note(os.path.join(root, _SOURCE))
        return Address(str(found["url"]), str(found["endpoint"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _take_over(left: StateDirectory, own: StateDirectory) -> None:
    """Move to *own* the files that *left* has beside its journal; both are locked.

    What cannot be moved, such as a second file of one name, stays for the next process.
    """
    for name in _TAKEN_OVER:
        source = os.path.join(left.path, name)
        try:
            if os.path.isdir(source):
                _merge(source, os.path.join(own.path, name))
        except (OSError, SourceError) as error:
            log.warning("%s stays where it is, for the next mount: %s", source, error)


def _merge(source: str, target: str) -> None:
    if not os.path.lexists(target):
        os.rename(source, target)
        sync_directory(os.path.dirname(target))
    elif all(stat.S_ISDIR(os.lstat(path).st_mode) for path in (source, target)):
        for name in os.listdir(source):
            _merge(os.path.join(source, name), os.path.join(target, name))
        with suppress(OSError):  # something was left in it
            os.rmdir(source)
    else:
        log.warning("%s stays where it is, for the next mount: %s is there too", source, target)
