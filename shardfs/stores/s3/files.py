"""Files that pass through, open: objects that are read, and spools, to which files are written."""

from shardfs.errors import ReadOnlyError
from shardfs.stores.base import Buffer, Snapshot, Stat
from shardfs.stores.s3.shown import Shown
from shardfs.stores.s3.spools import Spool, Spools


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

    async def flush(self) -> None:
        """Return: nothing was written."""

    async def sync(self) -> None:
        """Return: nothing was written."""

    async def close(self) -> None:
        """Return: there is nothing to let go of."""

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


class SpoolFile:
    """A spool, open; it has as many users as such files are open to write."""

    __slots__ = ("_is_writer", "_shown", "_spool", "_spools")

    def __init__(self, spools: Spools, spool: Spool, shown: Shown, *, writable: bool) -> None:
        self._spools = spools
        self._spool = spool
        self._shown = shown
        self._is_writer = writable
        spool.users += writable

    def stat(self) -> Stat:
        """Return the present state."""
        return self._spool.stat()

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        spool = self._spool
        if spool.file is not None:
            return await spool.file.read(offset, nbytes)
        if spool.snapshot is None:
            return b""
        if not spool.is_gone:
            self._shown.note(spool.key, spool.snapshot.object)
        return await spool.snapshot.read_live(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*."""
        return await self._spools.write(self._spool, offset, data)

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        await self._spools.truncate(self._spool, nbytes)

    async def flush(self) -> None:
        """Store what was written; a file that is empty waits for what follows."""
        await self._spools.flush(self._spool)

    async def sync(self) -> None:
        """Store what was written."""
        await self._spools.flush(self._spool, also_fresh=True)

    async def close(self) -> None:
        """Let go of the file; what storing was not tried of is stored now."""
        if self._is_writer:
            self._is_writer = False
            await self._spools.close(self._spool)

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Set the time of what is being written; objects have no attributes that can be set."""
        if mtime_ns is not None and self._spool.is_here:
            self._spool.mtime_ns = mtime_ns
        return self._spool.stat()
