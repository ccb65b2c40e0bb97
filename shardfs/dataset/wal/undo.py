"""Settling the commits that were under way when a process ended: completed, or taken back.

A commit is complete if the shard has the planned index and the bytes that it speaks of.  One that is torn, as only an
append in place can be, is taken back.  Whatever else the shard is now, it is left alone.  A record that cannot be
handled keeps no other from being settled.
"""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from shardfs.dataset.array import Array
from shardfs.dataset.queue import Change
from shardfs.dataset.source import Source
from shardfs.dataset.wal.reading import LogContents
from shardfs.dataset.wal.records import Erase, Put, UndoRecord
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NameTooLongError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    OutsideSourceError,
    RefusedError,
    ShardfsError,
    StaleError,
)
from shardfs.format.sharding import ShardingLevel
from shardfs.stores.base import Kept, Snapshot, Splice, is_reserved
from shardfs.stores.memory import MemoryContent

log = logging.getLogger(__name__)

_PIECE_NBYTES: Final = 2**20
_ATTEMPTS: Final = 5

T = TypeVar("T")


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
    """The shard is not readable, or in no state that the commit leads to: it is left as it is."""


_TORN: Final = (Outcome.TORN, Outcome.HEAD_TORN)


class SettledCommit(NamedTuple):
    """What became of one commit; *reason* says why that is not clear."""

    intent: UndoRecord
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of *commits* that were under way; the records *done* need not be remembered any more.

    Those of *commits* that are not done could not be looked at for now: they are to be settled before their shard
    changes.
    """

    commits: Sequence[SettledCommit]
    done: Sequence[int]


_LASTING: Final = (
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NameTooLongError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    RefusedError,
)


def is_lasting(error: ShardfsError) -> bool:
    """Whether *error* is about what a record says, or is stored: to try once more would be in vain."""
    return isinstance(error, _LASTING)


def check_name(key: str) -> None:
    """Raise `OutsideSourceError` if *key*, which a record says, cannot be one of the source."""
    if key and any(part in ("", ".", "..") or "\0" in part for part in key.split("/")):
        raise OutsideSourceError(f"{key} is not a name within the source")


async def settle(source: Source, contents: LogContents, *, apply: bool) -> Settled:
    """Find out what became of the commits that were under way; with *apply*, take back those that were torn.

    What a server fails to answer now, it answers when the journal is read next: such errors are raised.
    """
    by_key: dict[str, list[UndoRecord]] = {}
    changes = {record.sequence: record for record in contents.records if isinstance(record, Put | Erase)}
    for record in contents.records:
        if isinstance(record, UndoRecord):
            by_key.setdefault(record.key, []).append(record)
    commits: list[SettledCommit] = []
    done: list[int] = []
    for key, intents in by_key.items():
        for earlier, later in pairwise(intents):
            commits.append(SettledCommit(earlier, _outcome_before(earlier, later, changes)))
            done.append(earlier.sequence)
        last, outcome = intents[-1], Outcome.UNCLEAR
        try:
            check_name(key)
            check_name(last.path)
            held = _held(last, changes)
            outcome = await while_it_changes(partial(_outcome, source, last, held))
            if apply:
                await _remove_temporaries(source, intents)
                if outcome in _TORN:
                    outcome = await take_back(source, last, held)
        except ShardfsError as error:
            if source.store.root is None and not is_lasting(error):
                raise
            way_out = "; an append to it was torn, which the next mount takes back" if outcome in _TORN else ""
            log.error("%s: the commit that was under way is left as it is: %s%s", key, error, way_out)  # noqa: TRY400
            commits.append(SettledCommit(last, Outcome.UNCLEAR, str(error)))
            if is_lasting(error) and outcome is Outcome.UNCLEAR:  # else it is torn, and still to be taken back
                done.append(last.sequence)
            continue
        if outcome is Outcome.UNCLEAR:
            reason = "it is not readable, and not as the journal expects it"
            log.error("%s: the commit that was under way is left as it is: %s", key, reason)
            commits.append(SettledCommit(last, outcome, reason))
        else:
            commits.append(SettledCommit(last, outcome))
        done.append(last.sequence)
        if apply:
            await _make_durable(source, key)
    for intent, outcome, _ in commits:
        if outcome is Outcome.COMPLETE:
            done += [change.sequence for change in _held(intent, changes)]
    return Settled(commits, done)


async def while_it_changes(look: Callable[[], Awaitable[T]]) -> T:
    """Return what *look* finds; it looks again if another host replaces a shard meanwhile, a few times."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(StaleError):
            return await look()
    return await look()


