"""Chunks that are written through a mount: when they are published, what open files read, and what names stand for."""

import ctypes
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.datasets import LONG_AGO, files_below, store
from tests.support.mounting import Mount, Mounter, eventually, flush, refuses
from tests.support.writers import tool

New = Callable[..., Path]
KEY, NEIGHBOUR, LAST = "c/0/0", "c/0/1", "c/3/3"
SHARD_OF_KEY = ("c/0/0", "c/0/1", "c/1/0", "c/1/1")
NBYTES = 24
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
WHOLE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
DOCUMENT = array((8, 12), (4, 6), sharding((2, 3), LITTLE))
ENCODED = array((8, 12), (4, 6), sharding((2, 3), LITTLE), GZIP)


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def status(root: Path) -> dict[str, tuple[int, int]]:
    """Inode number and time of every chunk, as `stat`, `fstat` and listings tell them."""
    found = {}
    for directory, _, names in os.walk(root / "c"):
        listed = {entry.name: entry.inode() for entry in os.scandir(directory)}
        for name in names:
            path = Path(directory) / name
            with opened(path) as fd:
                assert os.fstat(fd).st_ino == path.stat().st_ino == listed[name]
            found[str(path.relative_to(root))] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


# Inode numbers and times


def test_publishing_gives_a_chunk_a_new_inode_number_and_time_and_a_commit_does_not(root: Path) -> None:
    before = status(root)
    assert {time for _, time in before.values()} == {LONG_AGO}
    numbers, times = {before[KEY][0]}, [LONG_AGO]
    for turn in range(9):
        if turn == 5:
            (root / KEY).unlink()
            flush(root.parent)
        (root / KEY).write_bytes(bytes([turn]) * NBYTES)
        published = status(root)
        assert {**published, KEY: before[KEY]} == before
        number, time = published[KEY]
        assert number not in numbers
        assert time > times[-1]
        numbers.add(number)
        times.append(time)
        if turn % 3:
            flush(root.parent)
            assert status(root) == published


def test_a_rename_onto_a_chunk_keeps_time_and_inode_number(root: Path) -> None:
    temporary = root / "c/0/0.0123456789abcdef.partial"
    temporary.write_bytes(b"1" * NBYTES)
    os.utime(temporary, ns=(5, 12345))
    before = temporary.stat()
    os.rename(temporary, root / KEY)
    for _ in range(2):
        after = (root / KEY).stat()
        assert (after.st_mtime_ns, after.st_ino, after.st_size) == (12345, before.st_ino, NBYTES)
        flush(root.parent)
    assert not temporary.exists()


