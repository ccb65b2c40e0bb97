"""Programs that read and write shards natively, beside a mount that commits to them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

from shardfs.fuse.control import FLUSH
from tests.support.disks import loop_disk
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.processes import running
from tests.support.readers import READERS, assert_same
from tests.support.writers import assert_sound, flush, open_tensorstore

NCHUNKS = 16
NCOMMITS = 12
LENGTH = 20_000

WRITER = """
import sys, tensorstore
path, mode = sys.argv[1], sys.argv[2]
context = {"file_io_locking": {"mode": mode}}
spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + "/"}, "context": context}
array = tensorstore.open(spec, read=True, write=True).result()
turn = 0
print("ready", flush=True)
while not stop():
    turn += 1
    array[:20_000].write(turn).result()
print(turn, flush=True)
"""
STOP = """
import select, sys
def stop(): return bool(select.select([sys.stdin], [], [], 0)[0])
"""


def one_shard(source: Path) -> None:
    shape = (NCHUNKS * LENGTH,)
    zarr.create_array(str(source), shape=shape, shards=shape, chunks=(LENGTH,), dtype="i4", compressors=None)


@contextmanager
def native_writer(source: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """tensorstore that writes the first inner chunk again and again, until its input ends; it says how often."""
    command = [sys.executable, "-c", STOP + WRITER, str(source), mode]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def write_and_flush(mounted: Mount, number: int) -> None:
    (mounted.path / f"c/{number}").write_bytes(np.full(LENGTH, number, "i4").tobytes())
    flush(mounted)


@pytest.mark.parametrize("mode", ["os", "lockfile"])
def test_commits_and_native_writers_of_one_shard_lose_nothing(mount: Mounter, tmp_path: Path, mode: str) -> None:
    source = tmp_path / "source"
    one_shard(source)
    mounted = mount(source, write=True)
    with native_writer(source, mode) as process:
        for number in range(1, NCHUNKS):
            write_and_flush(mounted, number)
        turn, _ = process.communicate("", timeout=PATIENCE)
    expected = np.repeat(np.arange(NCHUNKS, dtype="i4"), LENGTH)
    expected[:LENGTH] = int(turn)
    for read in READERS.values():
        assert_same(read(source), expected)
    assert_same(READERS["zarr"](mounted.path), expected)
    mounted.unmount()
    assert_sound(source)
    assert sorted(path.name for path in source.rglob("*")) == ["0", "c", "zarr.json"]


READER = """
import os, sys
import google_crc32c
path, nbytes = sys.argv[1], int(sys.argv[2])
reads = torn = 0
print("ready", flush=True)
while not stop():
    for _ in range(20):
        fd = os.open(path, os.O_RDONLY)
        index = os.pread(fd, nbytes, os.fstat(fd).st_size - nbytes)
        os.close(fd)
        reads += 1
        torn += google_crc32c.value(index[:-4]).to_bytes(4, "little") != index[-4:]
print(reads, torn, flush=True)
"""


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of the kind that is asked for; "" is what the tests run on."""
    if not request.param:
        yield tmp_path
        return
    with loop_disk(request.param, tmp_path) as disk:
        yield disk


@pytest.mark.parametrize(
    ("place", "nchunks"), [("", 2**6), ("", 2**16), ("xfs", 2**12), ("btrfs", 2**14)], indirect=["place"]
)
def test_native_readers_find_a_whole_index_at_every_moment(place: Path, mount: Mounter, nchunks: int) -> None:
    source, nbytes = place / "source", 16 * nchunks + 4
    zarr.create_array(source, shape=(8 * nchunks,), shards=(8 * nchunks,), chunks=(8,), dtype="u1", compressors=None)
    zarr.open_array(source)[:8] = 1
    mounted = mount(source, write=True)
    command = [sys.executable, "-c", STOP + READER, str(source / "c/0"), str(nbytes)]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        for number in range(1, NCOMMITS):
            (mounted.path / f"c/{number}").write_bytes(bytes([number]) * 8)
            os.setxattr(mounted.path, FLUSH, b"")
        reads, torn = map(int, reader.communicate("", timeout=PATIENCE)[0].split())
    assert reads > 100
    assert torn == 0
    mounted.unmount()
    expected = [max(1, i // 8) for i in range(8 * NCOMMITS)]
    for opened in (zarr.open_array(source), open_tensorstore(source)):
        assert np.asarray(opened[: 8 * NCOMMITS]).tolist() == expected
