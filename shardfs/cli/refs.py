"""`shardfs refs`: kerchunk references, for machines that cannot mount."""

import sys
from functools import partial
from pathlib import Path

import click

from shardfs.bulk.engine import in_session
from shardfs.bulk.refs import write_references
from shardfs.cli.options import command
from shardfs.cli.output import complain, progress, replacing
from shardfs.cli.sources import source_options
from shardfs.dataset.maintenance.walk import no_progress
from shardfs.errors import CorruptionError
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs refs data.zarr > references.json
    shardfs refs --output references.json data.zarr
    shardfs refs --view v2 --output references.json s3://bucket/data.zarr
    """
)
@source_options
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.option(
    "--view",
    type=click.Choice(["v3", "v2"]),
    default="v3",
    show_default=True,
    help="Reference unsharded Zarr v3, or Zarr v2, which kerchunk's engine for xarray needs.",
)
@click.option("--skip-encoded", is_flag=True, help="Leave out arrays whose shards are encoded as a whole.")
def refs(source: str, store_options: StoreOptions, output: Path | None, view: str, skip_encoded: bool) -> None:
    """Print kerchunk references to every inner chunk of SOURCE, for machines that cannot mount.

    References describe what a mount would show now; write them again when the source changes.

    An array with an unreadable chunk is left out, because readers would take a missing chunk as fill value. So is an
    array that the view cannot show. Each is named with the reason. If something could not be read, the exit status is
    1, and the file of --output stays as it was; on standard output all other arrays are printed.
    """
    if output is None:
        shown = no_progress if sys.stdout.isatty() else progress
        work = partial(write_references, skip_encoded=skip_encoded, tell=complain, progress=shown)
        if in_session(source, store_options, work, sys.stdout, view):
            sys.exit(1)
        return
    work = partial(write_references, skip_encoded=skip_encoded, tell=complain, progress=progress)
    with replacing(output) as file:
        if in_session(source, store_options, work, file, view):
            raise CorruptionError(f"{output} is left as it was; without --output, the other arrays are printed")
