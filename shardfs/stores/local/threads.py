"""Where the blocking calls of one local store run."""

import time
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LONG_SECONDS: Final = 0.2
_CAREFUL_SECONDS: Final = 60.0
_LOCAL_THREADS: Final = 40
_REMOTE_THREADS: Final = 256  # most of them wait


class Threads:
    """Runs blocking calls so that a slow file system does not stop the event loop.

    Calls on names and attributes take microseconds on a local disk, and a hop to a thread 65: they run in the event
    loop, but for a minute after one that took long.  On a network file system or FUSE (*is_remote*) they always run in
    threads.  They have other threads than calls on content, and no store shares its threads.
    """

    def __init__(self, *, is_remote: bool) -> None:
        self.is_remote = is_remote
        self._careful_until = -1.0
        self._names = trio.CapacityLimiter(_LOCAL_THREADS)
        self._content = trio.CapacityLimiter(_REMOTE_THREADS if is_remote else _LOCAL_THREADS)

    async def on_names(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make a call that looks at names and attributes, or changes them."""
        begun = time.monotonic()
        if self.is_remote or begun < self._careful_until:
            return await trio.to_thread.run_sync(call, *args, limiter=self._names)
        try:
            return call(*args)
        finally:
            now = time.monotonic()
            if now - begun > _LONG_SECONDS:
                self._careful_until = now + _CAREFUL_SECONDS

    async def on_content(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make a call that reads, writes, or makes durable."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._content)
