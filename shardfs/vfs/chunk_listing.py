"""Listings of directories of a chunk tree: chunks, and directories of chunks.

The cookie of a name is its last coordinate + 1, or its index in the grid + 1 where a name is a whole key.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Container, Iterable, Mapping, Sequence
from itertools import groupby, repeat
from typing import Final, Protocol

import numpy as np

from shardfs.dataset.array import Array, ListedRun, ScatteredRun
from shardfs.dataset.layout import OwnVersion
from shardfs.dataset.shard_cache import ShardState
from shardfs.errors import ShardfsError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.sharding import Coords
from shardfs.vfs.chunk_cache import ChunkView, Missing
from shardfs.vfs.handles import OTHERS, Attributes, Batch, ListingRow, unreadable
from shardfs.vfs.inodes import MISSING, ArrayNumbers, ChunkNumbering

_BATCH: Final = 1024


class ListedChunks(Protocol):
    """What a listing asks the chunk tree of an array."""

    array: Array
    chunk_view: ChunkView
    codec: ChunkCodec | None
    encoding: ChunkKeyEncoding
    is_nested: bool
    numbering: ChunkNumbering
    numbers: ArrayNumbers

    async def lookup(self, position: int | None, name: str) -> Attributes:
        """Return the attributes of *name* in the directory at *position*; None is the directory of the array."""

    async def directory_attributes(self, position: int) -> Attributes:
        """Return the attributes of the directory at *position*."""

    @property
    def listed_missing(self) -> Missing | None:
        """What a listing shows for a missing chunk; None if nothing."""

    @property
    def given_up(self) -> Container[Coords]:
        """The damaged chunks that are not shown."""

    def directories_in(self, prefix: Coords) -> AsyncGenerator[Sequence[int], None]:
        """Yield, in order, the next coordinates of the directories of chunks that are listed in the one at *prefix*."""

    def directory_ino(self, position: int) -> int:
        """Return the inode number of the directory at *position*."""

    def numbered(self, coords: Coords) -> Mapping[Coords, OwnVersion]:
        """Return the versions with numbers of their own in the shard that has the chunk at *coords*."""

    def keep_version(self, ino: int, coords: Coords) -> None:
        """Let *ino* stand for the version of a chunk that was published through the mount."""

    def ttl(self, state: ShardState) -> float:
        """Return how many seconds the kernel may cache attributes of the chunks of a shard."""


async def list_chunks(tree: ListedChunks, prefix: Coords, cookie: int) -> AsyncGenerator[Batch, None]:
    """Yield the chunks, or directories of chunks, below the coordinates *prefix*, after *cookie*."""
    start, ndim = 0 if cookie >= OTHERS else cookie, tree.array.grid.ndim
    if not tree.is_nested:
        batches = _list_flat(tree, start)
    elif len(prefix) < ndim - 1:
        batches = _list_directories(tree, prefix, start)
    else:
        batches = _list_row(tree, prefix, start)
    async for batch in batches:
        yield batch


async def _list_directories(tree: ListedChunks, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
    position = tree.numbering.of_directory((*prefix, 0))
    template = await tree.directory_attributes(position)
    async for numbers in tree.directories_in(prefix):
        behind = numbers[bisect_left(numbers, start) :]
        for first in range(0, len(behind), _BATCH):
            part = behind[first : first + _BATCH]
            inos = [tree.directory_ino(position + n) for n in part]
            sizes = repeat(template.size, len(part))
            yield Batch(template, list(zip(_decimals(part), inos, sizes, _shifted(part, 1), strict=True)))


async def _list_flat(tree: ListedChunks, start: int) -> AsyncGenerator[Batch, None]:
    """List chunks whose names are whole keys."""
    array, base = tree.array, tree.numbering.bases[-1]
    if array.grid.is_scattered:
        behind = tree.numbering.coords(base + start - 1) if start else None
        async for run in array.list_scattered(behind):
            for batch in _scattered(tree, run):
                yield batch
        return
    if start >= array.grid.nchunks:
        return
    first = tree.numbering.coords(base + start)
    if not first:
        yield await _only_chunk(tree)
    elif tree.listed_missing is None:
        async for prefix in array.rows(first[:-1]):
            async for batch in _list_row(tree, prefix, first[-1] if prefix == first[:-1] else 0):
                yield batch
    else:
        length = array.grid.grid_shape[-1]
        for row in range(start - first[-1], array.grid.nchunks, length):
            async for batch in _list_row(tree, tree.numbering.coords(base + row)[:-1], max(start - row, 0)):
                yield batch


async def _only_chunk(tree: ListedChunks) -> Batch:
    """Return the listing of an array without axes."""
    name, position = tree.encoding.encode(()), tree.numbering.of_chunk(())
    try:
        attributes = await tree.lookup(None, name)
    except ShardfsError:
        attributes = unreadable(None)._replace(ino=tree.numbers.ino(0, position))
    rows = [(name.encode(), attributes.ino, attributes.size, 1)] if attributes.ino else []
    return Batch(attributes, rows, is_counted=True)


async def _list_row(tree: ListedChunks, prefix: Coords, start: int) -> AsyncGenerator[Batch, None]:
    """List the chunks of one row, and between them the missing ones, if those are listed."""
    missing, array = tree.listed_missing, tree.array
    if missing is None:
        async for run in array.list_row(prefix, start):
            for batch in _batches(tree, run.without(prefix, tree.given_up), prefix, None):
                yield batch
        return
    nbytes = (await missing.chunk()).nbytes
    async for run in array.list_row(prefix, start):
        for part in (*array.absent_runs(prefix, start, run.first), run.without(prefix, tree.given_up)):
            for batch in _batches(tree, part, prefix, nbytes):
                yield batch
        start = run.first + run.length
    for part in array.absent_runs(prefix, start, array.grid.grid_shape[-1]):
        for batch in _batches(tree, part, prefix, nbytes):
            yield batch


def _batches(tree: ListedChunks, run: ListedRun, prefix: Coords, missing_nbytes: int | None) -> Iterable[Batch]:
    """Yield the chunks of *run* in the row *prefix*.

    Attributes of chunks that cannot be read are not cached. Missing chunks are shown if they have a size,
    *missing_nbytes*.
    """
    row = tree.numbering.of_chunk((*prefix, 0))
    ino = tree.numbers.version(run.state.generation, row)
    cookie = 1 if tree.is_nested else row - tree.numbering.bases[-1] + 1
    broken = unreadable(run.state.stat)
    sound = broken._replace(ttl=tree.ttl(run.state))
    owned = tree.numbered((*prefix, run.first))
    numbers, sizes, damaged = run.numbers, run.sizes, run.damaged
    if tree.codec is not None:
        sizes = [tree.codec.nbytes] * len(sizes)
    inos = _shifted(numbers, ino)
    if missing_nbytes is not None and len(numbers) < run.length:
        every = range(run.first, run.first + run.length)
        stored = {number: i for i, number in enumerate(numbers)}
        absent = tree.numbers.ino(MISSING, row)
        at = [stored.get(number) for number in every]
        inos = [absent + number if i is None else inos[i] for number, i in zip(every, at, strict=True)]
        sizes = [missing_nbytes if i is None else sizes[i] for i in at]
        damaged = None if damaged is None else [i is not None and damaged[i] for i in at]
        numbers = every
    if owned:
        inos = _with_own(tree, prefix, numbers, inos, owned)
    encode = tree.encoding.encode
    names = _decimals(numbers) if tree.is_nested else [encode((*prefix, n)).encode() for n in numbers]
    rows: list[ListingRow] = list(zip(names, inos, sizes, _shifted(numbers, cookie), strict=True))
    if damaged is not None:
        for is_damaged, group in groupby(zip(damaged, rows, strict=True), key=lambda pair: pair[0]):
            part = [listed for _, listed in group]
            yield Batch(broken if is_damaged else sound, part, is_counted=bool(owned), has_sizes=not is_damaged)
    elif rows:
        yield Batch(sound, rows, is_counted=bool(owned))


def _scattered(tree: ListedChunks, run: ScatteredRun) -> Iterable[Batch]:
    """Yield the chunks of a minishard. Attributes are not cached of those that are damaged, or whose size is unknown.

    A cookie is the position + 1, as in other arrays, though positions are in order only within a minishard.
    """
    grid = tree.array.grid
    broken = unreadable(run.state.stat)
    sound = broken._replace(ttl=tree.ttl(run.state))
    positions = np.ravel_multi_index(tuple(run.coords.T), grid.grid_shape)
    ino = tree.numbers.version(run.state.generation, tree.numbering.bases[-1])
    sizes = grid.sizes(run.coords, run.entries)
    if tree.codec is not None:
        sizes = np.full(len(positions), tree.codec.nbytes, np.uint64)
    unknown = run.damaged if sizes is not None else np.ones(len(positions), bool)
    known = np.where(unknown, 0, 0 if sizes is None else sizes).tolist()
    names = [tree.encoding.encode(coords).encode() for coords in run.coords.tolist()]
    rows: list[ListingRow] = list(zip(names, (positions + ino).tolist(), known, (positions + 1).tolist(), strict=True))
    for is_unknown, group in groupby(zip(unknown.tolist(), rows, strict=True), key=lambda pair: pair[0]):
        part = [listed for _, listed in group]
        yield Batch(broken if is_unknown else sound, part, has_sizes=not is_unknown)


def _with_own(
    tree: ListedChunks, prefix: Coords, numbers: Sequence[int], inos: Sequence[int], owned: Mapping[Coords, OwnVersion]
) -> list[int]:
    """Replace numbers in *inos* by those of versions that were published through the mount."""
    listed = list(inos)
    for i, number in enumerate(numbers):
        version = owned.get((*prefix, number))
        if version is not None:
            tree.keep_version(version.ino, (*prefix, number))
            listed[i] = version.ino
    return listed


def _shifted(numbers: Sequence[int], distance: int) -> Sequence[int]:
    """Return *numbers*, each increased by *distance*."""
    if isinstance(numbers, range):
        return range(numbers.start + distance, numbers.stop + distance)
    return [n + distance for n in numbers]


def _decimals(numbers: Sequence[int]) -> list[bytes]:
    """Return the names of coordinates; cached, since rows are listed again and again."""
    if isinstance(numbers, range) and numbers.stop <= len(_DECIMALS):
        return _DECIMALS[numbers.start : numbers.stop]
    return [b"%d" % n for n in numbers]


_DECIMALS: Final = [b"%d" % n for n in range(4096)]
