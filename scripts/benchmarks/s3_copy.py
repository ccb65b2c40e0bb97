"""One shard in S3 is copied out as chunk files: `cp -r` from the mount, and what else brings the same bytes.

zarr-python reads the inner chunks from the shard, one by one, and writes nothing. rclone copies the same chunks,
stored as objects of their own. With a cache the shard is read a second time, in a later mount and in the same one,
which is compared with a copy out of a mount of the same shard on the local disk.
"""

from __future__ import annotations

import filecmp
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from .datasets import Dataset
from .native import latest
from .peers import mounted_shardfs
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave
from .s3_peers import TRANSFERS, has_rclone, library, rclone, shardfs, upload
from .s3_service import Service

SHARDFS, LATER, AGAIN, LOCAL = (
    "shardfs, cold",
    "shardfs, cached by another mount",
    "shardfs, again",
    "shardfs, local disk",
)
ZARR, RCLONE = "zarr-python, one by one", f"rclone, {TRANSFERS} transfers"

TARGETS = {
    (ZARR, SHARDFS): 5.0,
    (RCLONE, SHARDFS): 1.0,
    (LOCAL, LATER): 0.8,
    (LOCAL, AGAIN): 0.8,
}
"""How much longer the first must take than the second; 0.8 is as fast, as far as rounds differ."""


def run(service: Service, dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure all subjects and print their table."""
    if "shardfs" not in peers:
        return
    sharded, unsharded = upload(service, dataset), upload(service, dataset, unsharded=True)
    requests: dict[str, int] = {}

    def copy_cached(cache: Path, *, again: bool) -> float:
        with shardfs(service, sharded, placement, [f"--cache={cache}"]) as mounted:
            first = _copy(dataset, mounted.root)
            seconds = _copy(dataset, mounted.root) if again else first
            requests[AGAIN if again else LATER] = sum(mounted.requests().values())
        return seconds

    def measure(subject: str, _: random.Random) -> float:
        if subject == ZARR:
            seconds, _checksum = library(latest().name, service, sharded, dataset.inner, dataset.coordinates())
            return sum(seconds)
        if subject == RCLONE:
            with tempfile.TemporaryDirectory(dir=dataset.directory) as parent:
                start = perf_counter()
                rclone(service, unsharded, Path(parent, "copy"))
                elapsed = perf_counter() - start
                _check(dataset, Path(parent, "copy"))
            return elapsed
        if subject == LOCAL:
            with mounted_shardfs([str(dataset.sharded)], placement) as (root, _server):
                return _copy(dataset, root)
        if subject == SHARDFS:
            with shardfs(service, sharded, placement) as mounted:
                elapsed = _copy(dataset, mounted.root)
                requests[SHARDFS] = sum(mounted.requests().values())
                return elapsed
        with tempfile.TemporaryDirectory(dir=dataset.directory) as cache:
            elapsed = copy_cached(Path(cache), again=True)
            return elapsed if subject == AGAIN else copy_cached(Path(cache), again=False)

    placement.apply()
    subjects = [SHARDFS, ZARR, *([RCLONE] if has_rclone() else []), LATER, AGAIN, LOCAL]
    results = interleave(subjects, rounds, measure)
    rows = []
    for subject, seconds in results.items():
        count = str(requests.get(subject, ""))
        rows.append([subject, f"{median(seconds):.3f}", f"{min(seconds):.3f}", count, "", "", ""])
    for (slower, faster), wanted in TARGETS.items():
        times = ratio(results.get(slower, []), results[faster])
        met = "" if times is None else verdict(times >= wanted)
        rows.append([f"{slower} / {faster}", "", "", "", number(times, ".2f"), f">= {wanted}", met])
    print_table(
        f"One shard of {dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)} copied out of S3, "
        f"{latest().name}, median of {rounds} rounds, {placement.name}",
        ["subject", "s", "least s", "requests", "times", "target", "met"],
        rows,
    )


def _copy(dataset: Dataset, root: Path) -> float:
    """Copy everything out of a mount, and compare it."""
    with tempfile.TemporaryDirectory(dir=dataset.directory) as parent:
        to = Path(parent, "copy")
        start = perf_counter()
        subprocess.run(["cp", "-r", str(root), str(to)], check=True)
        elapsed = perf_counter() - start
        _check(dataset, to)
    return elapsed


def _check(dataset: Dataset, copied: Path) -> None:
    """A fast copy of other bytes, or of less, is worth nothing."""
    names = [
        str(path.relative_to(dataset.unsharded)) for path in (dataset.unsharded / "c").rglob("*") if path.is_file()
    ]
    same, _, _ = filecmp.cmpfiles(dataset.unsharded, copied, names, shallow=False)
    if len(same) != len(names):
        raise RuntimeError(f"{len(names) - len(same)} chunk files are not what was stored")
    shutil.rmtree(copied)
