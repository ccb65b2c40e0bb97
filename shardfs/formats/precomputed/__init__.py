"""Neuroglancer precomputed, where it is sharded: volumes, meshes, skeletons and annotations.

A directory has an `info`, which says what is in it and in directories below. It is shown as the same format without
shards; a volume also as Zarr.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.document import Document, Json, parse_json
from shardfs.format.foreign import Foreign
from shardfs.format.outline import Outline, ShardPaths, is_path, parsed, shard_paths, tree_of
from shardfs.formats import Format, FoundNode, SourceDirectory, parse
from shardfs.formats.precomputed.values import directories_of, parse_collection
from shardfs.formats.precomputed.volume import FORMAT as NAME
from shardfs.formats.precomputed.volume import INFO, parse_volume

_MAX_INFO_NBYTES: Final = 4 * 2**20  # a larger `info` lists the segments of a volume
_ROW: Final = (INFO,)


class Precomputed(Format):
    """What an `info` describes."""

    name = NAME
    documents = frozenset({INFO})
    is_usual = frozenset({INFO})
    web_source = "a volume, or a directory of meshes, skeletons or annotations"
    web = ((_ROW, (_ROW,)),)

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return what the `info` says, if it is of something sharded."""
        if known is not None and await directory.version(INFO) == known.stamp:
            return known
        try:
            text, stat = await directory.read(INFO, _MAX_INFO_NBYTES)
        except (MetadataError, CorruptionError):
            return None
        return FoundNode(await parse(parse_info, text), stat, stat.version)

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline | None:
        """Return the directories that an `info` names, and the shards in them; None if it is another file."""
        value = parsed(documents, INFO)
        return _outline_of(value) if isinstance(value, dict) else None


FORMAT: Final = Precomputed()


def parse_info(text: bytes) -> Foreign | None:
    """Return what the *text* of an `info` says; None if it is not of something sharded."""
    try:
        document = parse_json(text)
    except MetadataError:
        return None
    return parse_volume(document) or parse_collection(document)


def _outline_of(value: Document) -> Outline | None:
    shards: dict[str, ShardPaths | None] = dict.fromkeys(_scales(value))
    shards |= dict.fromkeys(directories_of(value))
    for found in (parse_volume(value), parse_collection(value)):
        for key, node in (
            {**({"": found} if found.chunks or found.names else {}), **found.below}.items() if found else ()
        ):
            shards[key] = shard_paths(node.chunks.grid.shards, node.chunks.shard_names) if node.chunks else None
    if not shards:
        return None
    others = [value.get(name) for name in ("mesh", "skeletons", "segment_properties")]
    tree = tree_of([*shards, *(path for path in others if isinstance(path, str))])
    return Outline(tree, documents={"": frozenset({INFO})}, shards=shards)


def _scales(value: Document) -> Iterator[str]:
    """Yield the keys of all scales, sharded or not."""
    scales: Json = value.get("scales")
    for scale in scales if isinstance(scales, list) else ():
        key = scale.get("key") if isinstance(scale, dict) else None
        if isinstance(key, str) and is_path(key):
            yield key
