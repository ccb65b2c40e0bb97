"""`shardfs pack` of a whole dataset, beside `cp -r` of the same files, and beside zarr-python and dask, which decode.

The files lie in the page cache; what is written is made durable within the time. What was packed is compared with what
it was made of.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from .datasets import Dataset
from .native import versions
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave
from .s3_peers import TRANSFERS, has_rclone, rclone, upload
from .s3_service import BUCKET, Service

OF_CP = 0.8
OF_LIBRARIES = 5.0
OF_RCLONE = 1.0
TWO_PROCESSES = 1.6
"""What shardfs must reach: of the speed of `cp -r`, libraries and rclone, and with two processes of that with one."""

_LIBRARIES = {
    "zarr-python": """
import sys, zarr
source, made = zarr.open_array(sys.argv[1], mode="r"), sys.argv[2]
shards = (int(sys.argv[3]),)
target = zarr.create_array(made, data=source, shards=shards, chunks=source.chunks, compressors="keep")
""",
    "dask": """
import sys, zarr, dask.array
source, made = zarr.open_array(sys.argv[1], mode="r"), sys.argv[2]
shards = (int(sys.argv[3]),)
target = zarr.create_array(
    made, shape=source.shape, dtype=source.dtype, shards=shards, chunks=source.chunks, compressors=source.compressors
)
dask.array.store(dask.array.from_zarr(source, chunks=shards), target, lock=False)
""",
}


def run(work: Path, count: int, nbytes: int, rounds: int) -> None:
    """Measure the peers on *count* chunks of *nbytes* bytes, without codecs and with zstd, and print their tables."""
    directory = work / f"bulk-{count}-{nbytes}"
    shutil.rmtree(directory, ignore_errors=True)
    length = max(1, 2**26 // nbytes) * nbytes  # of a shard
    for name, codec in (("plain", None), ("zstd", ZstdCodec())):
        source = directory / name
        _write(source, count, nbytes, codec)
        pack = [sys.executable, "-m", "shardfs", "pack", "--shards", str(length // nbytes)]
        commands: dict[str, list[str]] = {"shardfs": pack}
        settings: dict[str, dict[str, str]] = {}
        if codec is None:
            commands["cp -r && sync"] = ["cp", "-r"]
        else:
            for native, version in versions().items():
                for library, text in _LIBRARIES.items():
                    peer = native if library == "zarr-python" else f"{library}, {native}"
                    commands[peer] = [version.python, "-c", text]
                    settings[peer] = version.settings
            for jobs in ("1", "2"):
                commands[f"shardfs, to gzip, {jobs} processes"] = [*pack, "--codecs", "gzip", "--jobs", jobs]
        _measure(f"{name}, {count:,} chunks of {size(nbytes)}", source, commands, settings, length, rounds)


def _write(path: Path, count: int, nbytes: int, codec: ZstdCodec | None) -> None:
    array = zarr.create_array(path, shape=(count * nbytes,), chunks=(nbytes,), dtype="u1", compressors=codec)
    noise = np.random.default_rng(0)
    for start in range(0, count * nbytes, 2**26):
        array[start : start + 2**26] = noise.integers(0, 40, min(2**26, count * nbytes - start), dtype="u1")


def _measure(
    title: str,
    source: Path,
    commands: dict[str, list[str]],
    settings: dict[str, dict[str, str]],
    length: int,
    rounds: int,
) -> None:
    made = source.with_name("made")
    environment = os.environ | {"XDG_STATE_HOME": str(source.with_name("state"))}

    def measure(peer: str, _: random.Random) -> float:
        shutil.rmtree(made, ignore_errors=True)
        os.sync()
        arguments = [str(length)] if commands[peer][1] == "-c" else []
        start = perf_counter()
        subprocess.run(
            [*commands[peer], str(source), str(made), *arguments],
            check=True,
            env=environment | settings.get(peer, {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.sync()
        seconds = perf_counter() - start
        if peer.startswith("shardfs"):
            subprocess.run(
                [sys.executable, "-m", "shardfs", "verify", str(source), str(made)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        return seconds

    seconds = interleave(commands, rounds, measure)
    rows = []
    for peer, values in seconds.items():
        times = ratio(values, seconds["shardfs"])
        target = OF_LIBRARIES if peer in settings else OF_CP if peer == "cp -r && sync" else None
        if peer.endswith("2 processes"):
            times, target = ratio(seconds[peer.replace("2 p", "1 p")], values), TWO_PROCESSES
        met = verdict(times is not None and times >= target) if target is not None else ""
        rows.append(
            [peer, f"{median(values):.2f}", number(times, ".2f"), "" if target is None else f">= {target}", met]
        )
    print_table(f"Pack {title}, median of {rounds} rounds", ["peer", "s", "shardfs is faster", "target", "met"], rows)


def run_s3(service: Service, dataset: Dataset, rounds: int) -> None:
    """Pack chunk files into a bucket, and unpack shards out of it, beside rclone, which copies the chunk files."""
    if not has_rclone():
        return
    work = dataset.unsharded.with_name("bulk-s3")
    shutil.rmtree(work, ignore_errors=True)
    # Inodes that were freed lately are passed over one by one in ext4: nothing is removed before the end.
    made = (work / str(number) for number in itertools.count())
    sharded, unsharded = upload(service, dataset), upload(service, dataset, unsharded=True)
    pack = [
        "pack",
        "--shards",
        ",".join(map(str, dataset.chunks_per_shard)),
        str(dataset.unsharded),
        f"s3://{BUCKET}/made",
    ]
    unpack = ["unpack", f"s3://{BUCKET}/{sharded}"]
    environment = service.environment | {"XDG_STATE_HOME": str(work / "state")}

    def shardfs(arguments: list[str]) -> None:
        command = [sys.executable, "-m", "shardfs", *arguments]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    copier = f"rclone, {TRANSFERS} transfers"
    ways = {
        "into S3": {"shardfs": lambda: shardfs(pack), copier: lambda: rclone(service, dataset.unsharded, "made")},
        "out of S3": {
            "shardfs": lambda: shardfs([*unpack, str(next(made))]),
            copier: lambda: rclone(service, unsharded, next(made)),
        },
    }
    for way, peers in ways.items():

        def measure(peer: str, _: random.Random, peers: dict[str, Callable[[], None]] = peers) -> float:
            service.delete("made")
            os.sync()
            start = perf_counter()
            peers[peer]()
            os.sync()
            return perf_counter() - start

        seconds = interleave(peers, rounds, measure)
        times = ratio(seconds[copier], seconds["shardfs"])
        met = verdict(times is not None and times >= OF_RCLONE)
        rows = [
            ["shardfs", f"{median(seconds['shardfs']):.2f}", "", "", ""],
            [copier, f"{median(seconds[copier]):.2f}", number(times, ".2f"), f">= {OF_RCLONE}", met],
        ]
        chunks = f"{dataset.chunk_count:,} chunks of {size(dataset.chunk_bytes)}"
        title = f"A dataset {way}, {chunks}, median of {rounds} rounds"
        print_table(title, ["peer", "s", "shardfs is faster", "target", "met"], rows)
    shutil.rmtree(work)
