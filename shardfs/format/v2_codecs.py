"""Codec chains of Zarr v3 as filters, compressor, order and byte order of Zarr v2, where the bytes are the same.

A v2 array applies its filters, then its compressor; nothing tells array → array ones from bytes → bytes ones but what
they do.  So the last bytes → bytes codec is the compressor, and those before it are filters.

Sources: Zarr storage specification 2; specifications of the codecs; numcodecs 0.16; zarr-python 3.1 for `numcodecs.*`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.codecs import compose, is_in_order, parse_chain, parse_transpose
from shardfs.format.metadata import Extension, Json, brief

PREFIX: Final = "numcodecs."
SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
ARRAY_FILTERS: Final = frozenset({"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"})
"""Codecs of numcodecs, array → array, that zarr-python 3 knows by `numcodecs.` and their name."""
BYTES_FILTERS: Final = frozenset(
    {"blosc", "lz4", "zstd", "zlib", "gzip", "bz2", "lzma", "shuffle"}
    | {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
)
"""The same, bytes → bytes."""
_SERIALIZERS: Final = frozenset({"bytes", "vlen-utf8", "vlen-bytes", "numcodecs.zfpy", "numcodecs.pcodec"})
DTYPE_MEMBERS: Final = ("dtype", "astype", "encode_dtype", "decode_dtype")
_MAX_BLOCK_NBYTES: Final = 2**31 - 1

Codec = dict[str, Json]


@dataclass(frozen=True, slots=True)
class V2Codecs:
    """What a `.zarray` says of encoding.  *serializer* is the v3 codec that turns elements into bytes."""

    serializer: str
    endian: str
    order: str
    filters: tuple[Codec, ...]
    compressor: Codec | None


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements before encoding: the lengths of a chunk, and what a codec may leave open about the data type.

    *nbytes* is the size of an element in bytes, 1 where it varies; *dtype* its name in NumPy.
    """

    chunk_shape: tuple[int, ...]
    nbytes: int
    dtype: str


def v2_codecs(codecs: Sequence[Extension], elements: Elements) -> V2Codecs:
    """Return the v2 form of the *codecs* of a chunk; raises `NotShownError` with the reason why there is none."""
    chain = parse_chain(codecs, "codecs")
    position = next((i for i, codec in enumerate(chain) if codec.name in _SERIALIZERS), None)
    if position is None:
        raise NotShownError(f"the codec {brief(chain[0].name)} has no Zarr v2 form")
    serializer = chain[position]
    order, filters = _array_filters(chain[:position], elements)
    endian = "little"
    if serializer.name == "bytes":
        endian = _endian(serializer)
        if filters and endian != "little":
            raise NotShownError("a filter before big-endian bytes has no Zarr v2 form")
    elif serializer.name.startswith(PREFIX):
        if order != "C":
            raise NotShownError(f"{serializer.name} of transposed chunks has no Zarr v2 form")
        filters.append(_numcodec(serializer, elements))
    else:
        serializer.expect()
        filters.append({"id": serializer.name})
    encoders = [_bytes_filter(codec, elements) for codec in chain[position + 1 :]]
    if not encoders and serializer.name.startswith(PREFIX):
        encoders = [filters.pop()]
    return V2Codecs(serializer.name, endian, order, (*filters, *encoders[:-1]), encoders[-1] if encoders else None)


def _array_filters(codecs: Sequence[Extension], elements: Elements) -> tuple[str, list[Codec]]:
    """Return the order of elements and the filters of the codecs before the one that makes bytes."""
    order = tuple(range(len(elements.chunk_shape)))
    filters: list[Codec] = []
    for codec in codecs:
        if codec.name != "transpose":
            if codec.name.removeprefix(PREFIX) not in ARRAY_FILTERS or not codec.name.startswith(PREFIX):
                raise NotShownError(f"the codec {brief(codec.name)} has no Zarr v2 form")
            filters.append(_numcodec(codec, elements))
        else:
            then = parse_transpose(codec, len(order))
            if filters and then != tuple(range(len(order))):
                raise NotShownError(f"a transpose behind the codec {filters[-1]['id']} has no Zarr v2 form")
            order = compose(order, then)
    if is_in_order(order, elements.chunk_shape):
        return "C", filters
    if is_in_order(order[::-1], elements.chunk_shape):
        return "F", filters
    raise NotShownError(f"Zarr v2 has no transpose to {list(order)}; --decode shows the array")


def _endian(codec: Extension) -> str:
    codec.expect("endian")
    endian = codec.configuration.get("endian", "little")
    if endian not in ("little", "big"):
        raise MetadataError(f'the endian of bytes must be "little" or "big", not {brief(endian)}')
    return str(endian)


def _bytes_filter(codec: Extension, elements: Elements) -> Codec:
    """Return the v2 form of a bytes → bytes codec: these members and no others, which some readers refuse."""
    match codec.name:
        case "gzip":
            codec.expect("level")
            return {"id": "gzip", "level": codec.integer("level", 1, 0, 9)}
        case "zstd" | "numcodecs.zstd":
            codec.expect("level", "checksum")
            return {"id": "zstd", "level": codec.integer("level", 0, -131072, 22)}
        case "blosc":
            codec.expect("cname", "clevel", "shuffle", "blocksize", "typesize")
            return {
                "id": "blosc",
                "cname": _one_of(codec, "cname", COMPRESSORS, "lz4"),
                "clevel": codec.integer("clevel", 5, 0, 9),
                "shuffle": SHUFFLES.index(
                    _one_of(codec, "shuffle", SHUFFLES, "bitshuffle" if elements.nbytes == 1 else "shuffle")
                ),
                "blocksize": codec.integer("blocksize", 0, 0, _MAX_BLOCK_NBYTES),
            }
        case "crc32c":
            codec.expect()
            return {"id": "crc32c", "location": "end"}  # where numcodecs puts it has changed
    if codec.name.startswith(PREFIX) and codec.name.removeprefix(PREFIX) in BYTES_FILTERS:
        return _numcodec(codec, elements)
    raise NotShownError(f"the codec {brief(codec.name)} has no Zarr v2 form")


def _numcodec(codec: Extension, elements: Elements) -> Codec:
    """Return the configuration that numcodecs has of a codec `numcodecs.X`, which is known, as X."""
    name = codec.name.removeprefix(PREFIX)
    if codec.configuration.get("id", name) != name:
        raise MetadataError(f"{codec.name} has the id {brief(codec.configuration['id'])}")
    for member in DTYPE_MEMBERS:
        if str(codec.configuration.get(member, "")).startswith(">"):
            raise NotShownError(f"the codec {codec.name} of big-endian elements has no Zarr v2 form")
    defaults: dict[str, Any] = {
        "shuffle": {"elementsize": elements.nbytes},
        "fixedscaleoffset": {"dtype": elements.dtype},
        "quantize": {"dtype": elements.dtype},
        "astype": {"decode_dtype": elements.dtype},
        "crc32c": {"location": "end"},
    }
    given = {member: value for member, value in codec.configuration.items() if value is not None}
    return {**defaults.get(name, {}), **given, "id": name}


def _one_of(codec: Extension, member: str, allowed: tuple[str, ...], default: str) -> str:
    value = codec.configuration.get(member, default)
    if value not in allowed:
        raise MetadataError(f"the {member} of {codec.name} must be one of {', '.join(allowed)}, not {brief(value)}")
    return str(value)
