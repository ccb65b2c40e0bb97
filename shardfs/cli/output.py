"""How commands say things: counts, bars, JSON for programs and text for people."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click


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
