"""The lock of a source: one process at a time writes to a directory, or has a slot of a remote source.

It is an open file description lock, so it ends with the process, however that ends. The lock file says who holds it,
which counts where locks do not reach other hosts.
"""

import json
import os
import shlex
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Final, NamedTuple

from shardfs.dataset.node import DOCUMENT
from shardfs.dataset.state.directory import DIRECTORY, StateDirectory, make_directory, needed, prepare, shown
from shardfs.errors import ShardfsError, SourceError
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.metadata import ArrayMetadata, parse_document
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import (
    NO_SPACE,
    READ,
    WALK,
    WRITE,
    is_local,
    is_ofd_locked,
    ofd_lock,
    ofd_unlock,
    user_name,
)

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
            file = try_lock(state, mountpoint)
    except SourceError:
        _require_no_overlap(root)  # whose mount it is says more than what this user may not do beside it
        raise
    if file is None:
        raise SourceError(_refusal(f"{root} is", state, _read_holder(state)))
    try:
        _require_in_place(state)
        _require_no_overlap(root)
        prepare(state)
        yield state
    finally:
        tidy(state, file)
        with suppress(OSError):
            if os.listdir(state.path) == ["lock"] and is_lock_of(state, file):
                os.unlink(state.lock)
                os.rmdir(state.path)
            write_holder(file.fd, Holder())
        ofd_unlock(file.fd)


def try_lock(state: StateDirectory, mountpoint: str | None = None) -> Descriptor | None:
    """Lock a directory of our own, which is created if it is missing; return the lock file.

    Returns None if another process has it: one that holds the lock, or one on another host where locks may not reach.
    """
    while True:
        make_directory(state.path)
        try:
            file = _open_lock(state)
        except PermissionError:  # it is of another user
            if find_holder(state) is not None:
                return None
            raise SourceError(_left_by_another_user(state)) from None
        if not ofd_lock(file.fd):
            if is_ofd_locked(file.fd) or ofd_lock(file.fd):
                return None
            raise SourceError(
                f"{shown(state.lock)} is kept locked by a program that only reads it, which shardfs never does; "
                f"`fuser -v {shlex.quote(shown(state.lock))}` names it: end it and try again"
            )
        if is_lock_of(state, file):
            break  # else whoever had it has removed it
    if _other_host(state) is not None:
        return None
    write_holder(file.fd, Holder.here(mountpoint))
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


def is_lock_of(state: StateDirectory, file: Descriptor) -> bool:
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


def _require_in_place(state: StateDirectory) -> None:
    """Raise `SourceError` if another directory has the path of *state*: its surroundings are examined by path."""
    if state.opened is not None:
        with suppress(OSError):
            if os.path.samestat(os.stat(state.root), os.fstat(state.opened.fd)):
                return
        raise SourceError(f"{state.root} was moved away or replaced while it was opened; try again")


def _require_no_overlap(root: str) -> None:
    """Raise `SourceError` if a directory around *root* or within it is being written, or has a journal."""
    for other in (*states_above(root), *map(StateDirectory, _descendants(root))):
        _require_idle(root, other)


def states_above(root: str) -> Iterator[StateDirectory]:
    """Yield the state directories that the directories above *root* may have, the nearest first.

    Where everybody may create files, as in `/tmp`, those of other users count for nothing: they would keep everybody
    from working there.
    """
    for parent in map(str, PurePath(root).parents):
        state = StateDirectory(parent)
        with suppress(OSError):  # there is none
            directory, owner = os.stat(parent), os.lstat(state.path).st_uid
            is_public = directory.st_mode & stat.S_ISVTX and directory.st_mode & stat.S_IWOTH
            if not is_public or owner in (0, os.geteuid(), directory.st_uid, os.stat(root).st_uid):
                yield state


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


def write_holder(fd: int, holder: Holder) -> None:
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
        array = _array_at(path)
        names[:] = [name for name in names if name != DIRECTORY and not (array and array.has_shards_at(name))]


def _array_at(directory: str) -> ArrayMetadata | None:
    """Return what the document in a directory says of an array; None if there is none, or it cannot be read."""
    try:
        with open(os.open(os.path.join(directory, DOCUMENT), READ), "rb") as file:
            node = parse_document(file.read(MAX_DOCUMENT_NBYTES + 1))
    except (OSError, ShardfsError):
        return None
    return node if isinstance(node, ArrayMetadata) else None


def tidy(state: StateDirectory, file: Descriptor) -> None:
    """Remove the empty directories in a directory locked by *file*, unless the next mount needs them.

    The disk may be full then.
    """
    if is_lock_of(state, file) and not state.has_journal():
        for directory, _, _ in os.walk(state.path, topdown=False):
            with suppress(OSError):
                if directory != state.path:
                    os.rmdir(directory)
