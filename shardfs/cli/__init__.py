"""The command line: what a user types, to calls of the rooms below.

Each family of commands is a module; `options` has what they share, and `output` how they say things.
"""

import platform

import click

from shardfs import __version__
from shardfs.cli import (
    compact,
    doctor,
    info,
    map,
    mount,
    mount_helper,
    mounted,
    mounts,
    pack,
    recover,
    refs,
    stats,
    verify,
)
from shardfs.cli.options import Commands, begin
from shardfs.errors import ShardfsError
from shardfs.fuse.mountpoint import fuse_versions


def _print_versions(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    try:
        versions = fuse_versions()
    except ShardfsError as error:
        versions = str(error)
    click.echo(f"shardfs {__version__}\n{versions}, Python {platform.python_version()}")
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_versions,
    help="Show the versions of shardfs, pyfuse3, libfuse and Python.",
)
def cli() -> None:
    """See the inner chunks of sharded Zarr arrays as ordinary files.

    Mount a dataset, and every program that reads files reads its chunks:

    \b
      shardfs mount data.zarr /mnt/x      mount it
      ls /mnt/x/image/c/0/0               every inner chunk is a file
      shardfs umount /mnt/x               unmount it
    """


for each in (
    mount.mount,
    mounted.umount,
    mounted.flush,
    stats.stats,
    mounts.mounts,
    doctor.doctor,
    info.info,
    map.map,
    verify.verify,
    refs.refs,
    recover.recover,
    compact.compact,
    pack.pack,
    pack.unpack,
    mount_helper.install_helper,
):
    cli.add_command(each)


def main() -> None:
    """Run the command line."""
    begin()
    cli(prog_name="shardfs")
