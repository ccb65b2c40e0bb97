"""Who has a lock: what a process writes into it, so that others know whether it runs where locks do not tell."""

import os
import socket
from contextlib import suppress
from typing import Final, NamedTuple


class Holder(NamedTuple):
    """Who has a lock, as far as that is known: a process, told from others of its number by boot and start time."""

    pid: int | None = None
    host: str | None = None
    boot: str | None = None
    started: str | None = None

    def __str__(self) -> str:
        if self.host is None:
            return "another process"
        return (
            f"process {self.pid} on {self.host}" if self.pid is not None else f"a process on {self.host} that has ended"
        )

    @classmethod
    def own(cls) -> "Holder":
        """Return what this process is to others."""
        return cls(os.getpid(), socket.gethostname(), _boot(), _start_of(os.getpid()))

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is of another host, so that nobody here can tell whether it lives."""
        return self.host is not None and self.host != socket.gethostname()

    def lives_here(self) -> bool:
        """Whether it is another process of this host that runs."""
        if self.pid in (None, os.getpid()) or self.is_elsewhere or self.boot is None or self.boot != _boot():
            return False
        return self.started is not None and self.started == _start_of(self.pid)


NOBODY: Final = Holder()


def _boot() -> str | None:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return None


def _start_of(pid: int | None) -> str | None:
    """Return when a process began, in a clock of its own; None if it does not run."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        state, *fields = file.read().rpartition(b")")[2].split()
        return fields[18].decode() if state not in (b"Z", b"X") else None  # which nobody has waited for yet
    return None
