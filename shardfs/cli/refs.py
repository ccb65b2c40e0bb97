"""`shardfs refs`: kerchunk references, for machines that cannot mount."""

import sys
from functools import partial
from pathlib import Path

import click

from shardfs.bulk.engine import in_session
from shardfs.bulk.icechunk import icechunk_references
from shardfs.bulk.parquet import parquet_references
from shardfs.bulk.refs import JsonReferences, References, write_references
from shardfs.cli.options import command, draft_option
from shardfs.cli.output import complain, progress, replacing
from shardfs.cli.sources import source_options
from shardfs.dataset.maintenance.walk import Progress, no_progress
from shardfs.errors import CorruptionError, UsageError
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs refs data.zarr > references.json
    shardfs refs --output references.json data.zarr
    shardfs refs --view v2 --output references.json s3://bucket/data.zarr
    shardfs refs --parquet references.parq data.zarr
    shardfs refs --icechunk repository s3://bucket/data.zarr
    """
)
@source_options
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.option(
    "--parquet",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write Parquet to this new directory instead of JSON, for millions of chunks; for Zarr v2 only.",
)
@click.option(
    "--icechunk",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a new Icechunk repository to this new directory instead; for Zarr v3 only.",
)
@click.option(
    "--view",
    type=click.Choice(["v3", "v2"]),
    help="Reference unsharded Zarr v3, the default, or Zarr v2, which kerchunk's engine for xarray needs.",
)
@draft_option
@click.option("--skip-encoded", is_flag=True, help="Skip arrays whose shards are encoded as a whole.")
def refs(
    source: str,
    store_options: StoreOptions,
    output: Path | None,
    parquet: Path | None,
    icechunk: Path | None,
    view: str | None,
    draft: str | None,
    skip_encoded: bool,
) -> None:
    """Print kerchunk references to every inner chunk of SOURCE, for machines that cannot mount.

    References describe what a mount would show now; write them again when the source changes.

    An array with an unreadable chunk is skipped, because readers would take a missing chunk as fill value. So is an
    array that the view cannot show. Each is named with the reason. If something could not be read, the exit status is
    1, and the file of --output stays as it was; on standard output, and with --parquet, all other arrays are written.

    References as Parquet have no array at the root of SOURCE, and no OME-Zarr images, whose chunk keys have slashes.
    fsspec reads missing chunks in them with its engine fastparquet, and with pyarrow before pandas 3.

    A repository of Icechunk has a virtual chunk for each inner chunk; its reader has to be permitted to follow them,
    and refuses those whose shard was changed since. It is written as a whole or not at all.
    """
    if parquet is not None and (output is not None or icechunk is not None or view == "v3" or draft is not None):
        raise UsageError(
            "--parquet is for Zarr v2, in a directory: leave out --view v3, --draft, --icechunk and --output"
        )
    if icechunk is not None and (output is not None or view == "v2"):
        raise UsageError("--icechunk is for Zarr v3, in a directory: leave out --view v2 and --output")

    def write(references: References, shown: str, progress: Progress = progress) -> int:
        work = partial(
            write_references,
            references=references,
            view_name=shown,
            skip_encoded=skip_encoded,
            warn=complain,
            progress=progress,
        )
        return in_session(source, store_options, work, draft=draft)

    if icechunk is not None:
        with icechunk_references(icechunk, source, store_options) as references_of_chunks:
            if write(references_of_chunks, "v3"):
                raise CorruptionError(f"{icechunk} is not written, because these arrays would be missing in it")
        return
    if parquet is not None:
        with parquet_references(parquet) as references:
            failed = write(references, "v2")
        sys.exit(1 if failed else 0)
    view = view or "v3"
    if output is None:
        if write(JsonReferences(sys.stdout), view, no_progress if sys.stdout.isatty() else progress):
            sys.exit(1)
        return
    with replacing(output) as file:
        if write(JsonReferences(file), view):
            raise CorruptionError(f"{output} is left as it was; without --output, the other arrays are printed")
