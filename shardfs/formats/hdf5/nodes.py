"""What is in one version of an HDF5 file, as keys of Zarr."""

import logging
import math
import os
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import trio

from shardfs.errors import CorruptionError, MetadataError, OversizedDataError, counted
from shardfs.format.document import Json
from shardfs.formats import BrokenPart, InlinePart, MadePart, RangePart
from shardfs.formats.hdf5.arrays import Coords, Hdf5Array, group_document, parse_array
from shardfs.formats.hdf5.process import LibraryProcess
from shardfs.stores.base import Buffer, Kind, ListedName, Snapshot, is_reserved, join_key
from shardfs.stores.cache import Cache

log = logging.getLogger(__name__)

DOCUMENT: Final = "zarr.json"
CHUNKS: Final = "c"

MAX_CHUNKS: Final = 2**23
"""How many stored chunks an array may have: those of one are in memory at a time, and each takes 24 bytes."""

_MAX_INDEXES_NBYTES: Final = 256 * 2**20
_MAX_TEXTS_NBYTES: Final = 32 * 2**20
_MAX_NODES: Final = 2**15
"""Of how many names it is remembered what they are, which takes about 1.5 kB each."""

_USUAL_FILL_LENGTH: Final = 2**10

MAX_NAMES: Final = 2**20
"""How many names a group may have that is listed: they are in memory, where each takes about 200 bytes."""

_MAX_NAME_NBYTES: Final = 255
_QUICK: Final = 2**12
"""So many names, or chunks, are gone through in less time than a thread takes."""

_LARGE_NBYTES: Final = 2**18
_SMALL_GRID: Final = 50_000
_MAX_LOOKUPS: Final = 8
_MAX_NOTED: Final = 1000
_DIGITS: Final = 18

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Hdf5Node:
    """A name: a group if *array* is None; nothing that is shown, for a *reason*, if there is one.

    *damage* is why it cannot be read: it is shown, so that nobody takes it for absent, and all in it is an error.
    """

    array: Hdf5Array | None = None
    reason: str | None = None
    damage: str | None = None

    @property
    def weight(self) -> int:
        """How much memory it takes: 1 is usual."""
        return 1 + len((self.array and self.array.fill) or "") // _USUAL_FILL_LENGTH


_Found = InlinePart | RangePart | MadePart | BrokenPart

_GROUP: Final = _Hdf5Node()
_NONE: Final = _Hdf5Node(reason="there is no such name")
_ARRAY: Final = _Hdf5Node()
"""An array of which no more is remembered."""


class _NamesTaken:
    """The names in a group, and what they are."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Hdf5Node] = {}
        self.hidden: list[str] = []

    def take(self, part: Json, data: Buffer) -> None:
        """Keep some names."""
        for name, described in part:
            if _is_hidden(name):
                self.hidden.append(name[:100])
                continue
            node = _listed(described)
            is_kept = node.array is None or (len(self.nodes) < _MAX_NODES and node.weight == 1)
            self.nodes[str(name)] = node if is_kept else _ARRAY
        if self.count > MAX_NAMES:
            raise ValueError("more names than were asked for")

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes) + len(self.hidden)

    def shown(self) -> list[ListedName]:
        """Return the names that are shown."""
        return [ListedName(name, Kind.DIRECTORY) for name, node in self.nodes.items() if node.reason is None]

    def skipped(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the names in the group *path* that are not shown, each with the reason."""
        for name in self.hidden:
            yield join_key(path, name), "no file can have this name"
        for name, node in self.nodes.items():
            if node.reason is not None and node.reason != _HIDDEN:
                yield join_key(path, name), node.reason


