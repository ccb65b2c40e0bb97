"""Objects that are stored, copied and deleted as a whole, whatever is there: the last writer wins, as with files."""

import time
from typing import Final

from shardfs.errors import ConflictError, NameTooLongError, NotFoundError, RefusedError
from shardfs.stores.base import Content
from shardfs.stores.s3.objects import ObjectStat, Properties
from shardfs.stores.s3.reader import S3Reader

MAX_WHOLE_NBYTES: Final = 5 * 2**30
"""What S3 stores or copies in one request."""

_MAX_KEY_NBYTES: Final = 1024
_JSON: Final = Properties({"ContentType": "application/json"})
_BYTES: Final = Properties({"ContentType": "application/octet-stream"})


class WholeObjects(S3Reader):
    """The objects of a source, some of which are changed."""

    def check_key(self, key: str) -> None:
        """Raise `NameTooLongError`, or `RefusedError` for what is not UTF-8, if nothing can have the name *key*."""
        try:
            nbytes = len(self.location.object_key(key).encode())
        except UnicodeEncodeError:
            raise RefusedError(f"{key} cannot be stored: it is not UTF-8, as all keys of S3 are") from None
        if nbytes > _MAX_KEY_NBYTES:
            raise NameTooLongError(f"{key} cannot be stored: S3 has keys of {_MAX_KEY_NBYTES} bytes at most")

    async def put_object(self, key: str, content: Content) -> ObjectStat | None:
        """Store *content* in place of what is there, whose properties stay; return the state of that."""
        replaced, properties = await self._replaced(key)
        etag = await self.client.put(self.location.object_key(key), content, properties)
        self.note(key, ObjectStat(content.nbytes, etag, time.time_ns()), properties)
        return replaced

    async def copy_object(self, key: str, to: str) -> None:
        """Store what *key* is under *to* too, with its properties, in place of what is there."""
        full = self.location.object_key(to)
        try:
            await self.client.copy(self.location.object_key(key), full)
            self.note(to, *await self.client.head(full))
        except NotFoundError:
            self.forget(key)
            self.forget(to)
            raise

    async def delete_object(self, key: str) -> None:
        """Delete what *key* is in the bucket, if it is anything."""
        if await self.is_absent(key):
            return
        await self.client.delete(self.location.object_key(key))
        self.note(key, None)

    async def delete_marker(self, key: str) -> None:
        """Delete the object that stands for the directory *key*, if there is one."""
        try:
            await self.stat(key)
        except NotFoundError:
            return
        await self.client.delete(self.location.directory_prefix(key))
        self.note_directory(key, exists=False)

    async def _replaced(self, key: str) -> tuple[ObjectStat | None, Properties]:
        """Return the state of what is to be replaced, and the properties of what replaces it."""
        known = self._believed(key)
        try:
            if known is None:
                return await self.client.head(self.location.object_key(key))
            if known.stat is not None:
                return known.stat, await self.properties(key, known.stat.etag)
        except ConflictError:
            return await self.client.head(self.location.object_key(key))
        except NotFoundError:
            pass
        return None, new_properties(key)


def new_properties(key: str) -> Properties:
    """Return the properties of an object that is new."""
    return _JSON if key.endswith(".json") else _BYTES
