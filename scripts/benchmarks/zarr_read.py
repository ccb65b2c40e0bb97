"""zarr-python reads single inner chunks in random order: from the sharded array itself, and through the mount."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from .datasets import Dataset
from .native import ZarrPython
from .peers import PEERS
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave

NATIVE = "native (sharded)"
CHUNKS = 512
"""Inner chunks per round; each is read once."""

ARCHIVES = {"squashfuse", "ratarmount"}
"""Peers that say nothing about reading a sharded array."""


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int, zarr: ZarrPython) -> None:
    """Measure one version's native read and its reads through the peers, and print their table."""
    subjects = [NATIVE, *(peer for peer in peers if peer not in ARCHIVES)]

    def measure(subject: str, order: random.Random) -> tuple[float, int]:
        if subject == NATIVE:
            return _read(zarr, dataset, dataset.sharded, order)
        with PEERS[subject](dataset, placement) as mounted:
            return _read(zarr, dataset, mounted.root, order)

    placement.apply()
    results = interleave(subjects, rounds, measure)
    checksums = [{checksum for _, checksum in turn} for turn in zip(*_honest(results), strict=True)]
    if any(len(of_one_round) > 1 for of_one_round in checksums):
        raise RuntimeError("zarr-python read other bytes through a mount than natively")
    seconds = {subject: [value for value, _ in turns] for subject, turns in results.items()}
    rows = []
    for subject, values in seconds.items():
        speed = ratio(seconds[NATIVE], values)
        target, met = "", ""
        if subject == "shardfs" and speed is not None:
            target, met = ">= 1.0 native", verdict(speed >= 1)
        milliseconds = f"{1000 * median(values):.2f}"
        rows.append([subject, milliseconds, number(speed, ".2f"), target, met])
    print_table(
        f"{zarr.name}, single inner chunks of {size(dataset.chunk_bytes)} in random order, "
        f"median of {rounds} rounds, {placement.name}",
        ["array", "ms/chunk", "speed of native", "target", "met"],
        rows,
    )


def _honest(results: dict[str, list[tuple[float, int]]]) -> list[list[tuple[float, int]]]:
    """All but the do-nothing filesystem, which never returns what was stored."""
    return [turns for subject, turns in results.items() if subject != "do-nothing"]


def _read(zarr: ZarrPython, dataset: Dataset, root: Path, order: random.Random) -> tuple[float, int]:
    """The seconds per chunk and the checksum, measured by a process of its own."""
    chunks = dataset.coordinates()
    chosen = order.sample(chunks, min(CHUNKS, len(chunks)))
    task = json.dumps({"array": str(root), "inner": dataset.inner, "chunks": chosen})
    answer = json.loads(zarr.run([str(Path(__file__).with_name("zarr_client.py"))], task))
    return answer["seconds"], answer["checksum"]
