"""The do-nothing filesystem for writers: what the kernel, libfuse and pyfuse3 can take on this machine, and no more.

It takes every new directory and every new file, keeps their names and sizes in a dictionary, and drops the bytes, but
not those of metadata documents, which a library reads again. Files are opened as shardfs opens chunk files, directly: a
write of a program is a request, up to the largest that there is. Nothing waits, and no object is made that could
have been kept.
"""

from __future__ import annotations

import argparse
import errno
import stat
from pathlib import Path

import pyfuse3
import trio

from .do_nothing import ROOT, attributes


class DoNothingWriting(pyfuse3.Operations):
    """Answers every request of a program that makes directories and files."""

    enable_writeback_cache = False

    def __init__(self) -> None:
        super().__init__()
        self._inodes: dict[tuple[int, bytes], int] = {}
        self._sizes: dict[int, int] = {}
        """Of files only; whatever else has a number is a directory."""
        self._documents: dict[int, bytearray] = {}
        self._last = int(ROOT)
        # The reply is sent before another request is read, so one object of each kind serves all requests.
        self._directory = attributes(stat.S_IFDIR | 0o755, 0)
        self._file = attributes(stat.S_IFREG | 0o644, 0)
        self._statvfs = pyfuse3.StatvfsData()
        self._nothing = attributes(0, 0)
        self._nothing.entry_timeout = self._file.entry_timeout = 0.0  # as shardfs has to say it to writers

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        size = self._sizes.get(inode)
        if size is None:
            entry = self._directory
        else:
            entry = self._file
            entry.st_size = size
        entry.st_ino = pyfuse3.InodeT(inode)
        return entry

    def _make(self, parent: int, name: bytes) -> int:
        self._last += 1
        self._inodes[parent, name] = self._last
        return self._last

    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Find a name in the dictionary; number 0 stands for none, which costs less than an error."""
        inode = self._inodes.get((parent_inode, name))
        return self._nothing if inode is None else self._entry(inode)

    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Tell a file by its size."""
        return self._entry(inode)

    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Take a size, and nothing else."""
        if fields.update_size:
            self._sizes[inode] = attr.st_size
        return self._entry(inode)

    async def mkdir(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Give the name a number."""
        return self._entry(self._make(parent_inode, name))

    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Give the name a number and a size, and use the number as the handle."""
        inode = self._make(parent_inode, name)
        self._sizes[inode] = 0
        if name.startswith(b"zarr."):
            self._documents[inode] = bytearray()
        return self._opened(inode), self._entry(inode)

    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Use the number as the handle."""
        return self._opened(inode)

    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        """Keep the size and drop the bytes, unless it is a document."""
        if fh in self._documents:
            self._documents[fh][off : off + len(buf)] = buf
        self._sizes[fh] = max(self._sizes[fh], off + len(buf))
        return len(buf)

    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        """Return what a document holds."""
        return bytes(self._documents[fh][off : off + size])

    async def rename(
        self,
        parent_inode_old: pyfuse3.InodeT,
        name_old: pyfuse3.FileNameT,
        parent_inode_new: pyfuse3.InodeT,
        name_new: pyfuse3.FileNameT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Give the number another name."""
        self._inodes[parent_inode_new, name_new] = self._inodes.pop((parent_inode_old, name_old))

    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Give the number one more name."""
        self._inodes[new_parent_inode, new_name] = inode
        return self._entry(inode)

    async def unlink(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        """Forget the name."""
        del self._inodes[parent_inode, name]

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Answer, as who publishes at a flush must: with ENOSYS the kernel would stop asking."""

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Forget nothing, because nothing was remembered."""

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Have no room, which nobody asks for."""
        return self._statvfs

    async def access(self, inode: pyfuse3.InodeT, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """Refuse, so that the kernel asks only once."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    def _opened(self, inode: int) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(inode), direct_io=True)


def main() -> None:
    """Mount, and serve until somebody unmounts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("mountpoint", type=Path)
    arguments = parser.parse_args()
    options = {*pyfuse3.default_options, "rw", "fsname=do-nothing", "subtype=do-nothing"}
    pyfuse3.init(DoNothingWriting(), str(arguments.mountpoint), options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
