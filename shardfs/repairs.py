"""What `shardfs recover` and `shardfs compact` do, and how they say it."""

from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from shardfs.dataset.commit import carry
from shardfs.dataset.committer import Committer
from shardfs.dataset.compaction import compact, find_wasteful
from shardfs.dataset.journal import Erase, Journal, JournalContents, Put, read_journal
from shardfs.dataset.lock import StateDirectory, locked
from shardfs.dataset.pending import Change
from shardfs.dataset.recovery import Conflict, Outcome, Recovery, classify, describe, replay, settle
from shardfs.dataset.repair import TornShard, find_torn, repair
from shardfs.dataset.source import Source
from shardfs.dataset.writer import Writer
from shardfs.errors import NotFoundError, ShardfsError, SourceError, printable
from shardfs.format.sharding import Coords
from shardfs.reports import bar
from shardfs.stores.beneath import open_directory
from shardfs.stores.durable import Disk
from shardfs.stores.local import LocalStore

_FOREVER = float("inf")


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


async def recover_source(store: LocalStore, apply: bool) -> RecoveryReport:
    """Find journals and torn shards, and with *apply* bring the former into the store and repair the latter."""
    source = Source.of(store, ttl=_FOREVER)
    report = RecoveryReport()
    if apply:
        with locked(store.root) as state:
            await _apply_journals(source, state, report)
            async for torn in find_torn(source):
                await _report_torn(source, torn, state, report, apply=True)
        return report
    state = StateDirectory(store.root)
    await _show_journals(source, state, report)
    async for torn in find_torn(source):
        await _report_torn(source, torn, state, report, apply=False)
    return report


async def compact_source(store: LocalStore, threshold: float, force: bool, progress: TextIO) -> list[str]:
    """Compact the wasteful shards of a source, with a bar on *progress*; returns what was done, in lines."""
    source = Source.of(store, ttl=_FOREVER)
    lines = []
    with locked(store.root) as state:
        if state.has_pending():
            raise SourceError(f"{store.url} has a journal; run `shardfs recover --apply {store.url}` first")
        journal, conflicts = (Journal(open_directory(path), Disk()) for path in (state.journal, state.conflicts))
        writer = Writer(source, journal, conflicts)
        candidates = [candidate async for candidate in find_wasteful(source, threshold, force=force)]
        saved = count = 0
        with bar(len(candidates), "compacting", progress) as advance:
            for candidate in candidates:
                advance()
                if candidate.reason is not None:
                    lines.append(f"left as it is: {candidate.use.key}: {candidate.reason} (--force compacts it)")
                    continue
                try:
                    await compact(writer.committer, candidate)
                except ShardfsError as error:
                    lines.append(f"left as it is: {candidate.use.key}: {error}")
                    continue
                count += 1
                saved += candidate.use.dead or 0
        journal.close()
        conflicts.close()
    lines.append(f"{count} shards compacted, {saved:,} dead bytes removed")
    return lines


async def _apply_journals(source: Source, state: StateDirectory, report: RecoveryReport) -> None:
    directory, aside = open_directory(state.journal), open_directory(state.conflicts)
    contents, put_aside = read_journal(directory), read_journal(aside)
    _report_damage(contents, report)
    _report_damage(put_aside, report)
    journal, conflicts = Journal(directory, Disk(), contents), Journal(aside, Disk(), put_aside)
    committer = Writer(source, journal, conflicts).committer
    recovery = await replay(source, contents, committer)
    _report_commits(recovery, report, applied=True)
    await committer.flush()
    if recovery.pending:
        report.add("pending", f"{len(recovery.pending)} chunks were brought into their shards", left=False)
    latest: dict[tuple[str, Coords], Change] = {}
    superseded = []
    for record in read_journal(aside).records:
        if isinstance(record, Put | Erase):
            before = latest.pop((record.path, record.coords), None)
            superseded += [before.sequence] if before is not None else []
            latest[record.path, record.coords] = record
    applied = []
    for change in latest.values():
        conflict = await _apply_conflict(source, committer, journal, change)
        if conflict is None:
            applied.append(change.sequence)
            report.add("conflict", f"applied: {describe(Conflict(change, 'as it was published'))}", left=False)
        else:
            report.add("conflict", f"cannot be applied: {describe(conflict)}", left=True)
    await committer.flush()
    conflicts.finish(sorted(superseded + applied))
    journal.close()
    conflicts.close()


