"""`shardfs umount`, and others who wait for a daemon: for how long, what they say, and what is true at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import shardfs
from tests.cli.conftest import Background
from tests.support.commands import FAILED, MOUNT_POINT, UNFINISHED, one_line_of, run
from tests.support.daemons import daemon_of, has_ended
from tests.support.datasets import files_below
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE, command, environment, mount_points

NEW = b"n" * 24
"""What tests write as a chunk; its bytes are nobody's business but the reader's."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def written(background: Background, source: Path, place: Path) -> int:
    """A mount with one chunk that is published and not committed; the process id of its daemon."""
    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(NEW)
    return daemon_of(place)


def stored(source: Path) -> bytes | None:
    return shardfs.open(source)[""].read_chunk((0, 0))


def await_unmounted(place: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while str(place) in mount_points():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def unmounting(place: Path, *options: str) -> subprocess.Popen[str]:
    """`shardfs umount` on its way; returns when the mount is gone."""
    process = subprocess.Popen(
        command("umount", *options, place), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    await_unmounted(place)
    return process


def test_a_stopped_daemon_is_waited_for_as_long_as_it_is_told_and_named(
    source: Path, place: Path, tmp_path: Path, written: int
) -> None:
    (tmp_path / "other").mkdir()
    with stopped(written), ThreadPoolExecutor() as threads:
        time.sleep(1.1)  # what the kernel remembers of the root is old by then: it asks the daemon for that, too
        names, ways = ("stats", "flush", "umount"), ([], ["--foreground"])
        asked = threads.map(lambda name: run(name, "--timeout", "1", place), names)
        mounted = threads.map(lambda options: run("mount", *options, tmp_path / "other", place), ways)
        for done in asked:
            line = one_line_of(done, UNFINISHED)
            assert "has not answered for 1 s" in line
            assert f"kill -CONT {written}" in line
        for done in mounted:
            line = one_line_of(done, MOUNT_POINT)
            assert line.startswith(f"{place} is a mount point already; ")
            assert f"kill -CONT {written}" in line
        assert str(place) in mount_points()
    line = one_line_of(run("mount", tmp_path / "other", place), MOUNT_POINT)
    assert line == f"{place} is a mount point already; unmount it with: shardfs umount {place}"
    assert (place / "c/0/0").read_bytes() == NEW
    assert run("stats", place).returncode == 0
    assert (run("umount", place).returncode, stored(source)) == (0, NEW)


def test_it_gives_up_when_nothing_moves_and_the_daemon_goes_on(source: Path, place: Path, written: int) -> None:
    daemon = os.pidfd_open(written)
    with kept_busy(source / "c/0/0"):
        done = run("umount", "--timeout", "4", place)  # time enough for a daemon to answer on a busy machine
        assert (done.returncode, done.stdout) == (UNFINISHED, "")
        said = done.stderr.splitlines()[-1]
        assert f"{place} is unmounted, but its daemon, process {written}," in said
        assert "1 chunk not in its shard" in said
        assert "it goes on" in said
        assert not has_ended(daemon)
    assert has_ended(daemon, PATIENCE)
    os.close(daemon)
    assert stored(source) == NEW


def test_a_daemon_that_is_killed_at_its_end_is_told_by_what_it_left(source: Path, place: Path, written: int) -> None:
    with kept_busy(source / "c/0/0"):
        process = unmounting(place)
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith(f"shardfs: {place}: 1 chunk is pending (24 B, since ")
        assert said.endswith(f"; waiting for the daemon, process {written}, to end\n")
        assert process.poll() is None
        os.kill(written, signal.SIGKILL)
        line = process.communicate(timeout=PATIENCE)[1].splitlines()[-1]
    assert process.returncode == FAILED
    assert "is unmounted, but not everything is in the shards (1 chunk not in its shard)" in line
    assert stored(source) != NEW
    assert run("recover", "--apply", source).returncode == 0
    assert stored(source) == NEW


@pytest.mark.parametrize("is_other", [False, True])
def test_it_says_so_where_it_cannot_see_what_a_daemon_writes(
    source: Path, place: Path, written: int, tmp_path: Path, is_other: bool
) -> None:
    other = tmp_path / "other directory"
    (other / ".shardfs").mkdir(parents=True)
    # Another container, in which another directory has the path of the source, or none.
    hide = f"mount --bind '{other}' '{source}'" if is_other else f"mount -t tmpfs none '{source}'"
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", hide + ' && exec "$@"', "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    with kept_busy(source / "c/0/0"):
        done = subprocess.run(
            [*prefix, *command("umount", place)], env=environment(), capture_output=True, text=True, check=False
        )
    line = one_line_of(done, UNFINISHED)
    assert f"{place} is unmounted, but {source}, which its daemon writes, cannot be seen from here" in line
    assert (run("umount", place).returncode, stored(source)) == (0, NEW)


def test_mounts_that_lie_one_over_the_other_all_go(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "place 2").mkdir()
    for from_, to in ((source, place), (tmp_path / "other", tmp_path / "place 2")):
        assert background("--write", from_, to).returncode == 0
    daemons = [os.pidfd_open(daemon_of(path)) for path in (place, tmp_path / "place 2")]
    (place / "c/0/0").write_bytes(NEW)
    # Two mounts that begin at the same moment come to lie like this.
    moved = subprocess.run(["mount", "--move", tmp_path / "place 2", place], capture_output=True, check=False)
    if moved.returncode:
        pytest.skip("mounts cannot be moved here")
    assert files_below(place) == {}
    done = run("umount", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(map(has_ended, daemons))
    for daemon in daemons:
        os.close(daemon)
    assert stored(source) == NEW
    assert os.listdir(place) == []


def test_a_busy_mount_stays_and_the_message_says_what_to_do(source: Path, place: Path, written: int) -> None:
    with open(place / "c/0/0", "rb"):
        line = one_line_of(run("umount", place), MOUNT_POINT)
        assert "it stays mounted" in line
        assert f"fuser -vm {place}" in line
        assert (place / "c/0/0").read_bytes() == NEW
    assert (run("umount", place).returncode, stored(source)) == (0, NEW)


@pytest.mark.parametrize("first", ["signal", "fusermount"])
def test_a_signal_does_not_end_a_daemon_that_ends_already(
    source: Path, place: Path, written: int, background: Background, first: str
) -> None:
    daemon = os.pidfd_open(written)
    (log,) = background.logs.glob("*.log")

    def await_log(text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in log.read_text():
            assert not has_ended(daemon, 0.01)
            assert time.monotonic() < deadline

    with kept_busy(source / "c/0/0"):
        if first == "signal":
            os.kill(written, signal.SIGTERM)
            await_log("unmounting on SIGTERM")
        else:
            subprocess.run(["fusermount3", "-u", place], check=True)
        for name in ("SIGTERM", "SIGINT"):
            os.kill(written, signal.Signals[name])
            await_log(f"{name} changes nothing, SIGKILL ends it now, and leaves that in the journal")
    assert has_ended(daemon, PATIENCE)
    os.close(daemon)
    assert str(place) not in mount_points()
    assert stored(source) == NEW
    assert not (source / ".shardfs").exists()
