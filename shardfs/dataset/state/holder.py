"""Who has a lock: the note in a lock file, for people and for hosts that do not see each other's locks."""

import json
import math
import os
import shlex
import socket
import time
from contextlib import suppress
from typing import Final, NamedTuple

from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import NO_SPACE, READ, locks_reach_server, user_name

_NOTE_NBYTES: Final = 4096
_MAX_TEXT: Final = 255
"""The longest name of a host, a user or a door that is read: anybody may have written it."""
_MAX_NUMBER: Final = 2**40  # as a process or a time


class Holder(NamedTuple):
    """Who has a lock, as far as that is known: a process, its host and user, and what it does.

    *door* says how it writes (`mount`, `open`, `serve`, …), *mountpoint* where it has mounted the source, *since* when
    it began, in seconds since 1970. *kernel* identifies the mounted file system of the note in one running kernel, and
    *locks_reach* says whether its locks are kept by all hosts, as far as it is known.
    """

    pid: int | None = None
    host: str | None = None
    user: str | None = None
    mountpoint: str | None = None
    door: str | None = None
    since: float | None = None
    kernel: str | None = None
    locks_reach: bool | None = None

    def __str__(self) -> str:
        if self.host is None:
            return "another process"
        if self.pid is None:
            return f"a process on {self.host} that has ended"
        user = f" (user {self.user})" if self.user is not None else ""
        mounted = f", which has it mounted at {self.mountpoint}" if self.mountpoint is not None else ""
        return f"process {self.pid} on {self.host}{user}{mounted}"

    @classmethod
    def here(cls, fd: int, door: str | None = None, mountpoint: str | None = None) -> "Holder":
        """Return this process, which has the lock file *fd*.

        It writes by *door*, and mounts the source at *mountpoint*, or not at all.
        """
        user = user_name(os.geteuid())
        who = cls(os.getpid(), socket.gethostname(), user, mountpoint, door, time.time(), kernel_of(fd))
        return who._replace(locks_reach=locks_reach_server(fd))

    def flush_command(self) -> str | None:
        """Return the command that commits what is pending in its mount, if it is a mount on this host."""
        if self.mountpoint is None or self.is_elsewhere:
            return None
        return shlex.join(["shardfs", "flush", self.mountpoint])

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is on another host: if its lock is not seen there, nobody here can tell whether it is alive."""
        return self.host is not None and self.host != socket.gethostname()


def write_holder(fd: int, holder: Holder) -> None:
    """Note who has the lock, as far as there is room, in the file and on the disk: the lock counts, not the note."""
    note = json.dumps(holder._asdict()).encode()
    if len(note) > _NOTE_NBYTES:
        note = json.dumps(holder._replace(mountpoint=None)._asdict()).encode()
    try:
        # Written by one call, always of the same length: others may read it at any time.
        os.pwrite(fd, note.ljust(_NOTE_NBYTES), 0)
        os.ftruncate(fd, _NOTE_NBYTES)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        with suppress(OSError):
            os.ftruncate(fd, 0)  # else it might name a process that has ended


def read_holder(path: str) -> Holder:
    """Return who wrote into the lock file at *path* that it has the lock, whether it still does or not.

    It is without a host if nobody did. Names are of bounded length, but may have any characters.
    """
    try:
        file = Descriptor(os.open(path, READ))
        note = json.loads(os.read(file.fd, _NOTE_NBYTES))
        pid, since = note["pid"], note.get("since")
        texts = (None if note.get(name) is None else str(note[name]) for name in ("host", "user", "door"))
        host, user, door = (None if text is None else text[:_MAX_TEXT] for text in texts)
        mountpoint = None if note.get("mountpoint") is None else str(note["mountpoint"])
        since, reach = None if since is None else float(since), note.get("locks_reach")
        if since is not None and not (math.isfinite(since) and 0 <= since < _MAX_NUMBER):
            since = None
        kernel = None if note.get("kernel") is None else str(note["kernel"])
        reach = None if reach is None else bool(reach)
        pid = None if pid is None else int(pid)
        if pid is not None and not 0 < pid < _MAX_NUMBER:
            return Holder()
        return Holder(pid, host, user, mountpoint, door, since, kernel, reach)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Holder()


def kernel_of(fd: int) -> str | None:
    """Return what identifies the mounted file system of a file in the running kernel; None if that is unknown.

    Who has the same sees the same locks, whatever host name a container gave it.
    """
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}:{os.fstat(fd).st_dev}"
    return None
