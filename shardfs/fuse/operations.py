"""FUSE requests: one short method each, and the only place where errors become errnos."""

import errno
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import pyfuse3
from pyfuse3 import (
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    InodeT,
    ModeT,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from shardfs.dataset.statistics import Statistics, StatisticsSnapshot
from shardfs.errors import InternalError, RefusedError, ShardfsError
from shardfs.fuse import control
from shardfs.fuse.options import MountOptions
from shardfs.stores.base import Kind, NewAttributes, join_key
from shardfs.stores.ttl import begin_request
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import Attributes, Owner
from shardfs.vfs.writable import WritableFilesystem
from shardfs.vfs.write_buffer import WriteBuffer

log = logging.getLogger(__name__)

_ALL_IDS: Final = 2**32 - 1

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound="Operations")  # noqa: E741

_EXPECTED: Final = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.ESTALE,
        errno.ENODATA,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EXDEV,
        errno.EOPNOTSUPP,
    }
)
"""Errors that programs meet every day and know how to handle: they are not logged."""


def request(
    handler: Callable[Concatenate[O, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[O, P], Coroutine[Any, Any, R]]:
    """Count a request, and turn every error of its handler into an errno.

    pyfuse3 ends the mount on any exception except its own. An unexpected exception is logged with its traceback and
    becomes EIO.
    """
    name = handler.__name__
    parameters = handler.__code__.co_varnames[1 : handler.__code__.co_argcount]

    async def answered(self: O, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.statistics.requests[name] += 1
        self.pending += 1
        begin_request()
        try:
            return await handler(self, *args, **kwargs)
        except ShardfsError as error:
            number = error.errno
            if number not in _EXPECTED:
                path = _path_of(self.fs, dict(zip(parameters, args, strict=False)))
                message = f"{name}: {error}" if not path or path in str(error) else f"{name}: {error} ({path})"
                fault = error.__cause__ if isinstance(error, InternalError) else None
                log.error("%s", message, exc_info=fault)  # noqa: TRY400 - a deliberate error needs no traceback
        except pyfuse3.FUSEError as error:
            number = error.errno
        except Exception:
            path = _path_of(self.fs, dict(zip(parameters, args, strict=False)))
            log.exception("%s failed unexpectedly (%s)", name, path)
            number = errno.EIO
        finally:
            self.pending -= 1
        if number != errno.ENOSYS:  # with which `flush` tells the kernel to stop asking
            self.statistics.errors[errno.errorcode[number]] += 1
        raise pyfuse3.FUSEError(number)

    update_wrapper(answered, handler)
    return answered


class Operations(pyfuse3.Operations):
    """The read-only requests of a filesystem; *pending* counts those that are not answered yet.

    *metrics* takes a snapshot. Of *options*, the requests use owner and mode to show, and whether the kernel caches
    chunk files; without `page_cache`, chunk files are read directly, in large pieces.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self, fs: Filesystem, statistics: Statistics, metrics: Callable[[], StatisticsSnapshot], options: MountOptions
    ) -> None:
        super().__init__()
        self.statistics = statistics
        self._metrics = metrics
        self.pending = 0
        self.fs = fs
        self._options = options
        self._uids = _stand_ins("uid", os.geteuid())
        self._gids = _stand_ins("gid", os.getegid())

    @request
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        """Look a name up; that a name does not exist is an answer too, which the kernel may cache."""
        return self._entry(await self.fs.lookup(parent_inode, name))

    @request
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        """Return attributes."""
        return self._entry(await self.fs.attributes(inode))

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Drop references of the kernel."""
        for inode, lookups in inode_list:
            self.fs.drop_references(inode, lookups)

    @request
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        """Open a file for reading; the kernel refuses writing, because the mount is read-only."""
        number, handle = await self.fs.open(inode)
        direct = handle.is_direct and (not self._options.page_cache or handle.attributes.repeats)
        if handle.is_direct and not direct:
            handle.get_pages()
        return FileInfo(fh=FileHandleT(number), direct_io=direct, keep_cache=handle.is_direct)

    @request
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Read from an open file."""
        data = await self.fs.open_files[fh].read(off, size)
        self.statistics.bytes_read += len(data)
        return cast(bytes, data)

    @request
    async def flush(self, fh: FileHandleT) -> None:
        """Inform the kernel that flush is not needed, because the mount is read-only."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @request
    async def release(self, fh: FileHandleT) -> None:
        """Close an open file."""
        await self.fs.close(fh)

    @request
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Open a directory."""
        return FileHandleT(self.fs.open_directory(inode))

    @request
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List an open directory, with attributes, until the reply is full."""
        directory = self.fs.open_directories[fh]
        await directory.seek(start_id)
        reply = pyfuse3.readdir_reply
        is_empty = True
        while True:
            try:
                batch = await directory.next_batch()
            except ShardfsError:
                if is_empty:
                    raise
                return  # the kernel took these names, and continues after them
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
        return FileNameT(await self.fs.ask(inode, lambda entry: entry.read_link()))

    @request
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return an extended attribute; those that control the mount are not listed."""
        if inode == pyfuse3.ROOT_INODE and name == control.METRICS.encode():
            return self._metrics().encode()
        if inode == pyfuse3.ROOT_INODE and name == control.PID.encode():
            return b"%d" % os.getpid()
        return await self.fs.ask(inode, lambda entry: entry.attribute(name))

    @request
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """Return the names of the extended attributes."""
        names = await self.fs.ask(inode, lambda entry: entry.attribute_names())
        return [XAttrNameT(name) for name in names]

    @request
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Return sizes and free space of the store."""
        room = await self.fs.store.capacity()
        data = StatvfsData()
        data.f_bsize = data.f_frsize = room.f_frsize
        data.f_blocks, data.f_bfree, data.f_bavail = room.f_blocks, room.f_bfree, room.f_bavail
        data.f_files, data.f_ffree, data.f_favail = room.f_files, room.f_ffree, room.f_favail
        data.f_namemax = room.f_namemax
        return data

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Convert attributes for pyfuse3."""
        ino, size, ttl, status, mtime_ns, _ = attributes
        options, is_directory = self._options, status.kind is Kind.DIRECTORY
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = InodeT(ino)
        entry.st_mode = ModeT(status.mode)
        if options.umask is not None:
            is_run = is_directory or status.mode & 0o111
            entry.st_mode = ModeT(stat.S_IFMT(status.mode) | (0o777 if is_run else 0o666) & ~options.umask)
        entry.st_nlink = 1 if is_directory else status.nlink  # links of a directory are not counted
        entry.st_uid = self._uids.get(status.uid, status.uid) if options.uid is None else options.uid
        entry.st_gid = self._gids.get(status.gid, status.gid) if options.gid is None else options.gid
        entry.st_rdev = status.rdev
        entry.st_size = size
        entry.st_blocks = (size + 511) >> 9
        entry.attr_timeout = entry.entry_timeout = ttl
        entry.st_atime_ns = status.atime_ns
        entry.st_mtime_ns = status.mtime_ns if mtime_ns is None else mtime_ns
        entry.st_ctime_ns = status.ctime_ns
        return entry


class WritingOperations(Operations):
    """All requests, of a mount that may be written to."""

    fs: WritableFilesystem

    def __init__(
        self,
        fs: WritableFilesystem,
        statistics: Statistics,
        metrics: Callable[[], StatisticsSnapshot],
        options: MountOptions,
    ) -> None:
        super().__init__(fs, statistics, metrics, options)

    @request
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        """Open a file."""
        if flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC:
            number, handle = await self.fs.open(inode)
            if handle.is_late:
                pyfuse3.invalidate_inode(inode, attr_only=True)  # it may have the size of the replaced version
            direct = not self.fs.gives_pages(handle, chunks=self._options.page_cache)
            return FileInfo(fh=FileHandleT(number), direct_io=direct, keep_cache=False)
        number, is_direct = await self.fs.open_to_write(inode, flags)
        return _opened_to_write(number, is_direct)

    @request
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, pyfuse3.EntryAttributes]:
        """Create a file and open it."""
        number, attributes, is_direct = await self.fs.create(parent_inode, name, mode, flags, Owner(ctx.uid, ctx.gid))
        return _opened_to_write(number, is_direct), self._entry(attributes)

    @request
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Write to an open file."""
        await self.fs.open_files[fh].write(off, buf)
        return len(buf)

    @request
    async def flush(self, fh: FileHandleT) -> None:
        """Publish what was written: a descriptor is being closed."""
        handle = self.fs.open_files[fh]
        await handle.flush()
        if isinstance(handle, WriteBuffer) and handle.is_still_empty():
            raise pyfuse3.FUSEError(errno.EINVAL)  # it is logged at the end, if nothing is written before

    @request
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Publish what was written to an open file, and make it durable."""
        await self.fs.sync(fh)

    @request
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Make durable everything that was published."""
        await self.fs.sync_directory(self.fs.open_directories[fh].ino)

    @request
    async def setattr(
        self,
        inode: InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change attributes."""
        changes: NewAttributes = {
            "mode": attr.st_mode & 0o7777 if fields.update_mode else None,
            "uid": attr.st_uid if fields.update_uid else None,
            "gid": attr.st_gid if fields.update_gid else None,
            "atime_ns": attr.st_atime_ns if fields.update_atime else None,
            "mtime_ns": attr.st_mtime_ns if fields.update_mtime else None,
        }
        changed = await self.fs.truncate(inode, fh, attr.st_size) if fields.update_size else None
        if any(value is not None for value in changes.values()):
            await self.fs.set_attributes(inode, changes)
            changed = None
        return self._entry(changed or await self.fs.attributes(inode))

    @request
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove a file."""
        await self.fs.unlink(parent_inode, name)

    @request
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        """Move a file or a directory."""
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise RefusedError("two names cannot be exchanged")
        await self.fs.rename(
            parent_inode_old,
            name_old,
            parent_inode_new,
            name_new,
            exclusive=bool(flags & pyfuse3.RENAME_NOREPLACE),
        )

    @request
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Give a file a second name."""
        return self._entry(await self.fs.link(inode, new_parent_inode, new_name))

    @request
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a symbolic link."""
        return self._entry(await self.fs.symlink(parent_inode, name, target))

    @request
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a directory."""
        return self._entry(await self.fs.mkdir(parent_inode, name, mode, Owner(ctx.uid, ctx.gid)))

    @request
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove an empty directory."""
        await self.fs.rmdir(parent_inode, name)

    @request
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a regular file, as opening and closing it does; refuse pipes, sockets and devices."""
        if not stat.S_ISREG(mode):
            raise pyfuse3.FUSEError(errno.EPERM)
        file, entry = await self.create(parent_inode, name, mode, FlagT(os.O_WRONLY | os.O_EXCL), ctx)
        try:
            try:
                await self.flush(file.fh)
            finally:
                await self.release(file.fh)
        except BaseException:
            self.fs.drop_references(entry.st_ino, 1)
            raise
        return entry

    @request
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        """Set an extended attribute; one of the root commits everything that is pending."""
        if inode == pyfuse3.ROOT_INODE and name == control.FLUSH.encode():
            await self.fs.flush_all()
        else:
            await self.fs.set_attribute(inode, name, value)

    @request
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        """Remove an extended attribute."""
        await self.fs.set_attribute(inode, name, None)

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = super()._entry(attributes)
        if attributes.status.kind is not Kind.DIRECTORY:
            # A rename or a link may give the name to another file. To tell the kernel so when it happens would need the
            # lock of the directory: whoever holds it waits for us, and if we are killed then, both wait for ever.
            entry.entry_timeout = 0.0
        return entry


def _stand_ins(kind: str, own: int) -> Mapping[int, int]:
    """Return what is shown in place of the owner ("uid") or group ("gid") of files that a user namespace does not know.

    It is our *own*: the kernel lets nobody write files whose owner or group has no number, not even their owner. What
    this process may not do to the file is refused by the source.
    """
    with open(f"/proc/self/{kind}_map", encoding="ascii") as lines:
        known = [range(first, first + count) for first, _, count in (map(int, line.split()) for line in lines)]
    with open(f"/proc/sys/kernel/overflow{kind}", encoding="ascii") as file:
        unknown = int(file.read())
    knows_all = sum(map(len, known)) >= _ALL_IDS
    return {} if knows_all or any(unknown in ids for ids in known) else {unknown: own}


def _path_of(fs: Filesystem, arguments: Mapping[str, Any]) -> str:
    """Return the path, or the two paths, that a request is about, from its arguments."""
    paths, directory = [], ""
    is_in_directory = any("parent" in name for name in arguments)  # else it is the name of an attribute
    for name, value in arguments.items():
        if "parent" in name:
            directory = fs.path_of(value)
        elif name.startswith(("name", "new_name")) and is_in_directory:
            paths.append(join_key(directory, os.fsdecode(value)))
        elif name == "inode":
            paths.append(fs.path_of(value))
        elif name == "fh" and value is not None and not paths:
            paths.append(fs.path_of_handle(value))
    return ", ".join(path for path in paths if path)


def _opened_to_write(number: int, is_direct: bool) -> FileInfo:
    # Regardless of `--page-cache`: what is written to a mapping after the last close would never be published.
    return FileInfo(fh=FileHandleT(number), direct_io=is_direct, keep_cache=False)
