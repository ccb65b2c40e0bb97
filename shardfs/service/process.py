"""This process: its memory, its open files, and what it reports to systemd."""

import math
import os
import socket
from contextlib import suppress
from typing import Final

_OPEN_FILES: Final = 16384

SYSTEMD_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables that systemd sets for one process only."""


def more_time(seconds: float) -> str:
    """Return the report that the start, or the end, may take so many seconds more."""
    return f"EXTEND_TIMEOUT_USEC={int(1e6 * seconds)}"


class Systemd:
    """Reports to systemd by sd_notify(3), at least every *seconds* if it watches; does nothing without `NOTIFY_SOCKET`.

    That is removed from the environment: no child process speaks for this one.
    """

    def __init__(self) -> None:
        address, usec, pid = (os.environ.pop(name, "") for name in SYSTEMD_VARIABLES)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        is_watched = usec.isdecimal() and pid in ("", str(os.getpid()))
        self.seconds = int(usec) / 2e6 if is_watched else math.inf

    def notify(self, *lines: str) -> None:
        """Send a report."""
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as line:
                line.sendto("\n".join(lines).encode(), self._address)


def resident_nbytes() -> int | None:
    """Return the resident memory in bytes; None where the system does not tell."""
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, within reason; return it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return _OPEN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
