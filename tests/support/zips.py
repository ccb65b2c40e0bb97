"""ZIP files for tests, and what can be wrong with them."""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def write_zip(
    path: Path,
    files: Mapping[str, bytes],
    method: int = zipfile.ZIP_STORED,
    *,
    comment: bytes = b"",
    prefix: bytes = b"",
) -> None:
    """Write a ZIP file with these members, behind *prefix*, by Python's `zipfile`."""
    with path.open("wb") as file:
        file.write(prefix)
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.comment = comment
            for name, data in files.items():
                archive.writestr(name, data)


def local(
    name: bytes, csize: int, usize: int, crc32: int, *, method: int = 0, flags: int = 0, extra: bytes = b""
) -> bytes:
    """A local header, section 4.3.7."""
    return (
        struct.pack("<4s5H3L2H", LOCAL, 20, flags, method, 0, 33, crc32, csize, usize, len(name), len(extra))
        + name
        + extra
    )


def central(
    name: bytes, offset: int, csize: int, usize: int, crc32: int, *, method: int = 0, flags: int = 0,
    extra: bytes = b"", disk: int = 0, external: int = 0, made_by: int = 3 << 8,
) -> bytes:  # fmt: skip
    """A header of the central directory, section 4.3.12."""
    sizes = (crc32, csize, usize, len(name), len(extra), 0, disk, 0, external, offset)
    return struct.pack("<4s6H3L5H2L", CENTRAL, made_by, 20, flags, method, 0, 33, *sizes) + name + extra


def end(count: int, nbytes: int, offset: int, *, comment: bytes = b"", disk: int = 0) -> bytes:
    """The end of the central directory, section 4.3.16."""
    return struct.pack("<4s4H2LH", END, disk, disk, count, count, nbytes, offset, len(comment)) + comment


def wide_end(count: int, nbytes: int, offset: int, at: int) -> bytes:
    """The same with 64 bits, sections 4.3.14 and 4.3.15, which begins *at* that byte; and the other one."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, nbytes, offset)
    short = (min(count, 2**16 - 1), min(nbytes, 2**32 - 1), min(offset, 2**32 - 1))
    return record + struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1) + end(*short)
