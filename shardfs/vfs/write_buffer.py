"""Write buffers: files that are being written and published as a whole, that is, inner chunks and documents."""

import enum
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from shardfs.dataset.node import is_below
from shardfs.errors import StaleError
from shardfs.stores.base import PIECE_NBYTES, Buffer, Descriptor, NewAttributes, Stat
from shardfs.stores.local.syscalls import SYSCALLS, changing, translated
from shardfs.stores.parallel import QuickLock
from shardfs.vfs.handles import Attributes, ChunkHandle, DocumentHandle, FileHandle, changed
from shardfs.vfs.inodes import Inodes

K = TypeVar("K")
V = TypeVar("V")

_SPILL_NBYTES: Final = 4 * 2**20
_MAX_MEMORY: Final = 64 * 2**20


@dataclass(slots=True)
class BufferSpace:
    """Where buffers keep their bytes: in memory while they are small and few, else in nameless files in *directory*."""

    directory: str
    memory: int = 0


class BufferBytes:
    """The content of one file while it is being written; it is itself the content that is published."""

    def __init__(self, space: BufferSpace) -> None:
        self._space = space
        self._buffer: bytes | bytearray = b""
        self._file: Descriptor | None = None
        self._accounted = 0
        self.nbytes = 0

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        if self._file is not None:
            with translated("a write buffer"):
                return os.pread(self._file.fd, nbytes, offset)
        if offset == 0 and nbytes >= self.nbytes:
            return self._buffer
        return memoryview(self._buffer)[offset : offset + nbytes]

    def write(self, offset: int, data: Buffer) -> None:
        """Write *data* at *offset*; a gap before it is filled with zeros."""
        if not data:
            return
        end = offset + len(data)
        if end > _SPILL_NBYTES or self._space.memory + end > _MAX_MEMORY:
            self._spill()
        if self._file is not None:
            with changing("a write buffer"):
                SYSCALLS.pwrite(self._file.fd, [data], offset)
            self.nbytes = max(self.nbytes, end)
        elif self.nbytes == offset == 0:
            self._hold(bytes(data))
        else:
            buffer = self._writable()
            buffer.extend(bytes(max(0, offset - len(buffer))))
            buffer[offset:end] = data
            self._hold(buffer)

    def truncate(self, nbytes: int) -> None:
        """Truncate the content to *nbytes*, or extend it with zeros."""
        if nbytes > _SPILL_NBYTES:
            self._spill()
        if self._file is not None:
            with changing("a write buffer"):
                os.ftruncate(self._file.fd, nbytes)
            self.nbytes = nbytes
        else:
            buffer = self._writable()
            del buffer[nbytes:]
            buffer.extend(bytes(nbytes - len(buffer)))
            self._hold(buffer)

    def clear(self) -> None:
        """Drop all bytes."""
        self._file = None
        self._hold(b"")

    def __del__(self) -> None:
        self._space.memory -= self._accounted

    def _writable(self) -> bytearray:
        return self._buffer if isinstance(self._buffer, bytearray) else bytearray(self._buffer)

    def _hold(self, buffer: bytes | bytearray) -> None:
        """Let *buffer*, in memory, be the content."""
        self._space.memory += len(buffer) - self._accounted
        self._buffer, self._accounted, self.nbytes = buffer, len(buffer), len(buffer)

    def _spill(self) -> None:
        if self._file is not None:
            return
        nbytes = self.nbytes
        with changing("the directory of write buffers"):
            fd, path = tempfile.mkstemp(dir=self._space.directory)
            file = Descriptor(fd)
            os.unlink(path)
            SYSCALLS.pwrite(fd, [self._buffer], 0)
        self._hold(b"")
        self._file, self.nbytes = file, nbytes


