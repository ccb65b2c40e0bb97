"""One inner chunk of a large shard is replaced: through the mount by a rename, and by libraries natively.

Natively it is visible when it is in the shard, which the library writes anew. Through the mount it is visible at
once, and in the shard after a flush, which makes it durable. Every subject gets a copy of the shard of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from .datasets import Coordinates, Dataset
from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave
from .update_client import content, selection
from .writing_peers import WRITING_PEERS

THROUGH = "shardfs"
NATIVE = ("zarr-python", "tensorstore")
VISIBLE = {"zarr-python": 200, "tensorstore": 100}
IN_SHARD = {"zarr-python": 50, "tensorstore": 50}
"""How many times as fast as each library shardfs must be."""

CHANGES = {THROUGH: 16, "zarr-python": 2, "tensorstore": 3}
"""Chunks that are changed in each round, besides a first one that is not timed."""


@dataclass(frozen=True)
class Seconds:
    """For one chunk."""

    visible: float
    in_shard: float


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure all subjects and print their table."""
    if THROUGH not in peers:
        return

    def measure(subject: str, order: random.Random) -> Seconds:
        with tempfile.TemporaryDirectory(dir=dataset.directory) as parent:
            array = Path(parent, "array")
            shutil.copytree(dataset.sharded, array)
            os.sync()  # else the first commit has to wait for the copy
            chunks = order.sample(dataset.coordinates(), CHANGES[subject] + 1)
            if subject != THROUGH:
                seconds = _change(dataset, subject, array, chunks)
            else:
                with WRITING_PEERS[THROUGH](array, "", placement) as mounted:
                    seconds = _change(dataset, "rename", mounted.root, chunks, mounted.root)
            _check(dataset, array, chunks)
        return seconds

    placement.apply()
    results = interleave([THROUGH, *NATIVE], rounds, measure)
    rows = []
    for subject, turns in results.items():
        visible, in_shard = [turn.visible for turn in turns], [turn.in_shard for turn in turns]
        rows.append([subject, f"{1000 * median(visible):.2f}", f"{1000 * median(in_shard):.2f}", "", "", ""])
    for library in NATIVE:
        native = [turn.in_shard for turn in results[library]]
        for label, wanted, ours in (
            ("visible", VISIBLE[library], [turn.visible for turn in results[THROUGH]]),
            ("in the shard", IN_SHARD[library], [turn.in_shard for turn in results[THROUGH]]),
        ):
            times = ratio(native, ours) or 0.0
            rows.append(
                [f"{library} / shardfs, {label}", "", "", f"{times:.0f}", f">= {wanted}", verdict(times >= wanted)]
            )
    nbytes = dataset.chunk_bytes * dataset.chunk_count
    print_table(
        f"One inner chunk of {size(dataset.chunk_bytes)} replaced in a shard of {size(nbytes)}, "
        f"median of {rounds} rounds, {placement.name}",
        ["subject", "visible, ms", "in the shard, ms", "times", "target", "met"],
        rows,
    )


def _change(
    dataset: Dataset, how: str, array: Path, chunks: Sequence[Coordinates], root: Path | None = None
) -> Seconds:
    task = {
        "how": how,
        "array": str(array),
        "inner": dataset.inner,
        "chunks": chunks,
        "root": None if root is None else str(root),
    }
    client = Path(__file__).with_name("update_client.py")
    command = [sys.executable, str(client)]
    result = subprocess.run(command, input=json.dumps(task), text=True, stdout=subprocess.PIPE, check=True)
    seconds = json.loads(result.stdout)
    return Seconds(median(visible for visible, _ in seconds), median(in_shard for _, in_shard in seconds))


def _check(dataset: Dataset, array: Path, chunks: Sequence[Coordinates]) -> None:
    """Read what was changed with a library: a fast write of something else is worth nothing."""
    import zarr

    stored = zarr.open_array(array, mode="r")
    for turn, chunk in enumerate(chunks):
        found = np.asarray(stored[selection(chunk, dataset.inner)])
        if not np.array_equal(found, content(dataset.inner, turn)):
            raise RuntimeError(f"the inner chunk {chunk} in {array} is not what was written")