async def is_there(array: Array, change: Change) -> bool:
    """Whether the stored chunk is what *change* leaves."""
    _, extent = await array.find_stored(change.coords, fresh=True)
    if extent is None or isinstance(change, Erase):
        return extent is None and isinstance(change, Erase)
    if extent.nbytes != change.payload.nbytes:
        return False
    for start in range(0, extent.nbytes, _PIECE_NBYTES):
        nbytes = min(_PIECE_NBYTES, extent.nbytes - start)
        if await extent.read(start, nbytes) != change.payload.read(start, nbytes):
            return False
    return True


def is_within(array: Array, change: Change) -> bool:
    """Whether the coordinates of *change* are those of a chunk of *array*, as it is now."""
    return len(change.coords) == array.grid.ndim and array.grid.contains(change.coords)


def _held(intent: UndoRecord, changes: Mapping[int, Change]) -> list[Change]:
    """Return the changes, of those that are not done, that a commit was to bring into its shard."""
    sequences = list(changes)  # they ascend
    found: list[Change] = []
    with suppress(CorruptionError):  # an intent cannot name what is behind it
        for named in intent.records():
            begin, end = bisect_left(sequences, named.start), bisect_left(sequences, named.stop)
            found += [changes[sequence] for sequence in sequences[begin:end]]
    return found


def _outcome_before(earlier: UndoRecord, later: UndoRecord, changes: Mapping[int, Change]) -> Outcome:
    """Return what became of a commit that another one of the same shard followed: that found it complete, or not."""
    found = {change.sequence for change in _held(later, changes)}
    is_tried_again = any(change.sequence in found for change in _held(earlier, changes))
    is_complete = later.old_nbytes == earlier.planned_nbytes and (
        not later.old_index or later.old_index == earlier.planned_index
    )
    return Outcome.COMPLETE if is_complete and not is_tried_again else Outcome.UNTOUCHED


async def _outcome(source: Source, intent: UndoRecord, changes: Sequence[Change]) -> Outcome:
    level = await _level(source, intent)
    nbytes = len(intent.planned_index)
    head, tail = (nbytes, 0) if _is_at_start(level) else (0, nbytes)
    snapshot: Snapshot | None = None
    with suppress(NotFoundError, NotADirectoryHereError):
        snapshot = await source.store.open(intent.key, head_nbytes=head, tail_nbytes=tail)
    return await _outcome_in(source, intent, changes, level, snapshot)


def _is_at_start(level: ShardingLevel | None) -> bool:
    return level is not None and level.index_at_start and not level.after


async def _outcome_in(
    source: Source,
    intent: UndoRecord,
    changes: Sequence[Change],
    level: ShardingLevel | None,
    snapshot: Snapshot | None,
) -> Outcome:
    """Return what became of a commit to the shard that *snapshot* is, None being no shard."""
    planned = intent.planned_index
    at_start = _is_at_start(level)
    if snapshot is None:
        is_removal = not intent.planned_nbytes and not any(isinstance(change, Put) for change in changes)
        # Where there is no array it may be somewhere else, or not mounted, and the chunks with it.
        return Outcome.COMPLETE if is_removal and level is not None else Outcome.UNTOUCHED
    size = snapshot.size
    file = snapshot.stat.file
    # The number of a device may be another one after a restart.
    is_same_file = intent.identity is not None and file is not None and file[1] == intent.identity[1]
    if size == intent.planned_nbytes and not (intent.is_replacement and is_same_file):
        stands = await _stands(snapshot, 0 if at_start else size - len(planned), planned)
        if stands and intent.old_index and not at_start:
            snapshot.expect(intent.index_offset_old, size - len(planned) - intent.index_offset_old)
        # A power cut may keep an index and lose what it speaks of; and versions may differ in nothing but payloads.
        if stands and await _are_there(source, intent, changes):
            return Outcome.COMPLETE
    if intent.is_replacement or not is_same_file or not intent.old_nbytes <= size <= intent.planned_nbytes:
        return Outcome.UNTOUCHED
    if at_start:
        return await _outcome_at_start(snapshot, intent)
    if size == intent.old_nbytes:
        return Outcome.UNTOUCHED
    # Without a checksum, anything reads like an index.
    if level is None or (level.index_codecs.checksums and await _is_readable(source, intent)):
        return Outcome.UNTOUCHED
    old_stands = await _stands(snapshot, intent.index_offset_old, intent.old_index)
    return Outcome.TORN if old_stands else Outcome.UNCLEAR


