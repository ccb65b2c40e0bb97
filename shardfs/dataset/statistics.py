"""Counts of what a mount did, for `shardfs stats` and for tests that assert exact numbers."""

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Statistics:
    """Running counts; *requests* and *errors* by the name of the request, *bytes_read* as given to readers.

    Inner chunks are decoded for the views that show plain array bytes: *decoded_bytes* is their size then.
    """

    requests: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    index_loads: int = 0
    index_bytes: int = 0
    index_hits: int = 0
    whole_shard_decodes: int = 0
    decoded_chunks: int = 0
    decoded_bytes: int = 0
    decode_hits: int = 0
    replaced_shards: int = 0
    published: int = 0
    commits: int = 0
    committed_chunks: int = 0
    committed_bytes: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the counts as plain values."""
        counts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**counts, "requests": dict(sorted(self.requests.items())), "errors": dict(sorted(self.errors.items()))}
