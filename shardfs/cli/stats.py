"""`shardfs stats`: the figures of a mount, once or again and again."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import click

from shardfs import errors
from shardfs.cli.options import command, json_option, mounted_argument, timeout_option
from shardfs.dataset.statistics import Figure, Snapshot
from shardfs.fuse import control
from shardfs.fuse.mountpoint import mounted_path
from shardfs.fuse.progress import duration, size

_PERIOD_SECONDS: Final = 1.0
_HEIGHT: Final = 24
_CLEAR: Final = "\x1b[H\x1b[J"


@command(
    examples="""
    shardfs stats /mnt/x
    shardfs stats --watch /mnt/x
    shardfs stats --json /mnt/x
    shardfs stats --prometheus /mnt/x > /var/lib/prometheus/node-exporter/shardfs.prom
    """
)
@mounted_argument
@timeout_option
@json_option
@click.option("--prometheus", is_flag=True, help="Print the figures in the text format of Prometheus.")
@click.option("--watch", is_flag=True, help="Repeat every second, with rates, until Ctrl-C.")
def stats(mountpoint: str, timeout: float, as_json: bool, prometheus: bool, watch: bool) -> None:
    """Show the figures of the mount at MOUNTPOINT: pending chunks, last commit and error, requests, bytes, cache hits.

    Counters start at 0 with each mount. --json prints exact figures, with --watch one object per line. To let
    Prometheus scrape them, mount with --metrics.
    """
    if as_json and prometheus:
        raise errors.UsageError("--json contradicts --prometheus: give one of them")
    path = mounted_path(mountpoint)
    before = None
    with suppress(KeyboardInterrupt):
        while True:
            try:
                snapshot = control.ask(path, timeout)
            except OSError as error:
                raise errors.MountPointError(
                    f"{mountpoint} does not answer: {control.explain(mountpoint, error)}"
                ) from None
            if as_json:
                click.echo(snapshot.encode())
            elif prometheus:
                # Only here: it loads a library for a web server.
                from shardfs.fuse.metrics import exposition

                click.echo(exposition(snapshot), nl=False)
            else:
                _show(render(snapshot, before), watch)
            if not watch:
                return
            before = snapshot
            sys.stdout.flush()
            time.sleep(_PERIOD_SECONDS)


def _show(lines: list[str], watch: bool) -> None:
    if watch and sys.stdout.isatty():
        height = os.get_terminal_size(sys.stdout.fileno()).lines or _HEIGHT
        click.echo(_CLEAR + "\n".join(lines[: height - 1]))
    else:
        click.echo("\n".join([*lines, ""] if watch else lines))


def render(snapshot: Snapshot, before: Snapshot | None = None) -> list[str]:
    """Return the figures as lines for people; those of counters that are 0 are left out.

    Rates are since the snapshot *before*.
    """
    earlier = {} if before is None else {figure.name: value for figure, value in before.figures()}
    seconds = 0.0 if before is None else (snapshot.uptime_seconds or 0.0) - (before.uptime_seconds or 0.0)
    lines = []
    for figure, value in snapshot.figures():
        name = figure.name.replace("_timestamp_seconds", "_at").removesuffix("_seconds").replace("_", " ")
        old = earlier.get(figure.name)
        if figure.kind == "text":
            lines.append(f"{name:<26}{value}")
            continue
        match value, old:
            case Mapping(), _:
                lines += [f"{name}:"] if value else []
                olds = old if isinstance(old, Mapping) else {}
                lines += [_line(figure, f"  {label}", value[label], olds.get(label), seconds) for label in value]
            case float() | int(), float() | int() | None if value or figure.kind != "counter":
                lines.append(_line(figure, name, value, old, seconds))
    return [errors.printable(line) for line in lines]


def _line(figure: Figure, label: str, value: float, old: float | None, seconds: float) -> str:
    line = f"{label:<26}{_shown(figure, value):>20}"
    if figure.kind == "counter" and seconds > 0:
        line += f"{_shown(figure, round((value - (old or 0)) / seconds)):>14}/s"
    return line


def _shown(figure: Figure, value: float) -> str:
    match figure.unit:
        case "bytes":
            return size(value)
        case "seconds":
            return duration(value)
        case "time":
            return f"{datetime.fromtimestamp(value):%Y-%m-%d %H:%M:%S}"
    return f"{value:,}"
