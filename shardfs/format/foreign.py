"""What a directory is in another format than Zarr, which is only read: `Foreign`, of which every view and command asks.

Pure: a format makes these values of its documents, and nothing here knows of which format they are.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from shardfs.errors import MetadataError, NotUnshardable, RefusedError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import MAX_LENGTH, MAX_NDIM, Extension, Json
from shardfs.format.fence import fenced
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding
from shardfs.format.index import ENTRY_NBYTES, IndexCodecs
from shardfs.format.members import Buffer
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, parse_array, parse_group
from shardfs.format.sharding import (
    MAX_DECODED_NBYTES,
    MAX_INDEX_NBYTES,
    POSITION_BITS,
    Coords,
    ShardGrid,
    ShardingLevel,
    count_positions,
)

_KEYS: Final = Extension("default", {"separator": "/"})


def regular_grid(chunk_shape: Coords) -> Extension:
    """Return the grid of chunks of one shape."""
    return Extension("regular", {"chunk_shape": list(chunk_shape)})


class ForeignMetadata(ArrayMetadata):
    """An array of another format, described as a sharded one of Zarr would be."""

    @classmethod
    def of(
        cls,
        shape: Coords,
        data_type: Json,
        fill_value: Json,
        grid: Extension,
        codec: Extension,
        keys: Extension = _KEYS,
        **members: Json,
    ) -> "ForeignMetadata":
        """Describe an array whose shards have this *grid*, *codec* and *keys*; *members* say more.

        *data_type* and *fill_value* are those of Zarr v3. *codec* stands for how chunks are in shards; its name is
        shown to users as the one codec. *members* are `attributes`, `dimension_names`.
        """
        document: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": data_type,
            "chunk_grid": grid.to_json(),
            "chunk_key_encoding": keys.to_json(),
            "fill_value": fill_value,
            "codecs": [codec.to_json()],
            "attributes": {},
            **members,
        }
        return cls(document, shape, grid, keys, (codec,))

    @property
    def is_sharded(self) -> bool:
        """True."""
        return True

    def unsharded(self, chunk_shape: Coords, codecs: Sequence[Extension]) -> dict[str, Any]:
        """Return the document of the array with its inner chunks as chunks, of *chunk_shape* and under *codecs*."""
        return {
            **self.document,
            "chunk_grid": regular_grid(chunk_shape).to_json(),
            "codecs": [codec.to_json() for codec in codecs],
        }


@dataclass(frozen=True, slots=True)
class ForeignGrid(ShardGrid):
    """The chunks of an array of another format, which is only read.

    `cut` makes the usual one; a subclass may have chunks that overlap no grid of shards, or levels of its own.
    """

    @classmethod
    def cut(cls, shape: Coords, shard_shape: Coords, chunk_shape: Coords, index_codecs: IndexCodecs) -> "ForeignGrid":
        """Describe an array of *shape* in files of *shard_shape* elements, which are cut into chunks of *chunk_shape*.

        *shard_shape* is a multiple of *chunk_shape*, and *shape* need not be one of either. Chunks are full ones, as
        those of Zarr are, also where they reach beyond the array. *index_codecs* decode the index, which is at the
        beginning of each file, or has no bytes: the ranges of its chunks, in C order. Raises `MetadataError` if that is
        more than shardfs can count, or has more axes than arrays of Zarr may have here.
        """
        if (ndim := len(shape)) > MAX_NDIM:
            raise MetadataError(f"the array has {ndim} axes, more than {MAX_NDIM}")
        grid_shape = ChunkGrid.regular(shape, chunk_shape).shape
        per_shard = math.prod(length // chunk for length, chunk in zip(shard_shape, chunk_shape, strict=True))
        if count_positions(grid_shape) > 2**POSITION_BITS or max(shard_shape, default=0) > MAX_LENGTH:
            raise MetadataError(f"{math.prod(grid_shape)} chunks are more than shardfs can count")
        if max(per_shard * ENTRY_NBYTES, index_codecs.nbytes(per_shard)) > MAX_INDEX_NBYTES:
            raise MetadataError(f"{per_shard} chunks in a file are more than shardfs can count")
        level = ShardingLevel(tuple(range(ndim)), (1,) * ndim, index_codecs, True, (), MAX_DECODED_NBYTES)
        return cls(ChunkGrid.regular(shape, shard_shape), chunk_shape, (level,), grid_shape, max(ndim - 1, 0))

    @property
    def is_read_only(self) -> bool:
        """True."""
        return True

    def chunk_name(self, coords: Coords, keys: ChunkKeyEncoding) -> str:
        """Return the name of the chunk at *coords* for messages: that of Zarr."""
        return ChunkKeyEncoding("default", "/").encode(coords)


@dataclass(frozen=True, slots=True)
class OneShard(ChunkKeyEncoding):
    """The name of the one shard of an array: the *file*, which must be there, in the directory of the array."""

    file: str

    @classmethod
    def of(cls, file: str) -> "OneShard":
        """Return the name *file*."""
        return cls("one", "", file)

    @property
    def required(self) -> Collection[str]:
        """The name."""
        return (self.file,)

    def requires(self, coords: tuple[int, ...]) -> bool:
        """Return True: the array is what this very file says."""
        return True

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name* is that of the file."""
        return name == self.file

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the name."""
        return self.file

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates of the shard; None if *key* is another file."""
        return (0,) * ndim if key == self.file else None


