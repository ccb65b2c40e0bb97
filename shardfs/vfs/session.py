"""The life of a writing mount: the journal is replayed, used, and emptied."""

import logging

import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.recovery import describe_damage, open_journal, recover_command, replay
from shardfs.dataset.state.directory import StateDirectory, shown
from shardfs.dataset.state.slots import slots_of
from shardfs.dataset.writer import Writer
from shardfs.errors import ConflictError, ShardfsError, StoreError, counted
from shardfs.stores.base import join_key
from shardfs.stores.local.syscalls import SYSCALLS, Syscalls
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.views import View
from shardfs.vfs.writable import WritableFilesystem

log = logging.getLogger(__name__)


class Session:
    """What a writing mount has in addition to a read-only one.

    The caller holds the lock of the directory *state*, which contains the journal. *view* is an `EditableView`.
    *single_writer*: the user says that nobody else writes to the source. Raises `StoreError` for a journal that cannot
    be read.
    """

    def __init__(
        self,
        source: Source,
        view: View,
        chunk_cache: ChunkCache,
        state: StateDirectory,
        chunks_per_shard: tuple[int, ...] | None = None,
        auto_compact: float | None = None,
        *,
        single_writer: bool = False,
        disk: Syscalls = SYSCALLS,
    ) -> None:
        self.source = source
        self.state = state
        self._single_writer = single_writer
        self.is_stuck = False  # the last commit failed for another reason than conflicts, and the next one may, too
        self._contents, self.journal = open_journal(state.journal, disk)
        self._aside, self.conflicts = open_journal(state.conflicts, disk)
        self.writer = Writer(source, self.journal, self.conflicts, auto_compact=auto_compact)
        self.fs = WritableFilesystem(
            source.writable,
            source.hierarchy,
            view,
            chunk_cache,
            ttl=source.store.ttl,
            scratch=state.scratch_key,
            writer=self.writer,
            buffers=state.drafts,
            copies=state.drafts_key,
            orphans=state.staged_key,
            chunks_per_shard=chunks_per_shard,
        )

    async def start(self) -> str | None:
        """Replay what earlier mounts published and did not commit; return the problems found.

        Raises `StoreError` if a chunk that this view passes through as a file cannot be committed: programs would not
        see it, and its commit would replace what they write.
        """
        await self.source.writable.start_writing(self.state.root, single_writer=self._single_writer)
        for draft in await self.source.store.list(self.state.drafts_key):  # by a mount that was killed
            await self.source.writable.unlink(join_key(self.state.drafts_key, draft.name))
        for directory, contents in ((self.state.journal, self._contents), (self.state.conflicts, self._aside)):
            for damage in contents.damage:
                log.error("%s", describe_damage(directory, damage))
        recovery = await replay(self.source, self._contents, self.writer.commits)
        if recovery.pending:
            log.info("committing %s of an earlier mount", counted(len(recovery.pending), "chunk"))
        await self.fs.orphans.resume()
        await self.commit()
        hidden = [queue for queue in self.writer.commits.pending if queue.layout.grid.is_unsharded]
        if hidden and not self.source.hierarchy.takes_unsharded:
            why = hidden[0].error or f"{hidden[0].key} changes all the time"
            raise StoreError(f"what was published in the view v2 must be committed before this view is mounted: {why}")
        found = [counted(len(recovery.conflicts), "conflict")] if recovery.conflicts else []
        found += ["damage"] if self._contents.damage or self._aside.damage else []
        problems = [f"its journal has {' and '.join(found)}"] if found else []
        for slot in slots_of(self.source.store):
            left = slot.state.left() if slot.state != self.state and not slot.is_in_use else []
            if left:
                whose = f"{' and '.join(left)}, of {slot.holder or 'a mount that was killed'}"
                problems.append(f"{slot.state.root} has {whose}, which this mount does not show")
                log.warning("%s", problems[-1])
        return f"{'; '.join(problems)}; see `{recover_command(self.source.store.address)}`" if problems else None

    async def commit(self) -> bool:
        """Do what `WritableFilesystem.settle` does; return whether all of it succeeded. Failures are logged."""
        settled = await self.fs.settle()
        if isinstance(settled.commit, ConflictError):  # what does not fit is in the conflict journal
            log.error("%s: %s", self.source.store.url, settled.commit)
        elif settled.commit is not None:
            where = shown(self.state.journal)
            is_gone = self.journal.has_vanished
            rest = "is lost with the journal" if is_gone else "stays in the journal, for the next mount"
            log.error("what is pending %s: %s (%s)", rest, settled.commit, where)
        for error in settled.documents:
            log.error("what programs removed stays in %s: %s", self.source.store.url, error)
        if settled.files is not None:
            log.error("what was written stays on this machine, in %s: %s", self.state.root, settled.files)
        self.is_stuck = any(not isinstance(error, ConflictError) for error in settled.errors)
        return not settled.errors

    async def finish(self, *, commit: bool = True) -> bool:
        """Commit everything and close the journal; return whether that succeeded. Failures are logged.

        Without *commit*, because that has just failed, pending changes stay for the next mount.
        """
        is_committed = commit and await self.commit()
        for journal in (self.journal, self.conflicts):
            try:
                await trio.to_thread.run_sync(journal.close)
            except ShardfsError as error:
                log.error("the journal in %s is left as it is: %s", journal.where, error)  # noqa: TRY400
                is_committed = False
        return is_committed
