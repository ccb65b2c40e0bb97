"""Arrays that the storage transformer `indexed` of ZEP 2's first draft shards, made and read by NumPy alone."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

EXTENSION = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"
EMPTY = 2**64 - 1


def indexed_document(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...], chunks_per_shard: tuple[int, ...], **members: Any
) -> dict[str, Any]:
    """The document of an array of little-endian uint16 under gzip."""
    configuration = {"chunks_per_shard": list(chunks_per_shard)}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 9,
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "gzip", "configuration": {"level": 1}},
        ],
        "storage_transformers": [{"extension": EXTENSION, "type": "indexed", "configuration": configuration}],
        **members,
    }


def write_indexed(directory: Path, document: dict[str, Any], values: np.ndarray) -> None:
    """Store *values*; chunks that are nothing but the fill value are left out."""
    directory.mkdir(parents=True)
    (directory / "zarr.json").write_text(json.dumps(document))
    chunk_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    per_shard = document["storage_transformers"][0]["configuration"]["chunks_per_shard"]
    shards: dict[tuple[int, ...], dict[int, bytes]] = {}
    for coords in product(*(range(-(-n // edge)) for n, edge in zip(values.shape, chunk_shape, strict=True))):
        chunk = np.full(chunk_shape, document["fill_value"], "<u2")
        part = values[tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunk_shape, strict=True))]
        chunk[tuple(map(slice, part.shape))] = part
        if (chunk != document["fill_value"]).any():
            shard = tuple(i // n for i, n in zip(coords, per_shard, strict=True))
            entry = int(np.ravel_multi_index([i % n for i, n in zip(coords, per_shard, strict=True)], per_shard))
            shards.setdefault(shard, {})[entry] = gzip.compress(chunk.tobytes(), mtime=0)
    for shard, chunks in shards.items():
        index = np.full((math.prod(per_shard), 2), EMPTY, "<u8")
        stored = b""
        for entry, data in chunks.items():
            index[entry] = len(stored), len(data)
            stored += data
        path = directory / "/".join(["c", *map(str, shard)])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored + index.tobytes())


def read_indexed(read: Callable[[str], bytes | None]) -> np.ndarray:
    """Read an array of such a document; *read* gives what is stored under a name, None for nothing."""
    document = json.loads(read("zarr.json") or b"")
    (transformer,) = document["storage_transformers"]
    assert (transformer["extension"], transformer["type"]) == (EXTENSION, "indexed")
    per_shard = transformer["configuration"]["chunks_per_shard"]
    chunk_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    grid = [-(-n // edge) for n, edge in zip(document["shape"], chunk_shape, strict=True)]
    values = np.full([n * edge for n, edge in zip(grid, chunk_shape, strict=True)], document["fill_value"], "<u2")
    for coords in product(*map(range, grid)):
        stored = read("/".join(["c", *(str(i // n) for i, n in zip(coords, per_shard, strict=True))]))
        if stored is not None:
            index = np.frombuffer(stored[-16 * math.prod(per_shard) :], "<u8").reshape(*per_shard, 2)
            offset, nbytes = map(int, index[tuple(i % n for i, n in zip(coords, per_shard, strict=True))])
            if offset != EMPTY:
                chunk = np.frombuffer(gzip.decompress(stored[offset : offset + nbytes]), "<u2").reshape(chunk_shape)
                values[tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunk_shape, strict=True))] = chunk
    return values[tuple(map(slice, document["shape"]))]


def stored_below(directory: Path) -> Callable[[str], bytes | None]:
    """What `read_indexed` reads of a directory."""
    return lambda name: (directory / name).read_bytes() if (directory / name).exists() else None
