"""Files that pass through, as far as they are on this machine: open to be written, or waiting to be sent.

A copy shadows the object of its name for as long as it is here.  It is made by `create`, or of an object that is about
to be changed: nothing is fetched before.  The next mount finds those that a killed one has left in their `places`.
"""

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import trio

from shardfs.errors import NotPermittedError
from shardfs.stores.base import Kind, Snapshot, join_key
from shardfs.stores.local import LocalStore
from shardfs.stores.local_live import LocalFile
from shardfs.stores.s3.local_names import LocalNames
from shardfs.stores.s3.places import Places, local_key


class Copy:
    """One file: its local copy if it *is_here*, else the object *snapshot*, which is open to be written.

    *users* have it open; *file* is what was made for them when it came here.  Of its *nchanges* changes the first
    *nsent* are in the bucket; *changed* is when the last was made, or the file was closed, in seconds of the clock.
    Whoever holds *lock* keeps it from being sent.  It *is_left* if it is of an earlier mount, and after *nfailures*
    failures it is not tried before *retry*.
    """

    __slots__ = (
        "changed",
        "file",
        "is_here",
        "is_left",
        "key",
        "lock",
        "nchanges",
        "nfailures",
        "nsent",
        "retry",
        "snapshot",
        "users",
    )

    def __init__(self, key: str, snapshot: Snapshot | None, changed: float) -> None:
        self.key = key
        self.snapshot = snapshot
        self.changed = changed
        self.is_here = snapshot is None
        self.is_left = False
        self.nchanges = int(self.is_here)
        self.nsent = 0
        self.users = 0
        self.nfailures = 0
        self.retry = -math.inf
        self.lock = trio.Lock()
        self.file: LocalFile | None = None

    @property
    def is_dirty(self) -> bool:
        """Whether the bucket has not all of it."""
        return self.nchanges != self.nsent


