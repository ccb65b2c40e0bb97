"""zarr-python by shardfs's store, without a mount, beside zarr-python natively: reading, and writing into shards."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import zarr

from .datasets import Coordinates, Dataset
from .native import ZarrPython
from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave
from .s3_peers import upload
from .s3_service import BUCKET, Service
from .store_client import PAYLOADS
from .update_client import content, selection

STORE, NATIVE = "shardfs", "native"
READING, UPDATING, WRITING = 0.9, 50.0, 8.0
"""How many times as fast as natively the store must be."""

CHUNKS, REMOTE_CHUNKS = 512, 64
"""Inner chunks per round that are read one by one, each once."""
CHANGES = {STORE: 16, NATIVE: 2}
"""Chunks that are replaced in each round, besides a first one that is not timed."""
INNER, SHARD = (64, 64, 64), (256, 256, 256)


def run_read(
    dataset: Dataset, placement: Placement, rounds: int, version: ZarrPython, service: Service | None = None
) -> None:
    """Read single inner chunks, and the whole array, and print the table; from S3 if there is a *service*."""
    array = str(dataset.sharded) if service is None else f"s3://{BUCKET}/{upload(service, dataset)}"
    count = min(REMOTE_CHUNKS if service is not None else CHUNKS, dataset.chunk_count - 1)
    environment = os.environ if service is None else service.environment
    placement.apply()
    rows = []
    for what, do in (("single inner chunks", "read"), ("the whole array", "whole")):

        def measure(subject: str, order: random.Random, do: str = do) -> tuple[float, int]:
            chunks = order.sample(dataset.coordinates(), count + 1)
            seconds, checksum = _client(version, subject, array, dataset.inner, chunks, do, environment)
            return seconds[0] / (count if do == "read" else dataset.chunk_count), checksum

        results = interleave([NATIVE, STORE], rounds, measure)
        if any(len({checksum for _, checksum in turn}) > 1 for turn in zip(*results.values(), strict=True)):
            raise RuntimeError("zarr-python read other bytes by the store than natively")
        native, ours = ([seconds for seconds, _ in results[subject]] for subject in (NATIVE, STORE))
        rows.append([what, *_compared(native, ours, READING)])
    where = "in a directory" if service is None else "in S3, cold, natively with obstore"
    print_table(
        f"{version.name} reads {dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)} in "
        f"{dataset.shard_count} shards {where}, median of {rounds} rounds, {placement.name}",
        ["reading", "native, ms/chunk", "by the store", "times native", "target", "met"],
        rows,
    )


def run_write(work: Path, large: Dataset, placement: Placement, rounds: int, version: ZarrPython) -> None:
    """Replace inner chunks of a large shard one by one, and write a new array, and print the table."""
    shape = (2 * SHARD[0], *SHARD[1:])
    every = [(i, j, k) for i in range(8) for j in range(4) for k in range(4)]

    def replace(subject: str, order: random.Random) -> float:
        with tempfile.TemporaryDirectory(dir=large.directory) as parent:
            array = Path(parent, "array")
            shutil.copytree(large.sharded, array)
            os.sync()  # else the first commit has to wait for the copy
            chunks = order.sample(large.coordinates(), CHANGES[subject] + 1)
            seconds, _ = _client(version, subject, str(array), large.inner, chunks, "write", os.environ)
            _check(array, large.inner, chunks)
        return median(seconds)

    def create(subject: str, _: random.Random) -> float:
        with tempfile.TemporaryDirectory(dir=work) as parent:
            array = Path(parent, "array")
            zarr.create_array(array, shape=shape, chunks=INNER, shards=SHARD, dtype="uint16", compressors=None)
            seconds = _client(version, subject, str(array), INNER, every, "write-all", os.environ)[0]
            _check(array, INNER, every)
        return seconds[0] / (len(every) - 1)

    placement.apply()
    rows = []
    for what, measure, target in (
        (f"replaces a chunk of a shard of {size(large.chunk_bytes * large.chunk_count)}", replace, UPDATING),
        (f"writes {len(every)} chunks, shards of {size(int(np.prod(SHARD)) * 2)}", create, WRITING),
    ):
        results = interleave([NATIVE, STORE], rounds, measure)
        rows.append([what, *_compared(results[NATIVE], results[STORE], target)])
    print_table(
        f"{version.name} writes inner chunks of {size(int(np.prod(INNER)) * 2)} one by one, until they are in their "
        f"shards, median of {rounds} rounds, {placement.name}",
        ["zarr-python", "native, ms/chunk", "by the store", "times native", "target", "met"],
        rows,
    )


def _compared(native: Sequence[float], ours: Sequence[float], target: float) -> list[str]:
    times = ratio(native, ours) or 0.0
    milliseconds = [f"{1000 * median(values):.2f}" for values in (native, ours)]
    return [*milliseconds, f"{times:.2f}", f">= {target:g} native", verdict(times >= target)]


def _client(
    version: ZarrPython,
    subject: str,
    array: str,
    inner: Coordinates,
    chunks: Sequence[Coordinates],
    do: str,
    environment: Mapping[str, str],
) -> tuple[list[float], int]:
    """Let a process of its own read or write; gives the seconds, and a checksum of what was read."""
    task = {"array": array, "by_store": subject == STORE, "inner": inner, "chunks": chunks, "do": do}
    with tempfile.TemporaryDirectory() as state:
        settings = {**environment, "XDG_STATE_HOME": state}
        answer = json.loads(version.run(["-m", f"{__package__}.store_client"], json.dumps(task), settings))
    return answer["seconds"], answer["checksum"]


def _check(array: Path, inner: Coordinates, chunks: Sequence[Coordinates]) -> None:
    """Read natively what was written: a fast write of something else is worth nothing."""
    stored = zarr.open_array(array, mode="r")
    for turn, chunk in enumerate(chunks):
        if not np.array_equal(np.asarray(stored[selection(chunk, inner)]), content(inner, turn % PAYLOADS)):
            raise RuntimeError(f"the inner chunk {chunk} in {array} is not what was written")
