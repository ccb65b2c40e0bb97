"""What is on a web server or in a bucket of a cloud, as a source that can only be read."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import trio

from shardfs.errors import (
    AccessDeniedError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    SourceError,
    UnsupportedError,
)
from shardfs.stores.base import MAX_TOP, Entry, Kind, Snapshot, Stat, file_format, join_key
from shardfs.stores.clouds.client import CloudClient
from shardfs.stores.clouds.outline import Outline, OutlineOf
from shardfs.stores.disk_cache import DiskCache
from shardfs.stores.objects import ObjectReader
from shardfs.stores.parallel import for_each
from shardfs.stores.s3.heads import Absent, Directory, Found, Heads, NoObject, Unknown, not_found
from shardfs.stores.s3.objects import Objects, directory_stat, file_stat
from shardfs.stores.s3.requests import DOCUMENT, Range

TTL: Final = 60.0
"""Default TTL in seconds; asking again takes a request."""

_PATIENCE: Final = 15.0
"""Seconds of silence after which a source is called unreachable, while a user waits."""

_FIRST_NBYTES: Final = 256 * 2**10  # most documents are shorter, and so take one request
_MAX_DOCUMENT_NBYTES: Final = 64 * 2**20
_AT_ONCE: Final = 64
_MAX_OUTLINES: Final = 256
_MAX_NAMES: Final = 1_000_000


class CloudStore(ObjectReader):
    """The objects of a source: what is the same whether its names can be listed or not."""

    def __init__(
        self, client: CloudClient, session: trio.Nursery, *, ttl: float = TTL, cache: DiskCache | None = None
    ) -> None:
        self.ttl = ttl
        self.url = client.location.url
        self.address = client.address
        self.directory_stat = directory_stat()
        self.heads = Heads(client, ttl=ttl)
        self.objects = Objects(client, session, self.heads, cache)
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

    async def check(self) -> Sequence[Entry] | None:
        """Return the names at the top, unless there are too many; raises `SourceError` if it cannot be read."""
        try:
            with trio.fail_after(_PATIENCE):
                return await self._check()
        except trio.TooSlowError:
            reason = f"the server does not answer within {_PATIENCE:.0f} seconds"
            raise SourceError(f"{self.url} cannot be read: {reason}") from None
        except SourceError:
            raise
        except ShardfsError as error:
            raise SourceError(f"{self.url} cannot be read: {error}") from None

    async def _check(self) -> Sequence[Entry] | None:
        raise NotImplementedError

    async def _head(self, key: str) -> Stat | None:
        """Return the status of the object *key*, None if there is none; by a request unless it is known."""
        match self.heads.find(key):
            case Found(version):
                return file_stat(key, version)
            case Absent() | NoObject():
                return None
            case _:
                try:
                    return await self.fresh(key)
                except NotFoundError:
                    return None


class BucketStore(CloudStore):
    """A part of a bucket that can be listed."""

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        match self.heads.find(key):
            case Found(version):
                return file_stat(key, version)
            case Directory():
                return self.directory_stat
            case Absent():
                raise not_found(key)
        if await self._client.has_below(f"{key}/"):
            return self.directory_stat
        stat = await self._head(key)
        if stat is None:
            raise not_found(key)
        return stat

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory."""
        listing = await self.heads.list(key)
        if listing.is_missing and key:
            if await self._head(key) is not None:
                raise NotADirectoryHereError(f"{key} is not a directory")
            raise not_found(key)
        return [Entry(name, Kind.DIRECTORY if stat is None else Kind.FILE) for name, stat in listing.names.items()]

    async def _check(self) -> Sequence[Entry] | None:
        entries = await self.list("")
        if not entries:
            raise SourceError(f"nothing is stored at {self.url}")
        return entries if len(entries) <= MAX_TOP else None


