"""A process that has imported shardfs, and forks one that runs it, or a program, for each command line that it is sent.

It is a script, started by `tests.support.prepared`, with its end of a socket as standard input, and the number of
another, to which `inside/shardfs` connects. A message has what subprocess.Popen takes; its descriptors are the three
standard ones and a pipe for the status. The answer is the process id, with a pidfd.
"""

import atexit
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
import threading
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import IO

import boto3
import numcodecs  # noqa: F401 - shardfs imports it late
import quick_boto  # noqa: F401
import sitecustomize

import shardfs.bulk.unpack
import shardfs.cli
import shardfs.formats
import shardfs.fuse.daemon
import shardfs.fuse.serve
import shardfs.stores.s3.store

_MESSAGE_NBYTES = 1 << 20
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def serve() -> tuple[list[str], str | None]:
    """Fork for each message; returns the arguments of a command line in the child that is to run it, and a program.

    Ends with the program at the other end of the socket.
    """
    connection, listener = socket.socket(fileno=os.dup(0)), socket.socket(fileno=int(sys.argv[1]))
    connections = {connection.fileno(): connection}
    statuses: dict[int, tuple[int, int]] = {}  # by pidfd: process id, and the pipe for the status
    poll = select.poll()
    poll.register(listener, select.POLLIN)
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
            if fd == listener.fileno():
                new = listener.accept()[0]
                connections[new.fileno()] = new
                poll.register(new, select.POLLIN)
                continue
            message = b""
            with suppress(ConnectionResetError):  # it ended without reading its answer
                message, fds, _, _ = socket.recv_fds(connections[fd], _MESSAGE_NBYTES, 4)
            if not message:
                if fd == connection.fileno():
                    os._exit(0)
                poll.unregister(fd)
                connections.pop(fd).close()
                continue
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                for each in (listener, *connections.values()):
                    each.detach()  # their descriptors are closed with the others
                return _become(json.loads(message), fds, parent)
            pidfd = os.pidfd_open(pid)
            socket.send_fds(connections[fd], [str(pid).encode()], [pidfd])
            for each in fds[:3]:
                os.close(each)
            statuses[pidfd] = (pid, fds[3])
            poll.register(pidfd, select.POLLIN)


def _become(wanted: dict, fds: list[int], parent: int) -> tuple[list[str], str | None]:
    """Take on in a child what is wanted of it: a directory, an environment, descriptors, a user."""
    os.chdir(wanted["cwd"])
    if user := wanted.get("user"):
        number, group, groups, umask = user
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(number, number, number)
        os.umask(umask)
        _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after exec: else its files below /proc are root's
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # too late for the signal
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    os.environ.clear()
    os.environ.update(wanted["env"] | libraries)  # those of this interpreter, which may start others
    return wanted["arguments"], wanted.get("program")


class _Daemon(BaseException):
    """Leaves what a process is in that is to run another command line."""

    def __init__(self, arguments: list[str], fds: list[int]) -> None:
        self.arguments = arguments
        self.fds = fds


def _start_daemon(command: list[str], *, cwd: str, env: dict, stdout: IO, stderr: IO, pass_fds: list[int], **_: object):
    """Start a daemon of `shardfs mount` as subprocess.Popen does, by another fork."""
    pid = os.fork()
    if pid:
        return SimpleNamespace(wait=lambda: os.waitpid(pid, 0))
    os.setsid()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    raise _Daemon(command[command.index("mount") :], pass_fds)


def _run(arguments: list[str], program: str | None = None) -> int:
    """Run a command line, or a program that gets it; returns its status."""
    sys.argv[1:] = arguments
    sitecustomize.meet()
    if program is not None:
        sys.argv[0] = "-c"
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), module.__dict__)
        return 0
    try:
        runpy.run_module("shardfs", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code or 0
    except _Daemon as daemon:
        for fd in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *daemon.fds}:
            with suppress(OSError):  # that of the listing
                os.close(fd)
        arguments = daemon.arguments
    else:
        return 0
    return _run(arguments)


def _end(status: int) -> None:
    """End as Python does, without taking apart what this process was given."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    with suppress(OSError):
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


shardfs.fuse.daemon.subprocess = SimpleNamespace(Popen=_start_daemon, DEVNULL=subprocess.DEVNULL)
boto3.session.Session("a", "a", region_name="us-east-1").client("s3")  # so that all is parsed
shardfs.cli.every_command()  # each is imported
shardfs.formats.formats()
gc.collect()
gc.freeze()  # children need not copy what they only look at
_end(_run(*serve()))
