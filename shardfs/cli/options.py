"""What commands share: errors as one line and an exit status, help with examples, arguments and options."""

import gc
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from shardfs.cli.output import complain
from shardfs.errors import ShardfsError, nearest, without_secrets
from shardfs.format.document import DRAFTS
from shardfs.fuse.control import TIMEOUT, list_mounts
from shardfs.fuse.options import MountOptions
from shardfs.service.log import FORMATS
from shardfs.vfs.options import DIMENSION_SEPARATORS, VIEWS


class RemoteOption(click.Option):
    """An option for remote sources; the help lists them separately."""


class Number(click.FloatRange):
    """A number within a range; never nan."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click has it
        """Return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class Integer(click.IntRange):
    """An integer within a range."""

    name = "integer"


class _Directory(click.types.StringParamType):
    """SOURCE or MOUNTPOINT; a shell completes names of directories, except for a URL.

    The path is not looked at, as `click.Path` does: a daemon that is stopped would never answer.
    """

    name = "directory"

    def shell_complete(self, _: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave completion to the shell."""
        return [] if "://" in incomplete else [CompletionItem(incomplete, type="dir")]


class _Mounted(_Directory):
    """A mounted mount point; a shell completes the present ones, without asking their daemons."""

    def shell_complete(self, _: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the mount points with this beginning, in the same notation, that need no quotes."""
        paths = [mount.path for mount in list_mounts() if shlex.quote(mount.path) == mount.path]
        forms = [form for path in paths for form in (path, os.path.relpath(path)) if form.startswith(incomplete)]
        return [CompletionItem(form) for form in forms]


class Command(click.Command):
    """A command whose errors become one line and an exit status, and whose help ends with *examples*, one per line."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:  # noqa: ANN401 - as click passes them
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; what is wrong with them is said without secrets in URLs."""
        urls = [arg for arg in args if ":/" in arg]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            every = [name for parameter in self.get_params(ctx) for name in parameter.opts if name.startswith("--")]
            alike = nearest(error.option_name, every)
            raise click.NoSuchOption(error.option_name, None, [alike] if alike else None, error.ctx) from None
        except click.UsageError as error:
            if not urls:
                raise
            message = error.format_message()
            for url in urls:
                message = message.replace(url, without_secrets(url))
            raise click.UsageError(message, error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run the command."""
        gc.freeze()  # what was imported stays
        gc.enable()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except ShardfsError as error:
            complain(str(error))
            sys.exit(error.exit_status)
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is None:
                raise
            raise click.Abort from None
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whatever is buffered is dropped
            if not isinstance(error, BrokenPipeError):
                complain(str(error))
            sys.exit(1)
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those for remote sources last."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        for title, is_remote in (("Options", False), ("Options for remote sources", True)):
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


def summary(command: click.Command) -> str:
    """Return the first sentence of the help of a command."""
    return command.get_short_help_str(sys.maxsize)


def command(examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function."""
    return click.command(cls=Command, examples=examples)


_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size(_: click.Context, __: click.Parameter, value: str) -> int:
    """Parse a number of bytes written as by `du -h`."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)([KMGT]?)(?:iB)?", value.strip(), re.ASCII | re.IGNORECASE)
    nbytes = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if nbytes < 1:
        raise click.BadParameter(f"{value!r} is not a size; write for example 500M or 10G (powers of 1024).")
    return nbytes


def view_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the view, `view` and `decode`."""
    decode = click.option("--decode", is_flag=True, help="Decode chunk files to plain array bytes (--view v3 or v2).")
    view = click.option(
        "--view",
        type=click.Choice(VIEWS),
        default=MountOptions.view,
        show_default=True,
        help="Show arrays as unsharded Zarr v3, as Zarr v2, or as one .npy file each.",
    )
    return view(decode(function))


draft_option = click.option(
    "--draft",
    type=click.Choice(DRAFTS),
    help="Read arrays that only this draft of a specification allows (--view v3).",
)


def tree_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the tree that is shown, fields of `TreeOptions`."""
    dimension_separator = click.option(
        "--dimension-separator",
        type=click.Choice(DIMENSION_SEPARATORS),
        help="Name chunk files 0.0.0 or 0/0/0 (--view v2).  [default: .]",
    )
    fill_missing = click.option(
        "--fill-missing",
        type=bool,
        default=True,
        metavar="yes|no",
        help="In --view v2, for arrays with named axes, show the missing value of xarray as the fill value, and show "
        "files for chunks that are not stored and would read as another value. With no, show the stored fill value and "
        "no such files; xarray and netCDF can then mask the wrong values.  [default: yes]",
    )
    decode_cache = click.option(
        "--decode-cache",
        callback=size,
        default="256M",
        show_default=True,
        metavar="SIZE",
        help="Memory for decoded chunks (--decode or --view npy).",
    )
    metadata_ttl = click.option(
        "--metadata-ttl",
        type=Number(min=0),
        metavar="SECONDS",
        help="Cache names, sizes and listings for this long.  [default: 1, for s3:// 60]",
    )
    return view_options(dimension_separator(fill_missing(draft_option(decode_cache(metadata_ttl(function))))))


def writing_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a tree that may be changed, fields of `TreeOptions`."""
    shards = click.option(
        "--shards",
        metavar="N,N,…",
        help="Store new arrays sharded, with this many inner chunks per shard along each axis (one number for all "
        "axes).",
    )
    auto_compact = click.option(
        "--auto-compact",
        type=Number(min=0, max=1, min_open=True),
        metavar="RATIO",
        help="Rewrite a shard when an append would leave this share of its bytes dead.",
    )
    return shards(auto_compact(function))


def log_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a process that logs."""
    log_level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        show_default=True,
        help="How much to log.",
    )
    log_format = click.option(
        "--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help="Format of log lines."
    )
    log_file = click.option(
        "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Write the log to this file."
    )
    return log_level(log_format(log_file(function)))


timeout_option = click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Give up, with exit status 6, if the daemon does not answer or makes no progress for this long.",
)
mountpoint_argument = click.argument("mountpoint", metavar="MOUNTPOINT", type=_Directory())
mounted_argument = click.argument("mountpoint", metavar="MOUNTPOINT", type=_Mounted())
optional_mounted_argument = click.argument("mountpoint", metavar="[MOUNTPOINT]", type=_Mounted(), required=False)
source_argument = click.argument("source", metavar="SOURCE", type=_Directory())
optional_source_argument = click.argument("source", metavar="[SOURCE]", type=_Directory(), required=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def _array_path(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    return None if value is None else "" if value in (".", "(root)") else value.strip("/")


array_argument = click.argument("array", metavar="[ARRAY]", required=False, callback=_array_path)