class Copies:
    """The copies of a store, on the local store *side*; *names* are theirs, and those of directories.

    Who moves names holds *moving*.
    """

    def __init__(self, side: LocalStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.side = side
        self.names = LocalNames()
        self.clock = clock
        self.moving = trio.Lock()
        self._places = Places(side)
        self._added = trio.Event()
        self._copies: dict[str, Copy] = {}

    def __iter__(self) -> Iterator[Copy]:
        """Return those that are here."""
        return iter([copy for copy in self._copies.values() if copy.is_here])

    async def resume(self) -> int:
        """Take in what an earlier mount has left, to be sent at once; return how many files that is."""
        await self._places.clean()
        await self._adopt("", Kind.DIRECTORY)
        for copy in self:
            copy.is_left = True
            copy.changed = -math.inf
        return len(self._copies)

    async def wait(self) -> None:
        """Return when there is a copy."""
        if not any(copy.is_here for copy in self._copies.values()):
            self._added = trio.Event()
            await self._added.wait()

    def find(self, key: str) -> Copy | None:
        """Return the copy of *key* if it is here."""
        copy = self._copies.get(key)
        return copy if copy is not None and copy.is_here else None

    def below(self, key: str) -> list[Copy]:
        """Return the copies that are here below the directory *key*."""
        return [copy for copy in self if copy.key.startswith(key + "/")]

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[Copy | None]:
        """Give what is known of *key*, while it is not being sent."""
        while (copy := self._copies.get(key)) is not None:
            async with copy.lock:
                if self._copies.get(key) is copy:
                    yield copy
                    return
        yield None

    async def create(self, key: str) -> tuple[Copy, LocalFile]:
        """Make an empty file, where nothing is, and open it."""
        file = await self._places.create(key)
        return self._add(Copy(key, None, self.clock())), file

    async def open(self, key: str) -> tuple[Copy, LocalFile]:
        """Open a copy that is here; nothing else runs meanwhile."""
        return self._copies[key], await self.side.open_live(local_key(key), writable=True)

    def use(self, key: str, snapshot: Snapshot) -> Copy:
        """Return the copy of an object that was opened to be written, which is not here unless somebody wrote it."""
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = Copy(key, snapshot, self.clock())
        return copy

    def release(self, copy: Copy) -> None:
        """Say that one who had *copy* open closed it."""
        copy.users -= 1
        copy.changed = self.clock()
        if not copy.users:
            copy.file = None
            if not copy.is_here and self._copies.get(copy.key) is copy:
                del self._copies[copy.key]

    def changed(self, copy: Copy) -> None:
        """Say that *copy* was written."""
        copy.nchanges += 1
        copy.changed = self.clock()

    async def bring(self, copy: Copy, nbytes: int | None = None) -> LocalFile:
        """Return the local file of an object that is about to be changed, with its first *nbytes* bytes, or all."""
        async with copy.lock:
            if copy.file is None:
                assert copy.snapshot is not None
                temporary, copy.file = await self._places.fetch(copy.snapshot, nbytes)
                if self._copies.get(copy.key) is copy:
                    await self._places.put(temporary, copy.key)
                    self._add(copy)
                else:  # its name is gone
                    await self.side.unlink(temporary)
            return copy.file

    async def fetch(self, snapshot: Snapshot, key: str) -> None:
        """Make *key* a copy of an object, in place of what is here under that name."""
        temporary, _ = await self._places.fetch(snapshot)
        await self.put(temporary, key)

    async def fetch_aside(self, snapshot: Snapshot, to: str, *, exclusive: bool) -> None:
        """Make *to*, on the side, a copy of an object."""
        temporary, _ = await self._places.fetch(snapshot)
        try:
            await self.side.rename(temporary, to, exclusive=exclusive)
        except BaseException:
            await self.side.unlink(temporary)
            raise

    async def put(self, local: str, key: str) -> None:
        """Make what is *local* on the side, with all below it, *key*, in place of a file that is here."""
        kind = (await self.side.stat(local)).kind
        if kind not in (Kind.FILE, Kind.DIRECTORY):
            raise NotPermittedError(f"{key} cannot be stored: it is neither a file nor a directory")
        await self._places.put(local, key)
        self._copies.pop(key, None)
        await self._adopt(key, kind)

    async def take(self, copy: Copy, to: str, *, exclusive: bool) -> None:
        """Move a copy that is here to the name *to* of the side."""
        await self._places.take(copy.key, to, exclusive=exclusive)
        del self._copies[copy.key]
        self.names.remove(copy.key)

    async def take_directory(self, key: str, to: str) -> None:
        """Move a directory, with all below it, to the name *to* of the side."""
        for directory in self._directories(key):
            await self._places.make_directory(directory)
        await self._places.take(key, to, exclusive=True)
        for copy in self.below(key):
            del self._copies[copy.key]
        self.names.remove(key)

    async def rename(self, copy: Copy, to: str) -> None:
        """Give a copy another name, in place of what is here under that name."""
        key = copy.key
        if copy.is_here:
            await self._places.put(local_key(key), to)
            self.names.remove(key)
        del self._copies[key]
        copy.key = to
        if copy.is_here:
            self._add(copy)
            self.changed(copy)
        else:
            self._copies[to] = copy

    async def rename_directory(self, key: str, to: str) -> None:
        """Give a directory, with all below it, another name, which nothing has."""
        copies = self.below(key)
        if copies:
            await self._places.put(local_key(key), to)
        self.names.move(key, to)
        for copy in copies:
            del self._copies[copy.key]
            copy.key = to + copy.key[len(key) :]
            self._copies[copy.key] = copy
            self.changed(copy)

    async def remove(self, copy: Copy) -> None:
        """Remove a copy from this machine; who has it open goes on with a file without a name."""
        del self._copies[copy.key]
        if copy.is_here:
            await self._places.remove(copy.key)
            self.names.remove(copy.key)

    async def settle(self, copy: Copy) -> None:
        """Remove a copy that the bucket has; the directories above it are those of the object."""
        await self.remove(copy)
        self.names.settle(copy.key.rpartition("/")[0])
        await self._places.sync_removal(copy.key)

    async def sync_names(self, key: str) -> None:
        """Make the names of copies in a directory durable."""
        await self._places.sync_names(key)

    def _add(self, copy: Copy) -> Copy:
        copy.is_here = True
        self.names.add(copy.key, Kind.FILE)
        self._copies[copy.key] = copy
        self._added.set()
        return copy

    async def _adopt(self, key: str, kind: Kind) -> None:
        """Take in what lies in the place of *key*, with all below it."""
        if kind is Kind.DIRECTORY:
            self.names.add(key, kind)
            for entry in await self._places.list(key):
                await self._adopt(join_key(key, entry.name), entry.kind)
        elif await self._places.admit(key):
            self._add(Copy(key, None, self.clock()))

    def _directories(self, key: str) -> Iterator[str]:
        yield key
        for name, kind in self.names.children(key).items():
            if kind is Kind.DIRECTORY:
                yield from self._directories(join_key(key, name))
