"""Sharded arrays of other formats than Zarr, which are only read: what every view and command asks of them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import Extension
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import ShardGrid


class ForeignMetadata(ArrayMetadata):
    """An array of another format, described as one of Zarr would be."""

    @property
    def is_sharded(self) -> bool:
        """True."""
        return True


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
