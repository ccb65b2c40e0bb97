"""What is on a web server or in a bucket of a cloud, as a source that can only be read."""

import enum
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Final

import trio

from shardfs.errors import (
    AccessDeniedError,
    IsADirectoryHereError,
    NoSourceError,
    NotADirectoryHereError,
    NotFoundError,
    SourceError,
    UnsupportedError,
)
from shardfs.stores.base import DOCUMENTS, MAX_TOP, Kind, ListedName, Snapshot, Stat, file_format, join_key
from shardfs.stores.clouds.outline import NamesBelow, OutlineOf
from shardfs.stores.clouds.web import WebClient
from shardfs.stores.objects.client import Client
from shardfs.stores.objects.disk_cache import DiskCache
from shardfs.stores.objects.heads import Absent, FoundObject, KnownDirectory, NoObject, not_found
from shardfs.stores.objects.requests import DOCUMENT
from shardfs.stores.objects.store import BucketStore, ObjectStore, first_answer
from shardfs.stores.objects.versions import file_stat
from shardfs.stores.parallel import for_each

_FIRST_NBYTES: Final = 256 * 2**10  # most documents are shorter, and so take one request
_MAX_DOCUMENT_NBYTES: Final = 32 * 2**20
"""A larger document says nothing; nor is it shown."""

_AT_ONCE: Final = 64
_MAX_OUTLINES: Final = 256
_MAX_OUTLINES_NBYTES: Final = 32 * 2**20
"""How large all documents may be of which is known what they say, or one of them."""

_MAX_NAMES: Final = 1_000_000


class CloudBucketStore(BucketStore[Client]):
    """A part of a bucket of a cloud."""

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, unless there are too many; raises `SourceError` if it cannot be read."""
        return await first_answer(self.url, "the server", self._check, self._client.trouble)

    async def _check(self) -> Sequence[ListedName] | None:
        try:
            entries = await self.list("")
        except AccessDeniedError as error:
            raise NoSourceError(f"{self.url} cannot be read: {error}") from None
        if not entries:
            raise NoSourceError(f"nothing is stored at {self.url}")
        return entries if len(entries) <= MAX_TOP else None


class WebFiles(ObjectStore[WebClient]):
    """Files on a web server whose names are known otherwise; nothing tells of others."""

    lists = False

    async def list(self, key: str) -> Sequence[ListedName]:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(f"{self.url_of(key)} cannot be listed: web servers list nothing")

    async def _find(self, key: str) -> Stat | None:
        """Return the status of the file *key*, None if there is none; by a request unless it is known."""
        match self.heads.find(key):
            case FoundObject(version):
                return file_stat(key, version)
            case Absent() | NoObject():
                return None
            case _:
                try:
                    return await self.fresh(key)
                except NotFoundError:
                    return None


class _Likely(enum.Enum):
    """What a name is, as far as documents above it say."""

    DIRECTORY = enum.auto()
    FILE = enum.auto()
    """A file, if anything."""
    NODE = enum.auto()
    """A node if it has a document, else a file, if anything."""


class _Outlines:
    """What documents say, by the path of the node: the last ones used, by number and by the size of the documents."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, tuple[Hashable, NamesBelow, int]] = OrderedDict()
        self._nbytes = 0

    def get(self, path: str, version: Hashable) -> NamesBelow | None:
        """Return what this *version* of a document says; None if that is not known."""
        row = self._rows.get(path)
        if row is None or row[0] != version:
            return None
        self._rows.move_to_end(path)
        return row[1]

    def put(self, path: str, version: Hashable, outline: NamesBelow, nbytes: int) -> None:
        """Note what a document of *nbytes* bytes says."""
        replaced = self._rows.pop(path, None)
        self._nbytes += nbytes - (replaced[2] if replaced is not None else 0)
        self._rows[path] = version, outline, nbytes
        while len(self._rows) > _MAX_OUTLINES or (self._nbytes > _MAX_OUTLINES_NBYTES and len(self._rows) > 1):
            self._nbytes -= self._rows.popitem(last=False)[1][2]


