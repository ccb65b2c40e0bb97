"""The state directory: `.shardfs`, in the source if that is a local directory, else in a slot.

It contains the lock, the write-ahead log ("journal"), the conflict log, and files that are being written.

The lock allows one writing mount at a time. It is an open file description lock, so it ends with the process, however
that ends. The lock file says who holds it, which counts where locks do not reach other hosts.
"""

import errno
import json
import os
import shlex
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from shardfs.dataset.hierarchy import DOCUMENT
from shardfs.dataset.maintenance.walk import holds_chunks
from shardfs.errors import ShardfsError, SourceError
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.metadata import ArrayMetadata, parse_document
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import READ, SYSCALLS, is_local, is_ofd_locked, ofd_lock, ofd_unlock

DIRECTORY: Final = ".shardfs"

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of a file system without locks, such as NFS without its lock service."""


@dataclass(frozen=True)
class StateDirectory:
    """`.shardfs` in the directory at the absolute path *root*: the source itself, or a slot of a remote one.

    With *opened*, the descriptor of that directory, all paths lead through it, because *root* may be another directory
    by then.
    """

    # Keys in the store: of scratch files, of chunk files of arrays that are being created, of large files being
    # written, and of what was cut off torn shards.
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
        """The directory for large files that are being written."""
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
        return self.has_pending() or self.has_conflicts()

    def has_pending(self) -> bool:
        """Whether there may be changes that the next mount commits; conflicts are not."""
        return _has_segments(self.journal)

    def has_conflicts(self) -> bool:
        """Whether there may be changes in the conflict log."""
        return _has_segments(self.conflicts)


@contextmanager
def needed(path: str, way_out: str = "") -> Iterator[None]:
    """Turn an operating system error in the block into a `SourceError` that names *path*.

    *way_out* is added for a file system without locks.
    """
    try:
        yield
    except OSError as error:
        why = f"{error.strerror}{way_out if error.errno in _NO_LOCKS else ''}"
        if error.errno == errno.EACCES:
            why += f"; you need permission to write in {os.path.dirname(shown(path))}"
        raise SourceError(f"{shown(path)} cannot be created, which is needed to write: {why}") from None


def make_directory(path: str) -> None:
    """Create a directory of our own, unless it exists.

    A link is refused: it may come with a dataset and lead anywhere.
    """
    with needed(path):
        with suppress(FileExistsError):
            os.mkdir(path, mode=0o700)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise SourceError(f"{shown(path)}, which is needed to write, is not a directory; move it away")


def sync_directory(path: str) -> None:
    """Make the names in a directory durable; raises `SourceError`."""
    with needed(path):
        directory = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        SYSCALLS.sync_directory(directory.fd)


def shown(path: str) -> str:
    """Return one of our paths, which may lead through a descriptor, in readable form."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)


def _has_segments(directory: str) -> bool:
    with suppress(OSError):
        return any(name.endswith(".journal") for name in os.listdir(directory))
    return False


_HOLDER_NBYTES: Final = 512


