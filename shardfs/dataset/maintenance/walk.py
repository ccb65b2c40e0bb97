"""Walking a whole source: its nodes, and the stored shards of its arrays.

Also what to say of a source without sharded arrays.
"""

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import product
from typing import Final, Protocol

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.node import DOCUMENT, BrokenNode, Node, groups_above
from shardfs.dataset.shard_listing import Strays
from shardfs.errors import (
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotUnshardable,
    OutsideSourceError,
    ShardfsError,
    SourceError,
    UnsupportedError,
    nearest,
)
from shardfs.format.lens.v2 import V2_NAMES, is_relative_path
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords, ShardGrid
from shardfs.formats import VirtualStore, documents, formats
from shardfs.stores.base import Kind, ListedName, Reader, Stat, Store, is_reserved, join_key
from shardfs.stores.local.file_lock import is_lock

Advance = Callable[[int], None]


class Progress(Protocol):
    """Reports the progress of loops, as `cli.output.progress` does."""

    def __call__(self, label: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
        """Begin a loop of *total* steps, each of one *unit*; None if nobody knows how many.

        Yields a function that is told how many more were done.
        """


def no_progress(label: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
    """Report nothing."""
    return nullcontext(lambda more: None)


async def array_nodes(source: Source, path: str | None = None) -> AsyncIterator[Node]:
    """Yield the node of every array, or of the one at *path*, and the nodes with a reason why they cannot be read.

    Values by id in shards, of a format that is only read, count as arrays.
    """
    if path is None:
        async for node in walk_nodes(source, links=True):
            if _is_array(node):
                yield node
        return
    way_out = f"`shardfs info {shlex.quote(source.store.url)}` lists all arrays"
    try:
        node = await source.hierarchy.node(path)
    except (NotFoundError, OutsideSourceError):
        await _check_described(source, path)
        alike = await similar_path(source, path)
        way_out = way_out if alike is None else f"did you mean {alike}?"
        raise SourceError(f"there is no array {path} in {source.store.url}; {way_out}") from None
    if not _is_array(node):
        if node.document is None:
            await _check_described(source, path)
        raise NotFoundError(f"{path or source.store.url} is not a Zarr v3 array; {way_out}")
    yield node


async def similar_path(source: Source, path: str) -> str | None:
    """Return the path of a directory beside the missing *path* that has a similar name; None if there is none."""
    above, _, name = path.rpartition("/")
    with suppress(ShardfsError):
        names = [entry.name for entry in await source.store.list(above) if entry.kind is Kind.DIRECTORY]
        if (alike := nearest(name, names)) is not None:
            return join_key(above, alike)
    return None


async def _check_described(source: Source, path: str) -> None:
    """Raise `NotFoundError` if only consolidated metadata describes a node at *path*, where none was found."""
    if path in await source.hierarchy.copies.described_below(path):
        raise NotFoundError(f"{path}: {_ONLY_DESCRIBED}")


def _is_array(node: Node) -> bool:
    return isinstance(node.metadata, ArrayMetadata) or node.reason is not None or node.shards is not None


class DescribedNodes:
    """Which nodes groups describe that a walk of their source does not find."""

    def __init__(self) -> None:
        self._described: set[str] = set()
        self._seen: set[str] = set()
        self._links: set[str] = set()

    def describe(self, group: str, relative_paths: Iterable[str]) -> None:
        """Note that the consolidated metadata of *group* describes these nodes."""
        for relative in relative_paths:
            if is_relative_path(relative):
                self._described.add(join_key(group, relative))

    def has(self, path: str) -> bool:
        """Whether a group describes a node at *path*."""
        return path in self._described

    def found(self, path: str) -> None:
        """Note that there is a node at *path*, or that it was reported why it cannot be read."""
        self._seen.add(path)

    def list(self, path: str, entries: Iterable[ListedName]) -> Sequence[str]:
        """Note the *entries* of the directory *path*; return which are symbolic links."""
        links = sorted(join_key(path, entry.name) for entry in entries if entry.kind is Kind.SYMLINK)
        self._links.update(links)
        return links

    def missing(self) -> Iterator[tuple[str, str]]:
        """Yield the nodes that were not found, and why, in the order of their paths; none behind a symbolic link."""
        for path in sorted(self._described):
            is_behind = any(link in self._links for link in (path, *(above for above, _ in groups_above(path))))
            if path not in self._seen and not is_behind:
                yield path, _ONLY_DESCRIBED


_ONLY_DESCRIBED: Final = (
    "only consolidated metadata describes it, by which programs show it, and no document of its own: restore that, or "
    "write the consolidated metadata anew"
)
_LINKED: Final = (
    "it is a symbolic link to a directory, which commands do not follow: they look at what it leads to where that is; "
    "to have it here too, copy that in its place"
)


async def walk_nodes(source: Source, *, links: bool = False) -> AsyncIterator[Node]:
    """Yield every node with a document, or of a format that is only read, parents first, in the order of their names.

    At the end, those that only consolidated metadata describes, and with *links*, symbolic links to nodes, each with
    the reason why it is not read. Directories of chunks are not entered. Raises the error that prevents reading
    the source itself; a directory below it that cannot be read is a node with a reason.
    """
    pending: list[tuple[str, Stat | None]] = [("", None)]
    described = DescribedNodes()
    top: Stat | None = None
    while pending:
        path, above = pending.pop()
        node: Node | None = None
        try:
            node = await source.hierarchy.node(path)
            top = top or node.stat
            described.describe(path, node.copies)
            if node.document is not None or node.reason is not None or node.is_read_only:
                described.found(path)
                yield node
            entries = await source.hierarchy.list(path)
        except ShardfsError as error:
            if isinstance(error, UnsupportedError) and node is not None and _is_array(node):
                continue  # the shards in its directory cannot be listed; it has been yielded
            if above is None:
                raise
            if node is None or node.reason is None:  # else it has reported that already
                described.found(path)
                yield Node(path, above, BrokenNode(str(error)))
            continue
        linked = described.list(path, entries) if not _is_array(node) else ()
        for link in linked if links else ():
            with suppress(ShardfsError):
                target = await source.hierarchy.node(link)
                if target.document is not None or target.is_read_only:
                    broken = BrokenNode(_LINKED, is_only_described=described.has(link), is_link=True)
                    yield Node(link, target.stat, broken)
        directories = (entry.name for entry in entries if entry.kind is Kind.DIRECTORY)
        names = sorted(name for name in directories if not is_reserved(name) and not node.has_shards_at(name))
        pending += [(join_key(path, name), node.stat) for name in reversed(names)]
    for path, reason in described.missing():
        assert top is not None
        yield Node(path, top, BrokenNode(reason, is_only_described=True))


async def walk_files(store: Reader, path: str, *, opens_links: bool = False) -> AsyncIterator[str]:
    """Yield the key of every stored file below the directory *path*; a link counts as a file.

    With *opens_links*, raises the error that prevents reading what a link leads to.
    """
    pending = [path]
    while pending:
        path = pending.pop()
        entries = [entry for entry in await store.list(path) if not is_reserved(entry.name)]
        for entry in sorted(entries, key=lambda entry: entry.name):
            key = join_key(path, entry.name)
            if entry.kind is Kind.SYMLINK and opens_links:
                try:
                    await store.open(key)
                except IsADirectoryHereError:
                    raise NotUnshardable(f"{key} is a link to a directory, which references do not follow") from None
            if entry.kind is Kind.DIRECTORY:
                pending.append(key)
            elif entry.kind is not Kind.SPECIAL:
                yield key


async def walk_shards(
    array: Array,
    grid: ShardGrid | None = None,
    failed: Callable[[ShardfsError], None] | None = None,
    others: Callable[[Strays], None] = lambda strays: None,
) -> AsyncIterator[Coords]:
    """Yield, in C order, the coordinates of the shards of *grid* in which *array* has anything stored.

    By default they are its own shards. *failed* is called with what cannot be listed; without it, the error is raised.
    *others* is called with what is among shards and is none.
    """
    chosen = grid or array.grid

    async def below(prefix: Coords, stored: Sequence[Coords]) -> AsyncIterator[Coords]:
        """Yield those below *prefix*; *stored* are the prefixes of the array's own shards that overlap them."""
        axis = len(prefix)
        if axis == chosen.shard_ndim:
            yield prefix
            return
        by_name: dict[int, list[Coords]] = {}
        for above in stored:
            try:
                children = await array.listing.children(above)
            except ShardfsError as error:
                if failed is None:
                    raise
                failed(error)
                continue
            if (strays := array.listing.strays(above)) is not None:
                others(strays)
            for index in children:
                for number in [index] if grid is None else _touched(grid, axis, array.grid.covered(axis, index)):
                    by_name.setdefault(number, []).append((*above, index))
        for number in sorted(by_name):
            async for shard in below((*prefix, number), by_name[number]):
                yield shard

    if grid is not None and array.grid.is_scattered:  # any of its shards may have chunks of any of these
        if await array.listing.any():
            for coords in product(*(range(dimension.nchunks) for dimension in grid.shards.dimensions)):
                yield coords
    elif chosen.ndim or await array.listing.any():
        async for shard in below((), [()]):
            yield shard


async def nodes_among_shards(array: Array) -> AsyncIterator[str]:
    """Yield the keys of directories and documents that are among the shards of *array*, as far as those are listed."""
    if not array.layout.key_encoding.is_nested(array.grid.ndim):
        return
    keys: list[str] = []
    async for _ in walk_shards(array, None, lambda error: None, lambda strays: keys.extend(strays.nodes)):
        pass
    for key in keys:
        yield key


def among_shards(path: str) -> str:
    """Say why no command looks into a directory among the shards of the array at *path*, and what to do."""
    return f"it is among the shards of {path or 'the source'}, where no array or group can be: move it elsewhere"


def _touched(grid: ShardGrid, axis: int, chunks: range) -> range:
    """Return the shards of *grid* along *axis* that contain any of these inner chunks."""
    if not chunks:
        return range(0)
    return range(grid.shard_at(axis, chunks[0]), grid.shard_at(axis, chunks[-1]) + 1)


async def walk_all_shards(
    nodes: AsyncIterator[Node],
    label: str,
    progress: Progress,
    failed: Callable[[str, ShardfsError], None] | None = None,
    others: Callable[[str, Strays], None] = lambda path, strays: None,
    *,
    chunks: bool = False,
) -> AsyncIterator[tuple[Array, Coords]]:
    """Yield every stored shard of *nodes*, after all were listed; *label* names the work.

    With *chunks*, also the chunks of arrays that are stored unsharded, each of which is a shard of its own.

    *failed* is called with the path of an array for each directory of its shards that cannot be listed; without it, the
    error is raised. *others* is called with what is among its shards and is none.
    """
    listed: list[tuple[Array, Coords]] = []
    with progress("listing shards", None, "shard") as advance:
        async for node in nodes:
            array = node.shards or (node.any_array if chunks else None)
            if array is None:
                continue
            fail = partial(failed, node.path) if failed is not None else None
            async for coords in walk_shards(array, None, fail, partial(others, node.path)):
                listed.append((array, coords))
                advance(1)
    with progress(label, len(listed), "shard") as advance:
        for shard in listed:
            yield shard
            advance(1)


async def prune(
    store: Store, directory: str, *, locks: bool = False, left: Callable[[str], Awaitable[None]] | None = None
) -> None:
    """Remove *directory* and those below it, as far as they are empty, or contain only *locks* that nobody holds.

    Before, *left* is called with the key of each file, and may remove it: its lock is still there.
    """
    try:
        entries = await store.list(directory)
    except (NotFoundError, NotADirectoryHereError):
        return
    named_as_locks = []
    for entry in entries:
        key = join_key(directory, entry.name)
        if entry.kind is Kind.DIRECTORY:
            await prune(store, key, locks=locks, left=left)
        elif locks and is_lock(entry.name):
            named_as_locks.append(key)
        elif left is not None:
            await left(key)
    for key in named_as_locks:
        await store.remove_lock(key)
    with suppress(NotEmptyError, NotFoundError):  # in a bucket, it is gone with the last object in it
        await store.rmdir(directory)


EMPTY: Final = "it is empty; a mount with --write --shards stores sharded what is copied into it"
NO_ZARR: Final = (
    f"no {DOCUMENT} is in it or below it; SOURCE must be the folder of a Zarr v3 array or group, or one above"
)
_ZARR_V2: Final = (
    "it is Zarr v2, which has no shards; programs read it without a mount, and `shardfs pack SOURCE DEST` makes "
    "sharded Zarr v3 of it"
)
_IN_PARTS: Final = (
    "its {}s are of Zarr v2, which is shown as it is, for programs that read that; `shardfs pack` makes sharded "
    "Zarr v3 of it"
)
_NOT_SHARDED: Final = "the array is not sharded; programs that read Zarr v3 read it without a mount"
_MAX_BELOW: Final = 10  # directories that are examined


def foreign_format(entries: Sequence[ListedName], *, part: str = "") -> str | None:
    """Say what a directory with these *entries* is, and what to do; None if there may be Zarr v3, or a node, in it.

    If they are each a *part* of another file, programs do not read it as it is stored.
    """
    entries = [entry for entry in entries if not is_reserved(entry.name)]
    names = {entry.name for entry in entries}
    if DOCUMENT in names:
        return None
    if not names:
        return EMPTY
    if names & {".zgroup", ".zarray", ".zmetadata"}:
        return _IN_PARTS.format(part) if part else _ZARR_V2
    for one in formats():
        if (remark := one.remark(frozenset(names))) is not None:
            return remark
    return NO_ZARR if not names & documents() and all(entry.kind is Kind.FILE for entry in entries) else None


def foreign_source(source: Source) -> str | None:
    """Say what a source is and what to do, if the names at its top tell that there is no Zarr v3 in it."""
    if source.names is None:
        return None
    return foreign_format(source.names, part=_part_of(source))


def _part_of(source: Source) -> str:
    """Return what the files of a source are called if they are parts of others; "" if they are none."""
    return source.store.part if isinstance(source.store, VirtualStore) else ""


async def note_on(source: Source) -> str | None:
    """Say what a user should know of a source who has mounted it."""
    if isinstance(source.store, VirtualStore):
        return await source.store.note()
    note = foreign_source(source)
    return NO_ZARR if note is None and not await _may_have_zarr(source) else note


async def _may_have_zarr(source: Source) -> bool:
    """Whether something that is shown in another form may be in a source; True if that would take long to find out."""
    if source.names is None or source.store.root is None:  # a remote source would need requests
        return True
    pending, nlisted = [""], 0
    while pending:
        path = pending.pop(0)
        if nlisted == _MAX_BELOW:
            return True
        nlisted += 1
        try:
            entries = await source.store.list(path) if path else source.names
        except ShardfsError:
            return True
        names = {entry.name for entry in entries}
        if DOCUMENT in names:
            return True
        if names & {*documents(), *V2_NAMES} or foreign_format(entries) not in (None, EMPTY, NO_ZARR):
            return True
        directories = [entry.name for entry in entries if entry.kind in (Kind.DIRECTORY, Kind.SYMLINK)]
        pending += [join_key(path, name) for name in directories if not is_reserved(name)]
    return False


def unsharded(node: Node) -> str | None:
    """Say that the source is an unsharded array, if *node* is one."""
    is_unsharded = isinstance(node.metadata, ArrayMetadata) and not node.metadata.is_sharded
    return _NOT_SHARDED if is_unsharded else None


async def what_else(source: Source) -> str:
    """Say what a source without Zarr v3 arrays is, and what to do."""
    entries = await source.store.list("")
    part = _part_of(source)
    what = foreign_format(entries, part=part)
    if what is not None:
        return what
    if DOCUMENT in {entry.name for entry in entries}:
        return "it is a Zarr v3 group without arrays"
    names = (entry.name for entry in entries if entry.kind is Kind.DIRECTORY and not is_reserved(entry.name))
    for name in sorted(names)[:_MAX_BELOW]:
        try:
            below = foreign_format(await source.store.list(name), part=part)
        except ShardfsError:
            continue
        if below not in (None, EMPTY, NO_ZARR):
            return f"{name} in it: {below}"
    return NO_ZARR


async def some_arrays(source: Source) -> AsyncIterator[Node]:
    """Yield what `array_nodes` does; raises `SourceError`, saying what the source is, if there is nothing."""
    is_empty = True
    async for node in array_nodes(source):
        is_empty = False
        yield node
    if is_empty:
        raise SourceError(f"there are no Zarr v3 arrays in {source.store.url}: {await what_else(source)}")
