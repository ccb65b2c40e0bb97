"""Volumes of neuroglancer: cold chunks by libraries natively and through the mount, and a volume of 10⁸ chunks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import tensorstore

from .peers import mounted_shardfs
from .placement import Placement
from .report import number, print_table, ratio, verdict
from .rounds import interleave
from .spec_example import peak_memory, read_once

EDGE = 64
KEY = "8_8_8"
SUBJECTS = ("tensorstore", "tensorstore, mount", "cloud-volume", "cloud-volume, mount", "files, mount")
PRESHIFT, MINISHARDS, SHARDS = 3, 4, 2
"""Bits of the id of a chunk: the lowest tell chunks of one minishard apart, the next minishards, then shards."""

LARGE_COUNT, LARGE_EDGE = 512, 8
"""Chunks along each axis of the large volume, which are 1.3 × 10⁸, and their length; one shard is stored."""

LARGE_PRESHIFT, LARGE_MINISHARDS, LARGE_SHARDS = 9, 6, 12
STORED_COUNT = 2 ** ((LARGE_PRESHIFT + LARGE_MINISHARDS) // 3)
"""Chunks along each axis of what is stored of it: as many as a shard has."""

FIRST_CHUNK_SECONDS = 0.05
MEMORY_BYTES = 250_000_000
"""The limits of the issue that asked for this, for the large volume."""


def _sharding(preshift_bits: int, minishard_bits: int, shard_bits: int) -> dict[str, object]:
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": preshift_bits,
        "hash": "identity",
        "minishard_bits": minishard_bits,
        "shard_bits": shard_bits,
        "minishard_index_encoding": "gzip",
        "data_encoding": "gzip",
    }


def _make(volume: Path, count: int, edge: int, sharding: dict[str, object], stored: int) -> Path:
    """A volume of *count* chunks along each axis, of which the first *stored* are there; made once."""
    if not (volume / "info").exists():
        scale = {"size": [count * edge] * 3, "chunk_size": [edge] * 3, "encoding": "raw", "sharding": sharding}
        scale |= {"resolution": [8, 8, 8], "key": KEY}
        members = {"type": "image", "data_type": "uint8", "num_channels": 1}
        spec = {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": str(volume)}}
        spec |= {"multiscale_metadata": members, "scale_metadata": scale}
        values = np.random.default_rng(1).integers(0, 16, [stored * edge] * 3, np.uint8)
        part = (slice(0, stored * edge),) * 3
        tensorstore.open(spec, create=True).result()[part].write(values[..., np.newaxis]).result()
    return volume


def make(work: Path, count: int) -> Path:
    """A volume of *count* chunks of 256 KiB along each axis, which gzip halves."""
    return _make(work / f"volume-{count}", count, EDGE, _sharding(PRESHIFT, MINISHARDS, SHARDS), count)


def make_large(work: Path) -> Path:
    """A volume of more than 10⁸ chunks of 512 bytes, one shard of which is stored."""
    sharding = _sharding(LARGE_PRESHIFT, LARGE_MINISHARDS, LARGE_SHARDS)
    return _make(work / "volume-large", LARGE_COUNT, LARGE_EDGE, sharding, STORED_COUNT)


def run_large(volume: Path, placement: Placement, rounds: int) -> None:
    """Read one chunk of several fresh mounts, and one of each minishard in the last one; print the table."""
    placement.apply()
    firsts, step = [], 2 ** (LARGE_PRESHIFT // 3)
    for turn in range(rounds):
        order = random.Random(turn)
        box = _box([order.randrange(STORED_COUNT) for _ in range(3)])
        with mounted_shardfs([str(volume)], placement) as (root, server):
            firsts.append(read_once(_chunk_path(root, box), LARGE_EDGE**3))
            memory = peak_memory(server)
            if turn == rounds - 1:
                for corner in product(range(0, STORED_COUNT, step), repeat=3):
                    read_once(_chunk_path(root, _box(corner)), LARGE_EDGE**3)
                later_memory = peak_memory(server)
    first = median(firsts)
    limit = f"< {MEMORY_BYTES / 1e6:.0f} MB"
    print_table(
        f"a volume of {LARGE_COUNT**3:,} chunks, {STORED_COUNT**3:,} of which are stored, median of {rounds} mounts",
        ["measure", "value", "target", "met"],
        [
            [
                "first chunk",
                f"{first * 1000:.1f} ms",
                f"< {FIRST_CHUNK_SECONDS * 1000:.0f} ms",
                verdict(first < FIRST_CHUNK_SECONDS),
            ],
            ["first chunk: peak memory", f"{memory / 1e6:.0f} MB", limit, verdict(memory < MEMORY_BYTES)],
            [
                "one of each minishard: peak memory",
                f"{later_memory / 1e6:.0f} MB",
                limit,
                verdict(later_memory < MEMORY_BYTES),
            ],
        ],
    )


def run(volume: Path, count: int, placement: Placement, rounds: int) -> None:
    """Measure the libraries natively and through a mount, and print their table."""
    minishards = _minishards(count)

    def measure(subject: str, order: random.Random) -> tuple[float, int]:
        library, _, where = subject.partition(", ")
        chosen = [order.choice(chunks) for chunks in order.sample(minishards, len(minishards))]
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
        f"one chunk of {EDGE}³ of each of {len(minishards)} minishards, whose index nobody has read, in random "
        f"order, gzip, median of {rounds} rounds, {placement.name}",
        ["reader", "ms/chunk", "speed of native", "target", "met"],
        rows,
    )


def _minishards(count: int) -> list[list[tuple[int, ...]]]:
    """The coordinates of the chunks of each minishard; *count* is a power of two."""
    minishards: dict[int, list[tuple[int, ...]]] = {}
    for chunk in product(range(count), repeat=3):
        bits = range(count.bit_length())
        number = sum((chunk[axis] >> bit & 1) << (3 * bit + axis) for bit in bits for axis in range(3))  # Morton order
        minishards.setdefault(number >> PRESHIFT, []).append(chunk)
    return list(minishards.values())


def _box(chunk: Sequence[int]) -> list[list[int]]:
    """Begin and end of a chunk of the large volume along each axis."""
    return [[LARGE_EDGE * index, LARGE_EDGE * (index + 1)] for index in chunk]


def _chunk_path(root: Path, box: Sequence[Sequence[int]]) -> Path:
    return root / KEY / "_".join(f"{start}-{stop}" for start, stop in box)


def _read(library: str, volume: Path, chunks: list[tuple[int, ...]]) -> tuple[float, int]:
    """The seconds per chunk and the checksum, measured by a process of its own."""
    boxes = [[[i * EDGE, (i + 1) * EDGE] for i in chunk] for chunk in chunks]
    python, wanted = sys.executable, list[object](boxes)
    if library == "files":
        wanted = [str(_chunk_path(volume, box)) for box in boxes]
    if library == "cloud-volume":
        python = str(Path(sys.prefix, "clients", "cloudvolume", "bin", "python"))
    task = json.dumps({"library": library, "volume": str(volume), "chunks": wanted})
    client = Path(__file__).with_name("precomputed_client.py")
    result = subprocess.run([python, str(client)], input=task, text=True, stdout=subprocess.PIPE, check=True)
    answer = json.loads(result.stdout)
    return answer["seconds"], answer["checksum"]
