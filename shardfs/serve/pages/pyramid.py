"""Images of OME-Zarr: the levels of a pyramid, where their elements are in space, channels, and labels.

Sources: OME-NGFF 0.4 and 0.5, "multiscales", "omero", "labels". All of it are claims of a document: what means nothing
is skipped.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from shardfs.dataset.node import Node
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.format.document import Json, attributes_of
from shardfs.format.lens.v2 import is_relative_path
from shardfs.serve.pages.coordinates import Axis
from shardfs.serve.pages.query import MAX_CHANNELS
from shardfs.serve.pages.units import shortened, symbol
from shardfs.stores.base import join_key

_MAX_LEVELS: Final = 32
_MAX_LABELS: Final = 32
_MAX_CHANNELS: Final = 64
_MAX_NAME: Final = 40
_COLOR: Final = re.compile(r"#?([0-9A-Fa-f]{6})([0-9A-Fa-f]{2})?")
_CHANNEL_AXES: Final = frozenset({"c", "channel", "rgb", "rgba", "color", "colour"})

Color = tuple[int, int, int]
_USUAL: Final[Sequence[Color]] = (
    (255, 0, 255), (0, 255, 0), (0, 255, 255), (255, 255, 0), (255, 0, 0), (60, 120, 255), (255, 140, 0),
    (255, 255, 255),
)  # fmt: skip
RGB: Final[Sequence[Color]] = ((255, 0, 0), (0, 255, 0), (0, 0, 255))


class Channel(NamedTuple):
    """A channel of an image: its name, the *color* of the largest numbers, and the *window* that is shown, if any."""

    name: str
    color: Color
    window: tuple[float, float] | None = None
    is_active: bool = True


class Channels(NamedTuple):
    """The channels along an *axis*; they *are_colors* if they are red, green and blue of a picture."""

    axis: int
    channels: tuple[Channel, ...]
    are_colors: bool = False

    @property
    def usual(self) -> tuple[int, ...]:
        """Those that are shown at first; if there are none, one alone is shown, in the colours of numbers."""
        return tuple(number for number, channel in enumerate(self.channels) if channel.is_active)[:MAX_CHANNELS]


class Image(NamedTuple):
    """What a group says of itself: the paths of its *levels*, the finest first, and the names and units of its *axes*.

    *steps* and *firsts* say for each level how far elements are apart along each axis, and where the first one is.
    *is_labels*: numbers are labels of objects, and no intensities.
    """

    levels: tuple[str, ...]
    axes: tuple[str | None, ...]
    is_labels: bool
    units: tuple[str, ...] = ()
    steps: tuple[tuple[float, ...] | None, ...] = ()
    firsts: tuple[tuple[float, ...] | None, ...] = ()
    channels: tuple[Channel, ...] = ()

    def axis(self, plain: Axis, number: int, level: str) -> Axis:
        """Return an axis of a level with its place in space; as it is if the image does not tell."""
        at = self.levels.index(level) if level in self.levels else 0
        steps, firsts = self.steps[at], self.firsts[at]
        name = self.axes[number] if number < len(self.axes) else None
        unit = self.units[number] if number < len(self.units) else ""
        named = replace(plain, name=shortened(name)) if name and plain.name.startswith("axis ") else plain
        if steps is None or number >= len(steps) or not unit:
            return named
        return replace(named, unit=unit, step=steps[number], first=firsts[number] if firsts is not None else 0.0)


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
            found = [item for item in datasets[:_MAX_LEVELS] if isinstance(item, dict) and _is_level(item.get("path"))]
        case _:
            return None
    if not found:
        return None
    levels = tuple(join_key(node.path, item["path"]) for item in found)
    axes = others.get("axes")
    common = _transformation(others.get("coordinateTransformations"))
    placed = [_combined(_transformation(item.get("coordinateTransformations")), common) for item in found]
    return Image(
        levels,
        _names(axes),
        "image-label" in said,
        tuple(symbol(axis.get("unit")) if isinstance(axis, dict) else "" for axis in axes)
        if isinstance(axes, list)
        else (),
        tuple(scale for scale, _ in placed),
        tuple(translation for _, translation in placed),
        _channels(said.get("omero")),
    )


def _is_level(path: object) -> bool:
    return isinstance(path, str) and is_relative_path(path)


def _names(axes: object) -> tuple[str | None, ...]:
    names = [axis.get("name") if isinstance(axis, dict) else axis for axis in axes] if isinstance(axes, list) else []
    return tuple(name if isinstance(name, str) else None for name in names)


Placed = tuple[tuple[float, ...] | None, tuple[float, ...] | None]


def _transformation(given: object) -> Placed:
    """Return scale and translation of a list of transformations; None for what it has not."""
    scale = translation = None
    for item in given if isinstance(given, list) else []:
        match item:
            case {"type": "scale", "scale": [*numbers]} if all(map(_is_finite, numbers)) and all(numbers):
                scale = tuple(map(float, numbers))
            case {"type": "translation", "translation": [*numbers]} if all(map(_is_finite, numbers)):
                translation = tuple(map(float, numbers))
    return scale, translation


def _combined(own: Placed, common: Placed) -> Placed:
    """Return what a transformation does, followed by that of all levels."""
    (scale, translation), (factor, offset) = own, common
    if scale is None:
        return factor, offset
    if factor is not None and len(factor) == len(scale):
        scale = tuple(a * b for a, b in zip(scale, factor, strict=True))
        translation = tuple(a * b for a, b in zip(translation, factor, strict=False)) if translation else None
    if offset is not None and len(offset) == len(scale):
        translation = tuple(a + b for a, b in zip(translation or [0.0] * len(scale), offset, strict=False))
    return scale, translation if translation is not None and len(translation) == len(scale) else None


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 1e300 and not math.isnan(value)  # type: ignore[arg-type]


def _channels(omero: object) -> tuple[Channel, ...]:
    given = omero.get("channels") if isinstance(omero, dict) else None
    found = []
    for number, item in enumerate(given[:_MAX_CHANNELS] if isinstance(given, list) else []):
        said: Mapping[str, Any] = item if isinstance(item, dict) else {}
        label, color, window = said.get("label"), said.get("color"), said.get("window")
        match window:
            case {"start": start, "end": end} if _is_finite(start) and _is_finite(end) and start < end:
                ends: tuple[float, float] | None = (float(start), float(end))
            case _:
                ends = None
        parsed = _COLOR.fullmatch(color) if isinstance(color, str) else None
        red, green, blue = bytes.fromhex(parsed[1]) if parsed is not None else _USUAL[number % len(_USUAL)]
        name = shortened(label, _MAX_NAME) if isinstance(label, str) and label else f"channel {number}"
        found.append(Channel(name, (red, green, blue), ends, said.get("active") is not False))
    return tuple(found)


def channels_of(
    image: Image | None, names: Sequence[str | None], shape: Sequence[int], kind: str, nbytes: int
) -> Channels | None:
    """Return the channels of an array whose axes have these names, and numbers of a *kind* of *nbytes*; None if none.

    Three or four channels of bytes are the colours of a picture if the axis says so, or is the last and has no name.
    """
    if kind not in "iufb" or (image is not None and image.is_labels):
        return None
    axis = next(
        (number for number, name in enumerate(names) if name is not None and name.lower() in _CHANNEL_AXES), None
    )
    said = image.channels if image is not None else ()
    if axis is None:
        is_picture = len(shape) == 3 and names[-1] is None and shape[-1] in (3, 4) and min(shape[:2]) >= _LEAST_SIDE
        if not (is_picture and kind == "u" and nbytes == 1) or said:
            return None
        axis = len(shape) - 1
    if said:
        known = said[: shape[axis]]
        return Channels(axis, known) if known else None
    name = (names[axis] or "").lower()
    are_colors = name in ("rgb", "rgba", "color", "colour") or axis == len(shape) - 1
    if are_colors and shape[axis] in (3, 4) and kind in "uf":
        window = (0.0, 255.0) if kind == "u" and nbytes == 1 else None
        colors = zip(("red", "green", "blue"), RGB, strict=True)
        return Channels(axis, tuple(Channel(name, color, window) for name, color in colors), are_colors=True)
    if 1 < shape[axis] <= MAX_CHANNELS:
        usual = tuple(Channel(f"channel {number}", _USUAL[number], None, False) for number in range(shape[axis]))
        return Channels(axis, usual)
    return None


_LEAST_SIDE: Final = 16


def label_paths(node: Node) -> Sequence[str]:
    """Return the paths of the images of labels that the group *node*, which is called `labels`, names."""
    attributes = attributes_in(node) or {}
    own = attributes.get("ome")
    names = (own if isinstance(own, dict) else attributes).get("labels")
    names = names[:_MAX_LABELS] if isinstance(names, list) else []
    return [join_key(node.path, name) for name in names if isinstance(name, str) and is_relative_path(name)]
