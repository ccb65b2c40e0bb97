"""Changes to the names and attributes of a tree: what each of these requests does."""

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TypeVar

from shardfs.dataset.hierarchy import DOCUMENT
from shardfs.dataset.layout import OwnVersion
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
    StaleError,
    UnsupportedError,
)
from shardfs.stores.base import Kind, join_key
from shardfs.vfs.attributes import ABSENT, Attributes
from shardfs.vfs.contents import Contents
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import PassthroughHandle
from shardfs.vfs.inodes import in_table
from shardfs.vfs.locks import Gate
from shardfs.vfs.names import (
    ChunkDirectoryName,
    ChunkName,
    DocumentName,
    Name,
    Owner,
    PlainName,
    resolve,
    resolve_published,
)
from shardfs.vfs.nodes import Directory, Document, PassthroughFile, StoredNode
from shardfs.vfs.open_files import OpenFiles
from shardfs.vfs.publisher import Publisher

T = TypeVar("T")


class Editor:
    """The names of a tree: made, moved and removed; and attributes."""

    def __init__(
        self, fs: Filesystem, writer: Writer, publisher: Publisher, contents: Contents, files: OpenFiles, gate: Gate
    ) -> None:
        self._fs = fs
        self._writer = writer
        self._publisher = publisher
        self._contents = contents
        self._files = files
        self._drafts = files.drafts
        self._gate = gate

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of *name* in the directory *parent*; number 0 stands for no such name.

        While a document makes an array of a directory, files in it are on their way from one place to another.
        """
        turns, nchanges = self._gate.turns, self._fs.store.nchanges
        attributes = await self._fs.lookup(parent, name)
        if attributes.ino == ABSENT and self._gate.has_turned(turns):
            async with self._gate.passing():
                attributes = await self._fs.lookup(parent, name)
        if attributes.ino == ABSENT and self._drafts:
            published = await resolve_published(self._fs, parent, name)
            opened = self._drafts.unpublished(published) if published is not None else None
            if opened is not None:
                self._fs.retain(opened.ino)
                return opened.attributes(opened.ino)._replace(ttl=0.0)
        if attributes.ino == ABSENT and self._fs.store.root is None:
            self._note_absent(parent, os.fsdecode(name), nchanges)
        return attributes

    async def settled(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what *look* finds, again if it found nothing while a document made an array of a directory."""
        return await self._gate.settled(look)

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        self._writer.check()
        async with self._gate.passing():
            target = await resolve(self._fs, parent, name)
            if isinstance(target, ChunkDirectoryName):
                raise IsADirectoryHereError("this is a directory of chunks")
            await self._contents.remove(target)
            if isinstance(target, PlainName):
                self._files.plain.let_go(target.path, self._fs.name_of)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, *, exclusive: bool) -> None:
        """Move a file or a directory, in place of what the new name stands for, or if *exclusive* only if nothing."""
        self._writer.check()
        while True:
            turns = self._gate.turns
            moving, alone = await self._gate.settled(partial(self._moving, parent, name))
            for opened in self._drafts.all_of(moving) if isinstance(moving, ChunkName | DocumentName) else ():
                if opened.is_dirty or opened.is_new:
                    await self._files.publish(opened)
            async with self._gate_for(new_name, alone=alone):
                if alone or not self._gate.has_turned(turns) or not (await self._moving(parent, name))[1]:
                    old, new = await resolve(self._fs, parent, name), await resolve(self._fs, new_parent, new_name)
                    await self._rename(old, new, exclusive=exclusive)
                    return

    async def link(self, ino: int, new_parent: int, new_name: bytes) -> Attributes:
        """Give a file a second name; that of a chunk or a document is a copy."""
        self._writer.check()
        async with self._gate_for(new_name):
            node = self._fs.node(ino) if in_table(ino) else None
            is_document = isinstance(node, Document) or (
                isinstance(node, PassthroughFile) and self._contents.is_document(node)
            )
            if not isinstance(node, StoredNode) or isinstance(node, Directory) or is_document:
                raise NotPermittedError("only files that are neither chunks nor documents can have a second name")
            new = await resolve(self._fs, new_parent, new_name)
            if isinstance(new, PlainName):
                await self._contents.make_scratch(new)
                await self._fs.store.link(node.path, new.path)
            elif isinstance(new, ChunkDirectoryName) or await self._contents.exists(new):
                raise ExistsError("the name exists")
            else:
                attributes, content = await self._contents.content_of(PlainName(node.path))
                await self._contents.put(new, content, attributes, None, exclusive=True)
            made = await self._fs.lookup(new_parent, new_name)
            if made.ino != ABSENT:
                return made
            # A document that says nothing is not there, which the kernel finds out when it looks next.
            self._fs.retain(ino)
            return (await self._fs.attributes(ino))._replace(ttl=0.0)

    async def symlink(self, parent: int, name: bytes, target: bytes) -> Attributes:
        """Make a symbolic link."""
        self._writer.check()
        async with self._gate.passing():
            new = await resolve(self._fs, parent, name)
            if not isinstance(new, PlainName):
                raise NotPermittedError("chunks and documents cannot be symbolic links")
            await self._contents.make_scratch(new)
            await self._fs.store.symlink(new.path, target)
            return await self._fs.lookup(parent, name)

    async def mkdir(self, parent: int, name: bytes, mode: int, owner: Owner) -> Attributes:
        """Make a directory; those of chunks are there already."""
        self._writer.check()
        async with self._gate.passing():
            new = await resolve(self._fs, parent, name)
            if isinstance(new, ChunkDirectoryName):
                layout = new.chunks.array.layout
                if layout.has_directory(new.coords):
                    raise ExistsError("the directory exists")
                layout.make_directory(new.coords)
                return await self._fs.lookup(parent, name)
            if isinstance(new, ChunkName):
                raise RefusedError(f"{new.path} is the name of a chunk, which is no directory")
            if isinstance(new, DocumentName):
                node = await self._fs.hierarchy.node(new.directory)
                if self._fs.view.hides(node, new.name):
                    raise NotPermittedError(f"{new.path} is the name of a document, and cannot be a directory")
            else:
                await self._contents.make_scratch(new)
            await self._fs.store.mkdir(new.path, mode)
            await self._contents.own(new.path, owner)
            self._fs.hierarchy.forget(new.path)
            return await self._fs.lookup(parent, name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory; of chunks, it goes as far as it is stored."""
        self._writer.check()
        async with self._gate.passing():
            target = await resolve(self._fs, parent, name)
            store = self._fs.store
            if isinstance(target, ChunkName):
                raise NotADirectoryHereError("a chunk is no directory")
            if isinstance(target, ChunkDirectoryName):
                chunks = target.chunks
                if not await chunks.is_empty(target.coords):
                    raise NotEmptyError("there are chunks in the directory")
                await self._contents.require_no_scratch(chunks, target.coords)
                await self._contents.remove_scratch(chunks.directory_of(target.coords))
                chunks.array.layout.remove_directory(target.coords)
                chunks.removed(target.coords)
                if not target.coords and chunks.root:
                    node = await self._fs.hierarchy.node(chunks.array.layout.path)
                    await self._publisher.prune(node)
                    if node.document is None:  # nothing is left of the array
                        self._fs.hierarchy.abandon(node.path)
                return
            node = await self._fs.hierarchy.node(target.path)
            emptied = self._fs.chunk_tree(node)
            if emptied is not None:
                if node.document is not None or not await emptied.is_empty():
                    raise NotEmptyError(f"{target.path} is not empty")
                await self._contents.require_no_scratch_in_array(emptied)
                await self._publisher.prune(node)
            await store.rmdir(target.path)
            self._fs.removed(target.path)
            await self._contents.remove_scratch(target.path)
            self._fs.hierarchy.abandon(target.path)

    async def attributes(self, ino: int) -> Attributes:
        """Return the attributes of *ino*, of what is being written as its writers see it, if nobody reads it.

        The kernel does not say whose handle it asks for.
        """
        opened = self._drafts.of_ino(ino)
        if opened is not None and (opened.is_dirty or opened.is_fresh) and not self._fs.readers(ino):
            return opened.attributes(ino)
        try:
            return await self._gate.settled(partial(self._fs.attributes, ino))
        except StaleError:
            late = await self._contents.successor(ino)
            if late is None:
                raise
            return late.attributes

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
        changes = {"mode": mode, "uid": uid, "gid": gid, "atime_ns": atime_ns, "mtime_ns": mtime_ns}
        await self._gate.settled(partial(self._set_attributes, ino, changes))

    async def _set_attributes(self, ino: int, changes: Mapping[str, int | None]) -> None:
        mtime_ns = changes["mtime_ns"]
        node = self._fs.node(ino) if in_table(ino) else None
        if not isinstance(node, StoredNode):
            if mtime_ns is not None:
                await self._set_chunk_time(ino, mtime_ns)
            return
        opened = self._drafts.of_ino(ino)
        if opened is not None and opened.is_new:  # a document that is not stored yet
            opened.mtime_ns = mtime_ns if mtime_ns is not None else opened.mtime_ns
            return
        try:
            if opened is None and not isinstance(node, Document):
                await node.attributes(ino)  # raises, if another file has the name
            await self._fs.store.set_attributes(node.stored_path, **changes)
        except (NotFoundError, StaleError):
            for _, handle in self._fs.files():
                if isinstance(handle, PassthroughHandle) and handle.ino == ino:
                    handle.file.set_attributes(**changes)
                    return
            raise
        if opened is not None and mtime_ns is not None:
            opened.mtime_ns = mtime_ns
        if isinstance(node, Document):
            if mtime_ns is not None:
                self._fs.texts.set_time(node.path, mtime_ns)
            await self._fs.follow_document(node)
        elif isinstance(node, Directory):
            self._fs.hierarchy.forget(node.path)

    async def set_attribute(self, ino: int, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it if *value* is None; chunks have none but those that are computed."""
        self._writer.check()
        await self._gate.settled(partial(self._set_attribute, ino, name, value))

    async def _set_attribute(self, ino: int, name: bytes, value: bytes | None) -> None:
        node = self._fs.node(ino) if in_table(ino) else None
        if not isinstance(node, StoredNode):
            raise UnsupportedError("chunks have no extended attributes of their own")
        if value is None:
            await self._fs.store.remove_attribute(node.stored_path, name)
        else:
            await self._fs.store.set_attribute(node.stored_path, name, value)
        if isinstance(node, Document):
            await self._fs.follow_document(node)

    async def sync_directory(self, ino: int) -> None:
        """Make durable what was published, and the names in a directory."""
        await self._writer.sync()
        node = self._fs.node(ino) if in_table(ino) else None
        if isinstance(node, Directory):
            await self._fs.store.sync_directory(node.path)

    async def flush_all(self) -> None:
        """Bring everything that is pending into shards, and to the store."""
        await self._writer.committer.flush()
        await self._fs.store.flush()

    def _note_absent(self, parent: int, name: str, nchanges: int) -> None:
        """Tell the store that a program was told that there is no *name*: what it makes must not replace another's."""
        node = self._fs.node(parent) if in_table(parent) else None
        if not isinstance(node, Directory):
            return
        names = {name}
        if name in self._fs.view.document_names:
            known = self._fs.hierarchy.last_seen(node.path)
            if known is not None and known.document is not None:
                return  # there is one, which has no such part
            names.add(DOCUMENT)
        for absent in names:
            self._fs.store.note_shown(join_key(node.path, absent), None, since=nchanges)

    async def _moving(self, parent: int, name: bytes) -> tuple[Name, bool]:
        """Return what is to be moved, and whether that takes the gate closed.

        Nothing is published below a directory that moves, or under the name of a chunk between its move and its end.
        """
        moving = await resolve(self._fs, parent, name)
        return moving, not isinstance(moving, PlainName) or await self._is_directory(moving)

    async def _rename(self, old: Name, new: Name, *, exclusive: bool) -> None:
        if old == new:
            return
        if isinstance(old, ChunkDirectoryName) or isinstance(new, ChunkDirectoryName):
            raise CrossDeviceError("directories of chunks are not moved as a whole")
        if isinstance(old, PlainName) and isinstance(new, PlainName):
            await self._rename_plain(old, new, exclusive=exclusive)
            return
        written = [] if isinstance(old, PlainName) else self._drafts.all_of(old)
        attributes, content = await self._contents.content_of(old)
        if exclusive and await self._contents.exists(new):
            raise ExistsError(f"{new.path} exists")
        has_one_name = isinstance(old, PlainName) and attributes.status.nlink == 1
        await self._contents.put(new, content, attributes, attributes.ino if has_one_name else None)
        await self._contents.remove(old)
        if isinstance(old, PlainName):
            await self._files.hand_over_plain(old, new)
        for opened in written:
            await self._files.hand_over_draft(opened, new)

    def _gate_for(self, new_name: bytes, *, alone: bool = False) -> AbstractAsyncContextManager[None]:
        """Return what to hold while *new_name* is taken: a document may make an array of the directory."""
        is_document = os.fsdecode(new_name) in self._fs.view.document_names
        return self._gate.closed() if alone or is_document else self._gate.passing()

    async def _is_directory(self, name: PlainName) -> bool:
        """Whether *name* stands for a directory that may be or hold arrays."""
        return not name.is_scratch and (await self._fs.store.stat(name.path)).kind is Kind.DIRECTORY

    async def _rename_plain(self, old: PlainName, new: PlainName, *, exclusive: bool) -> None:
        store, hierarchy = self._fs.store, self._fs.hierarchy
        await self._contents.make_scratch(new)
        is_directory = (await store.stat(old.path)).kind is Kind.DIRECTORY
        if is_directory:
            await self._writer.committer.flush(below=old.path)
        await store.rename(old.path, new.path, exclusive=exclusive)
        if is_directory:
            hierarchy.moved(old.path, new.path)
        self._moved(old.path, new.path, is_directory=is_directory)
        if not is_directory:
            return
        if not old.is_scratch and not new.is_scratch:
            await self._move_scratch(old.path, new.path)
        await self._files.move_drafts(old.path, new.path)

    def _moved(self, old: str, new: str, *, is_directory: bool) -> None:
        """Follow what was moved in the store from *old* to *new*."""
        ino = self._fs.inodes.find(old)
        if not is_directory and ino is not None and self._fs.inodes.find(new) == ino:
            return  # two names of one file, which stay
        self._fs.moved(old, new, is_directory=is_directory)
        self._files.plain.follow(old, new, self._fs.name_of)

    async def _move_scratch(self, old: str, new: str) -> None:
        """Move the names beside chunks along with the directory *old* that they are in."""
        assert self._fs.scratch is not None
        source, target = join_key(self._fs.scratch, old), join_key(self._fs.scratch, new)
        with suppress(NotFoundError, NotADirectoryHereError):
            await self._fs.store.stat(source)
            await self._fs.store.make_directories(target.rpartition("/")[0])
            await self._fs.store.rename(source, target, exclusive=False)
            self._moved(source, target, is_directory=True)

    async def _set_chunk_time(self, ino: int, mtime_ns: int) -> None:
        opened = self._drafts.of_ino(ino)
        if opened is not None:
            opened.mtime_ns = mtime_ns
            if opened.is_dirty or opened.is_fresh or opened.is_detached:
                return
            ino = opened.version  # what its writer published is what it means
        with suppress(IsADirectoryHereError):  # the directories of chunks have the times that they have
            name = opened.name if opened is not None else await self._contents.name_of(ino)
            assert isinstance(name, ChunkName)
            await name.chunks.version(name.coords, ino)
            array = name.chunks.array
            shard = array.grid.locate(name.coords).shard
            self._writer.source.shards.own(array.layout, shard, name.coords, OwnVersion(ino, mtime_ns))
