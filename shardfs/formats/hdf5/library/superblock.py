"""The superblock of a file that is being written, as that of one that is closed.

While a program writes a file for others to read it meanwhile (SWMR), its superblock says so, and not where it ends.
libhdf5 reads such a file only from a disk. It gets the superblock here that `h5clear` would write.

Source: HDF5 file format specification 4.0, "Format Signature and Superblock", version 3; Jenkins' lookup3.
"""

import struct
from collections.abc import Iterator
from typing import Final

from .channel import PipedFile

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_FIRST: Final = 512
_NBYTES: Final = 44  # without the checksum, where addresses have 8 bytes
_VERSION: Final = 3
_FLAGS_AT: Final = 11
_END_AT: Final = 28
_IS_WRITTEN: Final = 1
_IS_SWMR: Final = 4
_TOP: Final = 2**32 - 1


def close_superblock(file: PipedFile) -> None:
    """Let libhdf5 see that *file* is not being written, if it is so by SWMR.

    Raises `OSError` if it is being written otherwise: nothing says whether it makes sense.
    """
    for at in _places(file.size):
        file.seek(at)
        found = file.read(_NBYTES + 4) or b""
        if found.startswith(_SIGNATURE):
            break
    else:
        return
    head = found[:_NBYTES]
    if len(found) < _NBYTES + 4 or head[8:11] != bytes([_VERSION, 8, 8]) or not head[_FLAGS_AT] & _IS_WRITTEN:
        return
    if found[_NBYTES:] != _checksum(head):
        return  # of which libhdf5 says so
    if not head[_FLAGS_AT] & _IS_SWMR:
        raise OSError("a program is writing it, or was killed while it was: close it, or run `h5clear --status` on it")
    closed = bytearray(head)
    closed[_FLAGS_AT] = 0
    struct.pack_into("<Q", closed, _END_AT, file.size)
    file.show(at, bytes(closed) + _checksum(closed))


def _places(size: int) -> Iterator[int]:
    """Yield where a superblock may be."""
    at = 0
    while at < size:
        yield at
        at = 2 * at or _FIRST


def _checksum(data: bytes | bytearray) -> bytes:
    """Return the checksum of *data*, whose size is a multiple of 4 and not of 12, as metadata of HDF5 have it."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    x = y = z = (0xDEADBEEF + len(data)) & _TOP
    while len(words) > 3:
        x, y, z = (one + word & _TOP for one, word in zip((x, y, z), words, strict=False))
        words = words[3:]
        for shift in (4, 6, 8, 16, 19, 4):
            x, y, z = y, z + y & _TOP, (x - z & _TOP) ^ _turned(z, shift)
    y, z, x = (one + word & _TOP for one, word in zip((x, y, z), (*words, 0, 0), strict=False))
    for shift in (14, 11, 25, 16, 4, 14, 24):
        x, y, z = y, z, (x ^ z) - _turned(z, shift) & _TOP
    return struct.pack("<I", z)


def _turned(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _TOP
