"""zarr-python writes a whole sharded array, inner chunk by inner chunk: natively, and through the mount.

Natively each inner chunk costs its shard anew. What the mount holds back is brought into the shards at the end, which
is part of the time. Two floors show what zarr-python itself takes for an array that is not sharded: as files without a
mount, and through a filesystem that does nothing.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import zarr

from .native import ZarrPython
from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave
from .writing_peers import WRITING_PEERS
from .zarr_write_client import PAYLOADS, contents, selections

NATIVE, THROUGH, FLOOR, FILES = "native (sharded)", "shardfs", "do-nothing", "plain files"
OF_NATIVE = 5.0
"""How many times as fast as natively zarr-python must be through the mount."""

MEMORY_BYTES = 300_000_000
"""The most that the daemon may ever have in memory."""

INNER = (64, 64, 64)
COMPARED = 16
"""Inner chunks per turn that are looked at."""


@dataclass(frozen=True)
class Written:
    """Seconds until the last inner chunk was written, until all were in their shards, and the daemon's peak memory."""

    seconds: float
    flushed: float
    peak_memory: int


def run(
    work: Path, peers: Sequence[str], shard: tuple[int, ...], placement: Placement, rounds: int, version: ZarrPython
) -> None:
    """Measure all of them with an array of two shards that one version writes, and print their table."""
    if THROUGH not in peers:
        return
    shape = (2 * shard[0], *shard[1:])

    def measure(subject: str, order: random.Random) -> Written:
        if subject == FLOOR:
            with WRITING_PEERS[FLOOR](work, "", placement) as mounted:
                _create(mounted.root / "array", shape, None)
                return _write(version, mounted.root / "array", shape)
        with tempfile.TemporaryDirectory(dir=work) as parent:
            source = Path(parent, "array")
            _create(source, shape, None if subject == FILES else shard)
            if subject != THROUGH:
                written = _write(version, source, shape)
            else:
                with WRITING_PEERS[THROUGH](source, "", placement) as mounted:
                    written = _write(version, mounted.root, shape, mounted.root)
                    written = Written(written.seconds, written.flushed, mounted.peak_memory())
            _check(source, shape, order)
        return written

    placement.apply()
    results = interleave([NATIVE, THROUGH, FLOOR, FILES], rounds, measure)
    native = [turn.flushed for turn in results[NATIVE]]
    rows = []
    for subject, turns in results.items():
        times = ratio(native, [turn.flushed for turn in turns]) or 0.0
        memory = max(turn.peak_memory for turn in turns)
        target, met = "", ""
        if subject == THROUGH:
            target = f">= {OF_NATIVE:.0f} native, < {MEMORY_BYTES / 1e6:.0f} MB"
            met = verdict(times >= OF_NATIVE, memory < MEMORY_BYTES)
        seconds = [f"{median(t.seconds for t in turns):.2f}", f"{median(t.flushed for t in turns):.2f}"]
        rows.append([subject, *seconds, f"{times:.1f}", f"{memory / 1e6:.0f}" if memory else "-", target, met])
    count = int(np.prod([extent // n for extent, n in zip(shape, INNER, strict=True)]))
    print_table(
        f"{version.name} writes {count:,} inner chunks of {size(int(np.prod(INNER)) * 2)} one by one, "
        f"shards of {size(int(np.prod(shard)) * 2)}, median of {rounds} rounds, {placement.name}",
        ["array", "written, s", "in shards, s", "times native", "peak MB", "target", "met"],
        rows,
    )


def _create(array: Path, shape: tuple[int, ...], shards: tuple[int, ...] | None) -> None:
    zarr.create_array(array, shape=shape, chunks=INNER, shards=shards, dtype="uint16", compressors=None, fill_value=0)


def _write(version: ZarrPython, array: Path, shape: tuple[int, ...], root: Path | None = None) -> Written:
    """Write by a process of its own, and flush the mount at `root`."""
    task = {"array": str(array), "shape": shape, "inner": INNER, "root": None if root is None else str(root)}
    answer = json.loads(version.run([str(Path(__file__).with_name("zarr_write_client.py"))], json.dumps(task)))
    return Written(answer["written"], answer["flushed"], 0)


def _check(source: Path, shape: tuple[int, ...], order: random.Random) -> None:
    """Compare some inner chunks with what was written, read from the shards themselves."""
    stored = zarr.open_array(source, mode="r")
    payloads = contents(INNER)
    for turn, place in order.sample(list(enumerate(selections(shape, INNER))), COMPARED):
        if not np.array_equal(np.asarray(stored[place]), payloads[turn % PAYLOADS]):
            raise RuntimeError(f"{place} of {source} is not what was written")
