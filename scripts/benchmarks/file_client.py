"""The reader of chunk files, a process of its own: open, fstat, read and close each file of a list.

Standard input holds the list, one path per line; standard output gets an empty line when the program runs, and then the
seconds.
"""

from __future__ import annotations

import gc
import os
import sys
from time import perf_counter


def read_files(paths: list[bytes]) -> float:
    """The seconds that it takes to read every file whole."""
    start = perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        if len(os.read(descriptor, size)) != size or not size:
            raise OSError(f"{os.fsdecode(path)} is not {size} bytes long")
        os.close(descriptor)
    return perf_counter() - start


def main() -> None:
    """Have all paths first, so that nothing but the files is in the time."""
    print(flush=True)
    paths = sys.stdin.buffer.read().splitlines()
    gc.disable()
    print(read_files(paths))


if __name__ == "__main__":
    main()
