"""Open .npy files: any range of them, put together from the chunks that it touches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.hierarchy import Node
from shardfs.dataset.quick_lock import QuickLock
from shardfs.dataset.shard import OpenShard
from shardfs.errors import MetadataError, NotShownError, NotUnshardable, ShardfsError, StaleError, StoreError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.dtype import fill_element
from shardfs.format.grid import FixedDimension
from shardfs.format.lens.decoded import codec_of
from shardfs.format.lens.npy import Copy, NpyFile
from shardfs.format.lens.unsharded import describe
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer
from shardfs.vfs.at_once import for_each
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.blocks import MAX_BLOCK_NBYTES, Block, Blocks
from shardfs.vfs.chunk_cache import DecodedChunk, VersionKey

if TYPE_CHECKING:
    from shardfs.vfs.npy_nodes import NpyNode

_AT_ONCE: Final = 16
_MAX_COPIES: Final = 2**11
_MAX_KNOWN: Final = 2**14
_MAX_RANGE_NBYTES: Final = 64 * 2**20

Elements = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class NpyArray:
    """An array that is shown as *file*; chunks that are absent hold *fill*, the bytes of an element."""

    array: Array
    codec: ChunkCodec
    file: NpyFile
    fill: bytes

    @classmethod
    def of(cls, node: Node) -> "NpyArray | None":
        """Return the array of *node*, None if it is none; raises `NotShownError` or `NotUnshardable` with the reason.

        The reason says why it has no .npy form.
        """
        metadata = node.metadata
        if not isinstance(metadata, ArrayMetadata):
            return None
        try:
            shown = describe(metadata)
            codec = codec_of(shown)
            file = NpyFile.of(codec.data_type, metadata.shape, codec.chunk_shape)
            fill = fill_element(codec.data_type, metadata.document["fill_value"])
        except MetadataError as error:
            raise NotShownError(str(error)) from None
        if node.any_array is None:
            raise NotUnshardable(node.reason or "its chunks cannot be reached")
        return cls(node.any_array, codec, file, fill)

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
        edges = [d.edge if isinstance(d, FixedDimension) else d for d in grid.shards.dimensions]
        return edges, grid.chunk_shape, grid.levels, self.array.layout.key_encoding, self.codec, self.fill


class NpyHandle:
    """An open .npy file, with the shape that it had when it was opened.

    A chunk is looked for as it is when it is first read, and is the same again for as long as it is kept.  When the
    file is opened again, all is looked for again: the kernel keeps one copy of a file, and what a reader from before
    gets is what the new one finds there.
    """

    is_chunk = False

    def __init__(self, node: "NpyNode", attributes: Attributes, shown: NpyArray, blocks: Blocks) -> None:
        self.attributes = attributes
        self._node = node
        self._shown = shown
        self._array = shown.array.layout
        self._chunks = node.fs.chunk_cache
        self._item = shown.file.item
        self._source_strides = tuple(n * self._item.itemsize for n in shown.file.chunk_strides)
        self._fill: Elements = np.frombuffer(shown.fill, self._item)
        self._is_identity = shown.codec.is_identity
        self._versions: dict[Coords, VersionKey] = {}
        self._absent: set[Coords] = set()
        self._large: tuple[Coords, DecodedChunk] | None = None
        self._blocks = blocks
        self._reader = object()
        self._turn = QuickLock()
        self._end = 0
        self._in_order = 0
        self._valid_until = float("-inf")
        self._nopened = node.nopened
        # Elements that can always be read with one plan: many chunks of one element would make it long.
        last = min((*shown.file.shape[-1:], *shown.file.chunk_shape[-1:]), default=1)
        self._max_planned = _MAX_COPIES * max(1, last)

    @property
    def ino(self) -> int:
        """The number of the file."""
        return self.attributes.ino

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; raises `StaleError` when the array became another one."""
        file = self._shown.file
        stop = min(offset + nbytes, file.nbytes)
        if stop <= max(offset, len(file.header)):
            return file.header[offset:stop]
        await self._check()
        in_order = self._in_order if offset == self._end else None
        self._end, self._in_order = stop, stop - offset + (in_order or 0)
        start, end = max(offset - len(file.header), 0), stop - len(file.header)
        data = await (self._gather(start, end) if in_order is None else self._read_on(start, end, in_order))
        return data if offset >= len(file.header) else file.header[offset:] + bytes(data)

    async def _read_on(self, start: int, stop: int, in_order: int) -> Buffer:
        """Return the bytes *start* to *stop* − 1 of the elements to who has read *in_order* bytes before them."""
        parts = []
        async with self._turn:
            while start < stop:
                block = self._blocks.take(self._reader, start)
                if block is None:
                    block = await self._next_block(start, stop, in_order)
                parts.append(block.data[start - block.start : stop - block.start])
                if block.stop > stop and self._nopened == self._node.nopened:
                    self._blocks.keep(self._reader, block)
                start = block.stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _next_block(self, start: int, stop: int, in_order: int) -> Block:
        """Put together what is asked for, and up to as much as was read before: it costs less than piece by piece."""
        end = self._shown.file.boundary(start, start + min(in_order, MAX_BLOCK_NBYTES))
        if end > stop:
            try:
                return Block(start, end, await self._gather(start, end, is_in_order=True))
            except ShardfsError:
                self._in_order = 0  # what was asked for may be sound
        return Block(start, stop, await self._gather(start, stop, is_in_order=True))

    async def _gather(self, start: int, stop: int, *, is_in_order: bool = False) -> memoryview:
        """Return the bytes *start* to *stop* − 1 of the elements."""
        file = self._shown.file
        first, last = start // file.item_nbytes, -(-stop // file.item_nbytes)
        out = np.empty(last - first, self._item)
        at = first
        while at < last:
            if at > first:
                await trio.lowlevel.checkpoint()
            behind = last
            while behind - at > self._max_planned and file.ncopies(at, behind) > _MAX_COPIES:
                behind = at + (behind - at) // 2
            await self._fill_in(out[at - first : behind - first], file.plan(at, behind), is_in_order)
            at = behind
        skipped = start - first * file.item_nbytes
        return out.view(np.uint8).data[skipped : skipped + stop - start]

    async def _check(self) -> None:
        """Raise `StaleError` if the chunks are not those of the array any more that was opened."""
        if self._nopened != self._node.nopened:
            self._nopened = self._node.nopened
            self._versions.clear()
            self._absent.clear()
            self._large = None
            self._blocks.drop(self._reader)
        hierarchy = self._node.fs.hierarchy
        if hierarchy.clock() < self._valid_until:
            return
        now = await self._node.shown()
        if now is not self._shown and not now.is_read_as(self._shown):
            raise StaleError(f"the array {self._array.path or 'at the root'} has changed")
        self._valid_until = hierarchy.clock() + hierarchy.remaining(self._array.path)

    async def _fill_in(self, out: Elements, plan: dict[Coords, list[Copy]], is_in_order: bool) -> None:
        missing = {}
        for coords, copies in plan.items():
            version = self._versions.get(coords)
            plain = self._chunks.known(version, self._shown.codec) if version is not None else None
            if plain is not None or coords in self._absent:
                self._copy(copies, plain, 0, out)
            else:
                missing[coords] = copies

        async def fetch(coords: Coords) -> None:
            await self._fetch(coords, missing[coords], out, is_in_order)

        # What is not decoded, and lies on this machine, comes at once.
        is_quick = self._is_identity and not self._node.fs.store.rewrites
        await for_each(missing, fetch, 1 if is_quick else _AT_ONCE)

    async def _fetch(self, coords: Coords, copies: list[Copy], out: Elements, is_in_order: bool) -> None:
        nopened = self._nopened
        try:
            extent = (await self._shown.array.find(coords, fresh=coords not in self._versions))[1]
            first, plain = await self._plain(coords, extent, copies, is_in_order)
        except StaleError:  # what was believed is out of date; no byte of it was given
            self._large = None
            extent = (await self._shown.array.find(coords, fresh=True))[1]
            first, plain = await self._plain(coords, extent, copies, is_in_order)
        if len(self._versions) + len(self._absent) >= _MAX_KNOWN:
            self._versions.clear()
            self._absent.clear()
        if nopened != self._nopened:
            pass  # it may be out of date, for who has opened the file meanwhile
        elif extent is None:
            self._absent.add(coords)
        else:
            self._versions[coords] = VersionKey.of(self._array, coords, extent)
        self._copy(copies, plain, first, out)

    async def _plain(
        self, coords: Coords, extent: Extent | None, copies: list[Copy], is_in_order: bool
    ) -> tuple[int, Buffer | None]:
        """Return plain bytes of a chunk with all that *copies* want, and how many bytes of it stand before them.

        There are none of a chunk that is absent.
        """
        if extent is None:
            return 0, None
        if is_in_order and isinstance(extent.shard, OpenShard):
            extent.shard.expect()
        chunk = DecodedChunk(self._chunks, self._array, coords, extent, self._shown.codec)
        if self._is_identity:
            first = min(copy.source for copy in copies) * self._item.itemsize
            last = max(map(self._stop, copies))
            if last - first > _MAX_RANGE_NBYTES:
                raise StoreError(f"a chunk of {self._array.path or 'the array'} is too large: {chunk.nbytes} bytes")
            return first, await chunk.read(first, last - first)
        if chunk.nbytes <= self._chunks.max_nbytes:
            return 0, await self._chunks.get(self._array, coords, extent, self._shown.codec)
        if self._large is None or self._large[0] != coords:
            self._large = coords, chunk
        return 0, await self._large[1].get()

    def _stop(self, copy: Copy) -> int:
        """Return where in the plain bytes of a chunk the last element of *copy* ends."""
        steps = sum((n - 1) * stride for n, stride in zip(copy.shape, self._source_strides, strict=True))
        return (copy.source + 1) * self._item.itemsize + steps

    def _copy(self, copies: list[Copy], plain: Buffer | None, first: int, out: Elements) -> None:
        nbytes = self._item.itemsize
        for shape, source, target, target_strides in copies:
            strides = [n * nbytes for n in target_strides]
            part: Elements = np.ndarray(shape, self._item, out, target * nbytes, strides)
            if plain is None:
                part[...] = self._fill[0]
            else:
                part[...] = np.ndarray(shape, self._item, plain, source * nbytes - first, self._source_strides)
