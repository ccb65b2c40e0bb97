"""The other sessions of a source: live ones are asked to commit, and what dead ones published is taken over.

What a dead session left is judged and committed apart from the changes of this session, with nodes and shards of its
own, as `shardfs recover` does; this session sees the result as that of another program.
"""

import errno
import gc
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Final

import trio

from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.recovery import describe_damage, opened, read_left, replay
from shardfs.dataset.journal.undo import undo_commits
from shardfs.dataset.path_table import is_below
from shardfs.dataset.state.asking import Answer, Asked, Question
from shardfs.dataset.state.directory import StateDirectory
from shardfs.dataset.state.entering import refusal
from shardfs.dataset.state.holding import TAKES_OVER, taken_over
from shardfs.dataset.state.roots import root_of
from shardfs.dataset.state.slots import Slot, slots_in
from shardfs.errors import ConflictError, ReadOnlyError, ShardfsError, StoreError, counted
from shardfs.stores.parallel import QuickLock, open_nursery

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.02
"""How often whoever waits for an answer looks for it."""

_IDLE_SECONDS: Final = 1.0
_BUSY_SECONDS, _SHARED_SECONDS = 0.05, 0.25
"""How often requests are looked for: if nothing is pending here, nobody asks. Looks at what hosts share cost more."""

_SEEN_SECONDS: Final = 30.0
_DONE_SECONDS: Final = 120.0
"""How long a session may make no progress before it has seen a request, and after that."""

_WATCH_SECONDS: Final = 10.0
"""How often slots of dead sessions are looked for."""

_AGAIN_SECONDS: Final = 1.0
"""How long after one is first seen that of another host is looked at again: if it was refused, it is gone by then."""

_MAX_ANSWERS: Final = 64  # commits that other sessions ask for, at a time


@asynccontextmanager
async def _held(slot: Slot) -> AsyncIterator[StateDirectory | None]:
    """Hold the slot of a dead session, if it has anything pending; None if it has not, or is not to be had any more."""
    with ExitStack() as held:

        def hold() -> StateDirectory | None:
            state = held.enter_context(taken_over(slot))
            return state if state is not None and state.has_pending() else None

        try:
            yield await trio.to_thread.run_sync(hold)
        finally:
            # Errors that came from threads keep files of the journal open, which NFS does not remove until they are
            # closed: the slot could not be removed.
            gc.collect()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(held.close)


async def take_over(source: Source, slot: Slot) -> bool:
    """Commit what a dead session of this user published; returns False if another process does so.

    What does not fit goes to the conflict journal of its slot, and what cannot be committed stays in its journal.
    Raises the error that prevents a commit.
    """
    async with _held(slot) as state:
        if state is not None:
            await _commit_left(Source.of(source.writable, ttl=0.0), state)
        return state is not None


async def _commit_left(source: Source, state: StateDirectory) -> None:
    async with opened(source, state, SessionsBeside(source, state)) as (contents, commits):
        for damage in contents.damage:
            log.error("%s", describe_damage(state.journal, damage))
        recovery = await replay(source, contents, commits)
        if recovery.pending:
            who = f"a session that ended, in {state.root}/{state.key}"
            log.info("committing %s of %s", counted(len(recovery.pending), "chunk"), who)
        try:
            await commits.flush()
        except ConflictError as error:  # they are kept
            log.error("%s: %s", source.store.url, error)  # noqa: TRY400


async def undo(source: Source, slot: Slot) -> None:
    """Undo what a dead session of this user has torn; what it published is judged after all is undone."""
    async with _held(slot) as state:
        if state is not None:
            await _undo_left(Source.of(source.writable, ttl=0.0), state)


async def _undo_left(source: Source, state: StateDirectory) -> None:
    async with opened(source, state) as (contents, commits):
        await undo_commits(source, contents, commits.journal)


class SessionsBeside:
    """All sessions of *source* but that in the slot *own*, for whoever only has to know of them."""

    def __init__(self, source: Source, own: StateDirectory) -> None:
        self._source = source
        self._own = own
        self.nlive = 0
        """How many of them were alive at the last look."""

    async def slots(self) -> Sequence[Slot]:
        """Return the slots of the others, dead or alive."""
        slots = await trio.to_thread.run_sync(self._slots, abandon_on_cancel=True)
        self.nlive = sum(slot.is_in_use for slot in slots)
        return slots

    def _slots(self) -> Sequence[Slot]:
        """Look at the slots; blocks, perhaps for long where hosts share files."""
        return [slot for slot in slots_in(root_of(self._source.store)) if slot.state != self._own]

    async def have_pending(self) -> bool:
        """Whether one of them may have published changes that are not committed."""
        try:
            slots = await self.slots()
            return any([await _has_pending(slot.state) for slot in slots if slot.counts])
        except ShardfsError:  # it cannot be told
            return True

    def require_none_pending(self) -> None:
        """Raise `ConflictError` if one of them may have published changes that are not committed; blocks."""
        if any(slot.counts and slot.state.has_pending() for slot in self._slots()):
            raise ConflictError("other sessions have published what is not committed yet")

    async def take_over(self) -> None:
        """Do nothing: what they left is for sessions, which this is none."""


