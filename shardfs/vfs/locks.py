"""What keeps the meaning of names while they are worked on.

Every request that changes something shares the *structure* of the mount, and the *node* (a directory, by its path) that
it is about.  A document takes its node alone, as does what is moved away from there, so that nothing is published in
the array meanwhile; others go on.  Directories that are moved, and documents that make a node of a directory, take the
structure alone: names below stand for something else afterwards.  Locks are taken in the order of structure, nodes by
their paths, and write buffers; commits take none of them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

from shardfs.errors import NotFoundError, StaleError

T = TypeVar("T")


class _Lock:
    """Many hold it together, or one alone; who comes while one has it alone, or waits for that, waits."""

    def __init__(self) -> None:
        self._nshared = 0
        self._is_taken = False
        self._changed = trio.lowlevel.ParkingLot()

    async def acquire(self, *, alone: bool) -> None:
        while self._is_taken:
            await self._changed.park()
        if not alone:
            self._nshared += 1
            return
        self._is_taken = True
        try:
            while self._nshared:
                await self._changed.park()
        except BaseException:
            self.release(alone=True)
            raise

    def release(self, *, alone: bool) -> None:
        if alone:
            self._is_taken = False
        else:
            self._nshared -= 1
        if self._changed:
            self._changed.unpark_all()


class Locks:
    """The locks of one mount."""

    def __init__(self) -> None:
        self._structure = _Lock()
        self._nodes: WeakValueDictionary[str, _Lock] = WeakValueDictionary()  # that somebody holds or waits for
        self.turns = 0
        """How often the structure was taken alone, or given back: odd while it is taken."""

    @asynccontextmanager
    async def hold(self, *shared: str, alone: Sequence[str] = ()) -> AsyncGenerator[None, None]:
        """Work on names in the nodes *shared*, which go on standing for what they stand for.

        In those held *alone* nobody else works on a name: what they say is changed, or something is moved away.
        """
        nodes = dict.fromkeys(shared, False) | dict.fromkeys(alone, True)
        held = []
        try:
            await self._structure.acquire(alone=False)
            held.append((self._structure, False))
            for path, is_alone in sorted(nodes.items()):
                lock = self._nodes.get(path) or self._nodes.setdefault(path, _Lock())
                await lock.acquire(alone=is_alone)
                held.append((lock, is_alone))
            yield
        finally:
            for lock, is_alone in held:
                lock.release(alone=is_alone)

    @asynccontextmanager
    async def of_structure(self) -> AsyncGenerator[None, None]:
        """Change what names stand for anywhere in the mount, while nobody works on any."""
        await self._structure.acquire(alone=True)
        self.turns += 1
        try:
            yield
        finally:
            self.turns += 1
            self._structure.release(alone=True)

    def has_turned(self, turns: int) -> bool:
        """Whether the structure was taken at any time since `turns` was *turns*."""
        return turns != self.turns or bool(turns % 2)

    async def settled(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what *look* finds, again if it found nothing while the structure was taken.

        Files in a directory that becomes an array are on their way from one place to another meanwhile.
        """
        turns = self.turns
        try:
            return await look()
        except (NotFoundError, StaleError):
            if not self.has_turned(turns):
                raise
        async with self.hold():
            return await look()
