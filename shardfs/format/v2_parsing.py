"""Zarr v2 documents as bytes: what is one, and what is none.

Source: Zarr storage specification 2, "Metadata"; `.zmetadata` as zarr-python 2 writes it.
"""

from collections.abc import Callable
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.metadata import MAX_NDIM, Json, brief, parse_json, parse_lengths
from shardfs.format.v2_documents import ZARRAY, ZATTRS, ZGROUP, ZMETADATA, is_relative_path
from shardfs.format.v2_types import parse_dtype

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
    parse_dtype(zarray["dtype"])
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
