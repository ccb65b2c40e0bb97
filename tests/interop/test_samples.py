"""Sharded arrays that other people's software wrote, through the mount."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same, read_zarr

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the samples are not at {SAMPLES}")

DOCUMENTS = sorted(SAMPLES.rglob("zarr.json"))
SHARDED = [path.parent.relative_to(SAMPLES) for path in DOCUMENTS if "sharding" in path.read_text()]
ZARRITA = Path("zarrita_js", "data.zarr")
TWINS = {
    "1d.chunked.compressed.sharded.i2": "1d.chunked.i2",
    "1d.contiguous.compressed.sharded.b1": "1d.contiguous.b1",
    "1d.contiguous.compressed.sharded.f4": "1d.contiguous.f4.le",
    "1d.contiguous.compressed.sharded.f8": "1d.contiguous.f8",
    "1d.contiguous.compressed.sharded.i2": "1d.contiguous.raw.i2",
    "1d.contiguous.compressed.sharded.i4": "1d.contiguous.i4",
    "1d.contiguous.compressed.sharded.u1": "1d.contiguous.u1",
    "2d.chunked.ragged.compressed.sharded.i2": "2d.chunked.ragged.i2",
    "2d.contiguous.compressed.sharded.i2": "2d.contiguous.i2",
    "3d.chunked.mixed.compressed.sharded.i2": "3d.chunked.mixed.i2.C",
    "3d.contiguous.compressed.sharded.i2": "3d.contiguous.i2",
}
"""The `2d.chunked` and `3d.chunked` ones hold other data than their unsharded namesakes."""


@pytest.fixture(scope="module")
def samples(module_mount: Mounter) -> Path:
    return module_mount(SAMPLES).path


def test_the_samples_are_those_that_were_described() -> None:
    assert len(SHARDED) == 17
    assert {ZARRITA / name for name in TWINS} < set(SHARDED)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("path", SHARDED, ids=str)
def test_a_sample_reads_as_natively(samples: Path, path: Path, reader: str) -> None:
    shown = json.loads((samples / path / "zarr.json").read_text())
    assert "sharding_indexed" not in json.dumps(shown["codecs"])
    assert_same(READERS[reader](samples / path), read_zarr(SAMPLES / path))


@pytest.mark.parametrize("reader", READERS)
def test_an_index_at_the_start_or_at_the_end_makes_no_difference(samples: Path, reader: str) -> None:
    directory = samples / "zarr_java" / "sharding_index_location"
    start, end = (READERS[reader](directory / location) for location in ("start", "end"))
    assert start.shape == (16, 16, 16)
    assert_same(start, end)
    assert np.unique(start).size > 1