async def _outcome_at_start(snapshot: Snapshot, intent: UndoRecord) -> Outcome:
    old, planned = intent.old_index, intent.planned_index
    if len(old) != len(planned) or not len(old) <= intent.old_nbytes <= snapshot.size:
        return Outcome.UNCLEAR
    head = bytes(await snapshot.read(0, len(old)))
    if head == old and snapshot.size == intent.old_nbytes:
        return Outcome.UNTOUCHED
    is_ours = all(byte in (before, after) for byte, before, after in zip(head, old, planned, strict=True))
    return Outcome.HEAD_TORN if is_ours else Outcome.UNTOUCHED


async def _remove_temporaries(source: Source, intents: Sequence[UndoRecord]) -> None:
    """Remove what replacements left half-written."""
    for intent in intents:
        if is_reserved(intent.temporary.rpartition("/")[2]):
            try:
                check_name(intent.temporary)
                await source.store.unlink(intent.temporary)
            except (NotFoundError, NotADirectoryHereError):
                pass
            except ShardfsError as error:
                log.warning("%s, which a commit left half-written, is not removed: %s", intent.temporary, error)


async def take_back(
    source: Source, intent: UndoRecord, changes: Sequence[Change] = (), waited: float | None = None
) -> Outcome:
    """Make the shard of a commit what it was before, if that was torn; return what became of the commit.

    Whoever had the lock of the shard until now may have replaced it: what it is then decides.  *changes* that are
    pending, and so brought into the shard once more, need not be given; *waited* is that of `Store.edit`.
    """
    async with source.store.edit(intent.key, waited=waited) as edit:
        outcome = await _outcome_in(source, intent, changes, await _level(source, intent), edit.snapshot)
        if outcome not in _TORN:
            return outcome
        log.warning("an append to %s was torn; it is taken back, and done again", intent.key)
        head = intent.old_index if outcome is Outcome.HEAD_TORN else b""
        kept = Kept(len(head), intent.old_nbytes - len(head))
        await edit.splice(Splice((MemoryContent(memoryview(head)), kept) if head else (kept,)))
    array = await source.hierarchy.array(intent.path)
    if array is not None:
        source.shards.forget(array.layout, intent.shard)
    return outcome


async def _make_durable(source: Source, key: str) -> None:
    """Make durable what an earlier process did to a shard and perhaps did not come to make so, names included.

    The lock that it may have left goes.
    """
    if source.store.rewrites:
        return  # a new version is durable when it is there
    with suppress(ShardfsError):  # who has it now removes it
        async with source.store.edit(key):
            pass
    with suppress(NotFoundError, NotADirectoryHereError):
        await (await source.store.open_passthrough(key, writable=False)).sync()
    while key:
        key = key.rpartition("/")[0]
        with suppress(NotFoundError, NotADirectoryHereError):
            await source.store.sync_directory(key)


async def _are_there(source: Source, intent: UndoRecord, changes: Sequence[Change]) -> bool:
    """Whether the shard of *intent* has what *changes* leave; also if that is no array any more."""
    array = await _array(source, intent)
    try:
        for change in changes if array is not None else ():
            if array is None or change.path != intent.path or not is_within(array, change):
                return False
            if not await is_there(array, change):
                return False
    except CorruptionError:
        return False
    return True


async def _array(source: Source, intent: UndoRecord) -> Array | None:
    """Return the array whose shard *intent* is about; None if its key is not that of such a shard (any more)."""
    array = await source.hierarchy.array(intent.path)
    if array is None or len(intent.shard) != array.grid.ndim or array.layout.shard_key(intent.shard) != intent.key:
        return None
    return array


async def _level(source: Source, intent: UndoRecord) -> ShardingLevel | None:
    array = await _array(source, intent)
    return array.grid.levels[0] if array is not None else None


async def _is_readable(source: Source, intent: UndoRecord) -> bool:
    """Whether there is an index, which is not that of *intent* without what it speaks of."""
    array = await _array(source, intent)
    if array is None:
        return True  # so that it is left alone
    state = await source.shards.state(array.layout, intent.shard, fresh=True)
    if state.shard is not None and state.shard.index.encoded == intent.planned_index:
        return False
    return not isinstance(state.error, CorruptionError)


async def _stands(snapshot: Snapshot, offset: int, content: bytes) -> bool:
    if not content or offset < 0 or offset + len(content) > snapshot.size:
        return False
    return bytes(await snapshot.read(offset, len(content))) == content
