"""Waiting for the end of a daemon that was unmounted, and what it leaves: told by the disk, and by nobody's word."""

import os
import select
import time
from collections.abc import Callable
from typing import Final

from shardfs.dataset.slots import kept_files
from shardfs.dataset.source_lock import find_holder
from shardfs.dataset.state import StateDirectory
from shardfs.dataset.wal.records import Erase, Put
from shardfs.dataset.wal.takeover import read_left
from shardfs.errors import ShardfsError, StoreError, UnfinishedError

_STEP_SECONDS: Final = 0.1
_FIRST_WORD_SECONDS: Final = 5.0
_NEXT_WORD_SECONDS: Final = 30.0


class Ending:
    """The end of the daemon behind the mount at *path*, made before it is unmounted.

    *process* is a descriptor of the daemon, None if none is seen from here; *state* is what it writes in, None if that
    cannot be seen from here, or if it writes nothing, and then *source* is None, too.
    """

    def __init__(
        self,
        path: str,
        process: int | None,
        log: str | None,
        state: StateDirectory | None,
        *,
        source: str | None = None,
    ) -> None:
        self._path = path
        self._log = log
        self._state = state
        self._hidden = source if state is None else None
        self._process = process
        self._poll = select.poll()
        if process is not None:
            self._poll.register(process, select.POLLIN)
        self._aside = _nbytes(state.conflicts) if state is not None else 0
        self._kept = len(kept_files(state, in_use=True)) if state is not None else 0

    def wait(self, timeout: float, say: Callable[[str], None]) -> None:
        """Return when the daemon is gone; raises `UnfinishedError` if it gets nothing done for *timeout* seconds."""
        moved = time.monotonic()
        next_word = moved + min(_FIRST_WORD_SECONDS, timeout / 2)
        seen = self._look()
        while not self._has_ended():
            now = time.monotonic()
            if (look := self._look()) != seen:
                seen, moved = look, now
            if now >= moved + timeout:
                raise UnfinishedError(
                    f"{self._path} is unmounted, but its daemon{self._who()} is not done, and got nothing done for "
                    f"{timeout:g} s{self._left('; ')}; it goes on, and what it cannot finish stays in the journal, for "
                    f"the next mount with --write or `shardfs recover`{self._why()}"
                )
            if now >= next_word:
                say(f"{self._path}: waiting for the daemon{self._who()} to end{self._left('; ')}")
                next_word = now + _NEXT_WORD_SECONDS

    def check(self) -> None:
        """Raise `StoreError` if not everything that was written is in the shards, `UnfinishedError` if nobody can tell.

        That is so where a daemon writes what cannot be seen from here, as in another container.
        """
        if self._hidden is not None:
            raise UnfinishedError(
                f"{self._path} is unmounted, but {self._hidden}, which its daemon writes, cannot be seen from here: it "
                "may write on, and what it cannot finish stays in the journal there, for the next mount with --write "
                f"or `shardfs recover`{self._why()}"
            )
        if left := self._left(""):
            raise StoreError(
                f"{self._path} is unmounted, but not everything is in the shards ({left}): it stays in the journal, "
                f"for the next mount with --write or `shardfs recover`{self._why()}"
            )
        if self._state is not None and _nbytes(self._state.conflicts) > self._aside:
            raise StoreError(
                f"{self._path} is unmounted, but not everything is in the shards: some chunks did not fit their arrays "
                "any more, which another program had changed, and were put aside; `shardfs recover` shows them"
                f"{self._why()}"
            )
        if self._state is not None and len(kept_files(self._state)) > self._kept:
            raise StoreError(
                f"{self._path} is unmounted, but not every file could be stored; `shardfs recover` shows those that "
                f"are kept on this machine{self._why()}"
            )

    def _has_ended(self) -> bool:
        """Whether the daemon is gone, at the latest a moment from now."""
        if self._process is not None:
            return bool(self._poll.poll(1000 * _STEP_SECONDS))
        if self._state is None or find_holder(self._state, locks_reach=False) is None:
            return True
        time.sleep(_STEP_SECONDS)
        return False

    def _look(self) -> object:
        """Return what changes when the daemon gets something done."""
        if self._state is None:
            return None
        return _sizes(self._state.journal), _sizes(self._state.spools)

    def _left(self, before: str) -> str:
        """Return what is not in the store yet, for people, behind *before*; nothing if there is nothing."""
        if self._state is None:
            return ""
        parts = []
        try:
            changes = (record for record in read_left(self._state.journal).records if isinstance(record, Put | Erase))
            if nchunks := len({(change.path, change.coords) for change in changes}):
                parts.append(f"{nchunks:,} chunks not in their shards" if nchunks > 1 else "1 chunk not in its shard")
        except ShardfsError as error:
            parts.append(f"a journal that cannot be read: {error}")
        return before + " and ".join(parts) if parts else ""

    def _who(self) -> str:
        if self._process is None:
            return ""
        with open(f"/proc/self/fdinfo/{self._process}") as lines:
            pid = next((line.split()[1] for line in lines if line.startswith("Pid:")), "")
        return f", process {pid}," if pid else ""

    def _why(self) -> str:
        return f"; {self._log} says why" if self._log is not None else "; its log says why"


def _sizes(directory: str) -> dict[str, int]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    except OSError:
        return {}


def _nbytes(directory: str) -> int:
    return sum(_sizes(directory).values())
