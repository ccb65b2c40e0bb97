"""Codec chains: parsing them, and decoding and encoding chunks.

Decoding never produces more than a limit given by the caller, so a decompression bomb costs no memory. The parameters
of an encoder come from the codec's configuration. A missing one has its usual value; an invalid or unknown one is
refused, because another reader may take it to change the bytes.

Sources: Zarr core specification 3.1, "Codecs"; the specifications of `bytes`, `transpose`, `gzip`, `zstd`, `blosc` and
`crc32c`.

gzip is decoded by isal, which takes half the time of zlib, and encoded by zlib, whose bytes are those of other writers.

numcodecs is imported where it is needed, because the import takes a tenth of a command's start-up time.
"""

import math
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from shardfs.errors import CorruptionError, MetadataError, NotShownError, OversizedDataError, RefusedError
from shardfs.format.document import MAX_LENGTH, Extension, Json, brief, parse_codecs
from shardfs.format.dtype import VLEN_SERIALIZERS, DataType, type_name
from shardfs.format.elements import (
    FILTERS,
    RESHAPES,
    SERIALIZERS,
    BitRound,
    CastValue,
    ElementCodec,
    N5Block,
    PackBits,
    Pcodec,
    ScaleOffset,
    Swapped,
    reshaped,
)
from shardfs.format.members import Buffer, check_size, decode_members
from shardfs.format.numcodec import (
    ARRAY_FILTERS,
    BYTES_FILTERS,
    MAX_ITEM_NBYTES,
    NATIVE,
    PREFIX,
    Codec,
    check_decodable,
    decode_numcodec,
    encode_numcodec,
    is_named,
    numcodec,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")
Filter = Codec | ElementCodec
"""A codec before bytes → bytes codecs that changes elements: of numcodecs, or of the extension registry."""

SHARDING: Final = "sharding_indexed"
CRC32C_NBYTES: Final = 4
MAX_CHUNK_NBYTES: Final = 512 * 2**20
"""The largest size that a chunk may decode to; decoding needs a few times that much memory."""

ZSTD_LEVELS: Final = (-131072, 22)
"""The least and the highest level of zstd."""
_MAX_BLOSC_NBYTES: Final = 2**31 - 17  # the header is included
_MAX_TYPESIZE: Final = 255
SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
"""The shuffle modes of blosc, in the order of their numbers."""
COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd", "snappy")
"""The compressors in blosc."""

_ARRAY_TO_ARRAY: Final = frozenset({"transpose"}) | FILTERS | RESHAPES
_ARRAY_TO_BYTES: Final = (
    frozenset({"bytes", "endian", SHARDING, "vlen-utf8", "vlen-bytes", "zfp", "pcodec"}) | SERIALIZERS
)


class CodecChain(NamedTuple):
    """Codecs by kind: array → array, the single array → bytes codec, bytes → bytes."""

    before: tuple[Extension, ...]
    serializer: Extension
    after: tuple[Extension, ...]


def parse_chain(codecs: Sequence[Extension], where: str) -> tuple[Extension, ...]:
    """Return *codecs* under their current names, without those that may be ignored.

    Among known codecs, exactly one must be array → bytes (or none, if an unknown codec may be it), and the three kinds
    must come in order.
    """
    known = _ARRAY_TO_ARRAY | _ARRAY_TO_BYTES | _CODECS.keys()
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
    misplaced = [codec.name for codec in chain[: serializers[0]] if codec.name in _CODECS]
    misplaced += [codec.name for codec in chain[serializers[0] + 1 :] if codec.name in _ARRAY_TO_ARRAY]
    if misplaced:
        raise MetadataError(f"{where} has {', '.join(misplaced)} on the wrong side of {chain[serializers[0]].name}")
    return chain


def split_chain(chain: Sequence[Extension], where: str) -> CodecChain:
    """Split a chain returned by `parse_chain` at its array → bytes codec, which must be a known one."""
    for i, codec in enumerate(chain):
        if codec.name in _ARRAY_TO_BYTES:
            return CodecChain(tuple(chain[:i]), codec, tuple(chain[i + 1 :]))
    raise MetadataError(f"{where} has no known array → bytes codec")


def parse_transpose(codec: Extension, ndim: int) -> tuple[int, ...]:
    """Return the `order` of a transpose codec on an array with *ndim* axes."""
    codec.expect("order")
    order = codec.lengths("order", ndim, minimum=0)
    if sorted(order) != list(range(ndim)):
        raise MetadataError(f"the order {list(order)} of a transpose is not a permutation of {ndim} axes")
    return order


def compose(first: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order of one transpose that equals transposing by *first* and *then*."""
    return tuple(first[axis] for axis in then)


def composed_order(codecs: Iterable[Extension], ndim: int) -> tuple[int, ...]:
    """Return the order of one transpose that equals *codecs*, all transposes, on *ndim* axes."""
    order = tuple(range(ndim))
    for codec in codecs:
        order = compose(order, parse_transpose(codec, ndim))
    return order


def permute(values: tuple[T, ...], order: tuple[int, ...]) -> tuple[T, ...]:
    """Return *values* of the axes before a transpose in the order of the axes after it."""
    return tuple(values[axis] for axis in order)


def is_in_order(order: Sequence[int], chunk_shape: Sequence[int]) -> bool:
    """Whether transposing by *order* moves no element, because all axes that change places have length 1."""
    axes = [axis for axis in order if chunk_shape[axis] > 1]
    return axes == sorted(axes)


def parse_endian(codec: Extension, default: str | None = None) -> str:
    """Return "little" or "big", the byte order of a `bytes` codec; required unless there is a *default*."""
    codec.expect("endian")
    return codec.choice("endian", default, ("little", "big"))


def is_decodable(codec: Extension) -> bool:
    """Whether *codec* is a bytes → bytes codec that shardfs can decode.

    One of numcodecs must say all that its decoder needs: see `spelled_out`.
    """
    if codec.name not in _CODECS or not codec.name.startswith(PREFIX):
        return codec.name in _CODECS
    try:
        numcodecs = numcodec(codec, None, None)
        check_decodable(numcodecs)
    except MetadataError:
        return False
    return numcodecs["id"] != "shuffle" or "elementsize" in numcodecs


def spelled_out(codec: Extension, dtype: np.dtype[Any]) -> Extension:
    """Return a codec of numcodecs with what zarr-python takes from elements of *dtype*; any other one as it is."""
    if not is_named(codec, ARRAY_FILTERS | BYTES_FILTERS):
        return codec
    return replace(codec, configuration=numcodec(codec, 1 if dtype.hasobject else dtype.itemsize, dtype.str))


def decode(codecs: Sequence[Extension], data: Buffer, limit: int) -> Buffer:
    """Undo bytes → bytes *codecs*, all decodable, in reverse order.

    Raises `CorruptionError` if *data* cannot be decoded, `OversizedDataError` if it decodes to more than *limit* bytes.
    """
    for codec in reversed(codecs):
        # The input of a stage may be larger than its output only by headers and checksums.
        data = _CODECS[codec.name].decode(codec, data, limit + limit // 8 + 4096)
    if len(data) > limit:
        raise OversizedDataError(f"the data decodes to {len(data)} bytes, more than {limit}")
    return data


def decode_elements(
    after: Sequence[Extension], filters: Sequence[Filter], data: Buffer, nbytes: int, count: int
) -> Buffer:
    """Undo bytes → bytes codecs *after*, then *filters*: *count* elements of *nbytes* bytes in all, if it is sound."""
    if not filters:
        return decode(after, data, nbytes)
    limit = min(max(nbytes, MAX_ITEM_NBYTES * count), MAX_CHUNK_NBYTES)
    data = decode(after, data, limit)
    for codec in reversed(filters):
        data = codec.decode(data, limit) if isinstance(codec, ElementCodec) else undo(codec, data, limit)
    return data


def undo(codec: Codec, data: Buffer, limit: int) -> Buffer:
    """Undo a codec of numcodecs, filter or compressor; `numcodec.check_decodable` must accept it."""
    if codec["id"] in NATIVE:
        return _CODECS[codec["id"]].decode(Extension(codec["id"], {}), data, limit)
    return decode_numcodec(codec, data, limit)


def _decode_zstd(codec: Extension, data: Buffer, limit: int) -> Buffer:
    from numcodecs.zstd import decompress as decompress_into

    try:
        is_one = zstd.get_frame_size(data) == len(data)
        size = zstd.get_frame_info(data).decompressed_size if is_one else None
        if not size:
            return decode_members(zstd.ZstdDecompressor, data, limit)
        check_size(size, limit)
        decoded = np.empty(size, np.uint8)  # a single frame that states its size needs no second copy
        decompress_into(data, decoded)
    except (zstd.ZstdError, RuntimeError, ValueError) as error:
        reason = str(error).rpartition("Zstd error message: ")[2]  # before it, some explain a function of Python
        raise CorruptionError(f"zstd data is damaged: {reason}") from None
    return decoded.data


def _decode_gzip(codec: Extension, data: Buffer, limit: int) -> Buffer:
    try:
        return decode_members(lambda: isal_zlib.decompressobj(wbits=31), data, limit, padding=b"\0")
    except isal_zlib.error as error:  # type: ignore[misc]  # its stub takes the class for an exception
        raise CorruptionError(f"gzip data is damaged: {error}") from None


def _decode_blosc(codec: Extension, data: Buffer, limit: int) -> Buffer:
    from numcodecs import blosc

    # c-blosc trusts the sizes in its header: version, flags, item size, nbytes, block size, cbytes.
    if len(data) < 16:
        raise CorruptionError("blosc data is cut short")
    nbytes, _, cbytes = struct.unpack_from("<III", data, 4)
    check_size(nbytes, limit)
    if not 16 <= cbytes <= len(data):
        raise CorruptionError(f"blosc data has {len(data)} bytes, its header says {cbytes}")
    try:
        return bytes(blosc.decompress(memoryview(data)[:cbytes]))  # what follows is ignored, as by c-blosc
    except (RuntimeError, ValueError) as error:
        raise CorruptionError(f"blosc data is damaged: {error}") from None


def _decode_crc32c(codec: Extension, data: Buffer, limit: int) -> Buffer:
    if len(data) < CRC32C_NBYTES:
        raise CorruptionError("data with a crc32c is cut short")
    content, stored = memoryview(data)[:-CRC32C_NBYTES], memoryview(data)[-CRC32C_NBYTES:]
    if crc32c(content).to_bytes(CRC32C_NBYTES, "little") != stored:
        raise CorruptionError("the crc32c does not match")
    return content


def encode(codecs: Sequence[Extension], data: Buffer) -> bytes:
    """Encode *data* by bytes → bytes *codecs*, all decodable, one after another.

    The same data always gives the same bytes. Raises `MetadataError` if a configuration is invalid for any data, and
    `RefusedError` for more data than a codec supports.
    """
    for codec in codecs:
        data = _CODECS[codec.name].encode(codec, data)
    return bytes(data)


def parameters(codec: Extension, item_nbytes: int = 1) -> dict[str, Json]:
    """Return the configuration of a bytes → bytes codec that is decodable, with the usual values for missing members.

    *item_nbytes* is the size of an element, if it is known. Raises `MetadataError` for an unknown member or an invalid
    value.
    """
    match codec.name:
        case "gzip":
            found: dict[str, Json] = {"level": codec.integer("level", 5, 0, 9)}
        case "zstd":
            checksum = codec.configuration.get("checksum", False)
            if not isinstance(checksum, bool):
                raise MetadataError(f"the checksum of zstd must be true or false, not {brief(checksum)}")
            found = {"level": codec.integer("level", 0, *ZSTD_LEVELS), "checksum": checksum}
        case "blosc":
            usual = item_nbytes if item_nbytes <= _MAX_TYPESIZE else 1
            typesize = codec.integer("typesize", usual, 1, _MAX_TYPESIZE)
            found = {
                "typesize": typesize,
                "cname": codec.choice("cname", "zstd", COMPRESSORS),
                "clevel": codec.integer("clevel", 5, 0, 9),
                "shuffle": codec.choice("shuffle", "bitshuffle" if typesize == 1 else "shuffle", SHUFFLES),
                "blocksize": codec.integer("blocksize", 0, 0, _MAX_BLOSC_NBYTES),
            }
        case _:
            found = {}
    codec.expect(*found)
    return found


def readable(codec: Extension, item_nbytes: int = 1) -> dict[str, Json]:
    """Return `parameters` for a document: what only an encoder needs becomes a value that every library reads.

    A number out of range becomes the nearest one, what is no number the usual one; level −1 of gzip is 6, as in zlib.
    Raises `MetadataError` for what may change the bytes: an unknown member, or compressor in blosc.
    """
    given = dict(codec.configuration)
    match codec.name:
        case "gzip":
            given["level"] = 6 if given.get("level") == -1 else _nearest(given.get("level"), 5, 0, 9)
        case "zstd":
            given["level"] = _nearest(given.get("level"), 0, *ZSTD_LEVELS)
            given["checksum"] = given.get("checksum") in (True, 1)
        case "blosc":
            given["clevel"] = _nearest(given.get("clevel"), 5, 0, 9)
            given["blocksize"] = _nearest(given.get("blocksize"), 0, 0, _MAX_BLOSC_NBYTES)
            typesize, shuffle = given.pop("typesize", None), given.pop("shuffle", None)
            if type(typesize) is int and 0 < typesize <= _MAX_TYPESIZE:
                given["typesize"] = typesize
            if isinstance(shuffle, int) and 0 <= shuffle < len(SHUFFLES):  # as numcodecs spells it
                given["shuffle"] = SHUFFLES[shuffle]
            elif shuffle in SHUFFLES:
                given["shuffle"] = shuffle
    return parameters(Extension(codec.name, given), item_nbytes)


def _nearest(value: Json, usual: int, least: int, most: int) -> int:
    is_number = isinstance(value, int | float) and value == value  # which is false for NaN, for integers of any size
    return int(min(max(value, least), most)) if is_number else usual


def _encode_gzip(codec: Extension, data: Buffer) -> bytes:
    return zlib.compress(data, parameters(codec)["level"], wbits=31)


def _encode_zstd(codec: Extension, data: Buffer) -> bytes:
    from numcodecs.zstd import compress

    options = parameters(codec)
    return bytes(compress(data, options["level"], options["checksum"]))


def _encode_blosc(codec: Extension, data: Buffer) -> bytes:
    from numcodecs import blosc

    options = parameters(codec)
    if len(data) > _MAX_BLOSC_NBYTES:
        raise RefusedError(f"blosc holds no more than {_MAX_BLOSC_NBYTES} bytes, not {len(data)}")
    cname, clevel, blocksize, typesize = (options[name] for name in ("cname", "clevel", "blocksize", "typesize"))
    if cname not in blosc.list_compressors():
        raise MetadataError(f"the compressor {cname} of blosc is not known here")
    return bytes(blosc.compress(data, cname.encode(), clevel, SHUFFLES.index(options["shuffle"]), blocksize, typesize))


def crc32c(data: Buffer | npt.NDArray[np.uint8], before: int = 0) -> int:
    """Return the crc32c of *data*, continuing from the crc32c *before*."""
    if not isinstance(data, bytes):  # the library copies any other kind of buffer
        if not len(data):
            return before
        data = np.frombuffer(data, np.uint8)
    value: int = google_crc32c.extend(before, data)
    return value


def _encode_crc32c(codec: Extension, data: Buffer) -> bytes:
    parameters(codec)  # of which there are none
    return b"".join((data, crc32c(data).to_bytes(CRC32C_NBYTES, "little")))


def _decode_numcodec(codec: Extension, data: Buffer, limit: int) -> Buffer:
    return undo(numcodec(codec, None, None), data, limit)


def _encode_numcodec(codec: Extension, data: Buffer) -> bytes:
    return encode_numcodec(numcodec(codec, None, None), data).tobytes()


class _BytesCodec(NamedTuple):
    """Decoder and encoder of a bytes → bytes codec; `decode` raises for output beyond the given size."""

    decode: Callable[[Extension, Buffer, int], Buffer]
    encode: Callable[[Extension, Buffer], bytes]


_CODECS: Final = {
    "gzip": _BytesCodec(_decode_gzip, _encode_gzip),
    "zstd": _BytesCodec(_decode_zstd, _encode_zstd),
    "blosc": _BytesCodec(_decode_blosc, _encode_blosc),
    "crc32c": _BytesCodec(_decode_crc32c, _encode_crc32c),
    **dict.fromkeys([PREFIX + name for name in BYTES_FILTERS], _BytesCodec(_decode_numcodec, _encode_numcodec)),
}


_WITH_CHECKSUM: Final = frozenset(
    {"gzip", "crc32c"}
    | {PREFIX + name for name in ("gzip", "zlib", "bz2", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3")}
)


def checksum_in(codecs: Sequence[Extension]) -> str | None:
    """Return the name of a codec whose output has a checksum of all of its input, None if there is none among *codecs*.

    Without one, other bytes in an encoded chunk may decode to other values.
    """
    for codec in codecs:
        is_checked = codec.name in _WITH_CHECKSUM
        if codec.name in ("zstd", PREFIX + "zstd"):
            is_checked = codec.configuration.get("checksum") is True
        elif codec.name == PREFIX + "lzma":  # xz; the other containers have none
            is_checked = codec.configuration.get("format", 1) == 1 and codec.configuration.get("check", -1) != 0
        if is_checked:
            return codec.name
    return None


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """The codec chain of chunks of one shape.

    *order* is the transpose before the `bytes` codec, which writes elements in byte order *endian*; *after* are the
    bytes → bytes codecs that follow. *filters* change elements before they are written.
    """

    data_type: DataType
    chunk_shape: tuple[int, ...]
    order: tuple[int, ...]
    endian: str
    after: tuple[Extension, ...]
    filters: tuple[Filter, ...] = ()

    @classmethod
    def parse(cls, data_type: Json, chunk_shape: tuple[int, ...], codecs: Sequence[Extension]) -> "ChunkCodec":
        """Parse the codecs of an inner chunk; raises `NotShownError` with the reason why it cannot be decoded."""
        try:
            known = DataType.of_fixed_size(data_type)
            chain = tuple(spelled_out(codec, known.dtype) for codec in parse_chain(codecs, "codecs"))
            for extension in chain:
                is_known = extension.name in _DECODED_ELEMENTS or is_named(extension, ARRAY_FILTERS)
                if not is_known and not is_decodable(extension):
                    raise NotShownError(
                        f"the codec {brief(extension.name)} cannot be decoded; without --decode, its chunks are shown "
                        "encoded, for programs that can"
                    )
            before, serializer, after = split_chain(chain, "codecs")
            transposes = [codec for codec in before if codec.name == "transpose"]
            order = composed_order(transposes, len(chunk_shape))
            filters: tuple[Filter, ...]
            endian = "little"  # if it makes no difference, or none is given
            if serializer.name in SERIALIZERS or any(codec.name in FILTERS | RESHAPES for codec in before):
                filters = _element_codecs(before, serializer, known, permute(chunk_shape, order))
                codec = cls(known, chunk_shape, order, endian, after, filters)
            else:
                numcodecs_filters = [numcodec(codec, None, None) for codec in before if codec.name != "transpose"]
                for numcodecs_filter in numcodecs_filters:
                    check_decodable(numcodecs_filter)
                serializer.expect("endian")
                if known.has_byte_order and "endian" in serializer.configuration:
                    endian = parse_endian(serializer)
                    known.check_endian(endian)
                codec = cls(known, chunk_shape, order, endian, after, tuple(numcodecs_filters))
                if numcodecs_filters and not (codec._is_in_memory_order and known.is_native):
                    # zarr-python filters elements in the order in which it has them, and does not read all of that.
                    name = numcodecs_filters[-1]["id"]
                    raise NotShownError(f"libraries disagree on {name} of transposed or big-endian elements")
        except MetadataError as error:
            raise NotShownError(str(error)) from None
        if codec.nbytes > MAX_LENGTH:
            raise NotShownError(f"chunks of {codec.nbytes} bytes are larger than a file can be")
        if codec.nbytes > MAX_CHUNK_NBYTES and not codec.is_identity:
            raise NotShownError(
                f"chunks of {codec.nbytes} bytes are larger than the {MAX_CHUNK_NBYTES} that are decoded"
            )
        return codec

    def at(self, coords: tuple[int, ...]) -> "ChunkCodec":
        """Return the codec of the chunk at *coords*: the same for all, unless chunks are stored cut off at the edge."""
        return self

    @property
    def nbytes(self) -> int:
        """Size of every decoded chunk in bytes; chunks at the edge of the array are full chunks."""
        return self.data_type.nbytes * math.prod(self.chunk_shape)

    @property
    def only_decodes(self) -> bool:
        """Whether chunks cannot be encoded here."""
        return any(isinstance(codec, ElementCodec) for codec in self.filters)

    @property
    def is_identity(self) -> bool:
        """Whether encoding changes nothing."""
        return self._is_in_memory_order and not self.after and not self.filters

    @property
    def _is_in_memory_order(self) -> bool:
        return self.endian == "little" and is_in_order(self.order, self.chunk_shape)

    def decode(self, encoded: Buffer) -> memoryview:
        """Return the decoded bytes of a chunk: exactly `nbytes`, and read-only.

        Raises `CorruptionError` if *encoded* does not decode to that size. Takes a few times that much memory at most.
        """
        data = decode_elements(self.after, self.filters, encoded, self.nbytes, math.prod(self.chunk_shape))
        if len(data) != self.nbytes:
            raise CorruptionError(f"the chunk decodes to {len(data)} bytes instead of {self.nbytes}")
        if self._is_in_memory_order:
            return memoryview(data).toreadonly()
        inverse = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return self._rearranged(data, permute(self.chunk_shape, self.order), inverse)

    def encode(self, decoded: Buffer) -> bytes:
        """Encode a chunk; raises `RefusedError` if *decoded* is not `nbytes` long.

        Raises `MetadataError` if the configuration of a codec is invalid for an encoder.
        """
        if len(decoded) != self.nbytes:
            raise RefusedError(f"the chunk has {len(decoded)} bytes instead of {self.nbytes}")
        if self.filters:
            elements = np.frombuffer(decoded, self.data_type.dtype)
            for codec in self.filters:
                if isinstance(codec, ElementCodec):
                    raise RefusedError(f"chunks of the codec {codec.name} are only read here; write them encoded")
                elements = encode_numcodec(codec, elements)
            return encode(self.after, elements.tobytes())
        if self._is_in_memory_order:
            return encode(self.after, decoded)
        return encode(self.after, self._rearranged(decoded, self.chunk_shape, self.order))

    def _rearranged(self, data: Buffer, shape: tuple[int, ...], order: tuple[int, ...]) -> memoryview:
        """Return elements of *shape* with their axes in *order*, and byte-swapped if the stored ones are big-endian."""
        dtype = self.data_type.dtype
        # Structs are moved as opaque bytes: NumPy would copy them field by field.
        elements = np.frombuffer(data, dtype=np.dtype((np.void, dtype.itemsize))).reshape(shape)
        moved = np.array(elements.transpose(order), order="C", copy=True).reshape(-1)
        if self.endian == "big":
            moved.view(dtype).byteswap(inplace=True)
        return moved.view(np.uint8).data.toreadonly()


_DECODED_ELEMENTS: Final = frozenset({"transpose", "bytes"}) | FILTERS | RESHAPES | SERIALIZERS


def _element_codecs(
    before: Sequence[Extension], serializer: Extension, data_type: DataType, chunk_shape: tuple[int, ...]
) -> tuple[ElementCodec, ...]:
    """Return the codecs that change elements, of which some are in the extension registry.

    *chunk_shape* is that of a chunk after all transposes. Raises `NotShownError` if their order matters otherwise than
    by turns: a transpose of another shape, or filters of numcodecs among them.
    """
    filters: list[ElementCodec] = []
    shape, written, is_reshaped = chunk_shape, data_type, False
    for codec in before:
        if codec.name in RESHAPES:
            shape, is_reshaped = reshaped(codec, shape), True
        elif codec.name == "transpose" and not is_reshaped:
            continue  # of elements that are changed one by one, it may come before or after
        elif codec.name == "scale_offset":
            filters.append(ScaleOffset.parse(codec, written))
        elif codec.name == "cast_value":
            cast, written = CastValue.parse(codec, written)
            filters.append(cast)
        elif codec.name == "bitround":
            filters.append(BitRound.parse(codec))
        else:
            raise NotShownError(f"the codec {brief(codec.name)} behind {before[0].name} cannot be decoded")
    count = math.prod(chunk_shape)
    match serializer.name:
        case "packbits":
            filters.append(PackBits.parse(serializer, written, count))
        case "n5_default":
            filters.append(_parse_n5(serializer, written, shape))
        case "numcodecs.pcodec":
            filters.append(Pcodec.parse(serializer, written, count))
        case "bytes":
            if parse_endian(serializer, "little") == "big" and written.has_byte_order:
                filters.append(Swapped(written.dtype))
        case name:
            raise NotShownError(f"the codec {name} cannot be decoded")
    return tuple(filters)


def _parse_n5(codec: Extension, data_type: DataType, chunk_shape: tuple[int, ...]) -> N5Block:
    """Parse the codec `n5_default`: a transpose of all axes, big-endian elements, and perhaps a compressor."""
    codec.expect("codecs")
    chain = split_chain(parse_chain(parse_codecs(codec.configuration.get("codecs"), "codecs"), "codecs"), "codecs")
    is_turned = [codec.name for codec in chain.before] == ["transpose"] and (
        parse_transpose(chain.before[0], len(chunk_shape)) == tuple(range(len(chunk_shape)))[::-1]
    )
    endian = parse_endian(chain.serializer, "big") if chain.serializer.name == "bytes" else ""
    if not is_turned or endian != "big" or len(chain.after) > 1 or not all(map(is_decodable, chain.after)):
        raise MetadataError(
            "n5_default: its codecs are not a transpose of all axes, big-endian bytes, and a compressor"
        )
    if not data_type.is_native or data_type.dtype.kind not in "iuf":
        raise MetadataError(f"N5 has no data type {data_type.name}")
    return N5Block(data_type.dtype, chunk_shape, partial(decode, chain.after))


@dataclass(frozen=True)
class FillCodec:
    """How chunks of a single value are encoded: *header*, the value *count* times, then the codecs *after*.

    *swapped* is the data type if elements are stored big-endian, else None.
    """

    header: bytes
    count: int
    after: tuple[Extension, ...]
    swapped: np.dtype[Any] | None

    @classmethod
    def parse(
        cls, data_type: Json, chunk_shape: tuple[int, ...], codecs: Sequence[Extension], *elements: bytes
    ) -> "FillCodec":
        """Parse the codecs of an array's chunks; raises `NotShownError` with the reason why none can be encoded.

        *elements* are the values of which there may be chunks, if they vary in size: together, they may be too large.
        """
        count = math.prod(chunk_shape)
        serializer = VLEN_SERIALIZERS.get(type_name(data_type))
        try:
            if serializer is None:
                codec = ChunkCodec.parse(data_type, chunk_shape, codecs)
                if codec.filters:
                    of_elements = codec.filters[0]
                    name = of_elements.name if isinstance(of_elements, ElementCodec) else of_elements["id"]
                    raise NotShownError(f"the codec {name} of a single value is not encoded here")
                swapped = codec.data_type.dtype if codec.endian == "big" else None
                found = cls(b"", count, codec.after, swapped)
            else:
                first, *after = parse_chain(codecs, "codecs")
                odd = [codec.name for codec in after if not is_decodable(codec)]
                nbytes = (4 + max(map(len, elements), default=0)) * count
                if first.name != serializer or odd or 4 + nbytes > MAX_CHUNK_NBYTES:
                    raise NotShownError(f"the chunks, of {count} elements, are not encoded here")
                found = cls(struct.pack("<I", count), count, tuple(after), None)
            encode(found.after, b"\0")  # so that an invalid configuration is found now
        except (MetadataError, RefusedError) as error:
            raise NotShownError(str(error)) from None
        return found

    def chunk(self, element: bytes) -> tuple[bytes, int]:
        """Return an encoded chunk of *element*, as a pattern and the size that it fills.

        *element* is little-endian, or of varying size. Raises `RefusedError` if a codec does not support that size.
        """
        if self.header:
            element = struct.pack("<I", len(element)) + element
        elif self.swapped is not None:
            element = np.frombuffer(element, self.swapped).byteswap().tobytes()
        if not self.after and not self.header:
            return element, len(element) * self.count
        encoded = encode(self.after, self.header + element * self.count)
        return encoded, len(encoded)
