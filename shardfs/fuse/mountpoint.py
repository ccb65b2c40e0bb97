"""Mount points: what is mounted where, and whether a directory can be mounted on."""

import errno
import os
import shlex
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from shardfs.errors import BusyError, FuseUnavailableError, MountPointError, UnfinishedError
from shardfs.fuse import control
from shardfs.fuse.control import list_mounts
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import WALK, user_name

ONLY_ROOT_ALLOWS_OTHER: Final = (
    "only root can use --allow-other: /etc/fuse.conf has no user_allow_other; to let users share their mounts, as "
    "root: echo user_allow_other >> /etc/fuse.conf"
)

_ELSEWHERE: Final = "choose another directory"
_SYS_ADMIN = 1 << 21
_PATIENCE = 5.0
"""Seconds to wait for the answer of a daemon that is mounted there already."""


def check_mount_point(mountpoint: str, source: str | None, cache: str | None) -> str:
    """Return the absolute path of an empty directory that can be mounted on.

    It must be apart from *source*, the path of a local source, and from the directory *cache*. A dead mount there is
    detached. Raises `MountPointError` with the way out.
    """
    if "://" in mountpoint and not os.path.lexists(mountpoint):
        raise MountPointError(f"{mountpoint} is a URL, where nothing can be mounted; SOURCE comes before MOUNTPOINT")
    path = path_of(mountpoint)
    if source is not None and Path(path).is_relative_to(source):
        where = "is the source itself" if path == source else f"lies inside the source {source}"
        raise MountPointError(f"{mountpoint} {where}; choose an empty directory outside of it")
    if source is not None and Path(source).is_relative_to(path):
        raise MountPointError(f"{mountpoint} contains the source {source}, which a mount would hide; {_ELSEWHERE}")
    _detach_dead(mountpoint, path)
    status = _stat(mountpoint, path)
    if not stat.S_ISDIR(status.st_mode):
        raise MountPointError(f"{mountpoint} is not a directory; {_ELSEWHERE}")
    if os.path.ismount(path):
        raise MountPointError(f"{mountpoint} is a mount point already; {_ELSEWHERE}")
    if cache is not None and Path(os.path.realpath(cache)).is_relative_to(path):
        raise MountPointError(f"the cache {cache} lies in {mountpoint}, where the mount would hide it")
    try:
        if os.listdir(path):
            is_swapped = source is not None and not os.listdir(source)
            way_out = "if that is the source, give it before the mount point" if is_swapped else _ELSEWHERE
            raise MountPointError(f"{mountpoint} is not empty, and a mount would hide what is there; {way_out}")
    except PermissionError:
        raise MountPointError(f"{mountpoint} cannot be read: permission denied; {_ELSEWHERE}") from None
    # The conditions of fusermount3, which mounts as root for other users.
    is_others = status.st_mode & stat.S_ISVTX and status.st_uid != os.getuid()
    if os.geteuid() and (is_others or not os.access(path, os.W_OK)):
        raise MountPointError(
            f"{mountpoint} belongs to {user_name(status.st_uid)}, and users can mount only on a directory of their "
            f"own; {_ELSEWHERE}, or as root: chown {user_name(os.getuid())} {shlex.quote(path)}"
        )
    return path


def open_mount_point(path: str) -> Descriptor:
    """Open what `check_mount_point` returned, to be mounted on by this descriptor.

    Raises `MountPointError` if whoever may rename something in *path* has put a link there since: it may lead anywhere.
    """
    with suppress(OSError):
        directory = Descriptor(os.open(path, WALK))
        if os.readlink(directory.path) == path:
            return directory
    raise MountPointError(f"{path} is another directory by now, which was not checked; {_ELSEWHERE}")


