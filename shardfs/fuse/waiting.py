"""Waiting for the kernel's next request without going to sleep at once.

pyfuse3 takes a lock and waits for its descriptor through trio: two passes of the event loop and three system calls for
each request, and waking from sleep costs more than all of that. A client that reads files sends the next request as
soon as it has an answer. So a free lock is taken directly, and the descriptor is polled for some 50 µs, letting other
processes run in between, and then for up to a millisecond asleep, before the event loop takes over. Nothing else in the
process runs meanwhile, so it is only done while no handler is suspended: other tasks have a turn after each `_TURN`
requests, and after `_BURST` in a row the event loop waits.
"""

import os
import select
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import pyfuse3
import trio

_LOOKS: Final = 40
_MOMENT_MS: Final = 1
_TURN: Final = 8
_BURST: Final = 64


class _ReadLock:
    """The lock of the workers that read requests; whoever comes first after it is released takes it.

    There are always two workers: one answers, and one waits for the lock. Handed over, the lock would change between
    them with each request, by a pass of the event loop. So the one that answers takes it again, if it did not have to
    wait; the other takes it as soon as the first is suspended.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._waiting = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        while self._is_held:
            await self._waiting.park()
        self._is_held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_held = False
        if self._waiting:
            self._waiting.unpark()


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
        if self._in_a_row % _TURN == _TURN - 1:
            await trio.lowlevel.checkpoint()
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

    Lock = _ReadLock

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self.lowlevel = _Lowlevel(is_idle)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever trio has under this name
        return getattr(trio, name)


def look_before_sleeping(is_idle: Callable[[], bool]) -> None:
    """Make pyfuse3 wait like this; it allows its `trio` to be replaced, as its own `pyfuse3.asyncio` does."""
    pyfuse3.trio = _Trio(is_idle)  # type: ignore[attr-defined]
