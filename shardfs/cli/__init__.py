"""The command line: what a user types, to calls of the rooms below.

Each family of commands is a module; `options` has what they share, and `output` how they say things.
"""

import click

from shardfs import __version__
from shardfs.cli import compact, doctor, info, mount, mount_helper, mounted, mounts, recover, refs, stats, verify
from shardfs.cli.options import begin


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shardfs")
def cli() -> None:
    """See the inner chunks of sharded Zarr arrays as ordinary files.

    Mount a dataset, and every program that reads files reads its chunks:

    \b
      shardfs mount data.zarr /mnt/x      mount it
      ls /mnt/x/image/c/0/0               every inner chunk is a file
      shardfs umount /mnt/x               unmount it

    \b
    Exit status: 0 done; 1 failed, or damage found; 2 wrong usage; 3 SOURCE is missing
    or unreadable; 4 the mount point cannot be used; 5 this machine cannot mount; 6 the
    daemon of a mount does not answer, or is not done yet.
    """


for each in (
    mount.mount,
    mounted.umount,
    mounted.flush,
    stats.stats,
    mounts.mounts,
    doctor.doctor,
    info.info,
    verify.verify,
    refs.refs,
    recover.recover,
    compact.compact,
    mount_helper.install_helper,
):
    cli.add_command(each)


def main() -> None:
    """Run the command line."""
    begin()
    cli(prog_name="shardfs")
