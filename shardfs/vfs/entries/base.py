"""What every entry can do, and what chunks and documents have in common."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.layout import OwnVersion
from shardfs.dataset.node import Node
from shardfs.errors import (
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    NotPermittedError,
    RefusedError,
    StaleError,
    TooLargeError,
    UnsupportedError,
)
from shardfs.stores.base import Content, NewAttributes, NewPermissions, Reader, Stat, Store
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.chunk_cache import ChunkCache, ChunkView
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
from shardfs.vfs.inodes import ArrayRanges, Inodes
from shardfs.vfs.pages import CachedPages
from shardfs.vfs.texts import DocumentText, TextCache
from shardfs.vfs.write_buffer import Event, WriteBuffer, WriteBuffers

if TYPE_CHECKING:
    from shardfs.dataset.writer import ChunkWriter  # which a tree that is only read does not load


class TreeView(Protocol):
    """What entries ask the view of their tree."""

    document_names: frozenset[str]

    def chunk_view(self, node: Node) -> ChunkView | None:
        """Return how the chunks of *node* are shown; None if its files pass through."""

    def fixed(self, node: Node) -> Mapping[str, bytes]:
        """Return the documents generated for a *node* that is only read, by name."""

    def skipped(self, node: Node) -> str | None:
        """Return why *node* is not shown at all; None if it is shown."""

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name*, in the directory of *node*, is hidden because it belongs to another view."""


