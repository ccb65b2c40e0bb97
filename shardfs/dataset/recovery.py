"""Bringing a journal that an earlier process left into the store.

First the commits that were under way are settled: completed, or taken back.  What remains was published and is in no
shard: it is pending again if it fits the array and the shard as they are now, else a conflict, which is put aside.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from shardfs.dataset.array import Array
from shardfs.dataset.committer import Committer
from shardfs.dataset.journal import Erase, Intent, JournalContents, Put, Shrink
from shardfs.dataset.pending import Change
from shardfs.dataset.source import Source
from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError, NotUnshardable, ShardfsError
from shardfs.format.metadata import ArrayMetadata, parse_node
from shardfs.format.sharding import ShardingLevel
from shardfs.format.unshard import unshard
from shardfs.stores.base import Kept, Snapshot, Splice, is_reserved
from shardfs.stores.memory import MemoryContent

log = logging.getLogger(__name__)

_PIECE_NBYTES: Final = 2**20


class Outcome(Enum):
    """What became of a commit that was under way."""

    COMPLETE = auto()
    """The shard holds it."""
    UNTOUCHED = auto()
    """It had not begun, or another program made another version since."""
    TORN = auto()
    """The shard is its old version and a part of an append, which is to be cut off."""
    HEAD_TORN = auto()
    """So it is, and a part of the new index may stand over the old one at its beginning."""
    UNCLEAR = auto()
    """The shard is not readable, and not in a state that the commit leads to: it is left as it is."""


@dataclass(frozen=True)
class Conflict:
    """A change that does not fit what is stored now, and why."""

    change: Change
    reason: str


@dataclass
class Recovery:
    """What was found in a journal: commits with their outcomes, changes that are pending again, and conflicts."""

    commits: list[tuple[Intent, Outcome]] = field(default_factory=list)
    pending: list[tuple[Array, Change]] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    shrinks: list[Shrink] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


async def settle(source: Source, contents: JournalContents, recovery: Recovery, *, apply: bool) -> None:
    """Find out what became of the commits that were under way; with *apply*, take back those that were torn."""
    by_key: dict[str, list[Intent]] = {}
    for record in contents.records:
        if isinstance(record, Intent):
            by_key.setdefault(record.key, []).append(record)
    for intents in by_key.values():
        for earlier, later in pairwise(intents):
            recovery.commits.append((earlier, _outcome_before(earlier, later)))
        outcome = await _outcome(source, intents[-1])
        recovery.commits.append((intents[-1], outcome))
        if apply:
            await _take_back(source, intents[-1], outcome)
    for intent, outcome in recovery.commits:
        recovery.done.append(intent.sequence)
        if outcome is Outcome.COMPLETE:
            for sequences in intent.records():
                recovery.done += sequences


async def classify(source: Source, contents: JournalContents, recovery: Recovery) -> None:
    """Find out which changes are pending again, and which are conflicts."""
    done = set(recovery.done)
    latest: dict[tuple[str, tuple[int, ...]], Change] = {}
    for record in contents.records:
        if isinstance(record, Shrink):
            recovery.shrinks.append(record)
        elif isinstance(record, Put | Erase) and record.sequence not in done:
            before = latest.pop((record.path, record.coords), None)
            if before is not None:
                recovery.done.append(before.sequence)
            latest[record.path, record.coords] = record
    for change in latest.values():
        array, reason = await _fit(source, change)
        if reason is not None:
            recovery.conflicts.append(Conflict(change, reason))
        elif array is not None:
            recovery.pending.append((array, change))
        else:
            recovery.done.append(change.sequence)


async def replay(source: Source, contents: JournalContents, committer: Committer) -> Recovery:
    """Settle a journal and make pending what it holds; conflicts are put aside, and named in the log."""
    recovery = Recovery()
    await settle(source, contents, recovery, apply=True)
    await classify(source, contents, recovery)
    for shrink in recovery.shrinks:
        await _shrink(source, committer, shrink)
        recovery.done.append(shrink.sequence)
    await committer.sync()  # what was replaced is forgotten only when what replaced it is durable
    for array, change in recovery.pending:
        committer.add(array.arrangement, array.grid.locate(change.coords).shard, change)
    for conflict in recovery.conflicts:
        log.error("%s; it is kept, and `shardfs recover --apply` applies it", describe(conflict))
    await committer.put_aside([conflict.change for conflict in recovery.conflicts])
    await committer.finish(sorted(recovery.done))
    return recovery


def describe(conflict: Conflict) -> str:
    """Say in one line what a conflict is."""
    change = conflict.change
    what = "the new bytes" if isinstance(change, Put) else "the removal"
    return f"{what} of chunk {'/'.join(map(str, change.coords))} of {change.path or 'the array'}: {conflict.reason}"


def _outcome_before(earlier: Intent, later: Intent) -> Outcome:
    """Return what became of a commit that another one of the same shard followed: that found it complete, or not."""
    is_complete = later.old_nbytes == earlier.planned_nbytes and (
        not later.old_index or later.old_index == earlier.planned_index
    )
    return Outcome.COMPLETE if is_complete else Outcome.UNTOUCHED


async def _outcome(source: Source, intent: Intent) -> Outcome:
    try:
        snapshot = await source.store.open(intent.key)
    except (NotFoundError, NotADirectoryHereError):
        return Outcome.COMPLETE if not intent.planned_nbytes else Outcome.UNTOUCHED
    size, planned = snapshot.size, intent.planned_index
    level = await _level(source, intent)
    at_start = level is not None and level.index_at_start and not level.after
    if size == intent.planned_nbytes and await _stands(snapshot, 0 if at_start else size - len(planned), planned):
        return Outcome.COMPLETE
    file = snapshot.stat.file
    # The number of a device may be another one after a restart.
    is_ours = intent.identity is not None and file is not None and file[1] == intent.identity[1]
    if intent.is_replacement or not is_ours or not intent.old_nbytes <= size <= intent.planned_nbytes:
        return Outcome.UNTOUCHED
    old_stands = await _stands(snapshot, intent.index_offset_old, intent.old_index)
    if at_start:
        return Outcome.UNTOUCHED if old_stands and size == intent.old_nbytes else Outcome.HEAD_TORN
    if size == intent.old_nbytes:
        return Outcome.UNTOUCHED
    if await _is_readable(source, intent):
        return Outcome.UNTOUCHED
    return Outcome.TORN if old_stands else Outcome.UNCLEAR


async def _take_back(source: Source, intent: Intent, outcome: Outcome) -> None:
    """Make the shard of a torn commit what it was before, and remove what a replacement left half-written."""
    if is_reserved(intent.temporary.rpartition("/")[2]):
        with suppress(NotFoundError, NotADirectoryHereError):
            await source.store.unlink(intent.temporary)
    if outcome is Outcome.UNCLEAR:
        log.error("%s is not readable, and not as the journal expects it: it is left as it is", intent.key)
    if outcome not in (Outcome.TORN, Outcome.HEAD_TORN):
        return
    array = (await source.hierarchy.node(intent.path)).array
    if array is None or array.arrangement.shard_key(intent.shard) != intent.key:
        log.error("%s is no shard of an array any more: it is left as it is", intent.key)
        return
    log.warning("an append to %s was torn; it is taken back, and done again", intent.key)
    head = intent.old_index if outcome is Outcome.HEAD_TORN else b""
    kept = Kept(len(head), intent.old_nbytes - len(head))
    pieces = (MemoryContent(memoryview(head)), kept) if head else (kept,)
    async with source.store.edit(intent.key) as edit:
        await edit.splice(Splice(pieces))
    source.shards.forget(array.arrangement, intent.shard)


async def _fit(source: Source, change: Change) -> tuple[Array | None, str | None]:
    """Return the array that *change* is for, and why it does not fit; neither if there is nothing to do."""
    try:
        array = (await source.hierarchy.node(change.path)).array
    except (NotFoundError, NotADirectoryHereError):
        array = None
    if array is None:
        return None, None if isinstance(change, Erase) else "there is no such sharded array any more"
    if array.fingerprint != change.fingerprint:
        return array, "the metadata of the array has changed"
    if len(change.coords) != array.grid.ndim or not array.grid.contains(change.coords):
        return array, "it lies outside the array now"
    try:
        entry = await array.stored_entry(change.coords)
        if entry == change.superseded:
            return array, None
        if isinstance(change, Erase):
            return (None, None) if entry is None else (array, _CHANGED)
        _, extent = await array.find_stored(change.coords)
        if extent is None or extent.nbytes != change.payload.nbytes:
            return array, _CHANGED
        for start in range(0, extent.nbytes, _PIECE_NBYTES):
            nbytes = min(_PIECE_NBYTES, extent.nbytes - start)
            if await extent.read(start, nbytes) != change.payload.read(start, nbytes):
                return array, _CHANGED
    except ShardfsError as error:
        return array, f"its shard cannot be read: {error}"
    return None, None


_CHANGED: Final = "another program has changed the chunk since"


async def _shrink(source: Source, committer: Committer, shrink: Shrink) -> None:
    """Finish what began when an array of this shape was made smaller."""
    try:
        node = await source.hierarchy.node(shrink.path)
        metadata = node.metadata
        if node.array is None or not isinstance(metadata, ArrayMetadata) or metadata.shape == shrink.shape:
            return
        former = parse_node({**metadata.document, "shape": list(shrink.shape)})
        assert isinstance(former, ArrayMetadata)
        array = Array.open(shrink.path, unshard(former), source.shards, node.array.fingerprint)
        await committer.empty_outside(array, metadata.shape)
    except (NotFoundError, NotADirectoryHereError, NotUnshardable) as error:
        log.warning("%s is not emptied outside its shape: %s", shrink.path or "the array", error)


async def _level(source: Source, intent: Intent) -> ShardingLevel | None:
    try:
        array = (await source.hierarchy.node(intent.path)).array
    except (NotFoundError, NotADirectoryHereError):
        return None
    return array.grid.levels[0] if array is not None else None


async def _is_readable(source: Source, intent: Intent) -> bool:
    array = (await source.hierarchy.node(intent.path)).array
    if array is None:
        return True  # so that it is left alone
    state = await source.shards.state(array.arrangement, intent.shard, fresh=True)
    return not isinstance(state.error, CorruptionError)


async def _stands(snapshot: Snapshot, offset: int, content: bytes) -> bool:
    if not content or offset < 0 or offset + len(content) > snapshot.size:
        return False
    return bytes(await snapshot.read(offset, len(content))) == content
