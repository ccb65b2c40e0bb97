"""Going through a whole source: its nodes, and the stored shards of an array; and what is left without them."""

import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from difflib import get_close_matches
from typing import Protocol

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Node
from shardfs.dataset.source import Source
from shardfs.errors import (
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotUnshardable,
    OutsideSourceError,
    ShardfsError,
    SourceError,
)
from shardfs.format.grid import parse_coordinate
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, Stat, Store, join_key
from shardfs.stores.local.file_lock import is_lock

Advance = Callable[[int], None]


class Progress(Protocol):
    """Shows how far a loop has come, as `cli.output.progress` does: its value is told how much more is done."""

    def __call__(self, label: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
        """Begin a loop of *total* turns, each of which does one *unit*; None if nobody knows how many."""


def no_progress(label: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
    """Show nothing."""
    return nullcontext(lambda more: None)


async def array_nodes(source: Source, path: str | None = None) -> AsyncIterator[Node]:
    """Yield the node of every array, or of the one at *path*, and those with a reason why nothing is known of them."""
    if path is None:
        async for node in walk_nodes(source):
            if isinstance(node.metadata, ArrayMetadata) or node.reason is not None:
                yield node
        return
    way_out = f"`shardfs info {shlex.quote(source.store.url)}` lists all arrays"
    try:
        node = await source.hierarchy.node(path)
    except (NotFoundError, OutsideSourceError):
        above, _, name = path.rpartition("/")
        with suppress(ShardfsError):
            names = [entry.name for entry in await source.store.list(above) if entry.kind is Kind.DIRECTORY]
            if alike := get_close_matches(name, names, n=1):
                way_out = f"did you mean {join_key(above, alike[0])}?"
        raise SourceError(f"there is no array {path} in {source.store.url}; {way_out}") from None
    if not isinstance(node.metadata, ArrayMetadata) and node.reason is None:
        raise NotFoundError(f"{path or source.store.url} is not a Zarr v3 array; {way_out}")
    yield node


async def walk_nodes(source: Source) -> AsyncIterator[Node]:
    """Yield every node with a document, parents first, in the order of their names.

    Directories of chunks are not entered.  Raises what keeps the source itself from being read; a directory below that
    cannot be read is a node with a reason.
    """
    pending: list[tuple[str, Stat | None]] = [("", None)]
    while pending:
        path, above = pending.pop()
        try:
            node = await source.hierarchy.node(path)
        except ShardfsError as error:
            if above is None:
                raise
            yield Node(path, above, reason=str(error))
            continue
        if node.document is not None or node.reason is not None:
            yield node
        try:
            entries = await source.store.list(path)
        except ShardfsError as error:
            if above is None:
                raise
            if node.reason is None:  # which would say so already
                yield Node(path, node.stat, reason=str(error))
            continue
        is_array = isinstance(node.metadata, ArrayMetadata)
        names = sorted(entry.name for entry in entries if entry.kind is Kind.DIRECTORY)
        pending += [
            (join_key(path, name), node.stat) for name in reversed(names) if not (is_array and holds_chunks(name))
        ]


async def walk_files(store: Store, path: str) -> AsyncIterator[str]:
    """Yield the key of every stored file below the directory *path*; a link to a file counts as one."""
    pending = [path]
    while pending:
        path = pending.pop()
        for entry in sorted(await store.list(path), key=lambda entry: entry.name):
            key = join_key(path, entry.name)
            if entry.kind is Kind.SYMLINK:
                try:
                    await store.open(key)
                except IsADirectoryHereError:
                    raise NotUnshardable(f"{key} is a link to a directory, which references do not follow") from None
            if entry.kind is Kind.DIRECTORY:
                pending.append(key)
            elif entry.kind is not Kind.SPECIAL:
                yield key


async def walk_shards(array: Array, prefix: Coords = ()) -> AsyncIterator[Coords]:
    """Yield the coordinates of every stored shard of *array* within its grid, in C order."""
    if not array.grid.ndim and not await array.listing.any():
        return
    if len(prefix) == array.grid.ndim:
        yield prefix
        return
    for index in await array.listing.children(prefix):
        async for coords in walk_shards(array, (*prefix, index)):
            yield coords


async def walk_all_shards(
    nodes: AsyncIterator[Node],
    label: str,
    progress: Progress,
    failed: Callable[[str, ShardfsError], None] | None = None,
) -> AsyncIterator[tuple[Array, Coords]]:
    """Yield every stored shard of the arrays among *nodes*, when all are listed; *label* says what is done with each.

    *failed* is told the paths of arrays of which not all shards can be listed; without it that is raised.
    """
    listed: list[tuple[Array, list[Coords]]] = []
    with progress("listing shards", None, "shard") as advance:
        async for node in nodes:
            if node.array is None:
                continue
            listed.append((node.array, []))
            try:
                async for coords in walk_shards(node.array):
                    listed[-1][1].append(coords)
                    advance(1)
            except ShardfsError as error:
                if failed is None:
                    raise
                failed(node.path, error)
    with progress(label, sum(len(shards) for _, shards in listed), "shard") as advance:
        for array, shards in listed:
            for coords in shards:
                yield array, coords
                advance(1)


def holds_chunks(name: str) -> bool:
    """Whether a name in the directory of an array leads to chunks."""
    return name == "c" or parse_coordinate(name) is not None


async def prune(store: Store, directory: str, *, locks: bool = False) -> None:
    """Remove *directory*, and those below it, as far as they are empty, or hold nothing but *locks*."""
    try:
        entries = await store.list(directory)
    except (NotFoundError, NotADirectoryHereError):
        return
    for entry in entries:
        if entry.kind is Kind.DIRECTORY:
            await prune(store, join_key(directory, entry.name), locks=locks)
        elif locks and is_lock(entry.name):
            with suppress(NotFoundError):
                await store.unlink(join_key(directory, entry.name))
    with suppress(NotEmptyError):
        await store.rmdir(directory)
