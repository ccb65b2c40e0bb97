"""Damage to stored shards that has four entries and a crc32c in the index at their end."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c

from tests.support.corpus import array, sharding
from tests.support.encoder import EMPTY

Change = Callable[[bytes], bytes]
INDEX_NBYTES = 4 * 16 + 4
SHARD = "c/0/0"
"""The first of two shards of `document`."""


def document(*codecs: Any, after: tuple[Any, ...] = (), **members: Any) -> dict[str, Any]:
    """An array of two shards of 2 × 2 inner chunks, which have 12 elements of 4 bytes."""
    return array((8, 12), (8, 6), sharding((4, 3), *codecs, **members), *after)


def edit(path: Path, change: Change) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(position: int) -> Change:
    """Turn over one bit of the byte at *position*."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 0x10
        return bytes(changed)

    return change


def entry(data: bytes, number: int) -> tuple[int, int]:
    """Offset and size of an inner chunk, as the index of a shard has them."""
    offset, nbytes = struct.unpack_from("<QQ", data, len(data) - INDEX_NBYTES + 16 * number)
    return offset, nbytes


def index(number: int, offset: int, nbytes: int) -> Change:
    """Replace one entry, with a checksum that fits."""

    def change(data: bytes) -> bytes:
        entries = bytearray(data[-INDEX_NBYTES:-4])
        struct.pack_into("<QQ", entries, 16 * number, offset, nbytes)
        return data[:-INDEX_NBYTES] + entries + google_crc32c.value(bytes(entries)).to_bytes(4, "little")

    return change


def payload(number: int, encoded: bytes) -> Change:
    """Put other bytes in place of an inner chunk, behind those that are there."""

    def change(data: bytes) -> bytes:
        end = len(data) - INDEX_NBYTES
        return index(number, end, len(encoded))(data[:end] + encoded + data[end:])

    return change


SHARD_FAULTS: dict[str, Change] = {
    "cut-by-one": lambda data: data[:-1],
    "cut-in-half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "shorter-than-its-index": lambda data: data[:20],
    "one-byte-more": lambda data: data + b"\0",
    "bit-in-the-index": flip(-20),
    "bit-in-the-checksum": flip(-1),
}
"""What takes a whole shard with it."""

ENTRY_FAULTS: dict[str, Change] = {
    "beyond-the-end": index(1, 10, 10**6),
    "far-beyond-the-end": index(1, 2**40, 1),
    "overflow": index(1, 2**64 - 2, 100),
    "overflow-to-0": index(1, 2**64 - 16, 16),
    "half-empty-offset": index(1, EMPTY, 5),
    "half-empty-nbytes": index(1, 5, EMPTY),
}
"""What takes the second inner chunk with it."""
