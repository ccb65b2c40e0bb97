"""Files, directories and special files that are shown as they are stored."""

import logging
import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from copy import copy
from stat import S_IMODE
from typing import Final

from shardfs.dataset.node import DOCUMENT, Node, RemovedArray
from shardfs.errors import (
    CorruptionError,
    ExistsError,
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    ReadOnlyError,
    ShardfsError,
    StaleError,
)
from shardfs.stores.base import Content, Kind, NewAttributes, OpenFile, is_reserved, join_key, write_all
from shardfs.stores.local.file_lock import is_lock
from shardfs.vfs.entries.base import Entry, PublishedEntry, ShardedFiles, Tree
from shardfs.vfs.entries.document import Document
from shardfs.vfs.entries.fixed import FixedDocument
from shardfs.vfs.handles import Attributes, Batch, ChunkHandle, FileHandle, Owner, PassthroughHandle
from shardfs.vfs.inodes import GONE
from shardfs.vfs.write_buffer import Event

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 8
_REASON: Final = b"user.shardfs.reason"


class Passthrough(Entry):
    """A file that passes through, or a name that does not exist yet.

    *path* is the key in the store, and *identity* tells whether it still stands for the version *ino*. *is_scratch*: it
    is shown beside chunks, and kept outside the dataset.
    """

    __slots__ = ("identity", "is_scratch", "path")
    path: str

    def __init__(self, fs: Tree, path: str, ino: int = 0, identity: object = None, *, is_scratch: bool = False) -> None:
        super().__init__(fs, ino)
        self.path = path
        self.identity = identity
        self.is_scratch = is_scratch

    def stored_key(self) -> str | None:
        """Return the key in the store."""
        return self.path

    async def attributes(self) -> Attributes:
        """Return the stored attributes."""
        status = await self.fs.hierarchy.stat(self.path)
        if self.fs.identity_of(status) != self.identity:
            raise StaleError(f"{self.path or 'the source'} was replaced")
        return Attributes(self.ino, status.size, self.fs.ttl, status)

    async def open(self) -> FileHandle:
        """Open the stored file."""
        return await self._open()

    async def _open(self, flags: int | None = None) -> PassthroughHandle:
        """Open the stored file, with *flags* to write."""
        await self._check()
        writable = flags is not None
        try:
            if writable:
                file = await self.fs.writable.store.open_to_write(self.path)
            else:
                file = await self.fs.store.open_passthrough(self.path)
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None
        if self.fs.identity_of(file.stat()) != self.identity:
            await file.close()
            raise StaleError(f"{self.path} was replaced")
        return self._handle(file, flags)

    def _handle(self, file: OpenFile, flags: int | None) -> PassthroughHandle:
        row, appends = self.fs.inodes.row(self.ino), bool((flags or 0) & os.O_APPEND)
        return PassthroughHandle(row, file, self.fs.ttl, is_writable=flags is not None, appends=appends)

    async def read_link(self) -> bytes:
        """Return the target of a symbolic link."""
        await self._check()
        return await self.fs.store.read_link(self.path)

    async def create(self, mode: int, flags: int, owner: Owner) -> PassthroughHandle:
        """Open the stored file, creating it if it does not exist."""
        fs, is_new = self.fs, True
        await self._check()
        try:
            file = await self._create(mode, owner)
        except ExistsError:
            if flags & os.O_EXCL:
                raise
            file, is_new = await fs.writable.store.create(self.path, mode, exclusive=False), False
            # What was opened may have been stored since the name was looked at.
            await fs.writable.require_no_new_array(self)
        row = fs.inodes.row(fs.attributes_of(self.path, file.stat()).ino)
        is_direct, appends = is_new and self.is_scratch, bool(flags & os.O_APPEND)
        handle = PassthroughHandle(row, file, fs.ttl, is_writable=True, is_direct=is_direct, appends=appends)
        return handle if is_new else await _cut(handle, flags)

    async def _create(self, mode: int, owner: Owner) -> OpenFile:
        """Create the file, and for a scratch file its directory."""
        try:
            return await self.fs.writable.store.create(self.path, mode, exclusive=True, uid=owner.uid, gid=owner.gid)
        except NotFoundError:
            if not self.is_scratch:
                raise
        await self._make_parents()
        return await self.fs.writable.store.create(self.path, mode, exclusive=True, uid=owner.uid, gid=owner.gid)

    async def open_to_write(self, flags: int) -> PassthroughHandle:
        """Open the stored file; a scratch file even if it was removed meanwhile.

        Writers take turns with lock files, which they rename onto a chunk; latecomers find out by comparing inode
        numbers.
        """
        try:
            handle = await self._open(flags)
        except StaleError:
            if self.identity != GONE or not self.fs.is_scratch(self.path):
                raise
            draft = self._draft()
            file = await self.fs.writable.store.create(draft, 0o600, exclusive=True)
            await self.fs.writable.store.unlink(draft)
            return self._handle(file, flags)
        return await _cut(handle, flags)

    def _draft(self) -> str:
        """Return a key under which a file can be created before it gets its name."""
        return join_key(self.fs.writable.drafts, secrets.token_hex(8))

    async def content(self) -> tuple[Attributes, Content]:
        """Return attributes and content of the stored file."""
        return await self._attributes_now(), await self._content_now()

    async def _attributes_now(self) -> Attributes:
        """Return the attributes of the file that has the name."""
        await self._check()
        attributes = await self.fs.stored_attributes(self.path)
        if attributes.status.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{self.path} is a directory")
        return attributes

    async def _content_now(self) -> Content:
        """Return the content of the file that has the name."""
        snapshot = await self.fs.store.open(self.path)
        if self.is_scratch:
            return snapshot.content(0, snapshot.size)
        return await self.fs.writable.buffers.copied(snapshot.size, snapshot.read)

    async def replace(
        self, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Store *content* durably in a new file, and rename it to the name: the caller may remove it elsewhere."""
        store, status = self.fs.writable.store, attributes.status
        await self._check()
        await self._make_parents()
        draft = self._draft()
        file = await store.create(draft, S_IMODE(status.mode), exclusive=True, uid=status.uid, gid=status.gid)
        try:
            await write_all(file, content)
            file.set_attributes(mtime_ns=attributes.own_mtime_ns, atime_ns=status.atime_ns)
            await file.sync()
            with self.fs.inodes.removing(self.path):
                await self._take(draft, exclusive=exclusive)
        except ShardfsError:
            await store.unlink(draft)
            raise
        for directory in (self.path.rpartition("/")[0], self.fs.writable.drafts):
            await store.sync_directory(directory)

    async def _take(self, key: str, *, exclusive: bool) -> None:
        """Rename the stored file *key* to this name, replacing what has it; if *exclusive*, only if nothing has it.

        If nothing had it, nothing is replaced: another session may have made an array since, and stored a shard there.
        What others have put there, and is none, is replaced when they have been looked for once more.
        """
        fs, store = self.fs.writable, self.fs.writable.store
        for attempt in range(_ATTEMPTS):
            is_there = await self._is_stored()
            await fs.require_no_new_array(self, is_taken=bool(attempt))
            try:
                await store.rename(key, self.path, exclusive=exclusive or not is_there)
            except ExistsError:
                if exclusive:
                    raise
            else:
                return
        raise StaleError(f"{self.path} is made and removed over and over by other programs")

    async def _is_stored(self) -> bool:
        """Whether the name stands for anything in the store."""
        try:
            await self.fs.store.stat(self.path)
        except (NotFoundError, NotADirectoryHereError):
            return False
        return True

    async def remove(self) -> None:
        """Remove the name."""
        await self._check()
        with self.fs.inodes.removing(self.path):
            await self.fs.writable.store.unlink(self.path)

    async def make_directory(self, mode: int, owner: Owner) -> None:
        """Create the directory."""
        fs = self.fs
        await self._check()
        await self._make_parents()
        copies = fs.hierarchy.copies
        described = [] if self.is_scratch else await copies.described_below(self.path)
        await fs.writable.store.mkdir(self.path, mode, uid=owner.uid, gid=owner.gid)
        if not self.is_scratch:
            copies.outdate(self.path, described, is_new=True)  # what copies say is not of what will be here
        fs.hierarchy.forget(self.path)

    async def remove_directory(self) -> None:
        """Remove the directory, with what is left of an array that has no chunks any more."""
        fs = self.fs
        await self._clear()
        await fs.writable.store.rmdir(self.path)
        fs.inodes.removed(self.path)
        await fs.remove_scratch(self.path)
        fs.hierarchy.gone(self.path)

    async def _clear(self) -> None:
        """Remove what is stored of an array in the directory whose document and chunks were removed.

        Raises `NotEmptyError` if only a part of them was, or if a file below is open that was begun and is not stored:
        published later, it would come to what takes the place of the directory.
        """
        fs = self.fs
        for buffer in fs.writable.buffers.below(self.path):
            if buffer.is_unpublished:
                raise NotEmptyError(f"{buffer.path} is being written")
        node = await fs.hierarchy.node(self.path)
        emptied = fs.chunk_tree(node)
        if emptied is not None:
            if node.document is not None or not await emptied.is_empty():
                raise NotEmptyError(f"{self.path} is not empty")
            async for batch in fs.list_scratch(self.path, 0, lambda name: not emptied.is_scratch(name)):
                raise NotEmptyError(f"{os.fsdecode(batch.rows[0][0])} is in the directory")
            for name in [entry.name for entry in await fs.store.list(self.path)]:
                if name != DOCUMENT and not (emptied.takes(name) or is_lock(name) or is_reserved(name)):
                    raise NotEmptyError(f"{name} is in the directory")
            await fs.writable.document_writer.end(emptied)

    async def make_link(self, target: bytes) -> None:
        """Create a symbolic link under this name."""
        await self._check()
        await self._make_parents()
        await self.fs.writable.store.symlink(self.path, target)

    async def link_to(self, new: Entry) -> None:
        """Give this file the second name *new*; a chunk or a document is copied."""
        if isinstance(new, Passthrough):
            await self._check()
            await new._check()
            await new._make_parents()
            await self.fs.writable.store.link(self.path, new.path)
        else:
            attributes, content = await self.content()
            await new.replace(content, attributes, None, exclusive=True)

    async def is_directory(self) -> bool:
        """Whether it is a stored directory."""
        return (await self.fs.store.stat(self.path)).kind is Kind.DIRECTORY

    async def move_to(self, new: Entry, *, exclusive: bool) -> None:
        """Move the file to the name *new*, or the directory, after committing what is pending below both names.

        A chunk or a document gets its content. Once it is moved, nothing that fails is an error of the move.
        """
        if isinstance(new, PublishedEntry):
            await self._publish_as(new, exclusive=exclusive)
        elif isinstance(new, Passthrough):
            await self._move(new, exclusive=exclusive)
            buffers = self.fs.writable.buffers
            buffers.lose_name(buffers.below(self.path), Event.MOVED)
        else:
            await super().move_to(new, exclusive=exclusive)

    async def _publish_as(self, new: PublishedEntry, *, exclusive: bool) -> None:
        """Publish the file under the name *new*, and then remove it.

        If it has no other name, *new* gets its number, and who writes to it then gets an error: that would be lost.
        """
        fs, attributes = self.fs, await self._attributes_now()
        if attributes.status.nlink != 1:
            await new.replace(await self._content_now(), attributes, None, exclusive=exclusive)
            await self.remove()
            return
        row = fs.inodes.row(attributes.ino)
        before = copy(row)
        row.becomes(new.path)
        try:
            await new.replace(await self._content_now(), attributes, row.ino, exclusive=exclusive)
            try:
                await self.remove()
            except BaseException:  # nobody can say whether it is gone, so both names stay
                new.give_back(row.ino)
                fs.inodes.restore(row, before)
                raise
        except BaseException:
            row.becomes("")
            raise

    async def _move(self, new: "Passthrough", *, exclusive: bool) -> None:
        fs = self.fs
        await self._check()
        await new._check()
        await new._make_parents()
        is_directory = await self.is_directory()
        if is_directory:
            refusal = await fs.hierarchy.copies.refusal_below(self.path)
            if refusal is not None:
                raise CorruptionError(refusal)
            for path in (self.path, new.path):
                await fs.writable.writer.commits.flush(below=path)
            for entry in (self, new):
                await fs.writable.require_no_new_array(entry, is_directory=True)
            await fs.writable.document_writer.require_known_below(self.path)
            if not exclusive:
                with suppress(NotFoundError):
                    await new._clear()
            copies = fs.hierarchy.copies
            described = {path: await copies.described_below(path) for path in (self.path, new.path)}
        with fs.inodes.removing(new.path):
            if is_directory:
                await fs.writable.store.rename(self.path, new.path, exclusive=exclusive)
            else:
                await new._take(self.path, exclusive=exclusive)
        if not is_directory:
            fs.inodes.moved(self.path, new.path)
            return
        fs.hierarchy.moved(self.path, new.path)
        for path, nodes in described.items():
            copies.outdate(path, nodes)
        fs.moved_directory(self.path, new.path)
        if not self.is_scratch and not new.is_scratch:
            await self._move_scratch(new)

    async def _move_scratch(self, new: "Passthrough") -> None:
        """Let the scratch files below the directory follow it to *new*."""
        fs = self.fs
        source, target = join_key(fs.scratch or "", self.path), join_key(fs.scratch or "", new.path)
        try:
            await fs.store.stat(source)
            await fs.writable.store.make_directories(target.rpartition("/")[0])
            await fs.writable.store.rename(source, target, exclusive=False)
        except (NotFoundError, NotADirectoryHereError):
            return
        except ShardfsError as error:
            log.error("scratch files of %s stay in %s: %s", new.path, source, error)  # noqa: TRY400
        else:
            fs.moved_directory(source, target)

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Change attributes of the stored file; of one without a name, through its open handles."""
        try:
            await self.attributes()  # raises if another file has the name
            await self.fs.writable.store.set_attributes(self.path, **changes)
        except (NotFoundError, StaleError):
            for handle in self.fs.open_files.values():
                if isinstance(handle, PassthroughHandle) and handle.ino == self.ino:
                    handle.file.set_attributes(**changes)
                    return
            raise

    async def _check(self) -> None:
        """Raise `CorruptionError` if it may not be read or changed."""
        if not self.is_scratch:
            await self.fs.check(self.path)

    async def _make_parents(self) -> None:
        """Create the directory for a scratch file."""
        if self.is_scratch:
            await self.fs.writable.store.make_directories(self.path.rpartition("/")[0])


async def _cut(handle: PassthroughHandle, flags: int) -> PassthroughHandle:
    """Truncate a file that was just opened, if *flags* ask for it; it is closed if that fails."""
    if flags & os.O_TRUNC:
        try:
            await handle.file.truncate(0)
        except BaseException:
            await handle.close()
            raise
    return handle


class Special(Passthrough):
    """A symbolic link (the kernel resolves it on the mount), a pipe, a socket or a device."""

    __slots__ = ()

    async def _open(self, flags: int | None = None) -> PassthroughHandle:
        raise IsADirectoryHereError(f"{self.path} is not a regular file")


class Directory(Special):
    """A stored directory: of an array, a group or no node at all."""

    __slots__ = ()

    @property
    def node_path(self) -> str:
        """Its own path."""
        return self.path

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of a generated document, of a name in the chunk tree, or of a stored file."""
        fs, node = self.fs, await self._readable()
        fixed = fs.view.fixed(node).get(name)
        if fixed is not None:
            return FixedDocument(fs, join_key(self.path, name)).opened(node, fixed).attributes
        shown = (await fs.documents(node)).get(name) if name in fs.view.document_names else None
        if shown is not None:
            return Document(fs, join_key(self.path, name)).opened(node, shown).attributes
        chunks = fs.sharded_files(node)
        if chunks is not None and chunks.owns_in_array(name):
            return await chunks.lookup(None, name)
        if chunks is not None and chunks.is_scratch(name):
            return await fs.lookup_beside_chunks(self.path, name)
        if self.hides(node, chunks, name):
            return fs.nothing()
        attributes = await fs.lookup_stored(self.path, name)
        if attributes.status.kind is Kind.DIRECTORY and await fs.skipped(self.path, [name]):
            return fs.nothing()
        return attributes

    async def open_chunk(self, name: str) -> ChunkHandle | Attributes | None:
        """Open the chunk *name*, of an array whose keys have no directories; None if no chunk has such a name."""
        if name in self.fs.view.document_names:
            return None
        chunks = self.fs.sharded_files(await self._readable())
        return await chunks.open(None, name) if chunks is not None and chunks.owns_in_array(name) else None

    async def child(self, name: str) -> Entry:
        """Return the entry of *name*; raises `NotPermittedError` for a name that the view hides.

        Raises `ReadOnlyError` for what is of a format that is only read, or would make something else of it.
        """
        fs, path = self.fs, join_key(self.path, name)
        node = None if fs.is_scratch(self.path) else await self.node()
        if node is not None and (node.owns(name) or (node.is_read_only and fs.is_document(path))):
            raise ReadOnlyError(f"{path} is of a format that is only read")
        if fs.is_document(path):
            return Document(fs, path)
        node = node or await self.node()
        chunks = fs.sharded_files(node)
        if chunks is not None and chunks.owns_in_array(name):
            return await chunks.entry(None, name)
        if chunks is not None and chunks.is_scratch(name):
            return await fs.beside_chunks(self.path, name)
        if self.hides(node, chunks, name):
            raise NotPermittedError(f"{path} is not shown, and cannot be written, in this view")
        return Passthrough(fs, path, is_scratch=fs.is_scratch(self.path))

    async def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield generated documents, stored names, scratch files beside chunks, and chunks, in this order."""
        fs, node = self.fs, await self._readable()
        chunks = fs.sharded_files(node)
        generated = {
            name: FixedDocument(fs, join_key(self.path, name)).opened(node, text).attributes
            for name, text in fs.view.fixed(node).items()
        }
        generated |= {
            name: Document(fs, join_key(self.path, name)).opened(node, shown).attributes
            for name, shown in (await fs.documents(node)).items()
        }

        def hides(name: str) -> bool:
            return name in generated or self.hides(node, chunks, name)

        async for batch in fs.list_stored(self.path, cookie, hides, generated):
            yield batch
        if chunks is not None:
            async for batch in fs.list_scratch(self.path, cookie, lambda name: not chunks.is_scratch(name)):
                yield batch
            async for batch in chunks.list_in_array(cookie):
                yield batch

    def hides(self, node: Node, chunks: ShardedFiles | None, name: str) -> bool:
        """Whether the file stored under *name* is not shown as it is stored."""
        if self.fs.is_scratch(self.path):
            return False
        if chunks is not None and (chunks.takes(name) or (is_lock(name) and chunks.is_scratch(name))):
            return True
        if isinstance(node.kind, RemovedArray) and name == DOCUMENT:
            return True
        return self.fs.view.hides(node, name)

    async def node(self) -> Node:
        """Return the node; raises `StaleError` if the directory is gone."""
        try:
            return await self.fs.hierarchy.node(self.path)
        except NotFoundError:  # so that the kernel looks the path up again before it reports that it does not exist
            raise StaleError(f"{self.path} is gone") from None

    async def _readable(self) -> Node:
        """Return the node; raises `CorruptionError` if it is broken and the view cannot show it."""
        node = await self.node()
        reason = self.fs.view.skipped(node)
        if node.metadata is None and reason is not None:
            await self.fs.hierarchy.list(self.path)  # an error that prevents reading even that is more precise
            raise CorruptionError(f"{self.path or 'the source'} cannot be shown in this view: {reason}")
        return node

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute of the stored directory, or why an array is shown as stored."""
        if name == _REASON:
            reason = (await self.fs.hierarchy.node(self.path)).reason
            if reason is None:
                raise NoAttributeError(f"{self.path} has no reason why it is shown as stored")
            return reason.encode()
        try:
            return await super().attribute(name)
        except NotFoundError:  # it exists because a document names it
            await self.attributes()
            raise NoAttributeError(f"{self.path} has no attribute {name!r}") from None

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        try:
            names = list(await super().attribute_names())
        except NotFoundError:
            await self.attributes()
            names = []
        if (await self.fs.hierarchy.node(self.path)).reason is not None:
            names.append(_REASON)
        return names

    async def link_to(self, new: Entry) -> None:
        """Refuse: a directory has one name."""
        raise NotPermittedError("a directory cannot have a second name")

    async def set_attributes(self, changes: NewAttributes) -> None:
        """Change attributes of the stored directory."""
        await super().set_attributes(changes)
        self.fs.hierarchy.forget(self.path)

    async def sync(self) -> None:
        """Make the names in the directory durable."""
        await self.fs.writable.store.sync_directory(self.path)
