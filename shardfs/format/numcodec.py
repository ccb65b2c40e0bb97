"""Codecs of numcodecs: the filters and compressors of Zarr v2, which zarr-python has in v3 as `numcodecs.` and a name.

A filter reads the output of the previous one as elements of the type that it states. No more is decoded than a chunk
can need. Nothing is unpickled, and only the codecs named here are used.

numcodecs is imported where it is needed, because the import takes a tenth of a command's start-up time.

Sources: Zarr storage specification 2, "Filters"; zarr-python 2.18, and 3.1 for `numcodecs.*`; numcodecs 0.16.
"""

import bz2
import lzma
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from isal import isal_zlib

from shardfs.errors import CorruptionError, MetadataError, RefusedError, ShardfsError
from shardfs.format.document import Extension, Json, brief
from shardfs.format.dtype import parse_v2_dtype
from shardfs.format.members import Buffer, check_size, decode_members

PREFIX: Final = "numcodecs."
"""The prefix of codec names that zarr-python has for v3, and other libraries do not."""
ARRAY_FILTERS: Final = frozenset({"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"})
"""Array → array codecs of numcodecs that zarr-python 3 knows as `numcodecs.` and their name."""
BYTES_FILTERS: Final = frozenset(
    {"blosc", "lz4", "zstd", "zlib", "gzip", "bz2", "lzma", "shuffle"}
    | {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
)
"""The same for bytes → bytes codecs."""
NATIVE: Final = frozenset({"gzip", "zstd", "blosc"})
"""Those of which every library has the decoder for v3: see `format.codecs`."""
DTYPE_MEMBERS: Final = ("dtype", "astype", "encode_dtype", "decode_dtype")
_ELEMENTS: Final = {
    "astype": ("encode_dtype", "decode_dtype"),
    **dict.fromkeys(("delta", "fixedscaleoffset", "quantize"), ("astype", "dtype")),
}
"""The members with the types of encoded and of decoded elements."""
_MAX_AT_ONCE: Final = 2**18
MAX_ITEM_NBYTES: Final = 16
"""The largest size of elements between filters, which are numbers."""
_MAX_DICTIONARY_NBYTES: Final = 2**28  # for lzma: four times what its highest preset needs

Codec = dict[str, Json]


def get_codec(codec: Codec) -> Any:  # noqa: ANN401 - numcodecs has no types
    """Return a codec of numcodecs; may raise anything because of its configuration."""
    import numcodecs

    return numcodecs.get_codec(dict(codec))


def numcodec(codec: Extension, item_nbytes: int | None, dtype: str | None) -> Codec:
    """Return the numcodecs configuration of a codec `numcodecs.X`, as X.

    *item_nbytes* is the size of an element, and *dtype* its type, if they are known: zarr-python takes them for what
    the configuration does not say.
    """
    name = codec.name.removeprefix(PREFIX)
    if codec.configuration.get("id", name) != name:
        raise MetadataError(f"{codec.name} has the id {brief(codec.configuration['id'])}")
    usual: dict[str, Codec] = {
        "shuffle": {"elementsize": item_nbytes},
        "fixedscaleoffset": {"dtype": dtype},
        "quantize": {"dtype": dtype},
        "astype": {"decode_dtype": dtype},
        "crc32c": {"location": "end"},
    }
    stated = usual.get(name, {}) | {k: v for k, v in codec.configuration.items() if v is not None}
    return {**{member: value for member, value in stated.items() if value is not None}, "id": name}


def is_named(codec: Extension, names: frozenset[str]) -> bool:
    """Whether *codec* of a v3 document is one of numcodecs with one of these *names*."""
    return codec.name.startswith(PREFIX) and codec.name.removeprefix(PREFIX) in names


def check_decodable(codec: Codec) -> None:
    """Raise `MetadataError` for a codec that cannot be decoded."""
    name = codec["id"]
    if name not in ARRAY_FILTERS | BYTES_FILTERS:
        raise MetadataError(f"the codec {brief(name)} has no Zarr v3 form, and shardfs cannot decode it")
    try:
        dtypes = [parse_v2_dtype(codec[member]) for member in DTYPE_MEMBERS if codec.get(member) is not None]
        is_sound = all(dtype.kind in "biufcmM" and dtype.itemsize <= MAX_ITEM_NBYTES for dtype in dtypes)
        if name not in NATIVE:
            get_codec(codec)
        if name == "lzma":
            _new_lzma(codec)
    except Exception as error:
        raise MetadataError(f"the codec {brief(name)} cannot be decoded: {error}") from None
    if not is_sound:
        raise MetadataError(f"the codec {brief(name)} cannot be decoded: its elements are no numbers")


def decode_numcodec(codec: Codec, data: Buffer, limit: int) -> memoryview:
    """Undo a codec that is not among the native ones, and for which `check_decodable` raises nothing.

    Raises `CorruptionError`, and `OversizedDataError` beyond *limit* bytes.
    """
    from numcodecs.compat import ensure_contiguous_ndarray

    name = codec["id"]
    try:
        if name in _DECOMPRESSORS:
            return memoryview(_DECOMPRESSORS[name](codec, data, limit))
        if name == "lz4":
            check_size(struct.unpack_from("<I", data)[0], limit)
        decoder = get_codec(codec)
        check_size(_decoded_nbytes(name, decoder, data), limit)
        with np.errstate(all="ignore"):
            decoded = _decode_in_parts(decoder, data) if name == "fixedscaleoffset" else decoder.decode(data)
    except ShardfsError:
        raise
    except Exception as error:  # as numcodecs has it
        raise CorruptionError(f"{name} data is damaged: {error}") from None
    view: memoryview = ensure_contiguous_ndarray(decoded).reshape(-1).view(np.uint8).data
    check_size(len(view), limit)
    return view


def _decoded_nbytes(name: str, decoder: Any, data: Buffer) -> int:  # noqa: ANN401 - numcodecs has no types
    """Return how many bytes *data* decodes to at most."""
    nbytes = len(data)
    if name == "packbits":
        return 8 * (nbytes - 1) - data[0] if nbytes else 0
    if name in _ELEMENTS:
        sizes: list[int] = [np.dtype(getattr(decoder, member)).itemsize for member in _ELEMENTS[name]]
        return nbytes // sizes[0] * sizes[1]
    return nbytes


def _decode_in_parts(decoder: Any, data: Buffer) -> np.ndarray[Any, Any]:  # noqa: ANN401 - numcodecs has no types
    """Decode each element alone, as float64 takes up to eight times the memory of all of them."""
    encoded = np.frombuffer(data, decoder.astype)
    decoded = np.empty(len(encoded), decoder.dtype)
    for start in range(0, len(encoded), _MAX_AT_ONCE):
        part = slice(start, start + _MAX_AT_ONCE)
        decoded[part] = decoder.decode(encoded[part])
    return decoded


def encode_numcodec(codec: Codec, data: Buffer | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Encode bytes, or the elements that a filter takes; the result has the elements that it makes.

    Raises `MetadataError` if the configuration is invalid, and `RefusedError` for what it cannot encode.
    """
    from numcodecs.compat import ensure_contiguous_ndarray

    try:
        encoder = get_codec(codec)
    except Exception as error:
        raise MetadataError(f"the codec {codec['id']} is not valid: {error}") from None
    try:
        with np.errstate(all="ignore"):
            encoded: np.ndarray[Any, Any] = ensure_contiguous_ndarray(encoder.encode(data)).reshape(-1)
    except Exception as error:
        raise RefusedError(f"the codec {codec['id']} cannot encode this: {error}") from None
    return encoded


def _new_lzma(codec: Codec) -> lzma.LZMADecompressor:
    kind, filters = codec.get("format", lzma.FORMAT_XZ), codec.get("filters")
    if any(part.get("dict_size", 0) > _MAX_DICTIONARY_NBYTES for part in filters or ()):
        raise ValueError("its dictionary is too large")
    if kind == lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(kind, filters=filters)
    return lzma.LZMADecompressor(kind, _MAX_DICTIONARY_NBYTES)


_DECOMPRESSORS: Final[dict[str, Callable[[Codec, Buffer, int], Buffer]]] = {
    "zlib": lambda codec, data, limit: decode_members(isal_zlib.decompressobj, data, limit, most=1),
    "bz2": lambda codec, data, limit: decode_members(bz2.BZ2Decompressor, data, limit, no_member=OSError),
    "lzma": lambda codec, data, limit: decode_members(lambda: _new_lzma(codec), data, limit, no_member=lzma.LZMAError),
}
