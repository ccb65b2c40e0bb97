"""Open files that are written, and what becomes of them when they are closed or their names are moved."""

import os
import stat
import time
from functools import partial
from typing import Final

from shardfs.dataset.hierarchy import is_below
from shardfs.dataset.writer import Writer
from shardfs.errors import (
    ExistsError,
    IsADirectoryHereError,
    NotFoundError,
    StaleError,
)
from shardfs.stores.base import Buffer
from shardfs.vfs.attributes import Attributes, new_file
from shardfs.vfs.contents import Contents
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import DocumentHandle, FileHandle, PassthroughHandle, PassthroughWriters
from shardfs.vfs.inodes import in_table
from shardfs.vfs.locks import Gate
from shardfs.vfs.names import ChunkDirectoryName, ChunkName, DocumentName, Name, Owner, PlainName, resolve
from shardfs.vfs.nodes import GONE, PassthroughFile, StoredNode
from shardfs.vfs.orphans import OrphanChunks
from shardfs.vfs.publisher import Publisher
from shardfs.vfs.write_buffer import WriteBuffer, WriteBuffers, WriteHandle

_PIECE_NBYTES: Final = 2**20


class OpenFiles:
    """The writing half of open files."""

    def __init__(
        self,
        fs: Filesystem,
        writer: Writer,
        publisher: Publisher,
        contents: Contents,
        drafts: WriteBuffers,
        plain: PassthroughWriters,
        staging: OrphanChunks,
        gate: Gate,
    ) -> None:
        self.drafts = drafts
        self.plain = plain
        self._fs = fs
        self._writer = writer
        self._publisher = publisher
        self._contents = contents
        self._staging = staging
        self._gate = gate

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, owner: Owner
    ) -> tuple[int, Attributes, bool]:
        """Make a file and open it; returns its handle, its attributes, and whether it is read directly."""
        self._writer.check()
        async with self._gate.passing():
            target = await resolve(self._fs, parent, name)
            if isinstance(target, ChunkDirectoryName):
                raise IsADirectoryHereError("this is a directory of chunks")
            if isinstance(target, PlainName):
                plain = await self._create_plain(target, mode, flags, owner)
                # The kernel takes this size even if somebody else wrote to the file before it sees the answer.
                return self._add_writing(plain), plain.attributes._replace(ttl=0.0), False
            # The kernel looked before, and there was nothing; who made it meanwhile made the file that is opened now.
            base = await self._contents.current(target) if self.drafts.get(target) is None else None
            opened = self.drafts.get(target)
            if flags & os.O_EXCL and base is not None and not await self._contents.exists(target):
                base = None  # a chunk that was removed, and went on as one of the fill value
            if flags & os.O_EXCL and (opened is not None or base is not None):
                raise ExistsError(f"{target.path} exists")
            if opened is None or flags & os.O_TRUNC:
                new = new_file(mode, owner.uid, owner.gid)._replace(mtime_ns=time.time_ns())
                status = new if base is None else base.attributes.status
                opened = self.drafts.begin(target, base, status, is_cut=bool(flags & os.O_TRUNC))
                opened.is_exclusive = bool(flags & os.O_EXCL)
            handle = self.drafts.use(opened, opened.ino, flags)
            self._fs.retain(opened.ino)
            return self._fs.add_file(handle), handle.attributes, True

    async def open(self, ino: int, flags: int) -> tuple[int, bool]:
        """Open a file to write; returns its handle, and whether it is read directly."""
        self._writer.check()
        async with self._gate.passing():
            plain = await self._open_plain(ino)
            if plain is not None:
                if flags & os.O_TRUNC:
                    await self._cut(plain)
                return self._add_writing(plain), False
            target = await self._contents.name_of(ino)
            opened, is_cut = self.drafts.get(target), bool(flags & os.O_TRUNC)
            if opened is None or is_cut:
                # What was replaced since the kernel looked is opened as it is now.  The kernel would look only once
                # more, and writers that take turns on one name, with lock files renamed onto it, may be faster.
                nchanges = self._fs.store.nchanges
                base = await self._contents.current(target)
                if base is None and opened is None:
                    raise StaleError(f"{target.path} was removed")
                if base is not None and not is_cut:
                    self._note_shown(ino, base, nchanges)
                shared = None if is_cut else self.drafts.get(target)
                status = base.attributes.status if base is not None else opened.status if opened is not None else None
                assert status is not None
                opened = shared or self.drafts.begin(target, base, status, is_cut=is_cut)
            handle = self.drafts.use(opened, ino, flags)
            return self._fs.add_file(handle), True

    async def open_to_read(self, ino: int) -> tuple[int, FileHandle, bool]:
        """Open a file to read; returns its handle, by number too, and whether that is what took the place of *ino*."""
        nchanges = self._fs.store.nchanges
        try:
            number, handle = await self._gate.settled(partial(self._fs.open, ino))
        except StaleError:
            late = await self._contents.successor(ino)
            opened = self.drafts.of_ino(ino)
            if late is None and opened is not None and not opened.is_detached:
                raise NotFoundError(f"{opened.name.path} is not published yet") from None
            # The kernel does not say whose size it asks for, so all who have one number open must have the same.
            if late is None or any(reader.attributes.size != late.attributes.size for reader in self._fs.readers(ino)):
                raise
            self._note_shown(ino, late, nchanges)
            return self._fs.add_file(late), late, True
        self._note_shown(ino, handle, nchanges)
        return number, handle, False

    async def write(self, number: int, offset: int, data: Buffer) -> int:
        """Write to an open file."""
        handle = self._fs.file(number)
        if isinstance(handle, WriteHandle):
            self._writer.check()
            self._writer.committer.check_room()
            await self._begin_again(handle.open_draft)
            await handle.write(offset, data)
            self._was_written(handle)
            return len(data)
        return await self.plain[number].file.write(offset, data)

    async def flush(self, number: int) -> None:
        """Publish what was written to an open file and is not published yet."""
        handle = self._fs.file(number)
        if isinstance(handle, WriteHandle):
            handle.is_unflushed = False
            if handle.open_draft.is_dirty:
                await self.publish(handle.open_draft)
        elif number in self.plain:
            await self.plain[number].file.flush()

    async def _begin_again(self, opened: WriteBuffer) -> None:
        if opened.is_outdated:
            await opened.begin_again(await self._contents.current(opened.name))

    def _was_written(self, handle: WriteHandle) -> None:
        handle.is_unflushed = True
        self.drafts.was_written(handle.open_draft, handle.ino)

    def says_nothing(self, number: int) -> bool:
        """Whether an open file is a document that began empty and was not written, when it is flushed first.

        It will not be published, which who closes it is to be told.  Who only makes the name, to write later, is not.
        Neither is who closes it after others (then a shell or a parent process, which does not look, has handed it to
        programs that do, and that may write it still), or while others have it open.
        """
        handle = self._fs.file(number)
        if not isinstance(handle, WriteHandle) or not handle.begins_empty:
            return False
        handle.begins_empty = False
        opened = handle.open_draft
        is_fresh = opened.is_fresh and opened.users == 1 and not opened.is_detached
        return is_fresh and isinstance(opened.name, DocumentName)

    async def sync(self, number: int) -> None:
        """Make durable what was written to an open file."""
        handle = self._fs.file(number)
        if isinstance(handle, WriteHandle):
            await self.flush(number)
            await self._writer.sync()
        elif number in self.plain:
            await self.plain[number].file.sync()

    async def close(self, number: int) -> None:
        """Close an open file; one that was made, or cut when it was opened, and not written is published now.

        So is what was written after the descriptor was flushed: by a thread, while another one closed it.
        """
        handle = self._fs.file(number)
        self._fs.close(number)
        plain = self.plain.pop(number, None)
        if plain is not None:
            await plain.file.close()
            if is_below(plain.key, self._staging.directory) and not self.plain.has(plain.key):
                async with self._gate.passing():
                    await self._staging.absorb_file(plain.key)
        elif isinstance(handle, WriteHandle):
            opened = handle.open_draft
            opened.users -= 1
            try:
                if handle.is_unflushed or (opened.is_fresh and not opened.users):
                    await self.publish(opened)
            finally:
                if not opened.users:
                    self.drafts.end(opened)

    async def truncate(self, ino: int, number: int | None, nbytes: int) -> Attributes:
        """Give a file another size: one that is open, or, without the number of a handle, at once.

        Returns its attributes then: a chunk that was cut is another version, and *ino* is out of date.
        """
        self._writer.check()
        if number is not None:
            handle = self._fs.file(number)
            if isinstance(handle, WriteHandle):
                await self._begin_again(handle.open_draft)
                await handle.open_draft.truncate(nbytes)
                self._was_written(handle)
            else:
                await self.plain[number].file.truncate(nbytes)
            return self._fs.file(number).attributes
        number, _ = await self.open(ino, os.O_WRONLY)
        try:
            await self.truncate(ino, number, nbytes)
            await self.flush(number)
            return self._fs.file(number).attributes
        finally:
            await self.close(number)

    async def publish(self, opened: WriteBuffer) -> None:
        """Make what was written the content of the name."""

        async def publish(opened: WriteBuffer) -> None:
            status, draft = opened.status, opened.draft
            if isinstance(opened.name, ChunkName):
                ino = opened.ino if opened.is_new else self._fs.inodes.reserve()
                mtime_ns = await self._contents.put_chunk(opened.name, draft, status, ino, opened.mtime_ns)
                opened.version, opened.mtime_ns = ino, mtime_ns
            else:
                text = bytes(draft.read(0, draft.nbytes))
                exclusive = opened.is_new and opened.is_exclusive
                mode = stat.S_IMODE(status.mode)
                await self._publisher.publish(opened.name, text, mode=mode, exclusive=exclusive)
                if opened.mtime_ns is not None:
                    await self._contents.set_document_time(opened.name, opened.mtime_ns)
            self.drafts.was_published(opened)

        # The gate once, and before the draft's lock: whoever closes it waits for all who passed.
        async with self._gate.passing() if isinstance(opened.name, ChunkName) else self._gate.closed():
            await opened.publish(publish)

    async def hand_over_plain(self, old: PlainName, new: Name) -> None:
        """Let those who write the file *old*, which became the chunk or document *new*, write that from now on."""
        assert not isinstance(new, PlainName | ChunkDirectoryName)
        if not self.plain.has(old.path):
            return
        base = await self._contents.current(new)
        writing = [(number, handle) for number, handle in self.plain.items() if handle.key == old.path]
        if base is None or not writing:
            return  # a document that says nothing is not there: they write a file without a name
        opened = self.drafts.get(new) or self.drafts.begin(new, base, base.attributes.status)
        for number, handle in writing:
            del self.plain[number]
            is_link = isinstance(
                self._fs.node(handle.ino), PassthroughFile
            )  # which goes on being that under another name
            self._fs.replace_file(number, self.drafts.use(opened, opened.ino if is_link else handle.ino, 0))

    async def hand_over_draft(self, opened: WriteBuffer, new: Name) -> None:
        """Let those who write *opened*, whose name became *new*, write that from now on."""
        assert not isinstance(new, ChunkDirectoryName)
        if not isinstance(new, PlainName):
            current = await self._contents.current(new)
            assert current is not None
            opened.version = current.attributes.ino
            self.drafts.rename(opened, new)
            return
        for number, handle in self._fs.files():
            if isinstance(handle, WriteHandle) and handle.open_draft is opened:
                file = await self._fs.store.open_passthrough(new.path, writable=True)
                if opened.is_dirty or opened.is_fresh:  # it was written, or cut, since it was published for the move
                    await file.truncate(0)
                    for start in range(0, opened.draft.nbytes, _PIECE_NBYTES):
                        await file.write(start, opened.draft.read(start, _PIECE_NBYTES))
                    opened.is_dirty = opened.is_fresh = False
                self.plain[number] = PassthroughHandle(handle.ino, new.path, file, self._fs.ttl)
                self._fs.replace_file(number, self.plain[number])
        opened.users = 0
        self.drafts.end(opened)

    async def move_drafts(self, old: str, new: str) -> None:
        """Follow a directory that was moved from *old* to *new*: what is being written below it has other names."""
        for name, opened in self.drafts.items():
            path = name.directory if isinstance(name, DocumentName) else name.chunks.array.layout.path
            if not is_below(path, old):
                continue
            path = new + path[len(old) :]
            if isinstance(name, DocumentName):
                self.drafts.rename(opened, DocumentName(path, name.name))
                continue
            chunks = self._fs.chunk_tree(await self._fs.hierarchy.node(path))
            if chunks is None:
                self.drafts.detach(name)
            else:
                self.drafts.rename(opened, ChunkName(chunks, name.coords))

    async def _open_plain(self, ino: int) -> PassthroughHandle | None:
        """Open a plain file to write, None if *ino* is none; beside chunks one that is gone, too, as anywhere.

        Writers take turns with lock files there, which they rename onto a chunk; who comes late finds out by comparing
        inode numbers.
        """
        node = self._fs.node(ino) if in_table(ino) else None
        if not isinstance(node, PassthroughFile) or self._contents.is_document(node):
            return None
        try:
            return await node.open_passthrough(ino, writable=True)
        except StaleError:
            if node.identity != GONE or not self._fs.is_scratch(node.path):
                raise
        return PassthroughHandle(ino, "", await self._contents.nameless(), self._fs.ttl)

    async def _create_plain(self, name: PlainName, mode: int, flags: int, owner: Owner) -> PassthroughHandle:
        await self._contents.make_scratch(name)
        is_new = not await self._contents.exists(name)
        file = await self._fs.store.create(name.path, mode, exclusive=bool(flags & os.O_EXCL))
        if is_new:
            await self._contents.own(name.path, owner)
        attributes = await self._fs.stored.attributes(name.path)
        handle = PassthroughHandle(attributes.ino, name.path, file, self._fs.ttl)
        if flags & os.O_TRUNC and not is_new:
            await self._cut(handle)
        self._fs.retain(attributes.ino)
        return handle

    async def _cut(self, handle: PassthroughHandle) -> None:
        """Let a file that was opened begin empty; it is closed if that fails."""
        try:
            await handle.file.truncate(0)
        except BaseException:
            await handle.file.close()
            raise

    def _note_shown(self, ino: int, handle: FileHandle, nchanges: int) -> None:
        """Tell the store which version a program reads: what it writes then must not replace another one."""
        node = self._fs.node(ino) if in_table(ino) else None
        if isinstance(node, StoredNode) and isinstance(handle, DocumentHandle | PassthroughHandle):
            self._fs.store.note_shown(node.stored_path, handle.attributes.status, since=nchanges)

    def _add_writing(self, handle: PassthroughHandle) -> int:
        number = self._fs.add_file(handle)
        self.plain[number] = handle
        return number
