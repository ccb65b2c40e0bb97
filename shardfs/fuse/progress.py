"""The progress of a mount with what was written to it, in words."""

from collections import deque
from typing import Final

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.errors import counted, size

_NSNAPSHOTS: Final = 16  # for the rate: those of the last fifteen seconds, if there is one each second


class CommitProgress:
    """What is pending, how fast it is committed, and why it waits, from the latest snapshots."""

    def __init__(self) -> None:
        self._seen: deque[StatisticsSnapshot] = deque(maxlen=_NSNAPSHOTS)

    def describe(self, snapshot: StatisticsSnapshot) -> str:
        """Add a snapshot, and return the progress in words."""
        self._seen.append(snapshot)
        return "; ".join(part for part in (pending(snapshot), self._rate(snapshot), snapshot.pending_reason) if part)

    def _rate(self, last: StatisticsSnapshot) -> str:
        first = self._seen[0]
        seconds = last.uptime_seconds - first.uptime_seconds
        if seconds <= 0 or not last.pending_chunks:
            return ""
        nchunks = (last.counts.get("committed_chunks", 0) - first.counts.get("committed_chunks", 0)) / seconds
        nbytes = (stored_nbytes(last) - stored_nbytes(first)) / seconds
        left = f", {duration(last.pending_chunks / nchunks)} left" if nchunks else ""
        return f"{nchunks:,.0f} chunks and {size(nbytes)} per second{left}"


def stored_nbytes(snapshot: StatisticsSnapshot) -> float:
    """Return the bytes written to shards, or sent, including those of unfinished objects."""
    return float(snapshot.store.get("bytes_sent", snapshot.counts.get("committed_bytes", 0)))


def pending(snapshot: StatisticsSnapshot) -> str:
    """Return what is pending, in words; if that is nothing, what a flush and an end may wait for."""
    if not snapshot.pending_chunks:
        others = snapshot.other_sessions
        more = f" here; {counted(others, 'other session')} may have to commit" if others else ""
        return f"nothing is pending{more}"
    what = f"{snapshot.pending_chunks:,} chunks are" if snapshot.pending_chunks > 1 else "1 chunk is"
    age = f", since {duration(snapshot.pending_age_seconds)}" if snapshot.pending_age_seconds is not None else ""
    return f"{what} pending ({size(snapshot.pending_bytes)}{age})"


def duration(seconds: float) -> str:
    """Return a time for people, by its two largest units."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
