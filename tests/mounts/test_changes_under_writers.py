"""Chunks that are written while their array is moved or resized, or while other programs change its shards."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import zarr

from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter

NBYTES = 24
KEYS = [f"c/{i}/{j}" for i in range(4) for j in range(4)]
FLUSH = "import os, sys; os.setxattr(sys.argv[1], 'user.shardfs.flush', b'')"


def flush(path: Path) -> None:
    """In a process of its own: threads of this one may keep it from answering."""
    subprocess.run([sys.executable, "-S", "-c", FLUSH, path], check=True, timeout=PATIENCE)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with one array of four shards of 2 × 2 inner chunks."""
    store(tmp_path / "source/0", array((8, 12), (4, 6), sharding((2, 3), LITTLE)))
    return tmp_path / "source"


@pytest.fixture
def root(mount: Mounter, source: Path) -> Path:
    """Where it is mounted; every change by other programs is seen at once."""
    return mount(source, write=True, metadata_ttl=0).path


@contextmanager
def written(directories: list[Path]) -> Iterator[dict[str, bytes]]:
    """Write chunks in the last of *directories* all the time, by four threads; yields what each chunk holds."""
    noted: dict[str, bytes] = {}
    end = Event()

    def write(keys: list[str]) -> None:
        count = 0
        while not end.is_set():
            for key in keys:
                count += 1
                try:
                    with open(directories[-1] / key, "r+b") as file:
                        file.write(b"%024d" % count)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ESTALE):
                        raise
                    continue  # the directory has just been moved, or the array resized, once more
                noted[key] = b"%024d" % count

    threads = [Thread(target=write, args=(KEYS[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield noted
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("change", ["moved", "resized"])
def test_writes_during_a_move_or_resize_are_not_lost(mount: Mounter, source: Path, change: str) -> None:
    root = mount(source, write=True).path
    directories = [root / "0"]
    document = json.loads((root / "0/zarr.json").read_text())
    with written(directories) as noted:
        for number in range(1, 9):
            time.sleep(0.05)
            if change == "moved":
                directories.append(directories[-1].rename(root / str(number)))
            else:
                (root / "0/new").write_text(json.dumps({**document, "shape": [8, 12 + 4 * (number % 5)]}))
                (root / "0/new").rename(root / "0/zarr.json")
    for _ in range(2):
        assert {key: (directories[-1] / key).read_bytes() for key in noted} == noted
        flush(root)


def store_natively(source: Path) -> None:
    """Let another program write the chunk `c/0/1` and the one before it."""
    zarr.open_array(source / "0")[0:2, 0:6] = np.frombuffer(b"new." * 12, "<i4").reshape(2, 6)


def test_chunks_written_before_and_after_a_native_resize_are_both_committed(source: Path, root: Path) -> None:
    (root / "0/c/0/0").write_bytes(b"1" * NBYTES)
    document = json.loads((source / "0/zarr.json").read_text())
    (source / "new").write_text(json.dumps({**document, "shape": [8, 24]}))
    os.rename(source / "new", source / "0/zarr.json")
    (root / "0/c/0/1").write_bytes(b"2" * NBYTES)
    flush(root)
    assert [(root / key).read_bytes() for key in ("0/c/0/0", "0/c/0/1")] == [b"1" * NBYTES, b"2" * NBYTES]


@pytest.mark.parametrize("is_native", [False, True])
def test_opening_a_chunk_gives_its_current_version_despite_older_handles(
    source: Path, root: Path, is_native: bool
) -> None:
    path = root / "0/c/0/1"
    old = path.read_bytes()
    with path.open("r+b", buffering=0) as older:
        if is_native:
            store_natively(source)
        else:
            path.write_bytes(b"new." * 6)
        with path.open("r+b", buffering=0) as other:
            assert other.read() == b"new." * 6
            os.pwrite(older.fileno(), b"1111", 0)
            os.pwrite(other.fileno(), b"2222", 8)
        assert path.read_bytes() == b"new.new.2222" + b"new." * 3
        assert os.pread(older.fileno(), 100, 0) == b"1111" + old[4:]
    assert path.read_bytes() == b"1111" + old[4:]


def test_a_whole_write_is_never_mixed_with_what_others_store_meanwhile(source: Path, root: Path) -> None:
    path = root / "0/c/0/1"
    with path.open("wb", buffering=0) as one:
        one.write(b"1" * 12)
        os.fsync(one.fileno())
        flush(root)
        store_natively(source)
        with path.open("r+b") as other:
            assert other.read() == b"new." * 6
        one.write(b"1" * 12)
    assert path.read_bytes() == b"1" * NBYTES
