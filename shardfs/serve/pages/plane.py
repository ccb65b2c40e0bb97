"""A plane of an array, read from decoded chunk files of the tree, as any client of the server could.

Numbers of a document are claims: nothing is allocated by one that was not checked against `MAX_PIXELS` and
`MAX_DECODED_NBYTES`.
"""

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import CorruptionError, NotFoundError, NotShownError, StaleError, counted, size
from shardfs.format.document import Json, parse_json
from shardfs.format.dtype import DataType, fill_element
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.metadata import ArrayMetadata, parse_array
from shardfs.serve.pages.units import shortened
from shardfs.serve.pages.variable import ATTRIBUTES, Variable
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
NUMBERS: Final = "biufcmM"
"""The kinds of dtypes of NumPy that can be drawn."""
TEXTS: Final = "SUV"
"""The kinds of those that can be read, and not drawn."""
_MAX_ATTRIBUTE: Final = 1000
_MAX_PATH, _MAX_REASON = 120, 300


class Decoded(NamedTuple):
    """An array as the decoded view shows it; its document may be trusted for *ttl* seconds.

    *meaning* is equal for documents with which the same bytes are the same picture. *variable* says what elements mean.
    """

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: bytes
    encoding: ChunkKeyEncoding
    names: tuple[str | None, ...]
    ttl: float
    meaning: Hashable
    variable: Variable

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
    """The elements of a plane, where they *are_known* and *are_stored*, and how many of its *nchunks* are *missing*.

    *damage* says of the chunks that cannot be read what is wrong with the first one; *ndamaged* is their number.
    *seen* is which version was read.
    """

    elements: npt.NDArray[Any]
    are_known: npt.NDArray[np.bool_]
    are_stored: npt.NDArray[np.bool_]
    nchunks: int
    missing: int
    ndamaged: int
    damage: str | None
    seen: "Seen"

    @property
    def element(self) -> Any:  # noqa: ANN401 - of any dtype
        """The single element of a plane without axes; None if it cannot be read."""
        return self.elements[()] if self.are_known.all() else None


