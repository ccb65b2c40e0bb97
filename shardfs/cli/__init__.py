"""The command line: from what a user types to calls of the packages below.

Each family of commands is a module; `options` has what they share, and `output` how they print.
"""

import os
import shlex
import sys
from importlib import import_module
from typing import Any, Final

import click

from shardfs.cli.output import begin
from shardfs.errors import ShardfsError, without_secrets
from shardfs.fuse.versions import fuse_versions
from shardfs.version import __version__

_MODULES: Final = {
    "mount": "mount",
    "umount": "mounts",
    "flush": "mounts",
    "stats": "mounts",
    "metrics": "mounts",
    "mounts": "mounts",
    "serve": "serve",
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


_NAMES: Any = dict.fromkeys(_MODULES)  # click suggests one of these for a name that is wrong

_EXIT_STATUS: Final = (
    "Done.",
    "Failed, or damage was found.",
    "Wrong usage.",
    "SOURCE is missing or unreadable.",
    "MOUNTPOINT cannot be used.",
    "This machine cannot mount.",
    "The daemon of a mount does not answer, or is not done yet.",
)


class _Commands(click.Group):
    """Lists the commands in their order; a module is imported when its command is used: most take long to import."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names."""
        return list(_MODULES)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """Return a command."""
        if name not in _MODULES:
            return None
        found: click.Command = getattr(import_module(f"shardfs.cli.{_MODULES[name]}"), name.replace("-", "_"))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if it is missing before SOURCE, say so."""
        is_url = ":/" in args[0]
        if args[0] not in _MODULES and (is_url or os.path.isdir(args[0])):
            shown = without_secrets(args[0]) if is_url else args[0]
            example = f"shardfs mount {shlex.quote(shown)} MOUNTPOINT"
            ctx.fail(f"A command is missing before {shown!r}. To mount it, type: {example}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list, with the whole first sentence of each."""
        from shardfs.cli.options import summary  # imported only here, as it imports much, and --version needs nothing

        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(command)) for name, command in every_command().items()])

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the meaning of every exit status."""
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), meaning) for status, meaning in enumerate(_EXIT_STATUS)])


def every_command() -> dict[str, click.Command]:
    """Import every command, and return them by name."""
    found = {name: cli.get_command(click.Context(cli), name) for name in _MODULES}
    return {name: command for name, command in found.items() if command is not None}


def _print_versions(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    try:
        versions = fuse_versions()
    except ShardfsError as error:
        versions = str(error)
    click.echo(f"shardfs {__version__}\n{versions}, Python {sys.version.split()[0]}")
    context.exit()


@click.group(
    cls=_Commands,
    commands=_NAMES,
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
