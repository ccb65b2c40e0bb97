"""What the commands of the command line have in common: errors as one line and an exit status, help, arguments."""

import math
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import click

from shardfs import __version__, errors
from shardfs.fuse.control import TIMEOUT
from shardfs.fuse.options import VIEWS, MountOptions

P = ParamSpec("P")


class RemoteOption(click.Option):
    """An option for sources that are not on this machine, which the help lists apart from the others."""


class _MountPoint(click.Path):
    """A path that is not looked at: click asks for its state, and a stopped daemon never answers that."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click has it
        """Return *value* as it is."""
        return value


class Examples(click.Command):
    """A command whose help ends with examples, line by line as they are written."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:  # noqa: ANN401 - as click passes them
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those for remote sources last."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        for title, is_remote in (("Options", False), ("Options for s3:// sources", True)):
            chosen = [option for option in options if isinstance(option, RemoteOption) is is_remote]
            records = [record for option in chosen if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        with formatter.section("Examples"):
            for line in self.examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


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


def command(examples: str) -> Callable[[Callable[P, None]], click.Command]:
    """Make a command of a function: its errors become one line on standard error and an exit status."""

    def decorate(function: Callable[P, None]) -> click.Command:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
                if sys.stdout is not None:  # it was closed before we began
                    sys.stdout.flush()
            except errors.ShardfsError as error:
                click.echo(f"shardfs: {error}", err=True)
                sys.exit(error.exit_status)
            except OSError as error:
                if sys.stdout is not None:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes nowhere
                if not isinstance(error, BrokenPipeError):
                    click.echo(f"shardfs: {errors.printable(str(error))}", err=True)
                sys.exit(1)

        return cli.command(cls=Examples, examples=examples)(run)

    return decorate


def no_nan(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse what click takes for a number in any range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not in the range x>=0.")
    return value


def complain(message: str) -> None:
    """Say something on standard error, as a line like that of an error."""
    click.echo(errors.printable(f"shardfs: {message}"), err=True)


def view_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what arrays are shown as, `view` and `decode`."""
    decode = click.option("--decode", is_flag=True, help="Show chunks as plain array bytes, with --view v3 or v2.")
    view = click.option(
        "--view",
        type=click.Choice(VIEWS),
        default=MountOptions.view,
        show_default=True,
        help="Show unsharded Zarr v3, Zarr v2, or one .npy file per array.",
    )
    return view(decode(function))


timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    callback=no_nan,
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Give up, with exit status 6, when the daemon does not answer, or gets nothing done, for so long.",
)
mountpoint_argument = click.argument("mountpoint", metavar="MOUNTPOINT", type=_MountPoint())
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
