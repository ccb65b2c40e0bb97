"""A single file as a source: one that holds a whole array, and so is shown as a directory."""

import time
from collections.abc import Mapping, Sequence

from shardfs.errors import (
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StoreError,
)
from shardfs.stores.base import Address, Kind, ListedName, Snapshot, Stat
from shardfs.stores.files import TargetFiles
from shardfs.stores.objects.reader import ObjectReader, object_stat


class SingleFile(ObjectReader):
    """The file *name* of the reader *home*, as the only one in a directory, where it has the name *shown*.

    *url* is that of the file, and *home* is `FileSource.files`. *shown* is one name for all such files, and one of
    `Format.documents`: by it, `Format.find` meets the file, and messages about its content call it so. Choose one that
    says what it is, as `chunks.b2frame`; only messages about the source name the file of the user.
    """

    def __init__(self, url: str, home: TargetFiles, name: str, shown: str, *, ttl: float) -> None:
        self.url = url
        self.address: Address = home.address._replace(url=url)
        self.ttl = ttl
        self._home = home
        self._name = name
        self._shown = shown
        self._was_there = False
        self._directory_stat = object_stat(Kind.DIRECTORY, 0, "directory", "directory", time.time_ns())

    def statistics(self) -> Mapping[str, object]:
        """Return the counts of the reader of the file."""
        return self._home.statistics()

    def url_of(self, key: str) -> str:
        """Return the URL of the file, whatever its name is here."""
        return self.url

    async def check(self) -> Sequence[ListedName] | None:
        """Return the one name; raises `SourceError` if the file cannot be read."""
        try:
            await self.open(self._shown)
        except (NotFoundError, NotADirectoryHereError, IsADirectoryHereError):
            raise SourceError(f"{self.url} is no file; if it is a directory, write a slash behind its name") from None
        except ShardfsError as error:
            raise SourceError(f"{self.url} cannot be read: {error}") from None
        return await self.list("")

    async def stat(self, key: str) -> Stat:
        """Return the status of *key*."""
        return self._directory_stat if not key else (await self.open(key)).stat

    async def fresh(self, key: str) -> Stat:
        """Return the status of the file as it is stored now."""
        self._check(key)
        return await self._home.fresh(self._name)

    def forget(self, key: str) -> None:
        """Ask again for the file at the next request."""
        self._home.forget(self._name)

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the one name."""
        if key == self._shown:
            raise NotADirectoryHereError(f"{key} is not a directory")
        if key:
            raise NotFoundError(f"{key} does not exist")
        return [ListedName(self._shown, Kind.FILE)]

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open the file; raises `StoreError` if it was removed, as what was in it is not absent."""
        self._check(key)
        try:
            snapshot = await self._home.open(self._name, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)
        except (NotFoundError, NotADirectoryHereError):
            if not self._was_there:
                raise
            raise StoreError(f"{self.url} is missing: it was removed") from None
        self._was_there = True
        return snapshot

    def _check(self, key: str) -> None:
        if not key:
            raise IsADirectoryHereError("the source is a directory")
        if key.startswith(f"{self._shown}/"):
            raise NotADirectoryHereError(f"{self._shown} is not a directory")
        if key != self._shown:
            raise NotFoundError(f"{key} does not exist")
