"""From what a user types as SOURCE to a store."""

import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from os.path import abspath, basename, dirname, isfile, join, lexists, realpath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import trio

from shardfs.errors import SourceError, UsageError, without_secrets
from shardfs.stores.base import DOCUMENTS, FRAME, Reader
from shardfs.stores.clouds.attempts import Attempts
from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.local.reader import TTL as LOCAL_TTL
from shardfs.stores.local.reader import LocalReader
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.objects.location import SCHEMES, CloudLocation, S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.parallel import open_nursery
from shardfs.stores.references.store import ReferenceStore
from shardfs.stores.references.targets import OPTION, Place, TargetFiles, TargetRoot, Targets, name_of
from shardfs.stores.single import SingleFile

if TYPE_CHECKING:
    from shardfs.stores.clouds.client import CloudClient
    from shardfs.stores.objects.disk_cache import DiskCache

DEFAULT_CACHE_NBYTES: Final = 10 * 2**30

_S3: Final = "s3://"
S3_LIBRARIES: Final = ("boto3", "obstore")
"""The libraries that `shardfs[s3]` installs; other clouds need only the second."""

_FOR_ALL: Final = frozenset({"cache", "cache_size", "max_connections"})
_FOR_WEB: Final = frozenset({"assume_complete"})
_FOR_REFERENCES: Final = frozenset({"allow_target"})
"""Options for all remote sources, for those on web servers, and for references; all others are for S3."""


def how_to_install(extra: str) -> str:
    """Return what to type if the libraries of an extra are missing."""
    named = f"'shardfs[{extra}]'"
    return f"{shlex.quote(sys.executable)} -m pip install {named}; with pipx: pipx inject shardfs {named}"


