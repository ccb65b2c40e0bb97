"""SOURCE on the command line: the argument, the options that go with it, and how a command opens it."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click
import trio

from shardfs.cli.options import RemoteOption
from shardfs.dataset.source import Source
from shardfs.stores.base import Store
from shardfs.stores.url import StoreOptions, open_store

_FOREVER: Final = float("inf")  # a command looks at everything once

_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size(_: click.Context, __: click.Parameter, value: str) -> int:
    """Return the number of bytes that is written as `du -h` does."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)([KMGT]?)(?:iB)?", value.strip(), re.ASCII | re.IGNORECASE)
    nbytes = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if nbytes < 1:
        raise click.BadParameter(f"{value!r} is no size; write 500M or 10G, in powers of 1024.")
    return nbytes


_STORE_OPTIONS: Final = (
    click.option("--profile", cls=RemoteOption, metavar="NAME", help="Profile of the AWS configuration files."),
    click.option("--region", cls=RemoteOption, metavar="NAME", help="Region of the bucket."),
    click.option("--endpoint-url", cls=RemoteOption, metavar="URL", help="Server, where it is not AWS."),
    click.option("--anonymous", cls=RemoteOption, is_flag=True, help="Sign no request, for public buckets."),
    click.option("--request-payer", cls=RemoteOption, is_flag=True, help="Pay for requests to the bucket of another."),
    click.option(
        "--max-connections",
        cls=RemoteOption,
        type=click.IntRange(min=1, max=1024),
        default=StoreOptions().max_connections,
        show_default=True,
        metavar="N",
        help="Requests at a time.",
    ),
)

single_writer_option = click.option(
    "--single-writer",
    cls=RemoteOption,
    is_flag=True,
    help="Write also where the server cannot keep several writers apart: nobody else may write.",
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
