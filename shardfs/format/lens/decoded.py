"""Arrays shown with chunk files of decoded bytes, as `--decode` has them: the document, and the way back."""

from dataclasses import replace
from typing import Any

from shardfs.errors import MetadataError, NotShownError, RefusedError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import Document, Extension, Json, canonical, parse_codecs
from shardfs.format.dtype import DataType
from shardfs.format.lens.unsharded import UnshardedArray, describe, reshard
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.normal_form import normal_codecs


class Decoded:
    """The lens that shows arrays, sharded or not, with decoded chunks."""

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document that says that chunks are decoded."""
        return decoded_document(describe(stored))

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Return the stored document of the array that shows as *shown*."""
        return reshard(stored, accept_decoded(describe(stored), shown))


def codec_of(shown: UnshardedArray) -> ChunkCodec:
    """Return the codec of the chunks; raises `NotShownError` with the reason why they cannot be decoded."""
    return ChunkCodec.parse(shown.document["data_type"], shown.grid.chunk_shape, shown.codecs)


def decoded_document(shown: UnshardedArray) -> dict[str, Any]:
    """Return the document of *shown* that says that chunks are decoded: little-endian `bytes` and no other codec.

    Raises `NotShownError` with the reason why they cannot be decoded.
    """
    return {**shown.document, "codecs": [_bytes_codec(codec_of(shown).data_type).to_json()]}


def accept_decoded(shown: UnshardedArray, edited: ArrayMetadata) -> ArrayMetadata:
    """Return *edited*, which was written over `decoded_document(shown)`, as an edit of the document of *shown*.

    Raises `RefusedError` if it says anything but that chunks are decoded.
    """
    require_decoded(edited)
    codecs: Json = shown.document["codecs"]
    return replace(edited, document={**edited.document, "codecs": codecs}, codecs=parse_codecs(codecs, "codecs"))


def require_decoded(edited: ArrayMetadata) -> None:
    """Raise `RefusedError` if the chunks of a new array are not decoded: what is written would be taken so."""
    data_type = edited.document["data_type"]
    try:
        expected = normal_codecs([_bytes_codec(DataType.parse(data_type))], data_type)
        # One that need not be understood has no place in the normal form, but a writer may apply it.
        if len(edited.codecs) == 1 and canonical(normal_codecs(edited.codecs, data_type)) == canonical(expected):
            return
    except (MetadataError, NotShownError) as error:
        raise RefusedError(str(error)) from None
    names = ", ".join(codec.name for codec in edited.codecs)
    raise RefusedError(
        f"codecs {names}: chunks are decoded here; make the array without compressor and filters, little-endian "
        "and in C order"
    )


def _bytes_codec(data_type: DataType) -> Extension:
    return Extension("bytes", {"endian": "little"} if data_type.nbytes > 1 else {})
