"""Recovery: bringing the journal of an earlier process into the store.

Commits that were torn are first undone (`shardfs.dataset.journal.undo`). A record becomes pending again if the chunk is
still the one that it was published over: its array has the same metadata, and its shard is the same version, or has
grown out of it by appends that left the chunk alone. Bytes are read for that only if the chunk was stored again. The
record is released if its very bytes are stored, whoever wrote later versions of the shard, or were by the commit that
was under way. Otherwise it is a conflict
and goes to the conflict journal: what somebody else may have written since is not replaced unasked. A record that
cannot be handled blocks no other.

If the latest record of a chunk is damaged, and was not released, the one before it counts: a power cut damages what was
not synced, and what was synced before must not be lost. The log names such chunks.

Of a shard that another program wrote anew it is not known which chunks changed, so all that was published over it are
conflicts. `Array.note` says what is noted where shards are not appended to.
"""

import logging
import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.beside import Others
from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.emptying import empty_outside
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.reading import Damage, JournalContents, read_journal
from shardfs.dataset.journal.records import ChunkChange, Erase, Live, Put, Shrink, damaged_name
from shardfs.dataset.journal.undo import (
    UnfinishedCommit,
    check_name,
    is_lasting,
    is_stored,
    patiently,
    undo_commits,
)
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.state.directory import OTHERS_WRITE, StateDirectory, shown
from shardfs.dataset.state.slots import slot_with_changes
from shardfs.dataset.syncing import make_durable
from shardfs.errors import CorruptionError, NotFoundError, ShardfsError, SourceError
from shardfs.format.lens.unsharded import describe as describe_array
from shardfs.format.metadata import ArrayMetadata, parse_node
from shardfs.stores.base import Address, Reader
from shardfs.stores.cache import while_it_changes
from shardfs.stores.local.syscalls import SYSCALLS, Syscalls, open_directory

log = logging.getLogger(__name__)

_CHANGED: Final = "another program has changed the chunk, or written its shard anew"
_NO_ARRAY: Final = "there is no such array any more"
OUTDATED: Final = "a later version of the chunk is in a damaged part of the journal"
"""What is said of a change that is made again though it was replaced."""


@dataclass(frozen=True)
class Fits:
    """A change that becomes pending again in its *array*: what is stored is what it was published over."""

    array: Array
    reason: ClassVar[str] = "it fits what is stored"
    can_be_applied: ClassVar[bool] = True


@dataclass(frozen=True)
class Stored:
    """A change with which nothing is to be done: its very bytes are stored in the shard *key*."""

    key: str
    reason: ClassVar[str] = "the chunk already is like that"
    can_be_applied: ClassVar[bool] = True


@dataclass(frozen=True)
class Conflict:
    """A change that nobody makes unasked, for the *reason*.

    *array* is the one in which `shardfs recover --apply` makes it all the same; None if that is impossible as long as
    there is this reason. *is_damaged*: that is damage, which ends if another session has torn the shard.
    """

    reason: str
    array: Array | None = None
    is_damaged: bool = False

    @property
    def can_be_applied(self) -> bool:
        """Whether `shardfs recover --apply` makes the change."""
        return self.array is not None


Verdict = Fits | Stored | Conflict
"""What is to be done with a change in a journal."""


@dataclass
class Recovery:
    """What was found in a journal: *unfinished* commits, changes that are pending again, and conflicts.

    The records *released* are not needed any more, nor are those that are *stored* in the shards of these keys, once
    these are durable.
    """

    unfinished: Sequence[UnfinishedCommit]
    pending: list[tuple[Array, ChunkChange]] = field(default_factory=list)
    conflicts: list[tuple[ChunkChange | Shrink, Conflict]] = field(default_factory=list)
    shrinks: list[Shrink] = field(default_factory=list)
    released: list[Live] = field(default_factory=list)
    stored: list[tuple[str, ChunkChange]] = field(default_factory=list)

    def add(self, change: ChunkChange, verdict: Verdict) -> None:
        """Note what is to be done with a change."""
        match verdict:
            case Fits(array):
                self.pending.append((array, change))
            case Stored(key):
                self.stored.append((key, change))
            case Conflict():
                self.conflicts.append((change, verdict))


