"""Chunk grids and chunk keys: how each axis of an array is divided into chunks, and the names of the chunks.

`ChunkGrid`, one `Dimension` per axis, covers every grid that shardfs knows: `regular`, `rectilinear` and
`zarrs.regular_bounded`. A chunk is always stored in its full size, even where it extends beyond the array.

Sources: Zarr core specification 3.1, "Regular grids" and "Chunk key encoding" (`default`, `v2`); the rectilinear chunk
grid extension; seed design "Unified Chunk Grid", version 6.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.document import MAX_LENGTH, Extension, Json, brief, parse_length, parse_lengths

_MAX_DIGITS: Final = 19  # as many as 2**63 - 1 has; a longer name is no coordinate, and int() of it would be slow


@dataclass(frozen=True)
class Dimension:
    """One axis of a chunk grid: *runs* of (edge length, number of chunks); the last chunk may extend beyond *extent*.

    Lengths and positions are in array elements. A run of a billion chunks costs as much as a run of two.
    """

    runs: tuple[tuple[int, int], ...]
    extent: int

    def __post_init__(self) -> None:
        if self._element_starts[-1] < self.extent:
            raise MetadataError(f"the chunks of an axis do not cover its {self.extent} elements")

    @classmethod
    def regular(cls, edge: int, extent: int) -> "Dimension":
        """Return an axis with chunks of one length."""
        return cls(((edge, MAX_LENGTH),), extent)

    @cached_property
    def _index_starts(self) -> list[int]:
        return list(accumulate((count for _, count in self.runs), initial=0))

    @cached_property
    def _element_starts(self) -> list[int]:
        return list(accumulate((edge * count for edge, count in self.runs), initial=0))

    @cached_property
    def nchunks(self) -> int:
        """Number of chunks that overlap the array; chunks beyond its extent do not count."""
        return self.chunk_at(self.extent - 1) + 1 if self.extent else 0

    @property
    def edges(self) -> frozenset[int]:
        """The distinct edge lengths, including those of chunks beyond the extent."""
        return frozenset(edge for edge, _ in self.runs)

    def chunk_at(self, element: int) -> int:
        """Index of the chunk that contains *element*."""
        run = bisect_right(self._element_starts, element) - 1
        return self._index_starts[run] + (element - self._element_starts[run]) // self.runs[run][0]

    def span(self, index: int) -> tuple[int, int]:
        """First element and edge length of chunk *index*."""
        run = bisect_right(self._index_starts, index) - 1
        edge = self.runs[run][0]
        return self._element_starts[run] + (index - self._index_starts[run]) * edge, edge


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """A concrete chunk grid: one dimension per axis."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def regular(cls, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> "ChunkGrid":
        """Cut *shape* into chunks of *chunk_shape*, whose lengths are at least 1."""
        return cls(tuple(map(Dimension.regular, chunk_shape, shape)))

    @classmethod
    def parse(cls, extension: Extension, shape: tuple[int, ...]) -> "ChunkGrid":
        """Parse the `chunk_grid` member of an array of *shape*."""
        match extension.name:
            case "regular":
                extension.expect("chunk_shape")
                edges = extension.lengths("chunk_shape", len(shape), minimum=0)
                # zarr-python gives an axis of length 0 chunks of length 0.
                edges = tuple(edge or 1 if not extent else edge for edge, extent in zip(edges, shape, strict=True))
                if 0 in edges:
                    raise MetadataError(
                        "regular: chunk_shape must hold integers of at least 1 where there are elements"
                    )
                return cls.regular(shape, edges)
            case "rectilinear":
                extension.expect("kind", "chunk_shapes")
                extension.choice("kind", None, ("inline",))
                axes = extension.configuration.get("chunk_shapes")
                if not isinstance(axes, list) or len(axes) != len(shape):
                    raise MetadataError(f"chunk_shapes must be a list with one element per axis, not {brief(axes)}")
                return cls(tuple(map(_rectilinear_dimension, axes, shape)))
            case "zarrs.regular_bounded" | "regular_bounded":
                extension.expect("chunk_shape")
                return cls(tuple(map(_bounded_dimension, extension.lengths("chunk_shape", len(shape)), shape)))
            case name:
                raise MetadataError(f"unknown chunk grid {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(dimension.nchunks for dimension in self.dimensions)

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.shape)


