"""The mounts of this machine, their daemons, and how commands talk to them.

The kernel has a table of mounts. A daemon keeps its latest figures in a nameless file, which is found among its file
descriptors, even if the daemon does not answer, or still commits after its mount is gone. Only its user and root can
see that file. A daemon answers requests through extended attributes of the root of its mount, which are not listed.

If a daemon is stopped or hangs, whoever asks it is stuck in the kernel, where nothing but an answer may wake it. So a
separate process asks, and is left behind in that case. If root asks, that process becomes the user of the mount,
because the kernel lets nobody else in.
"""

import errno
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shardfs.dataset.statistics import Snapshot
from shardfs.errors import UnfinishedError
from shardfs.fuse.progress import Progress
from shardfs.stores.base import Descriptor

FIGURES: Final = "user.shardfs.stats"
"""The figures of the mount, as JSON: a `Snapshot`."""

PID: Final = "user.shardfs.pid"
"""Process id of the daemon, for scripts that send it a signal."""

FLUSH: Final = "user.shardfs.flush"
"""Setting it commits everything that is pending; the call returns when that is in the shards."""

TIMEOUT: Final = 60.0
"""How many seconds to wait, by default, for a daemon that does not answer or makes no progress."""

_GET: Final = "sys.stdout.buffer.write(os.getxattr(*sys.argv[3:]))"
_SET: Final = "os.setxattr(*sys.argv[3:], b'')"
_PROGRAM: Final = """
import os, sys
uid, gid = map(int, sys.argv[1:3])
try:
    if os.geteuid() == 0 != uid:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    {}
except OSError as error:
    sys.exit(error.errno)
"""
_LOOK_SECONDS: Final = 1.0
_MOMENT_SECONDS: Final = 0.5

FIGURES_FILE: Final = "shardfs-figures"
FIGURES_NBYTES: Final = 2**16
"""Name and size of the file with the figures of a daemon."""

_FILESYSTEM: Final = "fuse.shardfs"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of *source* at *path*, dead or alive; unless it is *shared*, only the user *uid* may use it."""

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
        """Whose it is, and who else may use it: the end of a message for those who may not."""
        return (
            f"it belongs to {self.owner}; only {self.owner if self.uid == 0 else f'{self.owner} and root'} can use it"
        )


def user_name(uid: int) -> str:
    """Return the name of a user, or a substitute."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def list_mounts() -> list[Mount]:
    """Return the mounts that this process sees, those below others first."""
    found = []
    with open("/proc/self/mountinfo", newline="\n", errors="surrogateescape") as lines:
        for line in lines:
            place, _, rest = line.partition(" - ")
            kind, source, options = rest.removesuffix("\n").split(" ")  # a source may be empty, or contain tabs
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
    """Return the mount at *path*, the topmost if there are several."""
    return next((mount for mount in reversed(list_mounts()) if mount.path == path), None)


def list_daemons() -> Iterator[tuple[int, Snapshot]]:
    """Yield the daemons that this process may look at: process ids as seen from here, and latest figures."""
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            pid = int(name)
            figures = open_figures(pid)
            snapshot = None if figures is None else read_figures(figures)
            if snapshot is not None and _is_told_by(pid, snapshot):
                yield pid, snapshot


def _is_told_by(pid: int, snapshot: Snapshot) -> bool:
    """Whether a process is the daemon of these figures, rather than one that has the file open to read it."""
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
    """Return the process id, as seen from here, of the daemon with these figures; None if it cannot be seen."""
    if figures.pid_namespace == pid_namespace():
        return figures.pid
    wanted = (figures.pid_namespace, figures.pid)
    return next((pid for pid, seen in list_daemons() if (seen.pid_namespace, seen.pid) == wanted), None)


def pid_namespace() -> int:
    """Return an identifier of this process's PID namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def open_figures(pid: int) -> Descriptor | None:
    """Open the file with the figures of a daemon; None if the process is no daemon, or another user's."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{FIGURES_FILE} "):
                    return Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    return None


def read_figures(figures: Descriptor) -> Snapshot:
    """Return the latest snapshot in a file of figures; raises `ValueError` while it is being written."""
    return Snapshot.parse(os.pread(figures.fd, FIGURES_NBYTES, 0))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def id_of(directory: str) -> str:
    """Return an identifier of a directory on this machine."""
    status = os.stat(directory)
    return f"{status.st_dev}:{status.st_ino}"


def ask(mountpoint: str, timeout: float) -> Snapshot:
    """Return the figures of the mount at a path.

    Raises `OSError`, and `UnfinishedError` if the daemon does not answer for *timeout* seconds.
    """
    process = _start(_GET, mountpoint, FIGURES)
    try:
        answer = process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        _leave(process)
        raise UnfinishedError(_silence(mountpoint, timeout)) from None
    _check(process)
    try:
        return Snapshot.parse(answer)
    except ValueError:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO)) from None  # any user can mount something under our name


def flush(mountpoint: str, timeout: float, say: Callable[[str], None]) -> None:
    """Commit everything, however long that takes as long as the daemon answers; *say* is called with the progress.

    Raises `OSError`, and `UnfinishedError` if the daemon does not answer for *timeout* seconds.
    """
    process = _start(_SET, mountpoint, FLUSH)
    progress = Progress()
    try:
        while True:
            try:
                process.communicate(timeout=min(timeout, _LOOK_SECONDS))
                break
            except subprocess.TimeoutExpired:
                say(progress.tell(ask(mountpoint, timeout)))
    finally:
        if process.returncode is None:
            _leave(process)
    _check(process)


def explain(mountpoint: str, error: OSError) -> str:
    """Explain an error raised by `ask` or `flush`, with the way out if there is one."""
    mount = find_mount(os.path.abspath(mountpoint))
    if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        return f"its daemon died; mount again, or run: shardfs umount {shlex.quote(mountpoint)}"
    if mount is not None and os.geteuid() not in (0, mount.uid):
        # The kernel says that a mount is read-only before it looks whose mount it is.
        refusals = (errno.EACCES,) if mount.is_shared else (errno.EACCES, errno.EROFS)
        if error.errno in refusals:
            return mount.privacy
    return error.strerror or str(error)


def _silence(mountpoint: str, timeout: float) -> str:
    pid = find_daemon(mountpoint)
    wake, end = (f"`kill -CONT {pid}`", f"`kill -KILL {pid}`") if pid is not None else ("SIGCONT", "SIGKILL")
    return (
        f"{mountpoint} has not answered for {timeout:g} s: its daemon is stopped or hangs; {wake} wakes it, or {end} "
        "ends it, and leaves what was written in the journal, for the next mount with --write"
    )


def _start(call: str, mountpoint: str, name: str) -> "subprocess.Popen[bytes]":
    mount = find_mount(mountpoint)
    owner = (mount.uid, mount.gid) if mount is not None else (0, 0)
    return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
        [sys.executable, "-I", "-S", "-c", _PROGRAM.format(call), *map(str, owner), mountpoint, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _leave(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process; it may stay until its request is answered."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_MOMENT_SECONDS)


def _check(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode:
        number = process.returncode if process.returncode > 0 else errno.EINTR
        raise OSError(number, os.strerror(number))
