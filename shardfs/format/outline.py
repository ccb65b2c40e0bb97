"""What the documents of a node say of the names below it, for sources that cannot be listed.

A group names nodes in its consolidated metadata, and in attributes of OME-Zarr; an array has a grid, which says what
shards there may be.

Sources: Zarr core specification 3.1; the consolidated metadata of zarr-python; OME-Zarr 0.4 and 0.5, "Multiscales",
"Labels", "Plate", "Well" and "Bioformats2raw.layout".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from operator import lt
from typing import Final, NamedTuple, Protocol

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.document import DRAFTS, Json, parse_json, parse_lengths
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, parse_coordinate
from shardfs.format.lens.unsharded import ZARR_JSON, describe
from shardfs.format.lens.v2 import V2_NAMES, ZARRAY, ZATTRS, ZGROUP, ZMETADATA, is_relative_path
from shardfs.format.metadata import parse_array

ZARR_V3: Final = (ZARR_JSON,)
ZARR_V2: Final = ((ZARRAY, ZATTRS), (ZGROUP, ZATTRS))
CONSOLIDATED_V2: Final = (ZMETADATA,)
"""The documents of nodes of Zarr that are asked for together, the first of which is there if any is."""

_MAX_PATHS: Final = 100_000
_MAX_PATH: Final = 1024
_MAX_DEPTH: Final = 32
_MAX_NAME_NBYTES: Final = 255


class ShardPaths(Protocol):
    """The paths that a grid has for its shards, relative to the directory of their array."""

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* leads to shards, or is one; None if it is neither."""

    def count(self, path: str) -> int:
        """Return how many names the grid has in the directory *path*."""

    def names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""


class Level(NamedTuple):
    """One of the components of a path: a number below *length*, between *before* and *after*."""

    before: str
    length: int
    after: str

    def has(self, name: str) -> bool:
        """Whether *name* is such a component."""
        number = parse_coordinate(name.removeprefix(self.before).removesuffix(self.after))
        return number is not None and number < self.length and name == self.name(number)

    def name(self, number: int) -> str:
        """Return the component for *number*."""
        return f"{self.before}{number}{self.after}"


@dataclass(frozen=True)
class NestedPaths:
    """Paths with a component for each of *levels*, below *root*."""

    root: str
    levels: tuple[Level, ...]

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* leads to shards, or is one; None if it is neither."""
        depth = self._depth(path)
        return None if depth is None else depth < len(self.levels)

    def count(self, path: str) -> int:
        """Return how many names the grid has in the directory *path*."""
        depth = self._depth(path)
        return self.levels[depth].length if depth is not None and depth < len(self.levels) else 0

    def names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""
        depth = self._depth(path)
        if depth is not None and depth < len(self.levels):
            level = self.levels[depth]
            yield from ((level.name(number), depth + 1 < len(self.levels)) for number in range(level.length))

    def _depth(self, path: str) -> int | None:
        """Return how many components of a path of a shard are in *path*; None if it leads to none."""
        if self.root and path != self.root and not path.startswith(f"{self.root}/"):
            return None
        parts = [part for part in path[len(self.root) :].split("/") if part]
        fits = len(parts) <= len(self.levels) and all(
            level.has(part) for level, part in zip(self.levels, parts, strict=False)
        )
        return len(parts) if fits else None


@dataclass(frozen=True)
class FlatPaths:
    """Paths with one component for all axes of *grid*, as *encoding* has them."""

    grid: ChunkGrid
    encoding: ChunkKeyEncoding

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* leads to shards, or is one; None if it is neither."""
        if not path and self.grid.dimensions:
            return True
        coords = self.encoding.decode(path, len(self.grid.dimensions))
        is_one = coords is not None and all(map(lt, coords, self.grid.shape))
        return False if is_one else None

    def count(self, path: str) -> int:
        """Return how many names the grid has in the directory *path*."""
        return prod(self.grid.shape) if self.is_directory(path) else 0

    def names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""
        if self.is_directory(path):
            yield from ((self.encoding.encode(shard), False) for shard in product(*map(range, self.grid.shape)))


def shard_paths(grid: ChunkGrid, encoding: ChunkKeyEncoding) -> ShardPaths:
    """Return the paths of the shards of *grid* as *encoding* has them."""
    ndim = len(grid.dimensions)
    if encoding.is_nested(ndim):
        return NestedPaths(encoding.root(ndim), tuple(Level("", count, "") for count in grid.shape))
    return FlatPaths(grid, encoding)


