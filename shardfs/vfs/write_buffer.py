"""Write buffers: files that are being written and published as a whole, that is, inner chunks and documents."""

import enum
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar
from weakref import WeakValueDictionary

from shardfs.dataset.layout import OwnVersion
from shardfs.dataset.path_table import is_below
from shardfs.errors import ShardfsError, StaleError
from shardfs.stores.base import PIECE_NBYTES, Buffer, Content, Descriptor, NewAttributes, Stat
from shardfs.stores.local.syscalls import SYSCALLS, changing, read_at, translated
from shardfs.stores.parallel import QuickLock
from shardfs.vfs.handles import Attributes, ChunkHandle, DocumentHandle, FileHandle, changed

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
                return read_at(self._file.fd, nbytes, offset)
        if offset == 0 and nbytes >= self.nbytes:
            return self._buffer
        return memoryview(self._buffer)[offset : offset + nbytes]

    def write(self, offset: int, data: Buffer) -> None:
        """Write *data* at *offset*; a gap before it is filled with zeros.

        If that fails, size and all else are as before, but for bytes in a file that may have been overwritten.
        """
        if not data:
            return
        end = offset + len(data)
        self._prepare(max(self.nbytes, end))
        if self._file is not None:
            with changing("a write buffer"):
                try:
                    SYSCALLS.pwrite(self._file.fd, [data], offset)
                except OSError:
                    os.ftruncate(self._file.fd, self.nbytes)  # else what was written would be found in a later gap
                    raise
            self.nbytes = max(self.nbytes, end)
        elif self.nbytes == offset == 0:
            self._hold(bytes(data))
        else:
            buffer = self._resized(max(self.nbytes, end))
            buffer[offset:end] = data
            self._hold(buffer)

    def truncate(self, nbytes: int) -> None:
        """Truncate the content to *nbytes*, or extend it with zeros."""
        self._prepare(nbytes)
        if self._file is not None:
            with changing("a write buffer"):
                os.ftruncate(self._file.fd, nbytes)
            self.nbytes = nbytes
        else:
            self._hold(self._resized(nbytes))

    def clear(self) -> None:
        """Drop all bytes."""
        self._file = None
        self._hold(b"")

    def __del__(self) -> None:
        self._space.memory -= self._accounted

    def _resized(self, nbytes: int) -> bytearray:
        """Return the bytes in memory, cut or filled with zeros to *nbytes* bytes, to be changed."""
        buffer = self._buffer if isinstance(self._buffer, bytearray) else bytearray(self._buffer)
        try:
            del buffer[nbytes:]
            buffer.extend(bytes(nbytes - len(buffer)))
        except BufferError:  # somebody has what `read` returned: a thread whose call failed, until its next one
            kept = self._buffer[:nbytes]
            buffer = bytearray(nbytes)
            buffer[: len(kept)] = kept
        return buffer

    def _hold(self, buffer: bytes | bytearray) -> None:
        """Let *buffer*, in memory, be the content."""
        self._space.memory += len(buffer) - self._accounted
        self._buffer, self._accounted, self.nbytes = buffer, len(buffer), len(buffer)

    def _prepare(self, nbytes: int) -> None:
        """Go over to a file if the content is to have *nbytes* bytes, and memory is not for so many."""
        others = self._space.memory - self._accounted
        if nbytes > _SPILL_NBYTES or others + nbytes > _MAX_MEMORY:
            self._spill()

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
    """The state of a buffer; `_NEXT` has the transitions."""

    CLEAN = enum.auto()
    """There is nothing to publish: it was only opened, or published and not written since."""
    FRESH = enum.auto()
    """The file was created, or truncated by open, and not written since: it is published empty when it is closed."""
    DIRTY = enum.auto()
    """It was written, and not published."""
    REFUSED = enum.auto()
    """It could not be published, and its program got the error: again only if it closes or syncs it again."""
    DROPPED = enum.auto()
    """Its name was removed, or stands for another file: what is written is seen by its program alone."""
    MOVED = enum.auto()
    """It had nothing to publish when its name or its directory was renamed: who writes to it gets an error."""
    LOST = enum.auto()
    """Its directory was renamed before it was published: who closes it gets an error too."""


