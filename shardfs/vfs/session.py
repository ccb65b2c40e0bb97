"""The life of a tree: its source is looked at and, if it may be changed, the journal is replayed, used, and emptied."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Final

import trio

from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.recovery import (
    describe_damage,
    find_unstored,
    open_journal,
    recover_command,
    replay,
)
from shardfs.dataset.layout import Pending, pending_in
from shardfs.dataset.maintenance.others import OtherSessions
from shardfs.dataset.maintenance.walk import EMPTY, NO_ZARR, foreign_source, note_on
from shardfs.dataset.state.directory import StateDirectory, shown
from shardfs.dataset.state.holding import hold
from shardfs.dataset.state.slots import Slot
from shardfs.dataset.writer import ChunkWriter
from shardfs.errors import ConflictError, ShardfsError, SourceError, StoreError, counted, first_of
from shardfs.format.document import drafts_of
from shardfs.stores.base import Reader, join_key
from shardfs.stores.local.syscalls import SYSCALLS, Syscalls, user_name
from shardfs.stores.parallel import open_nursery
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.views import View, make_view
from shardfs.vfs.writable import WritableFilesystem

log = logging.getLogger(__name__)

_MAX_NAMED: Final = 10  # slots with leftovers


class Session:
    """A tree, *fs*, from the first look at its *source* to the end; this one is only read.

    *is_stuck*: the last commit failed for another reason than conflicts, and the next one may, too.
    """

    is_stuck = False

    def __init__(self, source: Source, fs: Filesystem) -> None:
        self.source = source
        self.fs = fs

    @property
    def writing(self) -> "WritingSession | None":
        """This session, if the tree may be changed."""
        return None

    @property
    def is_journal_gone(self) -> bool:
        """Whether somebody has removed the journal, and what was pending with it."""
        return False

    async def start(self) -> str | None:
        """Look at the source; return the problems found.

        Raises an error if it cannot be read, and `SourceError` if there is nothing to show.
        """
        await self.fs.start()
        return None

    async def run(self) -> None:
        """Commit what is due, until cancelled."""

    def pending(self) -> Pending:
        """Return what was published and is not committed."""
        return Pending()

    @property
    def nothers(self) -> int | None:
        """How many other sessions wrote the source when they were last looked for; None if this one only reads."""
        return None

    async def commit(self) -> bool:
        """Do what `WritableFilesystem.try_flush_all` does; return whether all of it succeeded. Failures are logged."""
        return True

    async def finish(self, *, commit: bool = True) -> bool:
        """Commit everything and close the journal; return whether that succeeded. Failures are logged.

        Without *commit*, because that has just failed, pending changes stay for the next session.
        """
        return commit


class WritingSession(Session):
    """The session of a tree that may be changed.

    The caller holds the slot *state*, which contains the journal. *view* is an `EditableView`. Raises `StoreError` for
    a journal that cannot be read.
    """

    fs: WritableFilesystem

    def __init__(
        self,
        source: Source,
        view: View,
        chunk_cache: ChunkCache,
        state: StateDirectory,
        options: TreeOptions,
        *,
        disk: Syscalls = SYSCALLS,
    ) -> None:
        self.state = state
        self.failure = ""
        """Why something was not committed at the last attempt."""
        self._single_writer = options.single_writer
        self._contents, self.journal = open_journal(state.journal, disk)
        self._aside, self.conflicts = open_journal(state.conflicts, disk)
        self.others = OtherSessions(source, state)
        commits = GroupCommit(
            source, self.journal, self.conflicts, auto_compact=options.auto_compact, others=self.others
        )
        self.writer = ChunkWriter(source, commits)
        super().__init__(
            source,
            WritableFilesystem(
                source.writable,
                source.hierarchy,
                view,
                chunk_cache,
                ttl=source.store.ttl,
                scratch=state.scratch_key,
                writer=self.writer,
                others=self.others,
                buffers=state.drafts,
                drafts=state.drafts_key,
                orphans=state.staged_key,
                chunks_per_shard=options.shards,
            ),
        )

    @property
    def writing(self) -> "WritingSession":
        """This session."""
        return self

    @property
    def is_journal_gone(self) -> bool:
        """Whether somebody has removed the journal, and what was pending with it."""
        return self.journal.has_vanished

    async def start(self) -> str | None:
        """Look at the source, and replay what earlier sessions published and did not commit; return the problems found.

        Raises the errors of a session that only reads, and `StoreError` if a chunk that this view passes through as a
        file cannot be committed: programs would not see it, and its commit would replace what they write.
        """
        await self.fs.start()
        await self.source.writable.start_writing(self.state.root, self.state.key, single_writer=self._single_writer)
        for draft in await self.source.store.list(self.state.drafts_key):  # by a mount that was killed
            await self.source.writable.unlink(join_key(self.state.drafts_key, draft.name))
        for directory, contents in ((self.state.journal, self._contents), (self.state.conflicts, self._aside)):
            for damage in contents.damage:
                log.error("%s", describe_damage(directory, damage))
        await self.others.undo()
        recovery = await replay(self.source, self._contents, self.writer.commits)
        if recovery.pending:
            log.info("committing %s of an earlier mount", counted(len(recovery.pending), "chunk"))
        await self.fs.orphans.resume()
        await self.commit()
        await self.others.take_over()
        hidden = [queue for queue in self.writer.commits.pending if queue.layout.grid.is_unsharded]
        if hidden and not self.source.hierarchy.takes_unsharded:
            why = hidden[0].error or f"{hidden[0].key} changes all the time"
            raise StoreError(f"what was published in the view v2 must be committed before this view is mounted: {why}")
        kept = [counted(len(recovery.conflicts), "conflict")] if recovery.conflicts else []
        kept += ["damage"] if self._contents.damage or self._aside.damage else []
        problems = [f"its journal has {' and '.join(kept)}"] if kept else []
        leftovers = [line for slot in await self.others.slots() if (line := _leftover(slot)) is not None]
        for line in leftovers[:_MAX_NAMED]:
            log.warning("%s", line)
        if leftovers:
            problems.append(first_of(leftovers, 1))
        return f"{'; '.join(problems)}; see `{recover_command(self.source.store.address)}`" if problems else None

    async def run(self) -> None:
        """Commit what is due, and what other sessions ask for or leave, until cancelled."""
        commits = self.writer.commits
        async with open_nursery() as nursery:
            nursery.start_soon(commits.run)
            nursery.start_soon(self.others.watch, self._suspend)
            nursery.start_soon(self.others.answer, commits, self._answer)

    def _suspend(self, reason: str) -> None:
        """Write nothing for now, if there is a *reason*, which is logged once."""
        if not self.journal.suspend(reason):
            return
        if reason:
            log.error("nothing is written for now, and what is pending stays in the journal: %s", reason)
        else:
            log.warning("%s is written again: the session of another host is gone", self.source.store.url)

    async def _answer(self, below: str | None) -> str | None:
        """Commit what is pending, or only that below a path, as another session has asked; return what prevents it.

        Who asks for an array is about to change it. What does not fit it any more prevents nothing: this session tells
        its own programs of that. What is still to be removed of an array that was made smaller is removed, too: it
        would be shown again if the other session makes the array larger.
        """
        errors: list[ShardfsError] = []
        if below is None:
            errors += (await self.fs.try_flush_all(for_others=True)).errors
        try:
            if below is not None:
                with suppress(ConflictError):
                    await self.writer.commits.flush(below=below)
            await self.fs.document_writer.finish_shrinks(below or "")
        except ShardfsError as error:
            errors.append(error)
        return "; ".join(map(str, errors)) or None

    def pending(self) -> Pending:
        """Return what was published and is not committed."""
        return pending_in(self.writer.commits.pending)

    @property
    def nothers(self) -> int | None:
        """How many other sessions wrote the source when they were last looked for."""
        return self.others.nlive

    async def commit(self) -> bool:
        """Do what `WritableFilesystem.try_flush_all` does; return whether all of it succeeded. Failures are logged."""
        failures = await self.fs.try_flush_all()
        if failures.conflicts is not None:
            log.error("%s: %s", self.source.store.url, failures.conflicts)
        if failures.commit is not None:
            where = shown(self.state.journal)
            is_gone = self.journal.has_vanished
            rest = "is lost with the journal" if is_gone else "stays in the journal, for the next mount"
            log.error("what is pending %s: %s (%s)", rest, failures.commit, where)
        for error in failures.documents:
            log.error("what programs removed stays in %s: %s", self.source.store.url, error)
        if failures.files is not None:
            log.error("what was written stays on this machine, in %s: %s", self.state.root, failures.files)
        self.is_stuck = any(not isinstance(error, ConflictError) for error in failures.errors)
        self.failure = next(map(str, failures.errors), "")
        return not failures.errors

    async def finish(self, *, commit: bool = True) -> bool:
        """Commit everything, close the journal, and let all other sessions commit; return whether that succeeded.

        Failures are logged. Without *commit*, because that has just failed, pending changes stay for the next session.
        """
        is_committed = commit and await self.commit()
        for journal in (self.journal, self.conflicts):
            try:
                await trio.to_thread.run_sync(journal.close)
            except ShardfsError as error:
                log.error("the journal in %s is left as it is: %s", journal.where, error)  # noqa: TRY400
                is_committed, self.failure = False, self.failure or str(error)
        # Nobody waits for this session any more, whose slot has no records that anybody could ask for.
        problems = await self.others.flush()
        for problem in problems:
            log.error("%s: %s", self.source.store.url, problem)
            self.failure = self.failure or str(problem)
        return is_committed and not problems


def _leftover(slot: Slot) -> str | None:
    """Say what is in a slot that is not shown here, and whose it is; None if nobody has to know."""
    left = slot.state.left() if not slot.is_in_use else []
    if not left:
        return None
    whose = f"a session of {user_name(slot.owner)} that ended" if slot.holder is None else str(slot.holder)
    return f"{slot.state.root}/{slot.state.key} has {' and '.join(left)}, of {whose}, which is not shown here"


@asynccontextmanager
async def open_tree(
    source: Source,
    options: TreeOptions,
    chunk_cache: ChunkCache | None = None,
    *,
    door: str | None = None,
    mountpoint: str | None = None,
) -> AsyncIterator[Session]:
    """Make the tree of *source* that *options* ask for, for the length of a block; it has not started yet.

    A tree that may be changed has a slot of the source during the block, which says by what *door* it is written, and
    at what *mountpoint* it is mounted, if it is. The caller starts the session, runs it, and finishes it.
    *chunk_cache* may be that of other trees too. Raises `SourceError` if the source is to be changed and that is not
    safe, or it can only be read.
    """
    store = source.writable if options.write else source.store
    chunk_cache = chunk_cache or ChunkCache(options.decode_cache, source.statistics)
    view = make_view(
        options.view,
        store,
        decoded=options.decode,
        separator=options.dimension_separator,
        fills_missing=options.fill_missing,
        drafts=drafts_of(options.draft),
    )
    with hold(store, door=door, mountpoint=mountpoint) if options.write else nullcontext() as state:
        if state is not None:
            session: Session = WritingSession(source, view, chunk_cache, state, options)
        else:
            session = Session(source, Filesystem(store, source.hierarchy, view, chunk_cache, ttl=store.ttl))
        try:
            yield session
        finally:
            await session.fs.worker.end()


def note_unstored(store: Reader) -> str | None:
    """Return what is published and not in the *store*, which is only read, and log it; None if nothing is."""
    unstored = find_unstored(store)
    if unstored is None:
        return None
    note = f"it has {unstored.what}, and that is not shown here: {unstored.way_out}"
    log.warning("%s: %s", store.url, note)
    return note


async def notes_on(source: Source, options: TreeOptions) -> list[str]:
    """Return what the user should know who opens *source* with *options*.

    Raises `SourceError` if it is in another format, and is to be read in a view that shows nothing of it.
    """
    store, notes = source.store, []
    foreign = foreign_source(source)
    if foreign not in (None, EMPTY, NO_ZARR) and not options.write and (options.decode or options.view == "npy"):
        raise SourceError(f"{store.url} cannot be shown in this view: {foreign}")
    unstored = note_unstored(store) if not options.write else None
    if unstored is not None:
        notes.append(unstored)
    note = await note_on(source)
    is_filled = note in (EMPTY, NO_ZARR) and options.shards is not None
    if note is not None and not is_filled:
        notes.append(note)
    return notes
