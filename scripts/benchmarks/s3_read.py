"""Reading from S3: single inner chunks in random order, whole shards by `cp -r`, and a listing by `find`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from .datasets import Coordinates, Dataset, chunk_path
from .listing import find
from .native import versions
from .placement import Placement
from .report import number, print_table, ratio, size
from .rounds import interleave
from .s3_peers import S3Mount, has_rclone, library, rclone, shardfs, upload
from .s3_service import Service


def run_random(service: Service, dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Read some inner chunks one by one, cold, and print the table."""
    if "shardfs" not in peers:
        return
    prefix = upload(service, dataset)
    requests: dict[str, int] = {}

    def measure(subject: str, order: random.Random) -> float:
        chunks = order.sample(dataset.coordinates(), 64)
        if subject != "shardfs":
            seconds, checksum = library(subject, service, prefix, dataset.inner, chunks)
        else:
            with shardfs(service, prefix, placement) as mounted:
                seconds, checksum = _read_files(mounted.root, chunks)
                requests[subject] = sum(mounted.requests().values())
        if checksum != _checksum(dataset, chunks):
            raise RuntimeError(f"{subject} reads other bytes than were stored")
        return 1000 * sum(seconds) / len(seconds)

    placement.apply()
    results = interleave(["shardfs", *versions(), "tensorstore"], rounds, measure)
    rows = []
    for subject, values in results.items():
        times = ratio(values, results["shardfs"])
        count = str(requests.get(subject, ""))
        rows.append([subject, f"{median(values):.1f}", f"{min(values):.1f}", number(times, ".2f"), count])
    print_table(
        f"64 of {dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)} in "
        f"{dataset.shard_count} shards in S3, random, cold, median of {rounds} rounds, {placement.name}",
        ["subject", "ms per chunk", "least", "of shardfs", "requests"],
        rows,
    )


def run_shards(service: Service, dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Copy all shards as chunk files, in order by one process and at the same time by several, and print the table."""
    if "shardfs" not in peers:
        return
    prefix, unsharded = upload(service, dataset), upload(service, dataset, unsharded=True)

    def measure(subject: str, _: random.Random) -> float:
        with tempfile.TemporaryDirectory(dir=dataset.directory) as parent:
            to = Path(parent, "copy")
            to.mkdir()
            if subject == "rclone":
                start = perf_counter()
                rclone(service, unsharded, to)
                seconds = perf_counter() - start
            else:
                with shardfs(service, prefix, placement) as mounted:
                    seconds = _copy(mounted, to, 4 if subject == "shardfs, 4 cp" else 1)
            copied = sum(file.stat().st_size for file in to.rglob("*") if file.is_file() and file.name != "zarr.json")
        if copied != dataset.chunk_count * dataset.chunk_bytes:
            raise RuntimeError(f"{subject} copies {copied:,} bytes")
        return copied / seconds / 1e6

    placement.apply()
    subjects = ["shardfs, 1 cp", "shardfs, 4 cp", *(["rclone"] if has_rclone() else [])]
    results = interleave(subjects, rounds, measure)
    print_table(
        f"{dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)} in {dataset.shard_count} shards "
        f"copied out of S3, median of {rounds} rounds, {placement.name}",
        ["subject", "MB/s", "most"],
        [[subject, f"{median(values):.0f}", f"{max(values):.0f}"] for subject, values in results.items()],
    )


def run_listing(service: Service, dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """List all inner chunks after a fresh mount, and print the table."""
    if "shardfs" not in peers:
        return
    prefix = upload(service, dataset)
    rates, requests = [], 0
    placement.apply()
    for _ in range(rounds):
        with shardfs(service, prefix, placement) as mounted:
            count, seconds = find(mounted.root / "c")
            requests = sum(mounted.requests().values())
        if count != dataset.chunk_count:
            raise RuntimeError(f"{count:,} files are listed instead of {dataset.chunk_count:,}")
        rates.append(count / seconds)
    print_table(
        f"find -type f -size +0 over {dataset.chunk_count:,} inner chunks in {dataset.shard_count} shards in S3, "
        f"cold, median of {rounds} rounds, {placement.name}",
        ["subject", "files/s", "most", "requests"],
        [["shardfs", f"{median(rates):,.0f}", f"{max(rates):,.0f}", str(requests)]],
    )


def _read_files(root: Path, chunks: Sequence[Coordinates]) -> tuple[list[float], int]:
    """Read chunk files one by one, as a program does that knows nothing of shards."""
    paths = [str(chunk_path(root, chunk)) for chunk in chunks]
    command = [sys.executable, "-m", f"{__package__}.s3_file_client"]
    result = subprocess.run(command, input="\n".join(paths), text=True, stdout=subprocess.PIPE, check=True)
    found = json.loads(result.stdout)
    return found["seconds"], found["checksum"]


def _checksum(dataset: Dataset, chunks: Sequence[Coordinates]) -> int:
    checksum = 0
    for chunk in chunks:
        checksum = zlib.crc32(chunk_path(dataset.unsharded, chunk).read_bytes(), checksum)
    return checksum


def _copy(mounted: S3Mount, to: Path, processes: int) -> float:
    """Copy the chunks, those of different first coordinates at the same time."""
    start = perf_counter()
    parts = sorted(os.listdir(mounted.root / "c"), key=int)
    command = ["xargs", "-P", str(processes), "-I{}", "cp", "-r", f"{mounted.root}/c/{{}}", str(to)]
    subprocess.run(command, input="\n".join(parts), text=True, check=True)
    return perf_counter() - start
