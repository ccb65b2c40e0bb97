"""The memory of the daemon while more is written than the journal holds, by several writers at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter

import zarr

from .placement import Placement
from .report import print_table, size, verdict
from .writing_peers import WRITING_PEERS

MEMORY_BYTES = 300_000_000
"""The most that the daemon may ever have in memory."""

CHUNK = 2**20
PER_SHARD = 256
WRITERS = 4


def run(work: Path, peers: Sequence[str], chunks: int, placement: Placement, rounds: int) -> None:
    """Write whole chunk files as fast as possible, flush, and print the table."""
    if "shardfs" not in peers:
        return
    placement.apply()
    written, flushed, memory = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=work) as parent:
            source = Path(parent, "array")
            shape, inner, shard = (chunks * CHUNK,), (CHUNK,), (PER_SHARD * CHUNK,)
            zarr.create_array(source, shape=shape, chunks=inner, shards=shard, dtype="uint8", compressors=None)
            with WRITING_PEERS["shardfs"](source, "", placement) as mounted:
                start = perf_counter()
                with ThreadPoolExecutor(WRITERS) as pool:
                    list(pool.map(lambda number: _write(mounted.root / "c" / str(number)), range(chunks)))
                written.append(perf_counter() - start)
                mounted.flush()
                flushed.append(perf_counter() - start)
                memory.append(mounted.peak_memory())
    peak = max(memory)
    print_table(
        f"{chunks:,} chunk files of {size(CHUNK)} written by {WRITERS} threads, "
        f"median of {rounds} rounds, {placement.name}",
        ["measure", "value", "target", "met"],
        [
            ["written", f"{median(written):.1f} s", "", ""],
            ["in shards", f"{median(flushed):.1f} s", "", ""],
            [
                "peak memory",
                f"{peak / 1e6:.0f} MB",
                f"< {MEMORY_BYTES / 1e6:.0f} MB",
                verdict(peak < MEMORY_BYTES),
            ],
        ],
    )


def _write(path: Path) -> None:
    content = memoryview(os.urandom(2**16) * (CHUNK // 2**16))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)
