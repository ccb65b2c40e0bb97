"""Room in the journal: which change may be published now, which has to wait, and which is refused."""

from typing import Final

from shardfs.dataset.commit import MAX_PENDING, GroupCommit
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.records import ChunkChange, Put
from shardfs.dataset.layout import ShardQueue
from shardfs.errors import NoSpaceError, UnreachableError

_FAILING: Final = 0.5  # of the journal: what shards that cannot be committed may take, so that others can go on


class Admission:
    """Asked once for each change, under `Journal.appending`, so that nobody comes between the answer and the append."""

    def __init__(self, journal: Journal, commits: GroupCommit) -> None:
        self._journal = journal
        self._commits = commits

    def admits(self, queue: ShardQueue, change: ChunkChange, nbytes: int) -> bool:
        """Whether *change*, of *nbytes* bytes, may be appended for the shard of *queue*, or has to wait for commits.

        Raises the error that prevents it.
        """
        self._journal.check()
        if isinstance(change, Put):
            self.check_room()
        self._check_share(queue, nbytes)
        return self.has_room(nbytes)

    def has_room(self, nbytes: int) -> bool:
        """Whether a change of *nbytes* bytes need not wait."""
        return self._journal.has_room(nbytes) and self._commits.npending < MAX_PENDING

    def check_room(self) -> None:
        """Raise `NoSpaceError` if commits failed for lack of space, and nobody has freed any since."""
        errors = [queue.error for queue in self._commits.failing if isinstance(queue.error, NoSpaceError)]
        if errors and self._journal.room() <= self._commits.room_at_failure:
            raise NoSpaceError(f"no more writes until there is space: {errors[0]}")

    def _check_share(self, queue: ShardQueue, nbytes: int) -> None:
        """Raise the error that prevents the commit of a shard, if *nbytes* more of it would leave others too little.

        If the store as a whole does not answer, there are no others, and changes wait as long as they can.
        """
        if queue.error is None or isinstance(queue.error, UnreachableError):
            return
        failing = self._commits.failing
        held = sum(queue.payload_nbytes for queue in failing)
        is_too_much = nbytes > 0 and held + nbytes > _FAILING * self._journal.limit()
        if is_too_much or sum(len(queue.changes) for queue in failing) >= _FAILING * MAX_PENDING:
            raise queue.error.with_traceback(None)
