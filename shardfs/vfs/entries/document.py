"""Metadata documents: generated from the stored ones, or shown as they are stored."""

from stat import S_IMODE
from typing import Final

from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import NotFoundError, NotPermittedError, RefusedError, StaleError
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.metadata import GroupMetadata
from shardfs.stores.base import Content, NewAttributes, NewPermissions, Stat, join_key
from shardfs.vfs.entries.base import PublishedEntry, Tree
from shardfs.vfs.handles import Attributes, DocumentHandle, FileHandle, Owner
from shardfs.vfs.texts import DocumentText
from shardfs.vfs.write_buffer import State

NO_ATTRIBUTES: Final = b"{}"
"""What is shown as the `.zattrs` of a node without attributes."""


class Document(PublishedEntry):
    """A document generated from the stored `zarr.json` of its directory.

    *identity* is a hash of its text, so that the inode number stays the same until the text changes.
    """

    __slots__ = ("identity", "path")
    path: str
    max_nbytes = MAX_DOCUMENT_NBYTES
    is_document = True
    may_be_empty = False

    def __init__(self, fs: Tree, path: str, ino: int = 0, identity: object = None) -> None:
        super().__init__(fs, ino)
        self.path = path
        self.identity = identity

    def stored_key(self) -> str | None:
        """Return the key of the stored document."""
        return join_key(self.node_path, DOCUMENT)

    async def attributes(self) -> Attributes:
        """Return the attributes of the stored document, with the size of the generated text."""
        return (await self._version_in(await self.fs.hierarchy.node(self.node_path))).attributes

    async def open(self) -> FileHandle:
        """Open the current text; raises `StaleError` if that is another version."""
        return await self._version_in(await self.fs.hierarchy.node(self.node_path, fresh=True))

    async def _version_in(self, node: Node) -> DocumentHandle:
        handle = await self.shown_in(node)
        if handle.ino != self.ino:
            raise StaleError(f"{self.path} was replaced")
        return handle

    async def shown_in(self, node: Node) -> DocumentHandle:
        """Open the text generated for *node*, the node of its directory."""
        return self.opened(node, (await self.fs.documents(node)).get(self.name))

    def opened(self, node: Node, shown: DocumentText | None) -> DocumentHandle:
        """Return a handle for the text *shown* of *node*; raises `StaleError` if there is none."""
        status = node.document_stat
        if shown is None or status is None:
            raise StaleError(f"{self.path} was replaced")
        nbytes = len(shown.text)
        ino = self.fs.inodes.number(Document, self.path, hash(shown.text))
        ttl = self.fs.hierarchy.remaining(node.path)
        return DocumentHandle(Attributes(ino, nbytes, ttl, status, shown.mtime_ns), shown.text)

    async def current(self, *, fresh: bool = True) -> DocumentHandle | None:
        """Open the current version; None if there is none."""
        fs, name = self.fs, self.name
        try:
            node = await fs.hierarchy.node(self.node_path, fresh=fresh)
        except NotFoundError:
            return None
        shown = (await fs.documents(node)).get(name)
        if shown is not None:
            return self.opened(node, shown)
        attributes = await fs.directory(self.node_path).lookup(name)
        if not attributes.ino:
            return None
        handle = await (await fs.entry(attributes.ino)).open()  # it is shown as it is stored
        return DocumentHandle(handle.attributes, bytes(await handle.read(0, MAX_DOCUMENT_NBYTES + 1)))

    async def makes_node(self) -> bool:
        """Whether publishing it changes what names in its directory stand for.

        It does not for a group that stays one, or for an array whose chunks are shown already.
        """
        node = await self.fs.hierarchy.node(self.node_path)
        is_array = node.document is not None and self.fs.chunk_tree(node) is not None
        return not is_array and not isinstance(node.metadata, GroupMetadata)

    def keep_number(self, ino: int) -> None:
        """Let *ino* stand for the document, which does not exist yet."""
        self.fs.inodes.keep(ino, Document, path=self.path, identity=ino)

    async def put(
        self, content: Content, status: Stat, mtime_ns: int | None, ino: int | None, *, exclusive: bool
    ) -> None:
        """Publish *content* as the document; its number depends on its text."""
        text = bytes(content.read(0, min(content.nbytes, MAX_DOCUMENT_NBYTES + 1)))
        permissions: NewPermissions = {"mode": S_IMODE(status.mode), "uid": status.uid, "gid": status.gid}
        await self.fs.writable.document_writer.publish(self, text, permissions, mtime_ns, exclusive=exclusive)

    async def erase(self) -> None:
        """Remove the document."""
        await self.fs.writable.document_writer.remove(self)
        self.fs.inodes.removed(self.path)

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Create a directory with the name of a document, where the view has no document of that name.

        Raises `RefusedError` for a name that Zarr forbids.
        """
        if self.name == DOCUMENT:
            raise RefusedError(f"{self.path} cannot be a directory: Zarr forbids nodes with this name")
        node = await self.fs.hierarchy.node(self.node_path)
        if self.fs.view.hides(node, self.name):
            raise NotPermittedError(f"{self.path} is the name of a document, and cannot be a directory")
        await self.fs.passthrough(self.path).make_directory(mode, owner)

    async def remove_directory(self) -> None:
        """Remove a directory with the name of a document."""
        await self.fs.passthrough(self.path).remove_directory()

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Change attributes of the stored document; for a document that is not stored yet, keep them."""
        mtime_ns = changes.get("mtime_ns")
        buffer = self.fs.writable.buffers.of_ino(self.ino)
        if buffer is not None and (buffer.is_new or buffer.state is State.DROPPED):
            buffer.set_attributes(changes)
            return
        if buffer is not None:
            buffer.check()
        else:
            await self.attributes()  # raises `StaleError` if another version has the name
        store, key = self.fs.writable.store, self.stored_key() or ""
        old = await store.stat(key)
        self.fs.writable.document_writer.was_touched(key, old, await store.set_attributes(key, **changes))
        if buffer is not None and mtime_ns is not None:
            buffer.note_time(mtime_ns)
        if mtime_ns is not None:
            self.fs.texts.set_time(self.path, mtime_ns)
        await self.fs.hierarchy.node(self.node_path, fresh=True)  # which holds these attributes

    async def set_attribute(self, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute of the stored document, or remove it."""
        await super().set_attribute(name, value)
        await self.fs.hierarchy.node(self.node_path, fresh=True)


class StoredDocument(Document):
    """A document that is shown as it is stored, but published as a whole like all documents."""

    __slots__ = ()

    def stored_key(self) -> str | None:
        """Return its key."""
        return self.path

    async def attributes(self) -> Attributes:
        """Return the stored attributes."""
        return await self.fs.passthrough(self.path, self.ino, self.identity).attributes()

    async def open(self) -> FileHandle:
        """Open the stored file."""
        return await self.fs.passthrough(self.path, self.ino, self.identity).open()
