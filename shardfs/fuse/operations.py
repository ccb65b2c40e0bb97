"""FUSE requests: one short method each."""

import errno
import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast

import pyfuse3
from pyfuse3 import FileHandleT, FileInfo, FileNameT, InodeT, ModeT, RequestContext, StatvfsData, XAttrNameT

from shardfs.dataset.statistics import Statistics
from shardfs.errors import ShardfsError
from shardfs.fuse import control
from shardfs.fuse.errno import request
from shardfs.stores.base import Kind, Stat
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.filesystem import Filesystem

_MAX_ENTRIES: Final = 1024

T = TypeVar("T")


class Operations(pyfuse3.Operations):
    """The read-only requests, answered from a tree; *pending* are those that have no answer yet.

    *page_cache* lets the kernel keep chunk files too; without it they are read directly, in large pieces.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, fs: Filesystem, statistics: Statistics, *, page_cache: bool) -> None:
        super().__init__()
        self.statistics = statistics
        self.pending = 0
        self.fs = fs
        self._page_cache = page_cache
        self._entries: dict[int, tuple[Stat, pyfuse3.EntryAttributes]] = {}

    @request
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        """Find a name; one that stands for nothing is answered so that the kernel remembers it."""
        return self._entry(await self.fs.lookup(parent_inode, name))

    @request
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        """Return attributes."""
        return self._entry(await self.fs.attributes(inode))

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Take back references."""
        for inode, lookups in inode_list:
            self.fs.forget(inode, lookups)

    @request
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        """Open a file; the kernel has refused to write already, as the mount is read-only."""
        number, handle = await self.fs.open(inode)
        direct = handle.is_chunk and not self._page_cache
        return FileInfo(fh=FileHandleT(number), direct_io=direct, keep_cache=handle.is_chunk)

    @request
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Read from an open file."""
        data = await self.fs.file(fh).read(off, size)
        self.statistics.bytes_read += len(data)
        return cast(bytes, data)

    @request
    async def flush(self, fh: FileHandleT) -> None:
        """Say that there is nothing to flush, which makes the kernel stop asking: the mount is read-only."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @request
    async def release(self, fh: FileHandleT) -> None:
        """Close an open file."""
        self.fs.close(fh)

    @request
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Open a directory."""
        return FileHandleT(self.fs.open_directory(inode))

    @request
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List an open directory, with attributes, as far as the reply has room."""
        directory = self.fs.directory(fh)
        await directory.seek(start_id)
        reply = pyfuse3.readdir_reply
        is_empty = True
        while True:
            try:
                batch = await directory.next_batch()
            except ShardfsError:
                if is_empty:
                    raise
                return  # the kernel knows of these names, and asks again behind them
            if batch is None:
                return
            entry = self._entry(batch.attributes)
            listed = batch.attributes.size
            for name, ino, size, cookie in batch.rows:
                entry.st_ino = ino
                if size != listed:
                    entry.st_size = listed = size
                    entry.st_blocks = (size + 511) >> 9
                if not reply(token, name, entry, cookie):
                    return
                is_empty = False
                if batch.is_counted:
                    self.fs.retain(ino)

    @request
    async def releasedir(self, fh: FileHandleT) -> None:
        """Close an open directory."""
        await self.fs.close_directory(fh)

    @request
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """Return the target of a symbolic link."""
        return FileNameT(await self._settled(partial(self.fs.read_link, inode)))

    @request
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return an extended attribute; those of the root that control the mount are not listed."""
        if inode == pyfuse3.ROOT_INODE and name == control.STATISTICS.encode():
            counts = self.statistics.as_dict()
            stored = self.fs.store.statistics()
            return json.dumps(counts | {"store": stored} if stored else counts).encode()
        if inode == pyfuse3.ROOT_INODE and name == control.PID.encode():
            return b"%d" % os.getpid()
        if inode == pyfuse3.ROOT_INODE and name == control.DAEMON.encode():
            return self.daemon().encode()
        return await self._settled(partial(self.fs.attribute, inode, name))

    @request
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """Return the names of the extended attributes."""
        return [XAttrNameT(name) for name in await self._settled(partial(self.fs.attribute_names, inode))]

    async def _settled(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what *look* finds by a number, while nothing moves what that stands for."""
        return await look()

    @request
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Return the room in the store."""
        room = await self.fs.store.capacity()
        data = StatvfsData()
        data.f_bsize = data.f_frsize = room.block_size
        data.f_blocks, data.f_bfree, data.f_bavail = room.blocks, room.blocks_free, room.blocks_available
        data.f_files, data.f_ffree, data.f_favail = room.files, room.files_free, room.files_free
        data.f_namemax = room.name_max
        return data

    def daemon(self) -> control.Daemon:
        """Describe this process to those who wait for its end."""
        return control.Daemon(os.getpid(), control.pid_namespace(), _log_file())

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Return attributes as pyfuse3 takes them, in an object that is reused with the next ones of the same status.

        That is safe because pyfuse3 sends a reply before it runs another handler.
        """
        ino, size, ttl, status, mtime_ns = attributes
        known = self._entries.get(id(status))
        if known is not None and known[0] is status:
            entry = known[1]
        else:
            entry = _new_entry(status)
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            self._entries[id(status)] = (status, entry)
        entry.st_ino = InodeT(ino)
        entry.st_size = size
        entry.st_blocks = (size + 511) >> 9
        entry.attr_timeout = entry.entry_timeout = ttl
        entry.st_mtime_ns = status.mtime_ns if mtime_ns is None else mtime_ns
        return entry


def _log_file() -> str | None:
    """Return the path of the file that this process logs to; None if it is a terminal or a pipe."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            with suppress(OSError, ValueError):
                path = os.readlink(f"/proc/self/fd/{handler.stream.fileno()}")
                return path if os.path.isfile(path) else None
    return None


def _new_entry(status: Stat) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_mode = ModeT(status.mode)
    entry.st_nlink = 1 if status.kind is Kind.DIRECTORY else status.nlink  # the links of a directory are not counted
    entry.st_uid = status.uid
    entry.st_gid = status.gid
    entry.st_rdev = status.rdev
    entry.st_atime_ns = status.atime_ns
    entry.st_mtime_ns = status.mtime_ns
    entry.st_ctime_ns = status.ctime_ns
    return entry
