"""Zarr v2 documents of arrays and groups that are stored as Zarr v3, and what a program wrote over them, back.

Chunks stay as they are, byte for byte: a v3 codec chain either has a v2 form with the same bytes, or none.

Source: Zarr storage specification 2; `.zmetadata` as zarr-python 2 writes it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError
from shardfs.format.dtype import (
    MAX_ITEM_NBYTES,
    VLEN_SERIALIZERS,
    DataType,
    parse_v2_dtype,
    type_name,
    v2_dtype,
    v3_data_type,
)
from shardfs.format.fill_value import (
    check_vlen_fill_value,
    default_fill_value,
    fill_element,
    v2_fill_element,
    v2_fill_value,
    v3_fill_value,
)
from shardfs.format.lens.consolidated import every_copy, inline_copies
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v2.attributes import SEPARATOR, is_image, v2_attributes, with_attributes
from shardfs.format.lens.v2.codecs import Elements, codecs_of, object_data_type, v2_codecs, v3_codecs
from shardfs.format.lens.v2.documents import (
    ZARRAY,
    ZATTRS,
    ZGROUP,
    ZMETADATA,
    is_relative_path,
    parse_zarray,
    parse_zattrs,
    parse_zgroup,
    require_same_encoding,
    require_separator,
)
from shardfs.format.lens.v2.missing import (
    FILL_VALUE,
    fill_values,
    has_missing_value,
    missing_value,
    naming_no_axes,
    said_fill_value,
    saying_fill_value,
    saying_nothing,
    says_fill_value,
    with_missing_value,
)
from shardfs.format.metadata import (
    MAX_DOCUMENT_NBYTES,
    ArrayMetadata,
    Document,
    GroupMetadata,
    Json,
    brief,
    parse_array,
    parse_group,
    parse_lengths,
    parse_node,
)


def array_documents(array: ArrayMetadata, separator: str, *, shows_missing: bool = False) -> dict[str, dict[str, Any]]:
    """Return `.zarray`, and `.zattrs` if there are attributes, of an unsharded v3 array with a regular chunk grid.

    *separator* is the dimension separator.  With *shows_missing* the fill value is the missing value, as xarray takes
    it, if the array may have one.  Raises `NotShownError` with the reason why the array has no v2 form.
    """
    try:
        return _with_attributes({ZARRAY: _zarray(array, separator, shows_missing)}, array.document)
    except MetadataError as error:
        raise NotShownError(str(error)) from None


def can_show_missing(stored: ArrayMetadata) -> bool:
    """Whether the fill value of the array *stored* can be that of missing values, if it may have them.

    It cannot be if chunks without a file would be taken for missing values, and none can be made to stand for them.
    """
    try:
        fill_values(describe(stored))
    except (NotShownError, NotUnshardable):
        return False
    return True


def group_documents(
    group: GroupMetadata,
    separator: str,
    present: Callable[[ArrayMetadata], Json],
    *,
    in_image: bool = False,
    fills_missing: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return `.zgroup`, `.zattrs` if there are attributes, and `.zmetadata` if the group is consolidated.

    *present* gives the unsharded v3 document that stands for the copy of an array, or raises `NotShownError` or
    `NotUnshardable`; a copy without a v2 form is left out.  There is no `.zmetadata` if the paths of copies within
    copies would make it many times as long as the group's own document.  *in_image* says that the group belongs to an
    OME-Zarr image, *fills_missing* that the fill values of arrays outside of images are their missing values.
    """
    documents = _with_attributes({ZGROUP: {"zarr_format": 2}}, group.document)
    if inline_copies(group.document) is not None:
        metadata: dict[str, Any] = dict(documents)
        room = MAX_DOCUMENT_NBYTES
        images = {path for path, copy in every_copy(group.document) if isinstance(copy, dict) and is_image(copy)}
        for path, copy in every_copy(group.document):
            room -= len(path)
            if room < 0:
                return documents
            if is_relative_path(path):
                is_in_image = in_image or not images.isdisjoint(_groups_above(path))
                fills, between = (False, SEPARATOR) if is_in_image else (fills_missing, separator)
                described = _copy_documents(copy, between, present, fills_missing=fills, in_image=is_in_image)
                for name, document in described.items():
                    metadata.setdefault(f"{path}/{name}", document)
        documents[ZMETADATA] = {"zarr_consolidated_format": 1, "metadata": metadata}
    return documents