def test_a_time_that_is_set_lasts_until_the_chunk_is_replaced_or_the_mount_ends(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    first = mount(tmp_path / "source", write=True)
    root = first.path
    (root / KEY).write_bytes(b"1" * NBYTES)
    (root / NEIGHBOUR).write_bytes(b"1" * NBYTES)
    for key, time in ((KEY, 7), (NEIGHBOUR, 8), (LAST, 9)):  # nobody wrote the last one
        os.utime(root / key, ns=(1, time))
    for _ in range(2):
        assert {time for _, time in status(root).values()} == {LONG_AGO, 7, 8, 9}
        flush(root)
    (root / KEY).write_bytes(b"2" * NBYTES)
    assert (root / KEY).stat().st_mtime_ns > LONG_AGO
    first.unmount()
    shown = status(mount(tmp_path / "source").path)
    assert shown[KEY][1] == shown[NEIGHBOUR][1] == (tmp_path / "source/c/0/0").stat().st_mtime_ns
    assert shown[LAST][1] == LONG_AGO


def test_mode_and_owner_of_chunks_and_the_time_of_their_directories_stay(root: Path) -> None:
    before = [(root / name).stat() for name in (KEY, "c/0")]
    os.utime(root / "c/0", ns=(1, 5))
    os.chmod(root / "c/0", 0o700)
    os.chmod(root / KEY, 0o600)
    os.chown(root / KEY, os.getuid(), os.getgid())
    with opened(root / KEY, os.O_WRONLY) as fd:
        os.fchmod(fd, 0o640)
        os.write(fd, b"1")
    flush(root.parent)
    after = [(root / name).stat() for name in (KEY, "c/0")]
    assert [(s.st_mode, s.st_uid, s.st_gid) for s in after] == [(s.st_mode, s.st_uid, s.st_gid) for s in before]
    assert after[1].st_mtime_ns == LONG_AGO


def test_a_pending_chunk_tells_its_shard_and_size_but_no_offset(mounted: Mount, root: Path) -> None:
    def told(name: str) -> bytes:
        return os.getxattr(root / KEY, f"user.shardfs.{name}")

    (root / KEY).write_bytes(b"1" * 33)
    assert (told("shard"), told("nbytes")) == (os.fsencode(f"{root.name}/c/0/0"), b"33")
    with refuses(errno.ENODATA):
        told("offset")
    flush(root.parent)
    assert (mounted.source / root.name / "c/0/0").read_bytes()[int(told("offset")) :][:33] == b"1" * 33


# Open files


def test_an_open_file_keeps_its_version(mounted: Mount, root: Path) -> None:
    """Through publishing, commits, compaction, and the removal of the chunk and of its shard."""
    old, neighbour = (root / KEY).read_bytes(), (root / NEIGHBOUR).read_bytes()
    shard = mounted.source / root.name / "c/0/0"
    with opened(root / KEY) as fd, opened(root / NEIGHBOUR) as beside:
        number = os.fstat(fd).st_ino
        (root / KEY).write_bytes(b"1" * (NBYTES + 5))
        with opened(root / KEY) as second:

            def write_all() -> None:  # so that the shard is written anew
                size = shard.stat().st_size
                for key in SHARD_OF_KEY:
                    (root / key).write_bytes(b"new")
                flush(root.parent)
                assert shard.stat().st_size < size

            def remove_all() -> None:
                for key in SHARD_OF_KEY:
                    (root / key).unlink()
                flush(root.parent)
                assert not shard.exists()

            commit = partial(flush, root.parent)
            for change in (commit, lambda: (root / KEY).write_bytes(b"2"), commit, write_all, remove_all):
                change()
                assert (os.pread(fd, 100, 0), os.pread(beside, 100, 0)) == (old, neighbour)
                assert (os.fstat(fd).st_size, os.fstat(fd).st_ino) == (len(old), number)
                assert os.pread(second, 100, 0) == b"1" * (NBYTES + 5)
                assert os.fstat(second).st_size == NBYTES + 5
    assert not (root / KEY).exists()


def test_stat_tells_the_size_of_what_is_written_unless_somebody_reads(root: Path) -> None:
    old = (root / KEY).read_bytes()
    with opened(root / KEY, os.O_WRONLY) as fd:
        os.write(fd, b"1" * 100)
        assert (root / KEY).stat().st_size == os.fstat(fd).st_size == 100
        with opened(root / KEY) as reader:
            assert (root / KEY).stat().st_size == os.fstat(reader).st_size == len(old)
            os.fsync(fd)
            assert os.fstat(reader).st_size == len(old)
    assert (root / KEY).stat().st_size == 100


# Publishing


def test_until_it_is_published_a_new_name_is_taken_and_cannot_be_read(new_array: New) -> None:
    root = new_array(absent=[(0, 0)])
    (root / "beside").write_bytes(b"beside")
    with opened(root / KEY, NEW) as fd:
        os.write(fd, b"1" * NBYTES)
        with refuses(errno.ENOENT):
            os.open(root / KEY, os.O_RDONLY)
        assert "0" not in os.listdir(root / "c/0")
        for take in (lambda: os.open(root / KEY, NEW), lambda: os.link(root / "beside", root / KEY)):
            with refuses(errno.EEXIST):
                take()
        os.chmod(root / KEY, 0o644)
        assert (root / KEY).stat() == os.fstat(fd)
        number = os.fstat(fd).st_ino
    assert (root / KEY).read_bytes() == b"1" * NBYTES
    for _ in range(2):
        assert (root / KEY).stat().st_ino == number
        flush(root.parent)
    (root / KEY).unlink()
    with opened(root / KEY, NEW) as removed:
        os.unlink(root / KEY)
        with opened(root / KEY, NEW) as second:
            os.write(second, b"second")
            os.write(removed, b"nowhere")
    assert (root / KEY).read_bytes() == b"second"


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
    os.truncate(root / KEY, 1)
    assert (root / KEY).read_bytes() == b"2"
    os.truncate(root / KEY, 3)
    assert (root / KEY).read_bytes() == b"2\0\0"


def test_a_file_that_is_created_and_not_written_is_published_empty_at_its_end(new_array: New) -> None:
    root = new_array(absent=[(0, 0)])
    with opened(root / KEY, os.O_WRONLY | os.O_CREAT):
        assert "0" not in os.listdir(root / "c/0")
    eventually(lambda: "0" in os.listdir(root / "c/0"))
    assert (root / KEY).read_bytes() == b""


WAYS = {"cut": os.O_TRUNC, "append": os.O_APPEND, "change": 0}


@pytest.mark.parametrize("ways", list(product(WAYS, repeat=2)), ids="-".join)
def test_each_who_writes_a_file_has_a_copy_of_its_own_and_the_last_to_close_wins(
    root: Path, ways: tuple[str, str]
) -> None:
    path, old = root / KEY, (root / KEY).read_bytes()
    fds = [os.open(path, os.O_RDWR | WAYS[way]) for way in ways]
    words = [b"1" * 5000, b"2" * 40]
    expected = [{"cut": b"", "append": old, "change": b""}[way] + word for way, word in zip(ways, words, strict=True)]
    expected = [new + old[len(new) :] if way == "change" else new for way, new in zip(ways, expected, strict=True)]
    for part in (slice(0, 7), slice(7, None)):
        for fd, word, new in zip(fds, words, expected, strict=True):
            assert os.pwrite(fd, word[part], part.start) == len(word[part])
            if part.stop is None:
                assert os.fstat(fd).st_size == os.lseek(fd, 0, os.SEEK_END) == len(new)
    assert path.read_bytes() == old
    for _ in range(2):  # the first time, what was synced is written once more
        for i in (1, 0):
            os.fsync(fds[i])
            assert path.read_bytes() == expected[i]
            assert [os.pread(fd, 10**4, 0) for fd in fds] == expected
        for i, fd in enumerate(fds):
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, b"xyz"[i : i + 1])
            start = len(expected[i]) if ways[i] == "append" else 0
            expected[i] = expected[i][:start] + b"xyz"[i : i + 1] + expected[i][start + 1 :]
    for i in (1, 0):
        os.close(fds[i])
        assert path.read_bytes() == expected[i]


