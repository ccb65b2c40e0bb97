"""Documents of arrays whose chunk files hold plain array bytes: what the view shows with `--decode`, and back."""

from typing import Any

from shardfs.format.chunk_codec import ChunkCodec
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.unshard import UnshardedArray


def codec_of(shown: UnshardedArray) -> ChunkCodec:
    """Return the codec of the chunks; raises `NotShownError` with the reason why they cannot be decoded."""
    raise NotImplementedError


def plain_document(shown: UnshardedArray) -> dict[str, Any]:
    """Return the document of *shown* that says that chunks are plain: little-endian `bytes` and no other codec.

    Raises `NotShownError` with the reason why they cannot be decoded.
    """
    raise NotImplementedError


def accept_plain(shown: UnshardedArray, edited: ArrayMetadata) -> ArrayMetadata:
    """Return *edited*, which was written over `plain_document(shown)`, as an edit of the document of *shown*.

    Raises `RefusedError` if it says anything but that chunks are plain.
    """
    raise NotImplementedError


def require_plain(edited: ArrayMetadata) -> None:
    """Raise `RefusedError` if the chunks of a new array are not plain: what is written would be taken for plain."""
    raise NotImplementedError
