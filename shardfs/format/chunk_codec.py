"""Inner chunks as plain array bytes, and back: C order, little-endian, no codec.

Source: Zarr core specification 3.1, "Codecs"; specifications of `bytes` and `transpose`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardfs.errors import CorruptionError, MetadataError, NotShownError, RefusedError
from shardfs.format.codecs import (
    Buffer,
    composed_order,
    decode,
    is_decodable,
    is_in_order,
    parse_chain,
    parse_endian,
    permute,
    split_chain,
)
from shardfs.format.data_type import DataType
from shardfs.format.encoding import encode
from shardfs.format.metadata import MAX_LENGTH, Extension, Json, brief

MAX_CHUNK_NBYTES: Final = 512 * 2**20
"""Size of a plain chunk up to which it is decoded; a few times that much memory is needed."""


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
        try:
            codec = _parse(DataType.parse(data_type), chunk_shape, parse_chain(codecs, "codecs"))
        except MetadataError as error:
            raise NotShownError(str(error)) from None
        if codec.nbytes > MAX_LENGTH:
            raise NotShownError(f"chunks of {codec.nbytes} bytes are larger than a file can be")
        if codec.nbytes > MAX_CHUNK_NBYTES and not codec.is_identity:
            raise NotShownError(
                f"chunks of {codec.nbytes} bytes are larger than the {MAX_CHUNK_NBYTES} that are decoded"
            )
        return codec

    @property
    def nbytes(self) -> int:
        """Size of every decoded chunk in bytes: chunks at the edge of an array have their full size."""
        return self.data_type.nbytes * math.prod(self.chunk_shape)

    @property
    def is_identity(self) -> bool:
        """Whether encoded chunks are plain array bytes already."""
        return self._is_laid_out_plainly and not self.after

    @property
    def _is_laid_out_plainly(self) -> bool:
        return self.endian == "little" and is_in_order(self.order, self.chunk_shape)

    def decode(self, encoded: Buffer) -> memoryview:
        """Return the plain bytes of a chunk, exactly `nbytes` of them, which are not to be changed.

        Raises `CorruptionError` if *encoded* does not decode to that size.  Takes no more memory than a few times that.
        """
        data = decode(self.after, encoded, self.nbytes)
        if len(data) != self.nbytes:
            raise CorruptionError(f"the chunk decodes to {len(data)} bytes instead of {self.nbytes}")
        if self._is_laid_out_plainly:
            return memoryview(data).toreadonly()
        inverse = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return self._rearranged(data, permute(self.chunk_shape, self.order), inverse)

    def encode(self, plain: Buffer) -> bytes:
        """Encode a chunk; raises `RefusedError` if *plain* has another size than `nbytes`.

        Raises `MetadataError` if the configuration of a codec has no meaning for an encoder.
        """
        if len(plain) != self.nbytes:
            raise RefusedError(f"the chunk has {len(plain)} bytes instead of {self.nbytes}")
        if self._is_laid_out_plainly:
            return encode(self.after, plain)
        return encode(self.after, self._rearranged(plain, self.chunk_shape, self.order))

    def _rearranged(self, data: Buffer, shape: tuple[int, ...], order: tuple[int, ...]) -> memoryview:
        """Return elements of *shape* with axes moved to *order*, and swapped if those stored are big-endian."""
        dtype = self.data_type.dtype
        # Fields of a struct take no part in the moving, which would copy them one by one.
        elements = np.frombuffer(data, dtype=np.dtype((np.void, dtype.itemsize))).reshape(shape)
        moved = np.array(elements.transpose(order), order="C", copy=True).reshape(-1)
        if self.endian == "big":
            moved.view(dtype).byteswap(inplace=True)
        return moved.view(np.uint8).data.toreadonly()


def _parse(data_type: DataType, chunk_shape: tuple[int, ...], codecs: Sequence[Extension]) -> ChunkCodec:
    for codec in codecs:
        if codec.name not in ("transpose", "bytes") and not is_decodable(codec):
            raise NotShownError(f"the codec {brief(codec.name)} cannot be decoded")
    chain = split_chain(codecs, "codecs")
    order = composed_order(chain.before, len(chunk_shape))
    return ChunkCodec(data_type, chunk_shape, order, _parse_byte_order(chain.serializer, data_type), chain.after)


def _parse_byte_order(codec: Extension, data_type: DataType) -> str:
    """Return the byte order of a `bytes` codec; "little" where it makes no difference, or none is given."""
    codec.expect("endian")
    if not data_type.has_byte_order or "endian" not in codec.configuration:
        return "little"
    endian = parse_endian(codec)
    data_type.check_endian(endian)
    return endian
