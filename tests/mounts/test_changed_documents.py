"""Documents, arrays and plain files that other programs change behind the mount."""

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.changing import ChangingArray, document, replace, version
from tests.support.corpus import LITTLE, array
from tests.support.datasets import files_below
from tests.support.mounting import Mount, Mounter, refuses
from tests.support.readers import read_zarr


@dataclass
class Place:
    """A directory of the source, and where it is shown."""

    source: Path
    path: Path


@pytest.fixture(scope="module", params=[0], ids=["no-ttl"])
def mount_of_all(
    module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mount:
    return module_mount(tmp_path_factory.mktemp("source"), metadata_ttl=request.param)


long_ttl = pytest.mark.parametrize("mount_of_all", [0, 3600], ids=["no-ttl", "long-ttl"], indirect=True)


@pytest.fixture
def mounted(mount_of_all: Mount) -> Place:
    name = f"place-{len(os.listdir(mount_of_all.source))}"
    return Place(mount_of_all.source / name, mount_of_all.path / name)


@pytest.fixture
def stored(mounted: Place) -> ChangingArray:
    return ChangingArray(mounted.source / "image")


def chunks_below(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_below(directory).items() if name.startswith("c/")}


@long_ttl
def test_a_replaced_document_is_seen_at_the_next_open_and_an_open_one_is_kept(
    mounted: Place, stored: ChangingArray
) -> None:
    path = mounted.path / "image/zarr.json"
    with path.open("rb", buffering=0) as file:
        before = file.read()
        stored.document = document(attributes={"title": "a new title" * 1000})
        stored.replace_document()
        assert json.loads(path.read_text())["attributes"] == stored.document["attributes"]
        file.seek(0)
        assert file.read() == before
        assert os.fstat(file.fileno()).st_size == len(before)


def test_a_change_of_attributes_leaves_chunks_and_their_inode_numbers(mounted: Place, stored: ChangingArray) -> None:
    chunk = mounted.path / "image/c/0/0"
    with chunk.open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        stored.document = document(attributes={"title": "new"})
        stored.replace_document()
        assert os.stat(chunk).st_ino == before.st_ino
        assert file.read() == stored.chunks(1)["c/0/0"]
    assert chunks_below(mounted.path / "image") == stored.chunks(1)


def test_another_inner_chunk_shape_is_another_tree(mounted: Place, stored: ChangingArray) -> None:
    root = mounted.path / "image"
    old = stored.chunks(1)
    directory = os.open(root / "c/0", os.O_RDONLY | os.O_DIRECTORY)
    with (root / "c/0/0").open("rb", buffering=0) as file:
        inode = os.fstat(file.fileno()).st_ino
        stored.document = document(inner=(32, 128))
        stored.replace_document()
        for key in ("c/0/0", "c/1/0"):
            stored.replace(key, 2)
        assert chunks_below(root) == stored.chunks(2)
        assert np.array_equal(read_zarr(root), version(2))
        assert os.stat(root / "c/0/0").st_ino != inode
        assert file.read() == old["c/0/0"]
    assert os.stat(root / "c/1/3").st_size == len(stored.chunks(2)["c/1/3"])
    with pytest.raises(FileNotFoundError):
        os.stat(root / "c/3/1")
    with refuses(errno.ESTALE):
        os.stat("0", dir_fd=directory)
    os.close(directory)


def test_an_array_that_becomes_unsharded_is_shown_as_stored_and_back(mounted: Place, stored: ChangingArray) -> None:
    root, shards = mounted.path / "image", files_below(stored.directory)
    sharded, unsharded = stored.document, array((64, 512), (32, 512), LITTLE, data_type="uint8")
    stored.document = unsharded
    stored.replace_document()
    assert files_below(root) == {**shards, "zarr.json": (stored.directory / "zarr.json").read_bytes()}
    stored.document = sharded
    stored.replace_document()
    assert chunks_below(root) == stored.chunks(1)


def test_a_removed_document_leaves_a_directory_as_it_is_stored(mounted: Place, stored: ChangingArray) -> None:
    assert chunks_below(mounted.path / "image") == stored.chunks(1)
    os.unlink(stored.directory / "zarr.json")
    assert files_below(mounted.path / "image") == files_below(stored.directory)
    stored.replace_document()
    assert chunks_below(mounted.path / "image") == stored.chunks(1)


def test_a_broken_document_is_shown_as_stored_until_it_is_mended(mounted: Place, stored: ChangingArray) -> None:
    assert (mounted.path / "image/c/3/1").exists()
    replace(stored.directory / "zarr.json", b"{")
    assert files_below(mounted.path / "image") == files_below(stored.directory)
    assert os.getxattr(mounted.path / "image", "user.shardfs.reason")
    stored.replace_document()
    assert chunks_below(mounted.path / "image") == stored.chunks(1)
    assert os.listxattr(mounted.path / "image") == []


def test_plain_files_follow_every_change(mounted: Place, stored: ChangingArray) -> None:
    plain, shown = mounted.source / "plain", mounted.path / "plain"
    plain.write_bytes(b"one")
    assert shown.read_bytes() == b"one"
    inode = os.stat(shown).st_ino
    with shown.open("rb", buffering=0) as file:
        plain.write_bytes(b"number two")
        assert (file.read(), os.fstat(file.fileno()).st_size) == (b"number two", 10)
    assert (shown.read_bytes(), os.stat(shown).st_ino) == (b"number two", inode)
    with plain.open("ab") as file:
        file.write(b", longer")
    assert (shown.read_bytes(), os.stat(shown).st_size) == (b"number two, longer", 18)
    with shown.open("rb") as file:
        replace(plain, b"three")
        assert (shown.read_bytes(), os.stat(shown).st_ino != inode) == (b"three", True)
        assert file.read() == b"number two, longer"
    os.unlink(plain)
    assert not shown.exists()
    os.mkdir(plain)
    assert shown.is_dir()
