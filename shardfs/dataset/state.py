"""The state directory of a process that writes: `.shardfs`, in the source if that is a local directory, else in a slot.

It contains the lock, the write-ahead log ("journal"), the conflict log, and files that are being written.

The lock allows one writing mount at a time. It is an open file description lock, so it ends with the process, however
that ends. The lock file says who holds it, which counts where locks do not reach other hosts.

Other programs and users walk a source while it is written. So whoever can reach `.shardfs` may enter it, list its
directories, and read who holds the lock. What programs wrote is in files that only the user who mounts can read.

A source that is not a local directory may be written by several processes, on one host or several. Each has a slot of
the user's state directory, `shardfs/remote/<name>-<hash>/<number>`, which contains `.shardfs`, and `source.json`, which
names the source. A process takes the first slot that nobody has, and of those one in which a killed process left
something. It removes the slot at its end, unless something is left. In a home that is shared by hosts that do not see
each other's locks, a slot belongs to the host that had it last, until somebody removes its lock file.
"""

import errno
import hashlib
import json
import os
import re
import shlex
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePath
from typing import ClassVar, Final, NamedTuple

from shardfs.dataset.maintenance.walk import holds_chunks
from shardfs.dataset.node import DOCUMENT
from shardfs.errors import ShardfsError, SourceError, UsageError, first_of
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.metadata import ArrayMetadata, parse_document
from shardfs.stores.base import Address, Descriptor, Store
from shardfs.stores.kept_files import KeptFile, KeptFiles, read_note, write_note
from shardfs.stores.local.syscalls import (
    NO_SPACE,
    READ,
    SYSCALLS,
    WALK,
    WRITE,
    is_local,
    is_ofd_locked,
    ofd_lock,
    ofd_unlock,
    require_linux,
    user_name,
)

DIRECTORY: Final = ".shardfs"

_LISTED: Final = 0o755
_PRIVATE: Final = 0o700
"""Modes of directories: within a source, and of the user's own."""

PENDING: Final = "chunks that may not be committed yet"

_MAX_NAMED: Final = 3  # files that are not stored

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of a file system without locks, such as NFS without its lock service."""


@dataclass(frozen=True)
class StateDirectory:
    """`.shardfs` in the directory at the absolute path *root*: the source itself, or a slot of a remote one.

    With *opened*, the descriptor of that directory, all paths lead through it, because *root* may be another directory
    by then.
    """

    # Keys in the store: of scratch files; of orphan chunks, which came before the document of their array; of files
    # that have no name yet, large write buffers among them; and of what was cut off torn shards.
    scratch_key: ClassVar[str] = f"{DIRECTORY}/scratch"
    staged_key: ClassVar[str] = f"{DIRECTORY}/staged"
    drafts_key: ClassVar[str] = f"{DIRECTORY}/drafts"
    torn_key: ClassVar[str] = f"{DIRECTORY}/torn"

    root: str
    opened: Descriptor | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str:
        """Its absolute path, which leads to the same directory for as long as *opened* is open."""
        return os.path.join(self.root if self.opened is None else self.opened.path, DIRECTORY)

    @property
    def journal(self) -> str:
        """The directory of the journal."""
        return os.path.join(self.path, "journal")

    @property
    def conflicts(self) -> str:
        """The directory of the conflict log."""
        return os.path.join(self.path, "conflicts")

    @property
    def drafts(self) -> str:
        """The directory for files that have no name yet."""
        return os.path.join(self.path, "drafts")

    @property
    def spools(self) -> str:
        """The directory for files that are written to a remote store, and for those that it does not have."""
        return os.path.join(self.path, "spools")

    @property
    def lock(self) -> str:
        """The lock file of the process that writes."""
        return os.path.join(self.path, "lock")

    def has_journal(self) -> bool:
        """Whether there may be published changes that are not in the store."""
        return self.has_pending() or _has_segments(self.conflicts)

    def has_pending(self) -> bool:
        """Whether there may be changes that the next mount commits; conflicts are not."""
        return _has_segments(self.journal)

    def is_left(self) -> bool:
        """Whether it has any file but the lock file."""
        return any(names and names != ["lock"] for _, _, names in os.walk(self.path))

    def left(self) -> list[str]:
        """Say what programs wrote that may not be in the store."""
        files = [file.key for file in self.kept_files()]
        found = [PENDING] if self.has_pending() else []
        found += ["conflicts"] if _has_segments(self.conflicts) else []
        found += [f"{first_of(files, _MAX_NAMED)}, which {'are' if files[1:] else 'is'} not stored"] if files else []
        return found

    def kept_files(self) -> Sequence[KeptFile]:
        """Return the files that could not be stored in a remote store."""
        return KeptFiles(self.spools).find()


@contextmanager
def needed(path: str) -> Iterator[None]:
    """Turn an operating system error in the block into a `SourceError` that names *path*."""
    try:
        yield
    except OSError as error:
        why = str(error.strerror)
        if error.errno in _NO_LOCKS:
            why += "; shardfs can only write to a file system with locks"
            why += "; for a bucket, set XDG_STATE_HOME to a directory on one"
        if error.errno == errno.EACCES:
            why += f"; you need permission to write in {os.path.dirname(shown(path))}"
        raise SourceError(f"{shown(path)} cannot be created, which is needed to write: {why}") from None


def _make_directory(path: str, mode: int = _LISTED) -> None:
    """Create a directory of our own, unless it exists, with *mode* whatever the umask.

    A link is refused, with `SourceError`: it may come with a dataset and lead anywhere.
    """
    try:
        status = os.lstat(path)  # a full disk may refuse even to create what is there
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(path, _PRIVATE)
            made = Descriptor(os.open(path, WALK))
            os.chmod(made.path, mode)
        status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{shown(path)}, which is needed to write, is not a directory; move it away")


def _sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    directory = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    SYSCALLS.sync_directory(directory.fd)


def shown(path: str) -> str:
    """Return one of our paths, which may lead through a descriptor, in readable form."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)


