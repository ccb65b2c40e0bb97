"""What readers of objects have in common that are on no file system, as in a bucket: `ObjectReader`."""

import os
import stat as modes
from collections.abc import Hashable, Sequence
from typing import Final, Protocol, Unpack

from shardfs.errors import NoAttributeError, NotFoundError, ReadOnlyError, RefusedError, ShardfsError
from shardfs.stores.base import Buffer, Kind, NewAttributes, OpenFile, Snapshot, Stat, join_key

MAX_KEY_NBYTES: Final = 1024
_UID, _GID = (os.getuid(), os.getgid()) if hasattr(os, "getuid") else (0, 0)  # Windows has no such numbers
_BLOCK: Final = 4096
_PLENTY: Final = 2**50 // _BLOCK


def object_stat(kind: Kind, size: int, version: Hashable, identity: str, time_ns: int) -> Stat:
    """Return the status of an object, or of a directory of objects; it belongs to the user."""
    is_directory = kind is Kind.DIRECTORY
    mode, nlink = (modes.S_IFDIR | 0o755, 2) if is_directory else (modes.S_IFREG | 0o644, 1)
    return Stat(kind, size, version, identity, mode, _UID, _GID, nlink, 0, time_ns, time_ns, time_ns)


class _Objects(Protocol):
    """What an `ObjectReader` makes the rest of."""

    async def stat(self, key: str) -> Stat: ...
    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot: ...


class ObjectReader:
    """The part of a `Reader` that is the same wherever there are only objects: no links, attributes and limits.

    A subclass adds the rest of `Reader`; it may know shorter ways than those here.
    """

    root = None
    directory = None
    rewrites = True
    fetches_ahead = False
    lists = True
    only_zarr = False

    async def is_absent(self: _Objects, key: str) -> bool:
        """Whether *key* stands for nothing; False if that is unknown."""
        try:
            await self.stat(key)
        except ShardfsError as error:
            return isinstance(error, NotFoundError)
        return False

    async def expect_names(self, key: str) -> None:
        """Do nothing: each name takes a request."""

    async def stat_in(self: _Objects, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several names in one directory."""
        stats: list[Stat | None] = []
        for name in names:
            try:
                stats.append(await self.stat(join_key(key, name)))
            except NotFoundError:
                stats.append(None)
        return stats

    async def open_passthrough(self: _Objects, key: str) -> OpenFile:
        """Open a file to read it; it keeps its version, or cannot be read any more."""
        return SnapshotFile(key, await self.open(key))

    async def read_link(self, key: str) -> bytes:
        """Raise `RefusedError`: objects are no symbolic links."""
        raise RefusedError(f"{key} is not a symbolic link")

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Raise `NoAttributeError`: objects have no extended attributes."""
        raise NoAttributeError(f"{key} has no attribute {name!r}")

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return nothing: objects have no extended attributes."""
        return []

    async def capacity(self) -> os.statvfs_result:
        """Return more space than anybody asks for: there is no limit."""
        return os.statvfs_result((_BLOCK, _BLOCK, *[_PLENTY] * 6, 0, MAX_KEY_NBYTES))


class SnapshotFile:
    """One version of the object *key*, as an open file that is only read.

    If it *is_unit*, it is wanted whole by whoever reads any of it, as a chunk is.
    """

    __slots__ = ("_is_unit", "_key", "_snapshot")

    def __init__(self, key: str, snapshot: Snapshot, *, is_unit: bool = False) -> None:
        self._key = key
        self._snapshot = snapshot
        self._is_unit = is_unit

    def stat(self) -> Stat:
        """Return the status."""
        return self._snapshot.stat

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; raises `StaleError` if the object was replaced."""
        nbytes = max(0, min(nbytes, self._snapshot.size - offset))
        unit = (0, self._snapshot.size) if self._is_unit else (offset, nbytes)
        return await self._snapshot.read(offset, nbytes, unit)

    async def write(self, offset: int | None, data: Buffer) -> int:
        """Raise `ReadOnlyError`."""
        raise self._refusal()

    async def truncate(self, nbytes: int) -> None:
        """Raise `ReadOnlyError`."""
        raise self._refusal()

    def give_up(self) -> None:
        """Do nothing: nothing is written."""

    async def flush(self) -> None:
        """Do nothing: nothing was written."""

    async def sync(self) -> None:
        """Do nothing: nothing was written."""

    async def close(self) -> None:
        """Do nothing: the version is released with the last reference to it."""

    def set_attributes(self, **changes: Unpack[NewAttributes]) -> Stat:
        """Do nothing but return the status: objects have no attributes to set."""
        return self.stat()

    def _refusal(self) -> ReadOnlyError:
        return ReadOnlyError(f"{self._key} is open for reading only")
