"""What killed mounts and other programs left behind: found, and committed or repaired.

A torn shard is one that another program was writing when it was killed, and that no journal knows. If its index is at
the end and has a checksum, the shard may still contain an older index, from before the append that was cut short.
Everything that this index names is intact; what follows it is cut off, and kept in a file of its own.
"""

import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.reading import JournalContents
from shardfs.dataset.journal.records import ChunkChange, Erase, Put, Shrink
from shardfs.dataset.journal.recovery import (
    NOT_YET,
    OUTDATED,
    Conflict,
    Fits,
    Recovery,
    Stored,
    classify,
    describe_change,
    describe_damage,
    finish_shrink,
    judge_aside,
    opened,
    read_left,
    recover_command,
    replay,
)
from shardfs.dataset.journal.undo import Outcome, undo_commits
from shardfs.dataset.maintenance.others import SessionsBeside
from shardfs.dataset.maintenance.walk import Progress, among_shards, no_progress, walk_all_shards, walk_nodes
from shardfs.dataset.shard_listing import Strays
from shardfs.dataset.state.directory import PENDING, StateDirectory
from shardfs.dataset.state.holding import hold_all
from shardfs.dataset.state.sessions import session_in
from shardfs.dataset.state.slots import Life, Slot, all_slots, slots_of
from shardfs.errors import CorruptionError, ShardfsError, StaleError, counted
from shardfs.format.index import IndexLayout, ShardIndex, damaged, find_last_index
from shardfs.format.sharding import Coords, ShardingLevel
from shardfs.stores.base import Kept, Reader, Snapshot, Splice, join_key, write_all
from shardfs.stores.kept_files import KeptFile
from shardfs.stores.local.syscalls import user_name


@dataclass(frozen=True)
class TornShard:
    """A shard that cannot be read: its *snapshot*, and the *reason*.

    *stop* is where its last valid index ends; None if there is none, and *reason* says why.
    """

    array: Array
    shard: Coords
    key: str
    snapshot: Snapshot
    reason: str
    stop: int | None


@dataclass(frozen=True)
class Leftover:
    """Something that was left behind.

    *left*: it still needs attention. *key* is that of the shard or file, *path* its location on this machine, *command*
    the command that handles it. *of_many* is the message for many chunks of an array, with their number as `{}`.
    """

    kind: str
    message: str
    left: bool
    key: str | None = None
    path: str | None = None
    command: str | None = None
    of_many: str | None = None

    @classmethod
    def of_change(cls, kind: str, message: str, change: ChunkChange | Shrink, *, left: bool) -> "Leftover":
        """Return what is left of a *change*, which is `{}` in the *message*."""
        of_many = None if isinstance(change, Shrink) else message.replace("{}", describe_change(change, "{}"), 1)
        return cls(kind, message.replace("{}", describe_change(change), 1), left, of_many=of_many)


Findings = list[Leftover]


async def find_torn(source: Source, findings: Findings, progress: Progress = no_progress) -> AsyncIterator[TornShard]:
    """Yield every shard of *source* whose index cannot be read, or cannot be one; *findings* get what is no shard."""

    def others(path: str, strays: Strays) -> None:
        for key in strays.nodes:
            findings.append(Leftover("unread", f"not looked at: {key}: {among_shards(path)}", left=True, key=key))

    async for array, shard in walk_all_shards(walk_nodes(source), "looking for torn shards", progress, others=others):
        if array.grid.is_read_only:  # nobody appends to it
            continue
        key, state = array.layout.shard_key(shard), await array.shard(shard)
        level, snapshot = array.grid.levels[0], state.snapshot
        layouts = array.grid.index_layouts(shard)
        stop = None
        if isinstance(state.error, CorruptionError):
            reason = str(state.error).removeprefix(f"{key}: ")
        elif state.shard is not None and _is_no_index(level, state.shard.index):
            reason = "its index names bytes beyond its end"
        else:
            continue
        if snapshot is None:
            continue
        if level.after:
            reason += "; it cannot be repaired: it is encoded as a whole"
        elif level.index_at_start:
            reason += "; it cannot be repaired: its index is at the start, and there is only one"
        elif not level.index_codecs.checksums:
            reason += "; it cannot be repaired: its index has no checksum to recognize an older one by"
        else:
            try:
                offset = await trio.to_thread.run_sync(_search, layouts, snapshot)
            except ShardfsError as error:  # whoever writes it may take back what is torn at this moment
                reason += f"; an older index cannot be looked for: {error}"
            else:
                stop = offset + layouts[0].nbytes if offset is not None else None
                reason += "; there is no valid index in it" if stop is None else ""
        yield TornShard(array, shard, key, snapshot, reason, stop)


