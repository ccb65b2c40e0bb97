"""What a `.zattrs` says, and the fill value of a `.zarray`: dimension names, missing values, and OME-Zarr 0.4 for 0.5.

Each is a pair: `v2_attributes` and `with_attributes`, `shown_fill_value` and `with_fill_value`.

Dimension names are the attribute `_ARRAY_DIMENSIONS`. A group with metadata of OME-Zarr 0.5, in the attribute `ome`,
gets the attributes of version 0.4. Sources: Zarr storage specification 2, "Attributes"; `_ARRAY_DIMENSIONS` as xarray
reads and writes it; OME-NGFF specifications 0.4 and 0.5; ome-zarr-py 0.9 and ITK's reader as observed.

xarray takes the `fill_value` of a `.zarray` as the missing value. In v3 the missing value is the attribute
`_FillValue`: base64 of a little-endian float64 for floats, a number or text for other types. In a `.zattrs` it is a
number, as for netCDF-C; text there crashes libnetcdf 4.10. Sources: xarray 2025.1 and 2026.9 as observed; netCDF-C 4.9
and 4.10 as observed.
"""

import base64
import struct
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.codecs import FillCodec
from shardfs.format.document import Document, Json, attributes_of, brief, canonical
from shardfs.format.dtype import (
    DataType,
    fill_element,
    item_nbytes,
    parse_element,
    type_name,
    v2_fill_element,
    v2_fill_value,
    v3_fill_value,
)
from shardfs.format.lens import FillValues
from shardfs.format.lens.unsharded import UnshardedArray

OME: Final = "ome"
SEPARATOR: Final = "/"
"""The dimension separator of version 0.4."""
_VERSION: Final = "version"
_V04: Final = "0.4"
_NAMES: Final = frozenset(
    {"multiscales", "omero", "labels", "plate", "well", "series", "bioformats2raw.layout", "image-label"}
)
_WITH_VERSION: Final = frozenset({"multiscales", "plate", "well", "image-label"})


def is_image(document: Document) -> bool:
    """Whether a group's document has metadata of OME-Zarr 0.5."""
    return _metadata(document.get("attributes")) is not None


def image_attributes(attributes: Document) -> dict[str, Json]:
    """Return the attributes of a group as version 0.4 has them; unchanged without metadata of 0.5."""
    metadata = _metadata(attributes)
    if metadata is None:
        return dict(attributes)
    lifted = {name: _with_version(name, value) for name, value in metadata.items() if name != _VERSION}
    return {name: value for name, value in attributes.items() if name != OME} | lifted


def stored_image_attributes(stored: Document, written: Document) -> dict[str, Json]:
    """Return the attributes of a group whose version 0.4 attributes became *written*.

    *stored* are the present ones; if they have no metadata of 0.5, what was written stays as it is.
    """
    metadata = _metadata(stored)
    if metadata is None:
        return dict(written)
    lifted = metadata.keys() - {_VERSION}
    names = lifted | (_NAMES - stored.keys())
    shown = image_attributes(stored)
    edited: dict[str, Json] = {name: value for name, value in metadata.items() if name == _VERSION}
    for name, value in written.items():
        if name in names:
            is_same = name in metadata and canonical(value) == canonical(shown[name])
            edited[name] = metadata[name] if is_same else _without_version(name, value)
    attributes = {name: value for name, value in written.items() if name not in names and name != OME}
    hidden = {name: value for name, value in stored.items() if name in lifted}  # not shown
    return {**attributes, **hidden, OME: edited}


def _metadata(attributes: Json) -> dict[str, Any] | None:
    metadata = attributes.get(OME) if isinstance(attributes, dict) else None
    return metadata if isinstance(metadata, dict) else None


def _with_version(name: str, value: Json) -> Json:
    if name not in _WITH_VERSION:
        return value
    if isinstance(value, list):
        return [{**item, _VERSION: _V04} if isinstance(item, dict) else item for item in value]
    return {**value, _VERSION: _V04} if isinstance(value, dict) else value


def _without_version(name: str, value: Json) -> Json:
    if name not in _WITH_VERSION:
        return value
    if isinstance(value, list):
        return [_without_version(name, item) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict):
        return value
    return {member: part for member, part in value.items() if (member, part) != (_VERSION, _V04)}


