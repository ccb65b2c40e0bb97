"""From the name of a location, as a user types it, to a store or a reader of it; and the options for that."""

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from os.path import abspath, lexists
from types import ModuleType
from typing import Final
from urllib.parse import unquote, urlsplit

import trio

from shardfs.errors import SourceError, UsageError, without_secrets
from shardfs.stores.base import Reader
from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.files import AnyLocation, TargetFiles
from shardfs.stores.local.reader import TTL as LOCAL_TTL
from shardfs.stores.local.reader import LocalReader
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.objects.location import SCHEMES, CloudLocation, S3Location
from shardfs.stores.objects.options import DEFAULT_CACHE_NBYTES, RemoteOptions
from shardfs.stores.parallel import open_nursery

_S3: Final = "s3://"
REMOTE_LIBRARIES: Final = ("boto3", "pycurl")
"""Libraries that remote sources need; the first is part of the extra `s3`."""

_REMOTE_TTL: Final = 60.0
"""Default TTL in seconds of what is remote; asking again takes a request."""

ALLOW_TARGET: Final = "--allow-target"
_FOUND: Final = "files"
_FOR_ALL: Final = frozenset({"cache", "cache_size", "max_connections"})
_FOR_WEB: Final = frozenset({"assume_complete"})
"""Options for all remote sources, and for those on web servers; all others are for S3, or for a format."""


def how_to_install(extra: str) -> str:
    """Return what to type if the libraries of an extra are missing."""
    named = f"'shardfs[{extra}]'"
    return f"{shlex.quote(sys.executable)} -m pip install {named}; with pipx: pipx inject shardfs {named}"


@dataclass(frozen=True, slots=True)
class StoreOptions(RemoteOptions):
    """How to reach a remote source, and how to cache it; a local source takes none of these options.

    What is None comes from the environment and the AWS configuration files; credentials always do. *cache* is a local
    directory that keeps at most *cache_size* of fetched data, also for later mounts. *assume_complete*: to list the
    chunks of a source on a web server, ask for each shard that an array may have; a file that is a source lists its
    chunks without it. *allow_target*: where other files may be to which such a file leads; without any, where it is.

    *files* is no option of users: the URLs of files that do not say what they are by their names, each with the name of
    its format, as whoever opened them found out, for all who open them again. A directory has "", if its name says that
    it is a file.
    """

    allow_target: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        roots = (self.allow_target,) if isinstance(self.allow_target, str) else tuple(self.allow_target)
        if not all(roots):
            raise UsageError(f"{ALLOW_TARGET} is empty; was a variable never set?")
        object.__setattr__(self, "allow_target", tuple(root if "://" in root else abspath(root) for root in roots))
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
            if value != field.default and field.name != _FOUND:
                value = abspath(value) if field.name == "cache" else value
                for one in value if isinstance(value, tuple) else (value,):
                    arguments.append(f"--{option_of(field.name)}" + ("" if one is True else f"={one}"))
        return arguments


DEFAULTS: Final = StoreOptions()


def option_of(field: str) -> str:
    """Return the option, without dashes, of a field of `StoreOptions`."""
    return field.replace("_", "-")


@asynccontextmanager
async def open_session() -> AsyncIterator[trio.Nursery]:
    """Yield what owns the background tasks of stores; at the end of the block they end, done or not.

    A store belongs to the event loop of its session, with its limits and all that it caches, and ends with it.
    """
    async with open_nursery() as session:
        yield session
        session.cancel_scope.cancel()


def open_reader(
    session: trio.Nursery, location: AnyLocation, options: StoreOptions, outline_of: OutlineOf | None, ttl: float | None
) -> Reader:
    """Open the store at *location*; see `dataset.source.open_store_in`."""
    if not isinstance(location, str):
        ttl = _REMOTE_TTL if ttl is None else ttl
        store: Reader = _opening(location).open_reader(session, location, options, ttl, outline_of)
        return store
    return LocalStore(location, ttl=LOCAL_TTL if ttl is None else ttl)


def open_files(session: trio.Nursery, location: AnyLocation, options: StoreOptions, ttl: float | None) -> TargetFiles:
    """Open a location of which only files are read whose names are known."""
    if isinstance(location, str):
        return LocalReader(location, ttl=LOCAL_TTL if ttl is None else ttl)
    files: TargetFiles = _opening(location).open_files(session, location, options, _REMOTE_TTL if ttl is None else ttl)
    return files


def usable_kinds(name: str) -> str | None:
    """Return for which locations the option *name* is, in words; None if it is for a format alone."""
    if name == "allow_target":
        return None
    return "remote" if name in _FOR_ALL else "https:// and http://" if name in _FOR_WEB else "s3://"


def is_usable(name: str, location: AnyLocation) -> bool:
    """Whether the option *name* is for *location*."""
    if name == _FOUND:
        return True
    if name in _FOR_ALL:
        return isinstance(location, S3Location | CloudLocation)
    if name in _FOR_WEB:
        return isinstance(location, CloudLocation) and location.is_web
    return usable_kinds(name) is not None and isinstance(location, S3Location)


def parse_location(source: str) -> AnyLocation:
    """Return the path or the remote location that *source* names; raises `SourceError` if it names nothing."""
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
        return S3Location.parse(_S3 + source[len(_S3) :])
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


def _opening(location: S3Location | CloudLocation) -> ModuleType:
    """Return the module that opens a remote source; it loads large libraries, of which some need not be installed."""
    try:
        return import_module(_OPENINGS[location.url.partition(":")[0]])
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0].replace("botocore", "boto3")
        if library not in REMOTE_LIBRARIES:
            raise
        raise SourceError(f"{location.url} needs {library}; install it with: {how_to_install('s3')}") from None


_OPENINGS: Final = {
    "s3": "shardfs.stores.s3.opening",
    **dict.fromkeys(SCHEMES, "shardfs.stores.clouds.opening"),
}
"""By scheme, the module that opens such sources."""
