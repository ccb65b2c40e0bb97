"""A set of references as a source: keys are files, whose bytes are in the file of references or in other files."""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import trio

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    SourceError,
    counted,
    without_secrets,
)
from shardfs.formats.references.base import Reference, ReferenceSet, Target
from shardfs.formats.references.document import MAX_NBYTES as MAX_DOCUMENT_NBYTES
from shardfs.formats.references.document import parse_document
from shardfs.formats.references.records import DOCUMENTS, RecordReferences, parse_documents
from shardfs.formats.references.records import MAX_NBYTES as MAX_RECORDS_NBYTES
from shardfs.formats.references.targets import Targets
from shardfs.formats.virtual import BrokenPart, InlinePart, InlineSnapshot, PartSnapshot, VirtualStore
from shardfs.stores.base import (
    MAX_TOP,
    Address,
    Kind,
    ListedName,
    OpenFile,
    Snapshot,
    Stat,
    in_pieces,
    join_key,
)
from shardfs.stores.files import TargetFiles
from shardfs.stores.objects.reader import SnapshotFile, object_stat
from shardfs.stores.parallel import for_each
from shardfs.stores.url import ALLOW_TARGET

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
_LARGE_NBYTES: Final = 2**18  # what is larger is not hashed between two requests
_MAX_DIGESTS: Final = 4096
_MISSING: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)