def _search(layouts: tuple[IndexLayout, IndexLayout | None], snapshot: Snapshot) -> int | None:
    """Return the offset of the last valid index in a shard, of whose index and inner shards these are the *layouts*."""
    layout, inner = layouts
    return find_last_index(layout, snapshot.size, snapshot.content(0, snapshot.size).read, inner)


def _is_no_index(level: ShardingLevel, index: ShardIndex) -> bool:
    """Whether the bytes of an index without a checksum cannot be an index."""
    if level.after or level.index_at_start or level.index_codecs.checksums:
        return False
    return bool(damaged(index.entries, index.shard_nbytes))


async def repair(source: Source, torn: TornShard, directory: str) -> str:
    """Cut off what follows the last valid index of a shard; returns the key in *directory* of the file that keeps it.

    Raises `StaleError` if the shard has changed since it was examined.
    """
    assert torn.stop is not None
    async with source.writable.edit(torn.key) as edit:
        if edit.snapshot is None or edit.snapshot.stat.version != torn.snapshot.stat.version:
            raise StaleError(f"{torn.key} was changed meanwhile")
        kept = join_key(directory, torn.key.replace("/", "_"))
        location = await _keep_tail(source, edit.snapshot, torn.stop, kept)
        await edit.splice(Splice((Kept(0, torn.stop),)))
    source.shards.forget(torn.array.layout, torn.shard)
    return location


async def _keep_tail(source: Source, snapshot: Snapshot, start: int, key: str) -> str:
    """Copy what follows byte *start* of a shard to a new file; returns its key."""
    directory, location = key.rpartition("/")[0], f"{key}.{secrets.token_hex(4)}"
    await source.writable.make_directories(directory)
    file = await source.writable.create(location, 0o600, exclusive=True)
    await write_all(file, snapshot.content(start, snapshot.size - start))
    await file.sync()
    await source.writable.sync_directory(directory)
    return location


_UNMOUNT: Final = "unmount first, then run `shardfs recover --apply`"


async def show_source(source: Source, findings: Findings, progress: Progress = no_progress) -> None:
    """Find journals and torn shards; for a remote source, the journals on this machine."""
    for slot in slots_of(source.store):
        await _show_slot(source, slot, findings)
    async for torn in find_torn(source, findings, progress):
        await _report_torn(source, torn, None, findings)


async def recover_source(
    source: Source, findings: Findings, single_writer: bool, progress: Progress = no_progress
) -> None:
    """Commit what is in journals, and repair torn shards; what a mount uses is only shown.

    *single_writer*: the user says that nobody else writes to the source meanwhile.
    """
    for slot in slots_of(source.store):
        if slot.holder is not None:
            await _show_slot(source, slot, findings)
    with hold_all(source.writable) as states:
        await source.writable.start_writing(states[0].root, states[0].key, single_writer=single_writer)
        is_read = True
        for state in states:
            try:
                await _apply_journals(source, state, findings)
            except ShardfsError as error:
                findings.append(_unreadable(state, error))
                is_read = False
            with suppress(ShardfsError):  # which was reported
                _report_damage(state, findings)  # by the names under which damaged segments are now kept
        for slot in slots_of(source.store):
            if slot.life is Life.DEAD and slot.state not in states and (left := slot.state.left()):
                findings.append(_of_others(source, slot, left))
                is_read = is_read and not slot.state.has_pending()
            is_read = is_read and not (slot.is_in_use and slot.state not in states and slot.state.has_pending())
        kept = [file for state in states for file in state.kept_files()]
        for file in sorted(kept, key=lambda file: file.mtime_ns):  # of several versions, the last one stays
            await _store_file(source, file, findings)
        if is_read:  # else a journal may know more about torn shards than the shards do
            async for torn in find_torn(source, findings, progress):
                await _report_torn(source, torn, states[0], findings)


async def _show_slot(source: Source, slot: Slot, findings: Findings) -> None:
    state, holder, before = slot.state, slot.holder, len(findings)
    if holder is None and slot.address is None:
        line = f"{state.root} does not name {source.store.address} as its source; move it away"
        findings.append(Leftover("slot", line, left=True, path=state.root))
        return
    for file in state.kept_files():
        findings.append(_not_stored(file))
    try:
        if holder is None or (source.store.root is not None and not holder.is_elsewhere):
            await _show_journal(source, state, findings)
        if holder is None or not holder.is_elsewhere:
            await _show_aside(source, state, findings)
    except ShardfsError as error:
        findings.append(_unreadable(state, error))
    if holder is not None:
        is_left = state.has_journal() if holder.is_elsewhere else len(findings) > before
        if source.store.root is not None and holder.host is None and not is_left:
            return  # where locks cannot be asked for, nobody is known to have it
        what = f"slot {slot.name} of {source.store.url}"
        findings.append(Leftover("slot", f"{what} is {_whose(slot, is_left)}", is_left, path=state.root))


