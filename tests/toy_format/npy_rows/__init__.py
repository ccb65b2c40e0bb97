"""A format in a package of its own: a `.npy` file, by itself or called `rows.npy` in a directory, cut into its rows."""

import io
import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from shardfs.errors import CorruptionError, MetadataError, NotUnshardable
from shardfs.format.document import MAX_LENGTH, MAX_NDIM, canonical
from shardfs.format.dtype import v3_data_type, v3_fill_value
from shardfs.formats import (
    Extension,
    FileSource,
    Foreign,
    ForeignChunks,
    ForeignGrid,
    ForeignMetadata,
    Format,
    FoundNode,
    IndexCodecs,
    OneShard,
    ShardIndex,
    SingleFile,
    SourceDirectory,
    regular_grid,
)
from shardfs.stores.base import Reader

FILE: Final = "rows.npy"
MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER_NBYTES: Final = 4096
_CODEC: Final = Extension("npy", {})


@dataclass(frozen=True, slots=True)
class RowIndex(IndexCodecs):
    """The index of a file, which is not stored: its rows are one after another, from *start* to its end."""

    start: int
    nrows: int
    row_nbytes: int

    def nbytes(self, nentries: int) -> int:
        """Return 0."""
        return 0

    def decode(self, encoded: bytes, chunks_per_shard: tuple[int, ...], shard_nbytes: int) -> ShardIndex:
        """Return where the rows are; a file that is too short has some of them beyond its end."""
        starts = self.start + np.arange(self.nrows, dtype=np.uint64) * np.uint64(self.row_nbytes)
        rows = np.stack([starts, np.full(self.nrows, self.row_nbytes, np.uint64)], axis=1).reshape(-1)
        return ShardIndex(rows.data.cast("B").cast("Q"), encoded, shard_nbytes)


class NpyRows(Format):
    """TargetFiles of NumPy."""

    name = "npy"
    documents = frozenset({FILE})
    suffixes = (".npy",)

    def open(self, source: FileSource) -> Reader:
        """Return a directory with the file in it."""
        return SingleFile(source.url, source.files, source.name, FILE, ttl=source.ttl)

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return the array of a file."""
        if known is not None and await directory.version(FILE) == known.stamp:
            return known
        snapshot = await directory.store.open(directory.key(FILE), head_nbytes=_MAX_HEADER_NBYTES)
        head = bytes(await snapshot.read(0, min(snapshot.size, _MAX_HEADER_NBYTES)))
        return FoundNode(describe(head, snapshot.size), snapshot.stat, snapshot.stat.version)


def describe(head: bytes, size: int) -> Foreign | None:
    """Return the array in a file of *size* bytes that begins with *head*; None if it is no file of NumPy."""
    if not head.startswith(MAGIC):
        return None
    try:
        metadata, chunks = _parse(head, size)
        return Foreign(format="npy", kind="a file of NumPy", metadata=metadata, chunks=chunks, describing=FILE)
    except (MetadataError, CorruptionError) as error:
        metadata = ForeignMetadata.of((), "uint8", 0, regular_grid(()), _CODEC)
        is_damaged = isinstance(error, CorruptionError)
        return Foreign(
            format="npy",
            kind="a file of NumPy",
            metadata=metadata,
            describing=FILE,
            reason=str(error),
            is_damaged=is_damaged,
        )


def _parse(head: bytes, size: int) -> tuple[ForeignMetadata, ForeignChunks]:
    shape, dtype, start = _header(head)
    if not 1 <= len(shape) <= MAX_NDIM or not all(0 < length < MAX_LENGTH for length in shape):
        raise MetadataError(f"an array of the shape {shape} has no rows")
    nrows, row_nbytes = shape[0], math.prod(shape[1:]) * dtype.itemsize
    if row_nbytes > MAX_LENGTH:
        raise MetadataError(f"rows of {row_nbytes} bytes are more than shardfs can count")
    if start + nrows * row_nbytes > size:
        raise CorruptionError(f"it has {size} of {start + nrows * row_nbytes} bytes")
    try:
        data_type = v3_data_type(dtype)
    except NotUnshardable as error:
        raise MetadataError(str(error)) from None
    row = (1, *shape[1:])
    grid = ForeignGrid.cut(shape, shape, row, RowIndex("little", (), (), start, nrows, row_nbytes))
    endian = {} if dtype.itemsize == 1 else {"endian": "big" if dtype.str[0] == ">" else "little"}
    codecs = (Extension("bytes", endian),)
    fill_value = v3_fill_value(data_type, bytes(dtype.itemsize))
    metadata = ForeignMetadata.of(shape, data_type, fill_value, regular_grid(shape), _CODEC)
    document = metadata.unsharded(row, codecs)
    fingerprint = blake2b(canonical([document, start]).encode(), digest_size=16).digest()
    return metadata, ForeignChunks(grid, OneShard.of(FILE), document, codecs, fingerprint)


def _header(head: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(file)
    except (KeyError, ValueError, TypeError) as error:
        raise MetadataError(f"its header cannot be read: {error}") from None
    if is_fortran or dtype.kind not in "biufc":
        raise MetadataError(f"only numbers in C order have rows here, and not {dtype.str}")
    return shape, dtype, file.tell()


FORMAT: Final = NpyRows()
