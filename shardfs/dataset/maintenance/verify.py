"""Examining shards: what each contains, what is dead, and what is damaged."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Final

import numpy as np
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.shard import OpenShard, open_inner_shard, read_checked
from shardfs.errors import CorruptionError, MetadataError, NotShownError, OversizedDataError, ShardfsError
from shardfs.format.codecs import MAX_CHUNK_NBYTES, ChunkCodec, Filter, decode_elements, is_decodable, split_chain
from shardfs.format.document import Extension
from shardfs.format.dtype import item_nbytes
from shardfs.format.index import IndexLayout, are_empty, damaged, find_last_index
from shardfs.format.numcodec import MAX_ITEM_NBYTES
from shardfs.format.sharding import ChunkLocation, Coords, ShardGrid
from shardfs.stores.base import Buffer

_PIECE_NBYTES: Final = 64 * 2**20
_MAX_LOOKED_AT: Final = 64  # the largest of the ranges that nothing refers to
_LOOKED_AT_NBYTES: Final = 4096
_SEARCHED_NBYTES: Final = 4 * 2**20  # a larger shard is not searched for an older index: it would take too long
_FORMATS: Final = (b"\x89HDF", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # HDF5, TIFF


@dataclass(frozen=True, slots=True)
class Problem:
    """Something damaged: a *document*, a whole shard, or an inner chunk, named by its key in the unsharded array.

    A chunk that is *too_large* to be decoded may be sound.
    """

    shard: str | None
    chunk: str | None
    message: str
    document: str | None = None
    too_large: bool = False

    def __str__(self) -> str:
        chunk = f", chunk {self.chunk}" if self.chunk else ""
        return f"{self.shard or self.document}{chunk}: {self.message}"


class Use(IntEnum):
    """What bytes of a shard are used for.

    A *gap* begins with zeros; a *foreign* prefix may belong to another format.
    """

    DEAD = 0
    LIVE = 1
    INDEX = 2
    GAP = 3
    FOREIGN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What is where in a shard: the bytes from `edges[i]` to `edges[i + 1]` have the use `uses[i]`."""

    edges: np.ndarray
    uses: np.ndarray

    def cells(self, count: int) -> list[Use]:
        """Return the main use of each of *count* equal parts of the shard; every use gets at least one part."""
        lengths = np.diff(self.edges)
        sums = {use: np.append(0, np.cumsum(lengths * (self.uses == use))) for use in Use}
        at = np.linspace(0, self.edges[-1], count + 1)
        most = np.argmax([np.diff(np.interp(at, self.edges, sums[use])) for use in Use], axis=0)
        for use in Use:
            if use in self.uses and use not in most:
                first = int(self.edges[np.argmax(self.uses == use)])
                most[min(first * count // max(int(self.edges[-1]), 1), count - 1)] = use
        return [Use(use) for use in most]


@dataclass(frozen=True, slots=True)
class ShardUse:
    """What the bytes of a shard are used for: *live* ones are payloads and indexes, each counted once.

    It has *chunks* of the *capacity* that the array has there, which is 0 if nobody knows. *live* is None if the shard,
    or a shard in it, is encoded as a whole, or has data without entries.
    """

    key: str
    size: int
    chunks: int
    capacity: int
    live: int | None
    error: str | None

    @property
    def dead(self) -> int | None:
        """Bytes that nothing refers to."""
        return None if self.live is None else self.size - self.live


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Decodes inner chunks of *count* elements to find damage.

    *item_nbytes* is the size of an element once the *codecs* are undone, None if that varies; *filters* are codecs
    before them.
    """

    codecs: tuple[Extension, ...]
    count: int
    item_nbytes: int | None
    filters: tuple[Filter, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """The expected size, None if that varies."""
        return None if self.item_nbytes is None else self.item_nbytes * self.count

    @classmethod
    def of(cls, array: Array) -> "ChunkDecoder | None":
        """Return the decoder for the chunks of *array*; None if a codec is unknown."""
        try:
            chain = split_chain(array.codecs, "codecs")
        except MetadataError:
            return None
        count = prod(array.grid.chunk_shape)
        with suppress(NotShownError):
            codec = ChunkCodec.parse(array.document["data_type"], array.grid.chunk_shape, array.codecs)
            return cls(codec.after, count, codec.data_type.nbytes, codec.filters)
        if any(codec.name != "transpose" for codec in chain.before) or not all(map(is_decodable, chain.after)):
            return None
        nbytes = item_nbytes(array.document["data_type"]) if chain.serializer.name == "bytes" else None
        return cls(chain.after, count, nbytes)

    async def check(self, extent: Extent) -> None:
        """Read and decode one chunk; raises `CorruptionError` if it is damaged.

        Raises `OversizedDataError` if it is larger than `MAX_CHUNK_NBYTES`, encoded or decoded.
        """
        nbytes = extent.nbytes
        if not self.codecs and not self.filters:
            self._check_size(nbytes)
            for start in range(0, nbytes, _PIECE_NBYTES):
                await extent.read(start, min(_PIECE_NBYTES, nbytes - start))
            return
        limit = MAX_CHUNK_NBYTES if self.nbytes is None else self.nbytes
        if self.filters:
            limit = max(limit, MAX_ITEM_NBYTES * self.count)
        if nbytes > 2 * limit + 4096 and self.nbytes is not None:
            raise CorruptionError(f"the chunk has {nbytes} encoded bytes, too many for {limit} decoded ones")
        if max(nbytes - 4096, limit) > MAX_CHUNK_NBYTES:
            raise OversizedDataError(
                f"{max(nbytes, limit):,} bytes are more than the {MAX_CHUNK_NBYTES:,} that are decoded"
            )

        async def decoded(encoded: Buffer) -> None:
            elements = await trio.to_thread.run_sync(
                decode_elements, self.codecs, self.filters, encoded, limit, self.count
            )
            self._check_size(len(elements))

        try:
            await read_checked(extent, 0, nbytes, decoded)
        except OversizedDataError as error:
            raise error if self.nbytes is None else CorruptionError(str(error)) from None
        except MemoryError:
            raise OversizedDataError("decoding it takes more memory than there is") from None

    def _check_size(self, nbytes: int) -> None:
        if self.nbytes not in (None, nbytes):
            raise CorruptionError(f"the chunk decodes to {nbytes} bytes, its shape needs {self.nbytes}")


async def measure(array: Array, coords: Coords) -> ShardUse:
    """Return what the bytes of the stored shard at *coords* are used for."""
    payloads, indexes, problems, nchunks = await _ranges(array, coords)
    state = await array.shard(coords)
    return ShardUse(
        key=array.layout.shard_key(coords),
        size=state.stat.size if state.stat else 0,
        chunks=nchunks,
        capacity=array.grid.capacity(coords),
        live=int(np.diff(_covered(payloads + indexes)).sum()) if indexes else None,
        error=problems[0].message if problems else None,
    )


async def find_damage(array: Array, coords: Coords, *, data: bool) -> list[Problem] | None:
    """Return the damage in the stored shard at *coords*, None if there is none.

    With *data*, chunks are decoded if their codecs are known.
    """
    decoder = ChunkDecoder.of(array) if data else None
    problems: list[Problem] = []
    async for shard, location in _levels(array, coords):
        if isinstance(shard, Problem):
            problems.append(shard)
            continue
        if len(location.shapes) < array.grid.nindexes:
            continue
        entries = shard.index.entries
        suspects = damaged(entries, shard.index.shard_nbytes)
        if decoder is not None:
            suspects = np.flatnonzero(~are_empty(entries)).tolist()
        if array.grid.is_scattered:
            problems += await _listed_damage(array, shard, location, data=data)
            continue
        for entry in suspects:
            try:
                extent_range = shard.index.range(entry)
                if extent_range is not None and decoder is not None:
                    count = array.grid.nelements_at(_entered(location, entry))
                    await replace(decoder, count=count).check(array.stored_extent(shard, extent_range))
            except ShardfsError as error:
                problems.append(_problem(array, _entered(location, entry), error))
    return problems or None


async def _listed_damage(array: Array, shard: OpenShard, location: ChunkLocation, *, data: bool) -> list[Problem]:
    """Return the damage in a minishard, and which of the chunks that it lists do not belong there."""
    grid, index, minishard = array.grid, shard.index, location.entries[0]
    known = grid.belonging(index, location)
    name = array.layout.shard_key(location.shard)
    problems = [
        Problem(name, None, f"minishard {minishard} lists chunk {key}, which does not belong there")
        for key in index.keys[~known].tolist()
    ]
    suspects = known if data else known & ~index.sound
    sizes = grid.decoded_sizes(grid.positions(index, location))
    for position in np.flatnonzero(suspects).tolist():
        entered = _entered(location, int(index.keys[position]))
        try:
            nbytes = await _check_listed(grid, shard, entered.entries[-1])
            if sizes is not None and nbytes != sizes[position]:
                raise CorruptionError(f"the chunk has {nbytes} bytes, its shape needs {sizes[position]}")
            if data and grid.has_data_before:
                await _read_whole((await array.find_before(grid.coords(entered)))[1])
        except ShardfsError as error:
            problems.append(_problem(array, entered, error))
    return problems


async def _check_listed(grid: ShardGrid, shard: OpenShard, chunk_id: int) -> int:
    """Read a chunk of a minishard, and undo its gzip; returns how many bytes it has then."""
    extent_range = shard.index.range(chunk_id)
    assert extent_range is not None
    if grid.nindexes < len(grid.levels):
        opened = await open_inner_shard(grid.levels[-1], (), shard, chunk_id)
        assert opened is not None
        return opened.index.shard_nbytes
    await _read_whole(Extent(shard, *extent_range))
    return extent_range[1]


async def _read_whole(extent: Extent | None) -> None:
    """Read all bytes of an extent."""
    nbytes = extent.nbytes if extent is not None else 0
    for start in range(0, nbytes, _PIECE_NBYTES):
        assert extent is not None
        await extent.read(start, min(_PIECE_NBYTES, nbytes - start))


async def lay_out(array: Array, coords: Coords) -> Layout | None:
    """Return the layout of the stored shard at *coords*; None if it cannot be read, or is encoded as a whole."""
    payloads, indexes, _, _ = await _ranges(array, coords)
    shard = (await array.shard(coords)).shard
    if not indexes or shard is None:
        return None
    live, index = _covered(payloads), _covered(indexes)
    edges = np.unique(np.concatenate([live.ravel(), index.ravel(), [0, shard.snapshot.size]]))
    uses = np.full(len(edges) - 1, Use.DEAD)
    for use, ranges in ((Use.LIVE, live), (Use.INDEX, index)):
        starts, stops = ranges.T
        begun, ended = (np.searchsorted(bounds, edges[:-1], side="right") for bounds in (starts, stops))
        uses[begun > ended] = use
    dead = np.flatnonzero(uses == Use.DEAD)
    for number in dead[np.argsort(-np.diff(edges)[dead])[:_MAX_LOOKED_AT]].tolist():
        start, stop = edges[number : number + 2].tolist()
        first = bytes(await shard.snapshot.read(start, min(stop - start, _LOOKED_AT_NBYTES)))
        if not any(first):
            uses[number] = Use.GAP
        elif start == 0 and (
            first.startswith(_FORMATS)
            or (shard.snapshot.size <= _SEARCHED_NBYTES and await has_foreign_prefix(array, coords, shard))
        ):
            uses[number] = Use.FOREIGN
    return Layout(edges, uses)


async def has_foreign_prefix(array: Array, shard: Coords, opened: OpenShard) -> bool:
    """Whether no index of the shard, as far as can be told, ever named the bytes before its first chunk."""
    level = array.grid.levels[0]
    if level.index_at_start or opened.index.first_live_byte == 0:
        return False
    if not level.index_codecs.checksums:
        return True
    return not await trio.to_thread.run_sync(_was_named, array.grid.index_layouts(shard), opened)


def _was_named(layouts: tuple[IndexLayout, IndexLayout | None], opened: OpenShard) -> bool:
    """Whether an older index in a shard names a chunk at its beginning; see `ShardGrid.index_layouts`."""
    layout, inner = layouts
    content = opened.snapshot.content(0, opened.snapshot.size)
    stop = opened.index_offset
    while stop > 0:
        offset = find_last_index(layout, stop, content.read, inner)
        if offset is None:
            return False
        index = layout.codecs.decode(bytes(content.read(offset, layout.nbytes)), layout.chunks_per_shard, offset)
        if index.first_live_byte == 0:
            return True
        stop = offset + layout.nbytes - 1
    return False


async def _ranges(array: Array, coords: Coords) -> tuple[list[np.ndarray], list[np.ndarray], list[Problem], int]:
    """Return ranges (rows of offset and length) of chunks and of indexes in a shard, damage, and the number of chunks.

    A shard that is encoded as a whole, or has such shards, or data without entries, has no ranges.
    """
    payloads: list[np.ndarray] = []
    indexes: list[np.ndarray] = []
    problems: list[Problem] = []
    nchunks = 0
    is_encoded = False
    async for shard, location in _levels(array, coords):
        if isinstance(shard, Problem):
            problems.append(shard)
            continue
        is_encoded = is_encoded or shard.decoded is not None
        indexes.append(np.array([[shard.index_offset, len(shard.index.encoded)]], dtype=np.uint64))
        if len(location.shapes) == array.grid.nindexes:
            entries = shard.index.entries
            belong = array.grid.belonging(shard.index, location)
            nchunks += int(np.count_nonzero(~are_empty(entries) & belong))
            payloads.append(entries[shard.index.sound] + np.array([shard.offset, 0], np.uint64))
    is_unknown = is_encoded or array.grid.has_data_before
    return ([], [], problems, nchunks) if is_unknown else (payloads, indexes, problems, nchunks)


async def _levels(array: Array, coords: Coords) -> AsyncIterator[tuple[OpenShard | Problem, ChunkLocation]]:
    """Yield the shard at *coords* and every shard in it with its location, the last entry of which is open.

    A shard that cannot be read is a problem instead. Only one shard of each level is open at a time.
    """
    state = await array.shard(coords)
    location = ChunkLocation(coords, (), (array.grid.index_shape(coords),))
    if state.error is not None:
        key = array.layout.shard_key(coords)
        yield Problem(key, None, str(state.error).removeprefix(f"{key}: ")), location
    elif state.shard is not None:
        async for damage in _within(array, state.shard, location):
            yield damage


async def _within(
    array: Array, shard: OpenShard, location: ChunkLocation
) -> AsyncIterator[tuple[OpenShard | Problem, ChunkLocation]]:
    yield shard, location
    levels, depth = array.grid.levels, len(location.shapes)
    if depth == array.grid.nindexes:
        return
    shape = array.grid.inner_shape(depth)
    for entry in range(shard.index.nentries):
        entered = _entered(location, entry)
        try:
            inner = await open_inner_shard(levels[depth], shape, shard, entry)
        except ShardfsError as error:
            if array.grid.is_scattered:
                yield Problem(array.layout.shard_key(location.shard), None, f"minishard {entry}: {error}"), entered
                continue
            error = type(error)(f"the shard within, which begins with this chunk: {error}")
            yield _problem(array, entered, error), entered
            continue
        if inner is not None:
            async for damage in _within(array, inner, entered._replace(shapes=(*location.shapes, shape))):
                yield damage


def _entered(location: ChunkLocation, entry: int) -> ChunkLocation:
    return ChunkLocation(location.shard, (*location.entries, entry), location.shapes)


def _problem(array: Array, location: ChunkLocation, error: ShardfsError) -> Problem:
    layout = array.layout
    is_file = array.grid.is_unsharded
    chunk = None if is_file else array.grid.chunk_name(array.grid.coords(location), layout.key_encoding)
    is_large = isinstance(error, OversizedDataError)
    return Problem(layout.shard_key(location.shard), chunk, str(error), too_large=is_large)


def _covered(ranges: list[np.ndarray]) -> np.ndarray:
    """Return the union of *ranges*: rows of first byte and end, in order, that do not touch."""
    if not ranges:
        return np.empty((0, 2), np.int64)
    starts, lengths = np.concatenate(ranges).astype(np.int64).T
    order = np.argsort(starts)
    starts, stops = starts[order], np.maximum.accumulate((starts + lengths)[order])
    begins = np.append(True, starts[1:] > stops[:-1])[: len(starts)]
    return np.column_stack([starts[begins], stops[np.roll(begins, -1)]])


@dataclass(frozen=True)
class Waste:
    """A shard with enough dead bytes to be compacted; *reason* says why it is not."""

    use: ShardUse
    reason: str | None = None


async def find_waste(array: Array, shard: Coords, *, threshold: float, force: bool) -> Waste | None:
    """Return the waste of a stored shard if at least the share *threshold* of its bytes is dead and can be removed.

    Dead bytes within enclosed shards stay: our commits leave none there, so others did. A shard that begins with bytes
    that none of its indexes named may be another file too, HDF5 or TIFF for example; it gets a reason not to be
    compacted, unless *force*. Raises `CorruptionError` if its index cannot be read.
    """
    use = await measure(array, shard)
    opened = (await array.shard(shard)).shard
    if use.error is not None:
        raise CorruptionError(use.error)
    if not use.dead or opened is None:
        return None
    if len(array.grid.levels) > 1:  # shards in it are moved as they are
        removable = max(opened.index.shard_nbytes - opened.index.live_nbytes, 0)
        use = replace(use, live=use.size - min(use.dead, removable))
    if not use.dead or use.dead < threshold * use.size:
        return None
    is_foreign = not force and await has_foreign_prefix(array, shard, opened)
    return Waste(use, "it begins with bytes that are no chunk's: another format may own them" if is_foreign else None)