def owners_of_leftovers(store: Reader) -> Sequence[int]:
    """Return the numbers of the other users whose ended sessions left something beside the local directory *store*."""
    slots = slots_of(store) if store.root is not None else ()
    me = os.geteuid()
    return sorted({slot.owner for slot in slots if slot.life is Life.DEAD and slot.owner != me and slot.state.left()})


def _of_others(source: Source, slot: Slot, left: Sequence[str]) -> Leftover:
    """Name what another user's session left, or what others could have put there: it is not used."""
    owner = user_name(slot.owner)
    where = f"{slot.state.root}/{slot.state.key} has {' and '.join(left)}, of {owner}"
    way_out = f"run `{recover_command(source.store.address, '--apply')}` as {owner} or root"
    if slot.owner == os.geteuid():
        way_out = "others may write there, or it has links, so it is not used; move it away"
    return Leftover("slot", f"{where}; {way_out}", left=True, path=slot.state.root)


def _unreadable(state: StateDirectory, error: ShardfsError) -> Leftover:
    message = str(error)
    return Leftover("journal", message if state.path in message else f"{state.journal}: {message}", left=True)


def _whose(slot: Slot, is_left: bool) -> str:
    """Say who has a slot, and what to do about it if something *is_left* there."""
    if slot.holder is not None and slot.holder.is_elsewhere:
        lock = slot.state.lock
        way_out = f"if that host is gone for good, remove {lock} and run this command again here"
        return f"of {session_in(slot)}; it may be running; {way_out}"
    what = f"in use by {session_in(slot)}; it commits its journal"
    if slot.holder is not None and (flush := slot.holder.flush_command()) is not None:
        what += f" (at once with `{flush}`)"
    return f"{what}, but not conflicts or refused files: {_UNMOUNT}" if is_left else what


async def _show_journal(source: Source, state: StateDirectory, findings: Findings) -> None:
    _report_damage(state, findings)
    contents = read_left(state.journal)
    recovery = await classify(source, contents, await undo_commits(source, contents))
    _report_commits(recovery, findings, "torn by a commit that can be undone", left=True)
    for change in [*(change for _, change in recovery.pending), *recovery.shrinks]:
        end = f"; {OUTDATED}" if change.subject in contents.outdated else ""
        findings.append(Leftover.of_change("pending", f"journal: {{}}{end}", change, left=True))
    for conflict, verdict in recovery.conflicts:
        findings.append(Leftover.of_change("conflict", f"conflict: {{}}: {verdict.reason}", conflict, left=True))


async def _show_aside(source: Source, state: StateDirectory, findings: Findings) -> None:
    """Report the changes in the conflict journal."""
    for change in _changes(read_left(state.conflicts)):
        verdict = await judge_aside(source, change)
        way_out = f"{state.conflicts} keeps it, and {NOT_YET}"
        if verdict.can_be_applied:
            way_out = "`shardfs recover --apply` applies it"
        line = f"put aside: {{}}: {verdict.reason}; {way_out}"
        findings.append(Leftover.of_change("conflict", line, change, left=True))


async def _apply_journals(source: Source, state: StateDirectory, findings: Findings) -> None:
    async with opened(source, state, SessionsBeside(source, state)) as (contents, commits):
        recovery = await replay(source, contents, commits)
        _report_commits(recovery, findings, "taken back", left=False)
        with suppress(ShardfsError):  # which the second attempt meets again, or not
            await commits.flush()
        brought = len(recovery.pending) - commits.npending
        if brought > 0:
            findings.append(Leftover("pending", f"committed {counted(brought, 'chunk')}", left=False))
        changes = _changes(read_left(state.conflicts))
        applied: list[ChunkChange | Shrink] = []
        for change in sorted(changes, key=lambda change: not isinstance(change, Shrink)):
            reason = await _apply_conflict(source, commits, change)
            if reason is None:
                applied.append(change)
                line = "applied: {}, as it was published"
                findings.append(Leftover.of_change("conflict", line, change, left=False))
            else:
                line = f"cannot be applied: {{}}: {reason}"
                findings.append(Leftover.of_change("conflict", line, change, left=True))
        try:
            await commits.flush()
        except ShardfsError as error:
            findings.append(Leftover("pending", f"the journal is not fully committed: {error}", left=True))
        await commits.sync_soon()  # the conflict journal forgets it only when it is durable in the journal
        commits.conflicts.release(applied)


