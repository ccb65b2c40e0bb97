"""An entry of the cache of ranges: what its file is called, and how the bytes lie in it.

A file is, with numbers in little endian:

    magic 8 | format uint32 | SHA-256 of the name 32 | SHA-256 of the ETag 32 | offset uint64 | nbytes uint64
    | crc32c uint32 of each block | the bytes

Blocks are 64 KiB, but for the last, so that a small read of a large entry checks only what it touches.  The *key* of an
entry is what its file is called, in hexadecimal:

    beginning of the first SHA-256 8 | beginning of the second 8 | offset uint64 | nbytes uint64, both big endian

Keys in order are thus ranges in order, of one version behind the other.
"""

import os
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from shardfs.errors import CorruptionError
from shardfs.stores.base import Buffer

FORMAT: Final = 1
BLOCK_NBYTES: Final = 64 * 2**10

_MAGIC: Final = bytes.fromhex("b71c40e5923fa86d")
_HEADER: Final = Struct("<8sI32s32sQQ")
_CHECKSUM_NBYTES: Final = 4
_ID_NBYTES: Final = 8
_RANGE: Final = Struct(">QQ")


class Version(NamedTuple):
    """One version of an object, as the SHA-256 of its name and of its ETag."""

    name: bytes
    etag: bytes

    @classmethod
    def of(cls, name: str, etag: str) -> "Version":
        """Return the version *etag* of the object *name*; names need not be valid Unicode."""
        return cls(*(sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (name, etag)))

    @property
    def prefix(self) -> bytes:
        """What the keys of all its entries begin with."""
        return self.name[:_ID_NBYTES] + self.etag[:_ID_NBYTES]

    def key(self, offset: int, nbytes: int) -> bytes:
        """Return the key of the entry for *nbytes* bytes from *offset*."""
        return self.prefix + _RANGE.pack(offset, nbytes)


KEY_NBYTES: Final = 2 * _ID_NBYTES + _RANGE.size


def name_of(key: bytes) -> bytes:
    """Return what the keys of all versions of the same object begin with."""
    return key[:_ID_NBYTES]


def prefix_of(key: bytes) -> bytes:
    """Return what the keys of the same version begin with."""
    return key[: 2 * _ID_NBYTES]


def range_of(key: bytes) -> tuple[int, int]:
    """Return offset and nbytes of an entry."""
    offset, nbytes = _RANGE.unpack_from(key, 2 * _ID_NBYTES)
    return offset, nbytes


def parse_file_name(name: str) -> bytes | None:
    """Return the key of the entry whose file is called *name*; None if no entry is called so."""
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == KEY_NBYTES and key.hex() == name else None


def file_nbytes(key: bytes) -> int:
    """Return the size of the file of an entry."""
    nbytes = range_of(key)[1]
    return _HEADER.size + _CHECKSUM_NBYTES * _blocks(nbytes) + nbytes


def pack_head(version: Version, key: bytes, data: memoryview) -> bytes:
    """Return what the file of the entry *key* has before its *data*."""
    checksums = (
        _checksum(data[begin : begin + BLOCK_NBYTES]).to_bytes(_CHECKSUM_NBYTES, "little")
        for begin in range(0, data.nbytes, BLOCK_NBYTES)
    )
    return b"".join((_pack_header(version, key), *checksums))


def read_range(fd: int, version: Version, key: bytes, offset: int, nbytes: int) -> memoryview:
    """Return *nbytes* bytes from *offset* of the object, which are in the entry *key*, from its open file.

    The file has the size of the entry.  Raises `CorruptionError` if it is another entry, or is damaged there.
    """
    start, entry_nbytes = range_of(key)
    begin = offset - start
    first, last = begin // BLOCK_NBYTES, _blocks(begin + nbytes)
    base = first * BLOCK_NBYTES
    head = os.pread(fd, _HEADER.size + last * _CHECKSUM_NBYTES, 0)
    if head[: _HEADER.size] != _pack_header(version, key):
        raise CorruptionError("it is not what its name says")
    data_at = file_nbytes(key) - entry_nbytes
    read = min(last * BLOCK_NBYTES, entry_nbytes) - base
    data = memoryview(os.pread(fd, read, data_at + base))
    if len(data) != read:
        raise CorruptionError("it was shortened")
    for block in range(first, last):
        at = _HEADER.size + block * _CHECKSUM_NBYTES
        expected = int.from_bytes(head[at : at + _CHECKSUM_NBYTES], "little")
        if _checksum(data[block * BLOCK_NBYTES - base :][:BLOCK_NBYTES]) != expected:
            raise CorruptionError("a checksum does not match")
    return data[begin - base :][:nbytes]


def _pack_header(version: Version, key: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, FORMAT, version.name, version.etag, *range_of(key))


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_NBYTES)


def _checksum(data: Buffer) -> int:
    # The library takes no memoryview.
    value: int = google_crc32c.extend(0, np.frombuffer(data, np.uint8))
    return value
