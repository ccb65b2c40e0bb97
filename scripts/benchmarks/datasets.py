"""The arrays that are measured: sharded ones, and the same inner chunks as the files of an unsharded array.

Shards are written byte by byte, not through a library: that is fast, and it makes shards that no library would
write, with ten million entries that share a few payloads. Every dataset is kept in a directory of its own, and is
made only once for as long as its recipe is the same.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from numcodecs.checksum32 import CRC32C

Coordinates = tuple[int, ...]

EMPTY = 2**64 - 1
"""Both values of an entry without an inner chunk."""


@dataclass(frozen=True)
class Dataset:
    """One array of unsigned integers, whose inner chunks are stored as they are."""

    name: str
    directory: Path
    shape: Coordinates
    shard: Coordinates
    inner: Coordinates
    data_type: str = "uint8"

    @property
    def sharded(self) -> Path:
        """The array that shardfs mounts."""
        return self.directory / "sharded"

    @property
    def unsharded(self) -> Path:
        """The same inner chunks as plain files; made for datasets with random payloads only."""
        return self.directory / "unsharded"

    @property
    def document(self) -> Path:
        """What an unsharded view of the array says about itself."""
        return self.directory / "unsharded.json"

    @property
    def grid(self) -> Coordinates:
        """The number of inner chunks along each axis."""
        return _ceil_divide(self.shape, self.inner)

    @property
    def chunks_per_shard(self) -> Coordinates:
        """The shape of every shard's index."""
        return _ceil_divide(self.shard, self.inner)

    @property
    def chunk_bytes(self) -> int:
        """The size of every chunk file."""
        return math.prod(self.inner) * np.dtype(self.data_type).itemsize

    @property
    def chunk_count(self) -> int:
        """The number of chunk files."""
        return math.prod(self.grid)

    def coordinates(self) -> list[Coordinates]:
        """The place of every inner chunk in the grid, in C order."""
        return list(product(*map(range, self.grid)))

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return math.prod(_ceil_divide(self.shape, self.shard))

    def shards(self) -> Iterator[Coordinates]:
        """The place of every shard."""
        return product(*map(range, _ceil_divide(self.shape, self.shard)))


def chunk_path(array: Path, coordinates: Coordinates) -> Path:
    """Where a chunk or a shard lies below its array, with the default chunk key encoding."""
    return array.joinpath("c", *map(str, coordinates))


def random_chunks(
    work: Path,
    name: str,
    shape: Coordinates,
    shard: Coordinates,
    inner: Coordinates,
    data_type: str = "uint8",
    *,
    unsharded: bool = True,
) -> Dataset:
    """An array of incompressible inner chunks, sharded and, if that is wanted, `unsharded` too."""
    dataset = Dataset(name, work / name, shape, shard, inner, data_type)
    if _is_made(dataset):
        return dataset
    _write_documents(dataset)
    if unsharded:
        dataset.unsharded.mkdir()
        shutil.copy(dataset.document, dataset.unsharded / "zarr.json")
    places = list(np.ndindex(dataset.chunks_per_shard))
    index = _index_of(dataset, np.arange(len(places)))
    for shard_coordinates in dataset.shards():
        with _create(chunk_path(dataset.sharded, shard_coordinates)) as file:
            for place in places:
                payload = os.urandom(dataset.chunk_bytes)
                file.write(payload)
                if unsharded:
                    chunk = _inner_coordinates(dataset, shard_coordinates, place)
                    with _create(chunk_path(dataset.unsharded, chunk)) as chunk_file:
                        chunk_file.write(payload)
            file.write(_encode(index))
    _mark_made(dataset)
    return dataset


def shared_payloads(
    work: Path, name: str, shape: Coordinates, shard: Coordinates, inner: Coordinates, payloads: int = 4
) -> Dataset:
    """A sharded array of sparse files, in which the entries of a shard take turns with a few payloads."""
    dataset = Dataset(name, work / name, shape, shard, inner)
    if _is_made(dataset):
        return dataset
    _write_documents(dataset)
    index = _index_of(dataset, np.arange(math.prod(dataset.chunks_per_shard)) % payloads)
    for shard_coordinates in dataset.shards():
        beyond = np.zeros(dataset.chunks_per_shard, dtype=bool)
        first = _inner_coordinates(dataset, shard_coordinates, (0,) * len(shape))
        for axis, (start, extent) in enumerate(zip(first, dataset.grid, strict=True)):
            np.moveaxis(beyond, axis, 0)[extent - start :] = True
        with _create(chunk_path(dataset.sharded, shard_coordinates)) as file:
            file.truncate(payloads * dataset.chunk_bytes)
            file.seek(0, os.SEEK_END)
            file.write(_encode(np.where(beyond[..., None], np.uint64(EMPTY), index)))
    _mark_made(dataset)
    return dataset


def _ceil_divide(numerator: Coordinates, denominator: Coordinates) -> Coordinates:
    return tuple(-(-n // d) for n, d in zip(numerator, denominator, strict=True))


def _inner_coordinates(dataset: Dataset, shard: Coordinates, place: Coordinates) -> Coordinates:
    return tuple(s * per_shard + p for s, per_shard, p in zip(shard, dataset.chunks_per_shard, place, strict=True))


def _index_of(dataset: Dataset, payload: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The index of a shard whose n-th inner chunk, in C order, is the payload of that number."""
    size = dataset.chunk_bytes
    entries = np.stack([payload * size, np.full_like(payload, size)], axis=-1).astype(np.uint64)
    return entries.reshape(*dataset.chunks_per_shard, 2)


def _encode(index: npt.NDArray[np.uint64]) -> bytes:
    """The bytes of an index: little-endian, and its checksum behind it."""
    return bytes(CRC32C(location="end").encode(index.astype("<u8").tobytes()))


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def _write_documents(dataset: Dataset) -> None:
    """Make the directory anew, with both documents."""
    shutil.rmtree(dataset.directory, ignore_errors=True)
    dataset.sharded.mkdir(parents=True)
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": dataset.inner,
            "codecs": [little_endian],
            "index_codecs": [little_endian, {"name": "crc32c"}],
            "index_location": "end",
        },
    }
    for path, chunk_shape, codec in (
        (dataset.sharded / "zarr.json", dataset.shard, sharding),
        (dataset.document, dataset.inner, little_endian),
    ):
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": dataset.shape,
            "data_type": dataset.data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [codec],
        }
        path.write_text(json.dumps(document, indent=2))


def _is_made(dataset: Dataset) -> bool:
    stamp = dataset.directory / "recipe"
    return stamp.exists() and stamp.read_text() == repr(dataset)


def _mark_made(dataset: Dataset) -> None:
    """Stamp a finished dataset, and let the disk rest before anything is measured."""
    os.sync()
    (dataset.directory / "recipe").write_text(repr(dataset))
