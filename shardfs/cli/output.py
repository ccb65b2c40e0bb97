"""How commands say things: counts, bars, JSON for programs and text for people."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

import click

from shardfs.errors import printable

_LINE_SECONDS: Final = 10.0
_WIDTH: Final = 80
_ERASE: Final = "\r\x1b[K"


def counted(count: int, what: str) -> str:
    """Return *count* and *what* is counted, a word whose plural ends in s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@contextmanager
def bar(length: int, label: str, file: TextIO) -> Iterator[Callable[[], None]]:
    """Show on a terminal how far a loop has come; yields what is called after each turn."""
    if not file.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=label, file=file) as bar:
        yield lambda: bar.update(1)


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
            width = os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
            click.echo(_ERASE + printable(text)[: width - 1], nl=False, err=True)
        elif time.monotonic() - said >= _LINE_SECONDS:
            said = time.monotonic()
            click.echo(printable(f"shardfs: {mountpoint}: {text}"), err=True)

    try:
        yield say
    finally:
        if is_terminal:
            click.echo(_ERASE, nl=False, err=True)
