"""Chunk grids and chunk keys: how an array's index space is cut along each axis, and what its chunks are called.

One `ChunkGrid` of per-axis dimensions, bound to the array's extent, serves every grid that shardfs knows: `regular`,
`rectilinear` and `zarrs.regular_bounded`.  A chunk of a grid is always stored at its full edge lengths, also where it
reaches beyond the array.

Sources: Zarr core specification 3.1, "Regular grids" and "Chunk key encoding" (`default`, `v2`); the rectilinear chunk
grid extension; seed design "Unified Chunk Grid", version 6.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.document import Extension, Json, brief, parse_length, parse_lengths

_MAX_DIGITS: Final = 19  # 2**63 - 1 has as many; a longer name is no coordinate, and int() of it costs


@dataclass(frozen=True, slots=True)
class FixedDimension:
    """One axis of a chunk grid, with chunks of one length; the last one may reach beyond *extent*.

    Lengths and positions count array elements.
    """

    edge: int
    extent: int

    @property
    def nchunks(self) -> int:
        """Number of chunks that overlap the array's extent."""
        return -(-self.extent // self.edge)

    @property
    def edges(self) -> tuple[int, ...]:
        """The one edge length."""
        return (self.edge,)

    def chunk_at(self, element: int) -> int:
        """Index of the chunk that holds *element*, which lies within the extent."""
        return element // self.edge

    def span(self, index: int) -> tuple[int, int]:
        """First element and edge length of chunk *index*, which overlaps the extent."""
        return index * self.edge, self.edge


class VaryingDimension:
    """Chunks of explicit lengths, kept as runs of equal ones: a run of a billion costs as much as a run of two."""

    __slots__ = ("_element_stops", "_index_stops", "_run_edges", "extent")

    def __init__(self, runs: Iterable[tuple[int, int]], extent: int) -> None:
        """Take *runs* of (edge length, count), each at least 1, that together cover *extent*."""
        run_list = list(runs)
        self.extent = extent
        self._run_edges = [edge for edge, _ in run_list]
        self._index_stops = list(accumulate(count for _, count in run_list))
        self._element_stops = list(accumulate(edge * count for edge, count in run_list))
        if (self._element_stops[-1] if run_list else 0) < extent:
            raise MetadataError(f"the chunks of an axis do not cover its {extent} elements")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VaryingDimension) and (
            (self.extent, self._run_edges, self._index_stops) == (other.extent, other._run_edges, other._index_stops)
        )

    def __hash__(self) -> int:
        return hash((self.extent, tuple(self._run_edges), tuple(self._index_stops)))

    @property
    def nchunks(self) -> int:
        """Number of chunks that overlap the array's extent; trailing ones beyond it do not count."""
        return self.chunk_at(self.extent - 1) + 1 if self.extent else 0

    @property
    def edges(self) -> frozenset[int]:
        """The distinct edge lengths, also of chunks beyond the extent."""
        return frozenset(self._run_edges)

    def chunk_at(self, element: int) -> int:
        """Index of the chunk that holds *element*."""
        run = bisect_right(self._element_stops, element)
        return self._run_index(run) + (element - self._run_element(run)) // self._run_edges[run]

    def span(self, index: int) -> tuple[int, int]:
        """First element and edge length of chunk *index*."""
        run = bisect_right(self._index_stops, index)
        edge = self._run_edges[run]
        return self._run_element(run) + (index - self._run_index(run)) * edge, edge

    def _run_index(self, run: int) -> int:
        return self._index_stops[run - 1] if run else 0

    def _run_element(self, run: int) -> int:
        return self._element_stops[run - 1] if run else 0


