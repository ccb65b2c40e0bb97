"""What `stat` tells of a file of the tree."""

import stat
from typing import Final, NamedTuple

from shardfs.stores.base import Stat

ABSENT: Final = 0
"""Inode number of a name that stands for nothing."""

_PERMISSIONS: Final = 0o777


class Attributes(NamedTuple):
    """Attributes of one inode; *ttl* is for how many seconds the kernel may believe them.  Times are in ns."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    ttl: float


def stored_attributes(ino: int, status: Stat, ttl: float, *, size: int | None = None) -> Attributes:
    """Return the attributes of something that is stored, as the store has them; *size* replaces its own."""
    return Attributes(
        ino,
        status.mode,
        1 if stat.S_ISDIR(status.mode) else status.nlink,  # the links of a shown directory are not counted
        status.uid,
        status.gid,
        status.rdev,
        status.size if size is None else size,
        status.atime_ns,
        status.mtime_ns,
        status.ctime_ns,
        ttl,
    )


def chunk_attributes(ino: int, shard: Stat, nbytes: int, ttl: float) -> Attributes:
    """Return the attributes of a chunk file: owner, mode and times of its shard."""
    mode = stat.S_IFREG | shard.mode & _PERMISSIONS
    return Attributes(
        ino, mode, 1, shard.uid, shard.gid, 0, nbytes, shard.atime_ns, shard.mtime_ns, shard.ctime_ns, ttl
    )


def absent(ttl: float) -> Attributes:
    """Return what answers for a name that stands for nothing, for the next *ttl* seconds."""
    return Attributes(ABSENT, 0, 0, 0, 0, 0, 0, 0, 0, 0, ttl)


def unreadable(shard: Stat | None) -> Attributes:
    """Return what a listing says of a chunk that cannot be read: valid for no time, so that `stat` asks, and fails."""
    if shard is None:
        return Attributes(ABSENT, stat.S_IFREG, 1, 0, 0, 0, 0, 0, 0, 0, 0.0)
    return chunk_attributes(ABSENT, shard, 0, 0.0)
