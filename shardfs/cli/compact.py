"""`shardfs compact`: rewriting shards that have many dead bytes."""

import shlex
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial

import click

from shardfs.bulk.shards import look_at_shards
from shardfs.cli.options import Number, command, json_option
from shardfs.cli.output import progress, show
from shardfs.cli.sources import executor, in_session, single_writer_option, source_options, workers_options
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.verify import find_waste
from shardfs.dataset.maintenance.walk import some_arrays, walk_all_shards
from shardfs.dataset.state import hold, slots_of
from shardfs.dataset.wal.recovery import opened
from shardfs.errors import ShardfsError, SourceError, counted
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs compact data.zarr
    shardfs compact --threshold 0.2 data.zarr
    """
)
@source_options
@single_writer_option
@click.option(
    "--threshold",
    type=Number(min=0, max=1),
    default=0.5,
    show_default=True,
    help="Rewrite shards from this share of dead bytes.",
)
@click.option("--force", is_flag=True, help="Also rewrite shards that begin with bytes of another format.")
@json_option
@workers_options
def compact(
    source: str,
    store_options: StoreOptions,
    single_writer: bool,
    threshold: float,
    force: bool,
    as_json: bool,
    jobs: int | None,
    dask: str | None,
) -> None:
    """Rewrite the shards of SOURCE that have many dead bytes, each atomically, in C order.

    Programs that have a shard open natively keep reading the old one. `shardfs map` shows the dead bytes.
    """
    with executor(jobs, dask, store_options, source) as chosen:
        work = partial(compact_source, single_writer=single_writer, jobs=jobs, executor=chosen)
        report = in_session(source, store_options, work, store_options, threshold, force)
    show(asdict(report), report.lines(), as_json=as_json)


@dataclass
class Report:
    """What was compacted, and what was *left* as it is, with the reason."""

    compacted: int = 0
    removed_nbytes: int = 0
    left: list[dict[str, str]] = field(default_factory=list)

    def leave(self, shard: str, reason: object) -> None:
        """Record that a shard is left as it is."""
        self.left.append({"shard": shard, "reason": str(reason)})

    def lines(self) -> list[str]:
        """Return the report as text."""
        lines = [f"left as it is: {item['shard']}: {item['reason']}" for item in self.left]
        lines.append(f"{counted(self.compacted, 'shard')} compacted, {self.removed_nbytes:,} dead bytes removed")
        return lines


async def compact_source(
    source: Source,
    options: StoreOptions,
    threshold: float,
    force: bool,
    *,
    single_writer: bool = False,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Report:
    """Compact the wasteful shards of a source.

    Other processes may look for them, but only this one has a journal to compact them with. *single_writer*: the user
    says that nobody else writes to the source meanwhile.
    """
    store, report = source.store, Report()
    with hold(store) as state:
        left = [slot.state for slot in slots_of(store) if slot.holder is None]
        if any(each.has_pending() for each in (state, *left)):
            raise SourceError(
                f"{store.url} has a journal; run `shardfs recover --apply {shlex.quote(store.url)}` first"
            )
        await store.start_writing(state.root, single_writer=single_writer)
        with opened(source, state) as (_, commits):
            found = await look_at_shards(
                source,
                options,
                walk_all_shards(some_arrays(source), "looking for dead bytes", progress),
                partial(find_waste, threshold=threshold, force=force),
                reads_chunks=False,
                executor=executor,
                jobs=jobs,
            )
            with progress("compacting", len(found), "shard") as advance:
                for each in found:
                    advance(1)
                    waste = each.result
                    if waste is None or waste.reason is not None:
                        why = each.error if waste is None else f"{waste.reason} (--force compacts it)"
                        report.leave(each.key, why)
                        continue
                    try:
                        array = (await source.hierarchy.node(each.path)).array
                        if array is not None:
                            await commits.rewrite(array.layout, each.coords, {}, compact=True)
                    except ShardfsError as error:
                        report.leave(each.key, error)
                        continue
                    report.compacted += 1
                    report.removed_nbytes += waste.use.dead or 0
    return report
