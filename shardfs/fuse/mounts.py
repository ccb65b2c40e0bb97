"""The mounts of this machine and the daemons behind them: what the kernel says of the former, the latter of themselves.

A daemon keeps its latest figures in a file without a name, which is found among its descriptors: also when it does not
answer, and when its mount is gone and it still commits.  Only its user and root see that.
"""

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shardfs.dataset.statistics import Snapshot
from shardfs.stores.base import Descriptor

FIGURES_FILE: Final = "shardfs-figures"
FIGURES_NBYTES: Final = 2**16
"""Name and size of that file."""

_FILESYSTEM: Final = "fuse.shardfs"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of *source* at *path*, dead or alive; if it is not *shared*, nobody but the user *uid* may use it."""

    path: str
    source: str
    uid: int
    gid: int
    is_writable: bool
    is_shared: bool

    @property
    def owner(self) -> str:
        """The name of the user who mounted it."""
        return user_name(self.uid)

    @property
    def privacy(self) -> str:
        """Whose it is, and who else may touch it, as the end of a message to those who may not."""
        return (
            f"it belongs to {self.owner}; only {self.owner if self.uid == 0 else f'{self.owner} and root'} can use it"
        )


def user_name(uid: int) -> str:
    """Return the name of a user, or what stands for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def list_mounts() -> list[Mount]:
    """Return the mounts that this process sees, those that lie below others first."""
    found = []
    with open("/proc/self/mountinfo", newline="\n", errors="surrogateescape") as lines:
        for line in lines:
            place, _, rest = line.partition(" - ")
            kind, source, options = rest.removesuffix("\n").split(" ")  # a source may be empty, or have other blanks
            if kind == _FILESYSTEM:
                named = dict(option.partition("=")[::2] for option in options.split(","))
                found.append(
                    Mount(
                        _unescaped(place.split(" ")[4]),
                        _unescaped(source),
                        int(named.get("user_id", 0)),
                        int(named.get("group_id", 0)),
                        "rw" in named,
                        "allow_other" in named,
                    )
                )
    return found


def find_mount(path: str) -> Mount | None:
    """Return the mount at *path*, the upper one if there are several."""
    return next((mount for mount in reversed(list_mounts()) if mount.path == path), None)


def list_daemons() -> Iterator[tuple[int, Snapshot]]:
    """Yield the daemons that this process may look at: the process id as it is here, and the latest figures."""
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            pid = int(name)
            figures = open_figures(pid)
            snapshot = None if figures is None else read_figures(figures)
            if snapshot is not None and _is_told_by(pid, snapshot):
                yield pid, snapshot


def _is_told_by(pid: int, snapshot: Snapshot) -> bool:
    """Whether a process is the daemon of its figures, and not one that has them open to read them."""
    namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    return namespace == snapshot.pid_namespace and (namespace != pid_namespace() or pid == snapshot.pid)


def find_daemon(path: str) -> int | None:
    """Return the process id of the daemon of the mount at *path*."""
    return next((pid for pid, figures in list_daemons() if figures.mountpoint == path and is_near(pid)), None)


def is_near(pid: int) -> bool:
    """Whether a process sees the same mounts as this one."""
    with suppress(OSError):
        return os.path.samestat(os.stat(f"/proc/{pid}/ns/mnt"), os.stat("/proc/self/ns/mnt"))
    return False


def pid_of(figures: Snapshot) -> int | None:
    """Return the process id here of the daemon that told these figures; None if it cannot be seen from here."""
    if figures.pid_namespace == pid_namespace():
        return figures.pid
    wanted = (figures.pid_namespace, figures.pid)
    return next((pid for pid, seen in list_daemons() if (seen.pid_namespace, seen.pid) == wanted), None)


def pid_namespace() -> int:
    """Return what tells the PID namespace of this process from others."""
    return os.stat("/proc/self/ns/pid").st_ino


def open_figures(pid: int) -> Descriptor | None:
    """Open the file with the figures of a daemon; None if the process is none, or another user's."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{FIGURES_FILE} "):
                    return Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    return None


def read_figures(figures: Descriptor) -> Snapshot:
    """Return the latest snapshot in a file of figures; raises `ValueError` if it is being written."""
    return Snapshot.parse(os.pread(figures.fd, FIGURES_NBYTES, 0))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
