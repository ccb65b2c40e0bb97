"""Blosc2 b2nd: arrays whose chunks are compressed by Blosc2, in one file or in a directory of files.

A *frame* has a header, chunks one after another, the offsets of all chunks, which are a chunk too, and a trailer. In a
sparse frame, each chunk is a file of its own beside `chunks.b2frame`, which has the rest; its offsets are numbers of
files. The metalayer `b2nd` in the header says of which array the chunks are, and how a chunk is cut into blocks.

So a contiguous frame is one shard, whose index is at the end and whose inner chunks are chunks of Blosc2; in a sparse
frame each file is a shard. Either way such a chunk is a shard under another codec: decoded, it is its blocks, one after
another, each in C order, and what is shown is the blocks. Where blocks do not divide their chunk, some of them are
partly filled, and together they tile nothing: then the chunk is put together, and is shown whole.

Nothing here calls the library, except `B2ndLevel.decode` and the offsets, with the bytes of one chunk whose sizes were
compared with what the frame says.

Sources: c-blosc2, "Blosc2 Contiguous Frame Format", "Sparse Frame Format", "Chunk Format" and "B2ND Metalayer Format",
and its library.
"""

import math
import struct
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError, NotUnshardable
from shardfs.format.document import MAX_LENGTH, Extension, Json, brief, canonical
from shardfs.format.dtype import parse_v2_dtype, v3_data_type
from shardfs.format.foreign import Foreign, ForeignChunks, ForeignGrid, ForeignMetadata, OneShard, regular_grid
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, index_in_c_order
from shardfs.format.index import EMPTY, ENTRY_NBYTES, IndexCodecs, ShardIndex
from shardfs.format.members import Buffer
from shardfs.format.sharding import (
    MAX_DECODED_NBYTES,
    MAX_INDEX_NBYTES,
    POSITION_BITS,
    ChunkLocation,
    Coords,
    ShardingLevel,
    count_positions,
)

FRAME: Final = "chunks.b2frame"
MAGIC: Final = b"\x9e\xa8b2frame\0"
MAX_HEADER_NBYTES: Final = 2**20
_FIXED_NBYTES: Final = 87
_SIZES: Final = struct.Struct(">Q5xxqxqxi5xxi")
"""Sizes in the header of a frame: of the frame, of all chunks decoded and stored, of an item, and of a chunk."""
_MAX_METALAYERS: Final = 16
_MAX_NDIM: Final = 16
_NEWEST_FRAME: Final = 3
_OFFSETS_OF_64_BITS: Final = 1
_OFFSET_NBYTES: Final = 8
_METALAYER: Final = "b2nd"
_KIND: Final = "an array of Blosc2"
_CODEC: Final = Extension(_METALAYER, {})
_OTHER_OBJECTS: Final = frozenset({"LazyArray", "b2o", "proxy-source", "listarray", "vlarray", "batcharray"})
"""Metalayers of what the library stores in such a file that is no array of values."""

_CHUNK: Final = struct.Struct("<BBBBiii6sBB6sBB")
"""The header of a chunk: versions of the format and of the codec, flags, size of an item; sizes of the chunk, of a
block, and of the stored chunk; filters, codec, its parameter, parameters of filters, flags.
"""
_OVERHEAD: Final = _CHUNK.size  # no chunk is larger than this and what it decodes to
_EXTENDED: Final = 5  # both bits are set in a header of this length
_CODECS: Final = frozenset({0, 1, 3, 4})
_OTHER_CODEC: Final = 6
_FILTERS: Final = frozenset({0, 1, 2, 3, 4, 36})
_BYTEDELTA: Final = 35
_CODEC_NAMES: Final = {
    32: "ndlz", 33: "zfp_acc", 34: "zfp_prec", 35: "zfp_rate", 36: "openhtj2k", 37: "grok", 38: "openzl", 39: "j2k",
    40: "htj2k",
}  # fmt: skip
_FILTER_NAMES: Final = {32: "ndcell", 33: "ndmean", 34: "bytedelta", 35: "bytedelta"}
_LAZY, _INSTRUMENTED = 0x08, 0x80
_UNINITIALISED: Final = 4
_RUNS: Final = range(5)
_ZEROS, _NANS, _NOT_INITIALISED = 1, 2, 4  # bits in the highest byte of an offset
_DAMAGED: Final = np.uint64(2**63)  # a length beyond every file
_NO_FILE: Final = 2**32  # a number that no file has


