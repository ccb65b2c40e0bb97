"""Chunks that are not stored and are shown all the same: the fill value again and again, encoded."""

from dataclasses import dataclass
from typing import Final

import trio

from shardfs.format.codecs import ChunkCodec
from shardfs.format.lens.v2_attributes import FillValues
from shardfs.stores.base import Buffer, Content
from shardfs.stores.memory import MemoryContent

_AT_ONCE_NBYTES: Final = 64 * 2**10  # a smaller chunk is encoded in less time than it takes to hand it to a thread


@dataclass(frozen=True, slots=True)
class _Repeated:
    """*pattern* again and again, *nbytes* bytes of it, in no more memory than is read."""

    pattern: bytes
    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*."""
        first = offset % len(self.pattern)
        count = -(-(first + nbytes) // len(self.pattern))
        return memoryview(self.pattern * count)[first : first + nbytes]


@dataclass(frozen=True, slots=True)
class FillChunk:
    """A chunk of a fill value, which nobody stored: what `Extent` is to stored ones."""

    source: Content

    @property
    def nbytes(self) -> int:
        """Size of the chunk."""
        return self.source.nbytes

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the chunk: fewer at its end, none behind it."""
        nbytes = min(nbytes, self.nbytes - offset)
        return self.source.read(offset, nbytes) if nbytes > 0 else b""

    async def content(self) -> Content:
        """Return the bytes as content that can be stored."""
        return self.source


class Missing:
    """What stands for the missing chunks of an array whose readers would take those for another value.

    Chunks are shown decoded if there is a *codec*.  If they are not *listed*, the array's document was removed,
    and it goes chunk by chunk.
    """

    def __init__(self, values: FillValues, codec: ChunkCodec | None, *, is_listed: bool) -> None:
        self.is_listed = is_listed
        self._values = values
        self._codec = codec
        self._chunks: dict[bytes, FillChunk] = {}

    async def stored(self) -> FillChunk:
        """Return what a chunk that is not stored is shown as."""
        return await self._chunk(self._values.stored)

    async def shown(self) -> FillChunk:
        """Return what a chunk becomes that a program removes, which means the fill value that it was shown."""
        return await self._chunk(self._values.shown)

    async def _chunk(self, element: bytes) -> FillChunk:
        known = self._chunks.get(element)
        if known is None:
            known = self._chunks[element] = FillChunk(await self._encode(element))
        return known

    async def _encode(self, element: bytes) -> Content:
        fill_codec = self._values.codec
        assert fill_codec is not None
        if self._codec is not None:
            return _Repeated(element, self._codec.nbytes)
        pattern = fill_codec.pattern(element)
        if fill_codec.is_repeated:
            return _Repeated(pattern, len(pattern) * fill_codec.count)
        if len(pattern) * fill_codec.count <= _AT_ONCE_NBYTES:
            return MemoryContent(memoryview(fill_codec.encode(element)))
        return MemoryContent(memoryview(await trio.to_thread.run_sync(fill_codec.encode, element)))
