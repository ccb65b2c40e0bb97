"""The state directory of a session, its slot: `.shardfs/NUMBER`, in the source or in what stands for a remote one.

It contains the lock of the session, its journal, its conflict journal, and files that are being written.

Other programs and users walk a source while it is written. So whoever can reach `.shardfs` may enter it, list its
directories, and read who has a slot. What programs wrote is in files that only the user who mounts can read.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from shardfs.errors import SourceError, UsageError, first_of
from shardfs.stores.base import Descriptor
from shardfs.stores.kept_files import KeptFile, KeptFiles
from shardfs.stores.local.syscalls import SYSCALLS, WALK, status_now

DIRECTORY: Final = ".shardfs"
NAMES: Final = (DIRECTORY, *(f"{DIRECTORY}.{number}" for number in range(1, 16)))
"""The names that directories of slots have: the first that this user may use, as the ones before may be of others."""

OTHERS_WRITE: Final = 0o022
"""The bits of a mode that let others than the owner write."""

_LISTED: Final = 0o755
_PRIVATE: Final = 0o700
"""Modes of directories: within a source, and of the user's own."""

SEGMENT: Final = ".journal"
"""How names of the segments of a journal end."""

PENDING: Final = "chunks that may not be committed yet"

_STAGED: Final = "staged"

_MAX_NAMED: Final = 3  # files that are not stored

GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
"""The errors of a directory that is not there; the last is what NFS says if another host removed it meanwhile."""

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of a file system without locks, such as NFS without its lock service."""


@dataclass(frozen=True)
class StateDirectory:
    """The slot *key* in the directory at the absolute path *root*: the source itself, or what stands for a remote one.

    With *opened*, the descriptor of that directory, all paths lead through it, because *root* may be another directory
    by then.
    """

    root: str
    key: str = f"{DIRECTORY}/0"
    opened: Descriptor | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str:
        """Its absolute path, which leads to the same directory for as long as *opened* is open."""
        return os.path.join(self.root if self.opened is None else self.opened.path, self.key)

    @property
    def scratch_key(self) -> str:
        """The key, in the store, of the directory of scratch files."""
        return f"{self.key}/scratch"

    @property
    def staged_key(self) -> str:
        """The key of the directory of orphan chunks, which came before the document of their array."""
        return f"{self.key}/{_STAGED}"

    @property
    def drafts_key(self) -> str:
        """The key of the directory of files that have no name yet, large write buffers among them."""
        return f"{self.key}/drafts"

    @property
    def torn_key(self) -> str:
        """The key of the directory of what was cut off torn shards."""
        return f"{self.key}/torn"

    @property
    def journal(self) -> str:
        """The directory of the journal."""
        return os.path.join(self.path, "journal")

    @property
    def conflicts(self) -> str:
        """The directory of the conflict journal."""
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
    def asked(self) -> str:
        """The directory of requests of other sessions to commit what is pending."""
        return os.path.join(self.path, "asked")

    @property
    def lock(self) -> str:
        """The lock file of the session."""
        return os.path.join(self.path, "lock")

    def has_journal(self) -> bool:
        """Whether there may be published changes that are not in the store."""
        return self.has_pending() or _has_segments(self.conflicts)

    def has_pending(self) -> bool:
        """Whether there may be changes that the next mount commits; conflicts are not."""
        return _has_segments(self.journal)

    def is_left(self) -> bool:
        """Whether it may have any file but the lock file and requests: what cannot be listed may."""
        unlisted: list[OSError] = []
        for path, _, names in os.walk(self.path, onerror=unlisted.append):
            is_known = path == self.asked or names == (["lock"] if path == self.path else [])
            if not is_known and names:
                return True
        return any(error.errno not in GONE for error in unlisted)

    def left(self) -> list[str]:
        """Say what programs wrote that may not be in the store."""
        files = [file.key for file in self.kept_files()]
        remains = [PENDING] if self.has_pending() else []
        remains += ["conflicts"] if _has_segments(self.conflicts) else []
        remains += ["chunk files that came before the document of their array"] if self._has_staged() else []
        remains += [f"{first_of(files, _MAX_NAMED)}, which {'are' if files[1:] else 'is'} not stored"] if files else []
        return remains

    def _has_staged(self) -> bool:
        return any(names for _, _, names in os.walk(os.path.join(self.path, _STAGED)))

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


def make_directory(path: str, mode: int = _LISTED) -> None:
    """Create a directory of our own, unless it exists, with *mode* whatever the umask.

    A link is refused, with `SourceError`: it may come with a dataset and lead anywhere.
    """
    try:
        status = status_now(path)  # a full disk may refuse even to create what is there
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(path, _PRIVATE)
            created = Descriptor(os.open(path, WALK))
            with suppress(OSError):  # who shares the directory above by its group shares this one
                os.chown(created.path, -1, os.stat(os.path.dirname(path)).st_gid)
            os.chmod(created.path, mode)
        status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{shown(path)}, which is needed to write, is not a directory; move it away")


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    directory = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    SYSCALLS.sync_directory(directory.fd)


def shown(path: str) -> str:
    """Return one of our paths, which may lead through a descriptor, in readable form."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)


def _has_segments(directory: str) -> bool:
    """Whether a journal has anything in it; raises `SourceError` if that cannot be determined."""
    try:
        return any(name.endswith(SEGMENT) for name in os.listdir(directory))
    except OSError as error:
        if error.errno in GONE:
            return False
        raise SourceError(f"{shown(directory)} cannot be read: {error.strerror}") from None


def prepare(state: StateDirectory) -> None:
    """Create the contents of a locked slot; raises `SourceError`."""
    with needed(state.path):
        for directory in (state.journal, state.conflicts, state.drafts):
            make_directory(directory)
        # Whoever may have a slot here may ask for a commit, and nobody may remove what another one asked for.
        above = os.stat(os.path.dirname(state.path)).st_mode
        make_directory(state.asked, stat.S_IMODE(above))
        for directory in (state.path, os.path.dirname(state.path)):  # a journal is only durable in a durable directory
            sync_directory(directory)


def make_directories(path: str) -> None:
    """Create a directory and the missing ones above it, durably."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        make_directories(parent)
        with needed(path):
            make_directory(path, _PRIVATE)
            sync_directory(parent)


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