class State(enum.Enum):
    """The state of a buffer."""

    CLEAN = enum.auto()
    """It equals a published version."""
    FRESH = enum.auto()
    """The file was created, or truncated by open, and nothing was written or published since."""
    DIRTY = enum.auto()
    """It was written, and not published."""
    DETACHED = enum.auto()
    """Its name was removed, or stands for another file: nothing is published any more."""
    MOVED = enum.auto()
    """It was published, and then its name or its directory was renamed: who writes to it is told."""
    LOST = enum.auto()
    """Its directory was renamed before it was published: who closes it is told."""


class Published(Protocol):
    """A name under which a buffer is published, that is, the entry of a chunk or a document."""

    is_document: bool

    @property
    def path(self) -> str:
        """The path on the mount."""

    @property
    def node_path(self) -> str:
        """The path of the node that it belongs to."""

    async def current(self) -> ChunkHandle | DocumentHandle | None:
        """Open the current version; None if there is none."""

    async def publish(self, buffer: "WriteBuffer") -> None:
        """Make what was written the content of the name."""

    async def makes_node(self) -> bool:
        """Whether publishing it changes what names in its directory stand for."""

    def check_size(self, nbytes: int) -> None:
        """Raise `TooLargeError` if such a file cannot have so many bytes."""

    def keep_number(self, ino: int) -> None:
        """Let *ino* stand for this file, which does not exist yet."""

    def reserve(self) -> int:
        """Return an inode number for this file, which does not exist yet."""


