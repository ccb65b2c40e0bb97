"""What a process that a test starts is to find, and what no option and no server can give it.

Variables of the environment say what. Python imports this when it starts, and `prepared_server` calls `meet`.
"""

import ctypes
import errno
import fcntl
import os
import socket
import sys

_LOCKS = (fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, fcntl.F_OFD_GETLK)
_CLONE_NEWUTS = 0x04000000


def meet() -> None:
    """Find what the environment of this process says."""
    if directory := os.environ.get("TEST_WITHOUT_LOCKS"):
        _refuse_locks(directory + "/")
    if directory := os.environ.get("TEST_PACKAGES"):
        _have_installed(directory)
    if name := os.environ.get("TEST_HOST"):
        _move_to_host(name)
    if seconds := os.environ.get("TEST_HASTE"):
        _be_hasty(*map(float, seconds.split()))


def _refuse_locks(below: str) -> None:
    """Let no file below a directory be locked, as over NFS without its lock service."""
    call = fcntl.fcntl

    def refusing(fd: int, command: int, *arguments: object) -> object:
        path = os.readlink(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}")
        if command in _LOCKS and path.startswith(below):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return call(fd, command, *arguments)

    fcntl.fcntl = refusing


def _have_installed(directory: str) -> None:
    """Have the packages in a directory, as if they were installed."""
    sys.path.append(directory)
    if formats := sys.modules.get("shardfs.formats"):  # it has looked for them already
        formats.load_formats.cache_clear()


def _move_to_host(name: str) -> None:
    """Be on a host of this name."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(name)


def _be_hasty(silence: float, pause: float, first: float) -> None:
    """Give silent S3 servers up after *silence* seconds, and to begin with after *first*; try again after *pause*."""
    from shardfs.stores.objects import store
    from shardfs.stores.objects.client import Backoff
    from shardfs.stores.objects.pace import Timeouts
    from shardfs.stores.s3.client import S3Client

    S3Client.__init__.__kwdefaults__.update(
        timeouts=Timeouts(connect=silence, silence=silence, work=silence, reading=silence, doubtful=silence),
        backoff=Backoff(first=pause, most=pause, patience=10 * pause),
    )
    store._PATIENCE = first


meet()
