"""Files that are being written and are published as a whole: inner chunks and documents."""

import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol

from shardfs.dataset.quick_lock import QuickLock
from shardfs.errors import StaleError, TooLargeError
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.stores.base import Buffer, Descriptor, Stat
from shardfs.stores.local.syscalls import changing, translated
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import ChunkHandle, DocumentHandle
from shardfs.vfs.names import ChunkName, DocumentName
from shardfs.vfs.nodes import ChunkVersion, Document

_SPILL_NBYTES: Final = 4 * 2**20
_MAX_MEMORY: Final = 64 * 2**20
_PIECE_NBYTES: Final = 2**20
_MAX_CHUNK_NBYTES: Final = 2**40


class BufferSpace:
    """Where drafts keep their bytes: in memory while they are small and few, in nameless files of *directory* else."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.memory = 0


class BufferBytes:
    """The content of one file while it is written.  It is itself the content that is published."""

    def __init__(self, space: BufferSpace) -> None:
        self._space = space
        self._buffer: bytes | bytearray = b""
        self._file: Descriptor | None = None
        self._accounted = 0
        self.nbytes = 0

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        if self._file is not None:
            with translated("a draft"):
                return os.pread(self._file.fd, nbytes, offset)
        if offset == 0 and nbytes >= self.nbytes:
            return self._buffer
        return memoryview(self._buffer)[offset : offset + nbytes]

    def write(self, offset: int, data: Buffer) -> None:
        """Write *data* at *offset*; a gap before it is zeros."""
        if not data:
            return
        end = offset + len(data)
        if self._file is None and (end > _SPILL_NBYTES or self._space.memory + end > _MAX_MEMORY):
            self._spill()
        if self._file is None and self.nbytes == offset == 0:
            self._account(end)
            self._buffer = bytes(data)
        elif self._file is not None:
            with changing("a draft"):
                _write(self._file.fd, data, offset)
        else:
            buffer = self._writable()
            if offset > len(buffer):
                buffer.extend(bytes(offset - len(buffer)))
            buffer[offset:end] = data
            self._account(len(buffer))
        self.nbytes = max(self.nbytes, end)

    def truncate(self, nbytes: int) -> None:
        """Cut the content to *nbytes*, or extend it with zeros."""
        if self._file is None and nbytes > _SPILL_NBYTES:
            self._spill()
        if self._file is not None:
            with changing("a draft"):
                os.ftruncate(self._file.fd, nbytes)
        elif nbytes == 0:
            self._buffer = b""
            self._account(0)
        else:
            buffer = self._writable()
            if nbytes < len(buffer):
                del buffer[nbytes:]
            else:
                buffer.extend(bytes(nbytes - len(buffer)))
            self._account(nbytes)
        self.nbytes = nbytes

    def clear(self) -> None:
        """Let go of all bytes."""
        self._account(0)
        self._buffer = b""
        self._file = None
        self.nbytes = 0

    def _writable(self) -> bytearray:
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        return self._buffer

    def _account(self, nbytes: int) -> None:
        self._space.memory += nbytes - self._accounted
        self._accounted = nbytes

    def _spill(self) -> None:
        with changing("the directory of drafts"):
            fd, path = tempfile.mkstemp(dir=self._space.directory)
            file = Descriptor(fd)
            os.unlink(path)
            _write(fd, self._buffer, 0)
            os.ftruncate(fd, self.nbytes)
        self._account(0)
        self._buffer = b""
        self._file = file


class Readable(Protocol):
    """An open file whose content a draft begins with."""

    @property
    def attributes(self) -> Attributes:
        """Its attributes."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of it."""