def test_a_size_that_is_given_to_a_name_is_published_and_changes_no_open_file(root: Path) -> None:
    old = (root / KEY).read_bytes()
    with opened(root / KEY, os.O_RDWR) as fd:
        os.pwrite(fd, b"1", 0)
        os.truncate(root / KEY, 3)
        assert (root / KEY).read_bytes() == old[:3]
        assert os.pread(fd, 100, 0) == b"1" + old[1:]
    assert (root / KEY).read_bytes() == b"1" + old[1:]


@pytest.mark.parametrize("name", [KEY, "new/zarr.json"])
def test_who_opens_a_new_file_and_writes_nothing_publishes_nothing_under_its_writer(new_array: New, name: str) -> None:
    """As `touch` does; only who creates or cuts a file, and does not write, makes an empty one."""
    root = new_array(absent=[(0, 0)])
    (root / "new").mkdir()
    text = b'{"zarr_format": 3, "node_type": "group"}'
    with opened(root / name, NEW) as fd:
        for part in (text[:9], text[9:]):
            os.write(fd, part)
            with opened(root / name, os.O_WRONLY) as other:
                os.utime(other)
                os.fsync(other)
            with refuses(errno.ENOENT):
                os.open(root / name, os.O_RDONLY)
    assert (root / name).read_bytes() == text


def test_a_rename_takes_what_was_published_along_whoever_has_cut_the_file_since(new_array: New) -> None:
    root = new_array(absent=[(0, 0)])
    with opened(root / KEY, NEW) as writer:
        cut = os.open(root / KEY, os.O_WRONLY | os.O_TRUNC)
        os.write(writer, b"whole")
        os.fsync(writer)
        os.rename(root / KEY, root / NEIGHBOUR)
        assert (root / NEIGHBOUR).read_bytes() == b"whole"
    with refuses(errno.ESTALE):
        os.close(cut)
    assert (root / NEIGHBOUR).read_bytes() == b"whole"
    assert not (root / KEY).exists()


