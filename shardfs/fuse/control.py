"""How to talk to a mount: extended attributes of its root, which no listing shows.

A daemon that is stopped, or hangs, leaves who asks it in the kernel, where nothing but an answer may wake it.  So it is
asked in a process of its own, which is left behind then.  If root asks, that becomes the user whose mount it is: the
kernel lets nobody else.
"""

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shardfs.dataset.statistics import Snapshot
from shardfs.errors import UnfinishedError
from shardfs.fuse.mounts import find_daemon, find_mount
from shardfs.fuse.progress import Progress

FIGURES: Final = "user.shardfs.stats"
"""The figures of the mount, as JSON: a `Snapshot`."""

PID: Final = "user.shardfs.pid"
"""Process id of the daemon, for scripts that send it a signal."""

FLUSH: Final = "user.shardfs.flush"
"""Setting it commits everything that is pending; the call returns when that is in the shards."""

TIMEOUT: Final = 60.0
"""For how many seconds a daemon that does not answer, or gets nothing done, is waited for by default."""

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


def id_of(directory: str) -> str:
    """Return what tells a directory from all others of this machine."""
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
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO)) from None  # any user can mount what says it is ours


def flush(mountpoint: str, timeout: float, say: Callable[[str], None]) -> None:
    """Have everything committed, however long that takes while the daemon answers; *say* is told how far that is.

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
    """Say what an error means that `ask` or `flush` raised, and the way out if there is one."""
    mount = find_mount(os.path.abspath(mountpoint))
    if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        return f"its daemon died; mount again, or run: shardfs umount {shlex.quote(mountpoint)}"
    if mount is not None and os.geteuid() not in (0, mount.uid):
        # That a mount is read-only is the answer to a write before the kernel looks whose it is.
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
    """Kill a process, which does not end before its request is answered if the daemon has begun with that."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_MOMENT_SECONDS)


def _check(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode:
        number = process.returncode if process.returncode > 0 else errno.EINTR
        raise OSError(number, os.strerror(number))
