"""The half of an S3 store that reads: objects, under what is open to be written on this machine."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from shardfs.errors import (
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    RefusedError,
)
from shardfs.stores.base import (
    Address,
    Capacity,
    Entry,
    Kind,
    Snapshot,
    Stat,
    is_reserved,
    join_key,
)
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.directories import Directories
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.reader import TTL
from shardfs.stores.s3.requests import Counts, ObjectStat
from shardfs.stores.s3.shown import Shown
from shardfs.stores.s3.spools import Spools, is_on_side
from shardfs.stores.s3.whole_objects import WholeObjects

if TYPE_CHECKING:
    from shardfs.stores.disk_cache import DiskCache


class ReadingStore:
    """Reads *objects*, and what is in *spools* and *directories* once something may be changed."""

    root = None
    directory = None
    rewrites = True
    spools: Spools | None = None

    def __init__(
        self,
        client: S3Client,
        location: Location,
        counts: Counts,
        *,
        ttl: float = TTL,
        cache: "DiskCache | None" = None,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = 64,
    ) -> None:
        self.objects = WholeObjects(
            client, location, counts, ttl=ttl, cache=cache, clock=clock, max_connections=max_connections
        )
        self.ttl = ttl
        self.directories = Directories()
        self.shown = Shown()

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
        """Return the `s3://` URL of *key*."""
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
        spool = self.spools.here(key) if self.spools is not None else None
        if spool is not None:
            return spool.stat()
        return self.directory_stat if self.directories.has(key) else await self.objects.stat(key)

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file."""
        side = self.side_of(key)
        if side is not None:
            return await side.open(key)
        spool = self.spools.here(key) if self.spools is not None else None
        if spool is not None and self.spools is not None:
            return await self.spools.snapshot(spool)
        if self.directories.has(key):
            raise IsADirectoryHereError(f"{key} is a directory")
        return await self.objects.open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing."""
        side = self.side_of(key)
        if side is not None:
            return await side.is_absent(key)
        return not self._is_here(key) and await self.objects.is_absent(key)

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        side = self.side_of(key)
        if side is not None:
            return await side.list(key)
        if self.spools is None:
            return await self.objects.list(key)
        if self.spools.here(key) is not None:
            raise NotADirectoryHereError(f"{key} is no directory")
        here = dict.fromkeys(self.directories.children(key), Kind.DIRECTORY)
        for spool in self.spools:
            parent, _, name = spool.key.rpartition("/")
            if parent == key and spool.is_here:
                here[name] = Kind.FILE
        try:
            stored = await self.objects.list(key)
        except NotFoundError:
            if not here and not self.directories.has(key):
                raise
            stored = []
        entries = [Entry(name, kind) for name, kind in here.items()]
        if not key:
            entries += [entry for entry in await self.spools.side.list("") if is_reserved(entry.name)]
            stored = [entry for entry in stored if not is_reserved(entry.name)]
        return entries + [entry for entry in stored if entry.name not in here]

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""
        side = self.side_of(key)
        if side is not None:
            return await side.stat_in(key, names)
        keys = [join_key(key, name) for name in names]
        here = [self._is_here(key) or self.side_of(key) is not None for key in keys]
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

    @property
    def nchanges(self) -> int:
        """How many changes of objects this mount made, in place of what was shown."""
        return self.shown.nchanges

    def note_shown(self, key: str, state: Stat | None, *, since: int | None = None) -> None:
        """Note that programs were given the content of an object, or were told that there is none."""
        if self.spools is None or is_on_side(key) or self.spools.here(key) is not None:
            return
        if since is not None or key not in self.shown:
            self.shown.note(key, object_of(state), since=since)

    def side_of(self, key: str) -> LocalStore | None:
        """Return where a name that shardfs keeps for itself lives, None for others, and where nothing is changed."""
        return self.spools.side if self.spools is not None and is_on_side(key) else None

    def _is_here(self, key: str) -> bool:
        """Whether *key* stands for something that is not in the bucket."""
        return self.directories.has(key) or (self.spools is not None and self.spools.here(key) is not None)


def object_of(state: Stat | None) -> ObjectStat | None:
    """Return the version of an object that has this *state*."""
    if state is None:
        return None
    etag, size = cast(tuple[str, int], state.version)
    return ObjectStat(size, etag, state.mtime_ns)