def test_who_closes_a_file_publishes_only_what_it_wrote(root: Path) -> None:
    """Not half of what another program is writing: a chunk or a document is there as a whole."""
    for name in (KEY, "zarr.json"):
        path, before = root / name, (root / name).read_bytes()
        with path.open("r+b", buffering=0) as file:
            file.write(before[: len(before) // 2][::-1])
            other = os.open(path, os.O_WRONLY)  # as touch does
            os.utime(other)
            os.fsync(other)
            os.close(other)
            assert path.read_bytes() == before
            os.pwrite(file.fileno(), before, 0)
        assert path.read_bytes() == before


def test_a_size_that_no_file_can_have_is_efbig_and_nothing_is_changed(root: Path) -> None:
    for name in ("notes", "c/0/temporary"):
        (root / name).write_bytes(b"notes")
    for name, nbytes in product([KEY, "zarr.json", "notes", "c/0/temporary"], [2**62, 2**63 - 1]):
        old = (root / name).read_bytes()
        with refuses(errno.EFBIG):
            os.truncate(root / name, nbytes)
        with opened(root / name, os.O_RDWR) as fd:
            with refuses(errno.EFBIG):
                os.ftruncate(fd, nbytes)
            with refuses(errno.EFBIG):
                os.pwrite(fd, b"1", nbytes - 1)
        assert (root / name).read_bytes() == old


def test_a_chunk_that_could_not_be_read_again_where_shards_are_encoded_is_efbig(tmp_path: Path, mount: Mounter) -> None:
    before = store(tmp_path / "source", ENCODED)
    root = mount(tmp_path / "source", write=True, expect=("cannot have 2097152 bytes",)).path
    nbytes = 2 * 2**20
    with refuses(errno.EFBIG):
        os.truncate(root / KEY, nbytes)
    with opened(root / KEY, os.O_RDWR) as fd, refuses(errno.EFBIG):
        os.pwrite(fd, b"1", nbytes - 1)
    (root / f"{KEY}.partial").write_bytes(bytes(nbytes))
    with refuses(errno.EFBIG):
        os.replace(root / f"{KEY}.partial", root / KEY)
    flush(root)
    assert (root / KEY).read_bytes() == before[KEY]


def test_an_encoded_shard_that_could_not_be_read_again_is_not_stored(tmp_path: Path, mount: Mounter) -> None:
    before = store(tmp_path / "source", ENCODED)
    shard = (tmp_path / "source" / KEY).read_bytes()
    mounted = mount(tmp_path / "source", write=True, expect=("could not be read again",))
    for key in SHARD_OF_KEY[:2]:
        (mounted.path / key).write_bytes(bytes(600_000) + key.encode())
    with pytest.raises(OSError):
        flush(mounted.path)
    assert (tmp_path / "source" / KEY).read_bytes() == shard
    assert (mounted.path / SHARD_OF_KEY[2]).read_bytes() == before[SHARD_OF_KEY[2]]
    (mounted.path / KEY).write_bytes(b"short")
    flush(mounted.path)
    mounted.unmount()
    again = mount(tmp_path / "source").path
    new = {KEY: b"short", NEIGHBOUR: bytes(600_000) + NEIGHBOUR.encode()}
    assert {key: (again / key).read_bytes() for key in before} == before | new


def test_a_file_that_is_written_cannot_be_mapped_shared(root: Path) -> None:
    for name in (KEY, f"{KEY}.partial"):
        with opened(root / name, os.O_RDWR | os.O_CREAT) as fd:
            os.pwrite(fd, bytes(NBYTES), 0)
            with refuses(errno.ENODEV):
                mmap.mmap(fd, NBYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


# Names


@pytest.mark.parametrize("way", ["chunk", "passthrough file", "array"])
def test_a_writer_of_a_chunk_that_is_renamed_gets_estale_and_nothing_is_lost(root: Path, way: str) -> None:
    (root / NEIGHBOUR).unlink()
    array = root.with_name("moved")
    moved = {"chunk": root / NEIGHBOUR, "passthrough file": root / "a.tmp"}.get(way, array / KEY)
    fds = [os.open(root / KEY, WHOLE) for _ in range(2)]
    for fd, data in zip(fds, (b"first", b"second"), strict=True):
        os.write(fd, data)
        os.fsync(fd)
    root.rename(array) if way == "array" else os.rename(root / KEY, moved)
    assert moved.read_bytes() == b"second"
    assert not (root / KEY).exists()
    for change in (partial(os.write, fds[0], b" more"), partial(os.ftruncate, fds[1], 0)):
        with refuses(errno.ESTALE):
            change()
    for fd in fds:
        os.close(fd)
    assert moved.read_bytes() == b"second"


def test_a_writer_of_a_file_that_was_renamed_onto_a_chunk_gets_estale(root: Path) -> None:
    with opened(root / "c/0/0.tmp", WHOLE) as fd:
        os.write(fd, b"whole")
        os.rename(root / "c/0/0.tmp", root / KEY)
        with refuses(errno.ESTALE):
            os.write(fd, b" and more")
    assert (root / KEY).read_bytes() == b"whole"


@pytest.mark.parametrize("name", [KEY, "zarr.json"])
def test_writes_to_a_replaced_file_are_not_seen(root: Path, name: str) -> None:
    old, beside = (root / name).read_bytes(), root / "beside"
    with beside.open("wb", buffering=0) as plain:
        os.rename(root / name, beside)
        os.rename(beside, root / name)
        plain.write(b"nowhere")
    assert (root / name).read_bytes() == old
    with (root / name).open("r+b", buffering=0) as replaced:
        beside.write_bytes(old)
        os.rename(beside, root / name)
        replaced.write(b"nowhere")
        assert os.pread(replaced.fileno(), 7, 0) == b"nowhere"
    assert (root / name).read_bytes() == old


def test_mode_and_time_are_set_on_the_open_file_not_its_name(root: Path) -> None:
    for name in ("old", "new"):
        (root / name).write_bytes(b"")
        (root / name).chmod(0o644)
    with opened(root / "old") as replaced, opened(root / "new") as renamed:
        os.rename(root / "new", root / "old")
        os.fchmod(replaced, 0o600)
        os.utime(replaced, ns=(1, 1))
        assert stat.S_IMODE(os.fstat(replaced).st_mode) == 0o600
        assert stat.S_IMODE((root / "old").stat().st_mode) == 0o644
        assert (root / "old").stat().st_mtime_ns != 1
        os.utime(renamed, ns=(1, 2))
        assert (root / "old").stat().st_mtime_ns == 2


def test_a_link_to_the_name_of_a_chunk_is_a_copy(root: Path) -> None:
    (root / KEY).unlink()
    (root / "plain").write_bytes(b"one")
    os.link(root / "plain", root / KEY)
    (root / "plain").write_bytes(b"two")
    assert (root / KEY).read_bytes() == b"one"
    with refuses(errno.EEXIST):
        os.link(root / "plain", root / KEY)


def test_directories_of_chunks_exist_throughout_the_grid_and_can_be_removed(root: Path) -> None:
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
    assert (root / "c/2").is_dir()  # not listed, but there all the same
    (root / "c/2/1").write_bytes(b"1" * NBYTES)
    assert os.listdir(root / "c") == ["2", "3"]  # as far as the shard goes
    assert [os.listdir(root / f"c/{row}") for row in (2, 3)] == [["1"], []]


def rename_by(flags: int, old: Path, new: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


NOREPLACE, EXCHANGE = 1, 2
REFUSED: dict[str, tuple[int, Callable[[Path], object]]] = {
    "a chunk outside the grid": (errno.EINVAL, lambda root: (root / "c/0/4").write_bytes(b"1")),
    "a chunk far outside the grid": (errno.EINVAL, lambda root: (root / "c/0/1000000000").write_bytes(b"1")),
    "a directory outside the grid": (errno.EINVAL, lambda root: os.mkdir(root / "c/4")),
    "a chunk in no directory": (errno.ENOENT, lambda root: (root / "c/4/0").write_bytes(b"1")),
    "a rename out of the grid": (errno.EINVAL, lambda root: os.rename(root / "notes", root / "c/0/4")),
    "a directory that has a chunk's name": (errno.EINVAL, lambda root: os.mkdir(root / "c/1/1")),
    "a link that has a chunk's name": (errno.EPERM, lambda root: os.symlink("1", root / "c/1/1")),
    "a file in place of a directory": (errno.EISDIR, lambda root: os.open(root / "c/0", os.O_WRONLY | os.O_CREAT)),
    "to unlink a directory": (errno.EISDIR, lambda root: os.unlink(root / "c/0")),
    "to remove a chunk as a directory": (errno.ENOTDIR, lambda root: os.rmdir(root / KEY)),
    "a second link to a chunk": (errno.EPERM, lambda root: os.link(root / KEY, root / "second")),
    "a second link to a document": (errno.EPERM, lambda root: os.link(root / "zarr.json", root / "second")),
    "to exchange names": (errno.EINVAL, lambda root: rename_by(EXCHANGE, root / KEY, root / NEIGHBOUR)),
    "a rename that may not replace": (errno.EEXIST, lambda root: rename_by(NOREPLACE, root / KEY, root / NEIGHBOUR)),
    "to move all chunks": (errno.EXDEV, lambda root: os.rename(root / "c", root / "d")),
    "to move a directory of chunks": (errno.EXDEV, lambda root: os.rename(root / "c/0", root / "c/1")),
    "to move one out of the array": (errno.EXDEV, lambda root: os.rename(root / "c/0", root / "zero")),
    "to move a directory among chunks": (errno.EXDEV, lambda root: os.rename(root / "folder", root / "c/0")),
    "a pipe": (errno.EPERM, lambda root: os.mkfifo(root / "pipe")),
    "a pipe among chunks": (errno.EPERM, lambda root: os.mkfifo(root / "c/0/pipe")),
    "an extended attribute": (errno.EOPNOTSUPP, lambda root: os.setxattr(root / KEY, "user.colour", b"blue")),
    "one of ours": (errno.EOPNOTSUPP, lambda root: os.setxattr(root / KEY, "user.shardfs.shard", b"elsewhere")),
    "a file named .shardfs": (errno.EPERM, lambda root: (root.parent / ".shardfs").write_bytes(b"")),
    "one among chunks": (errno.EPERM, lambda root: (root / "c/0/.shardfs").write_bytes(b"")),
    "a name of a temporary file": (errno.EPERM, lambda root: os.mkdir(root / ".shardfs-0123456789abcdef.tmp")),
    "one of its early form": (errno.EPERM, lambda root: (root / ".shardfs-a_z01234.tmp").write_bytes(b"")),
    "the name of a trial": (errno.EPERM, lambda root: (root / "c/.shardfs-probe-0123456789abcdef").write_bytes(b"")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_mount_refuses_changes_nothing(mounted: Mount, new_array: New, what: str) -> None:
    root = new_array(absent=[(1, 1)])
    (root / "notes").write_bytes(b"notes")
    (root / "folder").mkdir()
    before, directories = files_below(root), sorted(os.walk(root))
    number, refused = REFUSED[what]
    with refuses(number):
        refused(root)
    assert (files_below(root), sorted(os.walk(root))) == (before, directories)
    assert os.listxattr(root / KEY) == [f"user.shardfs.{name}" for name in ("shard", "offset", "nbytes")]
    assert (mounted.source / ".shardfs").exists()
    assert ".shardfs" not in os.listdir(mounted.path)
    assert not (mounted.path / ".shardfs").exists()


def test_mknod_makes_an_empty_file(root: Path) -> None:
    os.mknod(root / "new", 0o640 | stat.S_IFREG)
    with pytest.raises(FileExistsError):
        os.mknod(root / "new", 0o640 | stat.S_IFREG)
    assert ((root / "new").stat().st_mode, (root / "new").read_bytes()) == (0o640 | stat.S_IFREG, b"")


# Temporary files


def test_names_that_begin_like_ours_are_those_of_users(mount: Mounter, tmp_path: Path) -> None:
    if not shutil.which("rsync"):
        pytest.skip("rsync is not installed")
    plain, source = tmp_path / "plain", tmp_path / "source"
    for name in ("shardfs-notes.txt", ".shardfs-notes", "shardfs", ".shardfs.conf", "shardfs-folder/shardfs-0"):
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_text(name)
    store(source, DOCUMENT)
    before = files_below(plain)
    mounted = mount(source, write=True)
    tool("rsync", "-a", f"{plain}/", mounted.path / "copy/")
    assert files_below(mounted.path / "copy") == before
    mounted.unmount()
    assert files_below(source / "copy") == before


def test_temporary_files_are_kept_outside_the_dataset_and_survive_a_remount(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    stored = files_below(tmp_path / "source")
    first = mount(tmp_path / "source", write=True)
    names = ("c/notes", "c/0/0.partial", "c/0/.hidden")
    for name in names:
        (first.path / name).write_bytes(name.encode())
    first.unmount()
    outside = {name: data for name, data in files_below(tmp_path / "source").items() if ".shardfs" not in name}
    assert outside == stored
    second = mount(tmp_path / "source", write=True)
    assert sorted(os.listdir(second.path / "c/0")) == [".hidden", "0", "0.partial", "1", "2", "3"]
    for name in names:
        assert (second.path / name).read_bytes() == name.encode()
        (second.path / name).unlink()
    second.unmount()
    assert not (tmp_path / "source/.shardfs").exists()
