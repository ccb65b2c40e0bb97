"""A lock that costs nothing while nobody else wants it."""

from types import TracebackType

import trio


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
