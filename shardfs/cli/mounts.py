"""`shardfs mounts`: all mounts of this machine, and the daemons that are seen without one."""

import errno
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Final

import click

from shardfs.cli.options import command, json_option
from shardfs.dataset.statistics import Snapshot
from shardfs.errors import UnfinishedError, printable
from shardfs.fuse import control
from shardfs.fuse.mounts import Mount, find_daemon, is_near, list_daemons, list_mounts, pid_of
from shardfs.fuse.progress import pending

_PATIENCE: Final = 5.0
"""Seconds: for how long a daemon is waited for."""


@dataclass(frozen=True, slots=True)
class Row:
    """A mount, or a daemon that has none here; *note* is what there is to know, or to do, about its *state*."""

    mountpoint: str
    state: str
    user: str = ""
    pid: int | None = None
    access: str = ""
    view: str = ""
    pending_chunks: int | None = None
    source: str = ""
    note: str = ""


@command(
    examples="""
    shardfs mounts
    shardfs mounts --json
    """
)
@json_option
def mounts(as_json: bool) -> None:
    """List all mounts of this machine, including dead ones.

    \b
    serving    answers
    silent     does not answer: its daemon is stopped or hangs
    dead       its daemon has ended; what was pending is in the journal
    private    belongs to another user; only that user and root can ask it
    ending     is unmounted; its daemon commits what is pending
    elsewhere  is mounted in a container or in another mount namespace
    """
    rows = find_rows()
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        click.echo("\n".join(map(printable, _table(rows))) if rows else "nothing is mounted")


def find_rows() -> list[Row]:
    """Return the mounts that this process sees, and the daemons without one that it may look at."""
    mounted = list_mounts()
    with ThreadPoolExecutor(len(mounted) or 1) as threads:
        rows = list(threads.map(_row, mounted))
    known = {row.pid for row in rows}
    for pid, figures in list_daemons():
        if pid not in known:
            state = "ending" if is_near(pid) else "elsewhere"
            rows.append(_row_of(figures, state, pid, pending(figures)))
    return rows


def _row(mount: Mount) -> Row:
    try:
        figures = control.ask(mount.path, _PATIENCE)
    except UnfinishedError as error:
        state, note = "silent", str(error)
    except OSError as error:
        state = {errno.EACCES: "private", errno.ENOTCONN: "dead"}.get(error.errno or 0, "silent")
        note = control.explain(mount.path, error)
    else:
        row = _row_of(figures, "serving", pid_of(figures))
        return replace(row, mountpoint=mount.path, user=mount.owner, source=row.source or mount.source)
    access = "read-write" if mount.is_writable else "read-only"
    pid = find_daemon(mount.path) if state == "silent" else None
    return Row(mount.path, state, mount.owner, pid, access, source=mount.source, note=note)


def _row_of(figures: Snapshot, state: str, pid: int | None, note: str = "") -> Row:
    place, source = figures.mountpoint or "", figures.source or ""
    return Row(place, state, "", pid, figures.access or "", figures.view or "", figures.pending_chunks, source, note)


def _table(rows: Sequence[Row]) -> list[str]:
    header = ("MOUNTPOINT", "STATE", "USER", "PID", "ACCESS", "VIEW", "PENDING", "SOURCE")
    cells = [header, *(tuple("-" if cell in (None, "") else str(cell) for cell in _cells(row)) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip(" ") for line in cells
    ]
    for number, row in reversed(list(enumerate(rows, 2))):
        if row.note:
            lines.insert(number, f"  {row.note}")
    return lines


def _cells(row: Row) -> tuple[object, ...]:
    return (row.mountpoint, row.state, row.user, row.pid, row.access, row.view, row.pending_chunks, row.source)
