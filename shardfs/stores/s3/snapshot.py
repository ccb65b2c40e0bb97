"""Snapshots of S3 objects: one version each, by its ETag; and what a file system says of them."""

import mmap
import os
import stat as modes
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from shardfs.errors import ConflictError, NotFoundError, StaleError, StoreError
from shardfs.stores.base import Buffer, Kind, Stat
from shardfs.stores.ranges import WINDOW_NBYTES, Span
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.fetching import Version, check
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.requests import ObjectStat, Range
from shardfs.stores.s3.succession import Succession

_DOWNLOAD_NBYTES: Final = 16 * 2**20


class Versions(Protocol):
    """What a snapshot needs of its store."""

    client: S3Client
    location: Location
    succession: Succession

    def version(self, key: str, stat: ObjectStat) -> Version:
        """Return a version of *key*, to read it."""

    async def is_version(self, key: str, etag: str) -> bool:
        """Whether *key* has the version *etag*, as far as is believed."""

    def forget(self, key: str) -> None:
        """Ask again for *key*; may be called in any thread."""


class S3Snapshot:
    """One version of the object *key*.

    Each request depends on the ETag, so that a version that was replaced is `StaleError`; what was replaced by our own
    change is read on as far as the new version begins with the same bytes.
    """

    __slots__ = ("__weakref__", "_key", "_versions", "object", "stat", "version")

    def __init__(self, versions: Versions, key: str, state: ObjectStat, stat: Stat) -> None:
        self._versions = versions
        self._key = key
        self.object = state
        self.stat = stat
        self.version = versions.version(key, state)

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        return self.object.size

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        if not nbytes:
            return b""
        span = Span(offset, offset + nbytes)
        if self.version.is_in_memory(span):
            return await self.version.read(span)
        while True:
            state = self._latest(span.stop)
            version = self.version if state.etag == self.object.etag else self._versions.version(self._key, state)
            try:
                return await version.read(span)
            except (ConflictError, NotFoundError):
                await self._versions.succession.settled(self._key)
                if self._latest(span.stop).etag == state.etag:
                    raise self._stale() from None

    def content(self, offset: int, nbytes: int) -> "S3Content":
        """Return *nbytes* bytes from *offset*, which are read later."""
        return S3Content(self, offset, nbytes)

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        """Download the object into a file without a name and map that, to search it; blocks."""
        if not self.size:  # there is no mapping of nothing
            yield memoryview(b"")
            return
        with tempfile.TemporaryFile() as file:
            for offset in range(0, self.size, _DOWNLOAD_NBYTES):
                piece = self.read_blocking(offset, min(_DOWNLOAD_NBYTES, self.size - offset))
                try:
                    file.write(piece)
                    file.flush()
                except OSError as error:
                    raise StoreError(f"{self._key} cannot be kept in a temporary file: {error.strerror}") from None
            with mmap.mmap(file.fileno(), self.size, prot=mmap.PROT_READ) as mapping:
                view = memoryview(mapping)
                try:
                    yield view
                finally:
                    view.release()

    def expect(self, offset: int, nbytes: int) -> None:
        """Note that *nbytes* bytes from *offset* are likely to be read soon, in order."""
        if nbytes:
            self.version.expect(Span(offset, offset + nbytes))

    async def is_current(self) -> bool:
        """Whether the name still stands for this version; takes a request when it was not seen lately."""
        return await self._versions.is_version(self._key, self.object.etag)

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Return False: an object does not grow, it is replaced."""
        return False

    async def read_live(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of this version, which is the only one that it can read."""
        return await self.read(offset, max(0, min(nbytes, self.size - offset)))

    def read_blocking(self, offset: int, nbytes: int) -> Buffer:
        """Do as `read` with one request, in a worker thread."""
        full = self._versions.location.object_key(self._key)
        while True:
            state = self._latest(offset + nbytes)
            try:
                fetched = self._versions.client.get_blocking(full, Range(offset, nbytes), etag=state.etag)
                check(self._versions.location.url_of(self._key), state.etag, Span(offset, offset + nbytes), fetched)
            except (ConflictError, NotFoundError):
                if self._latest(offset + nbytes).etag == state.etag:
                    raise self._stale() from None
            else:
                return fetched.data

    def _latest(self, stop: int) -> ObjectStat:
        """Return the version that has the bytes up to *stop* now, as far as is known."""
        state, kept_nbytes = self._versions.succession.latest(self._key, self.object)
        if stop > kept_nbytes:
            raise self._stale()
        return state

    def _stale(self) -> StaleError:
        self._versions.forget(self._key)
        return StaleError(f"{self._key} was replaced while it was open")


@dataclass(slots=True, eq=False)
class S3Content:
    """*nbytes* bytes from *start* of one version of an object, fetched in large pieces when they are read in order."""

    snapshot: S3Snapshot
    start: int
    nbytes: int
    _offset: int = 0
    _piece: Buffer = b""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of them."""
        if not self._offset <= offset <= offset + nbytes <= self._offset + len(self._piece):
            piece_nbytes = max(nbytes, min(WINDOW_NBYTES, self.nbytes - offset))
            self._piece = self.snapshot.read_blocking(self.start + offset, piece_nbytes) if piece_nbytes else b""
            self._offset = offset
        return memoryview(self._piece)[offset - self._offset : offset - self._offset + nbytes]


def file_stat(key: str, state: ObjectStat) -> Stat:
    """Return the state of the object *key* as stores say it."""
    return Stat(
        kind=Kind.FILE,
        size=state.size,
        version=(state.etag, state.size),
        identity=f"file:{key}",
        mode=modes.S_IFREG | 0o644,
        uid=os.getuid(),
        gid=os.getgid(),
        nlink=1,
        rdev=0,
        atime_ns=state.mtime_ns,
        mtime_ns=state.mtime_ns,
        ctime_ns=state.mtime_ns,
    )


def directory_stat() -> Stat:
    """Return the state of all directories of a source that is opened now."""
    now = time.time_ns()
    return Stat(
        kind=Kind.DIRECTORY,
        size=0,
        version="directory",
        identity="directory",
        mode=modes.S_IFDIR | 0o755,
        uid=os.getuid(),
        gid=os.getgid(),
        nlink=2,
        rdev=0,
        atime_ns=now,
        mtime_ns=now,
        ctime_ns=now,
    )