@dataclass(eq=False)
class WriteBuffer:
    """What is written to one name by all who share the buffer; whoever opens the file with truncation begins a new one.

    The kernel may cache the attributes of a new file for *ttl* seconds, unless it is written: then the kernel asks by
    itself.

    *base* is the version to be changed, as long as nothing was written; None if the buffer begins empty. *is_new*: the
    file was created, and never published; its first version gets the number *ino*. *is_cut*: it began empty, and is
    published as it was written, never on top of what others wrote. *version* is the number of the version that it was
    begun with or published last. *is_exclusive*: it was created on condition that nobody else creates the file.
    *mtime_ns* is the time of that version, or the time for the next one, None being the time when it is published.
    """

    buffers: "WriteBuffers"
    entry: Published
    ino: int
    status: Stat
    base: ChunkHandle | DocumentHandle | None
    is_new: bool
    state: State
    is_cut: bool
    content: BufferBytes
    ttl: float
    is_exclusive: bool = False
    users: int = 0
    mtime_ns: int | None = None
    version: int = field(init=False)
    _is_retained: bool = field(init=False)
    inos: set[int] = field(default_factory=set)
    """The numbers of the handles through which it was opened."""
    lock: QuickLock = field(init=False)
    """That of its name, held while it is written or published: see `WriteBuffers.lock`."""

    def __post_init__(self) -> None:
        self.version = self.ino
        self.lock = self.buffers.lock(self.entry)
        self._is_retained = self.buffers.inodes.retain(self.ino)

    def equals(self, version: int) -> None:
        """Note that it equals the published version with the number *version*.

        That keeps its number, even if the kernel forgets it: by another one it would look like another version.
        """
        is_retained = self.buffers.inodes.retain(version)
        self.release_version()
        self.version, self._is_retained = version, is_retained

    def release_version(self) -> None:
        """Let the number of its version be forgotten."""
        if self._is_retained:
            self.buffers.inodes.forget(self.version, 1)

    @property
    def is_unpublished(self) -> bool:
        """Whether there is something to be published."""
        return self.state in (State.FRESH, State.DIRTY)

    @property
    def is_ahead(self) -> bool:
        """Whether it has other content than any published version."""
        return self.state in (State.FRESH, State.DIRTY, State.DETACHED)

    def attributes(self, ino: int) -> Attributes:
        """Return the attributes of what was written so far, with the number *ino*."""
        ttl = self.ttl if self.state is State.FRESH and self.is_new else 0.0  # nobody else can see it yet
        return Attributes(ino, self.nbytes, ttl, self.status, self.mtime_ns)

    @property
    def nbytes(self) -> int:
        """The present size."""
        return self.base.attributes.size if self.base is not None else self.content.nbytes

    def set_attributes(self, changes: NewAttributes) -> None:
        """Set the modification time for the next version, and mode and owner of a new file."""
        mtime_ns = changes.get("mtime_ns")
        self.mtime_ns = self.mtime_ns if mtime_ns is None else mtime_ns
        if self.is_new:
            self.status = changed(self.status, changes)

    def has_time(self, mtime_ns: int) -> None:
        """Note the modification time of the version that it was published as, or of the document it equals."""
        self.mtime_ns = mtime_ns

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as they were written."""
        return await self.base.read(offset, nbytes) if self.base is not None else self.content.read(offset, nbytes)

    async def write(self, offset: int | None, data: Buffer) -> None:
        """Write *data* at *offset*, None being the end."""
        self.buffers.check_room()
        async with self.lock:
            await self._prepare()
            await self._load()
            offset = self.content.nbytes if offset is None else offset
            self.entry.check_size(offset + len(data))
            self.content.write(offset, data)
            self._changed()

    async def truncate(self, nbytes: int) -> None:
        """Give the file another size."""
        async with self.lock:
            await self._prepare()
            self.entry.check_size(nbytes)
            if nbytes == 0:
                self.base = None
            await self._load()
            self.content.truncate(nbytes)
            self._changed()

    async def publish(self) -> None:
        """Publish the content, unless somebody already has, or another file has the name by now."""
        async with self.lock:
            self.check()
            if self.is_unpublished:
                await self._load()
                await self.entry.publish(self)
                self.state, self.is_new, self.is_exclusive = State.CLEAN, False, False
                self.buffers.moved(self.entry.path)

    async def catch_up(self) -> None:
        """Continue from the current version, unless something was written on top of an earlier one."""
        async with self.lock:
            await self._prepare()

    async def _prepare(self) -> None:
        """If nothing was written, continue from the version that others have published meanwhile."""
        current = await self.entry.current() if self.state is State.CLEAN and not self.is_cut else None
        if current is not None and current.attributes.ino != self.version:
            self.base = current
            self.equals(current.attributes.ino)
            self.content.clear()

    def check(self) -> None:
        """Raise `StaleError` if writing is useless, because the file was renamed."""
        if self.state in (State.MOVED, State.LOST):
            raise StaleError(f"{self.entry.path} was renamed while it was open: open it again to write")

    def _changed(self) -> None:
        if self.state is not State.DETACHED:
            self.state = State.DIRTY
        self.mtime_ns = None
        self.status = self.status._replace(mtime_ns=time.time_ns())

    async def _load(self) -> None:
        """Copy the content of the version to be changed; raises `StaleError` if the file was renamed meanwhile."""
        if self.base is not None:
            self.content = await self.buffers.copied(self.base.attributes.size, self.base.read)
            self.base = None
        self.check()


class WriteHandle(FileHandle):
    """An open file that is published as a whole.

    *is_cut_now*: it was opened with truncation, or created exclusively, and not flushed since. *has_written*: something
    was written through it; *is_unflushed*: since the last flush. A write may end after the descriptor was closed.
    """

    is_direct = True
    is_buffered = True

    def __init__(self, ino: int, buffer: WriteBuffer, flags: int) -> None:
        self.ino = ino
        self._appends = bool(flags & os.O_APPEND)
        self.buffer = buffer
        self.is_cut_now = bool(flags & (os.O_TRUNC | os.O_EXCL))
        self.has_written = self.is_unflushed = False

    @property
    def path(self) -> str:
        """Where it is published."""
        return self.buffer.entry.path

    @property
    def attributes(self) -> Attributes:
        """The attributes of what was written so far."""
        return self.buffer.attributes(self.ino)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as they were written."""
        return await self.buffer.read(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> None:
        """Write *data*; at the end if the file was opened for appending."""
        await self.buffer.write(None if self._appends else offset, data)
        self._was_written()

    async def truncate(self, nbytes: int) -> None:
        """Give the file another size."""
        await self.buffer.truncate(nbytes)
        self._was_written()

    def _was_written(self) -> None:
        self.has_written = self.is_unflushed = True
        self.buffer.buffers.was_written(self.buffer, self.ino)

    async def flush(self) -> None:
        """Publish what was written and is not published yet; not what only others have written so far."""
        self.is_unflushed = False
        if self.has_written and self.buffer.state in (State.DIRTY, State.LOST):
            await self.buffer.buffers.publish(self.buffer)

    async def sync(self) -> None:
        """Publish what was written, and make it durable."""
        await self.flush()
        await self.buffer.buffers.sync()

    async def close(self) -> None:
        """Publish what was created or truncated, but not written.

        Also what a thread wrote after another one had closed the descriptor.
        """
        buffer = self.buffer
        try:
            if self.is_unflushed or (buffer.state is State.FRESH and buffer.users == 1):
                await buffer.buffers.publish(buffer)
        finally:
            buffer.users -= 1
            if not buffer.users:
                buffer.buffers.end(buffer)

    def says_nothing(self) -> bool:
        """Whether this is a document that began empty and was not written when it was first flushed.

        It will not be published, and whoever closes it should know. Not so if the file is only created, to be written
        later, if it was flushed before (a shell or a parent process, which ignores the result, may have passed it on to
        programs that still write), or if others have it open.
        """
        is_first, self.is_cut_now = self.is_cut_now, False
        buffer = self.buffer
        is_empty = buffer.state is State.FRESH and buffer.users == 1
        return is_first and is_empty and buffer.entry.is_document


@dataclass(eq=False)
class Watch:
    """Whether a file under some name was begun, published, or took the name, since somebody began to look it up."""

    has_moved: bool = False


class WriteBuffers:
    """The open buffers, by the names under which they are published, and by the numbers of their handles.

    Of several with one name, the one begun last counts; of several with one number, the one written last. *publish*
    publishes a buffer, *sync* makes durable what was published, *check_room* raises the error that prevents writing.

    What a name stands for is a buffer, then in the journal, then in the store. Whoever asks these one after another
    could miss it in each while it moves on, so they watch the name meanwhile, and ask again: see `watching`.
    """

    def __init__(
        self,
        space: BufferSpace,
        inodes: Inodes,
        ttl: Callable[[], float],
        publish: Callable[[WriteBuffer], Awaitable[None]],
        sync: Callable[[], Awaitable[None]],
        check_room: Callable[[], None],
    ) -> None:
        self.inodes = inodes
        self.publish = publish
        self.sync = sync
        self.check_room = check_room
        self._ttl = ttl
        self._space = space
        self._by_path: dict[str, list[WriteBuffer]] = {}
        self._by_ino: dict[int, list[WriteBuffer]] = {}
        self._watches: dict[str, list[Watch]] = {}
        self._locks: WeakValueDictionary[str, QuickLock] = WeakValueDictionary()  # only those in use

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def shared(self, entry: Published, current: ChunkHandle | DocumentHandle | None) -> WriteBuffer | None:
        """Return the buffer shared by all who open a file without truncation; *current* is its published version.

        That is the newest one, unless it was written as a whole and published, and then another version was.
        """
        version = current.attributes.ino if current is not None else None
        for buffer in reversed(self._by_path.get(entry.path, ())):
            if buffer.is_unpublished or not buffer.is_cut or version in (None, buffer.version):
                return buffer
        return None

    def of(self, path: str) -> list[WriteBuffer]:
        """Return the buffers of the file *path*, oldest first."""
        return list(self._by_path.get(path, ()))

    def below(self, directory: str) -> list[WriteBuffer]:
        """Return the buffers of all files below *directory*."""
        return [buffer for path, found in self._by_path.items() if is_below(path, directory) for buffer in found]

    def unpublished(self, path: str) -> WriteBuffer | None:
        """Return a buffer that is to be published under a name."""
        buffers = self._by_path.get(path, ())
        return next((buffer for buffer in reversed(buffers) if buffer.is_unpublished), None)

    @contextmanager
    def watching(self, path: str) -> Iterator[Watch]:
        """Watch a name during the block: if nothing was found in it, look again if the name *has_moved* meanwhile."""
        watch = Watch()
        self._watches.setdefault(path, []).append(watch)
        try:
            yield watch
        finally:
            _remove(self._watches, path, watch)

    def moved(self, path: str) -> None:
        """Tell those who watch the name *path* that a file under it was begun, published, or took the name."""
        for watch in self._watches.get(path, ()):
            watch.has_moved = True

    def of_ino(self, ino: int) -> WriteBuffer | None:
        """Return the buffer that a handle with the number *ino* last wrote to."""
        buffers = self._by_ino.get(ino)
        return buffers[-1] if buffers else None

    def begin(
        self,
        entry: Published,
        base: ChunkHandle | DocumentHandle | None,
        status: Stat,
        *,
        is_cut: bool,
        is_exclusive: bool,
    ) -> WriteBuffer:
        """Begin to write a file, of which *base* is the current version, if there is one; *is_cut*: begin empty."""
        is_new, ino = base is None, base.attributes.ino if base is not None else entry.reserve()
        is_cut = is_cut or is_new
        state, content = State.FRESH if is_cut else State.CLEAN, BufferBytes(self._space)
        kept = None if is_cut else base
        buffer = WriteBuffer(self, entry, ino, status, kept, is_new, state, is_cut, content, self._ttl(), is_exclusive)
        others = self._by_path.setdefault(entry.path, [])
        for other in others:
            other.is_exclusive = False  # that a program of this mount writes to the file too is no conflict
        others.append(buffer)
        self.moved(entry.path)
        return buffer

    async def copied(self, nbytes: int, read: Callable[[int, int], Awaitable[Buffer]]) -> BufferBytes:
        """Return a copy of the *nbytes* bytes that *read* returns, by offset and size.

        What is published must be here: the journal is not appended to while somebody waits for the store.
        """
        content = BufferBytes(self._space)
        while content.nbytes < nbytes:
            piece = await read(content.nbytes, min(PIECE_NBYTES, nbytes - content.nbytes))
            if not piece:
                raise StaleError("a file ended early")
            content.write(content.nbytes, piece)
        return content

    def use(self, buffer: WriteBuffer, ino: int, flags: int) -> WriteHandle:
        """Return a handle of *buffer* with the number *ino*."""
        buffer.users += 1
        for number in {ino, buffer.ino}:
            self.was_written(buffer, number)
        return WriteHandle(ino, buffer, flags)

    def was_written(self, buffer: WriteBuffer, ino: int) -> None:
        """Note that a handle with the number *ino* wrote to *buffer*."""
        buffer.inos.add(ino)
        buffers = self._by_ino.setdefault(ino, [])
        if not buffers or buffers[-1] is not buffer:
            self._by_ino[ino] = [*(other for other in buffers if other is not buffer), buffer]

    def end(self, buffer: WriteBuffer) -> None:
        """Forget a file that nobody writes any more."""
        _remove(self._by_path, buffer.entry.path, buffer)
        for ino in buffer.inos:
            _remove(self._by_ino, ino, buffer)
        buffer.release_version()

    def lock(self, entry: Published) -> QuickLock:
        """Return the lock of a name, held by whoever creates or replaces its file, publishes it, or removes it.

        Its holder must not wait for the locks of nodes.
        """
        return self._locks.setdefault(entry.path, QuickLock())

    def detach(self, buffers: Iterable[WriteBuffer], *, moved: bool = False) -> None:
        """Take their name from open files: it stands for something else, or for nothing, from now on."""
        for buffer in buffers:
            told = State.LOST if buffer.is_unpublished else State.MOVED
            buffer.state = told if moved else State.DETACHED
            _remove(self._by_path, buffer.entry.path, buffer)


def _remove(table: dict[K, list[V]], key: K, value: V) -> None:
    values = table.get(key, [])
    if value in values:
        values.remove(value)
        if not values:
            del table[key]
