"""Encoding by bytes → bytes codecs: what `shardfs.format.codecs.decode` undoes.

Parameters come from the codec's configuration, and have a usual value where they are absent.  One that is no valid
value is refused, and so is an unknown one, because another reader may take it for a change of the bytes.

Source: specifications of the codecs `gzip`, `zstd`, `blosc` and `crc32c`.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numcodecs import blosc, zstd
from numcodecs.checksum32 import CRC32C

from shardfs.errors import MetadataError, RefusedError
from shardfs.format.codecs import CRC32C_NBYTES, Buffer
from shardfs.format.metadata import Extension, brief

Encoder = Callable[[Extension, Buffer], bytes]

_MIN_ZSTD_LEVEL: Final = -131072
_MAX_ZSTD_LEVEL: Final = 22
_MAX_TYPESIZE: Final = 255
_SHUFFLES: Final = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}


def encode(codecs: Sequence[Extension], data: Buffer) -> bytes:
    """Encode *data* by *codecs*, all decodable (`is_decodable`), one after another.

    The same data always gives the same bytes.  Raises `MetadataError` if a configuration has no meaning, whatever the
    data, and `RefusedError` for more data than a codec can hold.
    """
    for codec in codecs:
        data = _ENCODERS[codec.name](codec, data)
    return bytes(data)


def _encode_gzip(codec: Extension, data: Buffer) -> bytes:
    codec.expect("level")
    return zlib.compress(data, codec.integer("level", 5, 0, 9), wbits=31)


def _encode_zstd(codec: Extension, data: Buffer) -> bytes:
    codec.expect("level", "checksum")
    checksum = codec.configuration.get("checksum", False)
    if not isinstance(checksum, bool):
        raise MetadataError(f"the checksum of zstd must be true or false, not {brief(checksum)}")
    level = codec.integer("level", 0, _MIN_ZSTD_LEVEL, _MAX_ZSTD_LEVEL)
    return bytes(zstd.compress(data, level, checksum))


def _encode_blosc(codec: Extension, data: Buffer) -> bytes:
    codec.expect("cname", "clevel", "shuffle", "typesize", "blocksize")
    level = codec.integer("clevel", 5, 0, 9)
    typesize = codec.integer("typesize", 1, 1, _MAX_TYPESIZE)
    blocksize = codec.integer("blocksize", 0, 0, blosc.MAX_BUFFERSIZE)
    compressor = codec.configuration.get("cname", "zstd")
    if compressor not in blosc.list_compressors():
        raise MetadataError(f"blosc has no compressor {brief(compressor)}")
    shuffle = codec.configuration.get("shuffle", "bitshuffle" if typesize == 1 else "shuffle")
    if shuffle not in tuple(_SHUFFLES):
        raise MetadataError(f"blosc has no shuffle {brief(shuffle)}")
    if len(data) > blosc.MAX_BUFFERSIZE:
        raise RefusedError(f"blosc holds no more than {blosc.MAX_BUFFERSIZE} bytes, not {len(data)}")
    return bytes(blosc.compress(data, compressor.encode(), level, _SHUFFLES[shuffle], blocksize, typesize))


def _encode_crc32c(codec: Extension, data: Buffer) -> bytes:
    codec.expect()
    checksum: int = CRC32C.checksum(np.frombuffer(data, dtype=np.uint8))
    return b"".join((data, checksum.to_bytes(CRC32C_NBYTES, "little")))


_ENCODERS: Final[dict[str, Encoder]] = {
    "gzip": _encode_gzip,
    "zstd": _encode_zstd,
    "blosc": _encode_blosc,
    "crc32c": _encode_crc32c,
}
