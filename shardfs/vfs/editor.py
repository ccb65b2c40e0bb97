"""Changes to the tree: what each writing request does."""

import os
import secrets
import stat
import time
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Final

from shardfs.dataset.hierarchy import DOCUMENT, is_below
from shardfs.dataset.pending import OwnVersion
from shardfs.dataset.writer import Writer
from shardfs.errors import (
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    RefusedError,
    ShardfsError,
    UnsupportedError,
)
from shardfs.format.metadata import MAX_DOCUMENT_NBYTES
from shardfs.stores.base import Buffer, Content, Kind, Stat, join_key
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.attributes import Attributes, new_file
from shardfs.vfs.drafts import Draft, DraftSpace
from shardfs.vfs.gate import Gate
from shardfs.vfs.handles import ChunkHandle, DocumentHandle, PlainHandle
from shardfs.vfs.inodes import in_table, unpack
from shardfs.vfs.names import ChunkDirectoryName, ChunkName, DocumentName, Name, PlainName, resolve
from shardfs.vfs.nodes import ChunkVersion, Directory, Document, PlainFile, StoredNode
from shardfs.vfs.open_drafts import DraftHandle, OpenDraft
from shardfs.vfs.publisher import Publisher
from shardfs.vfs.staging import Staging
from shardfs.vfs.tree import Tree

