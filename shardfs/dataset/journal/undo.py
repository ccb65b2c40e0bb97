"""Undoing of commits that were under way when a process ended, by their undo records.

Only an append can be torn: it is complete if the shard has the planned size, and what was written the planned checksum.
A torn append is undone. In any other state, the shard is left alone.

An undo record is settled: under the lock of its shard it is looked at, undone if it has to be, and replaced by one that
undoes nothing before others get the lock. Else what they append then, which may be of the same size and have the same
index, would be taken for the torn append by whoever looks next. The other one tells of the lock, should that be left.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np
import trio

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.reading import JournalContents
from shardfs.dataset.journal.records import (
    UNKNOWN_TIME,
    ChunkChange,
    Erase,
    Put,
    ShardMark,
    Superseded,
    UndoRecord,
    checksum_of,
    hash_of,
    reversed_checksum,
)
from shardfs.dataset.shard import OpenShard
from shardfs.dataset.syncing import make_durable, make_names_durable
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    LockedError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    OutsideSourceError,
    RefusedError,
    ShardfsError,
    StoreError,
    TooDeepError,
)
from shardfs.format.index import are_empty, damaged
from shardfs.format.sharding import Coords, ShardGrid
from shardfs.stores.base import Content, Kept, ObjectEdit, Snapshot, Splice, in_pieces, is_reserved
from shardfs.stores.cache import while_it_changes

log = logging.getLogger(__name__)

_PAUSE: Final = 0.1  # seconds

T = TypeVar("T")


class Outcome(Enum):
    """The outcome of a commit that was under way."""

    WHOLE = auto()
    """There is nothing to undo: it is complete or had not begun, or another program has written another version."""
    TORN = auto()
    """The shard is its old version, followed by part of the append, which is to be undone."""
    BEGUN = auto()
    """The shard is its old version, with another time: the append had begun, and the old time is to be restored."""
    UNCLEAR = auto()
    """The shard is in no state that the commit leads to: it is left as it is."""


class UnfinishedCommit(NamedTuple):
    """A commit that was under way when a process ended, and its outcome; *reason* says why it is unclear.

    Unless *is_examined*, the shard could not be examined now, and has to be before it is changed. *is_done*: the shard
    was what the commit leads to; others may have changed it since.
    """

    undo: UndoRecord
    outcome: Outcome
    reason: str = ""
    is_examined: bool = True
    is_done: bool = False

    def keeps(self, mark: Superseded) -> bool:
        """Whether the shard is the version *mark* again when the commit is undone, whether or not its time is."""
        undo = self.undo
        is_old = isinstance(mark, ShardMark) and mark[::2] == (undo.old_nbytes, undo.old_index_hash)
        return is_old and self.outcome in _TO_BE_UNDONE


_TO_BE_UNDONE: Final = (Outcome.TORN, Outcome.BEGUN)

_LASTING: Final = (
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    RefusedError,
    TooDeepError,
)


def is_lasting(error: ShardfsError) -> bool:
    """Whether *error* is about a record or about stored data, so that trying again is useless."""
    return isinstance(error, _LASTING)


def check_name(key: str) -> None:
    """Raise `OutsideSourceError` if *key*, taken from a record, cannot be a key of the source."""
    if key and any(part in ("", ".", "..") or "\0" in part for part in key.split("/")):
        raise OutsideSourceError(f"{key} is not a name within the source")


def undo_record(
    path: str,
    shard: Coords,
    edit: ObjectEdit,
    key: str,
    old: OpenShard | None,
    splice: Splice | None,
    index: bytes | None,
) -> UndoRecord:
    """Return the undo record to append to the journal before a shard is changed; blocks.

    *index* is the new index if the shard, which is *old*, is appended to in place.
    """
    snapshot = edit.snapshot
    if index is None or old is None or splice is None or snapshot is None or snapshot.stat.file is None:
        return UndoRecord(0, path, shard, key, edit.temporary)
    added: list[Content] = []
    position = 0
    for piece in splice.pieces:
        if position >= snapshot.size:
            added.append(snapshot.content(piece.offset, piece.nbytes) if isinstance(piece, Kept) else piece)
        position += piece.nbytes
    return UndoRecord(
        0,
        path,
        shard,
        key,
        edit.temporary,
        inode=snapshot.stat.file[1],
        old_nbytes=snapshot.size,
        planned_nbytes=splice.nbytes,
        checksum=checksum_of(added),
        old_index_hash=hash_of(old.index.encoded),
        new_index_hash=hash_of(index),
        old_mtime_ns=snapshot.stat.mtime_ns,
    )


async def undo_commits(
    source: Source, contents: JournalContents, journal: Journal | None = None
) -> list[UnfinishedCommit]:
    """Find the outcomes of the commits that were under way; with their *journal*, settle them.

    What is released then is not in *contents* any more. A commit that cannot be handled blocks no other. Errors of a
    server that does not answer now are raised: it may answer when the journal is read next.
    """
    outcomes: list[UnfinishedCommit] = []
    for undo in [record for record in contents.records if isinstance(record, UndoRecord)]:
        key, outcome = undo.key, Outcome.UNCLEAR
        is_done: bool | None = None
        try:
            check_name(key)
            check_name(undo.path)
            if journal is not None:
                await _remove_unfinished(source, undo)
            outcome = await while_it_changes(partial(_look, source, undo))
            if journal is not None and not source.store.rewrites:
                try:
                    outcome, is_done = await patiently(partial(_settle, source, contents, journal, undo))
                except ShardfsError as error:
                    if outcome in _TO_BE_UNDONE:
                        raise
                    log.info("%s is not settled: %s", key, error)
                    await make_durable(source.writable, key)
        except ShardfsError as error:
            if source.store.root is None and not is_lasting(error):
                raise
            is_torn = outcome is Outcome.TORN
            way_out = "; an append to it was torn; the next mount undoes it" if is_torn else ""
            log.error("%s: the commit that was under way is left as it is: %s%s", key, error, way_out)  # noqa: TRY400
            outcomes.append(UnfinishedCommit(undo, Outcome.UNCLEAR, str(error), is_lasting(error) and not is_torn))
            continue
        reason = "it cannot be read, and is not what the journal expects" if outcome is Outcome.UNCLEAR else ""
        if reason:
            log.error("%s: the commit that was under way is left as it is: %s", key, reason)
        if is_done is None:
            is_done = outcome is Outcome.WHOLE and await _was_done(source, undo)
        outcomes.append(UnfinishedCommit(undo, outcome, reason, is_done=is_done))
    return outcomes


async def _settle(
    source: Source, contents: JournalContents, journal: Journal, undo: UndoRecord, waited: float
) -> tuple[Outcome, bool]:
    """Settle a commit of an earlier process; returns its outcome, and whether it was done: see `UnfinishedCommit`."""
    async with _examined(source, undo, waited) as outcome:
        is_done = outcome is Outcome.WHOLE and await _was_done(source, undo)
        done = await _done_by(source, contents, undo, is_done=is_done) if outcome is Outcome.WHOLE else []
        await make_names_durable(source.writable, undo.key)
        await journal.release_soon(done)
        harmless = await disarmed(journal, undo)
        contents.forget([*done, undo])
    await journal.release_soon([harmless])
    return outcome, is_done


async def _done_by(
    source: Source, contents: JournalContents, undo: UndoRecord, *, is_done: bool
) -> Sequence[ChunkChange]:
    """Return the changes that a commit stored: all, if it *is_done*, else those whose very result is stored now."""
    array = await source.hierarchy.array(undo.path)
    if array is None:
        return []
    layout, grid, done = array.layout, array.grid, list[ChunkChange]()
    for record in contents.records:
        if (
            isinstance(record, Put | Erase)
            and (record.path, record.fingerprint) == (undo.path, array.fingerprint)
            and record.since < undo.since
            and len(record.coords) == grid.ndim
            and grid.contains(record.coords)
            and layout.shard_key(grid.locate(record.coords).shard) == undo.key
        ):
            with suppress(CorruptionError):
                if is_done or await is_stored(array, record):
                    done.append(record)
    return done


async def is_stored(array: Array, change: ChunkChange) -> bool:
    """Whether the stored chunk is the result of *change*."""
    _, extent = await array.find_stored(change.coords, fresh=True)
    if extent is None or isinstance(change, Erase):
        return extent is None and isinstance(change, Erase)
    if extent.nbytes != change.payload.nbytes:
        return False
    for start, nbytes in in_pieces(extent.nbytes):
        if await extent.read(start, nbytes) != change.payload.read(start, nbytes):
            return False
    return True


async def _was_done(source: Source, undo: UndoRecord) -> bool:
    """Whether an append was completed, in the file or in a clone: its bytes are where they were planned.

    Others may have appended since.
    """
    with suppress(ShardfsError):
        array = await source.hierarchy.array(undo.path)
        if undo.inode and array is not None and len(undo.shard) == array.grid.ndim:
            nbytes, snapshot = array.grid.index_nbytes(undo.shard), await source.store.open(undo.key)
            if nbytes <= undo.planned_nbytes <= snapshot.size:
                index = await snapshot.read(undo.planned_nbytes - nbytes, nbytes)
                # Others that wrote the same chunks, with the same sizes, have the same index.
                return hash_of(bytes(index)) == undo.new_index_hash and await _is_as_planned(undo, snapshot)
    return False


async def _is_as_planned(undo: UndoRecord, snapshot: Snapshot) -> bool:
    """Whether a shard, which is as large as planned at least, has what was to be appended."""
    checksum = 0
    for start, nbytes in in_pieces(undo.planned_nbytes, undo.old_nbytes):
        checksum = reversed_checksum(await snapshot.read(start, nbytes), checksum)
    return checksum == undo.checksum


async def patiently(attempt: Callable[[float], Awaitable[T]]) -> T:
    """Return the result of *attempt*, repeated while another program has a lock, as `Store.edit` reports."""
    begun = trio.current_time()
    while True:
        with suppress(LockedError):
            return await attempt(trio.current_time() - begun)
        await trio.sleep(_PAUSE)


async def take_back(source: Source, journal: Journal, undo: UndoRecord, waited: float = 0.0) -> None:
    """Settle an attempt of this process, whose undo record is in *journal*: it will be made once more.

    *waited* is that of `Store.edit`.
    """
    async with _examined(source, undo, waited):
        harmless = await disarmed(journal, undo)
    await journal.release_soon([harmless])


async def has_not_begun(source: Source, undo: UndoRecord) -> bool:
    """Whether a shard is the version that was to be appended to, with its time."""
    with suppress(ShardfsError):
        stat = (await source.store.open(undo.key)).stat if undo.inode else None
        if stat is not None and stat.file is not None:
            return (stat.file[1], stat.size, stat.mtime_ns) == (undo.inode, undo.old_nbytes, undo.old_mtime_ns)
    return False


async def disarmed(journal: Journal, undo: UndoRecord) -> UndoRecord:
    """Replace an undo record durably by one that undoes nothing, and return that."""
    if journal.has_vanished:
        return undo
    harmless = undo
    if undo.inode:
        async with journal.appending:
            harmless = journal.append(UndoRecord(0, undo.path, undo.shard, undo.key, ""))
    await journal.sync_soon()
    return harmless


@asynccontextmanager
async def _examined(source: Source, undo: UndoRecord, waited: float) -> AsyncIterator[Outcome]:
    """Restore the previous version of a shard, if a commit to it was torn, under a lock that the block has, too.

    Yields the outcome of the commit. The previous version gets its time, by which it is known: what was published over
    it is no conflict. Whoever held the lock until now may have replaced the shard, so it is examined here.

    The block is to disarm the undo record. If it does not, the lock is left, so that nobody appends to the shard what
    the record would take for the torn append.
    """
    async with source.writable.edit(undo.key, waited=waited) as edit:
        with trio.CancelScope(shield=True):
            try:
                outcome, splice = await _outcome(source, undo, edit.snapshot), None
                if outcome is Outcome.TORN:
                    log.warning("an append to %s was torn; it is undone and repeated", undo.key)
                if outcome in _TO_BE_UNDONE:
                    mtime_ns = None if undo.old_mtime_ns == UNKNOWN_TIME else undo.old_mtime_ns
                    splice = Splice((Kept(0, undo.old_nbytes),), mtime_ns=mtime_ns)
                await edit.settle(undo.inode, splice)
                array = await source.hierarchy.array(undo.path) if splice is not None else None
                if array is not None:
                    source.shards.forget(array.layout, undo.shard)
                yield outcome
            except BaseException:
                edit.leave()
                raise


async def _look(source: Source, undo: UndoRecord) -> Outcome:
    with suppress(NotFoundError, NotADirectoryHereError):
        if undo.inode:
            return await _outcome(source, undo, await source.store.open(undo.key))
    return Outcome.WHOLE


async def _outcome(source: Source, undo: UndoRecord, snapshot: Snapshot | None) -> Outcome:
    """Return the outcome of a commit to a shard; *snapshot* is None if there is none."""
    if snapshot is None or snapshot.stat.file is None:
        return Outcome.WHOLE
    size = snapshot.size
    # Device numbers may change at a restart; inode numbers do not.
    if snapshot.stat.file[1] != undo.inode or not undo.old_nbytes <= size <= undo.planned_nbytes:
        return Outcome.WHOLE
    if size == undo.old_nbytes and undo.old_mtime_ns in (UNKNOWN_TIME, snapshot.stat.mtime_ns):
        return Outcome.WHOLE
    if size == undo.planned_nbytes and await _is_as_planned(undo, snapshot):
        return Outcome.WHOLE
    return await _outcome_at_end(source, undo, snapshot)


async def _outcome_at_end(source: Source, undo: UndoRecord, snapshot: Snapshot) -> Outcome:
    """Return the outcome of an incomplete append to a shard whose index is at the end."""
    try:
        array = await source.hierarchy.array(undo.path)
    except MetadataError as error:  # it may be whole again when the journal is read next
        raise StoreError(f"an append to it may be torn, and its array cannot be read: {error}") from None
    if array is None or len(undo.shard) != array.grid.ndim or array.layout.shard_key(undo.shard) != undo.key:
        return Outcome.UNCLEAR
    grid, nbytes = array.grid, array.grid.index_nbytes(undo.shard)
    if nbytes > undo.old_nbytes:
        return Outcome.UNCLEAR
    old = bytes(await snapshot.read(undo.old_nbytes - nbytes, nbytes))
    end = bytes(await snapshot.read(snapshot.size - nbytes, nbytes))
    is_old_there = hash_of(old) == undo.old_index_hash
    if snapshot.size == undo.old_nbytes:
        return Outcome.BEGUN if is_old_there else Outcome.WHOLE
    if hash_of(end) in (undo.old_index_hash, undo.new_index_hash):
        return Outcome.TORN if is_old_there else Outcome.UNCLEAR
    if _is_index_of_others(grid, undo, end, old if is_old_there else None, snapshot.size):
        return Outcome.WHOLE
    return Outcome.TORN if is_old_there else Outcome.UNCLEAR


def _is_index_of_others(grid: ShardGrid, undo: UndoRecord, end: bytes, old: bytes | None, size: int) -> bool:
    """Whether *end*, the end of a shard, is an index that another program wrote.

    Without a checksum, any bytes can be read as an index. One of an append to the old version has entries of its *old*
    index and entries behind the old end, and no others; after a torn append there are zeros and payloads.
    """
    codecs, shape = grid.levels[0].index_codecs, grid.index_shape(undo.shard)
    try:
        index = codecs.decode(end, shape, size)
    except CorruptionError:
        return False
    if codecs.checksums:
        return True
    entries, is_empty = index.entries, are_empty(index.entries)
    if old is None:
        return not damaged(entries, size)
    is_same = (entries == codecs.decode(old, shape, undo.old_nbytes).entries).all(axis=1)
    is_new = index.sound & (entries[:, 0] >= np.uint64(undo.old_nbytes)) & (entries[:, 1] > 0)
    return bool((is_same | is_new | is_empty).all() and (~is_empty).any())


async def _remove_unfinished(source: Source, undo: UndoRecord) -> None:
    """Remove what a commit left half-written.

    If another host is uploading the shard at this moment, it commits once more, as after any change of the shard.
    """
    try:
        if source.store.rewrites:
            await source.writable.clear_unfinished([undo.key])
        elif is_reserved(undo.temporary.rpartition("/")[2]):
            check_name(undo.temporary)
            await source.writable.unlink(undo.temporary)
    except (NotFoundError, NotADirectoryHereError):
        pass
    except ShardfsError as error:
        log.warning("what a commit of %s left half-written is not removed: %s", undo.key, error)
