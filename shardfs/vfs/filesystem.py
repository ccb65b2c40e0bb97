"""The filesystem that is shown: from an inode number to an entry, and the requests that change nothing."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from shardfs.dataset.hierarchy import Hierarchy, Node, is_below
from shardfs.dataset.worker import Worker
from shardfs.errors import NotFoundError, ShardfsError, SourceError, StaleError
from shardfs.stores.base import Kind, Store, join_key
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.chunk_tree import ChunkTree
from shardfs.vfs.entries.base import Entry
from shardfs.vfs.entries.chunk import ChunkDirectory
from shardfs.vfs.entries.passthrough import Directory, Passthrough
from shardfs.vfs.handles import Batch, DirectoryHandle, FileHandle
from shardfs.vfs.inodes import ROOT, Inodes, TreeNumbers, in_table, unpack
from shardfs.vfs.stored_names import StoredNames
from shardfs.vfs.text_cache import DocumentText, TextCache
from shardfs.vfs.views import View

if TYPE_CHECKING:
    from shardfs.vfs.changes import Changes


class Filesystem:
    """What a mount shows of *store*.

    Requests name inodes.  Those of chunk trees are computed; the others are in a table as long as the kernel knows
    them.  *ttl* is how long, in seconds, an answer may be believed.  *scratch* is the directory of the store that holds
    names beside chunks, if the source may be changed.
    """

    changes: "Changes"
    """The requests that change something, of a filesystem that may be changed."""

    def __init__(
        self,
        store: Store,
        hierarchy: Hierarchy,
        view: View,
        chunk_cache: ChunkCache,
        *,
        ttl: float,
        scratch: str | None = None,
    ) -> None:
        self.store = store
        self.scratch = scratch
        self.hierarchy = hierarchy
        self.worker = Worker()
        hierarchy.show(view.shower, self.worker)
        self.view = view
        self.chunk_cache = chunk_cache
        self.ttl = ttl
        self.stored = StoredNames(self)
        self.texts = TextCache()
        self.inodes = Inodes()
        self.numbers: TreeNumbers[ChunkTree] = TreeNumbers()
        self._chunk_trees: dict[str, ChunkTree] = {}
        self._open_files: dict[int, FileHandle] = {}
        self._open_directories: dict[int, DirectoryHandle] = {}
        self._last_handle = 0

    @property
    def is_writable(self) -> bool:
        """Whether the source may be changed: then the kernel is not told to remember what writing changes."""
        return self.scratch is not None

    def is_scratch(self, path: str) -> bool:
        """Whether the directory *path* of the store is for names beside chunks."""
        return self.scratch is not None and is_below(path, self.scratch)

    def is_document(self, path: str) -> bool:
        """Whether what is stored under *path* is a document in this view, which is published as a whole."""
        directory, _, name = path.rpartition("/")
        return name in self.view.document_names and not self.is_scratch(directory)

    async def start(self) -> None:
        """Look at the source; raises what keeps it from being read, and `SourceError` if there is nothing to show."""
        status = await self.store.stat("")
        if self.view.translates:
            reason = self.view.left_out(await self.hierarchy.node(""))
            if reason is not None:
                raise SourceError(
                    f"{self.store.url} cannot be shown in this view: {reason}; `shardfs info` names views that show it"
                )
        root = self.inodes.number(self.view.directory, "", status.identity)
        assert root == ROOT
        self.inodes.retain(root)

    # Entries.

    def entry(self, ino: int) -> Entry:
        """Return what has the number *ino*; raises `StaleError` if that is not known any more."""
        if not in_table(ino):
            number, _, position = unpack(ino)
            return self.numbers.tree(number).at(position, ino)
        row = self.inodes.row(ino)
        if row.entry is not None:
            return cast(Entry, row.entry)
        kind = cast(type[Passthrough], row.kind)
        return kind(self, row.path, ino, row.identity)

    def directory_entry(self, path: str) -> Directory:
        """Return the directory *path*, whatever its number."""
        return self.view.directory(self, path)

    def passthrough(self, path: str, ino: int = 0, identity: object = None) -> Passthrough:
        """Return what is stored under *path*, as it is stored."""
        return Passthrough(self, path, ino, identity)

    def path_of(self, ino: int) -> str:
        """Return where *ino* is on the mount, for messages."""
        try:
            return self.entry(ino).path
        except ShardfsError:
            return f"inode {ino}"

    # Names and attributes.

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; number 0 stands for no such name."""
        attributes = await self.entry(parent).lookup(os.fsdecode(name))
        self.retain(attributes.ino)
        return attributes

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*; a superseded version answers for as long as it is open."""
        try:
            return await self.entry(ino).attributes()
        except ShardfsError:
            # A reader must be told the size of what it reads; a writer knows what it wrote.
            handles = self.readers(ino) or [handle for handle in self._open_files.values() if handle.ino == ino]
            if not handles:
                raise
            return handles[0].attributes

    async def read_link(self, ino: int) -> bytes:
        """Return the target of a symbolic link."""
        return await self.entry(ino).read_link()

    async def attribute(self, ino: int, name: bytes) -> bytes:
        """Return an extended attribute; raises `NoAttributeError`."""
        return await self.entry(ino).attribute(name)

    async def attribute_names(self, ino: int) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        return await self.entry(ino).attribute_names()

    def retain(self, ino: int) -> None:
        """Count a reference of the kernel to *ino*."""
        if in_table(ino):
            self.inodes.retain(ino)

    def forget(self, ino: int, lookups: int) -> None:
        """Take back references of the kernel to *ino*."""
        if in_table(ino):
            self.inodes.forget(ino, lookups)

    # Open files and directories.

    async def open(self, ino: int) -> tuple[int, FileHandle]:
        """Open a file; returns the number of the handle too."""
        handle = await self.entry(ino).open()
        return self.add_file(handle), handle

    def add_file(self, handle: FileHandle) -> int:
        """Take in an open file; returns the number of its handle."""
        self._last_handle += 1
        self._open_files[self._last_handle] = handle
        return self._last_handle

    def file(self, number: int) -> FileHandle:
        """Return the open file with the handle *number*."""
        return self._open_files[number]

    def files(self) -> list[tuple[int, FileHandle]]:
        """Return the open files, and the numbers of their handles."""
        return list(self._open_files.items())

    def readers(self, ino: int) -> list[FileHandle]:
        """Return the open files of the number *ino* that are no write buffers: they have a size of their own."""
        return [handle for handle in self._open_files.values() if handle.ino == ino and not handle.is_buffered]

    def replace_file(self, number: int, handle: FileHandle) -> None:
        """Let the handle *number* be that of *handle* from now on."""
        self._open_files[number] = handle

    def close(self, number: int) -> None:
        """Close the open file with the handle *number*."""
        del self._open_files[number]

    def path_of_handle(self, number: int) -> str:
        """Return what is open under the handle *number*, for messages."""
        handle = self._open_files.get(number)
        if handle is not None:
            return getattr(handle, "path", "") or self.path_of(handle.ino)
        directory = self._open_directories.get(number)
        return self.path_of(directory.ino) if directory is not None else ""

    def open_directory(self, ino: int) -> int:
        """Open a directory; returns the number of the handle.

        Raises `StaleError` for one of an array that has changed: the kernel looks the path up again then, which it does
        not do when a listing fails.
        """
        self.entry(ino)

        def listing(cookie: int) -> AsyncGenerator[Batch, None]:
            return self.entry(ino).list(cookie)

        self._last_handle += 1
        self._open_directories[self._last_handle] = DirectoryHandle(ino, listing)
        return self._last_handle

    def directory(self, number: int) -> DirectoryHandle:
        """Return the open directory with the handle *number*."""
        return self._open_directories[number]

    async def close_directory(self, number: int) -> None:
        """Close the open directory with the handle *number*."""
        await self._open_directories.pop(number).close()
        if not self._open_directories:
            self.inodes.sweep()

    def note_shown(self, entry: Entry, handle: FileHandle, nchanges: int) -> None:
        """Tell the store which version a program reads: what it writes then must not replace another one."""
        key = entry.stored_key()
        if key is not None:
            self.store.note_shown(key, handle.attributes.status, since=nchanges)

    # Arrays and documents.

    def chunk_tree(self, node: Node) -> ChunkTree | None:
        """Return the chunk tree of an array: the same one for as long as its chunks lie where they lie."""
        known = self._chunk_trees.get(node.path)
        chunk_view = self.view.chunk_view(node)
        if known is not None and chunk_view is not None and chunk_view.has_chunks_of(known.chunk_view):
            known.chunk_view = chunk_view
            return known
        if known is not None:
            self.numbers.remove(self._chunk_trees.pop(node.path).number)
        if chunk_view is None:
            return None
        tree = self._chunk_trees[node.path] = ChunkTree(self, chunk_view)
        return tree

    async def present(self, chunks: ChunkTree) -> ChunkTree:
        """Return the chunk tree that the array of *chunks* has now; raises `StaleError` if it is none any more."""
        try:
            found = self.chunk_tree(await self.hierarchy.node(chunks.path))
        except NotFoundError:
            found = None
        if found is None:
            raise StaleError(f"the array {chunks.path or 'at the root'} is gone")
        return found

    async def directory_attributes(self, path: str, root: str) -> Attributes:
        """Return the attributes of the directories above an array's chunks; the number is not set.

        They are those of the directory *root* that holds its shards, or of the array's own if there is none yet.
        """
        status = (await self.hierarchy.node(path)).stat
        if root and self.store.directory_stat is None:
            with suppress(NotFoundError):
                stored = await self.store.stat(join_key(path, root))
                status = stored if stored.kind is Kind.DIRECTORY else status
        return Attributes(0, status.size, self.hierarchy.remaining(path), status)

    def documents(self, node: Node) -> Mapping[str, DocumentText]:
        """Return the generated documents of *node* by name, in the texts in which they are shown."""
        shown = self.view.documents(node)
        documents = {name: self.texts.text(join_key(node.path, name), text) for name, text in shown.items()}
        for name in self.view.document_names - shown.keys() if shown else ():
            silent = self.texts.silent(join_key(node.path, name))
            if silent is not None:
                documents[name] = silent
        return documents

    async def refresh(self, path: str) -> None:
        """Look at the node at *path* again; inodes of chunks that lie elsewhere now are stale from here on."""
        self.hierarchy.forget(path)
        self.chunk_tree(await self.hierarchy.node(path))

    def moved_directory(self, old: str, new: str) -> None:
        """Follow a directory that was moved in the store, with all below it."""
        self.inodes.moved_directory(old, new)
        self.texts.move(old, new)
        for path in [path for path in self._chunk_trees if is_below(path, old) or is_below(path, new)]:
            self.numbers.remove(self._chunk_trees.pop(path).number)

    def became_chunks(self, chunks: ChunkTree) -> None:
        """Let the directories that became ones of *chunks* go on under their numbers: programs work in them."""
        for path, row in self.inodes.below(chunks.path):
            if row.kind is self.view.directory:
                directory = chunks.directory_at(path[len(chunks.path) :].lstrip("/"))
                if directory is not None:
                    directory.ino = row.ino
                    self.inodes.keep(row.ino, ChunkDirectory, entry=directory)