def check_fuse(*, allow_other: bool = False) -> None:
    """Raise `FuseUnavailableError`, with the way out, if this machine cannot mount, or not for other users."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise FuseUnavailableError(
            "/dev/fuse does not exist; load the module with: modprobe fuse (in a container: --device /dev/fuse)"
        ) from None
    except OSError as error:
        raise FuseUnavailableError(
            f"/dev/fuse cannot be opened: {error.strerror}; as root: chmod 666 /dev/fuse (`shardfs refs` works "
            "without it)"
        ) from None
    _fusermount()
    _check_capabilities()
    if allow_other and os.geteuid() and not users_may_allow_other():
        raise FuseUnavailableError(ONLY_ROOT_ALLOWS_OTHER)


def users_may_allow_other() -> bool:
    """Whether fusermount3 allows --allow-other to users who are not root."""
    with suppress(OSError):
        lines = Path("/etc/fuse.conf").read_text(errors="replace").splitlines()
        return "user_allow_other" in (line.strip() for line in lines)
    return False


def _check_capabilities() -> None:
    """Raise `FuseUnavailableError` if the kernel allows no mounts here, as in most containers."""
    with open("/proc/self/status", errors="replace") as file:
        status = dict(line.partition(":")[::2] for line in file)
    is_root = os.geteuid() == 0
    # Root mounts directly, others through fusermount3, which becomes root.
    capabilities = int(status.get("CapEff" if is_root else "CapBnd", "-1"), 16)
    if not capabilities & _SYS_ADMIN:
        raise FuseUnavailableError(
            "the capability SYS_ADMIN is missing, which mounting needs; start the container with: "
            "--device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined (`shardfs refs` works "
            "without it)"
        )
    if not is_root and status.get("NoNewPrivs", "0").strip() == "1":
        raise FuseUnavailableError(
            "fusermount3 cannot become root here (no_new_privs); start the container without --security-opt "
            "no-new-privileges, a service without NoNewPrivileges="
        )


def path_of(mountpoint: str) -> str:
    """Return the absolute path of a mount point without asking what is mounted there, which may never answer."""
    if not mountpoint:
        raise MountPointError("MOUNTPOINT is empty; was a variable never set?")
    parent, name = os.path.split(os.path.abspath(mountpoint))
    path = os.path.join(os.path.realpath(parent), name)
    return path if count_mounts(path) else os.path.realpath(mountpoint)


def mounted_path(mountpoint: str) -> str:
    """Return the absolute path of a mounted shardfs, dead or alive; raises `MountPointError` if there is none."""
    path = os.path.abspath(mountpoint)
    if not mountpoint or _mount_around(path) is None:  # else resolving links would ask the mount
        path = path_of(mountpoint)
    if count_mounts(path):
        return path
    around = _mount_around(path)
    if around is not None:
        raise MountPointError(f"{mountpoint} lies in the mount at {shlex.quote(around)}: give that")
    what = "is not a mount of shardfs" if os.path.lexists(path) else "does not exist"
    raise MountPointError(f"{mountpoint} {what}; `shardfs mounts` lists all mounts")


def _mount_around(path: str) -> str | None:
    """Return the mount that contains a path, taken literally; None if there is none."""
    return next((m.path for m in reversed(list_mounts()) if path != m.path and Path(path).is_relative_to(m.path)), None)


def count_mounts(path: str) -> int:
    """Return how many shardfs, dead or alive, are mounted on top of each other at *path*."""
    return sum(mount.path == path for mount in list_mounts())


def _detach_dead(mountpoint: str, path: str) -> None:
    """Detach every dead shardfs at *path*; raises `MountPointError` if one is alive, even if it is stopped."""
    while count_mounts(path):
        way_out = f"unmount it with: shardfs umount {shlex.quote(mountpoint)}"
        try:
            control.ask(path, _PATIENCE)
        except UnfinishedError as silence:
            way_out = str(silence)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                run_fusermount("-u", "-z", path)
                continue
        raise MountPointError(f"{mountpoint} is a mount point already; {way_out}")


def _stat(mountpoint: str, path: str) -> os.stat_result:
    """Return the status of *path*."""
    try:
        os.statvfs(path)  # unlike attributes, this is never answered from the kernel's cache
        return os.stat(path)
    except FileNotFoundError:
        above = next(parent for parent in Path(path).parents if parent.exists())
        way_out = f"create it with: mkdir -p {shlex.quote(path)}"
        if not os.access(above, os.W_OK):
            way_out = f"{_ELSEWHERE}, as you may not write in {above}"
        raise MountPointError(f"{mountpoint} does not exist; {way_out}") from None
    except OSError as error:
        around = _mount_around(path)
        way_out = _ELSEWHERE if around is None else control.explain(around, error)
        raise MountPointError(f"{mountpoint} cannot be used: {error.strerror}; {way_out}") from None


def _fusermount() -> str:
    path = shutil.which("fusermount3")
    if path is None:
        raise FuseUnavailableError("fusermount3 is not installed; on Debian and Ubuntu: apt-get install fuse3")
    return path


def run_fusermount(*arguments: str) -> None:
    """Run fusermount3; raises `MountPointError` with its message, `BusyError` if a mount is in use."""
    done = subprocess.run([_fusermount(), *arguments], check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        message = done.stderr.strip() or f"fusermount3 ended with status {done.returncode}"
        what = f"{arguments[-1]} cannot be unmounted: {message}"
        if "busy" not in message:
            raise MountPointError(what)
        raise BusyError(
            f"{what}; it stays mounted: `fuser -vm {arguments[-1]}` lists the programs that use it; end them and try "
            "again, or cut them off with `shardfs umount --force`"
        )
