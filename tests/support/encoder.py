"""Encode sharded Zarr v3 arrays the way the specification words it: plainly, from nothing but the document.

The tests hold the product against these bytes, so nothing of the product is imported here. Each function
follows one paragraph: chunk grid, chunk key encoding, codec chain, shard, shard index.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any, Literal

import google_crc32c
import numcodecs
import numpy as np

Coordinates = tuple[int, ...]
Document = Mapping[str, Any]

EMPTY = 2**64 - 1
SHARDING = "sharding_indexed"


@dataclass(frozen=True)
class Layout:
    """What a shard's writer is free to choose: where payloads lie, and what is stored at all."""

    order: Literal["C", "reversed"] = "C"
    gaps: bool = False
    """Unused random bytes before, between and after the payloads, at every level."""
    foreign_prefix: int = 0
    """Bytes of another format (a TIFF header) before everything else in a stored shard."""
    shared: bool = False
    """Equal payloads of one shard are stored once."""
    keep_empty_shards: bool = False
    """A shard without any inner chunk is written all the same, as is an enclosed one."""
    store_beyond: bool = False
    """Inner chunks wholly beyond the array's shape are stored, too."""


@dataclass(frozen=True)
class Encoded:
    """A stored array, and what lies in it."""

    files: dict[str, bytes]
    """Stored shards by key, relative to the array's directory."""
    inner: dict[Coordinates, bytes]
    """Present innermost chunks that overlap the shape, by their coordinates in the unsharded grid."""
    values: np.ndarray
    """The array as a reader must see it: fill value where an inner chunk is absent."""


def encode(
    document: Document, values: np.ndarray, absent: frozenset[Coordinates] = frozenset(), layout: Layout = Layout()
) -> Encoded:
    """Store `values` under `document`, without the innermost chunks at the `absent` coordinates."""
    document = with_codec(document)
    fill_value = element(document["fill_value"], numpy_dtype(document["data_type"]))
    visible = np.full(values.shape, fill_value, fill_value.dtype)
    encoder = _Encoder(values, visible, absent, layout)
    files = {}
    for coordinates, origin, shape in shards(document):
        part = values[window(origin, shape)]
        if not part.size and not layout.store_beyond:
            continue
        padded = np.full(shape, fill_value, fill_value.dtype)
        padded[window((0,) * part.ndim, part.shape)] = part
        stored = encoder.encode_chunk(document["codecs"], Chunk(padded, origin, tuple(range(values.ndim))))
        if stored is not None:
            files[chunk_key(document, coordinates)] = stored
    return Encoded(files, dict(sorted(encoder.inner.items())), visible)


def with_codec(document: Document) -> Document:
    """The document as it is, or one with the sharding codec that lays out what the transformer `indexed` does."""
    transformers = document.get("storage_transformers")
    if not transformers:
        return document
    chunk_shape = named(document["chunk_grid"])[1]["chunk_shape"]
    chunks_per_shard = transformers[0]["configuration"]["chunks_per_shard"]
    shard_shape = [length * count for length, count in zip(chunk_shape, chunks_per_shard, strict=True)]
    index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    inner = {"chunk_shape": chunk_shape, "codecs": document["codecs"], "index_codecs": index_codecs}
    return {
        **{name: member for name, member in document.items() if name != "storage_transformers"},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard_shape}},
        "codecs": [{"name": SHARDING, "configuration": inner}],
    }


def window(origin: Sequence[int], shape: Sequence[int]) -> tuple[Any, ...]:
    """The index of a block, clipped by numpy to the array; an array even in no dimensions."""
    return (*(slice(start, start + length) for start, length in zip(origin, shape, strict=True)), ...)


def named(extension: Any) -> tuple[str, dict[str, Any]]:
    """An extension's name and configuration, from its object or its short-hand name."""
    if isinstance(extension, str):
        return extension, {}
    return extension["name"], extension.get("configuration", {})


def numpy_dtype(data_type: Any) -> np.dtype[Any]:
    name, configuration = named(data_type)
    if name == "string":
        return np.dtypes.StringDType()
    if name == "numpy.datetime64":
        return np.dtype(f"datetime64[{configuration['scale_factor']}{configuration['unit']}]")
    return np.dtype(name)


