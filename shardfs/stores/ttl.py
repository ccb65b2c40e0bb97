"""The TTL of cached answers: for how many seconds they hold, and always for the request that obtained them.

One request of the kernel looks at the same names again and again: what it saw itself since it began is fresh to it.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_BEGAN: Final = ContextVar("_BEGAN", default=math.inf)


@contextmanager
def one_request() -> Iterator[None]:
    """Let this task trust, in the block, what was cached since the block began."""
    token = _BEGAN.set(time.monotonic())
    try:
        yield
    finally:
        _BEGAN.reset(token)


def within_ttl(cached: float, now: float, ttl: float) -> bool:
    """Whether what was *cached* at a time may be used *now*."""
    return now - cached < ttl or cached >= _BEGAN.get()


def derived_at(now: float) -> float:
    """Timestamp for data derived *now* from cached state, which may be as old as the request."""
    return min(now, _BEGAN.get())
