"""What keeps the meaning of names while they are worked on.

Every request that changes something shares the *structure* of the mount, and the *node* (a directory, by its path) that
it is about.  A document takes its node alone, as does what is moved away from there, so that nothing is published in
the array meanwhile; others go on.  Directories that are moved, and documents that make a node of a directory, take the
structure alone: names below stand for something else afterwards.  Locks are taken in the order of structure, nodes by
their paths, and write buffers; commits take none of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TypeVar

import trio

from shardfs.errors import NotFoundError, StaleError

T = TypeVar("T")


class _Lock:
    """Many hold it together, or one alone; who comes while one has it alone, or waits for that, waits."""

    __slots__ = ("_changed", "is_taken", "nshared", "nusers")

    def __init__(self) -> None:
        self.nshared = 0
        self.is_taken = False
        self.nusers = 0  # who have it, or wait for it
        self._changed: trio.lowlevel.ParkingLot | None = None

    async def acquire(self, *, alone: bool) -> None:
        while self.is_taken:
            await self._wait()
        if not alone:
            self.nshared += 1
            return
        self.is_taken = True
        try:
            while self.nshared:
                await self._wait()
        except BaseException:
            self.release(alone=True)
            raise

    def release(self, *, alone: bool) -> None:
        if alone:
            self.is_taken = False
        else:
            self.nshared -= 1
        if self._changed and (alone or not self.nshared):
            self._changed.unpark_all()

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = trio.lowlevel.ParkingLot()
        await self._changed.park()


class _Held(AbstractAsyncContextManager[None]):
    """Locks that are held in an `async with`: without a generator, as every request that changes something does it.

    They are those of *nodes*, each shared, or alone if it is True; None is the structure, alone.
    """

    __slots__ = ("_held", "_locks", "_nodes")

    def __init__(self, locks: "Locks", nodes: dict[str, bool] | None) -> None:
        self._locks = locks
        self._nodes = nodes
        self._held: list[tuple[str, _Lock, bool]] = []

    async def __aenter__(self) -> None:
        await self._locks.structure.acquire(alone=self._nodes is None)
        if self._nodes is None:
            self._locks.turns += 1
            return
        try:
            for path in sorted(self._nodes) if len(self._nodes) > 1 else self._nodes:
                lock = self._locks.nodes.get(path)
                if lock is None:
                    lock = self._locks.nodes[path] = _Lock()
                lock.nusers += 1
                try:
                    await lock.acquire(alone=self._nodes[path])
                except BaseException:
                    self._leave(path, lock)
                    raise
                self._held.append((path, lock, self._nodes[path]))
        except BaseException:
            self._release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        for path, lock, alone in self._held:
            lock.release(alone=alone)
            self._leave(path, lock)
        self._locks.turns += self._nodes is None
        self._locks.structure.release(alone=self._nodes is None)

    def _leave(self, path: str, lock: _Lock) -> None:
        lock.nusers -= 1
        if not lock.nusers:
            del self._locks.nodes[path]


class Locks:
    """The locks of one mount."""

    def __init__(self) -> None:
        self.structure = _Lock()
        self.nodes: dict[str, _Lock] = {}  # only those that somebody holds or waits for
        self.turns = 0
        """How often the structure was taken alone, or given back: odd while it is taken."""

    def hold(self, *shared: str, alone: Sequence[str] = ()) -> _Held:
        """Work on names in the nodes *shared*, which go on standing for what they stand for.

        In those held *alone* nobody else works on a name: what they say is changed, or something is moved away.
        """
        return _Held(self, dict.fromkeys(shared, False) | dict.fromkeys(alone, True))

    def of_structure(self) -> _Held:
        """Change what names stand for anywhere in the mount, while nobody works on any."""
        return _Held(self, None)

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