class _ChunksTaken:
    """Rows of a `_ChunkTable`."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._nbytes = 0

    def take(self, part: Json, data: Buffer) -> None:
        """Keep some rows."""
        self._parts.append(data)
        self._nbytes += len(data)
        if len(data) % 32 or self._nbytes > 32 * MAX_CHUNKS:
            raise ValueError("an index of another size")

    def table(self, nchunks: int) -> "_ChunkTable":
        """Return the table of an array with *nchunks* places; raises `CorruptionError`."""
        return _ChunkTable(self._parts, nchunks)


class _ChunkTable:
    """The chunks of an array that are stored, by position."""

    def __init__(self, parts: Sequence[Buffer], nchunks: int) -> None:
        rows = np.frombuffer(b"".join(parts), "<u8").reshape(-1, 4)
        if len(rows) and int(rows[:, 0].max()) >= nchunks:
            raise CorruptionError("an index of chunks has one outside of the grid")
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        self._positions: npt.NDArray[np.uint64] = np.ascontiguousarray(rows[:, 0])
        # A few are found sooner in these than NumPy begins to look.
        self._rows, self._places = rows.data, self._positions.data
        self.nbytes = rows.nbytes + self._positions.nbytes

    def find(self, position: int) -> tuple[int, int, int] | None:
        """Return offset, size and mask of a chunk, None if it is not stored."""
        at = bisect_left(self._places, position)
        if at == len(self._places) or self._places[at] != position:
            return None
        rows = self._rows
        return rows[at, 1], rows[at, 2], rows[at, 3]

    def below(self, start: int, length: int, step: int) -> list[int]:
        """Return which of the *length* parts, of *step* positions each, from *start* on have chunks."""
        first = bisect_left(self._places, start)
        last = bisect_left(self._places, start + length * step, first)
        found = (self._positions[first:last] - np.uint64(start)) // np.uint64(step)
        return list(np.unique(found).tolist())

    def has_below(self, start: int, count: int) -> bool:
        """Whether any of the *count* positions from *start* on has a chunk."""
        at = bisect_left(self._places, start)
        return at < len(self._places) and self._places[at] < start + count

    def positions(self) -> Iterator[int]:
        """Yield all positions."""
        for start in range(0, len(self._positions), 2**16):
            yield from self._positions[start : start + 2**16].tolist()


class Hdf5Contents:
    """The groups and datasets of the version *snapshot* of a file, as Zarr v3. Each is read when it is asked for."""

    only_zarr = True

    def __init__(self, snapshot: Snapshot, session: trio.Nursery) -> None:
        self._snapshot = snapshot
        self._library = LibraryProcess(snapshot, session)
        self._nodes: Cache[str, _Hdf5Node] = Cache(lambda node: node.weight, _MAX_NODES)
        self._listings: Cache[str, _NamesTaken] = Cache(lambda names: names.count, _MAX_NODES)
        self._documents: Cache[str, bytes] = Cache(len, _MAX_TEXTS_NBYTES)
        self._texts: Cache[tuple[str, Coords], bytes] = Cache(len, _MAX_TEXTS_NBYTES)
        self._indexes: Cache[str, _ChunkTable] = Cache(lambda index: index.nbytes, _MAX_INDEXES_NBYTES)
        self._lookups: Cache[str, int] = Cache(lambda _: 1, _MAX_NODES)

    async def begin(self) -> None:
        """Raise the error that prevents reading the file."""
        await self._document("")

    async def note(self) -> str | None:
        """Say what is skipped, of the first names of the file; None if that is nothing."""
        skipped: list[str] = []
        nlooked = 0
        async with aclosing(self._groups()) as groups:
            async for path, names in groups:
                skipped += [f"{key} ({reason})" for key, reason in names.skipped(path)]
                nlooked += names.count
                if nlooked >= _MAX_NOTED:
                    break
        if not skipped:
            return None
        more = f", and {len(skipped) - 3:,} more" if len(skipped) > 3 else ""
        return f"skipped, as Zarr has no form for it: {'; '.join(skipped[:3])}{more}"

    async def skipped(self) -> AsyncIterator[tuple[str, str]]:
        """Yield all names that are skipped, each with the reason."""
        async for path, names in self._groups():
            for skipped in names.skipped(path):
                yield skipped

    async def _groups(self) -> AsyncGenerator[tuple[str, _NamesTaken]]:
        """Yield all groups, with what is in them."""
        pending = deque([""])
        while pending:
            path = pending.popleft()
            names = await self._names(path)
            pending += [join_key(path, name) for name, node in names.nodes.items() if node is _GROUP]
            yield path, names

    # What the keys are.

    async def find(self, key: str) -> _Found | None:
        """Return what the file *key* is; None if there is none."""
        path, _, name = key.rpartition("/")
        if name == DOCUMENT:
            return await self._document(path)
        found = await self._place(key)
        if found is None or not found[1].contains(found[2]):
            return None
        return await self._chunk(*found)

    def find_known(
        self, key: str, array: str, coords: Coords, read: Callable[[int, int], Buffer | None]
    ) -> RangePart | None:
        """Return where a chunk is, of an array whose index was read."""
        node = self._nodes.peek(array)
        found = node.array if node is not None else None
        if found is None or not found.contains(coords):
            return None
        if not found.is_chunked:
            row = found.row(coords) if found.is_exact and found.offset is not None else None
            return RangePart(row.offset, row.nbytes) if row is not None and not row.npadding else None
        index = self._indexes.peek(array)
        entry = index.find(found.position(coords)) if index is not None else None
        return _as_stored(found, coords, entry) if entry is not None else None

    async def is_directory(self, key: str) -> bool:
        """Whether *key* is a group, an array, or a part of the grid of one that has chunks."""
        if (await self._node(key, any_array=True)).reason is None:
            return True
        found = await self._place(key)
        if found is None:
            return False
        path, array, coords = found
        if len(coords) >= len(array.grid):
            return False
        if not coords or not array.is_chunked:
            return True
        start, count = _extent(array, coords)
        return (await self._index(path, array)).has_below(start, count)

    async def list(self, key: str) -> Sequence[ListedName] | None:
        """Return the names in a directory; None if there is none."""
        node = await self._node(key)
        if node.reason is None:
            names = [ListedName(DOCUMENT, Kind.FILE)]
            if node is _GROUP:
                found = await self._names(key)
                names += await _quickly(len(found.nodes), found.shown)
            elif node.array is not None and node.array.has_elements and node.array.nchunks:
                names.append(ListedName(CHUNKS, Kind.DIRECTORY if node.array.grid else Kind.FILE))
            return names
        place = await self._place(key)
        if place is None or len(place[2]) >= len(place[1].grid):
            return None
        path, array, coords = place
        kind = Kind.FILE if len(coords) == len(array.grid) - 1 else Kind.DIRECTORY
        below = await self._below(path, array, coords)
        if len(below) > MAX_CHUNKS:
            raise OversizedDataError(f"{key} has {counted(len(below), 'chunk')}, more than are listed")
        if coords and not below:
            return None
        return await _quickly(len(below), lambda: [ListedName(str(number), kind) for number in below])

    async def walk(self) -> AsyncIterator[str]:
        """Yield the keys of all files."""
        pending = [("", _GROUP)]
        while pending:
            path, node = pending.pop()
            yield join_key(path, DOCUMENT)
            if node is _GROUP:
                for name, child in (await self._names(path)).nodes.items():
                    if child.reason is None:
                        pending.append((join_key(path, name), child))
                continue
            if node is _ARRAY:
                node = await self._node(path)
            if node.array is not None:
                for coords in await self._stored(path, node.array):
                    yield "/".join([path, CHUNKS, *map(str, coords)])

    # Nodes.

    async def _document(self, path: str) -> InlinePart | BrokenPart | None:
        """Return the document of a node; None if nothing is shown there."""
        text = self._documents.find(path)
        if text is not None:
            return InlinePart(text)
        node = await self._node(path)
        if node.reason is None and node.damage is None:
            text = self._documents.find(path)  # if the node had to be asked for
            if text is None:
                node, text = await self._load(path)
        if node.damage is not None:
            return BrokenPart(node.damage)
        return None if text is None else InlinePart(text)

    async def _node(self, path: str, *, any_array: bool = False) -> _Hdf5Node:
        """Return what is at *path*; what is in an array, or nowhere, costs no question.

        With *any_array*, `_ARRAY` is enough of one that was listed.
        """
        node, above = _GROUP, ""
        for name in path.split("/") if path else ():
            if node is not _GROUP or _is_hidden(name):
                return _NONE
            node = await self._below_group(above, name)
            above = join_key(above, name)
        return (await self._load(path))[0] if node is _ARRAY and not any_array else node

    async def _below_group(self, path: str, name: str) -> _Hdf5Node:
        key = join_key(path, name)
        node = self._nodes.find(key)
        if node is None and (listing := self._listings.find(path)) is not None:
            node = listing.nodes.get(name, _NONE)
        return (await self._load(key))[0] if node is None else node

    async def _load(self, path: str) -> tuple[_Hdf5Node, bytes | None]:
        reply = await self._library.ask("node", path=_steps(path))
        try:
            node, text = (_NONE, None) if reply.absent is not None else _described(path, reply.value)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise CorruptionError(f"{path or 'the file'} is damaged") from None
        if not path and node.damage is not None:
            raise CorruptionError(f"libhdf5 cannot read it: {node.damage}")
        self._nodes.put(path, node)
        if text is not None:
            self._documents.put(path, text)
        return node, text

    async def _names(self, path: str) -> _NamesTaken:
        """Return all names in a group; raises `OversizedDataError` if there are too many."""
        return await self._listings.get(path, partial(self._read_names, path))

    async def _read_names(self, path: str) -> _NamesTaken:
        found, reply = await self._library.collect(_NamesTaken, "listing", path=_steps(path), most=MAX_NAMES)
        if reply.absent is not None:
            raise OversizedDataError(f"{path or 'the file'} cannot be listed: {reply.absent}")
        if found.hidden:
            first = ", ".join(map(ascii, found.hidden[:3]))
            log.warning("%s: no file can have %s: %s", path or "/", counted(len(found.hidden), "name"), first)
        return found

    async def _place(self, key: str) -> tuple[str, Hdf5Array, Coords] | None:
        """Return path and array of a key below the chunks of one, and the coordinates in it, all or the first ones."""
        path, separator, rest = f"/{key}/".rpartition(f"/{CHUNKS}/")
        if not separator:
            return None
        numbers = rest.split("/")[:-1]
        if not all(len(n) <= _DIGITS and n.isascii() and n.isdigit() and (n == "0" or n[0] != "0") for n in numbers):
            return None
        node = await self._node(path[1:])
        if node.damage is not None:
            raise CorruptionError(f"{path[1:]} cannot be read: {node.damage}")
        if node.reason is not None or node.array is None or not node.array.has_elements:
            return None
        coords = tuple(map(int, numbers))
        is_within = len(coords) <= len(node.array.grid) and all(
            at < length for at, length in zip(coords, node.array.grid, strict=False)
        )
        return (path[1:], node.array, coords) if is_within and node.array.nchunks else None

    # Chunks.

    async def _chunk(
        self, path: str, array: Hdf5Array, coords: Coords
    ) -> InlinePart | RangePart | MadePart | BrokenPart | None:
        if not array.is_chunked:
            return await self._row(path, array, coords)
        entry = await self._entry(path, array, coords)
        if entry is None:
            return None
        if array.varies:
            return InlinePart(await self._text(path, array, coords))
        found = _as_stored(array, coords, entry)
        if found is not None:
            return found
        offset, nbytes, mask = entry
        may_be_raw = _may_be_raw(array, coords, nbytes) and not mask
        if may_be_raw and array.filters.plugin is not None and offset + nbytes <= self._snapshot.size:
            # h5py would need the plugin to tell.
            head = await self._snapshot.read(offset, min(nbytes, 16), (offset, nbytes))
            if array.filters.has_encoded(bytes(head), nbytes):
                return RangePart(offset, nbytes)
        size = array.filters.stored_nbytes(array.chunk_nbytes)
        if size is None:
            return BrokenPart("it is stored without its filters, and nothing but they can be shown")
        return MadePart(size, partial(self._values, path, array, coords))

    async def _row(self, path: str, array: Hdf5Array, coords: Coords) -> InlinePart | RangePart | MadePart:
        """Return a chunk of contiguous elements, or of some that are among the metadata of the file."""
        if array.varies:
            return InlinePart(await self._text(path, array, coords))
        if not array.is_exact or array.offset is None:
            return MadePart(array.chunk_nbytes, partial(self._values, path, array, coords))
        row = array.row(coords)
        if not row.npadding:
            return RangePart(row.offset, row.nbytes)
        if not row.offset + row.nbytes <= self._snapshot.size:
            return RangePart(row.offset, row.nbytes)  # which is an error, for who opens it

        async def padded() -> Buffer:
            data = await self._snapshot.read(row.offset, row.nbytes, (row.offset, row.nbytes))
            return bytes(data) + bytes(row.npadding)

        return MadePart(array.chunk_nbytes, padded)

    async def _elements(self, path: str, array: Hdf5Array, coords: Coords) -> tuple[Buffer, tuple[int, ...]]:
        start, counts = array.bounds(coords)
        own = len(array.shape) - array.ninner
        reply = await self._library.ask("values", path=_steps(path), start=[*start[:own]], shape=[*counts[:own]])
        if reply.absent is not None:
            raise CorruptionError(f"{path} cannot be read: {reply.absent}")
        return reply.data, counts

    async def _values(self, path: str, array: Hdf5Array, coords: Coords) -> Buffer:
        data, counts = await self._elements(path, array, coords)
        try:
            return await _in_time(array.chunk_nbytes, lambda: array.filters.store(array.padded(data, counts)))
        except ValueError:
            raise CorruptionError(f"{path} cannot be read: it has other elements than it says") from None

    async def _text(self, path: str, array: Hdf5Array, coords: Coords) -> bytes:
        return await self._texts.get((path, coords), partial(self._encoded_text, path, array, coords))

    async def _encoded_text(self, path: str, array: Hdf5Array, coords: Coords) -> bytes:
        data, counts = await self._elements(path, array, coords)
        try:
            return await _in_time(array.chunk_nbytes + len(data), lambda: array.encoded_text(data, counts))
        except ValueError as error:
            raise CorruptionError(f"a chunk of {path} is no text in UTF-8: {error}") from None

    async def _entry(self, path: str, array: Hdf5Array, coords: Coords) -> tuple[int, int, int] | None:
        """Return offset, size and mask of a chunk.

        The first ones of a large array are looked up, as all its index may be much, and far away.
        """
        index, nlookups = self._indexes.peek(path), self._lookups.peek(path) or 0
        if index is None and array.has_lookup and array.nchunks > _SMALL_GRID and nlookups < _MAX_LOOKUPS:
            self._lookups.put(path, nlookups + 1)
            start = array.bounds(coords)[0][: len(array.shape) - array.ninner]
            reply = await self._library.ask("chunk", path=_steps(path), start=[*start])
            match reply.value:
                case [int(offset), int(nbytes), int(mask)] if min(offset, nbytes, mask) >= 0:
                    return offset, nbytes, mask
                case None if reply.absent is None:
                    return None
            raise CorruptionError(f"the index of {path} is damaged")
        return (await self._index(path, array)).find(array.position(coords))

    async def _index(self, path: str, array: Hdf5Array) -> _ChunkTable:
        return await self._indexes.get(path, partial(self._read_index, path, array))

    async def _read_index(self, path: str, array: Hdf5Array) -> _ChunkTable:
        taken, reply = await self._library.collect(
            _ChunksTaken, "chunks", path=_steps(path), grid=[*array.own_grid], most=MAX_CHUNKS
        )
        if reply.absent is not None:
            raise CorruptionError(f"{path} cannot be read: {reply.absent}")
        return await trio.to_thread.run_sync(taken.table, array.nchunks)

    async def _below(self, path: str, array: Hdf5Array, coords: Coords) -> Sequence[int]:
        """Return the next coordinates of the chunks that are stored below *coords*."""
        length = array.grid[len(coords)]
        if not array.is_chunked:
            return range(length)
        start, count = _extent(array, coords)
        index = await self._index(path, array)
        return await _quickly(index.nbytes // 32, partial(index.below, start, length, count // length))

    async def _stored(self, path: str, array: Hdf5Array) -> Iterator[Coords]:
        """Return the coordinates of all chunks that are stored."""
        if not array.has_elements or not array.nchunks:
            return iter(())
        positions = (
            iter((await self._index(path, array)).positions()) if array.is_chunked else iter(range(array.nchunks))
        )
        return (_unravelled(position, array.grid) for position in positions)


_HIDDEN: Final = "it is a dimension of netCDF without values"


def _steps(path: str) -> list[str]:
    return path.split("/") if path else []


def _is_hidden(name: str) -> bool:
    """Whether no file can have a name, or only one that Zarr or shardfs has for something else."""
    return (
        name in ("", ".", "..", DOCUMENT)
        or is_reserved(name)
        or "/" in name
        or "\0" in name
        or (len(name) > _MAX_NAME_NBYTES // 4 and len(os.fsencode(name)) > _MAX_NAME_NBYTES)
    )


async def _in_time(nbytes: int, work: Callable[[], V]) -> V:
    """Return what *work* makes of *nbytes* bytes, in a thread if they are many."""
    return work() if nbytes <= _LARGE_NBYTES else await trio.to_thread.run_sync(work)


async def _quickly(count: int, work: Callable[[], V]) -> V:
    """Return what *work* does with *count* things, in a thread if there are many."""
    return work() if count <= _QUICK else await trio.to_thread.run_sync(work)


def _listed(described: Mapping[str, Json]) -> _Hdf5Node:
    """Return a node from what a listing says of it."""
    if described.get("reason") is not None:
        return _Hdf5Node(reason=str(described["reason"])[:300])
    if described.get("damage") is not None:
        return _Hdf5Node(damage=str(described["damage"])[:300])
    if described["kind"] == "group":
        return _GROUP
    try:
        return _Hdf5Node(parse_array(described))
    except MetadataError as error:
        return _Hdf5Node(reason=str(error))
    except CorruptionError as error:
        return _Hdf5Node(damage=str(error))


def _described(path: str, described: Json) -> tuple[_Hdf5Node, bytes | None]:
    """Return a node, and its document, from what `library` says of it."""
    node = _listed(described)
    if node.reason is not None or node.damage is not None:
        return node, None
    attributes, skipped = described["attributes"], described["skipped"]
    if not isinstance(attributes, dict):
        raise TypeError
    for name, reason in skipped:
        log.warning("%s: the attribute %s is skipped: %s", path or "the file", name, reason)
    if node.array is None:
        return node, group_document(attributes)
    dimensions = described["dimensions"]
    if not isinstance(dimensions, list) or len(dimensions) != len(node.array.shape) - node.array.ninner:
        raise TypeError
    names = tuple(None if name is None else str(name) for name in dimensions)
    return node, node.array.document(attributes, names)


def _as_stored(array: Hdf5Array, coords: Coords, entry: tuple[int, int, int]) -> RangePart | None:
    """Return where a chunk is, by its *entry* in the index; None if it is shown with other bytes than the file has."""
    offset, nbytes, mask = entry
    is_shown = array.as_stored and not mask and not _may_be_raw(array, coords, nbytes)
    return RangePart(offset, nbytes) if is_shown else None


def _may_be_raw(array: Hdf5Array, coords: Coords, nbytes: int) -> bool:
    """Whether a chunk may be one of those at the edge that some writers leave without filters, as its size says."""
    return bool(array.filters.codecs) and nbytes == array.chunk_nbytes and array.is_at_edge(coords)


def _extent(array: Hdf5Array, coords: Coords) -> tuple[int, int]:
    """Return the first position of the chunks below *coords*, and how many there are."""
    count = math.prod(array.grid[len(coords) :])
    start = 0
    for at, length in zip(coords, array.grid, strict=False):
        start = start * length + at
    return start * count, count


def _unravelled(position: int, grid: Sequence[int]) -> Coords:
    coords = []
    for length in reversed(grid):
        position, at = divmod(position, length)
        coords.append(at)
    return tuple(reversed(coords))
