"""Going through a whole source: its nodes, and the stored shards of an array."""

from collections.abc import AsyncIterator

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Node
from shardfs.dataset.source import Source
from shardfs.errors import ShardfsError
from shardfs.format.chunk_key import parse_coordinate
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind


async def walk_nodes(source: Source, path: str = "") -> AsyncIterator[Node]:
    """Yield every node with a document at or below *path*, parents first, in the order of their names.

    Directories of chunks are not entered.  Raises what keeps *path* itself from being read; a directory below that
    cannot be read is a node with a reason.
    """
    node = await source.hierarchy.node(path)
    if node.document is not None or node.reason is not None:
        yield node
    is_array = isinstance(node.metadata, ArrayMetadata)
    try:
        entries = await source.store.list(path)
    except ShardfsError:
        if node.reason is not None:  # which says so already
            return
        raise
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.kind is not Kind.DIRECTORY or (is_array and _holds_chunks(entry.name)):
            continue
        below = f"{path}/{entry.name}" if path else entry.name
        try:
            async for inner in walk_nodes(source, below):
                yield inner
        except ShardfsError as error:
            yield Node(below, node.stat, reason=str(error))


async def walk_files(source: Source, path: str) -> AsyncIterator[str]:
    """Yield the key of every stored file below the directory *path*."""
    for entry in sorted(await source.store.list(path), key=lambda entry: entry.name):
        key = f"{path}/{entry.name}" if path else entry.name
        if entry.kind is Kind.SYMLINK:
            await source.store.open(key)  # raises what keeps it from being read
            yield key
        elif entry.kind is Kind.FILE:
            yield key
        elif entry.kind is Kind.DIRECTORY:
            async for below in walk_files(source, key):
                yield below


async def walk_shards(array: Array, prefix: Coords = ()) -> AsyncIterator[Coords]:
    """Yield the coordinates of every stored shard of *array* within its grid, in C order."""
    if len(prefix) == array.grid.ndim:
        yield prefix
        return
    for index in await array.stored_shards(prefix):
        async for coords in walk_shards(array, (*prefix, index)):
            yield coords


def _holds_chunks(name: str) -> bool:
    return name == "c" or parse_coordinate(name) is not None
