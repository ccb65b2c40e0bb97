"""For how long what was seen of a store is believed: for some seconds, and in any case by the request that saw it.

One request of the kernel looks at the same names again and again.  It is answered by what it saw since it began, which
nobody can tell from an answer that was a little faster.
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
    """Let what is done in the block, by this task, believe what was seen since the block began."""
    token = _BEGAN.set(time.monotonic())
    try:
        yield
    finally:
        _BEGAN.reset(token)


def is_believed(seen: float, now: float, ttl: float) -> bool:
    """Whether *now* is less than *ttl* seconds after something was *seen*, or the request saw it itself."""
    return now - seen < ttl or seen >= _BEGAN.get()


def seen_at(now: float) -> float:
    """Return as of when that holds which is made *now* of what is believed: other requests may have begun since."""
    return min(now, _BEGAN.get())
