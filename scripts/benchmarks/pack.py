"""`cp -r` of an unsharded array into the mount, which packs it into shards, the journal included.

The files lie in the page cache, and what is written is not made durable while it is copied: that is for the commit,
which follows. Afterwards every shard is read natively: it must hold all its inner chunks.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import zarr

from .datasets import Dataset
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave
from .writing_peers import WRITING_PEERS, Writable

OF_DO_NOTHING = 0.75
"""What shardfs must reach of the do-nothing filesystem that takes the same files."""

NAME = "packed"


@dataclass(frozen=True)
class Copy:
    """How fast `cp` was, how long the server's CPU worked for a file and then the flush took, and its peak memory."""

    files_per_second: float
    server_microseconds: float
    flush_seconds: float
    peak_memory: int


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure the peers and print their table."""

    def measure(peer: str, _: random.Random) -> Copy:
        with tempfile.TemporaryDirectory(dir=dataset.directory) as source:
            shards = ",".join(map(str, dataset.chunks_per_shard))
            with WRITING_PEERS[peer](Path(source), shards, placement) as mounted:
                _fill_page_cache(dataset)
                copied = _copy(dataset, mounted, is_flushed=peer == "shardfs")
            if peer == "shardfs":
                check(dataset, Path(source, NAME))
        return copied

    placement.apply()
    copies = interleave([peer for peer in peers if peer in WRITING_PEERS], rounds, measure)
    rates = {peer: [copy.files_per_second for copy in turns] for peer, turns in copies.items()}
    rows = []
    for peer, values in rates.items():
        of_ceiling = ratio(values, rates.get("do-nothing", []))
        target, met = "", ""
        if peer == "shardfs" and of_ceiling is not None:
            target, met = f">= {OF_DO_NOTHING} do-nothing", verdict(of_ceiling >= OF_DO_NOTHING)
        flush = median(copy.flush_seconds for copy in copies[peer])
        memory = max(copy.peak_memory for copy in copies[peer])
        work = median(copy.server_microseconds for copy in copies[peer])
        cells = [f"{median(values):,.0f}", number(of_ceiling, ".2f"), f"{work:.0f}", number(flush or None, ".2f")]
        rows.append([peer, *cells, f"{memory / 1e6:.0f}", target, met])
    print_table(
        f"cp -r of {dataset.chunk_count:,} chunk files of {size(dataset.chunk_bytes)} into the mount, "
        f"median of {rounds} rounds, {placement.name}",
        ["peer", "files/s", "of do-nothing", "server us/file", "then flush, s", "peak MB", "target", "met"],
        rows,
    )


def _copy(dataset: Dataset, mounted: Writable, *, is_flushed: bool) -> Copy:
    work, start = mounted.server_seconds(), perf_counter()
    subprocess.run(["cp", "-r", str(dataset.unsharded), str(mounted.root / NAME)], check=True)
    copied, work = perf_counter(), mounted.server_seconds() - work
    if is_flushed:
        mounted.flush()
    flush_seconds = perf_counter() - copied if is_flushed else 0.0
    count = dataset.chunk_count
    return Copy(count / (copied - start), 1e6 * work / count, flush_seconds, mounted.peak_memory())


def check(dataset: Dataset, copied: Path) -> None:
    """Compare the elements with those of the dataset, natively: how often shards were committed is left open."""
    found, expected = (zarr.open_array(path, mode="r") for path in (copied, dataset.sharded))
    for coordinates in dataset.shards():
        where = tuple(
            slice(place * length, (place + 1) * length)
            for place, length in zip(coordinates, expected.shards or (), strict=True)
        )
        if not np.array_equal(found[where], expected[where]):
            raise RuntimeError(f"{copied} does not hold the inner chunks of the shard {coordinates}")


def _fill_page_cache(dataset: Dataset) -> None:
    for file in dataset.unsharded.rglob("*"):
        if file.is_file():
            file.read_bytes()
