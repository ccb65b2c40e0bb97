"""A store in memory: the smallest one that keeps all promises, and the model that others are compared with.

Like S3 it has neither links nor extended attributes, and refuses them in the same way.
"""

import stat as modes
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from shardfs.errors import (
    ConflictError,
    ExistsError,
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    RefusedError,
    UnsupportedError,
)
from shardfs.stores.base import Address, Buffer, Capacity, Entry, Expected, Kept, Kind, Splice, Stat, join_key
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


_BLOCK: Final = 4096
_PLENTY: Final = 2**30


@dataclass(slots=True, eq=False)
class MemoryEdit:
    """A change of *key* in *store*, which is found as *snapshot*: nobody is kept from changing it meanwhile."""

    store: "MemoryStore"
    key: str
    mode: int
    snapshot: StoredSnapshot | None
    temporary: str = field(init=False, default="")
    append_alignment: int = field(init=False, default=1)
    can_delete: bool = field(init=False, default=True)
    written_nbytes: int = field(init=False, default=0)

    async def splice(self, splice: Splice) -> Stat:
        """Store the new version."""
        await self._require_unchanged()
        old = self.snapshot.data if self.snapshot is not None else memoryview(b"")
        parts: list[Buffer] = []
        for piece in splice.pieces:
            if isinstance(piece, Kept):
                parts.append(old[piece.offset : piece.offset + piece.nbytes])
            else:
                parts.append(piece.read(0, piece.nbytes))
                self.written_nbytes += piece.nbytes
        await self.store.make_directories(self.key.rpartition("/")[0])
        return await self.store.replace(self.key, b"".join(parts), mode=self.mode)

    async def delete(self) -> None:
        """Remove the file."""
        await self._require_unchanged()
        await self.store.unlink(self.key)

    async def _require_unchanged(self) -> None:
        if self.snapshot is None and not await self.store.is_absent(self.key):
            raise ConflictError(f"{self.key} was made meanwhile")
        if self.snapshot is not None and not await self.snapshot.is_current():
            raise ConflictError(f"{self.key} was changed meanwhile")


