"""Nodes of the npy view: directories, .npy files, and the attributes of arrays and groups."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, cast

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.errors import NotFoundError, StaleError
from shardfs.format.metadata import ArrayMetadata
from shardfs.stores.base import Kind, join_key
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.entries.base import Entry
from shardfs.vfs.entries.passthrough import Directory
from shardfs.vfs.handles import Batch, DocumentHandle, FileHandle
from shardfs.vfs.npy_file import NpyArray, NpyHandle
from shardfs.vfs.npy_names import JSON, NPY, Generated, child, files_of, is_chunk_name, names_in

if TYPE_CHECKING:
    from shardfs.vfs.filesystem import Filesystem
    from shardfs.vfs.views import NpyView


class NpyDirectory(Directory):
    """A directory: of a group, of anything that is no array, or of an array that is the source itself."""

    __slots__ = ()

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of a generated file, or of what is stored."""
        node = await self._node()
        generated = await self._generated(node, name)
        if generated is not None:
            return self._attributes_of(generated)
        if self._view.hides(node, name) or is_chunk_name(node, name):
            return self.fs.stored.nothing()
        attributes = await self.fs.stored.lookup(self.path, name)
        if attributes.status.kind in (Kind.DIRECTORY, Kind.SYMLINK):
            below = await child(self.fs.hierarchy, node, name)
            if below is not None and isinstance(below.metadata, ArrayMetadata):
                return self.fs.stored.nothing()
        return attributes

    async def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield generated files, then stored names."""
        node = await self._node()
        names = await names_in(self._view, self.fs.hierarchy, self.fs.store, node)
        for path, problem in names.problems.items():
            self._view.tell_once(f"{path} is not shown: {problem}")
        generated = {name: self._attributes_of(names.generated[name]) for name in sorted(names.generated)}
        async for batch in self.fs.stored.list(self.path, cookie, generated, names.hidden.__contains__):
            yield batch

    @property
    def _view(self) -> "NpyView":
        return _view_of(self)

    async def _node(self) -> Node:
        node = await self.node()
        if self.path and isinstance(node.metadata, ArrayMetadata):
            raise StaleError(f"{self.path} is an array by now, and shown as a file")
        return node

    async def _generated(self, node: Node, name: str) -> Generated | None:
        for suffix in (NPY, JSON):
            if not name.endswith(suffix):
                continue
            base = name.removesuffix(suffix)
            below = await child(self.fs.hierarchy, node, base)
            files = files_of(self._view, below, base) if below is not None else {}
            if name not in files and not self.path:
                files = files_of(self._view, node, self._view.source_name)
            return files.get(name)
        return None

    def _attributes_of(self, generated: Generated) -> Attributes:
        node = generated.node
        assert node.document_stat is not None
        kind = NpyNode if generated.suffix == NPY else AttributesNode
        file = kind(self.fs, node.path, node.document_stat.version)
        file.ino = self.fs.inodes.keyed((kind, node.path, file.identity), kind, file)
        return file.attributes_in(node)


class NodeFile(Entry, ABC):
    """A file that stands for something of the node at *path*; *identity* is the version of the node's document."""

    __slots__ = ("_path", "identity")

    def __init__(self, fs: "Filesystem", path: str, identity: object) -> None:
        super().__init__(fs)
        self._path = path
        self.identity = identity

    @property
    def path(self) -> str:
        """The path of the node."""
        return self._path

    async def attributes(self) -> Attributes:
        """Return the attributes of the stored document, with the size of the file that is shown."""
        return self.attributes_in(await self.node())

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute of the stored document."""
        return await self.fs.store.attribute(join_key(self.path, DOCUMENT), name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of its extended attributes."""
        return await self.fs.store.attributes(join_key(self.path, DOCUMENT))

    def attributes_in(self, node: Node) -> Attributes:
        """Return the attributes as *node* is now."""
        assert node.document_stat is not None
        ttl = self.fs.hierarchy.remaining(self.path)
        return Attributes(self.ino, self.nbytes_in(node), ttl, node.document_stat)

    @abstractmethod
    def nbytes_in(self, node: Node) -> int:
        """Return the size of the file, as *node* is now."""

    async def node(self, *, fresh: bool = False) -> Node:
        """Return the node; raises `StaleError` if its document has another version now."""
        try:
            node = await self.fs.hierarchy.node(self.path, fresh=fresh)
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None
        if node.document_stat is None or node.document_stat.version != self.identity:
            raise StaleError(f"the document of {self.path or 'the source'} was replaced")
        return node


class NpyNode(NodeFile):
    """An array as an .npy file."""

    __slots__ = ()

    def nbytes_in(self, node: Node) -> int:
        """Return the size of the file."""
        return self._shown_in(node).file.nbytes

    @property
    def nopened(self) -> int:
        """How many times the file was opened."""
        return _view_of(self).nopened[self.path]

    async def open(self) -> FileHandle:
        """Open the array as it is now."""
        node = await self.node(fresh=True)
        shown = self._shown_in(node)
        shown.array.forget_listing()
        _view_of(self).nopened[self.path] += 1
        room = self.fs.chunk_cache.max_nbytes
        if shown.at_once_nbytes > room:
            _view_of(self).tell_once(
                f"{self.path or 'the source'}: reading it in order decodes chunks more than once; "
                f"--decode-cache {-(-shown.at_once_nbytes // 2**20)}M keeps what is needed again"
            )
        return NpyHandle(self, self.attributes_in(node), shown, _view_of(self).ahead)

    async def shown(self) -> NpyArray:
        """Return the array as it is now, whatever the version of its document."""
        try:
            return self._shown_in(await self.fs.hierarchy.node(self.path))
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None

    def _shown_in(self, node: Node) -> NpyArray:
        shown = _view_of(self).array(node)
        if shown is None:
            raise StaleError(f"{self.path or 'the source'} is no array with an .npy form any more")
        return shown


class AttributesNode(NodeFile):
    """The attributes of an array or a group as a JSON file."""

    __slots__ = ()

    def nbytes_in(self, node: Node) -> int:
        """Return the size of the text."""
        return len(_view_of(self).attributes(node) or b"")

    async def open(self) -> FileHandle:
        """Open the text as it is now."""
        node = await self.node(fresh=True)
        return DocumentHandle(self.attributes_in(node), _view_of(self).attributes(node) or b"")


def _view_of(node: Entry) -> "NpyView":
    return cast("NpyView", node.fs.view)