def element(fill_value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """The fill value as a 0-D array, which keeps every bit of a NaN."""
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.stack([element(each, part) for each in fill_value]).view(dtype).reshape(())
    if isinstance(fill_value, str) and fill_value.startswith("0x"):
        return np.frombuffer(bytes.fromhex(fill_value[2:])[::-1], dtype.newbyteorder("<")).reshape(())
    return np.array(fill_value, dtype)


def chunk_edges(document: Document) -> list[list[int]]:
    """The edge lengths of the chunk grid along each axis, those wholly beyond the extent included."""
    name, configuration = named(document["chunk_grid"])
    spellings = configuration["chunk_shapes" if name == "rectilinear" else "chunk_shape"]
    edges = []
    for spelling, extent in zip(spellings, document["shape"], strict=True):
        edges.append(_axis_edges(spelling, extent))
        if name == "zarrs.regular_bounded" and extent:
            edges[-1][-1] -= sum(edges[-1]) - extent
    return edges


def _axis_edges(spelling: int | Sequence[int | Sequence[int]], extent: int) -> list[int]:
    """A bare integer is repeated until the extent is covered; a list holds edges and [edge, count] runs."""
    if isinstance(spelling, int):
        return [spelling] * math.ceil(extent / spelling)
    runs = [(run, 1) if isinstance(run, int) else run for run in spelling]
    edges = [edge for edge, count in runs for _ in range(count)]
    assert min(edges) >= 1
    assert sum(edges) >= extent
    return edges


def shards(document: Document) -> Iterator[tuple[Coordinates, Coordinates, Coordinates]]:
    """Coordinates in the chunk grid, origin and shape of every shard."""
    edges = chunk_edges(document)
    starts = [list(accumulate(axis, initial=0)) for axis in edges]
    for coordinates in product(*(range(len(axis)) for axis in edges)):
        places = list(enumerate(coordinates))
        origin = tuple(starts[axis][place] for axis, place in places)
        yield coordinates, origin, tuple(edges[axis][place] for axis, place in places)


def chunk_key(document: Document, coordinates: Coordinates) -> str:
    name, configuration = named(document["chunk_key_encoding"])
    assert name in ("default", "v2")
    separator: str = configuration.get("separator", "/" if name == "default" else ".")
    return separator.join(["c"] * (name == "default") + [*map(str, coordinates)]) or "0"


def encode_array(codecs: Sequence[Any], values: np.ndarray) -> bytes:
    """Run a chain without a sharding codec: array → array, array → bytes, bytes → bytes."""
    data: Any = values
    for codec in codecs:
        data = apply(codec, data)
    assert isinstance(data, bytes)
    return data


def apply(codec: Any, data: Any) -> Any:
    """One step of a chain. `example.*` stands for codecs that no reader knows."""
    name, configuration = named(codec)
    match name:
        case "transpose":
            return data.transpose(configuration["order"])
        case "bytes" | "endian" | "example.raw":
            order = {"little": "<", "big": ">"}[configuration.get("endian", "little")]
            return data.astype(data.dtype.newbyteorder(order)).tobytes()
        case "vlen-utf8":
            texts = [text.encode() for text in data.ravel()]
            items = [len(text).to_bytes(4, "little") + text for text in texts]
            return len(items).to_bytes(4, "little") + b"".join(items)
        case "crc32c":
            return data + google_crc32c.value(data).to_bytes(4, "little")
        case "gzip":
            return zlib.compress(data, configuration["level"], wbits=31)
        case "zstd":
            return numcodecs.Zstd(configuration["level"], configuration["checksum"]).encode(data)
        case "blosc":
            shuffle = ["noshuffle", "shuffle", "bitshuffle"].index(configuration["shuffle"])
            return numcodecs.Blosc(**configuration | {"shuffle": shuffle}).encode(data)
        case "example.invert":
            return bytes(~byte & 0xFF for byte in data)
        case "example.nothing":
            return b""
        case _ if codec["must_understand"] is False:
            return data
    raise ValueError(f"this encoder knows no codec {name!r}")


@dataclass(frozen=True)
class Chunk:
    """A chunk at one level of the codecs: its values in that level's axes, its origin in the array's.

    Axis `i` of the values runs along axis `axes[i]` of the array.
    """

    values: np.ndarray
    origin: Coordinates
    axes: tuple[int, ...]

    def transpose(self, order: Sequence[int]) -> Chunk:
        return Chunk(self.values.transpose(order), self.origin, tuple(self.axes[axis] for axis in order))

    def inner_chunk(self, position: Coordinates, chunk_shape: Sequence[int]) -> Chunk:
        starts = [place * length for place, length in zip(position, chunk_shape, strict=True)]
        origin = list(self.origin)
        for axis, start in zip(self.axes, starts, strict=True):
            origin[axis] += start
        return Chunk(self.values[window(starts, chunk_shape)], tuple(origin), self.axes)

    @property
    def shape(self) -> Coordinates:
        """The chunk's lengths along the array's axes."""
        return self.values.transpose(np.argsort(self.axes)).shape


@dataclass(frozen=True)
class _Encoder:
    source: np.ndarray
    visible: np.ndarray
    absent: frozenset[Coordinates]
    layout: Layout
    inner: dict[Coordinates, bytes] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def encode_chunk(self, codecs: Sequence[Any], chunk: Chunk, depth: int = 0) -> bytes | None:
        """A chunk through its codecs; None if nothing of it is to be stored."""
        names = [named(codec)[0] for codec in codecs]
        if SHARDING not in names:
            return self.encode_innermost(codecs, chunk)
        at = names.index(SHARDING)
        for codec in codecs[:at]:
            assert named(codec)[0] == "transpose"
            chunk = chunk.transpose(named(codec)[1]["order"])
        data = self.encode_shard(named(codecs[at])[1], chunk, depth)
        if data is None:
            return None
        for codec in codecs[at + 1 :]:
            data = apply(codec, data)
        return data

    def encode_innermost(self, codecs: Sequence[Any], chunk: Chunk) -> bytes | None:
        """Encode an innermost chunk, and note it if it overlaps the array."""
        coordinates = tuple(start // length for start, length in zip(chunk.origin, chunk.shape, strict=True))
        region = window(chunk.origin, chunk.shape)
        overlap = self.source[region]
        if coordinates in self.absent or (not overlap.size and not self.layout.store_beyond):
            return None
        encoded = encode_array(codecs, chunk.values)
        if overlap.size:
            self.inner[coordinates] = encoded
            self.visible[region] = overlap
        return encoded

    def encode_shard(self, configuration: Mapping[str, Any], chunk: Chunk, depth: int) -> bytes | None:
        """Inner chunks one after another, and the shard index behind or before them."""
        chunk_shape = configuration["chunk_shape"]
        lengths = list(zip(chunk.values.shape, chunk_shape, strict=True))
        assert all(length % inner == 0 for length, inner in lengths)
        chunks_per_shard = tuple(length // inner for length, inner in lengths)
        payloads = {}
        for position in np.ndindex(chunks_per_shard):
            inner_chunk = chunk.inner_chunk(position, chunk_shape)
            payload = self.encode_chunk(configuration["codecs"], inner_chunk, depth + 1)
            if payload is not None:
                payloads[position] = payload
        if not payloads and not self.layout.keep_empty_shards:
            return None

        index = np.full((*chunks_per_shard, 2), EMPTY, np.uint64)
        index_size = len(encode_array(configuration["index_codecs"], index))
        at_start = configuration.get("index_location", "end") == "start"
        prefix_size = self.layout.foreign_prefix if depth == 0 else 0
        assert not (at_start and prefix_size), "an index at the start leaves no room for a foreign prefix"
        shard = bytearray(index_size if at_start else self.random.bytes(prefix_size))
        places: dict[bytes, int] = {}
        for position in reversed(payloads) if self.layout.order == "reversed" else payloads:
            payload = payloads[position]
            if not (self.layout.shared and payload in places):
                shard += self.gap()
                places[payload] = len(shard)
                shard += payload
            index[position] = places[payload], len(payload)
        shard += self.gap()
        encoded_index = encode_array(configuration["index_codecs"], index)
        return encoded_index + bytes(shard[index_size:]) if at_start else bytes(shard) + encoded_index

    def gap(self) -> bytes:
        return self.random.bytes(int(self.random.integers(1, 17))) if self.layout.gaps else b""
