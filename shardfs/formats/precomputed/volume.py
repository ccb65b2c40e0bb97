"""Volumes of neuroglancer, in its format precomputed: `info` says what is in them, each scale is an array.

A scale that is sharded is described by the grid of its chunks, of which each has an id: the compressed Morton code of
its position. It is shown as a scale that is not sharded, whose chunks are files named after the voxels that they cover,
and by an `info` that says so. A chunk at the edge of a scale is cut off there.

Source: neuroglancer, "Volume" of the precomputed data source.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import MAX_LENGTH, Document, Extension, Json, brief, canonical, encode_json, parse_lengths
from shardfs.format.dtype import item_nbytes
from shardfs.format.foreign import NEW_GROUP, Foreign, ForeignChunks, ForeignCodec, ForeignMetadata
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding
from shardfs.format.members import Buffer
from shardfs.format.sharding import MAX_DECODED_NBYTES, POSITION_BITS, Coordinates, Coords
from shardfs.formats.precomputed.uint64_sharded import UINT64_SHARDED, IdGrid, Ids, ShardNames, Uint64Sharding

FORMAT: Final = "precomputed"
INFO: Final = "info"
_VOLUME: Final = "neuroglancer_multiscale_volume"
_AXES: Final = 3
_RANGE: Final = re.compile(r"(-?[0-9]{1,20})-(-?[0-9]{1,20})")
_LARGEST_ITEM: Final = 8
_MAX_SCALES: Final = 1000  # an `info` with more sharded ones is no volume


@dataclass(frozen=True, slots=True)
class ChunkNames(ChunkKeyEncoding):
    """The names of chunks: the voxels that each covers, `x0-x1_y0-y1_z0-z1`."""

    offset: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    size: tuple[int, ...]

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name* is that of a chunk."""
        return self.decode(name, ndim) is not None

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the name of the chunk at *coords*."""
        ranges = []
        for index, offset, length, size in zip(coords, self.offset, self.chunk_shape, self.size, strict=False):
            start = index * length
            ranges.append(f"{offset + start}-{offset + min(start + length, size)}")
        return "_".join(ranges)

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates of the chunk *key*; None if no chunk of the grid has this name."""
        coords = []
        for part, offset, length in zip(key.split("_"), self.offset, self.chunk_shape, strict=False):
            found = _RANGE.fullmatch(part)
            if found is None:
                return None
            coords.append((int(found[1]) - offset) // length)
        if len(coords) < _AXES or any(
            not 0 <= index * length < size
            for index, length, size in zip(coords, self.chunk_shape, self.size, strict=True)
        ):
            return None
        return (*coords, 0) if self.encode(tuple(coords)) == key else None


@dataclass(frozen=True, slots=True)
class VolumeGrid(IdGrid):
    """The chunks of a scale, with the axes x, y, z and channel; the id of a chunk is its compressed Morton code.

    A chunk of unencoded elements has *item_nbytes* bytes for each; None if chunks are encoded, and vary in size.
    """

    size: tuple[int, ...]
    names: ChunkNames
    item_nbytes: int | None

    @classmethod
    def of(
        cls,
        size: tuple[int, ...],
        chunk_shape: tuple[int, ...],
        offset: tuple[int, ...],
        sharding: Uint64Sharding,
        item: int,
        *,
        is_raw: bool,
    ) -> "VolumeGrid":
        """Describe a scale of *size* elements of up to *item* bytes; raises `MetadataError` if it is too large."""
        grid_shape = ChunkGrid.regular(size, chunk_shape).shape
        if math.prod(grid_shape) >= 2**POSITION_BITS:
            raise MetadataError(f"{math.prod(grid_shape)} chunks are more than shardfs can count")
        if code_bits(grid_shape) > 64:
            raise MetadataError("the codes of its chunks have more than 64 bits")
        # No encoding makes a chunk much larger than its elements.
        max_nbytes = min(4 * math.prod(chunk_shape) * item + 2**20, MAX_DECODED_NBYTES)
        shards = ChunkGrid.regular((sharding.nshards,), (1,))
        levels = sharding.levels(max_nbytes, math.prod(grid_shape))
        row_axis = len(size) - 1
        names = ChunkNames("precomputed", "_", offset, chunk_shape[:_AXES], size[:_AXES])
        return cls(shards, chunk_shape, levels, grid_shape, row_axis, sharding, size, names, item if is_raw else None)

    def id_of(self, coords: Coords) -> int:
        """Return the compressed Morton code of *coords*."""
        return morton_code(coords, self.grid_shape)

    def coordinates_of(self, ids: Ids) -> Coordinates:
        """Return the positions of which *ids* are the compressed Morton codes, as rows."""
        return positions_of(ids, self.grid_shape).astype(np.int64)

    def have_chunks(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which of *ids* are the codes of positions in the grid."""
        return are_codes(ids, self.grid_shape)

    def chunk_name(self, coords: Coords, keys: ChunkKeyEncoding) -> str:
        """Return the name of the chunk at *coords*."""
        return self.names.encode(coords)

    def nchunks_of(self, shard: Coords) -> int:
        """Return how many chunks a shard has on average."""
        return -(-self.nchunks // self.sharding.nshards)

    def nelements_of(self, shard: Coords) -> int:
        """Return how many elements are in a shard on average."""
        return -(-math.prod(self.size) // self.sharding.nshards)

    def decoded_sizes(self, positions: Coordinates) -> npt.NDArray[np.uint64] | None:
        """Return the sizes that the chunks at *positions* have if they are sound; None if nobody knows."""
        if self.item_nbytes is None:
            return None
        chunk, size = np.array(self.chunk_shape, np.int64), np.array(self.size, np.int64)
        lengths = np.minimum(chunk, size - positions * chunk)
        return np.asarray(np.prod(lengths, axis=1) * self.item_nbytes).astype(np.uint64)


def code_bits(grid_shape: Coords) -> int:
    """Return how many bits the compressed Morton codes of a grid have."""
    return sum((length - 1).bit_length() for length in grid_shape if length)


@lru_cache(256)
def _interleaved(grid_shape: Coords) -> tuple[tuple[int, int], ...]:
    """Return axis and bit of a position for each bit of a compressed Morton code, the lowest first."""
    bits = max(length.bit_length() for length in grid_shape)
    return tuple((axis, bit) for bit in range(bits) for axis, length in enumerate(grid_shape) if 1 << bit < length)


def morton_code(position: Coords, grid_shape: Coords) -> int:
    """Return the compressed Morton code of *position* in a grid."""
    code = 0
    for bit_number, (axis, bit) in enumerate(_interleaved(grid_shape)):
        code |= (position[axis] >> bit & 1) << bit_number
    return code


def positions_of(codes: Ids, grid_shape: Coords) -> npt.NDArray[np.uint64]:
    """Return the positions of which *codes* are the compressed Morton codes, as rows; they may be outside the grid."""
    positions = np.zeros((len(codes), len(grid_shape)), np.uint64)
    for bit_number, (axis, bit) in enumerate(_interleaved(grid_shape)):
        positions[:, axis] |= (codes >> np.uint64(bit_number) & np.uint64(1)) << np.uint64(bit)
    return positions


def are_codes(ids: Ids, grid_shape: Coords) -> npt.NDArray[np.bool_]:
    """Return which of *ids* are the compressed Morton codes of positions in a grid."""
    are_within = (positions_of(ids, grid_shape) < np.array(grid_shape, np.uint64)).all(axis=1)
    largest = (1 << len(_interleaved(grid_shape))) - 1
    return np.asarray(are_within & (ids <= np.uint64(largest)))


@dataclass(frozen=True, slots=True)
class CutOffCodec(ForeignCodec):
    """Elements in Fortran order, of chunks that are cut off at the end of a scale of *size*: decoded, they are full.

    There are zeros in the elements beyond the scale, which nobody reads. *position* is that of the chunk.
    """

    size: Coords = ()
    position: Coords = ()

    @classmethod
    def of(cls, codec: ChunkCodec, size: Coords) -> "CutOffCodec":
        """Return the codec of the chunks of a scale of *size*, whose full chunks have this *codec*."""
        return cls(codec.data_type, codec.chunk_shape, codec.order, codec.endian, codec.after, size=size)

    def at(self, coords: Coords) -> "CutOffCodec":
        """Return the codec of the chunk at *coords*."""
        return replace(self, position=coords)

    def decode(self, encoded: Buffer) -> memoryview:
        """Return the elements of a full chunk; raises `CorruptionError` if *encoded* has not the size of the chunk."""
        lengths = [
            min(edge, size - index * edge)
            for edge, size, index in zip(self.chunk_shape, self.size, self.position, strict=True)
        ]
        item = self.data_type.nbytes
        if len(encoded) != math.prod(lengths) * item:
            raise CorruptionError(f"the chunk has {len(encoded)} bytes instead of {math.prod(lengths) * item}")
        dtype = np.dtype((np.void, item))
        full = np.zeros(self.chunk_shape, dtype)
        full[tuple(map(slice, lengths))] = np.frombuffer(encoded, dtype).reshape(lengths[::-1]).T
        return full.reshape(-1).view(np.uint8).data.toreadonly()

    def __str__(self) -> str:
        return "raw of neuroglancer precomputed"


@dataclass(frozen=True)
class ScaleChunks(ForeignChunks):
    """The chunks of a scale, which are cut off at its edge."""

    grid: VolumeGrid
    shard_names: ShardNames

    @property
    def own_names(self) -> ChunkKeyEncoding:
        """The names of chunks in a scale that is not sharded."""
        return self.grid.names

    @property
    def keys(self) -> ChunkKeyEncoding:
        """Keys without directories: chunks are not listed row by row."""
        return ChunkKeyEncoding("default", ".")

    @property
    def are_whole(self) -> bool:
        """Whether no chunk is cut off."""
        return not any(size % edge for size, edge in zip(self.grid.size, self.grid.chunk_shape, strict=True))

    def reads_as_zeros(self, name: str) -> bool:
        """Whether *name* is that of a chunk of raw elements, which are zeros where it is missing."""
        return self.grid.item_nbytes is not None and self.grid.names.begins(name, len(self.grid.size))

    def codec(self) -> "CutOffCodec":
        """Return the codec of the chunks."""
        return CutOffCodec.of(super().codec(), self.grid.size)


_PROGRAMS: Final = {
    "cloud-volume 12": 'CloudVolume("precomputed://file://{}")',
    "tensorstore, driver neuroglancer_precomputed": (
        '{{"driver": "neuroglancer_precomputed", "kvstore": "file://{}/"}}'
    ),
    "neuroglancer": "precomputed://http://127.0.0.1:8000/{}",
}


def parse_volume(document: Json) -> Foreign | None:
    """Return what an `info` says; None if it is not that of a volume with sharded scales."""
    if not isinstance(document, dict) or document.get("@type", _VOLUME) != _VOLUME:
        return None
    scales = document.get("scales")
    if not isinstance(scales, list) or not {"data_type", "num_channels"} <= document.keys():
        return None
    sharded = [each for each in scales if isinstance(each, dict) and each.get("sharding") is not None]
    if len(sharded) > _MAX_SCALES:
        return None
    keys = Counter(key for each in scales if isinstance(each, dict) and isinstance(key := each.get("key"), str))
    found: dict[str, Foreign] = {}
    for each in sharded:
        key = each.get("key")
        if isinstance(key, str) and is_path_below(key):
            found[key] = _parse_scale(document, each, key, is_one=keys[key] == 1)
    if not found:
        return None
    shown = []
    for each in scales:
        key = each.get("key") if isinstance(each, dict) else None
        scale = found.get(key) if isinstance(key, str) else None
        is_shown = scale is not None and scale.reason is None
        shown.append({name: value for name, value in each.items() if name != "sharding"} if is_shown else each)
    return Foreign(
        format=FORMAT,
        kind="a precomputed volume",
        describing=INFO,
        documents={INFO: encode_json({**document, "scales": shown})},
        below=found,
        group=NEW_GROUP,
        programs=_PROGRAMS,
    )


def is_path_below(key: str) -> bool:
    """Whether *key* is a relative path that leads to something below a directory, by one way only."""
    return all(part not in ("", ".", "..") for part in key.split("/")) and "\0" not in key


def _parse_scale(document: Document, scale: Document, key: str, *, is_one: bool) -> Foreign:
    try:
        metadata, chunks = _described(document, scale, key, is_one=is_one)
        return Foreign(format=FORMAT, kind=_SCALE, metadata=metadata, chunks=chunks)
    except MetadataError as error:
        return Foreign(format=FORMAT, kind=_SCALE, metadata=_metadata(document, scale, ()), reason=str(error))


_SCALE: Final = "a scale of a precomputed volume"
_NO_KEYS: Final = Extension("default", {})
_CODEC: Final = Extension(UINT64_SHARDED, {})


def _described(document: Document, scale: Document, key: str, *, is_one: bool) -> tuple[ForeignMetadata, ScaleChunks]:
    if not is_one:
        raise MetadataError(f"several scales have the key {brief(key)}")
    sharding = Uint64Sharding.parse(scale["sharding"])
    nchannels = _lengths([document["num_channels"]], "num_channels", minimum=1, ndim=1)
    size = _lengths(scale.get("size"), "size", minimum=0)
    chunk_sizes = scale.get("chunk_sizes")
    if not isinstance(chunk_sizes, list) or len(chunk_sizes) != 1:
        raise MetadataError("a sharded scale must have chunk_sizes with one element")
    chunk_shape = _lengths(chunk_sizes[0], "chunk_sizes", minimum=1)
    offset = _offset(scale.get("voxel_offset", [0, 0, 0]))
    encoding = scale.get("encoding")
    if not isinstance(encoding, str):
        raise MetadataError(f"encoding must be a name, not {brief(encoding)}")
    is_raw = encoding.lower() == "raw"
    data_type = document["data_type"]
    nbytes = item_nbytes(data_type.lower()) if isinstance(data_type, str) else None
    shape, inner = size + nchannels, chunk_shape + nchannels
    grid = VolumeGrid.of(shape, inner, offset, sharding, nbytes or _LARGEST_ITEM, is_raw=is_raw and nbytes is not None)
    metadata = _metadata(document, scale, shape)
    codecs: tuple[Extension, ...]
    if is_raw:
        order = {"order": list(reversed(range(len(shape))))}
        codecs = (Extension("transpose", order), Extension("bytes", {"endian": "little"}))
    else:
        codecs = (Extension(f"neuroglancer.{encoding.lower()}", {}),)
    shown = metadata.unsharded(inner, codecs)
    identity = canonical([shown, sharding.__dict__, offset])
    fingerprint = blake2b(identity.encode(), digest_size=16).digest()
    return metadata, ScaleChunks(grid, ShardNames.of(sharding), shown, codecs, fingerprint)


def _metadata(document: Document, scale: Document, shape: Coords) -> ForeignMetadata:
    """Describe a scale as if it were an array of Zarr."""
    data_type, sharding = document["data_type"], scale["sharding"]
    return ForeignMetadata.of(
        shape,
        data_type.lower() if isinstance(data_type, str) else brief(data_type),
        0,
        Extension(UINT64_SHARDED, sharding if isinstance(sharding, dict) else {}),
        _CODEC,
        _NO_KEYS,
        attributes={name: scale[name] for name in ("resolution", "voxel_offset") if name in scale},
        dimension_names=["x", "y", "z", "channel"][: len(shape)],
    )


def _lengths(value: Json, where: str, *, minimum: int, ndim: int = _AXES) -> tuple[int, ...]:
    return parse_lengths(_integers(value), where, minimum=minimum, ndim=ndim)


def _offset(value: Json) -> tuple[int, ...]:
    offset = _integers(value)
    if not isinstance(offset, list) or len(offset) != _AXES or not all(map(_is_offset, offset)):
        raise MetadataError(f"voxel_offset must be a list of {_AXES} integers, not {brief(value)}")
    return tuple(offset)


def _is_offset(value: Json) -> bool:
    return type(value) is int and abs(value) < MAX_LENGTH // 2


def _integers(value: Json) -> Json:
    """Return a list with integers in place of numbers that are integers, as JavaScript writes them."""
    if not isinstance(value, list):
        return value
    return [int(each) if isinstance(each, float) and each.is_integer() else each for each in value]
