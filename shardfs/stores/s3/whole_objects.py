"""Names of objects: which can be, and how those that are there go."""

from typing import Final

from shardfs.errors import NameTooLongError, NotFoundError, RefusedError
from shardfs.stores.s3.reader import S3Reader
from shardfs.stores.s3.requests import Properties

_MAX_KEY_NBYTES: Final = 1024
_JSON: Final = Properties({"ContentType": "application/json"})
_BYTES: Final = Properties({"ContentType": "application/octet-stream"})


class WholeObjects(S3Reader):
    """The objects of a source, some of which are deleted whatever they are."""

    def check_key(self, key: str) -> None:
        """Raise `NameTooLongError`, or `RefusedError` for what is not UTF-8, if nothing can have the name *key*."""
        try:
            nbytes = len(self.location.object_key(key).encode())
        except UnicodeEncodeError:
            raise RefusedError(f"{key} cannot be stored: it is not UTF-8, as all keys of S3 are") from None
        if nbytes > _MAX_KEY_NBYTES:
            raise NameTooLongError(f"{key} cannot be stored: S3 has keys of {_MAX_KEY_NBYTES} bytes at most")

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


def new_properties(key: str) -> Properties:
    """Return the properties of an object that is new."""
    return _JSON if key.endswith(".json") else _BYTES
