"""A source with everything that reads it: what each command and each mount starts from."""

from dataclasses import dataclass

from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.shard_cache import ShardCache
from shardfs.dataset.statistics import Statistics
from shardfs.stores.base import Store


@dataclass(frozen=True, eq=False)
class Source:
    """A store, the shards that are open, and the nodes that are known.  Compared by identity."""

    store: Store
    statistics: Statistics
    shards: ShardCache
    hierarchy: Hierarchy

    @classmethod
    def of(cls, store: Store, *, ttl: float | None = None, max_open: int = 512) -> "Source":
        """Read *store*, trusting what was seen for *ttl* seconds, by default as long as it does."""
        ttl = store.ttl if ttl is None else ttl
        statistics = Statistics()
        shards = ShardCache(store, ttl=ttl, statistics=statistics, max_open=max_open)
        return cls(store, statistics, shards, Hierarchy(store, shards, ttl=ttl))
