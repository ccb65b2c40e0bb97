"""Arrays packed into shards: the document that an array has afterwards, and how its chunks are brought there.

Pure, and decided from the array's own document alone: a copy in consolidated metadata becomes what its array becomes,
and so does the array in every run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError, UsageError
from shardfs.format.codecs import (
    MAX_CHUNK_NBYTES,
    MAX_TYPESIZE,
    Buffer,
    ChunkCodec,
    CodecChain,
    decode,
    encode,
    is_decodable,
    parse_chain,
    split_chain,
)
from shardfs.format.document import Document, Extension, brief, canonical, parse_codecs, parse_json
from shardfs.format.dtype import item_nbytes
from shardfs.format.lens.unsharded import UnshardedArray, describe, shard_new
from shardfs.format.metadata import ArrayMetadata, parse_array
from shardfs.format.normal_form import is_encoded_alike, normal_codecs

SHARD_NBYTES: Final = 256 * 2**20

_FEW: Final = 8
"""Arrays of fewer chunks are not packed by size: that would save next to no files."""

_MAX_CHUNKS: Final = 2**16
"""How many chunks a shard gets by size: its index, which every reader of a chunk fetches first, has 1 MiB then."""

_VARIABLE_NBYTES: Final = 16  # for an element whose size varies: there is nothing better to go by
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "zstd": {"level": 0, "checksum": False},
    "gzip": {"level": 5},
    "blosc": {"cname": "zstd", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
}


@dataclass(frozen=True)
class Packing:
    """How arrays are packed: a lens without a way back.

    A shard gets as many chunks as have up to *shard_nbytes* bytes without compression; or *chunks_per_shard* in arrays
    of that many axes, or of any number if it is a single one.  *codecs*, as `parse_codecs_option` returns them, are
    those of the chunks; None leaves each array its own.
    """

    shard_nbytes: int = SHARD_NBYTES
    chunks_per_shard: tuple[int, ...] | None = None
    index_at_start: bool = False
    codecs: str | None = None

    def __str__(self) -> str:
        counts = self.chunks_per_shard
        words = [f"--shards {','.join(map(str, counts))}" if counts else f"--shard-size {self.shard_nbytes}"]
        words += ["--index-location start"] if self.index_at_start else []
        words += [f"--codecs {self.codecs}"] if self.codecs is not None else []
        return " ".join(words)

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document of the packed array; `stored.document` itself if the array stays as it is.

        Raises `NotUnshardable` with the reason why it cannot be packed.
        """
        try:
            return self._packed(stored, describe(stored))
        except NotUnshardable:
            if stored.is_sharded and self.codecs is None:  # in a way that shards of ours cannot have
                return stored.document
            raise

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Refuse: nothing is written through this lens."""
        raise RefusedError("a packed array is not changed where it came from")

    def _packed(self, stored: ArrayMetadata, shown: UnshardedArray) -> Document:
        counts = self._counts(shown)
        if counts is None:
            return stored.document
        codecs = [codec.to_json() for codec in self._codecs(shown)]
        edited = parse_array({**shown.document, "codecs": codecs})
        document = shard_new(edited, counts, index_at_start=self.index_at_start)
        Transcoder.of(shown, describe(parse_array(document)))  # or the reason why there is none
        return document

    def _counts(self, shown: UnshardedArray) -> tuple[int, ...] | None:
        """Return how many chunks a shard has along each axis; None if the array is not packed."""
        grid, given = shown.grid, self.chunks_per_shard
        if given is not None and grid.ndim and len(given) in (1, grid.ndim):
            return None if grid.nchunks == 1 else given * (grid.ndim // len(given))
        if grid.nchunks < _FEW:
            return None
        chunk_nbytes = math.prod(grid.chunk_shape) * (item_nbytes(shown.document["data_type"]) or _VARIABLE_NBYTES)
        counts = fitting_counts(grid.grid_shape, grid.chunk_shape, self.shard_nbytes // max(chunk_nbytes, 1))
        return None if math.prod(counts) == 1 else counts

    def _codecs(self, shown: UnshardedArray) -> Sequence[Extension]:
        """Return the codecs of packed chunks: those that they have, spelling included, if these say the same."""
        if self.codecs is None:
            return shown.codecs
        old, data_type = shown.codecs, shown.document["data_type"]
        wanted = parse_codecs(parse_json(self.codecs.encode()), "codecs")
        try:
            chain = split_chain(parse_chain(old, "codecs"), "codecs")
            if all(is_decodable(codec) for codec in wanted):  # bytes → bytes codecs only
                wanted = (*chain.before, chain.serializer, *wanted)
            is_same = canonical(normal_codecs(old, data_type)) == canonical(normal_codecs(wanted, data_type))
        except MetadataError as error:
            raise NotUnshardable(str(error)) from None
        if is_same and all(map(is_encoded_alike, old, wanted)):
            return old
        return [_spelled_out(codec, item_nbytes(data_type) or 1) for codec in wanted]


@dataclass(frozen=True)
class Transcoder:
    """How encoded chunks become those of other codecs.

    Elements are decoded by *old* and encoded by *new*.  Where only bytes → bytes codecs differ and elements are not
    known, these do: the codecs *decoded* are taken off, those *encoded* put on.
    """

    old: ChunkCodec | None
    new: ChunkCodec | None
    decoded: tuple[Extension, ...] = ()
    encoded: tuple[Extension, ...] = ()

    @classmethod
    def of(cls, source: UnshardedArray, target: UnshardedArray) -> "Transcoder | None":
        """Return what brings chunks of *source* into *target*, whose chunks are as long; None if they stay as they are.

        Raises `NotUnshardable` with the reason why they cannot be transcoded.
        """
        data_type = source.document["data_type"]
        old_normal, new_normal = (canonical(normal_codecs(each.codecs, data_type)) for each in (source, target))
        if old_normal == new_normal and all(map(is_encoded_alike, source.codecs, target.codecs)):
            return None
        try:
            old, new = (ChunkCodec.parse(data_type, each.grid.chunk_shape, each.codecs) for each in (source, target))
            encode(new.after, b"\0")  # so that no configuration is a surprise later
            return cls(old, new)
        except (MetadataError, NotShownError, RefusedError) as error:
            was, becomes = _chain(source), _chain(target)
            is_known = all(is_decodable(codec) for codec in (*was.after, *becomes.after))
            if not is_known or _json((*was.before, was.serializer)) != _json((*becomes.before, becomes.serializer)):
                raise NotUnshardable(f"its chunks would have to be transcoded: {error}") from None
            return cls(None, None, was.after, becomes.after)

    def __call__(self, chunk: Buffer) -> Buffer:
        """Return a chunk in its new codecs; raises `CorruptionError` if it is damaged."""
        if self.old is not None and self.new is not None:
            return self.new.encode(self.old.decode(chunk))
        return encode(self.encoded, decode(self.decoded, chunk, MAX_CHUNK_NBYTES))


def fitting_counts(grid_shape: Sequence[int], chunk_shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Return how many chunks along each axis make up a shard of up to *most*, which is as cubic as it can be.

    Doubles the shard along its shortest axis, so that it is more than half as large as it may be where the array is;
    then along each axis the shards are made equal, so that the last one is not a sliver.
    """
    most = min(most, _MAX_CHUNKS)
    counts = [1] * len(grid_shape)
    while True:
        lengths = [
            (count * length, axis)
            for axis, (count, length, n) in enumerate(zip(counts, chunk_shape, grid_shape, strict=True))
            if count < n and math.prod(counts) // count * min(2 * count, n) <= most
        ]
        if not lengths:
            break
        axis = min(lengths)[1]
        counts[axis] = min(2 * counts[axis], grid_shape[axis])
    return tuple(-(-n // -(-n // count)) if n else 1 for n, count in zip(grid_shape, counts, strict=True))


def parse_codecs_option(text: str) -> str:
    """Read names of bytes → bytes codecs, "zstd,crc32c", or codecs as a `zarr.json` has them; return these as JSON.

    "none" stands for no codec.  Raises `UsageError`.
    """
    if text.lstrip().startswith("["):
        try:
            codecs = parse_codecs(parse_json(text.encode()), "codecs")
        except MetadataError as error:
            raise UsageError(f"{brief(text)} are no codecs: {error}") from None
    else:
        codecs = tuple(Extension(name.strip(), {}) for name in ([] if text == "none" else text.split(",")))
        if not all(map(is_decodable, codecs)):
            raise UsageError(
                f"--codecs {brief(text)}: zstd, gzip, blosc, crc32c and none are known by name; give others as JSON"
            )
    return canonical([codec.to_json() for codec in codecs])


def _spelled_out(codec: Extension, item_nbytes: int) -> Extension:
    """Return a codec with all members that readers may ask for."""
    defaults = _DEFAULTS.get(codec.name, {})
    if codec.name == "bytes" and item_nbytes > 1:
        defaults = {"endian": "little"}
    elif codec.name == "blosc":
        defaults = {"typesize": item_nbytes if item_nbytes <= MAX_TYPESIZE else 1, **defaults}
    return Extension(codec.name, {**defaults, **codec.configuration})


def _chain(array: UnshardedArray) -> CodecChain:
    try:
        return split_chain(parse_chain(array.codecs, "codecs"), "codecs")
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None


def _json(codecs: Sequence[Extension]) -> str:
    return canonical([codec.to_json() for codec in codecs])
