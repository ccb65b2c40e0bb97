"""A write-ahead log as many tasks use it."""

from collections.abc import Iterable

import trio

from shardfs.dataset.quick_lock import QuickLock
from shardfs.dataset.wal.log import WriteAheadLog


class SharedLog:
    """A write-ahead log of which one task at a time changes something, and which they make durable together.

    *appending* is held around each change, and around nothing that waits for a store.
    """

    def __init__(self, wal: WriteAheadLog) -> None:
        self.wal = wal
        self.appending = QuickLock()
        self._syncing: trio.Event | None = None

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
