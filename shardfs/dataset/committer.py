"""Commits: what is pending is brought into its shards, each with one append or written new as a whole."""

import logging
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final

import trio

from shardfs.dataset.backoff import Backoff
from shardfs.dataset.commit import BATCH, Commit, Commits, batches
from shardfs.dataset.conflict_log import ConflictLog
from shardfs.dataset.hierarchy import DOCUMENT, is_below
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.queue import Change, ShardPending
from shardfs.dataset.room import MAX_PENDING, Key, Room
from shardfs.dataset.shard import index_place
from shardfs.dataset.source import Source
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Put
from shardfs.errors import ConflictError, LockedError, ShardfsError, StoreError, UnreachableError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, Edit, join_key

log = logging.getLogger(__name__)

_IDLE: Final = 2.0
_SMALL_IDLE: Final = 30.0
"""Seconds for which a shard has not been written before it is committed, and if its payload is less than its index."""

_RETRY: Final = 5.0
_PAUSE: Final = 0.25
_ATTEMPTS: Final = 24
_FULL: Final = 0.5  # of the journal: then shards are committed that are not idle


class Committer(Room):
    """The pending changes of a source, on their way into shards.

    `run` belongs to a nursery of the caller; without it, nothing is committed but by `flush`.  Shards that were
    appended to are compacted when nothing is pending, from the share *auto_compact* of dead bytes on.
    """

    def __init__(
        self, source: Source, journal: WriteAheadLog, conflicts: WriteAheadLog, *, auto_compact: float | None = None
    ) -> None:
        super().__init__(Commits(source, journal), journal)
        self.conflict_log = ConflictLog(source.hierarchy, conflicts, self.commits)
        self._source = source
        self._backoff: Backoff[Key] = Backoff()
        self._locked: dict[Key, float] = {}  # since when other programs were found to have the lock of a shard
        self._unreachable: UnreachableError | None = None  # in the commit under way
        self._auto_compact = auto_compact
        self._appended: dict[Key, None] = {}
        self._begun: set[Key] = set()
        self._next = math.inf  # when `run` looks again by itself
        self._work = trio.Lock()

    def add(self, array: ArrayLayout, shard: Coords, change: Change) -> None:
        """Take in a change that was published; the one that it replaces need not be committed any more."""
        before = array.pending.add(shard, change, trio.current_time())
        if before is None:
            self._npending += 1
        else:
            self._journal.supersede(before.sequence, change.sequence)
        self._queue.setdefault((array, shard))
        if self._due_at((array, shard)) < self._next or self._is_urgent():
            self._wanted.set()

    def busy(self, array: ArrayLayout, shard: Coords) -> trio.Event | None:
        """Return what tells when the change of a shard that is under way is done; None if there is none.

        Nothing is published in the shard meanwhile: the entries that it would supersede are about to change.
        """
        return self._busy.get((array, shard))

    async def run(self) -> None:
        """Commit what is due, for as long as this is not cancelled."""
        while True:
            self._next = self._next_time()
            with trio.move_on_at(self._next) as idle:
                await self._wanted.wait()
            self._wanted = trio.Event()
            due = self._due()
            with trio.CancelScope(shield=True):  # half a commit would be left in the journal
                if due:
                    await self._commit(due)
                elif idle.cancelled_caught and self._appended and not self._queue:
                    await self._compact(next(iter(self._appended)))

    async def flush(self, array: ArrayLayout | None = None, *, below: str | None = None) -> None:
        """Commit all that is pending now: of *array*, of the arrays at and below the path *below*, or of the source.

        What is published meanwhile need not be.  Raises what keeps it from being committed; what is pending stays so.
        Raises `ConflictError` if something did not fit its array any more and was put aside.
        """
        last, nput_aside = self._journal.last_sequence, self.conflict_log.count
        for _ in range(_ATTEMPTS):
            wanted = [
                key
                for key in self._queue
                if (array is None or key[0] is array)
                and (below is None or is_below(key[0].path, below))
                and _is_older(key, last)
            ]
            if not wanted:
                if self.conflict_log.count > nput_aside:
                    raise ConflictError(
                        f"{self.conflict_log.count - nput_aside} chunks were put aside: their arrays were changed by "
                        "another program; `shardfs recover` shows them"
                    )
                return
            await self._backoff.wait(wanted)
            for key in wanted:
                self._locked.pop(key, None)  # who asks for it is patient once more
            await self._commit(wanted)
            async with trio.open_nursery() as nursery:
                for key in wanted:
                    if key in self._locked and key not in self._failures:
                        nursery.start_soon(self._commit_when_unlocked, key)
            for key in wanted:
                if key in self._failures:
                    raise self._failures[key][0].with_traceback(None)
        raise StoreError("shards are changed by another program again and again; what is pending stays so")

    async def rewrite(
        self,
        array: ArrayLayout,
        shard: Coords,
        contents: Mapping[Coords, Content | None] | None,
        *,
        compact: bool = False,
    ) -> None:
        """Change chunks of one shard for which there are no records, or make it *compact*.

        Without *contents* the shard goes, whatever is in it.  What is pending for the shard was committed before.
        """
        for _ in range(_ATTEMPTS):
            try:
                # Whoever waits for the lock of another program keeps nobody waiting.
                async with self._edit((array, shard)) as edit, self._work, self._alone((array, shard)):
                    if compact and shard in array.pending.shards:
                        return  # what is pending names entries that would move; its commit is followed by another turn
                    if edit.snapshot is not None:
                        job = await self.commits.plan(array, shard, contents, (), edit, compact=compact)
                        await self.commits.announce([job])
                        await self.commits.release(await self.commits.execute(job))
            except ConflictError as error:
                log.info("%s; once more", error)
                self._backoff.note((array, shard))
                await self._backoff.wait([(array, shard)])
            else:
                self._backoff.forget((array, shard))
                return
        raise StoreError(f"{array.shard_key(shard)} is changed by another program again and again")

    async def _compact(self, key: Key) -> None:
        """Compact a shard that was appended to, if so much of it is dead by now."""
        del self._appended[key]
        array, shard = key
        try:
            opened = (await self._source.shards.state(array, shard, fresh=True)).shard
            if opened is None or opened.decoded is not None or self._auto_compact is None:
                return
            index = opened.index
            if index.shard_nbytes - index.live_nbytes >= self._auto_compact * index.shard_nbytes:
                await self.rewrite(array, shard, {}, compact=True)
        except ShardfsError as error:
            log.error("%s is not compacted: %s", array.shard_key(shard), error)  # noqa: TRY400

    async def _commit_when_unlocked(self, key: Key) -> None:
        """Wait for the lock of a shard, while others are written and committed, and commit it."""
        with self._failing(key):
            async with self._edit(key) as edit:
                if edit.snapshot is not None:
                    await self._commit([key], edit)
                    return
            await self._commit([key])  # the edit of a new file has to know its owner

    async def _commit(self, keys: Sequence[Key], edit: Edit | None = None) -> None:
        """Commit shards; with *edit*, it is one shard, which that has locked."""
        async with self._work:
            self._unreachable = None
            for batch in batches(keys):
                await self._commit_batch(batch, edit)
                self._progress.set()
                self._progress = trio.Event()

    async def _commit_batch(self, keys: Sequence[Key], edit: Edit | None) -> None:
        """Commit some shards, which share one sync of the journal."""
        for path in {array.path for array, _ in keys}:
            self._source.store.forget(join_key(path, DOCUMENT))  # another host may have changed it a moment ago
        async with AsyncExitStack() as stack:
            jobs: list[Commit] = []
            locked: set[str] = set()
            for key in keys:
                pending = key[0].pending.shards.get(key[1])
                if pending is None:
                    self._queue.pop(key, None)
                    continue
                if self._unreachable is not None:  # the others would take as long to fail, one after the other
                    self._fail(key, self._unreachable)
                    continue
                stored_key = key[0].shard_key(key[1])
                if stored_key in locked:
                    continue  # the same file, by the document of before a resize: it stays in the queue, and comes next
                locked.add(stored_key)
                await stack.enter_async_context(self._alone(key))
                with self._failing(key):
                    job = await self._prepare(key, pending, stack, edit)
                    if job is not None:
                        jobs.append(job)
            try:
                await self.commits.announce(jobs)
            except ShardfsError as error:
                for job in jobs:
                    self._fail((job.array, job.shard), error)
                return
            # A remote store, and a disk that syncs many small files, take their time for each.
            alone: list[Commit] = []
            at_once: list[Commit] = []
            for job in jobs:
                (at_once if self._source.store.rewrites or job.array.grid.is_unsharded else alone).append(job)
            for job in alone:
                await self._execute(job)
            async with trio.open_nursery() as nursery:
                for job in at_once:
                    nursery.start_soon(self._execute, job)

    async def _execute(self, job: Commit) -> None:
        with self._failing((job.array, job.shard)):
            undo = await self.commits.execute(job)
            self._note_append(job)
            await self._forget(job.array, job.shard, job.records, *undo)

    @asynccontextmanager
    async def _alone(self, key: Key) -> AsyncIterator[None]:
        """Keep everybody from publishing in a shard."""
        async with (
            self.commits.lock
        ):  # who publishes at this moment has seen the entries as they are, and is waited for
            event = self._busy[key] = trio.Event()
        try:
            yield
        finally:
            del self._busy[key]
            event.set()

    async def _prepare(
        self, key: Key, pending: ShardPending, edits: AsyncExitStack, edit: Edit | None
    ) -> Commit | None:
        """Lock a shard and plan its next version; None if there is nothing to do."""
        array, shard = key
        records, conflicts = await self.conflict_log.sort_out(array, pending)
        if conflicts:
            await self._forget(array, shard, conflicts)
        if not records:
            return None
        first = next((record for record in records if isinstance(record, Put)), None)
        owner = {} if first is None else {"mode": first.mode, "uid": first.uid, "gid": first.gid}
        if edit is None:
            now = trio.current_time()
            edit = await edits.enter_async_context(self._edit(key, now - self._locked.get(key, now), **owner))
        self._locked.pop(key, None)
        if edit.snapshot is None and first is None:
            await self._forget(array, shard, records)
            return None
        contents = {record.coords: record.payload if isinstance(record, Put) else None for record in records}
        return await self.commits.plan(array, shard, contents, records, edit)

    @asynccontextmanager
    async def _edit(self, key: Key, waited: float | None = None, **owner: int) -> AsyncIterator[Edit]:
        array, shard = key
        await self.commits.settle(array.shard_key(shard), waited)
        place = index_place(array.grid.levels[0], array.grid.index_shape(shard))
        async with self._source.store.edit(array.shard_key(shard), **place, **owner, waited=waited) as edit:
            yield edit

    def _note_append(self, job: Commit) -> None:
        """Remember a shard that was appended to, to compact it."""
        if self._auto_compact is None or job.array.grid.is_unsharded:
            return
        key = (job.array, job.shard)
        # Where no chunk was ever seen at the beginning, the bytes there may be another format's: they stay.
        if job.old is None or job.old.index.first_live_byte == 0 or job.array.grid.levels[0].index_at_start:
            self._begun.add(key)
        if job.assembly.is_append and key in self._begun:
            self._appended[key] = None
            self._wanted.set()  # `run` counts from now on for how long nothing happens

    async def _forget(self, array: ArrayLayout, shard: Coords, records: Sequence[Change], *more: int) -> None:
        for record in records:
            array.pending.remove(shard, record)
        self._npending -= len(records)
        self._failures.pop((array, shard), None)
        self._backoff.forget((array, shard))
        self._locked.pop((array, shard), None)
        if shard not in array.pending.shards:
            self._queue.pop((array, shard), None)
        await self.commits.release([*(record.sequence for record in records), *more])

    @contextmanager
    def _failing(self, key: Key) -> Iterator[None]:
        """Note an error in the block as the reason why a shard is not committed; a conflict is tried again at once."""
        try:
            yield
        except ConflictError as error:
            if isinstance(error, LockedError):
                self._locked.setdefault(key, trio.current_time())
            log.info("%s; its next commit takes it as it is then", error)
            self._failures.pop(key, None)  # an earlier one is not why
            self._backoff.note(key)
        except ShardfsError as error:
            if isinstance(error, UnreachableError):
                self._unreachable = error
            self._fail(key, error)

    def _fail(self, key: Key, error: ShardfsError) -> None:
        pending = key[0].pending.shards.get(key[1])
        if pending is None:  # they were committed, and only the journal failed then
            log.error("%s is committed, which the journal does not know: %s", key[0].shard_key(key[1]), error)
            return
        stored_key = key[0].shard_key(key[1])
        if stored_key not in str(error):
            error = type(error)(f"{stored_key}: {error}")
        log.error("%d chunks stay pending: %s", len(pending.changes), error)
        self._failures[key] = error, trio.current_time() + _RETRY
        self._room_at_failure = self._journal.room()

    def _is_urgent(self) -> bool:
        """Whether shards are committed that are not idle.

        Somebody may wait for room though little is live: one old record keeps its segment and all behind it.
        """
        if self._nwaiting or self._journal.is_full:
            return True
        return self._journal.live_nbytes > _FULL * self._journal.max_nbytes or self._npending > _FULL * MAX_PENDING

    def _due_at(self, key: Key) -> float:
        """Return when a shard is to be committed, if nothing is published in it until then."""
        array, shard = key
        pending = array.pending.shards[shard]
        if key in self._failures:
            return self._failures[key][1]
        if (again_at := self._backoff.again_at(key)) is not None:
            return again_at
        index_nbytes = array.grid.index_nbytes(shard)
        return pending.touched + (_IDLE if pending.payload_nbytes >= index_nbytes else _SMALL_IDLE)

    def _next_time(self) -> float:
        now = trio.current_time()
        if self._appended and not self._queue:
            return now + _IDLE
        return max(now + _PAUSE, min(map(self._due_at, self._queue), default=math.inf))

    def _due(self) -> Sequence[Key]:
        now = trio.current_time()
        due = [key for key in self._queue if self._due_at(key) <= now]
        if due or not self._is_urgent():
            return due
        ready = [key for key in self._queue if key not in self._failures]
        full = [key for key in ready if len(key[0].pending.shards[key[1]].changes) == key[0].grid.nchunks_of(key[1])]
        return full or ready[: max(BATCH, len(ready) // 2)]


def _is_older(key: Key, last: int) -> bool:
    """Whether something of a shard is pending that is not behind the record *last*."""
    pending = key[0].pending.shards.get(key[1])
    return pending is None or any(change.sequence <= last for change in pending.changes.values())
