"""A write-ahead log as many tasks use it, and the lock that they take for each change."""

from collections.abc import Iterable
from types import TracebackType

import trio

from shardfs.dataset.wal.log import WriteAheadLog


class QuickLock:
    """A lock that is taken without a pass of the event loop if it is free, and otherwise in the order of arrival.

    A pass takes some 25 µs, which is more than what most of those do who hold such a lock.
    """

    __slots__ = ("_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: trio.lowlevel.ParkingLot | None = None

    async def __aenter__(self) -> None:
        if self._is_held:
            if self._waiting is None:
                self._waiting = trio.lowlevel.ParkingLot()
            await self._waiting.park()  # who lets go of the lock hands it over
        self._is_held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self._is_held = False


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
