"""What the documents of a node say of the names below it, for sources that cannot be listed.

A group names nodes in its consolidated metadata, and in attributes of OME-Zarr; an array has a grid, which says what
shards there may be. The `info` of a volume names its scales.

Sources: Zarr core specification 3.1; the consolidated metadata of zarr-python; OME-Zarr 0.4 and 0.5, "Multiscales",
"Labels", "Plate", "Well" and "Bioformats2raw.layout".
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Final

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.document import DRAFTS, Json, parse_json, parse_lengths
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, parse_coordinate
from shardfs.format.keyed import directories_of, parse_collection
from shardfs.format.lens.unsharded import ZARR_JSON, describe
from shardfs.format.lens.v2 import V2_NAMES, ZARRAY, ZATTRS, ZGROUP, ZMETADATA, is_relative_path
from shardfs.format.metadata import parse_array
from shardfs.format.precomputed import INFO, parse_volume

_MAX_PATHS: Final = 100_000
_MAX_PATH: Final = 1024
_MAX_DEPTH: Final = 32


Shards = tuple[ChunkGrid, ChunkKeyEncoding]


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
    shards: Mapping[str, Shards | None] = field(default_factory=dict)

    def is_closed(self, path: str) -> bool:
        """Whether the directory *path* is one of shards, or below one, so that there are no nodes in it."""
        return self._within(path) is not None

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* is a directory, or a file; None if the documents do not say."""
        parent, _, name = path.rpartition("/")
        if name in self.below.get(parent, ()):
            return True
        found = self._place(path)
        return None if found is None else len(found[1]) < len(found[0][0].dimensions)

    def count(self, path: str) -> int | None:
        """Return how many names a grid has in the directory *path*; None if nobody knows what names there are."""
        found = self._place(path)
        if found is None:
            return None if path in self.shards and self.shards[path] is None else 0
        (grid, encoding), coords = found
        is_nested = encoding.is_nested(len(grid.dimensions))
        return prod(grid.shape[len(coords) : len(coords) + 1] if is_nested else grid.shape)

    def shard_names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""
        found = self._place(path)
        if found is None or not self.count(path):
            return
        (grid, encoding), depth, ndim = found[0], len(found[1]), len(found[0][0].dimensions)
        if encoding.is_nested(ndim):
            yield from ((str(index), depth + 1 < ndim) for index in range(grid.shape[depth]))
        else:
            yield from ((encoding.encode(shard), False) for shard in product(*map(range, grid.shape)))

    def _within(self, path: str) -> tuple[Shards | None, str] | None:
        """Return the shards of the directory that *path* is or is below, and the rest of the path; None without."""
        parts = path.split("/") if path else []
        for depth in range(len(parts) + 1):
            directory = "/".join(parts[:depth])
            if directory in self.shards:
                return self.shards[directory], "/".join(parts[depth:])
        return None

    def _place(self, path: str) -> tuple[Shards, tuple[int, ...]] | None:
        """Return a grid, and the coordinates that *path* stands for in it, all or the first; None if it is in none."""
        shards, rest = self._within(path) or (None, path)
        if shards is None:
            return None
        (grid, encoding), ndim = shards, len(shards[0].dimensions)
        root = encoding.root(ndim)
        coords: tuple[int, ...] | None
        if not encoding.is_nested(ndim):
            coords = () if not rest and ndim else encoding.decode(rest, ndim)
        else:
            if root and rest != root and not rest.startswith(f"{root}/"):
                return None
            numbers = [parse_coordinate(part) for part in rest[len(root) :].strip("/").split("/") if part]
            coords = tuple(number for number in numbers if number is not None)
            if len(coords) < len(numbers) or len(coords) > ndim:
                return None
        if coords is None or any(index >= length for index, length in zip(coords, grid.shape, strict=False)):
            return None
        return shards, coords


