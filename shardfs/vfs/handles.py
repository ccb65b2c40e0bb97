"""Open files and open directories, and what `stat` tells of a file of the tree."""

import stat
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from copy import copy
from operator import itemgetter
from typing import Final, NamedTuple, Self

from shardfs.dataset.array import Extent
from shardfs.errors import StaleError
from shardfs.stores.base import Buffer, Kind, NewAttributes, OpenFile, Stat
from shardfs.vfs.chunk_cache import DecodedChunk, FillChunk

ABSENT: Final = 0
"""Inode number of a name that stands for nothing."""


class Attributes(NamedTuple):
    """Attributes of one inode: its own number and size in bytes, the rest as *status* has it.

    *ttl* is for how many seconds the kernel may cache them.  Files that share a status share the very same object;
    *mtime_ns* is there for those that have a modification time of their own.
    """

    ino: int
    size: int
    ttl: float
    status: Stat
    mtime_ns: int | None = None

    @property
    def own_mtime_ns(self) -> int:
        """The modification time."""
        return self.status.mtime_ns if self.mtime_ns is None else self.mtime_ns


class Owner(NamedTuple):
    """Who asks: the owner of what is new."""

    uid: int
    gid: int


NOTHING: Final = Stat(Kind.SPECIAL, 0, None, None, 0, 0, 0, 0, 0, 0, 0, 0)
UNKNOWN_FILE: Final = NOTHING._replace(kind=Kind.FILE, mode=stat.S_IFREG, nlink=1)


def new_file(mode: int, uid: int, gid: int) -> Stat:
    """Return the status of a file that is stored nowhere yet."""
    return UNKNOWN_FILE._replace(mode=stat.S_IFREG | stat.S_IMODE(mode), uid=uid, gid=gid)


def changed(status: Stat, changes: NewAttributes) -> Stat:
    """Return *status* with the mode and the owner that *changes* give."""
    mode, uid, gid = changes.get("mode"), changes.get("uid"), changes.get("gid")
    mode = status.mode if mode is None else stat.S_IFMT(status.mode) | stat.S_IMODE(mode)
    return status._replace(mode=mode, uid=status.uid if uid is None else uid, gid=status.gid if gid is None else gid)


def absent(ttl: float) -> Attributes:
    """Return what answers for a name that stands for nothing, for the next *ttl* seconds."""
    return Attributes(ABSENT, 0, ttl, NOTHING)


def unreadable(shard: Stat | None) -> Attributes:
    """Return what a listing says of a chunk that cannot be read: valid for no time, so that `stat` asks, and fails."""
    return Attributes(ABSENT, 0, 0.0, shard or UNKNOWN_FILE)


class FileHandle:
    """An open file with the number *ino*, to read; what is open to be written can do the rest.

    *is_direct*: it is an inner chunk, published as a whole or to be renamed onto one, and needs no page cache.
    *is_buffered*: it has the attributes of a write buffer.
    """

    is_direct = False
    is_buffered = False

    def __init__(self, attributes: Attributes) -> None:
        self.ino = attributes.ino
        self._attributes = attributes

    @property
    def attributes(self) -> Attributes:
        """Attributes of the version that the handle reads, as they were when it was opened."""
        return self._attributes

    def renumbered(self, ino: int) -> Self:
        """Return the same file under the number *ino*, which the kernel has for an earlier version."""
        handle = copy(self)
        handle.ino, handle._attributes = ino, self._attributes._replace(ino=ino, ttl=0.0)
        return handle

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; fewer only at the end of the file."""
        raise NotImplementedError

    async def write(self, offset: int, data: Buffer) -> None:
        """Write *data* at *offset*."""
        raise NotImplementedError

    async def truncate(self, nbytes: int) -> None:
        """Give the file another size."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Publish or store what was written, as is done whenever a descriptor is closed."""

    async def sync(self) -> None:
        """Make durable what was written."""

    async def close(self) -> None:
        """Let go of the file, of which nobody has a descriptor any more."""


class ChunkHandle(FileHandle):
    """An open inner chunk.

    The cache of a remote store may be out of date when a file is opened.  As long as nothing was read, *reopen* finds
    the chunk as it is now, which a reader could have been given just as well.
    """

    is_direct = True

    def __init__(
        self,
        attributes: Attributes,
        extent: Extent | DecodedChunk | FillChunk,
        reopen: "Callable[[], Awaitable[ChunkHandle | None]] | None" = None,
    ) -> None:
        super().__init__(attributes)
        self.extent = extent
        self._reopen = reopen

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the version that was opened; raises `StaleError` if they are gone."""
        reopen, self._reopen = self._reopen, None
        try:
            return await self.extent.read(offset, nbytes)
        except StaleError:
            now = await reopen() if reopen is not None else None
            if now is None or now.extent.nbytes != self.extent.nbytes:
                raise  # its size was told
            self.extent = now.extent
        return await self.extent.read(offset, nbytes)


class DocumentHandle(FileHandle):
    """An open generated document: its *text* at the time it was opened."""

    def __init__(self, attributes: Attributes, text: bytes) -> None:
        super().__init__(attributes)
        self.text = text

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the text."""
        return self.text[offset : offset + nbytes]


class PassthroughHandle(FileHandle):
    """An open file that passes through, stored under *key*, which is "" if it has no name any more.

    *is_direct*: it was made beside chunks, to be renamed onto one, as a rule.
    """

    def __init__(
        self, ino: int, key: str, file: OpenFile, ttl: float, *, is_writable: bool = False, is_direct: bool = False
    ) -> None:
        self.ino = ino
        self.key = key
        self.file = file
        self.is_writable = is_writable
        self.is_direct = is_direct
        self._ttl = ttl

    @property
    def attributes(self) -> Attributes:
        """Attributes of the open file, whatever became of its name."""
        status = self.file.stat()
        return Attributes(self.ino, status.size, self._ttl, status)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as the stored file has them now."""
        return await self.file.read(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> None:
        """Write to the stored file."""
        await self.file.write(offset, data)

    async def truncate(self, nbytes: int) -> None:
        """Give the stored file another size."""
        await self.file.truncate(nbytes)

    async def flush(self) -> None:
        """Store what was written, where that is not done at once."""
        if self.is_writable:
            await self.file.flush()

    async def sync(self) -> None:
        """Make durable what was written."""
        if self.is_writable:
            await self.file.sync()

    async def close(self) -> None:
        """Let go of the stored file."""
        if self.is_writable:
            await self.file.close()


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


class DirectoryHandle:
    """An open directory; *listing* yields what follows a cookie, 0 being the beginning.

    The kernel may drop the end of a reply that its caller had no room for, and ask again from the last name that was
    taken; so what was produced is kept until the next request shows how far the last one came.
    """

    def __init__(self, ino: int, listing: Callable[[int], AsyncGenerator[Batch, None]]) -> None:
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


_cookie: Final = itemgetter(3)
