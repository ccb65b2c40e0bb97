"""What commands have in common: errors as one line and an exit status, help with examples, arguments and options."""

import io
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import click
import trio

from shardfs.bulk.cluster import Place, connected
from shardfs.cli.output import complain
from shardfs.dataset.source import Source
from shardfs.errors import ShardfsError, UsageError
from shardfs.fuse.control import TIMEOUT
from shardfs.fuse.options import VIEWS, MountOptions
from shardfs.stores.base import Store
from shardfs.stores.url import StoreOptions, open_store

_FOREVER: Final = float("inf")  # a command looks at everything once


class RemoteOption(click.Option):
    """An option for sources that are not on this machine, which the help lists apart from the others."""


class _MountPoint(click.Path):
    """A path that is not looked at: click asks for its state, and a stopped daemon never answers that."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click has it
        """Return *value* as it is."""
        return value


class Command(click.Command):
    """A command whose errors become one line and an exit status, and whose help ends with *examples*, one a line."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:  # noqa: ANN401 - as click passes them
        super().__init__(*args, **kwargs)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run the command."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:  # it was closed before we began
                sys.stdout.flush()
        except ShardfsError as error:
            complain(str(error))
            sys.exit(error.exit_status)
        except OSError as error:
            if sys.stdout is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes nowhere
            if not isinstance(error, BrokenPipeError):
                complain(str(error))
            sys.exit(1)
        return result

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


def begin() -> None:
    """Begin a process of the command line."""
    # Reports say what is wrong with a source; only a mount logs it, where `fuse.log` says.
    logging.getLogger("shardfs").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names are bytes


def command(examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function."""
    return click.command(cls=Command, examples=examples)


def no_nan(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse what click takes for a number in any range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not in the range x>=0.")
    return value


def view_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what arrays are shown as, `view` and `decode`."""
    decode = click.option("--decode", is_flag=True, help="Decode chunk files to plain array bytes (--view v3 or v2).")
    view = click.option(
        "--view",
        type=click.Choice(VIEWS),
        default=MountOptions.view,
        show_default=True,
        help="Show arrays as unsharded Zarr v3, as Zarr v2, or as one .npy file each.",
    )
    return view(decode(function))


timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    callback=no_nan,
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Give up, with exit status 6, if the daemon does not answer or makes no progress for this long.",
)
mountpoint_argument = click.argument("mountpoint", metavar="MOUNTPOINT", type=_MountPoint())
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")

_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size(_: click.Context, __: click.Parameter, value: str) -> int:
    """Return the number of bytes that is written as `du -h` does."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)([KMGT]?)(?:iB)?", value.strip(), re.ASCII | re.IGNORECASE)
    nbytes = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if nbytes < 1:
        raise click.BadParameter(f"{value!r} is not a size; write for example 500M or 10G (powers of 1024).")
    return nbytes


def workers_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say who does the work, `jobs` and `dask`; see `executor`."""
    jobs = click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; one per core by default.")
    dask = click.option("--dask", metavar="ADDRESS", help="Have the workers of this Dask scheduler do it instead.")
    return jobs(dask(function))


@contextmanager
def executor(jobs: int | None, dask: str | None, places: Sequence[Place]) -> Iterator[Executor | None]:
    """Yield the executor that options ask for, None being processes of this machine; its workers reach *places*."""
    if dask is None:
        yield None
        return
    if jobs is not None:
        raise UsageError("--jobs is for this machine; a Dask cluster has the processes that it was started with")
    with connected(dask, places) as found:
        yield found


_STORE_OPTIONS: Final = (
    click.option("--profile", cls=RemoteOption, metavar="NAME", help="Profile in the AWS configuration files."),
    click.option("--region", cls=RemoteOption, metavar="NAME", help="Region of the bucket."),
    click.option("--endpoint-url", cls=RemoteOption, metavar="URL", help="URL of a server other than AWS."),
    click.option("--anonymous", cls=RemoteOption, is_flag=True, help="Do not sign requests, for public buckets."),
    click.option("--request-payer", cls=RemoteOption, is_flag=True, help="Pay for requests to somebody else's bucket."),
    click.option(
        "--max-connections",
        cls=RemoteOption,
        type=click.IntRange(min=1, max=1024),
        default=StoreOptions().max_connections,
        show_default=True,
        metavar="N",
        help="Number of requests at a time.",
    ),
)

single_writer_option = click.option(
    "--single-writer",
    cls=RemoteOption,
    is_flag=True,
    help="Nobody else writes to SOURCE: accept a server that cannot keep several writers apart.",
)


def store_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how to reach SOURCE; *function* gets them as one argument, `store_options`."""

    @wraps(function)
    def run(
        *,
        profile: str | None,
        region: str | None,
        endpoint_url: str | None,
        anonymous: bool,
        request_payer: bool,
        max_connections: int,
        **rest: Any,  # noqa: ANN401 - as click passes them
    ) -> None:
        chosen = StoreOptions(
            profile=profile,
            region=region,
            endpoint_url=endpoint_url,
            anonymous=anonymous,
            request_payer=request_payer,
            max_connections=max_connections,
        )
        function(store_options=chosen, **rest)

    decorated: Callable[..., None] = run
    for option in reversed(_STORE_OPTIONS):
        decorated = option(decorated)
    return decorated


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument SOURCE and the options that say how to reach it."""
    return click.argument("source", metavar="SOURCE")(store_options(function))


def open_checked(source: str, options: StoreOptions) -> Store:
    """Open SOURCE for a command; raises `SourceError` for what keeps it from being read."""
    store = open_store(source, options, ttl=_FOREVER)
    trio.run(store.check)
    return store


def open_source(source: str, options: StoreOptions) -> Source:
    """Open SOURCE with everything that reads it, for a command; raises as `open_checked` does."""
    return Source.of(open_checked(source, options))
