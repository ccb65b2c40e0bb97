"""An S3 source, as far as it is read: names, states and snapshots of objects."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final
from weakref import WeakValueDictionary

from shardfs.errors import (
    ConflictError,
    IsADirectoryHereError,
    NoAttributeError,
    NotADirectoryHereError,
    NotFoundError,
    RefusedError,
    ShardfsError,
)
from shardfs.stores.base import Address, Capacity, Entry, Kind, Stat, join_key
from shardfs.stores.disk_cache import DiskCache
from shardfs.stores.ranges import Span
from shardfs.stores.s3.checking import check
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.fetching import Fetching, Version
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.names import Names
from shardfs.stores.s3.requests import Counts, ObjectStat, Properties, Range
from shardfs.stores.s3.seen import Known
from shardfs.stores.s3.segments import MAX_NBYTES
from shardfs.stores.s3.snapshot import S3Snapshot, directory_stat, file_stat
from shardfs.stores.s3.succession import Succession

TTL: Final = 60.0
"""For how many seconds what was seen is believed by default; to look again takes a request."""

_BLOCK: Final = 4096
_PLENTY: Final = 2**50 // _BLOCK
_MAX_PROPERTIES: Final = 1000


class S3Reader:
    """The objects below *location*, of which nothing is changed.

    A key that is an object and has others below it is a directory.  `open` of a name that no listing showed as a
    directory takes it for a missing file: to tell would take another request.  If *keeps_properties*, what is opened is
    fetched with its properties: a change of it then needs no request for them.
    """

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
        cache: DiskCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = 64,
        memory_nbytes: int = MAX_NBYTES,
    ) -> None:
        self.client = client
        self.location = location
        self.counts = counts
        self.ttl = ttl
        self.succession = Succession()
        self.keeps_properties = False
        self.directory_stat = directory_stat()
        self._clock = clock
        self._names = Names(client, location, ttl=ttl, clock=clock)
        self._fetching = Fetching(client, cache, max_connections=max_connections, max_nbytes=memory_nbytes)
        self._versions: WeakValueDictionary[tuple[str, str], Version] = WeakValueDictionary()
        self._properties: OrderedDict[str, tuple[str, Properties]] = OrderedDict()

    @property
    def url(self) -> str:
        """The source, as a user may write it."""
        return self.location.url

    @property
    def address(self) -> Address:
        """What names the source for good, however it was reached."""
        return self.location.address(self.client.endpoint_url)

    def url_of(self, key: str) -> str:
        """Return the `s3://` URL of *key*."""
        return self.location.url_of(key)

    def statistics(self) -> Mapping[str, object]:
        """Return what was counted, as plain values."""
        return self.counts.as_dict()

    async def check(self) -> Sequence[Entry] | None:
        """Return the names at the top, if they are not very many, and raise as `checking.check` does."""
        entries, self._names.listings.is_allowed = await check(self.client, self.location)
        return entries

    def forget(self, key: str) -> None:
        """Ask again for *key* when it is wanted next; may be called in any thread."""
        self._names.forget(key)

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        known = await self._names.known(key)
        if known.is_directory:
            return self.directory_stat
        if known.stat is None:
            raise _not_found(key)
        return file_stat(key, known.stat)

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> S3Snapshot:
        """Open an object, with no request if it was seen lately and the bytes are at hand, else with one."""
        known = self._believed(key)
        if known is not None:
            if known.is_directory:
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
            if known.stat is None:
                raise _not_found(key)
            snapshot = self.snapshot(key, known.stat)
            if await snapshot.version.holds(_wanted(known.stat.size, head_nbytes, tail_nbytes)):
                return snapshot
        if tail_nbytes:
            return await self._open(key, Range(-tail_nbytes, tail_nbytes))
        return await self._open(key, Range(0, head_nbytes) if head_nbytes else None)

    async def is_absent(self, key: str) -> bool:
        """Whether there is no object *key*; False if that cannot be told."""
        known = self._believed(key)
        if known is None:
            try:
                known = Known((await self._head(key))[0], None)
            except NotFoundError:
                return True
            except ShardfsError:
                return False
        return known.stat is None and not known.is_directory

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        known = self._believed(key)
        if known is not None and known.stat is not None and known.is_directory is False:
            raise NotADirectoryHereError(f"{key} is no directory")
        if known is not None and known.is_absent:
            raise _not_found(key)
        listing = await self._names.list(key)
        if key and listing.is_missing:
            if (await self._names.known(key)).stat is not None:
                raise NotADirectoryHereError(f"{key} is no directory")
            raise _not_found(key)
        return [Entry(name, Kind.FILE if stat else Kind.DIRECTORY) for name, stat in listing.names.items()]

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""
        listed = (await self._names.list(key)).names
        stats: list[Stat | None] = []
        for name in names:
            stat = listed.get(name)
            if stat is not None:
                stats.append(file_stat(join_key(key, name), stat))
            else:
                stats.append(self.directory_stat if name in listed else None)
        return stats

    async def read_link(self, key: str) -> bytes:
        """Say that there are no symbolic links."""
        raise RefusedError(f"{key} is no symbolic link")

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Say that there are no extended attributes."""
        raise NoAttributeError(f"{key} has no attribute {name!r}")

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return no names: there are no extended attributes."""
        return []

    async def capacity(self) -> Capacity:
        """Return more room than anybody asks for: a bucket has no limit."""
        return Capacity(_BLOCK, _PLENTY, _PLENTY, _PLENTY, _PLENTY, _PLENTY, 1024)

    def snapshot(self, key: str, state: ObjectStat) -> S3Snapshot:
        """Return the version *state* of *key*, with no request."""
        return S3Snapshot(self, key, state, file_stat(key, state))

    def version(self, key: str, stat: ObjectStat) -> Version:
        """Return a version of *key*, one and the same for all who read it."""
        version = self._versions.get((key, stat.etag))
        if version is None:
            name = str(self.address._replace(url=self.url_of(key)))
            version = Version(self._fetching, self.location.object_key(key), name, stat)
            self._versions[key, stat.etag] = version
        return version

    async def is_version(self, key: str, etag: str) -> bool:
        """Whether *key* has the version *etag*: as it was seen lately, else by one request."""
        known = self._believed(key)
        try:
            stat = (await self._head(key))[0] if known is None else known.stat
        except NotFoundError:
            return False
        return stat is not None and stat.etag == etag

    async def properties(self, key: str, etag: str) -> Properties:
        """Return the properties of the version *etag* of *key*; raises `ConflictError` if it has another one.

        Takes no request if they were seen, or noted, with that version.
        """
        found = self._properties.get(key)
        if found is not None and found[0] == etag:
            return found[1]
        stat, properties = await self._head(key)
        if stat.etag != etag:
            raise ConflictError(f"{key} was replaced")
        return properties

    def changing(self, key: str) -> AbstractContextManager[None]:
        """Give the time in which we change *key*: readers that find it changed wait for the end, and `followed`."""
        return self.succession.changing(key)

    def followed(self, key: str, etag: str, new: ObjectStat, kept_nbytes: int) -> None:
        """Let snapshots of the version *etag*, which we replaced, read their first *kept_nbytes* bytes in *new*."""
        self.succession.add(key, etag, new, kept_nbytes)

    def note(self, key: str, stat: ObjectStat | None, properties: Properties | None = None) -> None:
        """Note that our own change gave *key* the state *stat*, or removed the object."""
        self._properties.pop(key, None)
        if stat is not None:
            self.succession.returned(key, stat.etag)
            if properties is not None:
                self._keep_properties(key, stat.etag, properties)
        self._names.note(key, stat)

    def note_directory(self, key: str, *, exists: bool) -> None:
        """Note that our own change made an object that stands for the directory *key*, or removed it."""
        self._names.note_directory(key, exists=exists)

    def _believed(self, key: str) -> Known | None:
        """Return what is known of *key* with no request; None if nothing is."""
        return self._names.find(key)

    async def _open(self, key: str, part: Range | None) -> S3Snapshot:
        if part is None:
            return self.snapshot(key, (await self._head(key))[0])
        now, serial = self._clock(), self._names.seen.serial
        try:
            fetched = await self.client.get(self.location.object_key(key), part, with_properties=self.keeps_properties)
        except NotFoundError:
            self._names.seen.note(key, Known(None, None), time=now, serial=serial)
            raise _not_found(key) from None
        self._names.seen.note(key, Known(fetched.stat, None), time=now, serial=serial)
        if fetched.properties is not None:
            self._keep_properties(key, fetched.stat.etag, fetched.properties)
        snapshot = self.snapshot(key, fetched.stat)
        await snapshot.version.add(fetched.offset, fetched.data)
        return snapshot

    async def _head(self, key: str) -> tuple[ObjectStat, Properties]:
        now, serial = self._clock(), self._names.seen.serial
        try:
            stat, properties = await self.client.head(self.location.object_key(key))
        except NotFoundError:
            self._names.seen.note(key, Known(None, None), time=now, serial=serial)
            raise _not_found(key) from None
        self._names.seen.note(key, Known(stat, None), time=now, serial=serial)
        self._keep_properties(key, stat.etag, properties)
        return stat, properties

    def _keep_properties(self, key: str, etag: str, properties: Properties) -> None:
        self._properties[key] = (etag, properties)
        self._properties.move_to_end(key)
        if len(self._properties) > _MAX_PROPERTIES:
            self._properties.popitem(last=False)


def _wanted(size: int, head_nbytes: int, tail_nbytes: int) -> Span:
    if tail_nbytes:
        return Span(max(0, size - tail_nbytes), size)
    return Span(0, min(size, head_nbytes))


def _not_found(key: str) -> NotFoundError:
    return NotFoundError(f"{key} does not exist")
