"""Locks that keep the meaning of names while they are worked on.

Every request that changes something takes the lock of the mount's *structure* in shared mode, and that of its *node* (a
directory, by path). Documents, and whatever is moved out of a node, take the node exclusively, so that nothing is
published in the array meanwhile; other nodes are not affected. Moving a directory, and documents that make their
directory a node, take the structure exclusively, because names below stand for something else afterwards.

Locks are taken in this order: structure, nodes by path, write buffers. Commits take none of them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

from shardfs.errors import NotFoundError, StaleError

T = TypeVar("T")

Nodes = dict[str, bool]
"""Paths of nodes to be locked, and whether exclusively."""


class _Lock:
    """A reader-writer lock: whoever comes while it is held exclusively, or somebody waits for that, waits."""

    __slots__ = ("__weakref__", "_changed", "is_taken", "nshared", "turns")

    def __init__(self) -> None:
        self.nshared = 0
        self.is_taken = False
        self.turns = 0  # how often it was held exclusively
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
            self.turns += 1
        else:
            self.nshared -= 1
        if self._changed and (alone or not self.nshared):
            self._changed.unpark_all()

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = trio.lowlevel.ParkingLot()
        await self._changed.park()


class Locks:
    """The locks of one mount."""

    def __init__(self) -> None:
        self._structure = _Lock()
        self._nodes: WeakValueDictionary[str, _Lock] = WeakValueDictionary()  # only those held or waited for

    @asynccontextmanager
    async def hold(
        self, choose: Callable[[], Awaitable[Nodes | None]], prepare: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[None, None]:
        """Lock the structure in shared mode, and the nodes that *choose* returns; if it is None, all, exclusively.

        From the call of *choose* on, names stay what they are. So it is called again under the exclusive lock, and
        before that, without any lock, *prepare* is.
        """
        held: list[tuple[_Lock, bool]] = []

        async def take(lock: _Lock, *, alone: bool) -> None:
            await lock.acquire(alone=alone)
            held.append((lock, alone))

        def release() -> None:
            while held:
                lock, alone = held.pop()
                lock.release(alone=alone)

        try:
            await take(self._structure, alone=False)
            nodes = await choose()
            if nodes is None:
                release()
                if prepare is not None:
                    await prepare()
                await take(self._structure, alone=True)
                await choose()
            else:
                for path in sorted(nodes):
                    await take(self._nodes.setdefault(path, _Lock()), alone=nodes[path])
            yield
        finally:
            release()

    async def settled(self, look: Callable[[], Awaitable[T]], is_missing: Callable[[T], bool] = lambda _: False) -> T:
        """Return the result of *look*; again if it found nothing while the structure was locked exclusively.

        It finds nothing if it raises an error that says so, or if its result *is_missing*. While a directory becomes an
        array, its files are being moved.
        """
        structure, turns = self._structure, self._structure.turns
        try:
            found = await look()
            if not is_missing(found) or (turns == structure.turns and not structure.is_taken):
                return found
        except (NotFoundError, StaleError):
            if turns == structure.turns and not structure.is_taken:
                raise
        await structure.acquire(alone=False)
        try:
            return await look()
        finally:
            structure.release(alone=False)
