"""FUSE as the kernel speaks it (`linux/fuse.h`), for file systems of tests that need what pyfuse3 does not have.

That is locks of files (`FUSE_SETLK`), which libfuse passes on only to a file system that has functions for them.
"""

from __future__ import annotations

import array
import errno
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MAX_WRITE = 2**17
_HEADER = struct.Struct("=IIQQIIIHH")
_REPLY = struct.Struct("=IiQ")
_ATTR = struct.Struct("=6Q10I")
_ENTRY = struct.Struct("=4Q2I")
_NOTIFY_INVAL_INODE = 2

ASYNC_READ, POSIX_LOCKS, BIG_WRITES, AUTO_INVAL_DATA, PARALLEL_DIROPS = 1 << 0, 1 << 1, 1 << 5, 1 << 12, 1 << 18

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKNOD, MKDIR = 1, 2, 3, 4, 5, 6, 8, 9
UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = 10, 11, 12, 13, 14, 15, 16, 17, 18
FSYNC, SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, FLUSH, INIT = 20, 21, 22, 23, 24, 25, 26
OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, GETLK, SETLK, SETLKW = 27, 28, 29, 30, 31, 32, 33
CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 35, 36, 38, 42, 45
_UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)


class Request(NamedTuple):
    """What the kernel asks; *body* is what comes behind the header."""

    opcode: int
    unique: int
    nodeid: int
    uid: int
    gid: int
    pid: int
    body: bytes

    def take(self, form: str) -> tuple[tuple[Any, ...], bytes]:
        """The fields at the beginning of the body, and what follows them."""
        fields = struct.Struct("=" + form)
        return fields.unpack_from(self.body), self.body[fields.size :]

    def fields(self, form: str) -> tuple[Any, ...]:
        return self.take(form)[0]


Handler = Callable[[Request], bytes | None]
"""Returns the body of the answer, or raises `OSError`."""


class Connection:
    """A mount at *place*; requests are handled in threads, several at a time."""

    def __init__(self, place: str, name: str) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            options = f"fsname={name},subtype={name},default_permissions" + ",allow_other" * (os.geteuid() == 0)
            subprocess.run(
                ["fusermount3", "-o", options, "--", place],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                check=True,
            )
            _, control, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
        (_, _, data), *_ = control
        self._fd = array.array("i", data)[0]

    def serve(self, handlers: dict[int, Handler], waits: Callable[[Request], bool], flags: int, threads: int) -> None:
        """Handle requests until the mount ends; each that *waits* gets a thread of its own.

        *flags* are those of `FUSE_INIT`.
        """
        self._handlers, self._waits, self._flags = handlers, waits, flags
        pool = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()

    def renew(self, nodeid: int, *, pages: bool) -> None:
        """Let the kernel forget the attributes of a file, and its *pages*.

        To be called while no thread of the pool holds what a read needs: the kernel waits for reads of these pages.
        """
        body = struct.pack("=Qqq", nodeid, 0 if pages else -1, 0)
        self._send(_REPLY.pack(_REPLY.size + len(body), _NOTIFY_INVAL_INODE, 0), body)

    def _run(self) -> None:
        while True:
            try:
                data = os.read(self._fd, MAX_WRITE + 2**13)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):  # somebody else has taken it, or its process has ended
                    continue
                return
            _, opcode, unique, nodeid, uid, gid, pid, _, _ = _HEADER.unpack_from(data)
            request = Request(opcode, unique, nodeid, uid, gid, pid, data[_HEADER.size :])
            if self._waits(request):
                threading.Thread(target=self._handle, args=(request,), daemon=True).start()
            else:
                self._handle(request)

    def _handle(self, request: Request) -> None:
        code, body = 0, b""
        try:
            if request.opcode == INIT:
                body = self._begin(request)
            elif request.opcode in self._handlers:
                body = self._handlers[request.opcode](request) or b""
            elif request.opcode != DESTROY:
                code = errno.ENOSYS
        except OSError as error:
            code = error.errno or errno.EIO
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os.kill(os.getpid(), signal.SIGKILL)  # a test is to fail, not to wait
        if request.opcode not in _UNANSWERED:
            self._send(_REPLY.pack(_REPLY.size + len(body), -code, request.unique), body)

    def _begin(self, request: Request) -> bytes:
        major, _, readahead, offered = request.fields("4I")
        flags = self._flags & offered
        return struct.pack("=4IHHIIHHII24x", major, 31, readahead, flags, 64, 48, MAX_WRITE, 1, 0, 0, 0, 0)

    def _send(self, header: bytes, body: bytes) -> None:
        try:
            os.writev(self._fd, [header, body])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EINVAL):  # nobody waits for it any more
                raise


def packed_attributes(status: os.stat_result, size: int) -> bytes:
    """`struct fuse_attr` of a file that has this *size*."""
    times = status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns
    seconds, parts = [time // 10**9 for time in times], [time % 10**9 for time in times]
    rest = status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, status.st_blksize, 0
    return _ATTR.pack(status.st_ino, size, status.st_blocks, *(s & (2**64 - 1) for s in seconds), *parts, *rest)


def _split(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 10**9)


def packed_entry(nodeid: int, attributes: bytes, ttl: float) -> bytes:
    """`struct fuse_entry_out`, which the kernel may keep for so many seconds."""
    whole, part = _split(ttl)
    return _ENTRY.pack(nodeid, 0, whole, whole, part, part) + attributes


def packed_status(attributes: bytes, ttl: float) -> bytes:
    """`struct fuse_attr_out`."""
    return struct.pack("=QII", *_split(ttl), 0) + attributes


def packed_names(rows: Iterable[tuple[int, int, bytes, int]], room: int) -> bytes:
    """As many of these (inode number, offset of the next, name, mode) as there is room for."""
    packed = b""
    for ino, offset, name, mode in rows:
        row = struct.pack("=QQII", ino, offset, len(name), stat.S_IFMT(mode) >> 12) + name
        row = row.ljust(-(-len(row) // 8) * 8, b"\0")
        if len(packed) + len(row) > room:
            break
        packed += row
    return packed
