"""Commands that change a dataset or see to its shards: `flush`, `recover`, `compact`."""

import errno
import json
import sys
from contextlib import suppress
from functools import partial
from typing import Final

import click
import trio

from shardfs import errors
from shardfs.cli.options import command, complain, json_option, mountpoint_argument, no_nan, timeout_option
from shardfs.cli.recover import compact_source, recover_host, recover_source
from shardfs.cli.sources import open_checked, single_writer_option, source_options, store_options
from shardfs.fuse import control
from shardfs.fuse.mountpoint import mounted_path
from shardfs.stores.url import StoreOptions

_NOT_LOGGED: Final = {errno.EROFS, errno.ENOTCONN, errno.ECONNABORTED}
"""What the kernel answers, and no daemon."""


@command(
    examples="""
    shardfs flush /mnt/x
    """
)
@mountpoint_argument
@timeout_option
def flush(mountpoint: str, timeout: float) -> None:
    """Bring everything that was written to the mount at MOUNTPOINT into its shards, and return when it is there.

    For as long as the daemon answers it is waited for; what for is said on standard error.
    """
    path = mounted_path(mountpoint)
    try:
        control.flush(path, timeout, complain)
    except OSError as error:
        why, more = control.explain(mountpoint, error), ""
        if error.errno not in _NOT_LOGGED:
            more = "; its log says more"
            with suppress(OSError, ValueError, errors.ShardfsError):
                log = control.Daemon.of(path, timeout).log
                more += f": {log}" if log is not None else ""
        raise errors.StoreError(f"{mountpoint} could not be flushed: {why}{more}") from None


@command(
    examples="""
    shardfs recover data.zarr
    shardfs recover --apply data.zarr
    shardfs recover
    """
)
@click.argument("source", metavar="[SOURCE]", required=False)
@store_options
@single_writer_option
@click.option("--apply", is_flag=True, help="Bring journals into the shards, apply conflicts, and repair torn shards.")
@json_option
def recover(source: str | None, store_options: StoreOptions, single_writer: bool, apply: bool, as_json: bool) -> None:
    """Show what a killed mount, or another program that was killed, left in SOURCE; repair it with --apply.

    A journal holds chunks that were written through a mount and are not in their shards yet. Those that do not fit what
    is stored now are conflicts, which only --apply applies. A torn shard, which nothing can read, is cut back to its
    last valid index if that has a checksum; what is cut off is kept in a file below .shardfs/torn. Exit status 1 if
    something is left that cannot be repaired, or is not repaired yet.

    Journals of s3:// sources are on the machine that wrote, and so are files that could not be stored. Look at what is
    listed before --apply: it applies all conflicts and stores all those files, in place of what is there by then. To
    discard a file, remove it first. Without SOURCE what is on this machine is listed, each with the command that brings
    it home; the journals that a mount uses are its own business, its conflicts and files have to wait for its end.
    """
    if source is not None:
        work = partial(recover_source, single_writer=single_writer)
        report = trio.run(work, open_checked(source, store_options), apply)
    elif apply:
        raise errors.UsageError("--apply needs a SOURCE; without it, `shardfs recover` lists those with a journal here")
    else:
        report = recover_host()
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.render(), nl=as_json)
    if report.is_left:
        sys.exit(1)


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
    help="The share of dead bytes from which on a shard is rewritten.",
)
@click.option("--force", is_flag=True, help="Also rewrite shards that begin with bytes of another format.")
def compact(source: str, store_options: StoreOptions, single_writer: bool, threshold: float, force: bool) -> None:
    """Rewrite the shards of SOURCE that have many dead bytes, each atomically, in C order.

    Programs that have such a shard open natively go on reading the old one. `shardfs info --shards` shows the waste.
    """
    work = partial(compact_source, single_writer=single_writer)
    for line in trio.run(work, open_checked(source, store_options), threshold, force, sys.stderr):
        click.echo(errors.printable(line))
