"""Programs that read and write shards natively, beside a mount that commits to them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.readers import READERS, assert_same
from tests.support.writers import assert_sound, flush

NCHUNKS = 16
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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


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
