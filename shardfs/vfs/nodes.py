"""Nodes of the inode table, one class per kind: everything that is not in a chunk tree."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.errors import (
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    RefusedError,
    StaleError,
)
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.handles import Batch, DocumentHandle, FileHandle, PassthroughHandle

if TYPE_CHECKING:
    from shardfs.vfs.chunk_tree import ChunkTree
    from shardfs.vfs.filesystem import Filesystem

_REASON: Final = b"user.shardfs.reason"
GONE: Final = "gone"
"""The identity of a stored file or directory that has no name any more, whatever its path stands for."""


class TableNode(Protocol):
    """Whatever the inode table holds."""

    @property
    def path(self) -> str:
        """Where it is, or was, on the mount."""

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes; raises `StaleError` if this is something else now."""

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* below this node."""

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names below this node behind *cookie*."""

    async def open(self, ino: int) -> FileHandle:
        """Open this node as a file, to read it."""

    async def read_link(self) -> bytes:
        """Return the target of a symbolic link."""

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute."""

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the extended attributes."""


@dataclass(frozen=True, slots=True)
class ChunkVersion:
    """A chunk that was published through this mount, or is about to be."""

    chunks: "ChunkTree"
    coords: Coords

    @property
    def path(self) -> str:
        """The path of the chunk."""
        return join_key(self.chunks.array.layout.path, self.chunks.key(self.coords))

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of this version."""
        return (await self.chunks.version(self.coords, ino, fresh=False)).attributes

    async def lookup(self, name: str) -> Attributes:
        """Say that this is no directory."""
        raise NotADirectoryHereError("a chunk is no directory")

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Say that this is no directory."""
        raise NotADirectoryHereError("a chunk is no directory")

    async def open(self, ino: int) -> FileHandle:
        """Open this version."""
        return await self.chunks.version(self.coords, ino)

    async def read_link(self) -> bytes:
        """Say that this is no link."""
        raise RefusedError("a chunk is no symbolic link")

    async def attribute(self, name: bytes) -> bytes:
        """Return where the chunk lies."""
        return await self.chunks.chunk_attribute(self.coords, None, name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the attributes."""
        return self.chunks.chunk_attribute_names()


@dataclass(frozen=True, slots=True)
class ChunkDirectory:
    """A directory that was plain until the document of its array came, and is one of chunks now."""

    chunks: "ChunkTree"
    position: int

    @property
    def path(self) -> str:
        """The path of the directory."""
        return self.chunks.stored_path(self.position)

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of the directory of chunks."""
        return (await self.chunks.attributes(0, self.position))._replace(ino=ino)

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* in the directory."""
        return await self.chunks.lookup(self.position, name)

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names in the directory behind *cookie*."""
        return self.chunks.list(self.position, cookie)

    async def open(self, ino: int) -> FileHandle:
        """Say that this is no file."""
        raise IsADirectoryHereError("this is a directory of chunks")

    async def read_link(self) -> bytes:
        """Say that this is no link."""
        raise RefusedError("a directory of chunks is no symbolic link")

    async def attribute(self, name: bytes) -> bytes:
        """Say that there is none."""
        raise NoAttributeError(f"no attribute {name!r}")

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the attributes: none."""
        return []


@dataclass(eq=False, slots=True)
class StoredNode:
    """Something that is shown as it is stored; *identity* tells whether *path* still stands for it.

    As it is: a symbolic link (which the kernel follows on the mount), a pipe, a socket or a device.  *path* is the name
    by which it was looked up last, of the *nlink* that it has.
    """

    fs: "Filesystem"
    path: str
    identity: object
    nlink: int = field(default=1, kw_only=True)

    @property
    def key(self) -> object:
        """What tells it from all others in the inode table: links are one file, where the store knows files."""
        if isinstance(self.identity, tuple) and not self.fs.is_document(self.path):
            return type(self), self.identity
        return type(self), self.path, self.identity

    @property
    def stored_path(self) -> str:
        """The key of what is stored, and has the attributes that this has."""
        return self.path

    async def attributes(self, ino: int) -> Attributes:
        """Return the stored attributes; raises `StaleError` if *path* stands for something else now."""
        status = await self.fs.store.stat(self.path)
        if status.identity != self.identity:
            raise StaleError(f"{self.path or 'the source'} was replaced")
        return Attributes(ino, status.size, self.fs.ttl, status)

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* below this node."""
        raise NotADirectoryHereError(f"{self.path} is no directory")

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names below this node behind *cookie*."""
        raise NotADirectoryHereError(f"{self.path} is no directory")

    async def open(self, ino: int) -> FileHandle:
        """Open this node as a file."""
        raise IsADirectoryHereError(f"{self.path} is no regular file")

    async def read_link(self) -> bytes:
        """Return the target of a symbolic link."""
        return await self.fs.store.read_link(self.path)

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute."""
        return await self.fs.store.attribute(self.stored_path, name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        return await self.fs.store.attributes(self.stored_path)


class PassthroughFile(StoredNode):
    """A file that passes through."""

    __slots__ = ()

    async def open(self, ino: int) -> FileHandle:
        """Open the stored file."""
        return await self.open_passthrough(ino, writable=False)

    async def open_passthrough(self, ino: int, *, writable: bool) -> PassthroughHandle:
        """Open the stored file, also to write."""
        try:
            file = await self.fs.store.open_passthrough(self.path, writable=writable)
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None
        if file.stat().identity != self.identity:
            await file.close()
            raise StaleError(f"{self.path} was replaced")
        return PassthroughHandle(ino, self.path, file, self.fs.ttl)


@dataclass(eq=False, slots=True)
class Document(StoredNode):
    """A generated document of *nbytes* bytes, of a stored `zarr.json`; *identity* is the version of the latter.

    One version may be shown in several texts: the one that a program wrote is not known for ever.
    """

    nbytes: int

    @property
    def key(self) -> object:
        """What tells it from all others in the inode table."""
        return Document, self.path, self.identity, self.nbytes

    @property
    def stored_path(self) -> str:
        """The key of the stored document."""
        return join_key(self.path.rpartition("/")[0], DOCUMENT)

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of the stored document, with the size of the text that is shown."""
        return (await self._open(ino, fresh=False)).attributes

    async def open(self, ino: int) -> FileHandle:
        """Open the text as it is now."""
        return await self._open(ino, fresh=True)

    async def _open(self, ino: int, *, fresh: bool) -> DocumentHandle:
        directory = self.path.rpartition("/")[0]
        return self.open_of(await self.fs.hierarchy.node(directory, fresh=fresh), ino)

    def open_of(self, node: Node, ino: int) -> DocumentHandle:
        """Open the text that *node* has, which is that of the directory."""
        shown = self.fs.documents(node).get(self.path.rpartition("/")[2])
        status = node.document_stat
        if shown is None or status is None or (status.version, len(shown.text)) != (self.identity, self.nbytes):
            raise StaleError(f"{self.path} was replaced")
        ttl = self.fs.hierarchy.remaining(node.path)
        return DocumentHandle(Attributes(ino, len(shown.text), ttl, status, shown.mtime_ns), shown.text)


class Directory(StoredNode):
    """A directory: of an array, of a group, or of anything else."""

    __slots__ = ()

    @property
    def key(self) -> object:
        """What tells it from all others: it has one name, or is mounted at several, which are several directories."""
        return type(self), self.path, self.identity

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of a generated document, of something in the chunk tree, or of what is stored."""
        node = await self.hierarchy_node()
        if name in self.fs.view.document_names and name in self.fs.documents(node):
            return self.fs.document_attributes(node, name)
        chunks = self.fs.chunk_tree(node)
        if chunks is not None and chunks.owns_in_array(name):
            return await chunks.lookup_in_array(name)
        if chunks is not None and chunks.is_scratch(name):
            return await self.fs.stored.lookup_beside_chunks(self.path, name)
        if self.hides(node, chunks, name):
            return self.fs.stored.nothing()
        attributes = await self.fs.stored.lookup(self.path, name)
        if attributes.status.kind is Kind.DIRECTORY and await self.fs.stored.left_out(self.path, [name]):
            return self.fs.stored.nothing()
        return attributes

    async def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield generated documents, then stored names, then what is kept beside chunks, then chunks."""
        node = await self.hierarchy_node()
        chunks = self.fs.chunk_tree(node)
        generated = {name: self.fs.document_attributes(node, name) for name in self.fs.documents(node)}

        def hides(name: str) -> bool:
            return name in generated or self.hides(node, chunks, name)

        async for batch in self.fs.stored.list(self.path, cookie, generated, hides):
            yield batch
        if chunks is not None:
            async for batch in self.fs.stored.list_scratch(self.path, cookie, lambda name: not chunks.is_scratch(name)):
                yield batch
            async for batch in chunks.list_in_array(cookie):
                yield batch

    def hides(self, node: Node, chunks: "ChunkTree | None", name: str) -> bool:
        """Whether what is stored under *name* is not shown as it is stored."""
        if self.fs.is_scratch(self.path):
            return False
        if chunks is not None and (chunks.takes(name) or (is_lock(name) and chunks.is_scratch(name))):
            return True
        return self.fs.view.hides(node, name)

    async def hierarchy_node(self) -> Node:
        """Return what the directory is; raises `StaleError` if it is gone."""
        try:
            return await self.fs.hierarchy.node(self.path)
        except NotFoundError:  # so that the kernel asks for the path again, before it says that there is none
            raise StaleError(f"{self.path} is gone") from None

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute: of the stored directory, or why an array is shown as stored."""
        if name == _REASON:
            reason = (await self.fs.hierarchy.node(self.path)).reason
            if reason is None:
                raise NoAttributeError(f"{self.path} is not shown as stored for a reason")
            return reason.encode()
        return await self.fs.store.attribute(self.path, name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        names = list(await self.fs.store.attributes(self.path))
        if (await self.fs.hierarchy.node(self.path)).reason is not None:
            names.append(_REASON)
        return names
