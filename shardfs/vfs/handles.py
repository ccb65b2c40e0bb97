"""Open files and directories, and the attributes of files."""

import stat
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from shardfs.dataset.array import Extent
from shardfs.errors import StaleError
from shardfs.stores.base import Buffer, Kind, NewAttributes, OpenFile, Stat
from shardfs.vfs.chunk_cache import DecodedChunk, FillChunk
from shardfs.vfs.inodes import InodeRow

ABSENT: Final = 0
"""The inode number that stands for "no such name"."""


class Attributes(NamedTuple):
    """The attributes of an inode: its number and its size in bytes; *status* has the rest.

    *ttl* is how many seconds the kernel may cache them. Files with the same status share one object, so *mtime_ns* is
    set for those with a modification time of their own. *repeats*: the number may have been that of another version.
    """

    ino: int
    size: int
    ttl: float
    status: Stat
    mtime_ns: int | None = None
    repeats: bool = False

    @property
    def own_mtime_ns(self) -> int:
        """The modification time."""
        return self.status.mtime_ns if self.mtime_ns is None else self.mtime_ns


class Owner(NamedTuple):
    """User and group of the process that makes a request: the owner of new files."""

    uid: int
    gid: int


NOTHING: Final = Stat(Kind.SPECIAL, 0, None, None, 0, 0, 0, 0, 0, 0, 0, 0)
UNKNOWN_FILE: Final = NOTHING._replace(kind=Kind.FILE, mode=stat.S_IFREG, nlink=1)


def new_file(mode: int, uid: int, gid: int) -> Stat:
    """Return the status of a file that is not stored yet."""
    return UNKNOWN_FILE._replace(mode=stat.S_IFREG | stat.S_IMODE(mode), uid=uid, gid=gid)


def changed(status: Stat, changes: NewAttributes) -> Stat:
    """Return *status* with the mode and the owner that *changes* give."""
    mode, uid, gid = changes.get("mode"), changes.get("uid"), changes.get("gid")
    mode = status.mode if mode is None else stat.S_IFMT(status.mode) | stat.S_IMODE(mode)
    return status._replace(mode=mode, uid=status.uid if uid is None else uid, gid=status.gid if gid is None else gid)


def absent(ttl: float) -> Attributes:
    """Return the answer for a name that does not exist, valid for *ttl* seconds."""
    return Attributes(ABSENT, 0, ttl, NOTHING)


def unreadable(shard: Stat | None) -> Attributes:
    """Return the attributes that a listing shows of a chunk that cannot be read.

    They are not cached, so that `stat` asks, and gets the error.
    """
    return Attributes(ABSENT, 0, 0.0, shard or UNKNOWN_FILE)


class FileHandle:
    """An open file with the inode number *ino*.

    *is_direct*: it is an inner chunk, or a scratch file to be renamed to one, and bypasses the page cache.
    *is_buffered*: its attributes are those of a write buffer. *is_late*: the version *ino* had been replaced, and the
    handle is of the file that took its place. *has_pages*: it is a chunk, and the kernel caches
    its pages.
    """

    is_direct = False
    is_buffered = False
    is_late = False
    has_pages = False

    def __init__(self, attributes: Attributes) -> None:
        self.ino = attributes.ino
        self._attributes = attributes

    def stand_for(self, ino: int) -> None:
        """Be a handle of *ino*, which was replaced when it was opened."""
        self.ino, self.is_late = ino, True

    def get_pages(self) -> None:
        """Note that the kernel caches pages of it, and may have some of the same version from before."""
        self.has_pages = True

    @property
    def attributes(self) -> Attributes:
        """The attributes of the version that the handle reads, as they were when it was opened."""
        return self._attributes

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
        """Publish or store what was written; called whenever a descriptor is closed."""

    async def sync(self) -> None:
        """Make durable what was written."""

    async def close(self) -> None:
        """Release the file: all its descriptors are closed."""


class OpenedFile(NamedTuple):
    """A file that was opened: the *number* of its handle, by which it is closed, and the *handle*."""

    number: int
    handle: FileHandle


class ChunkHandle(FileHandle):
    """An open inner chunk.

    The cache of a remote store may be out of date when a file is opened. If the version turns out to be gone before
    anything was read, *reopen* opens the current one.
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
        self._reopen = reopen  # until bytes are known to be of the version *extent*

    def get_pages(self) -> None:
        """Note that the kernel caches pages of it; they must not come to be of two versions."""
        super().get_pages()
        self.pin()

    def pin(self) -> None:
        """Read the version *extent* or nothing from now on: somebody was told which one it is."""
        self._reopen = None

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the version that was opened; raises `StaleError` if they are gone."""
        extent = self.extent
        try:
            data = await extent.read(offset, nbytes)
        except StaleError:
            now = await self._reopen() if self._reopen is not None else None
            # Another read may have returned bytes meanwhile; and the program knows the size.
            if self._reopen is not None and now is not None and now.extent.nbytes == extent.nbytes:
                self.extent, self._reopen = now.extent, None
            if self.extent is extent:
                raise
        else:
            if self.extent is extent:
                self._reopen = None
                return data
        return await self.read(offset, nbytes)


