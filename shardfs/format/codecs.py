"""Codec chains: which codecs stand where, and decoding of the bytes → bytes ones.

Decoding never produces more than a limit that the caller knows, so a decompression bomb costs no memory.

Source: Zarr core specification 3.1, "Codecs", and the specifications of `bytes`, `transpose`, `gzip`, `zstd`, `blosc`
and `crc32c`.
"""

import math
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numcodecs import blosc
from numcodecs.checksum32 import CRC32C
from numcodecs.zstd import decompress as zstd_into

from shardfs.errors import CorruptionError, MetadataError, NotShownError, OversizedDataError
from shardfs.format.data_type import DataType
from shardfs.format.metadata import Extension, Json, brief, parse_lengths

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Buffer = bytes | bytearray | memoryview
Decoder = Callable[[Buffer, int], Buffer]

SHARDING: Final = "sharding_indexed"
CRC32C_NBYTES: Final = 4
_MAX_MEMBERS: Final = 1024  # as each begins with a piece that may be for those behind it
_PIECE_NBYTES: Final = 2**20

_ARRAY_TO_ARRAY: Final = frozenset({"transpose"})
_ARRAY_TO_BYTES: Final = frozenset(
    {"bytes", "endian", SHARDING, "vlen-utf8", "vlen-bytes", "packbits", "zfp", "pcodec"}
)
_BYTES_TO_BYTES: Final = frozenset({"gzip", "zstd", "blosc", "crc32c"})


@dataclass(frozen=True, slots=True)
class CodecChain:
    """A list of codecs around one whose name is known: array → array, array → bytes, bytes → bytes."""

    before: tuple[Extension, ...]
    serializer: Extension
    after: tuple[Extension, ...]


def parse_chain(codecs: Sequence[Extension], where: str) -> tuple[Extension, ...]:
    """Return *codecs* without those that may be ignored, under their current names.

    Among the codecs that shardfs knows, exactly one must be array → bytes (none is accepted where an unknown codec may
    be the one), and the three kinds must follow each other.
    """
    known = _ARRAY_TO_ARRAY | _ARRAY_TO_BYTES | _BYTES_TO_BYTES
    chain = tuple(
        Extension("bytes", codec.configuration) if codec.name == "endian" else codec
        for codec in codecs
        if codec.must_understand or codec.name in known
    )
    serializers = [i for i, codec in enumerate(chain) if codec.name in _ARRAY_TO_BYTES]
    if len(serializers) > 1:
        raise MetadataError(f"{where} has {len(serializers)} array → bytes codecs")
    if not serializers:
        if all(codec.name in known for codec in chain):
            raise MetadataError(f"{where} has no array → bytes codec")
        return chain
    misplaced = [codec.name for codec in chain[: serializers[0]] if codec.name in _BYTES_TO_BYTES]
    misplaced += [codec.name for codec in chain[serializers[0] + 1 :] if codec.name in _ARRAY_TO_ARRAY]
    if misplaced:
        raise MetadataError(f"{where} has {', '.join(misplaced)} on the wrong side of {chain[serializers[0]].name}")
    return chain


def split_chain(chain: Sequence[Extension], where: str) -> CodecChain:
    """Split a chain, as `parse_chain` returns it, around its array → bytes codec, which must be a known one."""
    for i, codec in enumerate(chain):
        if codec.name in _ARRAY_TO_BYTES:
            return CodecChain(tuple(chain[:i]), codec, tuple(chain[i + 1 :]))
    raise MetadataError(f"{where} has no known array → bytes codec")


def parse_transpose(codec: Extension, ndim: int) -> tuple[int, ...]:
    """Return the `order` of a transpose codec on an array with *ndim* axes."""
    codec.expect("order")
    order = parse_lengths(codec.configuration.get("order"), "the order of a transpose", minimum=0, ndim=ndim)
    if sorted(order) != list(range(ndim)):
        raise MetadataError(f"the order {list(order)} of a transpose is no permutation of {ndim} axes")
    return order


