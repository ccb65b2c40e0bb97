"""Mount points: what is mounted where, whether a place can be mounted on, and unmounting."""

import errno
import os
import re
import select
import shutil
import stat
import subprocess
from pathlib import Path

from shardfs.errors import FuseUnavailableError, MountPointError, StoreError
from shardfs.fuse import control

_FILESYSTEM = "fuse.shardfs"
_MAX_STACKED = 16


def check_mount_point(mountpoint: str, source: str | None, cache: str | None) -> str:
    """Return the absolute path of an empty directory that can be mounted on.

    It lies apart from *source*, the path of what is to be mounted if that is on this machine, and from the directory
    *cache*, if there is one.  A dead mount that is there is detached.  Raises `MountPointError` with the way out.
    """
    if not mountpoint:
        raise MountPointError("MOUNTPOINT is empty; was a variable never set?")
    path = os.path.realpath(mountpoint)  # which asks nothing of what is mounted there
    status = _stat_alive(mountpoint, path)
    if not stat.S_ISDIR(status.st_mode):
        raise MountPointError(f"{mountpoint} is not a directory")
    if os.path.ismount(path):
        way_out = f"unmount it with: shardfs umount {mountpoint}" if is_shardfs(path) else "choose another place"
        raise MountPointError(f"{mountpoint} is a mount point already; {way_out}")
    if source is not None and (Path(path).is_relative_to(source) or Path(source).is_relative_to(path)):
        raise MountPointError(f"{mountpoint} and the source {source} lie one inside the other; choose another place")
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


def unmount(mountpoint: str) -> None:
    """Unmount, and return when the daemon is gone; raises `MountPointError`.

    Raises `StoreError` if it is unmounted, but not everything that was written could be brought into the shards.
    """
    path = os.path.realpath(mountpoint)
    if not is_shardfs(path):
        raise MountPointError(f"{mountpoint} is not a mount of shardfs")
    try:
        daemon = os.pidfd_open(int(os.getxattr(path, control.PID)))
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.ESRCH):
            raise MountPointError(f"{mountpoint} does not answer: {error.strerror}") from None
        _run_fusermount("-u", "-z", path)
        return
    unwritten = _flush(path)
    try:
        _run_fusermount("-u", path)
        poll = select.poll()
        poll.register(daemon, select.POLLIN)
        poll.poll()
    finally:
        os.close(daemon)
    if unwritten:
        raise StoreError(
            f"{mountpoint} is unmounted, but not everything is in the shards ({unwritten}): it stays in the journal, "
            "for the next mount with --write or `shardfs recover`"
        )


def _flush(path: str) -> str | None:
    """Commit what is pending on a mount that may be written to; returns why that failed."""
    try:
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            os.setxattr(path, control.FLUSH, b"")
    except PermissionError:
        pass  # somebody else's mount; the daemon does it anyway
    except OSError as error:
        return error.strerror
    return None


def is_shardfs(path: str) -> bool:
    """Whether *path* is where a shardfs, dead or alive, is mounted."""
    return any(point == path and kind == _FILESYSTEM for point, kind in _mounts())


def _stat_alive(mountpoint: str, path: str) -> os.stat_result:
    """Return the state of *path*, after detaching the dead mounts that are there."""
    for _ in range(_MAX_STACKED):
        try:
            os.statvfs(path)  # unlike the attributes, the kernel remembers no answer of a daemon that died
            return os.stat(path)
        except FileNotFoundError:
            raise MountPointError(f"{mountpoint} does not exist; create it with: mkdir -p {mountpoint}") from None
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise MountPointError(f"{mountpoint} cannot be used: {error.strerror}") from None
        _run_fusermount("-u", "-z", path)
    raise MountPointError(f"{mountpoint} is under more than {_MAX_STACKED} dead mounts")


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
        way_out = f"; `fuser -vm {arguments[-1]}` tells who uses it" if "busy" in message else ""
        raise MountPointError(f"{arguments[-1]} cannot be unmounted: {message}{way_out}")
