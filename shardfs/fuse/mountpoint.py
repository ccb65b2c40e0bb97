"""Mount points: what is mounted where, whether a place can be mounted on, and unmounting."""

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from shardfs.dataset.state import StateDirectory
from shardfs.errors import FuseUnavailableError, MountPointError, ShardfsError, UnfinishedError
from shardfs.fuse import control
from shardfs.fuse.ending import Ending
from shardfs.stores.local.openat import open_directory

_FILESYSTEM = "fuse.shardfs"
_MAX_STACKED = 16
_PATIENCE = 5.0
"""Seconds: for how long who is about to mount asks a daemon that is at the place."""


def check_mount_point(mountpoint: str, source: str | None, cache: str | None) -> str:
    """Return the absolute path of an empty directory that can be mounted on.

    It lies apart from *source*, the path of what is to be mounted if that is on this machine, and from the directory
    *cache*, if there is one.  A dead mount that is there is detached.  Raises `MountPointError` with the way out.
    """
    if not mountpoint:
        raise MountPointError("MOUNTPOINT is empty; was a variable never set?")
    path = place_of(mountpoint)
    if source is not None and (Path(path).is_relative_to(source) or Path(source).is_relative_to(path)):
        raise MountPointError(f"{mountpoint} and the source {source} lie one inside the other; choose another place")
    status = _stat_alive(mountpoint, path)
    if not stat.S_ISDIR(status.st_mode):
        raise MountPointError(f"{mountpoint} is not a directory")
    if os.path.ismount(path):
        raise MountPointError(f"{mountpoint} is a mount point already; choose another place")
    if cache is not None and Path(os.path.realpath(cache)).is_relative_to(path):
        raise MountPointError(f"the cache {cache} lies in {mountpoint}, where the mount would hide it")
    try:
        if os.listdir(path):
            raise MountPointError(
                f"{mountpoint} is not empty, and a mount would hide what is there; choose another place"
            )
    except PermissionError:
        raise MountPointError(f"{mountpoint} cannot be read: permission denied") from None
    return path


def check_fuse() -> None:
    """Raise `FuseUnavailableError`, with the way out, if this machine cannot mount."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise FuseUnavailableError(
            "/dev/fuse does not exist; load the module with: modprobe fuse (in a container: --device /dev/fuse)"
        ) from None
    except OSError as error:
        raise FuseUnavailableError(
            f"/dev/fuse cannot be opened: {error.strerror}; ask for access to it (`shardfs refs` needs none)"
        ) from None
    _fusermount()


def unmount(mountpoint: str, timeout: float = control.TIMEOUT, say: Callable[[str], None] = lambda _: None) -> None:
    """Unmount, and return when everything is in the shards and the daemon is gone; *say* is told what is waited for.

    Where mounts lie one over the other, all of them go.  Raises `MountPointError` if that cannot be, and nothing was
    changed; `StoreError` if it is unmounted, but not everything could be brought into the shards; `UnfinishedError` if
    the daemon does not answer, gets nothing done for *timeout* seconds, or writes what cannot be seen from here.
    """
    path = place_of(mountpoint)
    count = _count(path)
    if not count:
        raise MountPointError(f"{mountpoint} is not a mount of shardfs")
    for _ in range(count):
        _unmount_upper(path, timeout, say)


def _unmount_upper(path: str, timeout: float, say: Callable[[str], None]) -> None:
    """Unmount what lies on top at *path*."""
    try:
        daemon = control.Daemon.of(path, timeout)
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            raise MountPointError(f"{path} does not answer: {error.strerror}") from None
        # It died, or ends at this moment, or somebody cut the connection and it commits still.
        with ExitStack() as stack:
            pid = control.find_daemon(path)
            ending = Ending(path, None if pid is None else _open_process(pid, stack), None, None)
            with suppress(MountPointError) if _count(path) == 0 else nullcontext():
                _run_fusermount("-u", "-z", path)
            ending.wait(timeout, say)
        return
    with ExitStack() as stack:
        is_near = daemon.namespace == control.pid_namespace()  # else its number is another process's here
        process = _open_process(daemon.pid, stack) if is_near else None
        ending = Ending(path, process, daemon.log, _state_of(daemon), source=daemon.source)
        _run_fusermount("-u", path)
        ending.wait(timeout, say)
        ending.check()


def _open_process(pid: int, stack: ExitStack) -> int | None:
    """Return a descriptor of a process, None if it has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stack.callback(os.close, process)
    return process


