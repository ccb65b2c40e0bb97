"""How commands say things: counts, progress, JSON for programs and text for people."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from shardfs.errors import printable
from shardfs.fuse.progress import duration, size

_LINE_SECONDS: Final = 10.0
_DRAW_SECONDS: Final = 0.1
_NSAMPLES: Final = 100  # of the rate: those of the last ten seconds, or more
_WIDTH: Final = 80
_BAR: Final = 20
_ERASE: Final = "\r\x1b[K"


def counted(count: int, what: str) -> str:
    """Return *count* and *what* is counted, a word whose plural ends in s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def complain(message: str) -> None:
    """Say something on standard error, as a line like that of an error."""
    line = printable(f"shardfs: {message}")
    click.echo(f"{_ERASE}{line}" if sys.stderr.isatty() else line, err=True)  # in place of the line of `progress`


@contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how much of *total* is done, at which rate, and how long the rest takes; None if that is not known.

    It is a line on standard error that is gone at the end, and nothing at all if that is no terminal.  *unit* is what
    is counted, a word whose plural ends in s, or "B" for bytes.  Yields what is called with how much more is done.
    """
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    done, drawn = 0, time.monotonic()
    seen = deque([(drawn, done)], maxlen=_NSAMPLES)

    def draw() -> None:
        (then, before), now = seen[0], seen[-1][0]
        rate = (done - before) / (now - then) if now > then else 0.0
        amount: Callable[[float], str] = size if unit == "B" else "{:,.0f}".format
        text = f"{amount(done)} of {amount(total)}" if total is not None else amount(done)
        text += "" if unit == "B" else f" {unit}{'' if (done if total is None else total) == 1 else 's'}"
        if rate:
            text += f", {amount(rate) if rate >= 10 or unit == 'B' else f'{rate:.1f}'}/s"
            text += f", {duration((total - done) / rate)} left" if total is not None and total > done else ""
        if total:
            text = f"{100 * done // total}%  {text}"
            room = max(min(_width() - len(f"{label}    {text}"), _BAR), 0)
            filled = min(room * done // total, room)
            text = f"{'█' * filled}{'░' * (room - filled)} {text}"
        _draw(f"{label}  {text}")

    def advance(more: int) -> None:
        nonlocal done, drawn
        done += more
        now = time.monotonic()
        if now - drawn >= _DRAW_SECONDS:
            drawn = now
            seen.append((now, done))
            draw()

    draw()
    try:
        yield advance
    finally:
        click.echo(_ERASE, nl=False, err=True)


@contextmanager
def waiting(mountpoint: str) -> Iterator[Callable[[str], None]]:
    """Yield what says on standard error what a command waits for that ends, or flushes, a mount.

    On a terminal that is one line, which is gone at the end; elsewhere a line every ten seconds, after a while.
    """
    is_terminal = sys.stderr.isatty()
    said = time.monotonic() - _LINE_SECONDS / 2

    def say(text: str) -> None:
        nonlocal said
        if is_terminal:
            _draw(text)
        elif time.monotonic() - said >= _LINE_SECONDS:
            said = time.monotonic()
            click.echo(printable(f"shardfs: {mountpoint}: {text}"), err=True)

    try:
        yield say
    finally:
        if is_terminal:
            click.echo(_ERASE, nl=False, err=True)


def _draw(text: str) -> None:
    """Show a line on the terminal, in place of the one before."""
    click.echo(_ERASE + printable(text)[: _width() - 1], nl=False, err=True)


def _width() -> int:
    return os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