DIMENSIONS: Final = "_ARRAY_DIMENSIONS"


def v2_attributes(document: Document) -> dict[str, Json]:
    """Return the `.zattrs` of a v3 document; empty if there is nothing in it.

    Dimension names are shown if every dimension has one, and replace an attribute of their name.
    """
    if document["node_type"] == "group":
        return image_attributes(attributes_of(document))
    attributes = shown_attributes(document) if has_missing_value(document) else dict(attributes_of(document))
    names = axis_names(document)
    if names is not None:
        attributes[DIMENSIONS] = list(names)
    return attributes


def with_attributes(document: Document, written: Document, *, shows_missing: bool = False) -> dict[str, Any]:
    """Return the v3 *document* whose `.zattrs` was replaced by *written*; the inverse of `v2_attributes`.

    With dimension names, an array may have missing values. One that gets names has the missing value that its `.zarray`
    showed, if that *shows_missing*; without names, the fill value is the stored one, and the missing value is kept
    until there are names again.
    """
    if canonical(written) == canonical(v2_attributes(document)):
        return dict(document)
    if document["node_type"] == "group":
        return _having(document, stored_image_attributes(attributes_of(document), written))
    edited, attributes = _with_names(document, written)
    had, has, kept = has_missing_value(document), has_missing_value(edited), said(document)
    if has:
        attributes = stored_attributes(document, attributes, keeps=shows_missing)
    edited = _having(edited, attributes)
    if not shows_missing or had == has:
        return edited
    if had:
        return saying(edited, **{**kept, "missing_value": missing_value(document)})
    value = kept.pop("missing_value") if "missing_value" in kept else shown_fill_value(document, shows_missing=True)
    edited = saying(edited, **kept)
    return edited if FILL_VALUE in written else _with_missing_value(edited, value)


def _having(document: Document, attributes: Document) -> dict[str, Any]:
    return {**document, "attributes": attributes} if attributes or "attributes" in document else dict(document)


def _with_names(document: Document, written: Document) -> tuple[dict[str, Any], dict[str, Json]]:
    """Return an array's *document* with the dimension names in the attributes *written*, and all other attributes."""
    edited, attributes, stored = dict(document), dict(written), attributes_of(document)
    shown, names = axis_names(document), written.get(DIMENSIONS)
    is_stored = shown is None and DIMENSIONS in stored and canonical(names) == canonical(stored[DIMENSIONS])
    if _are_names(names, len(document["shape"])) and not is_stored:
        edited["dimension_names"] = names
        del attributes[DIMENSIONS]
        if shown is not None and DIMENSIONS in stored:
            attributes[DIMENSIONS] = stored[DIMENSIONS]  # not shown
    elif shown is not None:
        del edited["dimension_names"]
    return edited, attributes


def _are_names(value: Json, ndim: int) -> bool:
    return isinstance(value, list) and len(value) == ndim and all(isinstance(name, str) for name in value)


FILL_VALUE: Final = "_FillValue"
SAYS: Final = "shardfs:v2"
_NUMBERS: Final = "iuf"
_KINDS: Final = _NUMBERS + "bcSUT"  # for which xarray can write it


def has_missing_value(document: Document) -> bool:
    """Whether the `fill_value` of an array's `.zarray` is its missing value: if all of its axes have names."""
    dtype = _dtype(document["data_type"])
    return dtype is not None and dtype.kind in _KINDS and axis_names(document) is not None


def axis_names(document: Document) -> list[str] | None:
    """Return the names of an array's axes; None unless all have one."""
    names = document.get("dimension_names")
    return names if isinstance(names, list) and None not in names else None


def naming_no_axes(document: Document) -> dict[str, Any]:
    """Return the document of an array outside images; one without axes gets an empty list of names.

    xarray omits the empty list in v3 documents, but requires it in v2. A document that came from v2 without names
    says so by what it keeps, and stays as it is.
    """
    if document["shape"] or document.get("dimension_names") is not None or said(document):
        return dict(document)
    return {**document, "dimension_names": []}


