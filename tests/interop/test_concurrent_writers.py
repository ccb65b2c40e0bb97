"""Several processes write one shard through one mount: nothing is lost, where natively it would be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same
from tests.support.together import (
    DISJOINT,
    TENSORSTORE,
    run_together,
)
from tests.support.writers import assert_sound

SHAPE, CHUNKS = (32, 32), (4, 4)


def one_shard(source: Path) -> None:
    zarr.create_array(str(source), shape=SHAPE, shards=SHAPE, chunks=CHUNKS, dtype="i4", fill_value=0)


def test_disjoint_chunks_of_one_shard(mount: Mounter, tmp_path: Path) -> None:
    one_shard(tmp_path / "source")
    zarr.open_array(str(tmp_path / "source"), mode="r+")[...] = -1
    mounted = mount(tmp_path / "source", write=True)
    run_together(mounted.path, TENSORSTORE + DISJOINT)
    numbers = np.arange(64, dtype="i4").reshape(8, 8) + 2000
    expected = np.repeat(np.repeat(numbers, 4, axis=0), 4, axis=1)
    assert_same(READERS["zarr"](mounted.path), expected)
    mounted.unmount()
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), expected)
    assert_sound(tmp_path / "source")


def test_dask_stores_chunks_smaller_than_the_shard(mount: Mounter, tmp_path: Path) -> None:
    """The scenario of zarr-python issue 3682: each task writes a part of a shard that others write too."""
    dask = pytest.importorskip("dask.array")
    one_shard(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True)
    values = np.arange(1, 1 + 32 * 32, dtype="i4").reshape(SHAPE)
    target = zarr.open_array(str(mounted.path), mode="r+")
    assert (target.shards, target.chunks) == (None, CHUNKS)
    stored = dask.from_array(values, chunks=(8, 4)).store(target, lock=False, compute=False)
    stored.compute(scheduler="processes", num_workers=2)
    assert_same(READERS["zarr"](mounted.path), values)
    mounted.unmount()
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), values)
    assert_sound(tmp_path / "source")
