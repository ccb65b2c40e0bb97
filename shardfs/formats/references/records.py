"""References as Parquet, in the layout of fsspec's `LazyReferenceMapper`, read in parts.

All documents are in one file, `.zmetadata`. The chunks of an array, in C order, have a row each in files of a fixed
number of rows, its records: `ARRAY/refs.0.parq` and so on. A record that is not there has no chunks.
"""

import json
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import trio

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    SourceError,
    StaleError,
    UnsupportedError,
)
from shardfs.formats.references.base import (
    AT_ONCE,
    MAX_REFERENCES,
    Keys,
    Reference,
    encoded_key,
    inline,
    target_of,
)
from shardfs.formats.references.parquet import checked
from shardfs.formats.virtual import BrokenPart, InlinePart
from shardfs.stores.base import Kind, ListedName, join_key
from shardfs.stores.files import TargetFiles

DOCUMENTS: Final = ".zmetadata"
MAX_NBYTES: Final = 256 * 2**20
_MAX_RECORD_NBYTES: Final = 64 * 2**20
_MAX_DECODED_NBYTES: Final = 128 * 2**20
_MAX_ROWS: Final = 4_000_000
_CACHE_NBYTES: Final = 64 * 2**20
_MAX_CHUNKS: Final = 2**62
_MAX_NDIM: Final = 64
_MAX_ASKED: Final = 1000
"""How many records of an array are asked for one by one; of more, those that are there are listed."""

_MAX_URLS: Final = 1000
_NUMBERS: Final = ("offset", "size")
_RECORD: Final = re.compile(r"refs\.(0|[1-9][0-9]{0,18})\.parq")
_MISSING: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)


class _Grid(NamedTuple):
    """How many chunks an array has along each axis."""

    shape: tuple[int, ...]

    def number(self, name: str) -> int | None:
        """Return the number of the chunk *name* in C order; None if no chunk has this name."""
        words = name.split(".")
        if len(words) != max(len(self.shape), 1):
            return None
        number = 0
        for word, length in zip(words, self.shape or (1,), strict=True):
            if not (word.isascii() and word.isdecimal() and len(word) < 20 and str(int(word)) == word):
                return None
            if int(word) >= length:
                return None
            number = number * length + int(word)
        return number

    def name(self, number: int) -> str:
        """Return the name of the chunk with this number."""
        words: list[str] = []
        for length in reversed(self.shape or (1,)):
            number, index = divmod(number, length)
            words.append(str(index))
        return ".".join(reversed(words))


@dataclass(frozen=True, slots=True)
class _Record:
    """The columns of a record, as pyarrow has them; *nbytes* in memory."""

    columns: dict[str, Any]
    nrows: int
    nbytes: int

    def reference(self, row: int) -> Reference | None:
        """Return the reference in a row, None if there is none."""
        if row >= self.nrows:
            return BrokenPart(f"its record has {self.nrows:,} rows, and none for it")
        if (raw := self._bytes("raw", row)) is not None:
            return inline(raw)
        if (path := self._bytes("path", row)) is None:
            return None
        offset, size = (self.columns[name][row].as_py() if name in self.columns else None for name in _NUMBERS)
        try:
            url = bytes(path).decode()
        except ValueError:
            return BrokenPart("the name of its file is no text")
        return target_of(url) if not offset and not size else target_of(url, offset or 0, size or 0)

    def _bytes(self, name: str, row: int) -> memoryview | None:
        """Return a value without a copy of it; None if there is none."""
        found = self.columns[name][row] if name in self.columns else None
        return memoryview(found.value.as_buffer()) if found is not None and found.is_valid else None


