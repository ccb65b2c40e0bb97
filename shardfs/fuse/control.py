"""How to talk to a mount: extended attributes of its root, which no listing shows.

A daemon that is stopped, or hangs, leaves who asks it in the kernel, where nothing but an answer may wake it.  So it is
asked in a process of its own, which is left behind then.
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from shardfs.errors import UnfinishedError

STATISTICS: Final = "user.shardfs.stats"
"""Counts of the mount, as JSON."""

PID: Final = "user.shardfs.pid"
"""Process id of the daemon."""

DAEMON: Final = "user.shardfs.daemon"
"""What there is to know of the daemon to wait for it, as JSON: a `Daemon`."""

FLUSH: Final = "user.shardfs.flush"
"""Setting it commits everything that is pending; the call returns when that is in the shards."""

TIMEOUT: Final = 60.0
"""For how many seconds a daemon that does not answer, or gets nothing done, is waited for by default."""

_GET: Final = "sys.stdout.buffer.write(os.getxattr(*sys.argv[1:]))"
_SET: Final = "os.setxattr(*sys.argv[1:], b'')"
_PROGRAM: Final = "import os, sys\ntry:\n    {}\nexcept OSError as error:\n    sys.exit(error.errno)"
_LOOK_SECONDS: Final = 10.0
_MOMENT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon as it describes itself: its *pid* in the PID *namespace*, its *log* file, and what it writes.

    *source* is the directory with its `.shardfs`, None if the mount is read-only, and *source_id* what tells it from
    one that has the same path elsewhere; *npending* counts the changes that are not in their shards yet.
    """

    pid: int
    namespace: int
    log: str | None
    source: str | None = None
    source_id: str | None = None
    npending: int = 0

    @classmethod
    def of(cls, mountpoint: str, timeout: float) -> "Daemon":
        """Ask the daemon of a mount; raises as `ask` does."""
        return cls(**json.loads(ask(mountpoint, DAEMON, timeout)))

    def encode(self) -> bytes:
        """Return what `of` reads."""
        return json.dumps(asdict(self)).encode()


def id_of(directory: str) -> str:
    """Return what tells a directory from all others of this machine."""
    status = os.stat(directory)
    return f"{status.st_dev}:{status.st_ino}"


def pid_namespace() -> int:
    """Return what tells the PID namespace of this process from others."""
    return os.stat("/proc/self/ns/pid").st_ino


def ask(mountpoint: str, name: str, timeout: float) -> bytes:
    """Return an extended attribute of a mount.

    Raises `OSError`, and `UnfinishedError` if the daemon does not answer for *timeout* seconds.
    """
    process = _start(_GET, mountpoint, name)
    try:
        answer = process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        _leave(process)
        raise UnfinishedError(_silence(mountpoint, timeout)) from None
    _check(process)
    return answer


def flush(mountpoint: str, timeout: float, say: Callable[[str], None]) -> None:
    """Have everything committed, however long that takes while the daemon answers, and *say* what it waits for.

    Raises `OSError`, and `UnfinishedError` if the daemon does not answer for *timeout* seconds.
    """
    process = _start(_SET, mountpoint, FLUSH)
    try:
        while True:
            try:
                process.communicate(timeout=min(timeout, _LOOK_SECONDS))
                break
            except subprocess.TimeoutExpired:
                daemon = Daemon.of(mountpoint, timeout)
                say(f"{mountpoint}: {daemon.npending:,} changes are not in their shards yet; waiting")
    finally:
        if process.returncode is None:
            _leave(process)
    _check(process)


def explain(mountpoint: str, error: OSError) -> str:
    """Say what an error means that `ask` or `flush` raised, and the way out if there is one."""
    if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        return f"its daemon died; mount it again, or run: shardfs umount {mountpoint}"
    return error.strerror or str(error)


def find_daemon(mountpoint: str) -> int | None:
    """Return the process id of the daemon that was started for a mount point, by its command line."""
    place = os.fsencode(mountpoint)
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(name)}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"shardfs" in words and b"mount" in words and b"--foreground" in words and place in words:
            return int(name)
    return None


def _silence(mountpoint: str, timeout: float) -> str:
    pid = find_daemon(mountpoint)
    wake, end = (f"`kill -CONT {pid}`", f"`kill -KILL {pid}`") if pid is not None else ("SIGCONT", "SIGKILL")
    return (
        f"{mountpoint} does not answer for {timeout:g} s: its daemon is stopped, or hangs; {wake} wakes it, or {end} "
        "ends it: what was written stays in the journal then, for the next mount with --write"
    )


def _start(call: str, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
        [sys.executable, "-I", "-S", "-c", _PROGRAM.format(call), *arguments],
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
