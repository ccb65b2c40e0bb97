"""Whether a source can be read at all: asked once, before anybody sees a mount."""

import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import trio

from shardfs.errors import AccessDeniedError, ConflictError, NotFoundError, ShardfsError, SourceError
from shardfs.stores.base import MAGIC_NBYTES, MAX_TOP, Entry, Kind, file_format
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.location import DOCUMENT, Location
from shardfs.stores.s3.requests import ListPage, Range

log = logging.getLogger(__name__)

_PATIENCE: Final = 15.0
"""For how many seconds a source may be silent before it is said to be out of reach, while a user waits."""

_FEW: Final = 10  # objects, of which the smallest is read


async def check(client: S3Client, location: Location) -> tuple[Sequence[Entry] | None, bool]:
    """Return the names at the top, None if they are very many, and whether anything can be listed.

    Raises `SourceError` if the source can neither be listed nor its document be read, if nothing is stored there (a
    bucket may be empty), and if the server does not give ranges of objects.
    """
    try:
        with trio.fail_after(_PATIENCE):
            return await _check(client, location)
    except trio.TooSlowError:
        reason = f"{client.endpoint_url} does not answer within {_PATIENCE:.0f} seconds"
        raise SourceError(f"{location.url} cannot be read: {reason}") from None
    except SourceError:
        raise
    except ShardfsError as error:
        raise SourceError(f"{location.url} cannot be read: {error}") from None


async def _check(client: S3Client, location: Location) -> tuple[Sequence[Entry] | None, bool]:
    prefix = location.directory_prefix("")
    try:
        page = await client.list_page(prefix, limit=MAX_TOP)
    except AccessDeniedError as error:
        await _require_document(client, location, error)
        return None, False
    if location.prefix and not page.objects and not page.prefixes:
        raise SourceError(await _what_is_there(client, location))
    if not (urlsplit(client.endpoint_url).hostname or "").endswith(".amazonaws.com"):
        await _require_ranges(client, prefix, page)
    if page.token is not None:
        return None, True
    files = [Entry(full[len(prefix) :], Kind.FILE) for full, _ in page.objects if full != prefix]
    return files + [Entry(full[len(prefix) : -1], Kind.DIRECTORY) for full in page.prefixes], True


async def _require_document(client: S3Client, location: Location, error: AccessDeniedError) -> None:
    """Raise `SourceError` unless the document of the source can be read, where listing it is not allowed."""
    try:
        await client.get(location.object_key(DOCUMENT), Range(-1, 1))
    except (AccessDeniedError, NotFoundError):
        raise SourceError(
            f"{location.url} cannot be read: {error}; without permission to list, SOURCE must be an array or a group "
            f"whose {DOCUMENT} can be read"
        ) from None
    log.warning("%s may be read and not listed: names are found by their %s alone", location.url, DOCUMENT)


async def _require_ranges(client: S3Client, prefix: str, page: ListPage) -> None:
    """Read the end of a small object; raises `StoreError` if the server gives all of it, or another part."""
    found = _smallest(page) or _smallest(await client.list_page(prefix, delimiter="", limit=_FEW))
    try:
        if found is not None:
            await client.get(found, Range(-1, 1))
    except (AccessDeniedError, ConflictError, NotFoundError):  # which is said when it is wanted
        return


def _smallest(page: ListPage) -> str | None:
    """Return the key of the smallest object of two bytes or more, of which a part is not the whole."""
    return min(((stat.size, key) for key, stat in page.objects if stat.size > 1), default=(0, None))[1]


async def _what_is_there(client: S3Client, location: Location) -> str:
    """Say what is stored under the name of the source, if nothing is below it."""
    try:
        first = await client.get(location.prefix, Range(0, MAGIC_NBYTES))
    except ShardfsError:
        return f"nothing is stored at {location.url}; to begin something new there, mount what is above it"
    return f"{location.url} is {file_format(location.url, bytes(first.data))}"
