"""`shardfs flush`: what was written is in the shards when it returns, or it says why not."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Background
from tests.support.commands import FAILED, one_line_of, run
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.daemons import kill_daemon
from tests.support.datasets import store
from tests.support.mounting import Mounter
from tests.support.readers import READERS, read_zarr

CODECS = {
    "plain": [sharding((2, 3), LITTLE)],
    "index-at-start": [sharding((2, 3), LITTLE, index_location="start")],
    "nested": [sharding((4, 6), sharding((2, 3), LITTLE))],
    "gzip-around": [sharding((2, 3), LITTLE), GZIP],
}


def test_after_it_the_chunks_are_in_the_shards_natively(mount: Mounter, tmp_path: Path) -> None:
    values = {}
    for name, codecs in CODECS.items():
        store(tmp_path / "source" / name, array((8, 12), (4, 6), *codecs), absent=[(3, 3)])
        values[name] = read_zarr(tmp_path / "source" / name)
    root = mount(tmp_path / "source", write=True).path
    for number, key in enumerate(("c/0/0", "c/1/1", "c/3/3")):
        new = np.arange(100 * number, 100 * number + 6, dtype="<i4").reshape(2, 3)
        i, j = map(int, key.split("/")[1:])
        for name, expected in values.items():
            (root / name / key).write_bytes(new.tobytes())
            expected[2 * i : 2 * i + 2, 3 * j : 3 * j + 3] = new
    for name, expected in values.items():
        (root / name / "c/0/3").unlink()
        expected[0:2, 9:12] = 0
    done = run("flush", root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name, expected in values.items():
        assert np.array_equal(READERS["zarr"](tmp_path / "source" / name), expected)
        if name != "gzip-around":  # tensorstore knows no codec around shards
            assert np.array_equal(READERS["tensorstore"](tmp_path / "source" / name), expected)
        assert np.array_equal(read_zarr(root / name), expected)
    assert not list((tmp_path / "source/.shardfs/conflicts").iterdir())


def test_a_dead_mount_is_told_with_a_way_out_for_a_shell(background: Background, source: Path, place: Path) -> None:
    place = place.with_name("a place")
    place.mkdir()
    assert background("--write", source, place).returncode == 0
    kill_daemon(place)
    said = one_line_of(run("flush", place), FAILED)
    assert said == f"{place} could not be flushed: its daemon died; mount again, or run: shardfs umount '{place}'"
    assert run("umount", place).returncode == 0


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """Keep even root from changing a file."""
    done = subprocess.run(["chattr", "+i", path], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def test_what_cannot_be_committed_is_told_and_stays_pending_until_it_can(
    background: Background, source: Path, place: Path
) -> None:
    before = (source / "c/0/0").read_bytes()
    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(b"1" * 24)
    (place / "c/3/3").write_bytes(b"2" * 24)  # of another shard, which is not in its way
    (log,) = background.logs.glob("*.log")
    with immutable(source / "c/0/0"):
        said = one_line_of(run("flush", place), FAILED)
        assert said.startswith(f"{place} could not be flushed: ")
        assert said.endswith(f"; its log says more: {log}")
        assert (source / "c/0/0").read_bytes() == before
        assert (place / "c/0/0").read_bytes() == b"1" * 24
        assert b"2" * 24 in (source / "c/1/1").read_bytes()
    assert "1 chunk still pending: c/0/0" in log.read_text()
    assert run("flush", place).returncode == 0
    assert (source / "c/0/0").read_bytes().startswith(before)
    assert b"1" * 24 in (source / "c/0/0").read_bytes()


def test_new_shards_have_the_mode_of_their_chunks(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))), absent=list(np.ndindex(4, 4)))
    root = mount(tmp_path / "source", write=True).path
    fd = os.open(root / "c/0/0", os.O_WRONLY | os.O_CREAT, 0o640)
    os.write(fd, b"1" * 24)
    os.close(fd)
    assert not (tmp_path / "source/c/0/0").exists()
    assert run("flush", root).returncode == 0
    assert stat.S_IMODE((tmp_path / "source/c/0/0").stat().st_mode) == 0o640
