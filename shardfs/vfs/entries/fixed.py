"""Files of formats that are only read, and the documents generated for them."""

from shardfs.dataset.node import Node
from shardfs.errors import ReadOnlyError, StaleError
from shardfs.stores.base import NewAttributes
from shardfs.vfs.entries.base import Entry, Tree
from shardfs.vfs.handles import Attributes, DocumentHandle, PassthroughHandle
from shardfs.vfs.write_buffer import WriteBuffer


class ReadOnlyFile(Entry):
    """A file of a format that is only read; every change is refused. *identity* tells its versions apart."""

    __slots__ = ("identity", "path")
    path: str

    def __init__(self, fs: Tree, path: str, ino: int = 0, identity: object = None) -> None:
        super().__init__(fs, ino)
        self.path = path
        self.identity = identity

    async def open_to_write(self, flags: int) -> WriteBuffer | PassthroughHandle:
        """Refuse."""
        raise self._refusal

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Refuse."""
        raise self._refusal

    async def set_attribute(self, name: bytes, value: bytes | None) -> None:
        """Refuse."""
        raise self._refusal

    @property
    def _refusal(self) -> ReadOnlyError:
        return ReadOnlyError(f"{self.path} is of a format that is only read")


class FixedDocument(ReadOnlyFile):
    """A document generated for the node of its directory, which nobody can edit; *identity* is a hash of its text."""

    __slots__ = ()

    async def attributes(self) -> Attributes:
        """Return the attributes of the file that describes the node, with the size of the generated text."""
        return (await self._open(fresh=False)).attributes

    async def open(self) -> DocumentHandle:
        """Open the current text; raises `StaleError` if that is another version."""
        return await self._open(fresh=True)

    async def _open(self, *, fresh: bool) -> DocumentHandle:
        node = await self.fs.hierarchy.node(self.node_path, fresh=fresh)
        text = self.fs.view.fixed(node).get(self.name)
        handle = self.opened(node, text) if text is not None else None
        if handle is None or handle.ino != self.ino:
            raise StaleError(f"{self.path} was replaced")
        return handle

    def opened(self, node: Node, text: bytes) -> DocumentHandle:
        """Return a handle for the *text* that is generated for *node*."""
        ino = self.fs.inodes.number(FixedDocument, self.path, hash(text))
        ttl = self.fs.hierarchy.remaining(node.path)
        assert node.origin is not None
        return DocumentHandle(Attributes(ino, len(text), ttl, node.origin), text)

    def stored_key(self) -> str | None:
        """Return the key of the stored file that it replaces; None if it replaces none."""
        node = self.fs.hierarchy.last_seen(self.node_path)
        return self.path if node is not None and self.name in node.describing else None
