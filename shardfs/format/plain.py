"""Documents of arrays whose chunk files hold plain array bytes: what the view shows with `--decode`, and back."""

from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError, RefusedError
from shardfs.format.chunk_codec import ChunkCodec
from shardfs.format.data_type import DataType
from shardfs.format.metadata import ArrayMetadata, Extension, Json, parse_codecs
from shardfs.format.normal_form import canonical, normal_codecs
from shardfs.format.unshard import UnshardedArray

_MAX_FILE_NBYTES: Final = 2**63 - 1


def codec_of(shown: UnshardedArray) -> ChunkCodec:
    """Return the codec of the chunks; raises `NotShownError` with the reason why they cannot be decoded."""
    codec = ChunkCodec.parse(shown.document["data_type"], shown.grid.chunk_shape, shown.codecs)
    if codec.nbytes > _MAX_FILE_NBYTES:
        raise NotShownError(f"chunks of {codec.nbytes} bytes are larger than any file")
    return codec


def plain_document(shown: UnshardedArray) -> dict[str, Any]:
    """Return the document of *shown* that says that chunks are plain: little-endian `bytes` and no other codec.

    Raises `NotShownError` with the reason why they cannot be decoded.
    """
    return {**shown.document, "codecs": [_plain_codec(codec_of(shown).data_type).to_json()]}


def accept_plain(shown: UnshardedArray, edited: ArrayMetadata) -> ArrayMetadata:
    """Return *edited*, which was written over `plain_document(shown)`, as an edit of the document of *shown*.

    Raises `RefusedError` if it says anything but that chunks are plain.
    """
    require_plain(edited)
    codecs: Json = shown.document["codecs"]
    return ArrayMetadata(
        document={**edited.document, "codecs": codecs},
        shape=edited.shape,
        chunk_grid=edited.chunk_grid,
        chunk_key_encoding=edited.chunk_key_encoding,
        codecs=parse_codecs(codecs, "codecs"),
    )


def require_plain(edited: ArrayMetadata) -> None:
    """Raise `RefusedError` if the chunks of a new array are not plain: what is written would be taken for plain."""
    data_type = edited.document["data_type"]
    try:
        expected = normal_codecs([_plain_codec(DataType.parse(data_type))], data_type)
        # One that need not be understood has no place in the normal form, but a writer may apply it.
        if len(edited.codecs) == 1 and canonical(normal_codecs(edited.codecs, data_type)) == canonical(expected):
            return
    except (MetadataError, NotShownError) as error:
        raise RefusedError(str(error)) from None
    names = ", ".join(codec.name for codec in edited.codecs)
    raise RefusedError(
        f"codecs {names}: chunks are plain here; make the array without compressor and filters, little-endian "
        "and in C order"
    )


def _plain_codec(data_type: DataType) -> Extension:
    return Extension("bytes", {"endian": "little"} if data_type.nbytes > 1 else {})
