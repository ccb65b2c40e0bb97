"""Several processes write one shard through one mount: nothing is lost, where natively it would be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import PATIENCE, Mounter
from tests.support.readers import READERS, assert_same
from tests.support.writers import assert_sound, flush, unmount

NPROCESSES = 8
SHAPE, CHUNKS = (32, 32), (4, 4)

READY = """
import os, sys
import numpy as np
path, number = sys.argv[1], int(sys.argv[2])
def go():
    print("ready", flush=True)
    sys.stdin.readline()
"""
ZARR = """
import zarr
array = zarr.open_array(path, mode="r+")
def write(selection, value): array[selection] = value
"""
TENSORSTORE = """
import tensorstore
spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + "/"}}
array = tensorstore.open(spec, read=True, write=True).result()
def write(selection, value): array[selection].write(value).result()
"""
DISJOINT = """
go()
chunks = [(i, j) for i in range(8) for j in range(8)][number::8]
for turn in (1, 2):
    for i, j in chunks:
        write((slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)), 1000 * turn + 8 * i + j)
"""
ROWS_OF_THE_SAME_CHUNKS = """
go()
for turn in range(1, 6):
    for j in range(2):
        write((slice(number, number + 1), slice(4 * j, 4 * j + 4)), 100 * turn + 10 * number + j + 1)
"""
LIBRARIES = {"zarr": ZARR, "tensorstore": TENSORSTORE}


def run_together(path: Path, script: str) -> None:
    """Run *script* in several processes that begin at the same time."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READY + script, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(NPROCESSES)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()[1][-1000:]
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=4 * PATIENCE)
        assert process.returncode == 0, errors[-1000:]


def one_shard(source: Path) -> None:
    zarr.create_array(str(source), shape=SHAPE, shards=SHAPE, chunks=CHUNKS, dtype="i4", fill_value=0)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("is_new", [True, False], ids=["new-shard", "old-shard"])
def test_disjoint_chunks_of_one_shard(mount: Mounter, tmp_path: Path, library: str, is_new: bool) -> None:
    one_shard(tmp_path / "source")
    if not is_new:
        zarr.open_array(str(tmp_path / "source"), mode="r+")[...] = -1
    mounted = mount(tmp_path / "source", write=True)
    run_together(mounted.path, LIBRARIES[library] + DISJOINT)
    numbers = np.arange(64, dtype="i4").reshape(8, 8) + 2000
    expected = np.repeat(np.repeat(numbers, 4, axis=0), 4, axis=1)
    assert_same(READERS["zarr"](mounted.path), expected)
    unmount(mounted)
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), expected)
    assert_sound(tmp_path / "source")


def test_tensorstore_updates_parts_of_the_same_chunks(mount: Mounter, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "source"), shape=(8, 8), shards=(8, 8), chunks=(8, 4), dtype="i4", fill_value=0)
    mounted = mount(tmp_path / "source", write=True)
    run_together(mounted.path, TENSORSTORE + ROWS_OF_THE_SAME_CHUNKS)
    rows = 500 + 10 * np.arange(8, dtype="i4")[:, None] + np.array([1, 2], "i4")
    expected = np.repeat(rows, 4, axis=1)
    assert_same(READERS["tensorstore"](mounted.path), expected)
    flush(mounted)
    unmount(mounted)
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), expected)
    assert_sound(tmp_path / "source")


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask_stores_chunks_smaller_than_the_shard(mount: Mounter, tmp_path: Path, scheduler: str) -> None:
    """The scenario of zarr-python issue 3682: each task writes a part of a shard that others write too."""
    dask = pytest.importorskip("dask.array")
    one_shard(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True)
    values = np.arange(1, 1 + 32 * 32, dtype="i4").reshape(SHAPE)
    target = zarr.open_array(str(mounted.path), mode="r+")
    assert (target.shards, target.chunks) == (None, CHUNKS)
    stored = dask.from_array(values, chunks=(8, 4)).store(target, lock=False, compute=False)
    stored.compute(scheduler=scheduler, num_workers=4)
    assert_same(READERS["zarr"](mounted.path), values)
    unmount(mounted)
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), values)
    assert_sound(tmp_path / "source")
