"""The sessions that write a source, as `shardfs mounts SOURCE` prints them."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shardfs.bulk.engine import in_session
from shardfs.cli.output import table
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.state.sessions import SessionRow, sessions_of
from shardfs.errors import shown_time, size
from shardfs.stores.url import StoreOptions


def find_sessions(
    source: str, options: StoreOptions, mounted: Mapping[tuple[int | None, str], int | None]
) -> list[dict[str, Any]]:
    """Return the sessions of a source, with what is pending in those that are mounts here.

    *mounted* has that by process and mount point: a mount point that a session names is only looked for among these.
    """

    async def look(opened: Source) -> Sequence[SessionRow]:
        return sessions_of(opened.store)

    def pending_of(row: SessionRow) -> int | None:
        return mounted.get((row.pid, row.mountpoint or "")) if row.host == socket.gethostname() else None

    return [asdict(row) | {"pending_chunks": pending_of(row)} for row in in_session(source, options, look)]


def session_table(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of sessions."""
    header = ("HOST", "PID", "USER", "DOOR", "STATE", "MOUNTPOINT", "SINCE", "JOURNAL", "PENDING", "SLOT")
    rows = []
    for row in sessions:
        since = None if row["since"] is None else shown_time(row["since"])
        names = ("host", "pid", "user", "door", "state", "mountpoint")
        cells = (*(row[name] for name in names), since, size(row["journal_nbytes"]), row["pending_chunks"], row["slot"])
        rows.append(tuple("-" if cell is None else str(cell) for cell in cells))
    return table(header, rows, right=("PID", "JOURNAL", "PENDING"), same=(), spare=("SLOT", "PENDING"))
