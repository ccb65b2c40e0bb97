"""The log of a process that mounts or serves: in which format, and where, also after its file was renamed."""

import logging
import os
import time
from collections.abc import Callable
from errno import EPERM
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH
from typing import Final

from shardfs.dataset.statistics import Statistics
from shardfs.errors import UsageError, printable

FORMATS: Final = ("text", "json")
"""The formats of a log line."""

_AGAIN_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 1024


class Once(logging.Filter):
    """Lets each line through once a minute: a program that copies a damaged array asks for each chunk several times."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* was not logged within the last minute."""
        text, now = record.getMessage(), self._clock()
        if now - self._logged_at.get(text, float("-inf")) < _AGAIN_SECONDS:
            return False
        if len(self._logged_at) >= _MAX_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[text] = now
        return True


class OneLine(logging.Formatter):
    """Writes each message as one printable line, whatever names it contains."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is that of `logging`
        """Format *record* without characters that would begin another line."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def open_log(path: str | Path) -> int:
    """Open the log file at *path* to append to it, and return the descriptor; it is created if it is not there.

    In a directory that others may write, somebody may have put something there: then it is only a regular file without
    another name, of this user, and no link. Raises `OSError`.
    """
    directory, name = os.path.split(os.path.abspath(path))
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    if not hasattr(os, "geteuid"):  # Windows has no such permissions
        return os.open(path, flags, 0o644)
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_shared = bool(os.fstat(parent).st_mode & (S_IWGRP | S_IWOTH))
        checked = os.O_NOFOLLOW | os.O_NONBLOCK if is_shared else 0
        file = os.open(name, flags | checked, 0o600 if is_shared else 0o644, dir_fd=parent)
    finally:
        os.close(parent)
    status = os.fstat(file)
    is_ours = S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
    if is_shared and not is_ours:
        os.close(file)
        raise PermissionError(EPERM, "others may write its directory, and it is not just a file of yours", str(path))
    return file


class _LogFile(WatchedFileHandler):
    """A file that may be renamed, as logrotate does: each line is written to the file that has the name now."""

    def _open(self) -> TextIOWrapper:
        return open(open_log(self.baseFilename), "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; one that cannot be written fails no request."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


class LastError(logging.Handler):
    """Remembers the last error that was logged."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__(logging.ERROR)
        self._statistics = statistics

    def emit(self, record: logging.LogRecord) -> None:
        """Remember it, without the traceback."""
        self._statistics.note_error(record.getMessage())


def log_to(file: Path | None, level: str, form: str) -> None:
    """Log to *file*, or to standard error, everything from *level* on, in one of the `FORMATS`.

    Raises `UsageError` if the file cannot be written. Of other libraries, only warnings are logged: other messages of
    clients of remote stores contain credentials.
    """
    try:
        handler = (
            logging.StreamHandler() if file is None else _LogFile(file, encoding="utf-8", errors="backslashreplace")
        )
    except OSError as error:
        raise UsageError(f"the log file {file} cannot be written: {error.strerror}") from None
    handler.addFilter(Once())
    handler.setFormatter(
        OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s") if form == "text" else _json_formatter()
    )
    chosen = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(chosen, logging.WARNING), handlers=[handler])
    logging.getLogger("shardfs").setLevel(chosen)


def _json_formatter() -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter  # imported only here: few logs are JSON, and all commands know how

    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        timestamp="time",
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "traceback"},
    )


def is_on_a_terminal() -> bool:
    """Whether the log goes to a terminal."""
    return any(isinstance(h, logging.StreamHandler) and h.stream.isatty() for h in logging.getLogger().handlers)


def path() -> str | None:
    """Return the path of the log file; None if this process logs to standard error."""
    return next(
        (handler.baseFilename for handler in logging.getLogger().handlers if isinstance(handler, _LogFile)), None
    )