def saying(document: Document, **members: Json) -> dict[str, Any]:
    """Return an array's document that keeps just *members* for its v2 documents.

    `fill_value` is the one of its `.zarray`, such as null, which v3 does not have: null would come back as zero, and
    xarray would take zeros, with which most coordinates begin, for missing values. `missing_value` is the one that the
    array had when its axes had names: programs remove a `.zattrs` before they write it, without a missing value.
    """
    rest = {name: value for name, value in document.items() if name != SAYS}
    return {**rest, SAYS: {"must_understand": False, **members}} if members else rest


def said(document: Document) -> dict[str, Json]:
    """Return what an array's document keeps for its v2 documents; see `saying`."""
    members = document.get(SAYS)
    return {name: members[name] for name in members if name != "must_understand"} if isinstance(members, dict) else {}


def missing_value(document: Document) -> Json:
    """Return the missing value of an array as the `fill_value` of a `.zarray`; null if there is none."""
    element = _stored_element(document)
    return None if element is None else v2_fill_value(document["data_type"], element)


def shown_fill_value(document: Document, *, shows_missing: bool) -> Json:
    """Return the `fill_value` of the `.zarray` for an array's *document*."""
    if shows_missing and has_missing_value(document):
        return missing_value(document)
    kept = said(document)
    if "fill_value" in kept:
        return kept["fill_value"]
    return v2_fill_value(document["data_type"], fill_element(document["data_type"], document["fill_value"]))


def with_fill_value(document: Document, written: Json, *, shows_missing: bool) -> dict[str, Any]:
    """Return an array's document with another `fill_value` of its `.zarray`; the inverse of `shown_fill_value`.

    Null is no missing value, and changes no fill value. Raises `MetadataError` if it is invalid for the data type.
    """
    if shows_missing and has_missing_value(document):
        return _with_missing_value(document, written)
    if written is None:
        return dict(document)
    stored, data_type, kept = document["fill_value"], document["data_type"], said(document)
    element, was = v2_fill_element(data_type, written), fill_element(data_type, stored)
    dtype = DataType.parse(data_type).dtype
    if dtype.kind == "c" and element != was:
        # zarr-python 2 adds the parts of a complex number, so a part beside an infinity becomes NaN.
        real, imaginary = np.frombuffer(was, f"<f{dtype.itemsize // 2}").tolist()
        value = real + 1j * imaginary
        was = v2_fill_element(data_type, [value.real, value.imag])
    if element != was:
        kept.pop("missing_value", None)
        stored = v3_fill_value(data_type, element)
    if document["shape"]:
        kept.pop("fill_value", None)
    elif "fill_value" in kept:  # so that it still has no names
        kept["fill_value"] = written
    return saying({**document, "fill_value": stored}, **kept)


def _with_missing_value(document: Document, written: Json) -> dict[str, Any]:
    data_type = document["data_type"]
    element = None if written is None else v2_fill_element(data_type, written)
    if element == _stored_element(document):
        return dict(document)
    attributes = {name: value for name, value in attributes_of(document).items() if name != FILL_VALUE}
    if element is not None:
        attributes[FILL_VALUE] = _attribute(data_type, element)
    return {**document, "attributes": attributes}


def shown_attributes(document: Document) -> dict[str, Json]:
    """Return the attributes of an array with its missing value in the form for a `.zattrs`.

    In an array of numbers, a missing value that is no number is skipped; see `odd_missing_value`.
    """
    attributes = dict(attributes_of(document))
    if FILL_VALUE in attributes:
        shown = _shown(document)
        if shown is None:
            del attributes[FILL_VALUE]
        else:
            attributes[FILL_VALUE] = shown
    return attributes


def stored_attributes(document: Document, written: Document, *, keeps: bool) -> dict[str, Json]:
    """Return the attributes of an array whose `.zattrs` became *written*; the inverse of `shown_attributes`.

    If it *keeps* the missing value, that stays unless *written* has one: xarray reads it from the `.zarray`, and writes
    it there. Raises `MetadataError` if it is invalid for the data type.
    """
    attributes = dict(written)
    stored = attributes_of(document)
    missing = attributes.get(FILL_VALUE)
    before = [canonical(value) for value in (stored.get(FILL_VALUE), _shown(document)) if value is not None]
    if (missing is None and keeps and before) or canonical(missing) in before:
        attributes[FILL_VALUE] = stored[FILL_VALUE]
    elif missing is not None:
        data_type = document["data_type"]
        element = _element(data_type, missing)
        if element is None:
            raise MetadataError(f"the {FILL_VALUE} {brief(missing)} is not a value of {brief(type_name(data_type))}")
        attributes[FILL_VALUE] = _attribute(data_type, element)
    return attributes


