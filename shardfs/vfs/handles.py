"""Open files and open directories."""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from shardfs.dataset.array import Extent
from shardfs.dataset.hierarchy import is_below
from shardfs.errors import StaleError
from shardfs.stores.base import Buffer, OpenFile
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.chunk_cache import DecodedChunk
from shardfs.vfs.missing import FillChunk


class FileHandle(Protocol):
    """An open file."""

    @property
    def ino(self) -> int:
        """The number that it was opened by."""

    @property
    def attributes(self) -> Attributes:
        """Attributes of the version that the handle reads, as they were when it was opened."""

    @property
    def is_chunk(self) -> bool:
        """Whether this is an inner chunk, which is read once and whole and needs no page cache."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; fewer only at the end of the file."""


@dataclass(slots=True, eq=False)
class ChunkHandle:
    """An open inner chunk.

    What a remote store believes when a file is opened may be out of date.  As long as nothing was read, `reopen` finds
    the chunk as it is now, which a reader could have been given just as well.
    """

    attributes: Attributes
    extent: Extent | DecodedChunk | FillChunk
    reopen: "Callable[[], Awaitable[ChunkHandle | None]] | None" = None
    is_chunk = True

    @property
    def ino(self) -> int:
        """The number of the version."""
        return self.attributes.ino

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the version that was opened; raises `StaleError` if they are gone."""
        reopen, self.reopen = self.reopen, None
        try:
            return await self.extent.read(offset, nbytes)
        except StaleError:
            now = await reopen() if reopen is not None else None
            if now is None or now.extent.nbytes != self.extent.nbytes:
                raise  # its size was told
            self.extent = now.extent
        return await self.extent.read(offset, nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class DocumentHandle:
    """An open generated document: its text at the time it was opened."""

    attributes: Attributes
    text: bytes
    is_chunk = False

    @property
    def ino(self) -> int:
        """The number of the version."""
        return self.attributes.ino

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the text."""
        return self.text[offset : offset + nbytes]


@dataclass(slots=True, eq=False)
class PassthroughHandle:
    """An open file that passes through, stored under *key*."""

    ino: int
    key: str
    file: OpenFile
    ttl: float
    is_chunk = False

    @property
    def attributes(self) -> Attributes:
        """Attributes of the open file, whatever became of its name."""
        status = self.file.stat()
        return Attributes(self.ino, status.size, self.ttl, status)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as the stored file has them now."""
        return await self.file.read(offset, nbytes)


OTHERS: Final = 1 << 48
"""Cookies from here on are of names that no chunk tree has; those below are left to chunk trees."""

Row = tuple[bytes, int, int, int]
"""One name of a listing: name, inode number, size, and the cookie that resumes the listing behind it."""


class Batch(NamedTuple):
    """Names of a listing, in the order of their cookies, that share all attributes but number and size."""

    attributes: Attributes
    rows: Sequence[Row]
    is_counted: bool = False
    """Whether the kernel's references to these inodes are counted: those of chunk trees are not."""


class Listing(Protocol):
    """Starts a listing."""

    def __call__(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield what follows *cookie*; 0 is the beginning."""


class DirectoryHandle:
    """An open directory.

    The kernel may drop the end of a reply that its caller had no room for, and ask again from the last name that was
    taken; so what was produced is kept until the next request shows how far the last one came.
    """

    def __init__(self, ino: int, listing: Listing) -> None:
        self.ino = ino
        self._listing = listing
        self._source: AsyncGenerator[Batch, None] | None = None
        self._start = 0
        self._kept: list[Batch] = []
        self._next = 0

    async def seek(self, cookie: int) -> None:
        """Go on behind *cookie*; 0 starts again, with what is there now."""
        if self._source is None or cookie == 0 or not self._resume(cookie):
            await self.close()
            self._source = self._listing(cookie)
        self._start = cookie
        self._next = 0

    async def next_batch(self) -> Batch | None:
        """Return the next names, None at the end."""
        if self._next == len(self._kept):
            try:
                batch = await anext(self._source, None) if self._source is not None else None
            except BaseException:
                self._source = None  # is finished by what it raised; the next request lists again from where it stands
                raise
            if batch is None:
                return None
            self._kept.append(batch)
        self._next += 1
        return self._kept[self._next - 1]

    async def close(self) -> None:
        """Let go of the listing."""
        if self._source is not None:
            await self._source.aclose()
        self._source = None
        self._kept.clear()

    def _resume(self, cookie: int) -> bool:
        """Drop what was taken up to *cookie*; return whether it was found."""
        if cookie == self._start:
            return True
        for i, batch in enumerate(self._kept):
            j = bisect_left(batch.rows, cookie, key=_cookie)
            if j < len(batch.rows) and _cookie(batch.rows[j]) == cookie:
                rest = batch.rows[j + 1 :]
                self._kept[: i + 1] = [batch._replace(rows=rest)] if rest else []
                return True
        return False


def _cookie(row: Row) -> int:
    return row[3]


def _nameless(_: int) -> str:
    return ""


class PassthroughWriters(dict[int, PassthroughHandle]):
    """Handles that write what passes through; each knows the present key of its file."""

    def has(self, key: str) -> bool:
        """Whether somebody writes the file *key*."""
        return any(handle.key == key for handle in self.values())

    def let_go(self, key: str, name_of: Callable[[int], str] = _nameless) -> None:
        """Know a file by the name that *name_of* tells by its number, if any, after *key* was removed or replaced."""
        for handle in self.values():
            if handle.key == key:
                handle.key = name_of(handle.ino)

    def follow(self, old: str, new: str, name_of: Callable[[int], str] = _nameless) -> None:
        """Know files by their new names after *old* was moved to *new*, with all below it."""
        self.let_go(new, name_of)
        for handle in self.values():
            if is_below(handle.key, old):
                handle.key = new + handle.key[len(old) :]
