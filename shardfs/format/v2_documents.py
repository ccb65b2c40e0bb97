"""Zarr v2 documents of arrays and groups that are stored as Zarr v3.

Chunks stay as they are, byte for byte: a v3 codec chain either has a v2 form with the same bytes, or none.

Source: Zarr storage specification 2; `dimension_names` as `_ARRAY_DIMENSIONS`, as xarray reads and writes it;
`.zmetadata` as zarr-python 2 writes it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.consolidated import MAX_PATH_LENGTH, every_copy, inline_copies
from shardfs.format.data_type import DataType
from shardfs.format.fill_value import fill_element
from shardfs.format.metadata import (
    MAX_DOCUMENT_NBYTES,
    ArrayMetadata,
    Document,
    GroupMetadata,
    Json,
    brief,
    parse_lengths,
    parse_node,
)
from shardfs.format.unshard import describe
from shardfs.format.v2_attributes import v2_attributes
from shardfs.format.v2_codecs import Elements, v2_codecs
from shardfs.format.v2_fill_values import v2_fill_value
from shardfs.format.v2_images import SEPARATOR, is_image
from shardfs.format.v2_missing import (
    fill_values,
    has_missing_value,
    missing_value,
    naming_no_axes,
    said_fill_value,
    says_fill_value,
)
from shardfs.format.v2_types import VLEN_SERIALIZERS, type_name, v2_dtype

ZARRAY: Final = ".zarray"
ZGROUP: Final = ".zgroup"
ZATTRS: Final = ".zattrs"
ZMETADATA: Final = ".zmetadata"
V2_NAMES: Final = frozenset({ZARRAY, ZGROUP, ZATTRS, ZMETADATA})


def array_documents(array: ArrayMetadata, separator: str, *, shows_missing: bool = False) -> dict[str, dict[str, Any]]:
    """Return `.zarray`, and `.zattrs` if there are attributes, of an unsharded v3 array with a regular chunk grid.

    *separator* is the dimension separator; *shows_missing* makes the fill value that of missing values, as xarray
    takes it, if the array may have them.  Raises `NotShownError` with the reason why the array has no v2 form.
    """
    try:
        return _with_attributes({ZARRAY: _zarray(array, separator, shows_missing)}, array.document)
    except MetadataError as error:
        raise NotShownError(str(error)) from None


def can_show_missing(stored: ArrayMetadata) -> bool:
    """Whether the fill value of the array *stored* can be that of missing values, if it may have them.

    It cannot be where chunks that are not there would be taken for such values, and no others can be made.
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
    `NotUnshardable`; a copy without a v2 form is left out.  There is no `.zmetadata` where the paths of copies within
    copies would make it many times as long as the group's own document.  *in_image*: the group belongs to an OME-Zarr
    image; *fills_missing*: the fill values of arrays that do not are those of missing values.
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


def is_relative_path(path: str) -> bool:
    """Whether *path* names a node below a group, by names that a filesystem can have."""
    return len(path) <= MAX_PATH_LENGTH and all(
        part not in ("", ".", "..") and "\0" not in part for part in path.split("/")
    )


def chunk_shape_of(array: ArrayMetadata) -> tuple[int, ...]:
    """Return the chunk shape of an array with a regular chunk grid."""
    if array.chunk_grid.name != "regular":
        raise NotShownError(f"a chunk grid that is {brief(array.chunk_grid.name)} has no Zarr v2 form")
    shape = array.chunk_grid.configuration.get("chunk_shape")
    return parse_lengths(shape, "chunk_shape", minimum=1, ndim=array.ndim)


def elements_of(array: ArrayMetadata) -> Elements:
    """Return what codecs of *array* may have to know of the elements; raises `NotShownError`."""
    data_type = array.document["data_type"]
    if type_name(data_type) in VLEN_SERIALIZERS:
        return Elements(chunk_shape_of(array), 1, "|O")
    dtype = DataType.parse(data_type).dtype
    return Elements(chunk_shape_of(array), dtype.itemsize, dtype.str)


def _zarray(array: ArrayMetadata, separator: str, shows_missing: bool) -> dict[str, Any]:
    data_type = array.document["data_type"]
    codecs = v2_codecs(array.codecs, elements_of(array))
    serializer = VLEN_SERIALIZERS.get(type_name(data_type))
    if serializer is not None and codecs.serializer != serializer:
        raise NotShownError(f"the codec {codecs.serializer} of {type_name(data_type)} has no Zarr v2 form")
    if serializer is None and codecs.serializer in VLEN_SERIALIZERS.values():
        raise NotShownError(f"the codec {codecs.serializer} of {brief(type_name(data_type))} has no Zarr v2 form")
    return {
        "chunks": list(chunk_shape_of(array)),
        "compressor": codecs.compressor,
        "dimension_separator": separator,
        "dtype": v2_dtype(data_type, codecs.endian),
        "fill_value": shown_fill_value(array.document, shows_missing=shows_missing),
        "filters": list(codecs.filters) or None,
        "order": codecs.order,
        "shape": list(array.shape),
        "zarr_format": 2,
    }


def shown_fill_value(document: Document, *, shows_missing: bool) -> Json:
    """Return the `fill_value` of the `.zarray` that stands for an array's *document*."""
    if shows_missing and has_missing_value(document):
        return missing_value(document)
    if says_fill_value(document):
        return said_fill_value(document)
    data_type, fill_value = document["data_type"], document["fill_value"]
    if type_name(data_type) not in VLEN_SERIALIZERS:
        parsed = DataType.parse(data_type)
        return v2_fill_value(parsed.dtype, fill_element(parsed, fill_value))
    if not isinstance(fill_value, str):
        raise MetadataError(f"the fill value {brief(fill_value)} is none of {type_name(data_type)}")
    if type_name(data_type) == "string":
        return fill_value
    if fill_value:
        raise NotShownError("bytes as a fill value have no Zarr v2 form")
    return None  # zarr-python 2 would take text for text, which its filter refuses to encode


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
        shown = parse_node(present(node))
        if not isinstance(shown, ArrayMetadata):
            return {}
        return array_documents(shown, separator, shows_missing=fills_missing and can_show_missing(node))
    except (MetadataError, NotShownError, NotUnshardable):
        return {}
