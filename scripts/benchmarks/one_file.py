"""Chunks of an HDF5 or a ZIP file by shardfs, without a mount, beside h5py and zarr-python: bytes, and elements."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from .placement import Placement
from .report import print_table, ratio, size, verdict
from .rounds import interleave

OURS = "shardfs"
TARGET = 1.0
"""How many times as fast as the others it must be."""

CHUNK = (32, 64, 64)
COUNT = 256
"""Chunks per round that are read one by one, each once, none of them in the page cache."""


class Kind(NamedTuple):
    """A kind of file: how one is written, beside whom it is read, and what its chunks are."""

    name: str
    suffix: str
    native: str
    chunks: str
    write: Callable[[Path, int, Callable[[], np.ndarray]], None]


def _write_hdf5(path: Path, nchunks: int, values: Callable[[], np.ndarray]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        shape = (nchunks * CHUNK[0], *CHUNK[1:])
        array = file.create_dataset("x", shape, "f4", chunks=CHUNK, compression="gzip", shuffle=True)
        for number in range(nchunks):
            array[number * CHUNK[0] : (number + 1) * CHUNK[0]] = values()


def _write_zip(path: Path, nchunks: int, values: Callable[[], np.ndarray]) -> None:
    import zarr
    from zarr.storage import ZipStore

    with ZipStore(path, mode="w") as store:
        shape = (nchunks * CHUNK[0], *CHUNK[1:])
        array: Any = zarr.create_group(store).create_array("x", shape=shape, chunks=CHUNK, dtype="f4")
        for number in range(nchunks):
            array[number * CHUNK[0] : (number + 1) * CHUNK[0]] = values()


KINDS = {
    "hdf5": Kind("an HDF5 file", ".h5", "h5py", "gzip and shuffle", _write_hdf5),
    "zip": Kind("a ZIP file", ".zip", "ZipStore", "zstd, members stored", _write_zip),
}


def make(kind: Kind, work: Path, nchunks: int) -> Path:
    """Write a file with *nchunks* chunks."""
    path = work / f"chunks-{nchunks}{kind.suffix}"
    if not path.exists():
        rng = np.random.default_rng(0)
        kind.write(path, nchunks, lambda: rng.integers(0, 1000, CHUNK).astype("f4"))
    return path


def run(kind: Kind, path: Path, nchunks: int, placement: Placement, rounds: int) -> None:
    """Read single chunks in random order, and print the table."""
    count = min(COUNT, nchunks - 1)
    placement.apply()
    rows = []
    for what, do in (("as stored", "stored"), ("elements", "elements"), ("elements, decode=True", "decoded")):

        def measure(subject: str, order: random.Random, do: str = do) -> tuple[float, int]:
            _forget(path)
            task = {"file": str(path), "by": subject, "do": do, "rows": order.sample(range(nchunks), count + 1)}
            line = [sys.executable, "-m", f"{__package__}.one_file_client"]
            done = subprocess.run(line, input=json.dumps(task), capture_output=True, text=True, check=True)
            answer = json.loads(done.stdout)
            return answer["seconds"] / count, answer["checksum"]

        results = interleave([kind.native, OURS], rounds, measure)
        if any(len({checksum for _, checksum in turn}) > 1 for turn in zip(*results.values(), strict=True)):
            raise RuntimeError(f"shardfs read other bytes than {kind.native}")
        native, ours = ([seconds for seconds, _ in results[subject]] for subject in (kind.native, OURS))
        times = ratio(native, ours) or 0.0
        milliseconds = [f"{1000 * median(values):.2f}" for values in (native, ours)]
        rows.append([what, *milliseconds, f"{times:.2f}", f">= {TARGET:g}", verdict(times >= TARGET)])
    print_table(
        f"Cold chunks of {size(int(np.prod(CHUNK)) * 4)}, {kind.chunks}, of {kind.name} with {nchunks:,}, one by one, "
        f"median of {rounds} rounds, {placement.name}",
        ["chunks", f"{kind.native}, ms", "by the store", f"times {kind.native}", "target", "met"],
        rows,
    )


def _forget(path: Path) -> None:
    """Let the kernel forget a file."""
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