class ReferenceStore(VirtualStore):
    """The references in the file *name* of the reader *home*, or in the directory of records of that name.

    They are read once; *targets* are looked at each time, as other sources are. The version of a file is that of its
    target and which part of it. A file whose target is missing, or is not allowed, has a status, so that it is listed
    and nobody takes it for absent, and cannot be opened.
    """

    part = "reference"

    def __init__(
        self,
        url: str,
        address: Address,
        home: TargetFiles,
        name: str,
        targets: Targets,
        *,
        in_records: bool,
        ttl: float,
    ) -> None:
        self.url = url
        self.address = address
        self.ttl = ttl
        self.no_references = (
            f"{url} is a set of references already: programs that read references read it; `shardfs pack` and `unpack` "
            "copy the chunks"
        )
        self.targets = targets
        self._home = home
        self._name = name
        self._in_records = in_records
        self._set: ReferenceSet | None = None
        self._mtime_ns = 0
        self._loading = trio.Lock()
        self._digests: OrderedDict[str, str] = OrderedDict()
        self._directory_stat = object_stat(Kind.DIRECTORY, 0, "directory", "directory", time.time_ns())

    def statistics(self) -> Mapping[str, object]:
        """Return the sums of the counts of all readers of files."""
        sums: Counter[str] = Counter()
        requests: Counter[str] = Counter()
        for files in {
            id(files): files for files in (self._home, *(root.files for root in self.targets.roots))
        }.values():
            for name, value in files.statistics().items():
                if name == "requests":
                    requests.update(value)
                else:
                    sums[name] += value
        return {"requests": dict(sorted(requests.items())), **sums} if sums else {}

    def url_of(self, key: str) -> str:
        """Return the URL of a key as fsspec chains them; there is no file of this name."""
        return f"reference://{key}::{self.url}"

    async def check(self) -> Sequence[ListedName] | None:
        """Read the references; return the names at the top, unless there are too many. Raises `SourceError`."""
        references = await self.references()
        if references.nhidden:
            log.warning("%s has %s that no file can have", self.url, counted(references.nhidden, "name"))
        entries = await references.list("")
        return entries if len(entries) <= MAX_TOP else None

    async def note(self) -> str | None:
        """Say how many targets are not allowed, and what would allow them; None if all are that are known."""
        try:
            urls = await (await self.references()).urls()
        except ShardfsError:  # of a record, which its chunks will report
            return None
        refused, roots = await trio.to_thread.run_sync(self._refused, urls)
        if not roots:
            return None
        options = " ".join(f"{ALLOW_TARGET} {root}" for root in roots[:3])
        more = f" and {len(roots) - 3} more" if len(roots) > 3 else ""
        return (
            f"{len(refused):,} of {counted(len(urls), 'file')} that it refers to are not allowed, so that their chunks "
            f"cannot be read, such as {without_secrets(refused[0])}; allow them with {options}{more}"
        )

    def _refused(self, urls: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return which of *urls* are not allowed, and what would have to be."""
        refused = [url for url in urls if not self.targets.is_allowed(url)]
        return refused, sorted({root for url in refused if (root := self.targets.root_of(url)) is not None})

    async def references(self) -> ReferenceSet:
        """Return the references, which are read on first use; raises `SourceError` if they cannot be used."""
        if self._set is None:
            async with self._loading:
                if self._set is None:
                    try:
                        self._set = await (self._load_records() if self._in_records else self._load_document())
                    except _MISSING:
                        raise SourceError(f"{self.url} does not exist") from None
                    except ShardfsError as error:
                        raise SourceError(f"{self.url} cannot be read as references: {error}") from None
        return self._set

    async def _load_document(self) -> ReferenceSet:
        data, _ = await self._read(self._name, MAX_DOCUMENT_NBYTES, "; as Parquet they are read in parts")
        return await trio.to_thread.run_sync(parse_document, data)

    async def _load_records(self) -> ReferenceSet:
        key = join_key(self._name, DOCUMENTS)
        data, version = await self._read(key, MAX_RECORDS_NBYTES, "")
        documents = await trio.to_thread.run_sync(parse_documents, data)
        return RecordReferences(self._home, self._name, documents, version)

    async def _read(self, key: str, most: int, way_out: str) -> tuple[bytearray, Hashable]:
        snapshot = await self._home.open(key)
        if snapshot.size > most:
            raise SourceError(f"{key} has {snapshot.size:,} bytes, more than {most:,}{way_out}")
        self._mtime_ns = snapshot.stat.mtime_ns
        data = bytearray()
        for offset, nbytes in in_pieces(snapshot.size):
            data += await snapshot.read(offset, nbytes, (0, snapshot.size))
        return data, snapshot.stat.version

    # Names and their content.

    async def stat(self, key: str) -> Stat:
        """Return the status of *key*."""
        references = await self.references()
        if not key or await references.is_directory(key):
            return self._directory_stat
        return await self._stat(key, await self._find(key))

    async def fresh(self, key: str) -> Stat:
        """Return the status of the file *key*, whatever is known of its target."""
        self._forget(await self._find(key))
        return await self._stat(key, await self._find(key))

    def forget(self, key: str) -> None:
        """Do nothing: references do not change, and what is known of their targets has its TTL."""

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several names in one directory, asking for several targets at a time."""
        stats: dict[str, Stat | None] = dict.fromkeys(names)

        async def look(name: str) -> None:
            try:
                stats[name] = await self.stat(join_key(key, name))
            except NotFoundError:
                stats[name] = None

        await for_each(names, look, _AT_ONCE)
        return [stats[name] for name in names]

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""
        references = await self.references()
        entries = await references.list(key)
        if not entries and key:
            if await references.find(key) is not None:
                raise NotADirectoryHereError(f"{key} is not a directory")
            raise NotFoundError(f"{key} does not exist")
        return entries

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; raises `AccessDeniedError` and `CorruptionError` if its bytes may not or cannot be read."""
        references = await self.references()
        if not key or await references.is_directory(key):
            raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
        match await self._find(key):
            case InlinePart(data):
                return InlineSnapshot(await self._inline_stat(key, data), data)
            case BrokenPart(reason):
                raise CorruptionError(f"{key} has no valid reference: {reason}")
            case Target() as target:
                whole = target.nbytes is None
                return await self._open(key, target, head_nbytes * whole, tail_nbytes * whole)

    async def open_passthrough(self, key: str) -> OpenFile:
        """Open a file to read it: of a remote one, a single request fetches what it refers to, and no more."""
        return SnapshotFile(key, await self.open(key), is_unit=True)

    async def walk(self) -> AsyncIterator[str]:
        """Yield the keys of all files."""
        async for key, _ in (await self.references()).walk():
            yield key

    async def _find(self, key: str) -> Reference:
        reference = await (await self.references()).find(key)
        if reference is None:
            raise NotFoundError(f"{key} does not exist")
        return reference

    def _forget(self, reference: Reference) -> None:
        if isinstance(reference, Target) and self.targets.is_allowed(reference.url):
            files, key = self.targets.find(reference.url)
            files.forget(key)

    async def _stat(self, key: str, reference: Reference) -> Stat:
        match reference:
            case InlinePart(data):
                return await self._inline_stat(key, data)
            case BrokenPart(reason):
                return self._file_stat(key, 0, f"broken: {reason}", self._mtime_ns)
            case Target() as target:
                try:
                    return (await self._open(key, target)).stat
                except ShardfsError:
                    what = f"no {target.url} {target.offset} {target.nbytes}"
                    return self._file_stat(key, target.nbytes or 0, what, self._mtime_ns)

    async def _open(self, key: str, target: Target, head_nbytes: int = 0, tail_nbytes: int = 0) -> PartSnapshot:
        shown = without_secrets(target.url)
        try:
            files, name = self.targets.find(target.url)
            snapshot = await files.open(name, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)
        except _MISSING:
            raise CorruptionError(f"{key} refers to {shown}, which is no file there") from None
        except ShardfsError as error:
            raise type(error)(f"{key}: {error}") from None
        nbytes = snapshot.size if target.nbytes is None else target.nbytes
        if target.offset + nbytes > snapshot.size:
            end = target.offset + nbytes
            raise CorruptionError(f"{key} refers to bytes up to {end:,} of {shown}, which has {snapshot.size:,}")
        version = (target.url, target.offset, nbytes, snapshot.stat.version)
        stat = self._file_stat(key, nbytes, version, snapshot.stat.mtime_ns)
        return PartSnapshot(stat, snapshot, target.offset)

    async def _inline_stat(self, key: str, data: bytes) -> Stat:
        version = self._digests.get(key)
        if version is None:
            is_large = len(data) > _LARGE_NBYTES
            version = await trio.to_thread.run_sync(_digest, data) if is_large else _digest(data)
            self._digests[key] = version
            if len(self._digests) > _MAX_DIGESTS:
                self._digests.popitem(last=False)
        return self._file_stat(key, len(data), version, self._mtime_ns)

    def _file_stat(self, key: str, nbytes: int, version: Hashable, mtime_ns: int) -> Stat:
        return object_stat(Kind.FILE, nbytes, version, f"file:{key}", mtime_ns)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
