"""The filesystem that is shown: from an inode number to an entry, and the requests that change nothing."""

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar, cast
from weakref import ref

from shardfs.dataset.hierarchy import Hierarchy, Node, is_below
from shardfs.dataset.worker import Worker
from shardfs.errors import NotFoundError, ShardfsError, SourceError, StaleError
from shardfs.stores.base import Store, join_key
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.entries.base import Entry
from shardfs.vfs.entries.chunk import ChunkDirectory, ChunkTree
from shardfs.vfs.entries.document import DocumentText, TextCache
from shardfs.vfs.entries.passthrough import Passthrough
from shardfs.vfs.handles import Batch, DirectoryHandle, FileHandle
from shardfs.vfs.inodes import ROOT, ArrayRanges, ChunkNumbering, Inodes, Row, in_table
from shardfs.vfs.stored_names import StoredNames
from shardfs.vfs.views import View

if TYPE_CHECKING:
    from shardfs.vfs.changes import Changes

T = TypeVar("T")

_MAX_RECENT: Final = 512


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
        self.ranges = ArrayRanges()
        self._recent: OrderedDict[ChunkTree, None] = OrderedDict()  # keeps the chunk trees that were used last
        self._last_used: ChunkTree | None = None
        self.open_files: dict[int, FileHandle] = {}
        self.open_directories: dict[int, DirectoryHandle] = {}
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

    async def entry(self, ino: int) -> Entry:
        """Return what has the number *ino*; raises `StaleError` if that is not known any more."""
        if not in_table(ino):
            numbers = self.ranges.find(ino)
            tree = numbers.tree()
            if tree is not None and tree is not self._last_used:
                self._use(tree)
            if tree is None:
                tree = self.chunk_tree(await self._node(numbers.path))
                if tree is None or tree.numbers is not numbers:
                    raise StaleError(f"the array {numbers.path or 'at the root'} has changed")
            return tree.at(numbers.position(ino), ino)
        return self._entry_of(self.inodes.row(ino))

    def _entry_of(self, row: Row) -> Entry:
        if row.entry is not None:
            return cast(Entry, row.entry)
        return cast(type[Passthrough], row.kind)(self, row.path, row.ino, row.identity)

    def node_path(self, ino: int) -> str:
        """Return the path of the node that has what *ino* is, or is part of; raises `StaleError`."""
        return self._entry_of(self.inodes.row(ino)).node_path if in_table(ino) else self.ranges.find(ino).path

    def passthrough(self, path: str, ino: int = 0, identity: object = None) -> Passthrough:
        """Return what is stored under *path*, as it is stored."""
        return Passthrough(self, path, ino, identity)

    def path_of(self, ino: int) -> str:
        """Return where *ino* is on the mount, for messages."""
        try:
            if in_table(ino):
                return self._entry_of(self.inodes.row(ino)).path
            numbers = self.ranges.find(ino)
            tree = numbers.tree()
            return tree.at(numbers.position(ino), ino).path if tree is not None else numbers.path
        except ShardfsError:
            return f"inode {ino}"

    # Names and attributes.

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; number 0 stands for no such name."""
        attributes = await (await self.entry(parent)).lookup(os.fsdecode(name))
        self.retain(attributes.ino)
        return attributes

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*; a superseded version answers for as long as it is open."""
        try:
            return await (await self.entry(ino)).attributes()
        except ShardfsError:
            # A reader must be told the size of what it reads; a writer knows what it wrote.
            handles = self.readers(ino) or [handle for handle in self.open_files.values() if handle.ino == ino]
            if not handles:
                raise
            return handles[0].attributes

    async def ask(self, ino: int, question: Callable[[Entry], Awaitable[T]]) -> T:
        """Return what *question* says of what has the number *ino*."""
        return await question(await self.entry(ino))

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
        handle = await (await self.entry(ino)).open()
        return self.add_file(handle), handle

    def add_file(self, handle: FileHandle) -> int:
        """Take in an open file; returns the number of its handle."""
        self._last_handle += 1
        self.open_files[self._last_handle] = handle
        return self._last_handle

    def readers(self, ino: int) -> list[FileHandle]:
        """Return the open files of the number *ino* that are no write buffers: they have a size of their own."""
        return [handle for handle in self.open_files.values() if handle.ino == ino and not handle.is_buffered]

    def path_of_handle(self, number: int) -> str:
        """Return what is open under the handle *number*, for messages."""
        handle = self.open_files.get(number)
        if handle is not None:
            return getattr(handle, "path", "") or self.path_of(handle.ino)
        directory = self.open_directories.get(number)
        return self.path_of(directory.ino) if directory is not None else ""

    def open_directory(self, ino: int) -> int:
        """Open a directory; returns the number of the handle.

        Raises `StaleError` for one of an array that has changed: the kernel looks the path up again then, which it does
        not do when a listing fails.
        """
        self.node_path(ino)

        async def listing(cookie: int) -> AsyncGenerator[Batch, None]:
            async for batch in (await self.entry(ino)).list(cookie):
                yield batch

        self._last_handle += 1
        self.open_directories[self._last_handle] = DirectoryHandle(ino, listing)
        return self._last_handle

    async def close_directory(self, number: int) -> None:
        """Close the open directory with the handle *number*."""
        await self.open_directories.pop(number).close()
        if not self.open_directories:
            self.inodes.sweep()

    def note_shown(self, entry: Entry, handle: FileHandle, nchanges: int) -> None:
        """Tell the store which version a program reads: what it writes then must not replace another one."""
        key = entry.stored_key()
        if key is not None:
            self.store.note_shown(key, handle.attributes.status, since=nchanges)

    # Arrays and documents.

    def chunk_tree(self, node: Node) -> ChunkTree | None:
        """Return the chunk tree of an array: with the same numbers for as long as its chunks lie where they lie."""
        chunk_view = self.view.chunk_view(node)
        if chunk_view is None:
            self.ranges.remove(node.path)
            return None
        numbers = self.ranges.at(node.path)
        tree = numbers.tree() if numbers is not None else None
        if tree is not None and chunk_view.has_chunks_of(tree.chunk_view):
            tree.chunk_view = chunk_view
            if tree is not self._last_used:
                self._use(tree)
            return tree
        if numbers is None or tree is not None or numbers.key != chunk_view.key:
            encoding, grid = chunk_view.key_encoding, chunk_view.array.grid
            numbering = ChunkNumbering.of(grid.grid_shape, nested=encoding.is_nested(grid.ndim))
            numbers = self.ranges.add(node.path, chunk_view.key, numbering)
        elif numbers.layout() is not chunk_view.array.layout:
            numbers.epoch += 1  # which versions of chunks were seen before is forgotten
        tree = ChunkTree(self, chunk_view, numbers)
        numbers.tree, numbers.layout = ref(tree), ref(chunk_view.array.layout)
        self._use(tree)
        return tree

    def _use(self, tree: ChunkTree) -> None:
        """Keep *tree*, and drop the one that was used longest ago; its numbers stay known."""
        self._last_used = tree
        self._recent[tree] = None
        self._recent.move_to_end(tree)
        for _ in range(2):  # those that stay go round
            if len(self._recent) > _MAX_RECENT:
                oldest, _ = self._recent.popitem(last=False)
                if oldest.has_history and self.ranges.at(oldest.path) is oldest.numbers:
                    self._recent[oldest] = None

    async def present(self, chunks: ChunkTree) -> ChunkTree:
        """Return the chunk tree that the array of *chunks* has now; raises `StaleError` if it is none any more."""
        found = self.chunk_tree(await self._node(chunks.path))
        if found is None:
            raise StaleError(f"the array {chunks.path or 'at the root'} is gone")
        return found

    async def _node(self, path: str) -> Node:
        try:
            return await self.hierarchy.node(path)
        except NotFoundError:
            raise StaleError(f"the array {path or 'at the root'} is gone") from None

    def documents(self, node: Node) -> Mapping[str, DocumentText]:
        """Return the generated documents of *node* by name, in the texts in which they are shown."""
        shown = self.view.documents(node)
        names = [*shown, *(self.view.document_names - shown.keys())] if shown else []
        found = {name: self.texts.text(join_key(node.path, name), shown.get(name)) for name in names}
        return {name: text for name, text in found.items() if text is not None}

    async def refresh(self, path: str) -> None:
        """Look at the node at *path* again; inodes of chunks that lie elsewhere now are stale from here on."""
        self.hierarchy.forget(path)
        self.chunk_tree(await self.hierarchy.node(path))

    def became_chunks(self, chunks: ChunkTree) -> None:
        """Let the directories that became ones of *chunks* go on under their numbers: programs work in them."""
        for path, row in self.inodes.below(chunks.path):
            if row.kind is self.view.directory:
                directory = chunks.directory_at(path[len(chunks.path) :].lstrip("/"))
                if directory is not None:
                    directory.ino = row.ino
                    self.inodes.keep(row.ino, ChunkDirectory, entry=directory)