_PIECE_NBYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks: the owner of what is new."""

    uid: int
    gid: int


class Editor:
    """The writing half of a tree: names, open files that are written, and what becomes of both."""

    def __init__(
        self, tree: Tree, writer: Writer, space: DraftSpace, *, chunks_per_shard: tuple[int, ...] | None
    ) -> None:
        assert tree.scratch is not None
        self._tree = tree
        self._writer = writer
        self._space = space
        self._drafts: dict[ChunkName | DocumentName, OpenDraft] = {}
        self._drafts_by_ino: dict[int, OpenDraft] = {}
        self._writing: dict[int, PlainHandle] = {}
        self._gate = Gate()
        hierarchy = tree.hierarchy
        state = tree.scratch.rpartition("/")[0]
        staged = join_key(state, "staged")
        self._copies = join_key(state, "drafts")
        self._staging = Staging(
            tree.store,
            hierarchy,
            writer,
            staged,
            self._is_written,
            self._staged,
            tree.scratch,
            lambda: tree.inodes.reserve(),
        )
        self._publisher = Publisher(tree, writer, self._staging, chunks_per_shard=chunks_per_shard)

    async def start(self) -> None:
        """Go on with what an earlier mount left."""
        await self._staging.resume()

    # Open files

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, owner: Owner
    ) -> tuple[int, Attributes, bool]:
        """Make a file and open it; returns its handle, its attributes, and whether it is read directly."""
        self._writer.check()
        async with self._gate.passing():
            target = await resolve(self._tree, parent, name)
            if isinstance(target, ChunkDirectoryName):
                raise IsADirectoryHereError("this is a directory of chunks")
            if isinstance(target, PlainName):
                plain = await self._create_plain(target, mode, flags, owner)
                return self._add_writing(plain), plain.attributes, False
            opened = self._drafts.get(target)
            # The kernel looked before, and there was nothing; who made it meanwhile made the file that is opened now.
            base = await self._current(target) if opened is None else None
            if flags & os.O_EXCL and (opened is not None or base is not None):
                raise ExistsError(f"{target.path} exists")
            if opened is None:
                opened = self._begin(
                    target, base, new_file(mode, owner.uid, owner.gid)._replace(mtime_ns=time.time_ns())
                )
            elif flags & os.O_TRUNC:
                opened.restart()
            handle = self._use(opened, opened.ino, flags)
            self._tree.retain(opened.ino)
            return self._tree.add_file(handle), handle.attributes, True

    async def open(self, ino: int, flags: int) -> tuple[int, bool]:
        """Open a file to write; returns its handle, and whether it is read directly."""
        self._writer.check()
        node = self._tree.node(ino) if in_table(ino) else None
        if isinstance(node, PlainFile) and not self._is_document(node):
            plain = await node.open_live(ino, writable=True)
            if flags & os.O_TRUNC:
                await plain.file.truncate(0)
            return self._add_writing(plain), False
        target = await self._name_of(ino)
        opened = self._drafts.get(target)
        if opened is None or opened.ino != ino:
            base = await self._open_to_read(ino)
            if opened is None:
                opened = self._begin(target, base, base.attributes.status)
        if flags & os.O_TRUNC:
            opened.restart()
        return self._tree.add_file(self._use(opened, ino, flags)), True

    async def write(self, number: int, offset: int, data: Buffer) -> int:
        """Write to an open file."""
        handle = self._tree.file(number)
        if isinstance(handle, DraftHandle):
            self._writer.check()
            self._writer.committer.check_room()
            await handle.write(offset, data)
            return len(data)
        return await self._writing[number].file.write(offset, data)

    async def flush(self, number: int) -> None:
        """Publish what was written to an open file and is not published yet."""
        handle = self._tree.file(number)
        if isinstance(handle, DraftHandle) and handle.open_draft.is_dirty:
            await self._publish(handle.open_draft)

    async def sync(self, number: int) -> None:
        """Make durable what was written to an open file."""
        handle = self._tree.file(number)
        if isinstance(handle, DraftHandle):
            await self.flush(number)
            await self._writer.sync()
        elif number in self._writing:
            await self._writing[number].file.sync()

    async def close(self, number: int) -> None:
        """Close an open file; one that was made, or cut when it was opened, and not written is published now."""
        handle = self._tree.file(number)
        self._tree.close(number)
        plain = self._writing.pop(number, None)
        if plain is not None:
            if is_below(plain.key, self._staging.directory) and not self._is_written(plain.key):
                async with self._gate.passing():
                    await self._staging.absorb_file(plain.key)
        elif isinstance(handle, DraftHandle):
            opened = handle.open_draft
            opened.users -= 1
            try:
                if opened.is_fresh and not opened.users:
                    await self._publish(opened)
            finally:
                if not opened.users:
                    self._end(opened)

    async def truncate(self, ino: int, number: int | None, nbytes: int) -> Attributes:
        """Give a file another size: one that is open, or, without the number of a handle, at once.

        Returns its attributes then: a chunk that was cut is another version, and *ino* is out of date.
        """
        self._writer.check()
        if number is not None:
            handle = self._tree.file(number)
            if isinstance(handle, DraftHandle):
                await handle.open_draft.truncate(nbytes)
            else:
                await self._writing[number].file.truncate(nbytes)
            return self._tree.file(number).attributes
        number, _ = await self.open(ino, os.O_WRONLY)
        try:
            await self.truncate(ino, number, nbytes)
            await self.flush(number)
            return self._tree.file(number).attributes
        finally:
            await self.close(number)

    # Names

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        self._writer.check()
        async with self._gate.passing():
            target = await resolve(self._tree, parent, name)
            if isinstance(target, ChunkDirectoryName):
                raise IsADirectoryHereError("this is a directory of chunks")
            await self._remove(target)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, *, exclusive: bool, owner: Owner
    ) -> None:
        """Move a file or a directory, in place of what the new name stands for, or if *exclusive* only if nothing."""
        self._writer.check()
        moving = await resolve(self._tree, parent, name)
        opened = self._drafts.get(moving) if isinstance(moving, ChunkName | DocumentName) else None
        if opened is not None and opened.is_dirty:
            await self._publish(opened)
        async with self._gate_for(new_name):
            old, new = await resolve(self._tree, parent, name), await resolve(self._tree, new_parent, new_name)
            if old == new:
                return
            if isinstance(old, ChunkDirectoryName) or isinstance(new, ChunkDirectoryName):
                raise CrossDeviceError("directories of chunks are not moved as a whole")
            if isinstance(old, PlainName) and isinstance(new, PlainName):
                await self._rename_plain(old, new, exclusive=exclusive)
                return
            written = None if isinstance(old, PlainName) else self._drafts.get(old)
            attributes, content = await self._content(old)
            if exclusive and await self._exists(new):
                raise ExistsError(f"{new.path} exists")
            await self._put(new, content, attributes, attributes.ino if isinstance(old, PlainName) else None)
            await self._remove(old)
            if isinstance(old, PlainName):
                await self._hand_over_plain(old, new)
            elif written is not None:
                await self._hand_over_draft(written, new)

    async def link(self, ino: int, new_parent: int, new_name: bytes) -> Attributes:
        """Give a file a second name; that of a chunk or a document is a copy."""
        self._writer.check()
        async with self._gate_for(new_name):
            node = self._tree.node(ino) if in_table(ino) else None
            is_document = isinstance(node, Document) or (isinstance(node, PlainFile) and self._is_document(node))
            if not isinstance(node, StoredNode) or isinstance(node, Directory) or is_document:
                raise NotPermittedError("only files that are neither chunks nor documents can have a second name")
            new = await resolve(self._tree, new_parent, new_name)
            if isinstance(new, PlainName):
                await self._make_scratch(new)
                await self._tree.store.link(node.path, new.path)
            elif isinstance(new, ChunkDirectoryName) or await self._exists(new):
                raise ExistsError("the name exists")
            else:
                attributes, content = await self._content(PlainName(node.path))
                await self._put(new, content, attributes, None, exclusive=True)
            return await self._tree.lookup(new_parent, new_name)

    async def symlink(self, parent: int, name: bytes, target: bytes) -> Attributes:
        """Make a symbolic link."""
        self._writer.check()
        async with self._gate.passing():
            new = await resolve(self._tree, parent, name)
            if not isinstance(new, PlainName):
                raise NotPermittedError("chunks and documents cannot be symbolic links")
            await self._make_scratch(new)
            await self._tree.store.symlink(new.path, target)
            return await self._tree.lookup(parent, name)

    async def mkdir(self, parent: int, name: bytes, mode: int, owner: Owner) -> Attributes:
        """Make a directory; those of chunks are there already."""
        self._writer.check()
        async with self._gate.passing():
            new = await resolve(self._tree, parent, name)
            if isinstance(new, ChunkDirectoryName):
                arrangement = new.chunks.array.arrangement
                if arrangement.has_directory(new.coords):
                    raise ExistsError("the directory exists")
                arrangement.make_directory(new.coords)
                return await self._tree.lookup(parent, name)
            if isinstance(new, ChunkName):
                raise RefusedError(f"{new.path} is the name of a chunk, which is no directory")
            if isinstance(new, PlainName):
                await self._make_scratch(new)
            await self._tree.store.mkdir(new.path, mode)
            await self._own(new.path, owner)
            self._tree.hierarchy.forget(new.path)
            return await self._tree.lookup(parent, name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory; of chunks, it goes as far as it is stored."""
        self._writer.check()
        async with self._gate.passing():
            target = await resolve(self._tree, parent, name)
            store = self._tree.store
            if isinstance(target, ChunkName):
                raise NotADirectoryHereError("a chunk is no directory")
            if isinstance(target, ChunkDirectoryName):
                chunks = target.chunks
                if not await chunks.array.is_empty(target.coords):
                    raise NotEmptyError("there are chunks in the directory")
                await self._remove_scratch(chunks.directory_of(target.coords))
                chunks.array.arrangement.remove_directory(target.coords)
                if not target.coords and chunks.root:
                    await self._publisher.prune(await self._tree.hierarchy.node(chunks.array.arrangement.path))
                return
            node = await self._tree.hierarchy.node(target.path)
            if node.array is not None:
                if node.document is not None or not await node.array.is_empty():
                    raise NotEmptyError(f"{target.path} is not empty")
                await self._publisher.prune(node)
                await self._remove_scratch(target.path)
            await store.rmdir(target.path)
            self._tree.hierarchy.abandon(target.path)

    # Attributes

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*, of what is being written as its writers see it."""
        opened = self._drafts_by_ino.get(ino)
        if opened is not None and (opened.is_dirty or opened.is_fresh):
            return opened.attributes(ino)
        return await self._tree.attributes(ino)

    async def set_attributes(
        self,
        ino: int,
        *,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        atime_ns: int | None,
        mtime_ns: int | None,
    ) -> None:
        """Change attributes; mode and owner of chunks are their shards', and stay."""
        self._writer.check()
        node = self._tree.node(ino) if in_table(ino) else None
        if not isinstance(node, StoredNode):
            if mtime_ns is not None:
                await self._set_chunk_time(ino, mtime_ns)
            return
        changes = {"mode": mode, "uid": uid, "gid": gid, "atime_ns": atime_ns, "mtime_ns": mtime_ns}
        opened = self._drafts_by_ino.get(ino)
        if opened is not None and opened.is_new:
            return  # a document that is not stored yet
        try:
            await self._tree.store.set_attributes(node.path, **changes)
        except NotFoundError:
            for handle in self._writing.values():
                if handle.ino == ino:
                    handle.file.set_attributes(**changes)
                    return
            raise
        if opened is not None and mtime_ns is not None:
            opened.mtime_ns = mtime_ns
        if isinstance(node, Document):
            await self._tree.follow_document(node)
        elif isinstance(node, Directory):
            self._tree.hierarchy.forget(node.path)

    async def set_attribute(self, ino: int, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it if *value* is None; chunks have none but those that are computed."""
        self._writer.check()
        node = self._tree.node(ino) if in_table(ino) else None
        if not isinstance(node, StoredNode):
            raise UnsupportedError("chunks have no extended attributes of their own")
        if value is None:
            await self._tree.store.remove_attribute(node.path, name)
        else:
            await self._tree.store.set_attribute(node.path, name, value)

    async def sync_directory(self, ino: int) -> None:
        """Make durable what was published, and the names in a directory."""
        await self._writer.sync()
        node = self._tree.node(ino) if in_table(ino) else None
        if isinstance(node, Directory):
            await self._tree.store.sync_directory(node.path)

    async def flush_all(self) -> None:
        """Bring everything that is pending into shards."""
        await self._writer.committer.flush()

    # Inside

    def _begin(
        self, name: ChunkName | DocumentName, base: ChunkHandle | DocumentHandle | None, status: Stat
    ) -> OpenDraft:
        """Begin to write a file."""
        ino = self._tree.inodes.reserve() if base is None else base.attributes.ino
        is_new = base is None
        opened = OpenDraft(name, Draft(self._space), ino, status, base, is_new, self._tree.ttl, is_fresh=is_new)
        if base is None:
            node = (
                ChunkVersion(name.chunks, name.coords)
                if isinstance(name, ChunkName)
                else Document(self._tree, name.path, ino)
            )
            self._tree.inodes.keep(ino, node)
        self._drafts[name] = opened
        return opened

    def _use(self, opened: OpenDraft, ino: int, flags: int) -> DraftHandle:
        opened.users += 1
        self._drafts_by_ino[ino] = opened
        return DraftHandle(ino, opened, appends=bool(flags & os.O_APPEND))

    def _end(self, opened: OpenDraft) -> None:
        """Forget a file that nobody writes any more."""
        if self._drafts.get(opened.name) is opened:
            del self._drafts[opened.name]
        numbers = [ino for ino, other in self._drafts_by_ino.items() if other is opened]
        for ino in numbers:
            del self._drafts_by_ino[ino]
        opened.draft.close()

    def _add_writing(self, handle: PlainHandle) -> int:
        number = self._tree.add_file(handle)
        self._writing[number] = handle
        return number

    def _is_written(self, key: str) -> bool:
        return any(handle.key == key for handle in self._writing.values())

    def _gate_for(self, new_name: bytes) -> AbstractAsyncContextManager[None]:
        """Return what to hold while *new_name* is taken: a document may make an array of the directory."""
        return self._gate.closed() if new_name == DOCUMENT.encode() else self._gate.passing()

    def _detach(self, name: ChunkName | DocumentName) -> None:
        """Let go of the name of an open file: something else has it from now on."""
        opened = self._drafts.pop(name, None)
        if opened is not None:
            opened.is_detached = True

    async def _name_of(self, ino: int) -> ChunkName | DocumentName:
        if not in_table(ino):
            number, _, position = unpack(ino)
            chunks = self._tree.numbers.tree(number)
            if chunks.is_chunk(position):
                return ChunkName(chunks, chunks.coords_at(position))
            raise IsADirectoryHereError("this is a directory of chunks")
        node = self._tree.node(ino)
        if isinstance(node, ChunkVersion):
            return ChunkName(node.chunks, node.coords)
        if isinstance(node, Document) or (isinstance(node, PlainFile) and self._is_document(node)):
            return DocumentName(node.path.rpartition("/")[0])
        raise IsADirectoryHereError("this is no regular file")

    async def _open_to_read(self, ino: int) -> ChunkHandle | DocumentHandle:
        handle = await self._tree.open_file(ino)
        if isinstance(handle, PlainHandle):  # a document that is shown as it is stored
            text = bytes(await handle.read(0, MAX_DOCUMENT_NBYTES + 1))
            return DocumentHandle(handle.attributes, text)
        assert isinstance(handle, ChunkHandle | DocumentHandle)
        return handle

    def _is_document(self, node: PlainFile) -> bool:
        directory, _, name = node.path.rpartition("/")
        return name == DOCUMENT and not self._tree.is_scratch(directory)

    async def _current(self, name: ChunkName | DocumentName) -> ChunkHandle | DocumentHandle | None:
        """Open what *name* stands for, None if it is nothing."""
        try:
            if isinstance(name, ChunkName):
                return await name.chunks.version(name.coords)
            attributes = await self._tree.lookup_document(name.directory)
        except NotFoundError:
            return None
        return await self._open_to_read(attributes.ino) if attributes.ino else None

    async def _exists(self, name: Name) -> bool:
        match name:
            case ChunkName():
                return (await name.chunks.array.find(name.coords, fresh=True))[1] is not None
            case DocumentName():
                return (await self._tree.hierarchy.node(name.directory, fresh=True)).document is not None
            case PlainName():
                try:
                    await self._tree.store.stat(name.path)
                except NotFoundError:
                    return False
                return True
            case ChunkDirectoryName():
                return True

    async def _content(self, name: ChunkName | DocumentName | PlainName) -> tuple[Attributes, Content]:
        """Return attributes and content of the file *name*; raises `NotFoundError`."""
        if isinstance(name, PlainName):
            attributes = await self._tree.stored_attributes(name.path)
            if attributes.status.kind is Kind.DIRECTORY:
                raise IsADirectoryHereError(f"{name.path} is a directory")
            snapshot = await self._tree.store.open(name.path)
            return attributes, snapshot.content(0, snapshot.size)
        handle = await self._current(name)
        if handle is None:
            raise NotFoundError(f"{name.path} does not exist")
        content = handle.extent.content() if isinstance(handle, ChunkHandle) else MemoryContent(memoryview(handle.text))
        return handle.attributes, content

    async def _publish(self, opened: OpenDraft) -> None:
        async def publish(opened: OpenDraft) -> None:
            status, draft = opened.status, opened.draft
            if isinstance(opened.name, ChunkName):
                ino = opened.ino if opened.is_new else self._tree.inodes.reserve()
                mtime_ns = await self._put_chunk(opened.name, draft, status, ino, opened.mtime_ns)
                opened.version, opened.mtime_ns = ino, mtime_ns
            else:
                text = bytes(draft.read(0, draft.nbytes))
                async with self._gate.closed():
                    await self._publisher.publish(opened.name.directory, text, mode=stat.S_IMODE(status.mode))
                if opened.mtime_ns is not None:
                    await self._set_document_time(opened.name, opened.mtime_ns)

        await opened.publish(publish)

    async def _put_chunk(self, name: ChunkName, content: Content, status: Stat, ino: int, mtime_ns: int | None) -> int:
        """Publish *content* as a chunk, as the version *ino*, and return its time: now, unless it brings one."""
        array = (await self._tree.present(name.chunks)).array
        if not array.grid.contains(name.coords):
            raise RefusedError(f"{name.path} lies beyond the shape of its array by now")
        arrangement, shard = array.arrangement, array.arrangement.locate(name.coords).shard
        own, version = arrangement.own.get(name.coords), arrangement.versions.get(shard)
        before = own.mtime_ns if own is not None else version.mtime_ns if version is not None else 0
        now = time.time_ns()
        mtime_ns = mtime_ns if mtime_ns is not None else now if now > before else before + 1
        mode, uid, gid = stat.S_IMODE(status.mode), status.uid, status.gid
        await self._writer.put(array, name.coords, content, mtime_ns=mtime_ns, mode=mode, uid=uid, gid=gid)
        self._writer.source.shards.own(arrangement, shard, name.coords, OwnVersion(ino, mtime_ns))
        return mtime_ns

    async def _put(
        self, name: Name, content: Content, attributes: Attributes, ino: int | None, *, exclusive: bool = False
    ) -> None:
        """Make *content* that of the file *name*, which may be there; *ino* is the number that it brings."""
        status = attributes.status
        mtime_ns = attributes.mtime_ns if attributes.mtime_ns is not None else status.mtime_ns
        match name:
            case ChunkName():
                self._detach(name)
                number = self._tree.inodes.reserve() if ino is None else ino
                await self._put_chunk(name, content, status, number, mtime_ns)
                self._tree.keep_version(number, name.chunks, name.coords)
            case DocumentName():
                self._detach(name)
                text = bytes(content.read(0, min(content.nbytes, MAX_DOCUMENT_NBYTES + 1)))
                mode = stat.S_IMODE(status.mode)
                await self._publisher.publish(name.directory, text, mode=mode, exclusive=exclusive)
                await self._set_document_time(name, mtime_ns)
            case PlainName():
                await self._make_scratch(name)
                copy = join_key(self._copies, secrets.token_hex(8))
                file = await self._tree.store.create(copy, stat.S_IMODE(status.mode), exclusive=True)
                for start in range(0, content.nbytes, _PIECE_NBYTES):
                    await file.write(start, content.read(start, min(_PIECE_NBYTES, content.nbytes - start)))
                file.set_attributes(mtime_ns=mtime_ns, atime_ns=status.atime_ns)
                try:
                    await self._tree.store.rename(copy, name.path, exclusive=exclusive)
                except ShardfsError:
                    await self._tree.store.unlink(copy)
                    raise

    async def _remove(self, name: ChunkName | DocumentName | PlainName) -> None:
        """Remove a file; raises `NotFoundError`."""
        match name:
            case ChunkName():
                if not await self._exists(name):
                    raise NotFoundError(f"{name.path} does not exist")
                await self._writer.erase(name.chunks.array, name.coords, mtime_ns=time.time_ns())
                self._detach(name)
            case DocumentName():
                await self._publisher.remove(name.directory)
                self._detach(name)
            case PlainName():
                await self._tree.store.unlink(name.path)

    async def _create_plain(self, name: PlainName, mode: int, flags: int, owner: Owner) -> PlainHandle:
        await self._make_scratch(name)
        is_new = not await self._exists(name)
        file = await self._tree.store.create(name.path, mode, exclusive=bool(flags & os.O_EXCL))
        if is_new:
            await self._own(name.path, owner)
        elif flags & os.O_TRUNC:
            await file.truncate(0)
        attributes = await self._tree.stored_attributes(name.path)
        self._tree.retain(attributes.ino)
        return PlainHandle(attributes.ino, name.path, file, self._tree.ttl)

    async def _rename_plain(self, old: PlainName, new: PlainName, *, exclusive: bool) -> None:
        store, hierarchy = self._tree.store, self._tree.hierarchy
        await self._make_scratch(new)
        is_directory = (await store.stat(old.path)).kind is Kind.DIRECTORY
        if is_directory:
            await self._writer.committer.flush(below=old.path)
        await store.rename(old.path, new.path, exclusive=exclusive)
        if is_directory:
            hierarchy.abandon(old.path)
            hierarchy.abandon(new.path)
        self._moved(old.path, new.path)
        if not is_directory:
            return
        if not old.is_scratch and not new.is_scratch:
            await self._move_scratch(old.path, new.path)
        await self._move_drafts(old.path, new.path)

    def _moved(self, old: str, new: str) -> None:
        """Follow what was moved in the store from *old* to *new*."""
        self._tree.moved(old, new)
        self._follow(old, new)

    def _staged(self, old: str, new: str) -> None:
        self._follow(old, new)
        if self._tree.is_scratch(new):
            self._tree.moved(old, new)

    def _follow(self, old: str, new: str) -> None:
        """Know files that are written by their new names after *old* was moved to *new*."""
        for handle in self._writing.values():
            if is_below(handle.key, old):
                handle.key = new + handle.key[len(old) :]

    async def _move_scratch(self, old: str, new: str) -> None:
        """Move the names beside chunks along with the directory *old* that they are in."""
        assert self._tree.scratch is not None
        source, target = join_key(self._tree.scratch, old), join_key(self._tree.scratch, new)
        with suppress(NotFoundError, NotADirectoryHereError):
            await self._tree.store.stat(source)
            await self._tree.store.make_directories(target.rpartition("/")[0])
            await self._tree.store.rename(source, target, exclusive=False)
            self._moved(source, target)

    async def _hand_over_plain(self, old: PlainName, new: Name) -> None:
        """Let those who write the file *old*, which became the chunk or document *new*, write that from now on."""
        assert not isinstance(new, PlainName | ChunkDirectoryName)
        writing = [(number, handle) for number, handle in self._writing.items() if handle.key == old.path]
        if not writing:
            return
        base = await self._current(new)
        assert base is not None
        opened = self._begin(new, base, base.attributes.status)
        for number, handle in writing:
            del self._writing[number]
            self._tree.replace_file(number, self._use(opened, handle.ino, 0))

    async def _hand_over_draft(self, opened: OpenDraft, new: Name) -> None:
        """Let those who write *opened*, whose name became *new*, write that from now on."""
        assert not isinstance(new, ChunkDirectoryName)
        if not isinstance(new, PlainName):
            current = await self._current(new)
            assert current is not None
            opened.name, opened.version, opened.is_detached = new, current.attributes.ino, False
            self._drafts[new] = opened
            return
        file = await self._tree.store.open_live(new.path, writable=True)
        for number, handle in self._tree.files():
            if isinstance(handle, DraftHandle) and handle.open_draft is opened:
                self._writing[number] = PlainHandle(handle.ino, new.path, file, self._tree.ttl)
                self._tree.replace_file(number, self._writing[number])
        opened.users = 0
        self._end(opened)

    async def _move_drafts(self, old: str, new: str) -> None:
        """Follow a directory that was moved from *old* to *new*: what is being written below it has other names."""
        for name, opened in list(self._drafts.items()):
            path = name.directory if isinstance(name, DocumentName) else name.chunks.array.arrangement.path
            if not is_below(path, old):
                continue
            path = new + path[len(old) :]
            del self._drafts[name]
            if isinstance(name, DocumentName):
                opened.name = DocumentName(path)
            else:
                chunks = self._tree.chunk_tree(await self._tree.hierarchy.node(path))
                if chunks is None:
                    opened.is_detached = True
                    continue
                opened.name = ChunkName(chunks, name.coords)
            self._drafts[opened.name] = opened

    async def _make_scratch(self, name: PlainName) -> None:
        """Make the directory of a name beside chunks, which is nowhere yet."""
        if name.is_scratch:
            await self._tree.store.make_directories(name.path.rpartition("/")[0])

    async def _remove_scratch(self, directory: str) -> None:
        """Remove the scratch directory of a directory of chunks; raises `NotEmptyError`."""
        assert self._tree.scratch is not None
        with suppress(NotFoundError, NotADirectoryHereError):
            await self._tree.store.rmdir(join_key(self._tree.scratch, directory))

    async def _own(self, path: str, owner: Owner) -> None:
        """Give what is new to who asked for it, where we may."""
        if os.geteuid() == 0 and (owner.uid, owner.gid) != (0, 0):
            await self._tree.store.set_attributes(path, uid=owner.uid, gid=owner.gid)

    async def _set_document_time(self, name: DocumentName, mtime_ns: int) -> None:
        await self._tree.store.set_attributes(name.path, mtime_ns=mtime_ns)
        await self._tree.refresh(name.directory)

    async def _set_chunk_time(self, ino: int, mtime_ns: int) -> None:
        opened = self._drafts_by_ino.get(ino)
        if opened is not None:
            opened.mtime_ns = mtime_ns
            if opened.is_dirty or opened.is_fresh or opened.is_detached:
                return
            ino = opened.version  # what its writer published is what it means
        with suppress(IsADirectoryHereError):  # the directories of chunks have the times that they have
            name = opened.name if opened is not None else await self._name_of(ino)
            assert isinstance(name, ChunkName)
            await name.chunks.version(name.coords, ino)
            array = name.chunks.array
            shard = array.grid.locate(name.coords).shard
            self._writer.source.shards.own(array.arrangement, shard, name.coords, OwnVersion(ino, mtime_ns))
