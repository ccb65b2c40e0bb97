"""Codec chains of Zarr v3 as filters, compressor, order and byte order of Zarr v2, and back: the same bytes in both.

A v2 array applies its filters, then its compressor; array → array and bytes → bytes codecs are not marked as such. So
the last bytes → bytes codec is the compressor, and those before it are filters.

Sources: Zarr storage specification 2; specifications of the codecs; numcodecs 0.16; zarr-python 3.1 for `numcodecs.*`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.codecs import (
    BLOSC_BLOCK_NBYTES,
    BLOSC_LEVELS,
    GZIP_LEVELS,
    MAX_TYPESIZE,
    SHUFFLES,
    ZSTD_LEVELS,
    compose,
    is_in_order,
    parse_chain,
    parse_endian,
    parse_transpose,
)
from shardfs.format.document import Document, Extension, Json, brief, canonical
from shardfs.format.dtype import VLEN_SERIALIZERS, parse_v2_dtype
from shardfs.format.metadata import ENCODER_MEMBERS

PREFIX: Final = "numcodecs."
"""The prefix of codec names that zarr-python has for v3, and other libraries do not."""
_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_ARRAY_FILTERS: Final = frozenset({"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"})
"""Array → array codecs of numcodecs that zarr-python 3 knows as `numcodecs.` and their name."""
_BYTES_FILTERS: Final = frozenset(
    {"blosc", "lz4", "zstd", "zlib", "gzip", "bz2", "lzma", "shuffle"}
    | {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
)
"""The same for bytes → bytes codecs."""
_SERIALIZERS: Final = frozenset({"bytes", "vlen-utf8", "vlen-bytes", "numcodecs.zfpy", "numcodecs.pcodec"})
DTYPE_MEMBERS: Final = ("dtype", "astype", "encode_dtype", "decode_dtype")
_AUTOSHUFFLE: Final = -1
_DEFAULTS: Final[dict[str, dict[str, Json]]] = {
    "crc32": {"location": "start"},
    "adler32": {"location": "start"},
    "crc32c": {"location": "end"},
}
"""Defaults that numcodecs does not reveal."""

Codec = dict[str, Json]


@dataclass(frozen=True, slots=True)
class V2Codecs:
    """The members of a `.zarray` about encoding. *serializer* is the v3 codec that turns elements into bytes."""

    serializer: str
    endian: str
    order: str
    filters: tuple[Codec, ...]
    compressor: Codec | None


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements before encoding: the shape of a chunk, and what a codec may leave open about the data type.

    *nbytes* is the size of an element in bytes, 1 if it varies; *dtype* its name in NumPy.
    """

    chunk_shape: tuple[int, ...]
    nbytes: int
    dtype: str

    @classmethod
    def of(cls, chunk_shape: tuple[int, ...], dtype: np.dtype[Any]) -> "Elements":
        """Describe elements of *dtype*; in NumPy, those of varying size are objects."""
        return cls(chunk_shape, 1, "|O") if dtype.hasobject else cls(chunk_shape, dtype.itemsize, dtype.str)


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
        endian = parse_endian(serializer, "little")
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
    """Return the order of elements, and the filters for the codecs before the array → bytes codec."""
    order = tuple(range(len(elements.chunk_shape)))
    filters: list[Codec] = []
    for codec in codecs:
        if codec.name != "transpose":
            if codec.name.removeprefix(PREFIX) not in _ARRAY_FILTERS or not codec.name.startswith(PREFIX):
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


def _bytes_filter(codec: Extension, elements: Elements) -> Codec:
    """Return the v2 form of a bytes → bytes codec, with no other members, which some readers reject."""
    match codec.name:
        case "gzip":
            codec.expect("level")
            return {"id": "gzip", "level": codec.integer("level", 1, *GZIP_LEVELS)}
        case "zstd" | "numcodecs.zstd":
            codec.expect("level", "checksum")
            return {"id": "zstd", "level": codec.integer("level", 0, *ZSTD_LEVELS)}
        case "blosc":
            codec.expect("cname", "clevel", "shuffle", "blocksize", "typesize")
            return {
                "id": "blosc",
                "cname": codec.choice("cname", "lz4", _COMPRESSORS),
                "clevel": codec.integer("clevel", 5, *BLOSC_LEVELS),
                "shuffle": SHUFFLES.index(codec.choice("shuffle", _automatic_shuffle(elements.nbytes), SHUFFLES)),
                "blocksize": codec.integer("blocksize", 0, *BLOSC_BLOCK_NBYTES),
            }
        case "crc32c":
            codec.expect()
            return {"id": "crc32c", "location": "end"}  # numcodecs has moved it
    if codec.name.startswith(PREFIX) and codec.name.removeprefix(PREFIX) in _BYTES_FILTERS:
        return _numcodec(codec, elements)
    raise NotShownError(f"the codec {brief(codec.name)} has no Zarr v2 form")


