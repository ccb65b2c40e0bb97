"""Commands about mounts: `mounts` lists them, `umount` and `flush` wait for one, `stats` and `metrics` show metrics."""

import errno
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Final

import click

from shardfs.cli.options import (
    command,
    json_option,
    mounted_argument,
    optional_mounted_argument,
    optional_source_argument,
    timeout_option,
)
from shardfs.cli.output import complain, show, waiting
from shardfs.cli.sources import store_options
from shardfs.dataset.statistics import Metric, StatisticsSnapshot
from shardfs.errors import MountPointError, ShardfsError, UnfinishedError, UsageError, printable, shown_time, size
from shardfs.fuse import control
from shardfs.fuse.control import Daemon, ListedMount, find_daemon, find_mount, list_daemons, list_mounts
from shardfs.fuse.flush import flush_mount
from shardfs.fuse.mountpoint import mounted_path
from shardfs.fuse.progress import duration, pending
from shardfs.fuse.unmount import unmount
from shardfs.stores.url import StoreOptions
from shardfs.vfs.options import parse_address

_PATIENCE: Final = 5.0
"""Seconds that `mounts` waits for a daemon."""

_PERIOD_SECONDS: Final = 1.0
_HEIGHT: Final = 24
_CLEAR: Final = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class Row:
    """A mount, or a daemon whose mount is not here; *note* says what to know or do about its *state*."""

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
    shardfs mounts data.zarr
    """
)
@optional_source_argument
@store_options
@json_option
def mounts(source: str | None, store_options: StoreOptions, as_json: bool) -> None:
    """List all mounts of this machine, including dead ones; or all sessions that write SOURCE, mounts or not.

    \b
    serving    answers
    silent     does not answer: its daemon is stopped or hangs
    dead       its daemon has ended; what was pending is in the journal
    private    belongs to another user; only that user and root can ask it
    ending     is unmounted; its daemon commits what is pending
    elsewhere  is mounted in a container or in another mount namespace

    Sessions of SOURCE are mounts, Python programs, servers and commands that write it, on any host that shares the
    directory. One is `writing`; has `ended`, if it left a journal; or it is `unknown` which of both, on another host
    whose locks are not seen here. The size of a journal is more than what is pending, which only mounts are asked for.
    Of a remote SOURCE, only sessions of this machine are known.
    """
    if source is not None:
        from shardfs.cli.sessions import find_sessions, session_table  # imported only here, as it loads all of a source

        mounted = {(row.pid, row.mountpoint): row.pending_chunks for row in find_rows()}
        sessions = find_sessions(source, store_options, mounted)
        lines = session_table(sessions) if sessions else ["nobody writes it"]
        show(sessions, lines, as_json=as_json)
        return
    rows = find_rows()
    show([asdict(row) for row in rows], _table(rows) if rows else ["nothing is mounted"], as_json=as_json)


def find_rows() -> list[Row]:
    """Return the mounts that this process sees, and the daemons without one that it may look at."""
    mounted = list_mounts()
    with ThreadPoolExecutor(len(mounted) or 1) as threads:
        rows = [row for row in threads.map(_row, mounted) if row is not None]
    known = {row.pid for row in rows}
    for daemon in list_daemons():
        metrics = daemon.latest()
        if daemon.pid not in known and metrics is not None:
            state = "ending" if daemon.is_near() else "elsewhere"
            rows.append(_told(Row(metrics.mountpoint or "", state, note=pending(metrics)), metrics, daemon))
    return rows


def _row(mount: ListedMount) -> Row | None:
    """Return what is known of a mount; None if it has ended meanwhile."""
    access = "read-write" if mount.is_writable else "read-only"
    row = Row(mount.path, "serving", mount.owner, access=access, source=mount.source)
    try:
        metrics = control.ask(mount.path, _PATIENCE)
    except (OSError, UnfinishedError) as error:
        if find_mount(mount.path) is None:
            return None
        state = {errno.EACCES: "private", errno.ENOTCONN: "dead"}.get(error.errno or 0, "silent")
        daemon = find_daemon(mount.path, None) if state == "silent" else None
        note = control.explain(mount.path, error) if isinstance(error, OSError) else str(error)
        return replace(row, state=state, pid=daemon.pid if daemon is not None else None, note=note)
    return _told(row, metrics, find_daemon(mount.path, metrics))


def _told(row: Row, metrics: StatisticsSnapshot, daemon: Daemon | None) -> Row:
    """Return a row with what a daemon reports."""
    return replace(
        row,
        pid=daemon.pid if daemon is not None else None,
        access=metrics.access or "",
        view=metrics.view or "",
        pending_chunks=metrics.pending_chunks,
        source=metrics.source or row.source,
    )


def _table(rows: Sequence[Row]) -> list[str]:
    header = ("MOUNTPOINT", "STATE", "USER", "PID", "ACCESS", "VIEW", "PENDING", "SOURCE")
    cells = [header, *(tuple("-" if cell in (None, "") else str(cell) for cell in astuple(row)[:-1]) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    lines = []
    for line, note in zip(cells, ["", *(row.note for row in rows)], strict=True):
        lines.append("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip(" "))
        lines += [f"  {note}"] if note else []
    return lines


@command(
    examples="""
    shardfs umount /mnt/x
    shardfs umount --all --force
    """
)
@optional_mounted_argument
@click.option("--all", "unmounts_all", is_flag=True, help="Unmount everything that you have mounted; root: all users.")
@click.option("--force", is_flag=True, help="Unmount even while programs use it, which can then no longer do so.")
@timeout_option
def umount(mountpoint: str | None, unmounts_all: bool, force: bool, timeout: float) -> None:
    """Commit what is pending, unmount MOUNTPOINT, and return when its daemon has ended.

    Standard error reports what the command waits for, and how fast it goes. Exit status 1 means that MOUNTPOINT is
    unmounted, but not everything could be committed: the rest stays in the journal, for the next mount with --write or
    for `shardfs recover`. Exit status 6 means that the daemon does not answer, or made no progress for --timeout
    seconds: it goes on, and nothing is lost.
    """
    if unmounts_all == (mountpoint is not None):
        raise UsageError("give a MOUNTPOINT, or --all")
    if mountpoint is not None:
        with waiting(mountpoint) as report:
            notes = unmount(mountpoint, timeout, report, force=force)
        for note in notes:
            complain(f"{mountpoint}: {note}")
        return
    failures: list[ShardfsError] = []
    own = [mount.path for mount in list_mounts() if os.geteuid() in (0, mount.uid)]
    for path in dict.fromkeys(reversed(own)):  # those on top of others first
        try:
            with waiting(path) as report:
                notes = unmount(path, timeout, report, force=force)
            for note in notes:
                complain(f"{path}: {note}")
        except ShardfsError as error:
            complain(str(error))
            failures.append(error)
    if failures:
        sys.exit(max(error.exit_status for error in failures))


@command(
    examples="""
    shardfs flush /mnt/x
    """
)
@mounted_argument
@timeout_option
def flush(mountpoint: str, timeout: float) -> None:
    """Commit everything that was written to MOUNTPOINT, and return when it is in the shards.

    The command waits for as long as the daemon answers. Standard error reports what it waits for, and how fast it goes.
    With a read-only mount there is nothing to do.
    """
    with waiting(mountpoint) as report:
        flush_mount(mountpoint, timeout, report)


@command(
    examples="""
    shardfs stats /mnt/x
    shardfs stats --watch /mnt/x
    shardfs stats --json /mnt/x
    """
)
@mounted_argument
@timeout_option
@json_option
@click.option("--watch", is_flag=True, help="Repeat every second, with rates, until Ctrl-C.")
def stats(mountpoint: str, timeout: float, as_json: bool, watch: bool) -> None:
    """Show the metrics of the mount at MOUNTPOINT: pending chunks, last commit and error, requests, bytes, cache hits.

    Counters start at 0 with each mount. --json prints exact metrics, with --watch one object per line. For Prometheus
    there is `shardfs metrics`.
    """
    before = None
    with suppress(KeyboardInterrupt):
        while True:
            try:
                snapshot = control.ask(mounted_path(mountpoint), timeout)
            except OSError as error:
                raise MountPointError(f"{mountpoint} does not answer: {control.explain(mountpoint, error)}") from None
            if as_json:
                click.echo(snapshot.encode())
            else:
                _show(render(snapshot, before), watch)
            if not watch:
                return
            before = snapshot
            sys.stdout.flush()
            time.sleep(_PERIOD_SECONDS)


@command(
    examples="""
    shardfs metrics > /var/lib/prometheus/node-exporter/shardfs.prom
    shardfs metrics --listen 9464
    """
)
@optional_mounted_argument
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Serve them to Prometheus at this address until Ctrl-C or SIGTERM; a port alone means 127.0.0.1.",
)
def metrics(mountpoint: str | None, listen: str | None) -> None:
    """Print the metrics of all mounts, or of that at MOUNTPOINT, in the text format of Prometheus.

    Each metric has the label `mountpoint`. `shardfs_up` is 0 for a mount that is dead or does not answer. Mounts of
    other users are skipped; root sees all.
    """
    # Imported only here, because it loads a web server.
    from shardfs.fuse.exporter import serve_metrics
    from shardfs.service.prometheus import Latest, exposition

    path = None if mountpoint is None else mounted_path(mountpoint)

    def look() -> Latest:
        return _latest([mount for mount in list_mounts() if path in (None, mount.path)])

    if listen is None:
        click.echo(exposition(look()), nl=False)
        return
    host, port = parse_address("--listen", listen)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are threads, which would take them
    try:
        click.echo(f"metrics are at {serve_metrics(host, port, look)}")
    except OSError as error:
        raise UsageError(f"--listen: no metrics at {listen}: {error.strerror}; choose another port") from None
    sys.stdout.flush()
    signal.sigwait(ends)


def _latest(mounted: Sequence[ListedMount]) -> dict[str, StatisticsSnapshot | None]:
    """Return the metrics of mounts, asked at the same time; None for one that does not answer."""

    def ask(mount: ListedMount) -> StatisticsSnapshot | None:
        with suppress(OSError, UnfinishedError):
            return control.ask(mount.path, _PATIENCE)
        return None

    own = {mount.path: mount for mount in mounted if os.geteuid() in (0, mount.uid)}
    with ThreadPoolExecutor(len(own) or 1) as threads:
        return dict(zip(own, threads.map(ask, own.values()), strict=True))


def _show(lines: list[str], watch: bool) -> None:
    if watch and sys.stdout.isatty():
        height = os.get_terminal_size(sys.stdout.fileno()).lines or _HEIGHT
        click.echo(_CLEAR + "\n".join(lines[: height - 1]))
    else:
        click.echo("\n".join([*lines, ""] if watch else lines))


def render(snapshot: StatisticsSnapshot, before: StatisticsSnapshot | None = None) -> list[str]:
    """Return the metrics as text lines, without counters that are 0.

    Rates are relative to the snapshot *before*.
    """
    earlier = {} if before is None else dict(before.metrics())
    seconds = 0.0 if before is None else snapshot.uptime_seconds - before.uptime_seconds
    lines = []
    for metric, value in snapshot.metrics():
        name = metric.name.replace("_timestamp_seconds", "_at").removesuffix("_seconds").replace("_", " ")
        old = earlier.get(metric)
        if isinstance(value, Mapping):
            olds = old if isinstance(old, Mapping) else {}
            lines += [f"{name}:"] if value else []
            lines += [_line(metric, f"  {label}", value[label], olds.get(label), seconds) for label in value]
        elif metric.kind == "text":
            lines.append(f"{name:<26}{value}")
        elif value or metric.kind != "counter":
            lines.append(_line(metric, name, value, old, seconds))
    return [printable(line) for line in lines]


def _line(metric: Metric, label: str, value: Any, old: Any, seconds: float) -> str:  # noqa: ANN401 - a number
    line = f"{label:<26}{_shown(metric, value):>20}"
    if metric.kind == "counter" and seconds > 0:
        line += f"{_shown(metric, round((value - (old or 0)) / seconds)):>14}/s"
    return line


def _shown(metric: Metric, value: float) -> str:
    match metric.unit:
        case "bytes":
            return size(value)
        case "seconds":
            return duration(value)
        case "time":
            return shown_time(value)
    return f"{value:,}"