def _bounded_dimension(edge: int, extent: int) -> Dimension:
    whole, rest = divmod(extent, edge)
    return Dimension(tuple((length, n) for length, n in ((edge, whole), (rest, 1)) if length and n), extent)


def _rectilinear_dimension(axis: Json, extent: int) -> Dimension:
    if type(axis) is int:
        return Dimension.regular(parse_length(axis, "chunk_shapes", minimum=1), extent)
    if not isinstance(axis, list) or not axis:
        raise MetadataError(f"an axis of chunk_shapes must be an integer or a list of edges, not {brief(axis)}")
    return Dimension(tuple(map(_run, axis)), extent)


def _run(element: Json) -> tuple[int, int]:
    if isinstance(element, list):
        if len(element) != 2:
            raise MetadataError(f"a run of edges must be [edge, count], not {brief(element)}")
        edge, count = parse_lengths(element, "a run of edges", minimum=1)
        return edge, count
    return parse_length(element, "chunk_shapes", minimum=1), 1


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """One of the two encodings of the specification, with its separator."""

    name: str
    separator: str

    @classmethod
    def parse(cls, extension: Extension) -> "ChunkKeyEncoding":
        """Parse the `chunk_key_encoding` member of an array."""
        if extension.name not in ("default", "v2"):
            raise MetadataError(f"unknown chunk key encoding {extension.name!r}")
        extension.expect("separator")
        default = "/" if extension.name == "default" else "."
        return cls(extension.name, extension.choice("separator", default, ("/", ".")))

    def to_json(self) -> dict[str, object]:
        """Return the long form for a document."""
        return {"name": self.name, "configuration": {"separator": self.separator}}

    def is_nested(self, ndim: int) -> bool:
        """Whether keys of an array with *ndim* axes have one path component per axis, not one for all."""
        return self.separator == "/" and ndim > 0

    def root(self, ndim: int) -> str:
        """The directory, relative to the array, that contains the components of nested keys; "" is the array itself."""
        return "c" if self.name == "default" and self.is_nested(ndim) else ""

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name*, in the directory of an array with *ndim* axes, is a chunk key or its first component."""
        root = self.root(ndim)
        if root:
            return name == root
        return parse_coordinate(name) is not None if self.is_nested(ndim) else self.decode(name, ndim) is not None

    def leads(self, path: str) -> bool:
        """Whether the directory at *path*, relative to the array, leads to keys that are listed with those in it.

        Directories of nested keys, which have a component for each axis, in order, are listed one by one.
        """
        return False

    @property
    def required(self) -> Collection[str]:
        """The names of the shards that must be there, as an index elsewhere says that they are stored."""
        return ()

    def requires(self, coords: tuple[int, ...]) -> bool:
        """Whether the name of the shard at *coords* is `required`: without a file, it is damaged, and not missing."""
        return False

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the key of the chunk at *coords*, relative to the array."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, coords)])
        return self.separator.join(map(str, coords)) or "0"

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates in *key* for an array with *ndim* axes, None if it is no chunk key."""
        if ndim == 0:
            return () if key == self.encode(()) else None
        components = key.split(self.separator)
        if self.name == "default" and components.pop(0) != "c":
            return None
        if len(components) != ndim:
            return None
        coords = tuple(map(parse_coordinate, components))
        return None if None in coords else coords  # type: ignore[return-value]


def index_in_c_order(coords: Sequence[int], shape: Sequence[int]) -> int:
    """Return the index in C order of the element at *coords* of a grid of *shape*."""
    index = 0
    for coordinate, length in zip(coords, shape, strict=True):
        index = index * length + coordinate
    return index


def coords_in_c_order(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of the element at *index*; the inverse of `index_in_c_order`."""
    coords = []
    for length in reversed(shape):
        index, coordinate = divmod(index, length)
        coords.append(coordinate)
    return tuple(reversed(coords))


def parse_coordinate(text: str) -> int | None:
    """Return the number in one component of a chunk key; None if it is not a canonical decimal."""
    if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS and (text[0] != "0" or len(text) == 1):
        return int(text)
    return None