async def classify(source: Source, contents: JournalContents, unfinished: Sequence[UnfinishedCommit]) -> Recovery:
    """Find out which changes are pending again and which are conflicts, given the outcomes of *unfinished* commits."""
    recovery = Recovery(unfinished, released=[commit.undo for commit in unfinished if commit.is_examined])
    changes = [record for record in contents.records if isinstance(record, Put | Erase)]
    commits = {commit.undo.key: commit for commit in unfinished}
    for change in changes:
        try:
            verdict = await judge(source, change, commits)
        except ShardfsError as error:
            if source.store.root is None:
                raise  # when the journal is replayed next, the server may answer
            array = await _array_of(source, change)
            verdict = Conflict(str(error)) if array is None else Fits(array)  # it is judged when it is committed
        recovery.add(change, verdict)
    recovery.shrinks = [record for record in contents.records if isinstance(record, Shrink)]
    return recovery


async def _array_of(source: Source, change: ChunkChange) -> Array | None:
    """Return the array that a change was published in, if that is still there, and has such a chunk."""
    with suppress(ShardfsError):
        check_name(change.path)
        array = await source.hierarchy.array(change.path)
        if array is not None and array.fingerprint == change.fingerprint and array.grid.contains(change.coords):
            return array
    return None


async def replay(source: Source, contents: JournalContents, commits: GroupCommit) -> Recovery:
    """Undo torn commits, and make the changes in a journal pending; conflicts go to the conflict journal.

    A record that cannot be handled blocks no other.
    """
    recovery = await classify(source, contents, await undo_commits(source, contents, commits.journal))
    await _confirm_conflicts(source, recovery)
    for commit in recovery.unfinished:
        if not commit.is_examined:
            commits.undos[commit.undo.key] = commit.undo
    await commits.journal.sync_soon()  # else a power cut might bring back what a released record replaced
    for array, change in recovery.pending:
        if change.subject in contents.outdated:
            log.error("committing %s: %s", describe_change(change), OUTDATED)
        queue = commits.queue(array.layout, array.grid.locate(change.coords).shard)
        commits.supersede(queue, change)
        commits.add_again(queue, change, partial(_still_fits, source, change))
    for shrink in recovery.shrinks:
        try:
            await finish_shrink(source, commits, shrink)
        except ShardfsError as error:
            if is_lasting(error):
                recovery.conflicts.append((shrink, Conflict(str(error))))
            else:
                log.error("%s is not emptied outside its shape: %s", shrink.path or "the array", error)  # noqa: TRY400
        else:
            recovery.released.append(shrink)
    for kept, conflict in recovery.conflicts:
        way_out = "`shardfs recover --apply` applies it" if conflict.can_be_applied else NOT_YET
        log.error("%s; it is kept, and %s", describe(kept, conflict), way_out)
    await _release_stored(source, recovery)
    await commits.put_aside([change for change, _ in recovery.conflicts])
    await commits.journal.release_soon(recovery.released)
    contents.live.clear()  # pending changes have their payloads; other records must not keep removed files open
    contents.segments.clear()
    return recovery


async def _release_stored(source: Source, recovery: Recovery) -> None:
    """Let the records be released of what is stored, shard by shard, once that is durable: others may not see to it."""
    by_key: dict[str, list[ChunkChange]] = {}
    for key, change in recovery.stored:
        by_key.setdefault(key, []).append(change)
    for key, changes in by_key.items():
        try:
            await make_durable(source.writable, key)
        except ShardfsError as error:
            log.error("what was published in %s is stored, but not durable, and stays in the journal: %s", key, error)  # noqa: TRY400
        else:
            recovery.released += changes


async def _confirm_conflicts(source: Source, recovery: Recovery) -> None:
    """Judge conflicts once more, under the locks of their shards.

    Others may have been changing them when they were first looked at, this process, too.
    """
    by_key: dict[str, list[tuple[ChunkChange, Conflict]]] = {}
    conflicts, recovery.conflicts = recovery.conflicts, []
    for change, conflict in conflicts:
        array = None if isinstance(change, Shrink) or source.store.rewrites else await _array_of(source, change)
        if array is None or isinstance(change, Shrink):
            recovery.conflicts.append((change, conflict))
        else:
            key = array.layout.shard_key(array.grid.locate(change.coords).shard)
            by_key.setdefault(key, []).append((change, conflict))
    for key, those in by_key.items():
        try:
            await patiently(partial(_judge_locked, source, key, those, recovery))
        except ShardfsError:
            for change, conflict in those:
                # It is judged when it is committed.
                recovery.add(change, conflict if conflict.array is None else Fits(conflict.array))


