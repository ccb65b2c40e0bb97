"""From what a user types as SOURCE to a store: a location, or a file in one that a format takes."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, replace
from os import stat
from os.path import basename, dirname, join, lexists, realpath
from stat import S_ISDIR, S_ISREG
from typing import Final
from urllib.parse import unquote

import trio

from shardfs.errors import NoSourceError, ShardfsError, SourceError, UsageError
from shardfs.formats import FIRST_NBYTES, Candidate, FileSource, Format, formats
from shardfs.stores.base import DOCUMENTS, ListedName, Reader
from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.files import AnyLocation, TargetFiles
from shardfs.stores.local.reader import TTL as LOCAL_TTL
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.objects.location import CloudLocation, S3Location
from shardfs.stores.url import (
    DEFAULTS,
    StoreOptions,
    is_usable,
    open_files,
    open_reader,
    open_session,
    option_of,
    parse_location,
    usable_kinds,
)

_NONE: Final = ""
"""Stands for the format of what is no file; no format has this name."""

_PATIENCE: Final = 10.0
"""How many seconds a server has for the first bytes of a file, while a user waits."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file, or a directory, that *format* takes: *name* in the location *home*."""

    url: str
    home: AnyLocation
    name: str
    format: Format


@asynccontextmanager
async def open_store(
    source: str, options: StoreOptions = DEFAULTS, *, outline_of: OutlineOf | None = None, ttl: float | None = None
) -> AsyncIterator[Reader]:
    """Open the store of *source* as `open_store_in` does, in a session that lasts as long as the block."""
    async with open_session() as session:
        yield open_store_in(session, source, options, outline_of=outline_of, ttl=ttl)


def open_store_in(
    session: trio.Nursery,
    source: str,
    options: StoreOptions = DEFAULTS,
    *,
    outline_of: OutlineOf | None = None,
    ttl: float | None = None,
) -> Reader:
    """Open the store of *source*: a path, or a URL that begins with `file`, `s3`, `https`, `http`, `gs` or `az`.

    What is there may be a file that a format takes, instead of a directory.

    *outline_of* reads the documents of a source on a web server, which lists nothing; without it, there is an error.
    Names, sizes and listings are cached for *ttl* seconds; None is 1 for a local directory, else 60. Raises
    `SourceError`, and `UsageError` for options that the source does not have. A remote store is not contacted yet: see
    `open_checked`.
    """
    location = _parse(source, options)
    _check_options(options, location)
    if not isinstance(location, _File):
        return open_reader(session, location, options, outline_of, ttl)

    def open_location(name: str) -> tuple[AnyLocation, TargetFiles]:
        other = parse_location(name)
        return other, open_files(session, other, options, ttl)

    files = open_files(session, location.home, options, ttl)
    ttl = LOCAL_TTL if ttl is None else ttl
    return location.format.open(
        FileSource(location.url, location.home, files, location.name, ttl, options, open_location, session)
    )


async def open_checked(
    session: trio.Nursery, source: str, options: StoreOptions, *, outline_of: OutlineOf | None, ttl: float | None
) -> tuple[Reader, Sequence[ListedName] | None, StoreOptions]:
    """Open the store of *source* as `open_store_in` does, and check it; returns it with the names at the top.

    Where nothing is below a remote *source*, it may be a file: formats are asked for it by its first bytes. The options
    that are returned say so to whoever opens the same again, by the URL of the store; and so they do if it is a
    directory with the name of a file. Raises `SourceError` if it cannot be read.
    """
    location = _parse(source, options)
    if not isinstance(location, str) and _url(source, location) != location.url:
        options = replace(options, files=(*options.files, (location.url, _NONE)))
    store = open_store_in(session, source, options, outline_of=outline_of, ttl=ttl)
    try:
        return store, await store.check(), options
    except NoSourceError:
        recognised = await _recognised(session, source, options, ttl)
        if recognised is None:
            raise
    options = replace(options, files=(*options.files, recognised))
    store = open_store_in(session, source, options, outline_of=outline_of, ttl=ttl)
    return store, await store.check(), options


async def _recognised(
    session: trio.Nursery, source: str, options: StoreOptions, ttl: float | None
) -> tuple[str, str] | None:
    """Return the URL of the remote file *source*, and the name of the format that takes it; None if none does."""
    location = parse_location(source)
    if isinstance(location, str) or source.endswith("/"):
        return None
    home, name = _in_its_place(location)
    first = b""
    if name:
        with suppress(ShardfsError), trio.move_on_after(_PATIENCE):
            snapshot = await open_files(session, home, options, ttl).open(name, head_nbytes=FIRST_NBYTES)
            first = bytes(await snapshot.read(0, min(snapshot.size, FIRST_NBYTES)))
    format_of = _taken(Candidate(name, is_file=True, is_directory=False, first=first)) if first else None
    return None if format_of is None else (location.url, format_of.name)


