"""Several processes write inner chunks into the same shards at the same time, until they are in there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import zarr

import shardfs

from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave
from .writers_client import Block, values
from .writing_peers import shardfs as mounted

INNER, SHARD, SHAPE = (32, 32, 32), (128, 128, 128), (128, 256, 512)
TARGET = 1.6
"""How many times as fast as one process two must be, by the store."""


class Subject(NamedTuple):
    """Processes that write *how*, on so many mounts, in blocks of chunks or of whole shards."""

    how: str
    processes: int
    mounts: int = 0
    whole_shards: bool = False


SUBJECTS = {
    "store, 1 process": Subject("store", 1),
    "store, 2 processes": Subject("store", 2),
    "store, 4 processes": Subject("store", 4),
    "2 processes, one mount": Subject("files", 2, 1),
    "2 processes, a mount each": Subject("files", 2, 2),
    "tensorstore, 2, whole shards": Subject("tensorstore", 2, whole_shards=True),
    "tensorstore, 2, by chunk": Subject("tensorstore", 2),
    "zarr-python, 2, by chunk": Subject("zarr-python", 2),
}


class Result(NamedTuple):
    """How long it took, how many chunks are not what was written, and the dead bytes of a shard."""

    seconds: float
    nlost: int
    dead_nbytes: float


def run(work: Path, placement: Placement, rounds: int, *, quick: bool) -> None:
    """Print the table."""
    shape = SHARD if quick else SHAPE
    chunks = _blocks(shape, INNER)
    placement.apply()
    results = interleave(SUBJECTS, rounds, lambda name, _: _measure(work, SUBJECTS[name], shape, placement))
    one = [result.seconds for result in results["store, 1 process"]]
    rows = []
    for name, found in results.items():
        seconds = [result.seconds for result in found]
        times = ratio(one, seconds) or 0.0
        nlost = max(result.nlost for result in found)
        met = [times >= TARGET] if name == "store, 2 processes" else []
        if not name.startswith("zarr"):
            met.append(not nlost)
        dead = median(result.dead_nbytes for result in found)
        speed = f"{len(chunks) / median(seconds):,.0f}"
        rows.append([name, speed, f"{times:.2f}", f"{nlost:,}", f"{dead / 1024:,.0f} KiB", verdict(*met)])
    chunk = size(int(np.prod(INNER)) * 2)
    print_table(
        f"{len(chunks):,} inner chunks of {chunk} are written into {len(_blocks(shape, SHARD))} shards by processes "
        f"that take turns in each shard, until they are in there, median of {rounds} rounds, {placement.name}; the "
        f"target of two processes is {TARGET:g} times one",
        ["writing", "chunks/s", "times one", "lost", "dead/shard", "met"],
        rows,
    )


def _blocks(shape: Sequence[int], part: Sequence[int]) -> list[Block]:
    pairs = zip(shape, part, strict=True)
    return [tuple(slice(*pair) for pair in block) for block in product(*(_parts(*pair) for pair in pairs))]


def _parts(length: int, part: int) -> list[tuple[int, int]]:
    return [(begin, begin + part) for begin in range(0, length, part)]


def _measure(work: Path, subject: Subject, shape: Sequence[int], placement: Placement) -> Result:
    with tempfile.TemporaryDirectory(dir=work) as parent, ExitStack() as stack:
        source = Path(parent, "array")
        zarr.create_array(source, shape=shape, chunks=INNER, shards=SHARD, dtype="uint16", compressors=None)
        os.sync()
        mounts = [stack.enter_context(mounted(source, "", placement)) for _ in range(subject.mounts)]
        blocks = _blocks(shape, SHARD if subject.whole_shards else INNER)
        processes = []
        for number in range(subject.processes):
            root = mounts[number % len(mounts)].root if mounts else source
            pairs = [[(part.start, part.stop) for part in block] for block in blocks[number :: subject.processes]]
            task = {"how": subject.how, "array": str(root), "inner": INNER, "blocks": pairs}
            processes.append(_client(stack, task))
        for process in processes:
            _hear(process, "open")
        begin = perf_counter()
        for process in processes:
            _tell(process)
        for process in processes:
            _hear(process, "done")
        for mount in mounts:
            mount.flush()
        seconds = perf_counter() - begin
        for process in processes:
            _tell(process)
            if process.wait():
                raise RuntimeError(f"a process that writes by {subject.how} failed")
        stack.close()
        return Result(seconds, *_look(source, shape))


def _client(stack: ExitStack, task: Mapping[str, object]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"{__package__}.writers_client"]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    _tell(process, json.dumps(task))
    return process


def _tell(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != f"{word}\n":
        raise RuntimeError("a process that writes has ended")


def _look(source: Path, shape: Sequence[int]) -> tuple[int, float]:
    """Read natively what was written; returns how many chunks are something else, and the dead bytes of a shard."""
    stored = np.asarray(zarr.open_array(source, mode="r")[...])
    nlost = sum(not np.array_equal(stored[block], values(block, INNER)) for block in _blocks(shape, INNER))
    with shardfs.open(source) as dataset:
        shards = dataset[""].shards()
    return nlost, sum(shard["dead"] for shard in shards) / max(1, len(shards))