class Event(enum.Enum):
    """What happens to a buffer."""

    WRITTEN = enum.auto()
    PUBLISHED = enum.auto()
    REFUSED = enum.auto()
    """Publishing it failed."""
    DROPPED = enum.auto()
    """Its name was removed, or given to another file."""
    MOVED = enum.auto()
    """Its name, or its directory, was renamed."""


_UNPUBLISHED: Final = (State.FRESH, State.DIRTY, State.REFUSED)

_NEXT: Final[Mapping[tuple[State, Event], State]] = {
    **{(state, Event.WRITTEN): State.DIRTY for state in (State.CLEAN, *_UNPUBLISHED)},
    **{(state, Event.PUBLISHED): State.CLEAN for state in _UNPUBLISHED},
    **{(state, Event.REFUSED): State.REFUSED for state in _UNPUBLISHED},
    **{(state, Event.DROPPED): State.DROPPED for state in (State.CLEAN, *_UNPUBLISHED)},
    **{(state, Event.MOVED): State.LOST for state in _UNPUBLISHED},
    (State.CLEAN, Event.MOVED): State.MOVED,
    (State.DROPPED, Event.WRITTEN): State.DROPPED,
    **{(state, Event.DROPPED): state for state in (State.DROPPED, State.MOVED, State.LOST)},
}
"""The transitions. Who has no name any more is published, refused or moved by nobody, and a renamed one not written."""


class Published(Protocol):
    """A name under which a buffer is published, that is, the entry of a chunk or a document."""

    is_document: bool

    @property
    def may_be_empty(self) -> bool:
        """Whether such a file without a byte can be published."""

    @property
    def path(self) -> str:
        """The path on the mount."""

    @property
    def node_path(self) -> str:
        """The path of the node that it belongs to."""

    async def put(
        self, content: Content, status: Stat, mtime_ns: int | None, ino: int | None, *, exclusive: bool
    ) -> OwnVersion | None:
        """Publish *content*; returns number and time of the version, if the name has versions of its own."""

    async def makes_node(self) -> bool:
        """Whether publishing it changes what names in its directory stand for."""

    def check_size(self, nbytes: int) -> None:
        """Raise `TooLargeError` if such a file cannot have so many bytes."""

    def keep_number(self, ino: int) -> None:
        """Let *ino* stand for this file, which does not exist yet."""

    def reserve(self) -> int:
        """Return an inode number for this file, which does not exist yet."""