async def _judge_locked(
    source: Source, key: str, those: Sequence[tuple[ChunkChange, Conflict]], recovery: Recovery, waited: float
) -> None:
    verdicts: list[Verdict] = []
    async with source.writable.edit(key, waited=waited) as edit:
        for change, _ in those:
            array = await _array_of(source, change) if edit.was_interrupted else None
            # What another session has torn is undone before it is judged again, to be committed.
            verdicts.append(await judge(source, change) if array is None else Fits(array))
    for (change, _), verdict in zip(those, verdicts, strict=True):
        recovery.add(change, verdict)


NOT_YET: Final = "it cannot be applied while that is so"
"""What is said of a conflict that `shardfs recover --apply` cannot apply."""


def describe(change: ChunkChange | Shrink, verdict: Verdict) -> str:
    """Return one line about a change in a journal."""
    return f"{describe_change(change)}: {verdict.reason}"


def describe_change(change: ChunkChange | Shrink, chunk: str | None = None) -> str:
    """Return which chunk or array a change is about; *chunk* says so in place of its coordinates."""
    where = change.path or "the array"
    if isinstance(change, Shrink):
        return f"the removal of chunks outside the shape of {where}"
    what = "the new bytes" if isinstance(change, Put) else "the removal"
    chunk = chunk or f"chunk {'/'.join(map(str, change.coords))}"
    return f"{what} of {chunk} of {where}"


async def _still_fits(source: Source, change: ChunkChange) -> bool | None:
    """Judge a change once more before it is committed: True if it `Fits`, None if it is `Stored`.

    Raises `CorruptionError` if its shard is damaged.
    """
    match await judge(source, change):
        case Fits():
            return True
        case Stored():
            return None
        case Conflict(reason, is_damaged=True):
            raise CorruptionError(reason)
        case Conflict():
            return False


async def judge(
    source: Source, change: ChunkChange, unfinished: Mapping[str, UnfinishedCommit] = MappingProxyType({})
) -> Verdict:
    """Return what is to be done with *change*, given the *unfinished* commits, by the keys of their shards.

    A shard may be damaged until its commit is undone. Raises a transient error that prevents reading the shard.
    """
    array, commit, is_same = None, None, False
    try:
        check_name(change.path)
        array = await source.hierarchy.array(change.path)
        if array is None:
            return Conflict(_NO_ARRAY)
        if len(change.coords) != array.grid.ndim or not array.grid.contains(change.coords):
            return Conflict("it lies outside the array now")
        is_same = array.fingerprint == change.fingerprint
        key = array.layout.shard_key(array.grid.locate(change.coords).shard)
        commit = unfinished.get(key)
        if is_same and commit is not None and commit.is_done and change.since < commit.undo.since:
            return Stored(key)  # it was: others may have gone on from it
        if is_same and commit is not None and (not commit.is_examined or commit.keeps(change.superseded)):
            return Fits(array)  # what is not examined is not durable either: it is judged when that is done
        return await while_it_changes(partial(_compare, array, key, change))
    except ShardfsError as error:
        if not is_lasting(error):
            raise
        what = "array" if array is None else "shard"
        return Conflict(f"its {what} cannot be read: {error}", is_damaged=isinstance(error, CorruptionError))


async def _compare(array: Array, key: str, change: ChunkChange) -> Verdict:
    """Return what is to be done with *change* by looking at the stored chunk."""
    is_same = array.fingerprint == change.fingerprint
    if is_same and await array.is_as_noted(change.coords, change.superseded):
        return Fits(array)
    with suppress(CorruptionError):  # it may be damaged, or have been written for other codecs
        if await is_stored(array, change):
            return Stored(key)
    return Conflict(_CHANGED, array) if is_same else Conflict("the metadata of the array has changed")


async def judge_aside(source: Source, change: ChunkChange | Shrink) -> Verdict:
    """Return what can be done with a change in the conflict journal; an error that prevents looking is a conflict."""
    try:
        if not isinstance(change, Shrink):
            return await judge(source, change)
        check_name(change.path)
        array = (await source.hierarchy.node(change.path)).any_array
    except ShardfsError as error:
        return Conflict(str(error))
    return Fits(array) if array is not None else Conflict(_NO_ARRAY)


