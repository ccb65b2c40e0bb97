"""webKnossos-wrap (WKW): volumes of blocks of voxels, many of which are in one file.

`header.wkw` describes the files `zZ/yY/xX.wkw` beside it, each of which is a cube of blocks in Morton order, behind a
header of its own and, if blocks are compressed, the ends of all blocks. So an array of WKW is a grid of shards whose
index is at the start. Along the axes c, x, y and z, a raw block is a chunk of Zarr in Fortran order; one under LZ4 is
one too, but that numcodecs wants the decoded size in front.

`datasource-properties.json`, two directories above, tells how large the volume is; without it, its files do.

Sources: webknossos-wrap, "The webKNOSSOS Wrapper Format", and its library; datasets of webKnossos as observed.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.document import MAX_LENGTH, Extension, Json, canonical
from shardfs.format.foreign import Foreign, ForeignChunks, ForeignGrid, ForeignMetadata, regular_grid
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, parse_coordinate
from shardfs.format.index import ENTRY_NBYTES, IndexCodecs, ShardIndex
from shardfs.format.sharding import (
    MAX_DECODED_NBYTES,
    MAX_INDEX_NBYTES,
    POSITION_BITS,
    Coords,
    ShardingLevel,
    count_positions,
)

HEADER: Final = "header.wkw"
PROPERTIES: Final = "datasource-properties.json"
HEADER_NBYTES: Final = 16
MAGIC: Final = b"WKW"
_VERSION: Final = 1
_RAW: Final = 1
_BLOCKS: Final = {_RAW: "raw", 2: "LZ4", 3: "LZ4HC"}
_DATA_TYPES: Final = {
    1: ("uint8", 1),
    2: ("uint16", 2),
    3: ("uint32", 4),
    4: ("uint64", 8),
    5: ("float32", 4),
    6: ("float64", 8),
    7: ("int8", 1),
    8: ("int16", 2),
    9: ("int32", 4),
    10: ("int64", 8),
}
_AXES: Final = ("x", "y", "z")
_CODEC: Final = Extension("wkw", {})
_END_NBYTES: Final = 8
_DAMAGED: Final = np.uint64(2**63)  # a length beyond every file
_KEY: Final = re.compile(r"z([0-9]+)/y([0-9]+)/x([0-9]+)\.wkw")
_DIRECTORY: Final = re.compile(r"z(?P<z>[0-9]+)(/y(?P<y>[0-9]+))?")
_MAX_TEXT: Final = 64
_UNBOUNDED: Final = (
    f"{PROPERTIES}, two directories above, does not say how large it is, and a web server does not list its files: let "
    "SOURCE be the dataset, if that file is there; else copy the array, or read it where files can be listed"
)


@dataclass(frozen=True)
class WkwHeader:
    """What the header of a file says of it, but where its blocks begin.

    Blocks have 2**block_bits voxels along each axis, files 2**file_bits blocks.
    """

    block_bits: int
    file_bits: int
    is_compressed: bool
    data_type: str
    item_nbytes: int
    nchannels: int

    @classmethod
    def parse(cls, data: bytes) -> "WkwHeader":
        """Parse the bytes of a header; raises `MetadataError` with the reason why such files cannot be read."""
        if len(data) < HEADER_NBYTES or not data.startswith(MAGIC):
            raise MetadataError("it has no header of WKW")
        version, bits, block_type, voxel_type, voxel_nbytes = data[3:8]
        if version != _VERSION:
            raise MetadataError(f"version {version} of WKW is not known")
        if block_type not in _BLOCKS:
            raise MetadataError(f"blocks of the type {block_type} are not known")
        if voxel_type not in _DATA_TYPES:
            raise MetadataError(f"voxels of the type {voxel_type} are not known")
        data_type, item_nbytes = _DATA_TYPES[voxel_type]
        nchannels, rest = divmod(voxel_nbytes, item_nbytes)
        if rest or not nchannels:
            raise MetadataError(f"voxels of {voxel_nbytes} bytes have no channels of {data_type}")
        header = cls(bits & 0xF, bits >> 4, block_type != _RAW, data_type, item_nbytes, nchannels)
        if header.nblocks * ENTRY_NBYTES > MAX_INDEX_NBYTES:
            raise MetadataError(
                f"an index of {header.nblocks} blocks is larger than the {MAX_INDEX_NBYTES // 2**20} MiB that are read"
            )
        if header.nblocks * header.block_nbytes >= MAX_LENGTH:
            raise MetadataError(f"blocks of {header.block_nbytes} bytes are larger than files can be")
        return header

    @property
    def nblocks(self) -> int:
        """Number of blocks in a file."""
        return 1 << 3 * self.file_bits

    @property
    def block_nbytes(self) -> int:
        """Size of a block that is not compressed."""
        return self.nchannels * self.item_nbytes << 3 * self.block_bits

    @property
    def file_length(self) -> int:
        """Length of a file along each axis, in voxels."""
        return 1 << self.block_bits + self.file_bits

    def __str__(self) -> str:
        blocks = "LZ4" if self.is_compressed else "raw"
        lengths = f"{1 << self.file_bits} {blocks} blocks of {1 << self.block_bits} voxels along each axis"
        return f"{lengths}, {self.nchannels} × {self.data_type}"


@lru_cache(8)
def _numbers_in_c_order(file_bits: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the blocks of a file, which are in Morton order, in C order along x, y and z."""
    positions = np.indices((1 << file_bits,) * len(_AXES)).reshape(len(_AXES), -1)
    numbers = np.zeros(positions.shape[1], np.int64)
    for bit in range(file_bits):
        for axis in range(len(_AXES)):
            numbers |= (positions[axis] >> bit & 1) << (len(_AXES) * bit + axis)
    return numbers


