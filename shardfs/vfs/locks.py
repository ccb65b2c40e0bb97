"""Locks that keep the meaning of names while they are worked on.

Every request that changes something takes the lock of the mount's *structure* in shared mode, and that of its *node* (a
directory, by path). Documents, and whatever is moved out of a node, take the node exclusively, so that nothing is
published in the array meanwhile; other nodes are not affected. Moving a directory, and documents that make their
directory a node, take the structure exclusively, because names below stand for something else afterwards.

Locks are taken in this order: structure, nodes by path, write buffers. Commits take none of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TypeVar

import trio

from shardfs.errors import NotFoundError, StaleError

T = TypeVar("T")


class _Lock:
    """A reader-writer lock: whoever comes while it is held exclusively, or somebody waits for that, waits."""

    __slots__ = ("_changed", "is_taken", "nshared", "nusers")

    def __init__(self) -> None:
        self.nshared = 0
        self.is_taken = False
        self.nusers = 0  # holders and waiters
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
    """Locks that are held by an `async with`; a class, because a generator would be slower for every request.

    *nodes* maps paths to whether the lock is exclusive; None stands for the structure, exclusively.
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
        self.nodes: dict[str, _Lock] = {}  # only those that are held or waited for
        self.turns = 0
        """How often the structure was locked exclusively or unlocked: odd while it is locked."""

    def hold(self, *shared: str, alone: Sequence[str] = ()) -> _Held:
        """Lock the nodes *shared* in shared mode, and the nodes *alone* exclusively."""
        return _Held(self, dict.fromkeys(shared, False) | dict.fromkeys(alone, True))

    def of_structure(self) -> _Held:
        """Lock the structure exclusively: nobody else works on any name."""
        return _Held(self, None)

    def has_turned(self, turns: int) -> bool:
        """Whether the structure was locked exclusively at any time since `turns` was *turns*."""
        return turns != self.turns or bool(turns % 2)

    async def settled(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return the result of *look*; again if it found nothing while the structure was locked exclusively.

        While a directory becomes an array, its files are being moved.
        """
        turns = self.turns
        try:
            return await look()
        except (NotFoundError, StaleError):
            if not self.has_turned(turns):
                raise
        async with self.hold():
            return await look()