async def _has_pending(state: StateDirectory) -> bool:
    return await trio.to_thread.run_sync(state.has_pending, abandon_on_cancel=True)


class OtherSessions(SessionsBeside):
    """All sessions of *source* but that in the slot *own*, a session that asks them and takes over what they left."""

    def __init__(self, source: Source, own: StateDirectory) -> None:
        super().__init__(source, own)
        self._asked = Asked(own)
        self._taking = QuickLock()
        self._logged: dict[str, str] = {}  # by slot: why it could not be taken over
        self._doubtful: dict[StateDirectory, Slot] = {}  # those of other hosts that may write, at the last look
        self._reason = ""  # why nothing may be written, at the last look

    async def flush(self, *, below: str | None = None) -> Sequence[ShardfsError]:
        """Let what the others have published until now be committed; returns an error for each that did not do it.

        With *below*, only what they published in arrays at and below that path counts. What dead sessions of other
        users left is up to these: it is named when a session starts.
        """
        errors: list[ShardfsError] = []

        async def flush(slot: Slot) -> None:
            try:
                await self._flush(slot, below)
            except ShardfsError as error:
                if await trio.to_thread.run_sync(_concerns, slot, below):
                    errors.append(error)

        try:
            wanted = [slot for slot in await self.slots() if slot.counts and (slot.is_in_use or slot.can_be_taken)]
        except ShardfsError as error:
            return [error]
        async with open_nursery() as nursery:
            for slot in wanted:
                nursery.start_soon(flush, slot)
        return errors

    async def undo(self) -> None:
        """Undo what dead sessions have torn, before anybody judges what others published in the same shards."""
        for slot in await self._slots_or_none():
            try:
                if slot.can_be_taken and await _has_pending(slot.state):
                    async with self._taking:
                        self._require_active()
                        await undo(self._source, slot)
            except ShardfsError as error:
                self._log(slot.state.key, error)

    async def take_over(self) -> None:
        """Take over the slots of this user's dead sessions, or wait for who does; what prevents it is logged."""
        slots = [slot for slot in await self._slots_or_none() if slot.can_be_taken or _is_taken_over(slot)]
        if len(slots) > 1:
            await self.undo()
        for slot in slots:
            try:
                await self._flush(slot)
            except ShardfsError as error:
                self._log(slot.state.key, error)
            else:
                self._logged.pop(slot.state.key, None)

    async def _slots_or_none(self) -> Sequence[Slot]:
        """Return the slots of the others; what prevents looking at them is logged."""
        try:
            return await self.slots()
        except ShardfsError as error:
            self._log("", error)
            return []

    def _log(self, key: str, error: ShardfsError) -> None:
        """Log what prevents a slot from being taken over, once."""
        if self._logged.get(key) != str(error):
            log.error("what a session that ended left stays in its slot, %s: %s", key or "which cannot be read", error)
        self._logged[key] = str(error)

    async def watch(self, suspend: Callable[[str], None]) -> None:
        """Take over what sessions leave that die, until cancelled.

        *suspend* is told at each look why nothing may be written: a session of another host has come, of which nobody
        can tell whether it is alive, and whose locks may not reach. It is told "" if there is none, or none any more.
        """
        while True:
            await trio.sleep(_AGAIN_SECONDS if self._doubtful else _WATCH_SECONDS)
            try:
                self._reason = await self._reason_to_wait()
                suspend(self._reason)
            except ShardfsError as error:
                self._log("", error)
            await self.take_over()

    async def _reason_to_wait(self) -> str:
        store, before = self._source.store, self._doubtful
        if store.root is None:
            return ""
        slots = await self.slots()
        doubts = await trio.to_thread.run_sync(lambda: [_is_in_doubt(slot) for slot in slots], abandon_on_cancel=True)
        self._doubtful = {slot.state: slot for slot, is_doubtful in zip(slots, doubts, strict=True) if is_doubtful}
        for state, slot in self._doubtful.items():
            if state in before:
                return refusal(f"{store.url} is", state, slot.holder)
        return ""

    async def answer(self, commits: GroupCommit, commit: Callable[[str | None], Awaitable[str | None]]) -> None:
        """Call *commit* whenever another session asks for it, until cancelled; it returns what prevents it.

        It gets the path that is asked for, or None for all; no path waits for another, of at most `_MAX_ANSWERS` at a
        time. *commits* has what is pending here.
        """
        nfree = _MAX_ANSWERS

        async def answer(below: str | None, tokens: Sequence[str]) -> None:
            nonlocal nfree
            nfree -= 1
            try:
                reason = await commit(below)
                await trio.to_thread.run_sync(self._asked.answer, tokens, reason)
            finally:
                nfree += 1

        async with open_nursery() as nursery:
            while True:
                with trio.move_on_after(_IDLE_SECONDS):
                    await commits.pending.until_any()
                await trio.sleep(_SHARED_SECONDS if commits.journal.is_shared else _BUSY_SECONDS)
                asked = await trio.to_thread.run_sync(self._asked.take, nfree)
                for below in {*asked.values()}:
                    nursery.start_soon(answer, below, [token for token, path in asked.items() if path == below])

    async def _take_over(self, slot: Slot) -> bool:
        async with self._taking:  # one at a time: each may take as much memory as a session
            self._require_active()
            try:
                return await take_over(self._source, slot)
            finally:
                self._source.shards.distrust()  # else what was published is not seen here at once

    def _require_active(self) -> None:
        """Raise `ReadOnlyError` while nothing may be written."""
        if self._reason:
            raise ReadOnlyError(f"nothing is written for now: {self._reason}")

    async def _flush(self, slot: Slot, below: str | None = None) -> None:
        """Let what is in the slot of another session be committed: by that one, by whoever takes it over, or here."""
        state, begun = slot.state, trio.current_time()
        while await _has_pending(state):
            if slot.is_in_use and not _is_taken_over(slot):
                if not await self._ask(slot, below):
                    return
            elif slot.can_be_taken:
                is_tried = await self._take_over(slot)
                if not await _has_pending(state):
                    return
                if is_tried:
                    raise StoreError(f"{state.root}/{state.key} has what cannot be committed now; the log says why")
            elif not slot.is_in_use:
                return  # it is up to another user
            if trio.current_time() - begun > _DONE_SECONDS:
                raise StoreError(f"{state.root}/{state.key} still has chunks that are not committed, of {slot.holder}")
            await trio.sleep(_LOOK_SECONDS)
            slots = [other for other in await self.slots() if other.state == state]
            if not slots:
                return
            slot = slots[0]

    async def _ask(self, slot: Slot, below: str | None) -> bool:
        """Ask the session of a slot to commit all, or what is below a path; whether it turns out to be dead."""
        question = Question(slot, below)
        who = f"{slot.holder} ({slot.state.root}/{slot.state.key})"
        try:
            await trio.to_thread.run_sync(question.ask)
            answer = await self._wait(question)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):  # it has ended meanwhile
                return True
            raise StoreError(f"{who} cannot be asked to commit what it published: {error.strerror}") from None
        except StoreError as error:
            raise StoreError(f"{who}: {error}") from None
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(question.end)
        if answer in (Answer.NONE, Answer.SEEN):
            what = "does not answer, so what it published is not in the shards yet"
            raise StoreError(f"{who} {what}; let it go on, or end it, which loses nothing, and flush again")
        return answer is Answer.DEAD

    async def _wait(self, question: Question) -> Answer:
        """Return the answer to a question, the last one if there is no progress for too long."""
        begun, before = trio.current_time(), question.progress
        while True:
            answer = await trio.to_thread.run_sync(question.look)
            if answer in (Answer.DONE, Answer.DEAD):
                return answer
            if question.progress != before:
                begun, before = trio.current_time(), question.progress
            if trio.current_time() - begun > (_SEEN_SECONDS if answer is Answer.NONE else _DONE_SECONDS):
                return answer
            await trio.sleep(_LOOK_SECONDS)


def _is_taken_over(slot: Slot) -> bool:
    """Whether another process takes over what a dead session left."""
    return slot.is_in_use and slot.holder is not None and slot.holder.door == TAKES_OVER


def _concerns(slot: Slot, below: str | None) -> bool:
    """Whether what is pending in a slot is, or may be, of an array at or below a path, if that is given; blocks."""
    if below is None or not slot.is_ours:  # of which only its user can read the journal
        return True
    journal = slot.state.journal
    try:
        names = _names_in(journal)
        contents = read_left(journal)
        # Else a record may just have been carried to another file of a living session, which was not read.
        is_whole = not contents.damage and names == _names_in(journal)
    except (OSError, ShardfsError):
        return True
    return not is_whole or any(is_below(record.path, below) for record in contents.records)


def _names_in(directory: str) -> set[str]:
    with suppress(FileNotFoundError):
        return {*os.listdir(directory)}
    return set()


def _is_in_doubt(slot: Slot) -> bool:
    try:
        return slot.is_in_doubt()
    except ShardfsError:  # its journal cannot be read
        return True
