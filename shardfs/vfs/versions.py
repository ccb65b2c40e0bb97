"""Versions of files as doors show them: bytes that are all of one version, and a text that identifies it.

A text is the same for the same content in every process, so it outlives a restart, and a commit, which moves bytes and
changes none. Nobody else knows one that does: inode numbers end with the process, and an append to a shard changes its
size and time, and so everything that a store can say of chunks that stay as they are.
"""

import time
from collections.abc import Hashable
from hashlib import sha256
from typing import Final, NamedTuple

import trio

from shardfs.dataset.array import Extent
from shardfs.dataset.journal.records import Put
from shardfs.errors import StaleError
from shardfs.format.codecs import ChunkCodec
from shardfs.stores.base import PIECE_NBYTES, Buffer, Reader, in_pieces
from shardfs.stores.cache import Cache
from shardfs.vfs.chunk_cache import DecodedChunk, FillChunk
from shardfs.vfs.handles import ChunkHandle, DocumentHandle, FileHandle, PassthroughHandle

MAX_SUMMED_NBYTES: Final = 64 * 2**20
"""The largest chunk that is identified by its content."""

_MAX_KNOWN: Final = 65_536
_AT_ONCE_NBYTES: Final = 64 * 2**10  # summing less is faster than handing it to a thread
_DISTINCT_NS: Final = 2 * 10**9


class Version(NamedTuple):
    """An open file whose bytes are all of one version; *text* identifies it, None if nothing does."""

    handle: FileHandle
    text: str | None


class _Known(NamedTuple):
    codec: ChunkCodec | None
    text: str


class Versions:
    """Identifies versions of the files of a tree over *store*; the texts of the chunks used last are kept.

    - A chunk and a document are identified by their content. Of a chunk with more than `MAX_SUMMED_NBYTES`, the offset
      in its shard and the version of that count; one that is decoded, or not committed yet, has no version.
    - A stored file that is shown as it is has the version that the store gives it. On a local disk, that is size and
      time, which tell nothing of a file that has just been written, so a small one is identified by its content.
    - An .npy file is put together from chunks that change apart, and has none.
    """

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._known: Cache[Hashable, _Known] = Cache(lambda _: 0, 0, _MAX_KNOWN)

    async def of(self, path: str, handle: FileHandle) -> Version:
        """Return the version of the file at *path* that *handle* reads; raises `StaleError` if it has just changed."""
        match handle:
            case ChunkHandle():
                return Version(handle, await self._of_chunk(path, handle))
            case DocumentHandle():
                return Version(handle, await _sum(handle))
            case PassthroughHandle():
                return await self._of_file(handle)
        return Version(handle, None)

    def identity_of(self, path: str, handle: FileHandle) -> Hashable:
        """Return what tells the version of the chunk at *path* from all others, of which no byte is read for that.

        It changes more often than the version: with its shard. None if nothing tells: the chunk is not committed yet,
        or its shard has just been written.
        """
        extent = _encoded(handle.extent) if isinstance(handle, ChunkHandle) else None
        if not isinstance(extent, Extent) or isinstance(extent.source, Put):
            return None
        if not self._is_distinct(extent.source.snapshot.stat.mtime_ns):
            return None
        return _identity(path, extent)

    def _is_distinct(self, mtime_ns: int) -> bool:
        """Whether what was written at that time has another time if it is written again."""
        return self._store.root is None or mtime_ns + _DISTINCT_NS < time.time_ns()

    async def _of_chunk(self, path: str, handle: ChunkHandle) -> str | None:
        shown = handle.extent
        extent, codec = _encoded(shown), shown.codec if isinstance(shown, DecodedChunk) else None
        if not isinstance(extent, Extent):
            return await _sum(handle)
        key = _identity(path, extent)
        known = self._known.peek(key)
        if known is not None and (known.codec is codec or known.codec == codec):
            self._known.touch(key)
            handle.pin()
            return known.text
        if shown.nbytes > MAX_SUMMED_NBYTES:
            handle.pin()
            return None if codec is not None or isinstance(extent.source, Put) else text_of(key)
        text = await _sum(handle)
        if handle.extent is shown:  # else it was replaced before its first byte was read
            self._known.put(key, _Known(codec, text))
        return text

    async def _of_file(self, handle: PassthroughHandle) -> Version:
        pinned = PinnedFile(handle)
        size = handle.attributes.size
        if self._store.root is not None and size <= PIECE_NBYTES:
            content = bytes(await pinned.read(0, size + 1))
            if len(content) != size:
                raise StaleError("a file changed while it was read")
            document = DocumentHandle(handle.attributes, content)
            return Version(document, await _sum(document))
        return Version(pinned, text_of(pinned.version) if self._is_distinct(pinned.mtime_ns) else None)


class PinnedFile(FileHandle):
    """An open stored file, of which no byte is returned once another program has changed it."""

    def __init__(self, handle: PassthroughHandle) -> None:
        self._file = handle
        status = handle.file.stat()
        self.mtime_ns = status.mtime_ns
        self.version = self._present()
        super().__init__(handle.attributes)

    def _present(self) -> Hashable:
        """Return what tells versions of the file apart, which its name and its permissions do not."""
        status = self._file.file.stat()
        file = status.file
        return (file[1], status.size, status.mtime_ns) if file is not None else status.version

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return bytes of the version that was opened; raises `StaleError` if they may be of another."""
        data = await self._file.read(offset, nbytes)
        if self._present() != self.version:
            raise StaleError("a file was changed while it was read")
        return data


def _encoded(shown: Extent | DecodedChunk | FillChunk) -> Extent | FillChunk:
    return shown.extent if isinstance(shown, DecodedChunk) else shown


def _identity(path: str, extent: Extent) -> tuple[Hashable, ...]:
    """Return what identifies the bytes of a version of the chunk at *path*, for as long as this process lives."""
    shard = extent.source
    if isinstance(shard, Put):
        return path, "pending", shard.sequence
    return path, shard.snapshot.stat.version, shard.offset + extent.offset, extent.nbytes


async def _sum(handle: FileHandle) -> str:
    """Return the text for the content of a file, all of which is read; a chunk is then pinned."""
    summed = sha256()
    for offset, nbytes in in_pieces(handle.attributes.size):
        data = await handle.read(offset, nbytes)
        if len(data) < nbytes:
            raise StaleError("a file ended early")
        if nbytes <= _AT_ONCE_NBYTES:
            summed.update(data)
        else:
            await trio.to_thread.run_sync(summed.update, data)
    return text_of_sum(summed.digest())


def text_of_sum(digest: bytes) -> str:
    """Return the text for content with this sha256."""
    return digest[:16].hex()


def text_of(version: Hashable) -> str:
    """Return the text for what tells a version from all others, in every process."""
    return text_of_sum(sha256(repr(version).encode(errors="surrogateescape")).digest())
