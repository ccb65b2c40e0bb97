"""Rewriting shards that have many dead bytes."""

import shlex
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from shardfs.bulk.shards import look_at_shards
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.recovery import opened
from shardfs.dataset.maintenance.others import OtherSessions
from shardfs.dataset.maintenance.verify import find_waste
from shardfs.dataset.maintenance.walk import Progress, among_shards, no_progress, some_arrays, walk_all_shards
from shardfs.dataset.node import Node
from shardfs.dataset.shard_listing import Strays
from shardfs.dataset.state.holding import hold
from shardfs.dataset.state.slots import slots_of
from shardfs.errors import ShardfsError, SourceError, counted

THRESHOLD: Final = 0.5
"""From which share of dead bytes a shard is rewritten unless somebody says otherwise."""


@dataclass
class CompactReport:
    """What was compacted, and what was *left* as it is, with the reason."""

    compacted: int = 0
    removed_nbytes: int = 0
    left: list[dict[str, str]] = field(default_factory=list)

    def leave(self, shard: str, reason: object) -> None:
        """Record that a shard is left as it is."""
        self.left.append({"shard": shard, "reason": str(reason)})

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as text."""
        lines = [f"left as it is: {item['shard']}: {item['reason']}" for item in self.left]
        lines.append(f"{counted(self.compacted, 'shard')} compacted, {self.removed_nbytes:,} dead bytes removed")
        return lines


async def _writable(source: Source, report: CompactReport) -> AsyncIterator[Node]:
    """Yield the arrays of *source*, but those in formats that are only read."""
    async for node in some_arrays(source):
        if node.is_read_only:
            report.leave(node.path, "it is in a format that is only read")
        else:
            yield node


async def compact_source(
    source: Source,
    *,
    threshold: float = THRESHOLD,
    force: bool = False,
    single_writer: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
) -> CompactReport:
    """Rewrite the shards of *source* of which at least the share *threshold* is dead bytes.

    With *force* also those that begin with bytes of another format. *executor* and *jobs* are those of `run_tasks`:
    other processes may look for shards, but only this one has a journal to compact them with. *single_writer*: the user
    says that nobody else writes to the source meanwhile. Raises `SourceError` if the source has no arrays, is being
    written, or has a journal.
    """
    store, report = source.writable, CompactReport()
    with hold(store, door="compact") as state:
        if any(slot.state.has_pending() for slot in slots_of(store) if slot.holder is None or slot.state == state):
            raise SourceError(
                f"{store.url} has a journal; run `shardfs recover --apply {shlex.quote(store.url)}` first"
            )

        def others(path: str, strays: Strays) -> None:
            for key in strays.nodes:
                report.leave(key, among_shards(path))

        await store.start_writing(state.root, state.key, single_writer=single_writer)
        sessions = OtherSessions(source, state)
        for error in await sessions.flush():  # what they published names locations that change
            raise error
        async with opened(source, state, sessions) as (_, commits):
            shards = await look_at_shards(
                source,
                walk_all_shards(_writable(source, report), "looking for dead bytes", progress, others=others),
                partial(find_waste, threshold=threshold, force=force),
                reads_chunks=False,
                executor=executor,
                jobs=jobs,
            )
            with progress("compacting", len(shards), "shard") as advance:
                for shard in shards:
                    advance(1)
                    waste = shard.result
                    if waste is None or waste.reason is not None:
                        why = shard.error if waste is None else f"{waste.reason} (--force compacts it)"
                        report.leave(shard.key, why)
                        continue
                    try:
                        array = (await source.hierarchy.node(shard.path)).array
                        if await sessions.have_pending():
                            await sessions.flush()
                        if array is not None and not await commits.rewrite(array.layout, shard.coords):
                            report.leave(shard.key, "other sessions have published what is not committed yet")
                            continue
                    except ShardfsError as error:
                        report.leave(shard.key, error)
                        continue
                    report.compacted += 1
                    report.removed_nbytes += waste.use.dead or 0
    return report
