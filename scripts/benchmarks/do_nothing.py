"""The do-nothing filesystem: what the kernel, libfuse and pyfuse3 can serve on this machine, and no more.

Its tree has the shape of one unsharded array (`zarr.json` and `c/i/j/k`), so that a client cannot tell it from
the real thing except by the bytes, which are always the same ones. No request looks anything up, waits or makes
an object that it could have kept: what a client sees here is the ceiling for every filesystem on pyfuse3.

Inodes are arithmetic. After the root and the document come the levels of the chunk tree, one after the other:
`c`, then every `c/i`, then every `c/i/j`, and the chunk files last.
"""

from __future__ import annotations

import argparse
import errno
import math
import stat
import time
from bisect import bisect_right
from pathlib import Path
from typing import cast

import pyfuse3
import trio

ROOT = pyfuse3.ROOT_INODE
DOCUMENT = ROOT + 1
CHUNKS = ROOT + 2
TIMEOUT = 1.0
"""Seconds for which the kernel keeps names and attributes: what a local shardfs mount says by default."""


class DoNothing(pyfuse3.Operations):
    """Answers every request of a reader from constants."""

    def __init__(self, grid: tuple[int, ...], size: int, document: bytes) -> None:
        super().__init__()
        self._widths = grid
        self._names = [[b"%d" % i for i in range(width)] for width in grid]
        counts = [math.prod(grid[:level]) for level in range(len(grid) + 1)]
        self._first = [CHUNKS + sum(counts[:level]) for level in range(len(grid) + 1)]
        self._leaf_directories, self._files = self._first[-2:]
        self._chunk = memoryview(bytes(range(256)) * (size // 256) + bytes(size % 256))
        self._document = memoryview(document)
        # The reply is sent before another request is read, so one object of each kind serves all requests.
        self._directory = attributes(stat.S_IFDIR | 0o755, 0)
        self._file = attributes(stat.S_IFREG | 0o644, size)
        self._document_entry = attributes(stat.S_IFREG | 0o644, len(document))
        self._open_chunk = pyfuse3.FileInfo(fh=self._files, direct_io=True)
        self._open_document = pyfuse3.FileInfo(fh=DOCUMENT)
        self._statvfs = pyfuse3.StatvfsData()

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        if inode >= self._files:
            entry = self._file
        elif inode == DOCUMENT:
            entry = self._document_entry
        else:
            entry = self._directory
        entry.st_ino = pyfuse3.InodeT(inode)
        return entry

    def _children(self, directory: int) -> tuple[int, list[bytes]]:
        """The inode of a chunk directory's first child, and the names of its children."""
        level = bisect_right(self._first, directory) - 1
        names = self._names[level]
        return self._first[level + 1] + (directory - self._first[level]) * len(names), names

    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Add the name to the inode of the directory's first child."""
        if parent_inode == ROOT:
            if name == b"c":
                return self._entry(CHUNKS)
            if name == b"zarr.json":
                return self._entry(DOCUMENT)
        else:
            first, names = self._children(parent_inode)
            if name.isdigit() and (position := int(name)) < len(names):
                return self._entry(first + position)
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Tell the kind by the range that the inode lies in."""
        return self._entry(inode)

    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Give every chunk file the same handle."""
        return self._open_document if inode == DOCUMENT else self._open_chunk

    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        """Answer without a copy."""
        content = self._document if fh == DOCUMENT else self._chunk
        return cast(bytes, content[off : off + size])

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Refuse, so that the kernel asks only once: there is nothing to flush on a read-only mount."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Forget nothing, because nothing was remembered."""

    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        """Use the inode as the handle."""
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List from the cookie, which is the position of the next name."""
        if fh == ROOT:
            for position, (name, inode) in enumerate(((b"c", CHUNKS), (b"zarr.json", DOCUMENT)), 1):
                if position > start_id and not pyfuse3.readdir_reply(
                    token, pyfuse3.FileNameT(name), self._entry(inode), position
                ):
                    return
            return
        first, names = self._children(fh)
        entry = self._entry(first)
        for position in range(start_id, len(names)):
            entry.st_ino = pyfuse3.InodeT(first + position)
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(names[position]), entry, position + 1):
                return

    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        """Forget nothing, because nothing was remembered."""

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Answer `find`, which asks for the type of the filesystem."""
        return self._statvfs


def attributes(mode: int, size: int) -> pyfuse3.EntryAttributes:
    """Attributes of something new, which the kernel may keep for a while."""
    entry = pyfuse3.EntryAttributes()
    entry.st_mode = pyfuse3.ModeT(mode)
    entry.st_size = size
    entry.st_blocks = -(-size // 512)
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = time.time_ns()
    entry.entry_timeout = entry.attr_timeout = TIMEOUT
    return entry


def main() -> None:
    """Mount, and serve until somebody unmounts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--grid", required=True, help="number of inner chunks along each axis: 8,8,16")
    parser.add_argument("--size", type=int, required=True, help="bytes in every chunk file")
    parser.add_argument("--document", type=Path, required=True, help="what zarr.json says")
    arguments = parser.parse_args()
    grid = tuple(int(width) for width in arguments.grid.split(","))
    operations = DoNothing(grid, arguments.size, arguments.document.read_bytes())
    options = {*pyfuse3.default_options, "ro", "fsname=do-nothing", "subtype=do-nothing"}
    pyfuse3.init(operations, str(arguments.mountpoint), options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