@dataclass(frozen=True, slots=True)
class ForeignCodec(ChunkCodec):
    """The codec of chunks that no codecs of Zarr decode: a subclass does, and says in `str` how messages call it.

    If chunks differ by where they are, `at` returns the codec of one.
    """

    @property
    def is_identity(self) -> bool:
        """False."""
        return False

    def __call__(self, encoded: Buffer) -> Buffer:
        """Decode a chunk, as other decoders of bulk work do."""
        with fenced(self, "a chunk"):
            return self.decode(encoded)

    def encode(self, decoded: Buffer) -> bytes:
        """Refuse: the format is only read."""
        raise RefusedError("chunks of this format are only read")


@dataclass(frozen=True)
class ForeignChunks:
    """What is stored in shards, which are files in the directory of the node or below.

    *grid* says how many chunks there are, in which shard each is, and how the index of a shard is read; chunks are the
    smallest pieces that can be read by themselves. *shard_names* are the names of the files by the coordinates of
    shards. *document* is the `zarr.json` of an array with these chunks as chunks under *codecs*, if they are those of
    an array (`ForeignMetadata.unsharded`). The *fingerprint*, 16 bytes, differs if any of that does.
    """

    grid: ShardGrid
    shard_names: ChunkKeyEncoding
    document: dict[str, Any]
    codecs: tuple[Extension, ...]
    fingerprint: bytes

    @property
    def own_names(self) -> ChunkKeyEncoding | None:
        """The names of chunks where the format has a form without shards, which is shown then; None if it has none."""
        return None

    @property
    def keys(self) -> ChunkKeyEncoding:
        """The keys of chunks where the array is shown as one of Zarr."""
        return ChunkKeyEncoding("default", "/")

    @property
    def are_whole(self) -> bool:
        """Whether all chunks are full ones, as those of Zarr are; others are shown decoded alone."""
        return True

    def codec(self) -> ChunkCodec:
        """Return the codec of the chunks; raises `NotShownError` with the reason why they cannot be decoded."""
        return ChunkCodec.parse(self.document["data_type"], self.grid.chunk_shape, self.codecs)

    def reads_as_zeros(self, name: str) -> bool:
        """Whether *name*, one of `own_names`, is that of a chunk of raw elements: zeros, where it is missing."""
        return False


class ValuePart(Enum):
    """What a file shows of a value: its bytes, or the data before it that belong to it."""

    VALUE = "value"
    BEFORE = "before"


class ValueNames(Protocol):
    """The names of files of values by id: what stands for the id, and a suffix, which says what is shown of it."""

    @property
    def suffixes(self) -> tuple[tuple[str, ValuePart], ...]:
        """The suffixes, and what each shows."""

    def stems(self, ids: npt.NDArray[np.integer[Any]]) -> list[str]:
        """Return what stands for *ids*."""

    def decode(self, name: str) -> tuple[int, ValuePart] | None:
        """Return the id and the part that the file *name* shows; None if no file can have the name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Foreign:
    """What a directory is in a format that is only read, as its documents say. Pure.

    *format* is the name of the format in the table, and *kind* says in words what this is: "an array of WKW".

    It is an array if it has *metadata*, values by id if it has *names*, and else a directory of such nodes. *chunks*
    are those of the array, or the values: then an id is the one coordinate, and the grid lists which ids there are.
    Without chunks, a *reason* says why what is stored is shown as it is; if it *is_damaged*, `verify` calls it damage.

    *describing* is the name of the file in its directory that describes it, "" if the one of a directory above does.
    That file is hidden where the node is shown in another form. *documents* are shown by name where nothing has another
    format, and replace stored ones: mostly the describing one, without shards. *below* are the nodes that are described
    with it, by relative path: they exist, whatever is stored.

    *group* is set if it is a group of Zarr where arrays are shown as Zarr. *why_not* says, of what is neither that nor
    an array, why it has no form in Zarr, if a *reason* does not say that already. *facts* are what `info` says beside
    the usual of values. *programs* are those that open the node by a line of their own, in which {} is its path, by the
    names in `shardfs info --tools`.
    """

    format: str
    kind: str
    metadata: ForeignMetadata | None = None
    chunks: ForeignChunks | None = None
    names: ValueNames | None = None
    reason: str | None = None
    is_damaged: bool = False
    describing: str = ""
    documents: Mapping[str, bytes] = field(default_factory=dict)
    below: Mapping[str, "Foreign"] = field(default_factory=dict)
    group: GroupMetadata | None = None
    why_not: str = ""
    facts: Mapping[str, Json] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)

    def as_zarr(self) -> Metadata:
        """Return it as a node of Zarr, unsharded; raises `NotUnshardable` with the reason why it is none."""
        if self.group is not None:
            return self.group
        if self.metadata is None:
            raise NotUnshardable(self.why_not or self.reason or f"{self.kind} is no array")
        if self.chunks is None:
            raise NotUnshardable(self.reason or f"{self.kind} has no chunks here")
        return parse_array(self.chunks.document)

    @property
    def is_its_own_shard(self) -> bool:
        """Whether the file that describes it has its chunks, too, so that it says where they are in its own version."""
        chunks = self.chunks
        return chunks is not None and chunks.shard_names.begins(self.describing, chunks.grid.ndim)

    def needs(self, name: str) -> bool:
        """Whether *name*, in its directory, describes it or leads to a node below, so that nobody may change it."""
        is_used = self.reason is None or name in self.documents
        return (name == self.describing and is_used) or any(path.split("/")[0] == name for path in self.below)


NEW_GROUP: Final = parse_group({"zarr_format": 3, "node_type": "group", "attributes": {}})
"""A group of Zarr without attributes."""