class DocumentHandle(FileHandle):
    """An open generated document, with its *text* at the time it was opened."""

    def __init__(self, attributes: Attributes, text: bytes) -> None:
        super().__init__(attributes)
        self.text = text

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the text."""
        return self.text[offset : offset + nbytes]


class PassthroughHandle(FileHandle):
    """An open passthrough file; if one writer bypasses the page cache, all who open it later must.

    With *appends*, all is written at the end: the kernel does not know where that is once somebody else appends, too.
    So it must have no pages of that handle, which it would also write back to where they came from.
    """

    def __init__(
        self,
        row: InodeRow,
        file: OpenFile,
        ttl: float,
        *,
        is_writable: bool = False,
        is_direct: bool = False,
        appends: bool = False,
    ) -> None:
        self.ino = row.ino
        self._row = row
        row.opened(is_writable=is_writable, is_direct=is_direct)
        self.file = file
        self.is_writable = is_writable
        self.is_direct = row.is_direct or appends
        self._ttl = ttl
        self.appends = appends

    @property
    def attributes(self) -> Attributes:
        """The attributes of the open file, whatever happened to its name."""
        status = self.file.stat()
        return Attributes(self.ino, status.size, self._ttl, status)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the stored file in its current state."""
        return await self.file.read(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> None:
        """Write to the stored file; raises `StaleError` if it became a chunk or a document."""
        await self.file.write(None if self.appends else offset, data)
        self._check()

    async def truncate(self, nbytes: int) -> None:
        """Give the stored file another size."""
        await self.file.truncate(nbytes)
        self._check()

    def _check(self) -> None:
        if self._row.became:
            raise StaleError(f"a file was renamed to {self._row.became} while it was written: open that to write more")

    async def flush(self) -> None:
        """Store what was written, if the store did not do so at once."""
        if self.is_writable:
            await self.file.flush()

    async def sync(self) -> None:
        """Make durable what was written, through this handle or another one."""
        await self.file.sync()

    async def close(self) -> None:
        """Close the stored file."""
        if self.is_writable:
            self._row.closed()
            await self.file.close()


OTHERS: Final = 1 << 48
"""Cookies from here on are for names that are not in a chunk tree; smaller ones are for chunk trees."""

ListingRow = tuple[bytes, int, int, int]
"""One name of a listing: name, inode number, size, and the cookie after which the listing resumes."""


class Batch(NamedTuple):
    """Names of a listing, in the order of their cookies, that share all attributes except number and size."""

    attributes: Attributes
    rows: Sequence[ListingRow]
    is_counted: bool = False
    """Whether references of the kernel to these inodes are counted; those to inodes of chunk trees are not."""
    has_sizes: bool = True
    """Whether the sizes are those of the files; else only looking at each file tells its size, or why it has none."""


class DirectoryHandle:
    """An open directory; *listing* yields the names after a cookie, 0 being the beginning.

    The kernel may not take all names of a reply, and then asks again from the last one it took. So a batch is kept
    until the next request shows how far the kernel came.
    """

    def __init__(self, ino: int, listing: Callable[[int], AsyncGenerator[Batch, None]]) -> None:
        self.ino = ino
        self._listing = listing
        self._source: AsyncGenerator[Batch, None] | None = None
        self._start = 0
        self._kept: list[Batch] = []
        self._next = 0

    async def seek(self, cookie: int) -> None:
        """Continue after *cookie*; 0 starts a new listing."""
        if self._source is None or cookie == 0 or not self._resume(cookie):
            await self.close()
            self._source = self._listing(cookie)
        self._start = cookie
        self._next = 0

    async def next_batch(self) -> Batch | None:
        """Return the next names; None at the end."""
        if self._next == len(self._kept):
            try:
                batch = await anext(self._source, None) if self._source is not None else None
            except BaseException:
                self._source = None  # the generator ended with the error; the next request resumes at its cookie
                raise
            if batch is None:
                return None
            self._kept.append(batch)
        self._next += 1
        return self._kept[self._next - 1]

    async def close(self) -> None:
        """Close the listing."""
        if self._source is not None:
            await self._source.aclose()
        self._source = None
        self._kept.clear()

    def _resume(self, cookie: int) -> bool:
        """Drop the names up to *cookie*; return whether it was found."""
        if cookie == self._start:
            return True
        for i, batch in enumerate(self._kept):
            j = bisect_left(batch.rows, cookie, key=cookie_of)
            if j < len(batch.rows) and cookie_of(batch.rows[j]) == cookie:
                rest = batch.rows[j + 1 :]
                self._kept[: i + 1] = [batch._replace(rows=rest)] if rest else []
                return True
        return False


cookie_of: Final = itemgetter(3)
"""The cookie of a row."""
