"""Open, fstat, read and close every inner chunk in random order: once after a fresh mount, and once again.

Cold means that the mount is fresh: no name, no attribute and no page of it is known to the kernel, and the daemon
has read nothing. The backing files are in the page cache; the disk is not what is measured.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .datasets import Dataset, chunk_path
from .peers import PEERS, Mounted
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave

COLD, WARM = range(2)
COMPARED = 8
"""Chunks per mount whose bytes are looked at."""

OF_DO_NOTHING = {COLD: 0.8, WARM: 0.9}
"""What shardfs must reach of the do-nothing filesystem."""


@dataclass(frozen=True)
class Pass:
    """How fast the client read the files, and how long the server's CPU worked for each."""

    files_per_second: float
    server_microseconds: float


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure the peers and print their table."""

    def measure(peer: str, order: random.Random) -> list[Pass]:
        with PEERS[peer](dataset, placement) as mounted:
            mounted.fill_page_cache()
            passes = [_read_all(dataset, mounted, order) for _ in (COLD, WARM)]
            if peer != "do-nothing":
                _compare(dataset, mounted, order)
            return passes

    placement.apply()
    results = interleave(peers, rounds, measure)
    rows = []
    for which, label in ((COLD, "cold"), (WARM, "warm")):
        passes = {peer: [turn[which] for turn in results[peer]] for peer in results}
        rates = {peer: [one.files_per_second for one in passes[peer]] for peer in passes}
        for peer, values in rates.items():
            of_ceiling = ratio(values, rates.get("do-nothing", []))
            of_squashfuse = ratio(values, rates.get("squashfuse", []))
            work = median(one.server_microseconds for one in passes[peer])
            numbers = [
                f"{median(values):,.0f}",
                number(of_ceiling, ".2f"),
                number(of_squashfuse, ".2f"),
                number(work or None, ".0f"),
            ]
            target = _target(which, of_ceiling, of_squashfuse) if peer == "shardfs" else ("", "")
            rows.append([peer, label, *numbers, *target])
    print_table(
        f"Random read of {dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)}, "
        f"median of {rounds} rounds, {placement.name}",
        ["peer", "pass", "files/s", "of do-nothing", "of squashfuse", "server us/file", "target", "met"],
        rows,
    )


def _target(which: int, of_ceiling: float | None, of_squashfuse: float | None) -> tuple[str, str]:
    """What shardfs must reach, and whether it does, as far as the peers were measured too."""
    wanted, met = [], []
    if of_ceiling is not None:
        wanted.append(f">= {OF_DO_NOTHING[which]} do-nothing")
        met.append(of_ceiling >= OF_DO_NOTHING[which])
    if of_squashfuse is not None and which == COLD:
        wanted.append(">= squashfuse")
        met.append(of_squashfuse >= 1)
    return ", ".join(wanted), verdict(*met)


def _read_all(dataset: Dataset, mounted: Mounted, order: random.Random) -> Pass:
    """Read every chunk once in random order, by a process of its own."""
    chunks = dataset.coordinates()
    paths = [str(chunk_path(mounted.root, chunk)) for chunk in order.sample(chunks, len(chunks))]
    command = [sys.executable, str(Path(__file__).with_name("file_client.py"))]
    before = mounted.server_seconds()
    result = subprocess.run(command, input="\n".join(paths), text=True, stdout=subprocess.PIPE, check=True)
    work = mounted.server_seconds() - before
    return Pass(len(chunks) / float(result.stdout), 1e6 * work / len(chunks))


def _compare(dataset: Dataset, mounted: Mounted, order: random.Random) -> None:
    """Compare some chunks with what was stored: a fast wrong answer is worth nothing."""
    for chunk in order.sample(dataset.coordinates(), COMPARED):
        shown = chunk_path(mounted.root, chunk)
        if shown.read_bytes() != chunk_path(dataset.unsharded, chunk).read_bytes():
            raise RuntimeError(f"{shown} has other bytes than were stored")