def compose(first: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order of one transpose that does what transposing by *first* and *then* does."""
    return tuple(first[axis] for axis in then)


def composed_order(codecs: Iterable[Extension], ndim: int) -> tuple[int, ...]:
    """Return the order of one transpose that does what *codecs* do, all of them transposes, to *ndim* axes."""
    order = tuple(range(ndim))
    for codec in codecs:
        order = compose(order, parse_transpose(codec, ndim))
    return order


def permute(values: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return *values* of the axes before a transpose, as those of the axes after it."""
    return tuple(values[axis] for axis in order)


def is_in_order(order: Sequence[int], chunk_shape: Sequence[int]) -> bool:
    """Whether moving axes into *order* moves no element: all that change places have the length 1."""
    axes = [axis for axis in order if chunk_shape[axis] > 1]
    return axes == sorted(axes)


def parse_endian(codec: Extension) -> str:
    """Return "little" or "big", the byte order of a `bytes` codec for elements of more than one byte."""
    codec.expect("endian")
    endian = codec.configuration.get("endian")
    if endian not in ("little", "big"):
        raise MetadataError(f'the endian of bytes must be "little" or "big", not {brief(endian)}')
    return str(endian)


def is_decodable(codec: Extension) -> bool:
    """Whether *codec* is a bytes → bytes codec that shardfs can undo."""
    return codec.name in _DECODERS


def decode(codecs: Sequence[Extension], data: Buffer, limit: int) -> Buffer:
    """Undo bytes → bytes *codecs*, all decodable, in reverse order.

    Raises `CorruptionError` if *data* does not decode, `OversizedDataError` if it grows beyond *limit* bytes.
    """
    for codec in reversed(codecs):
        # A stage may be larger than what it decodes to, by headers and checksums only.
        data = _DECODERS[codec.name](data, limit + limit // 8 + 4096)
    if len(data) > limit:
        raise OversizedDataError(f"the data decodes to {len(data)} bytes, more than {limit}")
    return data


def item_nbytes(data_type: Json) -> int | None:
    """Return the size of an element in bytes; None where it varies or the type is not known."""
    try:
        return DataType.parse(data_type).nbytes
    except (MetadataError, NotShownError):
        return None


def chunk_nbytes(data_type: Json, chunk_shape: tuple[int, ...]) -> int | None:
    """Return the size of a chunk of *chunk_shape* as plain array bytes; None where it is not known."""
    nbytes = item_nbytes(data_type)
    return None if nbytes is None else nbytes * math.prod(chunk_shape)


class _Decompressor(Protocol):
    """One gzip member or zstd frame, on the terms of the standard library's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


class _GzipMember:
    """`zlib.decompressobj` on these terms: it hands back input that it had no room to decode."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: Buffer, max_length: int) -> bytes:
        return self._member.decompress(data or self._member.unconsumed_tail, max_length)


def _decode_gzip(data: Buffer, limit: int) -> Buffer:
    return _decode_members("gzip", _GzipMember, data, limit)


def _decode_zstd(data: Buffer, limit: int) -> Buffer:
    size = _size_of_frame(data)
    if not size:
        return _decode_members("zstd", zstd.ZstdDecompressor, data, limit)
    _check_size(size, limit)
    decoded = np.empty(size, np.uint8)
    try:
        zstd_into(data, decoded)
    except (RuntimeError, ValueError) as error:
        raise CorruptionError(f"zstd data is damaged: {error}") from None
    return decoded.data


def _size_of_frame(data: Buffer) -> int | None:
    """Return the size that *data* decodes to, if it is one zstd frame that says so: then it needs no second copy."""
    try:
        if zstd.get_frame_size(data) == len(data):
            return zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError:
        pass
    return None


def _decode_members(name: str, new_member: Callable[[], _Decompressor], data: Buffer, limit: int) -> Buffer:
    """Decode one member in one go, as data of any writer is one, else as concatenated ones."""
    member = new_member()
    try:
        decoded = member.decompress(data, limit + 1)
    except (zlib.error, zstd.ZstdError) as error:
        raise CorruptionError(f"{name} data is damaged: {error}") from None
    _check_size(len(decoded), limit)
    if member.eof and not member.unused_data:
        return decoded
    return _decode_concatenated(name, new_member, data, limit)


def _decode_concatenated(name: str, new_member: Callable[[], _Decompressor], data: Buffer, limit: int) -> Buffer:
    """Decode concatenated members piece by piece, so that no more than *limit* is ever in memory."""
    decoded = bytearray()
    pieces = memoryview(data)
    position = members = 0
    while position < len(pieces) or not members:
        if members == _MAX_MEMBERS:
            raise CorruptionError(f"{name} data has more than {_MAX_MEMBERS} parts")
        members += 1
        member = new_member()
        while not member.eof:
            piece = pieces[position : position + _PIECE_NBYTES] if member.needs_input else b""
            if member.needs_input and not piece:
                raise CorruptionError(f"{name} data is cut short")
            try:
                decoded += member.decompress(piece, _PIECE_NBYTES)
            except (zlib.error, zstd.ZstdError) as error:
                raise CorruptionError(f"{name} data is damaged: {error}") from None
            position += len(piece)
            _check_size(len(decoded), limit)
        position -= len(member.unused_data)
    return decoded


def _decode_blosc(data: Buffer, limit: int) -> Buffer:
    # c-blosc trusts its header, which states both sizes: version, flags, item size, nbytes, block size, cbytes.
    if len(data) < 16:
        raise CorruptionError("blosc data is cut short")
    nbytes, _, cbytes = struct.unpack_from("<III", data, 4)
    _check_size(nbytes, limit)
    if cbytes != len(data):
        raise CorruptionError(f"blosc data has {len(data)} bytes, its header says {cbytes}")
    try:
        return bytes(blosc.decompress(data))
    except (RuntimeError, ValueError) as error:
        raise CorruptionError(f"blosc data is damaged: {error}") from None


def _decode_crc32c(data: Buffer, limit: int) -> Buffer:
    if len(data) < CRC32C_NBYTES:
        raise CorruptionError("data with a crc32c is cut short")
    try:
        return memoryview(CRC32C(location="end").decode(data))
    except RuntimeError:
        raise CorruptionError("the crc32c does not match") from None


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise OversizedDataError(f"the data decodes to more than {limit} bytes")


_DECODERS: Final[dict[str, Decoder]] = {
    "gzip": _decode_gzip,
    "zstd": _decode_zstd,
    "blosc": _decode_blosc,
    "crc32c": _decode_crc32c,
}
