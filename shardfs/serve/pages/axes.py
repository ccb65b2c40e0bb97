"""Finding the coordinates of the axes of an array.

By the rule of xarray, an array of one axis that has the name of a dimension, in the same group, has its coordinates. An
image of OME-Zarr has `coordinateTransformations` instead. Everything else is counted in indices.
"""

import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy.typing as npt

from shardfs.errors import NotFoundError, NotShownError, ShardfsError
from shardfs.format.fence import contained
from shardfs.format.lens.v2 import is_relative_path
from shardfs.serve.pages import units
from shardfs.serve.pages.coordinates import Axis
from shardfs.serve.pages.plane import NUMBERS, TEXTS, Cut, Decoded, Samples, look_at, open_decoded, read_plane
from shardfs.serve.pages.pyramid import Image
from shardfs.serve.pages.query import PARTS
from shardfs.serve.pages.units import shortened
from shardfs.stores.base import join_key
from shardfs.stores.parallel import for_each
from shardfs.vfs.paths import Paths

MAX_LENGTH: Final = 2**18
"""How many coordinates are read at most: those of a longer axis stay indices."""
MAX_CHUNKS: Final = 64
"""From how many chunks."""
MAX_NBYTES: Final = 8 * 2**20
"""And how large they are together."""

_MAX_AXES: Final = 8
_KINDS: Final = (*NUMBERS, *TEXTS)


@dataclass(frozen=True)
class Axes:
    """The axes of an array, and the *versions* of the arrays that have their coordinates, valid for *ttl* seconds."""

    axes: tuple[Axis, ...]
    versions: tuple[Hashable, ...] = ()
    ttl: float = math.inf
    is_known: bool = True

    def __getitem__(self, number: int) -> Axis:
        """Return an axis by its number."""
        return self.axes[number]


async def find_axes(
    paths: Paths, base: Decoded, names: Sequence[str | None], image: Image | None, *, reads: bool = True
) -> Axes:
    """Return the axes of an array, or of the image of which it is a level; unless it *reads*, only the versions.

    What cannot be read is counted, and a note says why.
    """
    plain = [
        Axis(shortened(name) if name else f"axis {number}", length)
        for number, (name, length) in enumerate(zip(names, base.shape, strict=True))
    ]
    if image is not None:
        return Axes(tuple(image.axis(axis, number, base.path) for number, axis in enumerate(plain)))
    places = _places(base, names)
    found: dict[int, Axis] = {}
    versions: dict[int, Hashable] = {}
    ttls = [math.inf]

    async def look(number: int) -> None:
        try:
            with contained(places[number]):
                answer = await coordinates(paths, places[number], plain[number], reads=reads)
            found[number], versions[number], ttl = answer
            ttls.append(ttl)
        except NotFoundError:
            versions[number] = "none"
        except ShardfsError as error:
            versions[number] = str(error)
            ttls.append(0.0)
            found[number] = replace(
                plain[number], note=f"no coordinates of {plain[number].name}: {shortened(str(error), 200)}"
            )

    await for_each(places, look, _MAX_AXES)
    axes = tuple(found.get(number, axis) for number, axis in enumerate(plain))
    return Axes(axes, tuple(versions[number] for number in places), min(ttls), None not in versions.values())


def _places(base: Decoded, names: Sequence[str | None]) -> dict[int, str]:
    """Return where there may be coordinates, by the number of the axis."""
    group = base.path.rpartition("/")[0]
    plain = ((number, name) for number, name in enumerate(names) if name and is_relative_path(name) and "/" not in name)
    found = {number: join_key(group, name) for number, name in plain}
    return {number: path for number, path in list(found.items())[:_MAX_AXES] if path != base.path}


async def foresee_axes(paths: Paths, base: Decoded, names: Sequence[str | None], image: Image | None) -> None:
    """Read the documents of coordinates, which a picture of the array needs: it then waits for them no more."""

    async def look(path: str) -> None:
        with suppress(ShardfsError):
            await open_decoded(paths, path, "".join(_KINDS))

    await for_each(_places(base, names).values() if image is None else (), look, _MAX_AXES)


async def coordinates(paths: Paths, path: str, axis: Axis, *, reads: bool = True) -> tuple[Axis, Hashable, float]:
    """Return an axis with the coordinates that the array at *path* has, their version, and for how long that is one.

    Unless it *reads*, as it is. Raises `NotFoundError` if the array is not as long, and the errors of the tree.
    """
    array = await open_decoded(paths, path, "".join(_KINDS))
    if array.shape != (axis.length,):
        raise NotFoundError(f"{path} has not the coordinates of the axis")
    cut = Cut(array, (0,), (Samples(0, axis.length, 1),), (0,))
    is_large = axis.length > MAX_LENGTH or axis.length * array.dtype.itemsize > MAX_NBYTES
    if is_large or cut.nchunks > MAX_CHUNKS:
        raise NotShownError(f"{axis.length:,} of them in {cut.nchunks:,} chunks are not read")
    if not reads:
        seen = await look_at(paths, cut)
        return axis, seen.version, seen.ttl
    plane = await read_plane(paths, cut)
    if plane.damage is not None:
        raise NotShownError(plane.damage)
    return described(axis, array, plane.elements), plane.seen.version, plane.seen.ttl


def described(axis: Axis, array: Decoded, elements: npt.NDArray[Any]) -> Axis:
    """Return *axis* with the *elements* of the *array* that has its coordinates."""
    variable, kind = array.variable, array.dtype.kind
    if kind == "M":
        native = units.in_milliseconds(elements)
        return replace(axis, values=variable.numbers(elements, PARTS[0]) if native is None else native)
    if kind not in "iufb":
        return replace(axis, values=elements)
    numbers = variable.numbers(elements, PARTS[0])
    if variable.since is not None:
        times = units.decoded_times(numbers, *variable.since)
        if times is not None:
            return replace(axis, values=times)
        since, calendar = variable.since
        return replace(axis, values=numbers, unit=shortened(f"{since} ({calendar})" if calendar else since))
    name = array.path.rpartition("/")[2].lower()
    is_bare = variable.unit in ("", "°")
    if variable.north or (is_bare and name in ("lat", "latitude")):
        return replace(axis, values=numbers, unit="°", kind="north")
    if variable.east or (is_bare and name in ("lon", "longitude")):
        return replace(axis, values=numbers, unit="°", kind="east")
    return replace(axis, values=numbers, unit=variable.unit)
