"""How the chunks of an array are shown, those included that are not stored and are shown all the same.

These are the fill value again and again, encoded.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import trio

from shardfs.dataset.array import Array
from shardfs.format.codecs import ChunkCodec
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens.v2_attributes import FillValues
from shardfs.stores.base import Buffer, Content


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

    async def chunk(self, *, removed: bool = False) -> FillChunk:
        """Return what a chunk that is not stored is shown as.

        One that a program *removed* means the fill value that it was shown, and becomes a chunk of that.
        """
        element = self._values.shown if removed else self._values.stored
        known = self._chunks.get(element)
        if known is None:
            pattern, fill_codec = element, self._values.codec
            nbytes = self._codec.nbytes if self._codec is not None else 0
            if self._codec is None and fill_codec is not None:
                pattern, nbytes = await trio.to_thread.run_sync(fill_codec.chunk, element)
            known = self._chunks[element] = FillChunk(_Repeated(pattern, nbytes))
        return known


class ChunkView(NamedTuple):
    """How the chunks of *array* are shown: under which names, and decoded by *codec*, or as they are without one.

    *missing* stands for chunks that are not there, where those are shown too.
    """

    array: Array
    key_encoding: ChunkKeyEncoding
    codec: ChunkCodec | None
    missing: Missing | None = None

    @property
    def key(self) -> bytes:
        """What is the same for chunks that lie where these lie, mean what they mean, and show alike."""
        said = (self.array.grid, self.array.layout.key_encoding, self.key_encoding, self.codec is None)
        return blake2b(repr(said).encode() + self.array.fingerprint, digest_size=16).digest()

    @property
    def shown_missing(self) -> Missing | None:
        """What is shown for a chunk that is not there; None if nothing is.

        An array that is made through the mount shows what its writer wrote, who takes it for an error if more is there.
        """
        return self.missing if self.array.layout.directories is None else None

    @property
    def listed_missing(self) -> Missing | None:
        """The same in a listing."""
        missing = self.shown_missing
        return missing if missing is not None and missing.is_listed else None

    def has_chunks_of(self, other: "ChunkView") -> bool:
        """Whether the chunks lie where those of *other* lie, mean what they mean, and show alike."""
        return self is other or (self.array.layout is other.array.layout and self.key == other.key)

    def reads_like(self, other: "ChunkView") -> bool:
        """Whether bytes that were written for a chunk of *other* are what a reader of this one takes them for."""
        here, there = self.array, other.array
        if (here.grid.chunk_shape, here.document["data_type"]) != (there.grid.chunk_shape, there.document["data_type"]):
            return False
        return self.codec is not None or here.codecs == there.codecs
