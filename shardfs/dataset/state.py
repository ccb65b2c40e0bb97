"""The state directory: `.shardfs`, in the source if that is a directory of this machine, else in a slot.

It has the lock, the write-ahead log ("journal"), the conflict log, and files that are being written.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

from shardfs.errors import SourceError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import Syscalls

DIRECTORY: Final = ".shardfs"

NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What a file system without locks says, such as NFS without its lock service."""


@dataclass(frozen=True)
class StateDirectory:
    """`.shardfs` in the directory at the absolute path *root*: the source itself, or a slot of a remote one.

    With *opened*, the descriptor of that directory, all paths lead through it: *root* may be another directory's
    meanwhile.
    """

    # Keys in the store of names beside chunks, chunk files of arrays that are being made, large files that are being
    # written, and what was cut off torn shards.
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
        """The directory of the journal of changes that were put aside."""
        return os.path.join(self.path, "conflicts")

    @property
    def drafts(self) -> str:
        """The directory for large files that are being written."""
        return os.path.join(self.path, "drafts")

    @property
    def spools(self) -> str:
        """The directory for files that are written to a remote store, and those that it does not have."""
        return os.path.join(self.path, "spools")

    @property
    def lock(self) -> str:
        """The file that is locked by the process that writes."""
        return os.path.join(self.path, "lock")

    def has_journal(self) -> bool:
        """Whether there may be changes that were published and are not in the store."""
        return self.has_pending() or self.has_conflicts()

    def has_pending(self) -> bool:
        """Whether there may be some that the next mount brings there; those that were put aside are not."""
        return _has_segments(self.journal)

    def has_conflicts(self) -> bool:
        """Whether there may be changes that were put aside."""
        return _has_segments(self.conflicts)


@contextmanager
def needed(path: str, way_out: str = "") -> Iterator[None]:
    """Turn an error of the operating system, in the block, into a `SourceError` that names *path*."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror}{way_out if error.errno in NO_LOCKS else ''}"
        if error.errno == errno.EACCES:
            why += f"; you need permission to write in {os.path.dirname(shown(path))}"
        raise SourceError(f"{shown(path)} cannot be created, which is needed to write: {why}") from None


def make_directory(path: str) -> None:
    """Have a directory of our own; a link, which may come with a dataset and lead anywhere, is none."""
    with needed(path):
        with suppress(FileExistsError):
            os.mkdir(path, mode=0o700)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise SourceError(f"{shown(path)}, which is needed to write, is not a directory; move it away")


def sync_directory(path: str) -> None:
    """Make the names in a directory durable; raises `SourceError`."""
    with needed(path):
        directory = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        Syscalls().sync_directory(directory.fd)


def shown(path: str) -> str:
    """Return a path of ours, which may lead through a descriptor, as people know it."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)


def _has_segments(directory: str) -> bool:
    with suppress(OSError):
        return any(name.endswith(".journal") for name in os.listdir(directory))
    return False
