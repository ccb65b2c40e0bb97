"""Commands that change a dataset or see to its shards: `flush`, `recover`, `compact`."""

import json
import os
import sys

import click
import trio

from shardfs import errors
from shardfs.commands import command, json_option, mountpoint_argument, no_nan, source_argument
from shardfs.fuse import control
from shardfs.fuse.mountpoint import is_shardfs
from shardfs.repairs import compact_source, recover_source
from shardfs.stores.url import open_store


@command(
    examples="""
    shardfs flush /mnt/x
    """
)
@mountpoint_argument
def flush(mountpoint: str) -> None:
    """Bring everything that was written to the mount at MOUNTPOINT into its shards, and return when it is there."""
    if not is_shardfs(os.path.realpath(mountpoint)):
        raise errors.MountPointError(f"{mountpoint} is not a mount of shardfs")
    try:
        os.setxattr(mountpoint, control.FLUSH, b"")
    except OSError as error:
        raise errors.StoreError(f"{mountpoint} could not be flushed: {error.strerror}; its log says more") from None


@command(
    examples="""
    shardfs recover data.zarr
    shardfs recover --apply data.zarr
    """
)
@source_argument
@click.option("--apply", is_flag=True, help="Bring journals into the shards, apply conflicts, and repair torn shards.")
@json_option
def recover(source: str, apply: bool, as_json: bool) -> None:
    """Show what a killed mount, or another program that was killed, left in SOURCE; repair it with --apply.

    A journal holds chunks that were written through a mount and are not in their shards yet. Those that do not fit what
    is stored now are conflicts, which only --apply applies. A torn shard, which nothing can read, is cut back to its
    last valid index if that has a checksum; what is cut off is kept in a file below .shardfs/torn. Exit status 1 if
    something is left that cannot be repaired, or is not repaired yet.
    """
    report = trio.run(recover_source, open_store(source), apply)
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.render(), nl=as_json)
    if report.is_left:
        sys.exit(1)


@command(
    examples="""
    shardfs compact data.zarr
    shardfs compact --threshold 0.2 data.zarr
    """
)
@source_argument
@click.option(
    "--threshold",
    type=click.FloatRange(min=0, max=1),
    callback=no_nan,
    default=0.5,
    show_default=True,
    help="The share of dead bytes from which on a shard is rewritten.",
)
@click.option("--force", is_flag=True, help="Also rewrite shards that begin with bytes of another format.")
def compact(source: str, threshold: float, force: bool) -> None:
    """Rewrite the shards of SOURCE that have many dead bytes, each atomically, in C order.

    Programs that have such a shard open natively go on reading the old one. `shardfs info --shards` shows the waste.
    """
    for line in trio.run(compact_source, open_store(source), threshold, force, sys.stderr):
        click.echo(errors.printable(line))
