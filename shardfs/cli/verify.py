"""`shardfs verify`: is every shard sound?"""

import sys
from functools import partial

import click
import trio

from shardfs.bulk.compare import compare
from shardfs.bulk.engine import in_session
from shardfs.bulk.verify import verify_source
from shardfs.cli.options import command, draft_option, json_option
from shardfs.cli.output import progress, show
from shardfs.cli.sources import executor, source_options, workers_options
from shardfs.errors import UsageError, counted, printable
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs verify data.zarr
    shardfs verify --data --json data.zarr > report.json
    shardfs verify chunks.zarr shards.zarr
    """
)
@source_options
@click.argument("destination", metavar="[DEST]", required=False)
@click.option(
    "--data", is_flag=True, help="Also read and decode every chunk whose codecs are known, of unsharded arrays too."
)
@draft_option
@json_option
@workers_options
def verify(
    source: str,
    store_options: StoreOptions,
    destination: str | None,
    data: bool,
    draft: str | None,
    as_json: bool,
    jobs: int | None,
    dask: str | None,
) -> None:
    """Read every shard index of SOURCE and check every entry.

    Names each damaged document, shard and inner chunk. Exit status 1 if there is damage, or if --data meets a chunk of
    more than 512 MiB, which it does not decode. Arrays that are not checked, because they are not sharded or use
    something that shardfs does not know, are named with the reason, and so are those whose chunks have no checksum:
    without one, damage may decode to other values.

    With DEST, compares the two instead, after `pack` or `unpack`: names each chunk, file and document in SOURCE that is
    not in DEST, or says something else there.
    """
    if destination is not None:
        _compare(source, destination, store_options, data or as_json or draft is not None, jobs, dask)
        return
    with executor(jobs, dask, store_options, source) as chosen:
        work = partial(verify_source, data=data, executor=chosen, jobs=jobs, progress=progress)
        report = in_session(source, store_options, work, draft=draft)
    show(report.as_dict(), report.lines(), as_json=as_json)
    if report.found:
        sys.exit(1)


def _compare(
    source: str, destination: str, options: StoreOptions, has_others: bool, jobs: int | None, dask: str | None
) -> None:
    if has_others:
        raise UsageError(
            "--data, --draft and --json are for one dataset; two are compared by their data, and reported in lines"
        )
    workers = executor(jobs, dask, options, source, destination)
    with workers as chosen, progress("comparing", None, "task") as advance:
        work = partial(compare, source, destination, options, executor=chosen, jobs=jobs, progress=advance)
        problems = trio.run(work)
    for problem in problems:
        click.echo(printable(problem))
    click.echo(f"{counted(len(problems), 'difference')}" if problems else "no difference found")
    if problems:
        sys.exit(1)
