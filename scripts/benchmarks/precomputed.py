"""Single chunks of a sharded volume of neuroglancer in random order: by libraries natively, and through the mount."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import tensorstore

from .peers import mounted_shardfs
from .placement import Placement
from .report import number, print_table, ratio, verdict
from .rounds import interleave

EDGE = 64
CHUNKS = 256
"""Chunks per round; each is read once, and minishards are cold for most of them."""

SUBJECTS = ("tensorstore", "tensorstore, mount", "cloud-volume", "cloud-volume, mount", "files, mount")
_SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "preshift_bits": 3,
    "hash": "identity",
    "minishard_bits": 4,
    "shard_bits": 2,
    "minishard_index_encoding": "gzip",
    "data_encoding": "gzip",
}


def make(work: Path, count: int) -> Path:
    """A volume of *count* chunks of 256 KiB along each axis, which gzip halves; made once."""
    volume = work / f"volume-{count}"
    if not (volume / "info").exists():
        scale = {"size": [count * EDGE] * 3, "chunk_size": [EDGE] * 3, "encoding": "raw", "sharding": _SHARDING}
        scale |= {"resolution": [8, 8, 8], "key": "8_8_8"}
        members = {"type": "image", "data_type": "uint8", "num_channels": 1}
        spec = {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": str(volume)}}
        spec |= {"multiscale_metadata": members, "scale_metadata": scale}
        values = np.random.default_rng(1).integers(0, 16, [count * EDGE] * 3, np.uint8)
        tensorstore.open(spec, create=True).result().write(values[..., np.newaxis]).result()
    return volume


def run(volume: Path, count: int, placement: Placement, rounds: int) -> None:
    """Measure the libraries natively and through a mount, and print their table."""
    every = list(product(range(count), repeat=3))

    def measure(subject: str, order: random.Random) -> tuple[float, int]:
        library, _, where = subject.partition(", ")
        chosen = order.sample(every, min(CHUNKS, len(every)))
        if not where:
            return _read(library, volume, chosen)
        with mounted_shardfs([str(volume)], placement) as (root, _):
            return _read(library, root, chosen)

    for file in volume.rglob("*.shard"):
        file.read_bytes()  # it is not the disk that is measured
    placement.apply()
    results = interleave(SUBJECTS, rounds, measure)
    if any(len({checksum for _, checksum in turn}) > 1 for turn in zip(*results.values(), strict=True)):
        raise RuntimeError("other bytes were read through a mount than natively")
    seconds = {subject: [value for value, _ in turns] for subject, turns in results.items()}
    rows = []
    for subject, values in seconds.items():
        library, _, where = subject.partition(", ")
        natives = [library] if library in seconds else ["tensorstore", "cloud-volume"]
        speeds = [ratio(seconds[native], values) for native in natives] if where else []
        met = verdict(*(speed >= 1 for speed in speeds if speed is not None)) if library == "files" else ""
        text = " and ".join(number(speed, ".2f") for speed in speeds)
        rows.append([subject, f"{1000 * median(values):.2f}", text, ">= 1" if met else "", met])
    print_table(
        f"single chunks of {EDGE}³ in random order, gzip, median of {rounds} rounds, {placement.name}",
        ["reader", "ms/chunk", "speed of native", "target", "met"],
        rows,
    )


def _read(library: str, volume: Path, chunks: list[tuple[int, ...]]) -> tuple[float, int]:
    """The seconds per chunk and the checksum, measured by a process of its own."""
    boxes = [[[i * EDGE, (i + 1) * EDGE] for i in chunk] for chunk in chunks]
    python, wanted = sys.executable, list[object](boxes)
    if library == "files":
        wanted = [str(volume / "8_8_8" / "_".join(f"{start}-{stop}" for start, stop in box)) for box in boxes]
    if library == "cloud-volume":
        python = str(Path(sys.prefix, "clients", "cloudvolume", "bin", "python"))
    task = json.dumps({"library": library, "volume": str(volume), "chunks": wanted})
    client = Path(__file__).with_name("precomputed_client.py")
    result = subprocess.run([python, str(client)], input=task, text=True, stdout=subprocess.PIPE, check=True)
    answer = json.loads(result.stdout)
    return answer["seconds"], answer["checksum"]
