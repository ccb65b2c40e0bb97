"""A write-ahead log as many tasks use it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import trio

from shardfs.dataset.quick_lock import QuickLock
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Payload

IN_LOOP_NBYTES: Final = 2**20
"""Up to this size a payload goes to the page cache in about the time that a thread takes to begin and to end."""

T = TypeVar("T")


class SharedLog:
    """A write-ahead log of which one task at a time changes something, and which they make durable together.

    *appending* is held around each change, and around nothing that waits for a store.
    """

    def __init__(self, wal: WriteAheadLog) -> None:
        self.wal = wal
        self.appending = QuickLock()
        self._syncing: trio.Event | None = None

    async def append(self, append: Callable[[WriteAheadLog], T], nbytes: int = 0) -> T:
        """Return what *append* makes of the log, to which it writes about *nbytes* bytes."""
        async with self.appending:
            return await trio.to_thread.run_sync(append, self.wal) if nbytes > IN_LOOP_NBYTES else append(self.wal)

    async def sync(self) -> None:
        """Make durable what was appended so far; those who ask at the same time share one sync."""
        target = self.wal.last_sequence
        while self.wal.synced_sequence < target:
            if self._syncing is not None:
                await self._syncing.wait()
                continue
            self._syncing = trio.Event()
            try:
                await trio.to_thread.run_sync(self.wal.sync)
            finally:
                self._syncing.set()
                self._syncing = None

    async def release(self, sequences: Iterable[int]) -> None:
        """Note that records need not be remembered any more."""
        if not self.wal.has_vanished:
            async with self.appending:
                await trio.to_thread.run_sync(self.wal.release, sequences)

    async def carry_forward(self, pending: Callable[[], Mapping[int, Payload]]) -> None:
        """Free the log of its oldest segment; *pending* tells what is read back from there, by sequence."""
        async with self.appending:
            await trio.to_thread.run_sync(self.wal.carry_forward, pending())
