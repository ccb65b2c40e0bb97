"""`find -type f -size +0` over a tree of chunk files, right after a fresh mount."""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from .datasets import Dataset
from .peers import PEERS
from .placement import Placement
from .report import number, print_table, ratio, verdict
from .rounds import interleave

OF_DO_NOTHING = 0.7
"""What shardfs must reach of the do-nothing filesystem that lists the same tree."""

LISTED = {"do-nothing", "shardfs"}
"""Peers that need no million real files."""


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure the peers and print their table."""

    def measure(peer: str, _: random.Random) -> float:
        with PEERS[peer](dataset, placement) as mounted:
            count, seconds = find(mounted.root / "c")
        if count != dataset.chunk_count:
            raise RuntimeError(f"{peer} lists {count:,} files instead of {dataset.chunk_count:,}")
        return count / seconds

    placement.apply()
    rates = interleave([peer for peer in peers if peer in LISTED], rounds, measure)
    rows = []
    for peer, values in rates.items():
        of_ceiling = ratio(values, rates.get("do-nothing", []))
        target, met = "", ""
        if peer == "shardfs" and of_ceiling is not None:
            target, met = f">= {OF_DO_NOTHING} do-nothing", verdict(of_ceiling >= OF_DO_NOTHING)
        rate = f"{median(values):,.0f}"
        rows.append([peer, rate, number(of_ceiling, ".2f"), target, met])
    print_table(
        f"find -type f -size +0 over {dataset.chunk_count:,} inner chunks, cold, "
        f"median of {rounds} rounds, {placement.name}",
        ["peer", "files/s", "of do-nothing", "target", "met"],
        rows,
    )


def find(directory: Path) -> tuple[int, float]:
    """The number of files that `find` prints, and the seconds that it takes."""
    with tempfile.TemporaryFile() as names:
        start = perf_counter()
        subprocess.run(["find", str(directory), "-type", "f", "-size", "+0"], stdout=names, check=True)
        seconds = perf_counter() - start
        names.seek(0)
        count = sum(block.count(b"\n") for block in iter(lambda: names.read(1 << 20), b""))
    return count, seconds