@dataclass(frozen=True, slots=True)
class WkwIndex(IndexCodecs):
    """The index at the start of a file: its header, and the ends of its blocks if they are compressed."""

    header: WkwHeader

    def nbytes(self, nentries: int) -> int:
        """Return the size of the index."""
        return HEADER_NBYTES + (_END_NBYTES * self.header.nblocks if self.header.is_compressed else 0)

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> ShardIndex:
        """Decode the index of a file of *shard_nbytes* bytes; its entries are in C order.

        Raises `CorruptionError` if the file is not as the header of the array says.
        """
        try:
            header = WkwHeader.parse(encoded)
        except MetadataError as error:
            raise CorruptionError(str(error)) from None
        if header != self.header:
            raise CorruptionError(f"it has {header}; {HEADER} says {self.header}")
        begin = int.from_bytes(encoded[8:HEADER_NBYTES], "little")
        if not len(encoded) <= begin <= shard_nbytes:
            raise CorruptionError(
                f"its blocks begin at byte {begin} of {shard_nbytes}, behind an index of {len(encoded)}"
            )
        if header.is_compressed:
            bounds = np.concatenate([np.array([begin], np.uint64), np.frombuffer(encoded, "<u8", offset=HEADER_NBYTES)])
            starts, stops = bounds[:-1], bounds[1:]
            # No block is compressed to nothing.
            nbytes = np.where(stops > starts, stops - starts, _DAMAGED)
        else:
            nbytes = np.full(header.nblocks, header.block_nbytes, np.uint64)
            starts = np.uint64(begin) + np.arange(header.nblocks, dtype=np.uint64) * np.uint64(header.block_nbytes)
        rows = np.stack([starts, nbytes], axis=1)[_numbers_in_c_order(header.file_bits)]
        return ShardIndex(rows.astype(np.uint64).reshape(-1).data.cast("B").cast("Q"), encoded, shard_nbytes)


