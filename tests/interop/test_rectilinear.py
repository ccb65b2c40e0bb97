"""Rectilinear grids as zarr-python 3.4 writes and resizes them: on a mount and natively they have the same values."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.clients import ZARR34
from tests.support.corpus import GZIP, LITTLE, array, rectilinear, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter
from tests.support.readers import assert_same, read_tensorstore, read_zarr

SPELLINGS: dict[str, list[Any]] = {
    "listed": [[4, 4, 8, 8], [6, 3, 3]],
    "runs": [[[4, 2], [8, 2]], [6, [3, 2]]],
    "mixed": [[4, [4, 1], [8, 1], 8], [[6, 1], 3, 3]],
    "bare": [4, [6, [3, 2]]],
    "beyond": [[4, [4, 9]], [[6, 1], [3, 40]]],
}
"""Ways to write edges of an array of 20 × 11; in the last ones, more than it has elements."""
VALUES = np.arange(1, 221, dtype="u2").reshape(20, 11)
MADE = np.arange(1, 241, dtype="u2").reshape(20, 12)

CREATE = """
import sys, numpy, zarr
root, values = sys.argv[1:]
values = numpy.load(values)
with zarr.config.set({"array.rectilinear_chunks": True}):
    group = zarr.create_group(root)
    for name, shards in (("edges", ((8, 4, 8), (6, 6))), ("one", ((20,), (3, 3, 6)))):
        made = group.create_array(name, shape=values.shape, dtype="u2", shards=shards, chunks=(2, 3), fill_value=7)
        made[...] = values
"""
RESIZE = """
import sys, numpy, zarr
root, *shape = sys.argv[1:]
with zarr.config.set({"array.rectilinear_chunks": True}):
    for name in ("edges", "one"):
        array = zarr.open_array(f"{root}/{name}", mode="r+")
        old = array.shape
        array.resize(tuple(map(int, shape)))
        array[old[0]:] = 3
"""
READ = """
import sys, numpy, zarr
found, root, *names = sys.argv[1:]
with zarr.config.set({"array.rectilinear_chunks": True}):
    numpy.savez(found, **{name: zarr.open_array(f"{root}/{name}", mode="r")[...] for name in names})
"""


def edges(source: Path, name: str) -> Any:
    return json.loads((source / name / "zarr.json").read_text())["chunk_grid"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two sharded arrays as zarr-python makes them."""
    np.save(tmp_path / "values.npy", MADE)
    ZARR34.run(CREATE, tmp_path / "source", tmp_path / "values.npy")
    assert edges(tmp_path / "source", "edges")["name"] == "rectilinear"
    return tmp_path / "source"


def test_arrays_that_zarr_python_makes_and_grows_are_the_same_on_a_mount_and_natively(
    mount: Mounter, source: Path, tmp_path: Path
) -> None:
    mounted = mount(source, metadata_ttl=0)
    for name in ("edges", "one"):
        for read in (read_zarr, read_tensorstore):
            assert_same(read(mounted.path / name), MADE)
    before = edges(source, "edges")
    ZARR34.run(RESIZE, source, "34", "12")
    assert edges(source, "edges") != before
    natively = ZARR34.arrays(READ, tmp_path, source, "edges", "one")
    for name, grown in natively.items():
        assert grown.shape == (34, 12)
        assert_same(read_zarr(mounted.path / name), grown)


def test_arrays_that_are_written_and_grown_through_a_mount_are_the_same_natively(
    mount: Mounter, source: Path, tmp_path: Path
) -> None:
    mounted = mount(source, write=True)
    expected = MADE.copy()
    for name in ("edges", "one"):
        shown = zarr.open_array(mounted.path / name, mode="r+")
        shown[5:9, 2:7] = 1
        shown.resize((41, 15))
        shown[20:, 12:] = 5
    expected[5:9, 2:7] = 1
    grown = np.full((41, 15), 7, "u2")
    grown[:20, :12] = expected
    grown[20:, 12:] = 5
    mounted.unmount()
    for natively in ZARR34.arrays(READ, tmp_path, source, "edges", "one").values():
        assert_same(natively, grown)
    os.rename(tmp_path / "zarr34.npz", tmp_path / "first.npz")
    ZARR34.run(RESIZE, source, "46", "15")  # as it goes on itself with what the mount appended
    again = ZARR34.arrays(READ, tmp_path, source, "edges")["edges"]
    assert_same(again[:41], grown)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_edges_is_read_written_and_kept(mount: Mounter, tmp_path: Path, name: str) -> None:
    document = array((20, 11), rectilinear(*SPELLINGS[name]), sharding((2, 3), LITTLE, GZIP), data_type="uint16")
    store(tmp_path / "source" / name, document, VALUES)
    assert_same(ZARR34.arrays(READ, tmp_path, tmp_path / "source", name)[name], VALUES)
    mounted = mount(tmp_path / "source", write=True)
    shown = zarr.open_array(mounted.path / name, mode="r+")
    assert_same(shown[...], VALUES)
    shown[3:7] = VALUES[13:17]
    shown.attrs["seen"] = True
    mounted.unmount()
    expected = VALUES.copy()
    expected[3:7] = VALUES[13:17]
    assert edges(tmp_path / "source", name) == document["chunk_grid"]
    assert_same(ZARR34.arrays(READ, tmp_path, tmp_path / "source", name)[name], expected)
