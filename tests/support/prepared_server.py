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
import sys
from contextlib import suppress

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


def _become(wanted: dict, fds: list[int], parent: int) -> list[str]:
    """Take on in a child what is wanted of it: a directory, an environment, descriptors."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # too late for the signal
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    return wanted["arguments"]


gc.collect()
gc.freeze()  # children need not copy what they only look at
sys.argv[1:] = serve()
runpy.run_module("shardfs", run_name="__main__", alter_sys=True)