@dataclass(frozen=True)
class Outline:
    """What the documents of a node say of the names below it; all paths are relative to that.

    *below* are the names of directories that lead to nodes, by directory. *may_have* are names of nodes that no
    document mentions. *documents* are the names of documents, by directory. *shards* are the directories of shards, or
    of chunk files, with the grid that names them; None if no grid is known.
    """

    below: Mapping[str, frozenset[str]] = field(default_factory=dict)
    may_have: frozenset[str] = frozenset()
    documents: Mapping[str, frozenset[str]] = field(default_factory=dict)
    shards: Mapping[str, ShardPaths | None] = field(default_factory=dict)

    def is_closed(self, path: str) -> bool:
        """Whether the directory *path* is one of shards, or below one, so that there are no nodes in it."""
        return self._within(path) is not None

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* is a directory, or a file; None if the documents do not say."""
        parent, _, name = path.rpartition("/")
        if name in self.below.get(parent, ()):
            return True
        shards, rest = self._within(path) or (None, path)
        return None if shards is None else shards.is_directory(rest)

    def count(self, path: str) -> int | None:
        """Return how many names a grid has in the directory *path*; None if nobody knows what names there are."""
        shards, rest = self._within(path) or (None, path)
        if shards is not None:
            return shards.count(rest)
        return None if path in self.shards else 0

    def shard_names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""
        shards, rest = self._within(path) or (None, path)
        if shards is not None:
            yield from shards.names(rest)

    def _within(self, path: str) -> tuple[ShardPaths | None, str] | None:
        """Return the shards of the directory that *path* is or is below, and the rest of the path; None without."""
        parts = path.split("/") if path else []
        for depth in range(len(parts) + 1):
            directory = "/".join(parts[:depth])
            if directory in self.shards:
                return self.shards[directory], "/".join(parts[depth:])
        return None


def outline_of_v3(documents: Mapping[str, bytes]) -> Outline:
    """Return what a `zarr.json` says; if it is no sound document, nothing."""
    return replace(_outline_of_v3(parsed(documents, ZARR_JSON)), documents={"": frozenset({ZARR_JSON})})


def outline_of_v2(documents: Mapping[str, bytes]) -> Outline:
    """Return what documents of Zarr v2 say; what is no sound document says nothing."""
    if ZMETADATA in documents:
        return _outline_of_copies(_member(parsed(documents, ZMETADATA), "metadata"))
    own = {"": frozenset(documents)}
    if ZARRAY in documents:
        return Outline(documents=own, shards={"": _shards_of_v2(parsed(documents, ZARRAY))})
    return Outline(*_named_in(parsed(documents, ZATTRS)), documents=own)


def parsed(documents: Mapping[str, bytes], name: str) -> Json:
    """Return what is in the document *name*; None if it is not there, or is no JSON."""
    try:
        return parse_json(documents[name])
    except (KeyError, MetadataError):
        return None


def _outline_of_v3(value: Json) -> Outline:
    if not isinstance(value, dict):
        return Outline()
    if value.get("node_type") == "array":
        try:
            array = describe(parse_array(value), DRAFTS)
        except (MetadataError, NotUnshardable):
            return Outline(shards={"": None})
        root = array.key_encoding.root(len(array.grid.shards.dimensions))
        named = {"": frozenset({root})} if root else {}
        return Outline(named, shards={"": shard_paths(array.grid.shards, array.key_encoding)})
    consolidated = _member(value, "consolidated_metadata", "metadata")
    paths = [*consolidated] if isinstance(consolidated, dict) else []
    attributes = value.get("attributes")
    below, may_have = _named_in(attributes, _member(attributes, "ome"), beside=paths)
    return Outline(below, frozenset() if isinstance(consolidated, dict) else may_have)


def _outline_of_copies(copies: Json) -> Outline:
    """Return what the consolidated metadata of Zarr v2 say; all *copies* are of documents that are there."""
    documents: dict[str, set[str]] = {"": {ZMETADATA}}
    shards: dict[str, ShardPaths | None] = {}
    for key, copy in copies.items() if isinstance(copies, dict) else ():
        path, _, name = key.rpartition("/")
        if name in V2_NAMES and (not path or is_path(path)):
            documents.setdefault(path, set()).add(name)
            if name == ZARRAY:
                shards[path] = _shards_of_v2(copy)
    return Outline(
        tree_of(documents), documents={path: frozenset(names) for path, names in documents.items()}, shards=shards
    )


def _shards_of_v2(document: Json) -> ShardPaths | None:
    """Return the chunk files of an array of Zarr v2; None if its document cannot be used."""
    try:
        shape = parse_lengths(_member(document, "shape"), "shape", minimum=0)
        chunks = parse_lengths(_member(document, "chunks"), "chunks", minimum=1, ndim=len(shape))
    except MetadataError:
        return None
    separator = "/" if _member(document, "dimension_separator") == "/" else "."
    return shard_paths(ChunkGrid.regular(shape, chunks), ChunkKeyEncoding("v2", separator))


def _named_in(*attributes: Json, beside: Iterable[str] = ()) -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Return the directories and the nodes that *attributes* of OME-Zarr name, and the paths *beside* them."""
    paths = [path for one in attributes for path in _ome_paths(one)]
    has_image = any(_member(one, "multiscales") for one in attributes)
    return tree_of([*beside, *paths]), frozenset({"labels"} if has_image else ())


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


def tree_of(paths: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Return the names in each directory that leads to one of *paths*; what cannot be a path is skipped."""
    below: dict[str, set[str]] = {}
    count = 0
    for path in paths:
        if not is_path(path):
            continue
        parts = path.split("/")
        for depth, name in enumerate(parts):
            names = below.setdefault("/".join(parts[:depth]), set())
            count += name not in names
            names.add(name)
        if count > _MAX_PATHS:
            break
    return {directory: frozenset(names) for directory, names in below.items()}


def is_path(path: str) -> bool:
    """Whether *path* is a relative one that leads to something below a directory, and not too long."""
    is_short = len(path) <= _MAX_PATH and path.count("/") < _MAX_DEPTH
    return is_short and is_relative_path(path) and all(map(_is_name, path.split("/")))


def _is_name(name: str) -> bool:
    """Whether a file system can have the *name*."""
    try:
        return len(name.encode()) <= _MAX_NAME_NBYTES
    except UnicodeEncodeError:
        return False
