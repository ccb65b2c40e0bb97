"""Group commit: pending changes are brought into their shards, by one append or one new version per shard.

The order of steps makes a commit safe. The undo record and the payloads are durable in the journal before the shard is
touched, and the shard is durable before the journal forgets them. What cannot be undone with certainty stays in the
journal.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.beside import Judge, Others
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.records import ChunkChange, Put, Shrink, UndoRecord
from shardfs.dataset.journal.undo import disarmed, has_not_begun, take_back
from shardfs.dataset.layout import ArrayLayout, Aside, ShardQueue
from shardfs.dataset.node import DOCUMENT
from shardfs.dataset.path_table import is_below
from shardfs.dataset.planning import CommitPlanner, ShardCommit
from shardfs.dataset.schedule import BATCH, PAUSE, Growth, Schedule, batches
from shardfs.dataset.shard import index_location
from shardfs.dataset.syncing import make_durable, try_to_make_durable
from shardfs.errors import (
    ConflictError,
    CorruptionError,
    LockedError,
    ShardfsError,
    StaleError,
    StoreError,
    UnreachableError,
    counted,
    first_of,
)
from shardfs.format.sharding import Coords
from shardfs.stores.base import Content, ObjectEdit, join_key
from shardfs.stores.parallel import QuickLock

log = logging.getLogger(__name__)

MAX_PENDING: Final = 100_000
_FULL: Final = 0.5  # of the journal, or of `MAX_PENDING`: beyond that, shards that are not idle are committed too
_ATTEMPTS: Final = 24
_MAX_TOLD: Final = 10  # conflicts that are named


Plan = Callable[[], Awaitable[Mapping[Coords, Content | None] | None]]
"""Returns new contents of chunks of a shard, or None to remove the shard."""


class GroupCommit:
    """The pending changes of a source, and the commits that bring them into shards.

    `run` runs in a nursery of the caller; without it, only `flush` commits. A shard is not appended to, but compacted,
    if at least the share *auto_compact* of its bytes would be dead. What the *others* left is taken over when a shard
    is found as a killed process left it.
    """

    def __init__(
        self,
        source: Source,
        journal: Journal,
        conflicts: Journal,
        *,
        auto_compact: float | None = None,
        others: Others | None = None,
    ) -> None:
        self.journal = journal
        self.conflicts = conflicts  # the conflict journal, for `shardfs recover`
        self.pending = Schedule()
        self.failing: dict[ShardQueue, None] = {}  # those of `pending` that have an error
        self._full: dict[ShardQueue, None] = {}  # those of `pending` that are full; perhaps not by a later layout
        self.npending = 0
        self._nwaiting = 0  # waiting for room in the journal
        self.room_at_failure = 0  # bytes free on the disk of the journal when a commit last failed
        self.wanted = trio.Event()  # wakes `run`
        self.progress = trio.Event()  # set and replaced after each batch, and each change of a shard
        self._source = source
        self._queues: WeakValueDictionary[str, ShardQueue] = WeakValueDictionary()  # by the key of the shard
        self._committing = trio.Lock()  # one batch, or change of a shard, at a time
        self._superseded: set[str] = set()  # keys of what may not be durable, where something was published over it
        self._syncing = QuickLock()
        self._next = math.inf  # when `run` wakes up by itself
        # By the key of the shard: of a commit that is under way, or whose outcome is not known, until the next one.
        self.undos: dict[str, UndoRecord] = {}
        self.planner = CommitPlanner(source, auto_compact)
        self._others = others
        self._interrupted: set[str] = set()  # keys of shards that were found so since the last commit of each
        self._must_take_over = False
        self._judges: dict[int, tuple[ChunkChange, Judge]] = {}  # of changes that an earlier process has published
        self.growth = Growth()
        self.aside = Aside()

    @property
    def is_busy(self) -> bool:
        """Whether `progress` will be set though nothing may be pending."""
        return self._committing.locked()

    def queue(self, layout: ArrayLayout, shard: Coords) -> ShardQueue:
        """Return the queue of a shard: one object for as long as anything is pending in it, or somebody uses it."""
        key = layout.shard_key(shard)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ShardQueue(layout, shard, key)
        return queue

    async def array_now(self, path: str) -> Array | None:
        """Return the array at *path* as it is stored now; None if there is none."""
        return await self._source.hierarchy.array(path, fresh=True)

    async def wait_for_room(self) -> None:
        """Wait for the end of a batch, and let shards that are not idle be committed until then."""
        self._nwaiting += 1
        self.wanted.set()
        try:
            await self.progress.wait()
        finally:
            self._nwaiting -= 1

    def pending_below(self, path: str) -> Sequence[ShardQueue]:
        """Return the shards with pending changes in arrays at and below *path*."""
        return [queue for queue in self.pending if is_below(queue.layout.path, path)]

    def supersede(self, queue: ShardQueue, change: ChunkChange) -> None:
        """Note that *change* is about to be published over what is stored of a shard.

        Its record names what it supersedes. If a power cut takes that, and leaves the record, somebody else seems to
        have changed the chunk. What our own commits have stored is durable; all else `sync_soon` makes durable.
        """
        is_ours = self._source.shards.generations.known(queue.layout, queue.shard).is_ours
        last = next(reversed(queue.changes.values()), None)
        is_new = last is None or last.superseded != change.superseded
        if is_new and not is_ours and not self._source.store.rewrites:
            self._superseded.add(queue.key)

    async def sync_soon(self) -> None:
        """Make durable what was published so far, after all that it supersedes; raises the errors of `Journal.sync`."""
        async with self._syncing:  # until what others have begun to make durable is
            keys, self._superseded = self._superseded, set()
            try:
                # What cannot be made durable is not waited for: it can become a conflict, and no more.
                await try_to_make_durable(self._source.writable, keys)
            except BaseException:
                self._superseded |= keys
                raise
        await self.journal.sync_soon()

    def add_again(self, queue: ShardQueue, change: ChunkChange, judge: Judge) -> None:
        """Add a change that an earlier process has published.

        Others may have changed the chunk meanwhile, and may until it is committed: *judge* is asked under the lock.
        """
        self._judges[id(change)] = change, judge
        self.add(queue, change)

    def add(self, queue: ShardQueue, change: ChunkChange) -> None:
        """Add a published change; the change that it replaces need not be committed any more."""
        before = queue.add(change)
        if before is None:
            self.npending += 1
        else:
            self._judges.pop(id(before), None)
        self.growth.hurry(queue, change)
        self.pending.add(queue)
        if queue.is_full:
            self._full[queue] = None
        if queue.due_at < self._next or self._is_urgent():
            self.wanted.set()

    async def run(self) -> None:
        """Commit what is due, until cancelled."""
        while True:
            self._next = max(trio.current_time() + PAUSE, self.pending.first_at())
            with trio.move_on_at(self._next):
                await self.wanted.wait()
            self.wanted = trio.Event()
            await self._commit(self._due())

    async def flush(self, *, below: str = "") -> None:
        """Commit what is pending now in arrays at and below the path *below*.

        Changes published meanwhile need not be included. Raises the error that prevents a commit; what is pending stays
        pending. Raises `ConflictError` if a change no longer fits its array and was put into the conflict journal; that
        another program changed a shard first is no error, and the commit is tried again.
        """
        naside = self.aside.count
        attempts = _ATTEMPTS
        asked = {queue: [*queue.changes.values()] for queue in self.pending_below(below)}
        for queue in asked:
            queue.be_patient()
        failure: ShardfsError | None = None
        while attempts:
            wanted = [queue for queue, changes in asked.items() if queue.has_any(changes)]
            if not wanted:
                if failure is not None:
                    raise failure.with_traceback(None)
                if self.aside.count > naside:
                    self.aside.check(below)
                return
            await trio.sleep_until(max(q.retry_at or 0.0 if q.error is None else 0.0 for q in wanted))
            await self._commit(wanted)
            for queue in wanted:
                if queue.error is not None:  # the others are tried until they are committed
                    failure = failure or queue.error
                    del asked[queue]
            if not any(queue.locked_since is not None for queue in wanted):  # for locks it waits by time
                attempts -= 1
        if failure is not None:
            raise failure.with_traceback(None)
        raise StoreError("another program keeps changing the shards; the changes stay pending")

    async def rewrite(
        self,
        layout: ArrayLayout,
        shard: Coords,
        plan: Plan | None = None,
        *,
        ends: bool = False,
    ) -> bool:
        """Change chunks of one shard without records, after a flush.

        *plan* returns the new contents, or None to remove the shard; it is asked while nobody else can change that.
        Without it, the shard is rewritten without dead bytes. If its array *ends*, one to be removed is, also where a
        store cannot make that depend on its version.

        Returns False, and changes nothing, if changes of the shard are pending: whoever finds this commit done takes
        all that was published before for stored. Without a *plan*, it also does if other sessions have pending changes,
        which would name entries that move.
        """
        queue = self.queue(layout, shard)
        attempts, begun = _ATTEMPTS, trio.current_time()
        while attempts:
            try:
                waited = trio.current_time() - begun
                async with self._turn(), queue.lock, self._edit(queue, layout, waited) as edit:
                    beside = await self._others_have_pending()
                    if queue.changes or (plan is None and beside and layout.grid.is_appended_to):
                        return False
                    if edit.was_interrupted:
                        self._note_interrupted(queue, "a process was killed while it changed it")
                    contents = {} if plan is None else await plan()
                    if edit.snapshot is not None and (contents != {} or plan is None):
                        commit = await self.planner.plan(
                            queue, layout, contents, (), edit, compact=plan is None, keep=beside, ends=ends
                        )
                        await self._announce([commit])
                        await self._store(commit)
                        await edit.release()
                        await self.journal.release_soon(self._pop_undo(queue))
            except (ConflictError, StaleError) as error:
                queue.give_way(error)
                self.pending.update(queue)
                attempts -= not isinstance(error, LockedError)
                log.info("%s; trying again", error)
                await self._take_over()
                await trio.sleep_until(queue.retry_at or 0.0)
            else:
                self._interrupted.discard(queue.key)
                self._succeed(queue)
                return True
        queue.got_lock()
        raise StoreError(f"{queue.key} is changed over and over by another program")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._committing:
            try:
                with trio.CancelScope(shield=True):  # else half a commit would be left in the journal
                    yield
            finally:
                self.progress.set()
                self.progress = trio.Event()
        await self._take_over()

    async def _take_over(self) -> None:
        """Take over what dead sessions left, if a shard was found as one of them left it."""
        if self._must_take_over and self._others is not None:
            self._must_take_over = False
            await self._others.take_over()

    async def _commit(self, queues: Sequence[ShardQueue]) -> None:
        unreachable: list[UnreachableError] = []
        for batch in batches(queues):
            async with self._turn():
                await self._commit_batch(batch, unreachable)
        if queues and not self.pending:
            try:
                await self.journal.empty_soon()
            except ShardfsError as error:
                log.error("the journal in %s stays though nothing is pending: %s", self.journal.where, error)  # noqa: TRY400

    async def _commit_batch(self, queues: Sequence[ShardQueue], unreachable: list[UnreachableError]) -> None:
        """Commit some shards, which share one sync of the journal; none if the store is found *unreachable*.

        First each is locked and planned, then all are announced in the journal, then each is stored. All stay locked
        until the end, so nobody publishes in them meanwhile; who reads finds the changes pending.
        """
        for path in {queue.layout.path for queue in queues}:
            self._source.store.forget(join_key(path, DOCUMENT))  # another host may just have changed it
        beside = await self._others_have_pending()
        async with AsyncExitStack() as stack:
            commits: list[ShardCommit] = []
            for queue in queues:
                if not queue.changes:
                    self._succeed(queue)
                elif unreachable:  # it would take just as long to fail
                    self._fail(queue, unreachable[0])
                else:
                    await stack.enter_async_context(queue.lock)
                    with self._noting_failure(queue, unreachable):
                        commit = await self._prepare(queue, stack, keep=beside)
                        if commit is not None:
                            commits.append(commit)
            try:
                await self._announce(commits)
            except ShardfsError as error:
                for commit in commits:
                    self._fail(commit.queue, error)
                return
            # A remote store, or a disk that syncs many small files, takes long for each.
            async with trio.open_nursery() as nursery:
                for commit in commits:
                    if self._source.store.rewrites or commit.layout.grid.is_unsharded:
                        nursery.start_soon(self._execute, commit, unreachable)
                    else:
                        await self._execute(commit, unreachable)
            # The last thing to go: they tell of locks that are left, too.
            done = [commit for commit in commits if not commit.queue.has_any(commit.records)]
            try:
                await self.journal.release_soon([undo for commit in done for undo in self._pop_undo(commit.queue)])
            except ShardfsError as error:
                log.error("what is committed could not be noted in the journal: %s", error)  # noqa: TRY400

    async def _prepare(self, queue: ShardQueue, edits: AsyncExitStack, *, keep: bool) -> ShardCommit | None:
        """Lock a shard and plan its next version; None if there is nothing to do. *keep* is that of `plan`."""
        array = await self._source.hierarchy.array(queue.layout.path, fresh=True)
        records = await self._fitting(queue, array)
        if array is None or not records:
            return None
        first = next((record for record in records if isinstance(record, Put)), None)
        # A journal may come with a dataset, so its contents must not decide whose files we create.
        owner = {} if first is None else {"mode": first.mode & 0o777, "uid": first.uid, "gid": first.gid}
        async with AsyncExitStack() as own:
            since = trio.current_time() if queue.locked_since is None else queue.locked_since
            waited = trio.current_time() - since
            edit = await own.enter_async_context(self._edit(queue, array.layout, waited, **owner))
            queue.got_lock()
            await self._look_again(queue, array, edit)
            stored, outdated = await self._judge_again(records, edit)
            if stored:
                await make_durable(self._source.writable, queue.key)
            if not stored and not outdated and (edit.snapshot is not None or first is not None):
                contents = {record.coords: record.payload if isinstance(record, Put) else None for record in records}
                try:
                    commit = await self.planner.plan(queue, array.layout, contents, records, edit, keep=keep)
                except CorruptionError as error:
                    self._note_interrupted(queue, str(error))
                    raise
                await edits.enter_async_context(own.pop_all())
                return commit
        # Without the lock: no record would tell who left it.
        if outdated:
            await self._put_outdated_aside(queue, outdated, "of chunks that another program has changed since")
        if stored or not outdated:
            await self._finish(queue, stored or records)
        return None

    async def _look_again(self, queue: ShardQueue, array: Array, edit: ObjectEdit) -> None:
        """Raise `StaleError` if a shard, whose lock is held, was left by a killed session, or its *array* changed."""
        if edit.was_interrupted:
            self._note_interrupted(queue, "a process was killed while it changed it")
        if self._source.store.rewrites:
            return  # a version that is expected says nothing of the document either
        now = await self._source.hierarchy.array(queue.layout.path, fresh=True)
        if now is None or (now.layout, now.fingerprint) != (array.layout, array.fingerprint):
            raise StaleError(f"{queue.key}: its array was changed meanwhile")

    def _note_interrupted(self, queue: ShardQueue, why: str) -> None:
        """Raise `StaleError` when a shard is first found as a killed process may have left it.

        What dead sessions left is taken over before it is tried again.
        """
        if self._others is not None and queue.key not in self._interrupted:
            self._interrupted.add(queue.key)
            self._must_take_over = True
            raise StaleError(f"{queue.key}: {why}; first, what ended sessions left is taken over")

    async def _judge_again(
        self, records: Sequence[ChunkChange], edit: ObjectEdit
    ) -> tuple[Sequence[ChunkChange], Sequence[ChunkChange]]:
        """Return which of *records*, if an earlier process has published them, are stored, and which do not fit.

        Raises `CorruptionError` if that cannot be told until another session has undone what it has torn.
        """
        stored: list[ChunkChange] = []
        outdated: list[ChunkChange] = []
        for record in records:
            judged = self._judges.get(id(record))
            try:
                fits = await judged[1]() if judged is not None else True
            except CorruptionError:
                if edit.was_interrupted:
                    raise
                fits = False
            if fits is not True:
                (stored if fits is None else outdated).append(record)
        return stored, outdated

    async def _put_outdated_aside(self, queue: ShardQueue, changes: Sequence[ChunkChange], why: str) -> None:
        """Put changes of a shard into the conflict journal."""
        log.error(
            "kept %s of %s, %s; `shardfs recover` shows them: %s",
            counted(len(changes), "chunk"),
            queue.layout.path or "the array",
            why,
            first_of(["/".join(map(str, change.coords)) for change in changes], _MAX_TOLD),
        )
        await self.put_aside(changes)
        self.aside.add(queue.layout.path, len(changes))
        await self._finish(queue, changes)

    async def _fitting(self, queue: ShardQueue, array: Array | None) -> Sequence[ChunkChange]:
        """Return the changes of a shard that still fit their *array*; the others go into the conflict journal."""
        fitting: list[ChunkChange] = []
        conflicts: list[ChunkChange] = []
        for change in queue.changes.values():
            fits = array is not None and change.fingerprint == array.fingerprint and array.grid.contains(change.coords)
            (fitting if fits else conflicts).append(change)
        if conflicts:
            why = "published for metadata that another program has changed or removed"
            await self._put_outdated_aside(queue, conflicts, why)
        return fitting

    async def put_aside(self, changes: Sequence[ChunkChange | Shrink]) -> None:
        """Put changes durably into the conflict journal, and release their records in the journal."""
        if not changes:
            return

        def write() -> None:
            for change in changes:
                self.conflicts.copy(change)
            self.conflicts.sync()

        if not self.journal.has_vanished:
            await self.sync_soon()  # else a power cut might bring back what they replaced, as a later conflict
        async with self.journal.appending:
            await trio.to_thread.run_sync(write)
        await self.journal.release_soon(changes)

    @asynccontextmanager
    async def _edit(
        self, queue: ShardQueue, layout: ArrayLayout, waited: float, **owner: int
    ) -> AsyncIterator[ObjectEdit]:
        self.journal.require_active()
        undo = self.undos.get(queue.key)
        if undo is not None and undo.inode:  # an attempt failed, here or in an earlier process
            await take_back(self._source, self.journal, undo, waited=waited)
            del self.undos[queue.key]
        grid = layout.grid
        location = index_location(grid.levels[0], grid.index_shape(queue.shard))
        async with self._source.writable.edit(queue.key, **location, **owner, waited=waited) as edit:
            yield edit

    async def _others_have_pending(self) -> bool:
        return self._others is not None and await self._others.have_pending()

    async def _announce(self, commits: Sequence[ShardCommit]) -> None:
        """Make undo records and payloads durable before the shards are changed.

        If that fails, an undo record may be durable all the same: its shard is left for the next attempt to settle.
        """
        if not commits or self.journal.has_vanished:
            return  # changes that are in no journal any more are safer in their shard, whatever happens to this process
        undos: list[UndoRecord] = []
        try:
            async with self.journal.appending:
                for commit in commits:
                    undos.append(self.journal.append(commit.undo))
                self.undos |= {undo.key: undo for undo in undos}
            await self.sync_soon()
        except ShardfsError:
            is_armed = True
            try:
                if len(undos) < len(commits):  # else all are in the journal, and may be durable
                    await self.journal.release_soon(undos)
                    is_armed = not self.journal.has_recorded_releases
            finally:
                for commit in commits:
                    if commit.undo.inode and is_armed:
                        commit.edit.leave()
            raise

    async def _execute(self, commit: ShardCommit, unreachable: list[UnreachableError]) -> None:
        with self._noting_failure(commit.queue, unreachable):
            await self._store(commit)
            await self._finish(commit.queue, commit.records)  # before others have the shard
            if self.journal.is_shared or (self._others is not None and self._others.nlive):
                await self.journal.sync_soon()  # else what is released might be made again, over what they store then
            await commit.edit.release()

    async def _store(self, commit: ShardCommit) -> None:
        """Store the next version of a shard."""
        statistics, shards, edit = self._source.statistics, self._source.shards, commit.edit
        layout, shard = commit.layout, commit.queue.shard
        with shards.generations.changing(layout, shard, edit.snapshot.stat if edit.snapshot is not None else None):
            try:
                stat = None
                if commit.new.splice is not None:
                    is_free = self._others.require_none_pending if commit.moves and self._others is not None else None
                    stat = await edit.splice(commit.new.splice, is_free)
                    statistics.committed_bytes += commit.new.splice.changed_nbytes
                else:
                    await edit.delete()
            except ShardfsError as error:
                await self._give_up(commit, error)
                raise
            shards.generations.committed(layout, shard, stat)
        statistics.commits += 1
        statistics.last_commit_timestamp_seconds = time.time()
        statistics.committed_chunks += commit.nchunks

    async def _give_up(self, commit: ShardCommit, error: ShardfsError) -> None:
        """Give up a commit that failed with *error*.

        A shard that durably is as it was may be changed by others now. Any other that was to be appended to in place is
        left for the next attempt to settle, and nobody may append to it until then.
        """
        edit, undo = commit.edit, self.undos.get(commit.queue.key)
        if isinstance(error, ConflictError) or await has_not_begun(self._source, commit.undo):
            if undo is not None:
                try:
                    if not isinstance(error, ConflictError):
                        await make_durable(self._source.writable, commit.queue.key)
                    undo = await disarmed(self.journal, undo)
                except ShardfsError:
                    edit.leave()
                    raise
                del self.undos[commit.queue.key]
                await edit.release()
                await self.journal.release_soon([undo])
        elif commit.undo.inode:
            edit.leave()

    def _pop_undo(self, queue: ShardQueue) -> list[UndoRecord]:
        """Forget the undo record of a shard whose commit ended; returns it, if there is one, to be released."""
        return [self.undos.pop(queue.key)] if queue.key in self.undos else []

    async def _finish(self, queue: ShardQueue, records: Sequence[ChunkChange]) -> None:
        """Note that *records* are in the shard, or kept elsewhere."""
        queue.remove(records)
        self.npending -= len(records)
        self._interrupted.discard(queue.key)
        for record in records if self._judges else ():
            self._judges.pop(id(record), None)
        self._succeed(queue)
        await self.journal.release_soon(records)

    def _succeed(self, queue: ShardQueue) -> None:
        """Note that nothing prevents a shard from being committed, or that it has nothing to commit any more."""
        queue.succeed()
        self.failing.pop(queue, None)
        if queue.changes:
            self.pending.update(queue)
        else:
            self.pending.remove(queue)
        if not queue.is_full:
            self._full.pop(queue, None)

    @contextmanager
    def _noting_failure(self, queue: ShardQueue, unreachable: list[UnreachableError]) -> Iterator[None]:
        """Note an error in the block as the reason why a shard is not committed; conflicts are retried at once."""
        try:
            yield
        except (ConflictError, StaleError) as error:
            log.info("%s; the next commit starts from the new version", error)
            queue.give_way(error)
            self.failing.pop(queue, None)
            self.pending.update(queue)
        except ShardfsError as error:
            if isinstance(error, UnreachableError):
                unreachable.append(error)
            self._fail(queue, error)

    def _fail(self, queue: ShardQueue, error: ShardfsError) -> None:
        if not queue.changes:  # they were committed, or put aside as conflicts, before the journal failed
            log.error("%s has nothing pending, but that could not be noted in the journal: %s", queue.key, error)
            return
        if queue.key not in str(error):
            error = type(error)(f"{queue.key}: {error}")
        log.error("%s still pending: %s", counted(len(queue.changes), "chunk"), error)
        queue.fail(error)
        self.pending.update(queue)
        if queue.due_at < self._next:
            self.wanted.set()
        self.failing[queue] = None
        self.room_at_failure = self.journal.room()

    def _is_urgent(self) -> bool:
        """Whether shards that are not idle are committed too.

        Somebody may wait for room though little is live: one old record keeps its segment and all later ones.
        """
        journal = self.journal
        if self._nwaiting or self.npending > _FULL * MAX_PENDING or journal.live_nbytes > _FULL * journal.max_nbytes:
            return True
        return journal.is_full

    def _due(self) -> Sequence[ShardQueue]:
        now = trio.current_time()
        due = self.pending.due(now)
        self.growth.committed(due, now)
        if due or not self._is_urgent():
            return due

        def is_ready(queue: ShardQueue) -> bool:
            return queue.error is None and (queue.retry_at or now) <= now

        full = [queue for queue in self._full if queue.is_full and is_ready(queue)]
        return full or [*islice(filter(is_ready, self.pending), max(BATCH, len(self.pending) // 2))]
