"""Sharded arrays of other formats than Zarr, which are only read: what every view and command asks of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import Extension, Json
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords, ShardGrid

_KEYS: Final = Extension("default", {"separator": "/"})


def regular_grid(chunk_shape: Coords) -> Extension:
    """Return the grid of chunks of one shape."""
    return Extension("regular", {"chunk_shape": list(chunk_shape)})


class ForeignMetadata(ArrayMetadata):
    """An array of another format, described as one of Zarr would be."""

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
        """Describe an array whose shards have this *grid*, *codec* and *keys*; *members* say more."""
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


@dataclass(frozen=True)
class ForeignChunks:
    """The chunks of an array: where they are, in shards with these names.

    *document* is what one of Zarr says of them, with these *codecs*. The *fingerprint* differs if they do.
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
        """Whether all chunks are full ones, as those of Zarr are."""
        return True

    def codec(self) -> ChunkCodec:
        """Return the codec of the chunks; raises `NotShownError` with the reason why they cannot be decoded."""
        return ChunkCodec.parse(self.document["data_type"], self.grid.chunk_shape, self.codecs)


@dataclass(frozen=True)
class ForeignArray:
    """An array that is only read. Without *chunks*, a *reason* says why its shards are as stored.

    *is_damaged*: the reason is damage, and not just something that is not supported.

    *kind* says what it is, in messages. *describing* is the name of the file in its directory that describes it, and is
    hidden where the array is shown; "" if none does.
    """

    metadata: ForeignMetadata
    chunks: ForeignChunks | None = None
    reason: str | None = None
    is_damaged: bool = False
    kind: ClassVar[str]
    describing: ClassVar[str] = ""
