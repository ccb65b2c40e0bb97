"""Where the chunks of a source are: in the grid of shards, and in a shard."""

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from shardfs.bulk.shards import look_at_shards
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.verify import Layout, ShardUse, lay_out, measure
from shardfs.dataset.maintenance.walk import (
    Progress,
    among_shards,
    array_nodes,
    no_progress,
    walk_all_shards,
    walk_shards,
    what_else,
)
from shardfs.dataset.node import Node
from shardfs.dataset.shard_listing import Strays
from shardfs.errors import ShardfsError
from shardfs.format.sharding import Coords
from shardfs.stores.parallel import for_each

_MAX_DRAWN: Final = 16
"""For how many shards of an array the layout is shown."""
_MAX_DRAWN_IN_ALL: Final = 1000
_AT_ONCE: Final = 8


@dataclass(slots=True)
class ArrayMap:
    """The stored shards of *array*, in C order, and the *layouts* of those that are drawn, None if impossible.

    *error* says why not all of them were found.
    """

    array: Array
    uses: list[tuple[Coords, ShardUse]] = field(default_factory=list)
    layouts: list[tuple[ShardUse, Layout | None]] = field(default_factory=list)
    error: str | None = None

    @property
    def path(self) -> str:
        """The name of the array for people."""
        return self.array.layout.path or "(root)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of shards along each axis."""
        return tuple(dimension.nchunks for dimension in self.array.grid.shards.dimensions)

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "path": self.array.layout.path,
            "grid": list(self.shape),
            "shards": [{**asdict(use), "dead": use.dead} for _, use in self.uses],
            "error": self.error,
        }

    def most_wasteful(self, count: int) -> list[tuple[Coords, ShardUse]]:
        """Return *count* shards: damaged ones, then those with most dead bytes."""
        return sorted(self.uses, key=lambda each: (each[1].error is None, -(each[1].dead or 0)))[:count]


class Maps(NamedTuple):
    """Maps of the source at *url*; *reasons* say by path why there is none, *instead* what is there without arrays.

    *has_unread*: programs show nodes that are not read.
    """

    url: str
    maps: list[ArrayMap]
    reasons: dict[str, str]
    instead: str | None
    has_unread: bool

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {"arrays": [array_map.as_dict() for array_map in self.maps], "not_shown": self.reasons}


async def map_source(
    source: Source,
    array: str | None = None,
    *,
    draws: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
) -> Maps:
    """Return the map of every sharded array of *source*, or of that at *array*.

    If it *draws*, with the layouts of some shards. *executor* and *jobs* are those of `run_tasks`.
    """
    maps: dict[str, ArrayMap] = {}
    reasons: dict[str, str] = {}
    unread: list[Node] = []

    async def nodes() -> AsyncIterator[Node]:
        async for node in array_nodes(source, array):
            if node.shards is not None:
                maps[node.path] = ArrayMap(node.shards)
                yield node
            else:
                unread.extend([node] if node.is_only_described else [])
                reasons[node.path] = node.reason or "it is not sharded: each chunk is a file of its own"

    def failed(path: str, error: ShardfsError) -> None:
        maps[path].error = str(error)

    def others(path: str, strays: Strays) -> None:
        reasons.update(dict.fromkeys(strays.nodes, among_shards(path)))

    shards = await look_at_shards(
        source,
        walk_all_shards(nodes(), "mapping", progress, failed, others),
        measure,
        reads_chunks=False,
        executor=executor,
        jobs=jobs,
    )
    for shard in shards:
        use = shard.result or ShardUse(shard.key, 0, 0, 0, None, str(shard.error))
        maps[shard.path].uses.append((shard.coords, use))
    if draws and maps:
        count = min(_MAX_DRAWN, max(_MAX_DRAWN_IN_ALL // len(maps), 1))
        drawn = [(drawing, coords, use) for drawing in maps.values() for coords, use in drawing.most_wasteful(count)]
        with progress("drawing", len(drawn), "shard") as advance:
            for drawing, coords, use in drawn:
                drawing.layouts.append((use, await lay_out(drawing.array, coords)))
                advance(1)
    instead = await what_else(source) if not maps and not reasons else None
    return Maps(source.store.url, list(maps.values()), reasons, instead, bool(unread))


async def map_array(array: Array, *, most: int, drawn: int) -> ArrayMap | None:
    """Return the map of one array, made in this process, with *drawn* layouts; None if more than *most* are stored."""
    found = ArrayMap(array)
    stored: list[Coords] = []
    try:
        async for coords in walk_shards(array):
            if len(stored) == most:
                return None
            stored.append(coords)
    except ShardfsError as error:
        found.error = str(error)
    uses: dict[Coords, ShardUse] = {}

    async def look(coords: Coords) -> None:
        try:
            uses[coords] = await measure(array, coords)
        except ShardfsError as error:
            uses[coords] = ShardUse(array.layout.shard_key(coords), 0, 0, 0, None, str(error))

    await for_each(stored, look, _AT_ONCE)
    found.uses += [(coords, uses[coords]) for coords in stored]
    for coords, use in found.most_wasteful(drawn):
        found.layouts.append((use, await lay_out(array, coords)))
    return found
