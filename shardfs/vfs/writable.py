"""The tree of a source that may be changed: requests that change something, and how what is being written is shown."""

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.maintenance.others import OtherSessions
from shardfs.dataset.node import RemovedArray, groups_above
from shardfs.dataset.path_table import is_below
from shardfs.dataset.writer import ChunkWriter
from shardfs.errors import (
    ConflictError,
    CrossDeviceError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotPermittedError,
    RefusedError,
    ShardfsError,
    StaleError,
)
from shardfs.stores.base import Kind, NewAttributes, Stat, Store, is_reserved, join_key
from shardfs.stores.cache import while_it_changes
from shardfs.vfs.chunk_cache import ChunkCache, FillChunk
from shardfs.vfs.documents import Documents
from shardfs.vfs.entries.base import Entry, PublishedEntry
from shardfs.vfs.entries.chunk import ChunkDirectory
from shardfs.vfs.entries.document import Document
from shardfs.vfs.entries.passthrough import Directory, Passthrough
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import (
    ABSENT,
    Attributes,
    ChunkHandle,
    DocumentHandle,
    FileHandle,
    OpenedFile,
    Owner,
    PassthroughHandle,
)
from shardfs.vfs.locks import Locks, Nodes
from shardfs.vfs.orphans import OrphanChunks
from shardfs.vfs.pages import CachedPages
from shardfs.vfs.views import View
from shardfs.vfs.write_buffer import BufferSpace, WriteBuffer, WriteBuffers

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class FlushFailures:
    """What failed when everything was to be committed and stored: *commit*, removed *documents*, and open *files*.

    *conflicts* are the changes that were put aside. They are the first that is told, as they are told once.
    """

    conflicts: ConflictError | None = None
    commit: ShardfsError | None = None
    documents: list[ShardfsError] = field(default_factory=list)
    files: ShardfsError | None = None

    @property
    def errors(self) -> Sequence[ShardfsError]:
        """All that failed."""
        every = (self.conflicts, self.commit, *self.documents, self.files)
        return [error for error in every if error is not None]


