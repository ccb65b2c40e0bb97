"""The fingerprint of an array's metadata: whether a place in a shard, and bytes for it, still mean what they did."""

import hashlib
from typing import Final

from shardfs.format.metadata import ArrayMetadata
from shardfs.format.normal_form import canonical, normal_codecs, normal_data_type, normal_grid, normal_key_encoding

FINGERPRINT_NBYTES: Final = 16


def fingerprint(array: ArrayMetadata) -> bytes:
    """Return 16 bytes that tell arrays apart whose chunks lie elsewhere or whose bytes mean something else.

    They depend on chunk grid, chunk key encoding, codecs and data type, and not on how a library spells these, on the
    shape, or on anything else.  Raises `MetadataError` for a document that is nested too deeply to be compared.
    """
    data_type = array.document["data_type"]
    text = canonical(
        [
            normal_grid(array.chunk_grid),
            normal_key_encoding(array.chunk_key_encoding),
            normal_codecs(array.codecs, data_type),
            normal_data_type(data_type),
        ]
    )
    return hashlib.blake2b(text.encode(), digest_size=FINGERPRINT_NBYTES).digest()