@dataclass(eq=False)
class WriteBuffer:
    """What is written to one name by those who share a buffer: who cuts the file when he opens it begins one.

    The kernel may believe the attributes of a new file for *ttl* seconds until it is written: then it asks by itself.
    *base* is what the name stood for, as long as nothing was written; None if it begins empty.  *ino* is the number
    that the first version published gets, if the file is new; *is_detached*: the name stands for something else now,
    and nothing is published any more.  *version* is the number of what was published last; *mtime_ns* its time, or the
    one that the next version gets, None being the time when it is published.
    """

    name: ChunkName | DocumentName
    draft: BufferBytes
    ino: int
    status: Stat
    base: Readable | None
    is_new: bool
    ttl: float
    is_dirty: bool = False
    is_exclusive: bool = False
    """Whether it was made on the condition that there was nothing."""
    is_fresh: bool = False
    """Whether it was made, or cut when it was opened, and nothing was written or published since."""
    is_detached: bool = False
    is_outdated: bool = False
    """Whether another draft has published something since this one was, and nothing was written to it."""
    is_cut: bool = False
    """Whether it began empty: then it is published as its writers wrote it, and never on top of what others did."""
    users: int = 0
    mtime_ns: int | None = None
    version: int = field(init=False)
    lock: QuickLock = field(default_factory=QuickLock)
    """Held while it is written or published; the drafts of one name have one."""

    def __post_init__(self) -> None:
        self.version = self.ino

    def attributes(self, ino: int) -> Attributes:
        """Return the attributes of what was written so far, for the number *ino*."""
        ttl = self.ttl if self.is_fresh and self.is_new else 0.0  # nobody reads what nobody has published
        return Attributes(ino, self.nbytes, ttl, self.status, self.mtime_ns)

    @property
    def nbytes(self) -> int:
        """Present size."""
        return self.base.attributes.size if self.base is not None else self.draft.nbytes

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as they were written."""
        return await self.base.read(offset, nbytes) if self.base is not None else self.draft.read(offset, nbytes)

    async def write(self, offset: int | None, data: Buffer) -> None:
        """Write *data* at *offset*, None being the end."""
        async with self.lock:
            await self._load()
            offset = self.draft.nbytes if offset is None else offset
            self._check(offset + len(data))
            self.draft.write(offset, data)
            self._changed()

    async def truncate(self, nbytes: int) -> None:
        """Give the file another size."""
        async with self.lock:
            self._check(nbytes)
            if nbytes == 0:
                self.base = None
            await self._load()
            self.draft.truncate(nbytes)
            self._changed()

    async def begin_again(self, base: Readable | None) -> None:
        """Say what *base* says, which was published meanwhile."""
        async with self.lock:
            if self.is_outdated:
                self.base, self.is_outdated = base, False
                self.draft.clear()

    async def publish(self, publish: "Callable[[WriteBuffer], Awaitable[None]]") -> None:
        """Have *publish* make the present content that of the name, unless somebody did, or has the name, by now."""
        async with self.lock:
            if self.is_detached or not (self.is_dirty or self.is_fresh):
                return
            await self._load()
            await publish(self)
            self.is_dirty = self.is_fresh = self.is_new = False

    @property
    def is_unpublished(self) -> bool:
        """Whether there is something that will be published."""
        return (self.is_dirty or self.is_fresh) and not self.is_detached

    def _check(self, nbytes: int) -> None:
        if nbytes > (_MAX_CHUNK_NBYTES if isinstance(self.name, ChunkName) else MAX_DOCUMENT_NBYTES):
            raise TooLargeError(f"{self.name.path} cannot have {nbytes} bytes")

    def _changed(self) -> None:
        self.is_dirty, self.is_fresh = True, False
        self.mtime_ns = None
        self.status = self.status._replace(mtime_ns=time.time_ns())

    async def _load(self) -> None:
        """Take over the content that the file had."""
        if self.base is None:
            return
        try:
            while self.draft.nbytes < self.base.attributes.size:
                piece = await self.base.read(self.draft.nbytes, _PIECE_NBYTES)
                if not piece:
                    raise StaleError("a chunk ended early")  # noqa: TRY301
                self.draft.write(self.draft.nbytes, piece)
        except BaseException:
            self.draft.clear()
            raise
        self.base = None


@dataclass(slots=True, eq=False)
class WriteHandle:
    """An open file that is published as a whole."""

    ino: int
    open_draft: WriteBuffer
    appends: bool = False
    begins_empty: bool = False
    """Whether the file was cut, or made on the condition that there was none, for this handle, not flushed since."""
    is_unflushed: bool = False
    """Whether something was written by it since it was flushed: a write may end after the descriptor was closed."""
    is_chunk = True

    @property
    def path(self) -> str:
        """Where it is published."""
        return self.open_draft.name.path

    @property
    def attributes(self) -> Attributes:
        """Attributes of what was written so far."""
        return self.open_draft.attributes(self.ino)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as they were written."""
        return await self.open_draft.read(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> None:
        """Write *data*, at the end if the file was opened so."""
        await self.open_draft.write(None if self.appends else offset, data)


class WriteBuffers:
    """The drafts that are open, by the names that they are published under and by the numbers of their handles.

    Of several the last counts: of one name that which was begun last, and of one number that which was written last.
    """

    def __init__(self, fs: Filesystem, space: BufferSpace) -> None:
        self._fs = fs
        self._space = space
        self._by_name: dict[ChunkName | DocumentName, list[WriteBuffer]] = {}
        self._by_ino: dict[int, list[WriteBuffer]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def get(self, name: ChunkName | DocumentName) -> WriteBuffer | None:
        """Return the draft that those share who open *name* and do not cut it."""
        drafts = self._by_name.get(name)
        return drafts[-1] if drafts else None

    def all_of(self, name: ChunkName | DocumentName) -> list[WriteBuffer]:
        """Return all drafts that are published under *name*, in the order in which they were begun."""
        return list(self._by_name.get(name, ()))

    def unpublished(self, name: ChunkName | DocumentName) -> WriteBuffer | None:
        """Return a draft that is about to be published under *name*."""
        drafts = self._by_name.get(name, ())
        return next((opened for opened in reversed(drafts) if opened.is_unpublished), None)

    def of_ino(self, ino: int) -> WriteBuffer | None:
        """Return the draft that a handle with the number *ino* has written last."""
        drafts = self._by_ino.get(ino)
        return drafts[-1] if drafts else None

    def items(self) -> list[tuple[ChunkName | DocumentName, WriteBuffer]]:
        """Return all that have a name, with it."""
        return [(name, opened) for name, drafts in self._by_name.items() for opened in drafts]

    def begin(
        self,
        name: ChunkName | DocumentName,
        base: ChunkHandle | DocumentHandle | None,
        status: Stat,
        *,
        is_cut: bool = False,
    ) -> WriteBuffer:
        """Begin to write a file, which *base* says now, if it is there; *is_cut*: with nothing of that."""
        is_new = base is None
        ino = self._fs.inodes.reserve() if base is None else base.attributes.ino
        kept = None if is_cut else base
        opened = WriteBuffer(name, BufferBytes(self._space), ino, status, kept, is_new, self._fs.ttl)
        opened.is_fresh = opened.is_cut = is_new or is_cut
        if is_new:
            node = (
                ChunkVersion(name.chunks, name.coords)
                if isinstance(name, ChunkName)
                else Document(self._fs, name.path, ino, 0)
            )
            self._fs.inodes.keep(ino, node)
        self._add(opened)
        return opened

    def use(self, opened: WriteBuffer, ino: int, flags: int) -> WriteHandle:
        """Return a handle of *opened* with the number *ino*."""
        opened.users += 1
        for number in {ino, opened.ino}:
            self.was_written(opened, number)
        begins_empty = bool(flags & (os.O_TRUNC | os.O_EXCL))
        return WriteHandle(ino, opened, appends=bool(flags & os.O_APPEND), begins_empty=begins_empty)

    def was_written(self, opened: WriteBuffer, ino: int) -> None:
        """Know *opened* as the draft that was written last by a handle with the number *ino*."""
        drafts = self._by_ino.setdefault(ino, [])
        if not drafts or drafts[-1] is not opened:
            self._by_ino[ino] = [*(other for other in drafts if other is not opened), opened]

    def was_published(self, opened: WriteBuffer) -> None:
        """Know that the name of *opened* says what it says: others begin with that, if they have nothing to publish."""
        for other in self._by_name.get(opened.name, ()):
            if other is not opened:
                other.is_outdated = not (other.is_unpublished or other.is_cut)
                other.is_exclusive = False  # this was made after it

    def end(self, opened: WriteBuffer) -> None:
        """Forget a file that nobody writes any more."""
        self._remove(opened)
        for ino, drafts in list(self._by_ino.items()):
            if opened in drafts:
                drafts.remove(opened)
                if not drafts:
                    del self._by_ino[ino]
        opened.draft.clear()

    def lock(self, name: ChunkName | DocumentName) -> AbstractAsyncContextManager[None]:
        """Return what to hold while something else takes *name*: what is being published under it comes first.

        Who holds it must not wait for the gate.
        """
        opened = self.get(name)
        return nullcontext() if opened is None else opened.lock

    def detach(self, name: ChunkName | DocumentName) -> None:
        """Let go of the name of open files: something else has it from now on."""
        for opened in self._by_name.pop(name, ()):
            opened.is_detached = True

    def rename(self, opened: WriteBuffer, name: ChunkName | DocumentName) -> None:
        """Publish *opened* under another name from now on."""
        self._remove(opened)
        opened.name, opened.is_detached = name, False
        self._add(opened)

    def _add(self, opened: WriteBuffer) -> None:
        drafts = self._by_name.setdefault(opened.name, [])
        if drafts:
            opened.lock = drafts[0].lock
        drafts.append(opened)

    def _remove(self, opened: WriteBuffer) -> None:
        drafts = self._by_name.get(opened.name, [])
        if opened in drafts:
            drafts.remove(opened)
            if not drafts:
                del self._by_name[opened.name]


def _write(fd: int, data: Buffer, offset: int) -> None:
    """Write all of *data*: a disk that is nearly full takes a part of it."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
