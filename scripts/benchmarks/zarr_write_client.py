"""The writer that uses zarr-python, a process of its own: write a whole array, one inner chunk after the other.

Standard input holds a JSON object: the `array`, its `shape`, the `inner` chunk shape, and the `root` of the mount to
flush at the end, or null. Standard output gets the seconds until the last chunk is written, and until the flush
returns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from time import perf_counter

import numpy as np
import numpy.typing as npt
import zarr

PAYLOADS = 8
"""Different chunks that take turns."""


Selection = tuple[slice, ...]


def contents(inner: Sequence[int]) -> list[npt.NDArray[np.uint16]]:
    """What the chunks hold, in turn."""
    generator = np.random.default_rng(0)
    return [generator.integers(1, 2**16, tuple(inner), np.uint16) for _ in range(PAYLOADS)]


def selections(shape: Sequence[int], inner: Sequence[int]) -> list[Selection]:
    """The elements of each inner chunk, in C order."""
    firsts = product(*(range(0, extent, n) for extent, n in zip(shape, inner, strict=True)))
    return [tuple(slice(i, i + n) for i, n in zip(first, inner, strict=True)) for first in firsts]


def main() -> None:
    """Open the array first, and have the contents ready: neither belongs to the time."""
    task = json.load(sys.stdin)
    array = zarr.open_array(task["array"], mode="r+")
    payloads = contents(task["inner"])
    places = selections(task["shape"], task["inner"])
    start = perf_counter()
    for turn, place in enumerate(places):
        array[place] = payloads[turn % PAYLOADS]
    written = perf_counter() - start
    if task["root"] is not None:
        os.setxattr(task["root"], "user.shardfs.flush", b"")
    json.dump({"written": written, "flushed": perf_counter() - start}, sys.stdout)


if __name__ == "__main__":
    main()
