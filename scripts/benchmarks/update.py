"""One inner chunk of a large shard is replaced: through the mount by a rename, and by libraries natively.

Natively it is visible when it is in the shard, which the library writes anew. Through the mount it is visible at
once, and in the shard after a flush, which makes it durable. Every subject gets a copy of the shard of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from .datasets import Coordinates, Dataset
from .native import ZarrPython, versions
from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave
from .update_client import content, selection
from .writing_peers import WRITING_PEERS

THROUGH, TENSORSTORE = "shardfs", "tensorstore"


@dataclass(frozen=True)
class Way:
    """How chunks are changed: by which function of the client, in which Python, and how often in a round.

    A first change is not timed. shardfs must be so many times as fast until a change is visible, and in the shard.
    """

    how: str
    nchanges: int
    python: ZarrPython
    visible: float = 0
    in_shard: float = 0


@dataclass(frozen=True)
class Seconds:
    """For one chunk."""

    visible: float
    in_shard: float


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure all subjects and print their table."""
    if THROUGH not in peers:
        return

    this, *_ = versions().values()
    native = {name: Way("zarr-python", 2, version, 200, 50) for name, version in versions().items()}
    native[TENSORSTORE] = Way(TENSORSTORE, 3, this, 100, 50)
    ways = {THROUGH: Way("rename", 16, this), **native}

    def measure(subject: str, order: random.Random) -> Seconds:
        way = ways[subject]
        with tempfile.TemporaryDirectory(dir=dataset.directory) as parent:
            array = Path(parent, "array")
            shutil.copytree(dataset.sharded, array)
            os.sync()  # else the first commit has to wait for the copy
            chunks = order.sample(dataset.coordinates(), way.nchanges + 1)
            if subject != THROUGH:
                seconds = _change(dataset, way, array, chunks)
            else:
                with WRITING_PEERS[THROUGH](array, "", placement) as mounted:
                    seconds = _change(dataset, way, mounted.root, chunks, mounted.root)
            _check(dataset, array, chunks)
        return seconds

    placement.apply()
    results = interleave(ways, rounds, measure)
    rows = []
    for subject, turns in results.items():
        visible, in_shard = [turn.visible for turn in turns], [turn.in_shard for turn in turns]
        rows.append([subject, f"{1000 * median(visible):.2f}", f"{1000 * median(in_shard):.2f}", "", "", ""])
    for library, way in native.items():
        theirs = [turn.in_shard for turn in results[library]]
        for label, wanted, ours in (
            ("visible", way.visible, [turn.visible for turn in results[THROUGH]]),
            ("in the shard", way.in_shard, [turn.in_shard for turn in results[THROUGH]]),
        ):
            times = ratio(theirs, ours) or 0.0
            rows.append(
                [f"{library} / shardfs, {label}", "", "", f"{times:.0f}", f">= {wanted:g}", verdict(times >= wanted)]
            )
    nbytes = dataset.chunk_bytes * dataset.chunk_count
    print_table(
        f"One inner chunk of {size(dataset.chunk_bytes)} replaced in a shard of {size(nbytes)}, "
        f"median of {rounds} rounds, {placement.name}",
        ["subject", "visible, ms", "in the shard, ms", "times", "target", "met"],
        rows,
    )


def _change(
    dataset: Dataset, way: Way, array: Path, chunks: Sequence[Coordinates], root: Path | None = None
) -> Seconds:
    task = {
        "how": way.how,
        "array": str(array),
        "inner": dataset.inner,
        "chunks": chunks,
        "root": None if root is None else str(root),
    }
    seconds = json.loads(way.python.run([str(Path(__file__).with_name("update_client.py"))], json.dumps(task)))
    return Seconds(median(visible for visible, _ in seconds), median(in_shard for _, in_shard in seconds))


def _check(dataset: Dataset, array: Path, chunks: Sequence[Coordinates]) -> None:
    """Read what was changed with a library: a fast write of something else is worth nothing."""
    import zarr

    stored = zarr.open_array(array, mode="r")
    for turn, chunk in enumerate(chunks):
        found = np.asarray(stored[selection(chunk, dataset.inner)])
        if not np.array_equal(found, content(dataset.inner, turn)):
            raise RuntimeError(f"the inner chunk {chunk} in {array} is not what was written")
