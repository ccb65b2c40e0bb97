"""Attributes in a `.zattrs`, where the names of dimensions are the attribute `_ARRAY_DIMENSIONS`.

Those of a group with metadata of OME-Zarr 0.5 are those of 0.4, and an array may have a missing value.

Source: Zarr storage specification 2, "Attributes"; `_ARRAY_DIMENSIONS` as xarray reads and writes it.
"""

from typing import Any, Final

from shardfs.format import v2_images, v2_missing
from shardfs.format.metadata import Document, Json
from shardfs.format.normal_form import canonical

DIMENSIONS: Final = "_ARRAY_DIMENSIONS"


def v2_attributes(document: Document) -> dict[str, Json]:
    """Return what the `.zattrs` of a v3 document holds; empty if it has none.

    Dimension names are shown if there is one for every dimension, even where an attribute has their name.
    """
    if document["node_type"] == "group":
        return v2_images.shown_attributes(document.get("attributes", {}))
    has_missing_value = v2_missing.has_missing_value(document)
    attributes = v2_missing.shown_attributes(document) if has_missing_value else dict(document.get("attributes", {}))
    names = _shown_names(document)
    if names is not None:
        attributes[DIMENSIONS] = list(names)
    return attributes


def with_attributes(
    document: Document, ndim: int | None, written: Document, *, keeps_missing_value: bool = False
) -> dict[str, Any]:
    """Return the v3 *document* whose `.zattrs` was replaced by *written*; the inverse of `v2_attributes`.

    *ndim* is the number of dimensions that can have names, None in a group.  With *keeps_missing_value*, that of an
    array stays where *written* says nothing of one.
    """
    edited = dict(document)
    if canonical(written) == canonical(v2_attributes(document)):
        return edited
    stored = document.get("attributes", {})
    if ndim is None:
        attributes = v2_images.stored_attributes(stored, written)
        return {**edited, "attributes": attributes} if attributes or "attributes" in document else edited
    shown = _shown_names(document)
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
    if v2_missing.has_missing_value(edited):
        kept = v2_missing.stored_attributes(document, attributes, keeps=keeps_missing_value)
        return {**edited, "attributes": kept} if kept else edited
    return edited


def _shown_names(document: Document) -> list[str] | None:
    names = document.get("dimension_names")
    return names if isinstance(names, list) and None not in names else None


def _are_names(value: Json, ndim: int) -> bool:
    return isinstance(value, list) and len(value) == ndim and all(isinstance(name, str) for name in value)
