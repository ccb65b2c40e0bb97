"""Shards that another program keeps locked, so that commits wait."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kept_busy(shard: Path) -> Iterator[Path]:
    """Have a shard locked by another program, as tensorstore does; yields the file that says so."""
    path = Path(f"{shard}.__lock")
    with path.open("xb") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
