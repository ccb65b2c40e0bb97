"""Inner chunks as plain array bytes, and back: C order, little-endian, no codec.

Source: Zarr core specification 3.1, "Codecs"; specifications of `bytes` and `transpose`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardfs.format.codecs import Buffer
from shardfs.format.data_type import DataType
from shardfs.format.metadata import Extension, Json


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """The codec chain of chunks of one shape.

    *order* is the transpose before the `bytes` codec, which writes elements *endian*; *after* are the bytes → bytes
    codecs behind it.
    """

    data_type: DataType
    chunk_shape: tuple[int, ...]
    order: tuple[int, ...]
    endian: str
    after: tuple[Extension, ...]

    @classmethod
    def parse(cls, data_type: Json, chunk_shape: tuple[int, ...], codecs: Sequence[Extension]) -> "ChunkCodec":
        """Read the codecs of an inner chunk; raises `NotShownError` with the reason why it cannot be decoded."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Size of every decoded chunk in bytes: chunks at the edge of an array have their full size."""
        raise NotImplementedError

    @property
    def is_identity(self) -> bool:
        """Whether encoded chunks are plain array bytes already."""
        raise NotImplementedError

    def decode(self, encoded: Buffer) -> memoryview:
        """Return the plain bytes of a chunk, exactly `nbytes` of them, which are not to be changed.

        Raises `CorruptionError` if *encoded* does not decode to that size.  Takes no more memory than a few times that.
        """
        raise NotImplementedError

    def encode(self, plain: Buffer) -> bytes:
        """Encode a chunk; raises `RefusedError` if *plain* has another size than `nbytes`."""
        raise NotImplementedError
