"""Sources whose files are parts of other files, or are made of them: what others ask of these, and one ready-made."""

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import trio
from isal import isal_zlib

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StoreError,
)
from shardfs.format.fence import fenced, is_own
from shardfs.stores.base import MAX_TOP, Buffer, Content, Kind, ListedName, OpenFile, Snapshot, Stat
from shardfs.stores.cache import Cache, while_it_changes
from shardfs.stores.direct import DirectSnapshot, KnownFile, WouldWaitError
from shardfs.stores.files import TargetFiles
from shardfs.stores.memory import MemoryContent, Slice
from shardfs.stores.objects.reader import ObjectReader, SnapshotFile, object_stat
from shardfs.stores.parallel import QuickLock, Room
from shardfs.stores.ttl import within_ttl

MAX_MADE_NBYTES: Final = 2**30
"""How large a file may be that is made, as it is made in memory."""

_MAX_KEPT_NBYTES: Final = 64 * 2**20
_IN_FLIGHT_NBYTES: Final = 256 * 2**20
_LARGE_NBYTES: Final = 256 * 2**10
_MISSING: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)

B = TypeVar("B", bound=Buffer)
T = TypeVar("T")


async def parse(function: Callable[[B], T], data: B) -> T:
    """Return what *function* makes of *data*; in a thread if that is large, so that others have their turn."""
    return await trio.to_thread.run_sync(function, data) if len(data) > _LARGE_NBYTES else function(data)


@dataclass(frozen=True, slots=True)
class InlinePart:
    """The bytes themselves."""

    data: bytes


@dataclass(frozen=True, slots=True)
class RangePart:
    """*nbytes* bytes from *offset* of the source.

    *crc32* is their checksum, which is compared if they are read at once, or as one unit from beginning to end.
    """

    offset: int
    nbytes: int
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class LatePart:
    """*nbytes* bytes of the source, which are where *locate* says: it reads, and is asked when the file is opened.

    It raises `CorruptionError`, with the key in the message.
    """

    nbytes: int
    locate: Callable[[], Awaitable[RangePart]]


@dataclass(frozen=True, slots=True)
class MadePart:
    """*nbytes* bytes that *make* returns: of a compressed member, say. They are kept for a while, and made again.

    The last one that was made is kept, however large it is. Several files may be made at once, up to 256 MiB in all, or
    one larger one, and *make* takes not much more. It raises `CorruptionError`, with the key in the message.
    """

    nbytes: int
    make: Callable[[], Awaitable[Buffer]]


@dataclass(frozen=True, slots=True)
class BrokenPart:
    """What is written is nothing that can be read, for the *reason*.

    Its key is listed, so that nobody takes it for absent, and opening it is an error.
    """

    reason: str


Part = InlinePart | RangePart | LatePart | MadePart | BrokenPart


