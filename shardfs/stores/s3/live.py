"""Open files that pass through: objects that are read, and copies that are written."""

from shardfs.errors import ReadOnlyError
from shardfs.stores.base import Buffer, Snapshot, Stat
from shardfs.stores.local_live import LocalFile
from shardfs.stores.s3.copies import Copies, Copy


class ObjectFile:
    """An object that is open to be read: it keeps its version, or cannot be read any more."""

    __slots__ = ("_key", "_snapshot")

    def __init__(self, key: str, snapshot: Snapshot) -> None:
        self._key = key
        self._snapshot = snapshot

    def stat(self) -> Stat:
        """Return the state of the object when it was opened."""
        return self._snapshot.stat

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; raises `StaleError` if the object was replaced."""
        return await self._snapshot.read_live(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> int:
        """Refuse: the file is open to be read."""
        raise ReadOnlyError(f"{self._key} is open to be read")

    async def truncate(self, nbytes: int) -> None:
        """Refuse: the file is open to be read."""
        raise ReadOnlyError(f"{self._key} is open to be read")

    async def sync(self) -> None:
        """Return: nothing was written."""

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Return the state: objects have no attributes that can be set."""
        return self._snapshot.stat


class CopyFile:
    """A copy, open; an object that nobody changed until now is fetched with its first change.

    *file* is the local file of a copy that is here already.  A copy has as many users as such files are referenced.
    """

    __slots__ = ("_copies", "_copy", "_file")

    def __init__(self, copies: Copies, copy: Copy, file: LocalFile | None) -> None:
        self._copies = copies
        self._copy = copy
        self._file = file
        copy.users += 1

    def __del__(self) -> None:
        self._copies.release(self._copy)

    def stat(self) -> Stat:
        """Return the present state."""
        file = self._here
        if file is not None:
            return file.stat()
        assert self._copy.snapshot is not None
        return self._copy.snapshot.stat

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        file = self._here
        if file is not None:
            return await file.read(offset, nbytes)
        assert self._copy.snapshot is not None
        return await self._copy.snapshot.read_live(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*."""
        file = self._here or await self._copies.bring(self._copy)
        try:
            return await file.write(offset, data)
        finally:  # after the write: who began to send the file before has not sent it
            self._copies.changed(self._copy)

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        file = self._here or await self._copies.bring(self._copy, nbytes)
        try:
            await file.truncate(nbytes)
        finally:
            self._copies.changed(self._copy)

    async def sync(self) -> None:
        """Make what was written durable on this machine, with its name."""
        file = self._here
        if file is not None:
            await file.sync()
            await self._copies.sync_names(self._copy.key.rpartition("/")[0])

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Set the times of what is here; objects have no attributes that can be set."""
        file = self._here
        return self.stat() if file is None else file.set_attributes(atime_ns=atime_ns, mtime_ns=mtime_ns)

    @property
    def _here(self) -> LocalFile | None:
        return self._file or self._copy.file