def outline_of(names: tuple[str, ...], *texts: bytes) -> Outline | None:
    """Return what the documents of a node with these *names* and *texts* say; None if they are not those of a node.

    What is no sound document of Zarr says nothing.
    """
    documents = dict(zip(names, texts, strict=True))
    values: dict[str, Json] = {}
    for name, document in documents.items():
        with suppress(MetadataError):
            values[name] = parse_json(document)
    own = {"": frozenset(documents)}
    if INFO in documents:
        found = _outline_of_info(values.get(INFO))
        return found and replace(found, documents=own)
    if ZMETADATA in documents:
        return _outline_of_copies(_member(values.get(ZMETADATA), "metadata"))
    if ZARRAY in documents:
        return Outline(documents=own, shards={"": _shards_of_v2(values.get(ZARRAY))})
    if ZGROUP in documents:
        return Outline(*_named_in(values.get(ZATTRS)), documents=own)
    return replace(_outline_of_v3(values.get(ZARR_JSON)), documents=own)


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
        return Outline(named, shards={"": (array.grid.shards, array.key_encoding)})
    consolidated = _member(value, "consolidated_metadata", "metadata")
    paths = [*consolidated] if isinstance(consolidated, dict) else []
    attributes = value.get("attributes")
    below, may_have = _named_in(attributes, _member(attributes, "ome"), beside=paths)
    return Outline(below, frozenset() if isinstance(consolidated, dict) else may_have)


def _outline_of_copies(copies: Json) -> Outline:
    """Return what the consolidated metadata of Zarr v2 say; all *copies* are of documents that are there."""
    documents: dict[str, set[str]] = {"": {ZMETADATA}}
    shards: dict[str, Shards | None] = {}
    for key, copy in copies.items() if isinstance(copies, dict) else ():
        path, _, name = key.rpartition("/")
        if name in V2_NAMES and (not path or _is_path(path)):
            documents.setdefault(path, set()).add(name)
            if name == ZARRAY:
                shards[path] = _shards_of_v2(copy)
    return Outline(
        _tree(documents), documents={path: frozenset(names) for path, names in documents.items()}, shards=shards
    )


def _shards_of_v2(document: Json) -> Shards | None:
    """Return the chunk files of an array of Zarr v2; None if its document cannot be used."""
    try:
        shape = parse_lengths(_member(document, "shape"), "shape", minimum=0)
        chunks = parse_lengths(_member(document, "chunks"), "chunks", minimum=1, ndim=len(shape))
    except MetadataError:
        return None
    separator = "/" if _member(document, "dimension_separator") == "/" else "."
    return ChunkGrid.regular(shape, chunks), ChunkKeyEncoding("v2", separator)


def _outline_of_info(value: Json) -> Outline | None:
    """Return what an `info` of neuroglancer says; None if it is another file of this name."""
    if not isinstance(value, dict):
        return None
    volume = parse_volume(value)
    shards: dict[str, Shards | None] = {}
    for scale in _items(value, "scales"):
        key = _member(scale, "key")
        if isinstance(key, str) and _is_path(key):
            shards[key] = None
    for key, sharded in volume.scales.items() if volume is not None else ():
        shards[key] = (sharded.chunks.grid.shards, sharded.chunks.shard_names) if sharded.chunks else None
    collection = parse_collection(value)
    for key in directories_of(value):
        shards[key] = None
    for key, values in collection.values.items() if collection is not None else ():
        shards[key] = (values.grid.shards, values.shard_names) if values.grid and values.shard_names else None
    if not shards:
        return None
    others = [value.get(name) for name in ("mesh", "skeletons", "segment_properties")]
    return Outline(_tree([*shards, *(path for path in others if isinstance(path, str))]), shards=shards)


def _named_in(*attributes: Json, beside: Iterable[str] = ()) -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Return the directories and the nodes that *attributes* of OME-Zarr name, and the paths *beside* them."""
    paths = [path for one in attributes for path in _ome_paths(one)]
    has_image = any(_member(one, "multiscales") for one in attributes)
    return _tree([*beside, *paths]), frozenset({"labels"} if has_image else ())


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
        if not _is_path(path):
            continue
        parts = path.split("/")
        for depth, name in enumerate(parts):
            names = below.setdefault("/".join(parts[:depth]), set())
            count += name not in names
            names.add(name)
        if count > _MAX_PATHS:
            break
    return {directory: frozenset(names) for directory, names in below.items()}


def _is_path(path: str) -> bool:
    return len(path) <= _MAX_PATH and path.count("/") < _MAX_DEPTH and is_relative_path(path)
