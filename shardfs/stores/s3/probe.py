"""Checks of an endpoint before a mount appears: can the source be read, and which conditions are honoured?

Several hosts may change one object only if the server itself refuses to change an object that is not the expected one.
Not all servers do: some ignore the condition, some reject it as unknown. So it is tried.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import trio

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NoSourceError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StoreError,
    UnsupportedError,
    printable,
)
from shardfs.stores.base import MAX_TOP, Kind, ListedName, file_format
from shardfs.stores.memory import MemoryContent
from shardfs.stores.objects.requests import (
    DOCUMENT,
    ListPage,
    Properties,
    Range,
    page_with_keys,
)
from shardfs.stores.objects.store import first_answer
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import Condition

log = logging.getLogger(__name__)

_FEW: Final = 10  # how many objects, of which the smallest is read
_ABSENT: Final = Condition(None)
_OTHER: Final = Condition('"00000000000000000000000000000000"')
_BODY: Final = MemoryContent(memoryview(b"shardfs finds out what conditions this endpoint honours\n"))
_PROPERTIES: Final = Properties({"ContentType": "text/plain"})


async def check(client: S3Client) -> tuple[Sequence[ListedName] | None, bool]:
    """Return the names at the top, None if there are too many, and whether listing is allowed.

    Raises `SourceError` if the source can neither be listed nor its document read, if nothing is stored there (a bucket
    may be empty), and if the server does not return ranges of objects.
    """
    return await first_answer(client.location.url, client.endpoint_url, partial(_check, client), client.trouble)


async def _check(client: S3Client) -> tuple[Sequence[ListedName] | None, bool]:
    location = client.location
    try:
        page = await page_with_keys(client, "", limit=MAX_TOP)
    except AccessDeniedError as error:
        try:
            await client.get(DOCUMENT, Range(-1, 1))
        except (AccessDeniedError, NotFoundError):
            raise NoSourceError(
                f"{location.url} cannot be read: {error}; without permission to list, SOURCE must be an array or a "
                f"group whose {DOCUMENT} can be read"
            ) from None
        log.warning(
            "%s can be read but not listed: arrays and groups are found by their %s only", location.url, DOCUMENT
        )
        return None, False
    if location.prefix and not page.objects and not page.prefixes:
        raise NoSourceError(await _what_is_there(client))
    if not (urlsplit(client.endpoint_url).hostname or "").endswith(".amazonaws.com"):
        await _require_ranges(client, page)
    if page.token is not None:
        return None, True
    files = [ListedName(key, Kind.FILE) for key, _ in page.objects if key]
    return files + [ListedName(key[:-1], Kind.DIRECTORY) for key in page.prefixes], True


async def _require_ranges(client: S3Client, page: ListPage) -> None:
    """Read the end of a small object; raises `StoreError` if the server returns all of it, or another part."""
    key = _smallest(page) or _smallest(await page_with_keys(client, "", delimiter="", limit=_FEW))
    try:
        if key is not None:
            await client.get(key, Range(-1, 1))
    except (AccessDeniedError, ConflictError, NotFoundError):  # which is reported when it is wanted
        return


def _smallest(page: ListPage) -> str | None:
    """Return the key of the smallest object of two bytes or more, so that a part differs from the whole."""
    return min(((stat.size, key) for key, stat in page.objects if stat.size > 1), default=(0, None))[1]


async def _what_is_there(client: S3Client) -> str:
    """Say what is stored under the name of the source, if nothing is below it."""
    location = client.location
    try:
        await client.of_bucket().get(location.prefix, Range(0, 1))
    except ShardfsError:
        return f"nothing is stored at {location.url}; to create something there, mount a prefix above it"
    return f"{location.url} is {file_format(location.url)}"


@dataclass(frozen=True, slots=True)
class HonouredConditions:
    """Which kinds of conditional requests are refused if, and only if, their condition does not hold."""

    put: bool
    copy: bool
    complete: bool
    delete: bool

    @property
    def is_safe(self) -> bool:
        """Whether several may write: an object that must not be deleted can be emptied instead."""
        return self.put and self.copy and self.complete

    def missing(self, url: str) -> str:
        """Return what is missing for `is_safe` at the source *url*, with the way out."""
        names = {"PUT": self.put, "part copy": self.copy, "complete": self.complete}
        ignored = ", ".join(name for name, honoured in names.items() if not honoured)
        return (
            f"the endpoint of {url} does not honour conditions on {ignored}: concurrent writers would lose "
            "changes; add --single-writer if nobody else writes"
        )


async def probe(client: S3Client) -> HonouredConditions:
    """Find out which conditions are honoured, with an object of its own that is removed afterwards.

    Raises `SourceError` if that fails, for example because nothing can be written.
    """
    key = f".shardfs-probe-{secrets.token_hex(8)}"
    deleted = completed = None

    async def put(condition: Condition) -> str:
        return await client.put(key, _BODY, _PROPERTIES, condition=condition)

    async def copy(condition: Condition) -> str:
        return await client.copy_part(key, upload, 1, None, condition=condition)

    async def complete(condition: Condition) -> str:
        return await client.complete_upload(key, upload, [part], condition=condition) or ""

    async def delete(condition: Condition) -> str:
        await client.delete(key, condition=condition)
        return ""

    try:
        try:
            can_be_absent, etag = await _make(client, key)
            is_refused = await _is_refused(put, _ABSENT)
            again = await _tried(put, etag)
            etag = again or etag
            upload = await client.create_upload(key, _PROPERTIES)
            try:
                copied = await _tried(copy, etag)
                part = copied or await client.upload_part(key, upload, 1, _BODY)
                completed = await _tried(complete, etag)
            finally:
                if completed is None:
                    await client.give_up(key, upload)
            with suppress(AccessDeniedError):  # enough for users who may only add and change objects
                deleted = await _tried(delete, completed or etag)
        finally:
            if deleted is None:
                with trio.CancelScope(shield=True):
                    await _remove(client, key)
    except (AccessDeniedError, StoreError) as error:
        raise SourceError(f"{client.location.url} cannot be written: {error}") from None
    return HonouredConditions(
        put=can_be_absent and is_refused and again is not None,
        copy=copied is not None,
        complete=completed is not None,
        delete=deleted is not None,
    )


async def _make(client: S3Client, key: str) -> tuple[bool, str]:
    """Store the object on the condition that there is none; return whether the server supports that, and the ETag."""
    try:
        return True, await client.put(key, _BODY, _PROPERTIES, condition=_ABSENT)
    except UnsupportedError:
        return False, await client.put(key, _BODY, _PROPERTIES)


async def _tried(attempt: Callable[[Condition], Awaitable[str]], etag: str) -> str | None:
    """Return what a request gives on the condition that the object is *etag*, which it is; None if not honoured.

    It is if the request is refused on another condition, and only then: Ceph refuses some whatever their condition.
    """
    if not await _is_refused(attempt, _OTHER):
        return None
    try:
        return await attempt(Condition(etag))
    except (ConflictError, UnsupportedError):
        return None


async def _is_refused(attempt: Callable[[Condition], Awaitable[object]], condition: Condition) -> bool:
    """Whether a request whose *condition* does not hold is refused for that reason."""
    try:
        await attempt(condition)
    except ConflictError:
        return True
    except UnsupportedError:
        return False
    return False


async def _remove(client: S3Client, key: str) -> None:
    try:
        await client.delete(key)
    except ShardfsError as error:
        log.warning("%s, which served to test the server, cannot be removed: %s", printable(key), error)
