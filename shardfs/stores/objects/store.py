"""What is the same of all stores of objects, whether names can be listed (`BucketStore`) or not (`ObjectStore`)."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import trio

from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError, SourceError
from shardfs.stores.base import Kind, ListedName, Snapshot, Stat, join_key
from shardfs.stores.objects.client import Client
from shardfs.stores.objects.disk_cache import DiskCache
from shardfs.stores.objects.heads import Absent, FoundObject, Heads, KnownDirectory, NoObject, Unknown, not_found
from shardfs.stores.objects.reader import ObjectReader
from shardfs.stores.objects.requests import ObjectStat
from shardfs.stores.objects.versions import MEMORY_NBYTES, Objects, directory_stat, file_stat

T = TypeVar("T")
_Client = TypeVar("_Client", bound=Client)

_PATIENCE: Final = 15.0
"""Seconds of silence after which a source is called unreachable, while a user waits."""


class ObjectStore(ObjectReader, Generic[_Client]):
    """The objects of a source: what is the same whether its names can be listed or not."""

    fetches_ahead = True

    def __init__(
        self,
        client: _Client,
        session: trio.Nursery,
        *,
        ttl: float = 60.0,
        cache: DiskCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory_nbytes: int = MEMORY_NBYTES,
    ) -> None:
        self.ttl = ttl
        self.url = client.location.url
        self.address = client.address
        self.directory_stat = directory_stat()
        self.heads = Heads(client, ttl=ttl, clock=clock)
        self.objects = Objects(client, session, self.heads, cache, memory_nbytes=memory_nbytes)
        self._client = client

    def statistics(self) -> Mapping[str, object]:
        """Return the counts as plain values."""
        return self._client.counts.as_dict()

    def url_of(self, key: str) -> str:
        """Return the URL of *key*."""
        return self._client.location.url_of(key)

    def forget(self, key: str) -> None:
        """Ask again for *key* at the next request; may be called in any thread."""
        self.heads.forget(key)

    async def fresh(self, key: str) -> Stat:
        """Return the state of the object *key*, by a request."""
        return file_stat(key, await self.heads.head(key))

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file."""
        return await self.objects.open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing; False if that is unknown."""
        known = self.heads.find(key)
        if not isinstance(known, Unknown):
            return isinstance(known, Absent | NoObject)
        try:
            await self.heads.head(key)
        except ShardfsError as error:
            return isinstance(error, NotFoundError)
        return False


class BucketStore(ObjectStore[_Client]):
    """The objects of a source whose names can be listed.

    A key that is an object and has keys below it is a directory.
    """

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        match await self.heads.stored(key):
            case FoundObject(version):
                return file_stat(key, version)
            case KnownDirectory():
                return self.directory_stat
            case _:
                raise not_found(key)

    async def expect_names(self, key: str) -> None:
        """List the directory *key*, if it is short: that tells of all names in it."""
        await self.heads.expect_names(key)

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""
        names = await self._stored_names(key)
        return [ListedName(name, Kind.DIRECTORY if stat is None else Kind.FILE) for name, stat in names.items()]

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several names in one directory."""
        listed = (await self.heads.list(key)).names
        stats: list[Stat | None] = []
        for name in names:
            stat = listed.get(name)
            there = self.directory_stat if name in listed else None
            stats.append(file_stat(join_key(key, name), stat) if stat is not None else there)
        return stats

    async def _stored_names(self, key: str) -> Mapping[str, ObjectStat | None]:
        """Return the names in a directory that are stored, None standing for directories."""
        known = self.heads.find_stored(key)
        if not isinstance(known, Absent):
            listing = await self.heads.list(key)
            if not key or not listing.is_missing:
                return listing.names
            known = await self.heads.stored(key)
        if isinstance(known, FoundObject):
            raise NotADirectoryHereError(f"{key} is not a directory")
        raise not_found(key)


async def first_answer(url: str, server: str, ask: Callable[[], Awaitable[T]], trouble: Callable[[], str]) -> T:
    """Return what *ask* finds out of the source at *url*, before it is used.

    Raises `SourceError` if it fails, or if *server* does not answer while a user waits; *trouble* may say why.
    """
    try:
        with trio.fail_after(_PATIENCE):
            return await ask()
    except trio.TooSlowError:
        why = f" ({trouble()})" if trouble() else ""
        reason = f"{server} does not answer within {_PATIENCE:.0f} seconds{why}"
        raise SourceError(f"{url} cannot be read: {reason}") from None
    except SourceError:
        raise
    except ShardfsError as error:
        raise SourceError(f"{url} cannot be read: {error}") from None
