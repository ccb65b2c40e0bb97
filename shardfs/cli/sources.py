"""The argument SOURCE, the options for reaching it, and those for who does the work."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import click

from shardfs.cli.options import Integer, RemoteOption, size, source_argument
from shardfs.errors import UsageError
from shardfs.stores.url import StoreOptions

P = ParamSpec("P")
R = TypeVar("R")

_STORE_OPTIONS: Final = (
    click.option("--profile", cls=RemoteOption, metavar="NAME", help="Profile in the AWS configuration files."),
    click.option("--region", cls=RemoteOption, metavar="NAME", help="Region of the bucket."),
    click.option("--endpoint-url", cls=RemoteOption, metavar="URL", help="URL of a server other than AWS."),
    click.option("--anonymous", cls=RemoteOption, is_flag=True, help="Do not sign requests, for public buckets."),
    click.option("--request-payer", cls=RemoteOption, is_flag=True, help="Pay for requests to somebody else's bucket."),
    click.option(
        "--max-connections",
        cls=RemoteOption,
        type=Integer(min=1, max=1024),
        default=StoreOptions().max_connections,
        show_default=True,
        metavar="N",
        help="Number of requests at a time.",
    ),
    click.option(
        "--assume-complete",
        cls=RemoteOption,
        is_flag=True,
        help="To list chunks of an https:// source, ask for each shard that an array may have.",
    ),
    click.option(
        "--allow-target",
        cls=RemoteOption,
        multiple=True,
        metavar="ROOT",
        help="If SOURCE is a file that refers to others: let it lead to files below this directory or URL, and no "
        "other; may be repeated. Without it, it may lead to files beside SOURCE and below.",
    ),
)

single_writer_option = click.option(
    "--single-writer",
    cls=RemoteOption,
    is_flag=True,
    help="Nobody else writes to SOURCE: accept a server that cannot keep several writers apart.",
)


def store_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for reaching SOURCE; *function* gets them as one argument, `store_options`."""

    @wraps(function)
    def run(**given: Any) -> None:  # noqa: ANN401 - as click passes them
        chosen = {field.name: given.pop(field.name) for field in fields(StoreOptions) if field.name in given}
        function(store_options=StoreOptions(**chosen), **given)

    decorated: Callable[..., None] = run
    for option in reversed(_STORE_OPTIONS):
        decorated = option(decorated)
    return decorated


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument SOURCE and the options for reaching it."""
    return source_argument(store_options(function))


def workers_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for who does the work, `jobs` and `dask`; see `executor`."""
    jobs = click.option(
        "--jobs", type=Integer(min=1), metavar="N", help="Number of processes, by default one per core."
    )
    dask = click.option("--dask", metavar="ADDRESS", help="Let the workers of this Dask scheduler do the work.")
    return jobs(dask(function))


@contextmanager
def executor(
    jobs: int | None, dask: str | None, options: StoreOptions, *sources: str, destination: str | None = None
) -> Iterator[Executor | None]:
    """Yield the executor for the options, None for processes of this machine.

    Its workers must reach *sources* and *destination* as this process does.
    """
    if dask is None:
        yield None
        return
    if jobs is not None:
        raise UsageError("--jobs is for this machine; a Dask cluster has the processes that it was started with")
    from shardfs.bulk.cluster import connected  # imported only here: most commands with a SOURCE have no executor

    with connected(dask, options, sources, destination) as found:
        yield found


def cache_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the cache on disk of a remote source."""
    cache = click.option(
        "--cache", cls=RemoteOption, metavar="DIR", help="Cache fetched data in this directory, also for later mounts."
    )
    cache_size = click.option(
        "--cache-size",
        cls=RemoteOption,
        callback=size,
        default="10G",
        show_default=True,
        metavar="SIZE",
        help="Size of --cache, such as 500M.",
    )
    return cache(cache_size(function))