def _has_segments(directory: str) -> bool:
    """Whether a log has anything in it; raises `SourceError` if that cannot be determined."""
    try:
        return any(name.endswith(".journal") for name in os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise SourceError(f"{shown(directory)} cannot be read: {error.strerror}") from None


_HOLDER_NBYTES: Final = 4096
_LOCK_MODE: Final = 0o644  # others read who holds it


class Holder(NamedTuple):
    """Who holds a lock, as far as that is known: a process, its host and user, and where it has mounted the source."""

    pid: int | None = None
    host: str | None = None
    user: str | None = None
    mountpoint: str | None = None

    def __str__(self) -> str:
        if self.host is None:
            return "another process"
        if self.pid is None:
            return f"a process on {self.host} that has ended"
        user = f" (user {self.user})" if self.user is not None else ""
        place = f", which has it mounted at {self.mountpoint}" if self.mountpoint is not None else ""
        return f"process {self.pid} on {self.host}{user}{place}"

    @classmethod
    def here(cls, mountpoint: str | None = None) -> "Holder":
        """Return this process, which mounts the source at *mountpoint*, or not at all."""
        return cls(os.getpid(), socket.gethostname(), user_name(os.geteuid()), mountpoint)

    def flush_command(self) -> str | None:
        """Return the command that commits what is pending in its mount, if it is a mount on this host."""
        if self.mountpoint is None or self.is_elsewhere:
            return None
        return shlex.join(["shardfs", "flush", self.mountpoint])

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is on another host, so that nobody here can tell whether it is alive."""
        return self.host is not None and self.host != socket.gethostname()


@contextmanager
def locked(state: StateDirectory, mountpoint: str | None = None) -> Iterator[StateDirectory]:
    """Hold the lock of a source on this machine; an empty state directory is removed at the end.

    The lock file names *mountpoint*, where this process mounts the source.

    Raises `SourceError` if another process writes to the same dataset, or to one around or within it; also if one of
    those has changes that are not in the store, which only a mount of that source may commit.
    """
    root = state.root
    try:
        with needed(state.path):
            file = _try_lock(state, mountpoint)
    except SourceError:
        _require_no_overlap(root)  # whose mount it is says more than what this user may not do beside it
        raise
    if file is None:
        raise SourceError(_refusal(f"{root} is", state, _read_holder(state)))
    try:
        _require_in_place(state)
        _require_no_overlap(root)
        _prepare(state)
        yield state
    finally:
        _tidy(state, file)
        with suppress(OSError):
            if os.listdir(state.path) == ["lock"] and _is_lock_of(state, file):
                os.unlink(state.lock)
                os.rmdir(state.path)
            _write_holder(file.fd, Holder())
        ofd_unlock(file.fd)


def _try_lock(state: StateDirectory, mountpoint: str | None = None) -> Descriptor | None:
    """Lock a directory of our own, which is created if it is missing; return the lock file.

    Returns None if another process has it: one that holds the lock, or one on another host where locks may not reach.
    """
    while True:
        _make_directory(state.path)
        try:
            file = _open_lock(state)
        except PermissionError:  # it is of another user
            if find_holder(state) is not None:
                return None
            raise SourceError(_left_by_another_user(state)) from None
        if not ofd_lock(file.fd):
            return None
        if _is_lock_of(state, file):
            break  # else whoever had it has removed it
    if _other_host(state) is not None:
        return None
    _write_holder(file.fd, Holder.here(mountpoint))
    return file


def _open_lock(state: StateDirectory) -> Descriptor:
    """Open the lock file, which is created if it is missing."""
    with suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        file = Descriptor(os.open(state.lock, flags, _LOCK_MODE))
        os.fchmod(file.fd, _LOCK_MODE)  # whatever the umask
        return file
    return Descriptor(os.open(state.lock, WRITE))


def _left_by_another_user(state: StateDirectory) -> str:
    """Say whose a directory is that nobody holds, and that this process may not take over."""
    owner = user_name(os.lstat(state.path).st_uid)
    left = state.left()
    what = f", with {' and '.join(left)}" if left else ""
    command = shlex.join(["shardfs", "recover", "--apply", state.root])
    return f"{shown(state.path)} was left by a mount of {owner}{what}; run `{command}` as {owner} or root first"


def _is_lock_of(state: StateDirectory, file: Descriptor) -> bool:
    """Whether *file* is still the lock file of a directory: nobody has removed that, and made it again."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file.fd), os.stat(state.lock))
    return False


def find_holder(state: StateDirectory) -> Holder | None:
    """Return who holds the lock of a directory, or has it on another host; None if nobody does.

    Raises `SourceError` if that cannot be determined.
    """
    try:
        file = Descriptor(os.open(state.lock, READ))
        is_locked = is_ofd_locked(file.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot tell whether {state.root} is being written: {error.strerror}") from None
    return _read_holder(state) if is_locked else _other_host(state)


def _other_host(state: StateDirectory) -> Holder | None:
    """Return the process on another host that has a directory, unless locks of all hosts that see it reach each other.

    The locks of a file system of this machine do, and nothing is known about others.
    """
    holder = _read_holder(state)
    if not holder.is_elsewhere:
        return None
    with suppress(OSError):
        directory = Descriptor(os.open(os.path.dirname(state.path), WALK & ~os.O_NOFOLLOW))
        return None if is_local(directory.fd) else holder
    return holder


def _refusal(what: str, state: StateDirectory, holder: Holder) -> str:
    if holder.is_elsewhere:
        way_out = f"unmount it there first. If that host or process is gone, remove {shown(state.lock)}"
    elif holder.mountpoint is not None:
        way_out = f"run `{shlex.join(['shardfs', 'umount', holder.mountpoint])}` first, or mount without --write"
    else:
        way_out = "wait until it is done, or unmount it there first"
    return f"{what} already being written by {holder}; {way_out}"


def _prepare(state: StateDirectory) -> None:
    """Create the contents of a locked directory; raises `SourceError`."""
    with needed(state.path):
        for directory in (state.journal, state.conflicts, state.drafts):
            _make_directory(directory)
        for directory in (state.path, os.path.dirname(state.path)):  # a journal is only durable in a durable directory
            _sync_directory(directory)


def _require_in_place(state: StateDirectory) -> None:
    """Raise `SourceError` if another directory has the path of *state*: its surroundings are examined by path."""
    if state.opened is not None:
        with suppress(OSError):
            if os.path.samestat(os.stat(state.root), os.fstat(state.opened.fd)):
                return
        raise SourceError(f"{state.root} was moved away or replaced while it was opened; try again")


def _require_no_overlap(root: str) -> None:
    """Raise `SourceError` if a directory around *root* or within it is being written, or has a journal."""
    for other in (*map(str, PurePath(root).parents), *_descendants(root)):
        _require_idle(root, StateDirectory(other))


def _require_idle(root: str, other: StateDirectory) -> None:
    if not os.path.isdir(other.path):
        return
    holder = find_holder(other)
    if holder is not None:
        raise SourceError(_refusal(f"{other.root}, which overlaps {root}, is", other, holder))
    if other.has_journal():
        raise SourceError(
            f"{other.root}, which overlaps {root}, has a journal of chunks that are not committed yet; "
            f"run `shardfs recover --apply {shlex.quote(other.root)}` first"
        )


def _write_holder(fd: int, holder: Holder) -> None:
    """Note who has the lock, as far as there is room, in the file and on the disk: the lock counts, not the note."""
    note = json.dumps(holder._asdict()).encode()
    if len(note) > _HOLDER_NBYTES:
        note = json.dumps(holder._replace(mountpoint=None)._asdict()).encode()
    try:
        # Written by one call, always of the same length: others may read it at any time.
        os.pwrite(fd, note.ljust(_HOLDER_NBYTES), 0)
        os.ftruncate(fd, _HOLDER_NBYTES)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        with suppress(OSError):
            os.ftruncate(fd, 0)  # else it might name a process that has ended


def _read_holder(state: StateDirectory) -> Holder:
    """Return who wrote that it has the lock, whether it still does or not; without a host if nobody did."""
    try:
        with open(os.open(state.lock, READ), "rb") as file:
            holder = json.loads(file.read(_HOLDER_NBYTES))
        texts = (holder.get(name) for name in ("host", "user", "mountpoint"))
        pid, (host, user, mountpoint) = holder["pid"], (None if text is None else str(text) for text in texts)
        return Holder(None if pid is None else int(pid), host, user, mountpoint)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Holder()


def _descendants(root: str) -> Iterator[str]:
    """Yield the directories below *root* that may contain a state directory; directories of chunks are not entered.

    A name like a chunk's may be an array: the levels of an image pyramid are `0`, `1` and so on.
    """
    for path, names, _ in os.walk(root):
        if path != root and DIRECTORY in names:
            yield path
        is_array = _is_array(path)
        names[:] = [name for name in names if name != DIRECTORY and not (is_array and holds_chunks(name))]


def _is_array(directory: str) -> bool:
    """Whether a directory has the document of an array; if that cannot be determined, it is treated as none."""
    try:
        with open(os.open(os.path.join(directory, DOCUMENT), READ), "rb") as file:
            return isinstance(parse_document(file.read(MAX_DOCUMENT_NBYTES + 1)), ArrayMetadata)
    except (OSError, ShardfsError):
        return False


def _tidy(state: StateDirectory, file: Descriptor) -> None:
    """Remove the empty directories in a directory locked by *file*, unless the next mount needs them.

    The disk may be full then.
    """
    if _is_lock_of(state, file) and not state.has_journal():
        for directory, _, _ in os.walk(state.path, topdown=False):
            with suppress(OSError):
                if directory != state.path:
                    os.rmdir(directory)


# Slots

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
def hold(store: Store, mountpoint: str | None = None) -> Iterator[StateDirectory]:
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
    _make_directories(directory)
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
def hold_all(store: Store) -> Iterator[Sequence[StateDirectory]]:
    """Hold the directory that `hold` does, and all others in which processes that ended left something."""
    with hold(store) as own, ExitStack() as held:
        states = [own]
        for slot in slots_of(store) if store.root is None else ():
            is_free = slot.holder is None and slot.address is not None
            if is_free and slot.state.is_left() and (file := _take(slot)) is not None:
                held.enter_context(_released(slot.state, file))
                states.append(slot.state)
        yield states


def slots_of(store: Store) -> Sequence[Slot]:
    """Return the slots of a source on this machine; a local directory has one, its own `.shardfs`."""
    if store.root is not None:
        state = StateDirectory(store.root)
        return [Slot(store.address, 0, state, _holder_of(state))]
    return _slots(_directory(store.address))


def all_slots() -> Sequence[Slot]:
    """Return the slots of all remote sources."""
    home = _home()
    return [slot for name in sorted(_names(home)) for slot in _slots(os.path.join(home, name))]


def slot_with_changes(store: Store) -> Slot | None:
    """Return the first slot of *store*, or of a directory above it, that may have published changes it does not have.

    Conflicts count if nobody has the slot: else only its holder can tell what they are. Of a remote source, only what
    processes of this user have on this machine is known. Raises `SourceError` for a directory that cannot be read.
    """
    found: list[Slot] = []
    with suppress(UsageError):  # there is no home directory, and nothing in it
        slots = slots_of(store)
        found += [slot for slot in slots if store.root is not None or slot.holder != Holder()]
    if store.root is not None:
        above = (StateDirectory(str(parent)) for parent in PurePath(store.root).parents)
        found += [Slot(Address(state.root), 0, state, _holder_of(state)) for state in above if state.has_pending()]
    is_left = (slot.state.has_pending() if slot.holder is not None else slot.state.has_journal() for slot in found)
    return next((slot for slot, is_it in zip(found, is_left, strict=True) if is_it), None)


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


def _take(slot: Slot, mountpoint: str | None = None) -> Descriptor | None:
    """Lock a slot; None if another process has it, or has removed it."""
    with needed(slot.state.path), suppress(FileNotFoundError):
        return _try_lock(slot.state, mountpoint)
    return None


def _new_slot(directory: str, address: Address, mountpoint: str | None) -> tuple[Slot, Descriptor]:
    """Make and lock a slot, which gets the first free number when it is complete."""
    with needed(directory):
        made = StateDirectory(tempfile.mkdtemp(prefix=".new-", dir=directory))
        file = _try_lock(made, mountpoint)
        assert file is not None
        _prepare(made)
        write_note(os.path.join(made.root, _SOURCE), address._asdict())
        for number in count():
            state = StateDirectory(os.path.join(directory, str(number)))
            try:
                os.rename(made.root, state.root)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                break
        _sync_directory(directory)
    return Slot(address, number, state, None), file


@contextmanager
def _released(state: StateDirectory, file: Descriptor) -> Iterator[None]:
    """Release the lock of a slot after the block, and remove the slot unless something is left in it.

    The lock file of one that stays says on which host it was.
    """
    try:
        _prepare(state)
        yield
    finally:
        _tidy(state, file)
        with suppress(OSError):
            if _is_lock_of(state, file) and not state.is_left():
                away = StateDirectory(tempfile.mkdtemp(prefix=".old-", dir=os.path.dirname(state.root)))
                os.rename(state.root, away.root)  # at once: nobody may find it without its source
                os.unlink(away.lock)
                os.rmdir(away.path)
                os.unlink(os.path.join(away.root, _SOURCE))
                os.rmdir(away.root)
            _write_holder(file.fd, Holder(host=socket.gethostname()))
        ofd_unlock(file.fd)


def _make_directories(path: str) -> None:
    """Create a directory and the missing ones above it, durably."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_directories(parent)
        with needed(path):
            _make_directory(path, _PRIVATE)
            _sync_directory(parent)


def _names(directory: str) -> Sequence[str]:
    with suppress(OSError):
        return os.listdir(directory)
    return []


def _slots(directory: str) -> Sequence[Slot]:
    found = []
    for number in sorted(int(name) for name in _names(directory) if _NUMBER.fullmatch(name)):
        state, address = StateDirectory(os.path.join(directory, str(number))), None
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            note = read_note(os.path.join(state.root, _SOURCE))
            address = Address(str(note["url"]), str(note["endpoint"]))
        if address is not None and _directory(address) != directory:
            address = None
        found.append(Slot(address, number, state, _holder_of(state)))
    return found


def _holder_of(state: StateDirectory) -> Holder | None:
    """Return who holds the lock of a directory, without a name if that cannot be determined; None if nobody does."""
    try:
        return find_holder(state)
    except SourceError:  # it is of another user
        return Holder()
