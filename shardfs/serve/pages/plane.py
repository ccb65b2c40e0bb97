"""A plane of an array, read from decoded chunk files of the tree, as any client of the server could.

Numbers of a document are claims: nothing is allocated by one that was not checked against `MAX_PIXELS` and
`MAX_DECODED_NBYTES`.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.dataset.node import DOCUMENT
from shardfs.errors import CorruptionError, NotFoundError, NotShownError, StaleError, counted, size
from shardfs.format.document import parse_json
from shardfs.format.dtype import DataType, fill_element
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.metadata import ArrayMetadata, parse_array
from shardfs.format.sharding import Coords
from shardfs.stores.base import join_key
from shardfs.stores.parallel import for_each
from shardfs.vfs.paths import Paths

MAX_PIXELS: Final = 2048
"""The largest side of a picture."""
MAX_CHUNKS: Final = 2048
"""How many chunks are read for one picture at most: finding each takes 0.3 ms, also if it is missing."""
MAX_DECODED_NBYTES: Final = 256 * 2**20
"""How much is decoded for one picture at most."""

_AT_ONCE: Final = 64
_KINDS: Final = "biufcmM"


class Decoded(NamedTuple):
    """An array as the decoded view shows it; its document may be trusted for *ttl* seconds."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: bytes
    encoding: ChunkKeyEncoding
    names: tuple[str | None, ...]
    ttl: float

    @property
    def chunk_nbytes(self) -> int:
        """Size of a decoded chunk."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize


class Samples(NamedTuple):
    """Every *step*-th element of an axis, from *start* to before *stop*."""

    start: int
    stop: int
    step: int

    @property
    def length(self) -> int:
        """How many there are."""
        return len(range(*self))

    def nchunks(self, edge: int) -> int:
        """Return in how many chunks of this *edge* they are."""
        last = self.start + (self.length - 1) * self.step
        return min(self.length, last // edge - self.start // edge + 1) if self.length else 0

    def in_chunks(self, edge: int) -> list[tuple[int, int, "Samples"]]:
        """Return for each such chunk its number, how many samples are before it, and those in it, from its start."""
        found = []
        before = 0
        while before < self.length:
            first = self.start + before * self.step
            number = first // edge
            inside = Samples(first - number * edge, min(edge, self.stop - number * edge), self.step)
            found.append((number, before, inside))
            before += inside.length
        return found


class Plane(NamedTuple):
    """The elements of a plane, where they *are_known*, and how many of its *nchunks* chunks are *missing*.

    *damage* says of the chunks that cannot be read what is wrong with the first one; *ndamaged* is their number.
    """

    elements: npt.NDArray[Any]
    are_known: npt.NDArray[np.bool_]
    nchunks: int
    missing: int
    ndamaged: int
    damage: str | None
    ttl: float


async def open_decoded(paths: Paths, path: str) -> Decoded:
    """Return the array at *path* of a decoded view; raises `NotShownError` with the reason if it cannot be drawn."""
    node = await paths.source.hierarchy.node(path)
    reason = paths.fs.view.left_out(node) or node.reason
    if reason is not None:
        raise NotShownError(reason)
    if not isinstance(node.metadata, ArrayMetadata):
        raise NotFoundError(f"{path or 'the source'} is no Zarr v3 array")
    async with paths.open(join_key(path, DOCUMENT)) as handle:
        data = await handle.read(0, handle.attributes.size)
        ttl = handle.attributes.ttl
    array = parse_array(parse_json(bytes(data)))
    edges = array.chunk_grid.configuration.get("chunk_shape")
    if array.chunk_grid.name != "regular" or not isinstance(edges, list) or [c.name for c in array.codecs] != ["bytes"]:
        raise NotShownError("its chunks are not decoded here: it is shown as it is stored")
    data_type = DataType.parse(array.document["data_type"])
    if not data_type.is_native or data_type.dtype.kind not in _KINDS:
        raise NotShownError(f"the data type {data_type.name} has no numbers that can be drawn")
    fill = fill_element(array.document["data_type"], array.document["fill_value"])
    names = tuple(array.document.get("dimension_names") or [None] * array.ndim)
    encoding = ChunkKeyEncoding.parse(array.chunk_key_encoding)
    found = Decoded(path, array.shape, tuple(edges), data_type.dtype, fill, encoding, names, ttl)
    if found.chunk_nbytes > MAX_DECODED_NBYTES:
        limit = size(MAX_DECODED_NBYTES)
        raise NotShownError(f"a decoded chunk has {size(found.chunk_nbytes)}, more than the {limit} for a picture")
    if 0 in found.shape:
        raise NotShownError("the array has no elements")
    return found


def sampled(array: Decoded, axes: Sequence[int], spans: Sequence[tuple[int, int]], pixels: int) -> list[Samples]:
    """Return which elements of these *spans* along *axes* are shown in at most *pixels* by *pixels*.

    They are fewer if more would take too many chunks.
    """
    pixels = max(1, min(pixels, MAX_PIXELS))
    most = min(MAX_CHUNKS, max(1, MAX_DECODED_NBYTES // max(array.chunk_nbytes, 1)))
    found = [Samples(start, stop, -(-(stop - start) // pixels)) for start, stop in spans]
    while True:
        nchunks = [samples.nchunks(array.chunk_shape[axis]) for axis, samples in zip(axes, found, strict=True)]
        if math.prod(nchunks) <= most:
            return found
        worst = nchunks.index(max(nchunks))
        found[worst] = found[worst]._replace(step=2 * found[worst].step)


async def read_plane(
    paths: Paths, array: Decoded, axes: Sequence[int], samples: Sequence[Samples], at: Sequence[int]
) -> Plane:
    """Read *samples* along one or two *axes*, none of a single number, at these indices *at* of the other axes.

    Elements of missing chunks have the fill value.
    """
    shape = tuple(along.length for along in samples)
    elements = np.empty(shape, array.dtype)
    are_known = np.ones(shape, np.bool_)
    elements[...] = np.frombuffer(array.fill, array.dtype)[0]
    pieces: list[tuple[tuple[int, int, Samples], ...]] = [()]
    for axis, along in zip(axes, samples, strict=True):
        pieces = [(*piece, part) for piece in pieces for part in along.in_chunks(array.chunk_shape[axis])]
    base = [index // edge for index, edge in zip(at, array.chunk_shape, strict=True)]
    strides = [math.prod(array.chunk_shape[axis + 1 :]) * array.dtype.itemsize for axis in range(len(array.shape))]
    fixed = sum(
        index % edge * stride
        for axis, (index, edge, stride) in enumerate(zip(at, array.chunk_shape, strides, strict=True))
        if axis not in axes
    )
    missing = 0
    damage: list[str] = []
    ttl = array.ttl

    async def read(piece: tuple[tuple[int, int, Samples], ...]) -> None:
        nonlocal missing, ttl
        coords, inside = list(base), [part for _, _, part in piece]
        for axis, (number, _, _) in zip(axes, piece, strict=True):
            coords[axis] = number
        target = tuple(slice(before, before + part.length) for _, before, part in piece)
        steps = [part.step * strides[axis] for axis, part in zip(axes, inside, strict=True)]
        first = fixed + sum(part.start * strides[axis] for axis, part in zip(axes, inside, strict=True))
        nbytes = sum((part.length - 1) * step for part, step in zip(inside, steps, strict=True)) + array.dtype.itemsize
        try:
            data, remaining = await _read_chunk(paths, array, tuple(coords), first, nbytes)
        except NotFoundError:
            missing += 1
            return
        except CorruptionError as error:
            damage.append(str(error))
            are_known[target] = False
            return
        ttl = min(ttl, remaining)
        counts = tuple(part.length for part in inside)
        elements[target] = np.ndarray(counts, array.dtype, data, strides=tuple(steps))

    await for_each(pieces, read, _AT_ONCE)
    if damage and len(damage) + missing == len(pieces):
        raise CorruptionError(damage[0])
    # How long something is missing for is not known, and damage may be mended at any time.
    ttl = 0.0 if missing or damage else ttl
    return Plane(elements, are_known, len(pieces), missing, len(damage), min(damage, default=None), ttl)


async def _read_chunk(
    paths: Paths, array: Decoded, coords: Coords, first: int, nbytes: int
) -> tuple[bytes | bytearray | memoryview, float]:
    """Return bytes of the decoded chunk at *coords*, and for how long it may be taken for the present."""
    path = join_key(array.path, array.encoding.encode(coords))
    async with paths.open(path) as handle:
        data = await handle.read(first, nbytes)
        if len(data) < nbytes:
            raise StaleError(f"{path} ended early")
        return data, handle.attributes.ttl


def describe(array: Decoded, samples: Sequence[Samples], plane: Plane) -> str:
    """Say in words what a plane is, and what it lacks."""
    sides = " × ".join(f"{along.stop - along.start:,}" for along in samples) or "one element"
    text = f"{sides} of {array.path or 'the array'}"
    if any(along.step > 1 for along in samples):
        text += f", one of {' × '.join(f'{along.step:,}' for along in samples)} elements shown"
    if plane.missing:
        text += f"; {plane.missing:,} of {counted(plane.nchunks, 'chunk')} not stored, shown as the fill value"
    if plane.ndamaged:
        text += f"; {counted(plane.ndamaged, 'chunk')} damaged, shown as nothing: {plane.damage}"
    return text
