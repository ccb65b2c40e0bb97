"""The filesystem: from inode numbers to entries, and the requests that change nothing."""

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, TypeVar, cast
from weakref import WeakValueDictionary

from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.maintenance.walk import prune, walk_files
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.dataset.path_table import is_below
from shardfs.dataset.worker import Worker
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NameTooLongError,
    NotADirectoryHereError,
    NotFoundError,
    ReadOnlyError,
    ShardfsError,
    SourceError,
    StaleError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.stores.base import Kind, ListedName, Reader, Stat, is_reserved, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.parallel import for_each
from shardfs.stores.ttl import InParts
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.entries.base import Entry, ShardedFiles, WritableTree
from shardfs.vfs.entries.chunk import ChunkDirectory, ChunkTree
from shardfs.vfs.entries.document import StoredDocument
from shardfs.vfs.entries.passthrough import Directory, Passthrough, Special
from shardfs.vfs.entries.values import ValueFiles
from shardfs.vfs.handles import (
    OTHERS,
    Attributes,
    Batch,
    ChunkHandle,
    DirectoryHandle,
    FileHandle,
    OpenedFile,
    absent,
)
from shardfs.vfs.inodes import ROOT, ArrayNumbers, ArrayRanges, InodeRow, Inodes, TreePosition, in_table
from shardfs.vfs.texts import DocumentText, TextCache
from shardfs.vfs.views import View

T = TypeVar("T")

_MAX_RECENT: Final = 512
_BATCH: Final = 256
_MANY: Final = 1 << 40
_AT_ONCE: Final = 16


