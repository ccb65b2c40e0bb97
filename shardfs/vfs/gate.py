"""What keeps the meaning of names while they are worked on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Gate:
    """Many tasks pass at a time, or one has it closed; who comes while it is closed, or about to be, waits."""

    def __init__(self) -> None:
        self._npassing = 0
        self._closed: trio.Event | None = None
        self._empty = trio.Event()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Work on names, which go on standing for what they stand for."""
        while self._closed is not None:
            await self._closed.wait()
        self._npassing += 1
        try:
            yield
        finally:
            self._npassing -= 1
            if not self._npassing:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Change what names stand for, while nobody works on them."""
        while self._closed is not None:
            await self._closed.wait()
        self._closed = trio.Event()
        try:
            while self._npassing:
                self._empty = trio.Event()
                await self._empty.wait()
            yield
        finally:
            self._closed.set()
            self._closed = None
