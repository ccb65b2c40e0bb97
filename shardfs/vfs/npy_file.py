"""Open .npy files: any range of them, put together from the chunks that it touches."""

from collections import OrderedDict
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.quick_lock import QuickLock
from shardfs.dataset.shard import OpenShard
from shardfs.errors import ShardfsError, StaleError, StoreError
from shardfs.format.lens.npy import Copy
from shardfs.format.lens.show import NpyForm
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer
from shardfs.vfs.at_once import for_each
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.chunk_cache import DecodedChunk, VersionKey
from shardfs.vfs.handles import FileHandle

if TYPE_CHECKING:
    from shardfs.vfs.entries.npy import NpyNode

_AT_ONCE: Final = 16
_MAX_COPIES: Final = 2**9
_MANY: Final = 2**8  # chunks from which on a listing tells sooner which are absent than asking for each
_TURN_SECONDS: Final = 0.005  # after which others get a turn
_MAX_AHEAD_NBYTES: Final = 2**20
_MAX_AHEAD: Final = 16
_MAX_KNOWN: Final = 2**14
_MAX_RANGE_NBYTES: Final = 64 * 2**20

Elements = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Ahead(NamedTuple):
    """Bytes of the elements of an array, from *start* to *stop* − 1, that were put together for who reads on."""

    start: int
    stop: int
    data: memoryview


class NpyArray:
    """An array that is shown as *file*; chunks that are absent hold *fill*, the bytes of an element."""

    def __init__(self, array: Array, form: NpyForm) -> None:
        self.array = array
        self.file, self.codec, self.fill = form

    @property
    def at_once_nbytes(self) -> int:
        """Size of the decoded chunks that who reads the file in order needs again and again; 0 if none is decoded."""
        return 0 if self.codec.is_identity else self.file.nchunks_at_once * self.codec.nbytes

    def is_read_as(self, other: "NpyArray") -> bool:
        """Whether elements that both arrays have are in the same place: one may have another shape."""
        return self._layout == other._layout

    @property
    def _layout(self) -> tuple[object, ...]:
        grid = self.array.grid
        edges = [dimension.runs for dimension in grid.shards.dimensions]
        return edges, grid.chunk_shape, grid.levels, self.array.layout.key_encoding, self.codec, self.fill


