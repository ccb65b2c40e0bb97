"""What is found out about an endpoint before anybody sees a mount: whether the source can be read, and by trying, which
conditions are honoured.

Several hosts may change one object only where S3 itself refuses the change of an object that is not the expected one.
Not all that speak its protocol do; some ignore the condition, some refuse it as unknown.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import trio

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StoreError,
    UnsupportedError,
    printable,
)
from shardfs.stores.base import MAGIC_NBYTES, MAX_TOP, Entry, Kind, file_format
from shardfs.stores.memory import MemoryContent
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import DOCUMENT, Condition, ListPage, Location, Properties, Range

log = logging.getLogger(__name__)

_PATIENCE: Final = 15.0
"""For how many seconds a source may be silent before it is said to be out of reach, while a user waits."""

_FEW: Final = 10  # objects, of which the smallest is read
_ABSENT: Final = Condition(None)
_OTHER: Final = Condition('"00000000000000000000000000000000"')
_BODY: Final = MemoryContent(memoryview(b"shardfs finds out what conditions this endpoint honours\n"))
_PROPERTIES: Final = Properties({"ContentType": "text/plain"})


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
        try:
            await client.get(location.object_key(DOCUMENT), Range(-1, 1))
        except (AccessDeniedError, NotFoundError):
            raise SourceError(
                f"{location.url} cannot be read: {error}; without permission to list, SOURCE must be an array or a "
                f"group whose {DOCUMENT} can be read"
            ) from None
        log.warning(
            "%s can be read but not listed: arrays and groups are found by their %s only", location.url, DOCUMENT
        )
        return None, False
    if location.prefix and not page.objects and not page.prefixes:
        raise SourceError(await _what_is_there(client, location))
    if not (urlsplit(client.endpoint_url).hostname or "").endswith(".amazonaws.com"):
        await _require_ranges(client, prefix, page)
    if page.token is not None:
        return None, True
    files = [Entry(full[len(prefix) :], Kind.FILE) for full, _ in page.objects if full != prefix]
    return files + [Entry(full[len(prefix) : -1], Kind.DIRECTORY) for full in page.prefixes], True


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
        return f"nothing is stored at {location.url}; to create something there, mount a prefix above it"
    return f"{location.url} is {file_format(location.url, bytes(first.data))}"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which requests are refused if their condition does not hold."""

    put: bool
    copy: bool
    complete: bool
    delete: bool

    @property
    def is_safe(self) -> bool:
        """Whether several may write: an object that must not be deleted can be emptied instead."""
        return self.put and self.copy and self.complete

    def missing(self, url: str) -> str:
        """Return the line that says, of the source at *url*, what is not honoured, and the way out."""
        names = {"PUT": self.put, "part copy": self.copy, "complete": self.complete, "DELETE": self.delete}
        ignored = ", ".join(name for name, honoured in names.items() if not honoured)
        return (
            f"the endpoint of {url} does not honour conditions on {ignored}: concurrent writers would lose "
            "changes; add --single-writer if nobody else writes"
        )


async def probe(client: S3Client, location: Location) -> Conditions:
    """Find out what conditions hold at *location*, with an object of its own that is gone afterwards.

    Raises `SourceError` if that fails, as it does where nothing can be written.
    """
    key = location.object_key(f".shardfs-probe-{secrets.token_hex(8)}")
    try:
        try:
            put = await _make(client, key)
            put = await _is_refused(lambda: client.put(key, _BODY, _PROPERTIES, condition=_ABSENT)) and put
            put = await _is_refused(lambda: client.put(key, _BODY, _PROPERTIES, condition=_OTHER)) and put
            upload = await client.create_upload(key, _PROPERTIES)
            try:
                copy = await _is_refused(lambda: client.copy_part(key, upload, 1, 0, _BODY.nbytes, condition=_OTHER))
                etag = await client.upload_part(key, upload, 1, _BODY)
                complete = await _is_refused(lambda: client.complete_upload(key, upload, [etag], condition=_OTHER))
            finally:
                await client.give_up(key, upload)
            try:
                delete = await _is_refused(lambda: client.delete(key, condition=_OTHER))
            except AccessDeniedError:  # whoever may only add and change objects can do with that
                delete = False
        finally:
            with trio.CancelScope(shield=True):
                await _remove(client, key)
    except (AccessDeniedError, StoreError) as error:
        raise SourceError(f"{location.url} cannot be written: {error}") from None
    return Conditions(put, copy, complete, delete)


async def _make(client: S3Client, key: str) -> bool:
    """Store the object on the condition that there is none; return whether that can be said."""
    try:
        await client.put(key, _BODY, _PROPERTIES, condition=_ABSENT)
    except UnsupportedError:
        await client.put(key, _BODY, _PROPERTIES)
        return False
    return True


async def _is_refused(attempt: Callable[[], Awaitable[object]]) -> bool:
    """Whether a request whose condition does not hold is refused for that reason."""
    try:
        await attempt()
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
