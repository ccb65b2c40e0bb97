"""What every entry of the tree can do, and what is common to those that are published as a whole."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from shardfs.errors import (
    ExistsError,
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    NotPermittedError,
    RefusedError,
    StaleError,
    UnsupportedError,
)
from shardfs.stores.base import Content, NewAttributes
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.handles import (
    Attributes,
    Batch,
    ChunkHandle,
    DocumentHandle,
    FileHandle,
    Owner,
    PassthroughHandle,
    new_file,
)
from shardfs.vfs.write_buffer import Published, WriteHandle

if TYPE_CHECKING:
    from shardfs.vfs.filesystem import Filesystem


class Entry(ABC):
    """A name of the tree, or one version of what has it.

    Made of a directory and a name, it is whatever the name stands for when it is asked, which may be nothing; *ino* is
    0 then.  Made of an inode number, *ino*, it is what had that number: what reads it raises `StaleError` if the name
    stands for something else by now.  Equal entries are of one name.
    """

    __slots__ = ("fs", "ino")

    def __init__(self, fs: "Filesystem", ino: int = 0) -> None:
        self.fs = fs
        self.ino = ino

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    @abstractmethod
    def path(self) -> str:
        """The path on the mount; of names beside chunks, where they are stored."""

    @property
    def node_path(self) -> str:
        """The path of the node that it is part of, whose lock keeps what it stands for."""
        return self.path.rpartition("/")[0]

    @abstractmethod
    async def attributes(self) -> Attributes:
        """Return the attributes of this version."""

    async def open(self) -> FileHandle:
        """Open this version to read it."""
        raise IsADirectoryHereError(f"{self.path} is not a regular file")

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* in this directory; number 0 stands for no such name."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    async def child(self, name: str) -> "Entry":
        """Return what *name* in this directory stands for, to change it."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names in this directory behind *cookie*."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    async def read_link(self) -> bytes:
        """Return the target of a symbolic link."""
        raise RefusedError(f"{self.path} is not a symbolic link")

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute."""
        key = self.stored_key()
        if key is None:
            raise NoAttributeError(f"no attribute {name!r}")
        return await self.fs.store.attribute(key, name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        key = self.stored_key()
        return await self.fs.store.attributes(key) if key is not None else []

    async def successor(self) -> "ChunkHandle | DocumentHandle | PassthroughHandle | None":
        """Open what has the name by now, to read it under this number; None if there is nothing.

        The kernel looks a name up once more when it is told that a number is out of date, and not again.  Where others
        write one name time after time that is not enough; and programs take the error for a file that is not there.
        """
        return None

    def stored_key(self) -> str | None:
        """Return the key of the stored file that this shows as a whole; None if there is none."""
        return None

    # What changes something, in a tree that may be changed.

    async def exists(self) -> bool:
        """Whether the name stands for anything, be it a file that is not published yet."""
        return True

    async def create(self, mode: int, flags: int, owner: Owner) -> WriteHandle | PassthroughHandle:
        """Make a file, which may be there unless *flags* say otherwise, and open it."""
        raise IsADirectoryHereError(f"{self.path} is a directory")

    async def open_to_write(self, flags: int) -> WriteHandle | PassthroughHandle:
        """Open a file to write."""
        raise IsADirectoryHereError(f"{self.path} is not a regular file")

    async def content(self) -> tuple[Attributes, Content]:
        """Return attributes and content of the file that the name stands for; raises `NotFoundError`."""
        raise IsADirectoryHereError(f"{self.path} is a directory")

    async def replace(
        self, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Make *content* that of the file, which may be there; *ino* is the number that it brings."""
        raise ExistsError(f"{self.path} is a directory")

    async def remove(self) -> None:
        """Remove the file; raises `NotFoundError`."""
        raise IsADirectoryHereError(f"{self.path} is a directory")

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Make a directory of this name."""
        raise ExistsError(f"{self.path} exists")

    async def remove_directory(self) -> None:
        """Remove an empty directory."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    async def make_link(self, target: bytes) -> None:
        """Make a symbolic link of this name."""
        raise NotPermittedError("chunks and documents cannot be symbolic links")

    async def link_to(self, new: "Entry") -> None:
        """Give this file the second name *new*; that of a chunk or a document is a copy."""
        raise NotPermittedError("only files that are neither chunks nor documents can have a second name")

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Change attributes; those of directories of chunks stay."""
        return

    async def set_attribute(self, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it if *value* is None."""
        key = self.stored_key()
        if key is None:
            raise UnsupportedError("chunks have no extended attributes of their own")
        if value is None:
            await self.fs.store.remove_attribute(key, name)
        else:
            await self.fs.store.set_attribute(key, name, value)

    async def sync(self) -> None:
        """Make the names in this directory durable."""
        return


class PublishedEntry(Entry, Published):
    """What chunks and documents have in common as entries."""

    __slots__ = ()

    async def successor(self) -> ChunkHandle | DocumentHandle | PassthroughHandle | None:
        """Open what has the name by now."""
        try:
            handle = await self.current()
        except (NotFoundError, StaleError, IsADirectoryHereError, NotADirectoryHereError):
            return None
        return handle.renumbered(self.ino) if handle is not None else None

    def reserve(self) -> int:
        """Return a number for this file, which is not there yet."""
        ino = self.fs.inodes.reserve()
        self.keep_number(ino)
        return ino

    async def create(self, mode: int, flags: int, owner: Owner) -> WriteHandle | PassthroughHandle:
        """Open the file, made or not: the kernel looked before, and there was nothing."""
        buffers = self.fs.buffers
        base = await self.current() if buffers.get(self) is None else None
        buffer = buffers.get(self)
        if flags & os.O_EXCL and base is not None and not await self.exists():
            base = None  # a chunk that was removed, and went on as one of the fill value
        if flags & os.O_EXCL and (buffer is not None or base is not None):
            raise ExistsError(f"{self.path} exists")
        if buffer is None or flags & os.O_TRUNC:
            new = new_file(mode, owner.uid, owner.gid)._replace(mtime_ns=time.time_ns())
            status = new if base is None else base.attributes.status
            is_cut, exclusive = bool(flags & os.O_TRUNC), bool(flags & os.O_EXCL)
            buffer = buffers.begin(self, base, status, is_cut=is_cut, exclusive=exclusive)
        return buffers.use(buffer, buffer.ino, flags)

    async def open_to_write(self, flags: int) -> WriteHandle | PassthroughHandle:
        """Open the file as it is now, whatever it was when the kernel looked.

        The kernel would look only once more, and writers that take turns on one name, with lock files renamed onto it,
        may be faster.
        """
        buffers = self.fs.buffers
        buffer, is_cut = buffers.get(self), bool(flags & os.O_TRUNC)
        if buffer is None or is_cut:
            nchanges = self.fs.store.nchanges
            base = await self.current()
            if base is None and buffer is None:
                raise StaleError(f"{self.path} was removed")
            if base is not None and not is_cut:
                self.fs.note_shown(self, base, nchanges)
            shared = None if is_cut else buffers.get(self)
            status = base.attributes.status if base is not None else buffer.status if buffer is not None else None
            assert status is not None
            buffer = shared or buffers.begin(self, base, status, is_cut=is_cut)
        return buffers.use(buffer, self.ino, flags)

    async def content(self) -> tuple[Attributes, Content]:
        """Return attributes and content of what is published."""
        handle = await self.current()
        if handle is None:
            raise NotFoundError(f"{self.path} does not exist")
        if isinstance(handle, ChunkHandle):
            return handle.attributes, await handle.extent.content()
        return handle.attributes, MemoryContent(memoryview(handle.text))
