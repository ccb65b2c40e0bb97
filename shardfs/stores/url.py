"""From what a user types as SOURCE to a store."""

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from os.path import abspath, lexists, realpath
from typing import Final
from urllib.parse import unquote, urlsplit

import trio

from shardfs.errors import SourceError, UsageError
from shardfs.stores.base import Reader
from shardfs.stores.local.reader import TTL as LOCAL_TTL
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.parallel import open_nursery
from shardfs.stores.s3.requests import Location, S3Options

DEFAULT_CACHE_NBYTES: Final = 10 * 2**30

_S3: Final = "s3://"
S3_LIBRARIES: Final = ("boto3", "obstore")
"""The libraries that `shardfs[s3]` installs."""


def how_to_install(extra: str) -> str:
    """Return what to type if the libraries of an extra are missing."""
    named = f"'shardfs[{extra}]'"
    return f"{shlex.quote(sys.executable)} -m pip install {named}; with pipx: pipx inject shardfs {named}"


@dataclass(frozen=True, slots=True)
class StoreOptions(S3Options):
    """How to reach a remote source, and how to cache it; a local source takes none of these options.

    What is None comes from the environment and the AWS configuration files; credentials always do. *cache* is a local
    directory that keeps at most *cache_size* of fetched data, also for later mounts.
    """

    cache: str | None = None
    cache_size: int = DEFAULT_CACHE_NBYTES

    def __post_init__(self) -> None:
        if self.anonymous and self.request_payer:
            raise UsageError("--request-payer contradicts --anonymous: only signed requests can be billed")
        if self.max_connections < 1:
            raise UsageError("--max-connections must be at least 1")
        if self.cache == "":
            raise UsageError("--cache is empty; was a variable never set?")
        if self.cache_size < 1:
            raise UsageError("--cache-size must be at least 1 byte")
        if self.cache is None and self.cache_size != DEFAULT_CACHE_NBYTES:
            raise UsageError("--cache-size needs a cache: add --cache DIR")

    def to_arguments(self) -> list[str]:
        """Return the options as arguments of `shardfs mount`, for any working directory."""
        arguments = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                value = abspath(value) if field.name == "cache" else value
                arguments.append(f"--{_option(field.name)}" + ("" if value is True else f"={value}"))
        return arguments


_DEFAULTS: Final = StoreOptions()


def _option(field: str) -> str:
    return field.replace("_", "-")


@asynccontextmanager
async def open_session() -> AsyncIterator[trio.Nursery]:
    """Yield what owns the background tasks of stores; at the end of the block they end, done or not.

    A store belongs to the event loop of its session, with its limits and all that it caches, and ends with it.
    """
    async with open_nursery() as session:
        yield session
        session.cancel_scope.cancel()


@asynccontextmanager
async def open_store(
    source: str, options: StoreOptions = _DEFAULTS, *, ttl: float | None = None
) -> AsyncIterator[Reader]:
    """Open the store of *source* as `open_store_in` does, in a session that lasts as long as the block."""
    async with open_session() as session:
        yield open_store_in(session, source, options, ttl=ttl)


def open_store_in(
    session: trio.Nursery, source: str, options: StoreOptions = _DEFAULTS, *, ttl: float | None = None
) -> Reader:
    """Open the store of *source*: a path, a `file://` or an `s3://` URL.

    Names, sizes and listings are cached for *ttl* seconds; None is 1 for a local directory, and 60 for a bucket. Raises
    `SourceError`, and `UsageError` for options that the source does not have. A remote store is not contacted yet: see
    `Reader.check`.
    """
    place = _parse(source)
    if isinstance(place, Location):
        return _open_s3(session, place, options, ttl)
    for field in fields(options):
        if getattr(options, field.name) != field.default:
            raise UsageError(f"--{_option(field.name)} is for s3:// sources, and {source} is on this machine")
    return LocalStore(place, ttl=LOCAL_TTL if ttl is None else ttl)


def is_remote(source: str) -> bool:
    """Whether *source* is no local directory; raises `SourceError` if it names nothing."""
    return isinstance(_parse(source), Location)


def url_of(source: str) -> str:
    """Return the URL of *source*, or its absolute path without links; it need not exist."""
    place = _parse(source)
    return place.url if isinstance(place, Location) else realpath(place)


def resolve(source: str) -> tuple[str, str | None]:
    """Return the URL of *source* for any working directory, and its path if it is local.

    Raises `SourceError` for what is known without contacting a remote store.
    """
    place = _parse(source)
    if isinstance(place, Location):
        return place.url, None
    store = LocalStore(place)
    return store.url, store.root


def _parse(source: str) -> str | Location:
    """Return the path or the location in a bucket that *source* names."""
    if not source:
        raise SourceError("SOURCE is empty; was a variable never set?")
    if "://" not in source:
        if source.startswith(("s3:", "file:")) and not lexists(source):
            scheme, _, rest = source.partition(":")
            url = f"{scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}"
            raise SourceError(f"{source} does not exist; did you mean {url}? A pathlib.Path cannot hold a URL")
        return source
    if source[: len(_S3)].lower() == _S3:
        return Location.parse(_S3 + source[len(_S3) :])
    try:
        parts = urlsplit(source)
    except ValueError as error:
        raise SourceError(f"{source} is not a valid URL: {error}") from None
    if parts.scheme != "file":
        raise SourceError(f"{source}: {parts.scheme}:// is not supported; SOURCE is a path, a file:// or an s3:// URL")
    if parts.netloc not in ("", "localhost"):
        raise SourceError(f"{source} names the host {parts.netloc}; a file:// URL has three slashes: file:///path")
    path = unquote(parts.path, errors="surrogateescape")
    if not path or parts.query or parts.fragment:
        raise SourceError(f"{source} names no file; write ? and # in its path as %3F and %23")
    return path


def _open_s3(session: trio.Nursery, location: Location, options: StoreOptions, ttl: float | None) -> Reader:
    try:
        # Imported only here: they load two large libraries, which an installation without S3 lacks.
        from shardfs.stores.disk_cache import DiskCache
        from shardfs.stores.s3.client import S3Client
        from shardfs.stores.s3.requests import Counts
        from shardfs.stores.s3.routed import RoutedStore
        from shardfs.stores.s3.store import TTL, S3Store
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in (*S3_LIBRARIES, "botocore"):
            raise
        raise SourceError(
            f"{location.url} needs {' and '.join(S3_LIBRARIES)}; install them with: {how_to_install('s3')}"
        ) from None
    client = S3Client(location, options, Counts())
    cache = DiskCache(options.cache, options.cache_size, client.counts) if options.cache is not None else None
    return RoutedStore(S3Store(client, session, ttl=TTL if ttl is None else ttl, cache=cache))
