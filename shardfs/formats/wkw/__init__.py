"""webKnossos-wrap (WKW): a directory with a `header.wkw` is an array, shown as one of Zarr."""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Final

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
)
from shardfs.format.document import Json, parse_json
from shardfs.format.outline import ZARR_V3, Level, NestedPaths, Outline, parsed, tree_of
from shardfs.format.sharding import Coords
from shardfs.formats import Format, FoundNode, SourceDirectory, parse
from shardfs.formats.wkw.array import (
    COMPONENTS,
    HEADER,
    HEADER_NBYTES,
    MAGIC,
    NAMES,
    PROPERTIES,
    array_paths,
    find_layer,
    parse_array,
    places_of,
)
from shardfs.stores.base import Reader, join_key
from shardfs.stores.keys import keys_below

_MAX_PROPERTIES_NBYTES: Final = 4 * 2**20
_ABSENT: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)
_ROW: Final = (HEADER, f"../../{PROPERTIES}")


class Wkw(Format):
    """Arrays of WKW: magnifications of layers."""

    name = "wkw"
    documents = frozenset({HEADER})
    web_source = f"a dataset of webKnossos with its {PROPERTIES}"
    web = (((PROPERTIES,), (_ROW, ZARR_V3)), (_ROW, ()))

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return the array that `header.wkw` describes, and `datasource-properties.json` two directories above."""
        store, path = directory.store, directory.path
        root, layer, _ = places_of(path)
        above = join_key(root, PROPERTIES) if layer else None
        if known is not None:
            stamp = directory.stat.version, await directory.version(HEADER), await _version(store, above)
            if stamp == known.stamp:
                return known
        snapshot = await store.open(directory.key(HEADER), head_nbytes=HEADER_NBYTES)
        data = bytes(await snapshot.read(0, min(snapshot.size, HEADER_NBYTES)))
        if not data.startswith(MAGIC):
            return None
        properties, version = await _properties(store, above)
        layer_of = find_layer(properties, path)
        files: list[Coords] | None = None
        if layer_of is None and store.lists:
            keys = await keys_below(store, path, NAMES.leads)
            files = [coords for entry in keys if (coords := NAMES.decode(entry.name, 4)) is not None]
        stamp = directory.stat.version, snapshot.stat.version, version
        return FoundNode(parse_array(data, layer_of, files), snapshot.stat, stamp)

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline | None:
        """Return the arrays that properties name, or the files of one; None if the header is another file."""
        name = next((name for name in documents if name.rpartition("/")[2] == PROPERTIES), "")
        properties = parsed(documents, name)
        if HEADER not in documents:
            return Outline(tree_of(array_paths(properties)), documents={"": frozenset({PROPERTIES})})
        own = {"": frozenset({HEADER})}
        array = parse_array(documents[HEADER], find_layer(properties, path), None)
        if array is None:
            return None
        if array.chunks is None:
            return Outline(documents=own, shards={"": None})
        _, *counts = array.chunks.grid.shards.shape
        levels = [
            Level(before, count, after) for (before, after), count in zip(COMPONENTS, reversed(counts), strict=True)
        ]
        return Outline(documents=own, shards={"": NestedPaths("", tuple(levels))})


FORMAT: Final = Wkw()


async def _version(store: Reader, key: str | None) -> Hashable:
    if key is not None:
        with suppress(*_ABSENT):
            return (await store.stat(key)).version
    return None


async def _properties(store: Reader, key: str | None) -> tuple[Json, Hashable]:
    """Return what is in `datasource-properties.json`, and its version; None if it cannot be used, or is not there."""
    if key is None:
        return None, None
    with suppress(*_ABSENT):
        snapshot = await store.open(key)
        version = snapshot.stat.version
        if snapshot.size > _MAX_PROPERTIES_NBYTES:
            return None, version
        with suppress(MetadataError, CorruptionError):
            return await parse(parse_json, bytes(await snapshot.read(0, snapshot.size))), version
        return None, version
    return None, None