def _chunk_shape(array: ArrayMetadata) -> tuple[int, ...]:
    """Return the chunk shape of an array with a regular chunk grid."""
    if array.chunk_grid.name != "regular":
        raise NotShownError(f"a chunk grid that is {brief(array.chunk_grid.name)} has no Zarr v2 form")
    shape = array.chunk_grid.configuration.get("chunk_shape")
    return parse_lengths(shape, "chunk_shape", minimum=1, ndim=array.ndim)


def _zarray(array: ArrayMetadata, separator: str, shows_missing: bool) -> dict[str, Any]:
    data_type, chunk_shape = array.document["data_type"], _chunk_shape(array)
    serializer = VLEN_SERIALIZERS.get(type_name(data_type))
    dtype = DataType.parse(data_type).dtype if serializer is None else np.dtype(object)
    codecs = v2_codecs(array.codecs, Elements.of(chunk_shape, dtype))
    if codecs.serializer != serializer and (serializer or codecs.serializer in VLEN_SERIALIZERS.values()):
        raise NotShownError(f"the codec {codecs.serializer} of {type_name(data_type)} has no Zarr v2 form")
    return {
        "chunks": list(chunk_shape),
        "compressor": codecs.compressor,
        "dimension_separator": separator,
        "dtype": v2_dtype(data_type, codecs.endian),
        "fill_value": _shown_fill_value(array.document, shows_missing=shows_missing),
        "filters": list(codecs.filters) or None,
        "order": codecs.order,
        "shape": list(array.shape),
        "zarr_format": 2,
    }


def _shown_fill_value(document: Document, *, shows_missing: bool) -> Json:
    """Return the `fill_value` of the `.zarray` that stands for an array's *document*."""
    if shows_missing and has_missing_value(document):
        return missing_value(document)
    if says_fill_value(document):
        return said_fill_value(document)
    data_type, fill_value = document["data_type"], document["fill_value"]
    if type_name(data_type) not in VLEN_SERIALIZERS:
        parsed = DataType.parse(data_type)
        return v2_fill_value(parsed.dtype, fill_element(parsed, fill_value))
    text = check_vlen_fill_value(data_type, fill_value)
    # Of bytes, zarr-python 2 would take text for text, which its filter refuses to encode.
    return text if type_name(data_type) == "string" else None


def _with_attributes(documents: dict[str, dict[str, Any]], document: Document) -> dict[str, dict[str, Any]]:
    attributes = v2_attributes(document)
    return {**documents, ZATTRS: attributes} if attributes else documents


