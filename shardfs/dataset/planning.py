"""What the next version of a shard is, and how a commit that is cut off is undone."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.records import ChunkChange, UndoRecord
from shardfs.dataset.journal.undo import undo_record
from shardfs.dataset.layout import ArrayLayout, ShardQueue
from shardfs.dataset.shard import NewShard, OpenShard, build, open_shard
from shardfs.errors import CorruptionError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, ObjectEdit


@dataclass(slots=True)
class ShardCommit:
    """The next version of one shard, from *records*, with new content of *nchunks* chunks."""

    queue: ShardQueue
    layout: ArrayLayout
    records: Sequence[ChunkChange]
    nchunks: int
    edit: ObjectEdit
    new: NewShard
    undo: UndoRecord
    """It is not in the journal yet."""
    moves: bool
    """Whether chunks get another place, though what is published somewhere names the version that they are in."""


class CommitPlanner:
    """Plans commits of a source; a shard is compacted if at least the share *auto_compact* of it would be dead."""

    def __init__(self, source: Source, auto_compact: float | None) -> None:
        self._source = source
        self._auto_compact = auto_compact

    async def plan(
        self,
        queue: ShardQueue,
        layout: ArrayLayout,
        contents: Mapping[Coords, Content | None] | None,
        records: Sequence[ChunkChange],
        edit: ObjectEdit,
        *,
        compact: bool = False,
        keep: bool = False,
        ends: bool = False,
    ) -> ShardCommit:
        """Plan the next version of the shard of *edit*, with new *contents* for some chunks.

        Without *contents*, the shard is removed, unread. *keep*: other sessions have published what is not committed,
        and names a version of the shard: it is found again in all that is appended to that.
        """
        grid, old = layout.grid, None
        if contents is not None and edit.snapshot is not None and len(records) < grid.nchunks_of(queue.shard):
            old = await open_shard(grid.levels[0], grid.index_shape(queue.shard), edit.snapshot)
        plan = partial(
            build,
            grid,
            queue.shard,
            old,
            contents or {},
            drop_index=self._source.store.rewrites,
            keep_empty=not (edit.can_delete or ends),
            alignment=edit.append_alignment,
            keep=keep,
        )
        new = await plan(compact=compact)
        if old is not None and not keep and self._is_wasteful(layout, queue.shard, old, new):
            with suppress(CorruptionError):  # what is damaged cannot be moved
                new = await plan(compact=True)
        undo = await self._undo_record(queue, layout, edit, old, new)
        moves = old is not None and not new.is_append and grid.is_appended_to
        return ShardCommit(queue, layout, records, len(contents or {}), edit, new, undo, moves)

    def _is_wasteful(self, layout: ArrayLayout, shard: Coords, old: OpenShard, new: NewShard) -> bool:
        """Whether a shard is to be compacted instead of appended to.

        If no chunk was ever seen at its beginning, the bytes there may belong to another format, and stay.
        """
        if self._auto_compact is None or not new.is_append or new.splice is None:
            return False
        level = layout.grid.levels[0]
        version = self._source.shards.generations.of(layout, shard, old.snapshot.stat)
        version.saw_beginning(is_chunk=level.index_at_start or old.index.first_live_byte == 0)
        index = level.index_codecs.decode(new.index, layout.grid.index_shape(shard), new.splice.nbytes)
        ndead = index.shard_nbytes - index.live_nbytes
        return version.begins_with_chunk and ndead >= self._auto_compact * index.shard_nbytes

    async def _undo_record(
        self, queue: ShardQueue, layout: ArrayLayout, edit: ObjectEdit, old: OpenShard | None, new: NewShard
    ) -> UndoRecord:
        """Return the undo record of a planned commit. It has a checksum of the payloads, so that these are read here.

        What cannot be read so prevents the commit of its own shard, and of no other in the batch.
        """
        # An index at the start is replaced, so the store writes such a shard anew.
        is_rewritten = self._source.store.rewrites or layout.grid.levels[0].index_at_start
        index = new.index if new.is_append and not is_rewritten else None
        make = partial(undo_record, layout.path, queue.shard, edit, queue.key, old, new.splice, index)
        return make() if index is None else await trio.to_thread.run_sync(make)