class VirtualStore(ObjectReader):
    """A source whose files are parts of other files: no program but shardfs finds them under their names."""

    part: str = "part"
    """What such a file is, in reports: "reference", "member"."""

    no_references: str | None = None
    """Why nobody should refer to the parts of this source, in words; None if that is useful."""

    @abstractmethod
    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; see `Reader.open`."""

    @abstractmethod
    def walk(self) -> AsyncIterator[str]:
        """Yield the keys of all files; `verify` opens each, and reads it if it is to look at data."""

    async def origin(self, key: str) -> tuple[str, int, int] | bytes | None:
        """Return where the bytes of the file *key* are: a URL, offset and size there; or the bytes themselves.

        None if no range of a file has them. `shardfs refs` writes what this says.
        """
        return None

    async def note(self) -> str | None:
        """Say what a user should know who mounts the source; None if that is nothing."""
        return None

    async def skipped(self) -> AsyncIterator[tuple[str, str]]:
        """Yield all that is in the source and is not shown, each by its key, with the reason, as `verify` names it."""
        for nothing in list[tuple[str, str]]():
            yield nothing


class FileContents(Protocol):
    """What is in one version of a source, as a tree of keys, such as `group/array/c/0/1`.

    Every name in it can be that of a file: none is empty, `.`, `..`, or has a NUL, and none is a file and a directory.
    What is hidden says so in the log. Nothing here reads the source, but in parts that are too large to be kept: all of
    it is asked for each status. Read documents and tables as no unit (`Snapshot.read` without *extent*): two units next
    to each other look like a file that is read in order, and 8 MiB come with the second one of a remote one.
    """

    @property
    def only_zarr(self) -> bool:
        """Whether each array has a `zarr.json`, and no directory is one of another format, for which others look."""

    async def find(self, key: str) -> Part | None:
        """Return what the file *key* is; None if there is none. A directory is no file."""

    async def list(self, key: str) -> Sequence[ListedName] | None:
        """Return the names in the directory *key*, "" for the top; None if there is no such directory."""

    async def is_directory(self, key: str) -> bool:
        """Whether *key*, which is not "", is a directory."""

    def walk(self) -> AsyncIterator[str]:
        """Yield the keys of all files, in any order."""

    async def note(self) -> str | None:
        """Say what a user should know who mounts the source: what of it is skipped; None if that is nothing."""

    def skipped(self) -> AsyncIterator[tuple[str, str]]:
        """Yield all that is skipped, each by its key, with the reason; nothing if `note` says it all."""


@runtime_checkable
class DirectContents(Protocol):
    """`FileContents` that know without waiting where chunks are, as far as that was read before."""

    def find_known(
        self, key: str, array: str, coords: tuple[int, ...], read: Callable[[int, int], Buffer | None]
    ) -> RangePart | None:
        """Return what `find` would say of the file *key*, which is below *array*, an unsharded array of Zarr.

        It is the chunk at *coords*, if the array is still what it was. Called in any thread, beside all else. None if
        it cannot be told at once, is no range of the source, or if a directory between the array and the file may be a
        node. *read* returns so many bytes from an offset of the source if they are at hand, else None. Errors are those
        of `find`.
        """


class _Direct(NamedTuple):
    """A version of the source that any thread can read, with its contents."""

    snapshot: DirectSnapshot
    contents: DirectContents


class _Loaded(NamedTuple):
    snapshot: Snapshot
    contents: FileContents
    direct: _Direct | None
    checked: float


class TreeStore(VirtualStore):
    """What is in the file *name* of the reader *home*, as a tree: *load* returns what is in one version of it.

    That is called again when the file has changed. What is open then is `StaleError`, or stays what it was. It raises
    `MetadataError` if the file is none of the format, and `CorruptionError`. The last *tail_nbytes* bytes come with the
    request that opens a remote file.
    """

    def __init__(
        self,
        url: str,
        home: TargetFiles,
        name: str,
        load: Callable[[Snapshot], Awaitable[FileContents]],
        *,
        ttl: float,
        part: str = "member",
        tail_nbytes: int = 0,
    ) -> None:
        self.url = url
        self.address = home.address._replace(url=url)
        self.ttl = ttl
        self.part = part
        self._home = home
        self._name = name
        self._load = load
        self._tail_nbytes = tail_nbytes
        self._loaded: _Loaded | None = None
        self._nforgotten = 0
        self._loading = QuickLock()
        self._made: Cache[Hashable, Buffer] = Cache(len, _MAX_KEPT_NBYTES)
        self._room = Room(_IN_FLIGHT_NBYTES)

    @property
    def only_zarr(self) -> bool:  # type: ignore[override]
        """Whether no directory is one of another format."""
        with fenced(self._load, self.url):
            return self._loaded is not None and self._loaded.contents.only_zarr

    def statistics(self) -> Mapping[str, object]:
        """Return the counts of the reader of the file."""
        return self._home.statistics()

    def url_of(self, key: str) -> str:
        """Return a URL of *key*, by which only people find it."""
        return f"{self.url}::{key}" if key else self.url

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, unless there are too many; raises `SourceError` if it cannot be read."""
        try:
            entries = await self.list("")
        except SourceError:
            raise
        except ShardfsError as error:
            raise SourceError(f"{self.url} cannot be read: {error}") from None
        return entries if len(entries) <= MAX_TOP else None

    async def _current(self, *, fresh: bool = False) -> _Loaded:
        """Return what is in the file now, or was at most the TTL ago unless *fresh*."""
        loaded, asked = self._loaded, time.monotonic()
        if loaded is not None and not fresh and within_ttl(loaded.checked, asked, self.ttl):
            return loaded
        async with self._loading:
            loaded, now, nforgotten = self._loaded, time.monotonic(), self._nforgotten
            if loaded is not None and loaded.checked >= asked:  # another task began to look after we came
                return loaded
            if loaded is None or not await loaded.snapshot.is_current():
                self._home.forget(self._name)
                loaded = await while_it_changes(self._read)
            is_known = nforgotten == self._nforgotten
            self._loaded = loaded = loaded._replace(checked=now if is_known else float("-inf"))
            return loaded

    async def _read(self) -> _Loaded:
        now = time.monotonic()
        try:
            snapshot = await self._home.open(self._name, tail_nbytes=self._tail_nbytes)
        except _MISSING:
            if self._loaded is None:
                raise SourceError(f"{self.url} is no file; if it is a directory, end its name with a slash") from None
            raise StoreError(f"{self.url} was removed") from None  # what was in it is not absent
        contents = await self._ask(self._load(snapshot))
        direct = None
        if isinstance(snapshot, DirectSnapshot) and isinstance(contents, DirectContents):
            direct = _Direct(snapshot, contents)
        return _Loaded(snapshot, contents, direct, now)

    async def stat(self, key: str) -> Stat:
        """Return the status of *key*."""
        loaded = await self._current()
        if not key or await self._ask(loaded.contents.is_directory(key), key):
            mtime_ns = loaded.snapshot.stat.mtime_ns
            return object_stat(Kind.DIRECTORY, 0, "directory", f"directory:{key}", mtime_ns)
        return self._stat(key, loaded, await self._part(loaded, key))

    def _stat(self, key: str, loaded: _Loaded, found: Part) -> Stat:
        stat = loaded.snapshot.stat
        nbytes = 0
        match found:
            case InlinePart(data):
                nbytes = len(data)
            case RangePart(nbytes=nbytes) | LatePart(nbytes=nbytes) | MadePart(nbytes=nbytes):
                pass
        return object_stat(Kind.FILE, nbytes, (key, stat.version), f"file:{key}", stat.mtime_ns)

    async def fresh(self, key: str) -> Stat:
        """Return the status of the file *key* as it is stored now."""
        loaded = await self._current(fresh=True)
        return self._stat(key, loaded, await self._part(loaded, key))

    def forget(self, key: str) -> None:
        """Look at the file again at the next request."""
        self._home.forget(self._name)
        self._nforgotten += 1
        if self._loaded is not None:
            self._loaded = self._loaded._replace(checked=float("-inf"))

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""
        loaded = await self._current()
        entries = await self._ask(loaded.contents.list(key), key)
        if entries is not None:
            return entries
        if await self._ask(loaded.contents.find(key), key) is not None:
            raise NotADirectoryHereError(f"{key} is not a directory")
        raise NotFoundError(f"{key} does not exist")

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; raises `CorruptionError` if it cannot be read."""
        loaded = await self._current(fresh=True)
        found = await self._ask(loaded.contents.find(key), key) if key else None
        if found is None:
            if not key or await self._ask(loaded.contents.is_directory(key), key):
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
            raise NotFoundError(f"{key} does not exist")
        stat, source = self._stat(key, loaded, found), loaded.snapshot
        match await self._ask(found.locate(), key) if isinstance(found, LatePart) else found:
            case InlinePart(data):
                return InlineSnapshot(stat, data, source)
            case BrokenPart(reason):
                raise CorruptionError(f"{key} cannot be read: {reason}")
            case RangePart(offset, nbytes, crc32):
                if not 0 <= offset <= offset + nbytes <= source.size:
                    end = offset + nbytes
                    raise CorruptionError(f"{key} is said to end at byte {end:,} of a file of {source.size:,} bytes")
                return PartSnapshot(stat, source, offset, key, crc32)
            case MadePart(nbytes, make):
                if nbytes > MAX_MADE_NBYTES:
                    raise CorruptionError(f"{key} has {nbytes:,} bytes, more than {MAX_MADE_NBYTES:,}")
                return MadeSnapshot(stat, source, partial(self._make, key, stat.version, nbytes, make))

    def find_known(self, key: str, array: str, coords: tuple[int, ...], *, waits: bool) -> KnownFile | None:
        """Return a chunk without the event loop; see `DirectReader`."""
        loaded = self._loaded
        if loaded is None or loaded.direct is None:
            return None
        source = loaded.direct.snapshot
        last = _LastRead(source, waits)
        try:
            found = loaded.direct.contents.find_known(key, array, coords, last.read)
        except ShardfsError:  # `open` says why
            return None
        except Exception as error:
            if isinstance(error, WouldWaitError) or is_own(self._load):
                raise
            return None
        if found is None or not 0 <= found.offset <= found.offset + found.nbytes <= loaded.snapshot.size:
            return None
        if found.crc32 is not None:
            source = _Summed(source, last, found)
        return KnownFile(source, (key, loaded.snapshot.stat.version), found.offset, found.nbytes)

    async def _part(self, loaded: _Loaded, key: str) -> Part:
        """Return what the file *key* is; all that one request asks is asked of one version."""
        found = await self._ask(loaded.contents.find(key), key)
        if found is None:
            raise NotFoundError(f"{key} does not exist")
        return found

    async def _ask(self, answer: Awaitable[T], of: str = "") -> T:
        """Return the *answer* of the format; what it fails with by mistake is an error of this source."""
        with fenced(self._load, of or self.url):
            return await answer

    async def _make(self, key: str, version: Hashable, nbytes: int, make: Callable[[], Awaitable[Buffer]]) -> Buffer:
        async def load() -> Buffer:
            async with self._room.take(nbytes):
                data = await self._ask(make(), key)
            if len(data) != nbytes:
                raise CorruptionError(f"{key} has {len(data):,} bytes, and should have {nbytes:,}")
            return data

        return await self._made.get(version, load)

    async def open_passthrough(self, key: str) -> OpenFile:
        """Open a file to read it: a single request fetches its range, and no more."""
        return SnapshotFile(key, await self.open(key), is_unit=True)

    async def walk(self) -> AsyncIterator[str]:
        """Yield the keys of all files."""
        with fenced(self._load, self.url):
            async for key in (await self._current()).contents.walk():
                yield key

    async def note(self) -> str | None:
        """Say what is skipped."""
        return await self._ask((await self._current()).contents.note())

    async def skipped(self) -> AsyncIterator[tuple[str, str]]:
        """Yield what is skipped."""
        with fenced(self._load, self.url):
            async for key, reason in (await self._current()).contents.skipped():
                yield key, reason

    async def origin(self, key: str) -> tuple[str, int, int] | bytes | None:
        """Return where in the file the bytes of *key* are, or the bytes themselves; None if they are made."""
        found = await self._part(await self._current(), key)
        match await self._ask(found.locate(), key) if isinstance(found, LatePart) else found:
            case RangePart(offset, nbytes):
                return self.url if "://" in self.url else f"file://{self.url}", offset, nbytes
            case InlinePart(data):
                return data
            case BrokenPart(reason):
                raise CorruptionError(f"{key} cannot be read: {reason}")
            case _:
                return None


class InlineSnapshot:
    """A file whose bytes are here; it is one of the version *source*, if that may change."""

    __slots__ = ("_data", "_source", "stat")

    def __init__(self, stat: Stat, data: bytes, source: Snapshot | None = None) -> None:
        self.stat = stat
        self._data = data
        self._source = source

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self._data)

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        return self._data[offset : offset + nbytes]

    def content(self, offset: int, nbytes: int) -> MemoryContent:
        """Return *nbytes* bytes from *offset*."""
        return MemoryContent(memoryview(self._data)[offset : offset + nbytes])

    def expect(self, offset: int, nbytes: int) -> None:
        """Do nothing: the bytes are here."""

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Return False: the bytes stay the same."""
        return False

    async def is_current(self) -> bool:
        """Whether the source is still this version."""
        return self._source is None or await self._source.is_current()

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Return False: the bytes stay the same."""
        return False


class _LastRead:
    """Reads *source* without the event loop, and keeps what was read last."""

    __slots__ = ("_data", "_source", "_start", "_waits")

    def __init__(self, source: DirectSnapshot, waits: bool) -> None:
        self._source = source
        self._waits = waits
        self._start = 0
        self._data: Buffer | None = None

    def read(self, offset: int, nbytes: int) -> Buffer | None:
        """Return *nbytes* bytes from *offset* if they are at hand."""
        self._start, self._data = offset, self._source.read_if_current(offset, nbytes, waits=self._waits)
        return self._data

    def kept(self, offset: int, nbytes: int) -> Buffer | None:
        """Return *nbytes* bytes from *offset* if they were among those that were read last."""
        begin = offset - self._start
        if self._data is None or not 0 <= begin <= begin + nbytes <= len(self._data):
            return None
        return memoryview(self._data)[begin : begin + nbytes]


class _Summed:
    """The bytes of *part* in *source*, which *last* may have read; all of them together are checked by its checksum."""

    __slots__ = ("_last", "_part", "_source")

    def __init__(self, source: DirectSnapshot, last: _LastRead, part: RangePart) -> None:
        self._source = source
        self._last = last
        self._part = part

    def read_if_current(self, offset: int, nbytes: int, *, waits: bool) -> Buffer | None:
        """Return what `DirectSnapshot` does."""
        data = self._last.kept(offset, nbytes)
        if data is None:
            data = self._source.read_if_current(offset, nbytes, waits=waits)
        if data is None or nbytes < self._part.nbytes or isal_zlib.crc32(data) == self._part.crc32:
            return data
        return None


class PartSnapshot:
    """A part, from *start* on, of one version of another file; *whole* is that version.

    *crc32* is that of `RangePart`, and *key* names the part if it is wrong.
    """

    __slots__ = ("_crc32", "_key", "_start", "_summed", "_whole", "stat")

    def __init__(self, stat: Stat, whole: Snapshot, start: int, key: str = "", crc32: int | None = None) -> None:
        self.stat = stat
        self._whole = whole
        self._start = start
        self._key = key
        self._crc32 = crc32
        self._summed = 0, 0

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stat.size

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*; raises `CorruptionError` if all were read, and are wrong."""
        data = await self._read(offset, nbytes, extent)
        if (
            self._crc32 is None
            or (nbytes < self.size and extent != (0, self.size))
            or await self._is_sound(offset, data)
        ):
            return data
        if await self.distrust(0, self.size) and nbytes == self.size:
            data = await self._read(offset, nbytes, extent)
            if await self._is_sound(offset, data):
                return data
        raise CorruptionError(f"{self._key} cannot be read: its checksum (CRC-32) is wrong")

    def read_if_current(self, offset: int, nbytes: int, *, waits: bool) -> Buffer | None:
        """Return what `read` does without the event loop; None, too, if it is wrong."""
        if not isinstance(self._whole, DirectSnapshot):
            return None
        data = self._whole.read_if_current(self._start + offset, nbytes, waits=waits)
        if data is None or self._crc32 is None or nbytes < self.size or isal_zlib.crc32(data) == self._crc32:
            return data
        return None

    async def _read(self, offset: int, nbytes: int, extent: tuple[int, int] | None) -> Buffer:
        unit = None if extent is None else (self._start + extent[0], extent[1])
        return await self._whole.read(self._start + offset, nbytes, unit)

    async def _is_sound(self, offset: int, data: Buffer) -> bool:
        """Add *data* to the checksum, if all before it was; return False if it is complete, and wrong."""
        end, crc32 = self._summed if offset else (0, 0)
        if offset != end:
            return True
        crc32 = await parse(lambda data: isal_zlib.crc32(data, crc32), data)
        self._summed = offset + len(data), crc32
        return offset + len(data) < self.size or crc32 == self._crc32

    def content(self, offset: int, nbytes: int) -> Content:
        """Return *nbytes* bytes from *offset*, to be read later."""
        return self._whole.content(self._start + offset, nbytes)

    def expect(self, offset: int, nbytes: int) -> None:
        """Announce that bytes will probably be read soon."""
        self._whole.expect(self._start + offset, nbytes)

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Forget bytes that failed a check; return whether they may come otherwise next time."""
        return await self._whole.distrust(self._start + offset, nbytes)

    async def is_current(self) -> bool:
        """Whether the target is still this version."""
        return await self._whole.is_current()

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Return False: a part of a file does not grow."""
        return False


class MadeSnapshot:
    """A file whose bytes *load* returns, all at once, of the version *source*."""

    __slots__ = ("_load", "_source", "stat")

    def __init__(self, stat: Stat, source: Snapshot, load: Callable[[], Awaitable[Buffer]]) -> None:
        self.stat = stat
        self._source = source
        self._load = load

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stat.size

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        return bytes(memoryview(await self._load())[offset : offset + nbytes])

    def content(self, offset: int, nbytes: int) -> Content:
        """Return *nbytes* bytes from *offset*, to be read later."""
        return Slice(self._read_blocking, offset, nbytes)

    def _read_blocking(self, offset: int, nbytes: int) -> Buffer:
        return trio.from_thread.run(self.read, offset, nbytes)

    def expect(self, offset: int, nbytes: int) -> None:
        """Do nothing: it is made when it is read."""

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Return False: the same bytes would be made."""
        return False

    async def is_current(self) -> bool:
        """Whether the source is still this version."""
        return await self._source.is_current()

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Return False: what is made does not grow."""
        return False
