"""What conditions an endpoint honours, found by trying.

Several hosts may change one object only where S3 itself refuses the change of an object that is not the expected one.
Not all that speak its protocol do; some ignore the condition, some refuse it as unknown.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    ShardfsError,
    SourceError,
    StoreError,
    UnknownOutcomeError,
    UnsupportedError,
    printable,
)
from shardfs.stores.memory import MemoryContent
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.requests import Condition, Properties
from shardfs.stores.s3.uploads import Uploads

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 4
_ABSENT: Final = Condition(None)
_OTHER: Final = Condition('"00000000000000000000000000000000"')
_BODY: Final = MemoryContent(memoryview(b"shardfs finds out what conditions this endpoint honours\n"))
_PROPERTIES: Final = Properties({"ContentType": "text/plain"})


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
            f"the endpoint of {url} does not honour conditions on {ignored}: with several writers changes would be "
            "lost; mount with --single-writer if this is the only one"
        )


async def probe(client: S3Client, location: Location, uploads: Uploads) -> Conditions:
    """Find out what conditions hold at *location*, with an object of its own that is gone afterwards.

    Raises `SourceError` if that fails, as it does where nothing can be written.
    """
    key = location.object_key(f".shardfs-probe-{secrets.token_hex(8)}")
    try:
        try:
            put = await _make(client, key)
            put = await _is_refused(lambda: client.put(key, _BODY, _PROPERTIES, condition=_ABSENT)) and put
            put = await _is_refused(lambda: client.put(key, _BODY, _PROPERTIES, condition=_OTHER)) and put
            copy, complete = await _try_upload(client, key, uploads)
            delete = await _is_delete_refused(client, key)
        finally:
            with trio.CancelScope(shield=True):
                await _remove(client, key)
    except (AccessDeniedError, StoreError) as error:
        raise SourceError(f"{location.url} cannot be written: {error}") from None
    return Conditions(put, copy, complete, delete)


async def _make(client: S3Client, key: str) -> bool:
    """Store the object on the condition that there is none; return whether that can be said."""
    for _ in range(_ATTEMPTS):
        try:
            await client.put(key, _BODY, _PROPERTIES, condition=_ABSENT)
        except UnknownOutcomeError as error:
            reason = error
        except UnsupportedError:
            await client.put(key, _BODY, _PROPERTIES)
            return False
        except ConflictError:  # an attempt without a reply has made it
            return True
        else:
            return True
    raise StoreError(f"nothing can be stored: {reason}")


async def _try_upload(client: S3Client, key: str, uploads: Uploads) -> tuple[bool, bool]:
    """Return whether the conditions of a part copy and of a complete are honoured."""
    async with uploads.begun(client, key, _PROPERTIES) as upload:
        number = upload.upload_id
        copy = await _is_refused(lambda: client.copy_part(key, number, 1, 0, _BODY.nbytes, condition=_OTHER))
        etag = await client.upload_part(key, number, 1, _BODY)
        complete = await _is_refused(lambda: client.complete_upload(key, number, [etag], condition=_OTHER))
    return copy, complete


async def _is_refused(attempt: Callable[[], Awaitable[object]]) -> bool:
    """Whether a request whose condition does not hold is refused for that reason."""
    for _ in range(_ATTEMPTS):
        try:
            await attempt()
        except UnknownOutcomeError as error:
            reason = error
        except ConflictError:
            return True
        except UnsupportedError:
            return False
        else:
            return False
    raise StoreError(f"what conditions are honoured cannot be found out: {reason}")


async def _is_delete_refused(client: S3Client, key: str) -> bool:
    try:
        return await _is_refused(lambda: client.delete(key, condition=_OTHER))
    except AccessDeniedError:  # whoever may only add and change objects can do with that
        return False


async def _remove(client: S3Client, key: str) -> None:
    try:
        await client.delete(key)
    except ShardfsError as error:
        log.warning("%s stays, which served to find out what conditions are honoured: %s", printable(key), error)
