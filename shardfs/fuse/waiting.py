"""Waiting for the kernel's next request without going to sleep at once.

pyfuse3 takes a lock and waits for its descriptor through trio: two passes of the event loop and three system calls for
each request, and waking from sleep costs more than all of that. A client that reads files sends the next request as
soon as it has an answer. So a free lock is taken directly, and the descriptor is polled for some 50 µs, letting others
run in between, and then for up to a millisecond asleep, before the event loop takes over. Nothing else in the process
runs during that millisecond, so it is only done while no handler is suspended, and at most `_BURST` times in a row.
"""

import os
import select
from collections.abc import Callable
from typing import Any, Final

import pyfuse3
import trio

from shardfs.stores.parallel import QuickLock

_LOOKS: Final = 40
_MOMENT_MS: Final = 1
_BURST: Final = 64


class _Lowlevel:
    """`trio.lowlevel` with a `wait_readable` that polls first while *is_idle* says that no handler is suspended."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._poll: select.poll | None = None  # of the only descriptor that is served
        self._in_a_row = 0

    async def wait_readable(self, fd: int) -> None:
        """Wait until *fd* is readable."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
        if self._in_a_row < _BURST and self._is_idle() and _look(self._poll):
            self._in_a_row += 1
            return
        self._in_a_row = 0
        await trio.lowlevel.wait_readable(fd)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever trio has under this name
        return getattr(trio.lowlevel, name)


def _look(poll: select.poll) -> bool:
    """Return whether there is something to read, now or soon."""
    for _ in range(_LOOKS):
        if poll.poll(0):
            return True
        os.sched_yield()
    return bool(poll.poll(_MOMENT_MS))


class _Trio:
    """`trio`, with these two replacements."""

    Lock = QuickLock

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self.lowlevel = _Lowlevel(is_idle)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever trio has under this name
        return getattr(trio, name)


def look_before_sleeping(is_idle: Callable[[], bool]) -> None:
    """Make pyfuse3 wait like this; it allows its `trio` to be replaced, as its own `pyfuse3.asyncio` does."""
    pyfuse3.trio = _Trio(is_idle)  # type: ignore[attr-defined]