class WebStore(CloudStore):
    """A part of a web server, which lists nothing: names are those that documents tell of, or somebody asks for.

    *outline_of* reads a document. Directories of shards are listed only if the store *assumes_complete* arrays: then
    each shard in the grid is asked for.
    """

    lists = False

    def __init__(
        self,
        client: CloudClient,
        session: trio.Nursery,
        outline_of: OutlineOf,
        *,
        ttl: float = TTL,
        cache: DiskCache | None = None,
        assumes_complete: bool = False,
    ) -> None:
        super().__init__(client, session, ttl=ttl, cache=cache)
        self._outline_of = outline_of
        self._assumes_complete = assumes_complete
        self._outlines: OrderedDict[str, tuple[object, Outline]] = OrderedDict()

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*: a directory, if it has a document, or documents above it say so."""
        known = self.heads.find(key)
        if isinstance(known, Found):
            return file_stat(key, known.version)
        if isinstance(known, Directory):
            return self.directory_stat
        is_directory, may_be_node = await self._told(key)
        if is_directory is None and may_be_node:
            is_directory = await self._outline(key) is not None
        if is_directory:
            return self.directory_stat
        stat = await self._head(key)
        if stat is None:
            raise not_found(key)
        return stat

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in the directory *key* that documents tell of.

        Raises `UnsupportedError` for a directory of shards, unless arrays are assumed to be complete.
        """
        names: dict[str, Kind] = {}
        is_known = False
        async for path, outline in self._above(key):
            relative = _relative(key, path)
            if relative == "":
                is_known = True
                names[DOCUMENT] = Kind.FILE
                for name in outline.may_have:
                    if await self._outline(join_key(key, name)) is not None:
                        names[name] = Kind.DIRECTORY
            if relative is None:
                continue
            below = outline.below.get(relative, ())
            is_known = is_known or bool(below) or bool(outline.is_directory(relative))
            names |= dict.fromkeys(below, Kind.DIRECTORY)
            if outline.is_array and (count := outline.count(relative)) and not below:
                names |= await self._shard_names(key, relative, outline, count)
        if not is_known:
            if await self._head(key) is not None:
                raise NotADirectoryHereError(f"{key} is not a directory")
            raise not_found(key)
        return [Entry(name, kind) for name, kind in names.items()]

    async def _shard_names(self, key: str, relative: str, outline: Outline, count: int) -> dict[str, Kind]:
        if not self._assumes_complete:
            raise UnsupportedError(
                f"{self.url_of(key)} cannot be listed: a web server does not say which shards there are; with "
                "--assume-complete, each that the array may have is asked for"
            )
        if count > _MAX_NAMES:
            raise UnsupportedError(f"{self.url_of(key)} cannot be listed: the array may have {count} shards there")
        names: dict[str, Kind] = {}

        async def look(entry: tuple[str, bool]) -> None:
            name, is_directory = entry
            if is_directory or await self._head(join_key(key, name)) is not None:
                names[name] = Kind.DIRECTORY if is_directory else Kind.FILE

        await for_each([*outline.shard_names(relative)], look, _AT_ONCE)
        return names

    async def _told(self, key: str) -> tuple[bool | None, bool]:
        """Return whether documents above *key* say that it is a directory, or a file; and whether it may be a node."""
        may_be_node = key.rpartition("/")[2] != DOCUMENT
        async for path, outline in self._above(key.rpartition("/")[0]):
            relative = _relative(key, path)
            if relative:
                is_directory = outline.is_directory(relative)
                if is_directory is not None:
                    return is_directory, may_be_node
                may_be_node = may_be_node and not outline.is_array
        return None, may_be_node

    async def _above(self, key: str) -> AsyncIterator[tuple[str, Outline]]:
        """Yield the nodes at and above the directory *key* with their outlines, from the top, down to an array."""
        parts = key.split("/") if key else []
        for depth in range(len(parts) + 1):
            path = "/".join(parts[:depth])
            outline = await self._outline(path)
            if outline is not None:
                yield path, outline
                if outline.is_array:
                    return

    async def _outline(self, path: str) -> Outline | None:
        """Return what the document of the node at *path* says; None if there is no node."""
        try:
            snapshot = await self.objects.open(join_key(path, DOCUMENT), head_nbytes=_FIRST_NBYTES)
        except (NotFoundError, IsADirectoryHereError):
            return None
        known = self._outlines.get(path)
        if known is not None and known[0] == snapshot.stat.version:
            self._outlines.move_to_end(path)
            return known[1]
        is_large = snapshot.size > _MAX_DOCUMENT_NBYTES
        document = b"" if is_large else bytes(await snapshot.read(0, snapshot.size))
        outline = self._outline_of(document)
        self._outlines[path] = snapshot.stat.version, outline
        if len(self._outlines) > _MAX_OUTLINES:
            self._outlines.popitem(last=False)
        return outline

    async def _check(self) -> Sequence[Entry] | None:
        """Read the document, whose server must give ranges, and nothing for what it does not have."""
        try:
            fetched = await self.heads.get(DOCUMENT, Range(0, 1))
        except NotFoundError:
            raise SourceError(await self._what_is_there()) from None
        if fetched.data.nbytes and await self._has_nonsense():
            raise SourceError(
                f"{self.url} cannot be read: its server has something under every name, so that nobody can tell what "
                "is not there; set it to answer 404 for files that do not exist"
            )
        try:
            entries = await self.list("")
        except UnsupportedError:  # the shards of an array without a directory for them
            return None
        return entries if len(entries) <= MAX_TOP else None

    async def _has_nonsense(self) -> bool:
        try:
            return await self._client.has_nonsense()
        except AccessDeniedError:
            return False

    async def _what_is_there(self) -> str:
        """Say what has the name of the source, which has no document."""
        name = self.url.rpartition("/")[2]
        if name in (DOCUMENT, ".zarray", ".zgroup", ".zattrs", ".zmetadata"):
            return f"{self.url} is {file_format(name, b'')}"
        return (
            f"there is no {DOCUMENT} at {self.url}: web servers list nothing, so SOURCE must be the URL of a Zarr v3 "
            "array or group itself"
        )


def _relative(key: str, path: str) -> str | None:
    """Return *key* relative to the node at *path*, None if it is not at or below it."""
    if not path or key == path:
        return key[len(path) :]
    return key[len(path) + 1 :] if key.startswith(f"{path}/") else None
