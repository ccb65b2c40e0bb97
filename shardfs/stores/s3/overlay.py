"""An S3 source as it is seen on this machine: objects, under what is not sent yet.

Each name lives in one of three places.  Names that shardfs keeps for itself are on this machine, on the *side*.  Files
that pass through are there too until they are sent (`copies`), and shadow what the bucket has.  All else is objects.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardfs.errors import IsADirectoryHereError, NoAttributeError, NotADirectoryHereError, NotFoundError, RefusedError
from shardfs.stores.address import Address
from shardfs.stores.base import Capacity, Entry, Kind, Snapshot, Stat, is_reserved, join_key
from shardfs.stores.local import LocalStore
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.copies import Copies
from shardfs.stores.s3.counts import Counts
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.places import local_key
from shardfs.stores.s3.reader import TTL
from shardfs.stores.s3.whole_objects import WholeObjects

if TYPE_CHECKING:
    from shardfs.stores.range_cache import RangeCache


class Overlay:
    """The reading half of an S3 store: *objects*, and *copies* and the side once it may be changed."""

    root = None
    directory = None
    rewrites = True

    def __init__(
        self,
        client: S3Client,
        location: Location,
        counts: Counts,
        *,
        ttl: float = TTL,
        cache: "RangeCache | None" = None,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = 64,
    ) -> None:
        self.objects = WholeObjects(
            client, location, counts, ttl=ttl, cache=cache, clock=clock, max_connections=max_connections
        )
        self.ttl = ttl
        self.copies: Copies | None = None
        self.clock = clock

    @property
    def url(self) -> str:
        """The source, as a user may write it."""
        return self.objects.url

    @property
    def address(self) -> Address:
        """What names the source for good, however it was reached."""
        return self.objects.address

    @property
    def directory_stat(self) -> Stat:
        """The state that all directories share."""
        return self.objects.directory_stat

    def url_of(self, key: str) -> str:
        """Return the `s3://` URL of *key*, under which it is found once it is sent."""
        return self.objects.url_of(key)

    def statistics(self) -> Mapping[str, object]:
        """Return what was counted, as plain values."""
        return self.objects.statistics()

    async def check(self) -> Sequence[Entry] | None:
        """Raise `SourceError` if the source cannot be read, or nothing is stored there."""
        return await self.objects.check()

    def forget(self, key: str) -> None:
        """Ask again for *key* when it is wanted next."""
        self.objects.forget(key)

    async def capacity(self) -> Capacity:
        """Return more room than anybody asks for."""
        return await self.objects.capacity()

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        side = self.side_of(key)
        if side is not None:
            return await side.stat(key)
        match self._kind_here(key):
            case Kind.FILE:
                return await self._side.stat(local_key(key))
            case Kind.DIRECTORY:
                return self.directory_stat
        return await self.objects.stat(key)

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file."""
        side = self.side_of(key)
        if side is not None:
            return await side.open(key)
        match self._kind_here(key):
            case Kind.FILE:
                return await self._side.open(local_key(key))
            case Kind.DIRECTORY:
                raise IsADirectoryHereError(f"{key} is a directory")
        return await self.objects.open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing."""
        side = self.side_of(key)
        if side is not None:
            return await side.is_absent(key)
        return self._kind_here(key) is None and await self.objects.is_absent(key)

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        side = self.side_of(key)
        if side is not None:
            return await side.list(key)
        if self.copies is None:
            return await self.objects.list(key)
        kind = self._kind_here(key)
        if kind is Kind.FILE:
            raise NotADirectoryHereError(f"{key} is no directory")
        try:
            stored = await self.objects.list(key)
        except NotFoundError:
            if kind is None:
                raise
            stored = []
        here = self.copies.names.children(key)
        entries = [Entry(name, kind) for name, kind in here.items()]
        if not key:
            entries += [entry for entry in await self._side.list("") if is_reserved(entry.name)]
            stored = [entry for entry in stored if not is_reserved(entry.name)]
        return entries + [entry for entry in stored if entry.name not in here]

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""
        side = self.side_of(key)
        if side is not None:
            return await side.stat_in(key, names)
        keys = [join_key(key, name) for name in names]
        here = [self._kind_here(key) is not None or self.side_of(key) is not None for key in keys]
        if all(here):
            return [await self.stat(key) for key in keys]
        stored = await self.objects.stat_in(key, names)
        return [
            await self.stat(key) if is_here else status for key, is_here, status in zip(keys, here, stored, strict=True)
        ]

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link, which only the side has."""
        side = self.side_of(key)
        if side is None:
            raise RefusedError(f"{key} is no symbolic link")
        return await side.read_link(key)

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute, which only names on the side have."""
        side = self.side_of(key)
        if side is None:
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        return await side.attribute(key, name)

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        side = self.side_of(key)
        return [] if side is None else await side.attributes(key)

    def side_of(self, key: str) -> LocalStore | None:
        """Return where a name that shardfs keeps for itself lives, None for others, and where nothing is changed."""
        return self._side if self.copies is not None and is_on_side(key) else None

    @property
    def _side(self) -> LocalStore:
        assert self.copies is not None
        return self.copies.side

    def _kind_here(self, key: str) -> Kind | None:
        """Return what *key* stands for among what is not sent, None if it is not there."""
        return None if self.copies is None else self.copies.names.kind(key)


def is_on_side(key: str) -> bool:
    """Whether *key* is of a name that shardfs keeps for itself, which lives on this machine."""
    return is_reserved(key.partition("/")[0])
