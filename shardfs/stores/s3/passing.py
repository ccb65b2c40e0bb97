"""Names of an S3 source that are made, moved and removed, and files that pass through.

S3 has neither directories nor links nor attributes that can be changed.  Directories without anything in them are known
to this process; what else programs ask for is refused in the way that they know from other file systems.
"""

from shardfs.errors import (
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    ReadOnlyError,
    RefusedError,
    UnsupportedError,
)
from shardfs.stores.base import Kind, LiveFile, Stat
from shardfs.stores.local import LocalStore
from shardfs.stores.s3.copies import Copies
from shardfs.stores.s3.live import CopyFile, ObjectFile
from shardfs.stores.s3.overlay import Overlay, is_on_side
from shardfs.stores.s3.places import local_key
from shardfs.stores.s3.renames import Renames


class PassingNames(Overlay):
    """The half of an S3 store that changes names; raises `ReadOnlyError` where there are no `copies`."""

    async def create(self, key: str, mode: int, *, exclusive: bool) -> LiveFile:
        """Open a file that passes through, and make it if there is none; it is sent a moment after it was closed."""
        side = self.changed_side(key)
        if side is not None:
            return await side.create(key, mode, exclusive=exclusive)
        copies = self.changed_copies
        try:
            status = await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            if copies.find(key) is None:
                return CopyFile(copies, *await copies.create(key))
        else:
            if status.kind is Kind.DIRECTORY and not exclusive:
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
        if exclusive:
            raise ExistsError(f"{key} exists")
        return await self.open_live(key, writable=True)

    async def open_live(self, key: str, *, writable: bool) -> LiveFile:
        """Open a file that passes through; an object that is read keeps its version, or cannot be read any more."""
        side = self.changed_side(key) if writable else self.side_of(key)
        if side is not None:
            return await side.open_live(key, writable=writable)
        copies = self.copies
        if copies is None:
            return ObjectFile(key, await self.objects.open(key))
        if copies.names.kind(key) is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key} is a directory")
        if copies.find(key) is None:
            snapshot = await self.objects.open(key)
            if not writable:
                return ObjectFile(key, snapshot)
            if copies.find(key) is None:
                return CopyFile(copies, copies.use(key, snapshot), None)
        return CopyFile(copies, *await copies.open(key))

    async def unlink(self, key: str) -> None:
        """Delete an object, and what waits to be sent in its place; its directory stays."""
        side = self.changed_side(key)
        if side is not None:
            await side.unlink(key)
            return
        copies = self.changed_copies
        async with copies.alone(key) as copy:
            if (await self.stat(key)).kind is Kind.DIRECTORY:
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
            await self.objects.delete_object(key)
            if copy is not None:
                await copies.remove(copy)
        copies.names.add(key.rpartition("/")[0], Kind.DIRECTORY)

    async def mkdir(self, key: str, mode: int) -> None:
        """Make a directory, which this process alone knows until something is in it."""
        side = self.changed_side(key)
        if side is not None:
            await side.mkdir(key, mode)
            return
        try:
            await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            self.changed_copies.names.add(key, Kind.DIRECTORY)
        else:
            raise ExistsError(f"{key or 'the source'} exists")

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory, with the object that stands for it, if there is one."""
        side = self.changed_side(key)
        if side is not None:
            await side.rmdir(key)
            return
        if not key:
            raise RefusedError("the source cannot be removed")
        if (await self.stat(key)).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{key} is no directory")
        if await self.list(key):
            raise NotEmptyError(f"{key} is not empty")
        await self.objects.delete_marker(key)
        names = self.changed_copies.names
        names.remove(key)
        names.add(key.rpartition("/")[0], Kind.DIRECTORY)

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move a name; `CrossDeviceError` for a directory with objects, which programs then copy and delete."""
        await Renames(self, self.objects, self.changed_copies).rename(key, to, exclusive=exclusive)

    async def link(self, key: str, to: str) -> None:
        """Give a file of the side a second name there; objects have one."""
        side = self.changed_side(to)
        if side is None or not is_on_side(key):
            raise NotPermittedError(f"{to}: an object has one name")
        await side.link(key, to)

    async def symlink(self, key: str, target: bytes) -> None:
        """Make a symbolic link on the side; objects are none."""
        side = self.changed_side(key)
        if side is None:
            raise NotPermittedError(f"{key}: S3 has no symbolic links")
        await side.symlink(key, target)

    async def make_directories(self, key: str) -> None:
        """Make the directory *key* and all above it that are missing."""
        side = self.changed_side(key)
        if side is not None:
            await side.make_directories(key)
            return
        try:
            status = await self.stat(key)
        except NotFoundError:
            await self.make_directories(key.rpartition("/")[0])
            self.objects.check_key(key)
            self.changed_copies.names.add(key, Kind.DIRECTORY)
        else:
            if status.kind is not Kind.DIRECTORY:
                raise NotADirectoryHereError(f"{key} is no directory")

    async def set_attributes(
        self,
        key: str,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Set the times of a file that waits to be sent; all else is accepted, and has no effect on objects."""
        side = self.changed_side(key)
        if side is not None:
            return await side.set_attributes(key, mode=mode, uid=uid, gid=gid, atime_ns=atime_ns, mtime_ns=mtime_ns)
        if self.changed_copies.find(key) is not None:
            side = self.changed_copies.side
            return await side.set_attributes(local_key(key), atime_ns=atime_ns, mtime_ns=mtime_ns)
        return await self.stat(key)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute of a name on the side; objects have none."""
        side = self.changed_side(key)
        if side is None:
            raise UnsupportedError(f"{key}: objects have no extended attributes")
        await side.set_attribute(key, name, value)

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute of a name on the side; objects have none."""
        side = self.changed_side(key)
        if side is None:
            raise UnsupportedError(f"{key}: objects have no extended attributes")
        await side.remove_attribute(key, name)

    async def sync_directory(self, key: str) -> None:
        """Make the names of files that wait to be sent durable on this machine; S3 has what it has."""
        side = self.changed_side(key)
        if side is not None:
            await side.sync_directory(key)
        else:
            await self.changed_copies.sync_names(key)

    @property
    def changed_copies(self) -> Copies:
        """The copies, which are changed; raises `ReadOnlyError` where nothing is."""
        if self.copies is None:
            raise ReadOnlyError(f"{self.url} is not open to be changed")
        return self.copies

    def changed_side(self, key: str) -> LocalStore | None:
        """Return where *key* is changed if it is a name of our own; raises `ReadOnlyError` where nothing is."""
        side = self.changed_copies.side
        return side if is_on_side(key) else None

    async def _require_directory(self, key: str) -> None:
        """Raise `NotFoundError`, or `NotADirectoryHereError`, if nothing can be made under *key*."""
        self.objects.check_key(key)
        parent = key.rpartition("/")[0]
        if (await self.stat(parent)).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{parent} is no directory")
