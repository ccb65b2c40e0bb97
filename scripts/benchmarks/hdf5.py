"""Chunks of an HDF5 file by shardfs, without a mount, beside h5py: as they are stored, and as elements."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

import h5py
import numpy as np

from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave

OURS, NATIVE = "shardfs", "h5py"
TARGET = 1.0
"""How many times as fast as h5py it must be."""

CHUNK = (32, 64, 64)
COUNT = 256
"""Chunks per round that are read one by one, each once, none of them in the page cache."""


def make(work: Path, nchunks: int) -> Path:
    """Write a file with *nchunks* chunks in gzip and shuffle."""
    path = work / f"chunks-{nchunks}.h5"
    if not path.exists():
        rng = np.random.default_rng(0)
        with h5py.File(path, "w") as file:
            shape = (nchunks * CHUNK[0], *CHUNK[1:])
            array = file.create_dataset("x", shape, "f4", chunks=CHUNK, compression="gzip", shuffle=True)
            for number in range(nchunks):
                array[number * CHUNK[0] : (number + 1) * CHUNK[0]] = rng.integers(0, 1000, CHUNK)
    return path


def run(path: Path, nchunks: int, placement: Placement, rounds: int) -> None:
    """Read single chunks in random order, and print the table."""
    count = min(COUNT, nchunks - 1)
    placement.apply()
    rows = []
    for what, do in (("as stored", "stored"), ("elements", "elements")):

        def measure(subject: str, order: random.Random, do: str = do) -> tuple[float, int]:
            _forget(path)
            task = {"file": str(path), "by": subject, "do": do, "rows": order.sample(range(nchunks), count + 1)}
            line = [sys.executable, "-m", f"{__package__}.hdf5_client"]
            done = subprocess.run(line, input=json.dumps(task), capture_output=True, text=True, check=True)
            answer = json.loads(done.stdout)
            return answer["seconds"] / count, answer["checksum"]

        results = interleave([NATIVE, OURS], rounds, measure)
        if any(len({checksum for _, checksum in turn}) > 1 for turn in zip(*results.values(), strict=True)):
            raise RuntimeError("shardfs read other bytes than h5py")
        native, ours = ([seconds for seconds, _ in results[subject]] for subject in (NATIVE, OURS))
        times = ratio(native, ours) or 0.0
        milliseconds = [f"{1000 * median(values):.2f}" for values in (native, ours)]
        rows.append([what, *milliseconds, f"{times:.2f}", f">= {TARGET:g}", verdict(times >= TARGET)])
    print_table(
        f"Cold chunks of {size(int(np.prod(CHUNK)) * 4)}, gzip and shuffle, of an HDF5 file with {nchunks:,}, one by "
        f"one, median of {rounds} rounds, {placement.name}",
        ["chunks", "h5py, ms", "by the store", "times h5py", "target", "met"],
        rows,
    )


def _forget(path: Path) -> None:
    """Let the kernel forget a file."""
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
