"""Files that are being written and are published as a whole: inner chunks and documents."""

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol

from shardfs.dataset.quick_lock import QuickLock
from shardfs.errors import StaleError
from shardfs.format.metadata import MAX_DOCUMENT_NBYTES
from shardfs.stores.base import Buffer, Stat
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.drafts import MAX_CHUNK_NBYTES, Draft, DraftSpace
from shardfs.vfs.handles import ChunkHandle, DocumentHandle
from shardfs.vfs.names import ChunkName, DocumentName
from shardfs.vfs.nodes import ChunkVersion, Document
from shardfs.vfs.tree import Tree

_PIECE_NBYTES: Final = 2**20


class Readable(Protocol):
    """An open file whose content a draft begins with."""

    @property
    def attributes(self) -> Attributes:
        """Its attributes."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of it."""


@dataclass(eq=False)
class OpenDraft:
    """What is written to one name by all who have it open, as on any file.

    The kernel may believe the attributes of a new file for *ttl* seconds until it is written: then it asks by itself.
    *base* is what the name stood for, as long as nothing was written; None if it begins empty.  *ino* is the number
    that the first version published gets, if the file is new; *is_detached*: the name stands for something else now,
    and nothing is published any more.  *version* is the number of what was published last; *mtime_ns* its time, or the
    one that the next version gets, None being the time when it is published.
    """

    name: ChunkName | DocumentName
    draft: Draft
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
    users: int = 0
    mtime_ns: int | None = None
    version: int = field(init=False)
    lock: QuickLock = field(default_factory=QuickLock)

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
            self.draft.write(self.draft.nbytes if offset is None else offset, data)
            self._changed()

    async def truncate(self, nbytes: int) -> None:
        """Give the file another size."""
        async with self.lock:
            if nbytes == 0:
                self.base = None
            await self._load()
            self.draft.truncate(nbytes)
            self._changed()

    async def restart(self) -> None:
        """Begin empty, as an open that truncates does."""
        async with self.lock:
            self.base = None
            self.draft.clear()
            self.mtime_ns = None
            self.is_dirty, self.is_fresh = False, True  # whoever wrote before and closes now publishes nothing

    async def publish(self, publish: "Callable[[OpenDraft], Awaitable[None]]") -> None:
        """Have *publish* make the present content that of the name, unless somebody did, or has the name, by now."""
        async with self.lock:
            if self.is_detached or not (self.is_dirty or self.is_fresh):
                return
            await self._load()
            await publish(self)
            self.is_dirty = self.is_fresh = self.is_new = False

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
class DraftHandle:
    """An open file that is published as a whole."""

    ino: int
    open_draft: OpenDraft
    appends: bool = False
    begins_empty: bool = False
    """Whether the file was cut, or made on the condition that there was none, for this handle, not flushed since."""
    is_chunk = True

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


class OpenDrafts:
    """The drafts that are open, by the names that they are published under and by the numbers of their handles."""

    def __init__(self, tree: Tree, space: DraftSpace) -> None:
        self._tree = tree
        self._space = space
        self._by_name: dict[ChunkName | DocumentName, OpenDraft] = {}
        self._by_ino: dict[int, OpenDraft] = {}

    def get(self, name: ChunkName | DocumentName) -> OpenDraft | None:
        """Return the draft that is published under *name*."""
        return self._by_name.get(name)

    def of_ino(self, ino: int) -> OpenDraft | None:
        """Return the draft that a handle with the number *ino* writes."""
        return self._by_ino.get(ino)

    def items(self) -> list[tuple[ChunkName | DocumentName, OpenDraft]]:
        """Return all that have a name, with it."""
        return list(self._by_name.items())

    def begin(
        self, name: ChunkName | DocumentName, base: ChunkHandle | DocumentHandle | None, status: Stat
    ) -> OpenDraft:
        """Begin to write a file."""
        ino = self._tree.inodes.reserve() if base is None else base.attributes.ino
        is_new = base is None
        most = MAX_CHUNK_NBYTES if isinstance(name, ChunkName) else MAX_DOCUMENT_NBYTES
        opened = OpenDraft(name, Draft(self._space, most), ino, status, base, is_new, self._tree.ttl, is_fresh=is_new)
        if base is None:
            node = (
                ChunkVersion(name.chunks, name.coords)
                if isinstance(name, ChunkName)
                else Document(self._tree, name.path, ino, 0)
            )
            self._tree.inodes.keep(ino, node)
        self._by_name[name] = opened
        return opened

    def use(self, opened: OpenDraft, ino: int, flags: int) -> DraftHandle:
        """Return a handle of *opened* with the number *ino*."""
        opened.users += 1
        self._by_ino[ino] = opened
        begins_empty = bool(flags & (os.O_TRUNC | os.O_EXCL))
        return DraftHandle(ino, opened, appends=bool(flags & os.O_APPEND), begins_empty=begins_empty)

    def end(self, opened: OpenDraft) -> None:
        """Forget a file that nobody writes any more."""
        if self._by_name.get(opened.name) is opened:
            del self._by_name[opened.name]
        numbers = [ino for ino, other in self._by_ino.items() if other is opened]
        for ino in numbers:
            del self._by_ino[ino]
        opened.draft.clear()

    def lock(self, name: ChunkName | DocumentName) -> AbstractAsyncContextManager[None]:
        """Return what to hold while something else takes *name*: what is being published under it comes first.

        Who holds it must not wait for the gate.
        """
        opened = self._by_name.get(name)
        return nullcontext() if opened is None else opened.lock

    def detach(self, name: ChunkName | DocumentName) -> None:
        """Let go of the name of an open file: something else has it from now on."""
        opened = self._by_name.pop(name, None)
        if opened is not None:
            opened.is_detached = True

    def rename(self, opened: OpenDraft, name: ChunkName | DocumentName) -> None:
        """Publish *opened* under another name from now on."""
        if self._by_name.get(opened.name) is opened:
            del self._by_name[opened.name]
        opened.name, opened.is_detached = name, False
        self._by_name[name] = opened
