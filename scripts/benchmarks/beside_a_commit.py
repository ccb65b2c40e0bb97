"""How long writes to one array take while a large commit of another one is under way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import zarr

from .placement import Placement
from .report import print_table, size, verdict
from .writing_peers import WRITING_PEERS

LONGEST_MS = 50
"""The longest that a write may take."""

CHUNK = 16 * 2**10
SMALL = 64
PAUSE = 0.003
WATCHED = 7.0
"""Seconds: between two writes, and for how long they go on; a shard is committed after two without a write."""


def run(work: Path, peers: Sequence[str], chunks: int, placement: Placement, rounds: int) -> None:
    """Fill one shard of *chunks* inner chunks, then write to another array while it is committed."""
    if "shardfs" not in peers:
        return
    placement.apply()
    typical, longest = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=work) as parent:
            group = zarr.create_group(Path(parent, "group"))
            for name, chunk, per_shard in (("large", CHUNK, chunks), ("small", SMALL, 64)):
                shard = (chunk * per_shard,)
                group.create_array(name, shape=shard, chunks=(chunk,), shards=shard, dtype="uint8", compressors=None)
            with WRITING_PEERS["shardfs"](Path(parent, "group"), "", placement) as mounted:
                content = os.urandom(CHUNK)
                for number in range(chunks):
                    (mounted.root / "large/c" / str(number)).write_bytes(content)
                times = _write_for_a_while(mounted.root / "small/c")
                typical.append(1e3 * median(times))
                longest.append(1e3 * max(times))
    print_table(
        f"writes of {SMALL} bytes while {chunks:,} chunks of {size(CHUNK)} of another array are committed, "
        f"median of {rounds} rounds, {placement.name}",
        ["measure", "value", "target", "met"],
        [
            ["typical", f"{median(typical):.1f} ms", "", ""],
            [
                "longest",
                f"{median(longest):.0f} ms",
                f"< {LONGEST_MS} ms",
                verdict(median(longest) < LONGEST_MS),
            ],
        ],
    )


def _write_for_a_while(directory: Path) -> list[float]:
    times: list[float] = []
    end = perf_counter() + WATCHED
    while perf_counter() < end:
        start = perf_counter()
        (directory / str(len(times) % 64)).write_bytes(bytes(SMALL))
        times.append(perf_counter() - start)
        sleep(PAUSE)
    return times
