"""What the document of a node says of the names below it, for sources that cannot be listed.

A group names nodes in its consolidated metadata, and in attributes of OME-Zarr; an array has a grid, which says what
shards there may be.

Sources: Zarr core specification 3.1; the consolidated metadata of zarr-python; OME-Zarr 0.4 and 0.5, "Multiscales",
"Labels", "Plate", "Well" and "Bioformats2raw.layout".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Final

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.document import Json, parse_json
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, parse_coordinate
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v2 import is_relative_path
from shardfs.format.metadata import parse_array

_MAX_PATHS: Final = 100_000
_MAX_PATH: Final = 1024
_MAX_DEPTH: Final = 32


@dataclass(frozen=True)
class Outline:
    """What a document says of the names below its node; all paths are relative to that.

    *below* are the names of directories that lead to nodes, by directory. *may_have* are names of nodes that the
    document does not mention. An array has *shards*, unless its document cannot be used.
    """

    below: Mapping[str, frozenset[str]] = field(default_factory=dict)
    may_have: frozenset[str] = frozenset()
    is_array: bool = False
    shards: tuple[ChunkGrid, ChunkKeyEncoding] | None = None

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* is a directory, or a file; None if the document does not say."""
        parent, _, name = path.rpartition("/")
        if name in self.below.get(parent, ()):
            return True
        coords = self._coords(path)
        return None if coords is None else len(coords) < self._ndim

    def count(self, path: str) -> int:
        """Return how many names the grid of an array has in the directory *path*: of shards, or leading to some."""
        coords = self._coords(path)
        if self.shards is None or coords is None:
            return 0
        shape = self.shards[0].shape
        return prod(shape[len(coords) : len(coords) + 1] if self.shards[1].is_nested(self._ndim) else shape)

    def shard_names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""
        coords = self._coords(path)
        if self.shards is None or coords is None or not self.count(path):
            return
        (grid, encoding), depth = self.shards, len(coords)
        if encoding.is_nested(self._ndim):
            yield from ((str(index), depth + 1 < self._ndim) for index in range(grid.shape[depth]))
        else:
            yield from ((encoding.encode(shard), False) for shard in product(*map(range, grid.shape)))

    @property
    def _ndim(self) -> int:
        return len(self.shards[0].dimensions) if self.shards is not None else 0

    def _coords(self, path: str) -> tuple[int, ...] | None:
        """Return the coordinates that *path* stands for, all or the first; None if it has no place in the grid."""
        if self.shards is None:
            return None
        (grid, encoding), ndim = self.shards, self._ndim
        root = encoding.root(ndim)
        if not encoding.is_nested(ndim):
            coords = () if not path and ndim else encoding.decode(path, ndim)
        else:
            if root and path != root and not path.startswith(f"{root}/"):
                return None
            numbers = [parse_coordinate(part) for part in path[len(root) :].strip("/").split("/") if part]
            coords = tuple(number for number in numbers if number is not None)
            if len(coords) < len(numbers) or len(coords) > ndim:
                return None
        if coords is None or any(index >= length for index, length in zip(coords, grid.shape, strict=False)):
            return None
        return coords


def outline_of(document: bytes) -> Outline:
    """Return what *document* says; nothing, if it is no sound document."""
    try:
        value = parse_json(document)
    except MetadataError:
        return Outline()
    if not isinstance(value, dict):
        return Outline()
    if value.get("node_type") == "array":
        try:
            array = describe(parse_array(value))
        except (MetadataError, NotUnshardable):
            return Outline(is_array=True)
        root = array.key_encoding.root(len(array.grid.shards.dimensions))
        below = {"": frozenset({root})} if root else {}
        return Outline(below, is_array=True, shards=(array.grid.shards, array.key_encoding))
    consolidated = _member(value, "consolidated_metadata", "metadata")
    paths = [*consolidated] if isinstance(consolidated, dict) else []
    attributes = value.get("attributes")
    ome = _member(attributes, "ome")
    for one in (ome, attributes):
        paths += _ome_paths(one)
    has_image = any(_member(one, "multiscales") for one in (ome, attributes))
    may_have = frozenset({"labels"} if has_image and not isinstance(consolidated, dict) else ())
    return Outline(_tree(paths), may_have)


def _ome_paths(ome: Json) -> Iterator[str]:
    """Yield the paths of nodes that attributes of OME-Zarr name."""
    for image in _items(ome, "multiscales"):
        yield from _paths(_items(image, "datasets"))
    yield from _paths(_items(_member(ome, "plate"), "wells"))
    yield from _paths(_items(_member(ome, "well"), "images"))
    for name in ("labels", "series"):
        yield from (path for path in _items(ome, name) if isinstance(path, str))


def _paths(items: Iterable[Json]) -> Iterator[str]:
    return (path for item in items if isinstance(path := _member(item, "path"), str))


def _items(value: Json, name: str) -> list[Json]:
    items = _member(value, name)
    return items if isinstance(items, list) else []


def _member(value: Json, *names: str) -> Json:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _tree(paths: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Return the names in each directory that leads to one of *paths*; what cannot be a path is left out."""
    below: dict[str, set[str]] = {}
    count = 0
    for path in paths:
        parts = path.split("/")
        if len(path) > _MAX_PATH or len(parts) > _MAX_DEPTH or not is_relative_path(path):
            continue
        for depth, name in enumerate(parts):
            names = below.setdefault("/".join(parts[:depth]), set())
            count += name not in names
            names.add(name)
        if count > _MAX_PATHS:
            break
    return {directory: frozenset(names) for directory, names in below.items()}
