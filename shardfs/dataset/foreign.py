"""Sources without a sharded Zarr v3 array: what they are instead, and what to do with them."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.dataset.maintenance.walk import array_nodes
from shardfs.dataset.source import Source
from shardfs.errors import ShardfsError, SourceError
from shardfs.format.metadata import ArrayMetadata
from shardfs.stores.base import Entry, Kind, is_reserved

EMPTY: Final = "it is empty; a mount with --write --shards stores sharded what is copied into it"
NO_ZARR: Final = (
    f"no {DOCUMENT} is in it or below it; SOURCE must be the folder of a Zarr v3 array or group, or one above"
)
_ZARR_V2: Final = (
    "it is Zarr v2, which has no shards; programs read it without a mount (to store it sharded, copy it into a mount "
    "of an empty folder with --write --shards --view v2)"
)
_ICECHUNK: Final = "it is an Icechunk repository; read it with the library icechunk"
_N5: Final = "it is N5, which has no Zarr shards; programs that read N5 need no mount"
_NOT_SHARDED: Final = "the array is not sharded; programs that read Zarr v3 read it without a mount"
_MAX_BELOW: Final = 10  # folders that are looked into


def foreign_format(entries: Sequence[Entry]) -> str | None:
    """Say what a folder is that holds *entries*, and what to do; None if there is, or may be, Zarr v3 in it."""
    entries = [entry for entry in entries if not is_reserved(entry.name)]
    names = {entry.name for entry in entries}
    if DOCUMENT in names:
        return None
    if not names:
        return EMPTY
    if names & {".zgroup", ".zarray", ".zmetadata"}:
        return _ZARR_V2
    if "snapshots" in names and names & {"refs", "repo"}:
        return _ICECHUNK
    if "attributes.json" in names:
        return _N5
    return NO_ZARR if all(entry.kind is Kind.FILE for entry in entries) else None


def unsharded(node: Node) -> str | None:
    """Say that the source is an array that is not sharded, if *node* is one."""
    is_unsharded = isinstance(node.metadata, ArrayMetadata) and not node.metadata.is_sharded
    return _NOT_SHARDED if is_unsharded else None


async def what_else(source: Source) -> str:
    """Say what a source is in which no Zarr v3 array was found, and what to do."""
    entries = await source.store.list("")
    found = foreign_format(entries)
    if found is not None:
        return found
    if DOCUMENT in {entry.name for entry in entries}:
        return "it is a Zarr v3 group without arrays"
    for name in sorted(entry.name for entry in entries if entry.kind is Kind.DIRECTORY)[:_MAX_BELOW]:
        try:
            below = foreign_format(await source.store.list(name))
        except ShardfsError:
            continue
        if below not in (None, EMPTY, NO_ZARR):
            return f"{name} in it: {below}"
    return NO_ZARR


async def some_arrays(source: Source) -> AsyncIterator[Node]:
    """Yield as `array_nodes` does; raises `SourceError`, with what the source is instead, if there is nothing."""
    is_empty = True
    async for node in array_nodes(source):
        is_empty = False
        yield node
    if is_empty:
        raise SourceError(f"there are no Zarr v3 arrays in {source.store.url}: {await what_else(source)}")