def applicable(options: StoreOptions, source: str) -> StoreOptions:
    """Return those of *options* that are for such sources as *source*, which is used beside another one."""
    location = _parse(source, options)
    names = [field.name for field in fields(options) if not _is_usable(field.name, location, options)]
    return replace(options, **{name: getattr(DEFAULTS, name) for name in names})


def is_remote(source: str) -> bool:
    """Whether *source* is no local directory; raises `SourceError` if it names nothing."""
    return not isinstance(_parse(source), str)


def url_of(source: str) -> str:
    """Return the URL of *source*, or its absolute path without links; it need not exist."""
    location = _parse(source)
    return realpath(location) if isinstance(location, str) else _url(source, location)


def _url(source: str, location: S3Location | CloudLocation | _File) -> str:
    """Return the URL of the remote *source*: one with a slash, if it would be that of a file without."""
    is_ambiguous = source.endswith("/") and isinstance(_parse(location.url), _File)
    return f"{location.url}/" if is_ambiguous else location.url


def resolve(source: str) -> tuple[str, str | None]:
    """Return the URL of *source* for any working directory, and its path if it is local.

    Raises `SourceError` for what is known without contacting a remote store.
    """
    location = _parse(source)
    if not isinstance(location, str):
        return _url(source, location), None
    store = LocalStore(location)
    return store.url, store.root


def _check_options(options: StoreOptions, location: AnyLocation | _File) -> None:
    """Raise `UsageError` for an option that is not for *location*."""
    for name in (field.name for field in fields(options)):
        if getattr(options, name) != getattr(DEFAULTS, name) and not _is_usable(name, location, options):
            kinds = usable_kinds(name) or " and ".join(one.sources for one in formats() if name in one.options)
            what = f"{location} is on this machine" if isinstance(location, str) else f"this is {location.url}"
            raise UsageError(f"--{option_of(name)} is for {kinds} sources, and {what}")


def _is_usable(name: str, location: AnyLocation | _File, options: StoreOptions) -> bool:
    """Whether the option *name* is for the source at *location*, or for one of the locations that it leads to."""
    if isinstance(location, _File) and name in location.format.options:
        return True
    return any(is_usable(name, one) for one in _locations(location, options))


def _locations(location: AnyLocation | _File, options: StoreOptions) -> Iterator[AnyLocation]:
    """Yield *location*, or of a file where it is, and where the user lets it lead."""
    if not isinstance(location, _File):
        yield location
        return
    yield location.home
    if "allow_target" in location.format.options:
        yield from map(parse_location, options.allow_target)


def _parse(source: str, options: StoreOptions = DEFAULTS) -> AnyLocation | _File:
    """Return the location or the file that *source* names; paths are looked at."""
    location = parse_location(source)
    if isinstance(location, str):
        return _local_file(location) or location
    return _remote_file(source, location, dict(options.files)) or location


def _local_file(path: str) -> _File | None:
    """Return the file, or the directory of one, that a format takes at *path*; None if none does."""
    try:
        mode = stat(path).st_mode
    except (OSError, ValueError):
        return None
    is_file, name = S_ISREG(mode) and not path.endswith("/"), basename(path.rstrip("/"))
    if not (is_file or S_ISDIR(mode)) or lexists(join(path, DOCUMENTS[0])):  # a node of Zarr needs no format
        return None
    format_of = _taken(Candidate(name, is_file, S_ISDIR(mode), path, _first_bytes(path) if is_file else b""))
    if format_of is None:
        return None
    url = join(realpath(dirname(path.rstrip("/")) or "."), name)
    stored = realpath(url)
    return _File(url, dirname(stored), basename(stored), format_of)


def _remote_file(source: str, location: S3Location | CloudLocation, known: Mapping[str, str]) -> _File | None:
    """Return the file at the URL *source* that a format takes; None if none does.

    *known* are formats of files by URL; `_NONE` is that of a directory.
    """
    home, name = _in_its_place(location)
    if location.url in known:
        format_of = next((one for one in formats() if one.name == known[location.url]), None)
    else:
        shown = location.prefix.rpartition("/")[2]
        format_of = _taken(Candidate(shown, not source.endswith("/"), is_directory=True)) if name else None
    return None if format_of is None else _File(location.url, home, name, format_of)


def _in_its_place(location: S3Location | CloudLocation) -> tuple[AnyLocation, str]:
    """Return what is around a location, and its name there."""
    above, _, name = location.prefix.rpartition("/")
    name = unquote(name) if isinstance(location, CloudLocation) and location.is_web else name
    return replace(location, prefix=above), name


def _taken(candidate: Candidate) -> Format | None:
    if candidate.name in DOCUMENTS:
        return None
    failed: SourceError | None = None
    for one in formats():
        try:
            if one.takes(candidate):
                return one
        except SourceError as error:  # of another package: others may take it, or it is a directory of Zarr
            failed = error
    if failed is not None and candidate.is_file and not candidate.is_directory:
        raise failed
    return None


def _first_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(FIRST_NBYTES)
    except OSError:
        return b""
