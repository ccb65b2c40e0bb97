"""Zarr v2 documents as bytes: what is one, and when two of them say the same.

Libraries add members of codecs that numcodecs has defaults for, drop those that say nothing, and spell the absence of
filters and of a dimension separator in several ways.

Sources: Zarr storage specification 2, "Metadata"; `.zmetadata` as zarr-python 2 writes it; zarr-python 2.18,
zarr-python 3.1 and tensorstore 0.1 as observed.
"""

from collections.abc import Callable
from typing import Any, Final

from shardfs.errors import MetadataError, RefusedError
from shardfs.format.codecs import is_in_order
from shardfs.format.dtype import parse_v2_dtype
from shardfs.format.fill_value import v2_fill_element
from shardfs.format.lens.consolidated import MAX_PATH_LENGTH
from shardfs.format.lens.v2.codecs import codecs_of, is_same_codec
from shardfs.format.lens.v2.missing import (
    FILL_VALUE,
)
from shardfs.format.metadata import (
    MAX_NDIM,
    Document,
    Json,
    brief,
    parse_json,
    parse_lengths,
)
from shardfs.format.normal_form import canonical

ZARRAY: Final = ".zarray"
ZGROUP: Final = ".zgroup"
ZATTRS: Final = ".zattrs"
ZMETADATA: Final = ".zmetadata"
V2_NAMES: Final = frozenset({ZARRAY, ZGROUP, ZATTRS, ZMETADATA})
_REQUIRED: Final = ("shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters")


def parse_zarray(written: bytes) -> dict[str, Json]:
    """Read the bytes of a `.zarray`; members that are not the specification's are kept, and mean nothing.

    Raises `MetadataError`.
    """
    return _check_zarray(parse_json(written))


def parse_zgroup(written: bytes) -> dict[str, Json]:
    """Read the bytes of a `.zgroup`; raises `MetadataError`."""
    return _check_zgroup(parse_json(written))


def parse_zattrs(written: bytes) -> dict[str, Json]:
    """Read the bytes of a `.zattrs`; raises `MetadataError`."""
    return _object(parse_json(written))


def parse_consolidated(written: bytes) -> dict[str, dict[str, Json]]:
    """Return the copies of documents in a `.zmetadata`, by path relative to the group ("" is itself) and name.

    Raises `MetadataError` for what is none, or has names and paths that are none.
    """
    document = _object(parse_json(written))
    version = document.get("zarr_consolidated_format")
    if type(version) is not int or version != 1:
        raise MetadataError(f"zarr_consolidated_format must be 1, not {brief(version)}")
    copies: dict[str, dict[str, Json]] = {}
    for key, copy in _object(document.get("metadata")).items():
        path, _, name = key.rpartition("/")
        if name not in _CHECKS or ("/" in key and not is_relative_path(path)):
            raise MetadataError(f"the key {brief(key)} of consolidated metadata is that of no document")
        copies.setdefault(path, {})[name] = _CHECKS[name](copy)
    return copies


def check_document(name: str, written: bytes) -> None:
    """Raise `MetadataError` if *written* is no v2 document of this name, which is stored as it is written."""
    if name == ZMETADATA:
        parse_consolidated(written)
    else:
        _CHECKS[name](parse_json(written))


def _check_zarray(document: Json) -> dict[str, Json]:
    zarray = _check_zgroup(document)
    missing = [member for member in _REQUIRED if member not in zarray]
    if missing:
        raise MetadataError(f"required members are missing: {', '.join(missing)}")
    shape = parse_lengths(zarray["shape"], "shape", minimum=0)
    if len(shape) > MAX_NDIM:
        raise MetadataError(f"the array has {len(shape)} axes, more than {MAX_NDIM}")
    parse_lengths(zarray["chunks"], "chunks", minimum=0, ndim=len(shape))
    parse_v2_dtype(zarray["dtype"])
    if zarray["order"] not in ("C", "F"):
        raise MetadataError(f'order must be "C" or "F", not {brief(zarray["order"])}')
    if zarray.get("dimension_separator") not in (None, ".", "/"):
        raise MetadataError(f'dimension_separator must be "." or "/", not {brief(zarray["dimension_separator"])}')
    filters = zarray["filters"]
    if filters is not None and not isinstance(filters, list):
        raise MetadataError(f"filters must be a list of codecs or null, not {brief(filters)}")
    for codec in [*(filters or []), *([] if zarray["compressor"] is None else [zarray["compressor"]])]:
        if not isinstance(codec, dict) or not isinstance(codec.get("id"), str):
            raise MetadataError(f"a codec must be an object with an id, not {brief(codec)}")
    return zarray


