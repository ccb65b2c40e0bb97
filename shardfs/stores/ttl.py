"""The TTL of cached answers; within the request that obtained them, they are always valid.

A request of the kernel looks at the same names several times: what it saw itself counts as fresh.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_BEGAN: Final = ContextVar("_BEGAN", default=math.inf)

_PARTS_SECONDS: Final = 10.0


def begin_request() -> None:
    """Let this task trust what is cached from now on, until it begins another request."""
    _BEGAN.set(time.monotonic())


def end_request() -> None:
    """Let this task trust nothing beyond its TTL, until it begins another request."""
    _BEGAN.set(math.inf)


@contextmanager
def part_of_request(now: float) -> Iterator[None]:
    """Let the block be part of the request of this task, or, where none is under way, one that begins *now*.

    What depends on many cached answers, which depend on each other, would else look at the same names again and again.
    """
    before = _BEGAN.get()
    token = _BEGAN.set(min(now, before))
    try:
        yield
    finally:
        _BEGAN.reset(token)


class InParts:
    """What is done in parts by several requests of the kernel, as a directory is listed: all see the same answers.

    Without a TTL, each part would else list the whole directory again. Answers are asked for again after
    `_PARTS_SECONDS`: a program may take any time between two parts.
    """

    def __init__(self, now: float) -> None:
        self._began = derived_at(now)
        self._answered: float | None = None

    @contextmanager
    def part(self, clock: Callable[[], float]) -> Iterator[None]:
        """Let the block be the next part."""
        if self._answered is not None and clock() - self._answered >= _PARTS_SECONDS:
            self._began, self._answered = clock(), None
        with part_of_request(self._began):
            yield
        if self._answered is None:
            self._answered = clock()


def within_ttl(cached: float, now: float, ttl: float) -> bool:
    """Whether an answer *cached* at a time may be used *now*."""
    return now - cached < ttl or cached >= _BEGAN.get()


def derived_at(now: float) -> float:
    """Return the timestamp for data derived *now* from cached state, which may be as old as the request."""
    return min(now, _BEGAN.get())
