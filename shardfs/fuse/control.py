"""How to talk to a mount: extended attributes of its root, which no listing shows."""

from typing import Final

STATISTICS: Final = "user.shardfs.stats"
"""Counts of the mount, as JSON."""

PID: Final = "user.shardfs.pid"
"""Process id of the daemon."""

FLUSH: Final = "user.shardfs.flush"
"""Setting it commits everything that is pending; the call returns when that is in the shards."""
