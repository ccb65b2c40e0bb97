"""Decoded inner chunks: decoded in threads, once for all who want the same one, and cached.

A `ChunkView` shows the chunks of an array, including, where the view needs them, missing chunks as encoded fill values.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.journal.records import Put
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.shard import read_checked
from shardfs.dataset.statistics import Statistics
from shardfs.errors import CorruptionError, RefusedError, ShardfsError, StoreError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.fence import fenced
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import FillValues
from shardfs.format.sharding import MAX_DECODED_NBYTES, Coords
from shardfs.stores.base import Buffer, Content
from shardfs.stores.cache import Cache, SharedCache
from shardfs.stores.direct import KnownFile, WouldWaitError
from shardfs.stores.local.syscalls import count_processors
from shardfs.stores.memory import MemoryContent
from shardfs.stores.parallel import Room
from shardfs.vfs.inodes import ChunkNumbering

_AT_ONCE_NBYTES: Final = 64 * 2**10  # decoding a smaller chunk is faster than handing it to a thread
_IN_FLIGHT_NBYTES: Final = 256 * 2**20
_DIRECT_NBYTES: Final = 8 * 2**20  # as many threads as there are may decode such chunks at the same time


class VersionKey(NamedTuple):
    """Identifies one version of a chunk, without keeping anything open.

    *version* is that of the object which holds its bytes, or the record in the journal.
    """

    path: str
    coords: Coords
    version: Hashable
    offset: int
    nbytes: int

    @classmethod
    def of(cls, array: ArrayLayout, coords: Coords, extent: Extent) -> "VersionKey":
        """Return the key of the version *extent* of the chunk at *coords*."""
        shard = extent.source
        if isinstance(shard, Put):
            return cls(array.path, coords, ("pending", shard.sequence), 0, extent.nbytes)
        return cls(array.path, coords, shard.snapshot.stat.version, shard.offset + extent.offset, extent.nbytes)


class _Decoded(NamedTuple):
    codec: ChunkCodec
    data: memoryview


class ChunkCache:
    """The decoded chunks of all arrays of a mount.

    The most recently used stay, up to *max_nbytes* bytes or one larger chunk. Reading and decoding takes up to
    *in_flight_nbytes* more, or one larger chunk.
    """

    def __init__(self, max_nbytes: int, statistics: Statistics, *, in_flight_nbytes: int = _IN_FLIGHT_NBYTES) -> None:
        self._statistics = statistics
        self._chunks: SharedCache[VersionKey, _Decoded] = SharedCache(lambda chunk: len(chunk.data), max_nbytes)
        self._threads = trio.CapacityLimiter(count_processors())
        self._room = Room(in_flight_nbytes)

    async def get(self, array: ArrayLayout, coords: Coords, extent: Extent, codec: ChunkCodec) -> memoryview:
        """Return the decoded bytes of the version *extent* of the chunk at *coords*.

        Without a codec, only their size is checked. Concurrent requests for one chunk wait for a single decoding.
        Raises `CorruptionError`, naming the chunk, if it cannot be decoded.
        """
        if codec.is_identity:
            return memoryview(await extent.read(0, extent.nbytes))
        key = VersionKey.of(array, coords, extent)

        async def is_current(_: _Decoded) -> bool:
            return self.known(key, codec) is not None

        async def load() -> _Decoded:
            return self._counted(_Decoded(codec, await self._decode(array, coords, extent, codec)))

        return (await self._chunks.get(key, load, is_current)).data

    def known(self, key: VersionKey, codec: ChunkCodec) -> memoryview | None:
        """Return the decoded bytes of a version of a chunk if they are cached, else None."""
        known = self._chunks.peek(key)
        if known is None or (known.codec is not codec and known.codec != codec):
            return None
        self._chunks.touch(key)
        self._statistics.decode_hits += 1
        return known.data

    def read_known(
        self,
        array: ArrayLayout,
        coords: Coords,
        chunk: KnownFile,
        codec: ChunkCodec,
        start: int,
        stop: int | None,
        *,
        waits: bool,
    ) -> Buffer | None:
        """Return decoded bytes of a *chunk*, as a slice has *start* and *stop*, in any thread.

        None if it is not to be decoded here, as it is large or damaged. If decoding takes long, it *waits*, or raises
        `WouldWaitError`.
        """
        if codec.is_identity:
            return chunk.read(start, stop, waits=waits) if chunk.nbytes == codec.nbytes else None
        key = VersionKey(array.path, coords, chunk.version, chunk.offset, chunk.nbytes)
        data = self.known(key, codec)
        if data is not None:
            return data[start:stop] if chunk.is_current(waits=waits) else None
        if max(codec.nbytes, chunk.nbytes) > _DIRECT_NBYTES:
            return None
        if max(codec.nbytes, chunk.nbytes) > _AT_ONCE_NBYTES and not waits:
            raise WouldWaitError
        encoded = chunk.read(0, None, waits=waits)
        if encoded is None:
            return None
        try:
            data = _decode(codec, encoded)
        except ShardfsError:  # `get` says why
            return None
        self._chunks.put(key, self._counted(_Decoded(codec, data)))
        return data[start:stop]

    def _counted(self, decoded: _Decoded) -> _Decoded:
        self._statistics.decoded_chunks += 1
        self._statistics.decoded_bytes += len(decoded.data)
        return decoded

    async def encode(self, codec: ChunkCodec, content: Content) -> Content:
        """Return decoded *content* as an encoded chunk; raises `RefusedError` for one of the wrong size."""
        if content.nbytes != codec.nbytes:
            raise RefusedError(f"a chunk of this array has {codec.nbytes} bytes, not {content.nbytes}")
        if codec.is_identity:
            return content

        def encode() -> bytes:
            return codec.encode(content.read(0, content.nbytes))

        async with self._room.take(2 * codec.nbytes):
            encoded = await trio.to_thread.run_sync(encode, limiter=self._threads)
        return MemoryContent(memoryview(encoded))

    async def _decode(self, array: ArrayLayout, coords: Coords, extent: Extent, codec: ChunkCodec) -> memoryview:
        if codec.nbytes > MAX_DECODED_NBYTES:
            raise StoreError(f"{_name(array, coords)} is too large to decode: {codec.nbytes} bytes")
        # No codec makes a chunk that much larger, so one that claims to be is not read.
        if extent.nbytes > 2 * codec.nbytes + 2**16 * (1 + len(codec.after)):
            raise CorruptionError(f"{_name(array, coords)} has {extent.nbytes} bytes, and {codec.nbytes} decoded")

        async def decoded(encoded: Buffer) -> memoryview:
            if codec.nbytes <= _AT_ONCE_NBYTES:
                return _decode(codec, encoded)
            return await trio.to_thread.run_sync(_decode, codec, encoded, limiter=self._threads)

        async with self._room.take(extent.nbytes + codec.nbytes):
            try:
                return await read_checked(extent, 0, extent.nbytes, decoded)
            except CorruptionError as error:
                raise CorruptionError(f"{_name(array, coords)} does not decode: {error}") from None


class DecodedChunk:
    """One version of an inner chunk as array bytes: the decoded counterpart of `Extent`."""

    def __init__(
        self, chunks: ChunkCache, array: ArrayLayout, coords: Coords, extent: Extent, codec: ChunkCodec
    ) -> None:
        self._chunks = chunks
        self._array = array
        self._coords = coords
        self.extent = extent
        self.codec = codec

    @property
    def nbytes(self) -> int:
        """Size of the decoded chunk."""
        return self.codec.nbytes

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the decoded chunk; fewer only at its end."""
        if self.codec.is_identity:
            self._check()
            return await self.extent.read(offset, nbytes)
        return (await self.get())[offset : offset + nbytes]

    async def get(self) -> memoryview:
        """Return all decoded bytes."""
        self._check()
        return await self._chunks.get(self._array, self._coords, self.extent, self.codec)

    def _check(self) -> None:
        """Raise `CorruptionError` for a chunk that is stored without a codec and has the wrong size."""
        if self.codec.is_identity and self.extent.nbytes != self.codec.nbytes:
            name = _name(self._array, self._coords)
            raise CorruptionError(f"{name} has {self.extent.nbytes} bytes, not {self.codec.nbytes}")


