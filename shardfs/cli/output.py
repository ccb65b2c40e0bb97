"""How commands print: messages, counts, progress, JSON for programs and text for people."""

import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, TextIO

import click

from shardfs.errors import UsageError, printable

_LINE_SECONDS: Final = 10.0
_NDRAWN: Final = 100  # how often a progress line is drawn
_UNKNOWN: Final = 10_000  # taken for a total that is unknown
_WIDTH: Final = 80
_BAR: Final = 20
_MAX_CELL: Final = 48
_ERASE: Final = "\r\x1b[K"


def complain(message: str) -> None:
    """Print a line on standard error, like that of an error."""
    line = printable(f"shardfs: {message}")
    click.echo(f"{_ERASE}{line}" if sys.stderr.isatty() else line, err=True)  # in place of the progress line


class _Complaints(logging.Handler):
    """Prints log messages in the same form as errors."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        complain(record.getMessage())


def begin() -> None:
    """Set up a process of the command line."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before this program began, and its number would go to a file
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - for the whole process
    # Commands report what is wrong with a source; only a mount and a server log it, as `service.log` sets up.
    logging.getLogger("shardfs").addHandler(logging.NullHandler())
    logging.getLogger("shardfs.bulk").addHandler(_Complaints())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the locale lacks


def show(found: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what was found: as JSON for programs, or as lines for people."""
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(map(printable, lines)))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str],
    same: Sequence[str],
    spare: Sequence[str],
) -> list[str]:
    """Return the lines of a table, no wider than the terminal if possible.

    Columns in *same* whose value is the same in several rows become a line above them. If there is no space, columns to
    *spare* are skipped, the first ones first, and named; *right* are aligned to the right. A very long first cell has
    a line of its own.
    """
    columns = {name: [_cut(row[at], at) for row in rows] for at, name in enumerate(header)}
    alike = [name for name in same if len(rows) > 1 and len(set(columns[name])) == 1]
    all_have = [f"{name} {columns.pop(name)[0]}" for name in alike if columns[name][0]]
    widths = {name: max(min(len(cell), _MAX_CELL) for cell in (name, *cells)) for name, cells in columns.items()}
    terminal = terminal_width(sys.stdout)
    skipped = []
    for name in spare:
        if terminal is not None and sum(widths.values()) + 2 * len(widths) - 2 > terminal and name in widths:
            del widths[name], columns[name]
            skipped.append(name)
    lines = [f"In all of them: {'; '.join(all_have)}"] if all_have else []
    for cells in zip(*([name, *cells] for name, cells in columns.items()), strict=True):
        first, *rest = cells
        if len(first) > _MAX_CELL:
            lines.append(first)
            first = ""
        aligned = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, (name, width) in zip((first, *rest), widths.items(), strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    if skipped:
        lines.append(f"The terminal is too narrow for {', '.join(skipped)}.")
    return lines


def _cut(cell: str, at: int) -> str:
    cell = printable(cell)
    return cell if at == 0 or len(cell) <= _MAX_CELL else f"{cell[: _MAX_CELL - 1]}…"


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Yield a file that replaces *path* at the end; if an error is raised, *path* stays as it was.

    What is no file, such as /dev/stdout or a pipe, is written to instead.
    """
    import secrets  # few commands write files, and all import this module

    target = Path(os.path.realpath(path)) if os.path.isfile(path) or not os.path.exists(path) else None
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}") if target is not None else path
    try:
        with partial.open("x" if target is not None else "w", encoding="utf-8", errors="surrogateescape") as file:
            yield file
        if target is not None:
            partial.replace(target)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        if target is not None:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how much of *total* is done, at which rate, and the time left; *total* is None if it is unknown.

    It is a line on standard error that disappears at the end, and nothing at all if that is no terminal. *unit* is a
    word for what is counted, with a plural in s. Yields a function to be called with how many more are done.
    """
    if not sys.stderr.isatty():
        yield lambda more: None
        return

    def rate(_: object) -> str:
        seconds = bar.time_per_iteration
        return f"{unit}s, {1 / seconds:,.1f}/s" if seconds else f"{unit}s"

    bar = click.progressbar(
        count() if total is None else range(total),
        length=total,
        label=label,
        show_pos=True,
        item_show_func=rate,
        update_min_steps=max((_UNKNOWN if total is None else total) // _NDRAWN, 1),
        file=sys.stderr,
        width=_BAR,
    )
    with bar:
        yield bar.update
    click.echo(f"\x1b[A{_ERASE}", nl=False, err=True)


@contextmanager
def waiting(mountpoint: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints what a command waits for while a mount ends or flushes.

    On a terminal it is one line, which disappears at the end; elsewhere one line every ten seconds, after a while.
    """
    is_terminal = sys.stderr.isatty()
    last_line = time.monotonic() - _LINE_SECONDS / 2

    def report(text: str) -> None:
        nonlocal last_line
        if is_terminal:
            _draw(text)
        elif time.monotonic() - last_line >= _LINE_SECONDS:
            last_line = time.monotonic()
            click.echo(printable(f"shardfs: {mountpoint}: {text}"), err=True)

    try:
        yield report
    finally:
        if is_terminal:
            click.echo(_ERASE, nl=False, err=True)


def _draw(text: str) -> None:
    """Replace the last line on the terminal."""
    click.echo(_ERASE + printable(text)[: (terminal_width(sys.stderr) or _WIDTH) - 1], nl=False, err=True)


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of the terminal of *stream*; None if it is no terminal."""
    return (os.get_terminal_size(stream.fileno()).columns or _WIDTH) if stream.isatty() else None
