"""What keeps the meaning of names while they are worked on."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar

import trio

from shardfs.errors import NotFoundError, StaleError

T = TypeVar("T")


class Gate:
    """Many tasks pass at a time, or one has it closed; who comes while it is closed, or about to be, waits."""

    def __init__(self) -> None:
        self._passage = Passage(self)
        self.npassing = 0
        self.closed_by: trio.Event | None = None
        self.turns = 0
        """How often the gate was closed or opened: odd while it is closed."""
        self.empty = trio.Event()

    def passing(self) -> "Passage":
        """Work on names in an `async with`: they go on standing for what they stand for."""
        return self._passage

    def has_turned(self, turns: int) -> bool:
        """Whether the gate was closed at any time since `turns` was *turns*."""
        return turns != self.turns or bool(turns % 2)

    async def settled(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what *look* finds, again if it found nothing while a document made an array of a directory.

        Files in it are on their way from one place to another meanwhile.
        """
        turns = self.turns
        try:
            return await look()
        except (NotFoundError, StaleError):
            if not self.has_turned(turns):
                raise
        async with self.passing():
            return await look()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Change what names stand for, while nobody works on them."""
        while self.closed_by is not None:
            await self.closed_by.wait()
        self.closed_by = trio.Event()
        self.turns += 1
        try:
            while self.npassing:
                self.empty = trio.Event()
                await self.empty.wait()
            yield
        finally:
            self.turns += 1
            self.closed_by.set()
            self.closed_by = None


class Passage:
    """The way through a gate: without a generator, as every request that changes a name goes it."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __aenter__(self) -> None:
        while self._gate.closed_by is not None:
            await self._gate.closed_by.wait()
        self._gate.npassing += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._gate.npassing -= 1
        if not self._gate.npassing:
            self._gate.empty.set()
