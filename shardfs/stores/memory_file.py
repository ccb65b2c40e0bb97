"""Files of a store in memory, and versions of them."""

import stat as modes
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shardfs.stores.base import Buffer, Kind, Stat
from shardfs.stores.memory import MemorySnapshot


@dataclass(slots=True, eq=False)
class MemoryFile:
    """What a name stands for, and who has it open: a file with its *data*, or a directory, which has None."""

    data: bytes | None
    mode: int
    version: int = 0
    uid: int = 0
    gid: int = 0
    atime_ns: int = field(default_factory=time.time_ns)
    mtime_ns: int = field(default_factory=time.time_ns)

    def stat(self) -> Stat:
        """Return the present state."""
        kind, of_kind = (Kind.DIRECTORY, modes.S_IFDIR) if self.data is None else (Kind.FILE, modes.S_IFREG)
        size = len(self.data or b"")
        version = (id(self), self.version)
        times = self.atime_ns, self.mtime_ns, self.mtime_ns
        return Stat(kind, size, version, str(id(self)), of_kind | self.mode, self.uid, self.gid, 1, 0, *times)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        return (self.data or b"")[offset : offset + nbytes]

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*."""
        if not data:
            return 0
        old = (self.data or b"").ljust(offset, b"\0")
        self.put(old[:offset] + bytes(data) + old[offset + len(data) :])
        return len(data)

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        self.put((self.data or b"")[:nbytes].ljust(nbytes, b"\0"))

    async def sync(self) -> None:
        """Return: nothing lasts here."""

    def put(self, data: bytes) -> None:
        """Give the file other content."""
        self.data = data
        self.version += 1
        self.mtime_ns = time.time_ns()

    async def flush(self) -> None:
        """Return: what is written is stored at once."""

    async def close(self) -> None:
        """Return: the file is closed with the last reference to it."""

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Change what is given, and return the state after it."""
        self.mode = self.mode if mode is None else modes.S_IMODE(mode)
        self.uid = self.uid if uid is None else uid
        self.gid = self.gid if gid is None else gid
        self.atime_ns = self.atime_ns if atime_ns is None else atime_ns
        self.mtime_ns = self.mtime_ns if mtime_ns is None else mtime_ns
        return self.stat()


@dataclass(frozen=True, slots=True)
class StoredSnapshot(MemorySnapshot):
    """A version of a file; *look* returns what its name stands for now."""

    look: Callable[[], Stat | None]

    async def is_current(self) -> bool:
        """Whether the name still stands for this version."""
        now = self.look()
        return now is not None and now.version == self.stat.version
