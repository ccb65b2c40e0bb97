"""Volumes of neuroglancer, written by tensorstore and read through the pure format: the oracle and the subject."""

import gzip
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from shardfs.format.document import parse_json
from shardfs.format.foreign import Foreign
from shardfs.formats.precomputed.uint64_sharded import MinishardCodecs
from shardfs.formats.precomputed.volume import parse_volume

KEY = "8_8_40"


def sharding(
    preshift_bits: int = 1,
    hash: str = "identity",
    minishard_bits: int = 2,
    shard_bits: int = 1,
    index: str = "raw",
    data: str = "raw",
) -> dict[str, Any]:
    """A sharding specification."""
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": preshift_bits,
        "hash": hash,
        "minishard_bits": minishard_bits,
        "shard_bits": shard_bits,
        "minishard_index_encoding": index,
        "data_encoding": data,
    }


def scale(
    size: tuple[int, ...], chunk: tuple[int, ...], specification: dict[str, Any] | None, **members: Any
) -> dict[str, Any]:
    """A scale of an `info`."""
    found = {
        "key": KEY,
        "size": list(size),
        "chunk_sizes": [list(chunk)],
        "resolution": [8, 8, 40],
        "voxel_offset": [0, 0, 0],
        "encoding": "raw",
        **members,
    }
    return found if specification is None else {**found, "sharding": specification}


def info(*scales: dict[str, Any], data_type: str = "uint16", num_channels: int = 1, **members: Any) -> dict[str, Any]:
    """An `info` document."""
    kind = "neuroglancer_multiscale_volume"
    return {
        "@type": kind,
        "type": "image",
        "data_type": data_type,
        "num_channels": num_channels,
        "scales": list(scales),
        **members,
    }


def opened(kvstore: Any, document: dict[str, Any], index: int = 0) -> Any:
    """A scale of an `info`, made in *kvstore* by tensorstore."""
    made = dict(document["scales"][index])
    made["chunk_size"] = made.pop("chunk_sizes")[0]
    spec: dict[str, Any] = {"driver": "neuroglancer_precomputed", "kvstore": kvstore, "scale_metadata": made}
    spec["multiscale_metadata"] = {name: document[name] for name in ("type", "data_type", "num_channels")}
    return tensorstore.open(spec, create=True, open=True).result()


def stored_files(kvstore: Any) -> dict[str, bytes]:
    """All that is stored, by key."""
    return {key.decode(): bytes(kvstore[key]) for key in kvstore.list().result()}


def chunks_in(files: Mapping[str, bytes], key: str = KEY) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Coordinates and bytes of the chunks of a scale that are stored in *files*, found by the pure format."""
    found = scale_in(files, key)
    assert found.chunks is not None, found.reason
    grid, names = found.chunks.grid, found.chunks.shard_names
    for coords in np.ndindex(grid.grid_shape):
        place = grid.locate(coords)
        assert grid.coords(place) == coords
        shard = files.get(f"{key}/{names.encode(place.shard)}")
        if shard is None:
            continue
        head = shard[: grid.index_nbytes(place.shard)]
        outer = grid.levels[0].index_codecs.decode(head, grid.index_shape(place.shard), len(shard))
        where = outer.range(place.entries[0])
        if where is None:
            continue
        codecs = grid.levels[1].index_codecs
        assert isinstance(codecs, MinishardCodecs)
        listed = codecs.decode_listed(shard[where[0] : sum(where)], len(shard))
        assert grid.belonging(listed, place).all()
        at = listed.range(place.entries[1])
        if at is not None:
            data = shard[at[0] : sum(at)]
            yield coords, gzip.decompress(data) if len(grid.levels) > 2 else data


def scale_in(files: Mapping[str, bytes], key: str = KEY) -> Foreign:
    """A scale of the volume in *files*."""
    volume = parse_volume(parse_json(files["info"]))
    assert volume is not None
    return volume.below[key]


def minishard_index(chunks: list[tuple[int, int, int]]) -> bytes:
    """The index of a minishard that lists id, offset behind the shard's index, and size of each chunk."""
    rows = np.array(chunks, dtype=np.uint64).reshape(-1, 3)
    ids, offsets, sizes = rows.T
    ends = np.concatenate([np.zeros(1, np.uint64), (offsets + sizes)[:-1]])
    deltas = np.diff(ids, prepend=np.uint64(0)) if len(ids) else ids
    return np.stack([deltas, offsets - ends[: len(offsets)], sizes]).astype("<u8").tobytes()


def shard(minishards: list[list[tuple[int, bytes]]], *, index: bool = False) -> bytes:
    """A shard, its chunks by minishard and id; everything raw, or minishard indexes under gzip."""
    payload, table = b"", b""
    for chunks in minishards:
        listed = []
        for chunk_id, data in chunks:
            listed.append((chunk_id, len(payload), len(data)))
            payload += data
        encoded = minishard_index(listed) if chunks else b""
        encoded = gzip.compress(encoded) if index and chunks else encoded
        table += struct.pack("<QQ", len(payload), len(payload) + len(encoded))
        payload += encoded
    return table + payload


def write_volume(directory: Path, document: dict[str, Any], values: Sequence[np.ndarray]) -> None:
    """Write a volume to *directory*, with the *values* of each scale; tensorstore leaves out chunks of zeros."""
    for index, data in enumerate(values):
        opened({"driver": "file", "path": str(directory)}, document, index).write(data).result()


def read_volume(directory: Path, index: int = 0) -> np.ndarray:
    """The values of a scale, read by tensorstore."""
    spec = {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": str(directory)}}
    found = tensorstore.open(spec | {"scale_index": index}, read=True, open=True).result()
    return np.asarray(found.read().result())


def names_in(document: dict[str, Any], index: int = 0) -> dict[str, tuple[slice, ...]]:
    """The chunks of a scale by the names that the specification gives them, and where they are in it."""
    members = document["scales"][index]
    size, edges, offset = members["size"], members["chunk_sizes"][0], members["voxel_offset"]
    found = {}
    for coords in np.ndindex(*[-(-length // edge) for length, edge in zip(size, edges, strict=True)]):
        ranges = [(i * edge, min((i + 1) * edge, length)) for i, edge, length in zip(coords, edges, size, strict=True)]
        name = "_".join(f"{at + start}-{at + stop}" for (start, stop), at in zip(ranges, offset, strict=True))
        found[name] = tuple(slice(*each) for each in ranges)
    return found