def _state_of(daemon: control.Daemon) -> StateDirectory | None:
    """Return the directory that a daemon writes in, by its descriptor; None if there is none that can be read here.

    A daemon in a container may see another directory under that path.
    """
    if daemon.source is None:
        return None
    with suppress(ShardfsError, OSError):
        opened = open_directory(daemon.source)
        state = StateDirectory(daemon.source, opened)
        os.listdir(state.path)
        if daemon.source_id in (None, control.id_of(opened.path)):
            return state
    return None


def place_of(mountpoint: str) -> str:
    """Return the absolute path of a mount point without asking what is mounted there, which may never answer."""
    parent, name = os.path.split(os.path.abspath(mountpoint))
    path = os.path.join(os.path.realpath(parent), name)
    return path if is_shardfs(path) else os.path.realpath(mountpoint)


def is_shardfs(path: str) -> bool:
    """Whether *path* is where a shardfs, dead or alive, is mounted."""
    return _count(path) > 0


def _count(path: str) -> int:
    """Return how many shardfs are mounted at *path*, one over the other."""
    return sum(point == path and kind == _FILESYSTEM for point, kind in _mounts())


def _stat_alive(mountpoint: str, path: str) -> os.stat_result:
    """Return the state of *path*, after detaching the dead mounts that are there; no shardfs is there then."""
    for _ in range(_MAX_STACKED):
        try:
            if is_shardfs(path):
                _require_dead(mountpoint, path)
            os.statvfs(path)  # unlike the attributes, the kernel remembers no answer of a daemon that died
            return os.stat(path)
        except FileNotFoundError:
            raise MountPointError(f"{mountpoint} does not exist; create it with: mkdir -p {mountpoint}") from None
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise MountPointError(f"{mountpoint} cannot be used: {error.strerror}") from None
        _run_fusermount("-u", "-z", path)
    raise MountPointError(f"{mountpoint} is under more than {_MAX_STACKED} dead mounts")


def _require_dead(mountpoint: str, path: str) -> None:
    """Raise `MountPointError` if the daemon of the shardfs at *path* is alive, which may be stopped and not answer."""
    way_out = f"unmount it with: shardfs umount {mountpoint}"
    try:
        control.ask(path, control.PID, _PATIENCE)
    except UnfinishedError as silence:
        way_out = str(silence)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return
    raise MountPointError(f"{mountpoint} is a mount point already; {way_out}")


def _mounts() -> list[tuple[str, str]]:
    """Return place and type of every mount that this process sees, those on top last."""
    mounts = []
    with open("/proc/self/mountinfo", newline="\n", errors="surrogateescape") as lines:
        for line in lines:
            fields, _, rest = line.partition(" - ")
            place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
            mounts.append((place, rest.split()[0]))
    return mounts


def _fusermount() -> str:
    path = shutil.which("fusermount3")
    if path is None:
        raise FuseUnavailableError("fusermount3 is not installed; on Debian and Ubuntu: apt-get install fuse3")
    return path


def _run_fusermount(*arguments: str) -> None:
    done = subprocess.run([_fusermount(), *arguments], check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        message = done.stderr.strip() or f"fusermount3 ended with status {done.returncode}"
        way_out = ""
        if "busy" in message:
            way_out = (
                f"; it stays mounted and goes on: `fuser -vm {arguments[-1]}` tells who uses it, end that and try again"
            )
        raise MountPointError(f"{arguments[-1]} cannot be unmounted: {message}{way_out}")