class Filesystem:
    """What a mount shows of *store*.

    *ttl* is how many seconds an answer may be cached. *scratch* is the directory of the store for scratch files: names
    among chunks that are not chunk keys; None if the source may not be changed.
    """

    def __init__(
        self,
        store: Reader,
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
        hierarchy.show(view.lens, self.worker)
        self.view = view
        self.chunk_cache = chunk_cache
        self.ttl = ttl
        self.texts = TextCache()
        self.inodes = Inodes()
        self.ranges = ArrayRanges()
        self._trees: WeakValueDictionary[ArrayNumbers, ChunkTree] = WeakValueDictionary()
        self._recent: OrderedDict[ChunkTree, None] = OrderedDict()  # keeps the most recently used chunk trees alive
        self.open_files: dict[int, FileHandle] = {}
        self.open_directories: dict[int, DirectoryHandle] = {}
        self._last_handle = 0

    @property
    def writable(self) -> WritableTree:
        """This tree, as one that may be changed; raises `ReadOnlyError` if it may not."""
        raise ReadOnlyError(f"{self.store.url} is shown to be read only")

    @property
    def is_writable(self) -> bool:
        """Whether the source may be changed: then the kernel must not cache what a write changes."""
        return self.scratch is not None

    def is_scratch(self, path: str) -> bool:
        """Whether the directory *path* of the store is for scratch files."""
        return self.scratch is not None and is_below(path, self.scratch)

    def is_document(self, path: str) -> bool:
        """Whether the file stored under *path* is a document in this view, and so is published as a whole."""
        directory, _, name = path.rpartition("/")
        return name in self.view.document_names and not self.is_scratch(directory)

    async def start(self) -> None:
        """Look at the source; raises an error if it cannot be read, and `SourceError` if there is nothing to show."""
        status = await self.store.stat("")
        if self.view.translates:
            reason = self.view.skipped(await self.hierarchy.node(""))
            if reason is not None:
                raise SourceError(
                    f"{self.store.url} cannot be shown in this view: {reason}; `shardfs info` names views that show it"
                )
        root = self.inodes.number(self.view.directory, "", status.identity)
        assert root == ROOT
        self.inodes.retain(root)

    # Entries.

    async def entry(self, ino: int) -> Entry:
        """Return the entry with the number *ino*; raises `StaleError` if it is not known any more."""
        in_tree = self._tree_position(ino)
        if in_tree is not None:
            return (await self._tree(in_tree.numbers)).at(in_tree.position, ino)
        return self._entry_of(self.inodes.row(ino))

    def _tree_position(self, ino: int) -> TreePosition | None:
        """Return where *ino* is in a chunk tree, None if it is in none; raises `StaleError`."""
        if in_table(ino):
            entry = self.inodes.row(ino).entry
            return self.ranges.present(entry) if isinstance(entry, TreePosition) else None
        return self.ranges.find(ino)

    async def _tree(self, numbers: ArrayNumbers) -> ChunkTree:
        """Return the chunk tree with these *numbers*, an earlier one only if somebody has it; raises `StaleError`."""
        tree, is_present = self._trees.get(numbers), self.ranges.at(numbers.path) is numbers
        if tree is None and is_present:
            tree = self.chunk_tree(await self.array_node(numbers.path))
        elif tree is not None and is_present:
            self._use(tree)
        if tree is None or tree.numbers is not numbers:
            raise StaleError(f"the array {numbers.path or 'at the root'} has changed")
        return tree

    def _entry_of(self, row: InodeRow) -> Entry:
        if row.entry is not None:
            return cast(Entry, row.entry)
        return cast(type[Passthrough], row.kind)(self, row.path, row.ino, row.identity)

    def node_path(self, ino: int) -> str:
        """Return the path of the node that *ino* is, or belongs to; raises `StaleError`."""
        in_tree = self._tree_position(ino)
        return in_tree.numbers.path if in_tree is not None else self._entry_of(self.inodes.row(ino)).node_path

    def passthrough(self, path: str, ino: int = 0, identity: object = None) -> Passthrough:
        """Return the entry that shows what is stored under *path*, as it is stored."""
        return Passthrough(self, path, ino, identity)

    def path_of(self, ino: int) -> str:
        """Return the path of *ino* on the mount, for messages."""
        try:
            in_tree = self._tree_position(ino)
            if in_tree is None:
                return self._entry_of(self.inodes.row(ino)).path
            tree = self._trees.get(in_tree.numbers)
            return tree.at(in_tree.position, ino).path if tree is not None else in_tree.numbers.path
        except ShardfsError:
            return f"inode {ino}"

    # Names and attributes.

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; inode number 0 if there is no such name."""
        attributes = await (await self.entry(parent)).lookup(os.fsdecode(name))
        self.retain(attributes.ino)
        return attributes

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*; those of a replaced version as long as it is open."""
        try:
            return await (await self.entry(ino)).attributes()
        except ShardfsError:
            handles = self.readers(ino)  # a reader must see the size of the version that it reads
            if not handles:
                raise
            return handles[0].attributes._replace(ino=ino)

    async def ask(self, ino: int, question: Callable[[Entry], Awaitable[T]]) -> T:
        """Return the answer of the entry *ino* to *question*."""
        return await question(await self.entry(ino))

    def retain(self, ino: int) -> None:
        """Count a reference of the kernel to *ino*."""
        if in_table(ino):
            self.inodes.retain(ino)

    def drop_references(self, ino: int, lookups: int) -> None:
        """Drop references of the kernel to *ino*."""
        if in_table(ino):
            self.inodes.drop_references(ino, lookups)

    # Stored names, in directories of nodes and among chunks.

    def nothing(self) -> Attributes:
        """Return the answer for a name that does not exist."""
        return absent(0.0 if self.is_writable else self.ttl)

    async def stored_attributes(self, key: str) -> Attributes:
        """Return the attributes of the file stored under *key*; raises `NotFoundError`."""
        if is_reserved(key.rpartition("/")[2]):
            raise NotFoundError(f"{key} is not shown")
        return self.attributes_of(key, await self.hierarchy.stat(key))

    async def lookup_stored(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name* as stored in *directory*; inode number 0 if it is not."""
        try:
            return await self.stored_attributes(join_key(directory, name))
        except NameTooLongError:
            raise
        except (NotFoundError, NotADirectoryHereError):
            return self.nothing()

    def attributes_of(self, path: str, status: Stat) -> Attributes:
        """Return the attributes of what is stored under *path* with the given *status*."""
        key, nlink = None, 1
        if status.kind is Kind.DIRECTORY:
            kind: type[Entry] = self.view.directory
        elif status.kind is Kind.FILE and self.is_document(path):
            kind = StoredDocument
        else:
            kind, nlink = Passthrough if status.kind is Kind.FILE else Special, status.nlink
            if status.file is not None:  # hard links are one file, where the store identifies files
                key = kind, status.identity  # a new file may get the identity of a removed link
        ino = self.inodes.number(kind, path, self.identity_of(status), nlink=nlink, key=key)
        return Attributes(ino, status.size, self.ttl, status)

    def identity_of(self, status: Stat) -> Hashable:
        """Return what is equal for the same file, whose pages the kernel keeps for all who have it open.

        A store that replaces objects has each version as another file, unless it may be written: a file that a program
        writes stays the same.
        """
        if self.is_writable or status.kind is not Kind.FILE or status.file is not None:
            return status.identity
        return status.identity, status.version

    async def lookup_beside_chunks(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name*, which is not a chunk key, in a directory of chunks.

        A stored lock is about a shard, and is not shown: see `directory_beside_chunks`.
        """
        if is_lock(name) and self.scratch is None:
            return self.nothing()
        return await self.lookup_stored(await self.directory_beside_chunks(directory, name), name)

    async def directory_beside_chunks(self, directory: str, name: str) -> str:
        """Return the directory of the store for *name*, which is among chunks and is not a chunk key.

        It is *directory* if the name is stored there, and else a directory for scratch files. A lock that a program
        takes on an inner chunk is always a scratch file: a stored one would be the lock of a shard.
        """
        if self.scratch is not None and (is_lock(name) or not await self.is_stored(join_key(directory, name))):
            return join_key(self.scratch, directory)
        return directory

    async def is_stored(self, key: str) -> bool:
        """Whether anything is stored under *key*."""
        try:
            await self.store.stat(key)
        except (NotFoundError, NotADirectoryHereError):
            return False
        return True

    def directory(self, path: str) -> Directory:
        """Return the entry of the stored directory *path*."""
        return self.view.directory(self, path)

    async def beside_chunks(self, directory: str, name: str) -> Passthrough:
        """Return the entry of *name*, which is among chunks and is not a chunk key, for a change."""
        stored_in = await self.directory_beside_chunks(directory, name)
        return Passthrough(self, join_key(stored_in, name), is_scratch=stored_in != directory)

    async def check(self, key: str) -> None:
        """Raise `CorruptionError` if the stored file *key* may not be read or changed: see `refusal` of `copies`."""
        reason = None if self.is_scratch(key.rpartition("/")[0]) else await self.hierarchy.copies.refusal(key)
        if reason is not None:
            raise CorruptionError(f"{key}: {reason}")

    async def remove_scratch(self, directory: str) -> None:
        """Remove the scratch files of a directory that is gone, and of those below it."""
        scratch = join_key(self.scratch or "", directory)
        with suppress(NotFoundError, NotADirectoryHereError):
            async for key in walk_files(self.store, scratch):
                with self.inodes.removing(key):
                    await self.writable.store.unlink(key)
            await prune(self.writable.store, scratch)

    async def skipped(self, directory: str, names: Sequence[str]) -> Collection[str]:
        """Return which of *names*, directories in *directory*, are nodes that the view does not show.

        Nodes that cannot be read are shown: they give an error when somebody looks into them.
        """
        hidden: set[str] = set()

        async def look(name: str) -> None:
            with suppress(ShardfsError):  # which is raised again when somebody looks into the directory
                node = await self.hierarchy.node(join_key(directory, name))
                if node.metadata is not None and self.view.skipped(node) is not None:
                    hidden.add(name)

        if self.view.translates and not self.is_scratch(directory):
            await for_each(names, look, _AT_ONCE)
        return hidden

    async def list_stored(
        self,
        directory: str,
        cookie: int,
        hides: Callable[[str], bool],
        generated: Mapping[str, Attributes] = MappingProxyType({}),
        *,
        base: int = OTHERS,
    ) -> AsyncGenerator[Batch, None]:
        """Yield *generated* names, then the names stored in *directory* without those that *hides*, after *cookie*.

        Cookies are larger than *base*.
        """
        if 0 < cookie < OTHERS:
            return
        entries: Sequence[ListedName] = ()
        parts = InParts(self.hierarchy.clock())
        with suppress(NotFoundError, NotADirectoryHereError):
            entries = await self.hierarchy.list(directory)
        shown = [entry for entry in entries if not is_reserved(entry.name) and not hides(entry.name)]
        skipped = await self.skipped(directory, [entry.name for entry in shown if entry.kind is Kind.DIRECTORY])
        names = [*generated, *sorted(entry.name for entry in shown if entry.name not in skipped)]
        for start in range(max(0, cookie - base), len(names), _BATCH):
            part = names[start : start + _BATCH]
            stored = [name for name in part if name not in generated]
            with parts.part(self.hierarchy.clock):
                states = dict(zip(stored, await self._stat_in(directory, stored), strict=True)) if stored else {}
            for behind, name in enumerate(part, base + start + 1):
                status = states.get(name)
                attributes = generated.get(name)
                if status is not None:
                    attributes = self.attributes_of(join_key(directory, name), status)
                if attributes is not None:
                    row = os.fsencode(name), attributes.ino, attributes.size, behind
                    yield Batch(attributes, [row], is_counted=True)

    async def _stat_in(self, directory: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several *names* in *directory*; None for those that are gone."""
        states: list[Stat | None] = [None] * len(names)
        with suppress(NotFoundError):  # the directory may be one that a document names
            states = list(await self.store.stat_in(directory, names))
        for number, (name, status) in enumerate(zip(names, states, strict=True)):
            if status is None:
                with suppress(NotFoundError, NotADirectoryHereError):
                    states[number] = await self.hierarchy.stat(join_key(directory, name))
        return states

    async def list_scratch(
        self, directory: str, cookie: int, hides: Callable[[str], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Yield the scratch files beside the chunks in *directory*; their cookies follow those of stored names."""
        if self.scratch is not None:
            scratch = join_key(self.scratch, directory)
            async for batch in self.list_stored(scratch, cookie, hides, base=OTHERS + _MANY):
                yield batch

    async def stored_documents(self, path: str) -> Mapping[str, bytes]:
        """Return the view's documents that are stored in the directory *path*, as they are stored."""
        contents: dict[str, bytes] = {}
        removed = await self.hierarchy.removed(path)
        for name in self.view.document_names - {DOCUMENT if removed is not None else ""}:
            with suppress(NotFoundError, NotADirectoryHereError, IsADirectoryHereError):
                snapshot = await self.store.open(join_key(path, name))
                if snapshot.size <= MAX_DOCUMENT_NBYTES:
                    contents[name] = bytes(await snapshot.read(0, snapshot.size))
        return contents

    # Open files and directories.

    async def open(self, ino: int) -> OpenedFile:
        """Open a file to read."""
        handle = await (await self.entry(ino)).open()
        return OpenedFile(self.add_file(handle), handle)

    async def open_chunk(self, parent: int, name: bytes) -> ChunkHandle | Attributes | None:
        """Open the chunk *name* in the directory *parent*; see `open_chunk` of entries."""
        return await (await self.entry(parent)).open_chunk(os.fsdecode(name))

    async def open_name(self, parent: int, name: bytes) -> OpenedFile | Attributes:
        """Open the file *name* in the directory *parent* to read; a chunk by one look at its shard.

        If it is no file, or there is no such name, the result is that of `lookup`.
        """
        opened = await self.open_chunk(parent, name)
        if isinstance(opened, ChunkHandle):
            return OpenedFile(self.add_file(opened), opened)
        if opened is not None:
            return opened
        attributes = await self.lookup(parent, name)
        if attributes.status.kind is not Kind.FILE:
            return attributes
        try:
            return await self.open(attributes.ino)
        finally:
            self.drop_references(attributes.ino, 1)

    async def open_path(self, path: str) -> FileHandle:
        """Open what has the *path* on the mount; raises `NotFoundError`."""
        ino = ROOT
        for name in path.split("/"):
            ino = (await (await self.entry(ino)).lookup(name)).ino
            if not ino:
                raise NotFoundError(f"{path} does not exist")
        return await (await self.entry(ino)).open()

    def add_file(self, handle: FileHandle) -> int:
        """Register an open file; returns the number of its handle."""
        self._last_handle += 1
        self.open_files[self._last_handle] = handle
        return self._last_handle

    async def sync(self, number: int) -> None:
        """Make durable what was written to an open file, whoever wrote it."""
        await self.open_files[number].sync()

    async def close(self, number: int) -> None:
        """Close an open file."""
        await self.open_files.pop(number).close()

    def readers(self, ino: int) -> list[FileHandle]:
        """Return the open files of *ino* that are not write buffers: each of them has its own size."""
        return [handle for handle in self.open_files.values() if handle.ino == ino and not handle.is_buffered]

    def moved_directory(self, old: str, new: str) -> None:
        """Follow a directory that was moved in the store from *old* to *new*, with all below it."""
        self.inodes.moved_directory(old, new)
        self.texts.move(old, new)
        self.ranges.remove_below(old, new)

    def path_of_handle(self, number: int) -> str:
        """Return the path of the open file or directory with the handle *number*, for messages."""
        handle = self.open_files.get(number)
        if handle is not None:
            return getattr(handle, "path", "") or self.path_of(handle.ino)
        directory = self.open_directories.get(number)
        return self.path_of(directory.ino) if directory is not None else ""

    def open_directory(self, ino: int) -> int:
        """Open a directory; returns the number of the handle.

        Raises `StaleError` if its array has changed: the kernel looks the path up again after a failed open, but not
        after a failed listing.
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

    # Arrays and documents.

    def chunk_tree(self, node: Node) -> ChunkTree | None:
        """Return the chunk tree of an array.

        It has the same inode numbers for as long as the chunks are in the same locations.
        """
        chunk_view = self.view.chunk_view(node)
        if chunk_view is None:
            self.ranges.remove(node.path)
            return None
        numbers = self.ranges.at(node.path)
        tree = self._trees.get(numbers) if numbers is not None else None
        if tree is not None and chunk_view.has_chunks_of(tree.chunk_view):
            tree.show(chunk_view)
            self._use(tree)
            return tree
        if tree is not None:
            self._recent.pop(tree, None)
        if numbers is None or tree is not None or numbers.key != chunk_view.key:
            numbers = self.ranges.add(node.path, chunk_view.key, chunk_view.kind, chunk_view.numbering)
        numbers.use_layout(chunk_view.array.layout.serial)
        tree = self._trees[numbers] = ChunkTree(self, chunk_view, numbers)
        self._use(tree)
        return tree

    def sharded_files(self, node: Node) -> ShardedFiles | None:
        """Return what is shown of the shards in the directory of *node*: the chunks of an array, or values by id."""
        if node.foreign is not None and node.foreign.names is not None and node.shards is not None:
            return ValueFiles(self, node.shards, node.foreign.names)
        return self.chunk_tree(node)

    def known_tree(self, numbers: ArrayNumbers) -> ChunkTree | None:
        """Return the chunk tree with these *numbers*, in any thread; None if it is not kept."""
        return self._trees.get(numbers)

    def _use(self, tree: ChunkTree) -> None:
        """Keep *tree*, and drop the least recently used one; its inode numbers remain known."""
        self._recent[tree] = None
        self._recent.move_to_end(tree)
        for _ in range(2):  # a tree with history is kept, and moves to the end
            if len(self._recent) > _MAX_RECENT:
                oldest, _ = self._recent.popitem(last=False)
                oldest.end_creation()
                if oldest.has_history and self.ranges.at(oldest.path) is oldest.numbers:
                    self._recent[oldest] = None

    async def array_node(self, path: str) -> Node:
        """Return the node of the array at *path*; raises `StaleError` if it is gone."""
        try:
            return await self.hierarchy.node(path)
        except NotFoundError:
            raise StaleError(f"the array {path or 'at the root'} is gone") from None

    async def documents(self, node: Node) -> Mapping[str, DocumentText]:
        """Return the generated documents of *node* by name, in the words in which they are shown.

        Raises the error that prevents looking at a node that they have a copy of.
        """
        shown = self.view.documents(await self.hierarchy.copies.consolidated(node))
        names = [*shown, *(self.view.document_names - shown.keys())] if shown else []
        if node.copies:
            for name in names:
                await self._compare_text(join_key(node.path, name), shown.get(name))
        texts = {name: self.texts.text(join_key(node.path, name), shown.get(name)) for name in names}
        return {name: text for name, text in texts.items() if text is not None}

    async def _compare_text(self, path: str, shown: bytes | None) -> None:
        """Find out whether the text that was written at *path* still says what is *shown*, as copies in it change."""
        written = self.texts.known(path)
        if written is not None and shown is not None and not self.texts.is_compared(path, shown):
            is_same = await self.worker.work(
                self.view.lens.means_the_same, path.rpartition("/")[2], shown, written.text
            )
            self.texts.keep(path, written, shown, is_same=is_same)

    async def refresh(self, path: str) -> None:
        """Load the node at *path* again; inodes of chunks that have moved become stale."""
        self.hierarchy.forget(path)
        self.chunk_tree(await self.hierarchy.node(path))

    def became_chunks(self, directory: ChunkDirectory, key: str) -> None:
        """Let the directory stored as *key* keep its inode number as a directory of chunks: programs work in it."""
        row = self.inodes.row_at(key)
        if row is not None and row.kind is self.view.directory:
            directory.keep_inode(row.ino)