def _groups_above(path: str) -> list[str]:
    """Return the paths of the groups that a node belongs to, which may be one itself."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _copy_documents(
    copy: Json,
    separator: str,
    present: Callable[[ArrayMetadata], Json],
    *,
    fills_missing: bool,
    in_image: bool,
) -> dict[str, dict[str, Any]]:
    """Return the documents of a copy, which belongs to an image or not; none if it has no v2 form."""
    try:
        node = parse_node(copy)
        if isinstance(node, GroupMetadata):
            return _with_attributes({ZGROUP: {"zarr_format": 2}}, node.document)
        if not in_image:
            node = replace(node, document=naming_no_axes(node.document))
        shown = parse_array(present(node))
        return array_documents(shown, separator, shows_missing=fills_missing and can_show_missing(node))
    except (MetadataError, NotShownError, NotUnshardable):
        return {}


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
        return parse_array(with_missing_value(document, zarray["fill_value"]))
    if zarray["fill_value"] is not None:
        is_point = not shown.shape and says_fill_value(document)
        document = saying_nothing(document)
        document["fill_value"] = _edited_fill_value(shown, zarray["fill_value"])
        if is_point:  # so that it goes on having no names
            document = saying_fill_value(document, zarray["fill_value"])
    return parse_array(document)


def edit_group(shown: GroupMetadata, name: str, written: bytes | None) -> GroupMetadata:
    """Return *shown* with what a program changed in its `.zgroup` or `.zattrs`, on the terms of `edit_array`.

    Of `.zmetadata` only the removal is an edit here; see `parse_consolidated`.
    """
    if name == ZATTRS:
        attributes = {} if written is None else parse_zattrs(written)
        return parse_group(with_attributes(shown.document, None, attributes))
    if name == ZGROUP and written is not None:
        parse_zgroup(written)
        return shown
    if name == ZMETADATA and written is None:
        return parse_group(
            {member: value for member, value in shown.document.items() if member != "consolidated_metadata"}
        )
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
        array = parse_array(_new_document(written))
        is_null = written["fill_value"] is None and array_documents(array, separator)[ZARRAY]["fill_value"] is not None
        if is_null or not array.shape:
            array = parse_array(saying_fill_value(array.document, written["fill_value"]))
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
    return parse_group(with_attributes(document, None, {} if zattrs is None else parse_zattrs(zattrs)))


def edit_attributes(shown: ArrayMetadata, attributes: Document, *, shows_missing: bool) -> ArrayMetadata:
    """Return *shown* with other attributes; its `.zarray` goes on showing the fill value that it shows.

    With names of dimensions an array may have missing values, and without it may not.
    """
    before = shown.document
    document = with_attributes(before, shown.ndim, attributes, keeps_missing_value=shows_missing)
    had, has = has_missing_value(before), has_missing_value(document)
    if shows_missing and had != has:
        fill_value = _shown_fill_value(before, shows_missing=True)
        if has and FILL_VALUE not in attributes:
            document = with_missing_value(document, fill_value)
        elif had:
            document = saying_fill_value(document, fill_value)
    return parse_array(document)


def _edited_fill_value(shown: ArrayMetadata, written: Json) -> Json:
    """Return the fill value that *written* stands for, in the spelling that is stored if it is that one."""
    stored, data_type = shown.document["fill_value"], shown.document["data_type"]
    if type_name(data_type) in VLEN_SERIALIZERS:
        return _vlen_fill_value(data_type, written)
    parsed = DataType.parse(data_type)
    element, was = v2_fill_element(parsed.dtype, written), fill_element(parsed, stored)
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
    return v2_fill_element(dtype, [value.real, value.imag])


def _vlen_fill_value(data_type: Json, written: Json) -> str:
    """Return the v3 fill value of elements that vary in size; zarr-python 2 writes null or 0 as a default."""
    is_default = written is None or (type(written) is int and not written)
    return check_vlen_fill_value(data_type, "" if is_default else written)


def _new_document(zarray: dict[str, Json]) -> dict[str, Any]:
    codecs = codecs_of(zarray)
    dtype = parse_v2_dtype(zarray["dtype"])
    chunk_shape = tuple(zarray["chunks"])
    data_type: Json
    if dtype.hasobject:
        data_type = object_data_type(codecs)
        fill_value: Json = _vlen_fill_value(data_type, zarray["fill_value"])
    else:
        if dtype.itemsize > MAX_ITEM_NBYTES:
            raise NotUnshardable(f"elements of {dtype.itemsize} bytes are larger than the {MAX_ITEM_NBYTES} of shardfs")
        data_type = v3_data_type(dtype)
        plain = dtype.newbyteorder("<")
        fill_value = (
            default_fill_value(plain)
            if zarray["fill_value"] is None
            else v3_fill_value(data_type, plain, v2_fill_element(plain, zarray["fill_value"]))
        )
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": zarray["shape"],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": v3_codecs(
            codecs, zarray["order"], "big" if dtype.str[0] == ">" else "little", Elements.of(chunk_shape, dtype)
        ),
        "attributes": {},
    }
