"""Decoded inner chunks: decoded in threads, each once at a time, and kept as far as there is room."""

from shardfs.dataset.array import Extent
from shardfs.dataset.shards import Arrangement
from shardfs.dataset.statistics import Statistics
from shardfs.format.chunk_codec import ChunkCodec
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer, Content


class DecodedChunks:
    """The decoded chunks of all arrays of a mount; those used last stay, up to *max_nbytes* bytes."""

    def __init__(self, max_nbytes: int, statistics: Statistics) -> None:
        raise NotImplementedError

    async def get(self, array: Arrangement, coords: Coords, extent: Extent, codec: ChunkCodec) -> memoryview:
        """Return the plain bytes of the version *extent* of the chunk at *coords*.

        Tasks that want the same one at the same time wait for one decoding.  Raises `CorruptionError`, naming the chunk,
        if it does not decode.
        """
        raise NotImplementedError

    async def encode(self, codec: ChunkCodec, content: Content) -> Content:
        """Return plain *content* as an encoded chunk; raises `RefusedError` for one of the wrong size."""
        raise NotImplementedError


class PlainChunk:
    """One version of an inner chunk as plain array bytes: what `Extent` is to its encoded ones."""

    def __init__(
        self, chunks: DecodedChunks, array: Arrangement, coords: Coords, extent: Extent, codec: ChunkCodec
    ) -> None:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Size of the plain chunk."""
        raise NotImplementedError

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the plain chunk: fewer at its end, none behind it."""
        raise NotImplementedError

    async def content(self) -> Content:
        """Return the plain bytes as content that can be stored."""
        raise NotImplementedError
