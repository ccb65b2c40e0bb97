"""Zarr v2 documents that a program wrote, as edits of the Zarr v3 documents that they stand for."""

from typing import Any

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError
from shardfs.format.data_type import MAX_ITEM_NBYTES, DataType
from shardfs.format.fill_value import fill_element
from shardfs.format.metadata import ArrayMetadata, Document, GroupMetadata, Json, brief, parse_node
from shardfs.format.v2_attributes import with_attributes
from shardfs.format.v2_codecs import Elements
from shardfs.format.v2_documents import (
    ZARRAY,
    ZATTRS,
    ZGROUP,
    ZMETADATA,
    array_documents,
    can_show_missing,
    shown_fill_value,
)
from shardfs.format.v2_fill_values import default_fill_value, parse_fill_value, v3_fill_value
from shardfs.format.v2_missing import (
    FILL_VALUE,
    has_missing_value,
    saying_fill_value,
    saying_nothing,
    says_fill_value,
    with_missing_value,
)
from shardfs.format.v2_new_codecs import object_data_type, v3_codecs
from shardfs.format.v2_normal_form import codecs_of, require_same_encoding, require_separator
from shardfs.format.v2_parsing import check_document, parse_consolidated, parse_zarray, parse_zattrs, parse_zgroup
from shardfs.format.v2_types import VLEN_SERIALIZERS, parse_dtype, type_name, v3_data_type

__all__ = [
    "check_document",
    "edit_array",
    "edit_attributes",
    "edit_group",
    "new_array",
    "new_group",
    "parse_consolidated",
]


def edit_array(
    shown: ArrayMetadata, name: str, written: bytes | None, separator: str, *, shows_missing: bool = False
) -> ArrayMetadata:
    """Return *shown*, an unsharded v3 document, with what a program changed in its document *name*.

    It is shown as `array_documents` shows it, with the same *separator* and *shows_missing*.  Shape, fill value and
    attributes may change, and `_ARRAY_DIMENSIONS`, which become dimension names.  Without *written*, a `.zattrs` was
    removed.  Raises `RefusedError` for anything else, and `MetadataError` for what is no such document.
    """
    if name == ZATTRS:
        attributes = {} if written is None else parse_zattrs(written)
        return edit_attributes(shown, attributes, shows_missing=shows_missing)
    if name != ZARRAY or written is None:
        raise RefusedError(f"{name} of an array cannot be changed so")
    zarray = parse_zarray(written)
    try:
        require_same_encoding(array_documents(shown, separator, shows_missing=shows_missing)[ZARRAY], zarray)
    except NotShownError as error:
        raise RefusedError(str(error)) from None
    document = {**shown.document, "shape": zarray["shape"]}
    if shows_missing and has_missing_value(document):
        return _array(with_missing_value(document, zarray["fill_value"]))
    if zarray["fill_value"] is not None:
        is_point = not shown.shape and says_fill_value(document)
        document = saying_nothing(document)
        document["fill_value"] = _edited_fill_value(shown, zarray["fill_value"])
        if is_point:  # so that it goes on having no names
            document = saying_fill_value(document, zarray["fill_value"])
    return _array(document)


def edit_group(shown: GroupMetadata, name: str, written: bytes | None) -> GroupMetadata:
    """Return *shown* with what a program changed in its `.zgroup` or `.zattrs`, on the terms of `edit_array`.

    Of `.zmetadata` only the removal is an edit here; see `parse_consolidated`.
    """
    if name == ZATTRS:
        attributes = {} if written is None else parse_zattrs(written)
        return _group(with_attributes(shown.document, None, attributes))
    if name == ZGROUP and written is not None:
        parse_zgroup(written)
        return shown
    if name == ZMETADATA and written is None:
        return _group({member: value for member, value in shown.document.items() if member != "consolidated_metadata"})
    raise RefusedError(f"{name} of a group cannot be changed so")


def new_array(zarray: bytes, zattrs: bytes | None, separator: str, *, fills_missing: bool = False) -> ArrayMetadata:
    """Return the unsharded v3 document of an array that a program wrote as v2, so that chunks keep their bytes.

    Raises `NotUnshardable` with the reason why there is none, `RefusedError` for another dimension separator than
    *separator*, and `MetadataError` for what is no such document.
    """
    written = parse_zarray(zarray)
    attributes = {} if zattrs is None else parse_zattrs(zattrs)
    require_separator({**written, "dimension_separator": written.get("dimension_separator") or "."}, separator)
    if 0 in written["chunks"]:
        raise NotUnshardable("chunks of length 0 have no Zarr v3 form")
    try:
        array = _array(_new_document(written))
        is_null = written["fill_value"] is None and array_documents(array, separator)[ZARRAY]["fill_value"] is not None
        if is_null or not array.shape:
            array = _array(saying_fill_value(array.document, written["fill_value"]))
        array = edit_attributes(array, attributes, shows_missing=fills_missing and can_show_missing(array))
        # What was stored must show as it was written: its writer goes on with what it reads.
        require_same_encoding(array_documents(array, separator)[ZARRAY], written)
    except (MetadataError, NotShownError, RefusedError) as error:
        raise NotUnshardable(str(error)) from None
    return array