def _decode(codec: ChunkCodec, encoded: Buffer) -> memoryview:
    """Return the decoded bytes of a chunk in memory of their own: a slice would keep everything that was read alive."""
    with fenced(codec, "a chunk"):
        data = codec.decode(encoded)
    is_part = np.may_share_memory(np.asarray(data), np.asarray(memoryview(encoded)))
    return memoryview(bytes(data)) if is_part else data


def _name(array: ArrayLayout, coords: Coords) -> str:
    return f"{array.grid.chunk_name(coords, array.key_encoding)} of {array.path or 'the array'}"


@dataclass(frozen=True, slots=True)
class Repeated:
    """*nbytes* bytes of *pattern*, repeated, in no more memory than each read."""

    pattern: bytes
    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*."""
        first = offset % len(self.pattern)
        count = -(-(first + nbytes) // len(self.pattern))
        return memoryview(self.pattern * count)[first : first + nbytes]


@dataclass(frozen=True, slots=True)
class FillChunk:
    """A missing chunk, shown as one of the value *element*: the counterpart of `Extent` for what is not stored."""

    missing: "Missing"
    element: bytes
    nbytes: int

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset* of the chunk; fewer only at its end."""
        nbytes = min(nbytes, self.nbytes - offset)
        return (await self.content()).read(offset, nbytes) if nbytes > 0 else b""

    async def content(self) -> Content:
        """Return the bytes as content for the store."""
        return await self.missing.filled(self.element)


