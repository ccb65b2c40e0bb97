"""Whether two `.zarray` documents say the same, however the library that wrote them spells that.

Libraries add members of codecs that numcodecs has defaults for, drop those that say nothing, and spell the absence of
filters and of a dimension separator in several ways.

Source: Zarr storage specification 2; zarr-python 2.18, zarr-python 3.1 and tensorstore 0.1 as observed.
"""

from typing import Any, Final

import numcodecs

from shardfs.errors import MetadataError, RefusedError
from shardfs.format.codecs import is_in_order
from shardfs.format.metadata import Document, Json, brief, parse_json
from shardfs.format.normal_form import ENCODER_MEMBERS, canonical
from shardfs.format.v2_codecs import ARRAY_FILTERS, BYTES_FILTERS
from shardfs.format.v2_documents import ZARRAY, ZATTRS, ZGROUP, ZMETADATA
from shardfs.format.v2_fill_values import parse_fill_value
from shardfs.format.v2_missing import FILL_VALUE
from shardfs.format.v2_parsing import check_document, parse_consolidated
from shardfs.format.v2_types import parse_dtype

_ENCODER_MEMBERS: Final[dict[str, frozenset[str]]] = {
    **ENCODER_MEMBERS,
    "zlib": frozenset({"level"}),
    "bz2": frozenset({"level"}),
    "lz4": frozenset({"acceleration"}),
    "lzma": frozenset({"preset"}),
}
"""Members that only steer the encoder: one that a document leaves open is not another."""
_AUTOSHUFFLE: Final = -1
_DEFAULTS: Final[dict[str, dict[str, Json]]] = {
    "crc32": {"location": "start"},
    "adler32": {"location": "start"},
    "crc32c": {"location": "end"},
}
"""Defaults that numcodecs does not tell."""


def require_same_encoding(shown: Document, written: Document) -> None:
    """Raise `RefusedError` if *written* says anything else than *shown* of where chunks lie and what they mean.

    Both are `.zarray` documents, checked; shape and fill value are not looked at, but for the number of axes.
    """
    chunks = shown["chunks"]
    if len(written["shape"]) != len(shown["shape"]):
        raise RefusedError(f"{len(written['shape'])} axes instead of {len(shown['shape'])}")
    if written["chunks"] != chunks:
        raise RefusedError(f"chunks {brief(tuple(written['chunks']))} instead of {brief(tuple(chunks))}")
    if parse_dtype(written["dtype"]) != parse_dtype(shown["dtype"]):
        raise RefusedError(f"dtype {brief(written['dtype'])} instead of {brief(shown['dtype'])}")
    if written["order"] != shown["order"] and not is_in_order(range(len(chunks))[::-1], chunks):
        raise RefusedError(f"order {brief(written['order'])} instead of {brief(shown['order'])}")
    require_separator(written, shown["dimension_separator"])
    old, new = codecs_of(shown), codecs_of(written)
    if [codec["id"] for codec in old] != [codec["id"] for codec in new]:
        raise RefusedError(f"filters and compressor {_names(new)} instead of {_names(old)}")
    for was, codec in zip(old, new, strict=True):
        if not _is_same_codec(was, codec):
            raise RefusedError(f"the codec {canonical(codec)[:120]} instead of {canonical(was)[:120]}")


def says_the_same(name: str, one: bytes, other: bytes) -> bool:
    """Whether two documents *name* say the same, in whatever spelling.

    *one* is as it is shown; *other* may leave the missing value to the `.zarray`, which has it too, as xarray does.
    """
    try:
        if name != ZMETADATA:
            for text in (one, other):
                check_document(name, text)
            return _is_same(name, parse_json(one), parse_json(other))
        these, those = _copies(one), _copies(other)
        return these.keys() == those.keys() and all(_is_same(key[1], copy, those[key]) for key, copy in these.items())
    except (MetadataError, RefusedError):
        return False