class RecordReferences:
    """The references in the directory *root* of a reader, whose `.zmetadata` is *documents*, of the version *version*.

    At most `_CACHE_NBYTES` of records are in memory, or one that is larger. Methods raise `StaleError` if the
    references are being written anew, and the error that prevents reading a record.
    """

    def __init__(self, home: TargetFiles, root: str, documents: "RecordDocuments", version: object) -> None:
        self.nhidden = documents.nhidden
        self._home = home
        self._root = root
        self._documents = documents
        self._version = version
        self._records: OrderedDict[tuple[str, int], _Record] = OrderedDict()
        self._nbytes = 0
        self._loading = trio.Lock()

    async def find(self, key: str) -> Reference | None:
        """Return the reference of *key*, None if there is none."""
        index = self._documents.keys.find(key)
        if index is not None:
            return InlinePart(self._documents.texts[index])
        field, _, name = key.rpartition("/")
        grid = self._documents.grids.get(field)
        number = grid.number(name) if grid is not None else None
        return None if number is None else await self._chunk(field, number)

    async def is_directory(self, key: str) -> bool:
        """Whether there are keys below *key*: each directory has documents."""
        return self._documents.keys.has_below(key)

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in the directory *key*; of an array, all its records are read.

        Raises `UnsupportedError` if there are more than `MAX_REFERENCES`.
        """
        entries = [*self._documents.keys.list(key)]
        names = {entry.name for entry in entries}
        async for name, _ in self._chunks(key):
            if len(entries) == MAX_REFERENCES:
                raise UnsupportedError(f"{key} has more than {MAX_REFERENCES:,} names, which are not listed")
            if name not in names:
                entries.append(ListedName(name, Kind.FILE))
        return entries

    async def walk(self) -> AsyncIterator[tuple[str, Reference]]:
        """Yield all keys, with their references."""
        for index, text in enumerate(self._documents.texts):
            yield os.fsdecode(self._documents.keys[index]), InlinePart(text)
        for field in self._documents.grids:
            async for name, reference in self._chunks(field):
                key = join_key(field, name)
                if not self._documents.keys.has_below(key):
                    yield key, reference

    async def urls(self) -> Sequence[str]:
        """Return the URLs of some targets: those in the first record, at most `_MAX_URLS`."""
        for field in self._documents.grids:
            for number in (await self._stored(field))[:1]:
                record = await self._record(field, number)
                if record is not None and "path" in record.columns:
                    urls = record.columns["path"].unique()[:_MAX_URLS].to_pylist()
                    return [url.decode(errors="replace") for url in urls if url]
        return []

    async def _chunks(self, field: str) -> AsyncIterator[tuple[str, Reference]]:
        """Yield the chunks of an array that have references, in C order, by name."""
        grid, size = self._documents.grids.get(field), self._documents.record_size
        for number in await self._stored(field):
            record = await self._record(field, number)
            if record is None or grid is None:
                continue
            for row in range(min(size, prod(grid.shape) - number * size)):
                if not row % AT_ONCE:
                    await trio.lowlevel.checkpoint()
                reference = record.reference(row)
                if reference is not None:
                    yield grid.name(number * size + row), reference

    async def _stored(self, field: str) -> Sequence[int]:
        """Return the numbers of the records that an array may have, in order."""
        grid = self._documents.grids.get(field)
        nrecords = 0 if grid is None else -(-prod(grid.shape) // self._documents.record_size)
        if nrecords <= _MAX_ASKED:
            return range(nrecords)
        if not self._home.lists:
            raise UnsupportedError(f"{field} has {nrecords:,} records, and nothing lists which of them there are")
        found = (_RECORD.fullmatch(entry.name) for entry in await self._home.list(join_key(self._root, field)))
        return sorted(number for name in found if name is not None and (number := int(name[1])) < nrecords)

    async def _chunk(self, field: str, number: int) -> Reference | None:
        record = await self._record(field, number // self._documents.record_size)
        return None if record is None else record.reference(number % self._documents.record_size)

    async def _record(self, field: str, number: int) -> _Record | None:
        """Return a record, None if there is none."""
        known = self._records.get((field, number))
        if known is None:
            async with self._loading:
                known = self._records.get((field, number))
                if known is None:
                    known = await self._load(field, number)
                    if known is None:
                        return None
                    self._keep((field, number), known)
        if (field, number) in self._records:
            self._records.move_to_end((field, number))
        return known

    def _keep(self, key: tuple[str, int], record: _Record) -> None:
        self._records[key] = record
        self._nbytes += record.nbytes
        while self._nbytes > _CACHE_NBYTES and len(self._records) > 1:
            self._nbytes -= self._records.popitem(last=False)[1].nbytes

    async def _load(self, field: str, number: int) -> _Record | None:
        key = join_key(self._root, join_key(field, f"refs.{number}.parq"))
        try:
            snapshot = await self._home.open(key)
            is_there = True
        except _MISSING:
            is_there = False
        if (await self._home.fresh(join_key(self._root, DOCUMENTS))).version != self._version:
            raise StaleError(f"the references in {self._root} were written anew; mount or open them again")
        if not is_there:
            return None
        if snapshot.size > _MAX_RECORD_NBYTES:
            raise CorruptionError(f"{key} has {snapshot.size:,} bytes, more than {_MAX_RECORD_NBYTES:,}")
        data = bytes(await snapshot.read(0, snapshot.size, (0, snapshot.size)))
        try:
            return await trio.to_thread.run_sync(_parse_record, data, self._documents.record_size)
        except CorruptionError as error:
            raise CorruptionError(f"{key}: {error}") from None


def _parse_record(data: bytes, max_rows: int) -> _Record:
    """Return the columns of a record of at most *max_rows* rows; raises `CorruptionError`."""
    import pyarrow
    import pyarrow.parquet

    try:
        names, nrows, data = checked(data, max_rows, _MAX_DECODED_NBYTES)
        # As dictionaries, so that a text that is repeated a million times is in memory once.
        texts = [name for name in names if name in ("path", "raw")]
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data), read_dictionary=texts)
        table = file.read(use_threads=False).unify_dictionaries().combine_chunks()
        nrows = min(nrows, table.num_rows)
        return _Record({name: table[name] for name in names}, nrows, max(table.get_total_buffer_size(), 1))
    except CorruptionError as error:
        raise CorruptionError(f"it is no record of references: {error}") from None
    except Exception as error:  # whatever a hostile file makes of the library
        raise CorruptionError(f"it is no record of references: {str(error)[:200] or type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class RecordDocuments:
    """What a `.zmetadata` says: the *texts* of documents by *keys*, and the *grids* of arrays by path."""

    keys: Keys
    texts: Sequence[bytes]
    grids: dict[str, _Grid]
    record_size: int
    nhidden: int


def parse_documents(data: bytes | bytearray) -> RecordDocuments:
    """Return what a `.zmetadata` beside records says; raises `SourceError`."""
    try:
        written = json.loads(data)
    except (ValueError, RecursionError):
        raise SourceError(f"its {DOCUMENTS} is no valid JSON") from None
    metadata = written.get("metadata") if isinstance(written, dict) else None
    record_size = written.get("record_size") if isinstance(written, dict) else None
    if not isinstance(metadata, dict) or not isinstance(record_size, int) or isinstance(record_size, bool):
        raise SourceError(f"its {DOCUMENTS} has no `metadata` or no `record_size`, as references in Parquet have")
    if not 0 < record_size <= _MAX_ROWS:
        raise SourceError(f"its {DOCUMENTS} states a `record_size` of {str(record_size)[:40]}")
    grids: dict[str, _Grid] = {}
    documents: dict[bytes, object] = {}
    for key, document in metadata.items():
        encoded, (path, _, name) = encoded_key(key), key.rpartition("/")
        if encoded is None:
            continue
        if name == "zarr.json":
            raise SourceError(f"{key} is of Zarr v3, and records in Parquet are known for Zarr v2 only: use JSON")
        if name == ".zarray":
            # Rows go by position, so names are ours to choose; all readers of records know those with dots.
            document = {**document, "dimension_separator": "."} if isinstance(document, dict) else document
            grids[path] = _grid(key, document)
        documents[encoded] = document
    shown = {os.fsdecode(key): documents[key] for key in documents if key != DOCUMENTS.encode()}
    consolidated = {"metadata": shown, "zarr_consolidated_format": 1}
    documents[DOCUMENTS.encode()] = consolidated
    keys = sorted(documents)
    try:
        texts = [json.dumps(documents[key]).encode() for key in keys]
    except RecursionError:
        raise SourceError(f"its {DOCUMENTS} is nested too deeply") from None
    return RecordDocuments(Keys(keys), texts, grids, record_size, len(metadata) - len(shown))


def _grid(key: str, document: object) -> _Grid:
    """Return the grid of the array that *document* describes; raises `SourceError`."""
    shape, chunks = (document.get(name) if isinstance(document, dict) else None for name in ("shape", "chunks"))
    if isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks) <= _MAX_NDIM:
        numbers = [number for number in (*shape, *chunks) if isinstance(number, int) and 0 <= number <= _MAX_CHUNKS]
        if len(numbers) == 2 * len(shape) and all(chunks):
            grid = tuple(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
            if prod(grid) <= _MAX_CHUNKS:
                return _Grid(grid)
    raise SourceError(f"{key} has no valid shape and chunks")
