"""The command line: from what a user types to calls of the rooms below.

Each family of commands is a module; `options` has what they share, and `output` how they print.
"""

import gc
import platform
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

import click

from shardfs import __version__
from shardfs.cli.options import Commands, begin
from shardfs.errors import ShardfsError
from shardfs.fuse.mountpoint import fuse_versions

_MODULES: Final = {
    "mount": "mount",
    "umount": "mounts",
    "flush": "mounts",
    "stats": "mounts",
    "mounts": "mounts",
    "doctor": "doctor",
    "info": "info",
    "map": "map",
    "verify": "verify",
    "refs": "refs",
    "recover": "recover",
    "compact": "compact",
    "pack": "pack",
    "unpack": "pack",
    "install-helper": "mount_helper",
}
"""The module of each command, in the order of the help."""


class _Loaded(Mapping[str, click.Command]):
    """The commands by name; a module is imported when its command is used, because most take long to import."""

    def __getitem__(self, name: str) -> click.Command:
        gc.disable()  # imported objects stay: scanning them for garbage takes a seventh of the import time
        try:
            module = import_module(f"shardfs.cli.{_MODULES[name]}")
        finally:
            gc.freeze()
            gc.enable()
        found: click.Command = getattr(module, name.replace("-", "_"))
        return found

    def __contains__(self, name: object) -> bool:
        return name in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


def _print_versions(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    try:
        versions = fuse_versions()
    except ShardfsError as error:
        versions = str(error)
    click.echo(f"shardfs {__version__}\n{versions}, Python {platform.python_version()}")
    context.exit()


@click.group(
    cls=Commands,
    commands=_Loaded(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
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


def main() -> None:
    """Run the command line."""
    begin()
    cli(prog_name="shardfs")