@dataclass(frozen=True)
class Frame:
    """What the header of a frame says.

    *header_nbytes* and *data_nbytes* are the sizes of the header and of the chunks behind it; *size* is that of the
    whole file. A block of *block_shape* is stored whole, also where it reaches beyond its chunk.
    """

    is_sparse: bool
    header_nbytes: int
    data_nbytes: int
    size: int
    shape: Coords
    chunk_shape: Coords
    block_shape: Coords
    dtype: np.dtype[Any]

    @property
    def grid_shape(self) -> Coords:
        """Number of chunks along each axis."""
        return ChunkGrid.regular(self.shape, self.chunk_shape).shape

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.grid_shape)

    @property
    def blocks(self) -> Coords:
        """Number of blocks of a chunk along each axis; some may be partly filled."""
        return tuple(-(-chunk // block) for chunk, block in zip(self.chunk_shape, self.block_shape, strict=True))

    @property
    def chunk_nbytes(self) -> int:
        """Size of a decoded chunk: of all its blocks, as they are stored."""
        return math.prod(self.blocks) * math.prod(self.block_shape) * self.dtype.itemsize

    @property
    def has_whole_blocks(self) -> bool:
        """Whether no block is partly filled."""
        return all(not chunk % block for chunk, block in zip(self.chunk_shape, self.block_shape, strict=True))

    @property
    def offsets_at(self) -> int:
        """Where the chunk of offsets begins."""
        return self.header_nbytes + (0 if self.is_sparse else self.data_nbytes)


def header_nbytes(head: bytes) -> int:
    """Return the size of the header of a frame that begins with *head*; raises `CorruptionError` if it has none."""
    if len(head) < _FIXED_NBYTES or not head.startswith(MAGIC):
        raise CorruptionError("it has no header of a frame")
    nbytes = int.from_bytes(head[11:15], "big")
    if not _FIXED_NBYTES <= nbytes <= MAX_HEADER_NBYTES:
        raise CorruptionError(f"a header of {nbytes} bytes is not between {_FIXED_NBYTES} and {MAX_HEADER_NBYTES}")
    return nbytes


def parse_frame(head: bytes, size: int) -> Frame:
    """Parse the header of a frame in a file of *size* bytes.

    *head* are the first bytes, of which there are as many as `header_nbytes` says. Raises `CorruptionError` if it is
    damaged, or cut off, and `MetadataError` with the reason why it is not read.
    """
    nbytes = header_nbytes(head)
    if len(head) < nbytes:
        raise CorruptionError("its header is cut off")
    flags, kind = head[25], head[26] & 0xF
    if flags & 0xF > _NEWEST_FRAME or kind > 1:
        raise MetadataError(f"version {flags & 0xF} of frames, of the kind {kind}, is not known")
    frame_nbytes, all_nbytes, data_nbytes, item_nbytes, chunk_nbytes = _SIZES.unpack_from(head, 16)
    # The numbers of codecs are other ones here, but for that of all codecs that are not part of the format.
    codec = _OTHER_CODEC if head[27] & 0xF == _OTHER_CODEC else 0
    reason = _unknown_codec(codec, head[77], head[71:77], head[79:85])
    if reason is not None:
        raise MetadataError(reason)
    metalayers = _metalayers(head[:nbytes])
    others = sorted(_OTHER_OBJECTS & metalayers.keys())
    if others:
        raise MetadataError(f"it is no array of values, but an object of the kind {others[0]}")
    if _METALAYER not in metalayers:
        raise MetadataError("it is no array: its frame has no metalayer b2nd")
    shape, chunk_shape, block_shape, dtype = _parse_metalayer(metalayers[_METALAYER])
    frame = Frame(kind == 1, nbytes, data_nbytes, size, shape, chunk_shape, block_shape, dtype)
    if flags >> 4 != _OFFSETS_OF_64_BITS and frame.nchunks:
        raise MetadataError("its chunks vary in size, or their offsets have not 64 bits")
    if item_nbytes != dtype.itemsize:
        raise MetadataError(f"its items have {item_nbytes} bytes, and those of {dtype.str} have {dtype.itemsize}")
    if frame.chunk_nbytes > MAX_DECODED_NBYTES:
        raise MetadataError(
            f"chunks of {frame.chunk_nbytes} bytes are larger than the {MAX_DECODED_NBYTES} that are read"
        )
    if not 0 <= frame_nbytes <= size:
        raise CorruptionError(f"it is cut off: it has {size} of {frame_nbytes} bytes")
    if frame.nchunks and (chunk_nbytes, all_nbytes) != (frame.chunk_nbytes, frame.nchunks * frame.chunk_nbytes):
        raise CorruptionError(f"its {all_nbytes} bytes, in chunks of {chunk_nbytes}, are not those of its array")
    if data_nbytes < 0 or frame.offsets_at > frame_nbytes:
        raise CorruptionError(f"its chunks, of {data_nbytes} bytes, are not within the file")
    if max(size - frame.offsets_at, frame.nchunks * ENTRY_NBYTES) > MAX_INDEX_NBYTES:
        raise MetadataError(f"what follows its chunks is more than the {MAX_INDEX_NBYTES // 2**20} MiB that are read")
    return frame


def _metalayers(header: bytes) -> dict[str, bytes]:
    """Return the metalayers of a header by name."""
    metalayers: dict[str, bytes] = {}
    try:
        if header[87:89] + header[91:92] != b"\x93\xcd\xde":
            raise CorruptionError("its metalayers cannot be read")
        count, at = int.from_bytes(header[92:94], "big"), 94
        if count > _MAX_METALAYERS:
            raise MetadataError(f"{count} metalayers are more than {_MAX_METALAYERS}")
        for _ in range(count):
            length = header[at] & 0x1F
            name = header[at + 1 : at + 1 + length].decode(errors="replace")
            at += 1 + length
            (offset,) = struct.unpack_from(">xi", header, at)
            at += 5
            if offset < 0:
                raise CorruptionError(f"the metalayer {brief(name)} is not in the header")
            marker, nbytes = struct.unpack_from(">BI", header, offset)
            content = header[offset + 5 : offset + 5 + nbytes]
            if marker != 0xC6 or len(content) != nbytes:
                raise CorruptionError(f"the metalayer {brief(name)} is not in the header")
            metalayers[name] = content
    except (struct.error, IndexError):
        raise CorruptionError("its metalayers are cut off") from None
    return metalayers


def _parse_metalayer(content: bytes) -> tuple[Coords, Coords, Coords, np.dtype[Any]]:
    """Return shape, shape of chunks, shape of blocks, and data type of an array."""
    try:
        version, ndim = content[1], content[2]
        if ndim > _MAX_NDIM:
            raise MetadataError(f"{ndim} axes are more than {_MAX_NDIM}")
        at, lengths = 3, []
        for code, nbytes in (("q", 8), ("i", 4), ("i", 4)):
            lengths.append(struct.unpack_from(">x" + f"x{code}" * ndim, content, at))
            at += 1 + (1 + nbytes) * ndim
        format_of_type, marker, nbytes = struct.unpack_from(">BBI", content, at)
    except (struct.error, IndexError):
        raise MetadataError(
            f"its metalayer {_METALAYER} is cut off, or does not say of which type its items are"
        ) from None
    text = content[at + 6 : at + 6 + nbytes].decode(errors="replace")
    if content[0] != 0x97 or format_of_type or marker != 0xDB or len(text) != nbytes:
        raise MetadataError(f"version {version} of its metalayer {_METALAYER} is not known")
    shape, chunk_shape, block_shape = lengths
    if not all(0 <= length < MAX_LENGTH for length in shape):
        raise MetadataError(f"its shape {list(shape)} is more than shardfs can count")
    # An axis without elements has chunks without elements.
    chunk_shape = tuple(chunk or 1 if not n else chunk for chunk, n in zip(chunk_shape, shape, strict=True))
    block_shape = tuple(block or 1 if not n else block for block, n in zip(block_shape, shape, strict=True))
    if not all(1 <= block <= chunk for block, chunk in zip(block_shape, chunk_shape, strict=True)):
        raise MetadataError(f"blocks {list(block_shape)} do not fit into chunks {list(chunk_shape)}")
    dtype = parse_v2_dtype(text)
    if dtype.kind not in "biufcmM":
        raise MetadataError(
            f"the dtype {brief(text)} has no Zarr form that every library reads: its items are no numbers"
        )
    return shape, chunk_shape, block_shape, dtype


def decode_chunk(data: Buffer, nbytes: int) -> memoryview:
    """Return the *nbytes* bytes in the chunk at the beginning of *data*.

    Raises `CorruptionError` if it is damaged, has another size, or needs what the library does not undo by itself.
    """
    if len(data) < _CHUNK.size:
        raise CorruptionError(f"a chunk of Blosc2 is cut off: it has {len(data)} bytes")
    header = _CHUNK.unpack_from(data)
    _, _, flags, item_nbytes, size, block_nbytes, stored, filters, other_codec, _, parameters, flags_2, flags_3 = header
    if flags & _EXTENDED != _EXTENDED or not item_nbytes:
        raise CorruptionError("it is no chunk of Blosc2")
    if size != nbytes:
        raise CorruptionError(f"a chunk of Blosc2 decodes to {size} bytes instead of {nbytes}")
    if not _CHUNK.size <= stored <= len(data) or block_nbytes < 1:
        raise CorruptionError(
            f"a chunk of Blosc2 has {stored} bytes in blocks of {block_nbytes}, and {len(data)} are there"
        )
    run = flags_3 >> 4 & 7
    if flags_2 or flags_3 & (_LAZY | _INSTRUMENTED) or run not in _RUNS:
        raise CorruptionError(f"a chunk of Blosc2 is of an unknown kind, {flags_2:#x} {flags_3:#x}")
    if run == _UNINITIALISED:
        return memoryview(bytes(nbytes))
    reason = _unknown_codec(flags >> 5, other_codec, filters, parameters)
    if reason is not None:
        raise CorruptionError(reason)
    import blosc2

    decoded = bytearray(nbytes)  # with zeros in it, whatever the library leaves out
    try:
        blosc2.decompress2(memoryview(data)[:stored], dst=decoded, nthreads=1)
    except (RuntimeError, ValueError, TypeError) as error:
        raise CorruptionError(f"a chunk of Blosc2 is damaged: {error}") from None
    return memoryview(decoded).toreadonly()


def _unknown_codec(codec: int, other_codec: int, filters: bytes, parameters: bytes) -> str | None:
    """Return why chunks with this codec and these *filters* are not decoded; None if they are.

    Of some, the library needs the array that a chunk is of, or code of a user.
    """
    if codec not in _CODECS:
        number = other_codec if codec == _OTHER_CODEC else codec
        return f"the codec {_CODEC_NAMES.get(number, number)} of Blosc2 is not decoded here"
    for number, parameter in zip(filters, parameters, strict=True):
        if number not in _FILTERS and not (number == _BYTEDELTA and parameter):
            return f"the filter {_FILTER_NAMES.get(number, number)} of Blosc2 is not undone here"
    return None


def decode_offsets(frame: Frame, tail: Buffer) -> npt.NDArray[np.int64]:
    """Return the offsets of all chunks; *tail* is what follows the chunks. Raises `CorruptionError`."""
    return np.frombuffer(decode_chunk(tail, _OFFSET_NBYTES * frame.nchunks), "<i8").astype(np.int64)


def _have(offsets: npt.NDArray[np.int64], bit: int) -> npt.NDArray[np.bool_]:
    """Return which of *offsets* say that a chunk is a run of the value *bit*, and not stored."""
    return np.asarray((offsets < 0) & (offsets.view(np.uint64) >> np.uint64(56) & np.uint64(bit) != 0))


def _are_absent(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which chunks are zeros, or anything, and not stored."""
    return _have(offsets, _ZEROS | _NOT_INITIALISED)


@dataclass(frozen=True, slots=True)
class FrameIndex(IndexCodecs):
    """The index of a contiguous frame: what follows its chunks, of which only the offsets matter.

    A chunk of zeros has no entry, and one of NaNs an entry without bytes.
    """

    frame: Frame

    def nbytes(self, nentries: int) -> int:
        """Return the size of what follows the chunks."""
        return self.frame.size - self.frame.offsets_at

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> ShardIndex:
        """Decode the index of a file of *shard_nbytes* bytes.

        Raises `CorruptionError` if it is not that of the frame.
        """
        frame = self.frame
        if shard_nbytes != frame.size:
            raise CorruptionError(f"the file has {shard_nbytes} bytes, and had {frame.size} when its header was read")
        offsets = decode_offsets(frame, encoded)
        starts = np.unique(offsets[offsets >= 0])
        ends = np.append(starts[1:], frame.data_nbytes) if len(starts) else starts
        lengths = np.minimum((ends - starts), frame.chunk_nbytes + _OVERHEAD)
        rows = np.full((len(offsets), 2), _DAMAGED, np.uint64)
        stored = (offsets >= 0) & (offsets < frame.data_nbytes)
        rows[stored, 0] = (offsets[stored] + frame.header_nbytes).astype(np.uint64)
        rows[stored, 1] = lengths[np.searchsorted(starts, offsets[stored])].astype(np.uint64)
        rows[_have(offsets, _NANS)] = 0
        rows[_are_absent(offsets)] = EMPTY
        return ShardIndex(rows.reshape(-1).data.cast("B").cast("Q"), encoded, shard_nbytes)


@dataclass(frozen=True, slots=True)
class PartsIndex(IndexCodecs):
    """The index of a decoded chunk, which is not stored: its parts are *part_nbytes* long, one after another."""

    part_nbytes: int

    def nbytes(self, nentries: int) -> int:
        """Return 0."""
        return 0

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> ShardIndex:
        """Return where the parts are."""
        return _parts(math.prod(chunks_per_shard), self.part_nbytes)


@lru_cache(8)
def _parts(count: int, nbytes: int) -> ShardIndex:
    starts = np.arange(count, dtype=np.uint64) * np.uint64(nbytes)
    rows = np.stack([starts, np.full(count, nbytes, np.uint64)], axis=1)
    return ShardIndex(rows.reshape(-1).data.cast("B").cast("Q"), b"", count * nbytes)


@dataclass(frozen=True, slots=True)
class B2ndLevel(ShardingLevel):
    """A chunk of Blosc2, as a shard of its blocks, or of itself if some of them are partly filled."""

    frame: Frame

    @classmethod
    def of(cls, frame: Frame) -> "B2ndLevel":
        """Return the level of the chunks of *frame*."""
        axes = range(len(frame.shape))
        part = frame.block_shape if frame.has_whole_blocks else frame.chunk_shape
        index = PartsIndex("little", (), (), math.prod(part) * frame.dtype.itemsize)
        nbytes = frame.chunk_nbytes + _OVERHEAD
        return cls(tuple(axes), (1,) * len(axes), index, False, (Extension("blosc2", {}),), nbytes, frame)

    @property
    def decoded_nbytes(self) -> int:
        """Size of the decoded chunk."""
        frame = self.frame
        return frame.chunk_nbytes if frame.has_whole_blocks else math.prod(frame.chunk_shape) * frame.dtype.itemsize

    @property
    def most_encoded(self) -> int:
        """The largest size of an encoded chunk."""
        return self.max_nbytes

    def decode(self, encoded: Buffer) -> Buffer:
        """Return the blocks of a chunk one after another, or the chunk; without bytes in a file, it is one of NaNs."""
        frame = self.frame
        if frame.is_sparse and not len(encoded):
            raise CorruptionError("the file of the chunk is empty")
        decoded = decode_chunk(encoded, frame.chunk_nbytes) if len(encoded) else self._nans()
        if frame.has_whole_blocks:
            return decoded
        ndim, item = len(frame.shape), np.dtype((np.void, frame.dtype.itemsize))
        blocks = np.frombuffer(decoded, item).reshape(*frame.blocks, *frame.block_shape)
        order = [axis for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        lengths = [n * block for n, block in zip(frame.blocks, frame.block_shape, strict=True)]
        chunk = blocks.transpose(order).reshape(lengths)[tuple(map(slice, frame.chunk_shape))]
        return np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data.toreadonly()

    def _nans(self) -> memoryview:
        """Return a chunk of NaNs as the library has it, by the size of items alone."""
        nbytes = self.frame.dtype.itemsize
        if nbytes not in (4, 8):
            raise CorruptionError(f"there are no NaNs of {nbytes} bytes")
        nans: npt.NDArray[np.generic] = np.full(self.frame.chunk_nbytes // nbytes, np.nan, np.dtype(f"<f{nbytes}"))
        return nans.view(np.uint8).data


@dataclass(frozen=True, slots=True)
class ChunkFileNames(ChunkKeyEncoding):
    """The names of the files of a sparse frame; *numbers* are those of chunks in C order, as bytes."""

    grid_shape: Coords
    numbers: bytes

    @property
    def required(self) -> Collection[str]:
        """The names of all files that the frame lists."""
        return [_file_name(number) for number in _indices(self.numbers)]

    def requires(self, coords: tuple[int, ...]) -> bool:
        """Whether the frame lists a file for the chunk at *coords*."""
        return self._numbers[index_in_c_order(coords, self.grid_shape)] != _NO_FILE

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name* is that of a file of a chunk."""
        return name.endswith(".chunk") and len(name) == len("00000000.chunk")

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the name of the file at *coords*; one that no file has, if it is not stored."""
        return _file_name(self._numbers[index_in_c_order(coords, self.grid_shape)])

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates of the file *key*; None if it is none of the frame."""
        number = key.removesuffix(".chunk")
        if not self.begins(key, ndim) or not set(number) <= set("0123456789ABCDEF"):
            return None
        position = _indices(self.numbers).get(int(number, 16))
        return None if position is None else tuple(map(int, np.unravel_index(position, self.grid_shape)))

    @property
    def _numbers(self) -> "memoryview[int]":
        return memoryview(self.numbers).cast("q")


def _file_name(number: int) -> str:
    return f"{number:08X}.chunk"


@lru_cache(8)
def _indices(numbers: bytes) -> dict[int, int]:
    """Return the index of each number."""
    return {number: position for position, number in enumerate(memoryview(numbers).cast("q")) if number != _NO_FILE}


@dataclass(frozen=True, slots=True)
class B2ndGrid(ForeignGrid):
    """The blocks of an array, or its chunks if blocks are partly filled."""

    @classmethod
    def of(cls, frame: Frame) -> "B2ndGrid":
        """Describe the array of *frame*; raises `MetadataError` if it is too large."""
        level = B2ndLevel.of(frame)
        parts = frame.blocks if frame.has_whole_blocks else (1,) * len(frame.shape)
        part = frame.block_shape if frame.has_whole_blocks else frame.chunk_shape
        ndim = len(frame.shape)
        lengths = frame.chunk_shape
        levels: tuple[ShardingLevel, ...] = (level,)
        if not frame.is_sparse:
            lengths = tuple(max(n, 1) * chunk for n, chunk in zip(frame.grid_shape, frame.chunk_shape, strict=True))
            index = FrameIndex("little", (), (), frame)
            levels = (ShardingLevel(level.order, parts, index, False, (), MAX_DECODED_NBYTES), level)
        grid_shape = ChunkGrid.regular(frame.shape, part).shape
        if count_positions(grid_shape) > 2**POSITION_BITS or max(lengths, default=0) > MAX_LENGTH:
            raise MetadataError(f"{math.prod(grid_shape)} blocks are more than shardfs can count")
        if math.prod(parts) * ENTRY_NBYTES > MAX_INDEX_NBYTES:
            raise MetadataError(f"{math.prod(parts)} blocks in a chunk are more than shardfs can count")
        return cls(ChunkGrid.regular(frame.shape, lengths), part, levels, grid_shape, max(ndim - 1, 0))

    def belonging(self, index: ShardIndex, location: ChunkLocation) -> npt.NDArray[np.bool_]:
        """Return which parts of a chunk are within the array: those behind its edge are stored, too."""
        shape = location.shapes[-1]
        first = self.coords(location)
        axes = (np.arange(n) + start < length for n, start, length in zip(shape, first, self.grid_shape, strict=True))
        within = np.ones((1,), np.bool_)
        for axis in axes:
            within = np.logical_and.outer(within, axis).reshape(-1)
        return within


def unreadable(error: MetadataError | CorruptionError) -> Foreign:
    """Return an array that is shown as it is stored because of this *error*."""
    metadata = ForeignMetadata.of((), "uint8", 0, regular_grid(()), _CODEC)
    return Foreign(
        format=_METALAYER,
        kind=_KIND,
        metadata=metadata,
        describing=FRAME,
        reason=str(error),
        is_damaged=isinstance(error, CorruptionError),
    )


def contiguous_array(frame: Frame) -> Foreign:
    """Return the array of a contiguous frame; raises `MetadataError`."""
    return _described(frame, OneShard.of(FRAME), 0)


def sparse_array(frame: Frame, tail: Buffer) -> Foreign:
    """Return the array of a sparse frame; *tail* is what follows its header.

    Raises `MetadataError` and `CorruptionError`.
    """
    offsets = decode_offsets(frame, tail) if frame.nchunks else np.zeros(0, np.int64)
    are_nans, are_absent = _have(offsets, _NANS) & ~_are_absent(offsets), _are_absent(offsets)
    if not ((are_nans | are_absent) | ((offsets >= 0) & (offsets < _NO_FILE))).all():
        raise CorruptionError("its index has numbers that are no files")
    if are_nans.any() and are_absent.any():
        raise MetadataError(
            "it has chunks of zeros and chunks of NaNs that are not stored, and Zarr has one fill value; blosc2 copies "
            "it to a contiguous frame, which is read"
        )
    is_float = frame.dtype.kind == "f" and frame.dtype.itemsize > 2
    if are_nans.any() and not is_float:
        raise MetadataError(f"it has chunks of NaNs that are not stored, of the dtype {frame.dtype.str}")
    numbers = np.where(offsets < 0, _NO_FILE, offsets)
    if len(np.unique(offsets[offsets >= 0])) != np.count_nonzero(offsets >= 0):
        raise CorruptionError("its index has one file for several chunks")
    names_of = ChunkFileNames("b2nd", "", frame.grid_shape, numbers.astype(np.int64).tobytes())
    return _described(frame, names_of, "NaN" if are_nans.any() else 0)


def _described(frame: Frame, names: ChunkKeyEncoding, fill_value: Json) -> Foreign:
    try:
        data_type = v3_data_type(frame.dtype)
    except NotUnshardable as error:
        raise MetadataError(str(error)) from None
    grid = B2ndGrid.of(frame)
    kind = frame.dtype.kind
    if not fill_value:
        fill_value = {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(kind, 0)
    lengths = tuple(dimension.runs[0][0] for dimension in grid.shards.dimensions)
    endian = "big" if frame.dtype.str[0] == ">" else "little"
    codecs = (Extension("bytes", {"endian": endian} if frame.dtype.str[0] != "|" else {}),)
    metadata = ForeignMetadata.of(frame.shape, data_type, fill_value, regular_grid(lengths), _CODEC)
    document = metadata.unsharded(grid.chunk_shape, codecs)
    identity = canonical([document["chunk_grid"], document["codecs"], data_type, list(frame.chunk_shape)])
    fingerprint = blake2b(identity.encode(), digest_size=16).digest()
    chunks = ForeignChunks(grid, names, document, codecs, fingerprint)
    return Foreign(format=_METALAYER, kind=_KIND, metadata=metadata, chunks=chunks, describing=FRAME)
