"""Filters, compressor, order and byte order of a Zarr v2 array as a codec chain of Zarr v3 that gives the same bytes.

Sources: Zarr storage specification 2; specifications of the codecs; zarr-python 3.1 for `numcodecs.*`.
"""

from typing import Any, Final

from shardfs.errors import NotUnshardable
from shardfs.format.codecs import is_in_order
from shardfs.format.metadata import Json, brief
from shardfs.format.v2_codecs import (
    ARRAY_FILTERS,
    BYTES_FILTERS,
    COMPRESSORS,
    DTYPE_MEMBERS,
    PREFIX,
    SHUFFLES,
    Elements,
)
from shardfs.format.v2_types import OBJECT_FILTERS, parse_dtype

_AUTOMATIC: Final = -1
_MAX_TYPESIZE: Final = 255


def v3_codecs(codecs: list[dict[str, Json]], order: str, endian: str, elements: Elements) -> list[dict[str, Any]]:
    """Return the codecs of a v3 document for the filters and the compressor of a `.zarray`, *codecs*.

    Raises `NotUnshardable` with the reason why there are none.
    """
    ndim = len(elements.chunk_shape)
    transposes: list[dict[str, Any]] = []
    if order == "F" and not is_in_order(range(ndim)[::-1], elements.chunk_shape):
        transposes = [{"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}}]
    filters = [codec for codec in codecs if codec["id"] in ARRAY_FILTERS]
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
        # zarr-python encodes these in the order of memory, which for a transposed chunk is not that of its axes.
        raise NotUnshardable("filters of an array in order F have no Zarr v3 form that every library writes alike")
    if elements.nbytes == 1 and any(_is_wide(codec) for codec in filters):
        # zarr-python gives the bytes codec no byte order then, and cannot read.
        raise NotUnshardable("filters that widen elements of a byte have no Zarr v3 form that every library reads")
    if not _follow_each_other(filters, elements):
        # zarr-python 2 takes the bytes for whatever a filter says, zarr-python 3 does not.
        raise NotUnshardable("filters of elements of another size have no Zarr v3 form that every library reads")
    if filters and endian != "little":
        raise NotUnshardable("filters of big-endian elements have no Zarr v3 form")
    return [
        *transposes,
        *(_numcodec(codec) for codec in filters),
        serializer,
        *(_bytes_codec(codec, elements, is_first=not i) for i, codec in enumerate(rest)),
    ]


def _bytes_codec(codec: dict[str, Json], elements: Elements, *, is_first: bool) -> dict[str, Any]:
    match codec["id"]:
        case "gzip":
            return {"name": "gzip", "configuration": {"level": _integer(codec, "level", 1, 0, 9)}}
        case "zstd":
            checksum = codec.get("checksum", False)
            if not isinstance(checksum, bool):
                raise NotUnshardable(f"the checksum of zstd must be true or false, not {brief(checksum)}")
            return {
                "name": "zstd",
                "configuration": {"level": _integer(codec, "level", 0, -131072, 22), "checksum": checksum},
            }
        case "blosc":
            return {"name": "blosc", "configuration": _blosc(codec, elements.nbytes if is_first else 1)}
        case "crc32c" if codec.get("location", "end") == "end":
            return {"name": "crc32c"}
    if codec["id"] not in BYTES_FILTERS:
        raise NotUnshardable(f"the codec {brief(codec['id'])} has no Zarr v3 form")
    return _numcodec(codec)


def _blosc(codec: dict[str, Json], nbytes: int) -> dict[str, Any]:
    typesize = nbytes if nbytes <= _MAX_TYPESIZE else 1
    cname = codec.get("cname", "lz4")
    if cname not in COMPRESSORS:
        raise NotUnshardable(f"the cname {brief(cname)} of blosc is not known")
    shuffle = _integer(codec, "shuffle", 1, _AUTOMATIC, 2)
    if shuffle == _AUTOMATIC:
        shuffle = 2 if typesize == 1 else 1
    return {
        "typesize": typesize,
        "cname": cname,
        "clevel": _integer(codec, "clevel", 5, 0, 9),
        "shuffle": SHUFFLES[shuffle],
        "blocksize": _integer(codec, "blocksize", 0, 0, 2**31 - 1),
    }


def _numcodec(codec: dict[str, Json]) -> dict[str, Any]:
    for member in DTYPE_MEMBERS:
        if str(codec.get(member, "")).startswith(">"):
            raise NotUnshardable(f"the filter {codec['id']} of big-endian elements has no Zarr v3 form")
    configuration = {member: value for member, value in codec.items() if member != "id"}
    return {"name": PREFIX + codec["id"], "configuration": configuration}


def _follow_each_other(filters: list[dict[str, Json]], elements: Elements) -> bool:
    """Whether every filter takes elements of the size that the one before it makes, and packbits truth values only."""
    dtype = parse_dtype(elements.dtype)
    for codec in filters:
        if codec["id"] == "packbits" and dtype.kind != "b":
            return False
        takes, makes = ("decode_dtype", "encode_dtype") if codec["id"] == "astype" else ("dtype", "astype")
        if codec.get(takes) is not None and parse_dtype(codec[takes]).itemsize != dtype.itemsize:
            return False
        if codec.get(makes) is not None:
            dtype = parse_dtype(codec[makes])
    return True


def _is_wide(codec: dict[str, Json]) -> bool:
    """Whether a filter says, of what it makes or takes, that it has more than a byte."""
    return any(codec.get(member) is not None and parse_dtype(codec[member]).itemsize > 1 for member in DTYPE_MEMBERS)


def _integer(codec: dict[str, Json], member: str, default: int, minimum: int, maximum: int) -> int:
    value = codec.get(member, default)
    if type(value) is not int or not minimum <= value <= maximum:
        raise NotUnshardable(f"the {member} {brief(value)} of {codec['id']} has no Zarr v3 form")
    return value


def object_data_type(codecs: list[dict[str, Json]]) -> str:
    """Return the v3 data type of elements that the first of the filters turns into bytes."""
    name = codecs[0]["id"] if codecs else None
    if name not in OBJECT_FILTERS:
        raise NotUnshardable(f"objects that the filter {brief(name)} encodes have no Zarr v3 form")
    return OBJECT_FILTERS[name]