class MemoryStore:
    """Named bytes in memory."""

    root = None
    directory = None
    url = "memory://"
    address = Address("memory://")
    ttl = 0.0
    rewrites = True
    directory_stat = None

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {"": MemoryFile(None, 0o755)}

    def url_of(self, key: str) -> str:
        """Return a URL, which no other program can use."""
        return f"{self.url}{key}"

    def statistics(self) -> Mapping[str, object]:
        """Return nothing: nothing is counted."""
        return {}

    async def check(self) -> None:
        """Return: nothing keeps the store from being read."""

    def forget(self, key: str) -> None:
        """Do nothing: names are looked at each time."""

    async def capacity(self) -> Capacity:
        """Return a lot."""
        return Capacity(_BLOCK, _PLENTY, _PLENTY, _PLENTY, _PLENTY, _PLENTY, 1024)

    async def start_writing(self, directory: str, *, single_writer: bool) -> None:
        """Do nothing: this store has one writer."""

    async def flush(self) -> None:
        """Return: what is written is stored at once."""

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        return self._find(key).stat()

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> StoredSnapshot:
        """Open a file."""
        file = self._find_file(key)
        return StoredSnapshot(memoryview(file.data or b""), file.stat(), lambda: self._look(key))

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing."""
        return key not in self._files

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        self._find_directory(key)
        start = len(key) + 1 if key else 0
        return [
            Entry(name[start:], file.stat().kind)
            for name, file in self._files.items()
            if name and name.rpartition("/")[0] == key
        ]

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""
        return [self._look(join_key(key, name)) for name in names]

    async def read_link(self, key: str) -> bytes:
        """Say that there are no symbolic links."""
        raise RefusedError(f"{key} is no symbolic link")

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Say that there are no extended attributes."""
        raise NoAttributeError(f"{key} has no attribute {name!r}")

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return no names."""
        return []

    async def check_writable(self, key: str) -> None:
        """Return: nothing keeps a file from being changed."""

    @asynccontextmanager
    async def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        waited: float | None = None,
    ) -> AsyncIterator[MemoryEdit]:
        """Begin a change of a file."""
        snapshot = None
        with suppress(NotFoundError, NotADirectoryHereError):
            snapshot = await self.open(key)
        yield MemoryEdit(self, key, 0o644 if mode is None else mode, snapshot)

    async def create(self, key: str, mode: int, *, exclusive: bool) -> MemoryFile:
        """Open a file, and make it if there is none."""
        if exclusive:
            self._require_absent(key)
        if key in self._files:
            return self._find_file(key)
        return self._add(key, MemoryFile(b"", modes.S_IMODE(mode)))

    async def open_passthrough(self, key: str, *, writable: bool) -> MemoryFile:
        """Open a file as it is at any time."""
        return self._find_file(key)

    @property
    def nchanges(self) -> int:
        """None: nobody else changes the store."""
        return 0

    def note_shown(self, key: str, state: Stat | None, *, since: int | None = None) -> None:
        """Do nothing: nobody else changes the store."""

    async def replace(
        self,
        key: str,
        content: bytes,
        *,
        exclusive: bool = False,
        mode: int | None = None,
        expected: Expected | None = None,
    ) -> Stat:
        """Store *content* under *key*."""
        if exclusive:
            self._require_absent(key)
        if key in self._files:
            mode = self._find_file(key).mode
        return self._add(key, MemoryFile(content, modes.S_IMODE(0o644 if mode is None else mode))).stat()

    async def unlink(self, key: str) -> None:
        """Remove a file."""
        self._find_file(key)
        del self._files[key]

    async def mkdir(self, key: str, mode: int) -> None:
        """Make a directory."""
        self._require_absent(key)
        self._add(key, MemoryFile(None, modes.S_IMODE(mode)))

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory."""
        self._find_directory(key)
        if not key:
            raise RefusedError("the source cannot be removed")
        if await self.list(key):
            raise NotEmptyError(f"{key} is not empty")
        del self._files[key]

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for, with all below it."""
        moved = self._find(key)
        self._find_directory(to.rpartition("/")[0])
        if not key or not to or (moved.data is None and to.startswith(key + "/")):
            raise RefusedError(f"{key or 'the source'} cannot become {to or 'the source'}")
        if exclusive:
            self._require_absent(to)
        target = self._files.get(to)
        if target is moved:
            return
        if target is not None and moved.data is None:
            await self.rmdir(to)
        elif target is not None:
            await self.unlink(to)
        for name in [name for name in self._files if name == key or name.startswith(key + "/")]:
            self._files[to + name[len(key) :]] = self._files.pop(name)

    async def link(self, key: str, to: str) -> None:
        """Say that a file has one name."""
        raise NotPermittedError(f"{to}: a file has one name")

    async def symlink(self, key: str, target: bytes) -> None:
        """Say that there are no symbolic links."""
        raise NotPermittedError(f"{key}: there are no symbolic links")

    async def make_directories(self, key: str) -> None:
        """Make the directory *key* and all above it that are missing."""
        if key not in self._files:
            await self.make_directories(key.rpartition("/")[0])
            self._add(key, MemoryFile(None, 0o755))
        self._find_directory(key)

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
        """Change what is given."""
        return self._find(key).set_attributes(mode=mode, uid=uid, gid=gid, atime_ns=atime_ns, mtime_ns=mtime_ns)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Say that there are no extended attributes."""
        raise UnsupportedError(f"{key}: there are no extended attributes")

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Say that there are no extended attributes."""
        raise UnsupportedError(f"{key}: there are no extended attributes")

    async def sync_directory(self, key: str) -> None:
        """Return: nothing lasts here."""
        self._find_directory(key)

    def _look(self, key: str) -> Stat | None:
        file = self._files.get(key)
        return None if file is None else file.stat()

    def _find(self, key: str) -> MemoryFile:
        file = self._files.get(key)
        if file is None:
            self._find_directory(key.rpartition("/")[0])
            raise NotFoundError(f"{key} does not exist")
        return file

    def _find_file(self, key: str) -> MemoryFile:
        file = self._find(key)
        if file.data is None:
            raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
        return file

    def _find_directory(self, key: str) -> None:
        if self._find(key).data is not None:
            raise NotADirectoryHereError(f"{key} is no directory")

    def _require_absent(self, key: str) -> None:
        if key in self._files:
            raise ExistsError(f"{key or 'the source'} exists")

    def _add(self, key: str, file: MemoryFile) -> MemoryFile:
        self._find_directory(key.rpartition("/")[0])
        self._files[key] = file
        return file
