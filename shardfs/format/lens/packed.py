"""Arrays packed into shards: their new document, and how their chunks are converted.

Pure, and decided by the array's own document alone, so that copies in consolidated metadata get the same result, in
every run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError, UsageError
from shardfs.format.codecs import (
    MAX_CHUNK_NBYTES,
    CodecChain,
    decode,
    encode,
    is_decodable,
    parameters,
    parse_chain,
    split_chain,
)
from shardfs.format.document import Document, Extension, Json, brief, canonical, encode_json, parse_codecs, parse_json
from shardfs.format.dtype import item_nbytes
from shardfs.format.foreign import ForeignCodec
from shardfs.format.lens import Lens
from shardfs.format.lens.unsharded import UnshardedArray, codec_of, describe, shard_new
from shardfs.format.lens.v2 import V2, ZARRAY, array_documents
from shardfs.format.lens.v2_decoder import V2Decoder
from shardfs.format.members import Buffer
from shardfs.format.metadata import ArrayMetadata, Metadata, are_same_codecs, normal_codecs, parse_array
from shardfs.format.numcodec import PREFIX
from shardfs.format.sharding import Coords

SHARD_NBYTES: Final = 256 * 2**20

_FEW: Final = 8
"""Arrays with fewer chunks are not packed by size: that would save hardly any files."""

_MAX_CHUNKS: Final = 2**16
"""The most chunks of a shard by size: its index, which readers of a chunk fetch first, has 1 MiB then."""

_VARIABLE_NBYTES: Final = 16  # for an element whose size varies: a guess


@dataclass(frozen=True)
class Packing(Lens):
    """How arrays are packed: a lens without a way back.

    A shard gets as many chunks as have at most *shard_nbytes* bytes without compression, or *chunks_per_shard* in
    arrays of that many axes (of any number of axes if it is a single number). *codecs*, as returned by
    `parse_codecs_option`, are those of the packed chunks; with None, each array keeps its own.
    """

    shard_nbytes: int = SHARD_NBYTES
    chunks_per_shard: tuple[int, ...] | None = None
    index_at_start: bool = False
    codecs: str | None = None

    def __post_init__(self) -> None:
        if self.shard_nbytes < 1:
            raise UsageError("--shard-size must be at least 1 byte")

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
            if stored.is_sharded and self.codecs is None:  # in a way that our shards cannot
                return stored.document
            raise

    def _packed(self, stored: ArrayMetadata, shown: UnshardedArray) -> Document:
        counts = self._counts(shown)
        if counts is None:
            return stored.document
        codecs = [codec.to_json() for codec in self._codecs(shown)]
        edited = parse_array({**shown.document, "codecs": codecs})
        document = shard_new(edited, counts, index_at_start=self.index_at_start)
        Transcoder.of(shown, describe(parse_array(document)))  # or the reason why it is impossible
        return document

    def _counts(self, shown: UnshardedArray) -> tuple[int, ...] | None:
        """Return how many chunks a shard has along each axis; None if the array is not packed."""
        grid, given = shown.grid, self.chunks_per_shard
        if given is not None and grid.ndim and len(given) in (1, grid.ndim):
            return None if grid.nchunks == 1 else given * (grid.ndim // len(given))
        if grid.nchunks < _FEW:
            return None
        chunk_nbytes = math.prod(grid.chunk_shape) * usual_nbytes(shown.document["data_type"])
        counts = fitting_counts(grid.grid_shape, grid.chunk_shape, self.shard_nbytes // max(chunk_nbytes, 1))
        return None if math.prod(counts) == 1 else counts

    def _codecs(self, shown: UnshardedArray) -> Sequence[Extension]:
        """Return the codecs of packed chunks: the present ones, spelling included, if they mean the same."""
        if self.codecs is None:
            return shown.codecs
        old, data_type = shown.codecs, shown.document["data_type"]
        wanted = parse_codecs(parse_json(self.codecs.encode()), "codecs")
        try:
            chain = split_chain(parse_chain(old, "codecs"), "codecs")
            if all(is_decodable(codec) for codec in wanted):  # bytes → bytes codecs only
                is_native = not any(codec.name.startswith(PREFIX) for codec in chain.before)
                wanted = (*(chain.before if is_native else ()), chain.serializer, *wanted)
            if are_same_codecs(old, wanted, data_type):
                return old
            return [_spelled_out(codec, item_nbytes(data_type) or 1) for codec in wanted]
        except MetadataError as error:
            raise NotUnshardable(str(error)) from None


def usual_nbytes(data_type: Json) -> int:
    """Return the size of an element in bytes; a guess if it varies."""
    return item_nbytes(data_type) or _VARIABLE_NBYTES


def metadata_of_v2(name: str, documents: Mapping[str, bytes], separator: str) -> tuple[Metadata, V2Decoder | None]:
    """Return the v3 metadata of a node from its v2 *documents*, of which *name* is the main one.

    Its codecs are those that every library has for v3. Where the chunks have others, their decoder is returned too.
    Raises `NotUnshardable` with the reason if there is none, and `MetadataError`.
    """
    lens = V2(separator)
    with suppress(NotUnshardable):
        found = lens.new(name, documents[name], documents)
        if not isinstance(found, ArrayMetadata) or not any(codec.name.startswith(PREFIX) for codec in found.codecs):
            return found, None
    zarray = parse_json(documents[name])
    decoder = V2Decoder.of(zarray)
    return lens.new(name, encode_json(decoder.native(zarray)), documents), decoder


Decoder = Callable[[Buffer], Buffer]
"""Decodes a chunk into little-endian elements in C order; raises `CorruptionError` if it is damaged."""


def decoder_of(shown: UnshardedArray) -> Decoder:
    """Return the decoder for the chunks of an array; raises `NotShownError` with the reason if there is none."""
    try:
        return codec_of(shown).decode
    except NotShownError as error:
        try:
            return V2Decoder.of(array_documents(parse_array(shown.document), "/")[ZARRAY])
        except (NotShownError, NotUnshardable):
            raise error from None


def _encoder_of(shown: UnshardedArray) -> Callable[[Buffer], bytes]:
    """Return the encoder for the chunks of an array; raises `NotShownError` with the reason if there is none."""
    codec = codec_of(shown)
    if codec.only_decodes:
        raise NotShownError("its codecs are only decoded here")
    return codec.encode


@dataclass(frozen=True)
class Transcoder:
    """Converts encoded chunks to other codecs.

    If elements vary in size, or are of an unknown type, only bytes → bytes codecs are exchanged.
    """

    decode: Decoder
    encode: Callable[[Buffer], bytes]

    @classmethod
    def of(cls, source: UnshardedArray, target: UnshardedArray, given: Decoder | None = None) -> "Transcoder | None":
        """Return the transcoder from chunks of *source* to those of *target*; None if they stay as they are.

        The chunks have the same shape. *given* decodes chunks that are not encoded by the codecs of *source*. Raises
        `NotUnshardable` with the reason why they cannot be transcoded.
        """
        data_type = source.document["data_type"]
        if given is None and are_same_codecs(source.codecs, target.codecs, data_type):
            return None
        nbytes = math.prod(source.grid.chunk_shape) * (item_nbytes(data_type) or 1)
        if nbytes > MAX_CHUNK_NBYTES:
            raise NotUnshardable(f"its chunks would have to be transcoded, and {nbytes:,} bytes are too many for that")
        was, becomes = _chain(source), _chain(target)
        try:
            if are_known := all(map(is_decodable, becomes.after)):
                encode(becomes.after, b"\0")  # so that an invalid configuration is found now
            try:
                return cls(given or decoder_of(source), _encoder_of(target))
            except NotShownError:
                if given is None and all(map(is_decodable, was.after)):
                    given = partial(decode, was.after, limit=MAX_CHUNK_NBYTES)
                decode_bytes = given or decoder_of(source)
                are_elements = isinstance(decode_bytes, V2Decoder) and decode_bytes.dtype is not None
                if are_elements or not are_known or _array_codecs(was, data_type) != _array_codecs(becomes, data_type):
                    raise
                return cls(decode_bytes, partial(encode, becomes.after))
        except (MetadataError, NotShownError, RefusedError) as error:
            raise NotUnshardable(f"its chunks would have to be transcoded: {error}") from None

    def __call__(self, chunk: Buffer, coords: Coords) -> Buffer:
        """Return the chunk at *coords* in its new codecs; raises `CorruptionError` if it is damaged."""
        return self.encode(decoder_at(self.decode, coords)(chunk))


def decoder_at(decode: Decoder, coords: Coords) -> Decoder:
    """Return the decoder of the chunk at *coords*: one for all, unless a format has others by location."""
    return decode.at(coords).decode if isinstance(decode, ForeignCodec) else decode


def fitting_counts(grid_shape: Sequence[int], chunk_shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Return how many chunks along each axis make up a shard of at most *most* chunks, as cubic as possible.

    The shard is doubled along its shortest axis, so that it is more than half as large as allowed, if the array is.
    Then the shards along each axis are made equal, so that the last one is not a sliver.
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
    """Parse names of bytes → bytes codecs, "zstd,crc32c", or codecs in JSON as in a `zarr.json`; returns JSON.

    "none" stands for no codec. Raises `UsageError`.
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
    for codec in codecs:
        try:
            if is_decodable(codec):
                encode([codec], b"\0")
        except (MetadataError, RefusedError) as error:
            raise UsageError(f"--codecs {brief(text)}: {error}") from None
    return canonical([codec.to_json() for codec in codecs])


def _spelled_out(codec: Extension, item_nbytes: int) -> Extension:
    """Return a codec with all members that readers may require."""
    if codec.name == "bytes" and item_nbytes > 1:
        return replace(codec, configuration={"endian": "little", **codec.configuration})
    is_native = is_decodable(codec) and not codec.name.startswith(PREFIX)
    return replace(codec, configuration=parameters(codec, item_nbytes)) if is_native else codec


def _chain(array: UnshardedArray) -> CodecChain:
    try:
        return split_chain(parse_chain(array.codecs, "codecs"), "codecs")
    except MetadataError as error:
        raise NotUnshardable(str(error)) from None


def _array_codecs(chain: CodecChain, data_type: Json) -> str:
    """Return what says how elements become bytes, the same for all spellings."""
    return canonical(normal_codecs((*chain.before, chain.serializer), data_type))
