"""`shardfs compact`: rewriting shards that have many dead bytes."""

import shlex
from functools import partial

import click
import trio

from shardfs.cli.options import command, no_nan, open_checked, single_writer_option, source_options
from shardfs.cli.output import counted, progress
from shardfs.dataset.maintenance.compact import find_wasteful
from shardfs.dataset.slots import hold
from shardfs.dataset.source import Source
from shardfs.dataset.wal.recovery import opened
from shardfs.errors import ShardfsError, SourceError, printable
from shardfs.stores.base import Store
from shardfs.stores.url import StoreOptions

_FOREVER = float("inf")


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
    type=click.FloatRange(min=0, max=1),
    callback=no_nan,
    default=0.5,
    show_default=True,
    help="Rewrite shards from this share of dead bytes.",
)
@click.option("--force", is_flag=True, help="Also rewrite shards that begin with bytes of another format.")
def compact(source: str, store_options: StoreOptions, single_writer: bool, threshold: float, force: bool) -> None:
    """Rewrite the shards of SOURCE that have many dead bytes, each atomically, in C order.

    Programs that have a shard open natively keep reading the old one. `shardfs info --shards` shows the dead bytes.
    """
    work = partial(compact_source, single_writer=single_writer)
    for line in trio.run(work, open_checked(source, store_options), threshold, force):
        click.echo(printable(line))


async def compact_source(store: Store, threshold: float, force: bool, *, single_writer: bool = False) -> list[str]:
    """Compact the wasteful shards of a source; returns what was done, in lines.

    *single_writer*: the user says that nobody else writes to the source meanwhile.
    """
    source = Source.of(store, ttl=_FOREVER)
    lines = []
    with hold(store) as claim:
        if any(state.has_pending() for state in claim.directories):
            raise SourceError(
                f"{store.url} has a journal; run `shardfs recover --apply {shlex.quote(store.url)}` first"
            )
        await store.start_writing(claim.state.root, single_writer=single_writer)
        with opened(source, claim.state) as journals:
            candidates = [each async for each in find_wasteful(source, threshold, force=force, progress=progress)]
            saved = count = 0
            with progress("compacting", len(candidates), "shard") as advance:
                for candidate in candidates:
                    advance(1)
                    if candidate.reason is not None:
                        lines.append(f"left as it is: {candidate.use.key}: {candidate.reason} (--force compacts it)")
                        continue
                    try:
                        await journals.commits.rewrite(candidate.array.layout, candidate.shard, {}, compact=True)
                    except ShardfsError as error:
                        lines.append(f"left as it is: {candidate.use.key}: {error}")
                        continue
                    count += 1
                    saved += candidate.use.dead or 0
    lines.append(f"{counted(count, 'shard')} compacted, {saved:,} dead bytes removed")
    return lines
