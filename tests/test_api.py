"""`shardfs.open`: metadata and inner chunks without FUSE."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardfs
from shardfs import errors
from tests.support.changing import ChangingArray
from tests.support.corpus import CASES, GZIP, LITTLE, array, write_case
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, document, edit
from tests.support.datasets import store
from tests.support.encoder import Encoded


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A group with a sharded and a plain array."""
    source = tmp_path / "data set"
    sharded, plain = document(LITTLE, GZIP), array((4, 6), (2, 3), LITTLE)
    store(source / "image", sharded)
    store(source / "group/plain", plain)
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"name": "µ"}}
    inline = {"kind": "inline", "must_understand": False, "metadata": {}}
    inline["metadata"] |= {"image": sharded, "group": group, "group/plain": plain}
    (source / "zarr.json").write_text(json.dumps(group | {"consolidated_metadata": inline}))
    (source / "group/zarr.json").write_text(json.dumps(group))
    return source


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Encoded]]:
    root = tmp_path_factory.mktemp("corpus")
    return root, {case.name: write_case(case, root / case.name) for case in CASES}


def test_every_inner_chunk_of_the_corpus_is_read(corpus: tuple[Path, dict[str, Encoded]]) -> None:
    root, encoded = corpus
    opened = shardfs.open(root)
    for case in CASES:
        node = opened[case.name]
        inner_shape = node.metadata["chunk_grid"]["configuration"]["chunk_shape"]
        grid = [-(-length // inner) for length, inner in zip(case.document["shape"], inner_shape, strict=True)]
        read = {coords: node.read_chunk(coords) for coords in np.ndindex(*grid)}
        assert {coords: data for coords, data in read.items() if data is not None} == encoded[case.name].inner


def test_groups_and_plain_arrays_have_metadata_and_no_inner_chunks(dataset: Path) -> None:
    opened = shardfs.open(str(dataset))
    copies = opened[""].metadata["consolidated_metadata"]["metadata"]
    assert copies["image"] == opened["image"].metadata
    assert opened["/group/"].metadata["attributes"] == {"name": "µ"}
    assert opened["group/plain"].metadata == array((4, 6), (2, 3), LITTLE)
    for path in ("", "group", "group/plain"):
        with pytest.raises(errors.NotUnshardable):
            opened[path].read_chunk((0, 0))


@pytest.mark.parametrize("path", ["nowhere", "image/c", "image/zarr.json", "group/plain/c/0", "a\0b", "x" * 300])
def test_what_is_no_node_is_not_found(dataset: Path, path: str) -> None:
    with pytest.raises(errors.NotFoundError):
        shardfs.open(dataset)[path]


@pytest.mark.parametrize("path", ["..", "../data set", "group/../../data set/image"])
def test_no_path_leads_out_of_the_source(dataset: Path, path: str) -> None:
    with pytest.raises(errors.ShardfsError):
        shardfs.open(dataset)[path]


def test_coordinates_outside_the_grid_are_an_index_error(dataset: Path) -> None:
    image = shardfs.open(dataset)["image"]
    for coords in [(2, 0), (0, 4), (-1, 0), (0,), (0, 0, 0), ()]:
        with pytest.raises(IndexError, match="not in the grid"):
            image.read_chunk(coords)
    for odd in [(0.5, 0), ("0", 0), None, 0]:
        with pytest.raises((TypeError, IndexError)):
            image.read_chunk(odd)  # type: ignore[arg-type]
    assert image.read_chunk(np.array([1, 3])) == image.read_chunk([1, 3]) == image.read_chunk((1, 3))


@pytest.mark.parametrize("fault", SHARD_FAULTS | ENTRY_FAULTS)
def test_damage_is_a_corruption_error_for_what_it_touches(tmp_path: Path, fault: str) -> None:
    chunks = store(tmp_path, document())
    edit(tmp_path / SHARD, (SHARD_FAULTS | ENTRY_FAULTS)[fault])
    image = shardfs.open(tmp_path)[""]
    with pytest.raises(errors.CorruptionError):
        image.read_chunk((0, 1))
    assert image.read_chunk((0, 2)) == chunks["c/0/2"]
    if fault in ENTRY_FAULTS:
        assert image.read_chunk((0, 0)) == chunks["c/0/0"]


def test_a_replaced_shard_is_seen_at_the_next_read_and_a_replaced_document_after_the_ttl(tmp_path: Path) -> None:
    changing = ChangingArray(tmp_path / "array")
    opened = shardfs.open(tmp_path, metadata_ttl=0)
    node = opened["array"]
    slow = shardfs.open(tmp_path, metadata_ttl=3600)["array"]
    for number in (1, 2, 3):
        changing.replace("c/0/0", number)
        expected = changing.chunks(number)["c/0/0"]
        assert node.read_chunk((0, 0)) == slow.read_chunk((0, 0)) == expected
    changing.overwrite("c/0/0", 4)
    assert node.read_chunk((0, 0)) == changing.chunks(4)["c/0/0"]
    changing.document["attributes"] = {"changed": True}
    changing.replace_document()
    assert opened["array"].metadata["attributes"] == {"changed": True}


def test_importing_shardfs_loads_neither_numpy_nor_fuse() -> None:
    program = "import shardfs, sys; print(*sorted({'numpy', 'trio', 'pyfuse3', 'zarr'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    names = {"MountOptions", "Report", "StoreOptions", "__version__", "mount", "open", "pack", "unpack"}
    assert set(shardfs.__all__) == names
    assert all(getattr(shardfs, name) is not None for name in shardfs.__all__)