def new_group(zgroup: bytes, zattrs: bytes | None) -> GroupMetadata:
    """Return the v3 document of a group that a program wrote as v2; raises `MetadataError`."""
    parse_zgroup(zgroup)
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    return _group(with_attributes(document, None, {} if zattrs is None else parse_zattrs(zattrs)))


def edit_attributes(shown: ArrayMetadata, attributes: Document, *, shows_missing: bool) -> ArrayMetadata:
    """Return *shown* with other attributes; its `.zarray` goes on showing the fill value that it shows.

    With names of dimensions an array may have missing values, and without it may not.
    """
    before = shown.document
    document = with_attributes(before, shown.ndim, attributes, keeps_missing_value=shows_missing)
    had, has = has_missing_value(before), has_missing_value(document)
    if shows_missing and had != has:
        fill_value = shown_fill_value(before, shows_missing=True)
        if has and FILL_VALUE not in attributes:
            document = with_missing_value(document, fill_value)
        elif had:
            document = saying_fill_value(document, fill_value)
    return _array(document)


def _edited_fill_value(shown: ArrayMetadata, written: Json) -> Json:
    """Return the fill value that *written* stands for, in the spelling that is stored if it is that one."""
    stored, data_type = shown.document["fill_value"], shown.document["data_type"]
    if type_name(data_type) in VLEN_SERIALIZERS:
        return _vlen_fill_value(data_type, written)
    parsed = DataType.parse(data_type)
    element, was = parse_fill_value(parsed.dtype, written), fill_element(parsed, stored)
    if element in (was, _as_zarr_python_2(parsed.dtype, was)):
        return stored
    return v3_fill_value(data_type, parsed.dtype, element)


def _as_zarr_python_2(dtype: np.dtype[Any], element: bytes) -> bytes:
    """Return what zarr-python 2 takes an element for, and writes again, though nobody changed it.

    It adds the parts of a complex number, and so makes a NaN of a part beside an infinity.
    """
    if dtype.kind != "c":
        return element
    real, imaginary = np.frombuffer(element, f"<f{dtype.itemsize // 2}").tolist()
    value = real + 1j * imaginary
    return parse_fill_value(dtype, [value.real, value.imag])


def _vlen_fill_value(data_type: Json, written: Json) -> str:
    """Return the fill value of elements that vary in size: text as it is, of bytes only none."""
    if written is None or (type(written) is int and not written):
        return ""  # as zarr-python 2 writes a default
    if not isinstance(written, str) or (written and type_name(data_type) != "string"):
        raise MetadataError(f"the fill value {brief(written)} is none of {type_name(data_type)}")
    return written


def _new_document(zarray: dict[str, Json]) -> dict[str, Any]:
    codecs = codecs_of(zarray)
    dtype = parse_dtype(zarray["dtype"])
    chunk_shape = tuple(zarray["chunks"])
    data_type: Json
    if dtype.hasobject:
        data_type = object_data_type(codecs)
        elements = Elements(chunk_shape, 1, "|O")
        fill_value: Json = _vlen_fill_value(data_type, zarray["fill_value"])
    else:
        if dtype.itemsize > MAX_ITEM_NBYTES:
            raise NotUnshardable(f"elements of {dtype.itemsize} bytes are larger than the {MAX_ITEM_NBYTES} of shardfs")
        data_type = v3_data_type(dtype)
        elements = Elements(chunk_shape, dtype.itemsize, dtype.str)
        plain = dtype.newbyteorder("<")
        fill_value = (
            default_fill_value(plain)
            if zarray["fill_value"] is None
            else v3_fill_value(data_type, plain, parse_fill_value(plain, zarray["fill_value"]))
        )
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": zarray["shape"],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": v3_codecs(codecs, zarray["order"], "big" if dtype.str[0] == ">" else "little", elements),
        "attributes": {},
    }


def _array(document: dict[str, Any]) -> ArrayMetadata:
    node = parse_node(document)
    if not isinstance(node, ArrayMetadata):
        raise MetadataError("the document is not one of an array")
    return node


def _group(document: dict[str, Any]) -> GroupMetadata:
    node = parse_node(document)
    if not isinstance(node, GroupMetadata):
        raise MetadataError("the document is not one of a group")
    return node
