"""Files that pass through on their way to the bucket: when they are sent, and what becomes of those that cannot be.

A file is sent when nothing has changed it for a moment, so that a temporary name that is moved at once never reaches
the bucket.  What is stored is one state of the file: what was changed while it was being sent is sent again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from shardfs.errors import ShardfsError, StaleError, StoreError, UnreachableError
from shardfs.stores.base import Content
from shardfs.stores.s3.copies import Copies, Copy
from shardfs.stores.s3.objects import ObjectStat
from shardfs.stores.s3.places import local_key

log = logging.getLogger(__name__)

IDLE_S: Final = 2.0
"""For how many seconds a file must have been left alone to be sent."""

_LOOK_S: Final = 0.5
_PARALLEL: Final = 16
_ATTEMPTS: Final = 3
_MAX_PAUSE_S: Final = 60.0


class Outbox:
    """Sends copies by *put*, which stores content under a key and returns what it replaced."""

    def __init__(self, copies: Copies, put: Callable[[str, Content], Awaitable[ObjectStat | None]]) -> None:
        self._copies = copies
        self._put = put
        self._limiter = trio.CapacityLimiter(_PARALLEL)

    async def run(self) -> None:
        """Send what is due, for as long as this is not cancelled; what fails is logged and tried again later."""
        while True:
            await self._copies.wait()
            now = self._copies.clock()
            due = [copy for copy in self._copies if now >= max(copy.changed + IDLE_S, copy.retry)]
            for copy, error in await self._send_all(due):
                if not isinstance(error, StaleError):
                    log.warning("%s is not in the bucket yet, and is tried again: %s", copy.key, error)
            await trio.sleep(_LOOK_S)

    async def flush(self) -> None:
        """Send everything that is here now; raises what keeps it from being sent."""
        waiting: Sequence[Copy] = list(self._copies)
        for _ in range(_ATTEMPTS):
            failures = await self._send_all(waiting)
            waiting = [copy for copy, error in failures if isinstance(error, StaleError)]
            if not waiting:
                break
        if failures:
            copy, error = failures[0]
            others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            raise StoreError(f"{copy.key}{others} cannot be sent, and stays on this machine: {error}")

    async def send(self, copy: Copy) -> None:
        """Send one file, if the bucket has not all of it, and let go of it if nobody has it open."""
        async with copy.lock:
            if self._copies.find(copy.key) is not copy:
                return
            if copy.is_dirty:
                nchanges = copy.nchanges
                snapshot = await self._copies.side.open(local_key(copy.key))
                replaced = await self._put(copy.key, snapshot.content(0, snapshot.size))
                copy.nsent = nchanges
                if copy.is_left and replaced is not None and replaced.mtime_ns > snapshot.stat.mtime_ns:
                    log.warning("%s of an earlier mount has replaced what was stored there since", copy.key)
                copy.is_left = False
            if not copy.is_dirty and not copy.users:
                await self._copies.settle(copy)

    async def _send_all(self, copies: Sequence[Copy]) -> Sequence[tuple[Copy, ShardfsError]]:
        """Send several files; return what failed: all others, once the bucket cannot be reached."""
        failures: list[tuple[Copy, ShardfsError]] = []
        unreachable: list[UnreachableError] = []

        async def send(copy: Copy) -> None:
            async with self._limiter:
                try:
                    if unreachable:
                        raise unreachable[0].with_traceback(None)
                    await self.send(copy)
                except ShardfsError as error:
                    if isinstance(error, UnreachableError):
                        unreachable.append(error)
                    copy.nfailures += 1
                    copy.retry = self._copies.clock() + min(2.0**copy.nfailures, _MAX_PAUSE_S)
                    failures.append((copy, error))
                else:
                    copy.nfailures = 0

        async with trio.open_nursery() as nursery:
            for copy in copies:
                nursery.start_soon(send, copy)
        return failures
