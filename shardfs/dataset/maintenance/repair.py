"""Torn shards: those that another program was killed over, and that no journal knows.

A shard whose index is at the end and has a checksum may hold an older index, from before the append that was cut
short.  Everything that this index names is there still; what came behind it is cut off, and kept in a file of its own.
"""

from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.walk import walk_nodes, walk_shards
from shardfs.dataset.source import Source
from shardfs.errors import CorruptionError, ExistsError, StaleError
from shardfs.format.index import IndexLayout, ShardIndex
from shardfs.format.index_search import find_last_index, torn_entries
from shardfs.format.sharding import Coords, Place, ShardGrid
from shardfs.stores.base import Kept, Snapshot, Splice, join_key

_PIECE_NBYTES: Final = 2**20


@dataclass(frozen=True)
class TornShard:
    """A shard that cannot be read: its state *version*, of *size* bytes.

    The index that ends at *stop* is the last valid one, None if there is none, and *reason* says why.  *changed* are
    the chunks of which the tail seems to have had newer versions: with *lost*, those that had none before.
    """

    array: Array
    shard: Coords
    key: str
    size: int
    version: Hashable
    stop: int | None
    reason: str
    changed: Sequence[Coords] = ()
    lost: Sequence[Coords] = ()

    @property
    def tail_nbytes(self) -> int:
        """Bytes that a repair cuts off."""
        return self.size - (self.stop or self.size)


async def find_torn(source: Source) -> AsyncIterator[TornShard]:
    """Yield every shard of *source* whose index cannot be read, or can be none."""
    async for node in walk_nodes(source):
        if node.array is None:
            continue
        async for shard in walk_shards(node.array):
            state = await node.array.shard(shard)
            if isinstance(state.error, CorruptionError) and state.snapshot is not None:
                yield await _examine(node.array, shard, state.snapshot, str(state.error))
            elif state.shard is not None and _is_no_index(node.array, state.shard.index):
                reason = "entries of its index name bytes that it does not have"
                yield await _examine(node.array, shard, state.shard.snapshot, reason)


async def repair(source: Source, torn: TornShard, directory: str) -> str:
    """Cut off what follows the last valid index of a shard; returns the key in *directory* of the file that keeps it.

    Raises `StaleError` if the shard is another one than was examined.
    """
    assert torn.stop is not None
    async with source.store.edit(torn.key) as edit:
        if edit.snapshot is None or edit.snapshot.stat.version != torn.version:
            raise StaleError(f"{torn.key} was changed meanwhile")
        kept = join_key(directory, torn.key.replace("/", "_"))
        place = await _keep_tail(source, edit.snapshot, torn.stop, kept)
        await edit.splice(Splice((Kept(0, torn.stop),)))
    source.shards.forget(torn.array.layout, torn.shard)
    return place


def _is_no_index(array: Array, index: ShardIndex) -> bool:
    """Whether an index that no checksum vouches for cannot be one that was written."""
    level = array.grid.levels[0]
    if level.after or level.index_at_start or level.index_codecs.checksums:
        return False
    entries = index.run(0, 1, index.nentries)
    return not bool((entries.sound | entries.empty).all())


async def _examine(array: Array, shard: Coords, snapshot: Snapshot, reason: str) -> TornShard:
    level = array.grid.levels[0]
    key, found = array.layout.shard_key(shard), (snapshot.size, snapshot.stat.version)
    layout = IndexLayout(level.index_codecs, array.grid.index_shape(shard), level.index_at_start)
    why_not = None
    if level.after:
        why_not = "it is encoded as a whole"
    elif level.index_at_start:
        why_not = "its index is at the start, and there is only one"
    elif not level.index_codecs.checksums:
        why_not = "its index has no checksum by which an older one could be known"
    if why_not is not None:
        return TornShard(array, shard, key, *found, None, f"{reason}; it cannot be repaired: {why_not}")
    return await trio.to_thread.run_sync(_search, array, shard, snapshot, layout, reason)


def _search(array: Array, shard: Coords, snapshot: Snapshot, layout: IndexLayout, reason: str) -> TornShard:
    key, found = array.layout.shard_key(shard), (snapshot.size, snapshot.stat.version)
    with snapshot.mapped() as data:
        offset = find_last_index(layout, data)
        if offset is None:
            return TornShard(array, shard, key, *found, None, f"{reason}; there is no valid index in it")
        stop = offset + layout.nbytes
        last = layout.codecs.decode(bytes(data[offset:stop]), layout.chunks_per_shard, offset)
        entries = torn_entries(layout, last, stop, data)
    changed = [coords for entry in entries for coords in _chunks_of(array.grid, shard, entry)]
    empty = {entry for entry in entries if last.entry(entry) is None}
    lost = [coords for entry in empty for coords in _chunks_of(array.grid, shard, entry)]
    return TornShard(array, shard, key, *found, stop, reason, changed, lost)


def _chunks_of(grid: ShardGrid, shard: Coords, entry: int) -> Iterator[Coords]:
    """Yield the innermost chunks within the grid that lie in *entry* of the outermost shard at *shard*."""
    first = grid.coords(Place(shard, (entry,), (grid.index_shape(shard),)))
    level = grid.levels[0]
    span = [level.span[level.order.index(axis)] for axis in range(grid.ndim)]
    for coords in product(*(range(i, i + n) for i, n in zip(first, span, strict=True))):
        if grid.contains(coords):
            yield coords


async def _keep_tail(source: Source, snapshot: Snapshot, start: int, key: str) -> str:
    """Copy what follows byte *start* of a shard to a file that is new; returns its key."""
    await source.store.make_directories(key.rpartition("/")[0])
    for number in count():
        place = f"{key}.{number}"
        try:
            file = await source.store.create(place, 0o600, exclusive=True)
        except ExistsError:
            continue
        for offset in range(start, snapshot.size, _PIECE_NBYTES):
            piece = await snapshot.read(offset, min(_PIECE_NBYTES, snapshot.size - offset))
            await file.write(offset - start, piece)
        await file.sync()
        await source.store.sync_directory(key.rpartition("/")[0])
        return place
    raise AssertionError
