"""Decoding chunks of Zarr v2 whose filters or compressor only numcodecs has.

Sources: Zarr storage specification 2, "Filters"; zarr-python 2.18.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from shardfs.errors import CorruptionError, MetadataError, NotUnshardable
from shardfs.format.codecs import MAX_CHUNK_NBYTES, undo
from shardfs.format.document import Document
from shardfs.format.dtype import parse_v2_dtype, reordered_fill, v2_fields
from shardfs.format.lens.v2_codecs import codecs_of, object_data_type
from shardfs.format.members import Buffer
from shardfs.format.numcodec import MAX_ITEM_NBYTES, NATIVE, Codec, check_decodable

_ZSTD: Final = {"id": "zstd", "level": 0}


@dataclass(frozen=True)
class V2Decoder:
    """Decodes chunks of *chunk_shape* that were encoded by *codecs*, in this order.

    Decoded elements are little-endian and in C order. If they vary in size, the result is the output of the first
    filter, which is not among *codecs*; then there is no *dtype*.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    order: Literal["C", "F"]
    codecs: tuple[Codec, ...]

    @classmethod
    def of(cls, zarray: Document) -> "V2Decoder":
        """Return the decoder for the chunks of a checked `.zarray`; raises `NotUnshardable` if there is none."""
        dtype, codecs = parse_v2_dtype(zarray["dtype"]), codecs_of(zarray)
        shape, order = tuple(zarray["chunks"]), zarray["order"]
        if dtype.hasobject:
            object_data_type(codecs)  # or the reason why it is impossible
            if order == "F" and len(shape) > 1:
                raise NotUnshardable("elements that vary in size, in order F, have no Zarr v3 form")
            return cls(shape, None, "C", tuple(_checked(codec) for codec in codecs[1:]))
        if dtype.itemsize * math.prod(shape) > MAX_CHUNK_NBYTES:
            raise NotUnshardable(f"chunks of more than {MAX_CHUNK_NBYTES} bytes are not transcoded")
        return cls(shape, dtype, order, tuple(map(_checked, codecs)))

    def native(self, zarray: Document) -> Document:
        """Return the `.zarray` of the array with decoded elements, and codecs that every library has for v3."""
        compressor, dtype, fill_value = zarray["compressor"], zarray["dtype"], zarray["fill_value"]
        if self.dtype is not None:
            dtype, fill_value = v2_fields(self.dtype.newbyteorder("<")), reordered_fill(self.dtype, fill_value)
        return {
            **zarray,
            "dtype": dtype,
            "fill_value": fill_value,
            "order": "C",
            "filters": codecs_of(zarray)[:1] if self.dtype is None else None,
            "compressor": compressor if compressor is not None and compressor["id"] in NATIVE else _ZSTD,
        }

    def __str__(self) -> str:
        return ", ".join(codec["id"] for codec in self.codecs) or "no codec"

    def __call__(self, chunk: Buffer) -> Buffer:
        """Return a decoded chunk; raises `CorruptionError` if it is damaged."""
        count = math.prod(self.chunk_shape)
        nbytes = count * self.dtype.itemsize if self.dtype is not None else None
        limit = MAX_CHUNK_NBYTES if nbytes is None else min(max(nbytes, MAX_ITEM_NBYTES * count), MAX_CHUNK_NBYTES)
        data = chunk
        for codec in reversed(self.codecs):
            data = undo(codec, data, limit + limit // 8 + 4096)
        if self.dtype is None:
            return data
        if len(data) != nbytes:
            raise CorruptionError(f"the chunk decodes to {len(data)} bytes instead of {nbytes}")
        elements = np.frombuffer(data, self.dtype).reshape(self.chunk_shape, order=self.order)
        return elements.astype(self.dtype.newbyteorder("<"), order="C", copy=False).reshape(-1).view(np.uint8).data


def _checked(codec: Codec) -> Codec:
    """Return a codec that can be decoded; raises `NotUnshardable` for any other."""
    try:
        check_decodable(codec)
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None
    return codec