_ONE: Final = trio.CapacityLimiter(1)  # a chunk that is encoded may take hundreds of MiB


class Missing:
    """How missing chunks are shown in an array whose readers would otherwise take them for another value.

    Chunks are shown decoded if there is a *codec*. Otherwise they are encoded, and *encoded* holds those that were read
    last. They are not *listed* once the document of the array was removed: the array is then being removed chunk by
    chunk.
    """

    def __init__(
        self,
        values: FillValues,
        codec: ChunkCodec | None,
        encoded: Cache[tuple["Missing", bytes], Repeated],
        *,
        is_listed: bool,
    ) -> None:
        self.is_listed = is_listed
        self._values = values
        self._codec = codec
        self._encoded = encoded
        self._nbytes: dict[bytes, int] = {}

    async def chunk(self, *, removed: bool = False) -> FillChunk:
        """Return what a missing chunk is shown as.

        A chunk that a program *removed* stands for the fill value that the program was shown.
        """
        element = self._values.shown if removed else self._values.stored
        if element not in self._nbytes:
            self._nbytes[element] = (await self.filled(element)).nbytes
        return FillChunk(self, element, self._nbytes[element])

    async def filled(self, element: bytes) -> Repeated:
        """Return a chunk of *element*, as it is shown."""
        fill_codec = self._values.codec
        if self._codec is not None or fill_codec is None:
            return Repeated(element, self._codec.nbytes if self._codec is not None else 0)

        async def encode() -> Repeated:
            return Repeated(*await trio.to_thread.run_sync(fill_codec.chunk, element, limiter=_ONE))

        return await self._encoded.get((self, element), encode)


class ChunkView(NamedTuple):
    """How the chunks of *array* are shown: their names, and decoded by *codec*, or encoded without one.

    *missing* says how missing chunks are shown, if they are.
    """

    array: Array
    key_encoding: ChunkKeyEncoding
    codec: ChunkCodec | None
    missing: Missing | None = None

    @property
    def numbering(self) -> ChunkNumbering:
        """The positions of the chunks, and of the directories above them."""
        grid = self.array.grid
        return ChunkNumbering.of(grid.grid_shape, nested=self.key_encoding.is_nested(grid.ndim))

    @property
    def key(self) -> bytes:
        """A key that is equal for views whose chunks are in the same locations, mean the same and look the same."""
        return blake2b(repr(self.array.grid).encode() + self.kind, digest_size=16).digest()

    @property
    def kind(self) -> bytes:
        """A key that is equal for views whose chunks have such names, mean the same and look the same, in any shape.

        The fill value is what missing chunks are shown as.
        """
        array = self.array
        fill_value = array.document["fill_value"]
        parts = (array.layout.key_encoding, self.key_encoding, self.codec is None, fill_value)
        return blake2b(repr(parts).encode() + array.fingerprint, digest_size=16).digest()

    @property
    def listed_missing(self) -> Missing | None:
        """What a listing shows for a missing chunk; None if nothing."""
        return self.missing if self.missing is not None and self.missing.is_listed else None

    def has_chunks_of(self, other: "ChunkView") -> bool:
        """Whether the chunks are in the same locations as those of *other*, mean the same and look the same."""
        return self is other or (self.array.layout is other.array.layout and self.key == other.key)

    def reads_like(self, other: "ChunkView") -> bool:
        """Whether bytes that were written for a chunk of *other* mean the same in this view."""
        here, there = self.array, other.array
        if (here.grid.chunk_shape, here.document["data_type"]) != (there.grid.chunk_shape, there.document["data_type"]):
            return False
        return self.codec is not None or here.codecs == there.codecs
