"""Counts of what an S3 store did, for `shardfs stats` and for tests that assert exact numbers."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Running counts; *requests* by S3 operation ("GetObject", "ListObjectsV2", ...), each attempt counted.

    *conflicts* are conditions that did not hold, *retries* the attempts beyond each first.
    """

    requests: Counter[str] = field(default_factory=Counter)
    bytes_received: int = 0
    bytes_sent: int = 0
    retries: int = 0
    conflicts: int = 0
    cache_hits: int = 0
    cache_bytes: int = 0
    cache_damaged: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the counts as plain values."""
        return {
            "requests": dict(sorted(self.requests.items())),
            "bytes_received": self.bytes_received,
            "bytes_sent": self.bytes_sent,
            "retries": self.retries,
            "conflicts": self.conflicts,
            "cache_hits": self.cache_hits,
            "cache_bytes": self.cache_bytes,
            "cache_damaged": self.cache_damaged,
        }