async def finish_shrink(source: Source, commits: GroupCommit, shrink: Shrink) -> None:
    """Finish the shrinking of an array that was interrupted; raises the error that prevents it."""
    check_name(shrink.path)
    node = await source.hierarchy.node(shrink.path)
    metadata, now = node.metadata, node.any_array
    if now is None or not isinstance(metadata, ArrayMetadata):
        raise NotFoundError(_NO_ARRAY)
    if metadata.shape == shrink.shape:
        return
    former = parse_node({**metadata.document, "shape": list(shrink.shape)})
    assert isinstance(former, ArrayMetadata)
    unsharded = describe_array(former)
    layout = ArrayLayout(shrink.path, unsharded.grid, unsharded.key_encoding, now.layout.pending)
    array = Array(layout, unsharded, source.shards, now.fingerprint)
    await source.writable.sync_directory(shrink.path)  # chunks are removed only once the new document is durable
    await empty_outside(commits, array, metadata.shape)


def read_left(directory: str) -> JournalContents:
    """Read the journal in *directory*, which may be missing, without a lock; raises the errors of `read_journal`."""
    with suppress(NotFoundError):
        return read_journal(open_directory(directory))
    return JournalContents()


def recover_command(address: Address, *options: str) -> str:
    """Return the command that shows what is left of the source at *address*."""
    endpoint = ["--endpoint-url", address.endpoint] if address.endpoint else []
    return shlex.join(["shardfs", "recover", *options, *endpoint, address.url])


class Unstored(NamedTuple):
    """A journal, and *what* may be in it that is not stored, with the *way_out*."""

    what: str
    way_out: str


def find_unstored(store: Reader) -> Unstored | None:
    """Find the journal that may have published changes that are not in *store*; None if there is none."""
    try:
        slot = slot_with_changes(store)
    except SourceError as error:
        what = f"a journal that cannot be read, and may have chunks that are not committed yet ({error})"
        return Unstored(what, f"see `{recover_command(store.address)}`")
    if slot is None:
        return None
    if slot.holder is None:
        command = recover_command(slot.address) if slot.address is not None else "shardfs recover"
        way_out = f"mount it with --write, or see `{command}`"
    else:
        flush = slot.holder.flush_command()
        way_out = f"run `{flush}`" if flush is not None else f"unmount it, where {slot.holder} writes it"
    return Unstored("a journal of chunks that may not be committed yet", way_out)


def describe_damage(directory: str, damage: Damage) -> str:
    """Return one line about what is lost of the journal in *directory*, and what to do about its file."""
    path = shown(os.path.join(directory, damage.segment))
    kept = os.path.join(os.path.dirname(path), damaged_name(damage.segment))
    end = "what was published there is lost, and nothing else"
    end += f"; remove {kept} to stop this message" if kept == path else f"; it will be kept as {kept}"
    return f"{path} is damaged: {damage.nbytes} bytes at {damage.offset}: {damage.reason}; {end}"


def open_journal(path: str, disk: Syscalls = SYSCALLS) -> tuple[JournalContents, Journal]:
    """Open the journal in the directory *path*, whose lock the caller holds; returns what it contained, too.

    Raises `SourceError` if another user could have written it.
    """
    directory = open_directory(path)
    status = os.fstat(directory.fd)
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        raise SourceError(f"{shown(path)} may be written by other users, and is not used; move it away")
    contents = read_journal(directory)
    return contents, Journal(directory, disk, contents)


@asynccontextmanager
async def opened(
    source: Source, state: StateDirectory, others: Others | None = None, disk: Syscalls = SYSCALLS
) -> AsyncIterator[tuple[JournalContents, GroupCommit]]:
    """Open the journals in *state*, whose lock the caller holds, for a block.

    Yields what the journal contained, and a `GroupCommit` for it, beside those of the *others*. Raises `StoreError` if
    a journal cannot be read, or not closed at the end.
    """

    def open_both() -> tuple[JournalContents, Journal, Journal]:
        contents, journal = open_journal(state.journal, disk)
        return contents, journal, open_journal(state.conflicts, disk)[1]

    def close(*journals: Journal) -> None:
        with ExitStack() as stack:
            for journal in journals:
                stack.callback(journal.close)

    contents, journal, conflicts = await trio.to_thread.run_sync(open_both)
    try:
        yield contents, GroupCommit(source, journal, conflicts, others=others)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(close, conflicts, journal)
