"""A shard at any level of nesting: open, with its index, and how its next version is built.

A shard that is stored as it is can be appended to. A shard within another shard, or under another codec, has to be
rewritten: an inner shard becomes one new payload of the shard around it, and an encoded shard is encoded anew.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple, Protocol, TypeVar, cast

import trio

from shardfs.dataset.journal.records import ShardMark, hash_of
from shardfs.dataset.statistics import Statistics
from shardfs.errors import CorruptionError, ReadOnlyError, StaleError, StoreError
from shardfs.format.codecs import encode
from shardfs.format.fence import fenced
from shardfs.format.index import ENTRY_NBYTES, IndexLayout, ListedCodecs, ListedIndex, ShardIndex
from shardfs.format.sharding import (
    MAX_INDEX_NBYTES,
    ChunkLocation,
    Coords,
    ShardGrid,
    ShardingLevel,
)
from shardfs.format.update import Added, CopiedRange, Index, Padding, WritePlan, plan_empty, plan_write
from shardfs.stores.base import APPEND_NBYTES, Buffer, Content, FetchingSnapshot, Kept, Snapshot, Splice, Takes
from shardfs.stores.cache import Cache
from shardfs.stores.direct import DirectSnapshot
from shardfs.stores.memory import JoinedContent, MemoryContent

THREAD_NBYTES: Final = 2**20
"""An index that is larger, as it is stored or decoded, is decoded in a thread, so that other requests can run."""

_LARGE_NBYTES: Final = 8 * 2**20  # shards that are larger, encoded or decoded, take turns
_LARGE_AT_ONCE: Final = 2

T = TypeVar("T")


class Checkable(Protocol):
    """Bytes that can be read again: those of a stored version, of a shard in it, or of a chunk."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*."""

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Forget bytes that failed a check; return whether they may come otherwise next time."""


async def read_checked(source: Checkable, offset: int, nbytes: int, check: Callable[[Buffer], Awaitable[T]]) -> T:
    """Return what *check* makes of bytes of *source*.

    If it calls them damaged, they are fetched once more where that may help. What is damaged again is not kept either,
    so that the next reader does not depend on it.
    """
    try:
        return await check(await source.read(offset, nbytes))
    except CorruptionError:
        if not await source.distrust(offset, nbytes):
            raise
    try:
        return await check(await source.read(offset, nbytes))
    except CorruptionError:
        await source.distrust(offset, nbytes)
        raise


class DecodedBytes(Cache[object, Buffer]):
    """The most recently used decoded shards: at most *max_nbytes* bytes, but always one shard."""

    def __init__(self, statistics: Statistics, max_nbytes: int) -> None:
        super().__init__(len, max_nbytes, max_count=sys.maxsize)
        self.large = trio.CapacityLimiter(_LARGE_AT_ONCE)  # for work that may take much memory
        self.statistics = statistics


class DecodedShard:
    """A shard under another codec: *nbytes* bytes from *offset* of *outer*, decoded as a whole.

    The decoded bytes are in *cache* under *key*, or, without a key, kept for as long as this object. Bytes that were
    dropped are decoded again from the version that *outer* pins; raises `StaleError` if that was overwritten.
    """

    def __init__(
        self, outer: "Snapshot | OpenShard", offset: int, nbytes: int, level: ShardingLevel, cache: DecodedBytes | None
    ) -> None:
        self.key = object()
        self._outer = outer
        self._offset, self._nbytes = offset, nbytes
        self._level = level
        self._cache = cache or DecodedBytes(Statistics(), 0)

    async def load(self) -> Buffer:
        """Return all decoded bytes."""
        return await self._cache.get(self.key, self._decode)

    async def distrust(self) -> bool:
        """Forget all bytes, encoded and decoded."""
        self._cache.forget(self.key)
        return await self._outer.distrust(self._offset, self._nbytes)

    async def _decode(self) -> Buffer:
        level, outer = self._level, self._outer
        # Within a decoded shard, the turn is that of the shard around it, which may have to be decoded again.
        is_stored = not isinstance(outer, OpenShard) or outer.decoded is None
        is_large = is_stored and max(self._nbytes, level.max_nbytes) > _LARGE_NBYTES

        async def decoded(encoded: Buffer) -> Buffer:
            with fenced(level, "a shard"):
                return await trio.to_thread.run_sync(level.decode, encoded)

        async with self._cache.large if is_large else nullcontext():
            data = await read_checked(self._outer, self._offset, self._nbytes, decoded)
        self._cache.statistics.whole_shard_decodes += 1
        return data


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class OpenShard:
    """A shard, or a shard within a shard: the bytes of *snapshot* from *offset* on, and the index among them.

    *outermost* is the shard around it in whose bytes it is, if any. *decoded* has the bytes instead of *snapshot* if
    the shard, or one around it, is encoded as a whole.
    """

    snapshot: Snapshot
    offset: int
    index: ShardIndex
    index_offset: int
    outermost: "OpenShard | None" = None
    decoded: DecodedShard | None = None

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return *nbytes* bytes from *offset* of the shard; raises `StaleError` if they may be from another version.

        *extent* is offset and size of the chunk that contains them: it is fetched as one piece. After an append by
        another program, the earlier one is the same version, which the old index shows; a shard without index bytes
        cannot show it.
        """
        shard, offset = self.outermost or self, self.offset + offset
        if extent is not None:
            extent = self.offset + extent[0], extent[1]
        if shard.decoded is not None:
            # A slice would keep the whole shard in memory.
            return bytes(memoryview(await shard.decoded.load())[offset : offset + nbytes])
        try:
            return await shard.snapshot.read(offset, nbytes, extent)
        except StaleError:
            encoded = shard.index.encoded
            if not encoded or not await shard.snapshot.accept_growth(shard.index_offset, encoded):
                raise
            return await shard.snapshot.read(offset, nbytes, extent)

    @property
    def direct(self) -> DirectSnapshot | None:
        """The version that has its bytes as they are, if any thread can read that."""
        shard = self.outermost or self
        return shard.snapshot if shard.decoded is None and isinstance(shard.snapshot, DirectSnapshot) else None

    async def fetch(self, units: Sequence[tuple[int, int]], takes: Takes, *, are_dense: bool) -> None:
        """Begin to bring chunks, each an offset and a size, into memory, if that takes requests; see the snapshot."""
        shard = self.outermost or self
        if shard.decoded is None and isinstance(shard.snapshot, FetchingSnapshot):
            moved = [(self.offset + offset, nbytes) for offset, nbytes in units]
            await shard.snapshot.fetch(moved, takes, are_dense=are_dense)

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Forget bytes of the shard that failed a check; return whether they may come otherwise next time."""
        shard, offset = self.outermost or self, self.offset + offset
        if shard.decoded is not None:
            return await shard.decoded.distrust()
        return await shard.snapshot.distrust(offset, nbytes)

    async def piece(self, offset: int, nbytes: int) -> Kept | Content:
        """Return *nbytes* bytes from *offset* of the shard as a piece of the next version of the outermost shard."""
        start = self.offset + offset
        if self.decoded is not None:
            return MemoryContent(memoryview(await self.decoded.load())[start : start + nbytes])
        return Kept(start, nbytes)

    def expect(self) -> None:
        """Announce that the chunks will probably be read soon, in order: somebody lists them."""
        shard = self.outermost or self
        if shard.decoded is not None:
            return
        behind = shard.index_offset + len(shard.index.encoded)
        if behind == shard.snapshot.size:
            shard.snapshot.expect(0, shard.index_offset)
        else:
            shard.snapshot.expect(behind, shard.snapshot.size - behind)


def index_location(level: ShardingLevel, shape: tuple[int, ...]) -> dict[str, int]:
    """Return how many bytes at the beginning or end of a stored shard are its index, as `Store.open` takes it.

    None are, if the shard has to be decoded as a whole first.
    """
    nbytes = 0 if level.after else level.index_codecs.nbytes(prod(shape))
    return {"head_nbytes" if level.index_at_start else "tail_nbytes": nbytes}


async def open_shard(
    level: ShardingLevel, shape: tuple[int, ...], snapshot: Snapshot, cache: DecodedBytes | None = None
) -> OpenShard:
    """Open the shard that is the whole of *snapshot*; *shape* is its number of chunks per axis.

    Decoded bytes are kept in *cache*, or as long as the shard is open. Raises `CorruptionError` if the shard is too
    short for its index, or the index is damaged.
    """
    return await _open(level, shape, snapshot, None, 0, snapshot.size, cache)


async def open_earlier(
    level: ShardingLevel, shape: tuple[int, ...], shard: OpenShard, mark: ShardMark
) -> OpenShard | None:
    """Open the version *mark* of a stored shard, if the present one, *shard*, has grown out of it; None if not.

    Only an append leaves the index where it was, in front of what was appended, and then all bytes before it.
    """
    nbytes = len(shard.index.encoded)
    if not nbytes <= mark.nbytes < shard.snapshot.size:
        return None
    if hash_of(await shard.snapshot.read(mark.nbytes - nbytes, nbytes)) != mark.index_hash:
        return None
    return await _open(level, shape, shard.snapshot, None, 0, mark.nbytes, None)


async def open_inner_shard(
    level: ShardingLevel, shape: tuple[int, ...], outer: OpenShard, entry: int, cache: DecodedBytes | None = None
) -> OpenShard | None:
    """Open the shard that is inner chunk *entry* of *outer*; None if that is missing."""
    location = outer.index.range(entry)
    if location is None:
        return None
    offset, nbytes = location
    if isinstance(level.index_codecs, ListedCodecs):
        return await _open_listed(level.index_codecs, outer, offset, nbytes, cache)
    return await _open(level, shape, outer.snapshot, outer.outermost or outer, outer.offset + offset, nbytes, cache)


async def _open_listed(
    codecs: ListedCodecs, outer: OpenShard, offset: int, nbytes: int, cache: DecodedBytes | None
) -> OpenShard:
    """Open a shard within *outer* whose index is at *offset*, and whose chunks are anywhere."""
    if nbytes > MAX_INDEX_NBYTES:
        raise CorruptionError(f"the index of a minishard has {nbytes} bytes, more than are read")

    most = codecs.most_decoded(nbytes)
    turn = cache.large if cache is not None and most > _LARGE_NBYTES else nullcontext()

    async def decode_index(read: Buffer) -> ListedIndex:
        encoded, shard_nbytes = bytes(read), outer.index.shard_nbytes
        if most > THREAD_NBYTES:
            async with turn:
                return await trio.to_thread.run_sync(codecs.decode_listed, encoded, shard_nbytes)
        return codecs.decode_listed(encoded, shard_nbytes)

    index = await read_checked(outer, offset, nbytes, decode_index)
    return OpenShard(outer.snapshot, outer.offset, index, outer.offset + offset, outer)


async def _open(
    level: ShardingLevel,
    shape: tuple[int, ...],
    snapshot: Snapshot,
    outermost: OpenShard | None,
    offset: int,
    nbytes: int,
    cache: DecodedBytes | None,
) -> OpenShard:
    decoded = outermost.decoded if outermost is not None else None
    data: Buffer | None = None
    if level.after:
        if nbytes > level.most_encoded:
            raise StoreError(f"a shard of {nbytes} bytes under {level.after[-1].name} is too large to decode")
        decoded = DecodedShard(outermost or snapshot, offset, nbytes, level, cache)
        known = level.decoded_nbytes
        if known is None:
            data = await decoded.load()
            known = len(data)
        offset, nbytes, outermost = 0, known, None
    index_nbytes = level.index_codecs.nbytes(prod(shape))
    if index_nbytes > nbytes:
        raise CorruptionError(f"a shard of {nbytes} bytes has no space for its index of {index_nbytes} bytes")
    index_offset = offset if level.index_at_start else offset + nbytes - index_nbytes

    async def decode_index(read: Buffer) -> ShardIndex:
        encoded = bytes(read)
        if max(index_nbytes, ENTRY_NBYTES * prod(shape)) > THREAD_NBYTES:
            return await trio.to_thread.run_sync(level.index_codecs.decode, encoded, shape, nbytes)
        return level.index_codecs.decode(encoded, shape, nbytes)

    if data is not None:
        index = await decode_index(memoryview(data)[index_offset : index_offset + index_nbytes])
    elif index_nbytes:
        index = await read_checked(outermost or snapshot, index_offset, index_nbytes, decode_index)
    else:
        index = await decode_index(b"")
    return OpenShard(snapshot, offset, index, index_offset, outermost, decoded)


_BREATH: Final = 256  # chunks to locate before other tasks get a turn


@dataclass(frozen=True, slots=True)
class NewShard:
    """The next version of a shard; *splice* is None if no chunk is left and the shard is to be removed.

    *is_append*: it keeps all of the old version, except an index at the beginning; *index* is the new index.
    """

    splice: Splice | None
    index: bytes = b""
    is_append: bool = False


_Change = tuple[ChunkLocation, Content | None]
_Pieces = Sequence[Kept | Content]


class _Planned(NamedTuple):
    """A planned shard of any level, with the pieces of its new entries."""

    plan: WritePlan
    contents: Mapping[int, _Pieces]

    async def pieces(self, old: OpenShard | None) -> _Pieces:
        """Return all bytes of the shard."""
        pieces: list[Kept | Content] = []
        for piece in self.plan.pieces:
            match piece:
                case CopiedRange():
                    assert old is not None
                    pieces.append(await old.piece(piece.offset, piece.nbytes))
                case Added():
                    pieces += self.contents[piece.entry]
                case Index():
                    pieces.append(MemoryContent(memoryview(piece.encoded)))
                case Padding():
                    pieces.append(MemoryContent(memoryview(bytes(piece.nbytes))))
        return pieces


async def build(
    grid: ShardGrid,
    shard: Coords,
    old: OpenShard | None,
    changes: Mapping[Coords, Content | None],
    *,
    compact: bool = False,
    drop_index: bool = False,
    keep_empty: bool = False,
    alignment: int = 1,
    keep: bool = False,
) -> NewShard:
    """Plan the next version of the shard at *shard*, with *changes* to its chunks: new bytes, or None to remove one.

    *old* is the current version, *alignment* the multiple at which appends to it should end. *drop_index*: a replaced
    index need not stay among the payloads. *keep_empty*: a shard without chunks stays, with an empty index, if it has
    an index. *keep*: the old version stays within the new one, if it can be appended to. Raises `CorruptionError` if
    something to be copied cannot be read, and `ReadOnlyError` for a format that is only read.
    """
    if grid.is_read_only:
        raise ReadOnlyError("shards of this format are only read")
    level, shape = grid.levels[0], grid.index_shape(shard)
    located: list[_Change] = []
    for coords, content in changes.items():
        located.append((grid.locate(coords), content))
        if not len(located) % _BREATH:
            await trio.lowlevel.checkpoint()
    planned = await _plan(
        grid,
        0,
        shape,
        old,
        located,
        compact=compact or bool(level.after),
        drop_index=drop_index,
        alignment=alignment,
        keep=keep,
    )
    plan = planned.plan
    if plan.is_empty:
        if not keep_empty or grid.is_unsharded:
            return NewShard(None)
        plan = plan_empty(IndexLayout(level.index_codecs, shape, level.index_at_start))
        planned = _Planned(plan, {})
    pieces = await planned.pieces(old)
    if level.after:
        return NewShard(Splice((await _encoded(level, pieces),)))
    splice = Splice(tuple(pieces), *(() if level.index_at_start else (len(plan.index), plan.ends)))
    return NewShard(splice, plan.index, plan.is_append)


async def _plan(
    grid: ShardGrid,
    depth: int,
    shape: tuple[int, ...],
    old: OpenShard | None,
    changes: Sequence[_Change],
    *,
    compact: bool,
    drop_index: bool = False,
    alignment: int = 1,
    keep: bool = False,
) -> _Planned:
    """Plan one shard of the level *depth*."""
    level = grid.levels[depth]
    replaced: dict[int, _Pieces] = {}
    if depth + 1 == len(grid.levels):
        replaced = {location.entries[depth]: () if content is None else (content,) for location, content in changes}
    else:
        groups: dict[int, list[_Change]] = {}
        for change in changes:
            groups.setdefault(change[0].entries[depth], []).append(change)
        for entry, group in groups.items():
            replaced[entry] = await _inner(grid, depth + 1, old, entry, group)
    contents = {entry: pieces for entry, pieces in replaced.items() if pieces}
    plan = plan_write(
        IndexLayout(level.index_codecs, shape, level.index_at_start),
        old.index if old is not None else None,
        {entry: sum(piece.nbytes for piece in pieces) for entry, pieces in contents.items()},
        [entry for entry, pieces in replaced.items() if not pieces],
        compact=compact,
        drop_index=drop_index,
        alignment=alignment,
        at_once=APPEND_NBYTES,
        keep=keep,
    )
    return _Planned(plan, contents)


async def _inner(
    grid: ShardGrid, depth: int, outer: OpenShard | None, entry: int, changes: Sequence[_Change]
) -> _Pieces:
    """Return the inner shard that is chunk *entry* of *outer*, rewritten with *changes*; nothing if that is empty."""
    level, shape = grid.levels[depth], changes[0][0].shapes[depth]
    is_full = depth + 1 == len(grid.levels) and sum(content is not None for _, content in changes) == prod(shape)
    old = None if outer is None or is_full else await open_inner_shard(level, shape, outer, entry)
    planned = await _plan(grid, depth, shape, old, changes, compact=True)
    if planned.plan.is_empty:
        return ()
    pieces = await planned.pieces(old)
    return [await _encoded(level, pieces)] if level.after else pieces


async def _encoded(level: ShardingLevel, pieces: _Pieces) -> Content:
    """Encode a shard; its old version was decoded as a whole, so none of its pieces is kept.

    Raises `StoreError` if it would be too large to be decoded again: no chunk of it could be read any more.
    """
    content = JoinedContent(cast(Sequence[Content], pieces))
    _require_decodable(level, content.nbytes, level.max_nbytes)
    encoded = await trio.to_thread.run_sync(lambda: encode(level.after, content.read(0, content.nbytes)))
    _require_decodable(level, len(encoded), level.most_encoded)
    return MemoryContent(memoryview(encoded))


def _require_decodable(level: ShardingLevel, nbytes: int, limit: int) -> None:
    if nbytes > limit:
        raise StoreError(
            f"a shard under {level.after[-1].name} with {nbytes} bytes could not be read again: at most {limit} are "
            "decoded; replace or remove chunks of it that are too large"
        )
