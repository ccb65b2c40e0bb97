"""Processes of shardfs that need not import it: they are forked from one that has, which saves most of their time.

So are the daemons that they start, and programs of Python that import shardfs. They differ from fresh ones in nothing
else that a test sees, but their command lines; `SHARDFS_LONG` makes all of them fresh. So are those with variables that
are read before shardfs is, and those that other programs start.
"""

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.support.users import TOP, User, everyones

_INSIDE = Path("tests/support/inside")
_FRESH = bool(os.environ.get("SHARDFS_LONG"))
_READ_AT_START = re.compile(r"(LD_|PYTHON|LC_|LANG|TZ|MALLOC_|GLIBC_|OMP_|OPENBLAS_).*")


class Prepared:
    """A process that runs `shardfs` with *arguments*, or *program* with them; it has what subprocess.Popen has."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        program: str | None = None,
        user: User | None = None,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self._status, status = os.pipe()
        wanted = {
            "arguments": self.args,
            "env": dict(env),
            "cwd": str(cwd or os.getcwd()),
            "program": program,
            "user": user and [user.number, user.group, user.groups, user.umask],
        }
        with ExitStack() as theirs:
            given: IO[bytes] | int
            if stdin == subprocess.PIPE:
                read_end, write_end = os.pipe()
                given, self.stdin = theirs.enter_context(os.fdopen(read_end, "rb")), os.fdopen(write_end, "wb")
            else:
                given = theirs.enter_context(open(os.devnull, "rb"))
            if stdout == subprocess.PIPE:
                read_end, write_end = os.pipe()
                self.stdout, stdout = os.fdopen(read_end, "rb"), theirs.enter_context(os.fdopen(write_end, "wb"))
            fds = [file if isinstance(file, int) else file.fileno() for file in (given, stdout, stderr)]
            self.pid, self._pidfd = _fork(wanted, [*fds, status])
        os.close(status)

    def __del__(self) -> None:
        for fd in (self._status, self._pidfd):
            os.close(fd)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(os.read(self._status, 16))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        returncode = self.poll()
        assert returncode is not None
        return returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends in this moment
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_prepared(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    timeout: float,
    program: str | None = None,
    user: User | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `shardfs` with *arguments*, or *program* with them, to its end, and return what it printed."""
    with _file() as stdout, _file() as stderr:
        process = Prepared(arguments, env=env, cwd=cwd, stdout=stdout, stderr=stderr, program=program, user=user)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode is not None
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "surrogateescape"))
        return subprocess.CompletedProcess(process.args, process.returncode, *texts)


def can_be_prepared(env: Mapping[str, str]) -> bool:
    """Whether a process with this environment does the same if it is forked.

    What libraries that tests import have set since is the same for all processes, and does not count.
    """
    return not _FRESH and _read_at_start(env) == _read_at_start(fresh_environment())


def fresh_environment() -> dict[str, str]:
    """Environment in which `python -m shardfs` finds this shardfs."""
    return {**os.environ, "PYTHONPATH": _path(TOP)}


def for_shells(env: Mapping[str, str]) -> dict[str, str]:
    """The environment *env* for programs that look for `shardfs` in `PATH`, where it is prepared."""
    if _FRESH:
        return dict(env)
    _connection(sys.executable, TOP)
    return {**env, "PATH": f"{TOP / _INSIDE}{os.pathsep}{env['PATH']}", "TEST_PREPARED": _name(sys.executable)}


def _path(top: Path) -> str:
    """Where an interpreter finds what a process that a test starts is to import: shardfs, and what it is to meet."""
    return f"{top / _INSIDE}{os.pathsep}{top}"


def _file() -> IO[bytes]:
    return os.fdopen(os.memfd_create("output", os.MFD_CLOEXEC), "w+b")


_LOCK = threading.Lock()


def _fork(wanted: dict[str, Any], fds: list[int]) -> tuple[int, int]:
    """Have a process forked; returns its number and a pidfd."""
    with _LOCK:  # tests start processes in threads, too
        connection = _connection(*(everyones() if wanted["user"] else (sys.executable, TOP)))
        socket.send_fds(connection, [json.dumps(wanted).encode()], fds)
        answer, (pidfd,), _, _ = socket.recv_fds(connection, 64, 1)
        return int(answer), pidfd


@cache
def _connection(python: str, top: Path) -> socket.socket:
    """Start a process that forks, which ends when its end of the connection is the only one that is left.

    It imports what is in *top*.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{_name(python)}")
    listener.listen()
    with theirs, listener:
        process = subprocess.Popen(
            [python, "-P", Path(__file__).with_name("prepared_server.py"), str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={**os.environ, "PYTHONPATH": _path(top)},
            cwd="/",
            stdin=theirs,
            stdout=subprocess.PIPE,  # Python remembers whether it can seek there
        )

    def end() -> None:
        ours.close()
        process.communicate()

    atexit.register(end)
    return ours


def _name(python: str) -> str:
    return f"shardfs-tests-{os.getpid()}-{hash(python):x}"


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _READ_AT_START.fullmatch(name)}
