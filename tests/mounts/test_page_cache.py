"""With `--page-cache`, whoever has a chunk open or mapped keeps its version, whatever others write meanwhile."""

import errno
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter, flush, refuses
from tests.support.processes import running

LOOK = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
print(flush=True)
for _ in sys.stdin:
    print(mapped[:].hex(), os.pread(fd, 2**20, 0).hex(), os.fstat(fd).st_size, flush=True)
"""
OLD, NEW = b"\1" * 6000, b"\2" * 9000  # in several pages, of which the last is not full

Steps = Iterator[None]
Write = Callable[[Path], Steps]


def _opened(path: Path, flags: int) -> Steps:
    fd = os.open(path, flags, 0o644)
    try:
        yield
        os.pwrite(fd, NEW, 0)
        yield
        os.fsync(fd)
        yield
        os.ftruncate(fd, 10)
        yield
    finally:
        os.close(fd)
    yield


def truncate_at_open(path: Path) -> Steps:
    yield from _opened(path, os.O_WRONLY | os.O_TRUNC)


def create(path: Path) -> Steps:
    yield from _opened(path, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)


def overwrite(path: Path) -> Steps:
    yield from _opened(path, os.O_RDWR)


def append(path: Path) -> Steps:
    yield from _opened(path, os.O_RDWR | os.O_APPEND)


def truncate_by_name(path: Path) -> Steps:
    os.truncate(path, 100)
    yield
    os.truncate(path, 8000)
    yield


def rename(path: Path) -> Steps:
    beside = path.with_name(f"{path.name}.0123456789abcdef.partial")
    beside.write_bytes(NEW)
    os.rename(beside, path)
    yield


@contextmanager
def reader(path: Path) -> Iterator[Callable[[], None]]:
    """A program that has a chunk open and mapped; yields what lets it look, and compares."""
    expected = path.read_bytes()
    line = [sys.executable, "-c", LOOK, str(path)]
    with running(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()

        def look() -> None:
            assert process.stdin
            assert process.stdout
            print(file=process.stdin, flush=True)
            found = process.stdout.readline().split()
            assert found == [expected.hex(), expected.hex(), str(len(expected))]

        look()
        yield look


@pytest.fixture
def chunk(mount: Mounter, tmp_path: Path) -> Path:
    store(tmp_path / "source", array((6000,), (6000,), sharding((3000,), LITTLE), data_type="uint8"))
    root = mount(tmp_path / "source", write=True, page_cache=True).path
    (root / "c/0").write_bytes(OLD)
    flush(root)
    return root / "c/0"


@pytest.mark.parametrize("is_published", [False, True], ids=["stored", "published"])
@pytest.mark.parametrize("write", [truncate_at_open, create, overwrite, append, truncate_by_name, rename])
def test_readers_keep_their_version_while_others_write(chunk: Path, write: Write, is_published: bool) -> None:
    if is_published:
        chunk.write_bytes(OLD[:-1])
    before = chunk.read_bytes()
    with reader(chunk) as look, reader(chunk) as look_too:
        for _ in write(chunk):
            look()
            look_too()
        after = chunk.read_bytes()
        assert after != before
        with reader(chunk) as look_at_new:
            for _ in write(chunk):
                look_at_new()
            look()


def test_who_opens_a_chunk_to_write_while_it_is_read_and_writes_nothing_changes_nothing(chunk: Path) -> None:
    with reader(chunk) as look:
        before = chunk.stat()
        with open(chunk, "r+b") as file:
            assert os.fstat(file.fileno()).st_ino == chunk.stat().st_ino != before.st_ino
            look()
            with chunk.open("rb") as other, refuses(errno.ENODEV):
                mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ)
            assert file.read() == OLD
        look()
        assert chunk.read_bytes() == OLD
        assert chunk.stat().st_mtime_ns == before.st_mtime_ns


def test_a_chunk_that_is_read_is_written_through_a_directory_of_an_earlier_shape(chunk: Path) -> None:
    """The kernel looks a name up once more for each open, so only one number on the way to a chunk may be stale."""
    document = chunk.parents[1] / "zarr.json"
    directory = os.open(chunk.parent, os.O_RDONLY)
    try:
        document.write_text(json.dumps(json.loads(document.read_text()) | {"shape": [3001]}))
        with reader(chunk) as look:
            fd = os.open(chunk.name, os.O_WRONLY | os.O_TRUNC, dir_fd=directory)
            os.write(fd, NEW)
            os.close(fd)
            look()
    finally:
        os.close(directory)
    assert chunk.read_bytes() == NEW


@pytest.mark.slow
@pytest.mark.parametrize("is_writing", [False, True])
def test_who_opens_a_version_with_a_number_that_was_used_before_does_not_get_pages_of_the_former(
    mount: Mounter, tmp_path: Path, is_writing: bool
) -> None:
    """The numbers of 1,023 versions differ. Who has one open keeps its pages in the kernel."""
    source = tmp_path / "source"
    store(source, array((8,), (4,), sharding((2,), index_codecs=[LITTLE]), data_type="uint8"))
    root = mount(source, page_cache=True, metadata_ttl=0, write=is_writing).path
    shard, data, status = source / "c/0", (source / "c/0").read_bytes(), (source / "c/0").stat()
    fd = os.open(root / "c/0", os.O_RDONLY)
    try:
        assert os.pread(fd, 10, 0) == data[:2]
        for turn in range(1023):
            assert (turn == 0) == ((root / "c/0").stat().st_ino == os.fstat(fd).st_ino)
            other = shard.with_suffix(".partial")
            other.write_bytes(bytes([turn % 256, 200]) + data[2:])
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(other, shard)
        assert (root / "c/0").stat().st_ino == os.fstat(fd).st_ino
        assert (root / "c/0").read_bytes() == bytes([1022 % 256, 200])
        assert os.pread(fd, 10, 0) == data[:2]
    finally:
        os.close(fd)
