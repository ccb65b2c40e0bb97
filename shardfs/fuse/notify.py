"""What systemd is told of a mount, by sd_notify(3): that it answers, is alive, what is pending, and that it ends.

Nothing is told where nobody asked to be, by `NOTIFY_SOCKET`.
"""

import os
import socket
from contextlib import suppress
from typing import Final

import trio

from shardfs.fuse.figures import Figures
from shardfs.fuse.progress import Progress

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What systemd sets, for one process only."""

_SECONDS: Final = 10.0
"""How often it is told something."""
_MORE_TIME: Final = f"EXTEND_TIMEOUT_USEC={int(3e6 * _SECONDS)}"


class Notifier:
    """The line to systemd.  It is taken out of the environment: no process of ours speaks for another."""

    def __init__(self) -> None:
        address, usec, pid = (os.environ.pop(name, "") for name in VARIABLES)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        is_watched = usec.isdecimal() and pid in ("", str(os.getpid()))
        self._seconds = min(_SECONDS, int(usec) / 2e6) if is_watched else _SECONDS
        self._more: tuple[str, ...] = (_MORE_TIME,)

    def ready(self) -> None:
        """Say that the mount answers."""
        self._more = ()
        self._say("READY=1")

    def stopping(self) -> None:
        """Say that the mount ends, which takes as long as the commit does."""
        self._more = (_MORE_TIME,)
        self._say("STOPPING=1", _MORE_TIME)

    async def run(self, figures: Figures) -> None:
        """Say again and again that the event loop is alive, and what is pending; ask for time at both ends."""
        progress = Progress()
        while self._address:
            self._say(f"STATUS={progress.tell(figures.latest)}", "WATCHDOG=1", *self._more)
            await trio.sleep(self._seconds)

    def _say(self, *lines: str) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as line:
            line.sendto("\n".join(lines).encode(), self._address)
