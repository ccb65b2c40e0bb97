"""The tree by paths: what other doors than FUSE ask for, each a request or a few of them.

A door translates a protocol into these calls, and knows nothing of inodes, shards, journals or views.
"""

import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from secrets import token_hex
from stat import S_IMODE
from typing import Final, NamedTuple

import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.layout import Pending
from shardfs.errors import (
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    OutsideSourceError,
    ReadOnlyError,
    RefusedError,
    ShardfsError,
    StaleError,
    StoreError,
)
from shardfs.stores.base import Buffer, Content, Kind, in_pieces, join_key
from shardfs.stores.cache import Cache, while_it_changes
from shardfs.stores.parallel import open_nursery
from shardfs.stores.ttl import begin_request
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.direct import DirectChunks
from shardfs.vfs.handles import ABSENT, Attributes, FileHandle, OpenedFile, Owner, PassthroughHandle, cookie_of
from shardfs.vfs.inodes import ROOT, in_table
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.session import Session, WritingSession, open_tree
from shardfs.vfs.versions import Version, Versions
from shardfs.vfs.write_buffer import BufferBytes, Event, WriteBuffer

_MAX_LINKS: Final = 40
_MAX_DIRECTORIES: Final = 4096
_READ_NBYTES: Final = 8 * 2**20
"""How much is read at a time of a file that is read as a whole."""