class NpyHandle(FileHandle):
    """An open .npy file, with the shape that it had when it was opened.

    A chunk is looked for as it is when it is first read, and is the same again for as long as it is kept.  When the
    file is opened again, all is looked for again: the kernel keeps one copy of a file, and what a reader from before
    gets is what the new one finds there.

    For who reads in order up to 1 MiB more is put together: a few requests of the kernel.  *all_ahead* has that of all
    open files, those read last.
    """

    def __init__(
        self, node: "NpyNode", attributes: Attributes, shown: NpyArray, all_ahead: "OrderedDict[NpyHandle, Ahead]"
    ) -> None:
        super().__init__(attributes)
        self._node = node
        self._shown = shown
        self._array = shown.array.layout
        self._chunks = node.fs.chunk_cache
        self._item = shown.file.item
        self._source_strides = tuple(n * self._item.itemsize for n in shown.file.chunk_strides)
        self._fill: Elements = np.frombuffer(shown.fill, self._item)
        self._known: dict[Coords, VersionKey | None] = {}  # None: the chunk is absent
        self._large: tuple[Coords, DecodedChunk] | None = None
        self._all_ahead = all_ahead
        self._reading_on = QuickLock()
        self._end = 0
        self._in_order = 0
        self._valid_until = float("-inf")
        self._nopened = node.nopened
        self._turn_began = 0.0
        store = node.fs.store
        self._is_local = store.root is not None
        # What is not decoded, and lies on this machine, comes at once.
        self._limit = 1 if shown.codec.is_identity and not store.rewrites else _AT_ONCE
        # Elements that can always be read with one plan: many chunks of one element would make it long.
        last = min((*shown.file.shape[-1:], *shown.file.chunk_shape[-1:]), default=1)
        self._max_planned = _MAX_COPIES * max(1, last)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; raises `StaleError` when the array became another one."""
        file = self._shown.file
        stop = min(offset + nbytes, file.nbytes)
        if stop <= max(offset, len(file.header)):
            return file.header[offset:stop]
        self._turn_began = perf_counter()
        await self._check()
        in_order = self._in_order if offset == self._end else None
        self._end, self._in_order = stop, stop - offset + (in_order or 0)
        start, end = max(offset - len(file.header), 0), stop - len(file.header)
        data = await (self._gather(start, end) if in_order is None else self._read_on(start, end, in_order))
        return data if offset >= len(file.header) else file.header[offset:] + bytes(data)

    async def _read_on(self, start: int, stop: int, in_order: int) -> Buffer:
        """Return the bytes *start* to *stop* − 1 of the elements to who has read *in_order* bytes before them."""
        parts = []
        async with self._reading_on:
            while start < stop:
                ahead = self._all_ahead.pop(self, None)
                if ahead is None or not ahead.start <= start < ahead.stop:
                    ahead = await self._put_together(start, stop, in_order)
                parts.append(ahead.data[start - ahead.start : stop - ahead.start])
                if ahead.stop > stop and self._nopened == self._node.nopened:
                    self._all_ahead[self] = ahead
                    if len(self._all_ahead) > _MAX_AHEAD:
                        self._all_ahead.popitem(last=False)
                start = ahead.stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _put_together(self, start: int, stop: int, in_order: int) -> Ahead:
        """Return what is asked for, and up to as much more as was read before: it costs less than piece by piece."""
        file = self._shown.file
        end = file.boundary(start, start + min(in_order, _MAX_AHEAD_NBYTES))
        if end > stop and file.ncopies(start // file.item_nbytes, -(-end // file.item_nbytes)) <= _MAX_COPIES:
            try:
                return Ahead(start, end, await self._gather(start, end, is_in_order=True))
            except ShardfsError:
                self._in_order = 0  # what was asked for may be sound
        return Ahead(start, stop, await self._gather(start, stop, is_in_order=True))

    async def _gather(self, start: int, stop: int, *, is_in_order: bool = False) -> memoryview:
        """Return the bytes *start* to *stop* − 1 of the elements."""
        file = self._shown.file
        first, last = start // file.item_nbytes, -(-stop // file.item_nbytes)
        out = np.empty(last - first, self._item)
        at = first
        while at < last:
            behind = last
            while behind - at > self._max_planned and file.ncopies(at, behind) > _MAX_COPIES:
                behind = at + (behind - at) // 2
            await self._fill_in(out[at - first : behind - first], file.plan(at, behind), is_in_order)
            at = behind
        skipped = start - first * file.item_nbytes
        return out.view(np.uint8).data[skipped : skipped + stop - start]

    async def _give_way(self) -> None:
        """Let other requests have a turn where this one has taken long."""
        if perf_counter() - self._turn_began > _TURN_SECONDS:
            await trio.lowlevel.checkpoint()
            self._turn_began = perf_counter()

    async def _check(self) -> None:
        """Raise `StaleError` if the chunks are not those of the array any more that was opened."""
        if self._nopened != self._node.nopened:
            self._nopened = self._node.nopened
            self._known.clear()
            self._large = None
            self._all_ahead.pop(self, None)
            self._shown.array.listing.forget()
        hierarchy = self._node.fs.hierarchy
        if hierarchy.clock() < self._valid_until:
            return
        now = await self._node.shown()
        if now is not self._shown and not now.is_read_as(self._shown):
            raise StaleError(f"the array {self._array.path or 'at the root'} has changed")
        self._valid_until = hierarchy.clock() + hierarchy.remaining(self._array.path)

    async def _fill_in(self, out: Elements, plan: dict[Coords, list[Copy]], is_in_order: bool) -> None:
        await self._give_way()
        if len(self._known) + len(plan) > _MAX_KNOWN:
            self._known.clear()
        if len(plan) >= _MANY:
            out[...] = self._fill[0]
            if self._is_local:
                unknown = [coords for coords in plan if coords not in self._known]
                self._known.update(dict.fromkeys(await self._shown.array.uncovered(unknown)))
        missing = {}
        for coords, copies in plan.items():
            version = self._known.get(coords)
            data = self._chunks.known(version, self._shown.codec) if version is not None else None
            if data is None and (version is not None or coords not in self._known):
                missing[coords] = copies
            elif data is not None or len(plan) < _MANY:
                self._copy(copies, data, 0, out)

        async def fetch(coords: Coords) -> None:
            await self._fetch(coords, missing[coords], out, is_in_order)
            await self._give_way()

        await for_each(missing, fetch, self._limit)

    async def _fetch(self, coords: Coords, copies: list[Copy], out: Elements, is_in_order: bool) -> None:
        nopened = self._nopened
        try:
            extent = (await self._shown.array.find(coords, fresh=coords not in self._known))[1]
            first, data = await self._bytes_of(coords, extent, copies, is_in_order)
        except StaleError:  # what was believed is out of date; no byte of it was given
            self._large = None
            extent = (await self._shown.array.find(coords, fresh=True))[1]
            first, data = await self._bytes_of(coords, extent, copies, is_in_order)
        if nopened == self._nopened:  # else it may be out of date, for who has opened the file meanwhile
            self._known[coords] = VersionKey.of(self._array, coords, extent) if extent is not None else None
        self._copy(copies, data, first, out)

    async def _bytes_of(
        self, coords: Coords, extent: Extent | None, copies: list[Copy], is_in_order: bool
    ) -> tuple[int, Buffer | None]:
        """Return decoded bytes of a chunk with all that *copies* want, and how many bytes of it stand before them.

        There are none of a chunk that is absent.
        """
        if extent is None:
            return 0, None
        if is_in_order and isinstance(extent.shard, OpenShard):
            extent.shard.expect()
        chunk = DecodedChunk(self._chunks, self._array, coords, extent, self._shown.codec)
        if self._shown.codec.is_identity:
            first = min(copy.source for copy in copies) * self._item.itemsize
            last = max(map(self._stop, copies))
            if last - first > _MAX_RANGE_NBYTES:
                raise StoreError(f"a chunk of {self._array.path or 'the array'} is too large: {chunk.nbytes} bytes")
            return first, await chunk.read(first, last - first)
        if chunk.nbytes > self._chunks.max_nbytes:
            if self._large is None or self._large[0] != coords:
                self._large = coords, chunk
            chunk = self._large[1]
        return 0, await chunk.get()

    def _stop(self, copy: Copy) -> int:
        """Return where in the decoded bytes of a chunk the last element of *copy* ends."""
        steps = sum((n - 1) * stride for n, stride in zip(copy.shape, self._source_strides, strict=True))
        return (copy.source + 1) * self._item.itemsize + steps

    def _copy(self, copies: list[Copy], data: Buffer | None, first: int, out: Elements) -> None:
        nbytes = self._item.itemsize
        for shape, source, target, target_strides in copies:
            strides = [n * nbytes for n in target_strides]
            part: Elements = np.ndarray(shape, self._item, out, target * nbytes, strides)
            if data is None:
                part[...] = self._fill[0]
            else:
                part[...] = np.ndarray(shape, self._item, data, source * nbytes - first, self._source_strides)
