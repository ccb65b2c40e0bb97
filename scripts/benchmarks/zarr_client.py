"""The reader that uses zarr-python, a process of its own: read single inner chunks of one array.

Standard input holds a JSON object with the `array`, the `inner` chunk shape and the `chunks` in order. Standard
output gets the seconds per chunk and a checksum of some of what was read.
"""

from __future__ import annotations

import json
import sys
import zlib
from time import perf_counter

import numpy as np
import zarr

CHECKED = 16
"""One chunk in so many goes into the checksum, outside of the time."""


def main() -> None:
    """Open the array and read one chunk first: neither belongs to the time."""
    task = json.load(sys.stdin)
    array = zarr.open_array(task["array"], mode="r")
    selections = [
        tuple(slice(c * n, (c + 1) * n) for c, n in zip(chunk, task["inner"], strict=True)) for chunk in task["chunks"]
    ]
    array[selections.pop()]
    start = perf_counter()
    chunks = [array[selection] for selection in selections]
    seconds = (perf_counter() - start) / len(chunks)
    checksum = zlib.crc32(b"".join(np.asarray(chunk).tobytes() for chunk in chunks[::CHECKED]))
    json.dump({"seconds": seconds, "checksum": checksum}, sys.stdout)


if __name__ == "__main__":
    main()
