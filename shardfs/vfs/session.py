"""A tree that may be written to, from its start to its end: the journal is replayed, used, and emptied."""

import logging
from collections.abc import Sequence

import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.state import StateDirectory, shown
from shardfs.dataset.wal.recovery import bring_home, log_damage, open_log, recover_command, replay
from shardfs.dataset.writer import Writer
from shardfs.errors import ConflictError, ShardfsError, counted
from shardfs.stores.local.syscalls import SYSCALLS, Syscalls
from shardfs.vfs.changes import Changes
from shardfs.vfs.filesystem import Filesystem

log = logging.getLogger(__name__)


class Session:
    """What a writing mount has that a read-only one has not.

    The caller holds the lock of the directory *state*, which has the journal, and those of *left*, directories that
    killed mounts of the source left.  *fs* has an `EditableView`.  *single_writer*: the user says that nobody else
    writes to the source.  Raises `StoreError` for a journal that cannot be read.
    """

    def __init__(
        self,
        source: Source,
        fs: Filesystem,
        state: StateDirectory,
        chunks_per_shard: tuple[int, ...] | None = None,
        auto_compact: float | None = None,
        *,
        left: Sequence[StateDirectory] = (),
        single_writer: bool = False,
        disk: Syscalls = SYSCALLS,
    ) -> None:
        self.source = source
        self.state = state
        self._left = left
        self._single_writer = single_writer
        self._contents, self.journal = open_log(state.journal, disk)
        self._aside, self.conflicts = open_log(state.conflicts, disk)
        self.writer = Writer(source, self.journal, self.conflicts, auto_compact=auto_compact)
        self.changes = Changes(
            fs,
            self.writer,
            buffers=state.drafts,
            copies=state.drafts_key,
            orphans=state.staged_key,
            chunks_per_shard=chunks_per_shard,
        )

    async def start(self) -> str | None:
        """Bring into the store what earlier mounts published and did not commit; return what is wrong with it."""
        await self.source.store.start_writing(self.state.root, single_writer=self._single_writer)
        await bring_home(self.source.store, self._left)
        log_damage(self.state.journal, self._contents)
        log_damage(self.state.conflicts, self._aside)
        recovery = await replay(self.source, self._contents, self.writer.commits)
        if recovery.pending:
            log.info("committing %s of an earlier mount", counted(len(recovery.pending), "chunk"))
        await self.changes.orphans.resume()
        await self.commit()
        count = len(recovery.conflicts)
        found = [f"{count} conflict{'' if count == 1 else 's'}"] if count else []
        found += ["damage"] if self._contents.damage or self._aside.damage else []
        return (
            f"its journal has {' and '.join(found)}; see `{recover_command(self.source.store.address)}`"
            if found
            else None
        )

    async def run(self) -> None:
        """Commit what is due, for as long as this is not cancelled."""
        await self.writer.commits.run()

    async def commit(self) -> bool:
        """Commit and store everything that is pending; return whether that succeeded, as the log says if not."""
        is_committed = True
        try:
            await self.writer.commits.flush()
        except ConflictError as error:
            log.error("%s: %s", self.source.store.url, error)  # noqa: TRY400
            is_committed = False
        except ShardfsError as error:
            where = shown(self.state.journal)
            log.error("what is pending stays in the journal, for the next mount: %s (%s)", error, where)  # noqa: TRY400
            is_committed = False
        try:
            await self.source.store.flush()
        except ShardfsError as error:
            where = self.state.root
            log.error("what was written stays on this machine, in %s: %s", where, error)  # noqa: TRY400
            is_committed = False
        return is_committed

    async def finish(self, *, commit: bool = True) -> bool:
        """Commit everything, and let go of the journal; return whether that succeeded, as the log says if not.

        Without *commit*, where that has failed a moment ago, what is pending stays for the next mount.
        """
        is_committed = commit and await self.commit()
        for journal in (self.journal, self.conflicts):
            try:
                await trio.to_thread.run_sync(journal.close)
            except ShardfsError as error:
                log.error("the journal in %s is left as it is: %s", journal.where, error)  # noqa: TRY400
                is_committed = False
        return is_committed
