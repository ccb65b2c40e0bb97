"""Decoded chunk files and .npy files beside zarr-python, which reads the same sharded array natively.

The chunks are compressed, so what is compared is how much there is beside the decoding. Each way of reading runs in a
process of its own, on a fresh mount. The memory is that of the daemon above what it had when the mount was ready.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from .native import ZarrPython
from .peers import mounted_shardfs
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave
from .writing_peers import Writable

INNER = (64, 64, 64)
CHUNK_BYTES = 64**3 * 2
THREADS = 4
CACHE_BYTES = 64 * 2**20
BESIDE_CACHE_BYTES = 64 * 2**20
"""What the daemon may need beside the cache: chunks that are being decoded, buffers, and the interpreter's own."""

NATIVE = "zarr-python, native (sharded)"
ALONE = "numcodecs alone, from memory"
NATIVE_THREADS = f"{NATIVE}, {THREADS} threads"
Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class Compressed:
    """An array of compressed chunks below *directory*, sharded, and once more unsharded."""

    directory: Path
    shape: Coordinates

    @property
    def sharded(self) -> Path:
        """The array that shardfs mounts."""
        return self.directory / "sharded.zarr"

    @property
    def unsharded(self) -> Path:
        """The same encoded chunks as files."""
        return self.directory / "unsharded.zarr"

    def coordinates(self) -> list[Coordinates]:
        """The place of every inner chunk."""
        return list(np.ndindex(*(length // edge for length, edge in zip(self.shape, INNER, strict=True))))


@dataclass(frozen=True)
class Turn:
    """One measurement: how long it took, what was read, and what the daemon needed for it."""

    seconds: float
    checksum: int
    memory: int | None = None


@dataclass(frozen=True)
class Way:
    """A way of reading: what the client does at a path below the mount with these options, or below no mount."""

    what: str
    options: tuple[str, ...] | None
    below: str = ""
    threads: int = 1


CHUNK_WAYS = {
    NATIVE: Way("chunks_of_zarr", None),
    ALONE: Way("decoded_alone", None),
    "shardfs --decode": Way("chunk_files", ("--decode",), "c"),
    "shardfs --view v2 --decode": Way("chunk_files", ("--view=v2", "--decode", "--dimension-separator=/")),
    NATIVE_THREADS: Way("chunks_of_zarr", None, threads=THREADS),
    f"shardfs --decode, {THREADS} threads": Way("chunk_files", ("--decode",), "c", threads=THREADS),
}
WHOLE_WAYS = {
    NATIVE: Way("whole_of_zarr", None),
    "shardfs --view npy, numpy.load": Way("whole_npy", ("--view=npy",), "sharded.zarr.npy"),
}


def compressed(work: Path, name: str, shape: Coordinates) -> Compressed:
    """Make an array of numbers as a camera gives them: smooth, with noise in the lowest bits."""
    dataset = Compressed(work / name, shape)
    stamp = dataset.directory / "recipe"
    if stamp.exists() and stamp.read_text() == repr(dataset):
        return dataset
    shutil.rmtree(dataset.directory, ignore_errors=True)
    dataset.directory.mkdir(parents=True)
    chance = np.random.default_rng(0)
    smooth = np.add.outer(np.add.outer(*(np.arange(n, dtype="u2") for n in shape[:2])), np.arange(shape[2], dtype="u2"))
    values = smooth + chance.integers(0, 32, shape, "u2")
    shards = tuple(min(length, 256) for length in shape)
    for path, shard in ((dataset.sharded, shards), (dataset.unsharded, None)):
        array = zarr.create_array(
            path, shape=shape, chunks=INNER, shards=shard, dtype="uint16", compressors=ZstdCodec(level=3)
        )
        array[...] = values
    os.sync()
    stamp.write_text(repr(dataset))
    return dataset


def run(dataset: Compressed, peers: Sequence[str], placement: Placement, rounds: int, version: ZarrPython) -> None:
    """Measure all ways beside a version of zarr-python, and print a table of chunks, of whole arrays, and of memory."""
    if "shardfs" not in peers:
        return
    placement.apply()

    def measure(way: Way, order: random.Random) -> Turn:
        return _read(dataset, way, placement, order, version)

    chunks = interleave(CHUNK_WAYS, rounds, lambda name, order: measure(CHUNK_WAYS[name], order))
    nchunks = len(dataset.coordinates())
    what = f"{version.name}: {nchunks} decoded inner chunks of {size(CHUNK_BYTES)} in random order"
    _tell(what, chunks, rounds, placement)
    whole = interleave(WHOLE_WAYS, rounds, lambda name, order: measure(WHOLE_WAYS[name], order))
    _tell(f"{version.name}: a whole array of {' x '.join(map(str, dataset.shape))} uint16", whole, rounds, placement)
    _tell_memory(chunks | whole)


def _tell(title: str, results: dict[str, list[Turn]], rounds: int, placement: Placement) -> None:
    for turns in zip(*results.values(), strict=True):
        if len({turn.checksum for turn in turns}) > 1:
            raise RuntimeError("other values were read through a mount than natively")
    rows = []
    seconds = {name: [turn.seconds for turn in turns] for name, turns in results.items()}
    for name, values in seconds.items():
        has_threads = name.endswith("threads")
        speed = ratio(seconds[NATIVE_THREADS if has_threads else NATIVE], values)
        # What numcodecs alone does is done on one CPU.
        alone = ratio(seconds[ALONE], values) if ALONE in seconds and not has_threads else None
        target = ("", "")
        if name.startswith("shardfs") and speed is not None:
            wanted = ">= 1.0 native" if alone is None else ">= 1.0 native, 0.5 alone"
            target = (wanted, verdict(speed >= 1 and (alone is None or alone >= 0.5)))
        rows.append([name, f"{1000 * median(values):.0f}", number(speed, ".2f"), number(alone, ".2f"), *target])
    print_table(
        f"{title}, median of {rounds} rounds, {placement.name}",
        ["way", "ms", "speed of native", "of numcodecs alone", "target", "met"],
        rows,
    )


def _tell_memory(results: dict[str, list[Turn]]) -> None:
    bound = CACHE_BYTES + BESIDE_CACHE_BYTES
    rows = []
    for name, turns in results.items():
        needed = [turn.memory for turn in turns if turn.memory is not None]
        if needed:
            rows.append([name, f"{max(needed) / 2**20:.0f} MiB", f"< {size(bound)}", verdict(max(needed) < bound)])
    title = f"The daemon's peak memory, above what it starts with, --decode-cache {size(CACHE_BYTES)}"
    print_table(title, ["way", "peak", "target", "met"], rows)


def _read(dataset: Compressed, way: Way, placement: Placement, order: random.Random, version: ZarrPython) -> Turn:
    """Read once, in a process of its own, all chunks in a random order, or the whole array."""
    chunks = dataset.coordinates()
    task = {"what": way.what, "inner": INNER, "chunks": order.sample(chunks, len(chunks)), "threads": way.threads}
    if way.options is None:
        native = dataset.unsharded / "c" if way.what == "decoded_alone" else dataset.sharded
        return _ask(version, task, native)
    arguments = [*way.options, f"--decode-cache={CACHE_BYTES}", str(dataset.sharded)]
    with mounted_shardfs(arguments, placement) as (root, server):
        daemon = Writable(root, server)
        start = daemon.peak_memory()
        turn = _ask(version, task, root / way.below)
        return Turn(turn.seconds, turn.checksum, daemon.peak_memory() - start)


def _ask(version: ZarrPython, task: dict[str, Any], path: Path) -> Turn:
    client = str(Path(__file__).with_name("views_client.py"))
    return Turn(**json.loads(version.run([client], json.dumps({**task, "path": str(path)}))))
