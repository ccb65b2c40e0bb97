"""What `shardfs recover` says without a SOURCE: which journals of remote sources are on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardfs.cli.recover import UNMOUNT_FIRST, RecoveryReport
from shardfs.cli.reports import counted
from shardfs.dataset.host_state import Slot, all_slots, kept_files
from shardfs.dataset.journal import Erase, JournalContents, Put, Shrink
from shardfs.dataset.leftovers import read_left, recover_command
from shardfs.errors import ShardfsError


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


def _latest(contents: JournalContents) -> Sequence[Put | Erase]:
    changes = (record for record in contents.records if isinstance(record, Put | Erase))
    return list({(change.path, change.coords): change for change in changes}.values())
