"""Locks that keep the meaning of names while they are worked on.

Every request that changes something takes the lock of the mount's *structure* in shared mode, and that of its *node* (a
directory, by path). Who changes a document, moves a chunk to another name, or removes the directory of a node takes the
node exclusively, so that nothing is published in it meanwhile; other nodes are not affected. Who moves a directory, or
publishes a document that makes its directory a node, takes the structure exclusively, because names below stand for
something else afterwards.

Locks are taken in this order: structure, nodes by path, write buffers. Commits take none of them.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

from shardfs.errors import NotFoundError, StaleError

T = TypeVar("T")

Nodes = dict[str, bool]
"""Paths of nodes to be locked, and whether exclusively."""


class _Lock:
    """A reader-writer lock: whoever comes while it is held exclusively, or somebody waits for that, waits."""

    __slots__ = ("__weakref__", "_changed", "is_alone", "is_taken", "nshared", "turns")

    def __init__(self) -> None:
        self.nshared = 0
        self.is_taken = False  # it is held exclusively, or will be when the others are done
        self.is_alone = False
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
        self.is_alone = True

    def release(self, *, alone: bool) -> None:
        if alone:
            self.is_taken = self.is_alone = False
            self.turns += 1
        else:
            self.nshared -= 1
        if self._changed and (alone or not self.nshared):
            self._changed.unpark_all()

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = trio.lowlevel.ParkingLot()
        await self._changed.park()


class _Held(AbstractAsyncContextManager[None]):
    """Locks that are held by an `async with`; a class, because a generator would be slower for every request."""

    __slots__ = ("_choose", "_held", "_locks", "_prepare")

    def __init__(
        self, locks: "Locks", choose: Callable[[], Awaitable[Nodes | None]], prepare: Callable[[], Awaitable[None]]
    ) -> None:
        self._locks = locks
        self._choose = choose
        self._prepare = prepare
        self._held: list[tuple[_Lock, bool]] = []

    async def __aenter__(self) -> None:
        locks = self._locks
        try:
            await self._take(locks.structure, alone=False)
            nodes = await self._choose()
            if nodes is None:
                self._release()
                await self._prepare()
                await self._take(locks.structure, alone=True)
                await self._choose()
            else:
                for path in sorted(nodes):
                    await self._take(locks.nodes.setdefault(path, _Lock()), alone=nodes[path])
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    async def _take(self, lock: _Lock, *, alone: bool) -> None:
        await lock.acquire(alone=alone)
        self._held.append((lock, alone))

    def _release(self) -> None:
        while self._held:
            lock, alone = self._held.pop()
            lock.release(alone=alone)


async def _nothing() -> None:
    return


class Locks:
    """The locks of one mount."""

    def __init__(self) -> None:
        self.structure = _Lock()
        self.nodes: WeakValueDictionary[str, _Lock] = WeakValueDictionary()  # only those held or waited for

    def hold(
        self, choose: Callable[[], Awaitable[Nodes | None]], prepare: Callable[[], Awaitable[None]] = _nothing
    ) -> _Held:
        """Lock the structure in shared mode, and the nodes that *choose* returns; if it is None, all, exclusively.

        From the call of *choose* on, names stay what they are. So it is called again under the exclusive lock, and
        before that, without any lock, *prepare* is.
        """
        return _Held(self, choose, prepare)

    async def undisturbed(
        self, look: Callable[[], Awaitable[T]], is_missing: Callable[[T], bool] = lambda _: False
    ) -> T:
        """Return the result of *look*; once more if it found nothing while the structure was locked exclusively.

        It finds nothing if it raises an error that says so, or if its result *is_missing*. While a directory becomes an
        array, its files are being moved.
        """
        structure, turns = self.structure, self.structure.turns

        def was_disturbed() -> bool:
            return structure.is_alone or turns != structure.turns

        try:
            answer = await look()
            if not is_missing(answer) or not was_disturbed():
                return answer
        except (NotFoundError, StaleError):
            if not was_disturbed():
                raise
        await structure.acquire(alone=False)
        try:
            return await look()
        finally:
            structure.release(alone=False)
