"""`shardfs.mount`: a mount for the length of a block."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardfs
from shardfs import errors
from shardfs.fuse.options import MountOptions
from tests.support.corpus import GZIP, LITTLE
from tests.support.daemons import end_mounts_below
from tests.support.damage import document
from tests.support.datasets import files_below, store
from tests.support.mounting import mount_points


@pytest.fixture(autouse=True)
def no_mount_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this machine has no /dev/fuse")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    end_mounts_below(tmp_path)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    store(tmp_path / "data set/image", document(LITTLE, GZIP))
    (tmp_path / "data set/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    return tmp_path / "data set"


def test_a_mount_ends_with_the_exception_that_leaves_its_block(dataset: Path) -> None:
    with pytest.raises(KeyError, match="mine"), shardfs.mount(str(dataset)) as path:
        raise KeyError("mine")
    assert str(path) not in mount_points()
    assert not path.exists()


def test_what_cannot_be_mounted_is_an_error_of_shardfs(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.SourceError, match="does not exist"), shardfs.mount(tmp_path / "nowhere"):
        pass
    with pytest.raises(errors.SourceError, match="gs://"), shardfs.mount("gs://bucket/data"):
        pass
    with pytest.raises(errors.MountPointError, match="mkdir -p"), shardfs.mount(dataset, tmp_path / "nowhere"):
        pass
    with (
        pytest.raises(errors.MountPointError, match="lies inside the source"),
        shardfs.mount(dataset, dataset / "image"),
    ):
        pass
    bad = MountOptions(fuse_options=("nonsense",))
    with pytest.raises(errors.ShardfsError, match="nonsense"), shardfs.mount(dataset, options=bad):
        pass
    assert not [path for path in mount_points() if path.startswith(str(tmp_path))]


def test_a_block_that_leaves_a_file_open_is_told_so_and_nothing_is_deleted_through_the_mount(dataset: Path) -> None:
    before = files_below(dataset)
    with pytest.raises(errors.MountPointError, match="busy"), shardfs.mount(dataset) as path:
        file = open(path / "image/c/0/0", "rb")  # noqa: SIM115
    with file:
        assert file.read() == shardfs.open(dataset)["image"].read_chunk((0, 0))
    assert files_below(dataset) == before
