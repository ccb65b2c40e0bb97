"""Publishing: a chunk's bytes become its content on the mount, atomically, and are in the journal.

`Writer` is the way in for everything that changes chunks; its `Committer` brings what is pending into shards.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.committer import Committer
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.queue import Change
from shardfs.dataset.source import Source
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Erase, Put, Shrink
from shardfs.errors import ConflictError, ReadOnlyError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content

_IN_LOOP_NBYTES: Final = 2**20
"""Up to this size a payload goes to the page cache in about the time that a thread takes to begin and to end."""


class Writer:
    """Changes to the chunks of one source, in the order in which they were published."""

    def __init__(
        self, source: Source, journal: WriteAheadLog, conflicts: WriteAheadLog, *, auto_compact: float | None = None
    ) -> None:
        self.source = source
        self.journal = journal
        self.committer = Committer(source, journal, conflicts, auto_compact=auto_compact)
        self._syncing: trio.Event | None = None
        self._layouts: dict[str, ArrayLayout] = {}  # to which something was published last, by path

    def check(self) -> None:
        """Raise the error that keeps anything from being published."""
        if self.journal.is_failed:
            raise ReadOnlyError("the mount is read-only since its journal failed; unmount, and mount again")

    async def put(
        self, array: Array, coords: Coords, content: Content, *, mtime_ns: int, mode: int, uid: int, gid: int
    ) -> None:
        """Publish *content* as the inner chunk at *coords*.

        Raises `NoSpaceError` where the journal or the shards have no room, `ReadOnlyError` after a failure.
        """

        def append(superseded: tuple[int, int] | None) -> Put:
            record = Put(
                0, array.layout.path, coords, array.fingerprint, superseded, mtime_ns, mode=mode, uid=uid, gid=gid
            )
            return self.journal.append(record, content)

        self.committer.check_room()
        await self._room(array, coords, content.nbytes)
        await self._publish(array, coords, append, in_thread=content.nbytes > _IN_LOOP_NBYTES)

    async def erase(self, array: Array, coords: Coords, *, mtime_ns: int) -> None:
        """Publish that there is no inner chunk at *coords* any more."""

        def append(superseded: tuple[int, int] | None) -> Erase:
            return self.journal.append(Erase(0, array.layout.path, coords, array.fingerprint, superseded, mtime_ns))

        await self._room(array, coords, 0)
        await self._publish(array, coords, append, in_thread=False)

    async def shrink(self, path: str, shape: tuple[int, ...]) -> Shrink:
        """Note durably that the array at *path*, which has the shape *shape*, is about to be made smaller.

        What lies outside its new shape then is removed by `shrinking.empty_outside`.
        """
        self.check()
        async with self.committer.commits.lock:
            record = self.journal.append(Shrink(0, path, shape))
        await self.sync()
        return record

    async def sync(self) -> None:
        """Make durable what was published so far; those who ask at the same time share one sync."""
        target = self.journal.last_sequence
        while self.journal.synced_sequence < target:
            if self._syncing is not None:
                await self._syncing.wait()
                continue
            self._syncing = trio.Event()
            try:
                await trio.to_thread.run_sync(self.journal.sync)
            finally:
                self._syncing.set()
                self._syncing = None

    async def _room(self, array: Array, coords: Coords, nbytes: int) -> None:
        """Wait until the journal has room for *nbytes* more for a chunk."""
        self.check()
        layout, committer = array.layout, self.committer
        if committer.is_failing:
            committer.check_share(layout, layout.locate(coords).shard, nbytes)
        while not committer.has_room(nbytes):
            await committer.make_room(layout, layout.locate(coords).shard, nbytes)
            self.check()

    async def _publish(
        self, array: Array, coords: Coords, append: Callable[[tuple[int, int] | None], Change], *, in_thread: bool
    ) -> None:
        shard = array.layout.locate(coords).shard
        while True:
            while (former := self._former(array.layout)) is not None:
                with suppress(ConflictError):  # it was put aside, as the log says
                    await self.committer.flush(former)
            # A record names the entry that it supersedes, which a commit is about to change.
            while (busy := self.committer.busy(array.layout, shard)) is not None:
                await busy.wait()
            if shard not in array.layout.pending.shards:
                await self.source.store.check_writable(array.layout.shard_key(shard))
            async with self.committer.commits.lock:
                is_busy = self.committer.busy(array.layout, shard) is not None
                if is_busy or self._former(array.layout) is not None:
                    continue
                self.check()
                superseded = await array.stored_entry(coords)
                change = await trio.to_thread.run_sync(append, superseded) if in_thread else append(superseded)
                self._layouts[array.layout.path] = array.layout
                self.committer.add(array.layout, shard, change)
                self.source.statistics.published += 1
                return

    def _former(self, layout: ArrayLayout) -> ArrayLayout | None:
        """Return the layout that an array had before another program changed its shape, if that has changes.

        They are older, and must not come into a shard after what is published now.
        """
        former = self._layouts.get(layout.path, layout)
        return former if former is not layout and former.pending else None
