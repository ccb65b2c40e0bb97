"""Room for what is published: who waits for it, how it is made, and what writers are told where there is none."""

import logging
from collections.abc import Mapping
from typing import Final

import trio

from shardfs.dataset.commit import Commits
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Payload, Put
from shardfs.errors import NoSpaceError, ShardfsError, UnreachableError
from shardfs.format.sharding import Coords

log = logging.getLogger(__name__)

MAX_PENDING: Final = 100_000
_FAILING: Final = 0.5  # of the journal: what shards that cannot be committed may take, so that others go on
_WORTH: Final = 1 / 16  # of the journal: so much must be dead to be cleaned out where there is no other way to room

Key = tuple[ArrayLayout, Coords]
"""A shard."""


class Room:
    """The shards with pending changes, those that cannot be committed, and the journal that has room for more."""

    def __init__(self, commits: Commits, journal: WriteAheadLog) -> None:
        self.commits = commits
        self._journal = journal
        self._queue: dict[Key, None] = {}
        self._failures: dict[Key, tuple[ShardfsError, float]] = {}
        self._room_at_failure = 0
        self._busy: dict[Key, trio.Event] = {}
        self._npending = 0
        self._wanted = trio.Event()
        self._progress = trio.Event()
        self._nwaiting = 0

    @property
    def npending(self) -> int:
        """Number of changes that are not in their shards yet."""
        return self._npending

    @property
    def is_failing(self) -> bool:
        """Whether there are shards that cannot be committed for now."""
        return bool(self._failures)

    def has_room(self, nbytes: int) -> bool:
        """Whether one more chunk of *nbytes* bytes may be published."""
        return self._journal.has_room(nbytes) and self._npending < MAX_PENDING

    def check_room(self) -> None:
        """Raise `NoSpaceError` if what is pending cannot be committed for want of room, and nobody made any since."""
        for error, _ in self._failures.values() if self._journal.room() <= self._room_at_failure else ():
            if isinstance(error, NoSpaceError):
                raise NoSpaceError(f"nothing more is taken until there is room: {error}")

    def check_share(self, array: ArrayLayout, shard: Coords, nbytes: int) -> None:
        """Raise what keeps a shard from being committed, if *nbytes* more for it would leave too little for others.

        Where the store as a whole does not answer there are no others, and what is written waits as long as it can.
        """
        failure = self._failures.get((array, shard))
        if failure is None or isinstance(failure[0], UnreachableError):
            return
        waiting = [array.pending.shards[shard] for array, shard in self._failures if shard in array.pending.shards]
        count = sum(len(pending.changes) for pending in waiting)
        held = sum(pending.payload_nbytes for pending in waiting)
        is_too_much = nbytes > 0 and held + nbytes > _FAILING * self._journal.limit()
        if is_too_much or count >= _FAILING * MAX_PENDING:
            raise failure[0].with_traceback(None)

    async def make_room(self, array: ArrayLayout, shard: Coords, nbytes: int) -> None:
        """Wait until something was committed, or carried forward in the journal, which had no room for *nbytes* more.

        If nothing can be, raises what keeps *shard* from being committed, and of other shards no more than that they
        take the room.
        """
        if any(key not in self._failures for key in self._queue):
            progress, before = self._progress, self._npending
            self._wanted.set()
            self._nwaiting += 1
            try:
                await progress.wait()
            finally:
                self._nwaiting -= 1
            if self._npending >= before and not self.has_room(nbytes):
                await self._clean(self._journal.nbytes * _WORTH)
            return
        if not self._queue:
            for under_way in self._busy.values():
                await under_way.wait()
                return
        if not await self._clean(self._journal.nbytes * _WORTH) and not self.has_room(nbytes):
            raise self._full((array, shard)).with_traceback(None)

    def _full(self, key: Key) -> ShardfsError:
        """Return why there is no room for the shard *key*."""
        if key in self._failures:
            return self._failures[key][0]
        errors = [error for error, _ in self._failures.values()]
        for error in errors:
            if isinstance(error, NoSpaceError | UnreachableError):  # of the whole store
                return error
        if not errors:
            return NoSpaceError("the journal is full of what no commit finishes; unmount, and mount again")
        return NoSpaceError(f"the journal is full of what cannot be committed: {errors[0]}")

    async def _clean(self, worth: float) -> bool:
        """Carry live records forward while *worth* bytes of the journal are dead; returns whether it got smaller."""
        before = self._journal.nbytes
        try:
            for _ in range(self._journal.nsegments):
                if self._journal.dead_nbytes < worth:
                    break
                await self.commits.carry_forward(self._payloads)
        except ShardfsError as error:
            log.error("%s is not made smaller: %s", self._journal.where, error)  # noqa: TRY400
        return self._journal.nbytes < before

    def _payloads(self) -> Mapping[int, Payload]:
        return {
            change.sequence: change.payload
            for array, shard in self._queue
            for change in (array.pending.shards[shard].changes.values() if shard in array.pending.shards else ())
            if isinstance(change, Put)
        }
