"""The command line: what a user types, to calls of the rooms below."""

import io
import json
import logging
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
import trio

from shardfs import errors
from shardfs.cli import mount, mounted, reports  # noqa: F401 - two of them for their commands
from shardfs.cli.clients import ViewOptions
from shardfs.cli.info import describe
from shardfs.cli.options import cli, command, json_option, mountpoint_argument, timeout_option, view_options
from shardfs.cli.sources import open_source, source_options
from shardfs.fuse import control
from shardfs.fuse.mountpoint import mounted_path
from shardfs.fuse.options import MountOptions
from shardfs.stores.url import StoreOptions
from shardfs.vfs.make_view import make_view


@command(
    examples="""
    shardfs info data.zarr
    shardfs info --view v2 data.zarr
    shardfs info --shards data.zarr
    shardfs info --json data.zarr | jq '.[].shape'
    shardfs info --profile lab s3://bucket/data.zarr
    """
)
@source_options
@view_options
@click.option("--shards", is_flag=True, help="Also list every shard: size, chunks, live and dead bytes.")
@json_option
def info(source: str, store_options: StoreOptions, view: str, decode: bool, shards: bool, as_json: bool) -> None:
    """Describe every array of SOURCE: how a view shows it, or why not, and which mount your program reads.

    At the end is a line for each program: what to type, with MNT for your mount point.
    """
    MountOptions(view=view, decode=decode)  # refuses what no mount can show
    opened = open_source(source, store_options)
    usual = StoreOptions().to_arguments()
    options = [option for option in store_options.to_arguments() if option not in usual]
    shown = ViewOptions(view, decode)
    described = trio.run(partial(describe, opened, shown, shards=shards, typed=source, options=options))
    click.echo(json.dumps(described.as_list(), indent=2) if as_json else described.render(), nl=as_json)
    if as_json and described.instead is not None:
        click.echo(errors.printable(f"shardfs: there are no Zarr v3 arrays here: {described.instead}"), err=True)


@command(
    examples="""
    shardfs verify data.zarr
    shardfs verify --data --json data.zarr > report.json
    """
)
@source_options
@click.option("--data", is_flag=True, help="Also read and decode every inner chunk whose codecs are known.")
@json_option
def verify(source: str, store_options: StoreOptions, data: bool, as_json: bool) -> None:
    """Read every shard index of SOURCE and check every entry.

    Names each damaged document, shard and inner chunk; exit status 1 if there is one, or if --data meets an inner chunk
    of more than 512 MiB, which it does not decode. Arrays that are not checked, as they are not sharded or say what
    shardfs does not know, are named with the reason.
    """
    opened = open_source(source, store_options)
    report = trio.run(reports.verify, opened, data, sys.stderr)
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.render(), nl=as_json)
    if not report.is_sound:
        sys.exit(1)


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

    They say what a mount would show at this moment; write them again when the source has changed.

    An array with a chunk that cannot be read is left out, as readers take a missing chunk for fill values. So is one
    that the view cannot show. Each is named with the reason. If something could not be read, the exit status is 1, and
    the file of --output stays as it was; what is printed has all other arrays.
    """
    opened = open_source(source, store_options)
    logging.getLogger("shardfs.cli.reports").addHandler(_Message())
    shown = make_view(view, opened.store)
    if output is None:
        if trio.run(reports.write_references, opened, sys.stdout, shown, skip_encoded):
            sys.exit(1)
        return
    partial = output.with_name(f".{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors="surrogateescape") as file:
            failed = trio.run(reports.write_references, opened, file, shown, skip_encoded)
        if failed:
            raise errors.CorruptionError(f"{output} is left as it was; without --output the other arrays are printed")
        partial.replace(output)
    except OSError as error:
        raise errors.UsageError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@command(
    examples="""
    shardfs stats /mnt/x
    """
)
@mountpoint_argument
@timeout_option
@json_option
def stats(mountpoint: str, timeout: float, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT did: requests, bytes, cache hits, index loads, errors."""
    path = mounted_path(mountpoint)
    try:
        text = control.ask(path, control.STATISTICS, timeout).decode()
    except OSError as error:
        raise errors.MountPointError(f"{mountpoint} does not answer: {control.explain(mountpoint, error)}") from None
    click.echo(text if as_json else reports.render_statistics(json.loads(text)))


class _Message(logging.Handler):
    """Says what is logged as a line like any other of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(errors.printable(f"shardfs: {record.getMessage()}"), err=True)


def main() -> None:
    """Run the command line."""
    # Reports say what is wrong with a source; only a mount logs it, where `log_to` says.
    logging.getLogger("shardfs").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names are bytes
    cli(prog_name="shardfs")
