"""What `stat` tells of a file of the tree."""

import stat
from typing import Final, NamedTuple

from shardfs.stores.base import Kind, Stat

ABSENT: Final = 0
"""Inode number of a name that stands for nothing."""


class Attributes(NamedTuple):
    """Attributes of one inode: its own number and size in bytes, the rest as *status* has it.

    *ttl* is for how many seconds the kernel may cache them.  Files that share a status share the very same object;
    *mtime_ns* is there for those that have a modification time of their own.
    """

    ino: int
    size: int
    ttl: float
    status: Stat
    mtime_ns: int | None = None

    @property
    def own_mtime_ns(self) -> int:
        """The modification time."""
        return self.status.mtime_ns if self.mtime_ns is None else self.mtime_ns


class Owner(NamedTuple):
    """Who asks: the owner of what is new."""

    uid: int
    gid: int


NOTHING: Final = Stat(Kind.SPECIAL, 0, None, None, 0, 0, 0, 0, 0, 0, 0, 0)
UNKNOWN_FILE: Final = NOTHING._replace(kind=Kind.FILE, mode=stat.S_IFREG, nlink=1)


def new_file(mode: int, uid: int, gid: int) -> Stat:
    """Return the status of a file that is stored nowhere yet."""
    return UNKNOWN_FILE._replace(mode=stat.S_IFREG | stat.S_IMODE(mode), uid=uid, gid=gid)


def absent(ttl: float) -> Attributes:
    """Return what answers for a name that stands for nothing, for the next *ttl* seconds."""
    return Attributes(ABSENT, 0, ttl, NOTHING)


def unreadable(shard: Stat | None) -> Attributes:
    """Return what a listing says of a chunk that cannot be read: valid for no time, so that `stat` asks, and fails."""
    return Attributes(ABSENT, 0, 0.0, shard or UNKNOWN_FILE)
