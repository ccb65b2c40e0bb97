"""Commits of single shards: planned, announced in the journal, stored.

The order is what makes them safe: the intent is durable before the shard is touched, the shard is durable before the
journal forgets, and what cannot be taken back for certain stays announced.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, overload

import trio

from shardfs.dataset.builder import Assembly, assemble
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.queue import Change
from shardfs.dataset.quick_lock import QuickLock
from shardfs.dataset.shard import OpenShard, open_shard
from shardfs.dataset.source import Source
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Payload, Put, Shrink, UndoRecord
from shardfs.dataset.wal.undo import take_back, undo_record
from shardfs.errors import ConflictError, ShardfsError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer, Content, Edit

BATCH: Final = 16
_INDEX_NBYTES: Final = 4 * 2**20
"""How many shards are committed together, and how long their indexes may be in all."""

_SMALL_NBYTES: Final = 2**20
_SMALL_SHARE: Final = 0.25  # of the room that a shard takes in a batch: what a small chunk file takes


@dataclass(slots=True)
class Commit:
    """A change of one shard: *contents* of chunks, None for those that go, by the *records* that say so."""

    array: ArrayLayout
    shard: Coords
    contents: Mapping[Coords, Content | None]
    records: Sequence[Change]
    edit: Edit
    old: OpenShard | None
    assembly: Assembly
    undo: UndoRecord | None = None


class Commits:
    """How commits are made.  *lock* is held around each use of the journal."""

    def __init__(self, source: Source, journal: WriteAheadLog) -> None:
        self.lock = QuickLock()
        self._source = source
        self._journal = journal
        self._unsettled: dict[str, list[UndoRecord]] = {}  # by the key of the shard, until its next commit

    async def plan(
        self,
        array: ArrayLayout,
        shard: Coords,
        contents: Mapping[Coords, Content | None] | None,
        records: Sequence[Change],
        edit: Edit,
        *,
        compact: bool = False,
    ) -> Commit:
        """Plan the next version of the shard that *edit* holds, in which chunks have other *contents*.

        Without *contents* the shard goes, unread.
        """
        old = None
        if contents is not None and edit.snapshot is not None and len(records) < array.grid.nchunks_of(shard):
            old = await open_shard(array.grid.levels[0], array.grid.index_shape(shard), edit.snapshot)
        assembly = await assemble(
            array.grid,
            shard,
            old,
            contents or {},
            compact=compact,
            drop_index=self._source.store.rewrites,
            keep_empty=not edit.can_delete,
            alignment=edit.append_alignment,
        )
        return Commit(array, shard, contents or {}, records, edit, old, assembly)

    async def announce(self, commits: Sequence[Commit]) -> None:
        """Make durable what is about to happen to the shards, and what is to come into them."""
        if not commits or self._journal.has_vanished:
            return  # what is in no journal any more is safer in its shard, whatever happens to this process
        undos = await trio.to_thread.run_sync(lambda: [self._undo_record(commit) for commit in commits])
        async with self.lock:
            try:
                for commit, (undo, payload) in zip(commits, undos, strict=True):
                    commit.undo = self._journal.append(undo, payload)
            except ShardfsError:
                begun = [commit.undo.sequence for commit in commits if commit.undo is not None]
                await trio.to_thread.run_sync(self._journal.release, begun)
                raise
            await trio.to_thread.run_sync(self._journal.sync)
            # An earlier attempt on the same shard does not matter any more: this one found it whole.
            settled = [undo.sequence for commit in commits for undo in self._unsettled.pop(_key(commit), [])]
            await trio.to_thread.run_sync(self._journal.release, settled)

    def _undo_record(self, commit: Commit) -> tuple[UndoRecord, Sequence[Buffer]]:
        builds_in_place = commit.assembly.is_append and not self._source.store.rewrites
        index = commit.assembly.index if builds_in_place else None
        sequences = [record.sequence for record in commit.records]
        return undo_record(
            commit.array.path,
            commit.shard,
            commit.edit,
            _key(commit),
            commit.old,
            commit.assembly.splice,
            index,
            sequences,
        )

    def keep_unsettled(self, undo: UndoRecord) -> None:
        """Remember a commit of which it is not known what came of it."""
        self._unsettled.setdefault(undo.key, []).append(undo)

    async def settle(self, key: str, waited: float | None) -> None:
        """Take back what an attempt that failed, here or in an earlier process, left torn of a shard."""
        for undo in self._unsettled.get(key, ()):
            if undo.inode is not None:
                await take_back(self._source, undo, waited=waited)

    async def execute(self, commit: Commit) -> list[int]:
        """Store the next version of a shard; returns the undo record that is to be released with its records."""
        undos = [commit.undo] if commit.undo is not None else []
        statistics, shards = self._source.statistics, self._source.shards
        snapshot = commit.edit.snapshot
        with shards.changing(commit.array, commit.shard, snapshot.stat if snapshot is not None else None):
            try:
                if commit.assembly.splice is None:
                    await self._delete(commit)
                    stat = None
                else:
                    stat = await commit.edit.splice(commit.assembly.splice)
                    statistics.committed_bytes += commit.edit.written_nbytes
            except ConflictError:
                await self.release([undo.sequence for undo in undos])  # nothing was changed
                raise
            except ShardfsError:
                # Whether it was undone is not known for certain.
                self._unsettled.setdefault(_key(commit), []).extend(undos)
                raise
            shards.committed(commit.array, commit.shard, stat, is_new=snapshot is None)
        statistics.commits += 1
        statistics.committed_chunks += len(commit.contents)
        return [undo.sequence for undo in undos]

    async def _delete(self, commit: Commit) -> None:
        if commit.edit.can_delete or not commit.array.grid.is_unsharded:
            await commit.edit.delete()
        else:
            # Of two hosts that change one and the same chunk, the last one wins: there is nothing else to be lost.
            await self._source.store.unlink(commit.array.shard_key(commit.shard))

    async def sync(self) -> None:
        """Make durable all that the journal has."""
        await trio.to_thread.run_sync(self._journal.sync)

    async def carry_forward(self, pending: Callable[[], Mapping[int, Payload]]) -> None:
        """Free the journal of its oldest segment; *pending* tells what is read back from there, by sequence."""
        async with self.lock:
            await trio.to_thread.run_sync(self._journal.carry_forward, pending())

    async def release(self, sequences: Sequence[int]) -> None:
        """Note that records need not be remembered any more."""
        if self._journal.has_vanished:
            return
        async with self.lock:
            await trio.to_thread.run_sync(self._journal.release, sequences)


def _key(commit: Commit) -> str:
    return commit.array.shard_key(commit.shard)


@overload
def carry(journal: WriteAheadLog, change: Change) -> Change: ...
@overload
def carry(journal: WriteAheadLog, change: Shrink) -> Shrink: ...
@overload
def carry(journal: WriteAheadLog, change: Change | Shrink) -> Change | Shrink: ...
def carry(journal: WriteAheadLog, change: Change | Shrink) -> Change | Shrink:
    """Append a change, of this journal or another one, to *journal*; returns the new record."""
    content = change.payload if isinstance(change, Put) else ()
    return journal.append(dataclasses.replace(change), content)


def batches(keys: Sequence[tuple[ArrayLayout, Coords]]) -> Iterator[Sequence[tuple[ArrayLayout, Coords]]]:
    """Yield shards that are committed together: few with short indexes, and what may take much memory alone."""
    batch: list[tuple[ArrayLayout, Coords]] = []
    nbytes, count = 0, 0.0
    for array, shard in keys:
        is_large = array.grid.is_large(array.grid.index_shape(shard))
        cost = _INDEX_NBYTES if is_large else array.grid.index_nbytes(shard)
        if batch and (nbytes + cost > _INDEX_NBYTES or count >= BATCH):
            yield batch
            batch, nbytes, count = [], 0, 0.0
        batch.append((array, shard))
        nbytes += cost
        count += _SMALL_SHARE if _is_small(array, shard) else 1
    if batch:
        yield batch


def _is_small(array: ArrayLayout, shard: Coords) -> bool:
    """Whether what is to be committed is a chunk file of few bytes, or none."""
    pending = array.pending.shards.get(shard)
    return array.grid.is_unsharded and (pending is None or pending.payload_nbytes <= _SMALL_NBYTES)
