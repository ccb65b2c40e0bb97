"""`shardfs pack` and `shardfs unpack`: whole datasets into shards, and out of them."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import click
import trio

from shardfs.bulk.pack import PackPlan
from shardfs.bulk.run import Plan, RunOptions, RunReport, fill
from shardfs.cli.options import command, draft_option, json_option, size, view_options
from shardfs.cli.output import complain, progress, show
from shardfs.cli.sources import executor, store_options, workers_options
from shardfs.errors import counted, printable
from shardfs.format.lens.packed import Packing, parse_codecs_option
from shardfs.format.lens.unsharded import parse_chunks_per_shard
from shardfs.stores.url import StoreOptions


def _filling_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add SOURCE, DEST, and the options for filling DEST, as `filling`."""
    for option in (
        workers_options,
        json_option,
        click.option("--checksum", is_flag=True, help="Like --sync, but also compare the stored bytes."),
        click.option(
            "--sync", is_flag=True, help="Write only what is missing or changed in DEST, also after an interruption."
        ),
        click.argument("destination", metavar="DEST"),
        click.argument("source", metavar="SOURCE"),
    ):
        function = option(function)
    return store_options(function)


@command(
    examples="""
    shardfs pack chunks.zarr shards.zarr
    shardfs pack --shards 8,8,8 --dry-run chunks.zarr shards.zarr
    shardfs pack --sync s3://bucket/chunks.zarr s3://bucket/shards.zarr
    """
)
@_filling_options
@click.option(
    "--shard-size",
    callback=size,
    default="256M",
    show_default=True,
    metavar="SIZE",
    help="Size of a shard before compression.",
)
@click.option("--shards", metavar="N,N,…", help="Chunks per shard along each axis (one number for all axes).")
@click.option(
    "--index-location",
    type=click.Choice(["end", "start"]),
    default="end",
    show_default=True,
    help="Where in a shard its index is.",
)
@click.option(
    "--codecs",
    metavar="CODECS",
    help="Transcode chunks: to zstd, gzip, blosc, crc32c, several of them with commas, none, or a JSON list as in "
    "zarr.json.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
def pack(
    source: str,
    destination: str,
    store_options: StoreOptions,
    shard_size: int,
    shards: str | None,
    index_location: str,
    codecs: str | None,
    dry_run: bool,
    as_json: bool,
    **filling: Any,  # noqa: ANN401 - as click passes them
) -> None:
    """Pack the chunks of SOURCE, Zarr v3 or v2, into shards of a Zarr v3 dataset at DEST.

    Chunks are copied as encoded bytes, unless --codecs asks for other codecs. Groups, attributes, consolidated metadata
    and other files are copied, too. Arrays of fewer than 8 chunks stay as they are. Names whatever could not be
    copied, and exits with 1.
    """
    packing = Packing(
        shard_size,
        parse_chunks_per_shard(shards) if shards is not None else None,
        index_location == "start",
        parse_codecs_option(codecs) if codecs is not None else None,
    )

    _run(source, destination, store_options, PackPlan(packing), is_dry=dry_run, as_json=as_json, **filling)


@command(
    examples="""
    shardfs unpack shards.zarr chunks.zarr
    shardfs unpack --view v2 --decode s3://bucket/shards.zarr for-netcdf.zarr
    shardfs unpack --view npy --sync shards.zarr arrays
    """
)
@_filling_options
@view_options
@draft_option
def unpack(
    source: str,
    destination: str,
    store_options: StoreOptions,
    view: str,
    decode: bool,
    draft: str | None,
    as_json: bool,
    **filling: Any,  # noqa: ANN401 - as click passes them
) -> None:
    """Write the files that a mount of SOURCE would show to DEST, a directory or an s3:// URL.

    Names whatever could not be written, and exits with 1.
    """
    from shardfs.bulk.unpack import Unpacking, UnpackPlan  # imported late: `pack` needs no `vfs`

    plan = UnpackPlan(Unpacking(view, decode, draft))
    _run(source, destination, store_options, plan, is_dry=False, as_json=as_json, **filling)


def _run(
    source: str,
    destination: str,
    options: StoreOptions,
    plan: Plan,
    *,
    is_dry: bool,
    as_json: bool,
    sync: bool,
    checksum: bool,
    jobs: int | None,
    dask: str | None,
) -> None:
    """Fill DEST, report the result, and exit with its status; with progress on a terminal."""
    ndone = ncomplained = 0
    advance: Callable[[int], None] | None = None

    def print_line(line: str) -> None:
        if not (as_json and is_dry):
            click.echo(printable(line), err=not is_dry)

    def report_progress(report: RunReport) -> None:
        nonlocal advance, ndone, ncomplained
        if advance is None:  # now the total is known
            advance = stack.enter_context(progress("stored", report.total, "object"))
        advance(report.done - ndone)
        for problem in report.problems[ncomplained:]:
            complain(problem)
        ndone, ncomplained = report.done, len(report.problems)

    workers = executor(jobs, None if is_dry else dask, options, source, destination=destination)
    with workers as chosen, ExitStack() as stack:
        how = RunOptions(sync or checksum, checksum, chosen, jobs, report_progress)
        try:
            report = trio.run(partial(fill, source, destination, plan, how, options, print_line, is_dry=is_dry))
        except KeyboardInterrupt:
            complain("interrupted; what is stored stays, and --sync goes on with it")
            raise
    for note in report.notes:
        complain(note)
    if as_json:
        planned = {"arrays": [asdict(array) for array in plan.planned]} if isinstance(plan, PackPlan) and is_dry else {}
        show(asdict(report) | planned, (), as_json=True)
    elif not is_dry:
        parts = [f"{counted(report.stored, 'object')} stored, {report.nbytes:,} bytes"]
        parts += [f"{report.unchanged:,} unchanged"] if report.unchanged else []
        parts += [f"{report.removed:,} removed"] if report.removed else []
        parts += [counted(len(report.problems), "problem")] if report.problems else []
        click.echo("; ".join(parts))
    if report.problems:
        sys.exit(1)
