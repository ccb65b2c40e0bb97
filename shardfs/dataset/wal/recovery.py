"""Bringing a journal that an earlier process left into the store.

First the commits that were under way are settled: completed, or taken back.  What remains was published and is in no
shard: it is pending again if it fits the array and the shard as they are now, else a conflict, which is put aside.

A record knows of the chunk that it replaces no more than the entry of the index.  A change whose bytes are there is
done, whoever made later versions of the shard.  If the entry is another one, the chunk is taken for changed, though it
may have been moved only, by a compaction or in a shard that is always written anew: what somebody else may have written
since is not replaced unasked.  An entry that is the same is taken for the same chunk.  A chunk file of an unsharded
array has no entry: its size and its time, or what else the store says of its version, are taken for one.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from shardfs.dataset.array import Array
from shardfs.dataset.committer import Committer
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.maintenance.shrink import empty_outside
from shardfs.dataset.queue import Change
from shardfs.dataset.source import Source
from shardfs.dataset.wal.reading import LogContents
from shardfs.dataset.wal.records import Erase, Put, Shrink
from shardfs.dataset.wal.undo import (
    Settled,
    SettledCommit,
    check_name,
    is_lasting,
    is_there,
    is_within,
    settle,
    while_it_changes,
)
from shardfs.errors import NotFoundError, ShardfsError
from shardfs.format.lens.unsharded import describe as describe_array
from shardfs.format.metadata import ArrayMetadata, parse_node

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conflict:
    """A change that does not fit what is stored now, and why."""

    change: Change | Shrink
    reason: str


@dataclass
class Recovery:
    """What was found in a journal: commits with their outcomes, changes that are pending again, and conflicts.

    The records *done* need not be remembered any more.
    """

    commits: Sequence[SettledCommit]
    pending: list[tuple[Array, Change]] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    shrinks: list[Shrink] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


async def classify(source: Source, contents: LogContents, settled: Settled) -> Recovery:
    """Find out which changes are pending again, and which are conflicts, once the commits are *settled*."""
    recovery = Recovery(settled.commits, done=list(settled.done))
    done = set(settled.done)
    latest: dict[tuple[str, tuple[int, ...]], Change] = {}
    for record in contents.records:
        if isinstance(record, Shrink):
            recovery.shrinks.append(record)
        elif isinstance(record, Put | Erase):
            before = latest.pop((record.path, record.coords), None)
            if before is not None:
                recovery.done.append(before.sequence)
            latest[record.path, record.coords] = record
    for change in latest.values():
        if change.sequence in done:
            continue
        array, reason = await _fit(source, change)
        if reason is not None:
            recovery.conflicts.append(Conflict(change, reason))
        elif array is not None:
            recovery.pending.append((array, change))
        else:
            recovery.done.append(change.sequence)
    return recovery


async def replay(source: Source, contents: LogContents, committer: Committer) -> Recovery:
    """Settle a journal and make pending what it holds; conflicts are put aside, and named in the log.

    One record that cannot be handled keeps no other from it.
    """
    settled = await settle(source, contents, apply=True)
    recovery = await classify(source, contents, settled)
    for intent, _, _ in settled.commits:
        if intent.sequence not in settled.done:
            committer.commits.keep_announced(intent)
    for shrink in recovery.shrinks:
        try:
            await finish_shrink(source, committer, shrink)
        except ShardfsError as error:
            if is_lasting(error):
                recovery.conflicts.append(Conflict(shrink, str(error)))
            else:
                log.error("%s is not emptied outside its shape: %s", shrink.path or "the array", error)  # noqa: TRY400
        else:
            recovery.done.append(shrink.sequence)
    await committer.commits.sync()  # what was replaced is forgotten only when what replaced it is durable
    for array, change in recovery.pending:
        committer.add(array.layout, array.grid.locate(change.coords).shard, change)
    for conflict in recovery.conflicts:
        log.error("%s; it is kept, and `shardfs recover --apply` applies it", describe(conflict))
    await committer.conflict_log.keep([conflict.change for conflict in recovery.conflicts])
    await committer.commits.finish(sorted(recovery.done))
    for layout in {array.layout for array, _ in recovery.pending if array.grid.is_unsharded}:
        try:  # at once: where chunk files pass through, what is pending for them is not seen
            await committer.flush(layout)
        except ShardfsError as error:
            log.error("%s is not committed yet: %s", layout.path or "the array", error)  # noqa: TRY400
    return recovery


def describe(conflict: Conflict) -> str:
    """Say in one line what a conflict is."""
    return f"{describe_change(conflict.change)}: {conflict.reason}"


def describe_change(change: Change | Shrink) -> str:
    """Say of which chunk a change is, or of which array."""
    where = change.path or "the array"
    if isinstance(change, Shrink):
        return f"the removal of chunks outside the shape of {where}"
    what = "the new bytes" if isinstance(change, Put) else "the removal"
    return f"{what} of chunk {'/'.join(map(str, change.coords))} of {where}"


async def _fit(source: Source, change: Change) -> tuple[Array | None, str | None]:
    """Return the array that *change* is for, and why it does not fit; neither if there is nothing to do."""
    array: Array | None = None
    try:
        check_name(change.path)
        array = await source.hierarchy.array(change.path)
        if array is None:
            return None, "there is no such array any more"
        if array.fingerprint != change.fingerprint:
            return array, "the metadata of the array has changed"
        if not is_within(array, change):
            return array, "it lies outside the array now"
        return await while_it_changes(partial(_compare, array, change))
    except ShardfsError as error:
        if source.store.root is None and not is_lasting(error):
            raise  # what a server fails to answer now, it answers when the journal is replayed next
        return array, f"its {'array' if array is None else 'shard'} cannot be read: {error}"


async def why_not(source: Source, change: Change | Shrink) -> str | None:
    """Return why a change that was put aside does not fit what is stored now; None if it does."""
    try:
        if isinstance(change, Shrink):
            check_name(change.path)
            is_there = (await source.hierarchy.node(change.path)).any_array is not None
            return None if is_there else "there is no such array any more"
        array, reason = await _fit(source, change)
    except ShardfsError as error:
        return str(error)
    return reason if array is not None or reason is not None else "the chunk is so already"


async def _compare(array: Array, change: Change) -> tuple[Array | None, str | None]:
    """Return the same as `_fit`, by the chunk that is stored."""
    if await array.stored_entry(change.coords) == change.superseded:
        return array, None
    return (None, None) if await is_there(array, change) else (array, _CHANGED)


_CHANGED: Final = "another program has changed the chunk since"


async def finish_shrink(source: Source, committer: Committer, shrink: Shrink) -> None:
    """Finish what began when an array of this shape was made smaller; raises what keeps that from being done."""
    check_name(shrink.path)
    node = await source.hierarchy.node(shrink.path)
    metadata, now = node.metadata, node.any_array
    if now is None or not isinstance(metadata, ArrayMetadata):
        raise NotFoundError("there is no such array any more")
    if metadata.shape == shrink.shape:
        return
    former = parse_node({**metadata.document, "shape": list(shrink.shape)})
    assert isinstance(former, ArrayMetadata)
    unsharded = describe_array(former)
    layout = ArrayLayout(shrink.path, unsharded.grid, unsharded.key_encoding)
    array = Array(layout, unsharded, source.shards, now.fingerprint)
    await source.store.sync_directory(shrink.path)  # chunks go for the sake of a document that is there to stay
    await empty_outside(committer, array, metadata.shape)