_PAUSES: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""How many seconds others have, who put something into a directory while it is removed, to see that, and to stop."""


class Listed(NamedTuple):
    """A name in a directory; *size* is that of a file in bytes, None if only looking at the file tells it."""

    name: str
    kind: Kind
    size: int | None


class _Directory(NamedTuple):
    """The number of a directory, and until when that need not be looked up again."""

    ino: int
    until: float


_ROOT: Final = _Directory(ROOT, math.inf)


class Paths:
    """The files of the tree *fs* of a *session*, by paths relative to its root, which is "".

    *problems* are those found when it started.
    A symbolic link is followed within the source. As the kernel does for a mount, it keeps the numbers of
    directories for their TTL, but not across a change that may give a name another meaning.
    All methods raise `NotFoundError` and `NotADirectoryHereError` for names that do not exist, and the errors of the
    tree.
    """

    def __init__(self, session: Session, problems: str | None = None) -> None:
        self.problems = problems
        self.source = session.source
        self.fs = fs = session.fs
        self._session = session
        self._owner = Owner(os.geteuid(), os.getegid()) if self.is_writable else Owner(0, 0)
        self._umask = _umask() if self.is_writable else 0
        self._clock = session.source.hierarchy.clock
        self._directories: Cache[str, _Directory] = Cache(
            lambda _: 0, 0, _MAX_DIRECTORIES, lambda directory: fs.drop_references(directory.ino, 1)
        )
        self._nforgotten = 0
        self._direct = DirectChunks(fs)
        self._depth = 0  # of the directory where a chunk was found last without the event loop
        self._versions = Versions(fs.store)

    @property
    def is_writable(self) -> bool:
        """Whether files may be changed."""
        return self._session.writing is not None

    async def attributes(self, path: str) -> Attributes:
        """Return the attributes of a file or a directory."""
        async with self._at(path) as attributes:
            return attributes

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[FileHandle]:
        """Open a file to read for the length of a block; its attributes and bytes are those of one version."""
        number, handle = await self._open(path)
        try:
            yield handle
        finally:
            await self.fs.close(number)

    async def _open(self, path: str) -> OpenedFile:
        looked_up: list[int] = []
        try:
            opened = await self._find(path, looked_up, opens=True)
        finally:
            self._release(looked_up)
        if isinstance(opened, OpenedFile):
            return opened
        what = "a directory" if opened.status.kind is Kind.DIRECTORY else "not a regular file"
        raise IsADirectoryHereError(f"{path or 'the source'} is {what}")

    async def read(self, path: str, start: int = 0, stop: int | None = None) -> Buffer:
        """Return the bytes of a file from *start* to before *stop*, None being the end; from its end if negative."""
        return await while_it_changes(partial(self._read, path, start, stop))

    def read_known(self, path: str, start: int, stop: int | None, *, waits: bool) -> Buffer | None:
        """Return what `read` does, from any thread and without the event loop; None if that cannot be had.

        It can for a chunk whose shard is open and has not changed, or that the store finds at once, if the array, or a
        directory of its chunks, was looked up not long ago. It *waits* for disks and decoders, or raises
        `WouldWaitError`.
        """
        names, now = path.split("/"), self._clock()
        for depth in (self._depth, *range(len(names))):
            known = self._directories.peek("/".join(names[:depth])) if depth else _ROOT
            read = self._direct.find(known.ino, names[depth:]) if known is not None and known.until > now else None
            if read is not None:
                self._depth = depth  # others will probably be of the same array
                return read(start, stop, waits)
        return None

    async def _read(self, path: str, start: int, stop: int | None) -> Buffer:
        number, handle = await self._open(path)
        try:
            begin, end, _ = slice(start, stop).indices(handle.attributes.size)
            if end - begin <= _READ_NBYTES:  # most files are small, and this is much faster
                data = await handle.read(begin, end - begin) if begin < end else b""
                if len(data) == max(0, end - begin):
                    return data
            return b"".join([piece async for piece in pieces_of(handle, path, start, stop)])
        finally:
            await self.fs.close(number)

    @asynccontextmanager
    async def open_version(self, path: str) -> AsyncIterator[Version]:
        """Open a file as `open` does, with a text that identifies its version in every process."""
        async with self.open(path) as handle:
            yield await self._versions.of(path, handle)

    def identity_of(self, path: str, handle: FileHandle) -> Hashable:
        """Return what tells the version of a chunk that was opened from all others: see `Versions.identity_of`."""
        return self._versions.identity_of(path, handle)

    async def names(self, path: str) -> Sequence[Listed]:
        """Return the names in a directory."""
        async with self.listing(path) as batches:
            return [listed async for batch in batches for listed in batch]

    @asynccontextmanager
    async def listing(self, path: str) -> AsyncIterator[AsyncIterator[list[Listed]]]:
        """List a directory for the length of a block: yields its names in batches, however many there are."""
        async with self._at(path) as attributes:
            if attributes.status.kind is not Kind.DIRECTORY:
                raise NotADirectoryHereError(f"{path} is not a directory")
            number = self.fs.open_directory(attributes.ino)
            try:
                yield self._batches(number)
            finally:
                await self.fs.close_directory(number)

    async def _batches(self, number: int) -> AsyncIterator[list[Listed]]:
        directory = self.fs.open_directories[number]
        await directory.seek(0)
        while (batch := await directory.next_batch()) is not None:
            if not batch.is_counted:
                await trio.lowlevel.checkpoint()  # a row of chunks that are known takes none
            kind = batch.attributes.status.kind
            rows = ((os.fsdecode(name), size) for name, _, size, _ in batch.rows)
            yield [Listed(name, kind, size if batch.has_sizes else None) for name, size in rows]
            if batch.rows:
                await directory.seek(cookie_of(batch.rows[-1]))  # we took all, so nothing is kept

    def new_content(self) -> BufferBytes:
        """Return room for what is to be published: memory if it is little, else a file of the writing mount."""
        return self._writable().fs.buffers.new_content()

    async def publish(self, path: str, data: Buffer | Content, *, exclusive: bool = False) -> None:
        """Make *data* the content of a file, at once and as a whole; missing directories are created.

        When this returns, it survives the end of the process. If *exclusive*, raises `ExistsError` if the file exists.
        Raises `RefusedError` for a document that means nothing.
        """
        fs = self._writable().fs
        directory, _, name = path.rpartition("/")
        with trio.CancelScope(shield=True):
            async with self._at(directory, makes=True) as parent:
                try:
                    stored, mode = await fs.written_in_place(parent.ino, _encoded(name)), 0o666 & ~self._umask
                    if stored is None:
                        flags = os.O_EXCL if exclusive else os.O_TRUNC
                        await self._create(parent.ino, path, data, flags, mode, self._owner)
                    elif stored.ino == ABSENT:
                        await self._replace(parent.ino, path, data, mode, self._owner, exclusive=exclusive)
                    elif exclusive:
                        raise ExistsError(f"{path} exists")
                    else:
                        was = stored.status
                        owner = Owner(was.uid, was.gid)
                        await self._replace(parent.ino, path, data, S_IMODE(was.mode), owner, exclusive=False)
                finally:
                    self._changed_in(parent)

    async def _create(
        self, parent: int, path: str, data: Buffer | Content, flags: int, mode: int, owner: Owner
    ) -> None:
        fs = self._writable().fs
        name = _encoded(path.rpartition("/")[2])
        number, attributes, _ = await fs.create(parent, name, mode, os.O_WRONLY | flags, owner)
        handle = fs.open_files[number]
        try:
            await _write(handle, data, path)
        except BaseException:
            if isinstance(handle, WriteBuffer):  # else what was not written would be published as empty
                fs.buffers.lose_name([handle], Event.DROPPED)
            elif isinstance(handle, PassthroughHandle):
                handle.file.give_up()
            raise
        finally:
            await fs.close(number)
            fs.drop_references(attributes.ino, 1)

    async def _replace(
        self, parent: int, path: str, data: Buffer | Content, mode: int, owner: Owner, *, exclusive: bool
    ) -> None:
        """Store a new file in place of a stored one, or where none is: readers, and who looks after a kill, see one."""
        fs, name, new = self._writable().fs, path.rpartition("/")[2], f".{token_hex(8)}.partial"
        try:
            await self._create(parent, new, data, os.O_EXCL, mode, owner)
            await fs.rename(parent, _encoded(new), parent, _encoded(name), exclusive=exclusive)
        except BaseException:
            with suppress(ShardfsError):
                await fs.unlink(parent, _encoded(new))
            raise

    async def remove(self, path: str) -> None:
        """Remove a file."""
        fs = self._writable().fs
        directory, _, name = path.rpartition("/")
        with trio.CancelScope(shield=True):
            async with self._at(directory) as parent:
                attributes = await fs.lookup(parent.ino, _encoded(name))
                try:
                    if attributes.status.kind is Kind.DIRECTORY:
                        raise IsADirectoryHereError(f"{path} is a directory")
                    await fs.unlink(parent.ino, _encoded(name))
                finally:
                    fs.drop_references(attributes.ino, 1)
                    self._changed_in(parent)

    async def remove_below(self, path: str) -> None:
        """Remove a directory with all that is below it, of the root only what is below it.

        Chunks that others put there meanwhile are removed, too. Raises `NotEmptyError` if they go on with it, or have
        made a node where this removed one.
        """
        documents: set[str] = set()
        for pause in _PAUSES:
            with suppress(NotEmptyError):
                await self._remove_below(path, documents)
                return
            await trio.sleep(pause)
        await self._remove_below(path, documents)

    async def _remove_below(self, path: str, documents: set[str]) -> None:
        """Try that once; *documents* are those that were removed before, and get those that are removed now."""
        fs = self._writable().fs
        for listed in await self.names(path):
            below = join_key(path, listed.name)
            with suppress(NotFoundError, NotADirectoryHereError, IsADirectoryHereError):  # others were faster
                if listed.kind is Kind.DIRECTORY:
                    await self._remove_below(below, documents)
                elif below in documents:
                    raise NotEmptyError(f"{below} was made again by another program")
                else:
                    await self.remove(below)
                    documents |= {below} if fs.is_document(below) else set()
        if path:
            directory, _, name = path.rpartition("/")
            with trio.CancelScope(shield=True):
                async with self._at(directory) as parent:
                    try:
                        await fs.rmdir(parent.ino, _encoded(name))
                    finally:
                        self._forget_directories()

    async def commit(self, path: str) -> None:
        """Commit what was changed at *path*, and below; calls that come together share a commit.

        Raises the error that prevents it.
        """
        await self._writable().fs.commit(path)

    async def flush(self) -> None:
        """Commit what was published, here and by all other sessions; raises the error that prevents it."""
        await self._writable().fs.flush_all()

    def pending(self) -> Pending:
        """Return what was published and is not committed."""
        return self._session.pending()

    @property
    def nothers(self) -> int | None:
        """How many other sessions wrote the source when they were last looked for; None if this one only reads."""
        return self._session.nothers

    def _writable(self) -> WritingSession:
        writing = self._session.writing
        if writing is None:
            raise ReadOnlyError(f"{self.fs.store.url} was opened to be read only; open it with write=True")
        return writing

    @asynccontextmanager
    async def _at(self, path: str, *, makes: bool = False) -> AsyncIterator[Attributes]:
        """Find what is at *path*, and keep its number for the length of the block; *makes*: make directories."""
        looked_up: list[int] = []
        try:
            attributes = await self._find(path, looked_up, makes=makes)
            assert isinstance(attributes, Attributes)
            yield attributes
        finally:
            self._release(looked_up)

    def _release(self, looked_up: Sequence[int]) -> None:
        for ino in looked_up:
            self.fs.drop_references(ino, 1)

    async def _find(
        self, path: str, looked_up: list[int], *, makes: bool = False, opens: bool = False
    ) -> Attributes | OpenedFile:
        """Return what is at *path*, opened if it is a file and *opens*; *makes*: make directories.

        *looked_up* gets the numbers to forget.
        """
        begin_request()
        try:
            return await self._walk(path, looked_up, makes=makes, opens=opens)
        except StaleError:  # as numbers may be that were kept
            self._forget_directories()
            return await self._walk(path, looked_up, makes=makes, opens=opens)

    async def _walk(self, path: str, looked_up: list[int], *, makes: bool, opens: bool) -> Attributes | OpenedFile:
        names = _names(path)
        depth, directory = self._deepest_known(names)
        walked, names = "/".join(names[:depth]), names[depth:][::-1]
        attributes, nlinks, nforgotten = None, 0, self._nforgotten
        while names:
            name, begun = names.pop(), self._clock()
            if opens and not names:
                opened = await self.fs.open_name(directory.ino, _encoded(name))
                if isinstance(opened, OpenedFile):
                    return opened
                attributes = opened
            else:
                attributes = await self._lookup(directory.ino, name, makes)
            if attributes.ino:
                looked_up.append(attributes.ino)
            else:
                raise NotFoundError(f"{path} does not exist")
            match attributes.status.kind:
                case Kind.DIRECTORY:
                    walked = join_key(walked, name)
                    directory = _Directory(attributes.ino, min(directory.until, begun + attributes.ttl))
                    if self._nforgotten == nforgotten:
                        self._keep(walked, directory)
                case Kind.SYMLINK:
                    target = os.fsdecode(await self.fs.ask(attributes.ino, lambda entry: entry.read_link()))
                    nlinks += 1
                    way = _followed(walked, target) if nlinks <= _MAX_LINKS else None
                    if way is None:
                        raise OutsideSourceError(f"{join_key(walked, name)} is a link that leads out of the source")
                    names += way[::-1]
                    attributes, walked, directory = None, "", _ROOT
                case _:
                    walked = join_key(walked, name)
                    if names:
                        raise NotADirectoryHereError(f"{walked} is not a directory")
        return attributes or await self.fs.attributes(ROOT)

    def _deepest_known(self, names: Sequence[str]) -> tuple[int, _Directory]:
        """Return the deepest directory on the way that need not be looked up, and how many of *names* lead to it."""
        now = self._clock()
        for depth in range(len(names) - 1, 0, -1):
            path = "/".join(names[:depth])
            known = self._directories.peek(path)
            if known is not None and known.until > now:
                self._directories.touch(path)
                return depth, known
        return 0, _ROOT

    def _keep(self, path: str, directory: _Directory) -> None:
        if directory.until > self._clock():
            self.fs.retain(directory.ino)
            self._directories.put(path, directory)

    def _changed_in(self, directory: Attributes) -> None:
        """Note that a name in *directory* was changed; one in a directory of chunks gives no other a new meaning."""
        if in_table(directory.ino):
            self._forget_directories()

    def forget(self) -> None:
        """Look at everything again, as another view of the source changed what nodes are."""
        self.fs.hierarchy.forget("")
        self._forget_directories()

    def _forget_directories(self) -> None:
        """Look all names up again."""
        self._nforgotten += 1
        for path in self._directories.known():
            self._directories.forget(path)

    async def _lookup(self, parent: int, name: str, makes: bool) -> Attributes:
        attributes = await self.fs.lookup(parent, _encoded(name))
        if not attributes.ino and makes:
            fs = self._writable().fs
            try:
                attributes = await fs.mkdir(parent, _encoded(name), 0o777 & ~self._umask, self._owner)
            except ShardfsError:  # another call may have made it
                attributes = await self.fs.lookup(parent, _encoded(name))
                if not attributes.ino:
                    raise
        return attributes


async def pieces_of(
    handle: FileHandle, path: str, start: int = 0, stop: int | None = None, nbytes: int = _READ_NBYTES
) -> AsyncGenerator[Buffer, None]:
    """Yield the bytes of the file opened at *path*, up to *nbytes* at a time; the range is that of `read`."""
    begin, end, _ = slice(start, stop).indices(handle.attributes.size)
    while begin < end:
        piece = await handle.read(begin, min(end - begin, nbytes))
        if not len(piece):
            raise StaleError(f"{path} ended early")
        begin += len(piece)
        yield piece


@asynccontextmanager
async def open_paths(
    source: Source, options: TreeOptions, chunk_cache: ChunkCache | None = None, *, door: str | None = None
) -> AsyncIterator[Paths]:
    """Open the tree of *source* for the length of a block, at the end of which all that was published is committed.

    *chunk_cache* may be that of other trees too, and *door* is that of `open_tree`. Raises `SourceError` if there is
    nothing to show, or if it is to be changed and that is not safe; at the end `StoreError`, if something could not be
    committed, here or by another session, and stays in its journal.
    """
    async with open_tree(source, options, chunk_cache, door=door) as session:
        problems = await session.start()
        try:
            async with open_nursery() as nursery:
                nursery.start_soon(session.run)
                yield Paths(session, problems)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                is_committed = await session.finish()
        if not is_committed and session.writing is not None:
            why, where = session.writing.failure, session.writing.state.root
            raise StoreError(
                f"not everything that was written to {source.store.url} could be committed: {why}; it stays in {where} "
                "for the next one who opens it with write=True or mounts it with --write"
            )


async def _write(handle: FileHandle, data: Buffer | Content, path: str) -> None:
    if isinstance(data, bytes | bytearray | memoryview):
        pieces: Iterator[Buffer] = iter([data] if len(data) else [])
    else:
        pieces = (data.read(start, size) for start, size in in_pieces(data.nbytes))
    nbytes = 0
    for piece in pieces:
        await handle.write(nbytes, piece)
        nbytes += len(piece)
    if not nbytes and isinstance(handle, WriteBuffer) and handle.is_still_empty():
        raise RefusedError(f"{path} cannot be empty")
    await handle.flush()


def _names(path: str) -> list[str]:
    names = path.split("/") if path else []
    if any(name in ("", ".", "..") for name in names):
        raise NotFoundError(f"{path} is no path in the source")
    return names


def _followed(directory: str, target: str) -> list[str] | None:
    """Return the names on the way from the root that a link in *directory* means; None if it leaves the source."""
    way = _names(directory)
    if target.startswith("/"):
        return None
    for name in target.split("/"):
        if name == ".." and not way:
            return None
        if name == "..":
            way.pop()
        elif name not in ("", "."):
            way.append(name)
    return way


def _encoded(name: str) -> bytes:
    """Return a name as the tree takes it; raises `RefusedError` for what is none."""
    if name in ("", ".", "..") or "\0" in name:
        raise RefusedError(f"{name!r} is not a name")
    return os.fsencode(name)


def _umask() -> int:
    """Return the umask of this process, which only Linux tells without changing it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return int(re.search(r"^Umask:\s*([0-7]+)", status.read(), re.MULTILINE)[1], 8)  # type: ignore[index]
    except (OSError, TypeError):
        return 0o022
