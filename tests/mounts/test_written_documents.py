"""Metadata documents that programs write through a mount: what they say there, and that they are read back."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.writers import WRITERS, assert_sound, document_of

VALUES = np.arange(1, 13, dtype="i4")
SHARDED = ("z", "group/z", "group/deep/z")
PLAIN = ("plain", "group/plain")


@pytest.fixture(autouse=True)
def _consolidated() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        yield


def make(path: Path, writer: str = "zarr", *, group: str | None = None) -> None:
    """A group with arrays that are sharded and arrays that are not, consolidated; *group* below it too."""
    root = zarr.create_group(str(path))
    for name in SHARDED + PLAIN:
        shards = (6,) if name in SHARDED else None
        root.create_array(name, shape=VALUES.shape, chunks=(3,), shards=shards, dtype=VALUES.dtype)
        WRITERS[writer](path / name, VALUES)
    zarr.consolidate_metadata(str(path))
    if group is not None:
        zarr.consolidate_metadata(str(path), path=group)


def copies_of(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, copy in document.get("consolidated_metadata", {}).get("metadata", {}).items():
        yield prefix + name, {member: value for member, value in copy.items() if member != "consolidated_metadata"}
        yield from copies_of(copy, f"{prefix}{name}/")


def assert_consolidated(path: Path) -> None:
    """What readers of consolidated metadata read is right, and what it says is what the documents say."""
    for group in ("", "group"):
        for relative, copy in copies_of(document_of(path / group)):
            own = document_of(path / group / relative)
            own.pop("consolidated_metadata", None)
            assert copy == own, (group, relative)
        opened = zarr.open_group(str(path / group), mode="r", use_consolidated=True if not group else None)
        for name in SHARDED + PLAIN:
            if name.startswith(group):
                array = opened[name.removeprefix(group).lstrip("/")]
                assert isinstance(array, zarr.Array)
                assert np.array_equal(np.asarray(array[...]), VALUES), name
                assert np.array_equal(np.asarray(array[6:12]), VALUES[6:12]), name


@pytest.mark.parametrize("shards", [None, "2"], ids=["plain", "shards"])
@pytest.mark.parametrize("writer", WRITERS)
def test_copies_of_arrays_that_are_shown_as_stored_say_what_their_documents_say(
    mount: Mounter, tmp_path: Path, writer: str, shards: str | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    mounted = mount(source, write=True, shards=shards)
    path = mounted.path / "data.zarr"
    make(path, writer, group="group")
    assert_consolidated(path)
    zarr.open_array(str(path / "z"), mode="r+").attrs["edited"] = 1
    zarr.consolidate_metadata(str(path))
    assert_consolidated(path)
    path.rename(mounted.path / "moved.zarr")
    assert_consolidated(mounted.path / "moved.zarr")
    mounted.unmount()
    assert_consolidated(source / "moved.zarr")
    assert_sound(source)
    assert_consolidated(mount(source, write=True, shards=shards).path / "moved.zarr")


def test_copies_of_an_array_that_is_removed_and_made_anew_follow_it(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    mounted = mount(source, write=True, shards="2")
    path = mounted.path / "data.zarr"
    make(path)
    for shards in (None, (6,), None):
        group = zarr.open_group(str(path), use_consolidated=False)
        array = group.create_array("z", shape=(12,), chunks=(3,), shards=shards, dtype="i4", overwrite=True)
        array[...] = VALUES
        zarr.consolidate_metadata(str(path))
        assert_consolidated(path)
    mounted.unmount()
    assert_consolidated(source / "data.zarr")
    assert document_of(source / "data.zarr/z")["codecs"][0]["name"] == "sharding_indexed"


@pytest.mark.parametrize("view", ["v3", "v3-decoded"])
@pytest.mark.parametrize("shards", [None, "2"], ids=["plain", "shards"])
@pytest.mark.parametrize("seed", range(3))
def test_sharded_arrays_are_copied_in_any_order_and_each_file_is_read_back(
    mount: Mounter, tmp_path: Path, view: str, shards: str | None, seed: int
) -> None:
    native = tmp_path / "native.zarr"
    make(native)
    if view != "v3":
        for name in PLAIN:
            shutil.rmtree(native / name)  # they would have to be plain themselves
        (native / "group/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
        zarr.consolidate_metadata(str(native))
    (tmp_path / "source").mkdir()
    arguments = ["--decode"] if view != "v3" else []
    mounted = mount(tmp_path / "source", write=True, shards=shards, arguments=arguments)
    files = list(files_below(native).items())
    random.Random(seed).shuffle(files)
    copied = {}
    for key, data in files:
        (mounted.path / key).parent.mkdir(parents=True, exist_ok=True)
        (mounted.path / key).write_bytes(data)
        copied[key] = data
        assert files_below(mounted.path) == copied
    if view == "v3":
        assert_consolidated(mounted.path)
    mounted.unmount()
    assert {key: data for key, data in files_below(tmp_path / "source").items() if key.endswith("zarr.json")} == {
        key: data for key, data in files if key.endswith("zarr.json")
    } or shards
