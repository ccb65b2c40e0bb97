"""Two writing mounts of one directory, and programs that make the same array on both."""

import mmap
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounter

VALUES = np.arange(16 * 16, dtype="i4").reshape(16, 16)


@pytest.fixture
def unsharded(tmp_path: Path) -> Path:
    """An array as it is copied onto a mount."""
    zarr.create_array(tmp_path / "unsharded", data=VALUES, chunks=(4, 4), compressors=None)
    return tmp_path / "unsharded"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    zarr.create_group(tmp_path / "source")
    return tmp_path / "source"


def assert_sharded(source: Path) -> None:
    array = zarr.open_group(source, mode="r")["a"]
    assert array.shards == (8, 8)
    assert (np.asarray(array[...]) == VALUES).all()
    assert sorted(path.name for path in source.iterdir()) == ["a", "zarr.json"]
    assert sorted(path.name for path in (source / "a").iterdir()) == ["c", "zarr.json"]


def test_an_array_that_two_programs_copy_onto_two_mounts_at_once_is_whole(
    mount: Mounter, source: Path, unsharded: Path
) -> None:
    mounts = [mount(source, write=True, shards="2,2") for _ in range(2)]
    copies = [
        subprocess.Popen(["cp", "-r", "-T", unsharded, mounted.path / "a"], stderr=subprocess.PIPE)
        for mounted in mounts
    ]
    said = [copy.communicate()[1].decode() for copy in copies]
    assert all("File exists" in line for line in "".join(said).splitlines()), said
    for mounted in mounts:
        mounted.unmount()
    assert_sharded(source)


def test_a_chunk_that_is_being_written_when_another_mount_makes_its_array_is_not_lost(
    mount: Mounter, source: Path, unsharded: Path
) -> None:
    first, second = (mount(source, write=True, shards="2,2") for _ in range(2))
    early = unsharded / "c/0/1"
    (second.path / "a/c/0").mkdir(parents=True)
    with open(second.path / "a/c/0/1", "wb", buffering=0) as file:
        file.write(early.read_bytes()[:10])
        shutil.copy(unsharded / "zarr.json", first.path / "a/zarr.json")
        for chunk in unsharded.rglob("c/*/*"):
            if chunk != early:
                to = first.path / "a" / chunk.relative_to(unsharded)
                to.parent.mkdir(exist_ok=True, parents=True)
                shutil.copy(chunk, to)
        file.write(early.read_bytes()[10:])
    first.unmount()
    second.unmount()
    assert_sharded(source)


def test_a_chunk_that_a_mount_writes_before_it_knows_the_document_of_another_becomes_a_chunk(
    mount: Mounter, source: Path, unsharded: Path
) -> None:
    first, second = (mount(source, write=True, shards="2,2", metadata_ttl=30) for _ in range(2))
    (second.path / "a").mkdir()
    assert not (second.path / "a/zarr.json").exists()
    shutil.copy(unsharded / "zarr.json", first.path / "a/zarr.json")
    for number, chunk in enumerate(sorted(unsharded.rglob("c/*/*"))):
        to = (first, second)[number % 2].path / "a" / chunk.relative_to(unsharded)
        to.parent.mkdir(exist_ok=True, parents=True)
        shutil.copyfile(chunk, to)
    first.unmount()
    second.unmount()
    assert_sharded(source)


def test_what_one_mount_has_published_is_in_an_array_that_another_one_moves(mount: Mounter, source: Path) -> None:
    zarr.create_array(source / "a", data=VALUES, chunks=(4, 4), shards=(8, 8), compressors=None)
    first, second = (mount(source, write=True) for _ in range(2))
    new = np.full((4, 4), -1, "i4")
    (first.path / "a/c/0/0").write_bytes(new.tobytes())
    (second.path / "a").rename(second.path / "b")
    array = zarr.open_array(source / "b", mode="r")
    assert (np.asarray(array[:4, :4]) == new).all()
    assert (np.asarray(array[4:]) == VALUES[4:]).all()
    first.unmount()
    second.unmount()


def test_what_several_append_to_one_file_is_all_there(mount: Mounter, source: Path) -> None:
    """Each has it open all the time, and one is no mount; as programs write one log."""
    first, second = (mount(source, write=True) for _ in range(2))
    ways = [first.path, first.path, second.path, source]
    files = [os.open(way / "train.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for way in ways]
    lines = [b"%d from %d\n" % (number, who) for number in range(20) for who in range(len(files))]
    for number, line in enumerate(lines):
        os.write(files[number % len(files)], line)
    assert (source / "train.log").read_bytes() == b"".join(lines)
    for file in files:
        os.close(file)
    assert (second.path / "train.log").read_bytes() == b"".join(lines)


def test_what_is_appended_is_seen_by_who_had_the_end_in_pages_and_is_not_mapped(mount: Mounter, source: Path) -> None:
    """A page that is written back would come at the end, too."""
    mounted = mount(source, write=True)
    path = mounted.path / "train.log"
    path.write_bytes(b"first\n")
    with open(path, "rb", buffering=0) as reader, open(path, "a+b", buffering=0) as log:
        assert reader.read() == b"first\n"
        with open(source / "train.log", "ab") as native:
            native.write(b"of another\n")
        log.write(b"second\n")
        assert (source / "train.log").read_bytes() == b"first\nof another\nsecond\n"
        with pytest.raises(OSError, match="No such device"):
            mmap.mmap(log.fileno(), 6)
    assert path.read_bytes() == b"first\nof another\nsecond\n"
