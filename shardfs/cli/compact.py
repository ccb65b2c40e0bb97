"""`shardfs compact`: rewriting shards that have many dead bytes."""

from functools import partial

import click

from shardfs.bulk.compact import THRESHOLD, compact_source
from shardfs.bulk.engine import in_session
from shardfs.cli.options import Number, command, json_option
from shardfs.cli.output import progress, show
from shardfs.cli.sources import executor, single_writer_option, source_options, workers_options
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
    default=THRESHOLD,
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
        work = partial(
            compact_source,
            threshold=threshold,
            force=force,
            single_writer=single_writer,
            executor=chosen,
            jobs=jobs,
            progress=progress,
        )
        report = in_session(source, store_options, work)
    show(report.as_dict(), report.lines(), as_json=as_json)
