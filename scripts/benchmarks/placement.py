"""Which CPU a process runs on.

A request wakes the server, and its answer wakes the client. Waking another CPU can take several times as long as all
the work for a small file, waking one's own costs next to nothing. A free scheduler keeps the two apart while the
machine is idle and puts them together while something else runs, and the rate changes by a factor of three. So the
place is fixed where one thread talks to another; zarr-python, which has many threads, may run wherever it likes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CPUS = sorted(os.sched_getaffinity(0))
"""What this process may use, before it restricts itself."""


@dataclass(frozen=True)
class Placement:
    """The CPUs of servers and of clients, and how to say it."""

    name: str
    servers: tuple[int, ...]
    clients: tuple[int, ...]

    def apply(self) -> None:
        """Make this process, and the processes that it starts, clients."""
        os.sched_setaffinity(0, self.clients)

    @contextmanager
    def starting_server(self) -> Iterator[None]:
        """Let the processes that the block starts be servers."""
        os.sched_setaffinity(0, self.servers)
        try:
            yield
        finally:
            self.apply()


FREE = Placement("any CPU", tuple(CPUS), tuple(CPUS))
TOGETHER = Placement("server and client on one CPU", (CPUS[-1],), (CPUS[-1],))
APART = Placement("server and client on different CPUs", (CPUS[-1],), tuple(CPUS[:-1])) if CPUS[1:] else TOGETHER
