"""Publishing: content becomes that of a chunk on the mount, atomically, and is in the journal.

`ChunkWriter` is the entrance for all changes of chunks; a `GroupCommit` brings them into shards.
"""

import logging
import time
from contextlib import suppress
from typing import Final

import trio

from shardfs.dataset.admission import Admission
from shardfs.dataset.array import Array
from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import NOTHING
from shardfs.dataset.journal.records import ChunkChange, Erase, Put, Shrink
from shardfs.dataset.layout import OwnVersion, ShardQueue
from shardfs.errors import (
    ConflictError,
    NoSpaceError,
    ReadOnlyError,
    ShardfsError,
    StaleError,
    UnreachableError,
)
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content

log = logging.getLogger(__name__)

_IN_LOOP_NBYTES: Final = 2**20
"""Up to this size, writing a payload to the page cache takes about as long as starting a thread."""

_ATTEMPTS: Final = 24  # to make a shard smaller in which nothing is pending

_WORTH: Final = 1 / 16  # of the journal: this much must be dead before cleaning, if there is no other way to get room


class ChunkWriter:
    """Changes to the chunks of one source, in the order in which they are published."""

    def __init__(self, source: Source, commits: GroupCommit) -> None:
        self.source = source
        self.journal = commits.journal
        self.commits = commits
        self.admission = Admission(self.journal, commits)

    def check(self) -> None:
        """Raise the error that prevents publishing, if there is one."""
        self.journal.check()
        self.journal.require_active()

    async def put(
        self,
        array: Array,
        coords: Coords,
        content: Content,
        *,
        ino: int,
        mtime_ns: int | None,
        mode: int,
        uid: int,
        gid: int,
    ) -> OwnVersion:
        """Publish *content* as the inner chunk at *coords*, together with the version that it is, and return that.

        Its inode number is *ino*. If *mtime_ns* is None, its modification time is now, and later than that of the
        version before. Raises `NoSpaceError` if the journal or the shards have no space, `ReadOnlyError` after a
        failure.
        """
        if mtime_ns is None:
            before = array.own(coords) or array.version(coords)
            mtime_ns = max(time.time_ns(), before.mtime_ns + 1)
        record = Put(0, array.layout.path, coords, array.fingerprint, None, mtime_ns, mode=mode, uid=uid, gid=gid)
        own = OwnVersion(ino, mtime_ns)
        await self._publish(array, record, content, own)
        return own

    async def erase(self, array: Array, coords: Coords, *, mtime_ns: int) -> None:
        """Publish the removal of the inner chunk at *coords*."""
        await self._publish(array, Erase(0, array.layout.path, coords, array.fingerprint, None, mtime_ns), NOTHING)

    async def shrink(self, path: str, shape: tuple[int, ...]) -> Shrink:
        """Record durably that the array at *path*, of shape *shape*, is about to be made smaller.

        Then `empty_outside` removes what is outside its new shape.
        """
        self.check()
        async with self.journal.appending:
            record = self.journal.append(Shrink(0, path, shape))
        await self.commits.sync_soon()
        return record

    async def _publish(
        self, array: Array, change: ChunkChange, content: Content, own: OwnVersion | None = None
    ) -> None:
        self.check()
        if array.grid.is_read_only:
            raise ReadOnlyError(f"{array.layout.path or 'the array'} is in a format that is only read")
        layout, nbytes = array.layout, content.nbytes
        shard = layout.locate(change.coords).shard
        queue = self.commits.queue(layout, shard)
        while True:
            # A record names the version that it supersedes, and a commit would change that.
            async with queue.lock:
                if not self.source.shards.layouts.takes(layout, change.coords):  # changed while this waited
                    raise StaleError(
                        f"{layout.path or 'the array'} was changed by another program: write the chunk again"
                    )
                if not queue.changes:
                    queue.begin(layout, shard)
                pending = queue.changes.get(change.coords)
                is_blocked = not queue.is_of(layout) or (
                    pending is not None and pending.fingerprint != change.fingerprint
                )
                if not is_blocked and await self._append(array, queue, change, content, own):
                    break
            if is_blocked:  # what is pending is of codecs, or of an array, that are not there any more
                with suppress(ConflictError):
                    await self.commits.flush(below=layout.path)
            else:
                await self._make_room(queue, nbytes)
        if self.journal.is_shared:  # should this host fail, another one may take over the journal
            await self.journal.sync_soon()

    async def _append(
        self, array: Array, queue: ShardQueue, change: ChunkChange, content: Content, own: OwnVersion | None
    ) -> bool:
        """Append a change to the journal, and let it be pending; returns False if it has to wait for room."""
        nbytes = content.nbytes
        if not queue.changes:
            await self.source.writable.check_writable(queue.key)
        change.supersedes(await array.note(change.coords))
        async with self.journal.appending:
            if not self.admission.admits(queue, change, nbytes):
                return False
            self.commits.supersede(queue, change)
            if nbytes > _IN_LOOP_NBYTES:
                await trio.to_thread.run_sync(self.journal.append, change, content)
            else:
                self.journal.append(change, content)
            self.commits.add(queue, change)
            if own is not None:  # without a wait in between: nobody may see one without the other
                self.source.shards.generations.own(array.layout, change.coords, own)
            self.source.statistics.published += 1
        return True

    async def _make_room(self, queue: ShardQueue, nbytes: int) -> None:
        """Wait until a commit, or carrying records forward, has made room in the journal for *nbytes* more.

        If neither can, raises what prevents the commit of the shard of *queue*; of other shards, only that they take
        the room.
        """
        commits = self.commits
        if commits.is_busy or any(queue.error is None for queue in commits.pending):
            before = commits.npending
            await commits.wait_for_room()
            if commits.npending >= before and not self.admission.has_room(nbytes):
                await self._clean()
            return
        if not await self._clean() and not self.admission.has_room(nbytes):
            raise self._full(queue).with_traceback(None)

    def _full(self, queue: ShardQueue) -> ShardfsError:
        """Return the error that there is no space for a shard."""
        errors = [queue.error for queue in self.commits.failing if queue.error is not None]
        of_store = (error for error in errors if isinstance(error, NoSpaceError | UnreachableError))
        why = f"and cannot be committed: {errors[0]}" if errors else "and no commit finishes; unmount and mount again"
        return queue.error or next(of_store, NoSpaceError(f"the journal is full, {why}"))

    async def _clean(self) -> bool:
        """Carry live records forward while enough of the journal is dead; returns whether it became smaller."""
        before = self.journal.nbytes
        try:
            for _ in range(self.journal.nsegments):
                if self.journal.dead_nbytes < before * _WORTH:
                    break
                async with self.journal.appending:
                    await trio.to_thread.run_sync(self.journal.carry_forward)
        except ShardfsError as error:
            log.error("%s is not made smaller: %s", self.journal.where, error)  # noqa: TRY400
        return self.journal.nbytes < before