class WriteBuffer(FileHandle):
    """A chunk or a document that is open to be written: a copy that is published as a whole.

    Each open has its own, and nobody else sees it until it is published. So the last to be closed counts, whole. It
    begins as the version that was current when it was opened, *base* until something is written, or empty.

    The kernel has one page cache and one size for all who have an inode open, and their bytes differ here. So all
    buffers bypass the page cache, and so do readers who come while there is one. The size is never cached: whoever asks
    for it gets that of the buffer that was written last, as the kernel does not say for whom it asks. It uses it for
    the end of a file only: who appends is given the end of the own copy, whatever offset the kernel sends.

    The kernel may cache the attributes of a new file for *ttl* seconds, unless it is written: then the kernel asks by
    itself.

    *is_new*: nothing is published under the name. *version_ino* is the number of the version that it was begun with
    or published as last, or is to be published as first. *is_exclusive*: it was created on condition that nobody else
    creates the file. *mtime_ns* is the time of that version, or the time for the next one, None being the time when it
    is published.
    """

    is_direct = True
    is_buffered = True

    def __init__(
        self,
        buffers: "WriteBuffers",
        entry: Published,
        base: ChunkHandle | DocumentHandle | None,
        status: Stat,
        flags: int,
        content: BufferBytes,
        *,
        ino: int,
        is_fresh: bool,
    ) -> None:
        self.is_new = base is None
        self.version_ino = base.attributes.ino if base is not None else entry.reserve()
        self.ino = ino or self.version_ino
        self.numbers: Final = {self.ino, self.version_ino}
        self.entry = entry
        self.state = State.FRESH if is_fresh else State.CLEAN
        self.is_exclusive = bool(flags & os.O_EXCL)
        self._buffers = buffers
        self._base = None if is_fresh else base
        self._status = status
        self._content = content
        self._mtime_ns: int | None = None
        self._ttl = buffers.ttl()
        self._appends = bool(flags & os.O_APPEND)
        self._was_cut = bool(flags & (os.O_TRUNC | os.O_EXCL))  # by its program, which did not flush it since
        self._lock = buffers.lock(entry)

    @property
    def path(self) -> str:
        """Where it is published."""
        return self.entry.path

    @property
    def status(self) -> Stat:
        """The status of the file, but for its size and time."""
        return self._status

    @property
    def is_unpublished(self) -> bool:
        """Whether there is something to be published."""
        return self.state in _UNPUBLISHED

    @property
    def is_ahead(self) -> bool:
        """Whether it may have other content than any published version."""
        return self.is_unpublished or self.state is State.DROPPED

    @property
    def attributes(self) -> Attributes:
        """The attributes of what was written so far."""
        ttl = self._ttl if self.state is State.FRESH and self.is_new else 0.0  # nobody else can see it yet
        nbytes = self._base.attributes.size if self._base is not None else self._content.nbytes
        return Attributes(self.ino, nbytes, ttl, self._status, self._mtime_ns)

    def happened(self, event: Event) -> None:
        """Go to the next state."""
        self.state = _NEXT[self.state, event]

    def set_attributes(self, changes: NewAttributes) -> None:
        """Set the modification time for the next version, and mode and owner of a new file."""
        mtime_ns = changes.get("mtime_ns")
        self._mtime_ns = self._mtime_ns if mtime_ns is None else mtime_ns
        if self.is_new:
            self._status = changed(self._status, changes)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes as they were written."""
        return await self._base.read(offset, nbytes) if self._base is not None else self._content.read(offset, nbytes)

    async def write(self, offset: int, data: Buffer) -> None:
        """Write *data*; at the end if the file was opened for appending."""
        self._buffers.check_room()
        async with self._lock:
            await self._load()
            offset = self._content.nbytes if self._appends else offset
            self.entry.check_size(offset + len(data))
            self._content.write(offset, data)
            self._was_written()

    async def truncate(self, nbytes: int) -> None:
        """Give the file another size."""
        async with self._lock:
            self.check()
            self.entry.check_size(nbytes)
            if nbytes:
                await self._load()
            self._content.truncate(nbytes)
            self._base = None
            self._was_written()

    async def flush(self) -> None:
        """Publish what was written and is not published yet: not a file that is only created or cut, see `close`."""
        if self.state in (State.DIRTY, State.REFUSED, State.LOST):
            await self._buffers.publish(self)

    async def sync(self) -> None:
        """Publish what was written, and make it durable."""
        await self.flush()
        await self._buffers.sync()

    async def close(self) -> None:
        """Publish what was created or truncated, but not written.

        Also what a thread wrote after another one had closed the descriptor.
        """
        try:
            if self.state in (State.FRESH, State.DIRTY):
                await self._buffers.publish(self)
        finally:
            self._buffers.end(self)

    @property
    def must_be_moved(self) -> bool:
        """Whether it is published before its name is moved: a file that is only cut is what it was until then."""
        return self.state in (State.DIRTY, State.REFUSED) or (self.state is State.FRESH and self.is_new)

    async def publish(self) -> None:
        """Publish the content, unless somebody already has, or another file has the name by now."""
        async with self._lock:
            await self.publish_held()

    async def publish_held(self) -> None:
        """Do what `publish` does; the caller holds the lock of the name."""
        if self.state is State.LOST:
            self.check()
        if not self.is_unpublished:
            return
        try:
            number = self.version_ino if self.is_new else None
            published = await self.entry.put(
                self._content, self._status, self._mtime_ns, number, exclusive=self.is_exclusive
            )
        except ShardfsError:
            self.happened(Event.REFUSED)
            raise
        if published is not None:
            self.version_ino, self._mtime_ns = published.ino, published.mtime_ns
        self.happened(Event.PUBLISHED)
        self._buffers.published(self.path)

    def check(self) -> None:
        """Raise `StaleError` if writing is useless, because the file was renamed."""
        if self.state in (State.MOVED, State.LOST):
            raise StaleError(f"{self.path} was renamed while it was open: open it again to write")

    def is_still_empty(self) -> bool:
        """Whether this may not be empty, began so, and was not written when it was first flushed.

        It will not be published, and whoever closes it should know. Not so if the file is only created, to be written
        later, or if it was flushed before: a shell or a parent process, which ignores the result, may have passed it on
        to programs that still write.
        """
        is_first, self._was_cut = self._was_cut, False
        return is_first and self.state is State.FRESH and not self.entry.may_be_empty

    def note_rival(self) -> None:
        """Note that another program of this mount writes to the file: that it exists is no conflict with others."""
        self.is_exclusive = False

    def note_published(self) -> None:
        """Note that a version of the file is published, maybe from another buffer."""
        self.is_new = self.is_exclusive = False

    def note_time(self, mtime_ns: int) -> None:
        """Note the modification time of the document that it was published as."""
        self._mtime_ns = mtime_ns

    def _was_written(self) -> None:
        self.happened(Event.WRITTEN)
        self._mtime_ns = None
        self._status = self._status._replace(mtime_ns=time.time_ns())
        self._buffers.was_written(self)

    async def _load(self) -> None:
        """Copy the content of the version to be changed; raises `StaleError` if the file was renamed meanwhile."""
        if self._base is not None:
            self._content = await self._buffers.copied(self._base.attributes.size, self._base.read)
            self._base = None
        self.check()


@dataclass(eq=False)
class Watch:
    """Whether a file under some name was begun, published, or took the name, since somebody began to look it up."""

    has_changed: bool = False


class WriteBuffers:
    """The open buffers, by the names under which they are published, and by the numbers of their handles.

    Of several with one name, the one begun last counts; of several with one number, the one written last. *publish*
    publishes a buffer, *sync* makes durable what was published, *check_room* raises the error that prevents writing,
    *ttl* is how many seconds the kernel may cache attributes of a new file.

    What a name stands for is a buffer, then in the journal, then in the store. Whoever asks these one after another
    could miss it in each while it moves on: `resolve` asks them so that nothing is missed.
    """

    def __init__(
        self,
        space: BufferSpace,
        ttl: Callable[[], float],
        publish: Callable[[WriteBuffer], Awaitable[None]],
        sync: Callable[[], Awaitable[None]],
        check_room: Callable[[], None],
    ) -> None:
        self.publish = publish
        self.sync = sync
        self.check_room = check_room
        self.ttl = ttl
        self._space = space
        self._by_path: dict[str, list[WriteBuffer]] = {}
        self._by_ino: dict[int, list[WriteBuffer]] = {}
        self._watches: dict[str, list[Watch]] = {}
        self._locks: WeakValueDictionary[str, QuickLock] = WeakValueDictionary()  # only those in use

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def of(self, path: str) -> list[WriteBuffer]:
        """Return the buffers of the file *path*, oldest first."""
        return list(self._by_path.get(path, ()))

    def below(self, directory: str) -> list[WriteBuffer]:
        """Return the buffers of all files below *directory*."""
        return [buffer for path, buffers in self._by_path.items() if is_below(path, directory) for buffer in buffers]

    def unpublished(self, path: str) -> WriteBuffer | None:
        """Return a buffer that is to be published under a name."""
        buffers = self._by_path.get(path, ())
        return next((buffer for buffer in reversed(buffers) if buffer.is_unpublished), None)

    async def resolve(
        self, path: str, look: Callable[[], Awaitable[V]], is_there: Callable[[V], bool]
    ) -> "V | WriteBuffer":
        """Return what the name *path* stands for: what is published, else what is being written, else nothing.

        *look* looks for what is published, and *is_there* tells whether it found any; the result may be that of a look
        that found nothing.
        """
        while True:
            with self._watching(path) as watch:
                published = await look()
            if is_there(published):
                return published
            unpublished = self.unpublished(path)
            if unpublished is not None:
                return unpublished
            if not watch.has_changed:
                return published

    @contextmanager
    def _watching(self, path: str) -> Iterator[Watch]:
        """Watch a name during the block: if nothing was found in it, look again if the name *has_changed* meanwhile."""
        watch = Watch()
        self._watches.setdefault(path, []).append(watch)
        try:
            yield watch
        finally:
            _remove(self._watches, path, watch)

    def changed(self, path: str) -> None:
        """Tell those who watch the name *path* that a file under it was begun, published, or took the name."""
        for watch in self._watches.get(path, ()):
            watch.has_changed = True

    def published(self, path: str) -> None:
        """Note that a version of the file *path* was published from a buffer."""
        for buffer in self.of(path):
            buffer.note_published()
        self.changed(path)

    def of_ino(self, ino: int) -> WriteBuffer | None:
        """Return the buffer with the number *ino* that was last written or, if none is ahead, opened."""
        buffers = self._by_ino.get(ino, ())
        ahead = (buffer for buffer in reversed(buffers) if buffer.is_ahead)
        return next(ahead, buffers[-1] if buffers else None)

    def begin(
        self,
        entry: Published,
        base: ChunkHandle | DocumentHandle | None,
        status: Stat,
        flags: int,
        *,
        ino: int,
        is_fresh: bool,
    ) -> WriteBuffer:
        """Begin to write a file, of which *base* is the current version, if there is one; *is_fresh*: begin empty.

        *ino* is the number by which the kernel opened it, 0 if it is that of *base* or of a new file.
        """
        buffer = WriteBuffer(self, entry, base, status, flags, BufferBytes(self._space), ino=ino, is_fresh=is_fresh)
        others = self._by_path.setdefault(entry.path, [])
        for other in others:
            other.note_rival()
        others.append(buffer)
        self.was_written(buffer)
        self.changed(entry.path)
        return buffer

    def new_content(self) -> BufferBytes:
        """Return room for bytes that are to be published, which counts like that of buffers."""
        return BufferBytes(self._space)

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

    def was_written(self, buffer: WriteBuffer) -> None:
        """Note that *buffer* was opened or written: it is the last one of its numbers."""
        for ino in buffer.numbers:
            buffers = self._by_ino.setdefault(ino, [])
            if not buffers or buffers[-1] is not buffer:
                self._by_ino[ino] = [*(other for other in buffers if other is not buffer), buffer]

    def end(self, buffer: WriteBuffer) -> None:
        """Forget a file that is closed."""
        _remove(self._by_path, buffer.path, buffer)
        for ino in buffer.numbers:
            _remove(self._by_ino, ino, buffer)

    def lock(self, entry: Published) -> QuickLock:
        """Return the lock of a name, held by whoever creates or replaces its file, publishes it, or removes it.

        Its holder must not wait for the locks of nodes.
        """
        return self._locks.setdefault(entry.path, QuickLock())

    def lose_name(self, buffers: Iterable[WriteBuffer], event: Literal[Event.DROPPED, Event.MOVED]) -> None:
        """Take their name from open files: it stands for something else, or for nothing, from now on."""
        for buffer in buffers:
            buffer.happened(event)
            _remove(self._by_path, buffer.path, buffer)


def _remove(table: dict[K, list[V]], key: K, value: V) -> None:
    values = table.get(key, [])
    if value in values:
        values.remove(value)
        if not values:
            del table[key]
