"""A process that has imported shardfs, and forks one that runs it for each command line that it is sent.

It is a script, started by `tests.support.prepared`, with its end of a socket as standard input.  A message has what
subprocess.Popen takes; its descriptors are the three standard ones and a pipe for the status.  The answer is the
process id, with a pidfd.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import shardfs.cli
import shardfs.fuse.serve
import shardfs.stores.s3.store  # noqa: F401 - all that a mount may need

_MESSAGE_NBYTES = 1 << 20
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def serve() -> list[str]:
    """Fork for each message; returns the arguments of a command line in the child that is to run it.

    Ends with the program at the other end of the socket.
    """
    connection = socket.socket(fileno=os.dup(0))
    statuses: dict[int, tuple[int, int]] = {}  # by pidfd: process id, and the pipe for the status
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in statuses:
                pid, pipe = statuses.pop(fd)
                poll.unregister(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(pipe, str(status).encode())
                os.close(pipe)
                os.close(fd)
                continue
            message, fds, _, _ = socket.recv_fds(connection, _MESSAGE_NBYTES, 4)
            if not message:
                os._exit(0)
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                connection.detach()  # its descriptor is closed with the others
                return _become(json.loads(message), fds, parent)
            pidfd = os.pidfd_open(pid)
            socket.send_fds(connection, [str(pid).encode()], [pidfd])
            for fd in fds[:3]:
                os.close(fd)
            statuses[pidfd] = (pid, fds[3])
            poll.register(pidfd, select.POLLIN)


def _become(wanted: dict[str, Any], fds: list[int], parent: int) -> list[str]:
    """Take on in a child what is wanted of it: a directory, an environment, descriptors."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # too late for the signal
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    _take_on(wanted)
    arguments: list[str] = wanted["arguments"]
    return arguments


def _take_on(wanted: dict[str, Any]) -> None:
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])


class _Daemon:
    """The process that a mount in the background begins, forked before; it has what is used of subprocess.Popen."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self._pid = pid
        self._connection = connection
        self._popen = subprocess.Popen

    def __call__(self, command: Sequence[str], **options: Any) -> Any:
        if command[1:4] != ["-P", "-m", "shardfs"]:
            return self._popen(command, **options)
        assert options.pop("start_new_session")
        assert options.pop("stdin") == subprocess.DEVNULL
        (passed,) = options.pop("pass_fds")
        wanted = {"arguments": command[4:], "env": options.pop("env"), "cwd": options.pop("cwd"), "passed": passed}
        files = [options.pop("stdout").fileno(), options.pop("stderr").fileno(), passed]
        assert not options
        socket.send_fds(self._connection, [json.dumps(wanted).encode()], files)
        return self

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


def fork_daemon() -> list[str] | None:
    """Fork the process that a mount in the background is to begin; returns the arguments there, and None here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        subprocess.Popen = _Daemon(pid, ours)  # type: ignore[assignment, misc]
        return None
    ours.close()
    message, fds, _, _ = socket.recv_fds(theirs, _MESSAGE_NBYTES, 3)
    if not message:
        os._exit(0)  # there is nothing to begin
    wanted = json.loads(message)
    os.setsid()
    for number, fd in enumerate([os.open(os.devnull, os.O_RDONLY), *fds[:2]]):
        os.dup2(fd, number)
    passed = wanted["passed"]
    os.dup2(fds[2], passed)
    theirs.detach()  # its descriptor is closed with the others
    os.closerange(3, passed)
    os.closerange(passed + 1, 1 << 16)
    _take_on(wanted)
    arguments: list[str] = wanted["arguments"]
    return arguments


gc.collect()
gc.freeze()  # children need not copy what they only look at
arguments = serve()
if arguments[:1] == ["mount"] and not {"-f", "--foreground"} & set(arguments):
    arguments = fork_daemon() or arguments
sys.argv[1:] = arguments
runpy.run_module("shardfs", run_name="__main__", alter_sys=True)