class WebStore(WebFiles):
    """A part of a web server, which lists nothing: names are those that documents name, or somebody asks for.

    *outline_of* reads documents. The first that the source itself has tells its format, and nodes below it are asked
    for in that format alone. Directories of shards are listed only if the store *assumes_complete* arrays: then each
    shard in the grid is asked for.
    """

    def __init__(
        self,
        client: WebClient,
        session: trio.Nursery,
        outline_of: OutlineOf,
        *,
        ttl: float = 60.0,
        cache: DiskCache | None = None,
        assumes_complete: bool = False,
    ) -> None:
        super().__init__(client, session, ttl=ttl, cache=cache)
        self._outline_of = outline_of
        self._assumes_complete = assumes_complete
        self._top: Sequence[Sequence[str]] = outline_of.nodes
        self._below: Sequence[Sequence[str]] = outline_of.nodes
        self._outlines = _Outlines()
        self._reading = trio.Lock()

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*: a directory, if it has a document, or documents above it say so."""
        known = self.heads.find(key)
        if isinstance(known, FoundObject):
            return file_stat(key, known.version)
        if isinstance(known, KnownDirectory):
            return self.directory_stat
        likely = await self._by_documents_above(key)
        if likely is _Likely.DIRECTORY or (likely is _Likely.NODE and await self._outline(key) is not None):
            return self.directory_stat
        stat = None if await self._is_no_document(key) else await self._find(key)
        if stat is None:
            raise not_found(key)
        return stat

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file."""
        if await self._is_no_document(key):
            raise not_found(key)
        return await super().open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def _is_no_document(self, key: str) -> bool:
        """Whether *key* would be the document of a node that is not there.

        It is of another format than the source, or in a directory below that of an array.
        """
        directory, _, name = key.rpartition("/")
        is_usual = self._outline_of.looked_for.get(name)
        if is_usual is None:
            return False
        if not is_usual and all(names[0] != name for names in (self._below if directory else self._top)):
            return True
        if not directory:
            return False
        above = directory.rpartition("/")[0]
        return any([outline.is_closed(_relative(above, path) or "") async for path, outline in self._above(above)])

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in the directory *key* that documents name.

        Raises `UnsupportedError` for a directory of shards, unless arrays are assumed to be complete.
        """
        names: dict[str, Kind] = {}
        is_known = False
        async for path, outline in self._above(key):
            relative = _relative(key, path)
            if relative == "":
                is_known = True
                for name in outline.may_have:
                    if await self._outline(join_key(key, name)) is not None:
                        names[name] = Kind.DIRECTORY
            if relative is None:
                continue
            below, documents = outline.below.get(relative, ()), outline.documents.get(relative, ())
            is_known = is_known or bool(below or documents) or bool(outline.is_directory(relative))
            names |= dict.fromkeys(below, Kind.DIRECTORY) | dict.fromkeys(documents, Kind.FILE)
            if outline.is_closed(relative) and not below:
                names |= await self._shard_names(key, relative, outline)
        if not is_known:
            if await self._find(key) is not None:
                raise NotADirectoryHereError(f"{key} is not a directory")
            raise not_found(key)
        return [ListedName(name, kind) for name, kind in names.items()]

    async def _shard_names(self, key: str, relative: str, outline: NamesBelow) -> dict[str, Kind]:
        count = outline.count(relative)
        if count is None:
            raise UnsupportedError(
                f"{self.url_of(key)} cannot be listed: a web server does not say which files there are"
            )
        if count and not self._assumes_complete:
            raise UnsupportedError(
                f"{self.url_of(key)} cannot be listed: a web server does not say which shards there are; with "
                "--assume-complete, each that the array may have is asked for"
            )
        if count > _MAX_NAMES:
            raise UnsupportedError(f"{self.url_of(key)} cannot be listed: the array may have {count} shards there")
        names: dict[str, Kind] = {}

        async def look(entry: tuple[str, bool]) -> None:
            name, is_directory = entry
            if is_directory or await self._find(join_key(key, name)) is not None:
                names[name] = Kind.DIRECTORY if is_directory else Kind.FILE

        await for_each([*outline.shard_names(relative)], look, _AT_ONCE)
        return names

    async def _by_documents_above(self, key: str) -> "_Likely":
        """Return what documents above *key* say of it."""
        name = key.rpartition("/")[2]
        likely = _Likely.FILE if any(name in names for names in self._outline_of.nodes) else _Likely.NODE
        async for path, outline in self._above(key.rpartition("/")[0]):
            relative = _relative(key, path)
            if relative:
                is_directory = outline.is_directory(relative)
                if is_directory is not None:
                    return _Likely.DIRECTORY if is_directory else _Likely.FILE
                if outline.is_closed(relative):
                    likely = _Likely.FILE
        return likely

    async def _above(self, key: str) -> AsyncIterator[tuple[str, NamesBelow]]:
        """Yield the nodes at and above the directory *key* with their outlines, from the top, down to an array.

        Those of which a node above has copies of the documents are not asked for.
        """
        parts = key.split("/") if key else []
        known: list[tuple[str, NamesBelow]] = []
        for depth in range(len(parts) + 1):
            path = "/".join(parts[:depth])
            below = [(outline, _relative(path, above) or "") for above, outline in known]
            if any(outline.is_closed(relative) for outline, relative in below):
                return
            if any(relative in outline.documents for outline, relative in below):
                continue
            outline = await self._outline(path)
            if outline is not None:
                yield path, outline
                known.append((path, outline))

    async def _outline(self, path: str) -> NamesBelow | None:
        """Return what the documents of the node at *path* say; None if there is no node."""
        denied: AccessDeniedError | None = None
        for names in self._below if path else self._outline_of.nodes:
            try:
                outline = await self._read_outline(path, names)
            except AccessDeniedError as error:  # what a server says of all that is absent, as long as nothing is known
                if path:
                    raise
                denied = denied or error
                continue
            if outline is not None:
                if not path:
                    self._top, self._below = (names,), self._outline_of.below[names[0]]
                    self._client.ask_for(names[0])
                return outline
        if denied is not None:
            raise denied
        return None

    async def _read_outline(self, path: str, names: Sequence[str]) -> NamesBelow | None:
        """Return what the documents *names* of the node at *path* say; None if the first is not there."""
        snapshots: dict[str, Snapshot] = {}
        for name in names:
            key = _beside(path, name)
            if key is None:
                continue
            try:
                snapshots[name] = await self.objects.open(key, head_nbytes=_FIRST_NBYTES)
            except (NotFoundError, IsADirectoryHereError):
                if not snapshots:
                    return None
        versions = tuple((name, snapshot.stat.version) for name, snapshot in snapshots.items())
        outline = self._outlines.get(path, versions)
        if outline is not None:
            return outline
        documents: dict[str, bytes] = {}
        for name, snapshot in snapshots.items():
            is_large = snapshot.size > _MAX_DOCUMENT_NBYTES
            documents[name] = b"" if is_large else bytes(await snapshot.read(0, snapshot.size))
        async with self._reading:  # many may ask for names below the same node
            outline = self._outlines.get(path, versions)
            if outline is None:
                outline = await self._outline_of(path, documents)
                if outline is not None:
                    self._outlines.put(path, versions, outline, sum(map(len, documents.values())))
        return outline

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, unless there are too many; raises `SourceError` if it cannot be read."""
        return await first_answer(self.url, "the server", self._check, self._client.trouble)

    async def _check(self) -> Sequence[ListedName] | None:
        """Read the documents, whose server must give ranges, and nothing for what it does not have."""
        try:
            if await self._outline("") is None:
                raise NoSourceError(await self._what_is_there())
        except AccessDeniedError as error:
            raise NoSourceError(f"{self.url} cannot be read: {error}") from None
        if await self._has_nonsense():
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
        if name in DOCUMENTS:
            return f"{self.url} is {file_format(name)}"
        return (
            f"there is no {DOCUMENT} at {self.url}, nor a document of another format: web servers list nothing, so "
            f"SOURCE must be the URL of {self._outline_of.sources}"
        )


def _beside(path: str, name: str) -> str | None:
    """Return the key of the document *name* of the node at *path*; None if it would be outside of the source."""
    while name.startswith("../"):
        if not path:
            return None
        path, name = path.rpartition("/")[0], name.removeprefix("../")
    return join_key(path, name)


def _relative(key: str, path: str) -> str | None:
    """Return *key* relative to the node at *path*, None if it is not at or below it."""
    if not path or key == path:
        return key[len(path) :]
    return key[len(path) + 1 :] if key.startswith(f"{path}/") else None
