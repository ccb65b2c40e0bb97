"""Working on many things, a few at a time; a quick lock; a budget of memory; and threads for blocking calls."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises the first error of its tasks and its block, where trio raises a group of all."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def for_each(items: Collection[T], work: Callable[[T], Awaitable[None]], limit: int) -> None:
    """Do *work* on each of *items*, in order, at most *limit* at a time; the first error ends all."""
    rest = iter(items)

    async def go_on() -> None:
        for item in rest:
            await work(item)

    ntasks = min(len(items), limit)
    if ntasks <= 1:
        await go_on()
        return
    async with open_nursery() as nursery:
        for _ in range(ntasks):
            nursery.start_soon(go_on)


class QuickLock:
    """A lock that is taken without a pass of the event loop if it is free; otherwise, first come, first served.

    A pass takes some 25 µs, longer than such a lock is usually held.
    """

    __slots__ = ("__weakref__", "_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: trio.lowlevel.ParkingLot | None = None

    async def __aenter__(self) -> None:
        if self._is_held:
            if self._waiting is None:
                self._waiting = trio.lowlevel.ParkingLot()
            await self._waiting.park()  # whoever releases the lock hands it over
        self._is_held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self._is_held = False


class Room:
    """A budget of memory, granted in the order of requests; a request for more than all of it is granted alone."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._taken = 0
        self._turn = QuickLock()
        self._freed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def take(self, nbytes: int) -> AsyncGenerator[None, None]:
        """Wait until so many bytes are free, and have them for the length of the block."""
        async with self._turn:
            while self._taken and self._taken + nbytes > self._nbytes:
                await self._freed.park()
            self._taken += nbytes
        try:
            yield
        finally:
            self._taken -= nbytes
            self._freed.unpark_all()


_LONG_SECONDS: Final = 0.2
_CAREFUL_SECONDS: Final = 60.0
_LOCAL_THREADS: Final = 40
_REMOTE_THREADS: Final = 256  # most of them wait


class Threads:
    """Runs the blocking calls of one local store, so that a slow file system does not stop the event loop.

    Calls on names and attributes take microseconds on a local disk, and a thread 65: they run in the event loop, apart
    from a minute after one that took long. On a network file system or FUSE (*is_remote*), they always run in threads.
    They have other threads than calls on content, and no store shares its threads with another.
    """

    def __init__(self, *, is_remote: bool) -> None:
        self.is_remote = is_remote
        self._careful_until = -1.0
        self._on_names = trio.CapacityLimiter(_LOCAL_THREADS)
        self._on_content = trio.CapacityLimiter(_REMOTE_THREADS if is_remote else _LOCAL_THREADS)

    async def on_names(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make a call that reads or changes names and attributes."""
        begun = time.monotonic()
        if self.is_remote or begun < self._careful_until:
            return await trio.to_thread.run_sync(call, *args, limiter=self._on_names)
        try:
            return call(*args)
        finally:
            now = time.monotonic()
            if now - begun > _LONG_SECONDS:
                self._careful_until = now + _CAREFUL_SECONDS

    async def on_content(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make a call that reads or writes content, or makes it durable."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._on_content)