def _numcodec(codec: Extension, elements: Elements) -> Codec:
    """Return the numcodecs configuration of a known codec `numcodecs.X`, as X."""
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


def v3_codecs(codecs: list[Codec], order: str, endian: str, elements: Elements) -> list[dict[str, Any]]:
    """Return the codecs of a v3 document for the filters and the compressor of a `.zarray`, *codecs*.

    Raises `NotUnshardable` with the reason why there are none.
    """
    ndim = len(elements.chunk_shape)
    transposes: list[dict[str, Any]] = []
    if order == "F" and not is_in_order(range(ndim)[::-1], elements.chunk_shape):
        transposes = [{"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}}]
    filters = [codec for codec in codecs if codec["id"] in _ARRAY_FILTERS]
    if filters != codecs[: len(filters)]:
        raise NotUnshardable(f"the filter {filters[-1]['id']} behind one that makes bytes has no Zarr v3 form")
    rest = codecs[len(filters) :]
    if elements.dtype == "|O":
        serializer = {"name": rest.pop(0)["id"]}
    elif elements.nbytes == 1:
        serializer = {"name": "bytes"}
    else:
        serializer = {"name": "bytes", "configuration": {"endian": endian}}
    if transposes and (filters or elements.dtype == "|O"):
        # zarr-python encodes these in memory order, which for a transposed chunk is not the order of its axes.
        raise NotUnshardable("filters of an array in order F have no Zarr v3 form that every library writes alike")
    if elements.nbytes == 1 and any(_is_wide(codec) for codec in filters):
        # zarr-python then gives the bytes codec no byte order, and cannot read the chunk.
        raise NotUnshardable("filters that widen elements of a byte have no Zarr v3 form that every library reads")
    if not _follow_each_other(filters, elements):
        # zarr-python 2 reads the bytes as the type that a filter states; zarr-python 3 does not.
        raise NotUnshardable("filters of elements of another size have no Zarr v3 form that every library reads")
    if filters and endian != "little":
        raise NotUnshardable("filters of big-endian elements have no Zarr v3 form")
    return [
        *transposes,
        *(_v3_numcodec(codec) for codec in filters),
        serializer,
        *(_bytes_codec(codec, elements, is_first=not i) for i, codec in enumerate(rest)),
    ]


def _automatic_shuffle(item_nbytes: int) -> str:
    return "bitshuffle" if item_nbytes == 1 else "shuffle"


def _bytes_codec(v2_codec: Codec, elements: Elements, *, is_first: bool) -> dict[str, Any]:
    codec = Extension(v2_codec["id"], v2_codec)
    match codec.name:
        case "gzip":
            configuration: Codec = {"level": codec.integer("level", 1, *GZIP_LEVELS)}
        case "zstd":
            checksum = v2_codec.get("checksum", False)
            if not isinstance(checksum, bool):
                raise NotUnshardable(f"the checksum of zstd must be true or false, not {brief(checksum)}")
            configuration = {"level": codec.integer("level", 0, *ZSTD_LEVELS), "checksum": checksum}
        case "blosc":
            typesize = elements.nbytes if is_first and elements.nbytes <= MAX_TYPESIZE else 1
            shuffle = codec.integer("shuffle", 1, _AUTOSHUFFLE, 2)
            configuration = {
                "typesize": typesize,
                "cname": codec.choice("cname", "lz4", _COMPRESSORS),
                "clevel": codec.integer("clevel", 5, *BLOSC_LEVELS),
                "shuffle": _automatic_shuffle(typesize) if shuffle == _AUTOSHUFFLE else SHUFFLES[shuffle],
                "blocksize": codec.integer("blocksize", 0, *BLOSC_BLOCK_NBYTES),
            }
        case "crc32c" if v2_codec.get("location", "end") == "end":
            return {"name": "crc32c"}
        case name if name in _BYTES_FILTERS:
            return _v3_numcodec(v2_codec)
        case name:
            raise NotUnshardable(f"the codec {brief(name)} has no Zarr v3 form")
    return {"name": codec.name, "configuration": configuration}


def _v3_numcodec(codec: Codec) -> dict[str, Any]:
    for member in DTYPE_MEMBERS:
        if str(codec.get(member, "")).startswith(">"):
            raise NotUnshardable(f"the filter {codec['id']} of big-endian elements has no Zarr v3 form")
    configuration = {member: value for member, value in codec.items() if member != "id"}
    return {"name": PREFIX + codec["id"], "configuration": configuration}


def _follow_each_other(filters: list[Codec], elements: Elements) -> bool:
    """Whether every filter takes elements of the size that the previous one makes, and packbits only booleans."""
    dtype = parse_v2_dtype(elements.dtype)
    for codec in filters:
        if codec["id"] == "packbits" and dtype.kind != "b":
            return False
        takes, makes = ("decode_dtype", "encode_dtype") if codec["id"] == "astype" else ("dtype", "astype")
        if codec.get(takes) is not None and parse_v2_dtype(codec[takes]).itemsize != dtype.itemsize:
            return False
        if codec.get(makes) is not None:
            dtype = parse_v2_dtype(codec[makes])
    return True


def _is_wide(codec: Codec) -> bool:
    """Whether the elements that a filter states to make or take have more than one byte."""
    return any(codec.get(member) is not None and parse_v2_dtype(codec[member]).itemsize > 1 for member in DTYPE_MEMBERS)


def object_data_type(codecs: list[Codec]) -> str:
    """Return the v3 data type of the elements that the first filter turns into bytes."""
    name = codecs[0]["id"] if codecs else None
    for data_type, serializer in VLEN_SERIALIZERS.items():
        if serializer == name:
            return data_type
    raise NotUnshardable(f"objects that the filter {brief(name)} encodes have no Zarr v3 form")


def codecs_of(zarray: Document) -> list[dict[str, Any]]:
    """Return filters and compressor of a checked `.zarray`, in the order of encoding."""
    compressor = zarray.get("compressor")
    return [*(zarray.get("filters") or []), *([] if compressor is None else [compressor])]


def is_same_codec(one: Codec, other: Codec) -> bool:
    """Whether two codecs of one id make the same bytes, as far as they say; with the defaults of numcodecs."""
    steering = ENCODER_MEMBERS.get(one["id"], frozenset())
    mine, its = _steering(one, steering), _steering(other, steering)
    if any(canonical(mine[member]) != canonical(its[member]) for member in mine.keys() & its.keys()):
        return False
    return canonical(_with_defaults(one, steering)) == canonical(_with_defaults(other, steering))


def _steering(codec: Codec, steering: frozenset[str]) -> Codec:
    """Return the members that control the encoder, without those that leave it the choice."""
    given = {member: value for member, value in codec.items() if member in steering and value is not None}
    if codec["id"] == "blosc" and given.get("shuffle") == _AUTOSHUFFLE:
        del given["shuffle"]
    return given


def get_codec(codec: Codec) -> Any:  # noqa: ANN401 - numcodecs has no types
    """Return a codec of numcodecs; may raise anything because of its configuration."""
    import numcodecs  # imported late, as in `format.codecs`

    return numcodecs.get_codec(dict(codec))


def _with_defaults(codec: Codec, steering: frozenset[str]) -> Codec:
    """Return the members that determine the bytes, with the defaults of numcodecs, unless it rejects the codec."""
    given = {member: value for member, value in codec.items() if member not in steering}
    if codec["id"] not in _ARRAY_FILTERS | _BYTES_FILTERS:
        return given
    try:
        normal = get_codec(given).get_config()
    except Exception:
        return given
    return {**_DEFAULTS.get(codec["id"], {}), **{m: value for m, value in normal.items() if m not in steering}}