@dataclass(frozen=True, slots=True)
class WkwNames(ChunkKeyEncoding):
    """The names of files, `zZ/yY/xX.wkw`; a file has the coordinates 0, X, Y and Z."""

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name*, in the directory of the array, is a directory of files."""
        return "/" not in name and self.leads(name)

    def leads(self, path: str) -> bool:
        """Whether the directory at *path*, relative to the array, has files in it or below it."""
        found = _DIRECTORY.fullmatch(path)
        return found is not None and all(number is None or _is_number(number) for number in found.groupdict().values())

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the name of the file at *coords*."""
        _, *numbers = coords
        parts = zip(COMPONENTS, reversed(numbers), strict=True)
        return "/".join(f"{before}{number}{after}" for (before, after), number in parts)

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates of the file *key*; None if it is none."""
        found = _KEY.fullmatch(key)
        if found is None or not all(map(_is_number, found.groups())):
            return None
        z, y, x = map(int, found.groups())
        return 0, x, y, z


def _is_number(text: str) -> bool:
    return parse_coordinate(text) is not None


NAMES: Final = WkwNames("wkw", "")
COMPONENTS: Final = (("z", ""), ("y", ""), ("x", ".wkw"))
"""What is before and after the number in each component of the name of a file."""


@dataclass(frozen=True, slots=True)
class WkwGrid(ForeignGrid):
    """The blocks of an array, with the axes c, x, y and z.

    *decoded_nbytes* is set if blocks are compressed: numcodecs wants it in front of each.
    """

    decoded_nbytes: int | None

    @classmethod
    def of(cls, header: WkwHeader, shape: Coords) -> "WkwGrid":
        """Describe an array of *shape*; raises `MetadataError` if it is too large."""
        chunk_shape = (header.nchannels, *(1 << header.block_bits for _ in _AXES))
        shards = ChunkGrid.regular(shape, (header.nchannels, *(header.file_length for _ in _AXES)))
        grid_shape = ChunkGrid.regular(shape, chunk_shape).shape
        if count_positions(grid_shape) > 2**POSITION_BITS:
            raise MetadataError(f"{math.prod(grid_shape)} blocks are more than shardfs can count")
        ndim = len(shape)
        codecs = WkwIndex("little", (), (), header)
        level = ShardingLevel(tuple(range(ndim)), (1,) * ndim, codecs, True, (), MAX_DECODED_NBYTES)
        decoded_nbytes = header.block_nbytes if header.is_compressed else None
        return cls(shards, chunk_shape, (level,), grid_shape, ndim - 1, decoded_nbytes)

    @property
    def chunk_header(self) -> bytes:
        """The size of a decoded block, if blocks are compressed."""
        return b"" if self.decoded_nbytes is None else self.decoded_nbytes.to_bytes(4, "little")


@dataclass(frozen=True)
class Layer:
    """What `datasource-properties.json` says of an array: its *shape* along x, y and z, and *attributes*."""

    shape: Coords
    attributes: dict[str, Json]


def parse_array(data: bytes, layer: Layer | None, files: Iterable[Coords] | None) -> Foreign | None:
    """Return the array whose `header.wkw` begins with *data*; None if it is none of WKW.

    Its shape is that of *layer*, or without one what the *files* at these coordinates cover, unless nobody knows them.
    """
    if not data.startswith(MAGIC):
        return None
    try:
        metadata, chunks = _described(WkwHeader.parse(data), layer, files)
        return _array(metadata, chunks)
    except MetadataError as error:
        return _array(ForeignMetadata.of((), "uint8", 0, regular_grid(()), _CODEC), reason=str(error))


def _array(metadata: ForeignMetadata, chunks: ForeignChunks | None = None, *, reason: str | None = None) -> Foreign:
    return Foreign(
        format="wkw", kind="an array of WKW", metadata=metadata, chunks=chunks, reason=reason, describing=HEADER
    )


def _described(
    header: WkwHeader, layer: Layer | None, files: Iterable[Coords] | None
) -> tuple[ForeignMetadata, ForeignChunks]:
    if layer is None:
        if files is None:
            raise MetadataError(_UNBOUNDED)
        last = np.array([coords[1:] for coords in files], np.object_).reshape(-1, len(_AXES)).max(axis=0, initial=-1)
        layer = Layer(tuple((int(index) + 1) * header.file_length for index in last), {})
    if max(layer.shape) > MAX_LENGTH - header.file_length:
        raise MetadataError(f"its lengths {list(layer.shape)} are more than shardfs can count")
    shape = (header.nchannels, *layer.shape)
    grid = WkwGrid.of(header, shape)
    codecs = [Extension("transpose", {"order": [3, 2, 1, 0]})]
    codecs.append(Extension("bytes", {"endian": "little"} if header.item_nbytes > 1 else {}))
    if header.is_compressed:
        if header.block_nbytes >= 2**31:
            raise MetadataError(f"blocks of {header.block_nbytes} bytes are larger than LZ4 decodes")
        codecs.append(Extension("numcodecs.lz4", {"acceleration": 1}))
    lengths = tuple(dimension.runs[0][0] for dimension in grid.shards.dimensions)
    metadata = ForeignMetadata.of(
        shape,
        header.data_type,
        0.0 if header.data_type.startswith("float") else 0,
        regular_grid(lengths),
        _CODEC,
        attributes=layer.attributes,
        dimension_names=["c", *_AXES][: len(shape)],
    )
    document = metadata.unsharded(grid.chunk_shape, codecs)
    identity = canonical([document["chunk_grid"], document["codecs"], header.data_type, header.file_bits])
    fingerprint = blake2b(identity.encode(), digest_size=16).digest()
    return metadata, ForeignChunks(grid, NAMES, document, tuple(codecs), fingerprint)


def places_of(path: str) -> tuple[str, str, str]:
    """Return the directory of the dataset of an array at *path*, and the names of its layer and magnification."""
    above, _, magnification = path.rpartition("/")
    root, _, layer = above.rpartition("/")
    return root, layer, magnification


def find_layer(properties: Json, path: str) -> Layer | None:
    """Return what `datasource-properties.json` says of the array at *path*, two directories below.

    None if it says nothing that can be used.
    """
    _, layer, magnification = places_of(path)
    for described in _layers(properties):
        if described.get("name") != layer:
            continue
        factors, box = _magnification(described, layer, magnification), described.get("boundingBox")
        if factors is None or not isinstance(box, dict):
            return None
        corner = _integers(box.get("topLeft"))
        lengths = _integers([box.get(name) for name in ("width", "height", "depth")])
        if corner is None or lengths is None:
            return None
        ends = (max(begin + length, 0) for begin, length in zip(corner, lengths, strict=True))
        attributes = {
            "bounding_box": {"top_left": list(corner), "size": list(lengths)},
            "magnification": list(factors),
            **_scale(properties.get("scale")),
        }
        if isinstance(category := described.get("category"), str) and len(category) <= _MAX_TEXT:
            attributes["category"] = category
        return Layer(tuple(-(-end // factor) for end, factor in zip(ends, factors, strict=True)), attributes)
    return None


def array_paths(properties: Json) -> Iterator[str]:
    """Yield the paths of arrays that `datasource-properties.json` names, in whatever format they are."""
    for described in _layers(properties):
        layer = described.get("name")
        for stored in _stored(described):
            path = stored.get("path")
            factors = _factors(stored.get("mag", stored.get("resolution")))
            if isinstance(path, str):
                yield _relative(path)
            elif isinstance(layer, str) and factors is not None:
                is_cubic = len(set(factors)) == 1
                yield f"{layer}/{factors[0] if is_cubic else '-'.join(map(str, factors))}"


def _layers(properties: Json) -> list[dict[str, Json]]:
    layers = properties.get("dataLayers") if isinstance(properties, dict) else None
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _stored(layer: dict[str, Json]) -> list[dict[str, Json]]:
    """Return what is said of the magnifications of a layer, in one of the spellings."""
    given = layer.get("mags", layer.get("wkwResolutions"))
    return [stored for stored in given if isinstance(stored, dict)] if isinstance(given, list) else []


def _relative(path: str) -> str:
    return path.removeprefix("./").strip("/")


def _magnification(described: dict[str, Json], layer: str, name: str) -> tuple[int, ...] | None:
    """Return the factors of the magnification that is stored in the directory *name*."""
    for stored in _stored(described):
        path = stored.get("path")
        if isinstance(path, str) and _relative(path) == f"{layer}/{name}":
            return _factors(stored.get("mag", stored.get("resolution")))
    parts = name.split("-")
    return _factors([int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else 0 for part in parts])


def _factors(value: Json) -> tuple[int, ...] | None:
    """Return the factors in one of the spellings of a magnification: 2, [2], [2, 2, 1]."""
    values = value if isinstance(value, list) else [value]
    values = values * len(_AXES) if len(values) == 1 else values
    factors = _integers(values)
    return factors if factors is not None and min(factors) > 0 else None


def _integers(value: Json) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) != len(_AXES):
        return None
    return tuple(value) if all(type(each) is int and abs(each) < MAX_LENGTH // 4 for each in value) else None


def _scale(value: Json) -> dict[str, Json]:
    """Return the size of a voxel, in one of its spellings: in nanometers, or with another unit."""
    unit: Json = value.get("unit") if isinstance(value, dict) else "nanometer"
    factors: Json = value.get("factor") if isinstance(value, dict) else value
    if (
        not isinstance(unit, str)
        or len(unit) > _MAX_TEXT
        or not isinstance(factors, list)
        or len(factors) != len(_AXES)
    ):
        return {}
    if not all(type(each) in (int, float) for each in factors):
        return {}
    return {"voxel_size": {"factor": list(factors), "unit": unit}}