class Holder(NamedTuple):
    """Who holds a lock, as far as that is known."""

    pid: int | None = None
    host: str | None = None

    def __str__(self) -> str:
        if self.host is None:
            return "another process"
        return (
            f"process {self.pid} on {self.host}" if self.pid is not None else f"a process on {self.host} that has ended"
        )

    @classmethod
    def own(cls) -> "Holder":
        """Return how this process appears to others."""
        return cls(os.getpid(), socket.gethostname())

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is on another host, so that nobody here can tell whether it is alive."""
        return self.host is not None and self.host != socket.gethostname()


@contextmanager
def locked(state: StateDirectory) -> Iterator[StateDirectory]:
    """Hold the lock of a source on this machine; an empty state directory is removed at the end.

    Raises `SourceError` if another process writes to the same dataset, or to one around or within it; also if one of
    those has changes that are not in the store, which only a mount of that source may commit.
    """
    root = state.root
    file = try_lock(state)
    if file is None:
        raise SourceError(_refusal(f"{root} is", state, read_holder(state)))
    try:
        _require_in_place(state)
        for other in (*_ancestors(root), *_descendants(root)):
            _require_idle(root, StateDirectory(other))
        prepare(state)
        yield state
    finally:
        release(state, file)


def try_lock(state: StateDirectory) -> Descriptor | None:
    """Lock a directory of our own, which is created if it is missing; return the lock file.

    Returns None if another process has it: one that holds the lock, or one on another host where locks may not reach.
    Raises `SourceError` if the lock cannot be created.
    """
    with needed(state.lock, "; shardfs can only write to a file system with locks"):
        while True:
            make_directory(state.path)
            file = Descriptor(os.open(state.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            if not ofd_lock(file.fd):
                return None
            with suppress(OSError):
                if os.path.samestat(os.fstat(file.fd), os.stat(state.lock)):
                    break  # else whoever had it has removed it
        if read_holder(state).is_elsewhere and not _locks_reach(state):
            return None
        _write_holder(file.fd, Holder.own())
    return file


def release(state: StateDirectory, file: Descriptor, last: Holder | None = None) -> None:
    """Tidy a directory and release its lock, which then says who had it *last*, if anybody needs to know."""
    tidy(state, file)
    with suppress(OSError):
        _write_holder(file.fd, last or Holder())
    ofd_unlock(file.fd)


def find_holder(state: StateDirectory) -> Holder | None:
    """Return who holds the lock of a directory, as `try_lock` sees it; None if nobody does.

    Raises `SourceError` if that cannot be determined.
    """
    try:
        file = Descriptor(os.open(state.lock, READ))
        is_locked = is_ofd_locked(file.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot tell whether {state.root} is being written: {error.strerror}") from None
    holder = read_holder(state)
    return holder if is_locked or (holder.is_elsewhere and not _locks_reach(state)) else None


def _locks_reach(state: StateDirectory) -> bool:
    """Whether locks on the file system of a directory reach all hosts that have it mounted, as far as known."""
    try:
        directory = Descriptor(os.open(os.path.dirname(state.path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return False
    return is_local(directory.fd)


def _refusal(what: str, state: StateDirectory, holder: Holder) -> str:
    way_out = ", or wait for pack or unpack there"
    if holder.is_elsewhere:
        way_out = f". If that host or process is gone, remove {shown(state.lock)}"
    return f"{what} already being written by {holder}; unmount it there first{way_out}"


def prepare(state: StateDirectory) -> None:
    """Create the contents of a locked directory; raises `SourceError`."""
    for directory in (state.journal, state.conflicts, state.drafts):
        make_directory(directory)
    for directory in (state.path, os.path.dirname(state.path)):  # a journal is only durable in a durable directory
        sync_directory(directory)


def _require_in_place(state: StateDirectory) -> None:
    """Raise `SourceError` if another directory has the path of *state*: its surroundings are examined by path."""
    if state.opened is not None:
        with suppress(OSError):
            if os.path.samestat(os.stat(state.root), os.fstat(state.opened.fd)):
                return
        raise SourceError(f"{state.root} was moved away or replaced while it was opened; try again")


def _require_idle(root: str, other: StateDirectory) -> None:
    holder = find_holder(other)
    if holder is not None:
        raise SourceError(_refusal(f"{other.root}, which overlaps {root}, is", other, holder))
    if other.has_journal():
        raise SourceError(
            f"{other.root}, which overlaps {root}, has a journal of chunks that are not committed yet; "
            f"run `shardfs recover --apply {shlex.quote(other.root)}` first"
        )


def _write_holder(fd: int, holder: Holder) -> None:
    # Written by one call, always of the same length: others may read it at any time.
    os.pwrite(fd, json.dumps(holder._asdict()).encode().ljust(_HOLDER_NBYTES), 0)
    os.ftruncate(fd, _HOLDER_NBYTES)


def read_holder(state: StateDirectory) -> Holder:
    """Return who wrote that it has the lock, whether it still does or not; without a host if nobody did."""
    try:
        with open(os.open(state.lock, READ), "rb") as file:
            holder = json.loads(file.read(4096))
        pid, host = holder["pid"], holder["host"]
        return Holder(None if pid is None else int(pid), None if host is None else str(host))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Holder()


def _ancestors(root: str) -> Iterator[str]:
    path = root
    while (parent := os.path.dirname(path)) != path:
        path = parent
        if os.path.isdir(os.path.join(path, DIRECTORY)):
            yield path


def _descendants(root: str) -> Iterator[str]:
    """Yield the directories below *root* that contain a state directory; directories of chunks are not entered.

    A name like a chunk's may be an array: the levels of an image pyramid are `0`, `1` and so on.
    """
    pending = [root]
    while pending:
        path = pending.pop()
        with suppress(OSError), os.scandir(path) as entries:
            is_array = _is_array(path)
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) or (is_array and holds_chunks(entry.name)):
                    continue
                if entry.name != DIRECTORY:
                    pending.append(entry.path)
                elif path != root:
                    yield path


def _is_array(directory: str) -> bool:
    """Whether a directory has the document of an array; if that cannot be determined, it is treated as none."""
    try:
        with open(os.open(os.path.join(directory, DOCUMENT), READ), "rb") as file:
            return isinstance(parse_document(file.read(MAX_DOCUMENT_NBYTES + 1)), ArrayMetadata)
    except (OSError, ShardfsError):
        return False


def tidy(state: StateDirectory, file: Descriptor) -> None:
    """Remove empty parts of a directory locked by *file*, and the lock file if nothing else is left."""
    with suppress(OSError):
        if not os.path.samestat(os.fstat(file.fd), os.stat(state.lock)):
            return  # somebody removed our directory, and another process has created it again
        for directory, _, _ in os.walk(state.path, topdown=False):
            with suppress(OSError):
                if directory != state.path:
                    os.rmdir(directory)
        if os.listdir(state.path) == ["lock"]:
            os.unlink(state.lock)
            os.rmdir(state.path)
