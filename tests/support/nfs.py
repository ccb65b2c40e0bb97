"""A file system that hosts share, without a network: each host has a mount of one directory, and caches as NFSv4 does.

Run as a program it is one host's client of the file server, which is a directory. What is modelled, for `TTL` seconds
unless something is said:

- Names, also those that are not there, attributes and pages are cached. To open a directory, or change it, asks again
  for names that were not there.
- To open a file by name asks the server what the name is now, and renews attributes and pages. To list a directory asks
  the server. A granted lock renews attributes and pages of the file that is locked, and of no other. `O_EXCL` and
  rename ask the server.
- What is written is seen by other hosts when it was synced or closed, or its file locked, unlocked or renamed.
  Until then it is lost with the host. Direct writes go to the server at once.
- A file that is open here and removed or replaced here gets a name `.nfs...` until it is closed, as its server keeps no
  file without a name. A file that another host removed can be read by who has it open, and opened by nobody.
- There are no clones, no `O_TMPFILE`, no `RENAME_NOREPLACE`, and `ENOENT` below a removed directory is `ESTALE`.
- Locks are those of the server (`forwarded`), or those of this host (`local`, as mounted with `nolock`), or there are
  none (`none`). All of them belong to an open file description.

What is not: delegations, leases and their end, the order in which a kernel writes pages back by itself, a server that
restarts, and whatever NFSv3 does differently: it may open by a cached name. `flock` stays on the host.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import math
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support import fuse_wire as wire
from tests.support.fuse_wire import Connection, Request

Locks = Literal["forwarded", "local", "none"]
TTL = 3.0
_ROOT = 1
_END = 2**63 - 1
_FLOCK = "hhqqi4x"
_THREADS = 8
_SET_MODE, _SET_UID, _SET_GID, _SET_SIZE, _SET_ATIME, _SET_MTIME = (1 << bit for bit in range(6))
_SET_ATIME_NOW, _SET_MTIME_NOW = 1 << 7, 1 << 8
_RETRY = 0.005
_SLACK = 1.0


def skip_without_hosts() -> None:
    """Skip the test where no process can be on a host of another name (`TEST_HOST`), or nothing can be mounted."""
    import pytest

    from tests.support.mounting import skip_without_fuse

    skip_without_fuse()
    if os.geteuid() != 0 or subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no other host can be made here")


@contextmanager
def client(
    directory: Path, place: Path, *, locks: Locks = "forwarded", ttl: float = TTL, held: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Show *directory* at *place* as one of the hosts that share it sees it; who kills the process loses that host.

    Files `slow-to-find...` and `slow-to-read...` are slow to find and to read, until the other end of the pipe *held*
    is closed.
    """
    from tests.support.mounting import environment

    place.mkdir(exist_ok=True)
    options = [f"--locks={locks}", f"--ttl={ttl}", *([] if held is None else [f"--held={held}"])]
    process = subprocess.Popen(
        [sys.executable, __file__, *options, str(directory), str(place)],
        env=environment(),
        pass_fds=[] if held is None else [held],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        subprocess.run(["fusermount3", "-u", "-z", place], capture_output=True, check=False)
        process.kill()  # what is still open there keeps it
        process.communicate()


@contextmanager
def pair(directory: Path, *, locks: Locks = "forwarded", ttl: float = TTL) -> Iterator[tuple[Path, Path]]:
    """Let the hosts alpha and beta share `shared` in a *directory*; yields where each of them sees it."""
    (directory / "shared").mkdir(exist_ok=True)
    alpha, beta = directory / "seen-by-alpha", directory / "seen-by-beta"
    with (
        client(directory / "shared", alpha, locks=locks, ttl=ttl),
        client(directory / "shared", beta, locks=locks, ttl=ttl),
    ):
        yield alpha, beta


@dataclass(eq=False)
class _Node:
    """A file or directory that the kernel knows, by the name under which it was found last."""

    fd: int
    parent: _Node | None
    name: bytes
    lookups: int = 0
    opens: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    unwritten: list[tuple[int, bytes]] = field(default_factory=list)
    """What the server does not have yet, by offset."""
    names: dict[tuple[_Node, bytes], float] = field(default_factory=dict)
    """All names under which it was found, and when: the kernel may open it by any of them without a question."""
    refused: dict[int, float] = field(default_factory=dict)
    """The threads that were told that another file has a name of it, and when: who asks again has no name at hand."""
    absent: dict[bytes, float] = field(default_factory=dict)
    """Names that were not in the directory, and when: they are kept until it is opened, or changed by this host."""
    hidden: list[tuple[_Node, bytes]] = field(default_factory=list)
    """The names that it has until it is closed."""

    def __del__(self) -> None:
        os.close(self.fd)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self.fd}"

    @property
    def identity(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    @property
    def is_gone(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def found(self, parent: _Node, name: bytes) -> None:
        """Note that it was found under a name, perhaps another one."""
        self.parent, self.name = parent, name
        self.names[parent, name] = time.monotonic()

    def is_current(self, ttl: float) -> bool:
        """Whether all names under which the kernel may have it are still those of this file, at the server."""
        return all(self._is_at(*name) for name, when in [*self.names.items()] if when > time.monotonic() - ttl - _SLACK)

    def _is_at(self, parent: _Node, name: bytes) -> bool:
        with suppress(OSError):
            return os.path.samestat(_look(parent, name), os.fstat(self.fd))
        return False

    def asks_again(self, thread: int) -> bool:
        """Whether a thread that opens it was refused just now; if not, it is refused."""
        now = time.monotonic()
        if now - self.refused.pop(thread, -math.inf) < _SLACK:
            return True
        self.refused[thread] = now
        return False

    def size(self, status: os.stat_result) -> int:
        return max([status.st_size, *(offset + len(data) for offset, data in self.unwritten)])


@dataclass(eq=False)
class _File:
    """An open file or directory."""

    node: _Node
    fd: int
    is_writable: bool = False
    names: list[os.DirEntry[bytes]] = field(default_factory=list)


def _look(parent: _Node, name: bytes) -> os.stat_result:
    return os.stat(name, dir_fd=parent.fd, follow_symlinks=False)


class _Client:
    """The tables of a host."""

    def __init__(self, directory: str, place: str, locks: Locks, ttl: float, held: int | None) -> None:
        self.locks, self.ttl, self.held = locks, ttl, held
        self.connection = Connection(place, "nfs")
        self.guard = threading.RLock()
        root = _Node(os.open(directory, os.O_PATH | os.O_DIRECTORY), None, b"", lookups=1)
        self.nodes = {_ROOT: root}
        self.ids = {root.identity: _ROOT}
        self.files: dict[int, _File] = {}
        self.numbers, self.hidden = count(_ROOT + 1), count()
        self.interrupted: set[int] = set()
        self.released = threading.Event()

    def run(self) -> None:
        if self.held is not None:
            threading.Thread(target=self._release_when_told, args=(self.held,), daemon=True).start()
        flags = wire.ASYNC_READ | wire.BIG_WRITES | wire.AUTO_INVAL_DATA | wire.PARALLEL_DIROPS
        if self.locks != "local":
            flags |= wire.POSIX_LOCKS
        handlers: dict[int, Callable[[Request], bytes | None]] = {
            code: getattr(self, name.lower())
            for name, code in vars(wire).items()
            if name.isupper() and hasattr(self, name.lower())
        }
        print("ready", flush=True)
        self.connection.serve(handlers, self._waits, flags, _THREADS)

    def _release_when_told(self, held: int) -> None:
        os.read(held, 1)
        self.released.set()

    def _waits(self, request: Request) -> bool:
        if request.opcode in (wire.SETLK, wire.SETLKW):  # renewing pages waits for those who read them
            return True
        if self.held is None or self.released.is_set():
            return False
        if request.opcode == wire.LOOKUP:
            return request.body.startswith(b"slow-to-find")
        return request.opcode == wire.READ and self._file(request, "Q").node.name.startswith(b"slow-to-read")

    # Nodes

    def _node(self, nodeid: int) -> _Node:
        with self.guard:
            return self.nodes[nodeid]

    def _known(self, status: os.stat_result) -> tuple[int, _Node] | None:
        with self.guard:
            nodeid = self.ids.get((status.st_dev, status.st_ino))
            return None if nodeid is None else (nodeid, self.nodes[nodeid])

    def _enter(self, parent: _Node, name: bytes) -> bytes:
        """The answer that tells the kernel what a name is."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent.fd)
        status = os.fstat(fd)
        with self.guard:
            known = self._known(status)
            if known is None:
                nodeid, node = next(self.numbers), _Node(fd, parent, name)
                self.nodes[nodeid] = node
                self.ids[node.identity] = nodeid
            else:
                os.close(fd)
                nodeid, node = known
            node.found(parent, name)
            node.lookups += 1
        return wire.packed_entry(nodeid, self._attributes(node), self.ttl)

    def _attributes(self, node: _Node) -> bytes:
        with node.lock:
            status = os.fstat(node.fd)
            return wire.packed_attributes(status, node.size(status))

    @contextmanager
    def _changing(self, nodeid: int) -> Iterator[_Node]:
        """Do the same for a change: what the server says then of the directory tells whether others changed it."""
        with self._below(nodeid) as node:
            try:
                yield node
            finally:
                node.absent.clear()

    @contextmanager
    def _below(self, nodeid: int) -> Iterator[_Node]:
        node = self._node(nodeid)
        try:
            yield node
        except FileNotFoundError:
            if node.is_gone:
                raise OSError(errno.ESTALE, "removed") from None
            raise

    def lookup(self, request: Request) -> bytes:
        name = request.body[:-1]
        if self.held is not None and name.startswith(b"slow-to-find"):
            self.released.wait()
        with self._below(request.nodeid) as parent:
            if time.monotonic() - parent.absent.get(name, -math.inf) < self.ttl:
                raise FileNotFoundError(errno.ENOENT, "kept")
            try:
                return self._enter(parent, name)
            except FileNotFoundError:
                if not parent.is_gone:
                    parent.absent[name] = time.monotonic()
                raise

    def forget(self, request: Request) -> None:
        self._forget(request.nodeid, *request.fields("Q"))

    def batch_forget(self, request: Request) -> None:
        (number, _), rest = request.take("II")
        for nodeid, lookups in struct.iter_unpack("=QQ", rest[: 16 * number]):
            self._forget(nodeid, lookups)

    def _forget(self, nodeid: int, lookups: int) -> None:
        with self.guard:
            node = self.nodes[nodeid]
            node.lookups -= lookups
            if node.lookups <= 0 and nodeid != _ROOT:
                del self.ids[node.identity], self.nodes[nodeid]

    def getattr(self, request: Request) -> bytes:
        node = self._node(request.nodeid)
        if node.is_gone and not node.opens:
            raise OSError(errno.ESTALE, "removed")
        return wire.packed_status(self._attributes(node), self.ttl)

    def setattr(self, request: Request) -> bytes:
        node = self._node(request.nodeid)
        fields = request.fields("IIQQQQQQIIIIIIII")
        valid, size, atime, mtime, atime_ns, mtime_ns = fields[0], fields[3], *fields[5:7], *fields[8:10]
        mode, uid, gid = fields[11], *fields[13:15]
        with node.lock:
            self._write_through(node)
            if valid & (_SET_UID | _SET_GID):
                os.chown(node.path, uid if valid & _SET_UID else -1, gid if valid & _SET_GID else -1)
            if valid & _SET_MODE:
                os.chmod(node.path, stat.S_IMODE(mode))
            if valid & _SET_SIZE:
                os.truncate(node.path, size)
            if valid & (_SET_ATIME | _SET_MTIME):
                now, status = time.time_ns(), os.fstat(node.fd)
                accessed = now if valid & _SET_ATIME_NOW else atime * 10**9 + atime_ns
                modified = now if valid & _SET_MTIME_NOW else mtime * 10**9 + mtime_ns
                times = (
                    accessed if valid & _SET_ATIME else status.st_atime_ns,
                    modified if valid & _SET_MTIME else status.st_mtime_ns,
                )
                os.utime(node.path, ns=times)
            return wire.packed_status(self._attributes(node), self.ttl)

    # Names

    def _give(self, request: Request, parent: _Node, name: bytes) -> None:
        """Give a new file to the user who asked for it."""
        if os.geteuid() == 0:
            gid = -1 if os.fstat(parent.fd).st_mode & stat.S_ISGID else request.gid
            mode = _look(parent, name).st_mode
            os.chown(name, request.uid, gid, dir_fd=parent.fd, follow_symlinks=False)
            if not stat.S_ISLNK(mode):
                os.chmod(name, stat.S_IMODE(mode), dir_fd=parent.fd)

    def mkdir(self, request: Request) -> bytes:
        (mode, _), name = request.take("II")
        with self._changing(request.nodeid) as parent:
            os.mkdir(name[:-1], stat.S_IMODE(mode), dir_fd=parent.fd)
            inherited = _look(parent, name[:-1]).st_mode & stat.S_ISGID
            os.chmod(name[:-1], stat.S_IMODE(mode) | inherited, dir_fd=parent.fd)
            self._give(request, parent, name[:-1])
            return self._enter(parent, name[:-1])

    def mknod(self, request: Request) -> bytes:
        (mode, _, _, _), name = request.take("IIII")
        with self._changing(request.nodeid) as parent:
            os.mknod(name[:-1], mode, dir_fd=parent.fd)
            self._give(request, parent, name[:-1])
            return self._enter(parent, name[:-1])

    def symlink(self, request: Request) -> bytes:
        name, target, _ = request.body.split(b"\0")
        with self._changing(request.nodeid) as parent:
            os.symlink(target, name, dir_fd=parent.fd)
            self._give(request, parent, name)
            return self._enter(parent, name)

    def readlink(self, request: Request) -> bytes:
        return os.readlink(b"", dir_fd=self._node(request.nodeid).fd)

    def link(self, request: Request) -> bytes:
        (nodeid,), name = request.take("Q")
        with self._changing(request.nodeid) as parent:
            os.link(self._node(nodeid).path, name[:-1], dst_dir_fd=parent.fd, follow_symlinks=True)
            return self._enter(parent, name[:-1])

    def rmdir(self, request: Request) -> None:
        with self._changing(request.nodeid) as parent:
            os.rmdir(request.body[:-1], dir_fd=parent.fd)

    def unlink(self, request: Request) -> None:
        with self._changing(request.nodeid) as parent:
            name = request.body[:-1]
            if not self._hide(parent, name):
                os.unlink(name, dir_fd=parent.fd)

    def rename(self, request: Request) -> None:
        (nodeid,), names = request.take("Q")
        self._rename(request.nodeid, nodeid, names)

    def rename2(self, request: Request) -> None:
        (nodeid, flags, _), names = request.take("QII")
        if flags:
            raise OSError(errno.EINVAL, "flags")
        self._rename(request.nodeid, nodeid, names)

    def _rename(self, nodeid: int, to: int, names: bytes) -> None:
        old, new, _ = names.split(b"\0")
        with self._changing(nodeid) as parent, self._changing(to) as target:
            known = self._known(_look(parent, old))
            if known is not None:
                with known[1].lock:
                    self._write_through(known[1])
            self._hide(target, new)
            os.rename(old, new, src_dir_fd=parent.fd, dst_dir_fd=target.fd)
            if known is not None:
                with self.guard:
                    known[1].names.pop((parent, old), None)
                    known[1].found(target, new)

    def _hide(self, parent: _Node, name: bytes) -> bool:
        """Give a file that is open another name, until it is closed; return whether it is."""
        try:
            status = _look(parent, name)
        except FileNotFoundError:
            return False
        known = self._known(status)
        if known is None or not known[1].opens or not stat.S_ISREG(status.st_mode):
            return False
        with known[1].lock:
            hidden = b".nfs%016x%08x" % (status.st_ino, next(self.hidden))
            os.rename(name, hidden, src_dir_fd=parent.fd, dst_dir_fd=parent.fd)
            known[1].hidden.append((parent, hidden))
            return True

    # Open files

    def _file(self, request: Request, form: str) -> _File:
        with self.guard:
            return self.files[request.fields(form)[0]]

    def _open(self, node: _Node, flags: int) -> _File:
        is_writable = flags & os.O_ACCMODE != os.O_RDONLY
        file = _File(node, os.open(node.path, os.O_RDWR if is_writable else os.O_RDONLY), is_writable)
        with self.guard:
            node.opens += 1
            self.files[file.fd] = file
        return file

    def create(self, request: Request) -> bytes:
        (flags, mode, _, _), name = request.take("IIII")
        with self._changing(request.nodeid) as parent:
            wanted = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_EXCL
            try:
                os.close(os.open(name[:-1], wanted, stat.S_IMODE(mode), dir_fd=parent.fd))
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
            else:
                self._give(request, parent, name[:-1])
            entry = self._enter(parent, name[:-1])
            file = self._open(self._node(struct.unpack_from("=Q", entry)[0]), flags)
            return entry + struct.pack("=QII", file.fd, 0, 0)

    def open(self, request: Request) -> bytes:
        flags, _ = request.fields("II")
        node = self._node(request.nodeid)
        if node.is_gone or not (node.is_current(self.ttl) or node.asks_again(request.pid)):
            raise OSError(errno.ESTALE, "another file has its name")
        file = self._open(node, flags)
        self.connection.renew(request.nodeid, pages=False)  # without FOPEN_KEEP_CACHE, the pages go anyway
        return struct.pack("=QII", file.fd, 0, 0)

    def read(self, request: Request) -> bytes:
        _, offset, size = request.fields("QQI")
        file = self._file(request, "Q")
        if self.held is not None and file.node.name.startswith(b"slow-to-read"):
            self.released.wait()
        with file.node.lock:
            if not file.node.unwritten:
                return os.pread(file.fd, size, offset)
            whole = file.node.size(os.fstat(file.fd))
            data = bytearray(os.pread(file.fd, size, offset).ljust(max(0, min(size, whole - offset)), b"\0"))
            for begin, part in file.node.unwritten:
                first, last = max(begin, offset), min(begin + len(part), offset + len(data))
                if first < last:
                    data[first - offset : last - offset] = part[first - begin : last - begin]
            return bytes(data)

    def write(self, request: Request) -> bytes:
        (_, offset, size, _, _, flags, _), data = request.take("QQIIQII")
        file = self._file(request, "Q")
        with file.node.lock:
            file.node.unwritten.append((offset, data[:size]))
            if flags & os.O_DIRECT:
                self._write_through(file.node)
        return struct.pack("=II", size, 0)

    def _write_through(self, node: _Node) -> None:
        """Give the server what it does not have; the caller has the lock of the node."""
        if node.unwritten:
            fd = os.open(node.path, os.O_WRONLY)
            try:
                for offset, data in node.unwritten:
                    os.pwrite(fd, data, offset)
            finally:
                node.unwritten.clear()
                os.close(fd)

    def fsync(self, request: Request) -> None:
        file = self._file(request, "Q")
        with file.node.lock:
            self._write_through(file.node)
        os.fsync(file.fd)

    def flush(self, request: Request) -> None:
        file = self._file(request, "Q")
        if file.is_writable:
            with file.node.lock:
                self._write_through(file.node)

    def release(self, request: Request) -> None:
        with self.guard:
            file = self.files.pop(*request.fields("Q"))
            file.node.opens -= 1
            is_last = not file.node.opens
        with file.node.lock:
            while is_last and file.node.hidden:
                parent, name = file.node.hidden.pop()
                with suppress(OSError):
                    os.unlink(name, dir_fd=parent.fd)
        os.close(file.fd)

    # Directories

    def opendir(self, request: Request) -> bytes:
        node = self._node(request.nodeid)
        if node.is_gone:
            raise OSError(errno.ESTALE, "removed")
        node.absent.clear()
        file = _File(node, os.open(node.path, os.O_RDONLY | os.O_DIRECTORY))
        with self.guard:
            self.files[file.fd] = file
        self.connection.renew(request.nodeid, pages=False)
        return struct.pack("=QII", file.fd, 0, 0)

    def readdir(self, request: Request) -> bytes:
        _, offset, size = request.fields("QQI")
        file = self._file(request, "Q")
        if not offset:
            with os.scandir(file.fd) as names:
                file.names = list(names)  # type: ignore[arg-type]
        rows = []
        for number, entry in enumerate(file.names[offset:], offset + 1):
            mode = stat.S_IFLNK if entry.is_symlink() else stat.S_IFDIR if entry.is_dir() else stat.S_IFREG
            rows.append((entry.inode(), number, os.fsencode(entry.name), mode))
        return wire.packed_names(rows, size)

    def releasedir(self, request: Request) -> None:
        with self.guard:
            os.close(self.files.pop(*request.fields("Q")).fd)

    def fsyncdir(self, request: Request) -> None:
        os.fsync(self._file(request, "Q").fd)

    # Locks

    def _take_lock(self, request: Request) -> tuple[_File, bytes]:
        if self.locks == "none":
            raise OSError(errno.ENOLCK, "no locks")
        _, _, start, end, kind, _, _, _ = request.fields("QQQQIIII")
        length = 0 if end >= _END else end - start + 1
        return self._file(request, "Q"), struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)

    def getlk(self, request: Request) -> bytes:
        file, lock = self._take_lock(request)
        found = fcntl.fcntl(file.fd, fcntl.F_OFD_GETLK, lock)
        kind, _, start, length, _ = struct.unpack(_FLOCK, found)
        return struct.pack("=QQII", start, start + length - 1 if length else _END, kind, 0)

    def setlk(self, request: Request) -> None:
        file, lock = self._take_lock(request)
        with file.node.lock:
            self._write_through(file.node)
        fcntl.fcntl(file.fd, fcntl.F_OFD_SETLK, lock)
        if struct.unpack(_FLOCK, lock)[0] != fcntl.F_UNLCK:
            self.connection.renew(request.nodeid, pages=True)

    def setlkw(self, request: Request) -> None:
        while True:
            with suppress(BlockingIOError):
                return self.setlk(request)
            with self.guard:
                if request.unique in self.interrupted:
                    self.interrupted.discard(request.unique)
                    raise InterruptedError(errno.EINTR, "interrupted")
            time.sleep(_RETRY)

    def interrupt(self, request: Request) -> None:
        with self.guard:
            self.interrupted.update(request.fields("Q"))

    # The rest

    def statfs(self, request: Request) -> bytes:
        room = os.statvfs(self._node(_ROOT).path)
        blocks = room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree
        return struct.pack("=5Q4I24x", *blocks, room.f_bsize, room.f_namemax, room.f_frsize, 0)

    def getxattr(self, request: Request) -> bytes:
        (size, _), name = request.take("II")
        return _sized(os.getxattr(self._node(request.nodeid).path, name[:-1]), size)

    def listxattr(self, request: Request) -> bytes:
        (size, _) = request.fields("II")
        names = os.listxattr(self._node(request.nodeid).path)
        return _sized(b"".join(os.fsencode(name) + b"\0" for name in names), size)

    def setxattr(self, request: Request) -> None:
        (size, flags), rest = request.take("II")
        name, _, value = rest.partition(b"\0")
        os.setxattr(self._node(request.nodeid).path, name, value[:size], flags)

    def removexattr(self, request: Request) -> None:
        os.removexattr(self._node(request.nodeid).path, request.body[:-1])


def _sized(value: bytes, size: int) -> bytes:
    if not size:
        return struct.pack("=II", len(value), 0)
    if len(value) > size:
        raise OSError(errno.ERANGE, "larger")
    return value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--locks", choices=["forwarded", "local", "none"], default="forwarded")
    parser.add_argument("--ttl", type=float, default=TTL)
    parser.add_argument("--held", type=int)
    parser.add_argument("directory")
    parser.add_argument("place")
    options = parser.parse_args()
    os.umask(0)
    _Client(options.directory, options.place, options.locks, options.ttl, options.held).run()


if __name__ == "__main__":
    main()
