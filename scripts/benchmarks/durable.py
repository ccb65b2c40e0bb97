"""`cp -r` of chunk files until they are durable: into shards, and into filesystems that keep them as they are.

All end with a `sync`; a mount of shardfs has its journal brought into shards before. "do-nothing" keeps nothing: what
it takes, nobody can save. What the others keep is compared with what was copied.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from .datasets import Dataset
from .pack import check
from .peers import foreground, mountpoint
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave
from .writing_peers import WRITING_PEERS, Writable, WritableMount

OF_BINDFS, OF_DO_NOTHING = 2.0, 0.75
"""How many times as fast as each shardfs must be."""

CLIENTS = (1, 4)
"""How many programs copy at the same time."""


@contextmanager
def bindfs(source: Path, _: str, placement: Placement) -> Iterator[Writable]:
    """Another directory as it is, through libfuse in C."""
    with mountpoint() as root, foreground(["bindfs", "-f", str(source), str(root)], root, placement) as server:
        yield Writable(root, server)


@contextmanager
def rclone(source: Path, _: str, placement: Placement) -> Iterator[Writable]:
    """Another directory, through Go; without its cache, which would write everything twice."""
    command = ["rclone", "mount", "--config=", "--vfs-cache-mode=off", str(source)]
    with mountpoint() as root, foreground([*command, str(root)], root, placement) as server:
        yield Writable(root, server)


SUBJECTS: dict[str, WritableMount] = {**WRITING_PEERS, "bindfs": bindfs, "rclone": rclone}


def run(dataset: Dataset, placement: Placement, rounds: int) -> None:
    """Measure all that are installed, and print the table."""
    placement.apply()
    subjects = [name for name in SUBJECTS if name in WRITING_PEERS or shutil.which(name)]
    for nclients in CLIENTS:

        def measure(subject: str, _: random.Random, nclients: int = nclients) -> float:
            with tempfile.TemporaryDirectory(dir=dataset.directory) as source:
                shards = ",".join(map(str, dataset.chunks_per_shard))
                os.sync()
                with SUBJECTS[subject](Path(source), shards, placement) as mounted:
                    seconds = _copy(dataset, mounted, nclients, commits=subject == "shardfs")
                if subject != "do-nothing":
                    check(dataset, Path(source, "array"))
                return dataset.chunk_count / seconds

        rates = interleave(subjects, rounds, measure)
        rows = []
        for subject, values in rates.items():
            of_bindfs, of_nothing = (ratio(values, rates.get(peer, [])) for peer in ("bindfs", "do-nothing"))
            target, met = "", ""
            if subject == "shardfs" and of_bindfs is not None and of_nothing is not None:
                target = f">= {OF_BINDFS:g} bindfs, {OF_DO_NOTHING} do-nothing"
                met = verdict(of_bindfs >= OF_BINDFS, of_nothing >= OF_DO_NOTHING)
            cells = [f"{median(values):,.0f}", number(of_bindfs, ".2f"), number(of_nothing, ".2f")]
            rows.append([subject, *cells, target, met])
        print_table(
            f"{nclients} cp -r of {dataset.chunk_count:,} chunk files of {size(dataset.chunk_bytes)} until they are "
            f"durable, median of {rounds} rounds, {placement.name}",
            ["into", "files/s", "of bindfs", "of do-nothing", "target", "met"],
            rows,
        )


def _copy(dataset: Dataset, mounted: Writable, nclients: int, *, commits: bool) -> float:
    """Copy the array, with several clients parts of it at the same time; gives the seconds until it is durable."""
    array = mounted.root / "array"
    start = perf_counter()
    array.mkdir()
    shutil.copy(dataset.unsharded / "zarr.json", array)
    parts = [str(path) for path in sorted((dataset.unsharded / "c").iterdir())]
    (array / "c").mkdir()
    command = ["xargs", "-P", str(nclients), "-n", str(-(-len(parts) // nclients)), "cp", "-r", "-t", str(array / "c")]
    subprocess.run(command, input="\n".join(parts), text=True, check=True)
    if commits:
        mounted.flush()
    os.sync()
    return perf_counter() - start
