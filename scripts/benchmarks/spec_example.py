"""The specification's example: how long a mount and its first chunk take, and how much memory a whole `find` needs."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from .datasets import Dataset, chunk_path
from .listing import find
from .peers import PEERS
from .placement import Placement
from .report import print_table, verdict

MOUNT_SECONDS = 1.0
FIRST_CHUNK_SECONDS = 0.02
MEMORY_BYTES = 250_000_000
"""The limits of the issue that asked for this."""


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int, part: str) -> None:
    """Mount several times, list `part` of the chunk tree in the last mount, and print the table."""
    if "shardfs" not in peers:
        return
    placement.apply()
    mounts, firsts = [], []
    for turn in range(rounds):
        start = perf_counter()
        with PEERS["shardfs"](dataset, placement) as mounted:
            mounts.append(perf_counter() - start)
            firsts.append(_first_chunk(dataset, mounted.root, random.Random(turn)))
            if turn == rounds - 1:
                count, seconds = find(mounted.root / part)
                memory = peak_memory(mounted.server)
    if part == "c" and count != dataset.chunk_count:
        raise RuntimeError(f"find prints {count:,} files instead of {dataset.chunk_count:,}")
    mount, first = median(mounts), median(firsts)
    print_table(
        f"The specification's example: shape {dataset.shape}, {dataset.chunk_count:,} inner chunks, "
        f"median of {rounds} mounts",
        ["measure", "value", "target", "met"],
        [
            ["mount", f"{mount:.2f} s", f"< {MOUNT_SECONDS} s", verdict(mount < MOUNT_SECONDS)],
            [
                "first chunk",
                f"{first * 1000:.1f} ms",
                f"< {FIRST_CHUNK_SECONDS * 1000:.0f} ms",
                verdict(first < FIRST_CHUNK_SECONDS),
            ],
            [f"find {part}: files", f"{count:,}", "", ""],
            [f"find {part}: files/s", f"{count / seconds:,.0f}", "", ""],
            [
                f"find {part}: peak memory",
                f"{memory / 1e6:.0f} MB",
                f"< {MEMORY_BYTES / 1e6:.0f} MB",
                verdict(memory < MEMORY_BYTES),
            ],
        ],
    )


def _first_chunk(dataset: Dataset, root: Path, order: random.Random) -> float:
    """The seconds until one random chunk of a fresh mount is read."""
    path = chunk_path(root, tuple(order.randrange(extent) for extent in dataset.grid))
    return read_once(path, dataset.chunk_bytes)


def read_once(path: Path, nbytes: int) -> float:
    """The seconds until a chunk of this size is read."""
    start = perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    content = os.read(descriptor, size)
    os.close(descriptor)
    seconds = perf_counter() - start
    if len(content) != nbytes:
        raise RuntimeError(f"{path} has {len(content):,} bytes instead of {nbytes:,}")
    return seconds


def peak_memory(server: int | None) -> int:
    """The most bytes that a daemon ever had in memory."""
    for line in Path(f"/proc/{server}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the daemon tells no peak memory")
