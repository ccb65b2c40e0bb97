"""Codec chains of Zarr v3 as filters, compressor, order and byte order of Zarr v2, and back: the same bytes in both.

A v2 array applies its filters, then its compressor; array → array and bytes → bytes codecs are not marked as such. So
the last bytes → bytes codec is the compressor, and those before it are filters.

Sources: Zarr storage specification 2; specifications of the codecs; numcodecs 0.16; zarr-python 3.1 for `numcodecs.*`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.codecs import (
    SHUFFLES,
    compose,
    is_decodable,
    is_in_order,
    parameters,
    parse_chain,
    parse_endian,
    parse_transpose,
    readable,
)
from shardfs.format.document import Document, Extension, Json, brief
from shardfs.format.dtype import VLEN_SERIALIZERS, DataType, v2_dtype
from shardfs.format.numcodec import (
    ARRAY_FILTERS,
    BYTES_FILTERS,
    DTYPE_MEMBERS,
    NATIVE,
    PREFIX,
    Codec,
    get_codec,
    is_named,
    numcodec,
)

_SERIALIZERS: Final = frozenset({"bytes", "vlen-utf8", "vlen-bytes", "numcodecs.zfpy", "numcodecs.pcodec"})
_AUTOSHUFFLE: Final = -1
_DEFAULTS: Final[dict[str, dict[str, Json]]] = {
    "crc32": {"location": "start"},
    "adler32": {"location": "start"},
    "crc32c": {"location": "end"},
}
"""Defaults that numcodecs does not reveal."""


def v2_codecs(codecs: Sequence[Extension], chunk_shape: tuple[int, ...], data_type: DataType) -> dict[str, Json]:
    """Return the members of a `.zarray` about encoding and data type, for the *codecs* of a chunk.

    Raises `NotShownError` with the reason why there is no v2 form.
    """
    chain = parse_chain(codecs, "codecs")
    position = next((i for i, codec in enumerate(chain) if codec.name in _SERIALIZERS), None)
    if position is None:
        raise NotShownError(f"the codec {brief(chain[0].name)} has no Zarr v2 form")
    serializer, encoders, dtype = chain[position], chain[position + 1 :], data_type.dtype
    order, filters = _array_filters(chain[:position], chunk_shape, dtype)
    wanted = VLEN_SERIALIZERS.get(data_type.name)
    if serializer.name != wanted and (wanted or serializer.name in VLEN_SERIALIZERS.values()):
        raise NotShownError(f"the codec {serializer.name} of {data_type.name} has no Zarr v2 form")
    endian = "little"
    if serializer.name == "bytes":
        endian = parse_endian(serializer, "little")
        if filters and endian != "little":
            raise NotShownError("a filter before big-endian bytes has no Zarr v2 form")
    elif serializer.name.startswith(PREFIX):
        if order != "C":
            raise NotShownError(f"{serializer.name} of transposed chunks has no Zarr v2 form")
        filters.append(_numcodec(serializer, dtype))
    else:
        serializer.expect()
        filters.append({"id": serializer.name})
    filters += [_bytes_filter(codec, dtype) for codec in encoders]
    compressor = filters.pop() if encoders or serializer.name.startswith(PREFIX) else None
    return {
        "compressor": compressor,
        "dtype": v2_dtype(data_type, endian),
        "filters": filters or None,
        "order": order,
    }


def _item_nbytes(dtype: np.dtype[Any]) -> int:
    """Return the size of an element in bytes; 1 if it varies."""
    return 1 if dtype.hasobject else dtype.itemsize


def _array_filters(
    codecs: Sequence[Extension], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[str, list[Codec]]:
    """Return the order of elements, and the filters for the codecs before the array → bytes codec."""
    order = tuple(range(len(chunk_shape)))
    filters: list[Codec] = []
    for codec in codecs:
        if codec.name == "transpose" and not filters:
            order = compose(order, parse_transpose(codec, len(order)))
        elif is_named(codec, ARRAY_FILTERS):
            filters.append(_numcodec(codec, dtype))
        else:
            where = f" behind the codec {filters[-1]['id']}" if filters else ""
            raise NotShownError(f"the codec {brief(codec.name)}{where} has no Zarr v2 form")
    if is_in_order(order, chunk_shape):
        return "C", filters
    if is_in_order(order[::-1], chunk_shape):
        return "F", filters
    raise NotShownError(f"Zarr v2 has no transpose to {list(order)}; a mount with --decode shows the array")


def _bytes_filter(codec: Extension, dtype: np.dtype[Any]) -> Codec:
    """Return the v2 form of a bytes → bytes codec, with no other members, which some readers reject."""
    match codec.name:
        case "zstd" | "numcodecs.zstd":
            return {"id": "zstd", "level": readable(replace(codec, name="zstd"))["level"]}
        case "blosc":
            given = readable(codec, _item_nbytes(dtype))
            del given["typesize"]
            return {"id": "blosc", **given, "shuffle": SHUFFLES.index(given["shuffle"])}
        case "crc32c":
            return {"id": "crc32c", **parameters(codec), "location": "end"}  # numcodecs has moved it
        case name if not name.startswith(PREFIX) and is_decodable(codec):
            return {"id": name, **readable(codec)}
        case _ if is_named(codec, BYTES_FILTERS):
            return _numcodec(codec, dtype)
    raise NotShownError(f"the codec {brief(codec.name)} has no Zarr v2 form")


def _numcodec(codec: Extension, dtype: np.dtype[Any]) -> Codec:
    """Return the numcodecs configuration of a known codec `numcodecs.X`, as X."""
    for member in DTYPE_MEMBERS:
        if str(codec.configuration.get(member, "")).startswith(">"):
            raise NotShownError(f"the codec {codec.name} of big-endian elements has no Zarr v2 form")
    return numcodec(codec, _item_nbytes(dtype), dtype.str)


def v3_codecs(codecs: list[Codec], order: str, chunk_shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Json]:
    """Return the codecs of a v3 document for the filters and the compressor of a `.zarray`, *codecs*.

    Raises `NotUnshardable` with the reason why there are none.
    """
    chain: list[Json] = []
    if order == "F" and not is_in_order(range(len(chunk_shape))[::-1], chunk_shape):
        chain.append({"name": "transpose", "configuration": {"order": list(range(len(chunk_shape)))[::-1]}})
    if chain and dtype.hasobject:
        raise NotUnshardable("elements that vary in size, in order F, have no Zarr v3 form")
    filters = list(takewhile(lambda codec: codec["id"] in ARRAY_FILTERS, codecs))
    types = {str(codec[member]) for codec in filters for member in DTYPE_MEMBERS if codec.get(member) is not None}
    is_kept = types <= {dtype.str} and all(codec["id"] != "packbits" for codec in filters)
    if filters and (chain or dtype.str[0] == ">" or not is_kept):
        # zarr-python encodes transposed and big-endian elements otherwise, and does not read all changes of the type.
        raise NotUnshardable(
            f"the filter {filters[-1]['id']} has a Zarr v3 form that every library reads only for elements that are "
            "little-endian, in order C, and stay of one type"
        )
    chain += [_named_numcodec(codec) for codec in filters]
    rest = codecs[len(filters) :]
    if dtype.hasobject:
        chain.append({"name": rest[0]["id"]})
        rest = rest[1:]
    elif dtype.itemsize == 1:
        chain.append({"name": "bytes"})
    else:
        chain.append({"name": "bytes", "configuration": {"endian": "big" if dtype.str[0] == ">" else "little"}})
    return chain + [_bytes_codec(codec, dtype, is_first=not i) for i, codec in enumerate(rest)]


def _named_numcodec(codec: Codec) -> Json:
    configuration = {member: value for member, value in codec.items() if member != "id" and value is not None}
    return {"name": PREFIX + codec["id"], "configuration": configuration}


def _bytes_codec(codec: Codec, dtype: np.dtype[Any], *, is_first: bool) -> Json:
    name = codec["id"]
    configuration = _named_numcodec(codec)["configuration"]
    if name in ("gzip", "zstd", "blosc"):
        usual = {**normal_codec(codec, dtype), **configuration}
        del usual["id"]
        if name == "blosc":
            # numcodecs takes the size of what it is given to encode, and chooses the shuffle by it.
            usual["shuffle"] = normal_codec(codec, dtype).get("shuffle", 1)
            usual.pop("typesize", None)
        nbytes = _item_nbytes(dtype) if is_first else 1
        return {"name": name, "configuration": readable(Extension(name, usual), nbytes)}
    if name == "crc32c" and codec.get("location", "end") == "end":
        return {"name": name}
    if name in BYTES_FILTERS:
        return _named_numcodec(codec)
    raise NotUnshardable(f"the codec {brief(name)} has no Zarr v3 form")


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


def normal_codec(codec: Codec, dtype: np.dtype[Any]) -> Codec:
    """Return a codec of a `.zarray` with the defaults of numcodecs; as it is written if numcodecs rejects it.

    What no reader needs to know, and no v3 document says, is skipped.
    """
    given = {member: value for member, value in codec.items() if value is not None}
    if codec["id"] in ARRAY_FILTERS | BYTES_FILTERS:
        with suppress(Exception):
            given = {**_DEFAULTS.get(codec["id"], {}), **get_codec(given).get_config()}
    if codec["id"] == "blosc" and given.get("shuffle") == _AUTOSHUFFLE:
        given["shuffle"] = 2 if _item_nbytes(dtype) == 1 else 1
    if codec["id"] in NATIVE:
        with suppress(MetadataError):
            given = {**given, **readable(Extension(codec["id"], {k: v for k, v in given.items() if k != "id"}))}
    if codec["id"] == "blosc" and given.get("shuffle") in SHUFFLES:
        given["shuffle"] = SHUFFLES.index(given["shuffle"])
    skipped = {"blosc": "typesize", "zstd": "checksum"}.get(codec["id"])
    return {member: value for member, value in given.items() if value is not None and member != skipped}
