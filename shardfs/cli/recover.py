"""`shardfs recover`: what killed mounts and other programs left, and its repair."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import click
import trio

from shardfs import errors
from shardfs.cli.options import command, json_option, open_checked, single_writer_option, store_options
from shardfs.cli.output import counted
from shardfs.dataset.maintenance.repair import TornShard, find_torn, repair
from shardfs.dataset.slots import Slot, all_slots, hold, kept_files, slots_of
from shardfs.dataset.source import Source
from shardfs.dataset.state import StateDirectory
from shardfs.dataset.wal.reading import LogContents
from shardfs.dataset.wal.records import Change, Erase, Put, Shrink
from shardfs.dataset.wal.recovery import (
    Conflict,
    OpenLogs,
    Recovery,
    classify,
    describe,
    describe_change,
    describe_damage,
    finish_shrink,
    opened,
    read_left,
    recover_command,
    replay,
    why_not,
)
from shardfs.dataset.wal.undo import Outcome, check_name, undo_commits
from shardfs.errors import ShardfsError, printable
from shardfs.stores.base import Store
from shardfs.stores.kept_files import KeptFile
from shardfs.stores.url import StoreOptions

_FOREVER = float("inf")

UNMOUNT_FIRST = "unmount first, then run `shardfs recover --apply`"
"""What to do about what a mount that runs has put aside, or was refused."""


@command(
    examples="""
    shardfs recover data.zarr
    shardfs recover --apply data.zarr
    shardfs recover
    """
)
@click.argument("source", metavar="[SOURCE]", required=False)
@store_options
@single_writer_option
@click.option("--apply", is_flag=True, help="Bring journals into the shards, apply conflicts, and repair torn shards.")
@json_option
def recover(source: str | None, store_options: StoreOptions, single_writer: bool, apply: bool, as_json: bool) -> None:
    """Show what a killed mount, or another program that was killed, left in SOURCE; repair it with --apply.

    A journal holds chunks that were written through a mount and are not in their shards yet. Those that do not fit what
    is stored now are conflicts, which only --apply applies. A torn shard, which nothing can read, is cut back to its
    last valid index if that has a checksum; what is cut off is kept in a file below .shardfs/torn. Exit status 1 if
    something is left that cannot be repaired, or is not repaired yet.

    Journals of s3:// sources are on the machine that wrote, and so are files that could not be stored. Look at what is
    listed before --apply: it applies all conflicts and stores all those files, in place of what is there by then. To
    discard a file, remove it first. Without SOURCE what is on this machine is listed, each with the command that brings
    it home; the journals that a mount uses are its own business, its conflicts and files have to wait for its end.
    """
    if source is not None:
        work = partial(recover_source, single_writer=single_writer)
        report = trio.run(work, open_checked(source, store_options), apply)
    elif apply:
        raise errors.UsageError("--apply needs a SOURCE; without it, `shardfs recover` lists those with a journal here")
    else:
        report = recover_host()
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.render(), nl=as_json)
    if report.is_left:
        sys.exit(1)


@dataclass
class RecoveryReport:
    """What was found, and what became of it; *is_left*: something is not as it should be still."""

    lines: list[str] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    is_left: bool = False

    def add(self, kind: str, line: str, *, left: bool, **details: Any) -> None:  # noqa: ANN401 - for JSON
        """Take in one finding."""
        self.lines.append(line)
        self.items.append({"kind": kind, "message": line, "left": left, **details})
        self.is_left |= left

    def as_dict(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {"left": self.is_left, "findings": self.items}

    def render(self) -> str:
        """Return the report for people."""
        lines = self.lines or ["nothing to recover"]
        return "\n".join(map(printable, lines)) + "\n"


async def recover_source(store: Store, apply: bool, *, single_writer: bool = False) -> RecoveryReport:
    """Find journals and torn shards, and with *apply* bring the former into the store and repair the latter.

    Of a source that is no directory of this machine the journals are those of this machine that no mount uses.
    *single_writer*: the user says that nobody else writes to the source meanwhile.
    """
    source = Source.of(store, ttl=_FOREVER)
    report = RecoveryReport()
    for slot in slots_of(store):
        if not apply or slot.holder is not None:
            for file in kept_files(slot.state, in_use=slot.holder is not None):
                _report_file(file, f"not stored: {file}; to discard it, remove {file.path}", report, left=True)
        if slot.holder is not None and slot.holder.is_elsewhere:
            line = (
                f"slot {slot.number} is of {slot.holder}, which may be running; if that host is gone for good, remove "
                f"{slot.state.lock}"
            )
            report.add(
                "slot",
                line,
                left=slot.state.has_journal(),
                slot=slot.number,
                pid=slot.holder.pid,
                host=slot.holder.host,
            )
        elif slot.holder is not None:
            line = f"slot {slot.number} is in use by {slot.holder}, which brings into the shards what is in its journal"
            is_left = bool(kept_files(slot.state, in_use=True))
            try:
                is_left |= await _show_aside(source, slot.state, report)
            except ShardfsError as error:
                report.add("journal", f"{slot.state.conflicts}: {error}", left=True)
            if is_left:
                line += f", but not what is listed above: {UNMOUNT_FIRST}"
            report.add("slot", line, left=is_left, slot=slot.number, pid=slot.holder.pid, host=slot.holder.host)
        elif slot.address is None:
            line = f"{slot.state.root} does not say that it is of {store.address}; move it away"
            report.add("slot", line, left=True, slot=slot.number, directory=slot.state.root)
        elif not apply:
            try:
                await _show_journals(source, slot.state, report)
            except ShardfsError as error:
                report.add("journal", f"{slot.state.journal}: {error}", left=True)
    if not apply:
        async for torn in find_torn(source):
            await _report_torn(source, torn, None, report)
        return report
    with hold(store) as claim:
        await store.start_writing(claim.state.root, single_writer=single_writer)
        is_read = True
        for state in claim.directories:
            try:
                await _apply_journals(source, state, report)
            except ShardfsError as error:
                report.add("journal", f"{state.journal}: {error}", left=True)
                is_read = False
        await _store_files(store, kept_files(claim.state), report)
        if not is_read:  # it may know what is torn better than the shards do
            return report
        async for torn in find_torn(source):
            await _report_torn(source, torn, claim.state, report)
    return report


async def _apply_journals(source: Source, state: StateDirectory, report: RecoveryReport) -> None:
    try:
        await _apply_sound(source, state, report)
    finally:  # by the names under which damaged segments are kept now
        _report_damage(state, report)


async def _apply_sound(source: Source, state: StateDirectory, report: RecoveryReport) -> None:
    with opened(source, state) as journals:
        recovery = await replay(source, journals.contents, journals.commits)
        _report_commits(recovery, report, applied=True)
        failure = await _flush(journals)
        brought = len(recovery.pending) - journals.commits.npending
        if brought > 0:
            report.add("pending", f"{brought} chunks were brought into their shards", left=False)
        latest: dict[tuple[object, ...], Change | Shrink] = {}
        superseded = []
        for record in read_left(state.conflicts).records:
            if isinstance(record, Put | Erase | Shrink):
                coords = record.shape if isinstance(record, Shrink) else record.coords
                key = (record.path, isinstance(record, Shrink), coords)
                before = latest.pop(key, None)
                superseded += [before.sequence] if before is not None else []
                latest[key] = record
        applied = []
        for change in sorted(latest.values(), key=lambda change: not isinstance(change, Shrink)):
            conflict = await _apply_conflict(source, journals, change)
            if conflict is None:
                applied.append(change.sequence)
                report.add("conflict", f"applied: {describe(Conflict(change, 'as it was published'))}", left=False)
            else:
                report.add("conflict", f"cannot be applied: {describe(conflict)}", left=True)
        failure = await _flush(journals) or failure
        if failure is not None:
            report.add("pending", f"not all of the journal is in the shards: {failure}", left=True)
        await journals.commits.log.sync()  # what was put aside is forgotten when the journal has it durably
        journals.conflicts.release(sorted(superseded + applied))


async def _flush(journals: OpenLogs) -> ShardfsError | None:
    """Commit what is pending; returns what keeps some of it from being committed."""
    try:
        await journals.commits.flush()
    except ShardfsError as error:
        return error
    return None


async def _apply_conflict(source: Source, journals: OpenLogs, change: Change | Shrink) -> Conflict | None:
    """Make a change that was put aside pending again, whatever the chunk is now; returns why that cannot be."""
    try:
        check_name(change.path)
        if isinstance(change, Shrink):
            await finish_shrink(source, journals.commits, change)
            return None
        array = await source.hierarchy.array(change.path)
        if array is None:
            return Conflict(change, "there is no such array any more")
        if array.fingerprint != change.fingerprint:
            return Conflict(change, "the metadata of the array has changed")
        if len(change.coords) != array.grid.ndim or not array.grid.contains(change.coords):
            return Conflict(change, "it lies outside the array now")
        entry = await array.stored_entry(change.coords)
    except ShardfsError as error:
        return Conflict(change, str(error))
    record = journals.journal.copy(replace(change, superseded=entry))
    commits = journals.commits
    commits.add(commits.queue(array.layout, array.grid.locate(change.coords).shard), record)
    return None


async def _store_files(store: Store, files: Sequence[KeptFile], report: RecoveryReport) -> None:
    """Store files that were kept, those that were written first before the others, whatever has their names now.

    What their own host has stored a later version of is left alone.
    """
    for kept in files:
        if kept.is_superseded:
            _report_file(kept, f"not stored: {kept}; to discard it, remove {kept.path}", report, left=True)
            continue
        try:
            await store.make_directories(kept.key.rpartition("/")[0])
            file = await store.create(kept.key, 0o644, exclusive=False)
            try:
                await file.truncate(0)
                for offset, piece in kept.pieces():
                    await file.write(offset, piece)
                await file.sync()
            finally:
                await file.close()
        except ShardfsError as error:
            _report_file(kept, f"cannot be stored: {kept.key}, which stays in {kept.path}: {error}", report, left=True)
        else:
            kept.remove()
            _report_file(kept, f"stored: {kept.key}, as it was written", report, left=False)


def _report_file(file: KeptFile, line: str, report: RecoveryReport, *, left: bool) -> None:
    report.add("file", line, left=left, key=file.key, path=file.path, nbytes=file.nbytes)


async def _show_journals(source: Source, state: StateDirectory, report: RecoveryReport) -> None:
    _report_damage(state, report)
    contents = read_left(state.journal)
    recovery = await classify(source, contents, await undo_commits(source, contents, apply=False))
    _report_commits(recovery, report, applied=False)
    for _, change in recovery.pending:
        what = "new bytes" if isinstance(change, Put) else "removal"
        report.add("pending", f"journal: {what} of chunk {_name(change)}", left=True)
    for conflict in recovery.conflicts:
        report.add("conflict", f"conflict: {describe(conflict)}", left=True)
    for shrink in recovery.shrinks:
        report.add("pending", f"journal: {describe_change(shrink)}", left=True)
    await _show_aside(source, state, report)


async def _show_aside(source: Source, state: StateDirectory, report: RecoveryReport) -> bool:
    """Name the changes that were put aside; returns whether there are any."""
    records = [record for record in read_left(state.conflicts).records if isinstance(record, Put | Erase | Shrink)]
    for record in records:
        reason = await why_not(source, record) or "it fits what is stored now"
        line = f"put aside: {describe(Conflict(record, reason))}; `shardfs recover --apply` applies it"
        report.add("conflict", line, left=True)
    return bool(records)


async def _report_torn(source: Source, torn: TornShard, state: StateDirectory | None, report: RecoveryReport) -> None:
    """Report a torn shard, and repair it if there is a directory to write in, *state*."""
    if torn.stop is None:
        report.add("torn", f"torn: {torn.key}: {torn.reason}", left=True, shard=torn.key)
        return
    encode = torn.array.layout.key_encoding.encode
    lost = [encode(coords) for coords in torn.lost]
    back = [encode(coords) for coords in torn.changed if coords not in set(torn.lost)]
    told = "".join(f"; {what}: {', '.join(names)}" for what, names in (("lost", lost), ("rolled back", back)) if names)
    told = told or "; which chunks had newer versions in them cannot be told"
    details = {"shard": torn.key, "stop": torn.stop, "tail_nbytes": torn.tail_nbytes, "lost": lost, "rolled_back": back}
    if state is None:
        line = f"torn: {torn.key}: its last {torn.tail_nbytes:,} bytes can be cut off{told}"
        report.add("torn", line, left=True, **details)
        return
    try:
        kept = await repair(source, torn, state.torn_key)
    except ShardfsError as error:
        report.add("torn", f"torn: {torn.key}: not repaired: {error}", left=True, **details)
        return
    if source.store.root is None:
        kept = os.path.join(state.root, kept)
    line = f"repaired: {torn.key}: its last {torn.tail_nbytes:,} bytes are in {kept} now{told}"
    report.add("torn", line, left=False, kept=kept, **details)


def _report_commits(recovery: Recovery, report: RecoveryReport, *, applied: bool) -> None:
    for undo, outcome, reason, _ in recovery.commits:
        if outcome is Outcome.TORN:
            line = f"{'taken back' if applied else 'torn by a commit that can be taken back'}: {undo.key}"
            report.add("commit", line, left=not applied, shard=undo.key)
        elif outcome is Outcome.UNCLEAR:
            line = f"{undo.key}: the commit that was under way is left as it is: {reason}"
            report.add("commit", line, left=True, shard=undo.key)


def _report_damage(state: StateDirectory, report: RecoveryReport) -> None:
    for directory in (state.journal, state.conflicts):
        for damage in read_left(directory).damage:
            if not damage.is_torn:
                report.add("journal", describe_damage(directory, damage), left=True, segment=damage.segment)


def _name(change: Change) -> str:
    return f"{'/'.join(map(str, change.coords))} of {change.path or 'the array'}"


@dataclass(frozen=True, slots=True)
class _Held:
    """What a slot holds: *chunks* of *nbytes* bytes that are not in their shards, *conflicts*, *files* not stored."""

    chunks: int
    nbytes: int
    conflicts: int
    files: int
    is_damaged: bool

    @classmethod
    def of(cls, slot: Slot) -> "_Held":
        contents, aside = read_left(slot.state.journal), read_left(slot.state.conflicts)
        changes, files = _latest(contents), kept_files(slot.state, in_use=slot.holder is not None)
        nbytes = sum(change.payload.nbytes for change in changes if isinstance(change, Put))
        is_damaged = any(not damage.is_torn for found in (contents, aside) for damage in found.damage)
        nconflicts = len(_latest(aside)) + sum(isinstance(record, Shrink) for record in aside.records)
        return cls(len(changes), nbytes, nconflicts, len(files), is_damaged)

    def __str__(self) -> str:
        parts = [
            f"{counted(self.chunks, 'chunk')} of {counted(self.nbytes, 'byte')} not in their shards yet",
            *([counted(self.conflicts, "conflict")] if self.conflicts else []),
            *([f"{counted(self.files, 'file')} not stored"] if self.files else []),
            *(["damage in the journal"] if self.is_damaged else []),
        ]
        return ", ".join(parts)


def recover_host() -> RecoveryReport:
    """List what mounts of remote sources have, or left, on this machine; nothing is changed, and no store is asked."""
    report = RecoveryReport()
    for slot in all_slots():
        who = slot.holder
        is_elsewhere = who is not None and who.is_elsewhere
        try:
            held = _Held.of(slot)
        except ShardfsError as error:
            line = f"{slot.address or slot.state.root}, slot {slot.number}: {slot.state.journal}: {error}"
            report.add("journal", line, left=True, slot=slot.number, directory=slot.state.root)
            continue
        has_any = bool(held.chunks or held.conflicts or held.files or held.is_damaged)
        is_in_use = who is not None and not is_elsewhere
        is_left = bool(held.conflicts or held.files) if is_in_use else has_any
        if not is_left and not is_in_use:
            continue
        command = None
        if is_left and not is_in_use and slot.address is not None:
            command = recover_command(slot.address, "--apply")
        if is_elsewhere:
            end = _take_over(slot, command)
        elif who is not None:
            end = f"in use by {who}" + (f", which does not settle all of that: {UNMOUNT_FIRST}" if is_left else "")
        elif command is not None:
            end = f"to bring them home: {command}"
        else:
            end = "the directory does not say of what source it is, or was moved; move it away"
        report.add(
            "slot",
            f"{slot.address or slot.state.root}, slot {slot.number}: {held}; {end}",
            left=is_left,
            source=slot.address.url if slot.address is not None else None,
            endpoint=slot.address.endpoint if slot.address is not None else None,
            slot=slot.number,
            directory=slot.state.root,
            chunks=held.chunks,
            nbytes=held.nbytes,
            conflicts=held.conflicts,
            files=held.files,
            in_use=who is not None,
            pid=who.pid if who is not None else None,
            command=command,
        )
    return report


def _take_over(slot: Slot, command: str | None) -> str:
    """Return what to do about a slot of another host."""
    return (
        f"of {slot.holder}: if that runs, it brings them home; if not, run there, or, if that host is gone for good, "
        f"remove {slot.state.lock} and run here: {command}"
    )


def _latest(contents: LogContents) -> Sequence[Put | Erase]:
    changes = (record for record in contents.records if isinstance(record, Put | Erase))
    return list({(change.path, change.coords): change for change in changes}.values())
