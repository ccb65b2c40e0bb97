"""Versions of chunks that are written through a mount: inode numbers, times, open files, and what names stand for."""

import ctypes
import errno
import json
import mmap
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import LONG_AGO, files_below, store
from tests.support.mounting import Mount, Mounter, eventually, flush, refuses
from tests.support.readers import READERS, read_zarr

New = Callable[..., Path]
KEY, NEIGHBOUR, ELSEWHERE, LAST = "c/0/0", "c/0/1", "c/2/0", "c/3/3"
NBYTES = 24


DOCUMENT = array((8, 12), (4, 6), sharding((2, 3), LITTLE))
"""What `root` was stored as."""


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def numbers(root: Path) -> dict[str, int]:
    """Inode numbers as `stat` tells them, after comparing them with listings and `fstat`."""
    found = {}
    for directory, _, names in os.walk(root / "c"):
        listed = {entry.name: entry.inode() for entry in os.scandir(directory)}
        for name in names:
            path = Path(directory) / name
            with opened(path) as fd:
                assert os.fstat(fd).st_ino == path.stat().st_ino == listed[name]
            found[str(path.relative_to(root))] = path.stat().st_ino
    return found


def times(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in (root / "c").rglob("*") if path.is_file()}


# Inode numbers and times


def test_the_inode_number_stays_through_a_commit_and_changes_with_the_chunk(root: Path) -> None:
    before = numbers(root)
    (root / KEY).write_bytes(b"1" * NBYTES)
    published = numbers(root)
    assert {key for key in before if before[key] != published[key]} == {KEY}
    flush(root.parent)
    assert numbers(root) == published
    (root / KEY).write_bytes(b"2" * NBYTES)
    again = numbers(root)
    assert {key for key in again if again[key] != published[key]} == {KEY}
    assert again[KEY] not in (before[KEY], published[KEY])
    flush(root.parent)
    assert numbers(root) == again
    (root / KEY).unlink()
    flush(root.parent)
    (root / KEY).write_bytes(b"2" * NBYTES)
    assert numbers(root)[KEY] not in (before[KEY], published[KEY], again[KEY])
    assert {**numbers(root), KEY: 0} == {**again, KEY: 0}


def test_each_version_has_its_time_of_publishing_which_a_commit_does_not_move(root: Path) -> None:
    before = times(root)
    assert set(before.values()) == {LONG_AGO}
    (root / KEY).write_bytes(b"1" * NBYTES)
    published = times(root)
    assert published[KEY] > LONG_AGO
    assert {**published, KEY: LONG_AGO} == before
    flush(root.parent)
    assert times(root) == published
    seen = [(root / KEY).stat().st_mtime_ns]
    for number in range(20):
        (root / KEY).write_bytes(bytes([number]) * NBYTES)
        seen.append((root / KEY).stat().st_mtime_ns)
        if number % 7 == 0:
            flush(root.parent)
    assert seen == sorted(set(seen))


def test_a_rename_carries_time_and_number(root: Path) -> None:
    scratch = root / "c/0/0.0123456789abcdef.partial"
    scratch.write_bytes(b"1" * NBYTES)
    os.utime(scratch, ns=(5, 12345))
    before = scratch.stat()
    os.rename(scratch, root / KEY)
    for _ in range(2):
        after = (root / KEY).stat()
        assert (after.st_mtime_ns, after.st_ino, after.st_size) == (12345, before.st_ino, NBYTES)
        flush(root.parent)
    assert not scratch.exists()


def test_times_that_are_set_stay_through_a_commit_for_one_chunk_alone(root: Path) -> None:
    (root / KEY).write_bytes(b"1" * NBYTES)
    os.utime(root / KEY, ns=(1, 1_000_000_007))
    os.utime(root / LAST, ns=(1, 2_000_000_007))  # of a chunk that nobody wrote
    expected = times(root)
    assert (expected[KEY], expected[LAST]) == (1_000_000_007, 2_000_000_007)
    assert set(expected.values()) == {LONG_AGO, 1_000_000_007, 2_000_000_007}
    content = (root / LAST).read_bytes()
    flush(root.parent)
    assert times(root) == expected
    assert (root / LAST).read_bytes() == content
    (root / KEY).write_bytes(b"2" * NBYTES)
    assert (root / KEY).stat().st_mtime_ns > 1_000_000_007


