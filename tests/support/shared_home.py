"""A directory that hosts share as over NFS without its lock service: none sees the locks of another, or there are none.

Run as a program it passes a directory through at a mount point. The kernel keeps locks to each such mount, so that two
of them are two hosts' views of one file server. It may be slow to find names `slow-to-find…`, and to read
files `slow-to-read…`.
"""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyfuse3
import trio
from pyfuse3 import FileHandleT, FileInfo, InodeT


@contextmanager
def shared(directory: Path, place: Path, *, held: int | None = None) -> Iterator[Path]:
    """Show *directory* at *place*, as one of the hosts that share it sees it.

    What is slow is so until the other end of the pipe *held* is closed.
    """
    from tests.support.mounting import PATIENCE, environment

    place.mkdir()
    process = subprocess.Popen(
        [sys.executable, __file__, str(directory), str(place), *([] if held is None else [str(held)])],
        env=environment(),
        pass_fds=[] if held is None else [held],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield place
    finally:
        subprocess.run(["fusermount3", "-u", "-z", place], capture_output=True, check=False)
        process.communicate(timeout=PATIENCE)


class _PassThrough(pyfuse3.Operations):
    """The directory *root*; a file is known by the path at which it was looked up or moved to last."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.released = trio.Event()
        self._paths: dict[int, str] = {pyfuse3.ROOT_INODE: root}

    def _child(self, parent: InodeT, name: bytes) -> str:
        return os.path.join(self._paths[parent], os.fsdecode(name))

    def _entry(self, path: str) -> pyfuse3.EntryAttributes:
        status = os.lstat(path)
        entry = pyfuse3.EntryAttributes()
        for field in ("mode", "nlink", "uid", "gid", "rdev", "size", "atime_ns", "mtime_ns", "ctime_ns"):
            setattr(entry, f"st_{field}", getattr(status, f"st_{field}"))
        entry.st_ino = InodeT(pyfuse3.ROOT_INODE if path == self._paths[pyfuse3.ROOT_INODE] else status.st_ino)
        entry.attr_timeout = entry.entry_timeout = 0
        self._paths[entry.st_ino] = path
        return entry

    async def _wait(self, path: str, slow: str) -> None:
        if os.path.basename(path).startswith(slow):
            await self.released.wait()

    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        await self._wait(os.fsdecode(name), "slow-to-find")
        return self._entry(self._child(parent_inode, name))

    async def getattr(self, inode: InodeT, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._entry(self._paths[inode])

    async def setattr(self, inode: InodeT, attr: Any, fields: Any, fh: Any, ctx: Any) -> pyfuse3.EntryAttributes:
        path = self._paths[inode]
        if fields.update_size:
            os.truncate(path if fh is None else fh, attr.st_size)
        if fields.update_mode:
            os.chmod(path, stat.S_IMODE(attr.st_mode))
        return self._entry(path)

    async def opendir(self, inode: InodeT, ctx: Any) -> FileHandleT:
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: Any) -> None:
        path = self._paths[fh]
        for number, name in enumerate(sorted(os.listdir(path))[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, os.fsencode(name), self._entry(os.path.join(path, name)), number):
                return

    async def mkdir(self, parent_inode: InodeT, name: bytes, mode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        os.mkdir(self._child(parent_inode, name), stat.S_IMODE(mode))
        return self._entry(self._child(parent_inode, name))

    async def rmdir(self, parent_inode: InodeT, name: bytes, ctx: Any) -> None:
        os.rmdir(self._child(parent_inode, name))

    async def unlink(self, parent_inode: InodeT, name: bytes, ctx: Any) -> None:
        os.unlink(self._child(parent_inode, name))

    async def rename(self, old: InodeT, name: bytes, new: InodeT, to: bytes, flags: int, ctx: Any) -> None:
        os.rename(self._child(old, name), self._child(new, to))
        self._entry(self._child(new, to))

    async def create(self, parent: InodeT, name: bytes, mode: int, flags: int, ctx: Any) -> tuple[FileInfo, Any]:
        path = self._child(parent, name)
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, mode)
        return FileInfo(fh=FileHandleT(fd), direct_io=True), self._entry(path)

    async def open(self, inode: InodeT, flags: int, ctx: Any) -> FileInfo:
        return FileInfo(fh=FileHandleT(os.open(self._paths[inode], flags & ~os.O_CREAT)), direct_io=True)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        await self._wait(os.readlink(f"/proc/self/fd/{fh}"), "slow-to-read")
        return os.pread(fh, size, off)

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return os.pwrite(fh, buf, off)

    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        os.fsync(fh)

    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        pass

    async def flush(self, fh: FileHandleT) -> None:
        pass

    async def release(self, fh: FileHandleT) -> None:
        os.close(fh)

    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        room, data = os.statvfs(self._paths[pyfuse3.ROOT_INODE]), pyfuse3.StatvfsData()
        for field in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax"):
            setattr(data, f"f_{field}", getattr(room, f"f_{field}"))
        return data


def _with_errno(handler: Any) -> Any:
    async def handle(*arguments: Any) -> Any:
        try:
            return await handler(*arguments)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None

    return handle


async def _serve(operations: _PassThrough, held: int | None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main, 1, 1000)
        if held is not None:
            await trio.lowlevel.wait_readable(held)
        operations.released.set()


def _pass_through(directory: str, place: str, held: str | None = None) -> None:
    for name, handler in list(vars(_PassThrough).items()):
        if not name.startswith("_"):
            setattr(_PassThrough, name, _with_errno(handler))
    operations = _PassThrough(directory)
    pyfuse3.init(operations, place, {"fsname=shared", "allow_other", "default_permissions"})
    print("ready", flush=True)
    trio.run(_serve, operations, None if held is None else int(held))
    pyfuse3.close(unmount=False)


if __name__ == "__main__":
    _pass_through(*sys.argv[1:])