class WritableFilesystem(Filesystem):
    """A filesystem that may be changed; its *view* is an `EditableView`.

    *scratch* is the directory of the store for scratch files. *writer* publishes chunks, and new arrays are sharded as
    *chunks_per_shard* says. *buffers* is the directory for write buffers that are too large for memory. *drafts* is the
    directory of the store where files are made before they get their names, and *orphans* the one for chunk files that
    arrive before the document of their array.
    """

    store: Store

    def __init__(
        self,
        store: Store,
        hierarchy: Hierarchy,
        view: View,
        chunk_cache: ChunkCache,
        *,
        ttl: float,
        scratch: str,
        writer: ChunkWriter,
        others: OtherSessions,
        buffers: str,
        drafts: str,
        orphans: str,
        chunks_per_shard: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(store, hierarchy, view, chunk_cache, ttl=ttl, scratch=scratch)
        self.writer = writer
        self._others = others
        self.drafts = drafts
        self.pages = CachedPages()
        self._locks = Locks()
        self.buffers = WriteBuffers(
            BufferSpace(buffers),
            lambda: self.ttl,
            self._publish,
            writer.commits.sync_soon,
            self._check_writable,
        )
        self.orphans = OrphanChunks(self, writer, orphans)
        self.document_writer = Documents(self, writer, self.orphans, others, chunks_per_shard=chunks_per_shard)

    @property
    def writable(self) -> "WritableFilesystem":
        """This tree."""
        return self

    # Lookups and attributes, of what is being written too.

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; inode number 0 if there is no such name.

        While a directory becomes an array, its files are being moved: a name that was not found is looked up again.
        """
        path = join_key(self.path_of(parent), os.fsdecode(name))
        look = partial(self._locks.undisturbed, partial(super().lookup, parent, name), _is_absent)
        current = await self.buffers.resolve(path, look, lambda attributes: not _is_absent(attributes))
        if not isinstance(current, WriteBuffer):
            return current
        if current.is_new:  # the kernel may have been given another number for this name
            current.entry.keep_number(current.ino)
        self.retain(current.ino)
        return current.attributes._replace(ttl=0.0)

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*.

        If it is being written, and nobody has it open to read, they are those that its last writer sees. The kernel
        does not say for which handle it asks.
        """
        buffer = self.buffers.of_ino(ino)
        if buffer is not None and buffer.is_ahead and not self.readers(ino):
            return buffer.attributes._replace(ino=ino)
        try:
            return await self._locks.undisturbed(partial(super().attributes, ino))
        except ShardfsError as error:
            buffer = self.buffers.of_ino(ino)
            if buffer is not None:  # which is what it published, or was opened as
                return buffer.attributes._replace(ino=ino)
            late = await self._successor(ino) if isinstance(error, StaleError) else None
            if late is None:
                raise
            return late.attributes._replace(ino=ino, ttl=0.0)

    async def ask(self, ino: int, question: Callable[[Entry], Awaitable[T]]) -> T:
        """Return the answer of the entry *ino* to *question*."""
        return await self._locks.undisturbed(partial(super().ask, ino, question))

    async def open_chunk(self, parent: int, name: bytes) -> ChunkHandle | Attributes | None:
        """Open the chunk *name* in the directory *parent*; one that was never published is not there."""
        return await self._locks.undisturbed(
            partial(super().open_chunk, parent, name), lambda answer: isinstance(answer, Attributes)
        )

    async def open(self, ino: int) -> OpenedFile:
        """Open a file to read; if it was replaced, the handle is of the file that took its place, and *is_late*."""

        async def look() -> tuple[Entry, FileHandle]:
            current = await self.entry(ino)
            return current, await current.open()

        try:
            entry, handle = await self._locks.undisturbed(look)
        except StaleError:
            late, buffer = await self._successor(ino), self.buffers.of_ino(ino)
            if late is None and buffer is not None and buffer.is_unpublished:
                raise NotFoundError(f"{buffer.path} is not published yet") from None
            # The kernel keeps one size per inode, so all handles of an inode must agree on it.
            if late is None or any(reader.attributes.size != late.attributes.size for reader in self.readers(ino)):
                raise
            entry, handle = await self.entry(ino), late
            handle.stand_for(ino)
        self.document_writer.was_read(entry, handle)
        return OpenedFile(self.add_file(handle), handle)

    def gives_pages(self, handle: FileHandle, *, chunks: bool) -> bool:
        """Return whether the kernel may cache pages of a file that was just opened to read, and note that it does.

        It may not where one number can have several contents. Of chunks it does only if *chunks*.
        """
        if handle.is_late or isinstance(handle, DocumentHandle):
            return False
        if not isinstance(handle, ChunkHandle):
            return not handle.is_direct
        if not chunks or isinstance(handle.extent, FillChunk) or handle.attributes.repeats:
            return False
        if self.buffers.of_ino(handle.ino) is not None or not self.pages.allows(self.path_of(handle.ino)):
            return False
        self.pages.opened(handle)
        return True

    async def _successor(self, ino: int) -> FileHandle | None:
        """Open what has the name of *ino* by now; None if there is nothing.

        Told that a number is stale, the kernel looks the name up once more, and only once. That is not enough for a
        name that is rewritten continually, and programs take the error for a missing file.
        """
        try:
            path = (await self.entry(ino)).path
            return await while_it_changes(partial(self.open_path, path))
        except ShardfsError:
            return None

    # Files.

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, owner: Owner
    ) -> tuple[int, Attributes, bool]:
        """Create a file and open it.

        Returns the number of its handle, its attributes, and whether it bypasses the page cache.
        """
        self.writer.check()
        async with self._hold(parent):
            child = await self._child_to_change(parent, name)
            handle = await child.create(mode, flags, owner)
            self.retain(handle.ino)
            attributes = handle.attributes
            if not handle.is_direct:  # another process may have written to it before the kernel sees this size
                attributes = attributes._replace(ttl=0.0)
            return self.add_file(handle), attributes, handle.is_direct

    async def _child_to_change(self, parent: int, name: bytes) -> Entry:
        """Return the entry of *name* in the directory *parent*, to put a file there, or to remove one."""
        child = await self._child(parent, name)
        await self.require_no_new_array(child)
        return child

    async def require_no_new_array(self, entry: Entry, *, is_directory: bool = False, is_taken: bool = False) -> None:
        """Raise `StaleError` before a file or a directory is changed, put or removed in an array of another session.

        That may just have been made, and it may be a shard of that by now, or lead to shards. The name, looked up
        again, is that of a chunk. In a bucket, where a look takes requests, this is only done if the name *is_taken*
        of which nothing was known.
        """
        if isinstance(entry, Passthrough) and not entry.is_scratch and (is_taken or self.store.root is not None):
            array = await self.orphans.new_array(entry.path, is_directory=is_directory)
            if array is not None:
                raise StaleError(f"{entry.path} is a chunk of an array that another session has just made")

    async def written_in_place(self, parent: int, name: bytes) -> Attributes | None:
        """Return the attributes of *name* if it is a stored file, or would be, of which others see each write.

        None if not, or if it has another name, too.
        """
        if self.store.root is None or not isinstance(await self._child(parent, name), Passthrough):
            return None
        attributes = await self.lookup(parent, name)
        if attributes.ino == ABSENT:
            return attributes
        self.drop_references(attributes.ino, 1)
        is_alone = attributes.status.kind is Kind.FILE and attributes.status.nlink == 1
        return attributes if is_alone else None

    async def open_to_write(self, ino: int, flags: int) -> tuple[int, bool]:
        """Open a file to write; returns the number of its handle, and whether it bypasses the page cache."""
        self.writer.check()
        async with self._hold(ino):
            entry = await self.entry(ino)
            await self.require_no_new_array(entry)
            handle = await entry.open_to_write(flags)
            return self.add_file(handle), handle.is_direct

    async def truncate(self, ino: int, number: int | None, nbytes: int) -> Attributes:
        """Change the size of a file, through the handle *number* or, without one, at once.

        Returns its attributes. A chunk that was truncated without a handle is a new version, and *ino* is out of date.
        """
        self.writer.check()
        if number is not None:
            await self.open_files[number].truncate(nbytes)
            return self.open_files[number].attributes
        number, _ = await self.open_to_write(ino, os.O_WRONLY)
        try:
            await self.truncate(ino, number, nbytes)
            await self.open_files[number].flush()
            return self.open_files[number].attributes
        finally:
            await self.close(number)

    async def sync(self, number: int) -> None:
        """Make an open file durable, whoever wrote it, and everything that was published."""
        await super().sync(number)
        await self.writer.commits.sync_soon()

    async def close(self, number: int) -> None:
        """Close an open file."""
        handle = self.open_files.pop(number)
        self.pages.closed(handle)
        await handle.close()
        if not isinstance(handle, PassthroughHandle) or not handle.is_writable:
            return
        key = self.inodes.name_of(handle.ino)
        if self.orphans.has(key):
            async with self._locks.hold(partial(_node, self.orphans.array_path(key))):
                await self.orphans.absorb_file(key)
        elif self.store.root is not None and not self.is_scratch(key):
            await self._adopt(key, handle.attributes.status)

    async def _adopt(self, key: str, status: Stat) -> None:
        """Publish a file, which was stored as *key*, as a chunk, if another session has made it one meanwhile."""
        try:
            array = await self.orphans.adopt(key, status)
            if array is not None:
                async with self._locks.hold(partial(_node, array)):
                    await self.orphans.absorb(array)
        except (NotFoundError, NotADirectoryHereError, MetadataError):
            return  # the name, or the directory, is gone by now

    def _check_writable(self) -> None:
        self.writer.check()
        self.writer.admission.check_room()

    async def _publish(self, buffer: WriteBuffer) -> None:
        entry = buffer.entry

        async def choose() -> Nodes | None:
            return None if await entry.makes_node() else {entry.node_path: entry.is_document}

        async with self._locks.hold(choose):
            await buffer.publish()

    def _hold(self, ino: int, name: bytes | None = None) -> AbstractAsyncContextManager[None]:
        """Lock the node of *ino* in shared mode, and exclusively that which may be *name* in the directory *ino*."""

        async def choose() -> Nodes:
            nodes = {self.node_path(ino): False}
            if name is not None:
                nodes[join_key(self.path_of(ino), os.fsdecode(name))] = True
            return nodes

        return self._locks.hold(choose)

    # Names.

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        self.writer.check()
        async with self._locks.hold(partial(self._nodes_of, parent, name, makes=False)):
            await (await self._child_to_change(parent, name)).remove()

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, *, exclusive: bool) -> None:
        """Move a file or a directory, replacing what has the new name; with *exclusive* only if nothing has it."""
        self.writer.check()
        old: Entry
        stored: Stat | None = None
        is_directory = False

        async def choose() -> Nodes | None:
            nonlocal old, stored, is_directory
            old = await self._child(parent, name)
            passes = isinstance(old, Passthrough) and not old.is_scratch
            stored = await self.store.stat(old.path) if passes else None
            is_directory = stored is not None and stored.kind is Kind.DIRECTORY
            is_unpublished = self.buffers.unpublished(old.path) is not None
            if is_directory or (isinstance(old, PublishedEntry) and is_unpublished and await old.makes_node()):
                return None
            nodes = await self._nodes_of(new_parent, new_name)
            if nodes is not None:
                nodes[old.node_path] = nodes.get(old.node_path, False) or isinstance(old, PublishedEntry)
            return nodes

        async def commit() -> None:
            if is_directory:
                await self.writer.commits.flush(below=old.path)
                await self.document_writer.let_others_commit(old.path)

        async with self._locks.hold(choose, commit):
            new = await self._child(new_parent, new_name)
            if old.path != new.path:
                if isinstance(new, ChunkDirectory):
                    raise CrossDeviceError("directories of chunks cannot be replaced")
                await self.require_no_new_array(old)
                await old.move_to(new, exclusive=exclusive)
        is_file = stored is not None and not is_directory and isinstance(new, Passthrough) and not new.is_scratch
        if is_file and stored is not None and self.store.root is not None:
            try:
                await self._adopt(new.path, stored)
            except ShardfsError as error:  # the file is moved
                log.error("%s may be a chunk of an array that was just made: %s", new.path, error)  # noqa: TRY400

    async def _nodes_of(self, parent: int, name: bytes, *, makes: bool = True) -> Nodes | None:
        """Return which nodes to lock to create or replace *name*, or to remove it if not *makes*; None is all.

        A document is changed with its node to itself, and it may make its directory a node.
        """
        directory = await self.entry(parent)
        path = join_key(directory.path, os.fsdecode(name))
        is_document = isinstance(directory, Directory) and self.is_document(path)
        if makes and is_document and await Document(self, path).makes_node():
            return None
        return {directory.node_path: is_document}

    async def link(self, ino: int, new_parent: int, new_name: bytes) -> Attributes:
        """Give a file a second name; for a chunk or a document, that is a copy."""
        self.writer.check()
        async with self._locks.hold(partial(self._nodes_of, new_parent, new_name)):
            await (await self.entry(ino)).link_to(await self._child_to_change(new_parent, new_name))
            attributes = await super().lookup(new_parent, new_name)
            if attributes.ino != ABSENT:
                return attributes
            # An empty document is not shown; the kernel finds out at its next lookup.
            self.retain(ino)
            return (await super().attributes(ino))._replace(ttl=0.0)

    async def symlink(self, parent: int, name: bytes, target: bytes) -> Attributes:
        """Create a symbolic link."""
        self.writer.check()
        async with self._hold(parent):
            await (await self._child_to_change(parent, name)).make_link(target)
            return await super().lookup(parent, name)

    async def mkdir(self, parent: int, name: bytes, mode: int, owner: Owner) -> Attributes:
        """Create a directory; directories of chunks exist already."""
        self.writer.check()
        async with self._hold(parent):
            await (await self._child(parent, name)).make_directory(mode, owner)
            return await super().lookup(parent, name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory; of a directory of chunks, remove what is stored of it."""
        self.writer.check()

        async def choose() -> Nodes:
            # What a directory of chunks is the last of, may end with it.
            return {self.node_path(parent): False} | {(await self._child(parent, name)).node_path: True}

        async with self._locks.hold(choose):
            await (await self._child(parent, name)).remove_directory()

    async def _child(self, parent: int, name: bytes) -> Entry:
        """Return the entry of *name* in the directory *parent*."""
        text = os.fsdecode(name)
        if is_reserved(text):
            raise NotPermittedError(f"{text} is a name that shardfs reserves for itself")
        return await (await self.entry(parent)).child(text)

    # Attributes.

    async def set_attributes(self, ino: int, changes: NewAttributes) -> None:
        """Change attributes; chunks keep the mode and the owner of their shard."""
        self.writer.check()
        await self.ask(ino, lambda entry: entry.set_attributes(changes))

    async def set_attribute(self, ino: int, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it if *value* is None; those of chunks are computed and read-only."""
        self.writer.check()
        await self.ask(ino, lambda entry: entry.set_attribute(name, value))

    async def sync_directory(self, ino: int) -> None:
        """Make everything that was published durable, and the names in a directory."""
        await self.writer.commits.sync_soon()
        await (await self.entry(ino)).sync()

    async def flush_all(self) -> None:
        """Do what `try_flush_all` does, and let all other sessions do so; raises the first error, logs the others."""
        first, *others = [*(await self.try_flush_all()).errors, *await self._others.flush(), None]
        for error in others:
            if error is not None:
                log.error("%s: %s", self.store.url, error)
        if first is not None:
            raise first.with_traceback(None)

    async def commit(self, path: str) -> None:
        """Commit what is pending in the array around *path*, and in those below it, and remove removed documents there.

        Raises the error that prevents it.
        """

        def concerns(array: str) -> bool:
            return is_below(path, array) or is_below(array, path)

        commits = self.writer.commits
        for array in {queue.layout.path for queue in commits.pending if concerns(queue.layout.path)}:
            await commits.flush(below=array)
        await self._correct_copies([outdated for outdated in self.hierarchy.copies.outdated if concerns(outdated)])
        for one in [removed for removed in self.hierarchy.all_removed if concerns(removed.path)]:
            await self._drop(one)

    async def try_flush_all(self, *, for_others: bool = False) -> FlushFailures:
        """Commit what is pending, remove removed documents from the store, and store files that are being written.

        Each is done whatever becomes of the others; returns what failed. So is what was put aside since the last time,
        by commits that nobody waited for. It is returned again if this is done *for_others*, who did not publish it.
        """
        failures = FlushFailures()
        for directory, path in self.orphans.later.items():
            try:
                async with self._locks.hold(partial(_node, path)):
                    await self.orphans.absorb_late(directory)
            except RefusedError as error:  # whoever writes the document here has to know
                failures.documents += [] if for_others else [error]
            except ShardfsError as error:
                failures.documents.append(error)
        try:
            with suppress(ConflictError):  # which is told below
                await self.writer.commits.flush()
        except ShardfsError as error:
            failures.commit = error
        aside = self.writer.commits.aside
        try:
            aside.check()
        except ConflictError as error:
            failures.conflicts = error
            if not for_others:
                aside.told()
        try:
            await self._correct_copies(self.hierarchy.copies.outdated)
        except ShardfsError as error:
            failures.documents.append(error)
        for removed in self.hierarchy.all_removed:
            try:
                await self._drop(removed)
            except ShardfsError as error:
                failures.documents.append(error)
        try:
            await self.store.flush()
        except ShardfsError as error:
            failures.files = error
        return failures

    async def _correct_copies(self, outdated: Collection[str]) -> None:
        """Correct the copies of *outdated* nodes in groups: nobody must find a removed array by a copy alone."""
        groups = {group for path in outdated for group, _ in groups_above(path)}
        async with self._locks.hold(partial(_alone, groups)):
            await self.document_writer.correct_copies(outdated)

    async def _drop(self, removed: RemovedArray) -> None:
        """Drop a removed document, unless something is pending in its array that cannot be committed."""
        commits, path = self.writer.commits, removed.path
        async with self._locks.hold(partial(_alone, {path})):  # else a chunk or a document might be published meanwhile
            if any(queue.error is not None for queue in commits.pending_below(path)):
                return  # `try_flush_all` reports it
            await commits.flush(below=path)
            if await self.hierarchy.removed(path) is removed:
                await removed.drop(self.store)


def _is_absent(attributes: Attributes) -> bool:
    return attributes.ino == ABSENT


async def _node(path: str) -> Nodes:
    return {path: False}


async def _alone(paths: Collection[str]) -> Nodes:
    return dict.fromkeys(paths, True)