async def _apply_conflict(source: Source, commits: GroupCommit, change: ChunkChange | Shrink) -> str | None:
    """Make a conflict pending again, whatever the chunk is now; returns why that is impossible."""
    try:
        if isinstance(change, Shrink):
            await finish_shrink(source, commits, change)
            return None
        match await judge_aside(source, change):
            case Stored():
                return None
            case Fits(array) | Conflict(array=Array() as array):
                pass
            case Conflict(reason):
                return reason
        if array.change(change.coords) is not None:
            return "a later change of the chunk is not committed yet"
        stored = await array.note(change.coords)
    except ShardfsError as error:
        return str(error)
    queue = commits.queue(array.layout, array.grid.locate(change.coords).shard)
    change = replace(change, superseded=stored)
    commits.supersede(queue, change)
    commits.add(queue, commits.journal.copy(change))
    return None


async def _store_file(source: Source, kept: KeptFile, findings: Findings) -> None:
    """Store a kept file, whatever has its name now, unless its host has stored a later version of it."""
    if kept.is_superseded:
        findings.append(_not_stored(kept))
        return
    try:
        async with source.writable.edit(kept.key) as edit:
            await edit.splice(Splice((kept,)))
    except ShardfsError as error:
        line = f"cannot be stored: {kept.key}, which stays in {kept.path}: {error}"
        findings.append(Leftover("file", line, left=True, key=kept.key, path=kept.path))
    else:
        kept.remove()
        findings.append(Leftover("file", f"stored: {kept.key}, as it was written", left=False, key=kept.key))


def _not_stored(file: KeptFile) -> Leftover:
    line = f"not stored: {file}; to discard it, remove {file.path}"
    return Leftover("file", line, left=True, key=file.key, path=file.path)


async def _report_torn(source: Source, torn: TornShard, state: StateDirectory | None, findings: Findings) -> None:
    """Report a torn shard, and repair it if there is a directory to write to, *state*."""
    what, path, is_left = f"torn: {torn.key}: {torn.reason}", None, True
    if torn.stop is not None:
        tail = f"its last {torn.snapshot.size - torn.stop:,} bytes"
        what = f"torn: {torn.key}: {tail}, behind the last valid index, can be cut off"
    if torn.stop is not None and state is not None:
        try:
            path = await repair(source, torn, state.torn_key)
        except ShardfsError as error:
            what = f"torn: {torn.key}: not repaired: {error}"
        else:
            path = path if source.store.root is not None else os.path.join(state.root, path)
            what, is_left = f"repaired: {torn.key}: {tail} are now in {path}", False
    findings.append(Leftover("torn", what, is_left, key=torn.key, path=path))


def _report_commits(recovery: Recovery, findings: Findings, torn: str, *, left: bool) -> None:
    """Report commits that were under way; torn ones are *left* to be undone."""
    for undo, outcome, reason, *_ in recovery.unfinished:
        if outcome is Outcome.TORN:
            findings.append(Leftover("commit", f"{torn}: {undo.key}", left, key=undo.key))
        elif outcome is Outcome.UNCLEAR:
            line = f"{undo.key}: the commit that was under way is left as it is: {reason}"
            findings.append(Leftover("commit", line, left=True, key=undo.key))


def _report_damage(state: StateDirectory, findings: Findings) -> None:
    for directory in (state.journal, state.conflicts):
        damage = read_left(directory).damage
        findings += [Leftover("journal", describe_damage(directory, piece), left=True) for piece in damage]


def list_slots(findings: Findings) -> None:
    """List what mounts of remote sources have, or left, on this machine; changes nothing, asks no store."""
    for slot in all_slots():
        state, holder = slot.state, slot.holder
        held = [what for what in state.left() if not slot.is_in_use or what != PENDING]
        if not held and not slot.is_in_use:
            continue
        where, command = str(slot.address or state.root), None
        if holder is not None:
            end = _whose(slot, is_left=bool(held))
        elif slot.address is None:
            end = "the directory does not name its source, or was moved; move it away"
        else:
            end = "to recover them"
        if slot.address is not None and not slot.is_in_use:
            command = recover_command(slot.address, "--apply")
            end += f": {command}"
        line = "; ".join([f"{where}, slot {slot.name}", *held, end])
        findings.append(Leftover("slot", line, bool(held), path=state.root, command=command))


def _changes(contents: JournalContents) -> list[ChunkChange | Shrink]:
    return [record for record in contents.records if isinstance(record, Put | Erase | Shrink)]
