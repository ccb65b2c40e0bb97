"""Values through the mount, by readers that never heard of sharding as far as they can tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import CASES, Case, write_case
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter
from tests.support.parametrize import every_case
from tests.support.readers import READERS, assert_same, read_zarr

UNKNOWN_CODECS = {"opaque-codec", "zero-bytes", "opaque-serializer"}
"""Inner codecs that no reader has; the mount carries their bytes."""

REFUSED = {
    "zarr": UNKNOWN_CODECS,
    "tensorstore": UNKNOWN_CODECS | {"type-datetime64", "type-string", "dimension-names-repeated"},
}
"""What a reader would not read unsharded either: sharding is in none of these reasons."""


@every_case
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_the_values_bit_for_bit(corpus: Corpus, case: Case, reader: str) -> None:
    if case.name in REFUSED[reader]:
        with pytest.raises((ValueError, TypeError, KeyError)):
            READERS[reader](corpus.path(case))
    else:
        assert_same(READERS[reader](corpus.path(case)), corpus.encoded[case.name].values)


GROUPED = [case for case in CASES if case.name not in UNKNOWN_CODECS]


def group(members: dict[str, Any] | None = None, **attributes: Any) -> str:
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    if members is not None:
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": members}
    return json.dumps(document)


@pytest.fixture(scope="module")
def hierarchy(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nested groups with the whole readable corpus, consolidated in the root and in one group below it."""
    source = tmp_path_factory.mktemp("hierarchy")
    half = len(GROUPED) // 2
    outer, inner = {}, {}
    for case in GROUPED[:half]:
        write_case(case, source / "outer" / case.name)
        outer[case.name] = case.document
    for case in GROUPED[half:]:
        write_case(case, source / "outer" / "inner" / case.name)
        inner[case.name] = case.document
    below_outer = {**outer, "inner": json.loads(group()), **{f"inner/{name}": inner[name] for name in inner}}
    below_root = {"outer": json.loads(group()), **{f"outer/{path}": below_outer[path] for path in below_outer}}
    (source / "zarr.json").write_text(group(below_root, title="kept"))
    (source / "outer" / "zarr.json").write_text(group(below_outer))
    (source / "outer" / "inner" / "zarr.json").write_text(group())
    return module_mount(source).path


def test_consolidated_copies_say_what_the_arrays_documents_say(hierarchy: Path) -> None:
    for start in ("", "outer"):
        document = json.loads((hierarchy / start / "zarr.json").read_text())
        consolidated = document["consolidated_metadata"]
        assert (consolidated["kind"], consolidated["must_understand"]) == ("inline", False)
        for path, copy in consolidated["metadata"].items():
            if copy["node_type"] == "array":
                assert copy == json.loads((hierarchy / start / path / "zarr.json").read_text())
    assert json.loads((hierarchy / "zarr.json").read_text())["attributes"] == {"title": "kept"}


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
