"""The mounts of this machine, their daemons, and how commands talk to them.

The kernel has a table of mounts. A daemon keeps its latest metrics in a nameless file, which is found among its file
descriptors, even if the daemon does not answer, or still commits after its mount is gone; who has it open can read it
after the end of the daemon too. Only its user and root can see that file. A daemon answers requests through extended
attributes of the root of its mount, which are not listed.

If a daemon is stopped or hangs, whoever asks it is stuck in the kernel, where nothing but an answer may wake it. So a
separate process asks, and is left behind in that case. If root asks, that process becomes the user of the mount,
because the kernel lets nobody else in.
"""

import errno
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.errors import UnfinishedError
from shardfs.fuse.progress import CommitProgress
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import user_name

METRICS: Final = "user.shardfs.stats"
"""The metrics of the mount, as JSON: a `StatisticsSnapshot`."""

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

METRICS_FILE: Final = "shardfs-metrics"
METRICS_NBYTES: Final = 2**16
"""Name and size of the file with the metrics of a daemon."""

_FILESYSTEM: Final = "fuse.shardfs"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class ListedMount:
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


def list_mounts() -> list[ListedMount]:
    """Return the mounts that this process sees, those below others first."""
    daemons = []
    with open("/proc/self/mountinfo", newline="\n", errors="surrogateescape") as lines:
        for line in lines:
            fields, _, rest = line.partition(" - ")
            kind, source, options = rest.removesuffix("\n").split(" ")  # a source may be empty, or contain tabs
            if kind == _FILESYSTEM:
                named = dict(option.partition("=")[::2] for option in options.split(","))
                daemons.append(
                    ListedMount(
                        _unescaped(fields.split(" ")[4]),
                        _unescaped(source),
                        int(named.get("user_id", 0)),
                        int(named.get("group_id", 0)),
                        "rw" in named,
                        "allow_other" in named,
                    )
                )
    return daemons


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def find_mount(path: str) -> ListedMount | None:
    """Return the mount at *path*, the topmost if there are several."""
    return next((mount for mount in reversed(list_mounts()) if mount.path == path), None)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that this process may look at: its process id as seen from here, and the file with its metrics."""

    pid: int
    file: Descriptor

    @property
    def inode(self) -> int:
        """The number of its file, which no other daemon has."""
        return os.fstat(self.file.fd).st_ino

    def latest(self) -> StatisticsSnapshot | None:
        """Return its latest metrics, also after its end; None while they are being written, or if they are none."""
        with suppress(OSError, ValueError):
            return StatisticsSnapshot.parse(os.pread(self.file.fd, METRICS_NBYTES, 0))
        return None

    def is_near(self) -> bool:
        """Whether it sees the same mounts as this process."""
        with suppress(OSError):
            return os.path.samestat(os.stat(f"/proc/{self.pid}/ns/mnt"), os.stat("/proc/self/ns/mnt"))
        return False


def list_daemons() -> Iterator[Daemon]:
    """Yield the daemons that this process may look at."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or belongs to another user
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                with suppress(OSError):
                    # Other processes have it open only to read it.
                    is_own = os.lstat(path).st_mode & stat.S_IWUSR
                    if is_own and os.readlink(path).startswith(f"/memfd:{METRICS_FILE} "):
                        yield Daemon(int(pid), Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC)))


def find_daemon(path: str, metrics: StatisticsSnapshot | None) -> Daemon | None:
    """Return the daemon that answered with these metrics, or, if there is no answer, that of a mount at *path*.

    None if this process may not look at it.
    """
    for daemon in list_daemons():
        if metrics is not None and metrics.file is not None:
            is_it = daemon.inode == metrics.file
        else:
            latest = daemon.latest()
            is_it = latest is not None and latest.mountpoint == path and daemon.is_near()
        if is_it:
            return daemon
    return None


def ask(mountpoint: str, timeout: float) -> StatisticsSnapshot:
    """Return the metrics of the mount at a path.

    Raises `OSError`, and `UnfinishedError` if the daemon does not answer for *timeout* seconds.
    """
    process = _start(_GET, mountpoint, METRICS)
    try:
        answer = process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        _leave(process)
        raise UnfinishedError(_silence(mountpoint, timeout)) from None
    _check(process)
    try:
        return StatisticsSnapshot.parse(answer)
    except ValueError:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO)) from None  # any user can mount something under our name


def flush(mountpoint: str, timeout: float, report: Callable[[str], None]) -> None:
    """Commit everything, however long that takes as long as the daemon answers; *report* is called with the progress.

    Raises `OSError`, and `UnfinishedError` if the daemon does not answer for *timeout* seconds.
    """
    process = _start(_SET, mountpoint, FLUSH)
    progress = CommitProgress()
    try:
        while True:
            try:
                process.communicate(timeout=min(timeout, _LOOK_SECONDS))
                break
            except subprocess.TimeoutExpired:
                report(progress.describe(ask(mountpoint, timeout)))
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
    daemon = find_daemon(mountpoint, None)
    wake, end = (f"`kill -{name} {daemon.pid}`" if daemon else f"SIG{name}" for name in ("CONT", "KILL"))
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