Dimension = FixedDimension | VaryingDimension


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """A concrete layout of chunks: one dimension per axis."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def regular(cls, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> "ChunkGrid":
        """Cut *shape* into chunks of *chunk_shape*, whose lengths are at least 1."""
        return cls(tuple(map(FixedDimension, chunk_shape, shape)))

    @classmethod
    def parse(cls, extension: Extension, shape: tuple[int, ...]) -> "ChunkGrid":
        """Read the `chunk_grid` member of an array of *shape*."""
        configuration = extension.configuration
        match extension.name:
            case "regular":
                extension.expect("chunk_shape")
                return cls.regular(shape, _chunk_shape(configuration.get("chunk_shape"), len(shape)))
            case "rectilinear":
                extension.expect("kind", "chunk_shapes")
                extension.choice("kind", None, ("inline",))
                axes = configuration.get("chunk_shapes")
                if not isinstance(axes, list) or len(axes) != len(shape):
                    raise MetadataError(f"chunk_shapes must be a list with one element per axis, not {brief(axes)}")
                return cls(tuple(map(_rectilinear_dimension, axes, shape)))
            case "zarrs.regular_bounded" | "regular_bounded":
                extension.expect("chunk_shape")
                edges = _chunk_shape(configuration.get("chunk_shape"), len(shape))
                return cls(tuple(map(_bounded_dimension, edges, shape)))
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


def _chunk_shape(value: Json, ndim: int) -> tuple[int, ...]:
    return parse_lengths(value, "chunk_shape", minimum=1, ndim=ndim)


def _bounded_dimension(edge: int, extent: int) -> VaryingDimension:
    whole, rest = divmod(extent, edge)
    return VaryingDimension([(length, n) for length, n in ((edge, whole), (rest, 1)) if length and n], extent)


def _rectilinear_dimension(axis: Json, extent: int) -> Dimension:
    if type(axis) is int:
        return FixedDimension(parse_length(axis, "chunk_shapes", minimum=1), extent)
    if not isinstance(axis, list) or not axis:
        raise MetadataError(f"an axis of chunk_shapes must be an integer or a list of edges, not {brief(axis)}")
    return VaryingDimension(map(_run, axis), extent)


def _run(element: Json) -> tuple[int, int]:
    if isinstance(element, list):
        edge, count = parse_lengths(element, "a run of edges", minimum=1, ndim=None) if len(element) == 2 else (0, 0)
        if not edge:
            raise MetadataError(f"a run of edges must be [edge, count], not {brief(element)}")
        return edge, count
    return parse_length(element, "chunk_shapes", minimum=1), 1


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """One of the two encodings of the specification, with its separator."""

    name: str
    separator: str

    @classmethod
    def parse(cls, extension: Extension) -> "ChunkKeyEncoding":
        """Read the `chunk_key_encoding` member of an array."""
        defaults = {"default": "/", "v2": "."}
        if extension.name not in defaults:
            raise MetadataError(f"unknown chunk key encoding {extension.name!r}")
        extension.expect("separator")
        separator = extension.configuration.get("separator", defaults[extension.name])
        if separator not in ("/", "."):
            raise MetadataError(f'the separator of chunk keys must be "/" or ".", not {brief(separator)}')
        return cls(extension.name, separator)

    def to_json(self) -> dict[str, object]:
        """Return the long form for a document."""
        return {"name": self.name, "configuration": {"separator": self.separator}}

    def is_nested(self, ndim: int) -> bool:
        """Whether keys of an array with *ndim* axes have one path component per axis (else: one for all)."""
        return self.separator == "/" and ndim > 0

    def root(self, ndim: int) -> str:
        """Directory, relative to the array, below which the components of nested keys lie; "" is the array itself."""
        return "c" if self.name == "default" and self.is_nested(ndim) else ""

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name*, in the directory of an array with *ndim* axes, is a chunk key or the first part of one."""
        root = self.root(ndim)
        if root:
            return name == root
        return parse_coordinate(name) is not None if self.is_nested(ndim) else self.decode(name, ndim) is not None

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the key of the chunk at *coords*, relative to the array."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, coords)])
        return self.separator.join(map(str, coords)) or "0"

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates that *key* stands for in an array with *ndim* axes, or None if it is no chunk key."""
        if ndim == 0:
            return () if key == self.encode(()) else None
        components = key.split(self.separator)
        if self.name == "default" and components.pop(0) != "c":
            return None
        if len(components) != ndim:
            return None
        coords = tuple(map(parse_coordinate, components))
        return None if None in coords else coords  # type: ignore[return-value]


def parse_coordinate(text: str) -> int | None:
    """Return the number that one component of a chunk key stands for; None if it is not a canonical decimal."""
    if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS and (text[0] != "0" or len(text) == 1):
        return int(text)
    return None