def _copies(zmetadata: bytes) -> dict[tuple[str, str], Json]:
    """Return the copies in a `.zmetadata` by path and name, without those that say nothing."""
    found = parse_consolidated(zmetadata).items()
    return {(path, name): copy for path, copies in found for name, copy in copies.items() if copy or name != ZATTRS}


def _is_same(name: str, one: Json, other: Json) -> bool:
    if name == ZATTRS and isinstance(one, dict) and isinstance(other, dict) and FILL_VALUE not in other:
        one = {attribute: value for attribute, value in one.items() if attribute != FILL_VALUE}
    if canonical(one) == canonical(other):
        return True
    if name != ZARRAY:
        return name == ZGROUP
    separator = "dimension_separator"  # readers take "." where there is none
    one, other = ({**zarray, separator: zarray.get(separator) or "."} for zarray in (one, other))
    require_same_encoding(one, other)
    return bool(one["shape"] == other["shape"]) and _is_same_fill_value(one, other)


def _is_same_fill_value(one: Document, other: Document) -> bool:
    dtype, values = parse_dtype(one["dtype"]), (one["fill_value"], other["fill_value"])
    if canonical(values[0]) == canonical(values[1]):
        return True
    if None in values or dtype.hasobject:
        return False
    plain = dtype.newbyteorder("<")
    return parse_fill_value(plain, values[0]) == parse_fill_value(plain, values[1])


def require_separator(written: Document, separator: str) -> None:
    """Raise `RefusedError` if a `.zarray` asks for another dimension separator than *separator*.

    One that is silent does not, and one of an array with fewer than two axes, whose chunks have no separator, neither.
    """
    asked = written.get("dimension_separator")
    if asked is not None and asked != separator and len(written["shape"]) > 1:
        raise RefusedError(
            f"the dimension separator is {brief(asked)}, and {brief(separator)} in this mount: "
            f"write with dimension_separator={separator!r}, or mount with --dimension-separator {asked} "
            "(but an OME-Zarr image has / in any mount: write that with '/')"
        )


def codecs_of(zarray: Document) -> list[dict[str, Any]]:
    """Return filters and compressor of a checked `.zarray`, in the order in which they encode."""
    compressor = zarray.get("compressor")
    return [*(zarray.get("filters") or []), *([] if compressor is None else [compressor])]


def _is_same_codec(one: dict[str, Json], other: dict[str, Json]) -> bool:
    steering = _ENCODER_MEMBERS.get(one["id"], frozenset())
    mine, its = _steering(one, steering), _steering(other, steering)
    if any(canonical(mine[member]) != canonical(its[member]) for member in mine.keys() & its.keys()):
        return False
    return canonical(_with_defaults(one, steering)) == canonical(_with_defaults(other, steering))


def _steering(codec: dict[str, Json], steering: frozenset[str]) -> dict[str, Json]:
    """Return the members that steer the encoder, without those that leave it the choice."""
    given = {member: value for member, value in codec.items() if member in steering and value is not None}
    if codec["id"] == "blosc" and given.get("shuffle") == _AUTOSHUFFLE:
        del given["shuffle"]
    return given


def _with_defaults(codec: dict[str, Json], steering: frozenset[str]) -> dict[str, Json]:
    """Return what decides on bytes, with the defaults of numcodecs; of a codec that it refuses, what it says."""
    given = {member: value for member, value in codec.items() if member not in steering}
    if codec["id"] not in ARRAY_FILTERS | BYTES_FILTERS:
        return given
    try:
        normal = numcodecs.get_codec(dict(given)).get_config()
    except Exception:  # a codec of numcodecs may raise anything about its configuration
        return given
    return {**_DEFAULTS.get(codec["id"], {}), **{m: value for m, value in normal.items() if m not in steering}}


def _names(codecs: list[dict[str, Any]]) -> str:
    return ", ".join(str(codec["id"])[:60] for codec in codecs) or "none"
