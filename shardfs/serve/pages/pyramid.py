"""Images of OME-Zarr: which arrays are the levels of a pyramid, and which are its labels."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardfs.dataset.node import Node
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.format.document import Json, attributes_of
from shardfs.format.lens.v2 import is_relative_path
from shardfs.stores.base import join_key

_MAX_LEVELS: Final = 32
_MAX_LABELS: Final = 32


class Image(NamedTuple):
    """What a group says of itself: the paths of its *levels*, the finest first, and the names of its *axes*.

    *is_labels*: numbers are labels of objects, and no intensities.
    """

    levels: tuple[str, ...]
    axes: tuple[str | None, ...]
    is_labels: bool


def attributes_in(node: Node) -> Mapping[str, Json] | None:
    """Return the attributes of a node; None if there is no document, or one so large that parsing it takes long."""
    if node.document is None or len(node.document) > LARGE_NBYTES:
        return None
    stored = node.stored
    return attributes_of(stored.document) if stored is not None else None


def image_in(node: Node) -> Image | None:
    """Return the image that the group *node* is, by OME-Zarr of any version; None if it is none."""
    attributes = attributes_in(node)
    if not attributes:
        return None
    own = attributes.get("ome")
    said: Mapping[str, Any] = own if isinstance(own, dict) else attributes
    match said.get("multiscales"):
        case [{"datasets": [*datasets], **others}, *_]:
            paths = [item.get("path") for item in datasets[:_MAX_LEVELS] if isinstance(item, dict)]
        case _:
            return None
    levels = tuple(join_key(node.path, path) for path in paths if isinstance(path, str) and is_relative_path(path))
    return Image(levels, _names(others.get("axes")), "image-label" in said) if levels else None


def _names(axes: object) -> tuple[str | None, ...]:
    names = [axis.get("name") if isinstance(axis, dict) else axis for axis in axes] if isinstance(axes, list) else []
    return tuple(name if isinstance(name, str) else None for name in names)


def label_paths(node: Node) -> Sequence[str]:
    """Return the paths of the images of labels that the group *node*, which is called `labels`, names."""
    attributes = attributes_in(node) or {}
    own = attributes.get("ome")
    names = (own if isinstance(own, dict) else attributes).get("labels")
    names = names[:_MAX_LABELS] if isinstance(names, list) else []
    return [join_key(node.path, name) for name in names if isinstance(name, str) and is_relative_path(name)]
