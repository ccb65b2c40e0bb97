"""FUSE requests that change something, one short method each."""

import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

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
    XAttrNameT,
)

from shardfs.dataset.statistics import Statistics
from shardfs.errors import RefusedError
from shardfs.fuse import control
from shardfs.fuse.errno import request
from shardfs.fuse.operations import Operations
from shardfs.stores.base import Kind
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import DocumentHandle
from shardfs.vfs.names import Owner
from shardfs.vfs.session import Session

T = TypeVar("T")

_EXCHANGE: Final = pyfuse3.RENAME_EXCHANGE
_NOREPLACE: Final = pyfuse3.RENAME_NOREPLACE


class WritingOperations(Operations):
    """All requests, of a mount that may be written to."""

    def __init__(self, fs: Filesystem, writing: Session, statistics: Statistics, *, page_cache: bool) -> None:
        super().__init__(fs, statistics, page_cache=page_cache)
        self._editor = writing.editor
        self._files = writing.files
        self._writing = writing

    @request
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        """Find a name."""
        return self._entry(await self._editor.lookup(parent_inode, name))

    @request
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        """Return attributes."""
        return self._entry(await self._editor.attributes(inode))

    @request
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        """Open a file."""
        if flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC:
            number, handle, is_late = await self._files.open_to_read(inode)
            if is_late:
                pyfuse3.invalidate_inode(inode, attr_only=True)  # it may know the size of what was replaced
            if is_late or isinstance(handle, DocumentHandle) or self._files.drafts.of_ino(inode) is not None:
                # The page cache would end at the size that the kernel knows, which may be that of what is being
                # written, by now or later on.
                return FileInfo(fh=FileHandleT(number), direct_io=True, keep_cache=False)
            return self._opened(number, handle.is_chunk)
        number, is_direct = await self._files.open(inode, flags)
        return _opened_to_write(number, is_direct)

    @request
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, pyfuse3.EntryAttributes]:
        """Make a file and open it."""
        number, attributes, is_direct = await self._files.create(parent_inode, name, mode, flags, _owner(ctx))
        return _opened_to_write(number, is_direct), self._entry(attributes)

    @request
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Write to an open file."""
        return await self._files.write(fh, off, buf)

    @request
    async def flush(self, fh: FileHandleT) -> None:
        """Publish what was written to an open file, which somebody closes."""
        await self._files.flush(fh)
        if self._files.says_nothing(fh):
            raise pyfuse3.FUSEError(errno.EINVAL)  # the log says it at the end, if nothing is written until then

    @request
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Make durable what was written to an open file."""
        await self._files.sync(fh)

    @request
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Make durable what was published."""
        await self._editor.sync_directory(self.fs.directory(fh).ino)

    @request
    async def release(self, fh: FileHandleT) -> None:
        """Close an open file."""
        await self._files.close(fh)

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
        # The object that pyfuse3 passes is its own, but those that `_entry` returns are used again: read it first.
        mode = attr.st_mode & 0o7777 if fields.update_mode else None
        uid = attr.st_uid if fields.update_uid else None
        gid = attr.st_gid if fields.update_gid else None
        atime_ns = attr.st_atime_ns if fields.update_atime else None
        mtime_ns = attr.st_mtime_ns if fields.update_mtime else None
        changed = await self._files.truncate(inode, fh, attr.st_size) if fields.update_size else None
        if any(value is not None for value in (mode, uid, gid, atime_ns, mtime_ns)):
            await self._editor.set_attributes(inode, mode=mode, uid=uid, gid=gid, atime_ns=atime_ns, mtime_ns=mtime_ns)
            changed = None
        return self._entry(changed or await self._editor.attributes(inode))

    @request
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove a file."""
        await self._editor.unlink(parent_inode, name)

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
        if flags & ~_NOREPLACE:
            raise RefusedError("names are not exchanged")
        await self._editor.rename(
            parent_inode_old,
            name_old,
            parent_inode_new,
            name_new,
            exclusive=bool(flags & _NOREPLACE),
        )

    @request
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Give a file a second name."""
        return self._entry(await self._editor.link(inode, new_parent_inode, new_name))

    @request
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a symbolic link."""
        return self._entry(await self._editor.symlink(parent_inode, name, target))

    @request
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a directory."""
        return self._entry(await self._editor.mkdir(parent_inode, name, mode, _owner(ctx)))

    @request
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove an empty directory."""
        await self._editor.rmdir(parent_inode, name)

    @request
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse pipes, sockets and devices; regular files come by `create`."""
        raise pyfuse3.FUSEError(errno.EPERM)

    @request
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        """Set an extended attribute; one of the root commits everything that is pending."""
        if inode == pyfuse3.ROOT_INODE and name == control.FLUSH.encode():
            await self._editor.flush_all()
        else:
            await self._editor.set_attribute(inode, name, value)

    @request
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        """Remove an extended attribute."""
        await self._editor.set_attribute(inode, name, None)

    def daemon(self) -> control.Daemon:
        """Describe this process, and what it writes."""
        directory = os.path.dirname(self._writing.state.path)
        return replace(
            super().daemon(),
            source=os.path.realpath(directory),
            source_id=control.id_of(directory),
            npending=self._writing.writer.committer.npending,
        )

    async def _settled(self, look: Callable[[], Awaitable[T]]) -> T:
        return await self._editor.settled(look)

    def _opened(self, number: int, is_chunk: bool) -> FileInfo:
        direct = is_chunk and not self._page_cache
        return FileInfo(fh=FileHandleT(number), direct_io=direct, keep_cache=False)

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = super()._entry(attributes)
        if attributes.status.kind is not Kind.DIRECTORY:
            entry.entry_timeout = 0.0  # a rename or a link through the mount may make the name another file's
        return entry


def _opened_to_write(number: int, is_direct: bool) -> FileInfo:
    # Whatever `--page-cache` says: what is written to a mapping after the last close is published by nobody.
    return FileInfo(fh=FileHandleT(number), direct_io=is_direct, keep_cache=False)


def _owner(ctx: RequestContext) -> Owner:
    return Owner(ctx.uid, ctx.gid)