async def _apply_conflict(source: Source, committer: Committer, journal: Journal, change: Change) -> Conflict | None:
    """Make a change that was put aside pending again, whatever the chunk is now; returns why that cannot be."""
    try:
        array = (await source.hierarchy.node(change.path)).array
        if array is None:
            return Conflict(change, "there is no such sharded array any more")
        if array.fingerprint != change.fingerprint:
            return Conflict(change, "the metadata of the array has changed")
        if len(change.coords) != array.grid.ndim or not array.grid.contains(change.coords):
            return Conflict(change, "it lies outside the array now")
        entry = await array.stored_entry(change.coords)
    except ShardfsError as error:
        return Conflict(change, str(error))
    record = carry(journal, replace(change, superseded=entry))
    committer.add(array.arrangement, array.grid.locate(change.coords).shard, record)
    return None


async def _show_journals(source: Source, state: StateDirectory, report: RecoveryReport) -> None:
    if not state.has_journal():
        return
    recovery = Recovery()
    contents, aside = _read(state.journal), _read(state.conflicts)
    for found in (contents, aside):
        _report_damage(found, report)
    await settle(source, contents, recovery, apply=False)
    _report_commits(recovery, report, applied=False)
    await classify(source, contents, recovery)
    for _, change in recovery.pending:
        what = "new bytes" if isinstance(change, Put) else "removal"
        report.add("pending", f"journal: {what} of chunk {_name(change)}", left=True)
    for conflict in recovery.conflicts:
        report.add("conflict", f"conflict: {describe(conflict)}", left=True)
    for record in aside.records:
        if isinstance(record, Put | Erase):
            line = f"put aside: {describe(Conflict(record, 'it did not fit what was stored'))}"
            report.add("conflict", line, left=True)


def _read(directory: str) -> JournalContents:
    """Read a journal, which may not be there."""
    try:
        return read_journal(open_directory(directory))
    except NotFoundError:
        return JournalContents([], [], [], 0, 0)


async def _report_torn(
    source: Source, torn: TornShard, state: StateDirectory, report: RecoveryReport, *, apply: bool
) -> None:
    if torn.stop is None:
        report.add("torn", f"torn: {torn.key}: {torn.reason}", left=True, shard=torn.key)
        return
    encode = torn.array.arrangement.key_encoding.encode
    lost = [encode(coords) for coords in torn.lost]
    back = [encode(coords) for coords in torn.changed if coords not in set(torn.lost)]
    told = "".join(f"; {what}: {', '.join(names)}" for what, names in (("lost", lost), ("rolled back", back)) if names)
    told = told or "; which chunks had newer versions in them cannot be told"
    details = {"shard": torn.key, "stop": torn.stop, "tail_nbytes": torn.tail_nbytes, "lost": lost, "rolled_back": back}
    if not apply:
        line = f"torn: {torn.key}: its last {torn.tail_nbytes:,} bytes can be cut off{told}"
        report.add("torn", line, left=True, **details)
        return
    try:
        kept = await repair(source, torn, state.torn_key)
    except ShardfsError as error:
        report.add("torn", f"torn: {torn.key}: not repaired: {error}", left=True, **details)
        return
    line = f"repaired: {torn.key}: its last {torn.tail_nbytes:,} bytes are in {kept} now{told}"
    report.add("torn", line, left=False, kept=kept, **details)


def _report_commits(recovery: Recovery, report: RecoveryReport, *, applied: bool) -> None:
    for intent, outcome in recovery.commits:
        if outcome in (Outcome.TORN, Outcome.HEAD_TORN):
            line = f"{'taken back' if applied else 'torn by a commit that can be taken back'}: {intent.key}"
            report.add("commit", line, left=not applied, shard=intent.key)
        elif outcome is Outcome.UNCLEAR:
            line = f"{intent.key} is not readable, and not as the journal expects it"
            report.add("commit", line, left=True, shard=intent.key)


def _report_damage(contents: JournalContents, report: RecoveryReport) -> None:
    for damage in contents.damage:
        if not damage.is_torn:
            line = f"{damage.segment} is damaged: {damage.nbytes} bytes at {damage.offset}: {damage.reason}"
            report.add("journal", line, left=True, segment=damage.segment)


def _name(change: Change) -> str:
    return f"{'/'.join(map(str, change.coords))} of {change.path or 'the array'}"
