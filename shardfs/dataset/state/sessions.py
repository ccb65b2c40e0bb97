"""The sessions of a source, for people: who writes it, since when, and what is in their journals."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from shardfs.dataset.state.directory import SEGMENT
from shardfs.dataset.state.holder import Holder
from shardfs.dataset.state.roots import names_in
from shardfs.dataset.state.slots import Life, Slot, slots_of
from shardfs.errors import shown_time, size
from shardfs.stores.base import Reader
from shardfs.stores.local.syscalls import user_name

_STATES: Final[dict[Life, Literal["writing", "ended", "unknown"]]] = {
    Life.LIVE: "writing",
    Life.DEAD: "ended",
    Life.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session that writes a source, or has left something in its *slot*; what is not known is None.

    It is *unknown* whether one of another host still writes, if its lock may not reach. *user* is whose the slot is,
    all else is what the session has noted of itself: anybody who may have a slot may have written that. *door* says how
    it writes: `mount`, `open`, `serve`, `compact` or `recover`. *since* is in seconds since 1970. *journal_nbytes* is
    the size of its journal; how much of that is pending, only the session knows.
    """

    slot: str
    state: Literal["writing", "ended", "unknown"]
    host: str | None
    pid: int | None
    user: str
    door: str | None
    mountpoint: str | None
    since: float | None
    journal_nbytes: int

    def __str__(self) -> str:
        parts = [str(Holder(self.pid, self.host, self.user, self.mountpoint))]
        parts += [f"door {self.door}"] if self.door is not None else []
        parts += [f"since {shown_time(self.since)}"] if self.since is not None else []
        parts += [f"with {size(self.journal_nbytes)} in its journal"] if self.journal_nbytes else []
        return ", ".join(parts)


def sessions_of(store: Reader) -> Sequence[SessionRow]:
    """Return the sessions of a source; of a remote one, those of this user on this machine.

    One that has ended is among them if its journal is still there. Raises the errors of `slots_of`.
    """
    rows = map(session_in, slots_of(store))
    # Of a slot that is not known to be locked, a note without a process says that its session has ended.
    return [row for row in rows if row.journal_nbytes or row.state == "writing" or row.pid is not None]


def session_in(slot: Slot) -> SessionRow:
    """Return the session that has a slot, or had it."""
    state, holder = slot.state, slot.holder or Holder()
    return SessionRow(
        f"{state.root}/{state.key}",
        _STATES[slot.life],
        holder.host,
        holder.pid,
        user_name(slot.owner),
        holder.door,
        holder.mountpoint,
        holder.since,
        _nbytes(state.journal),
    )


def _nbytes(journal: str) -> int:
    """Return the size of the segments of a journal, as far as it can be seen."""
    total = 0
    for name in names_in(journal):
        with suppress(OSError):
            if name.endswith(SEGMENT):
                total += os.lstat(os.path.join(journal, name)).st_size
    return total
