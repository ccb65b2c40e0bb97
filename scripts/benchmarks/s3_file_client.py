"""The program that reads chunk files, a process of its own, and times each.

Standard input holds the paths, one on each line. Standard output gets the seconds for each, and a checksum of all.
"""

from __future__ import annotations

import json
import sys
import zlib
from time import perf_counter


def main() -> None:
    """Read the files in the order given."""
    seconds, checksum = [], 0
    for path in sys.stdin.read().splitlines():
        start = perf_counter()
        with open(path, "rb", buffering=0) as file:
            data = file.readall()
        seconds.append(perf_counter() - start)
        checksum = zlib.crc32(data, checksum)
    json.dump({"seconds": seconds, "checksum": checksum}, sys.stdout)


if __name__ == "__main__":
    main()