class Cut(NamedTuple):
    """What is shown of an *array*: *samples* along one or two *axes*, none of a single number.

    *at* are the indices of all axes, of which those of the others count.
    """

    array: Decoded
    axes: tuple[int, ...]
    samples: tuple[Samples, ...]
    at: tuple[int, ...]

    @property
    def nchunks(self) -> int:
        """In how many chunks the samples are."""
        edges = (self.array.chunk_shape[axis] for axis in self.axes)
        return math.prod(along.nchunks(edge) for along, edge in zip(self.samples, edges, strict=True))

    def in_chunks(self) -> "list[_Piece]":
        """Return what is in each chunk."""
        array, found = self.array, [_Piece((), ())]
        for axis, along in zip(self.axes, self.samples, strict=True):
            parts = along.in_chunks(array.chunk_shape[axis])
            found = [
                _Piece((*piece.numbers, number), (*piece.parts, (before, inside)))
                for piece in found
                for number, before, inside in parts
            ]
        return found

    def path_of(self, piece: "_Piece") -> str:
        """Return the path of the chunk that has this piece."""
        array = self.array
        coords = [index // edge for index, edge in zip(self.at, array.chunk_shape, strict=True)]
        for axis, number in zip(self.axes, piece.numbers, strict=True):
            coords[axis] = number
        return join_key(array.path, array.encoding.encode(tuple(coords)))


class _Piece(NamedTuple):
    """The *numbers* of a chunk along the axes that are shown, and along each what is before its samples, and these."""

    numbers: tuple[int, ...]
    parts: tuple[tuple[int, Samples], ...]


class Seen:
    """Which version of a plane is there, as it is looked at chunk by chunk.

    *ttl* is for how many seconds it may be taken for the present.
    """

    def __init__(self, cut: Cut) -> None:
        self.ttl = cut.array.ttl
        self._cut = cut
        self._identities: dict[tuple[int, ...], Hashable] = {}

    def add(self, piece: _Piece, identity: Hashable, ttl: float) -> None:
        """Note what identifies the bytes of a chunk, None if nothing does."""
        self._identities[piece.numbers] = identity
        self.ttl = min(self.ttl, ttl)

    def add_missing(self, piece: _Piece, reason: str) -> None:
        """Note that there are no bytes; for how long is not known, and damage may be mended at any time."""
        self.add(piece, reason, 0.0)

    @property
    def version(self) -> Hashable:
        """What is equal for equal pictures of one style, in every process; None if nothing tells versions apart."""
        cut, identities = self._cut, [self._identities[numbers] for numbers in sorted(self._identities)]
        if None in identities:
            return None
        return cut.array.path, cut.array.meaning, cut.axes, cut.samples, cut.at, tuple(identities)


async def look_at(paths: Paths, cut: Cut) -> Seen:
    """Return which version of a plane is there, without reading a chunk of it."""
    seen = Seen(cut)

    async def look(piece: _Piece) -> None:
        path = cut.path_of(piece)
        try:
            async with paths.open(path) as handle:
                seen.add(piece, paths.identity_of(path, handle), handle.attributes.ttl)
        except (NotFoundError, CorruptionError) as error:
            seen.add_missing(piece, str(error))

    await for_each(cut.in_chunks(), look, _AT_ONCE)
    return seen


class _Parsed(NamedTuple):
    """What a document of the decoded view says of an array, if *reason* is None; *attributes* are those we read.

    *digest* is equal for equal documents.
    """

    digest: bytes
    reason: str | None
    array: ArrayMetadata
    attributes: Mapping[str, Json]


_KNOWN: WeakKeyDictionary[Node, _Parsed] = WeakKeyDictionary()
"""What is known of nodes: each picture and each value under a pointer asks again."""


def _read_document(data: bytes) -> _Parsed:
    """Parse a document, which may be very large: see `Hierarchy.work`."""
    array = parse_array(parse_json(data))
    found = array.document.get("attributes")
    given = found if isinstance(found, dict) else {}
    attributes = {
        name: given[name] for name in ATTRIBUTES if len(repr(given.get(name))) < _MAX_ATTRIBUTE and name in given
    }
    edges = array.chunk_grid.configuration.get("chunk_shape")
    is_plain = array.chunk_grid.name == "regular" and isinstance(edges, list)
    reason = None
    if not is_plain or [codec.name for codec in array.codecs] != ["bytes"]:
        reason = "its chunks are not decoded here: it is shown as it is stored"
    return _Parsed(
        hashlib.sha256(data).digest(), reason, replace(array, document={**array.document, "attributes": {}}), attributes
    )


async def open_decoded(paths: Paths, path: str, kinds: str = NUMBERS) -> Decoded:
    """Return the array at *path* of a decoded view, whose dtype has one of these *kinds*.

    Raises `NotShownError` with the reason if it cannot be read.
    """
    node = await paths.source.hierarchy.node(path)
    reason = paths.fs.view.skipped(node) or node.reason
    if reason is not None:
        raise NotShownError(reason)
    if not isinstance(node.metadata, ArrayMetadata):
        raise NotFoundError(f"{path or 'the source'} is no Zarr v3 array")
    document_path = join_key(path, DOCUMENT)
    ttl = (await paths.attributes(document_path)).ttl
    parsed = _KNOWN.get(node)
    if parsed is None:
        parsed = _KNOWN[node] = await paths.source.hierarchy.work(
            _read_document, bytes(await paths.read(document_path))
        )
    array, document = parsed.array, parsed.array.document
    if parsed.reason is not None:
        raise NotShownError(parsed.reason)
    data_type = DataType.parse(document["data_type"])
    if not data_type.is_native or data_type.dtype.kind not in kinds:
        raise NotShownError(f"the data type {data_type.name} has no numbers that can be drawn")
    fill = fill_element(document["data_type"], document["fill_value"])
    meaning = parsed.digest, node.any_array.fingerprint if node.any_array is not None else None
    found = Decoded(
        path,
        array.shape,
        tuple(array.chunk_grid.configuration["chunk_shape"]),
        data_type.dtype,
        fill,
        ChunkKeyEncoding.parse(array.chunk_key_encoding),
        tuple(document.get("dimension_names") or [None] * array.ndim),
        ttl,
        meaning,
        Variable.of(data_type.dtype, parsed.attributes),
    )
    if found.chunk_nbytes > MAX_DECODED_NBYTES:
        limit = size(MAX_DECODED_NBYTES)
        raise NotShownError(f"a decoded chunk has {size(found.chunk_nbytes)}, more than the {limit} for a picture")
    if 0 in found.shape:
        raise NotShownError("the array has no elements")
    return found


def sampled(
    array: Decoded, axes: Sequence[int], spans: Sequence[tuple[int, int]], pixels: int, nplanes: int = 1
) -> tuple[Samples, ...]:
    """Return which elements of these *spans* along *axes* are shown in at most *pixels* by *pixels*.

    They are fewer if more would take too many chunks, in *nplanes* planes together, and as many of each axis, so that
    nothing is out of proportion.
    """
    pixels = max(1, min(pixels, MAX_PIXELS))
    most = max(1, min(MAX_CHUNKS, MAX_DECODED_NBYTES // max(array.chunk_nbytes, 1)) // nplanes)
    step = max((-(-(stop - start) // pixels) for start, stop in spans), default=1)
    while True:
        found = [Samples(start, stop, step) for start, stop in spans]
        nchunks = [samples.nchunks(array.chunk_shape[axis]) for axis, samples in zip(axes, found, strict=True)]
        if math.prod(nchunks) <= most:
            return tuple(found)
        step *= 2


async def read_plane(paths: Paths, cut: Cut) -> Plane:
    """Read a plane; elements of missing chunks have the fill value."""
    array, axes = cut.array, cut.axes
    shape = tuple(along.length for along in cut.samples)
    elements = np.empty(shape, array.dtype)
    are_known, are_stored = np.ones(shape, np.bool_), np.ones(shape, np.bool_)
    elements[...] = np.frombuffer(array.fill, array.dtype)[0]
    strides = [math.prod(array.chunk_shape[axis + 1 :]) * array.dtype.itemsize for axis in range(len(array.shape))]
    fixed = sum(
        index % edge * stride
        for axis, (index, edge, stride) in enumerate(zip(cut.at, array.chunk_shape, strides, strict=True))
        if axis not in axes
    )
    missing = 0
    damage: list[str] = []
    seen, pieces = Seen(cut), cut.in_chunks()

    async def read(piece: _Piece) -> None:
        nonlocal missing
        inside = [part for _, part in piece.parts]
        target = tuple(slice(before, before + part.length) for before, part in piece.parts)
        steps = [part.step * strides[axis] for axis, part in zip(axes, inside, strict=True)]
        first = fixed + sum(part.start * strides[axis] for axis, part in zip(axes, inside, strict=True))
        nbytes = sum((part.length - 1) * step for part, step in zip(inside, steps, strict=True)) + array.dtype.itemsize
        path = cut.path_of(piece)
        try:
            async with paths.open(path) as handle:
                try:
                    data = await handle.read(first, nbytes)
                except CorruptionError as error:
                    damage.append(str(error))
                    are_known[target] = False
                    seen.add(piece, paths.identity_of(path, handle), 0.0)
                    return
                seen.add(piece, paths.identity_of(path, handle), handle.attributes.ttl)
        except NotFoundError as error:
            missing += 1
            are_stored[target] = False
            seen.add_missing(piece, str(error))
            return
        except CorruptionError as error:
            damage.append(str(error))
            are_known[target] = False
            seen.add_missing(piece, str(error))
            return
        if len(data) < nbytes:
            raise StaleError(f"{path} ended early")
        counts = tuple(part.length for part in inside)
        elements[target] = np.ndarray(counts, array.dtype, data, strides=tuple(steps))

    await for_each(pieces, read, _AT_ONCE)
    return Plane(elements, are_known, are_stored, len(pieces), missing, len(damage), min(damage, default=None), seen)


def describe(cut: Cut, plane: Plane) -> str:
    """Say in words what a plane is, and what is not stored of it."""
    sides = " × ".join(f"{along.stop - along.start:,}" for along in cut.samples) or "one element"
    text = f"{sides} of {shortened(cut.array.path, _MAX_PATH) or 'the array'}"
    if any(along.step > 1 for along in cut.samples):
        text += f", one of {' × '.join(f'{along.step:,}' for along in cut.samples)} elements shown"
    if plane.missing:
        text += f"; {plane.missing:,} of {counted(plane.nchunks, 'chunk')} not stored, shown as the fill value"
    return text


def describe_damage(plane: Plane, shown_as: str) -> str:
    """Say in words which chunks of a plane cannot be read, and what is *shown_as* them; "" if all can."""
    if not plane.ndamaged:
        return ""
    return f"{counted(plane.ndamaged, 'chunk')} damaged, {shown_as}: {shortened(plane.damage or '', _MAX_REASON)}"