def odd_missing_value(document: Document) -> str | None:
    """Return what is wrong with the missing value of an array; None if nothing is."""
    attributes = attributes_of(document)
    if not has_missing_value(document) or FILL_VALUE not in attributes or _stored_element(document) is not None:
        return None
    what, data_type = brief(attributes[FILL_VALUE]), brief(type_name(document["data_type"]))
    return f"its {FILL_VALUE} {what} is not a value of {data_type}: no value is shown as missing"


def fill_values(shown: UnshardedArray) -> FillValues:
    """Return the fill values of an array that has a missing value.

    Raises `NotShownError` if the two differ, and chunks of the stored one cannot be encoded.
    """
    data_type = shown.document["data_type"]
    try:
        stored, missing = fill_element(data_type, shown.document["fill_value"]), _stored_element(shown.document)
        elements = stored, bytes(item_nbytes(data_type) or 0) if missing is None else missing
        is_one = missing == stored
        codec = None if is_one else FillCodec.parse(data_type, shown.grid.chunk_shape, shown.codecs, *elements)
    except MetadataError as error:
        raise NotShownError(str(error)) from None
    return FillValues(*elements, codec)


def _shown(document: Document) -> Json:
    """Return the missing value in the form for a `.zattrs`; None if there is none, or it is skipped."""
    value, data_type = attributes_of(document).get(FILL_VALUE), document["data_type"]
    dtype = _dtype(data_type)
    if dtype is None or dtype.kind not in _NUMBERS:
        return value
    element = _element(data_type, value)
    return None if element is None else np.frombuffer(element, dtype)[0].item()


def _dtype(data_type: Json) -> np.dtype[Any] | None:
    """Return a data type of NumPy; None for others."""
    found = DataType.find(data_type)
    return found.dtype if found is not None and found.is_native else None


def _stored_element(document: Document) -> bytes | None:
    value = attributes_of(document).get(FILL_VALUE)
    return None if value is None else _element(document["data_type"], value)


def _element(data_type: Json, value: Json) -> bytes | None:
    """Return the element in the attribute, of a v3 document or a `.zattrs`; None if it is invalid."""
    dtype = _dtype(data_type)
    if dtype is None:
        return None
    match dtype.kind:
        case "f":
            return parse_element(dtype, _number(value))
        case "c":
            is_pair = isinstance(value, list) and len(value) == 2
            return parse_element(dtype, [_number(part) for part in value]) if is_pair else None
        case "i" | "u" | "b" | "U" | "T":
            return parse_element(dtype, value)
        case "S":
            return parse_element(dtype, value) if isinstance(value, str) else None
        case _:
            return None


def _number(value: Json) -> Json:
    """Return the number in base64 of a float64; other values as they are, hexadecimal bits as None."""
    if not isinstance(value, str):
        return value
    try:
        (number,) = struct.unpack("<d", base64.b64decode(value, validate=True))
    except (ValueError, struct.error):
        return None if value.startswith("0x") else value
    return float(number)


def _attribute(data_type: Json, element: bytes) -> Json:
    """Return the attribute of a v3 document for *element* of a type that can have one."""
    dtype = DataType.parse(data_type).dtype
    match dtype.kind:
        case "f":
            return _base64(element, dtype)
        case "c":
            half = np.dtype(f"<f{dtype.itemsize // 2}")
            return [_base64(element[: half.itemsize], half), _base64(element[half.itemsize :], half)]
        case _:
            return v2_fill_value(data_type, element)


def _base64(element: bytes, dtype: np.dtype[Any]) -> str:
    return base64.b64encode(np.frombuffer(element, dtype).astype("<f8").tobytes()).decode("ascii")
