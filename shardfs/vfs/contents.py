"""What names that are changed hold: looked at, made, and removed, whatever their kind."""

import os
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from shardfs.dataset.layout import OwnVersion
from shardfs.dataset.maintenance.walk import prune, walk_files
from shardfs.dataset.writer import Writer
from shardfs.errors import (
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    RefusedError,
    ShardfsError,
    StaleError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, Kind, OpenFile, Stat, join_key
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.chunk_tree import ChunkTree
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import ChunkHandle, DocumentHandle, PassthroughHandle
from shardfs.vfs.inodes import in_table, unpack
from shardfs.vfs.missing import FillChunk
from shardfs.vfs.names import ChunkDirectoryName, ChunkName, DocumentName, Name, Owner, PlainName
from shardfs.vfs.nodes import GONE, ChunkVersion, Directory, Document, PassthroughFile
from shardfs.vfs.publisher import Publisher
from shardfs.vfs.write_buffer import WriteBuffers

_PIECE_NBYTES: Final = 2**20


class Contents:
    """The files of a tree by their names: inner chunks, documents, and what is stored as it is.

    *copies* is the directory of the store where plain files are made before they get their names.
    """

    def __init__(self, fs: Filesystem, writer: Writer, publisher: Publisher, drafts: WriteBuffers, copies: str) -> None:
        self._fs = fs
        self._writer = writer
        self._publisher = publisher
        self._drafts = drafts
        self._copies = copies

    async def name_of(self, ino: int) -> ChunkName | DocumentName:
        """Return the name of a chunk or a document by its number; raises `IsADirectoryHereError` for anything else."""
        if not in_table(ino):
            number, _, position = unpack(ino)
            chunks = self._fs.numbers.tree(number)
            if chunks.is_chunk(position):
                return ChunkName(chunks, chunks.coords_at(position))
            raise IsADirectoryHereError("this is a directory of chunks")
        node = self._fs.node(ino)
        if isinstance(node, ChunkVersion):
            return ChunkName(node.chunks, node.coords)
        if isinstance(node, Document) or (isinstance(node, PassthroughFile) and self.is_document(node)):
            directory, _, document = node.path.rpartition("/")
            return DocumentName(directory, document)
        raise IsADirectoryHereError("this is no regular file")

    async def open_to_read(self, ino: int) -> ChunkHandle | DocumentHandle:
        """Open a chunk or a document by its number."""
        handle = await self._fs.open_file(ino)
        if isinstance(handle, PassthroughHandle):  # a document that is shown as it is stored
            text = bytes(await handle.read(0, MAX_DOCUMENT_NBYTES + 1))
            return DocumentHandle(handle.attributes, text)
        assert isinstance(handle, ChunkHandle | DocumentHandle)
        return handle

    async def successor(self, ino: int) -> ChunkHandle | DocumentHandle | PassthroughHandle | None:
        """Open what has the name of the file *ino* by now, to read it under that number; None if there is nothing.

        The kernel looks a name up once more when it is told that a number is out of date, and not again.  Where others
        write one name time after time that is not enough; and programs take the error for a file that is not there.
        """
        handle: ChunkHandle | DocumentHandle | PassthroughHandle | None
        try:
            node = self._fs.node(ino) if in_table(ino) else None
            if isinstance(node, PassthroughFile) and not self.is_document(node):
                if node.identity == GONE and self._fs.is_scratch(node.path):
                    return None  # who opens what became of a lock file would take it for the lock
                file = await self._fs.store.open_passthrough(node.path, writable=False)
                return PassthroughHandle(ino, node.path, file, 0.0) if await self._passes_through(node.path) else None
            handle = await self.current(await self.name_of(ino))
        except (NotFoundError, StaleError, IsADirectoryHereError, NotADirectoryHereError):
            return None
        return replace(handle, attributes=handle.attributes._replace(ino=ino, ttl=0.0)) if handle is not None else None

    async def _passes_through(self, path: str) -> bool:
        """Whether *path* is of no array's chunks, nor hidden: where a plain file was, there may be a shard by now."""
        names = path.split("/")
        for depth, name in enumerate([] if self._fs.is_scratch(path) else names):
            directory = "/".join(names[:depth])
            node = await self._fs.hierarchy.node(directory)
            if Directory(self._fs, directory, None).hides(node, self._fs.chunk_tree(node), name):
                return False
        return True

    def is_document(self, node: PassthroughFile) -> bool:
        """Whether a file is a document that is shown as it is stored: it is published as a whole, too."""
        return self._fs.is_document(node.path)

    async def current(self, name: ChunkName | DocumentName) -> ChunkHandle | DocumentHandle | None:
        """Open what *name* stands for, None if it is nothing."""
        if isinstance(name, ChunkName):
            return await name.chunks.current(name.coords)
        try:
            attributes = await self._fs.lookup_document(name.directory, name.name)
        except NotFoundError:
            return None
        return await self.open_to_read(attributes.ino) if attributes.ino else None

    async def exists(self, name: Name) -> bool:
        """Whether *name* stands for anything, be it a file that is not published yet."""
        if isinstance(name, ChunkName | DocumentName) and self._drafts.unpublished(name) is not None:
            return True
        match name:
            case ChunkName():
                return name.coords not in name.chunks.refilled and await name.chunks.current(name.coords) is not None
            case DocumentName():
                return bool((await self._fs.lookup_document(name.directory, name.name)).ino)
            case PlainName():
                try:
                    await self._fs.store.stat(name.path)
                except NotFoundError:
                    return False
                return True
            case ChunkDirectoryName():
                return True

    async def content_of(self, name: ChunkName | DocumentName | PlainName) -> tuple[Attributes, Content]:
        """Return attributes and content of the file *name*; raises `NotFoundError`."""
        if isinstance(name, PlainName):
            attributes = await self._fs.stored.attributes(name.path)
            if attributes.status.kind is Kind.DIRECTORY:
                raise IsADirectoryHereError(f"{name.path} is a directory")
            snapshot = await self._fs.store.open(name.path)
            return attributes, snapshot.content(0, snapshot.size)
        handle = await self.current(name)
        if handle is None:
            raise NotFoundError(f"{name.path} does not exist")
        if isinstance(handle, ChunkHandle):
            return handle.attributes, await handle.extent.content()
        return handle.attributes, MemoryContent(memoryview(handle.text))

    async def put_chunk(self, name: ChunkName, content: Content, status: Stat, ino: int, mtime_ns: int | None) -> int:
        """Publish *content* as a chunk, as the version *ino*, and return its time: now, unless it brings one."""
        chunks = await self._fs.present(name.chunks)
        array = chunks.array
        if not array.grid.contains(name.coords):
            raise RefusedError(f"{name.path} lies beyond the shape of its array by now")
        if chunks is not name.chunks and not chunks.chunk_view.reads_like(name.chunks.chunk_view):
            raise RefusedError(f"{name.path} was written for other codecs or another data type than its array has now")
        if chunks.codec is not None:
            try:
                content = await self._fs.chunk_cache.encode(chunks.codec, content)
            except (MetadataError, RefusedError) as error:
                raise RefusedError(f"{name.path} is refused: {error}") from None
        layout, shard = array.layout, array.layout.locate(name.coords).shard
        own, version = layout.own.get(name.coords), layout.versions.get(shard)
        before = own.mtime_ns if own is not None else version.mtime_ns if version is not None else 0
        now = time.time_ns()
        mtime_ns = mtime_ns if mtime_ns is not None else now if now > before else before + 1
        mode, uid, gid = stat.S_IMODE(status.mode), status.uid, status.gid
        await self._writer.put(array, name.coords, content, mtime_ns=mtime_ns, mode=mode, uid=uid, gid=gid)
        chunks.refilled.pop(name.coords, None)
        layout.make_directory(name.coords[:-1])  # which may have been removed while the file was written
        self._writer.source.shards.own(layout, shard, name.coords, OwnVersion(ino, mtime_ns))
        return mtime_ns

    async def put(
        self, name: Name, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Make *content* that of the file *name*, which may be there; *ino* is the number that it brings."""
        status = attributes.status
        mtime_ns = attributes.mtime_ns if attributes.mtime_ns is not None else status.mtime_ns
        match name:
            case ChunkName():
                number = self._fs.inodes.reserve() if ino is None else ino
                async with self._drafts.lock(name):
                    await self.put_chunk(name, content, status, number, mtime_ns)
                    self._drafts.detach(name)
                self._fs.keep_version(number, name.chunks, name.coords)
            case DocumentName():
                text = bytes(content.read(0, min(content.nbytes, MAX_DOCUMENT_NBYTES + 1)))
                mode = stat.S_IMODE(status.mode)
                async with self._drafts.lock(name):
                    await self._publisher.publish(name, text, mode=mode, exclusive=exclusive)
                    self._drafts.detach(name)
                await self.set_document_time(name, mtime_ns)
            case PlainName():
                await self.make_scratch(name)
                copy = join_key(self._copies, secrets.token_hex(8))
                file = await self._fs.store.create(copy, stat.S_IMODE(status.mode), exclusive=True)
                try:
                    for start in range(0, content.nbytes, _PIECE_NBYTES):
                        await file.write(start, content.read(start, min(_PIECE_NBYTES, content.nbytes - start)))
                    file.set_attributes(mtime_ns=mtime_ns, atime_ns=status.atime_ns)
                    await self._fs.store.rename(copy, name.path, exclusive=exclusive)
                    self._fs.removed(name.path)
                except ShardfsError:
                    await self._fs.store.unlink(copy)
                    raise

    async def remove(self, name: ChunkName | DocumentName | PlainName) -> None:
        """Remove a file; raises `NotFoundError`."""
        match name:
            case ChunkName():
                async with self._drafts.lock(name):
                    handle = await name.chunks.current(name.coords)
                    if handle is not None:
                        await self._remove_chunk(name, handle)
                    elif self._drafts.unpublished(name) is None:
                        raise NotFoundError(f"{name.path} does not exist")
                    self._drafts.detach(name)
            case DocumentName():
                async with self._drafts.lock(name):
                    try:
                        await self._publisher.remove(name)
                    except NotFoundError:
                        if self._drafts.unpublished(name) is None:
                            raise
                    self._drafts.detach(name)
                self._fs.removed(name.path)
            case PlainName():
                await self._fs.store.unlink(name.path)
                self._fs.removed(name.path)

    async def _remove_chunk(self, name: ChunkName, handle: ChunkHandle) -> None:
        """Remove a chunk, or let it go on as one of the fill value that is shown: no file means that to its reader."""
        chunks = await self._fs.present(name.chunks)
        remains = await chunks.remains(name.coords)
        if remains is None:
            if not isinstance(handle.extent, FillChunk):
                await self._writer.erase(chunks.array, name.coords, mtime_ns=time.time_ns())
        elif chunks.refilled.get(name.coords) == handle.ino:
            chunks.removed_again.add(name.coords)
        else:
            number = self._fs.inodes.reserve()
            await self.put_chunk(name, await remains.content(), handle.attributes.status, number, None)
            self._fs.keep_version(number, chunks, name.coords)
            chunks.refilled[name.coords] = number

    async def nameless(self) -> OpenFile:
        """Return an empty file that has no name."""
        copy = join_key(self._copies, secrets.token_hex(8))
        file = await self._fs.store.create(copy, 0o600, exclusive=True)
        await self._fs.store.unlink(copy)
        return file

    async def make_scratch(self, name: PlainName) -> None:
        """Make the directory of a name beside chunks, which is nowhere yet."""
        if name.is_scratch:
            await self._fs.store.make_directories(name.path.rpartition("/")[0])

    async def require_no_scratch(self, chunks: ChunkTree, coords: Coords) -> None:
        """Raise `NotEmptyError` if a directory of chunks lists names beside them, or directories that have some."""
        assert self._fs.scratch is not None
        scratch = join_key(self._fs.scratch, chunks.directory_of(coords))
        try:
            entries = await self._fs.store.list(scratch)
        except (NotFoundError, NotADirectoryHereError):
            return
        for entry in entries:
            is_empty = chunks.owns(entry.name)
            if is_empty and await chunks.array.lists((*coords, int(entry.name))):
                is_empty = not [key async for key in walk_files(self._fs.store, join_key(scratch, entry.name))]
            if not is_empty:
                raise NotEmptyError(f"{entry.name} is in the directory")

    async def require_no_scratch_in_array(self, chunks: ChunkTree) -> None:
        """Raise `NotEmptyError` if the array's own directory lists names beside chunks."""
        path = chunks.array.layout.path
        async for batch in self._fs.stored.list_scratch(path, 0, lambda name: not chunks.is_scratch(name)):
            raise NotEmptyError(f"{os.fsdecode(batch.rows[0][0])} is in the directory")

    async def remove_scratch(self, directory: str) -> None:
        """Remove the names beside chunks in a directory that is gone, and below it, where nothing shows them."""
        assert self._fs.scratch is not None
        scratch = join_key(self._fs.scratch, directory)
        with suppress(NotFoundError, NotADirectoryHereError):
            async for key in walk_files(self._fs.store, scratch):
                await self._fs.store.unlink(key)
                self._fs.removed(key)
            await prune(self._fs.store, scratch)

    async def own(self, path: str, owner: Owner) -> None:
        """Give what is new to who asked for it, where we may."""
        if os.geteuid() == 0 and (owner.uid, owner.gid) != (0, 0):
            await self._fs.store.set_attributes(path, uid=owner.uid, gid=owner.gid)

    async def set_document_time(self, name: DocumentName, mtime_ns: int) -> None:
        """Give a document another modification time; one that is not there, as it says nothing, needs none."""
        stored = await self._fs.stored_document(name.directory, name.name)
        with suppress(NotFoundError):
            await self._fs.store.set_attributes(stored, mtime_ns=mtime_ns)
        self._fs.texts.set_time(name.path, mtime_ns)
        await self._fs.refresh(name.directory)
