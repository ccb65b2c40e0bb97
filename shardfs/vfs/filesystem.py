"""The tree: from an inode number to what it stands for."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress

from shardfs.dataset.hierarchy import DOCUMENT, Hierarchy, Node, is_below
from shardfs.errors import NotFoundError, ShardfsError, SourceError, StaleError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, Store, join_key
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.chunk_tree import ChunkTree
from shardfs.vfs.handles import Batch, ChunkHandle, DirectoryHandle, DocumentHandle, FileHandle, PassthroughHandle
from shardfs.vfs.inodes import InodeTable, TreeNumbers, in_table, unpack
from shardfs.vfs.nodes import GONE, ChunkDirectory, ChunkVersion, Directory, Document, StoredNode, TableNode
from shardfs.vfs.stored_names import StoredNames
from shardfs.vfs.text_cache import DocumentText, TextCache
from shardfs.vfs.views import View


class Filesystem:
    """What a mount shows of *store*.

    Requests name inodes.  Those of chunk trees are computed; the others are in a table as long as the kernel knows
    them.  *ttl* is how long, in seconds, an answer may be believed.  *scratch* is the directory of the store that holds
    names beside chunks, if the tree may be changed.
    """

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
        hierarchy.shows_whole = view.translates
        hierarchy.looks_above = view.looks_above
        self.view = view
        self.chunk_cache = chunk_cache
        self.ttl = ttl
        self.stored = StoredNames(self)
        self.texts = TextCache()
        self.numbers: TreeNumbers[ChunkTree] = TreeNumbers()
        self._chunk_trees: dict[str, ChunkTree] = {}
        self._table: InodeTable[TableNode] | None = None
        self._open_files: dict[int, FileHandle] = {}
        self._open_directories: dict[int, DirectoryHandle] = {}
        self._last_handle = 0

    @property
    def is_writable(self) -> bool:
        """Whether the tree may be changed: then the kernel is not told to remember what writing changes."""
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
        self._table = InodeTable(self.view.directory(self, "", status.identity))

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; number 0 stands for no such name."""
        text = os.fsdecode(name)
        if in_table(parent):
            attributes = await self.node(parent).lookup(text)
        else:
            number, _, position = unpack(parent)
            attributes = await self.numbers.tree(number).lookup(position, text)
        self.retain(attributes.ino)
        return attributes

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*; a superseded version answers for as long as it is open."""
        try:
            if in_table(ino):
                return await self.node(ino).attributes(ino)
            number, generation, position = unpack(ino)
            return await self.numbers.tree(number).attributes(generation, position)
        except ShardfsError:
            # A reader must be told the size of what it reads; a writer knows what it wrote.
            handles = self.readers(ino) or [handle for handle in self._open_files.values() if handle.ino == ino]
            if not handles:
                raise
            return handles[0].attributes

    def path_of(self, ino: int) -> str:
        """Return where *ino* is on the mount, for messages."""
        try:
            if in_table(ino):
                return self.node(ino).path
            number, _, position = unpack(ino)
            chunks = self.numbers.tree(number)
            if not chunks.is_chunk(position):
                return chunks.stored_path(position)
            return join_key(chunks.array.layout.path, chunks.key(chunks.coords_at(position)))
        except ShardfsError:
            return f"inode {ino}"

    def path_of_handle(self, number: int) -> str:
        """Return what is open under the handle *number*, for messages."""
        handle = self._open_files.get(number)
        if handle is not None:
            return getattr(handle, "path", "") or self.path_of(handle.ino)
        directory = self._open_directories.get(number)
        return self.path_of(directory.ino) if directory is not None else ""

    def readers(self, ino: int) -> list[FileHandle]:
        """Return the open files of the number *ino* that are no drafts: what they read has a size of its own."""
        kinds = ChunkHandle | DocumentHandle | PassthroughHandle
        return [handle for handle in self._open_files.values() if isinstance(handle, kinds) and handle.ino == ino]

    async def open(self, ino: int) -> tuple[int, FileHandle]:
        """Open a file; returns the number of the handle too."""
        handle = await self.open_file(ino)
        return self.add_file(handle), handle

    async def open_file(self, ino: int) -> FileHandle:
        """Open a file without a number for its handle."""
        if in_table(ino):
            return await self.node(ino).open(ino)
        number, generation, position = unpack(ino)
        return await self.numbers.tree(number).open(generation, position)

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

    def replace_file(self, number: int, handle: FileHandle) -> None:
        """Let the handle *number* be that of *handle* from now on."""
        self._open_files[number] = handle

    def close(self, number: int) -> None:
        """Close the open file with the handle *number*."""
        del self._open_files[number]

    def open_directory(self, ino: int) -> int:
        """Open a directory; returns the number of the handle.

        Raises `StaleError` for one of an array that has changed: the kernel looks the path up again then, which it does
        not do when a listing fails.
        """
        if not in_table(ino):
            self.numbers.tree(unpack(ino)[0])

        def listing(cookie: int) -> AsyncGenerator[Batch, None]:
            if in_table(ino):
                return self.node(ino).list(cookie)
            number, _, position = unpack(ino)
            return self.numbers.tree(number).list(position, cookie)

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

    async def read_link(self, ino: int) -> bytes:
        """Return the target of a symbolic link."""
        return await self.node(ino).read_link()

    async def attribute(self, ino: int, name: bytes) -> bytes:
        """Return an extended attribute; raises `NoAttributeError`."""
        if in_table(ino):
            return await self.node(ino).attribute(name)
        number, generation, position = unpack(ino)
        return await self.numbers.tree(number).attribute(generation, position, name)

    async def attribute_names(self, ino: int) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        if in_table(ino):
            return await self.node(ino).attribute_names()
        number, _, position = unpack(ino)
        return self.numbers.tree(number).attribute_names(position)

    def retain(self, ino: int) -> None:
        """Count a reference of the kernel to *ino*."""
        if in_table(ino):
            self.inodes.retain(ino)

    def forget(self, ino: int, lookups: int) -> None:
        """Take back references of the kernel to *ino*."""
        if in_table(ino):
            self.inodes.forget(ino, lookups)

    def chunk_tree(self, node: Node) -> ChunkTree | None:
        """Return the chunk tree of an array: the same one for as long as its chunks lie where they lie."""
        known = self._chunk_trees.get(node.path)
        chunk_view = self.view.chunk_view(node)
        if chunk_view is None:
            if known is not None:
                self.numbers.remove(self._chunk_trees.pop(node.path).number)
            return None
        if known is not None and chunk_view.has_chunks_of(known.chunk_view):
            known.chunk_view = chunk_view
            return known
        if known is not None:
            self.numbers.remove(known.number)
        fs = self._chunk_trees[node.path] = ChunkTree(self, chunk_view)
        return fs

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

    def document_attributes(self, node: Node, name: str) -> Attributes:
        """Return the attributes of the generated document *name* of *node*."""
        assert node.document_stat is not None
        nbytes = len(self.documents(node)[name].text)
        document = Document(self, join_key(node.path, name), node.document_stat.version, nbytes)
        return document.open_of(node, self.inodes.number(document.key, document)).attributes

    def documents(self, node: Node) -> Mapping[str, DocumentText]:
        """Return the generated documents of *node* by name, in the texts in which they are shown."""
        shown = self.view.documents(node)
        documents = {name: self.texts.text(join_key(node.path, name), text) for name, text in shown.items()}
        for name in self.view.document_names - shown.keys() if shown else ():
            silent = self.texts.silent(join_key(node.path, name))
            if silent is not None:
                documents[name] = silent
        return documents

    async def present(self, chunks: ChunkTree) -> ChunkTree:
        """Return the chunk tree that the array of *chunks* has now; raises `StaleError` if it is none any more."""
        path = chunks.array.layout.path
        try:
            found = self.chunk_tree(await self.hierarchy.node(path))
        except NotFoundError:
            found = None
        if found is None:
            raise StaleError(f"the array {path or 'at the root'} is gone")
        return found

    async def refresh(self, path: str) -> None:
        """Look at the node at *path* again; inodes of chunks that lie elsewhere now are stale from here on."""
        self.hierarchy.forget(path)
        self.chunk_tree(await self.hierarchy.node(path))

    async def lookup_document(self, directory: str, name: str) -> Attributes:
        """Return the attributes of the document *name* in *directory*, as it is now."""
        await self.hierarchy.node(directory, fresh=True)
        return await Directory(self, directory, None).lookup(name)

    async def stored_document(self, directory: str, name: str) -> str:
        """Return the key of what is stored and shows as the document *name* in *directory*."""
        node = await self.hierarchy.node(directory)
        return join_key(directory, DOCUMENT if name in self.documents(node) else name)

    async def follow_document(self, document: Document) -> None:
        """Let numbers of generated documents go on standing for them when attributes of the stored one changed."""
        directory = document.path.rpartition("/")[0]
        status = (await self.hierarchy.node(directory, fresh=True)).document_stat
        if status is None:
            return
        before, identity = (document.stored_path, document.identity), status.version
        for ino, node in self.inodes.nodes():
            if isinstance(node, Document) and (node.stored_path, node.identity) == before:
                node.identity = identity
                self.inodes.keep(ino, node, node.key)

    def stored_number(self, node: StoredNode) -> int:
        """Return the number of what is stored and was found under the path of *node*: one for all names of a file."""
        ino = self.inodes.number(node.key, node)
        known = self.inodes.node(ino)
        assert isinstance(known, StoredNode)
        known.path, known.nlink = node.path, node.nlink
        self.inodes.add_key(ino, node.path, node.nlink)
        return ino

    def removed(self, path: str) -> None:
        """Know that a name was removed, or is that of something else now.

        The number of a file without a name is that of no other, though the store may give a new file the identity of
        one that is gone: who waits for a lock file compares numbers.
        """
        ino = self.inodes.find(path)
        if ino is None:
            return
        self.inodes.drop_key(path)
        node = self.inodes.node(ino)
        assert isinstance(node, StoredNode)
        node.nlink -= 1
        if node.nlink <= 0:
            self.retire(node.key)
        for other in self.inodes.keys(ino):
            if isinstance(other, str):
                node.path = other

    def name_of(self, ino: int) -> str:
        """Return a path of a stored file, "" if it has no name any more."""
        return next((key for key in self.inodes.keys(ino) if isinstance(key, str)), "")

    def retire(self, key: object) -> None:
        """Give the number of what is stored and identified by *key*, and gone, to nothing else."""
        ino = self.inodes.find(key)
        if ino is not None:
            self.inodes.drop_key(key)
            node = self.inodes.node(ino)
            assert isinstance(node, StoredNode)
            node.identity = GONE

    def moved(self, old: str, new: str, *, is_directory: bool) -> None:
        """Follow a name that was moved in the store from *old* to *new*, a directory with all below it."""
        self._follow(self.inodes.find(old), old, new)
        if not is_directory:
            return
        self.texts.move(old, new)
        for path in [path for path in self._chunk_trees if is_below(path, old) or is_below(path, new)]:
            self.numbers.remove(self._chunk_trees.pop(path).number)
        for ino, node in self.inodes.nodes():
            if isinstance(node, StoredNode) and not isinstance(node, Document) and is_below(node.path, old):
                self._follow(ino, node.path, new + node.path[len(old) :])

    def _follow(self, ino: int | None, old: str, new: str) -> None:
        if ino is not None and self.inodes.find(new) == ino:
            return  # these are two names of one file, which stay
        self.removed(new)
        if ino is None:
            return
        node = self.inodes.node(ino)
        assert isinstance(node, StoredNode)
        self.inodes.drop_key(old)
        before, node.path = node.key, new
        if node.key != before:
            self.inodes.keep(ino, node, node.key)
        self.inodes.add_key(ino, new, node.nlink)

    def became_chunks(self, chunks: ChunkTree) -> None:
        """Let the directories that became ones of *chunks* go on under their numbers: programs work in them."""
        above = chunks.array.layout.path
        for ino, node in self.inodes.nodes():
            if not isinstance(node, Directory) or node.path == above or not is_below(node.path, above):
                continue
            position = chunks.directory_at(node.path[len(above) :].lstrip("/"))
            if position is not None:
                self.inodes.keep(ino, ChunkDirectory(chunks, position), (ChunkDirectory, chunks.number, position))

    def keep_version(self, ino: int, chunks: ChunkTree, coords: Coords) -> None:
        """Let *ino* stand for the version of a chunk that was published through the mount."""
        if in_table(ino):
            self.inodes.keep(ino, ChunkVersion(chunks, coords))

    def node(self, ino: int) -> TableNode:
        """Return the node of the table with the number *ino*."""
        return self.inodes.node(ino)

    @property
    def inodes(self) -> InodeTable[TableNode]:
        """The table."""
        assert self._table is not None, "start() comes first"
        return self._table
