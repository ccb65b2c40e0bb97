"""Decoding chunks of Zarr v2 whose filters or compressor only numcodecs has.

A filter reads the output of the previous one as elements of the type that it states. No more is decoded than a chunk
can need. Nothing is unpickled, and only the codecs named here are used.

Sources: Zarr storage specification 2, "Filters"; zarr-python 2.18; numcodecs 0.16.
"""

import bz2
import lzma
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from shardfs.errors import CorruptionError, NotUnshardable, ShardfsError
from shardfs.format.codecs import MAX_CHUNK_NBYTES, Buffer, check_size, decode, decode_members
from shardfs.format.document import Document, Extension, brief
from shardfs.format.dtype import parse_v2_dtype, v2_fields
from shardfs.format.lens.v2_codecs import DTYPE_MEMBERS, codecs_of, get_codec, object_data_type

_NATIVE: Final = frozenset({"gzip", "zstd", "blosc"})
_ZSTD: Final = {"id": "zstd", "level": 0}
_FILTERS: Final = frozenset(
    {"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits", "shuffle"}
    | {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3", "lz4"}
)
"""Codecs of numcodecs whose output is no larger than their data states; for lz4, that is checked here."""
_MAX_ITEM_NBYTES: Final = 16  # of elements between filters: numbers only
_MAX_DICTIONARY_NBYTES: Final = 2**28  # for lzma: four times what its highest preset needs

Codec = dict[str, Any]


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
        compressor = zarray["compressor"]
        return {
            **zarray,
            "dtype": zarray["dtype"] if self.dtype is None else v2_fields(self.dtype.newbyteorder("<")),
            "order": "C",
            "filters": codecs_of(zarray)[:1] if self.dtype is None else None,
            "compressor": compressor if compressor is not None and compressor["id"] in _NATIVE else _ZSTD,
        }

    def __str__(self) -> str:
        return ", ".join(codec["id"] for codec in self.codecs) or "no codec"

    def __call__(self, chunk: Buffer) -> Buffer:
        """Return a decoded chunk; raises `CorruptionError` if it is damaged."""
        count = math.prod(self.chunk_shape)
        nbytes = count * self.dtype.itemsize if self.dtype is not None else None
        limit = MAX_CHUNK_NBYTES if nbytes is None else min(max(nbytes, _MAX_ITEM_NBYTES * count), MAX_CHUNK_NBYTES)
        data = chunk
        for codec in reversed(self.codecs):
            data = _decoded(codec, data, limit + limit // 8 + 4096)
        if self.dtype is None:
            return data
        if len(data) != nbytes:
            raise CorruptionError(f"the chunk decodes to {len(data)} bytes instead of {nbytes}")
        elements = np.frombuffer(data, self.dtype).reshape(self.chunk_shape, order=self.order)
        return elements.astype(self.dtype.newbyteorder("<"), order="C", copy=False).reshape(-1).view(np.uint8).data


def _checked(codec: Codec) -> Codec:
    """Return a codec that can be decoded; raises `NotUnshardable` for any other."""
    name = codec["id"]
    if name not in _NATIVE | _FILTERS | _DECOMPRESSORS.keys():
        raise NotUnshardable(f"the codec {brief(name)} has no Zarr v3 form, and shardfs cannot decode it")
    try:
        dtypes = [parse_v2_dtype(codec[member]) for member in DTYPE_MEMBERS if codec.get(member) is not None]
        is_sound = all(dtype.kind in "biufcmM" and dtype.itemsize <= _MAX_ITEM_NBYTES for dtype in dtypes)
        get_codec(codec)
        if name in _DECOMPRESSORS:
            _DECOMPRESSORS[name](codec)
    except Exception as error:
        raise NotUnshardable(f"the codec {brief(name)} cannot be decoded: {error}") from None
    if not is_sound:
        raise NotUnshardable(f"the codec {brief(name)} cannot be decoded: its elements are no numbers")
    return codec


def _decoded(codec: Codec, data: Buffer, limit: int) -> memoryview:
    """Undo *codec*; raises `CorruptionError`, and `OversizedDataError` beyond *limit* bytes."""
    from numcodecs.compat import ensure_contiguous_ndarray

    name = codec["id"]
    try:
        if name in _NATIVE:
            return memoryview(decode([Extension(name, {})], data, limit))
        if name in _DECOMPRESSORS:
            return memoryview(decode_members(lambda: _DECOMPRESSORS[name](codec), data, limit))
        if name == "lz4":
            check_size(struct.unpack_from("<I", data)[0], limit)
        with np.errstate(all="ignore"):
            decoded = get_codec(codec).decode(data)
    except ShardfsError:
        raise
    except Exception as error:  # as numcodecs has it
        raise CorruptionError(f"{name} data is damaged: {error}") from None
    view: memoryview = ensure_contiguous_ndarray(decoded).reshape(-1).view(np.uint8).data
    check_size(len(view), limit)
    return view


def _new_lzma(codec: Codec) -> lzma.LZMADecompressor:
    kind, filters = codec.get("format", lzma.FORMAT_XZ), codec.get("filters")
    if any(each.get("dict_size", 0) > _MAX_DICTIONARY_NBYTES for each in filters or ()):
        raise ValueError("its dictionary is too large")
    if kind == lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(kind, filters=filters)
    return lzma.LZMADecompressor(kind, _MAX_DICTIONARY_NBYTES)


_DECOMPRESSORS: Final[dict[str, Callable[[Codec], Any]]] = {
    "zlib": lambda codec: zlib.decompressobj(),
    "bz2": lambda codec: bz2.BZ2Decompressor(),
    "lzma": _new_lzma,
}