@dataclass(frozen=True, slots=True)
class StoreOptions(S3Options):
    """How to reach a remote source, and how to cache it; a local source takes none of these options.

    What is None comes from the environment and the AWS configuration files; credentials always do. *cache* is a local
    directory that keeps at most *cache_size* of fetched data, also for later mounts. *assume_complete*: to list the
    chunks of a source on a web server, ask for each shard that an array may have; references, and an array that is one
    file, list their chunks without it. *allow_target*: where files may be to which references lead; without any, where
    the references are.
    """

    cache: str | None = None
    cache_size: int = DEFAULT_CACHE_NBYTES
    assume_complete: bool = False
    allow_target: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        roots = (self.allow_target,) if isinstance(self.allow_target, str) else tuple(self.allow_target)
        if not all(roots):
            raise UsageError(f"{OPTION} is empty; was a variable never set?")
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
            if value != field.default:
                value = abspath(value) if field.name == "cache" else value
                for one in value if isinstance(value, tuple) else (value,):
                    arguments.append(f"--{_option(field.name)}" + ("" if one is True else f"={one}"))
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

    What ends with `.json`, `.parq` or `.parquet` there is a set of references, and a file that ends with `.b2nd` is one
    array.

    *outline_of* reads the documents of a source on a web server, which lists nothing; without it, there is an error.
    Names, sizes and listings are cached for *ttl* seconds; None is 1 for a local directory, else 60. Raises
    `SourceError`, and `UsageError` for options that the source does not have. A remote store is not contacted yet: see
    `Reader.check`.
    """
    place = _parse(source)
    _check_options(options, place)
    if isinstance(place, _References):
        return _open_references(session, place, options, ttl)
    if isinstance(place, _File):
        home = _open_files(session, place.within, options, ttl)
        return SingleFile(place.url, home, place.name, FRAME, ttl=LOCAL_TTL if ttl is None else ttl)
    if isinstance(place, S3Location):
        return _open_s3(session, place, options, ttl)
    if isinstance(place, CloudLocation):
        return _open_cloud(session, place, options, outline_of, ttl)
    return LocalStore(place, ttl=LOCAL_TTL if ttl is None else ttl)


def applicable(options: StoreOptions, source: str) -> StoreOptions:
    """Return those of *options* that are for such sources as *source*, which is used beside another one."""
    places = _places(_parse(source), options)
    names = [field.name for field in fields(options) if not _is_usable(field.name, places)]
    return replace(options, **{name: getattr(_DEFAULTS, name) for name in names})


def _check_options(options: StoreOptions, place: "_Source") -> None:
    """Raise `UsageError` for an option that is not for *place*."""
    places = _places(place, options)
    for name in (field.name for field in fields(options)):
        if getattr(options, name) != getattr(_DEFAULTS, name) and not _is_usable(name, places):
            kinds = "remote" if name in _FOR_ALL else "https:// and http://" if name in _FOR_WEB else "s3://"
            kinds = "references (.json and .parq)" if name in _FOR_REFERENCES else f"{kinds} sources"
            what = f"{place} is on this machine" if isinstance(place, str) else f"this is {place.url}"
            raise UsageError(f"--{_option(name)} is for {kinds}, and {what}")


def _places(place: "_Source", options: StoreOptions) -> Sequence["_Source"]:
    """Return *place*, and if it is of references, where the references and their targets are."""
    match place:
        case _References():
            return [place, place.within, *map(_parse_place, options.allow_target)]
        case _File():
            return [place, place.within]
        case _:
            return [place]


def _is_usable(name: str, places: Sequence["_Source"]) -> bool:
    """Whether the option *name* is for one of *places*, the first of which is the source."""
    if name in _FOR_ALL:
        return any(isinstance(place, S3Location | CloudLocation) for place in places)
    if name in _FOR_WEB:
        return any(isinstance(place, CloudLocation) and place.is_web for place in places)
    if name in _FOR_REFERENCES:
        return isinstance(places[0], _References)
    return any(isinstance(place, S3Location) for place in places)


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


@dataclass(frozen=True, slots=True)
class _References:
    """The references at *url*: the file *name* in the place *within*, or if they are *in_records*, the directory."""

    url: str
    within: Place
    name: str
    in_records: bool


@dataclass(frozen=True, slots=True)
class _File:
    """The array in the file at *url*: *name* in the place *within*."""

    url: str
    within: Place
    name: str


_Source = Place | _References | _File


def _parse(source: str) -> _Source:
    """Return the path, the remote location, the references or the file that *source* names; paths are looked at."""
    place = _parse_place(source)
    if isinstance(place, str):
        in_records = place.rstrip("/").endswith(_IN_RECORDS) and isfile(join(place, DOCUMENTS[-1]))
        if in_records or (place.endswith(_IN_DOCUMENT) and basename(place) not in DOCUMENTS and isfile(place)):
            url = join(realpath(dirname(place.rstrip("/")) or "."), basename(place.rstrip("/")))
            found = realpath(url)
            return _References(url, dirname(found), basename(found), in_records)
        if place.endswith(_FRAME) and isfile(place):
            found = realpath(place)
            return _File(join(realpath(dirname(place) or "."), basename(place)), dirname(found), basename(found))
        return place
    above, _, name = place.prefix.rpartition("/")
    in_records = name.endswith(_IN_RECORDS)
    is_file = not source.endswith("/")
    stored = unquote(name) if isinstance(place, CloudLocation) and place.is_web else name
    if in_records or (is_file and name.endswith(_IN_DOCUMENT) and name not in DOCUMENTS):
        return _References(place.url, replace(place, prefix=above), stored, in_records)
    if is_file and name.endswith(_FRAME):
        return _File(place.url, replace(place, prefix=above), stored)
    return place


_IN_DOCUMENT: Final = ".json"
_IN_RECORDS: Final = (".parq", ".parquet")
_FRAME: Final = ".b2nd"


def _parse_place(source: str) -> Place:
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


def _open_references(
    session: trio.Nursery, references: _References, options: StoreOptions, ttl: float | None
) -> ReferenceStore:
    if references.in_records and find_spec("pyarrow") is None:
        raise SourceError(f"{references.url} needs pyarrow; install it with: {how_to_install('parquet')}")
    home = _open_files(session, references.within, options, ttl)
    roots = [TargetRoot((name_of(references.within),), home)]
    if options.allow_target:
        roots = [_open_root(session, root, options, ttl) for root in options.allow_target]
    return ReferenceStore(
        references.url,
        home.address._replace(url=references.url),
        home,
        references.name,
        Targets(references.within, roots),
        in_records=references.in_records,
        ttl=LOCAL_TTL if ttl is None else ttl,
    )


def _open_root(session: trio.Nursery, root: str, options: StoreOptions, ttl: float | None) -> TargetRoot:
    try:
        place = _parse_place(root)
        names = {name_of(place): None} | ({realpath(place): None} if isinstance(place, str) else {})
        return TargetRoot(tuple(names), _open_files(session, place, options, ttl))
    except SourceError as error:
        raise SourceError(f"{OPTION}: {error}") from None


def _open_files(session: trio.Nursery, place: Place, options: StoreOptions, ttl: float | None) -> TargetFiles:
    """Open a place of which only files are read whose names are known."""
    if isinstance(place, str):
        return LocalReader(place, ttl=LOCAL_TTL if ttl is None else ttl)
    if isinstance(place, S3Location):
        return _open_s3(session, place, options, ttl)
    return _open_cloud_files(session, place, options, ttl)


def _open_s3(session: trio.Nursery, location: S3Location, options: StoreOptions, ttl: float | None) -> Reader:
    try:
        # Imported only here: they load two large libraries, which an installation without S3 lacks.
        from shardfs.stores.objects.disk_cache import DiskCache
        from shardfs.stores.objects.requests import Counts
        from shardfs.stores.s3.client import S3Client
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
    client, cache = _cloud(location, options)
    from shardfs.stores.clouds.store import TTL, BucketStore, WebStore

    ttl = TTL if ttl is None else ttl
    if not location.is_web:
        return BucketStore(client, session, ttl=ttl, cache=cache)
    if outline_of is None:
        raise SourceError(f"{location.url} cannot be opened here: nothing reads its documents, and it lists no names")
    complete = options.assume_complete
    return WebStore(client, session, outline_of, ttl=ttl, cache=cache, assumes_complete=complete)


def _open_cloud_files(
    session: trio.Nursery, location: CloudLocation, options: StoreOptions, ttl: float | None
) -> TargetFiles:
    client, cache = _cloud(location, options)
    from shardfs.stores.clouds.store import TTL, BucketStore, WebFiles

    ttl = TTL if ttl is None else ttl
    return (WebFiles if location.is_web else BucketStore)(client, session, ttl=ttl, cache=cache)


def _cloud(location: CloudLocation, options: StoreOptions) -> "tuple[CloudClient, DiskCache | None]":
    """Return what makes requests, and the cache on disk if there is one."""
    from shardfs.stores.clouds.client import CloudClient
    from shardfs.stores.objects.disk_cache import DiskCache

    client = CloudClient(location, _attempts(location), max_connections=options.max_connections)
    return client, DiskCache(options.cache, options.cache_size, client.counts) if options.cache is not None else None


def _attempts(location: CloudLocation) -> Attempts:
    """Return what makes single requests; for web servers, that needs no library."""
    if location.is_web:
        from shardfs.stores.clouds.web import WebAttempts

        return WebAttempts(location)
    try:
        from shardfs.stores.clouds.buckets import BucketAttempts
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in S3_LIBRARIES:
            raise
        raise SourceError(f"{location.url} needs obstore; install it with: {how_to_install('s3')}") from None
    return BucketAttempts(location)
