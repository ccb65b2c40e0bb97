"""Values through the mount, by readers that never heard of sharding as far as they can tell."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.corpus import CASES, Case, write_case
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter
from tests.support.parametrize import every_case
from tests.support.readers import READERS, assert_same

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


@pytest.mark.parametrize("start", ["", "outer"])
def test_consolidated_groups_are_read_by_zarr_python(hierarchy: Path, corpus: Corpus, start: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = zarr.open_group(str(hierarchy / start), mode="r", use_consolidated=True)
        assert opened.metadata.consolidated_metadata is not None
        half = len(GROUPED) // 2
        for position, case in enumerate(GROUPED):
            path = ("" if start else "outer/") + ("" if position < half else "inner/") + case.name
            array = opened[path]
            assert isinstance(array, zarr.Array)
            assert array.shards is None
            assert_same(np.asarray(array[...]), corpus.encoded[case.name].values)


def test_consolidated_copies_say_what_the_arrays_documents_say(hierarchy: Path) -> None:
    for start in ("", "outer"):
        document = json.loads((hierarchy / start / "zarr.json").read_text())
        consolidated = document["consolidated_metadata"]
        assert (consolidated["kind"], consolidated["must_understand"]) == ("inline", False)
        for path, copy in consolidated["metadata"].items():
            if copy["node_type"] == "array":
                assert copy == json.loads((hierarchy / start / path / "zarr.json").read_text())
    assert json.loads((hierarchy / "zarr.json").read_text())["attributes"] == {"title": "kept"}


def test_what_zarr_python_consolidates_itself_is_read_through_the_root(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    values = np.arange(24 * 36, dtype="f4").reshape(24, 36)
    for path in ("a/image", "a/b/image"):
        zarr.create_array(str(source), name=path, data=values, shards=(8, 12), chunks=(4, 3))
    zarr.open_group(str(source), mode="a").require_group("a/b")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.consolidate_metadata(str(source), path="a")
        zarr.consolidate_metadata(str(source))
    root = mount(source).path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = zarr.open_group(str(root), mode="r")
        below = zarr.open_group(str(root / "a"), mode="r")
        assert sorted(path for path, _ in opened.members(max_depth=None)) == ["a", "a/b", "a/b/image", "a/image"]
        for array in (opened["a/image"], opened["a/b/image"], below["image"], below["b/image"]):
            assert isinstance(array, zarr.Array)
            assert (array.shards, array.chunks) == (None, (4, 3))
            assert np.array_equal(np.asarray(array[...]), values)


def test_a_group_lists_without_a_warning_about_stray_entries(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    plain = [case for case in CASES if case.name.startswith(("1d", "2d", "3d", "keys", "nested", "rectilinear"))]
    for case in plain:
        write_case(case, source / case.name)
    (source / "zarr.json").write_text(group())
    root = mount(source).path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        members = dict(zarr.open_group(str(root), mode="r").members())
    assert sorted(members) == sorted(case.name for case in plain)
    for case in plain:
        assert_same(np.asarray(members[case.name][...]), case.encode().values)