def _check_zgroup(document: Json) -> dict[str, Json]:
    zgroup = _object(document)
    if type(zgroup.get("zarr_format")) is not int or zgroup["zarr_format"] != 2:
        raise MetadataError(f"zarr_format must be 2, not {brief(zgroup.get('zarr_format'))}")
    return zgroup


def _object(document: Json) -> dict[str, Json]:
    if not isinstance(document, dict):
        raise MetadataError(f"the document must be an object, not {brief(document)}")
    return document


_CHECKS: Final[dict[str, Callable[[Json], dict[str, Json]]]] = {
    ZARRAY: _check_zarray,
    ZGROUP: _check_zgroup,
    ZATTRS: _object,
}


def require_same_encoding(shown: Document, written: Document) -> None:
    """Raise `RefusedError` if *written* differs from *shown* in where chunks lie or what they mean.

    Both are checked `.zarray` documents.  Fill values may differ, and so may lengths of the array.
    """
    chunks = shown["chunks"]
    if len(written["shape"]) != len(shown["shape"]):
        raise RefusedError(f"{len(written['shape'])} axes instead of {len(shown['shape'])}")
    if written["chunks"] != chunks:
        raise RefusedError(f"chunks {brief(tuple(written['chunks']))} instead of {brief(tuple(chunks))}")
    if parse_v2_dtype(written["dtype"]) != parse_v2_dtype(shown["dtype"]):
        raise RefusedError(f"dtype {brief(written['dtype'])} instead of {brief(shown['dtype'])}")
    if written["order"] != shown["order"] and not is_in_order(range(len(chunks))[::-1], chunks):
        raise RefusedError(f"order {brief(written['order'])} instead of {brief(shown['order'])}")
    require_separator(written, shown["dimension_separator"])
    old, new = codecs_of(shown), codecs_of(written)
    if [codec["id"] for codec in old] != [codec["id"] for codec in new]:
        raise RefusedError(f"filters and compressor {_names(new)} instead of {_names(old)}")
    for was, codec in zip(old, new, strict=True):
        if not is_same_codec(was, codec):
            raise RefusedError(f"the codec {canonical(codec)[:120]} instead of {canonical(was)[:120]}")


def says_the_same(name: str, one: bytes, other: bytes) -> bool:
    """Whether two documents *name* say the same, in whatever spelling.

    *one* is as it is shown.  *other* may omit the missing value from a `.zattrs`, as xarray does: the `.zarray` has it.
    """
    try:
        if name != ZMETADATA:
            for text in (one, other):
                check_document(name, text)
            return _is_same_document(name, parse_json(one), parse_json(other))
        these, those = _copies(one), _copies(other)
        return these.keys() == those.keys() and all(
            _is_same_document(key[1], copy, those[key]) for key, copy in these.items()
        )
    except (MetadataError, RefusedError):
        return False


def _copies(zmetadata: bytes) -> dict[tuple[str, str], Json]:
    """Return the copies in a `.zmetadata` by path and name, without those that say nothing."""
    found = parse_consolidated(zmetadata).items()
    return {(path, name): copy for path, copies in found for name, copy in copies.items() if copy or name != ZATTRS}


def _is_same_document(name: str, one: Json, other: Json) -> bool:
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
    dtype, values = parse_v2_dtype(one["dtype"]), (one["fill_value"], other["fill_value"])
    if canonical(values[0]) == canonical(values[1]):
        return True
    if None in values or dtype.hasobject:
        return False
    plain = dtype.newbyteorder("<")
    return v2_fill_element(plain, values[0]) == v2_fill_element(plain, values[1])


def require_separator(written: Document, separator: str) -> None:
    """Raise `RefusedError` if a `.zarray` asks for another dimension separator than *separator*.

    One that does not say is accepted, and any one of an array with fewer than two axes: its chunk keys have none.
    """
    asked = written.get("dimension_separator")
    if asked is not None and asked != separator and len(written["shape"]) > 1:
        raise RefusedError(
            f"the dimension separator is {brief(asked)}, and {brief(separator)} in this mount: "
            f"write with dimension_separator={separator!r}, or mount with --dimension-separator {asked} "
            "(but an OME-Zarr image has / in any mount: write that with '/')"
        )


def _names(codecs: list[dict[str, Any]]) -> str:
    return ", ".join(str(codec["id"])[:60] for codec in codecs) or "none"


def is_relative_path(path: str) -> bool:
    """Whether *path* names a node below a group, by names that a filesystem can have."""
    return len(path) <= MAX_PATH_LENGTH and all(
        part not in ("", ".", "..") and "\0" not in part for part in path.split("/")
    )
