"""From what a user types as SOURCE to a store."""

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from os.path import abspath, lexists, realpath
from typing import Final
from urllib.parse import unquote, urlsplit

import trio

from shardfs.errors import SourceError, UsageError, without_secrets
from shardfs.stores.base import Reader
from shardfs.stores.clouds.location import SCHEMES, CloudLocation
from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.local.reader import TTL as LOCAL_TTL
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.parallel import open_nursery
from shardfs.stores.s3.requests import Location, S3Options

DEFAULT_CACHE_NBYTES: Final = 10 * 2**30

_S3: Final = "s3://"
S3_LIBRARIES: Final = ("boto3", "obstore")
"""The libraries that `shardfs[s3]` installs; other clouds need only the second."""

_FOR_ALL: Final = frozenset({"cache", "cache_size", "max_connections"})
_FOR_WEB: Final = frozenset({"assume_complete"})
"""Options for all remote sources, and for those on web servers; all others are for S3."""


def how_to_install(extra: str) -> str:
    """Return what to type if the libraries of an extra are missing."""
    named = f"'shardfs[{extra}]'"
    return f"{shlex.quote(sys.executable)} -m pip install {named}; with pipx: pipx inject shardfs {named}"


@dataclass(frozen=True, slots=True)
class StoreOptions(S3Options):
    """How to reach a remote source, and how to cache it; a local source takes none of these options.

    What is None comes from the environment and the AWS configuration files; credentials always do. *cache* is a local
    directory that keeps at most *cache_size* of fetched data, also for later mounts. *assume_complete*: to list the
    chunks of a source on a web server, ask for each shard that an array may have.
    """

    cache: str | None = None
    cache_size: int = DEFAULT_CACHE_NBYTES
    assume_complete: bool = False

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
    source: str, options: StoreOptions = _DEFAULTS, *, outline_of: OutlineOf | None = None, ttl: float | None = None
) -> AsyncIterator[Reader]:
    """Open the store of *source* as `open_store_in` does, in a session that lasts as long as the block."""
    async with open_session() as session:
        yield open_store_in(session, source, options, outline_of=outline_of, ttl=ttl)


def open_store_in(
    session: trio.Nursery,
    source: str,
    options: StoreOptions = _DEFAULTS,
    *,
    outline_of: OutlineOf | None = None,
    ttl: float | None = None,
) -> Reader:
    """Open the store of *source*: a path, or a URL that begins with `file`, `s3`, `https`, `http`, `gs` or `az`.

    *outline_of* reads the documents of a source on a web server, which lists nothing; without it, there is an error.
    Names, sizes and listings are cached for *ttl* seconds; None is 1 for a local directory, else 60. Raises
    `SourceError`, and `UsageError` for options that the source does not have. A remote store is not contacted yet: see
    `Reader.check`.
    """
    place = _parse(source)
    _check_options(options, place)
    if isinstance(place, Location):
        return _open_s3(session, place, options, ttl)
    if isinstance(place, CloudLocation):
        return _open_cloud(session, place, options, outline_of, ttl)
    return LocalStore(place, ttl=LOCAL_TTL if ttl is None else ttl)


def applicable(options: StoreOptions, source: str) -> StoreOptions:
    """Return those of *options* that are for such sources as *source*, which is used beside another one."""
    place = _parse(source)
    names = [field.name for field in fields(options) if not _is_usable(field.name, place)]
    return replace(options, **{name: getattr(_DEFAULTS, name) for name in names})


def _check_options(options: StoreOptions, place: "_Place") -> None:
    """Raise `UsageError` for an option that is not for *place*."""
    for name in (field.name for field in fields(options)):
        if getattr(options, name) != getattr(_DEFAULTS, name) and not _is_usable(name, place):
            kinds = "remote" if name in _FOR_ALL else "https:// and http://" if name in _FOR_WEB else "s3://"
            what = f"{place} is on this machine" if isinstance(place, str) else f"this is {place.url}"
            raise UsageError(f"--{_option(name)} is for {kinds} sources, and {what}")


def _is_usable(name: str, place: "_Place") -> bool:
    """Whether the option *name* is for *place*."""
    if name in _FOR_ALL:
        return not isinstance(place, str)
    if name in _FOR_WEB:
        return isinstance(place, CloudLocation) and place.is_web
    return isinstance(place, Location)


def is_remote(source: str) -> bool:
    """Whether *source* is no local directory; raises `SourceError` if it names nothing."""
    return not isinstance(_parse(source), str)


def url_of(source: str) -> str:
    """Return the URL of *source*, or its absolute path without links; it need not exist."""
    place = _parse(source)
    return realpath(place) if isinstance(place, str) else place.url


def resolve(source: str) -> tuple[str, str | None]:
    """Return the URL of *source* for any working directory, and its path if it is local.

    Raises `SourceError` for what is known without contacting a remote store.
    """
    place = _parse(source)
    if not isinstance(place, str):
        return place.url, None
    store = LocalStore(place)
    return store.url, store.root


_Place = str | Location | CloudLocation


def _parse(source: str) -> _Place:
    """Return the path or the remote location that *source* names."""
    if not source:
        raise SourceError("SOURCE is empty; was a variable never set?")
    if "://" not in source:
        if source.startswith(tuple(f"{scheme}:" for scheme in ("s3", "file", *SCHEMES))) and not lexists(source):
            scheme, _, rest = source.partition(":")
            url = f"{scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}"
            shown, url = without_secrets(source), without_secrets(url)
            raise SourceError(f"{shown} does not exist; did you mean {url}? A pathlib.Path cannot hold a URL")
        return source
    if source[: len(_S3)].lower() == _S3:
        return Location.parse(_S3 + source[len(_S3) :])
    if source.partition("://")[0].lower() in SCHEMES:
        return CloudLocation.parse(source)
    shown = without_secrets(source)
    try:
        parts = urlsplit(source)
    except ValueError:  # whose message may repeat a password
        raise SourceError(f"{shown} is not a valid URL") from None
    if parts.scheme != "file":
        raise SourceError(
            f"{shown}: {parts.scheme}:// is not supported; SOURCE is a path, or a URL that begins with file://, s3://, "
            "https://, http://, gs:// or az://"
        )
    if parts.netloc not in ("", "localhost"):
        raise SourceError(f"{shown} names a host; a file:// URL has three slashes: file:///path")
    path = unquote(parts.path, errors="surrogateescape")
    if not path or parts.query or parts.fragment:
        raise SourceError(f"{shown} names no file; write ? and # in its path as %3F and %23")
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


def _open_cloud(
    session: trio.Nursery,
    location: CloudLocation,
    options: StoreOptions,
    outline_of: OutlineOf | None,
    ttl: float | None,
) -> Reader:
    try:
        from shardfs.stores.clouds.client import CloudClient
        from shardfs.stores.clouds.store import TTL, BucketStore, WebStore
        from shardfs.stores.disk_cache import DiskCache
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in S3_LIBRARIES:
            raise
        raise SourceError(f"{location.url} needs obstore; install it with: {how_to_install('s3')}") from None
    client = CloudClient(location, max_connections=options.max_connections)
    cache = DiskCache(options.cache, options.cache_size, client.counts) if options.cache is not None else None
    ttl = TTL if ttl is None else ttl
    if not location.is_web:
        return BucketStore(client, session, ttl=ttl, cache=cache)
    if outline_of is None:
        raise SourceError(f"{location.url} cannot be opened here: nothing reads its documents, and it lists no names")
    complete = options.assume_complete
    return WebStore(client, session, outline_of, ttl=ttl, cache=cache, assumes_complete=complete)
