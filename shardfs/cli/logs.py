"""Where a mount logs, and how much: the same line is not said again and again."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardfs.errors import UsageError, printable

_AGAIN_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 1024


class Once(logging.Filter):
    """Lets a line through once a minute: a program that copies a damaged array asks for each chunk several times."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* was not said within the last minute."""
        text, now = record.getMessage(), self._clock()
        if now - self._said.get(text, float("-inf")) < _AGAIN_SECONDS:
            return False
        if len(self._said) >= _MAX_REMEMBERED:
            self._said.clear()
        self._said[text] = now
        return True


class OneLine(logging.Formatter):
    """Writes each message as one printable line, whatever names of a dataset it quotes."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is that of `logging`
        """Format *record* without what would begin another line."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def log_to(file: Path | None, level: str) -> None:
    """Log to *file*, or to standard error, what is at least of *level*; raises `UsageError`.

    Of other libraries only warnings are logged: what clients of remote stores say besides has credentials in it.
    """
    try:
        handler = (
            logging.StreamHandler()
            if file is None
            else logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        )
    except OSError as error:
        raise UsageError(f"the log file {file} cannot be written: {error.strerror}") from None
    handler.addFilter(Once())
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    chosen = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(
        level=max(chosen, logging.WARNING),
        handlers=[handler],
    )
    logging.getLogger("shardfs").setLevel(chosen)