class ShardedFiles(Protocol):
    """Files that are stored in shards, for the directory that shows them: the chunks of an array, or values by id."""

    @property
    def path(self) -> str:
        """The path of the directory."""

    def owns_in_array(self, name: str) -> bool:
        """Whether *name*, in the directory of the array, has the form of a chunk or a directory of chunks."""

    def takes(self, name: str) -> bool:
        """Whether *name*, in the directory of the array, has the form of a chunk or of a stored shard."""

    def is_scratch(self, name: str) -> bool:
        """Whether the file *name*, in the directory of the array, is a scratch file."""

    async def lookup(self, position: int | None, name: str) -> Attributes:
        """Return the attributes of *name* in the directory at *position*; None is the directory of the array."""

    async def open(self, position: int | None, name: str) -> ChunkHandle | Attributes | None:
        """Open the chunk *name* in the directory at *position*; None is the directory of the array."""

    async def entry(self, position: int | None, name: str) -> "Entry":
        """Return the entry of *name* in the directory at *position*; None is the directory of the array."""

    def list_in_array(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names of chunks, or of directories of chunks, in the directory of the array, after *cookie*."""


class Chunks(ShardedFiles, Protocol):
    """The chunks of an array, for the directory of the array that shows them."""

    async def is_empty(self) -> bool:
        """Whether there are no chunks."""

    async def prune(self) -> None:
        """Commit the removal of all chunks, and remove the directories of the shards."""


class DocumentWriter(Protocol):
    """Who stores what programs write to documents."""

    async def publish(
        self,
        entry: "PublishedEntry",
        written: bytes,
        permissions: NewPermissions,
        mtime_ns: int | None = None,
        *,
        exclusive: bool,
    ) -> None:
        """Make *written* the content of the document *entry*."""

    async def remove(self, entry: "PublishedEntry") -> None:
        """Remove a document."""

    async def end(self, chunks: Chunks) -> None:
        """End a removed array without chunks: remove what is stored of it."""

    def was_read(self, entry: "Entry", handle: FileHandle) -> None:
        """Note that a program has opened a file to read it: if it is a document, it may replace this version."""

    def was_touched(self, key: str, old: Stat, new: Stat) -> None:
        """Note that a program has changed attributes of the stored document *key*."""

    async def require_known_below(self, path: str) -> None:
        """Do what `require_known` does, for the arrays at *path* and below, as they are stored now."""

    def require_known(self, array: Array) -> None:
        """Raise `StaleError` if *array* replaced another one with other chunks, and no program here has read so."""


class Tree(Protocol):
    """The tree, as its entries know it; `Filesystem` says what each of these is."""

    scratch: str | None
    hierarchy: Hierarchy
    chunk_cache: ChunkCache
    ttl: float
    texts: TextCache
    inodes: Inodes
    ranges: ArrayRanges
    open_files: dict[int, FileHandle]

    @property
    def store(self) -> Reader:
        """What is shown."""

    @property
    def view(self) -> TreeView:
        """How nodes look."""

    @property
    def writable(self) -> "WritableTree":
        """This tree, as one that may be changed; raises `ReadOnlyError` if it may not."""

    @property
    def is_writable(self) -> bool:
        """Whether the source may be changed."""

    def is_scratch(self, path: str) -> bool:
        """Whether the directory *path* of the store is for scratch files."""

    def is_document(self, path: str) -> bool:
        """Whether the file stored under *path* is a document in this view."""

    async def entry(self, ino: int) -> "Entry":
        """Return the entry with the number *ino*; raises `StaleError` if it is not known any more."""

    def passthrough(self, path: str, ino: int = 0, identity: object = None) -> "Entry":
        """Return the entry that shows what is stored under *path*, as it is stored."""

    def directory(self, path: str) -> "Entry":
        """Return the entry of the stored directory *path*."""

    def nothing(self) -> Attributes:
        """Return the answer for a name that does not exist."""

    async def stored_attributes(self, key: str) -> Attributes:
        """Return the attributes of the file stored under *key*; raises `NotFoundError`."""

    async def lookup_stored(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name* as stored in *directory*; inode number 0 if it is not."""

    def attributes_of(self, path: str, status: Stat) -> Attributes:
        """Return the attributes of what is stored under *path* with the given *status*."""

    def identity_of(self, status: Stat) -> Hashable:
        """Return what is equal for the same file, whose pages the kernel keeps for all who have it open."""

    async def lookup_beside_chunks(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name*, which is not a chunk key, in a directory of chunks."""

    async def beside_chunks(self, directory: str, name: str) -> "Entry":
        """Return the entry of *name*, which is among chunks and is not a chunk key, for a change."""

    async def check(self, key: str) -> None:
        """Raise `CorruptionError` if the stored file *key* may not be read or changed."""

    async def remove_scratch(self, directory: str) -> None:
        """Remove the scratch files of a directory that is gone, and of those below it."""

    async def skipped(self, directory: str, names: Sequence[str]) -> Collection[str]:
        """Return which of *names*, directories in *directory*, are nodes that the view does not show."""

    def list_stored(
        self,
        directory: str,
        cookie: int,
        hides: Callable[[str], bool],
        generated: Mapping[str, Attributes] = ...,
    ) -> AsyncGenerator[Batch, None]:
        """Yield *generated* names, then the names stored in *directory* without those that *hides*."""

    def list_scratch(self, directory: str, cookie: int, hides: Callable[[str], bool]) -> AsyncGenerator[Batch, None]:
        """Yield the scratch files beside the chunks in *directory*."""

    async def stored_documents(self, path: str) -> Mapping[str, bytes]:
        """Return the view's documents that are stored in the directory *path*, as they are stored."""

    async def documents(self, node: Node) -> Mapping[str, DocumentText]:
        """Return the generated documents of *node* by name, in the words in which they are shown."""

    def moved_directory(self, old: str, new: str) -> None:
        """Follow a directory that was moved in the store from *old* to *new*, with all below it."""

    def chunk_tree(self, node: Node) -> Chunks | None:
        """Return the chunks of an array."""

    def sharded_files(self, node: Node) -> ShardedFiles | None:
        """Return what is shown of the shards in the directory of *node*: the chunks of an array, or values by id."""

    async def array_node(self, path: str) -> Node:
        """Return the node of the array at *path*; raises `StaleError` if it is gone."""


class WritableTree(Tree, Protocol):
    """The tree of a source that may be changed; *drafts* is where files are made before they get their names."""

    writer: "ChunkWriter"
    buffers: WriteBuffers
    pages: CachedPages
    drafts: str

    @property
    def store(self) -> Store:
        """What is shown, and changed."""

    @property
    def document_writer(self) -> DocumentWriter:
        """Who stores what programs write to documents; chunks go to *writer*."""

    async def require_no_new_array(self, entry: "Entry", *, is_directory: bool = False, is_taken: bool = False) -> None:
        """Raise `StaleError` if another session has made an array of which *entry* is a shard by now."""


class Entry(ABC):
    """A name of the tree, or one version of the file that has the name.

    An entry made from a directory and a name is whatever the name stands for when it is used, or nothing; its *ino* is
    0. An entry made from the inode number *ino* is the version with that number: reading it raises `StaleError` if the
    name stands for another version by now.
    """

    __slots__ = ("fs", "ino")

    def __init__(self, fs: Tree, ino: int = 0) -> None:
        self.fs = fs
        self.ino = ino

    @property
    @abstractmethod
    def path(self) -> str:
        """The path on the mount; for scratch files beside chunks, the key in the store."""

    @property
    def name(self) -> str:
        """The name in its directory."""
        return self.path.rpartition("/")[2]

    @property
    def node_path(self) -> str:
        """The path of the node that it belongs to, whose lock protects the name."""
        return self.path.rpartition("/")[0]

    @abstractmethod
    async def attributes(self) -> Attributes:
        """Return the attributes of this version."""

    async def open(self) -> FileHandle:
        """Open this version to read it."""
        raise IsADirectoryHereError(f"{self.path} is not a regular file")

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of *name* in this directory; inode number 0 if there is no such name."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    async def open_chunk(self, name: str) -> ChunkHandle | Attributes | None:
        """Open the chunk *name* in this directory, by one look at its shard; None if no chunk can have the name.

        If there is no such chunk, the result is that of `lookup`.
        """
        return None

    async def child(self, name: str) -> "Entry":
        """Return the entry of *name* in this directory, for a change."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the names in this directory after *cookie*."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    async def read_link(self) -> bytes:
        """Return the target of a symbolic link."""
        raise RefusedError(f"{self.path} is not a symbolic link")

    async def attribute(self, name: bytes) -> bytes:
        """Return the value of an extended attribute."""
        key = self.stored_key()
        if key is None:
            raise NoAttributeError(f"no attribute {name!r}")
        return await self.fs.store.attribute(key, name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        key = self.stored_key()
        return await self.fs.store.attributes(key) if key is not None else []

    def stored_key(self) -> str | None:
        """Return the key of the stored file that this entry shows as a whole; None if there is none."""
        return None

    # Changes; only in a filesystem that may be changed.

    async def create(self, mode: int, flags: int, owner: Owner) -> WriteBuffer | PassthroughHandle:
        """Create the file, or open it if it exists and *flags* do not forbid that."""
        raise IsADirectoryHereError(f"{self.path} is a directory")

    async def open_to_write(self, flags: int) -> WriteBuffer | PassthroughHandle:
        """Open a file to write."""
        raise IsADirectoryHereError(f"{self.path} is not a regular file")

    async def content(self) -> tuple[Attributes, Content]:
        """Return attributes and content of the file under the name; raises `NotFoundError`."""
        raise IsADirectoryHereError(f"{self.path} is a directory")

    async def replace(
        self, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Make *content* the content of the file, which may exist; *ino* is the inode number that the content keeps."""
        raise ExistsError(f"{self.path} is a directory")

    async def remove(self) -> None:
        """Remove the file; raises `NotFoundError`."""
        raise IsADirectoryHereError(f"{self.path} is a directory")

    async def move_to(self, new: "Entry", *, exclusive: bool) -> None:
        """Give it the name *new* in place of this one, replacing what is there; if *exclusive*, only if nothing is.

        The caller holds the nodes of both.
        """
        raise CrossDeviceError(f"{self.path} cannot be moved as a whole")

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Create a directory under this name."""
        raise ExistsError(f"{self.path} exists")

    async def remove_directory(self) -> None:
        """Remove an empty directory."""
        raise NotADirectoryHereError(f"{self.path} is not a directory")

    async def make_link(self, target: bytes) -> None:
        """Create a symbolic link under this name."""
        raise NotPermittedError("chunks and documents cannot be symbolic links")

    async def link_to(self, new: "Entry") -> None:
        """Give this file the second name *new*; a chunk or a document is copied."""
        raise NotPermittedError("only files that are neither chunks nor documents can have a second name")

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Change attributes; those of directories of chunks do not change."""
        return

    async def set_attribute(self, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it if *value* is None."""
        key = self.stored_key()
        if key is None:
            raise UnsupportedError("chunks have no extended attributes of their own")
        if value is None:
            await self.fs.writable.store.remove_attribute(key, name)
        else:
            await self.fs.writable.store.set_attribute(key, name, value)

    async def sync(self) -> None:
        """Make the names in this directory durable."""
        return


class PublishedEntry(Entry):
    """A file whose content is published as a whole: a chunk or a document."""

    __slots__ = ()
    is_document = False

    @property
    @abstractmethod
    def may_be_empty(self) -> bool:
        """Whether such a file without a byte can be published."""

    @property
    @abstractmethod
    def max_nbytes(self) -> int:
        """The size of the largest such file."""

    @abstractmethod
    async def current(self, *, fresh: bool = True) -> ChunkHandle | DocumentHandle | None:
        """Open the current version, or unless *fresh* the one that it was up to a TTL ago; None if there is none."""

    @abstractmethod
    def keep_number(self, ino: int) -> None:
        """Let *ino* stand for this file, which does not exist yet."""

    async def makes_node(self) -> bool:
        """Whether publishing it changes what names in its directory stand for."""
        return False

    def check_size(self, nbytes: int) -> None:
        """Raise `TooLargeError` if such a file cannot have so many bytes."""
        if nbytes > self.max_nbytes:
            raise TooLargeError(f"{self.path} cannot have {nbytes} bytes")

    def reserve(self) -> int:
        """Return an inode number for this file, which does not exist yet."""
        ino = self.fs.inodes.reserve()
        self.keep_number(ino)
        return ino

    async def resolve(self, *, fresh: bool = True) -> ChunkHandle | DocumentHandle | WriteBuffer | None:
        """Return what the name stands for: the published version, else what is being written to it; None if nothing.

        The published version is that of `current`.
        """
        return await self._resolve(partial(self.current, fresh=fresh))

    async def _resolve(
        self, look: Callable[[], Awaitable[ChunkHandle | DocumentHandle | None]]
    ) -> ChunkHandle | DocumentHandle | WriteBuffer | None:
        return await self.fs.writable.buffers.resolve(self.path, look, lambda published: published is not None)

    async def _require_absent(self) -> None:
        """Raise `ExistsError` if there is such a file, published or being written."""
        if await self._resolve(self.existing) is not None:
            raise ExistsError(f"{self.path} exists")

    async def existing(self) -> ChunkHandle | DocumentHandle | None:
        """Open the current version; None if there is none, or a removed one is shown as the fill value."""
        return await self.current()

    async def create(self, mode: int, flags: int, owner: Owner) -> WriteBuffer | PassthroughHandle:
        """Open the file, creating it if it does not exist: it may have appeared since the kernel looked."""
        if flags & os.O_EXCL and self.fs.writable.buffers.unpublished(self.path) is not None:
            raise ExistsError(f"{self.path} exists")  # without waiting until it is published
        async with self.fs.writable.buffers.lock(self):  # from the look on nobody else takes the name
            if flags & os.O_EXCL:
                await self._require_absent()
            new = new_file(mode, owner.uid, owner.gid)._replace(mtime_ns=time.time_ns())
            return await self._begin(flags, new)

    async def open_to_write(self, flags: int) -> WriteBuffer | PassthroughHandle:
        """Open the current version, even if the kernel asked for an earlier one.

        The kernel would look the name up only once more, which is not enough where writers take turns by renaming lock
        files onto it.
        """
        return await self._begin(flags, None)

    async def _begin(self, flags: int, new: Stat | None) -> WriteBuffer:
        """Begin to write on top of the current version, or a new file with the status *new*.

        A file that others create, and have not published, is empty: only they publish it if nothing is written.
        """
        fs, is_cut = self.fs.writable, bool(flags & os.O_TRUNC)
        current = None if flags & os.O_EXCL else await self.resolve(fresh=not is_cut)
        status = current.attributes.status if current is not None else new
        if status is None:
            raise StaleError(f"{self.path} was removed")
        base = None if isinstance(current, WriteBuffer) else current
        if base is not None and not is_cut:
            fs.document_writer.was_read(self, base)
        return fs.buffers.begin(self, base, status, flags, ino=self.ino, is_fresh=is_cut or current is None)

    async def replace(
        self, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Publish *content* under the name; what others write to the file that had the name is dropped."""
        buffers = self.fs.writable.buffers
        async with buffers.lock(self):
            if exclusive:
                await self._require_absent()
            await self.put(content, attributes.status, attributes.own_mtime_ns, ino, exclusive=exclusive)
            buffers.changed(self.path)
            buffers.lose_name(buffers.of(self.path), Event.DROPPED)

    @abstractmethod
    async def put(
        self, content: Content, status: Stat, mtime_ns: int | None, ino: int | None, *, exclusive: bool
    ) -> OwnVersion | None:
        """Publish *content* with mode and owner of *status*; with *exclusive* only if there is no such file.

        It has the modification time *mtime_ns*, None being now, and, if names have versions of their own, the inode
        number *ino*, None being a new one. Returns both then.
        """

    async def remove(self) -> None:
        """Remove the file, or what is being written to it and was never published."""
        buffers = self.fs.writable.buffers
        async with buffers.lock(self):
            try:
                await self.erase()
            except NotFoundError:
                if buffers.unpublished(self.path) is None:
                    raise
            buffers.lose_name(buffers.of(self.path), Event.DROPPED)

    async def move_to(self, new: Entry, *, exclusive: bool) -> None:
        """Publish the file under the name *new*, and then remove it here.

        What is written meanwhile waits, and gets an error. Open files lose the name when it is gone, not before.
        """
        buffers = self.fs.writable.buffers
        async with buffers.lock(self):
            for buffer in buffers.of(self.path):
                if buffer.must_be_moved:
                    await buffer.publish_held()
            await self.check_removable()
            attributes, content = await self.content()
            await new.replace(content, attributes, None, exclusive=exclusive)
            await self.erase()  # if it fails, both names stay: nobody can say whether it is gone
            buffers.lose_name(buffers.of(self.path), Event.MOVED)

    def give_back(self, ino: int) -> None:
        """Have another number than *ino*, which the content was to keep: its file keeps its name, after all."""

    async def check_removable(self) -> None:
        """Raise any error that is known to prevent removing the file, before it is published under another name."""
        return

    @abstractmethod
    async def erase(self) -> None:
        """Remove what is published; raises `NotFoundError`."""

    async def content(self) -> tuple[Attributes, Content]:
        """Return attributes and content of the published version."""
        handle = await self.resolve()
        if handle is None or isinstance(handle, WriteBuffer):
            raise NotFoundError(f"{self.path} does not exist")
        if isinstance(handle, ChunkHandle):
            return handle.attributes, await self.fs.writable.buffers.copied(handle.attributes.size, handle.read)
        return handle.attributes, MemoryContent(memoryview(handle.text))