def test_times_of_chunks_last_as_long_as_the_mount(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    first = mount(tmp_path / "source", write=True)
    (first.path / KEY).write_bytes(b"1" * NBYTES)
    os.utime(first.path / KEY, ns=(1, 1_000_000_007))
    first.unmount()
    second = mount(tmp_path / "source")
    shard = (tmp_path / "source" / "c/0/0").stat().st_mtime_ns
    assert {(second.path / key).stat().st_mtime_ns for key in (KEY, NEIGHBOUR)} == {shard}
    assert (second.path / ELSEWHERE).stat().st_mtime_ns == LONG_AGO


def test_mode_and_owner_of_chunks_are_accepted_and_stay_the_shards(root: Path) -> None:
    os.utime(root / "c/0", ns=(1, 5))
    os.chmod(root / "c/0", 0o700)
    assert (root / "c/0").stat().st_mtime_ns == LONG_AGO
    assert stat.S_IMODE((root / "c/0").stat().st_mode) == stat.S_IMODE((root / "c").stat().st_mode)
    before = (root / KEY).stat()
    os.chmod(root / KEY, 0o600)
    os.chown(root / KEY, os.getuid(), os.getgid())
    with opened(root / KEY, os.O_WRONLY) as fd:
        os.fchmod(fd, 0o640)
        os.write(fd, b"1")
    flush(root.parent)
    after = (root / KEY).stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


# Open files


def test_an_open_file_keeps_its_version_through_publishing_commits_and_removal(root: Path) -> None:
    old = (root / KEY).read_bytes()
    with opened(root / KEY) as fd, opened(root / NEIGHBOUR) as beside:
        neighbour = (root / NEIGHBOUR).read_bytes()
        number = os.fstat(fd).st_ino
        (root / KEY).write_bytes(b"1" * (NBYTES + 5))
        with opened(root / KEY) as second:
            commit = partial(flush, root.parent)
            for change in (commit, lambda: (root / KEY).write_bytes(b"2"), commit, (root / KEY).unlink, commit):
                change()
                assert os.pread(fd, 100, 0) == old
                assert (os.fstat(fd).st_size, os.fstat(fd).st_ino) == (len(old), number)
                assert os.pread(second, 100, 0) == b"1" * (NBYTES + 5)
                assert os.fstat(second).st_size == NBYTES + 5
                assert os.pread(beside, 100, 0) == neighbour
    assert not (root / KEY).exists()


def test_an_open_file_keeps_its_version_when_the_shard_is_compacted_or_removed(mounted: Mount, root: Path) -> None:
    for number in range(3):
        (root / KEY).write_bytes(bytes([number]) * NBYTES)
        flush(root.parent)
    shard = mounted.source / root.name / "c/0/0"
    with opened(root / KEY) as fd, opened(root / NEIGHBOUR) as beside:
        neighbour = os.pread(beside, 100, 0)
        for key in (KEY, NEIGHBOUR, "c/1/0", "c/1/1"):  # all chunks, so that the shard is written anew
            (root / key).write_bytes(b"new")
        size = shard.stat().st_size
        flush(root.parent)
        assert shard.stat().st_size < size
        assert (os.pread(fd, 100, 0), os.pread(beside, 100, 0)) == (bytes([2]) * NBYTES, neighbour)
        for key in (KEY, NEIGHBOUR, "c/1/0", "c/1/1"):
            (root / key).unlink()
        flush(root.parent)
        assert not shard.exists()
        assert (os.pread(fd, 100, 0), os.pread(beside, 100, 0)) == (bytes([2]) * NBYTES, neighbour)


# Before publishing


def test_until_it_is_published_a_new_name_is_taken_and_there_is_nothing_to_read(new_array: New) -> None:
    root = new_array(absent=[(0, 0)])
    with opened(root / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        os.write(fd, b"1" * NBYTES)
        with refuses(errno.ENOENT):
            os.open(root / KEY, os.O_RDONLY)
        assert "0" not in os.listdir(root / "c/0")
        with refuses(errno.EEXIST):
            os.open(root / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        assert (root / KEY).stat() == os.fstat(fd)
        assert os.fstat(fd).st_size == NBYTES
        number = os.fstat(fd).st_ino
    assert (root / KEY).read_bytes() == b"1" * NBYTES
    with refuses(errno.EEXIST):
        os.open(root / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert numbers(root)[KEY] == number
    flush(root.parent)
    assert numbers(root)[KEY] == number


def test_until_it_is_published_an_old_name_has_its_old_version(root: Path) -> None:
    old = (root / KEY).read_bytes()
    with opened(root / KEY, os.O_RDWR | os.O_TRUNC) as fd:
        os.write(fd, b"1" * 100)
        assert (root / KEY).read_bytes() == old
        assert os.pread(fd, 200, 0) == b"1" * 100  # the writer sees what it wrote
        os.fsync(fd)
        assert (root / KEY).read_bytes() == b"1" * 100
        os.pwrite(fd, b"22", 0)
        assert (root / KEY).read_bytes() == b"1" * 100
    assert (root / KEY).read_bytes() == b"22" + b"1" * 98


def test_a_file_that_is_made_and_not_written_is_published_empty_at_its_end(new_array: New) -> None:
    root = new_array(absent=[(0, 0)])
    with opened(root / KEY, os.O_WRONLY | os.O_CREAT):
        assert "0" not in os.listdir(root / "c/0")
    eventually(lambda: "0" in os.listdir(root / "c/0"))
    assert (root / KEY).read_bytes() == b""


def test_what_is_written_after_another_file_took_the_name_is_not_seen(root: Path) -> None:
    with opened(root / KEY, os.O_RDWR) as fd:
        os.pwrite(fd, b"11", 0)
        (root / "c/0/scratch").write_bytes(b"renamed")
        os.rename(root / "c/0/scratch", root / KEY)
        os.pwrite(fd, b"22", 0)
        assert os.pread(fd, 2, 0) == b"22"
    assert (root / KEY).read_bytes() == b"renamed"


def test_attributes_set_through_a_descriptor_are_those_of_its_file_whoever_has_the_name(root: Path) -> None:
    for name in ("old", "new"):
        (root / name).write_bytes(b"")
        (root / name).chmod(0o644)
    with opened(root / "old") as fd:
        os.rename(root / "new", root / "old")
        os.fchmod(fd, 0o600)
        os.utime(fd, ns=(1, 1))
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert stat.S_IMODE((root / "old").stat().st_mode) == 0o644
    assert (root / "old").stat().st_mtime_ns != 1


def test_truncate_without_a_handle_is_published_at_once(root: Path) -> None:
    old = (root / KEY).read_bytes()
    os.truncate(root / KEY, 5)
    assert (root / KEY).read_bytes() == old[:5]
    os.truncate(root / KEY, 8)
    assert (root / KEY).read_bytes() == old[:5] + b"\0\0\0"


def test_a_size_that_no_file_can_have_is_efbig_and_nothing_is_changed(root: Path) -> None:
    for name in ("notes", "c/0/scratch"):
        (root / name).write_bytes(b"notes")
    for name, nbytes in product([KEY, "zarr.json", "notes", "c/0/scratch"], [2**62, 2**63 - 1]):
        old = (root / name).read_bytes()
        with refuses(errno.EFBIG):
            os.truncate(root / name, nbytes)
        with opened(root / name, os.O_RDWR) as fd:
            with refuses(errno.EFBIG):
                os.ftruncate(fd, nbytes)
            with refuses(errno.EFBIG):
                os.pwrite(fd, b"1", nbytes - 1)
        assert (root / name).read_bytes() == old


def test_stat_tells_the_size_of_what_is_written_unless_somebody_reads(root: Path) -> None:
    old = (root / KEY).read_bytes()
    with opened(root / KEY, os.O_WRONLY) as fd:
        os.write(fd, b"1" * 100)
        assert (root / KEY).stat().st_size == os.fstat(fd).st_size == 100
        with opened(root / KEY) as reader:
            assert (root / KEY).stat().st_size == os.fstat(reader).st_size == len(old)
            assert os.pread(reader, 200, 0) == old
            os.fsync(fd)
            assert os.fstat(reader).st_size == len(old)
            assert (root / KEY).read_bytes() == b"1" * 100
    assert (root / KEY).stat().st_size == 100


def test_a_file_that_is_written_cannot_be_mapped_shared(root: Path) -> None:
    for name in (KEY, f"{KEY}.partial"):
        with opened(root / name, os.O_RDWR | os.O_CREAT) as fd:
            os.pwrite(fd, bytes(NBYTES), 0)
            with refuses(errno.ENODEV):
                mmap.mmap(fd, NBYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


# Attributes


def attributes(path: Path) -> dict[str, str]:
    names = [name for name in os.listxattr(path) if name.startswith("user.shardfs.")]
    assert sorted(names) == ["user.shardfs.nbytes", "user.shardfs.offset", "user.shardfs.shard"]
    found = {}
    for name in names:
        with suppress(OSError):
            found[name.rpartition(".")[2]] = os.getxattr(path, name).decode()
    return found


def test_a_pending_chunk_tells_its_shard_and_size_but_no_offset(mounted: Mount, root: Path) -> None:
    (root / KEY).write_bytes(b"1" * 33)
    assert attributes(root / KEY) == {"shard": f"{root.name}/c/0/0", "nbytes": "33"}
    with refuses(errno.ENODATA):
        os.getxattr(root / KEY, "user.shardfs.offset")
    flush(root.parent)
    found = attributes(root / KEY)
    assert found["nbytes"] == "33"
    assert (mounted.source / found["shard"]).read_bytes()[int(found["offset"]) :][:33] == b"1" * 33


def test_extended_attributes_cannot_be_set_on_chunks(root: Path) -> None:
    with refuses(errno.EOPNOTSUPP):
        os.setxattr(root / KEY, "user.colour", b"blue")
    with refuses(errno.EOPNOTSUPP):
        os.setxattr(root / KEY, "user.shardfs.shard", b"elsewhere")
    assert "user.colour" not in os.listxattr(root / KEY)


# Names


def test_directories_of_chunks_are_there_and_go_when_they_are_empty(root: Path) -> None:
    for name in ("c", "c/0"):
        with refuses(errno.EEXIST):
            os.mkdir(root / name)
        with refuses(errno.ENOTEMPTY):
            os.rmdir(root / name)
    for i, j in np.ndindex(4, 4):
        (root / f"c/{i}/{j}").unlink()
    for name in ("c/0", "c/1", "c/2", "c/3", "c"):
        os.rmdir(root / name)
    assert os.listdir(root) == ["zarr.json"]
    assert (root / "c/0").is_dir()  # not listed, but there all the same


def test_names_beyond_the_grid_are_refused(root: Path) -> None:
    for name in ("c/0/4", "c/4/0", "c/0/1000000000"):
        for make in (lambda path: path.write_bytes(b"1"), os.mkdir):
            with pytest.raises(OSError, match="Errno") as raised:
                make(root / name)
            assert raised.value.errno in (errno.EINVAL, errno.ENOENT)
    with refuses(errno.EINVAL):
        (root / "c/0/4").write_bytes(b"1")
    with refuses(errno.EINVAL):
        os.mkdir(root / "c/4")
    (root / "notes").write_bytes(b"1")
    with refuses(errno.EINVAL):
        os.rename(root / "notes", root / "c/0/4")
    assert (root / "notes").read_bytes() == b"1"


def test_a_chunk_is_no_directory_and_a_directory_of_chunks_no_file(root: Path) -> None:
    (root / "c/0/1").unlink()
    with refuses(errno.EINVAL):
        os.mkdir(root / "c/0/1")
    with refuses(errno.EISDIR):
        os.open(root / "c/0", os.O_WRONLY | os.O_CREAT)
    with refuses(errno.EISDIR):
        os.unlink(root / "c/0")
    with refuses(errno.ENOTDIR):
        os.rmdir(root / KEY)


def test_scratch_beside_chunks_is_not_in_the_dataset_and_survives_a_remount(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    stored = files_below(tmp_path / "source")
    first = mount(tmp_path / "source", write=True)
    for name in ("c/notes", "c/0/0.partial", "c/0/.hidden"):
        (first.path / name).write_bytes(name.encode())
    assert sorted(os.listdir(first.path / "c/0")) == [".hidden", "0", "0.partial", "1", "2", "3"]
    (first.path / "c/0/empty").mkdir()
    first.unmount()
    outside = {name: data for name, data in files_below(tmp_path / "source").items() if ".shardfs" not in name}
    assert outside == stored
    assert np.array_equal(read_zarr(tmp_path / "source"), read_zarr(tmp_path / "source"))
    second = mount(tmp_path / "source", write=True)
    assert sorted(os.listdir(second.path / "c/0")) == [".hidden", "0", "0.partial", "1", "2", "3"]
    for name in ("c/notes", "c/0/0.partial", "c/0/.hidden"):
        assert (second.path / name).read_bytes() == name.encode()
        (second.path / name).unlink()
    second.unmount()
    assert not (tmp_path / "source/.shardfs").exists()


def test_scratch_goes_with_its_directory_also_beyond_the_shape(mounted: Mount, root: Path) -> None:
    for name in ("c/0/temporary", "c/3/temporary"):
        (root / name).write_bytes(b"1")
    edit(root, shape=[4, 6])
    with refuses(errno.ENOTEMPTY):
        os.rmdir(root / "c/0")
    (root / "zarr.json").unlink()
    subprocess.run(["rm", "-r", root], check=True)
    assert not (mounted.source / ".shardfs/scratch" / root.name).exists()
    assert not (mounted.source / root.name).exists()


def test_the_directory_of_shardfs_is_not_shown_and_its_name_cannot_be_taken(mounted: Mount, root: Path) -> None:
    assert (mounted.source / ".shardfs").exists()
    assert ".shardfs" not in os.listdir(mounted.path)
    assert not (mounted.path / ".shardfs").exists()
    for directory in (mounted.path, root, root / "c", root / "c/0"):
        with refuses(errno.EPERM):
            (directory / ".shardfs").write_bytes(b"")
        with refuses(errno.EPERM):
            os.mkdir(directory / ".shardfs-mine")


# Documents


def edit(root: Path, **members: Any) -> None:
    """Write the document as it is seen, with other members."""
    seen = json.loads((root / "zarr.json").read_text())
    (root / "zarr.json").write_text(json.dumps(seen | members))


def stored_document(mounted: Mount, root: Path) -> Any:
    return json.loads((mounted.source / root.name / "zarr.json").read_text())


REFUSED: dict[str, dict[str, Any]] = {
    "another data type": {"data_type": "float32"},
    "another chunk shape": {"chunk_grid": extension("regular", chunk_shape=[4, 3])},
    "other codecs": {"codecs": [LITTLE, GZIP]},
    "another key encoding": {"chunk_key_encoding": extension("v2", separator=".")},
    "another rank": {"shape": [8], "chunk_grid": extension("regular", chunk_shape=[2])},
    "no array": {"node_type": "group"},
    "nothing known": {"zarr_format": 4},
    "sharded, on top of chunks": DOCUMENT,
}


@pytest.mark.parametrize("members", REFUSED.values(), ids=REFUSED)
def test_a_document_that_changes_the_meaning_of_chunks_is_refused(
    mounted: Mount, root: Path, members: dict[str, Any]
) -> None:
    stored = (mounted.source / root.name / "zarr.json").read_bytes()
    seen, chunks, log = (root / "zarr.json").read_bytes(), files_below(root / "c"), mounted.log
    with refuses(errno.EINVAL):
        edit(root, **members)
    assert (mounted.source / root.name / "zarr.json").read_bytes() == stored
    assert (root / "zarr.json").read_bytes() == seen
    assert files_below(root / "c") == chunks
    lines = [line for line in mounted.log[len(log) :].splitlines() if f"{root.name}/zarr.json is refused: " in line]
    assert len(lines) == 1


@pytest.mark.parametrize("text", [b"", b"{", b'{"zarr_format": 3}', b"\xff\xfe"])
def test_a_broken_document_is_refused_and_the_handle_keeps_its_bytes(mounted: Mount, root: Path, text: bytes) -> None:
    stored = (mounted.source / root.name / "zarr.json").read_bytes()
    seen = (root / "zarr.json").read_bytes()
    fd = os.open(root / "zarr.json", os.O_RDWR | os.O_TRUNC)
    try:
        os.write(fd, text)
        if text:
            with refuses(errno.EINVAL):
                os.fsync(fd)
        assert os.pread(fd, 100, 0) == text
        assert (root / "zarr.json").read_bytes() == seen
    finally:
        with suppress(OSError):  # an empty document is published, and refused, after the last close
            os.close(fd)
    assert (root / "zarr.json").read_bytes() == seen
    assert (mounted.source / root.name / "zarr.json").read_bytes() == stored
    temporary = root / "zarr.0123.partial"
    temporary.write_bytes(text)
    with refuses(errno.EINVAL):
        os.rename(temporary, root / "zarr.json")
    assert temporary.read_bytes() == text
    assert (root / "zarr.json").read_bytes() == seen


def test_attributes_are_edited_and_the_document_stays_sharded(mounted: Mount, root: Path) -> None:
    before, found = stored_document(mounted, root), numbers(root)
    edit(root, attributes={"colour": "blue"}, dimension_names=["y", None])
    assert stored_document(mounted, root) == before | {"attributes": {"colour": "blue"}, "dimension_names": ["y", None]}
    assert numbers(root) == found


def test_what_a_shrink_cuts_off_reads_as_fill_value_when_the_array_grows_again(mounted: Mount, root: Path) -> None:
    values = read_zarr(mounted.source / root.name)
    (root / LAST).write_bytes(b"\1" * NBYTES)  # pending, and outside
    edit(root, shape=[3, 7])
    assert sorted(os.listdir(root / "c")) == ["0", "1"]
    assert sorted(os.listdir(root / "c/0")) == ["0", "1", "2"]
    edit(root, shape=[8, 12])
    expected = np.zeros_like(values)
    expected[:4, :9] = values[:4, :9]
    assert np.array_equal(read_zarr(root), expected)
    flush(root.parent)
    for read in READERS.values():
        assert np.array_equal(read(mounted.source / root.name), expected)
    assert not (mounted.source / root.name / "c/1/1").exists()


def test_open_directories_are_stale_after_a_resize_and_open_files_read_on(root: Path) -> None:
    old = (root / KEY).read_bytes()
    directory = os.open(root / "c/0", os.O_RDONLY)
    try:
        with opened(root / KEY) as fd:
            edit(root, shape=[8, 24])
            with refuses(errno.ESTALE):
                os.listdir(directory)
            assert os.pread(fd, 100, 0) == old
        assert len(os.listdir(root / "c/0")) == 4
    finally:
        os.close(directory)


def test_a_directory_without_its_document_stays_that_array_until_it_is_empty(mounted: Mount, root: Path) -> None:
    chunks = files_below(root / "c")
    (root / "zarr.json").unlink()
    assert os.listdir(root) == ["c"]
    assert files_below(root / "c") == chunks
    (root / KEY).write_bytes(b"1" * NBYTES)
    with refuses(errno.ENOTEMPTY):
        os.rmdir(root)
    for i, j in np.ndindex(4, 4):
        (root / f"c/{i}/{j}").unlink()
    for i in range(4):
        os.rmdir(root / f"c/{i}")
    os.rmdir(root / "c")
    assert os.listdir(mounted.source / root.name) == []
    (root / "c").mkdir()  # it is a directory like any other
    (root / "c/file").write_bytes(b"1")
    assert (mounted.source / root.name / "c/file").read_bytes() == b"1"


def test_a_directory_without_its_document_can_have_a_new_one(mounted: Mount, root: Path) -> None:
    seen, stored = (root / "zarr.json").read_bytes(), stored_document(mounted, root)
    values = read_zarr(mounted.source / root.name)
    (root / "zarr.json").unlink()
    (root / "zarr.json").write_bytes(seen)
    assert stored_document(mounted, root) == stored
    assert np.array_equal(read_zarr(mounted.source / root.name), values)
    (root / "zarr.json").unlink()
    with refuses(errno.EINVAL):
        (root / "zarr.json").write_text(json.dumps(json.loads(seen) | {"data_type": "float64"}))
    with refuses(errno.EINVAL):
        (root / "zarr.json").write_text(json.dumps(stored))  # a sharded array, on top of chunks
    assert len(files_below(root / "c")) == 16


def test_a_sharded_array_made_through_the_mount_is_shown_as_stored(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    store(tmp_path / "original", DOCUMENT)
    first = mount(tmp_path / "source", write=True)
    subprocess.run(["cp", "-r", tmp_path / "original", first.path / "a"], check=True)
    assert files_below(first.path / "a") == files_below(tmp_path / "original")
    assert files_below(tmp_path / "source/a") == files_below(tmp_path / "original")
    first.unmount()
    second = mount(tmp_path / "source", write=True)
    assert len(files_below(second.path / "a/c")) == 16


# What differs from a plain directory


def test_chunks_and_documents_have_one_name_and_are_no_links(root: Path) -> None:
    for name in (KEY, "zarr.json"):
        with refuses(errno.EPERM):
            os.link(root / name, root / "second")
        assert not (root / "second").exists()
        assert (root / name).stat().st_nlink == 1
    (root / KEY).unlink()
    with refuses(errno.EPERM):
        os.symlink("1", root / KEY)


def test_a_link_to_the_name_of_a_chunk_is_a_copy(root: Path) -> None:
    (root / KEY).unlink()
    (root / "plain").write_bytes(b"one")
    os.link(root / "plain", root / KEY)
    (root / "plain").write_bytes(b"two")
    assert (root / KEY).read_bytes() == b"one"
    with refuses(errno.EEXIST):
        os.link(root / "plain", root / KEY)


def test_names_are_not_exchanged(root: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    old, new = os.fsencode(root / KEY), os.fsencode(root / NEIGHBOUR)
    assert libc.renameat2(-100, old, -100, new, 2) == -1
    assert ctypes.get_errno() == errno.EINVAL
    assert libc.renameat2(-100, old, -100, new, 1) == -1
    assert ctypes.get_errno() == errno.EEXIST


def test_directories_of_chunks_are_not_renamed(root: Path) -> None:
    os.mkdir(root / "plain")
    for old, new in (("c", "d"), ("c/0", "c/1"), ("c/0", "zero"), ("plain", "c/0")):
        with refuses(errno.EXDEV):
            os.rename(root / old, root / new)
    assert len(files_below(root / "c")) == 16


def test_pipes_sockets_and_devices_are_not_made(root: Path) -> None:
    for path in (root / "pipe", root / "c/0/pipe", root.parent / "pipe"):
        with refuses(errno.EPERM):
            os.mkfifo(path)
        assert not path.exists()


def test_mknod_makes_a_plain_file(root: Path) -> None:
    os.mknod(root / "new", 0o640 | stat.S_IFREG)
    with pytest.raises(FileExistsError):
        os.mknod(root / "new", 0o640 | stat.S_IFREG)
    (root / "new").write_bytes(b"text")
    assert ((root / "new").stat().st_mode, (root / "new").read_bytes()) == (0o640 | stat.S_IFREG, b"text")


def test_a_directory_that_is_not_listed_can_be_written_in(new_array: New) -> None:
    root = new_array(absent=list(np.ndindex(4, 4)))
    assert os.listdir(root) == ["zarr.json"]
    assert stat.S_ISDIR((root / "c/2").stat().st_mode)
    (root / "c/2/1").write_bytes(b"1" * NBYTES)
    assert os.listdir(root / "c") == ["2", "3"]  # as far as the shard goes
    assert os.listdir(root / "c/2") == ["1"]
    assert os.listdir(root / "c/3") == []
