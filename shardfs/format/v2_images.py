"""OME-Zarr: groups whose metadata is that of version 0.5, in the attribute `ome`, with the attributes of version 0.4.

Source: OME-NGFF specifications 0.4 and 0.5; ome-zarr-py 0.9 and ITK's reader as observed.
"""

from typing import Any, Final

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


def shown_attributes(attributes: Document) -> dict[str, Json]:
    """Return the attributes of a group as version 0.4 has them; as they are, without metadata of 0.5."""
    metadata = _metadata(attributes)
    if metadata is None:
        return dict(attributes)
    lifted = {name: _with_version(name, value) for name, value in metadata.items() if name != _VERSION}
    return {name: value for name, value in attributes.items() if name != OME} | lifted


def stored_attributes(stored: Document, written: Document) -> dict[str, Json]:
    """Return the attributes of a group whose attributes in version 0.4 became *written*.

    *stored* are those that it has; without metadata of 0.5 there, what was written stays as it is.
    """
    metadata = _metadata(stored)
    if metadata is None:
        return dict(written)
    lifted = metadata.keys() - {_VERSION}
    names = lifted | (_NAMES - stored.keys())
    shown = shown_attributes(stored)
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
