"""The attributes of a `.zattrs`: names of dimensions, missing values, and OME-Zarr 0.4 for OME-Zarr 0.5.

Names of dimensions are the attribute `_ARRAY_DIMENSIONS`.  A group whose metadata is that of OME-Zarr 0.5, in the
attribute `ome`, has the attributes of 0.4.

Sources: Zarr storage specification 2, "Attributes"; `_ARRAY_DIMENSIONS` as xarray reads and writes it; OME-NGFF
specifications 0.4 and 0.5; ome-zarr-py 0.9 and ITK's reader as observed.
"""

from typing import Any, Final

from shardfs.format.lens.v2 import missing
from shardfs.format.metadata import Document, Json
from shardfs.format.normal_form import canonical

OME: Final = "ome"
SEPARATOR: Final = "/"
"""What stands between the coordinates of chunks in version 0.4."""
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
    """Return the attributes of a group as version 0.4 has them; as they are, without metadata of 0.5."""
    metadata = _metadata(attributes)
    if metadata is None:
        return dict(attributes)
    lifted = {name: _with_version(name, value) for name, value in metadata.items() if name != _VERSION}
    return {name: value for name, value in attributes.items() if name != OME} | lifted


def stored_image_attributes(stored: Document, written: Document) -> dict[str, Json]:
    """Return the attributes of a group whose attributes in version 0.4 became *written*.

    *stored* are those that it has; without metadata of 0.5 there, what was written stays as it is.
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
    hidden = {name: value for name, value in stored.items() if name in lifted}  # nobody could see it
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
    """Return what the `.zattrs` of a v3 document holds; empty if it has none.

    Dimension names are shown if there is one for every dimension, even where an attribute has their name.
    """
    if document["node_type"] == "group":
        return image_attributes(document.get("attributes", {}))
    has_missing_value = missing.has_missing_value(document)
    attributes = missing.shown_attributes(document) if has_missing_value else dict(document.get("attributes", {}))
    names = missing.axis_names(document)
    if names is not None:
        attributes[DIMENSIONS] = list(names)
    return attributes


def with_attributes(
    document: Document, ndim: int | None, written: Document, *, keeps_missing_value: bool = False
) -> dict[str, Any]:
    """Return the v3 *document* whose `.zattrs` was replaced by *written*; the inverse of `v2_attributes`.

    *ndim* is the number of dimensions of an array, None for a group.  With *keeps_missing_value*, the missing value of
    an array stays if *written* has none.
    """
    edited = dict(document)
    if canonical(written) == canonical(v2_attributes(document)):
        return edited
    stored = document.get("attributes", {})
    if ndim is None:
        attributes = stored_image_attributes(stored, written)
        return {**edited, "attributes": attributes} if attributes or "attributes" in document else edited
    shown = missing.axis_names(document)
    attributes = dict(written)
    dimensions = written.get(DIMENSIONS)
    is_stored = shown is None and DIMENSIONS in stored and canonical(dimensions) == canonical(stored[DIMENSIONS])
    if _are_names(dimensions, ndim) and not is_stored:
        edited["dimension_names"] = dimensions
        del attributes[DIMENSIONS]
        if shown is not None and DIMENSIONS in stored:
            attributes[DIMENSIONS] = stored[DIMENSIONS]  # nobody could see it
    elif shown is not None:
        del edited["dimension_names"]
    if attributes or "attributes" in document:
        edited["attributes"] = attributes
    if missing.has_missing_value(edited):
        kept = missing.stored_attributes(document, attributes, keeps=keeps_missing_value)
        return {**edited, "attributes": kept} if kept else edited
    return edited


def _are_names(value: Json, ndim: int) -> bool:
    return isinstance(value, list) and len(value) == ndim and all(isinstance(name, str) for name in value)
